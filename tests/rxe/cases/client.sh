#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Primary and clients over verbs: verbs counted per operation, mixed clients, killed clients,
# stopped primaries; and the tests of every executor with a primary on the device, those of its
# command channels included.
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests dlock-client-verbs
rust_tests dlock-server-verbs
export DLOCK_FABRIC=verbs
for program in api ladders membership tokens; do rust_tests dlock-client-$program; done
rust_tests dlock-server-channels
