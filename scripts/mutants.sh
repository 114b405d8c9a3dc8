#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Mutation testing of the core: cargo-mutants lists the mutants of dlock-core's operation, session,
# membership, lock, arbiter, primary and words; tests/mutants judges them by the unit tests, then
# the models, then 20,000 to 100,000 schedules of the simulator, and prints a table. It fails if a
# mutant survives that is not in tests/mutants/equivalent.txt, or if an entry there is out of date.
#   --critical     every mutant of the functions in tests/mutants/critical.txt
#   --sample N     N mutants, drawn by the seed          --seed S    the seed (1)
#   --shard K/N    the K-th of N parts of these          --minutes M begins no mutant after that
#   --resume       keeps the results so far (tests/mutants/results.txt), judges those that are left
#   --again        as --resume, and those again that had survived
#   --only TEXT    those whose name has TEXT in it       --quick     fewer schedules, no builds of one
#   --jobs N       so many at a time (2)                 --results FILE   other results
# Without --critical and --sample it prints the table of nothing: it checks the lists.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

version=25.3.1
tools="$target_dir/tools"
if ! "$tools/bin/cargo-mutants" mutants --version 2>/dev/null | grep -qF " $version"; then
    echo "installing cargo-mutants $version into $tools, which takes minutes"
    cargo install cargo-mutants --locked --quiet --version "$version" --root "$tools" </dev/null
fi
work="$target_dir/mutants"
mkdir -p "$work"
folders=()
for module in operation session membership lock arbiter primary; do
    folders+=(--file "dlock-core/src/$module/**")
done
"$tools/bin/cargo-mutants" mutants --list --json --file dlock-core/src/memory/words.rs "${folders[@]}" \
    >"$work/listing.json"
CARGO_TARGET_DIR="$work/tool" cargo build --quiet --release --locked \
    --manifest-path tests/mutants/Cargo.toml
exec nice "$work/tool/release/dlock-mutants" --listing "$work/listing.json" --work "$work" "$@"
