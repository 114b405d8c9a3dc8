#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The tests of every client, with TLS over sealed queue pairs.
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
# shellcheck source=tests/rxe/guest/tls.sh
. tests/rxe/guest/tls.sh
export DLOCK_FABRIC=sealed
for program in api ladders membership; do rust_tests dlock-client-$program; done
