# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh disable=SC2154
# For the cases of --net pair: a primary on the first host, workers (cases/exclusion.c) on both,
# and what happens to the cable between them. The second host is user 1001: his connections to the
# first one leave through r1 (guest/network.sh), as those of the second device do.
#
#   begin [OPTION...]               a primary, with these options of dlockd
#   worker HOST FABRIC              a client on host 1 or 2; they are numbered from 0
#   goes_on WHAT MORE               every worker takes every lock MORE times, soon
#   conclude                        ends the workers, checks the sums, ends the primary

port=21616
workers=0
pids=
folder=$(mktemp -d)
chmod 777 "$folder"
arena=$folder/arena
# User 1001 may not be permitted to look into the folders they were built and installed in.
cp "${RXE_BIN:?}/exclusion" "$RXE_BIN"/prefix/lib64/libdlock[cms].so.0 "$folder"
chmod 755 "$folder"/*
exclusion=$folder/exclusion
export LD_LIBRARY_PATH="$folder"
# Longer than any of them takes on a machine that does other things as well.
GO_ON_S=60
WORKER_S=600

begin() {
    "$RXE_BIN/dlockd" --listen "$RXE_VM_IP" --insecure --port $port --state-file none "$@" \
        >"$folder/ready" 2>"$folder/primary.log" &
    primary=$!
    tries=0
    until grep -q "^dlockd ready" "$folder/ready"; do
        tries=$((tries + 1))
        if [ $tries -gt 300 ] || ! kill -0 "$primary" 2>/dev/null; then
            echo "the primary does not start:"
            cat "$folder/ready" "$folder/primary.log"
            exit 1
        fi
        sleep 0.1
    done
    : >"$arena"
    chmod 666 "$arena"
}

worker() {
    host=$1 fabric=$2
    set -- "$exclusion" worker "$arena" $workers "$RXE_VM_IP" $port $WORKER_S
    if [ "$host" = 2 ]; then
        set -- setpriv --reuid=1001 --regid=1001 --clear-groups --inh-caps=-all "$@"
        [ "$fabric" = tcp ] || set -- "$@" "$RXE_VM_DEV2"
    else
        [ "$fabric" = tcp ] || set -- "$@" "$RXE_VM_DEV"
    fi
    DLOCK_FABRIC=$fabric "$@" >"$folder/worker.$workers" 2>&1 &
    pids="$pids $!"
    workers=$((workers + 1))
}

logs() {
    tail -n 15 "$folder"/worker.* "$folder/primary.log"
}

goes_on() { # WHAT, MORE
    if ! "$exclusion" progress "$arena" $workers "$2" $GO_ON_S >"$folder/progress"; then
        echo "$1: $(cat "$folder/progress")"
        logs
        exit 1
    fi
    sed "s/^  /  $1: /" "$folder/progress"
}

conclude() {
    DLOCK_FABRIC=tcp "$exclusion" check "$arena" $workers "$RXE_VM_IP" $port || { logs; exit 1; }
    failed=0
    for pid in $pids; do wait "$pid" || failed=1; done
    cat "$folder"/worker.*
    [ $failed = 0 ] || { echo "a worker has failed"; logs; exit 1; }
    kill -0 "$primary" || { echo "the primary is gone"; logs; exit 1; }
    kill "$primary"
    wait "$primary" || { echo "the primary ended with $?"; logs; exit 1; }
}

# The packets that have left the second host.
sent() { cat /sys/class/net/r1/statistics/tx_packets; }

cable() { # tc netem arguments, or nothing
    for link in r0 r1; do
        tc qdisc del dev $link root 2>/dev/null || :
        [ $# = 0 ] || tc qdisc add dev $link root netem "$@"
    done
}

# The whole story, by phases; each must bring every worker forward.
bad_days() { # FABRIC
    worker 1 "$1"
    worker 2 "$1"
    worker 2 "$1"
    goes_on "a good cable" 20
    before=$(sent)
    goes_on "a good cable, more" 20
    crossed=$(($(sent) - before))
    # 2 workers x 3 locks x 20 turns, each of them at least one packet.
    [ $crossed -ge 120 ] || { echo "only $crossed packets have crossed the cable"; exit 1; }
    cable loss 1%
    goes_on "1 % loss" 20
    cable delay 5ms
    goes_on "5 ms delay" 5
    cable delay 5ms loss 1%
    goes_on "5 ms delay and 1 % loss" 5
    cable
    goes_on "a good cable again" 10
    rxe-link r1 down
    # How long it is down is the test; nothing is waited for.
    sleep 10
    rxe-link r1 up
    goes_on "after 10 s without a link" 10
    conclude
}
