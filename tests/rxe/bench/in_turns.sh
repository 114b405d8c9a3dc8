#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# In the guest: every measurement once per round, in turns; a line `NAME VALUE` each.
set -e
# shellcheck source=tests/rxe/guest/perftest.sh
. tests/rxe/guest/perftest.sh
# Everything on the first device, as the primary and its client are.
RXE_VM_DEV2='' RXE_VM_GID_INDEX2=''
redis-server --port 6400 --bind 127.0.0.1 --save '' --appendonly no --daemonize no >/tmp/redis.log &
redis=$!
tries=0
until redis-cli -p 6400 ping >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { cat /tmp/redis.log; exit 1; }
    sleep 0.1
done

# The medians, in nanoseconds, of the cases of dlock bench whose name contains $1.
dlock() {
    "${DLOCK:?}" bench --quick --json --fabric verbs --only "$1" 2>/tmp/bench.err ||
        { cat /tmp/bench.err >&2; return 1; }
}
# cases NAME < JSON: lines `dlock NAME OF CASE: MEDIAN RATE FLOOR`.
cases() {
    python3 -c '
import json, sys
for row in json.load(sys.stdin)["results"]:
    name = row["case"].replace(" ", "_").replace(",", "")
    print("dlock_" + name, row["times"]["p50_ns"] / 1e3)
    print("dlock_" + name + "_rate", row["operations_per_second"])
    if row["baseline"]:
        print("dlock_" + name + "_floor", row["baseline"]["times"]["p50_ns"] / 1e3)'
}

# A round has two of it: the mean counts.
faa() {
    echo "faa $(median "$(perftest ib_atomic_lat -A FETCH_AND_ADD -n 4000)")"
}

round=0
while [ $round -lt "${ROUNDS:-7}" ]; do
    round=$((round + 1))
    # What is compared stands side by side: the machine may be slower a minute later.
    faa
    dlock "atomic acquire+release" | cases
    faa
    echo "cas $(median "$(perftest ib_atomic_lat -A CMP_AND_SWAP -n 4000)")"
    dlock "fair exclusive acquire+release" | cases
    # Messages per second, in millions; one queue pair, one at a time as the object calls are.
    echo "faa_rate $(median "$(perftest ib_atomic_bw -A FETCH_AND_ADD -n 5000 -t 1)")"
    dlock "object faa" | cases
    echo "faa_rate $(median "$(perftest ib_atomic_bw -A FETCH_AND_ADD -n 5000 -t 1)")"
    dlock "batch of 31" | cases
    echo "cas_rate_31 $(median "$(perftest ib_atomic_bw -A CMP_AND_SWAP -n 5000 -t 31)")"
    # shellcheck disable=SC2046 # two words
    set -- $("${REDIS_CYCLE:?}" 127.0.0.1 6400 3000)
    echo "redis $1"
    echo "redis_set $2"
done
kill $redis
[ "${OPERATIONS:-0}" = 0 ] || sh tests/rxe/cases/stopped.sh
