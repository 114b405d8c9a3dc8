# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# For the cases: Rust test programs of build.sh.

# rust_tests PROGRAM [ARG...]: prints the sum (the last one: some start themselves again); ends the
# case if a test fails or is skipped. In a guest with two devices none may be; on one device alone,
# those that need two.
rust_tests() {
    program=$1
    shift
    said=$(mktemp)
    status=0
    DLOCK_RXE_REQUIRED=1 "${RXE_BIN:?}/tests/$program" "$@" >"$said" 2>&1 || status=$?
    if [ $status != 0 ] || ! grep -q '^test .* ok$' "$said"; then
        cat "$said"
        exit 1
    fi
    if [ -n "${RXE_VM_DEV2:-}" ] && grep -i '^skip' "$said"; then exit 1; fi
    sed -n "s/^test result: ok. \([0-9]* passed\).*\(finished.*\)/  $program: \1, \2/p" "$said" | tail -n 1
    rm -f "$said"
}
