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
# Meaningful only while the machine does nothing else: it says how busy it is.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
rounds=${1:-7}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
export RXE_BIN=${RXE_BIN:-$target/rxe}
exec </dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
