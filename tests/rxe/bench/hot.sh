#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# In the guest: one hot lock of each kind, in turns. HOT_SIDES: words NAME=PREFIX, each with a dlockd
# and the libraries of one version of dlock. A line `NAME KIND CLIENTS|HOLD_US what…` each.
set -e
fabric=${HOT_FABRIC:-verbs}
port=21700
pids=
folder=$(mktemp -d)
trap 'kill $pids 2>/dev/null || true' EXIT

for side in $HOT_SIDES; do
    name=${side%%=*} prefix=${side#*=}
    LD_LIBRARY_PATH=$prefix/lib64 "$prefix/bin/dlockd" --listen 127.0.0.1 --port $port --state-file "$folder/state-$port" \
        ${RXE_VM_DEV:+--verbs on --device "$RXE_VM_DEV"} >"$folder/$name" 2>&1 &
    pids="$pids $!"
    tries=0
    until grep -q '^dlockd ready' "$folder/$name"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat "$folder/$name"; exit 1; }
        sleep 0.1
    done
    echo "$port" >"$folder/$name.port"
    port=$((port + 1))
done

hot() { # WHAT KIND CLIENTS|HOLD_US: the published locks where there is a device, then dlock's
    case $2 in
    cas | ticket | message)
        [ -n "${RXE_VM_DEV:-}" ] || return 0
        echo "$1 $2 - $3 $(LD_LIBRARY_PATH=$prefix/lib64 "$HOT" "$1" "$2" "$3" "$HOT_SECONDS")"
        ;;
    *)
        for side in $HOT_SIDES; do
            name=${side%%=*} prefix=${side#*=}
            echo "$1 $2 $name $3 $(DLOCK_FABRIC=$fabric LD_LIBRARY_PATH=$prefix/lib64 \
                "$HOT" "$1" "$2" "$3" "$HOT_SECONDS" "$(cat "$folder/$name.port")")"
        done
        ;;
    esac
}

round=0
while [ $round -lt "${ROUNDS:-1}" ]; do
    round=$((round + 1))
    for clients in ${HOT_CLIENTS:-2 4 8}; do
        for kind in ${HOT_KINDS:-cas atomic rw ticket fair}; do hot rate "$kind" "$clients"; done
    done
    for kind in ${HOT_KINDS:-cas atomic rw ticket fair}; do
        for clients in ${HOT_PRIVATE:-8}; do hot private "$kind" "$clients"; done
    done
    for hold in ${HOT_HOLDS:-0 100 1000 6000}; do
        for kind in ${HOT_KINDS:-cas atomic rw ticket fair message}; do
            hot handover "$kind" "$hold"
        done
    done
done
