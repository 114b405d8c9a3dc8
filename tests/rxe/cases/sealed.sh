#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Clients with TLS over sealed queue pairs: what they can do, rules, revocation, a successor;
# records that are not those that are due; and the tests of every executor on this one.
# net: pair
# here: yes
# rank: 1
# limit: 400
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests conformance-executors sealed
rust_tests dlock-server-sealed
rust_tests dlock-client-sealed
# shellcheck source=tests/rxe/guest/tls.sh
. tests/rxe/guest/tls.sh
export DLOCK_FABRIC=sealed
for program in api ladders membership; do rust_tests dlock-client-$program; done
