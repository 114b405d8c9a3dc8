// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of the library, whose results its program does not hear.

use super::{mode_of, Bounds, Operation, Stage};
use crate::clock::Now;
use crate::lock::{LockEntry, Machine, Op, OpResult, Step};

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

    /// Renews the lease of a hold for the library, if that is wanted: ask
    /// [`LockEntry::due`] first. If the hold turns out to be lost, its program hears of
    /// that by its next operation.
    pub fn renew(entry: &mut LockEntry, now: Now) -> Option<Operation> {
        let (machine, step, until_ns) = entry.renew(now)?;
        let bounds = Bounds { grant_until_ns: until_ns, until_ns };
        let renewal = Self::unheard((machine, step), now, bounds);
        Some(Self { op: machine.op(), mode: mode_of(machine.op(), entry), ..renewal })
    }

    fn unheard((machine, step): (Machine, Step), now: Now, bounds: Bounds) -> Self {
        let is_unheard = true;
        Self { is_unheard, ..Self::new(Op::Unlock, machine, Stage::Step(step), now, bounds) }
    }

    /// Whether it is of the library: its program is not told its result.
    pub fn is_unheard(&self) -> bool {
        self.is_unheard
    }

    /// Whether it renews a lease for the library.
    pub fn is_renewal(&self) -> bool {
        self.is_unheard && matches!(self.op, Op::Extend { .. })
    }

    /// A renewal has this result.
    pub(super) fn has_renewed(&mut self, entry: &mut LockEntry, result: OpResult) {
        entry.has_renewed(result.status, self.now);
        self.stage = match self.replaced {
            true => Stage::Undo(result), // the ledger is written anew
            false => Stage::Done(result),
        };
    }
}
