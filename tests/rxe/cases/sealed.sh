#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Clients with TLS over sealed queue pairs: what they can do, rules, revocation, a successor;
# records that are not those that are due; the tests of every executor on this one; primaries
# that are killed under load, FAILOVERS of them (2).
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests conformance-executors sealed
rust_tests dlock-server-sealed
rust_tests dlock-client-sealed
chaos itself "${FAILOVERS:-2}" --fabric sealed --tls
