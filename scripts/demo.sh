#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds and runs the guided tour; its exit status is 0 only if every property shown held.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
scripts/setup.sh
release_build -p dlock-cli
exec "$target_dir/release/dlock" demo "$@" </dev/null
