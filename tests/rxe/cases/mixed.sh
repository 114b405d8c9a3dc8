#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Verbs and TCP clients of one primary on the same locks, on two hosts, for MIXED_S seconds (20).
# net: pair
set -e
# shellcheck source=tests/rxe/guest/hosts.sh
. tests/rxe/guest/hosts.sh
begin --verbs on --device "$RXE_VM_DEV"
worker 1 verbs
worker 1 tcp
worker 2 verbs
worker 2 tcp
sleep "${MIXED_S:-20}" # the length of the test
goes_on "both kinds" 20
conclude
