#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Compiles, links and runs every program of names.list by itself against an installed prefix.
#
#   tests/c/names.sh PREFIX [NAME...]     NAME: only programs whose name contains it
#
#   JOBS=N    programs at a time (4)
#
# Prints the programs that fail and, last, `N passed, N failed`.
set -u
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "${1:?usage: tests/c/names.sh PREFIX [NAME...]}" && pwd) || exit 2
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
include=$prefix/include/ub/umdk/ulock/dlock
lib=$prefix/lib64
export DLOCK_FABRIC=${DLOCK_FABRIC:-tcp}

# need(x) for each program; nothing else is added to it.
cat >"$work/need.h" <<'END'
#include <cstdio>
#include <cstdlib>
#define need(x) ((x) ? (void)0 : (std::fprintf(stderr, "not so: %s\n", #x), std::exit(1)))
END

awk -v folder="$work" '
    /^== / {
        close(program)
        program = folder "/" $2 ".cpp"
        libraries = $0
        if (!sub(/.* libraries=/, "", libraries)) libraries = "-ldlocks -ldlockc -ldlockm"
        print libraries >(folder "/" $2 ".libraries")
        close(folder "/" $2 ".libraries")
        print $2 >(folder "/programs")
        next
    }
    program { print >program }' "$here/names.list"

# A name more or less in the list is no reason to pass.
[ "$(sort -u "$work/programs" | wc -l)" -eq "$(grep -c '^== ' "$here/names.list")" ] || {
    echo "names.list has a name twice" >&2
    exit 2
}

try() { # NAME
    local name=$1 source=$work/$1.cpp libraries standard
    read -ra libraries <"$work/$name.libraries"
    local compile=(g++ -x c++ -Wall -Wextra -Werror -include "$work/need.h" -I"$include"
        -I"$prefix/include")
    for standard in c++17 c++20; do
        "${compile[@]}" -std=$standard -fsyntax-only "$source" || return 1
    done
    "${compile[@]}" -std=c++11 -Wpedantic "$source" -o "$work/$name" -L"$lib" \
        "-Wl,-rpath,$lib" "${libraries[@]}" || return 1
    timeout 60 "$work/$name" $((20000 + RANDOM % 12000)) </dev/null
}

passed=0 failed=0 running=0
while read -r name; do
    if [ $# -gt 0 ]; then
        for word in "$@"; do
            case $name in *"$word"*) break ;; esac
            false
        done || continue
    fi
    { try "$name" >"$work/$name.output" 2>&1; echo $? >"$work/$name.status"; } &
    running=$((running + 1))
    [ $((running % ${JOBS:-4})) -eq 0 ] && wait
done <"$work/programs"
wait
while read -r name; do
    [ -e "$work/$name.status" ] || continue
    if [ "$(cat "$work/$name.status")" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        sed 's/^/        /' "$work/$name.output" | head -12
    fi
done <"$work/programs"
echo "  $passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
