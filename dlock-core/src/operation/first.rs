// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first effect of an operation, which decides most calls: before an [`Operation`] exists.
//!
//! ```text
//!   LockEntry::first_op, first_chain ─ executed ─▶ ended, ended_by ─▶ the result
//!                                                   └ None ─▶ Operation::after ─▶ outcome
//! ```
//! An [`Operation`] takes the same first step by the same functions of its lock, so both decide
//! alike.

use super::{lease, mode_of, Bounds, Operation, Stage};
use crate::clock::Now;
use crate::lock::{FirstOp, LockEntry, Machine, Op, OpResult};

/// The result of an operation whose [first effect](LockEntry::first_op) has found `old`; `begun`:
/// the clock from before the effect; `now`: as for [`Operation::outcome`]. `None`: go on with
/// [`Operation::after`], and report the outcome.
#[inline(always)]
pub fn ended(
    entry: &mut LockEntry,
    op: Op,
    first: FirstOp,
    old: u64,
    begun: &Now,
    now: &Now,
) -> Option<OpResult> {
    if now.is_past_horizon() || !first.runs(begun, now) {
        return None;
    }
    let result = entry.ends(op, first, old, begun, now)?;
    Some(lease::told(entry, op, result, *now))
}

/// Like [`ended`], for a [chain](LockEntry::first_chain) that has found `values`. The caller then
/// writes the ledger entry that the chain may leave, before the program has the result.
#[inline(always)]
pub fn ended_by(
    entry: &mut LockEntry,
    op: Op,
    first: FirstOp,
    values: &[u64],
    begun: &Now,
    now: &Now,
) -> Option<OpResult> {
    if now.is_past_horizon() || !first.runs(begun, now) {
        return None;
    }
    let result = entry.ends_by(op, first, values, begun, now)?;
    Some(lease::told(entry, op, result, *now))
}

impl Operation {
    /// The operation whose first effect is under way, which has not [ended] it. `begun`: the clock
    /// from before the effect.
    pub fn after(entry: &LockEntry, op: Op, first: FirstOp, begun: Now, bounds: Bounds) -> Self {
        let machine = Machine::after(op, first, begun);
        let operation = Self::new(op, machine, Stage::Posted, begun, bounds);
        Self { mode: mode_of(op, entry), steps: 1, ..operation }
    }
}
