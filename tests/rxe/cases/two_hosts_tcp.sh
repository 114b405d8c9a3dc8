#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The same as two_hosts_verbs.sh with a primary without RDMA, and clients over TCP.
# net: pair
set -e
# shellcheck source=tests/rxe/guest/hosts.sh
. tests/rxe/guest/hosts.sh
begin --verbs off --no-shm
bad_days tcp
