#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs the unit tests of dlock-core once with each planted bug that they must find, named in the
# table of docs/verification.md: each run must fail.
set -euo pipefail
cd "$(dirname "$0")/.."

test_core() {
    cargo test -q --locked -p dlock-core --features planted-bugs --target-dir target/planted "$@"
}

test_core --no-run
test_core >/dev/null || { echo "the unit tests fail without a planted bug" >&2; exit 1; }
alive=0
for bug in $(sed -n '/^## Rules that nothing checked/,/^## Mutation/p' docs/verification.md |
    awk -F'|' 'NF > 4 { print $4 }' | grep -o '`[a-z-]*`' | tr -d '`'); do
    if DLOCK_PLANTED="$bug" test_core >/dev/null 2>&1; then
        echo "no unit test finds $bug"
        alive=1
    else
        echo "$bug: found"
    fi
done
exit "$alive"
