#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Packs the crates that could be published, and fails on a warning. Nothing is uploaded or built.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
minor=$(cargo --version | cut -d. -f2)
if [ "$minor" -lt 90 ]; then # it cannot pack crates that need each other
    echo "skipped: cargo is older than 1.90"
    exit 77
fi
crates=()
for crate in core fabric client server cli-common bench cli; do crates+=(-p "dlock-$crate"); done
said=$(cargo package --no-verify --allow-dirty --locked "${crates[@]}" 2>&1) || {
    echo "$said"
    exit 1
}
if grep -A 3 '^warning' <<<"$said"; then exit 1; fi
echo "$((${#crates[@]} / 2)) passed, 0 failed"
