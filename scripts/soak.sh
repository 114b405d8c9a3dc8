#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The long runs, which `make test` has short versions of: hours. Ends with a table and the sum.
#   scripts/soak.sh            all
#   scripts/soak.sh NAME...    of: sim, renewals, fuzz, models, contention, exec, faults, chaos,
#                              mutants, planted, rxe
#   SCHEDULES=N        of the simulator (10000000)      SEED=N   the first seed (1)
#   FUZZ_SECONDS=N     for each fuzzer (3600)
#   DURATION=SECONDS   of each contention test in C (600)
# A new long run is a function and its name in `all`: one step each, with the seconds that it may
# go without progress (lib.sh); some print nothing until their end.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
all=(exec faults planted chaos contention rxe sim renewals fuzz models mutants)

soak_sim() {
    step "simulator, ${SCHEDULES:-10000000} schedules" 86400 \
        cargo run -q --release --locked -p dlock-sim --bin sim -- \
        --seed "${SEED:-1}" --schedules "${SCHEDULES:-10000000}" --report || true
}

# Schedules of an hour of their own time each.
soak_renewals() {
    local scenario
    for scenario in renewals renewals-any; do
        step "simulator, 1,000 hours of $scenario" 86400 \
            cargo run -q --release --locked -p dlock-sim --bin sim -- --scenario "$scenario" \
            --seconds 3600 --seed "${SEED:-1}" --schedules 1000 || true
    done
}

soak_fuzz() {
    if have c++; then
        step "fuzzers, ${FUZZ_SECONDS:-3600} s each" 86400 \
            tests/fuzz/run.sh all "${FUZZ_SECONDS:-3600}" || true
    else
        skip "fuzzers" "no C++ compiler for libFuzzer"
    fi
}

soak_models() {
    step "large models" 86400 scripts/models.sh large || true
}

soak_contention() {
    prefix="$scratch/prefix"
    if step "cmake build and install" 1500 scripts/cmake-install.sh "$scratch/cmake" "$prefix"; then
        step "contention, ${DURATION:-600} s each" 86400 \
            env DURATION="${DURATION:-600}" tests/c/run.sh "$prefix" contention || true
    fi
}

soak_rxe() {
    step "SoftRoCE, the long cases" 1800 \
        env STOPS=200 FAILOVERS=20 OPERATIONS=1000000 MIXED_S=300 DURATION=60 \
        DLOCK_PAUSES=20 tests/rxe/run.sh || true
}

# Every stage, kind of lock, direction and end of a network that stops.
soak_exec() {
    step "dlock exec behind a network that stops" 3600 \
        env DLOCK_SOAK=1 cargo test --locked -p dlock-cli --test exec a_network || true
}

# The whole table of dlock-cli/tests/faults: without strace it fails.
soak_faults() {
    step "what the system refuses" 7200 \
        env DLOCK_SOAK=1 cargo test --locked -p dlock-cli --test faults || true
}

soak_chaos() {
    step "faults around real processes, an hour" 5400 \
        scripts/chaos.sh --seconds 3600 --seed "${SEED:-1}" || true
    step "1,000 stops past the lease" 1200 scripts/chaos.sh stops 1000 || true
    step "200 kills of clients" 1200 scripts/chaos.sh kills 200 || true
    step "100 stops of the primary" 1200 scripts/chaos.sh frozen 100 || true
    step "clients silent for 10 minutes" 2400 scripts/chaos.sh silent 600 || true
    step "500 writers that stand still past their lease" 1200 \
        env DLOCK_PAUSES=100 cargo test --locked -p dlock-client --test paused_writer || true
    step "tokens over 300 failovers" 1200 \
        env DLOCK_SOAK=1 cargo test --locked -p dlock-client --test tokens || true
    step "renewals for 10 minutes, a primary killed every 20 s" 2400 scripts/chaos.sh renewed 600 || true
    step "500 deaths of clients" 1200 scripts/chaos.sh dead 500 || true
    step "fair locks without a fault, 10 minutes" 3600 scripts/chaos.sh fair 600 || true
}

# A sample of mutants of the core, drawn by the seed, with those of the critical functions.
soak_mutants() {
    step "mutants of the core" 86400 scripts/mutants.sh --critical --sample 400 \
        --seed "${SEED:-1}" --results "$scratch/mutants.txt" || true
}

# Each planted bug that unit tests alone find: a minute, most of it to build.
soak_planted() {
    step "planted bugs of unit tests" 1800 scripts/planted-units.sh || true
}

if [ $# = 0 ]; then set -- "${all[@]}"; fi
for name in "$@"; do
    if ! declare -F "soak_$name" >/dev/null; then
        echo "soak.sh: no run of the name '$name': ${all[*]}" >&2
        exit 2
    fi
done
begin
for name in "$@"; do
    "soak_$name"
done
finish ''
