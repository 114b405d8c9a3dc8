#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# The interface of the primary's device goes down: control requests are refused with a status, all go
# on afterwards; if it stays down, the primary ends with one line in the log.
# net: pair
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
rust_tests dlock-client-device_down
