#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The tests of dlock-fabric that need a device, some of them two: chains, messages, access rights,
# hostile clients, fencing.
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests dlock-fabric-dlock_fabric verbs::
# What is under way on a slow network when its time is over.
if [ -n "${RXE_VM_DEV2:-}" ]; then
    tc qdisc add dev r1 root netem delay 5ms
    DLOCK_TEST_DELAYED=1 rust_tests dlock-fabric-dlock_fabric given_up
    tc qdisc del dev r1 root
fi
