#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck disable=SC2016,SC2154 # $ in single quotes is for the inner shell
# In the guest: several cases one after the other. Each runs in a process namespace that ends with
# it, so that it leaves nothing running; the links are put back.
# After each comes a line "$MARK STATUS SECONDS"; MARK is chosen by run.sh.
exec 2>&1
for file in "$@"; do
    read -r begin _ </proc/uptime
    # Process 1 of the namespace is a shell, which reaps what others leave behind.
    unshare --fork --pid --mount-proc --kill-child /bin/sh -c \
        '/bin/sh "$1" </dev/null; exit $?' several "$file"
    status=$?
    read -r end _ </proc/uptime
    for link in r0 r1; do
        [ -e /sys/class/net/$link ] || continue
        tc qdisc del dev $link root 2>/dev/null
        [ "$(cat /sys/class/net/$link/operstate)" = up ] || rxe-link $link up
    done
    echo "$MARK $status $((${end%.*} - ${begin%.*}))"
done
