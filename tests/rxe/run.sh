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
#   RXE_SILENCE_S=SECONDS   a case that has printed nothing for so long is ended, and has failed (540);
#                           how long it takes in all has no bound: the machine may be busy
#   RXE_BIN=FOLDER          built already, by tests/rxe/build.sh FOLDER
#   PREFIX=FOLDER           dlock is installed there (build.sh)
#   BUILT=FOLDER            the C and C++ programs are compiled there (build.sh)
#   STOPS, FAILOVERS, OPERATIONS, MIXED_S, DURATION, DLOCK_PAUSES    how long some cases are (`make
#                           soak` has long ones); each says its own default
#   RXE_VM_DEV, RXE_VM_IP, RXE_VM_GID_INDEX    --here: the device, if it is not the first one
#                           with a RoCE v2 address of IPv4
#
# A case is a shell script that runs in the root of the repository. Its head says what it needs:
#   # net: loop|pair|nodes|none|bare      (vm --help; loop)
#   # netem: ARGS     # packages: P,P     # mem: MIB
#   # here: yes                           (also of use on one device without a virtual machine)
#   # alone: yes                          (in a virtual machine of its own)
# It passes with status 0, is skipped with 77 (its last line says why), has failed otherwise;
# the lines that it begins with two spaces are shown even if it passes. Cases of the same head
# share a virtual machine, one after the other; guest/several.sh ends what one leaves behind.
#
# Prints a line per case (with DLOCK_PROGRESS=1 what a case prints, too, after `progress: `) and,
# last, `N passed, N failed, N skipped`. Exit status 77 if nothing could run here.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.." || exit 2
vm=$here/vm
silence=${RXE_SILENCE_S:-540}
exec </dev/null
on_host=no
if [ "${1:-}" = --here ]; then
    on_host=yes
    shift
fi
only=("$@")
work=$(mktemp -d) || exit 2
child=
mark=none-$RANDOM$RANDOM # of no case (follow)
# What still runs ends with this script: vm by its signal, a case of --here with its group.
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
passed=0 failed=0 skipped=0

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

# A name that no case has would let the suite pass with nothing run.
for name in ${only[@]+"${only[@]}"}; do
    compgen -G "tests/rxe/cases/*$name*.sh" >/dev/null && continue
    echo "no case has $name in its name: see tests/rxe/cases" >&2
    exit 2
done

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

# follow COMMAND...: runs it to its end, its lines in $work/output; sets `status`. A line with
# $mark and a status is the end of the next of `files`, and judges it. A command that prints nothing
# for too long is ended, status 124; it also ends with this script.
follow() {
    local line rest heard silent=no
    rm -f "$work/stream" && mkfifo "$work/stream"
    : >"$work/output"
    # Without a limit: it passes signals on to all processes of the command.
    timeout -k 5 0 "$@" >"$work/stream" 2>&1 &
    child=$!
    exec 3<"$work/stream"
    while :; do
        IFS= read -r -t "$silence" line <&3
        heard=$?
        if [ $heard -gt 128 ]; then
            # A process that has left the command's group may keep the output open for ever.
            [ $silent = no ] || break
            silent=yes
            kill "$child"
            continue
        fi
        [ $heard = 0 ] || break
        [ -z "${DLOCK_PROGRESS:-}" ] || echo "progress: $line"
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
    done
    exec 3<&-
    status=0
    wait "$child" || status=$?
    child=
    [ $silent = no ] && return
    status=124
    echo "ended: it has printed nothing for $silence s" >>"$work/output"
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

# A machine with a case of the suite; on a busy one starting takes its time, too.
machine=("$vm" --timeout inf --boot-timeout "$silence")
for name in STOPS FAILOVERS OPERATIONS MIXED_S DURATION DLOCK_PAUSES; do
    [ -z "${!name:-}" ] || machine+=(--env "$name=${!name}")
done

# run_alone FILE: in a virtual machine of its own, or here.
run_alone() {
    local begin=$SECONDS options
    if [ $on_host = yes ]; then
        follow /bin/sh "$1"
    else
        mapfile -t options < <(options_of "$1")
        follow "${machine[@]}" "${options[@]}" -- /bin/sh "$1"
    fi
    judge "$(name_of "$1")" $status $((SECONDS - begin))
}

# run_together FILE...: in one virtual machine; the results come as each case ends. If one brings the
# machine to its end, those after it get another.
run_together() {
    local files=("$@") options at
    mapfile -t options < <(options_of "$1")
    while [ ${#files[@]} != 0 ]; do
        mark=rxe-$RANDOM$RANDOM at=0
        follow "${machine[@]}" "${options[@]}" --env MARK=$mark \
            -- /bin/sh tests/rxe/guest/several.sh "${files[@]}"
        if [ $at = ${#files[@]} ]; then
            [ $status = 0 ] || judge "the virtual machine of $(name_of "$1") and others" $status 0
            return
        fi
        judge "$(name_of "${files[at]}")" "${status/#0/125}" "?"
        files=("${files[@]:at+1}")
    done
}

# The cases, in groups that share a virtual machine, in the order of their first ones.
run_all() {
    local file options files=() groups=() group
    for file in tests/rxe/cases/*.sh; do
        wanted "$(name_of "$file")" && files+=("$file")
    done
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
    local target begin=$SECONDS
    target=$(cd "${CARGO_TARGET_DIR:-target}" 2>/dev/null && pwd) || target=$PWD/target
    export RXE_BIN=$target/rxe
    echo "building into $RXE_BIN"
    follow "$here/build.sh" "$RXE_BIN"
    [ $status != 0 ] || return 0
    judge building $status $((SECONDS - begin))
    finish
}

if [ $on_host = yes ]; then
    if ! find_device; then
        skip "the suite" "this machine has no RDMA device with a RoCE v2 address of IPv4"
        finish
    fi
    echo "device $RXE_VM_DEV, $RXE_VM_IP"
    build
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
begin=$SECONDS
"$vm" --prepare 2>&1 | tee "$work/output"
status=${PIPESTATUS[0]}
if [ "$status" != 0 ]; then
    judge "the suite" "$status" $((SECONDS - begin))
    finish
fi
build
run_all
if [ ${#only[@]} = 0 ]; then
    begin=$SECONDS
    follow "$here/selftest.sh" --quick
    judge "the virtual machine itself (selftest.sh --quick)" $status $((SECONDS - begin))
fi
finish
