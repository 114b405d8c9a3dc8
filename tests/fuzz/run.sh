#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The fuzzers, with the stable toolchain and nothing else installed but a C++ compiler.
#   run.sh build                 compiles all of them, as CI does, without optimisation
#   run.sh TARGET|all SECONDS    runs one, or all one after the other
#   run.sh minimise TARGET|all   what a run has found and the committed corpus, merged
#   DLOCK_FUZZ_WORK=FOLDER       where inputs that are found go (target/work)
#   ASAN=1                       with AddressSanitizer, two to four times slower
set -euo pipefail
cd "$(dirname "$0")"
work=${DLOCK_FUZZ_WORK:-target/work}
host=$(rustc -vV | sed -n 's/^host: //p')
[ -t 1 ] || export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never

# The coverage instrumentation is LLVM's; libFuzzer itself comes with the crate libfuzzer-sys.
coverage="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=4"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage="$coverage -Cllvm-args=-sanitizer-coverage-$option"
done
folder=target/fuzz
if [ -n "${ASAN:-}" ]; then
    # The runtime comes with the toolchain; the option is unstable.
    export RUSTC_BOOTSTRAP=1
    coverage="$coverage -Zsanitizer=address"
    folder=target/fuzz-asan
fi

build() { # PROFILE
    RUSTFLAGS="$coverage" CARGO_TARGET_DIR="$folder" \
        cargo build --profile "$1" --locked --target "$host" --bins
}

targets() {
    if [ "$1" = all ]; then set -- frames config handshake arbiter client calls; fi
    echo "$@"
}

# What libFuzzer makes of a folder it may write to and one it may not.
run() {
    local target=$1 seconds=$2
    mkdir -p "$work/$target"
    "$folder/$host/release/$target" "$work/$target" "corpus/$target" \
        -max_total_time="$seconds" -max_len=4096 -timeout=60 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="$work/crash-$target-"
}

minimise() {
    local target=$1
    mkdir -p "$work/$target"
    rm -rf "$work/$target.min"
    mkdir "$work/$target.min"
    "$folder/$host/release/$target" -set_cover_merge=1 \
        "$work/$target.min" "$work/$target" "corpus/$target"
    echo "$target: $(find "$work/$target.min" -type f | wc -l) inputs in $work/$target.min"
}

what=${1:?a target, all, build or minimise}
if [ "$what" = build ]; then
    build dev
    exit
fi
build release
case $what in
    minimise) for target in $(targets "${2:?a target, or all}"); do minimise "$target"; done ;;
    *) for target in $(targets "$what"); do run "$target" "${2:?seconds for each}"; done ;;
esac
