#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A primary that may not lock as much memory as a client over verbs needs: the log says what ran out
# and what helps, the client is told that there is no room, and one over TCP is served.
# net: pair
set -e
folder=$(mktemp -d)
chmod 755 "$folder"
port=21617
# The lock memory, but not the first client's registration of it. Root has no limit.
# shellcheck disable=SC3045 # dash and bash have it
(
    ulimit -l 9000
    exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
        "${RXE_BIN:?}/dlockd" --listen 127.0.0.1 --port $port --verbs on \
        --state-file none
) >"$folder/ready" 2>"$folder/log" &
primary=$!
tries=0
until grep -q "^dlockd ready" "$folder/ready"; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ] || ! kill -0 $primary 2>/dev/null; then
        echo "the primary does not start:"
        cat "$folder/ready" "$folder/log"
        exit 1
    fi
    sleep 0.1
done
run() { # FABRIC: runs a command with a lock
    DLOCK_FABRIC=$1 "$RXE_BIN/dlock" exec --address 127.0.0.1:$port --wait 5 name -- true >"$folder/said" 2>&1
}
fails() {
    echo "$1:"
    cat "$folder/said" "$folder/log"
    exit 1
}
if run verbs; then fails "a client over verbs was served"; fi
grep -q "no room" "$folder/said" || fails "the client was not told why"
grep -q "cannot attach over verbs: cannot register memory.*only 9000 KiB may be locked" "$folder/log" ||
    fails "the log does not say what ran out"
run tcp || fails "a client over tcp was not served"
kill $primary
wait $primary
