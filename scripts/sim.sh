#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The simulator: 100,000 schedules of the whole system, the table of planted bugs, the digest of
# traces on a debug and a release build, and the proof that nothing that is shipped has a planted
# bug in it. Under five minutes on two cores.
#   SCHEDULES=N   schedules (100000)      SEED=N   the first seed (1)
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== ${SCHEDULES:-100000} schedules"
cargo run --release --locked -p dlock-sim --bin sim -- \
    --seed "${SEED:-1}" --schedules "${SCHEDULES:-100000}" --report

apart="laps looks stale away strays lapses unfenced rules flood prepared standby jumps
    tokens tokens-few tokens-laps taken renewals renewals-any renewals-calm
    events heirs caches caches-any caches-tokens caches-taken"
for scenario in $apart; do # `all` does not draw these
    cargo run --release --locked -p dlock-sim --bin sim -- \
        --seed "${SEED:-1}" --schedules 10000 --scenario "$scenario"
done

echo "== planted bugs, traces of the release build"
# A folder of its own: no other crate is ever built with the planted bugs.
cargo test --release --locked -p dlock-sim --features planted --target-dir target/planted \
    --test planted --test system -- --nocapture

echo "== the second checker"
(cd tests/sim-linear && CARGO_TARGET_DIR=../../target/linear cargo test --locked)

echo "== nothing that is shipped has the feature"
tree=$(cargo tree --locked --workspace --edges features,normal,build)
if grep -q 'planted' <<<"$tree"; then
    echo "a crate of the workspace is built with planted bugs:" >&2
    grep 'planted' <<<"$tree" >&2
    exit 1
fi
