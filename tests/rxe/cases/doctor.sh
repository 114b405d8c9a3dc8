#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# dlock doctor: a device that can be used; one whose link is down; too little lockable memory; no
# library; no device.
# net: pair
set -e
dlock=${RXE_BIN:?}/dlock

# says STATUS TEXT... -- COMMAND...: the exit status, and each text in what it prints.
says() {
    wanted=$1
    shift
    : >/tmp/texts
    while [ "$1" != -- ]; do
        printf '%s\n' "$1" >>/tmp/texts
        shift
    done
    shift
    found=0
    "$@" >/tmp/said 2>&1 || found=$?
    [ "$found" = "$wanted" ] || { echo "$*: status $found, not $wanted"; cat /tmp/said; exit 1; }
    while read -r text; do
        grep -qF -- "$text" /tmp/said || { echo "$*: no '$text' in:"; cat /tmp/said; exit 1; }
    done </tmp/texts
}

says 0 "RDMA can be used: \`auto\` takes verbs on rxe0" "IBV_ATOMIC_HCA" "::ffff:10.77.0.2" \
    -- "$dlock" doctor
says 0 '"auto_in_tls": "shm, sealed or tcp"' '"device": "rxe1"' '"gid": "::ffff:10.77.0.2"' '"ready": true' \
    -- "$dlock" doctor --json --device rxe1
says 1 "no RDMA device rxe7; this host has: rxe0, rxe1" -- "$dlock" doctor --device rxe7

rxe-link r1 down
says 1 "RDMA cannot be used on rxe1" "none of its ports is active" \
    -- "$dlock" doctor --device rxe1
rxe-link r0 up
rxe-link r1 up
tries=0
until "$dlock" doctor --device rxe1 >/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "rxe1 is not usable again"; exit 1; }
    sleep 0.1
done

# Another user than root, who may lock 64 KiB.
# He may not be permitted to look into the folder it was built in.
copy=$(mktemp -d)
chmod 755 "$copy"
cp "$dlock" "$copy/dlock"
# shellcheck disable=SC3045 # dash and bash have it
ulimit -l 64
says 1 "64 KiB may be locked in memory" "LimitMEMLOCK" -- \
    setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$copy/dlock" doctor
says 0 "but not for root" -- "$dlock" doctor

# In a mount namespace of its own, where nothing is left of the library.
library=$(readlink -f "$(ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -n 1)")
says 1 "FAIL  library: " "libibverbs.so.1" "-> install" "dlock works without it" -- \
    unshare -m sh -c "mount --bind /dev/null '$library' && exec '$dlock' doctor"

put_back() { for n in 0 1; do rdma link add rxe$n type rxe netdev r$n; done; }
trap put_back EXIT
rdma link delete rxe0
rdma link delete rxe1
says 1 "no RDMA device" "rdma link add rxe0 type rxe netdev" "dlock works without it" \
    -- "$dlock" doctor
