#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# All tests, on this machine only (loopback and temporary folders; free ports, so that several
# checkouts can run at once). Ends with a table and the sum. A step's number is
# how long it may go without progress (lib.sh).
#   DURATION=SECONDS   of each contention test in C (12; `make soak` has long ones)
#   DLOCK_RXE_REQUIRED=1   a machine that cannot run the SoftRoCE suite has failed
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
begin
# Only the suite itself is meant: the tests outside of the virtual machine see no device.
rxe_required=${DLOCK_RXE_REQUIRED:-}
unset DLOCK_RXE_REQUIRED
scripts/setup.sh --rdma

# The longest time without progress. It is generous: on a machine with ten others at work the
# longest silence of a quiet one, a minute, is ten.
quiet=900
prefix="$scratch/prefix"

# What strace has to deny would not be denied.
without=()
if ! strace -o /dev/null true 2>/dev/null; then
    skip "faults of the system (strace)" "strace is not installed, or may not trace"
    without=(--skip under_strace::)
fi
nextest=no
if cargo nextest --version >/dev/null 2>&1; then nextest=yes; fi
if [ $nextest = yes ]; then
    step "Rust tests, compiled" $quiet cargo nextest run --workspace --locked --no-run || true
else
    step "Rust tests, compiled" $quiet \
        cargo test --workspace --lib --bins --tests --examples --locked --no-run || true
fi
installed=no
suite=(env DLOCK_RXE_REQUIRED="$rxe_required")
programs=$scratch/c
if step "cmake build and install" $quiet scripts/cmake-install.sh "$scratch/cmake" "$prefix" &&
    step "C and C++ programs, compiled" $quiet env BUILD_ONLY="$programs" tests/c/run.sh "$prefix"; then
    installed=yes
    # tests/rxe/build.sh builds none of its own, and the fault suite no library.
    suite+=(PREFIX="$prefix" BUILT="$programs")
    export DLOCK_PREFIX="$prefix"
fi
if [ $nextest = yes ]; then
    # Most tests wait for processes, timers and leases: three at a time for each processor. Those
    # that calculate take three places (.config/nextest.toml).
    step "Rust tests (nextest)" $quiet \
        cargo nextest run --test-threads $((3 * $(nproc))) --workspace --locked --no-tests=fail \
        --status-level pass -- ${without[@]+"${without[@]}"} || true
else
    step "Rust tests (cargo test)" $quiet \
        cargo test --workspace --lib --bins --tests --examples --locked --no-fail-fast \
        -- ${without[@]+"${without[@]}"} || true
fi
if [ $installed = yes ]; then
    # Each contention test: 3 s for each of its four kinds of use.
    beside "C and C++ programs, TLS on tcp" $quiet \
        env BUILT="$programs" TLS=1 FABRIC=tcp DURATION=4 tests/c/run.sh "$prefix"
    step "C and C++ programs, shm and tcp" $quiet \
        env BUILT="$programs" DURATION="${DURATION:-12}" tests/c/run.sh "$prefix" || true
    collect "C and C++ programs, TLS on tcp"
    if have valgrind; then
        step "C and C++ programs, valgrind" $quiet \
            env BUILT="$programs" VALGRIND=1 tests/c/run.sh "$prefix" || true
    else
        skip "C and C++ programs, valgrind" "valgrind is not installed"
    fi
    step "exported symbols" $quiet scripts/symbols.sh "$prefix" || true
    step "packages, the quick part" $quiet packaging/tests/quick.sh "$prefix" \
        "$target_dir/debug/dlockd" || true
else
    skip "C and C++ programs" "the libraries could not be installed, or the programs not compiled"
fi
if have python3; then
    step "alerts and dashboard (Prometheus)" $quiet tests/deploy/run.py "$target_dir/debug" || true
else
    skip "alerts and dashboard (Prometheus)" "python3 is not installed"
fi
step "simulator, planted bugs" $quiet scripts/sim.sh || true
step "memory order (loom)" $quiet \
    cargo test --locked --manifest-path tests/loom/Cargo.toml -- --test-threads 1 || true
if [ -n "$(find "$(rustc --print sysroot)/lib/rustlib" -name 'librustc*_rt.tsan.a')" ]; then
    step "data races (ThreadSanitizer)" $quiet scripts/races.sh || true
else
    skip "data races (ThreadSanitizer)" "this toolchain has no runtime of ThreadSanitizer"
fi
if have c++; then
    step "fuzzers (type check)" $quiet tests/fuzz/run.sh check || true
else
    skip "fuzzers (type check)" "no C++ compiler for libFuzzer"
fi

# The binding of libibverbs against the C header; where bindgen can work (libclang), also against
# the one that ibverbs-sys makes, which compiles rdma-core.
if echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1; then
    referee=()
    if ldconfig -p | grep -qE 'libclang(-[0-9.]+)?\.so' && have python3 &&
        pkg-config --exists libnl-3.0 libnl-route-3.0; then
        referee=(--features ibverbs-sys)
    else
        skip "verbs ABI against ibverbs-sys" "no libclang, libnl-3 or libnl-route-3"
    fi
    step "verbs ABI${referee[*]:+ and ibverbs-sys}" $quiet env CARGO_TARGET_DIR="$target_dir/verbs-abi" \
        cargo test --locked --manifest-path tests/verbs-abi/Cargo.toml --tests "${referee[@]}" || true
else
    skip "verbs ABI" "no <infiniband/verbs.h>: install libibverbs-dev or rdma-core-devel"
fi

step "doc tests" $quiet cargo test --workspace --doc --locked || true
# What the cases run has been built above. Beside others the emulated machine is too slow: its
# primaries do not answer in time.
step "SoftRoCE in a virtual machine" $quiet "${suite[@]}" tests/rxe/run.sh || true
if compgen -G '/sys/class/infiniband/*' >/dev/null; then
    step "RDMA device of this machine" $quiet tests/rxe/run.sh --here || true
fi
finish ''
