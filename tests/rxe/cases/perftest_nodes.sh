#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Two machines: FAA from node 1 to the memory of node 0.
# net: nodes
# shellcheck source=tests/rxe/guest/perftest.sh
. tests/rxe/guest/perftest.sh
command -v ib_atomic_lat >/dev/null || { echo "SKIP: perftest is not installed"; exit 77; }

both="ib_atomic_lat -A FETCH_AND_ADD -n 500 -d $RXE_VM_DEV -x $RXE_VM_GID_INDEX"
if [ "$RXE_VM_NODE" = 0 ]; then
    $both >/tmp/perftest.server 2>&1 || { cat /tmp/perftest.server; exit 1; }
    exit 0
fi
# The server may not listen yet: a refused client comes again, for 20 s.
tries=0
until $both "$RXE_VM_PEER_IP" >/tmp/perftest.client 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat /tmp/perftest.client; exit 1; }
    sleep 0.2
done
line=$(perftest_result) || exit 1
echo "  FAA: median $(median "$line") us"
