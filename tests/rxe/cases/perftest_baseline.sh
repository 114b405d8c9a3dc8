#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The baseline of every latency of dlock on verbs: perftest on one device.
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/perftest.sh
. tests/rxe/guest/perftest.sh
command -v ib_atomic_lat >/dev/null || { echo "SKIP: perftest is not installed"; exit 77; }

# Of the pair, the first one with itself.
RXE_VM_DEV2='' RXE_VM_GID_INDEX2=''
baseline() { # name, program and arguments
    name=$1
    shift
    line=$(perftest "$@")
    echo "  $name: median $(median "$line") us"
}
baseline FAA ib_atomic_lat -A FETCH_AND_ADD -n 2000
baseline CAS ib_atomic_lat -A CMP_AND_SWAP -n 2000
baseline "SEND, half a round trip" ib_send_lat -n 2000
