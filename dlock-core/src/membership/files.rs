// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptors that members take of the primary's process: a client for which there are none is
//! refused before anything fails for want of one.

use super::Membership;

/// Descriptors that every member takes at its primary: its control connection and its command
/// channel.
pub const FILES_PER_CLIENT: u64 = 2;
/// Descriptors that it takes beside them once it has mapped the memory: its ledger and its process.
pub const FILES_PER_MAPPING: u64 = 2;

impl Membership {
    /// Descriptors that are kept free for them, or that they take.
    pub fn files(&self) -> u64 {
        self.members.len() as u64 * FILES_PER_CLIENT + self.mapping * FILES_PER_MAPPING
    }

    /// Whether that many more are left.
    pub(super) fn has_files(&self, more: u64) -> bool {
        self.files().saturating_add(more) <= self.rules.files_max
    }
}
