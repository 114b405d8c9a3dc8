#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Process 1's work in the virtual machine of tests/rxe: starts systemd in ROOT, a root of Debian's with the
# packages, in namespaces of its own; there service.sh runs as a unit, and ends it.
set -eu
root=$1
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs run "$root/run"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
chmod 666 /dev/infiniband/uverbs* # as the rules of rdma-core's udev do
cat >"$root/etc/systemd/system/service-test.service" <<'END'
[Unit]
Requires=basic.target
After=basic.target
[Service]
Type=oneshot
LimitMEMLOCK=infinity
TimeoutStartSec=1350
StandardOutput=append:/srv/said
StandardError=append:/srv/said
ExecStart=/bin/bash /srv/service.sh
ExecStopPost=/bin/systemctl exit 0
END
export container=dlock
: >"$root/srv/said"
tail -f "$root/srv/said" &
says=$!
# The root of a mount namespace, because systemd makes others of it.
timeout 1400 unshare --pid --mount --uts --ipc --cgroup --fork sh -c "
    mount --rbind $root $root
    mount -t proc proc $root/proc
    cd $root
    pivot_root . mnt
    umount -l /mnt
    exec /lib/systemd/systemd --system --unit=service-test.service --show-status=no" || true
sleep 1
kill "$says"
grep -q '^== done' "$root/srv/said"
