#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs libFuzzer: run.sh TARGET|all SECONDS, or compiles every fuzzer: run.sh build.
set -euo pipefail
cd "$(dirname "$0")"
export RUSTC_BOOTSTRAP=1 # cargo-fuzz passes unstable flags
work=${DLOCK_FUZZ_WORK:-target/work}
targets="frames config handshake arbiter client calls"
what=${1:?a target, all, or build}
if [ "$what" = build ]; then
    exec cargo fuzz build --fuzz-dir .
fi
seconds=${2:?seconds for each target}
if [ "$what" != all ]; then targets=$what; fi
for target in $targets; do
    mkdir -p "$work/$target" "$work/$target.min"
    cargo fuzz run --fuzz-dir . "$target" "$work/$target" "corpus/$target" -- \
        -fork=0 -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=3000
    rm -f "$work/$target.min"/*
    cargo fuzz run --fuzz-dir . "$target" -- \
        -set_cover_merge=1 "$work/$target.min" "$work/$target" "corpus/$target"
done
