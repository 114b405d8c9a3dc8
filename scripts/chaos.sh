#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Faults between real clients and a real primary, on this machine: processes, sockets, memory.
# A run that breaks a rule prints its seed, what to type to run it again, and where the logs are;
# threads and processes make each run a little different.
#   scripts/chaos.sh                        a minute of faults, on shared memory and on tcp
#   scripts/chaos.sh --seconds N --seed S   N seconds in all, a new seed every 20
#   scripts/chaos.sh stops 1000             stops of waiting processes past their leases
#   scripts/chaos.sh kills N                kills of clients
#   scripts/chaos.sh frozen N               stops of the primary
#   scripts/chaos.sh failovers N            kills of the primary, each with a successor
#   scripts/chaos.sh itself N               the same; the library finds the successor
#   scripts/chaos.sh deposed N              stops of the primary; another takes its place
#   scripts/chaos.sh fair SECONDS           fair locks without a fault: no stall
#   scripts/chaos.sh silent SECONDS         clients that are silent in the midst of a lease
#   scripts/chaos.sh dead N                 deaths: when is what a dead client held free?
#   scripts/chaos.sh renewed SECONDS        leases that are renewed under load, the primary killed
#   ... --fabric shm | tcp | verbs | sealed   on this one alone
#   ... --tls                               everything speaks TLS (sealed: only with this)
#   DLOCK_CHAOS_LOG=1     what the libraries log, with the time (ms) and the process
#   DLOCK_CHAOS_TRACE=1   write down, beside the logs, what passes each executor
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
exec cargo run --release --locked --quiet -p dlock-chaos --example chaos -- "$@"
