// SPDX-License-Identifier: MIT OR Apache-2.0
//! A relayed lock, arbiter side: the arbiter works on the word alone, so it ends the relay first.
//!
//! ```text
//!   w1 told: no holder hands the lock on by w1 any more ─▶ w0.nx := w1.nx
//! ```
//! A holder that finds `told` releases by a request. It may begin a relay while `told` is set, with
//! the number that is there; so `told` is taken off and the number left. `ended` tells who looks
//! there that the word may count, and keeps a holder that believes in the relay from handing on.

use super::super::{Ctx, ROUNDS_MAX};
use crate::exec::LockMemory;
use crate::ids::Slot;
use crate::lane;
use crate::message::LockType;
use crate::planted::{self, Bug};
use crate::word_op::{Word, WordAddr};
use crate::words::{FairWord, TurnWord};

fn companion(ctx: &Ctx<'_>) -> WordAddr {
    WordAddr::new(ctx.lock.slot, Word::W1)
}

/// The word of a fair lock with the number that is served, relayed or not.
pub(crate) fn fair_word(mem: &mut dyn LockMemory, slot: Slot) -> FairWord {
    let word = FairWord::from_bits(mem.read(WordAddr::new(slot, Word::W0)));
    match word.is_relayed() {
        true => {
            let turn = mem.read(WordAddr::new(slot, Word::W1));
            word.told_by(TurnWord::from_bits(turn))
        }
        false => word,
    }
}

/// A release is to be told here from now on. The number that the companion word has.
pub(in super::super) fn tell(ctx: &mut Ctx<'_>) -> u16 {
    if let Some(nx) = ctx.told {
        return nx;
    }
    let addr = companion(ctx);
    let mut seen = TurnWord::from_bits(ctx.mem.read(addr));
    for _ in 0..ROUNDS_MAX {
        let told = seen.with_told(true).into_bits();
        let old = ctx.mem.cas(addr, seen.into_bits(), told);
        if old == seen.into_bits() {
            break;
        }
        seen = TurnWord::from_bits(old);
    }
    ctx.told = Some(seen.nx());
    seen.nx()
}

/// Nobody has to be told of a release.
pub(super) fn tell_no_more(ctx: &mut Ctx<'_>) {
    if let Some(nx) = ctx.told.take() {
        let addr = companion(ctx);
        ctx.mem.set(addr, TurnWord::new().with_nx(nx).with_ended(true).into_bits());
    }
}

/// The word, which was `seen`, when it is not relayed any more.
pub(in super::super) fn ended(ctx: &mut Ctx<'_>, mut seen: u64) -> u64 {
    if ctx.lock.lock_type != LockType::Fair {
        return seen;
    }
    for _ in 0..ROUNDS_MAX {
        let word = FairWord::from_bits(seen);
        if !word.is_relayed() {
            break;
        }
        let nx = match planted::is(Bug::RelayUntold) {
            true => TurnWord::from_bits(ctx.mem.read(companion(ctx))).nx(),
            false => tell(ctx),
        };
        // a number behind the last ticket is garbage
        let nx = if lane::is_before(word.mx(), nx) { word.mx() } else { nx };
        let told = word.serving(nx).into_bits();
        let addr = ctx.w0();
        let old = ctx.mem.cas(addr, seen, told);
        seen = if old == seen { told } else { old };
    }
    seen
}

/// The lane starts again: no number of before may be taken for one of the new lap.
pub(super) fn starts_again(ctx: &mut Ctx<'_>) {
    let told = ctx.told.is_some();
    ctx.told = told.then_some(0);
    let addr = companion(ctx);
    ctx.mem.set(addr, TurnWord::new().with_told(told).into_bits());
}
