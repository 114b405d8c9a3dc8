#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The conformance suite of all executors on verbs, in one process and across several.
# net: pair
# here: yes
# limit: 200
set -e
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"${RXE_BIN:?}/tests/conformance-executors" verbs >"$said" 2>&1 ||
    { status=$?; cat "$said"; exit $status; }
sed -n 's/^test result: /  /p' "$said"
if grep -i skipped "$said"; then exit 1; fi
grep -q '^test .*verbs.*\.\.\. ok$' "$said"
