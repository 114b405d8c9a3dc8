#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Compares what the installed libraries export with the public names of the C API: PREFIX.
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
libraries="$1/lib64"
begin

client="dclient_lib_init dclient_lib_deinit client_init client_reinit client_deinit
client_heartbeat client_reinit_done get_lock release_lock update_all_locks
get_client_debug_stats clear_client_debug_stats trylock lock unlock lock_extend batch_get_lock
batch_release_lock batch_trylock batch_unlock batch_lock_extend lock_request_async
lock_result_check umo_atomic64_create umo_atomic64_destroy umo_atomic64_get
umo_atomic64_release umo_atomic64_faa umo_atomic64_cas umo_atomic64_get_snapshot"

# Of dlock.h, in the same library.
modern="dlock_select_version dlock_max_version dlock_strerror dlock_last_detail dlock_set_log_level
dlock_cancel_new dlock_cancel_fire dlock_cancel_close dlock_client_open dlock_client_get_info
dlock_client_ping dlock_client_leave dlock_client_close dlock_lock_open dlock_lock_close
dlock_acquire dlock_hold_get_info dlock_hold_extend dlock_hold_downgrade dlock_hold_check
dlock_release dlock_acquire_many dlock_release_many dlock_queue_new dlock_queue_get_fd dlock_acquire_start
dlock_release_start dlock_listen_lock dlock_listen_client dlock_queue_next dlock_queue_close
dlock_object_open dlock_object_add dlock_object_exchange dlock_object_load dlock_object_destroy
dlock_object_close"
server="dserver_lib_init dserver_lib_deinit server_start server_stop get_server_debug_stats
clear_server_debug_stats"

# Of this project's own header dlock_log.h.
common="dlock_log_set_callback dlock_log_get_callback"

compare() { # library, names
    local file="$libraries/lib$1.so" name=$1 soname wanted found
    shift
    wanted=$(printf '%s\n' "$@" | sort -u)
    # Without their versions, and without the versions themselves (A).
    if ! found=$(nm -D --defined-only --format=posix "$file" |
        awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' | sort -u); then
        echo "FAILED lib$name: cannot be read"
        return 1
    fi
    soname=$(objdump -p "$file" | awk '/SONAME/ {print $2}')
    if [ "$soname" != "lib$name.so.0" ]; then
        echo "FAILED lib$name: SONAME is '$soname', not 'lib$name.so.0'"
        return 1
    fi
    for link in so so.0 so.0.0.1; do
        [ -e "$libraries/lib$name.$link" ] || { echo "FAILED lib$name.$link: not installed"; return 1; }
    done
    if ! diff <(printf '%s\n' "$wanted") <(printf '%s\n' "$found") >"$scratch/diff"; then
        echo "FAILED lib$name: missing (<) and surplus (>) names:"
        grep '^[<>]' "$scratch/diff"
        return 1
    fi
    echo "ok     lib$name exports exactly $# names, SONAME $soname"
}

good=0 bad=0
for library in "dlockc $client $modern" "dlocks $server" "dlockm $common"; do
    # shellcheck disable=SC2086 # a list of words
    if compare $library; then good=$((good + 1)); else bad=$((bad + 1)); fi
done
echo "$good passed, $bad failed"
[ "$bad" = 0 ]
