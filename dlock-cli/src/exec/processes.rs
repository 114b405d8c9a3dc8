// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that COMMAND consists of: all descendants of the supervisor but the keeper.
//!
//! The supervisor is a child subreaper (`PR_SET_CHILD_SUBREAPER`): a process of COMMAND whose
//! parent has ended becomes its child, also if it has changed its process group or session.

use std::collections::HashMap;
use std::fs;

use dlock_fabric::os::fds::{process_stat, ProcessStat};
use rustix::process::{getpid, getppid, kill_process, kill_process_group, Pid, Signal};

/// How many times the table of processes is read for one signal: processes may start others
/// between the reading and the signal.
const PASSES_MAX: usize = 16;

/// The processes that COMMAND consists of.
#[derive(Clone, Copy, Debug)]
pub struct Processes {
    /// The process id of the supervisor.
    pub root: Pid,
    /// A child of the supervisor that is not part of COMMAND.
    pub keeper: Pid,
}

impl Processes {
    /// The processes that have not ended. In the keeper, none once the supervisor is gone: its
    /// descendants are no longer known then, and its process id may be another process's.
    pub fn alive(&self) -> Vec<Pid> {
        if getpid() == self.keeper && getppid() != Some(self.root) {
            return Vec::new();
        }
        let mut children: HashMap<i32, Vec<Pid>> = HashMap::new();
        for (pid, process) in table() {
            // a process that has ended has no children any more
            if !process.ended && pid != self.keeper {
                children.entry(process.parent).or_default().push(pid);
            }
        }
        let mut found = Vec::new();
        let mut next = vec![self.root];
        while let Some(pid) = next.pop() {
            let own = children.remove(&pid.as_raw_nonzero().get()).unwrap_or_default();
            found.extend(&own);
            next.extend(own);
        }
        found
    }

    /// Sends a signal to each process of COMMAND.
    pub fn signal(&self, signal: Signal) {
        for pid in self.alive() {
            let _ = kill_process(pid, signal); // a process that has ended meanwhile is fine
        }
    }

    /// Kills all processes of COMMAND, and those that they start while they die; returns `false` if
    /// some are left.
    pub fn kill(&self) -> bool {
        for _ in 0..PASSES_MAX {
            let alive = self.alive();
            if alive.is_empty() {
                return true;
            }
            for pid in alive {
                // the process may have ended in the meantime
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        false
    }
}

/// Kills a process group. For the keeper, once the supervisor is gone. Returns whether the group
/// was empty afterwards.
pub fn kill_group(group: Pid) -> bool {
    let _ = kill_process_group(group, Signal::KILL); // an empty group is an error that does no harm
    let group = group.as_raw_nonzero().get();
    !table().any(|(_, process)| process.group == group && !process.ended)
}

/// All processes of this machine that can be seen.
fn table() -> impl Iterator<Item = (Pid, ProcessStat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(number)?, process_stat(number)?))
    })
}
