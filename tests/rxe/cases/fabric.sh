#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The tests of dlock-fabric that need a device, some of them two: chains, messages, access rights,
# hostile clients, fencing.
# net: pair
# here: yes
# limit: 270
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests dlock-fabric-dlock_fabric verbs::
