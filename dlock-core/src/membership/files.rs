// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file descriptors that members take of the primary's process. The primary refuses a client
//! for which too few are left, before a system call fails for want of one.

use super::member::{Member, Process};
use super::Membership;

/// How many descriptors every member takes: its control connection and its command channel.
pub const FILES_PER_CLIENT: u64 = 2;
/// How many more a member takes that has mapped the memory: its ledger and its process.
pub const FILES_PER_MAPPING: u64 = FILES_PER_LEDGER + FILES_PER_PROCESS;
const FILES_PER_LEDGER: u64 = 1;
/// How many descriptors each process takes that has mapped the memory for a client.
const FILES_PER_PROCESS: u64 = 1;

impl Membership {
    /// How many descriptors all members take, or the primary keeps free for them.
    pub fn files(&self) -> u64 {
        self.members.len() as u64 * FILES_PER_CLIENT + self.mapping_files
    }

    /// Whether `more` further descriptors are left.
    pub(super) fn has_files(&self, more: u64) -> bool {
        self.files().saturating_add(more) <= self.rules.files_max
    }
}

impl Member {
    /// How many descriptors this member takes because processes have mapped the memory for it. The
    /// descriptors of ended processes are closed when another process maps the memory.
    pub(super) fn mapping_files(&self) -> u64 {
        match self.processes.len() as u64 {
            0 => 0,
            processes => FILES_PER_LEDGER + processes * FILES_PER_PROCESS,
        }
    }

    /// How many further descriptors the primary needs if this process maps the lock memory for the
    /// client. The descriptor of an ended process is closed first, and counts as free.
    pub(super) fn more_files_for(&self, pid: Option<i32>) -> u64 {
        let has_place = |p: &Process| p.has_ended || pid.is_some() && p.pid == pid;
        match self.processes.is_empty() {
            true => FILES_PER_MAPPING,
            false if self.processes.iter().any(has_place) => 0,
            false => FILES_PER_PROCESS,
        }
    }
}
