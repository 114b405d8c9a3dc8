#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The SoftRoCE suite: builds what the cases run, runs every tests/rxe/cases/*.sh in a virtual
# machine (tests/rxe/vm), then the quick part of selftest.sh.
#
#   tests/rxe/run.sh [NAME...]           NAME: only cases whose name contains it, no selftest
#   tests/rxe/run.sh --here [NAME...]    on this machine's own RDMA device, without a virtual
#                                        machine: the cases of one device
#
#   DLOCK_RXE_REQUIRED=1    a machine that cannot run it has failed instead of skipped
#   RXE_SUITE_S=SECONDS     the bound of everything but building (900); what has not ended by then
#                           is skipped, or has failed if it is required
#   RXE_BIN=FOLDER          built already, by tests/rxe/build.sh FOLDER
#   PREFIX=FOLDER           dlock is installed there (build.sh)
#   RXE_VM_DEV, RXE_VM_IP, RXE_VM_GID_INDEX    --here: the device, if it is not the first one
#                           with a RoCE v2 address of IPv4
#
# A case is a shell script that runs in the root of the repository. Its head says what it needs:
#   # net: loop|pair|nodes|none|bare      (vm --help; loop)
#   # limit: SECONDS                      (60)
#   # netem: ARGS     # packages: P,P     # mem: MIB
#   # here: yes                           (also of use on one device without a virtual machine)
#   # alone: yes                          (in a virtual machine of its own)
#   # rank: 1 to 4                      (2; on a busy machine the time is for the first ones)
# It passes with status 0, is skipped with 77 (its last line says why), has failed otherwise;
# the lines that it begins with two spaces are shown even if it passes. Cases of the same head
# share a virtual machine, one after the other, those with the smallest rank first;
# guest/several.sh ends what one leaves behind.
#
# Prints a line per case and, last, `N passed, N failed, N skipped`. Exit status 77 if nothing
# could run here.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.." || exit 2
vm=$here/vm
bound=${RXE_SUITE_S:-900}
exec </dev/null
on_host=no
if [ "${1:-}" = --here ]; then
    on_host=yes
    shift
fi
only=("$@")
work=$(mktemp -d) || exit 2
child=
# What still runs ends with this script: vm by its signal, a case of --here with its group.
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
passed=0 failed=0 skipped=0
begin_s=$SECONDS

remaining() { echo $((bound - SECONDS + begin_s)); }

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

name_of() { basename "$1" .sh; }

skip() {
    skipped=$((skipped + 1))
    echo "skipped $1: $2"
}

# judge NAME STATUS SECONDS: counts and shows; the output is in $work/output.
judge() {
    case $2 in
    0)
        passed=$((passed + 1))
        echo "ok      $1 ($3 s)"
        grep -E '^(\[[01]\] )?  ' "$work/output"
        ;;
    77) skip "$1" "$(tail -n 1 "$work/output" | sed 's/.*SKIP: //')" ;;
    *)
        failed=$((failed + 1))
        echo "FAILED  $1 (status $2, $3 s)"
        tail -n 60 "$work/output" | sed 's/^/        /'
        ;;
    esac
}

# in_background COMMAND...: runs it to its end, but ends it when this script is ended.
in_background() {
    local status=0
    "$@" &
    child=$!
    wait "$child" || status=$?
    child=
    return $status
}

limit_of() {
    local limit
    limit=$(head_of "$1" limit 60)
    if [ "$limit" -gt "$(remaining)" ]; then limit=$(remaining); fi
    echo "$limit"
}

# options_of CASE: those of its virtual machine, one a line; cases with the same may share it.
options_of() {
    printf '%s\n' --net "$(head_of "$1" net loop)" --mem "$(head_of "$1" mem 1024)"
    printf '%s\n' --packages "$(head_of "$1" packages '')"
    if [ -n "$(head_of "$1" netem '')" ]; then printf '%s\n' --netem "$(head_of "$1" netem '')"; fi
}

is_alone() {
    [ "$(head_of "$1" alone no)" = yes ] || [ "$(head_of "$1" net loop)" = nodes ] ||
        [ -n "$(head_of "$1" netem '')" ]
}

# late NAME [OUTPUT]: the suite's time is over before, or while, it runs. That a machine is busy is
# no fault of what is tested.
late() {
    if [ "${DLOCK_RXE_REQUIRED:-}" = 1 ]; then
        echo "the suite's $bound s are over" >>"$work/output"
        judge "$1" 124 "?"
    else
        skip "$1" "the suite's $bound s are over: this machine is too busy"
    fi
    : >"$work/output"
}

is_over() { [ "$(remaining)" -le 0 ]; }

# run_alone FILE: in a virtual machine of its own, or here.
run_alone() {
    local file=$1 limit begin=$SECONDS options status
    limit=$(limit_of "$file")
    if [ "$limit" -le 0 ]; then
        late "$(name_of "$file")"
        return
    fi
    if [ $on_host = yes ]; then
        in_background timeout -k 5 "$limit" /bin/sh "$file" >"$work/output" 2>&1
    else
        mapfile -t options < <(options_of "$file")
        # 10 s more for the runner to end the virtual machine by itself.
        in_background timeout -k 5 $((limit + 10)) "$vm" "${options[@]}" --timeout "$limit" \
            -- /bin/sh "$file" >"$work/output" 2>&1
    fi
    status=$?
    if [ $status = 124 ] && is_over; then
        late "$(name_of "$file")"
    else
        judge "$(name_of "$file")" $status $((SECONDS - begin))
    fi
}

# run_together FILE...: in one virtual machine; the results come as each case ends.
run_together() {
    local files=("$@") file limit=60 options status=0 mark=rxe-$RANDOM$RANDOM line rest
    local at=0
    for file in "${files[@]}"; do limit=$((limit + $(head_of "$file" limit 60))); done
    if [ "$limit" -gt "$(remaining)" ]; then limit=$(remaining); fi
    if [ "$limit" -gt 0 ]; then
        mapfile -t options < <(options_of "$1")
        # A fifo, and not a pipe: what is counted below must not be counted in a subshell.
        rm -f "$work/stream" && mkfifo "$work/stream"
        timeout -k 5 $((limit + 10)) "$vm" "${options[@]}" --timeout "$limit" --env MARK=$mark \
            -- /bin/sh tests/rxe/guest/several.sh "${files[@]}" >"$work/stream" 2>&1 &
        child=$!
        : >"$work/output"
        while IFS= read -r line; do
            case $line in
            *"$mark "*)
                printf '%s' "${line%%"$mark "*}" >>"$work/output"
                rest=${line##*"$mark "}
                judge "$(name_of "${files[at]}")" "${rest% *}" "${rest#* }"
                at=$((at + 1))
                : >"$work/output"
                ;;
            *) printf '%s\n' "$line" >>"$work/output" ;;
            esac
        done <"$work/stream"
        wait "$child" || status=$?
        child=
    fi
    [ $at = ${#files[@]} ] && [ $status = 0 ] && return
    if [ $at = ${#files[@]} ]; then
        judge "the virtual machine of $(name_of "$1") and others" $status 0
        return
    fi
    if ! is_over; then
        judge "$(name_of "${files[at]}")" "${status/#0/125}" "?"
        at=$((at + 1))
    fi
    for file in "${files[@]:at}"; do
        if is_over; then
            late "$(name_of "$file")"
        else
            echo "the virtual machine had ended before (status $status)" >"$work/output"
            judge "$(name_of "$file")" 125 0
        fi
    done
}

# The cases, in groups that share a virtual machine, in the order of their first ones.
run_all() {
    local file options files=() groups=() group
    for file in tests/rxe/cases/*.sh; do
        wanted "$(name_of "$file")" && files+=("$file")
    done
    mapfile -t files < <(
        for file in "${files[@]}"; do echo "$(head_of "$file" rank 2) $file"; done |
            sort -n | cut -d' ' -f2
    )
    declare -A members=()
    for file in "${files[@]}"; do
        if is_alone "$file"; then
            options="alone $file"
        else
            options=$(options_of "$file")
        fi
        [ -n "${members[$options]:-}" ] || groups+=("$options")
        members[$options]+="$file "
    done
    for group in "${groups[@]}"; do
        # shellcheck disable=SC2086 # names of files without spaces
        set -- ${members[$group]}
        if is_alone "$1"; then run_alone "$1"; else run_together "$@"; fi
    done
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ] || exit 1
    [ $passed != 0 ] || [ $skipped = 0 ] || exit 77
    exit 0
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

# What the cases run; not built where nothing can run.
build() {
    [ -z "${RXE_BIN:-}" ] || return 0
    local target
    target=$(cd "${CARGO_TARGET_DIR:-target}" 2>/dev/null && pwd) || target=$PWD/target
    export RXE_BIN=$target/rxe
    echo "building into $RXE_BIN"
    in_background "$here/build.sh" "$RXE_BIN" >"$work/output" 2>&1 && return
    judge building $? $((SECONDS - begin_s))
    finish
}

if [ $on_host = yes ]; then
    if ! find_device; then
        skip "the suite" "this machine has no RDMA device with a RoCE v2 address of IPv4"
        finish
    fi
    echo "device $RXE_VM_DEV, $RXE_VM_IP"
    build
    begin_s=$SECONDS
    for file in tests/rxe/cases/*.sh; do
        wanted "$(name_of "$file")" || continue
        if [ "$(head_of "$file" net loop)" != loop ] && [ "$(head_of "$file" here no)" != yes ]; then
            skip "$(name_of "$file")" "it needs a virtual machine"
            continue
        fi
        run_alone "$file"
    done
    finish
fi

# Says itself what it downloads and installs.
timeout -k 5 "$bound" "$vm" --prepare 2>&1 | tee "$work/output"
status=${PIPESTATUS[0]}
if [ "$status" != 0 ]; then
    judge "the suite" "$status" $((SECONDS - begin_s))
    finish
fi
prepared=$((SECONDS - begin_s))
build
begin_s=$((SECONDS - prepared))
run_all
if [ ${#only[@]} = 0 ]; then
    name="the virtual machine itself (selftest.sh --quick)" begin=$SECONDS status=124
    if ! is_over; then
        in_background timeout -k 5 "$(remaining)" "$here/selftest.sh" --quick >"$work/output" 2>&1
        status=$?
    fi
    if [ $status = 124 ] && is_over; then late "$name"; else judge "$name" $status $((SECONDS - begin)); fi
fi
finish
