#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Completes a command and an option in a shell, as if they were typed: SHELL [FOLDER]. The shell
# finds the completions where the packages have them, or in FOLDER (docs/completions).
set -euo pipefail
shell=$1 folder=${2:-}
failed=0

completes() { # typed expected
    local found
    case $shell in
    bash) found=$(by_bash "$1" 2>&1) || true ;;
    zsh) found=$(by_zsh "$1" 2>&1) || true ;;
    fish) found=$(by_fish "$1" 2>&1) || true ;;
    esac
    if grep -qE -- "$2" <<<"$found"; then
        echo "$shell: $1 -> $2"
    else
        failed=1
        echo "FAILED: $shell: $1 -> '$found', not $2"
    fi
}

# bash-completion loads what belongs to a command; then bash calls its function.
by_bash() {
    # shellcheck disable=SC2016 # for that bash
    bash --norc -c '
        if [ -n "$2" ]; then . "$2/${1%% *}.bash"; else
            . /usr/share/bash-completion/bash_completion
            _completion_loader "${1%% *}" || [ $? = 124 ]
        fi
        read -ra COMP_WORDS <<<"$1"
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
        function=$(complete -p "${1%% *}" | sed "s/.* -F \([^ ]*\).*/\1/")
        "$function" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[*]}"' completes "$1" "$folder"
}

# At a terminal: the line is typed, completed, and then given to echo.
by_zsh() {
    # shellcheck disable=SC2016 # for zsh
    TERM=dumb timeout 60 zsh -f -c '
        zmodload zsh/zpty
        zpty terminal zsh -f -i
        zpty -w terminal "PS1= PS2=; [ -z \"$2\" ] || fpath=(\"$2\" \$fpath); autoload -Uz compinit"
        zpty -w terminal "compinit -u -D; echo rea\dy"
        zpty -r -m terminal said "*ready*" || exit 1
        zpty -w -n terminal "$1"$'"'\\t\\C-a'"'"echo typed "$'"'\\n'"'
        zpty -w terminal "echo do\ne"
        zpty -r -m terminal said "*done*" || exit 1
        print -r -- "$said"' completes "$1" "$folder"
}

by_fish() {
    # It keeps its state below HOME.
    # shellcheck disable=SC2016 # for fish
    HOME=$(mktemp -d) fish -c '
        test -z "$argv[2]"; or source $argv[2]/(string split " " $argv[1])[1].fish
        complete -C $argv[1]' "$1" "$folder"
}

command -v "$shell" >/dev/null || { echo "skipped: $shell is not installed"; exit 77; }
completes 'dlock do' '(^|dlock )doctor'
completes 'dlock exec --lea' '(^|dlock exec )--lease'
completes 'dlockd --log-f' '(^|dlockd )--log-format'
exit "$failed"
