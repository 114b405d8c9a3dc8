#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The C and C++ programs of tests/c that configure TLS, over sealed queue pairs.
# net: pair
# here: yes
bin=${RXE_BIN:?}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# Everything takes longer here; the deadlines of the programs are against hanging.
TLS=1 FABRIC=sealed BUILT=$bin/c DURATION="${DURATION:-1}" DLOCK_TEST_SLOWNESS=5 bash tests/c/run.sh "$bin/prefix" |
    sed -u -E 's/^([0-9]+ passed.*)/  \1/' | tee "$said"
tail -n 1 "$said" | grep -Eq '^  [1-9][0-9]* passed, 0 failed'
