// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations that the library begins on its own; its program does not hear their results.

use super::{mode_of, Bounds, Operation, Stage};
use crate::clock::Now;
use crate::lock::{LockEntry, Machine, Op, OpResult, Step};

impl Operation {
    /// Undoes what a lost answer may have left behind; `None` if nothing is in doubt.
    pub fn undo(entry: &mut LockEntry, now: Now, bounds: Bounds) -> Option<Operation> {
        Some(Self::unheard(entry.undo(now)?, now, bounds))
    }

    /// Asks a successor what it makes of a claimed hold. If the hold is lost, the program learns
    /// that from its next operation. `None`: there is nothing to ask.
    pub fn confirm(entry: &mut LockEntry, now: Now, bounds: Bounds) -> Option<Operation> {
        Some(Self::unheard(entry.confirm(now)?, now, bounds))
    }

    /// Renews the lease of a hold; `None` if the hold is not renewed. The caller asks
    /// [`LockEntry::due`] first. If the hold turns out to be lost, the program learns that from its
    /// next operation.
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

    /// Whether the library began this operation: its program does not hear the result.
    pub fn is_unheard(&self) -> bool {
        self.is_unheard
    }

    /// Whether this operation renews a lease.
    pub fn is_renewal(&self) -> bool {
        self.is_unheard && matches!(self.op, Op::Extend { .. })
    }

    /// Ends a renewal with this result.
    pub(super) fn has_renewed(&mut self, entry: &mut LockEntry, result: OpResult) {
        entry.has_renewed(result.status, self.now);
        self.stage = match self.replaced {
            true => Stage::Undo(result), // the old channel may have lost a ledger write
            false => Stage::Done(result),
        };
    }
}
