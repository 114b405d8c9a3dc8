#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The installed example programs take the options of the original's, and no others:
#
#   tests/c/options.sh PREFIX
#
# Prints what is not so and, last, `N passed, N failed`.
set -u
prefix=$(cd "${1:?usage: tests/c/options.sh PREFIX}" && pwd) || exit 2
bin=$prefix/bin
work=$(mktemp -d)
primary=
trap 'stop; rm -rf "$work"' EXIT
# A device and an eid that no port has: with DLOCK_FABRIC the operator has chosen without them.
export DLOCK_FABRIC=${DLOCK_FABRIC:-tcp}
passed=0 failed=0

check() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $what"
        sed 's/^/        /' "$work/output" | head -12
    fi
}

start() { # OPTIONS...: a primary on a free port, which is left in $port
    local line try
    for try in 1 2 3 4 5; do
        port=$((20000 + RANDOM % 12000)) # below the ports that the system hands out
        coproc PRIMARY { exec "$bin/dlock_primary_test" -p "$port" "$@" 2>"$work/primary"; }
        primary=$PRIMARY_PID
        if read -r -t 20 line <&"${PRIMARY[0]}" && [[ $line == *":$port" ]]; then return 0; fi
        stop
    done
    cat "$work/primary"
    return 1
}

stop() {
    [ -n "$primary" ] || return 0
    kill -TERM "$primary" 2>/dev/null
    wait "$primary" 2>/dev/null
    primary=
}

refused() { # PROGRAM OPTIONS...: usage on standard error, and a status that is not 0
    local program=$1
    shift
    timeout 20 "$bin/$program" "$@" >"$work/out" 2>"$work/err" </dev/null && return 1
    cat "$work/err"
    grep -q "^usage: .*$program .*\[-i server_ip\]" "$work/err" && [ ! -s "$work/out" ]
}

fails() { ! timeout 60 "$@" </dev/null; }

# Total, average, maximum and minimum of each operation, with the calls that all rounds make.
prints() { # CLIENTS ROUNDS "OPERATION CALLS_PER_ROUND"... -- COMMAND...
    local clients=$1 rounds=$2 rows=() row
    shift 2
    while [ "$1" != -- ]; do
        rows+=("$1")
        shift
    done
    shift
    timeout 60 "$@" </dev/null >"$work/table" || { cat "$work/table"; return 1; }
    cat "$work/table"
    for row in "${rows[@]}"; do
        awk -v name="${row% *}" -v calls=$((${row#* } * clients * rounds)) '
            $1 == name && NF == 7 && $2 == calls && $4 > 0 && $6 >= $5 && $5 >= $7 && $7 > 0 { ok = 1 }
            END { exit !ok }' "$work/table" || { echo "no row of $row"; return 1; }
    done
    for row in total average maximum minimum; do grep -q "$row" "$work/table" || return 1; done
}

locks=("heartbeat 1" "get 3" "lock 3" "extend 2" "unlock 3")
objects=("create 1" "get 1" "faa 2" "cas 1" "snapshot 1" "release 1" "destroy 1")

for mode in 0 1; do
    if start -c 0 -i 127.0.0.1 -e ::ffff:127.0.0.1 -d no_such_device -m $mode -g 3; then
        both=(-i 127.0.0.1 -e 127.0.0.1 -d no_such_device -p "$port" -m $mode -g 3)
        check "locks, all options, mode $mode" prints 3 4 "${locks[@]}" -- \
            "$bin/dlock_client_test" "${both[@]}" -c 3 -l 4
        check "objects, all options, mode $mode" prints 3 4 "${objects[@]}" -- \
            "$bin/dlock_client_object_test" "${both[@]}" -c 3 -l 4
        check "other tp_mode than the primary's, $mode" fails \
            "$bin/dlock_client_test" -p "$port" -m $((1 - mode))
        for eid in 10.1.2.3 ::ffff:10.1.2.3 fe80::1; do
            check "eid $eid, mode $mode" "$bin/dlock_client_test" -p "$port" -e $eid -m $mode \
                -c 1 -l 1
        done
    else
        check "a primary with all options, mode $mode" false
    fi
    stop
done

if start -c 1; then # a recovering primary: -c is the number of clients that it waits for
    check "a client at a recovering primary" fails "$bin/dlock_client_test" -p "$port"
else
    check "a primary with -c 1" false
fi
stop

for program in dlock_primary_test dlock_client_test dlock_client_object_test; do
    for bad in "-x" "-u" "-n 3" "-r 1" "-h" "word" "-p" "-p many" "-p 70000" "-p -1" "-m 2" \
        "-m one" "-g loud" "-g 8" "-e 10.1.2" "-e fe80:::1" "-e localhost" "-c some" "-c -1"; do
        # shellcheck disable=SC2086 # an option and its value
        check "$program $bad" refused $program $bad
    done
done
check "dlock_primary_test -l" refused dlock_primary_test -l 3
for program in dlock_client_test dlock_client_object_test; do
    check "$program -c 0" refused $program -c 0
    check "$program -l 0" refused $program -l 0
done
echo "  $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
