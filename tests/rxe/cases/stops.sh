#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Clients over verbs that are stopped in the midst of a wait until their leases are over: none is
# told success for a lease that has ended. STOPS of them (50).
# net: pair
# here: yes
# limit: 300
set -e
said=$(DLOCK_FABRIC=verbs "${RXE_BIN:?}/chaos" stops "${STOPS:-50}" \
    --stopped 5 --fabric verbs 2>&1) || {
    echo "$said"
    exit 1
}
echo "$said" | sed 's/^/  /'
