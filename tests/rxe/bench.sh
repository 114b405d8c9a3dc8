#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Measures dlock over verbs beside perftest and Redis: everything in one virtual machine, in turns,
# medians over the rounds. Prints the table of benches/README.md.
#
#   tests/rxe/bench.sh [ROUNDS]     rounds (7); each takes about half a minute on two free cores
#   RXE_BENCH_RAW=FILE              keep what was measured, a line per value
#   OPERATIONS=N                    with the primary stopped, at the end (1,000,000; 0: leave out)
#
#   tests/rxe/bench.sh --hot [ROUNDS]         one hot lock, 2 to 8 clients, beside published locks on
#                                   bare verbs (bench/hot.c): rounds (3) of about three minutes
#   tests/rxe/bench.sh --hot --shm [ROUNDS]   the same on this machine's shared memory
#   HOT_BEFORE=PREFIX               an installed dlock that this one is measured beside
#   HOT_CLIENTS, HOT_PRIVATE, HOT_HOLDS, HOT_KINDS, HOT_SECONDS
#                                   other clients, of locks of their own, holds in us, locks, 3 s each
#
# Meaningful only while the machine does nothing else: it says how busy it is.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
hot='' fabric=verbs
while true; do
    case ${1:-} in
    --hot) hot=yes ;;
    --shm) fabric=shm ;;
    *) break ;;
    esac
    shift
done
rounds=${1:-${hot:+3}}
rounds=${rounds:-7}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
export RXE_BIN=${RXE_BIN:-$target/rxe}
exec </dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$hot" ]; then
    echo '#include <infiniband/verbs.h>' | cc -E - >/dev/null 2>&1 || {
        echo "bench.sh: no <infiniband/verbs.h>: install libibverbs-dev or rdma-core-devel" >&2
        exit 1
    }
    command -v cmake >/dev/null || { echo "bench.sh: no cmake: install it" >&2 && exit 1; }
    prefix=$target/hot/prefix
    {
        scripts/cmake-install.sh "$target/hot/cmake" "$prefix"
        cargo build --release --locked -p dlock-server --bin dlockd
        cp "$target/release/dlockd" "$prefix/bin"
        cc -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -o "$work/hot" tests/rxe/bench/hot.c \
            -Itests/c -I"$prefix/include/ub/umdk/ulock/dlock" -L"$prefix/lib64" \
            -ldlockc -ldlocks -ldlockm -libverbs
    } >&2
    export HOT="$work/hot" HOT_FABRIC="$fabric" ROUNDS="$rounds" HOT_SECONDS="${HOT_SECONDS:-3}"
    export HOT_SIDES="${HOT_BEFORE:+before=$HOT_BEFORE }now=$prefix"
    raw=${RXE_BENCH_RAW:-$work/raw}
    echo "load of this machine: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) processors" >&2
    if [ "$fabric" = shm ]; then
        sh tests/rxe/bench/hot.sh | tee "$raw" >&2
    else
        env=()
        for name in HOT HOT_FABRIC HOT_SECONDS HOT_SIDES ROUNDS HOT_CLIENTS HOT_PRIVATE \
            HOT_HOLDS HOT_KINDS; do
            [ -z "${!name:-}" ] || env+=(--env "$name=${!name}")
        done
        "$here/vm" --net pair --mem 1536 --timeout $((300 + rounds * 900)) "${env[@]}" \
            -- sh tests/rxe/bench/hot.sh | tee "$raw" >&2
    fi
    python3 "$here/bench/hot_table.py" "$raw"
    exit
fi
{
    [ -e "$RXE_BIN/stopped" ] || "$here/build.sh" "$RXE_BIN"
    cargo build --release --locked -p dlock-cli
    cc -std=gnu11 -O1 -Wall -Wextra -Werror -o "$work/redis_cycle" tests/rxe/bench/redis_cycle.c
} >&2
raw=${RXE_BENCH_RAW:-$work/raw}
echo "load of this machine: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) processors" >&2
"$here/vm" --net pair --packages redis-server --mem 1536 --timeout $((300 + rounds * 300)) \
    --env DLOCK="$target/release/dlock" --env REDIS_CYCLE="$work/redis_cycle" \
    --env ROUNDS="$rounds" --env OPERATIONS="${OPERATIONS:-1000000}" \
    -- sh tests/rxe/bench/in_turns.sh | tee "$raw" >&2
echo "load of this machine: $(cut -d' ' -f1-3 /proc/loadavg)" >&2
python3 "$here/bench/table.py" "$raw"
