#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Two devices: FAA and SEND across the cable; with 1 % loss and 5 ms delay in either direction.
# net: pair
set -e
# shellcheck source=tests/rxe/guest/perftest.sh
. tests/rxe/guest/perftest.sh
command -v ib_atomic_lat >/dev/null || { echo "SKIP: perftest is not installed"; exit 77; }

line=$(perftest ib_atomic_lat -A FETCH_AND_ADD -n 1000)
echo "  FAA: median $(median "$line") us"
line=$(perftest ib_send_lat -n 1000)
echo "  SEND, half a round trip: median $(median "$line") us"

for i in r0 r1; do tc qdisc add dev $i root netem delay 5ms loss 1%; done
line=$(perftest ib_atomic_lat -A FETCH_AND_ADD -n 200)
echo "  FAA, 1 % loss and 5 ms delay: median $(median "$line") us"
# All of it has crossed the cable, twice.
[ "$(median "$line" | cut -d. -f1)" -ge 10000 ]
