# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Sourced by the other scripts: where the repository is, cargo on the PATH, a scratch folder,
# and the step runner with its table.
#
#   begin               a scratch folder, removed at the end together with what still runs
#   step NAME SECONDS COMMAND...   runs, shows the output, counts passed/failed/skipped tests;
#                       exit status 77: nothing of it can run here, its last `skipped` line says why
#   skip NAME REASON    notes something that cannot run here
#   finish [WORD:]      prints the table and `N passed, N failed, N skipped`; the exit status

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# An installed rustup that no login shell has put on the PATH.
if ! command -v cargo >/dev/null 2>&1 && [ -x "${CARGO_HOME:-${HOME:-/}/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    export PATH
fi
# shellcheck disable=SC2034 # for the scripts that source this one
target_dir=${CARGO_TARGET_DIR:-$root/target}
[ -t 1 ] || export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never

have() { command -v "$1" >/dev/null 2>&1; }

# A release build of all packages, or of those given (-p NAME ...).
release_build() {
    if [ $# = 0 ]; then set -- --workspace --exclude dlock-tidy; fi
    cargo build --release --locked "$@"
}

begin() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/dlock.XXXXXX")
    child=
    table=()
    passed=0 failed=0 skipped=0
    trap 'end_child; rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

end_child() {
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
}

# Reads a log; prints "PASSED FAILED SKIPPED" of the runners it knows, or nothing.
count_tests() {
    awk '
        function word(name,   n, i) {           # the number before a word, in this line
            n = split($0, w, /[ ;,()]+/)
            for (i = 2; i <= n; i++) if (w[i] == name) return w[i - 1] + 0
            return 0
        }
        /^ *Summary \[/ {
            p += word("passed"); s += word("skipped"); seen = 1
            f += word("failed") + word("timed")
        }
        /^test result: / {
            p += word("passed"); f += word("failed"); s += word("ignored"); seen = 1
        }
        /^([a-z]+: )?[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
            lp = word("passed"); lf = word("failed"); ls = word("skipped"); plain = 1
        }
        END {
            if (plain) { p += lp; f += lf; s += ls }
            if (seen || plain) print p + 0, f + 0, s + 0
        }' "$1"
}

row() { # name result passed failed skipped seconds note
    table+=("$(printf '%-34s %-8s %6s %6s %7s %6s  %s' "$@")")
}

step() {
    local name=$1 limit=$2 log rc=0 start=$SECONDS tail_pid note='' result=ok
    shift 2
    log="$scratch/step.$((${#table[@]} + 1)).log"
    : >"$log"
    printf '\n== %s\n' "$name"
    # The output goes through a file, so that a process left behind cannot hold this one up.
    timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    tail --pid="$child" -s 0.2 -n +1 -f "$log" 2>/dev/null &
    tail_pid=$!
    wait "$child" || rc=$?
    child=
    wait "$tail_pid" 2>/dev/null || true
    local counts flaky p=0 f=0 s=0
    counts=$(count_tests "$log")
    if [ -n "$counts" ]; then
        read -r p f s <<<"$counts"
    elif [ "$rc" = 0 ]; then
        p=1
    fi
    if [ "$rc" = 77 ]; then
        note=$(grep -i '^skipped' "$log" | tail -n 1)
        if [ "$s" = 0 ]; then s=1; fi
        result=skipped rc=0
    elif [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
        note="ended after its limit of $limit s"
    elif [ "$rc" != 0 ]; then
        note="exit status $rc"
    fi
    flaky=$(sed -n 's/^.*FLAKY[^]]*\] *\(([^)]*)\)\{0,1\} */FLAKY: /p; s/^FLAKY: /&/p' "$log" | sort -u)
    if [ -n "$flaky" ]; then note="${note:+$note; }${flaky//$'\n'/, }"; fi
    [ "$rc" = 0 ] || [ "$f" != 0 ] || f=1
    if [ "$f" != 0 ]; then result=FAILED; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    row "$name" "$result" "$p" "$f" "$s" "$((SECONDS - start))" "$note"
    [ "$result" != FAILED ]
}

skip() {
    printf '\n== %s\nskipped: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
    row "$1" skipped 0 0 1 0 "$2"
}

fail() {
    printf '\n== %s\nfailed: %s\n' "$1" "$2"
    failed=$((failed + 1))
    row "$1" FAILED 0 1 0 0 "$2"
}

finish() {
    printf '\n%-34s %-8s %6s %6s %7s %6s\n' "what ($SECONDS s in all)" result passed failed skipped s
    printf '%s\n' "${table[@]}"
    printf '%s%d passed, %d failed, %d skipped\n' "${1:+$1 }" "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}
