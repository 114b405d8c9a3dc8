// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults of system calls: the system refuses calls to `dlockd`, to `dlock exec` and to a client in
//! C (`client.c`), while each starts, serves, makes a TLS handshake, goes through a failover,
//! reloads its files and ends. No program aborts, hangs, or reports success without the lock.
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
//! Each place has these cells: a standard error that is full, closed, or a dead pipe; no more
//! threads, descriptors, or maps; and each system call denied once, with each of `ERRORS`. strace
//! denies the calls.
//!
//! `make test` takes a sample that moves through the table. `DLOCK_SOAK` runs the whole table, and
//! `DLOCK_FAULTS=TEXT` the cells whose names contain TEXT. All tests are in one module, so that
//! scripts/test.sh can leave them out where strace may not trace.

#[path = "../common/mod.rs"]
mod common;
mod under_strace;
