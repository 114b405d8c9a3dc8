#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The SoftRoCE suite: the quick part of selftest.sh, then every tests/rxe/cases/*.sh in a virtual
# machine (tests/rxe/vm).
#
#   tests/rxe/run.sh [NAME...]           NAME: only cases whose name contains it, no selftest
#   tests/rxe/run.sh --here [NAME...]    on this machine's own RDMA device, without a virtual
#                                        machine: the cases of one device
#
#   DLOCK_RXE_REQUIRED=1    a machine that cannot run it has failed instead of skipped
#   RXE_SUITE_S=SECONDS     the bound of everything (600); what has not begun then has failed
#   RXE_VM_DEV, RXE_VM_IP, RXE_VM_GID_INDEX    --here: the device, if it is not the first one
#                           with a RoCE v2 address of IPv4
#
# A case is a shell script that runs in the root of the repository. Its head says what it needs:
#   # net: loop|pair|nodes|none|bare      (vm --help; loop)
#   # limit: SECONDS                      (60, starting included)
#   # netem: ARGS     # packages: P,P     # mem: MIB
#   # here: yes                           (also of use on one device without a virtual machine)
# It passes with status 0, is skipped with 77 (its last line says why), has failed otherwise;
# the lines that it begins with two spaces are shown even if it passes.
#
# Prints a line per case and, last, `N passed, N failed, N skipped`.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.." || exit 2
vm=$here/vm
bound=${RXE_SUITE_S:-600}
exec </dev/null
on_host=no
if [ "${1:-}" = --here ]; then
    on_host=yes
    shift
fi
only=("$@")
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

remaining() { echo $((bound - SECONDS)); }

# head_of CASE KEY DEFAULT: what the head of a case says.
head_of() {
    local found
    found=$(sed -n "s/^# $2: *//p" "$1" | head -n 1)
    echo "${found:-$3}"
}

wanted() {
    [ ${#only[@]} = 0 ] && return 0
    local name
    for name in "${only[@]}"; do
        case $1 in *"$name"*) return 0 ;; esac
    done
    return 1
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# judge NAME STATUS BEGIN: counts and shows; the output is in $work/output.
judge() {
    local took=$((SECONDS - $3))
    case $2 in
    0)
        passed=$((passed + 1))
        echo "ok      $1 ($took s)"
        grep -E '^(\[[01]\] )?  ' "$work/output"
        ;;
    77) skip "$1" "$(tail -n 1 "$work/output" | sed 's/.*SKIP: //')" ;;
    *)
        failed=$((failed + 1))
        echo "FAILED  $1 (status $2, $took s)"
        tail -n 60 "$work/output" | sed 's/^/        /'
        ;;
    esac
}

# run_case FILE
run_case() {
    local file=$1 name limit begin=$SECONDS options
    name=$(basename "$file" .sh)
    limit=$(head_of "$file" limit 60)
    if [ "$limit" -gt "$(remaining)" ]; then limit=$(remaining); fi
    if [ "$limit" -le 0 ]; then
        echo "the suite's $bound s are over" >"$work/output"
        judge "$name" 124 "$begin"
        return
    fi
    if [ $on_host = yes ]; then
        timeout "$limit" /bin/sh "$file" >"$work/output" 2>&1
    else
        options=(--net "$(head_of "$file" net loop)" --timeout "$limit"
            --packages "$(head_of "$file" packages '')" --mem "$(head_of "$file" mem 1024)")
        if [ -n "$(head_of "$file" netem '')" ]; then
            options+=(--netem "$(head_of "$file" netem '')")
        fi
        # 10 s more for the runner to end the virtual machine by itself.
        timeout -k 5 $((limit + 10)) \
            "$vm" "${options[@]}" -- /bin/sh "$file" >"$work/output" 2>&1
    fi
    judge "$name" $? "$begin"
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
    exit
}

# Sets RXE_VM_* for the first device of this machine that has a RoCE v2 GID of an IPv4 address.
find_device() {
    [ -n "${RXE_VM_DEV:-}" ] && return 0
    local gid value port hex
    for gid in /sys/class/infiniband/*/ports/1/gids/*; do
        read -r value 2>/dev/null <"$gid" || continue
        case $value in 0000:0000:0000:0000:0000:ffff:*) ;; *) continue ;; esac
        port=${gid%/gids/*}
        grep -q v2 "$port/gid_attrs/types/${gid##*/}" 2>/dev/null || continue
        hex=${value#0000:0000:0000:0000:0000:ffff:}
        hex=${hex/:/}
        RXE_VM_IP=$((16#${hex:0:2})).$((16#${hex:2:2})).$((16#${hex:4:2})).$((16#${hex:6:2}))
        RXE_VM_DEV=$(basename "${port%/ports/1}")
        RXE_VM_GID_INDEX=${gid##*/}
        export RXE_VM_IP RXE_VM_DEV RXE_VM_GID_INDEX RXE_VM_PEER_IP=$RXE_VM_IP RXE_VM_NET=loop
        return 0
    done
    return 1
}

if [ $on_host = yes ]; then
    if ! find_device; then
        skip "the suite" "this machine has no RDMA device with a RoCE v2 address of IPv4"
        finish
    fi
    echo "device $RXE_VM_DEV, $RXE_VM_IP"
else
    begin=$SECONDS
    timeout -k 5 "$bound" "$vm" --prepare >"$work/output" 2>&1
    status=$?
    if [ $status != 0 ]; then
        judge "the suite" $status "$begin"
        finish
    fi
    if [ ${#only[@]} = 0 ]; then
        begin=$SECONDS
        timeout -k 5 "$(remaining)" "$here/selftest.sh" --quick >"$work/output" 2>&1
        judge "the virtual machine itself (selftest.sh --quick)" $? "$begin"
    fi
fi
for file in tests/rxe/cases/*.sh; do
    wanted "$(basename "$file" .sh)" || continue
    if [ $on_host = yes ] && [ "$(head_of "$file" net loop)" != loop ] &&
        [ "$(head_of "$file" here no)" != yes ]; then
        skip "$(basename "$file" .sh)" "it needs a virtual machine"
        continue
    fi
    run_case "$file"
done
finish
