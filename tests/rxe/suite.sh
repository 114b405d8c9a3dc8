#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh as a part of `make test`: what failed runs once more, by itself. An emulated machine that is
# not scheduled for seconds fails what a real one would not; what passes only then is named.
set -u
cd "$(dirname "$0")/../.." || exit 2
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
closing='^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$'

tests/rxe/run.sh 2>&1 | tee "$log" | sed -u "s/$closing/first: &/"
status=${PIPESTATUS[0]}
read -r passed failed skipped < <(sed -n "s/$closing/\1 \2 \3/p" "$log" | tail -n 1)
mapfile -t names < <(sed -n 's/^FAILED  \([a-z_]*\) (status.*/\1/p' "$log")
[ ${#names[@]} = "${failed:-0}" ] || names=() # the selftest is no case
if [ "$status" = 0 ] || [ "$status" = 77 ] || [ ${#names[@]} = 0 ]; then
    [ -n "${passed:-}" ] && echo "$passed passed, $failed failed, $skipped skipped"
    exit "$status"
fi
echo "once more, by themselves: ${names[*]}"
tests/rxe/run.sh "${names[@]}" 2>&1 | tee "$log" | sed -u "s/$closing/again: &/"
status=${PIPESTATUS[0]}
read -r again still _ < <(sed -n "s/$closing/\1 \2 \3/p" "$log" | tail -n 1)
if [ "$status" = 0 ]; then
    echo "FLAKY: passed only the second time: ${names[*]}"
    echo "$((passed + again)) passed, 0 failed, $skipped skipped"
    exit 0
fi
[ "$status" = 77 ] && still=$failed # that nothing can run any more excuses no failure
echo "$((passed + ${again:-0})) passed, ${still:-$failed} failed, $skipped skipped"
exit 1
