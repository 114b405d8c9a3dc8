#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Release build of everything, in cargo's target folder. CMake and the demo use the same build.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
scripts/setup.sh
release_build
echo "built: $target_dir/release/dlockd, $target_dir/release/dlock and the C libraries"
