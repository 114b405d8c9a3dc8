#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds and runs the benchmark, the C API included. Arguments go to `dlock bench`.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
begin
{
    scripts/setup.sh
    release_build -p dlock-cli
    scripts/cmake-install.sh "$scratch/cmake" "$scratch/prefix"
    cc -std=c11 -O2 -Wall -Wextra -Werror -o "$scratch/cycle" benches/c/cycle.c \
        -I "$scratch/prefix/include/ub/umdk/ulock/dlock" \
        -L "$scratch/prefix/lib64" -ldlockc -ldlockm -Wl,-rpath,"$scratch/prefix/lib64"
} >&2
"$target_dir/release/dlock" bench --c-program "$scratch/cycle" "$@" </dev/null
