#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Checks the step runner of lib.sh: what ends a step, what its table says, what is shown.
# Prints a line per check and, last, `N passed, N failed`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
good=0 bad=0

# run STEPS: a script of these steps; what it printed is in $work/said, its status in $status.
run() {
    status=0
    bash -c '. "$1"; begin; eval "$2"; finish ""' run "$here/lib.sh" "$1" >"$work/said" 2>&1 || status=$?
}
check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@"; then
        good=$((good + 1))
        echo "ok      $name"
    else
        bad=$((bad + 1))
        echo "FAILED  $name:"
        sed 's/^/        /' "$work/said"
    fi
}
says() { grep -qE "$1" "$work/said"; }
says_not() { ! says "$1"; }

# The bound is twenty times the pause between two lines, and a third of the whole.
run 'step slow 6 bash -c "for i in {1..60}; do echo progress: \$i; sleep 0.3; done" || true'
check "a step that goes on has no limit" test "$status" = 0
check "its progress is not shown" says_not '^progress'

run 'step quiet 6 bash -c "echo 3 passed, 0 failed; sleep 1000" || true'
check "a step without progress is ended" says '^quiet +FAILED +3 +1 .*ended after 6 s without progress'
check "and says where it was" says '^no progress since: 3 passed, 0 failed'
check "and has failed" test "$status" = 1

gone() { timeout 20 tail --pid="$(cat "$work/left")" -f /dev/null; }
run 'step ends 1 bash -c "sleep 1000 & echo \$! >'"$work"'/left; wait" || true'
check "what it has started ends with it" gone

mkfifo "$work/begun"
bash -c '. "$1"; begin; step one 60 bash -c "echo \$\$ >$2/left; echo >$2/begun; sleep 1000"' \
    run "$here/lib.sh" "$work" >"$work/said" 2>&1 &
script=$!
read -r _ <"$work/begun"
kill "$script"
wait "$script" || status=$?
check "a script that is ended says so" test "$status" = 143
check "and ends its step" gone

run 'step dead 60 bash -c "kill -9 \$\$" || true; step after 60 printf "5 passed, 0 failed\n"'
check "a step that is killed has failed" says '^dead +FAILED .*exit status 137'
check "the steps after it run" says '^after +ok +5 +0 +0'
check "the sum is of all" says '^5 passed, 1 failed, 0 skipped'

run 'beside slow 60 bash -c "sleep 2; echo slow says; exit 3"; beside other 60 echo other says
step quick 60 printf "5 passed, 0 failed\n"; collect other; step last 60 echo last says'
check "a step beside others is shown where it is collected, or at the end" bash -c \
    '[[ $(<"$1") == *"== quick"*"== other"*"other says"*"== last"*"== slow"*"slow says"* ]]' \
    order "$work/said"
check "and counted" says '^7 passed, 1 failed, 0 skipped'
check "with its name" says '^slow +FAILED .*exit status 3'

run 'step none 60 bash -c "echo skipped: no device; exit 77" || true'
check "status 77 is skipped, with its reason" says '^none +skipped +0 +0 +1 .*skipped: no device'


echo "$good passed, $bad failed"
[ "$bad" = 0 ]
