#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The C and C++ programs of tests/c over verbs, built on the host against an installed prefix.
# net: pair
# here: yes
# limit: 240
bin=${RXE_BIN:?}
# Everything takes longer here; the deadlines of the programs are against hanging.
FABRIC=verbs BUILT=$bin/c DURATION=4 DLOCK_TEST_SLOWNESS=5 \
    bash tests/c/run.sh "$bin/prefix" >/tmp/c-programs.$$ 2>&1
status=$?
[ $status = 0 ] || cat /tmp/c-programs.$$
sed -n '$s/^/  /p' /tmp/c-programs.$$
rm -f /tmp/c-programs.$$
exit $status
