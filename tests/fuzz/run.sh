#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The fuzzers, with the stable toolchain and nothing else installed but a C++ compiler.
#   run.sh check                 type-checks all of them, as `make test` does
#   run.sh TARGET|all SECONDS    runs one, or all one after the other
#   run.sh unpack TARGET|all     the committed inputs, into $DLOCK_FUZZ_WORK/corpus/TARGET
#   run.sh minimise TARGET|all   what a run has found and the committed inputs, as few as cover as
#                                much, into the archive that is committed
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

targets() {
    if [ "$1" = all ]; then set -- frames config handshake arbiter client calls sealed tls_bytes; fi
    echo "$@"
}

# The committed inputs of a target, in a folder that nothing writes to.
unpack() { # TARGET
    rm -rf "$work/corpus/$1"
    mkdir -p "$work/corpus/$1" "$work/$1"
    tar -xJf "corpus/$1.tar.xz" -C "$work/corpus/$1"
}

# The same files give the same archive: no times, no owners, sorted.
pack() { # TARGET FOLDER
    (cd "$2" && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=r \
        --format=ustar -cf - -- *) | xz -9e -T1 >"corpus/$1.tar.xz.new"
    mv "corpus/$1.tar.xz.new" "corpus/$1.tar.xz"
}

# What libFuzzer makes of a folder it may write to and one it may not.
run() {
    local target=$1 seconds=$2
    unpack "$target"
    "$folder/$host/release/$target" "$work/$target" "$work/corpus/$target" \
        -max_total_time="$seconds" -max_len=4096 -timeout=60 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="$work/crash-$target-"
}

minimise() {
    local target=$1 file
    unpack "$target"
    rm -rf "$work/$target.min"
    mkdir "$work/$target.min"
    "$folder/$host/release/$target" -set_cover_merge=1 \
        "$work/$target.min" "$work/$target" "$work/corpus/$target"
    # Inputs with a name of their own are of mistakes that were found: they stay.
    for file in "$work/corpus/$target"/*; do
        [[ $(basename "$file") =~ ^[0-9a-f]{40}$ ]] || cp -f "$file" "$work/$target.min"
    done
    pack "$target" "$work/$target.min"
    echo "$target: $(find "$work/$target.min" -type f | wc -l) inputs in corpus/$target.tar.xz"
}

what=${1:?a target, all, check, unpack or minimise}
case $what in
    check)
        RUSTFLAGS="--cfg fuzzing" CARGO_TARGET_DIR="$folder" cargo check --locked --bins
        exit
        ;;
    unpack)
        for target in $(targets "${2:?a target, or all}"); do unpack "$target"; done
        exit
        ;;
esac
RUSTFLAGS="$coverage" CARGO_TARGET_DIR="$folder" \
    cargo build --release --locked --target "$host" --bins
case $what in
    minimise) for target in $(targets "${2:?a target, or all}"); do minimise "$target"; done ;;
    *) for target in $(targets "$what"); do run "$target" "${2:?seconds for each}"; done ;;
esac
