# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
# For the cases: Rust test programs of build.sh.

# heard FILE COMMAND...: its output as it comes, which is what shows that the case goes on, and in
# FILE; its status.
heard() {
    file=$1
    shift
    { "$@" 2>&1 || echo $? >"$file.status"; } | tee "$file"
    [ -e "$file.status" ] || return 0
    read -r status <"$file.status"
    rm "$file.status"
    return "$status"
}

# rust_tests PROGRAM [ARG...]: prints the sum (the last one: some start themselves again); ends the
# case if a test fails or is skipped. In a guest with two devices none may be; on one device alone,
# those that need two.
rust_tests() {
    program=$1
    shift
    said=$(mktemp)
    DLOCK_RXE_REQUIRED=1 heard "$said" "${RXE_BIN:?}/tests/$program" "$@" || exit 1
    grep -q '^test .* ok$' "$said" || exit 1
    if [ -n "${RXE_VM_DEV2:-}" ] && grep -i '^skip' "$said"; then exit 1; fi
    sed -n "s/^test result: ok. \([0-9]* passed\).*\(finished.*\)/  $program: \1, \2/p" "$said" | tail -n 1
    rm -f "$said"
}

# chaos PROGRAM [ARG...]: one of tests/chaos, on the case's fabric; its sum; ends the case if it fails.
chaos() {
    said=$(mktemp)
    DLOCK_FABRIC=verbs heard "$said" "${RXE_BIN:?}/chaos" "$@" || exit 1
    grep -v '^progress: ' "$said" | sed 's/^/  /'
    rm -f "$said"
}
