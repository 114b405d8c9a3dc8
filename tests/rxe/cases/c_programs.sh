#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The C and C++ programs of tests/c over verbs, built on the host against an installed prefix.
# net: pair
# here: yes
bin=${RXE_BIN:?}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# Everything takes longer here; the deadlines of the programs are against hanging.
FABRIC=verbs BUILT=$bin/c DURATION="${DURATION:-1}" DLOCK_TEST_SLOWNESS=5 bash tests/c/run.sh "$bin/prefix" |
    sed -u -E 's/^([0-9]+ passed.*)/  \1/' | tee "$said"
tail -n 1 "$said" | grep -Eq '^  [1-9][0-9]* passed, 0 failed'
