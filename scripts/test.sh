#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# All tests, one after the other, on this machine only (loopback and temporary folders; free
# ports, so that several checkouts can run at once). Ends with a table and the sum.
#   DURATION=SECONDS   of each contention test in C (40)
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
begin
scripts/setup.sh

prefix="$scratch/prefix"
if cargo nextest --version >/dev/null 2>&1; then
    step "Rust tests (nextest)" 1500 \
        cargo nextest run --workspace --locked --no-tests=fail || true
else
    step "Rust tests (cargo test)" 1500 \
        cargo test --workspace --lib --bins --tests --examples --locked --no-fail-fast || true
fi
step "simulator, planted bugs" 900 scripts/sim.sh || true
step "doc tests" 600 cargo test --workspace --doc --locked || true

if step "cmake build and install" 1500 scripts/cmake-install.sh "$scratch/cmake" "$prefix"; then
    # Each contention test: 10 s for each of its four kinds of use.
    step "C and C++ programs, shm and tcp" 900 \
        env DURATION="${DURATION:-40}" tests/c/run.sh "$prefix" || true
    if have valgrind; then
        step "C and C++ programs, valgrind" 600 env VALGRIND=1 tests/c/run.sh "$prefix" || true
    else
        skip "C and C++ programs, valgrind" "valgrind is not installed"
    fi
    step "exported symbols" 60 scripts/symbols.sh "$prefix" || true
else
    skip "C and C++ programs" "the libraries could not be installed"
fi
finish ''
