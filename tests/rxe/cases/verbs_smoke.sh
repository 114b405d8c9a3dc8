#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# verbs_smoke.c on one device, and between two where there are two.
# net: pair
# here: yes
set -e
: "${RXE_VM_DEV:?}" "${RXE_VM_DEV2=}"
program=${RXE_BIN:-}/verbs_smoke
if [ ! -e "$program" ]; then
    # shellcheck source=tests/rxe/guest/compile.sh
    . tests/rxe/guest/compile.sh
    program=$(mktemp)
    trap 'rm -f "$program"' EXIT
    compile_verbs tests/rxe/cases/verbs_smoke.c "$program"
fi
"$program" "$RXE_VM_DEV" "$RXE_VM_GID_INDEX"
if [ -n "$RXE_VM_DEV2" ]; then
    "$program" "$RXE_VM_DEV" "$RXE_VM_GID_INDEX" "$RXE_VM_DEV2" "$RXE_VM_GID_INDEX2"
fi
