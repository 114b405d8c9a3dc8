#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Clients on two hosts exclude each other over RDMA, through 1 % loss, 5 ms delay and a link that
# goes down for 10 s; every call ends, and all go on when the link is back.
# net: pair
set -e
# shellcheck source=tests/rxe/guest/hosts.sh
. tests/rxe/guest/hosts.sh
begin --verbs on --device "$RXE_VM_DEV"
bad_days verbs
