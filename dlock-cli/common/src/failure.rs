// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit codes, and the text of a failure: the cause, then the remedy.

use std::fmt;
use std::io;

use dlock_core::wire::status::Status;
use dlock_fabric::os::denied;
use rustix::io::Errno;

/// All went well.
pub const OK: u8 = 0;
/// Something failed, or a property that was to be shown did not hold.
pub const FAILED: u8 = 1;
/// The command line is wrong (clap uses the same number).
pub const USAGE: u8 = 2;
/// The primary or its admin socket cannot be reached, or it refuses (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// `exec`: the lock was not got within `--wait` (`EX_TEMPFAIL`).
pub const NOT_GOT: u8 = 75;
/// `exec`: the lock was lost while the command ran (`EX_PROTOCOL`).
pub const LOST: u8 = 76;
/// `exec`: the command is there but cannot be run (as in the shell).
pub const NOT_EXECUTABLE: u8 = 126;
/// `exec`: there is no such command (as in the shell).
pub const NOT_FOUND: u8 = 127;
/// `exec`: added to the number of the signal that ended the command (as in the shell).
pub const SIGNALLED: u8 = 128;

/// Why `dlock` ends with an exit code other than 0.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    text: String,
}

impl Failure {
    /// `cause` says what went wrong, `remedy` what to do about it.
    pub fn new(code: u8, cause: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { code, text: format!("{cause}\n  remedy: {remedy}") }
    }

    /// The failure if a process or thread that `dlock` needs cannot be started.
    pub fn not_started(what: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::new(
                FAILED,
                format_args!("cannot start {what}: the limit of processes or threads is reached"),
                "raise it (ulimit -u, TasksMax= of the unit, pids.max of the cgroup), or end \
                 other programs of this user",
            ),
            _ => Self::of_system(format_args!("cannot start {what}: {error}"), error),
        }
    }

    /// The failure of `what`, because the system has refused a call.
    pub fn of_call(call: &str, what: &str, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Self::of_system(format_args!("{what}: {call}: {error}"), &error)
    }

    /// The failure with this cause, and the remedy for the system's error where one is known.
    fn of_system(cause: impl fmt::Display, error: &io::Error) -> Self {
        let is_limit = [Errno::MFILE, Errno::NFILE]
            .map(|limit| Some(limit.raw_os_error()))
            .contains(&error.raw_os_error());
        let of_files = is_limit.then_some("raise the limit of open files (ulimit -n)");
        match denied(error).or(of_files) {
            Some(remedy) => Self::new(FAILED, cause, remedy),
            None => Self::plain(cause),
        }
    }

    /// A failure without a remedy beyond what the cause says.
    pub fn plain(cause: impl fmt::Display) -> Self {
        Self { code: FAILED, text: cause.to_string() }
    }

    /// The failure if a primary answered with this status when asked to do `what`.
    pub fn refused(what: impl fmt::Display, status: Status) -> Self {
        let remedy = match status {
            Status::NotReady => "start the primary, or wait until its recovery is over",
            Status::BadResponse => "look whether the primary still runs: dlock status",
            Status::ServerNoResource => NO_ROOM,
            Status::Denied => DENIED,
            Status::VersionMismatch => "install the same release on client and primary",
            Status::ClientRemoved => "start again: the primary has forgotten this client",
            _ => "dlock -v tells more",
        };
        Self::new(UNAVAILABLE, format_args!("{what}: {status}"), remedy)
    }
}

/// The remedy for a primary that does not answer.
pub const SILENT: &str = "look whether it runs and can be reached: dlock status";

/// The remedy for [`Status::ServerNoResource`].
pub const NO_ROOM: &str = "clients_max, locks_max or objects_max of dlockd.toml is reached, or a \
     quota of a rule, or its state folder is out of reach: dlock status and the primary's log say \
     which; raise it, release what is not needed, or mend the folder";

/// The remedy for [`Status::Denied`].
pub const DENIED: &str = "use a certificate that has this right, or give it one: [[rules]] in \
     dlockd.toml, then reload; the primary's log names the right that is missing";

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_the_system_refuses_has_a_remedy() {
        let said = |errno: Errno| Failure::of_call("socketpair", "no signals", errno).to_string();
        assert!(said(Errno::PERM).contains("remedy: a seccomp filter"), "{}", said(Errno::PERM));
        assert!(said(Errno::NOSYS).contains("permit it"), "{}", said(Errno::NOSYS));
        assert!(said(Errno::MFILE).contains("ulimit -n"), "{}", said(Errno::MFILE));
        let started = Failure::not_started("the keeper", &Errno::PERM.into()).to_string();
        assert!(started.contains("permit it"), "{started}");
    }
}
