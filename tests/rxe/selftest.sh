#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Checks tests/rxe/vm itself: exit status, streams, limits, networks, what it leaves behind.
#
#   tests/rxe/selftest.sh             everything (about 40 starts of a virtual machine)
#   tests/rxe/selftest.sh --quick     what run.sh does before the cases (3 starts)
#
# Prints a line per check and, last, `N passed, N failed, N skipped`. Exit status 77 if the
# virtual machine cannot run here.
# shellcheck disable=SC2016,SC2086 # $ in single quotes is for the guest; $ping is words
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm=$here/vm
quick=no
[ "${1:-}" = --quick ] && quick=yes
exec </dev/null
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0

"$vm" --prepare || exit

ok() {
    passed=$((passed + 1))
    echo "ok      $1"
}

bad() {
    failed=$((failed + 1))
    echo "FAILED  $1: $2"
    tail -5 err 2>/dev/null | sed 's/^/        /'
}

# same NAME WANTED FOUND
same() {
    if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "'$3' instead of '$2'"; fi
}

# status NAME WANTED ARGUMENTS...: of the runner; its output is in the files out and err.
status() {
    local name=$1 wanted=$2 found
    shift 2
    "$vm" "$@" >out 2>err
    found=$?
    same "$name: status $wanted" "$wanted" "$found"
}

# A word on qemu's command line, so that the runs of others at the same time are not counted.
tag=rxe_selftest=$$
machines() {
    local file
    for file in /proc/[0-9]*/cmdline; do
        tr '\0' ' ' 2>/dev/null <"$file" | grep "^[^ ]*qemu.* $tag"
    done 2>/dev/null
}
left_over() { machines | wc -l; }

# Before commands for a pair: perftest between its devices, and what has crossed the cable.
perftest=". '$here/guest/perftest.sh'"'
sent() { cat /sys/class/net/r0/statistics/tx_packets; }
'

# ---------------------------------------------------------------------------- the quick subset

ping="--packages iputils-ping"

for file in "$vm" "$here"/runner/*.py "$here"/bench/*.py; do
    PYTHONPYCACHEPREFIX=$work/python python3 -m py_compile "$file" 2>err ||
        bad "$(basename "$file") compiles" "an error"
done

touch gone
status "arguments, environment, folder, streams" 7 --env E='q "z' -- sh -c '
    echo "$E|$1|$PWD|$(id -u)|$RXE_VM_NET"; echo error >&2; rm gone; exit 7' x "a  b'c"
same "  as given" "q \"z|a  b'c|$work|0|loop" "$(cat out)"
same "  stderr for itself" error "$(grep -v ^rxe-vm: err)"
same "  this machine's files untouched" gone "$(ls gone 2>&1)"
status "none: modules, no device; much output; a signal kills the command" 137 --net none -- sh -c '
    [ -d /sys/module/rdma_rxe ] && ls /sys/class/infiniband >/tmp/r
    head -c 3000000 /dev/urandom >>/tmp/r; cat /tmp/r; sha256sum </tmp/r >&2; kill -9 $$'
same "  binary output intact" "$(sha256sum <out)" "$(grep -v ^rxe-vm: err)"
same "  no device" 3000000 "$(wc -c <out)"
# Most of the limit may go by before the command starts.
status "time limit" 124 --timeout 8 --append $tag -- sleep 1000
same "  no qemu left" 0 "$(left_over)"

finish() {
    echo "$passed passed, $failed failed, 0 skipped"
    [ "$failed" = 0 ]
    exit
}
[ $quick = yes ] && finish

# ---------------------------------------------------------------------- status, streams, limits

status true 0 -- true
status "pair: FAA" 0 --net pair -- sh -c "$perftest"'
    before=$(sent)
    perftest ib_atomic_lat -A FETCH_AND_ADD -n 500 || exit 1
    echo $(($(sent) - before)) packets >&2'
same "  crossed the virtual cable" yes \
    "$(awk '/packets/ { print ($1 > 500 ? "yes" : $1) }' err)"
status "not found" 127 -- /nonexistent
status "not executable" 126 -- /etc/passwd
status "segmentation fault" 139 -- sh -c 'kill -SEGV $$'
status "largest status" 255 -- sh -c 'exit 255'
status "no command" 2
status "no such folder" 125 --cwd /nonexistent -- true
status "the kernel crashes" 125 --timeout 60 -- sh -c 'echo c >/proc/sysrq-trigger'
same "  its console is shown" yes "$(grep -q 'sysrq: Trigger a crash' err && echo yes)"
status "the command switches it off" 125 --timeout 60 -- sh -c '
    echo o >/proc/sysrq-trigger; sleep 9'
status "a permitted power cut" 0 --may-crash 0 -- sh -c 'echo b >/proc/sysrq-trigger; sleep 9'
status "20 MB of output" 0 -- sh -c 'head -c 20000000 /dev/zero | tr "\0" x; echo E >&2'
same "  complete" "20000000 E" "$(wc -c <out) $(cat err)"
# shellcheck disable=SC2216 # that sleep does not read is the point
"$vm" --timeout 15 -- yes 2>err | sleep 20
same "nobody reads the output: time limit" 124 "${PIPESTATUS[0]}"
"$vm" -- sh -c 'yes | head -n 100000; exit 3' 2>err | head -n 1 >out
same "the reader has gone" 3 "${PIPESTATUS[0]}"
"$vm" -- sh -c 'exit 4' <&- >&- 2>&-
same "stdin, stdout and stderr closed" 4 $?
head -c 3000000 /dev/urandom >input
"$vm" --stdin -- sha256sum <input >out 2>err
same "3 MB of input" "$(sha256sum <input)" "$(cat out)"
seq 100000 | "$vm" --stdin -- head -n 1 >out 2>err
same "input nobody reads" 1 "$(cat out)"
echo x | "$vm" -- sh -c 'cat; exit 5' >out 2>err
same "without --stdin there is none" "5 " "${PIPESTATUS[1]} $(cat out)"
status "a process left behind" 0 -- sh -c 'sleep 1000 & echo x'
same "  does not keep it" x "$(cat out)"
mkdir rw
status "--rw" 0 --rw rw -- sh -c 'echo w >rw/f'
same "  arrives" w "$(cat rw/f)"
status "bare: no RDMA" 0 --net bare -- sh -c '
    [ ! -e /dev/infiniband ] && [ ! -e /sys/module/ib_core ]'
status "an unknown kernel package is a reason to skip" 77 --kernel-package linux-image-none \
    --cache "$work/cache" -- true
same "  with words" 1 "$(grep -c 'rxe-vm: SKIP: .*linux-image-none' err)"
DLOCK_RXE_REQUIRED=1 "$vm" --qemu /nonexistent -- true 2>err
same "unless it is required" 125 $?
status "no qemu" 77 --qemu /nonexistent -- true

# ------------------------------------------------------------------------------------- networks

status "netem from the start" 0 --net pair --netem 'delay 20ms' $ping -- sh -c '
    ping -c 3 -i 0.2 -I 10.77.0.1 10.77.0.2'
same "  on both ends" yes "$(awk -F/ '/^rtt/ { print ($5 > 40 ? "yes" : $5) }' out)"
status "pair: loss and delay" 0 --net pair --netem 'delay 1ms loss 1%' -- sh -c "$perftest"'
    perftest ib_atomic_lat -A FETCH_AND_ADD -n 300'
same "  two delays for one FAA" yes "$(awk '{ print ($6 > 2000 ? "yes" : $6) }' out)"
status "pair: each device reaches itself, too" 0 --net pair -- sh -c "$perftest"'
    RXE_VM_DEV2= RXE_VM_GID_INDEX2= perftest ib_send_lat -n 100'
status "pair: a link that goes down" 0 --net pair $ping -- sh -c "$perftest"'
    perftest ib_send_lat -n 100 >/dev/null || exit 1
    rxe-link r0 down
    grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state || exit 2
    grep -q DOWN /sys/class/infiniband/rxe1/ports/1/state || exit 2
    ping -c 1 -W 1 -I 10.77.0.1 10.77.0.2 >/dev/null 2>&1 && exit 3
    rxe-link r0 up
    before=$(sent)
    perftest ib_send_lat -n 100 >/dev/null && [ $(($(sent) - before)) -gt 100 ] || exit 4
    before=$(sent)
    ping -c 3 -i 0.2 -I 10.77.0.1 10.77.0.2 >/dev/null && [ $(($(sent) - before)) -ge 3 ] || exit 5'
status "nodes: status of node 1" 9 --net nodes -- sh -c 'echo $RXE_VM_IP; exit $((RXE_VM_NODE*9))'
same "  lines of both" "[0] 10.77.0.1 [1] 10.77.0.2" "$(sort out | tr '\n' ' ' | sed 's/ $//')"
status "nodes: SEND between two machines" 0 --net nodes -- sh -c '
    if [ $RXE_VM_NODE = 0 ]; then exec ib_send_lat -d rxe0 -x $RXE_VM_GID_INDEX -n 300; fi
    for i in 1 2 3 4 5 6 7 8 9 10; do
        ib_send_lat -d rxe0 -x $RXE_VM_GID_INDEX -n 300 $RXE_VM_PEER_IP && exit
        sleep 1
    done; exit 1'
status "nodes: power cut of one" 3 --net nodes --may-crash 1 $ping -- sh -c '
    [ $RXE_VM_NODE = 0 ] || { sleep 2; echo b >/proc/sysrq-trigger; sleep 60; }
    ping -c 1 -W 9 $RXE_VM_PEER_IP >/dev/null 2>&1 || exit 4
    for i in $(seq 100); do ping -c 1 -W 1 $RXE_VM_PEER_IP >/dev/null 2>&1 || exit 3; sleep 0.1; done'
status "nodes: until the first ends" 6 --net nodes --until-first -- sh -c '
    [ $RXE_VM_NODE = 0 ] && sleep 1000; exit 6'

# ------------------------------------------------------------------------- several, and its end

for i in 1 2 3 4; do
    {
        "$vm" -- sh -c "exit $i" 2>/dev/null
        echo $? >"status$i"
    } &
done
wait
same "four at once" "1 2 3 4" "$(cat status? | tr '\n' ' ' | sed 's/ $//')"

# ended SIGNAL: starts a run, ends it by a signal once its command runs; prints the status.
ended() {
    mkfifo begun
    "$vm" --append $tag -- sh -c "echo begun; sleep 1000" >begun 2>err &
    runner=$!
    head -n 1 begun >/dev/null
    machines | grep -o '/tmp/dlock-rxe\.[^/]*' | head -n 1 >folder
    kill "-$1" $runner
    wait $runner 2>/dev/null
    echo $?
    rm begun
}
same "SIGTERM ends it" 143 "$(ended TERM)"
same "  no qemu left" 0 "$(left_over)"
same "SIGKILL ends it" 137 "$(ended KILL)"
tries=0
while [ "$(left_over)" != 0 ] && [ $tries -lt 50 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
same "  no qemu left" 0 "$(left_over)"
status "the next run removes its folder" 0 -- true
same "  of /tmp" gone "$([ -s folder ] && [ ! -e "$(cat folder)" ] && echo gone)"
finish
