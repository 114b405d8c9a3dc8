// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the system refuses to `dlockd`, to `dlock exec` and to a client in C (`client.c`), while
//! each starts, serves, makes a TLS handshake, goes through a failover, reloads its files and ends.
//! Nothing aborts, hangs, or says success without the lock.
//!
//! ```text
//!                dlockd                    dlock exec              client in C
//!   start        denied, phases: start     denied                  clients: init
//!   serving      denied, phases            denied                  clients: take
//!   handshake    phases: TLS               clients: TLS            clients: TLS
//!   failover     phases: the successor     clients                 clients
//!   reload       phases: SIGHUP            has none                has none
//!   exit         denied, phases: SIGTERM   denied, clients         clients: drop, end
//! ```
//! In each place: stderr full, closed, a dead pipe; no threads, descriptors, maps any more; and
//! each system call denied once, with each of `ERRORS`. strace denies them.
//!
//! `make test` takes a sample that moves through the table; with `DLOCK_SOAK` all of it is run, and
//! `DLOCK_FAULTS=TEXT` runs the cells whose names contain it. All is in one module, so that
//! scripts/test.sh can leave it out where strace may not trace.

#[path = "../common/mod.rs"]
mod common;
mod under_strace;
