// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock`, the command-line tool.
//!
//! ```text
//!   args.rs     what can be said on the command line
//!   exec/       runs a command while holding a lock
//!   hold.rs     holds a lock across commands
//!   admin.rs    asks a running dlockd: status, locks, clients
//!   act.rs      has a primary take away what clients hold, or drain
//!   doctor.rs   whether this host can use RDMA
//!   certs/      a private CA: certificates, keys and the list of revoked ones
//!   demo/       a guided tour: processes that play roles (role.rs), driven by scenes
//! ```
//! Measurements (`dlock bench`) are in the crate `dlock-bench`; `common/` has what both crates use.
//!
//! This program does not serve (`dlockd` does), except for the primaries that the tour and the
//! benchmark start for themselves.
#![forbid(unsafe_code)]

mod act;
mod admin;
mod args;
mod certs;
mod demo;
mod doctor;
mod exec;
mod help;
mod hold;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Parser;
use dlock_cli_common::{connect, failure, logging, out, table};

use args::{Args, Command};

fn main() -> ExitCode {
    args::drop_empty_variables();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return said(&error),
    };
    args.tls.to_environment();
    logging::to_stderr(args.verbose);
    let result = match args.command {
        Command::Demo(demo) => demo::run(&demo),
        Command::Bench(bench) => dlock_bench::run(&bench),
        Command::Status(admin) => admin::run(&admin, admin::Query::Status),
        Command::Promote(args) => admin::run(&args, admin::Query::Promote),
        Command::Recover(args) => admin::run(&args.admin, admin::Query::Recovery { now: args.now }),
        Command::Locks(locks) => {
            let name = locks.name.as_ref().map(|name| name.as_bytes());
            admin::run(&locks.admin, admin::Query::Locks { name })
        }
        Command::Clients(admin) => admin::run(&admin, admin::Query::Clients),
        Command::Remove(args) => act::remove(&args),
        Command::Break(args) => act::break_lock(&args),
        Command::Reset(args) => act::reset(&args),
        Command::Drain(args) => act::drain(&args),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Exec(exec) => exec::run(&exec),
        Command::Hold(args) => hold::hold(&args),
        Command::Release(args) => hold::release(&args),
        Command::Certs(certs) => certs::run(&certs),
        Command::Role(role) => demo::role::run(&role),
    };
    let code = match result {
        Ok(code) => code,
        Err(failure) => {
            logging::say(&failure);
            failure.code
        }
    };
    match (out::lost(), code) {
        (Some(what), failure::OK) => {
            if !what.is_empty() {
                logging::say(&what);
            }
            ExitCode::from(failure::FAILED)
        }
        _ => ExitCode::from(code),
    }
}

/// Prints help, or what is wrong with the command line; returns the exit code.
fn said(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match (printed, u8::try_from(error.exit_code())) {
        (Ok(()), Ok(code)) => ExitCode::from(code),
        _ => ExitCode::from(failure::FAILED),
    }
}
