#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Writers over verbs that are stopped for three times their lease, and then go on writing: a store
# refuses each of them by its token, and its unlock is told of the loss. DLOCK_PAUSES of each type
# of lock (2).
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
export DLOCK_FABRIC=verbs
rust_tests dlock-client-paused_writer --nocapture --test-threads 1
