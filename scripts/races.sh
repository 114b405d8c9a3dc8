#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# ThreadSanitizer on the fabric's tests: shared memory, its executor, streams, threads. The stable
# toolchain ships the runtime; the standard library is not instrumented, so that what happens
# inside of it is not seen. What is suppressed is in races.supp.
#   scripts/races.sh            dlock-fabric
#   scripts/races.sh PACKAGE... the libraries' own tests of others
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
host=$(rustc -vV | sed -n 's/^host: //p')
runtime=$(find "$(rustc --print sysroot)/lib/rustlib/$host/lib" -name 'librustc*_rt.tsan.a' | head -1)
if [ -z "$runtime" ]; then
    echo "this toolchain has no runtime of ThreadSanitizer"
    exit 77
fi
export RUSTC_BOOTSTRAP=1 # the option is unstable
export CARGO_TARGET_DIR="$target_dir/tsan"
# ThreadSanitizer sees system calls that go through the C library. By default rustix makes its own.
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Copt-level=1 --cfg rustix_use_libc"
export TSAN_OPTIONS="suppressions=$root/scripts/races.supp halt_on_error=0 exitcode=66"
if [ $# = 0 ]; then set -- dlock-fabric; fi
# Its runtime ends a child of a process with threads that begins a thread itself.
for package in "$@"; do
    cargo test --locked --target "$host" -p "$package" --lib -- \
        --skip a_process_lives_whose_first_thread_has_ended \
        --skip a_forked_child_delivers_its_own_lines
done
