#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# 200,000 uncontended operations over verbs while the primary's process is stopped; it uses no
# CPU time meanwhile.
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/hosts.sh
. tests/rxe/guest/hosts.sh
begin --verbs on --device "$RXE_VM_DEV"
DLOCK_FABRIC=verbs "$RXE_BIN/stopped" "$RXE_VM_IP" $port "$primary" "${OPERATIONS:-100000}" ||
    { logs; exit 1; }
kill "$primary"
wait "$primary"
