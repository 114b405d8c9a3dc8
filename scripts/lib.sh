# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Sourced by the other scripts: where the repository is, cargo on the PATH, a scratch folder,
# and the step runner with its table.
#
#   begin               a scratch folder, removed at the end together with what still runs
#   step NAME SECONDS COMMAND...   runs, shows the output, counts passed/failed/skipped tests;
#                       exit status 77: nothing of it can run here, its last `skipped` line says why
#   beside NAME SECONDS COMMAND...   the same, while the steps after it run
#   collect [NAME]      waits for that step beside, or for all of them, and shows its output
#   skip NAME REASON    notes something that cannot run here
#   finish [WORD:]      collects, prints the table and `N passed, N failed, N skipped`; the exit status
#
# SECONDS bounds the time without progress: a step ends when its output has not grown for so long.
# How long it takes in all has no bound, so that a busy machine makes it slow and not wrong. What
# is progress and no news is not shown: cargo's line per compiled unit, nextest's per passed test,
# and each line that begins with `progress: ` (programs print those where DLOCK_PROGRESS is set).

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
    children=()
    those_beside=()
    table=()
    steps=0
    passed=0 failed=0 skipped=0
    trap 'end_children; rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

end_children() {
    local child
    for child in ${children[@]+"${children[@]}"}; do kill "$child" 2>/dev/null || true; done
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

row() { # name result passed failed skipped seconds processor-seconds note
    table+=("$(printf '%-34s %-8s %6s %6s %7s %6s %6s  %s' "$@")")
}

# Processor seconds of a shell's children that have ended, and of theirs; from what `times` prints.
used() {
    awk 'NR == 2 { split($1 $2, w, /[ms]/); printf "%d", 60 * (w[1] + w[3]) + w[2] + w[4] }' "$1"
}

# Of what a step prints, what is news.
news() {
    sed -u -E -e '/^progress: /d' -e '/^ +PASS \[/d' -e '/^ +(Fresh|Dirty) /d' \
        -e '/^ +Running `.*(rustc|rustdoc|build-script-build)/d' \
        -e 's/^( +Running `.{90}).*/\1.../'
}

# Ends a process once LOG has not grown for SECONDS; its last lines of progress say where it was.
watch_progress() { # LOG SECONDS PROCESS
    local now size=-1 since=$SECONDS
    while kill -0 "$3" 2>/dev/null; do
        now=$(stat -c %s "$1" 2>/dev/null) || return 0
        if [ "$now" != "$size" ]; then size=$now since=$SECONDS; fi
        if [ $((SECONDS - since)) -ge "$2" ]; then
            tail -n 3 "$1" | cut -c 1-200 | sed 's/^/no progress since: /' >"$1.silent"
            cat "$1.silent" >>"$1"
            kill "$3" 2>/dev/null || true
            return
        fi
        sleep 1
    done
}

# Runs a step to its end, the output in LOG; LOG.result gets what `record` reads.
run_step() { # LOG NAME SECONDS COMMAND...
    local log=$1 name=$2 limit=$3 start=$SECONDS child rc=0 note='' result=ok
    local counts p=0 f=0 s=0
    shift 3
    set +e # in a subshell of its own
    # shellcheck disable=SC2046 # several processes
    trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
    # The output goes through a file, so that a process left behind cannot hold this one up.
    # `timeout` has no limit here: it passes a signal on to all of the command's processes.
    DLOCK_PROGRESS=1 CARGO_TERM_VERBOSE=true timeout --kill-after=10 0 "$@" >"$log" 2>&1 </dev/null &
    child=$!
    watch_progress "$log" "$limit" "$child" &
    wait "$child" || rc=$?
    wait "$!" 2>/dev/null || true
    counts=$(count_tests "$log")
    if [ -n "$counts" ]; then
        read -r p f s <<<"$counts"
    elif [ "$rc" = 0 ]; then
        p=1
    fi
    if [ -e "$log.silent" ]; then
        note="ended after $limit s without progress"
        [ "$rc" != 0 ] || rc=143
    elif [ "$rc" = 77 ]; then
        note=$(grep -i '^skipped' "$log" | tail -n 1)
        if [ "$s" = 0 ]; then s=1; fi
        result=skipped rc=0
    elif [ "$rc" != 0 ]; then
        note="exit status $rc"
    fi
    [ "$rc" = 0 ] || [ "$f" != 0 ] || f=1
    if [ "$f" != 0 ]; then result=FAILED; fi
    times >"$log.times" # not in a pipe, where a subshell would tell its own
    printf '%s\n' "$name" "$result" "$p" "$f" "$s" "$((SECONDS - start))" "$(used "$log.times")" "$note" \
        >"$log.result"
}

# Adds the row of a step that has ended; fails if the step has.
record() { # LOG
    local of=()
    mapfile -t of <"$1.result"
    passed=$((passed + of[2])) failed=$((failed + of[3])) skipped=$((skipped + of[4]))
    row "${of[@]}"
    [ "${of[1]}" != FAILED ]
}

step() {
    local log tail_pid
    steps=$((steps + 1))
    log="$scratch/step.$steps.log"
    : >"$log"
    printf '\n== %s\n' "$1"
    (run_step "$log" "$@") &
    children=("$!" ${children[@]+"${children[@]}"})
    tail --pid="$!" -s 0.2 -n +1 -f "$log" 2>/dev/null | news &
    tail_pid=$!
    wait "${children[0]}" || true
    wait "$tail_pid" 2>/dev/null || true
    children=("${children[@]:1}")
    record "$log"
}

# For steps that mostly wait.
beside() {
    steps=$((steps + 1))
    local log="$scratch/step.$steps.log"
    (run_step "$log" "$@") &
    children+=("$!")
    those_beside+=("$log" "$1" "$!")
}

collect() {
    local log name child of=${1:-} rest=() running=()
    set -- ${those_beside[@]+"${those_beside[@]}"}
    while [ $# != 0 ]; do
        log=$1 name=$2 child=$3
        shift 3
        if [ "${of:-$name}" != "$name" ]; then
            rest+=("$log" "$name" "$child")
            running+=("$child")
            continue
        fi
        wait "$child" || true
        printf '\n== %s\n' "$name"
        news <"$log"
        record "$log" || true
    done
    those_beside=(${rest[@]+"${rest[@]}"})
    children=(${running[@]+"${running[@]}"})
}

skip() {
    printf '\n== %s\nskipped: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
    row "$1" skipped 0 0 1 0 0 "$2"
}

fail() {
    printf '\n== %s\nfailed: %s\n' "$1" "$2"
    failed=$((failed + 1))
    row "$1" FAILED 0 1 0 0 0 "$2"
}

finish() {
    collect
    printf '\n%-34s %-8s %6s %6s %7s %6s %6s\n' "what ($SECONDS s in all)" result passed failed \
        skipped s cpu-s
    printf '%s\n' "${table[@]}"
    printf '%s%d passed, %d failed, %d skipped\n' "${1:+$1 }" "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}
