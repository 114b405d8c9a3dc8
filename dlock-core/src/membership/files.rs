// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptors that members take of the primary's process. A client for which too few are left
//! is refused before a system call fails for want of one.

use super::member::{Member, Process};
use super::Membership;

/// Descriptors that every member takes: its control connection and its command channel.
pub const FILES_PER_CLIENT: u64 = 2;
/// Further descriptors of a member that has mapped the memory: its ledger and its process.
pub const FILES_PER_MAPPING: u64 = FILES_PER_LEDGER + FILES_PER_PROCESS;
const FILES_PER_LEDGER: u64 = 1;
/// Descriptors for each process that has mapped the memory for a client.
const FILES_PER_PROCESS: u64 = 1;

impl Membership {
    /// Descriptors that all members take, or that are kept free for them.
    pub fn files(&self) -> u64 {
        self.members.len() as u64 * FILES_PER_CLIENT + self.mapping_files
    }

    /// Whether `more` further descriptors are left.
    pub(super) fn has_files(&self, more: u64) -> bool {
        self.files().saturating_add(more) <= self.rules.files_max
    }
}

impl Member {
    /// Descriptors that this member takes because processes have mapped the memory for it. Those of
    /// ended processes are closed when another process maps it.
    pub(super) fn mapping_files(&self) -> u64 {
        match self.processes.len() as u64 {
            0 => 0,
            processes => FILES_PER_LEDGER + processes * FILES_PER_PROCESS,
        }
    }

    /// How many further descriptors the primary needs if this process maps the lock memory for the
    /// client. The descriptor of a process that has ended is closed first, and counts as free.
    pub(super) fn more_files_for(&self, pid: Option<i32>) -> u64 {
        let has_place = |p: &Process| p.has_ended || pid.is_some() && p.pid == pid;
        match self.processes.is_empty() {
            true => FILES_PER_MAPPING,
            false if self.processes.iter().any(has_place) => 0,
            false => FILES_PER_PROCESS,
        }
    }
}
