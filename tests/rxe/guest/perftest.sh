# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# For the cases: perftest between the first device and the second one, or the first one with
# itself if there is only one.

# perftest PROGRAM [ARG...]: runs both ends and prints the client's line of results; for those
# of latency: bytes, iterations, min, max, median, average, standard deviation, 99 %, 99.9 % (us).
# On a machine so busy that the time limits of perftest itself run out, it is tried again.
perftest() {
    for attempt in 1 2 3; do
        if perftest_once "$@"; then
            cat /tmp/perftest.result
            return
        fi
        echo "attempt $attempt of $1 has failed:" >&2
        cat /tmp/perftest.server /tmp/perftest.client >&2
    done
    return 1
}

perftest_once() {
    "$@" -d "${RXE_VM_DEV2:-$RXE_VM_DEV}" -x "${RXE_VM_GID_INDEX2:-$RXE_VM_GID_INDEX}" \
        >/tmp/perftest.server 2>&1 </dev/null &
    server=$!
    # A client that comes before the server listens is refused, and comes again.
    until "$@" -d "$RXE_VM_DEV" -x "$RXE_VM_GID_INDEX" 127.0.0.1 >/tmp/perftest.client 2>&1; do
        if ! kill -0 $server 2>/dev/null || ! grep -q "Couldn't connect" /tmp/perftest.client; then
            kill $server 2>/dev/null
            wait $server
            return 1
        fi
        sleep 0.1
    done
    wait $server && perftest_result >/tmp/perftest.result
}

# The line of results in /tmp/perftest.client; fails if there is none.
perftest_result() {
    awk '/^ *[0-9]+ +[0-9]+ +[0-9.]+ / { print; found = 1 } END { exit !found }' \
        /tmp/perftest.client
}

# median LINE: the fifth word.
median() {
    # shellcheck disable=SC2086 # words
    set -- $1
    echo "$5"
}
