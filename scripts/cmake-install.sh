#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds with CMake as a user of the original would, and installs: BUILD_FOLDER PREFIX, and further
# arguments of cmake. Cargo's target folder is the repository's own, so that nothing is compiled twice.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
build=$1 prefix=$2
shift 2
cmake -S "$root" -B "$build" -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_ALL=disable -DBUILD_DLOCK=enable -DBUILD_TESTING=OFF -DCMAKE_INSTALL_MESSAGE=NEVER \
    -DDLOCK_CARGO_TARGET_DIR="$target_dir" "$@"
MAKEFLAGS=--no-print-directory cmake --build "$build"
cmake --install "$build"
