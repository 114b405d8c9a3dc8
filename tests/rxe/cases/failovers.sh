#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Primaries on a device that end in the midst of it, and successors with fresh memory: killed
# (clients driven by hand, and clients that find the successor by themselves), or stopped while
# another takes their place, and then going on. Nothing is lost, nothing is held twice, nothing
# that was posted to the old one counts. FAILOVERS of each (3).
# net: pair
# here: yes
set -e
# shellcheck source=tests/rxe/guest/rust.sh
. tests/rxe/guest/rust.sh
for program in failovers itself deposed; do
    chaos "$program" "${FAILOVERS:-3}" --fabric verbs
done
