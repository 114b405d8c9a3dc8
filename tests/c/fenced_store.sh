#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# A writer of examples/fenced_store.c is stopped beyond its lease, another one writes, and the first
# goes on: the store refuses it, and its release says that the lock was lost.
#   tests/c/fenced_store.sh PROGRAM PORT [DLOCK]     PORT: of a primary at 127.0.0.1
# With the program `dlock`: also by commands that `dlock exec` and `dlock hold` give the lock to.
set -euo pipefail
program=$1 port=$2 dlock=${3:-}
work=$(mktemp -d)
store='' late='' next=''
trap 'kill -9 $store $late $next 2>/dev/null || true; wait 2>/dev/null; rm -rf "$work"' EXIT

# says FILE LINE: waits until the file has this line.
says() {
    for _ in $(seq 600); do
        ! grep -qxE -- "$2" "$1" || return 0
        sleep 0.1
    done
    echo "no line '$2':"
    cat "$1"
    return 1
}

token_of() { sed -n 's/^holds //p' "$1"; }

mkdir "$work/values"
"$program" serve "$work/socket" "$work/values" >"$work/store" &
store=$!
says "$work/store" serves
mkfifo "$work/late.in" "$work/next.in"
"$program" write "$work/socket" 127.0.0.1 "$port" key <"$work/late.in" >"$work/late" &
late=$!
exec 3>"$work/late.in"
says "$work/late" 'holds [0-9]+'
echo first >&3
says "$work/late" stored
kill -STOP $late
"$program" write "$work/socket" 127.0.0.1 "$port" key 60000 <"$work/next.in" >"$work/next" 3>&- &
next=$!
exec 4>"$work/next.in"
says "$work/next" 'holds [0-9]+' # when the lease of the first is over
echo second >&4
says "$work/next" stored
kill -CONT $late
echo too late >&3
says "$work/late" "refused: $(token_of "$work/late") is older than $(token_of "$work/next")"
exec 3>&-
status=0
wait $late || status=$?
late=''
[ "$status" = 76 ] || { echo "the release of a lost lock: status $status"; cat "$work/late"; exit 1; }
exec 4>&-
status=0
wait $next || status=$?
next=''
[ "$status" = 0 ] || { echo "the second writer: status $status"; cat "$work/next"; exit 1; }
says "$work/next" released
diff <(token_of "$work/next"; echo second) "$work/values/key"

if [ -n "$dlock" ]; then
    at=(--address "127.0.0.1:$port" --type fair)
    "$dlock" exec "${at[@]}" key -- "$program" put "$work/socket" key third >"$work/put"
    says "$work/put" stored
    hold=$("$dlock" hold "${at[@]}" key)
    status=0
    "$dlock" exec "${at[@]}" --wait 0 key -- "$program" put "$work/socket" key no >"$work/put" || status=$?
    [ "$status" = 75 ] || { echo "dlock exec beside dlock hold: status $status"; exit 1; }
    "$dlock" release "$hold"
    "$dlock" exec "${at[@]}" key -- "$program" put "$work/socket" key fourth >"$work/put"
    says "$work/put" stored
    [ "$(tail -n 1 "$work/values/key")" = fourth ]
    # The token of an earlier hold is old now.
    ! DLOCK_TOKEN=$(token_of "$work/next") "$program" put "$work/socket" key old >"$work/put"
    says "$work/put" 'refused: .*'
fi
