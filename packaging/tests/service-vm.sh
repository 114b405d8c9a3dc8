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
TimeoutStartSec=540
StandardOutput=append:/srv/said
StandardError=append:/srv/said
ExecStart=/bin/bash /srv/service.sh
ExecStopPost=/bin/systemctl exit 0
END
export container=dlock
timeout 570 unshare --pid --mount --uts --ipc --cgroup --fork sh -c \
    "mount -t proc proc $root/proc
    exec chroot $root /lib/systemd/systemd --system --unit=service-test.service --show-status=no" || true
cat "$root/srv/said"
grep -q '^== done' "$root/srv/said"
