// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens in the schedules: which clients want them, and what the checker gets.

use dlock_core::wire::message::Mode;

use super::state::Sys;
use super::token_oracle::Told;

/// Whether a client of this schedule wants tokens of a lock; most do.
pub(super) fn wants(sys: &Sys, c: usize, l: usize) -> bool {
    sys.plan.tokens && sys.plan.start_ns >> (4 * l + c) & 3 != 0
}

impl Sys {
    /// Passes the token of a client's hold to the checker. `begins`: the hold is new.
    pub(super) fn token_told(
        &mut self,
        c: usize,
        l: usize,
        mode: Mode,
        begins: bool,
    ) -> Result<(), String> {
        let (who, now) = (self.who(c), self.now);
        let Some(entry) = self.clients[c].threads[l].entry.as_ref() else { return Ok(()) };
        if !self.oracle.relies(l, who, now) {
            return Ok(()); // the program learns that its lease is over, so the token does not count
        }
        match entry.token() {
            Some(token) => self.oracle.token(l, Told { who, mode, token }, now, begins),
            None if !entry.desc().tokens => Ok(()),
            None => Err(format!("token: client {who:#x} has none of lock {l}")),
        }
    }
}
