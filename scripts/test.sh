#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# All tests, one after the other, on this machine only (loopback and temporary folders; free
# ports, so that several checkouts can run at once). Ends with a table and the sum.
#   DURATION=SECONDS   of each contention test in C (12; `make soak` has long ones)
#   DLOCK_RXE_REQUIRED=1   a machine that cannot run the SoftRoCE suite has failed
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
begin
# Only the suite itself is meant: the tests outside of the virtual machine see no device.
rxe_required=${DLOCK_RXE_REQUIRED:-}
unset DLOCK_RXE_REQUIRED
scripts/setup.sh --rdma

prefix="$scratch/prefix"
if cargo nextest --version >/dev/null 2>&1; then
    # Most tests wait for processes, timers and leases: two at a time for each processor. Those that
    # calculate take two places (.config/nextest.toml).
    step "Rust tests (nextest)" 1500 \
        cargo nextest run --test-threads $((2 * $(nproc))) ${CI:+--profile ci} --workspace --locked --no-tests=fail || true
else
    step "Rust tests (cargo test)" 1500 \
        cargo test --workspace --lib --bins --tests --examples --locked --no-fail-fast || true
fi
step "simulator, planted bugs" 900 scripts/sim.sh || true
step "doc tests" 600 cargo test --workspace --doc --locked || true
step "memory order (loom)" 600 \
    cargo test --locked --manifest-path tests/loom/Cargo.toml -- --test-threads 1 || true
if [ -n "$(find "$(rustc --print sysroot)/lib/rustlib" -name 'librustc*_rt.tsan.a')" ]; then
    step "data races (ThreadSanitizer)" 900 scripts/races.sh || true
else
    skip "data races (ThreadSanitizer)" "this toolchain has no runtime of ThreadSanitizer"
fi
if have c++; then
    step "fuzzers compile" 900 tests/fuzz/run.sh build || true
else
    skip "fuzzers compile" "no C++ compiler for libFuzzer"
fi

if step "cmake build and install" 1500 scripts/cmake-install.sh "$scratch/cmake" "$prefix"; then
    # Each contention test: 3 s for each of its four kinds of use.
    step "C and C++ programs, shm and tcp" 900 \
        env DURATION="${DURATION:-12}" tests/c/run.sh "$prefix" || true
    step "C and C++ programs, TLS on tcp" 900 \
        env TLS=1 FABRIC=tcp DURATION=4 tests/c/run.sh "$prefix" || true
    if have valgrind; then
        step "C and C++ programs, valgrind" 600 env VALGRIND=1 tests/c/run.sh "$prefix" || true
    else
        skip "C and C++ programs, valgrind" "valgrind is not installed"
    fi
    step "exported symbols" 60 scripts/symbols.sh "$prefix" || true
    step "packages, the quick part" 300 scripts/packages-quick.sh "$prefix" \
        "$target_dir/debug/dlockd" || true
else
    skip "C and C++ programs" "the libraries could not be installed"
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
    step "verbs ABI${referee[*]:+ and ibverbs-sys}" 900 env CARGO_TARGET_DIR="$target_dir/verbs-abi" \
        cargo test --locked --manifest-path tests/verbs-abi/Cargo.toml --tests "${referee[@]}" || true
else
    skip "verbs ABI" "no <infiniband/verbs.h>: install libibverbs-dev or rdma-core-devel"
fi

# What the cases run has been built above; 15 minutes are for the cases themselves.
if [ -e "$prefix/lib64" ]; then export PREFIX=$prefix; fi
step "SoftRoCE in a virtual machine" 2400 \
    env DLOCK_RXE_REQUIRED="$rxe_required" tests/rxe/suite.sh || true
if compgen -G '/sys/class/infiniband/*' >/dev/null; then
    step "RDMA device of this machine" 1500 tests/rxe/run.sh --here || true
fi
finish ''
