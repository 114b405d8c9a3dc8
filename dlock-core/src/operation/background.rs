// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of the library, whose results its program does not hear.

use super::{Bounds, Operation, Stage};
use crate::clock::Now;
use crate::lock::{LockEntry, Machine, Op, Step};

impl Operation {
    /// Undoes what a lost answer may have left behind: `None` if nothing is in doubt.
    pub fn undo(entry: &mut LockEntry, now: Now, bounds: Bounds) -> Option<Operation> {
        Some(Self::unheard(entry.undo(now)?, now, bounds))
    }

    /// Asks a successor what it makes of a hold that was claimed, for the library. If the hold is
    /// lost, its program hears of that by its next operation. `None`: nothing is to be asked.
    pub fn confirm(entry: &mut LockEntry, now: Now, bounds: Bounds) -> Option<Operation> {
        Some(Self::unheard(entry.confirm(now)?, now, bounds))
    }

    fn unheard((machine, step): (Machine, Step), now: Now, bounds: Bounds) -> Self {
        let is_unheard = true;
        Self { is_unheard, ..Self::new(Op::Unlock, machine, Stage::Step(step), now, bounds) }
    }

    /// Whether it is of the library: its program is not told its result.
    pub fn is_unheard(&self) -> bool {
        self.is_unheard
    }
}
