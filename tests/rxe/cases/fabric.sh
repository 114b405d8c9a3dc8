#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The tests of dlock-fabric that need a device, some of them two; none may be skipped.
# net: pair
# here: yes
# limit: 120
set -e
"${RXE_BIN:?}/tests/dlock-fabric-dlock_fabric" verbs:: >/tmp/rust-tests.$$ 2>&1 ||
    { status=$?; cat /tmp/rust-tests.$$; exit $status; }
sed -n 's/^test result: /  /p' /tmp/rust-tests.$$
# On one device alone those of two are skipped.
[ -n "${RXE_VM_DEV2:-}" ] || exit 0
if grep -i '^skipped' /tmp/rust-tests.$$; then exit 1; fi
