#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs the unit tests that tests/sim/planted-units.csv names, each with the planted bugs of its row,
# which it must find, and without, which it must pass.
set -euo pipefail
cd "$(dirname "$0")/.."

ROWS_MIN=20
table=tests/sim/planted-units.csv
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Of each row: its bugs, its file, its tests.
rows() {
    awk -F'; ' '!/^#/ { sub(/:/, "", $2); gsub(/,/, "", $2); print $1 " " $2 }' "$table"
}

# The tests of one file, by their names; the bug is in the environment.
run() {
    local target=(--lib)
    case $1 in tests/*) target=(--test "$(basename "$(dirname "$1")")") ;; esac
    shift
    # not optimised: these tests are short, and building them is not
    cargo test --locked -p dlock-core --features planted-bugs --target-dir target/planted \
        --config 'profile.dev.package.dlock-core.opt-level=0' \
        "${target[@]}" -- "$@" >"$log" 2>&1
}

fail() {
    echo "planted-units.sh: $*" >&2
    tail -n 40 "$log" >&2
    exit 1
}

number=0
while read -r bugs file tests; do
    read -ra names <<<"$tests"
    if [ ${#names[@]} = 0 ]; then fail "no test in the row of $bugs"; fi
    DLOCK_PLANTED='' run "$file" "${names[@]}" || fail "$file fails without a planted bug"
    grep -q "^test result: ok. ${#names[@]} passed" "$log" || fail "$file has not all of: ${names[*]}"
    for bug in ${bugs//,/ }; do
        grep -q "\"$bug\"" dlock-core/src/planted.rs || fail "there is no planted bug $bug"
        if DLOCK_PLANTED=$bug run "$file" "${names[@]}"; then fail "no test finds $bug"; fi
        grep -q '^test result: FAILED' "$log" || fail "the tests of $bug were not run"
        echo "progress: $bug: found"
        number=$((number + 1))
    done
done < <(rows)
[ "$number" -ge "$ROWS_MIN" ] || fail "$number planted bugs in $table: there are $ROWS_MIN at least"
echo "$number planted bugs of unit tests found"
