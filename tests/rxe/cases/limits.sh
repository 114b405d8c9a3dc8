#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# 1,000 verbs clients of one primary, one more refused, 51,200 locks, 500 leave and come back; and
# what a client costs.
# mem: 1536
# Everything takes longer here; the deadline of the program is against hanging.
export DLOCK_FABRIC=verbs DLOCK_TEST_SLOWNESS=5
said=$(mktemp)
highest=0 taken=0 locked=0
available() { awk '/^MemAvailable:/ { print $2 }' /proc/meminfo; }
before=$(available)
"${RXE_BIN:?}/c/limits" >"$said" 2>&1 &
program=$!
# Looks at what it takes until it ends; the most that was seen counts.
while kill -0 $program 2>/dev/null; do
    pairs=$(rdma -j resource show 2>/dev/null | sed -n 's/.*"qp":\([0-9]*\).*/\1/p' | head -n 1)
    if [ "${pairs:-0}" -gt "$highest" ]; then
        highest=$pairs
        taken=$((before - $(available)))
        locked=$(awk '/^VmPin:/ { print $2 }' /proc/$program/status)
    fi
    sleep 1
done
wait $program
status=$?
cat "$said"
# Each client has two queue pairs, and the primary as many for it.
if [ "$highest" -ge 400 ]; then
    echo "  a client costs $((taken * 4 / highest)) KiB, both sides and the kernel's part together;" \
        "$((locked * 4 / highest)) KiB count as locked"
fi
exit $status
