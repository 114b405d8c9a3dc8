#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Clients over verbs that are stopped in the midst of a wait until their leases are over: none is
# told success for a lease that has ended. STOPS of them (20).
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
chaos stops "${STOPS:-20}" --stopped 5 --fabric verbs
