// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that COMMAND consists of: all descendants of the supervisor but the keeper.
//!
//! The supervisor is a child subreaper (`PR_SET_CHILD_SUBREAPER`): a process of COMMAND whose
//! parent has ended becomes its child, also if it has changed its process group or session.

use std::collections::HashMap;
use std::fs;

use rustix::process::{getpid, getppid, kill_process, kill_process_group, Pid, Signal};

/// How many times the table of processes is read for one signal: processes may start others
/// between the reading and the signal.
const PASSES_MAX: usize = 16;

/// The processes that COMMAND consists of.
#[derive(Clone, Copy, Debug)]
pub struct Processes {
    /// The supervisor.
    pub root: Pid,
    /// A child of it that does not belong to them.
    pub keeper: Pid,
}

impl Processes {
    /// Those that have not ended. Read by the keeper, none if the supervisor is gone: its
    /// descendants are no longer known then, and its number may be another process's.
    pub fn alive(&self) -> Vec<Pid> {
        if getpid() == self.keeper && getppid() != Some(self.root) {
            return Vec::new();
        }
        let mut children: HashMap<i32, Vec<Pid>> = HashMap::new();
        for Process { pid, parent, has_ended, .. } in table() {
            // what has ended has no children any more
            if !has_ended && pid != self.keeper {
                children.entry(parent).or_default().push(pid);
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

    /// Sends a signal to each.
    pub fn signal(&self, signal: Signal) {
        for pid in self.alive() {
            let _ = kill_process(pid, signal); // it may have ended in the meantime
        }
    }

    /// Kills all, and those that they start while they die; false: some are left.
    pub fn kill(&self) -> bool {
        for _ in 0..PASSES_MAX {
            let alive = self.alive();
            if alive.is_empty() {
                return true;
            }
            for pid in alive {
                let _ = kill_process(pid, Signal::KILL); // as above
            }
        }
        false
    }
}

/// Kills what is in a process group: for the keeper, once the supervisor is gone. Whether nothing
/// was left in it.
pub fn kill_group(group: Pid) -> bool {
    let _ = kill_process_group(group, Signal::KILL); // it may be empty
    !table().any(|process| process.group == group.as_raw_nonzero().get() && !process.has_ended)
}

struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    has_ended: bool,
}

/// Every process of this machine that can be seen.
fn table() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        parse(pid, &fs::read(entry.path().join("stat")).ok()?)
    })
}

/// `PID (NAME) STATE PARENT GROUP …`; the name may contain anything.
fn parse(pid: Pid, stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, has_ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_hide_the_parent() {
        let read = |stat: &[u8]| {
            parse(getpid(), stat).map(|process| (process.parent, process.group, process.has_ended))
        };
        assert_eq!(read(b"12 (a) Z) b) S 34 56 1"), Some((34, 56, false)));
        assert_eq!(read(b"12 (sh) Z 1 2 1"), Some((1, 2, true)));
        assert_eq!(read(b"12 (sh"), None);
        assert_eq!(read(b""), None);
    }
}
