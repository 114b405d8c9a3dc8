// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock role start`: becomes COMMAND, unless it is too late for that.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{getppid, set_parent_process_death_signal, Signal};

use super::times;
use crate::args::Start;
use crate::failure::{self, Failure};

/// Becomes COMMAND; returns only if that fails.
///
/// COMMAND is killed by the kernel when its parent, the supervisor, ends. The time is read last:
/// a supervisor that was stopped after its own look at the clock must not start COMMAND.
pub fn run(start: &Start) -> Result<u8, Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Failure::plain)?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent != Some(start.parent) {
        return Err(Failure::plain("the process that was to watch COMMAND has ended"));
    }
    let (program, arguments) = start.command.split_first().expect("clap demands a command");
    let mut command = Command::new(program);
    command.args(arguments);
    if times::now_ns() >= start.before {
        return Err(too_late());
    }
    let error = command.exec();
    let code = match error.kind() {
        ErrorKind::NotFound => failure::NOT_FOUND,
        _ => failure::NOT_EXECUTABLE,
    };
    let cause = format!("{}: {error}", program.to_string_lossy());
    Err(Failure::new(code, cause, "check the command after `--`, its path and permissions"))
}

/// The failure if COMMAND was not started because its lease is over, or nearly so.
pub fn too_late() -> Failure {
    let cause = "the lock was lost before COMMAND was started: COMMAND did not run";
    Failure::new(failure::NOT_GOT, cause, "run it again; a longer --lease makes this less likely")
}
