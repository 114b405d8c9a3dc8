// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock exec`: COMMAND runs while a lock is held for it, and is dead before the lock is gone.
//!
//! ```text
//!   dlock exec (supervisor.rs)                          dlock role keeper (keeper.rs)
//!   no network, one thread, parent of COMMAND           the session, in a process group of its own
//!     │      ◀── token N | until NS | lost TEXT ── stdout  main thread: acquire, extend, release
//!     │            ──▶ started PID GROUP | ended ─ stdin   watch thread: stdin and a timer
//!     └─ dlock role start (start.rs) = COMMAND
//! ```
//!
//! The lease is on CLOCK_BOOTTIME, which also counts the time for which the machine is suspended,
//! and is counted from before the request that extended it (`times.rs`). A lock over a network and
//! a read-write lock have none: they are held until the session's horizon, which is no shorter than
//! `--lease`, and nothing relies on them beyond that. The client library finds the primary again,
//! or a successor at another address, and claims the lock there; an extension tells whether the
//! lock has survived:
//!
//! ```text
//!   asked ──────── extends, three attempts ────────▶ SIGTERM ── grace ──▶ SIGKILL ─ reserve ─▶ end
//! ```
//!
//! Why two processes: a terminal, a script or an operator stops or kills the visible one. The
//! session must not die with it while COMMAND lives, because a primary on the same host frees the
//! locks of a dead process at once. What happens to COMMAND:
//!
//! | fault | what ends COMMAND |
//! |---|---|
//! | no answer from the primary or a successor | supervisor: SIGTERM, then SIGKILL to all of it |
//! | a failover that ends before the lease | nothing: the keeper claims the lock, and extends it |
//! | the primary says that the lock is lost | supervisor: SIGKILL at once |
//! | a successor refuses it | supervisor: SIGTERM, then SIGKILL; the recovery waits |
//! | `dlock break`, `remove` | supervisor: SIGTERM, then SIGKILL; with `--now` SIGKILL at once |
//! | supervisor stopped (SIGSTOP, Ctrl-Z) | keeper extends as before; it kills if it cannot |
//! | supervisor killed | PR_SET_PDEATHSIG, and the keeper: SIGKILL to its group, then release |
//! | keeper stopped | supervisor: as without an answer |
//! | keeper killed | supervisor: SIGKILL at once |
//! | both killed | PR_SET_PDEATHSIG ends COMMAND, but not the processes that COMMAND started |
//! | both stopped, machine suspended | nothing until they go on; SIGKILL is the first thing then |
//!
//! PR_SET_PDEATHSIG alone is the weaker guard: it reaches one process, does nothing while its
//! parent is merely stopped, and is cleared for set-user-id programs. It is the second line.

mod keeper;
mod keeper_watch;
mod processes;
mod start;
mod supervisor;
mod times;

use std::fs;
use std::path::Path;
use std::time::Duration;

use dlock_core::limits::DESC_LEN_MAX;
use rustix::process::setsid;

use crate::args::{Exec, Hold, Type};
use crate::failure::{self, Failure};

pub use keeper::run as keeper;
pub use start::run as start;
pub use supervisor::own_program;

/// The word of a line from the keeper process to the supervisor: the lock is held at least until
/// this time (CLOCK_BOOTTIME, ns).
const UNTIL: &str = "until";
/// The word of a line from the keeper: the fencing token of the hold.
const TOKEN: &str = "token";
/// The word of a line from the keeper: a successor has refused the lock, or an operator has removed
/// the client. Another client gets the lock when COMMAND has ended, or at this time
/// (CLOCK_BOOTTIME, ns). The reason follows.
const GIVEN_UP: &str = "given-up";
/// The word of a line from the keeper: the lock is lost, for the reason that follows, and another
/// client may have it.
const LOST: &str = "lost";
/// The word of a line from the supervisor: COMMAND runs as this process, in this process group (0:
/// it has none of its own).
const STARTED: &str = "started";
/// The word of a line from the supervisor: COMMAND is dead, and the keeper can release the lock.
const ENDED: &str = "ended";

/// How long the keeper may take, once it was told to end or has failed, to release the lock, to
/// undo a grant under way, or to tell a primary that it leaves.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// Runs `dlock exec`; returns the exit code.
pub fn run(exec: &Exec) -> Result<u8, Failure> {
    check(exec)?;
    let Some(outcome) = &exec.outcome else { return supervisor::run(exec) };
    // leaves the session of the terminal; fails, without harm, in a process that leads a session
    let _ = setsid();
    let result = supervisor::run(exec);
    let code = result.as_ref().map_or_else(|failure| failure.code, |code| *code);
    // if this fails, `dlock release` finds neither an outcome nor a process, and reports that the
    // lock was lost
    fs::write(outcome, format!("{code}\n")).map_err(Failure::plain)?;
    result
}

fn check(exec: &Exec) -> Result<(), Failure> {
    let length = exec.name.len();
    if length == 0 || length > DESC_LEN_MAX {
        let cause = format!("the name of the lock has {length} bytes");
        return Err(Failure::new(failure::USAGE, cause, format!("1 to {DESC_LEN_MAX} bytes")));
    }
    if !is_on_clock_of_children(Path::new("/proc/self/ns")) {
        let cause = "the processes that `dlock exec` starts would be in another time namespace, \
                     whose clock is not its own";
        return Err(Failure::new(failure::USAGE, cause, "unshare --fork, or a shell between"));
    }
    if exec.kind == Type::Atomic && exec.mode == Hold::Shared {
        let cause = "an atomic lock has no readers";
        return Err(Failure::new(failure::USAGE, cause, "--type rw or --type fair"));
    }
    if exec.on_lost.stops() && lease(exec) < times::LEASE_MIN {
        let (min, stop) = (times::LEASE_MIN, times::stop_time(times::LEASE_MIN));
        let cause =
            format!("--lease must be at least {min:?}: stopping COMMAND takes up to {stop:?}");
        let remedy = "a longer --lease, or --on-lost warn, which does not stop COMMAND";
        return Err(Failure::new(failure::USAGE, cause, remedy));
    }
    Ok(())
}

/// Whether child processes have the same CLOCK_BOOTTIME: the three processes exchange times of it.
/// `namespaces`: the links of this process. Unreadable links mean that there are no time
/// namespaces.
fn is_on_clock_of_children(namespaces: &Path) -> bool {
    let namespace = |name| fs::read_link(namespaces.join(name)).ok();
    namespace("time") == namespace("time_for_children")
}

fn lease(exec: &Exec) -> Duration {
    Duration::from_secs(u64::from(exec.lease))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn processes_that_would_have_another_clock_are_not_started() {
        let folder = std::env::temp_dir().join(format!("dlock-namespaces-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(is_on_clock_of_children(&folder), "there are no time namespaces");
        symlink("time:[1]", folder.join("time")).unwrap();
        symlink("time:[2]", folder.join("time_for_children")).unwrap();
        assert!(!is_on_clock_of_children(&folder));
        assert!(is_on_clock_of_children(Path::new("/proc/self/ns")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
