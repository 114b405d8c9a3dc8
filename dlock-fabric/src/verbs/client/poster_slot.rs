// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posters that threads claim, use and release. A thread has no mutex locked while it posts or
//! waits.
//!
//! ```text
//!   FREE ──claim──▶ BUSY ──dropped, everything completed──▶ FREE
//!                    └──dropped, verbs under way──▶ ORPHAN ──the last one completes──▶ FREE
//!   ledger writes: BUSY ──dropped──▶ FREE, also while verbs are under way
//! ```
//! The thread that polls a completion files it on the poster slot, where the owner reads it. An
//! orphan is not claimed until its last completion has come, so that the scratch words of verbs
//! under way are not used again.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;

use crate::verbs::device::error::VerbsError;
use crate::verbs::device::poster::Poster;
use crate::verbs::device::qp::Qp;

const FREE: u8 = 0;
const BUSY: u8 = 1;
const ORPHAN: u8 = 2;

/// The use of a poster slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// One list at a time, whose values are needed.
    Chains,
    /// Any number of ledger writes that no thread waits for.
    Notes,
}

/// A poster, and the state of its completions.
#[derive(Debug)]
pub(in crate::verbs) struct PosterSlot {
    state: AtomicU8,
    /// The poster's count after its last list.
    posted: AtomicU32,
    /// The count up to which all requests have completed.
    done: AtomicU32,
    slots: u32,
    owner: u16,
    usage: Use,
    poster: UnsafeCell<Poster>,
}

// SAFETY: the poster is reached only through a `Claim` (or by `reap`, which claims it): by the
// thread that has changed `state` to BUSY, until it changes it back. Everything else is atomic or
// constant.
unsafe impl Sync for PosterSlot {}

impl PosterSlot {
    pub(super) fn new(qp: &Arc<Qp>, slots: u32, usage: Use) -> Result<Self, VerbsError> {
        let poster = Poster::new(qp, slots)?;
        Ok(Self {
            state: AtomicU8::new(FREE),
            posted: AtomicU32::new(0),
            done: AtomicU32::new(0),
            slots,
            owner: poster.owner(),
            usage,
            poster: UnsafeCell::new(poster),
        })
    }

    /// The number of this slot's poster in completions.
    pub(super) fn owner(&self) -> u16 {
        self.owner
    }

    pub(super) fn usage(&self) -> Use {
        self.usage
    }

    /// How many verbs fit.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Claims the slot, if it is free.
    #[inline]
    pub(super) fn claim(&self) -> Option<Claim<'_>> {
        let claimed = self.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed);
        // not `then_some`: a claim that is made and dropped would release the slot
        claimed.is_ok().then(|| Claim { poster_slot: self })
    }

    /// Records that all requests up to this count have completed. Called by one thread at a time,
    /// in order.
    #[inline]
    pub(super) fn completed(&self, seq: u32) {
        self.done.store(seq, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == ORPHAN {
            self.reap();
        }
    }

    /// Whether all requests up to this count have completed.
    #[inline]
    pub(super) fn is_done(&self, seq: u32) -> bool {
        // counts wrap, and fewer than 2^31 requests are under way
        self.done.load(Ordering::SeqCst).wrapping_sub(seq) as i32 >= 0
    }

    /// The poster's count after the last list.
    pub(super) fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire)
    }

    /// The poster's count after an abandoned list that may still take effect; `None`: there is
    /// none.
    pub(super) fn abandoned(&self) -> Option<u32> {
        (self.state.load(Ordering::SeqCst) == ORPHAN).then(|| self.posted())
    }

    fn is_idle(&self) -> bool {
        self.is_done(self.posted())
    }

    /// Frees an orphan whose last completion has come. Of the thread that makes the slot an orphan
    /// and the one that files that completion, at least one sees what the other has done.
    fn reap(&self) {
        let (from, to) = (Ordering::SeqCst, Ordering::Relaxed);
        let done = self.done.load(Ordering::SeqCst);
        let is_idle = done.wrapping_sub(self.posted()) as i32 >= 0;
        if is_idle && self.state.compare_exchange(ORPHAN, BUSY, from, to).is_ok() {
            drop(Claim { poster_slot: self });
        }
    }
}

/// A poster slot claimed by this thread.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    poster_slot: &'a PosterSlot,
}

impl<'a> Claim<'a> {
    pub(super) fn poster_slot(&self) -> &'a PosterSlot {
        self.poster_slot
    }

    /// The poster, settled up to the last completion.
    #[inline]
    pub(super) fn poster(&mut self) -> &mut Poster {
        // SAFETY: see `PosterSlot`: only this claim reaches it, and is borrowed mutably.
        let poster = unsafe { &mut *self.poster_slot.poster.get() };
        poster.settle_to(self.poster_slot.done.load(Ordering::Acquire));
        poster
    }

    /// Records the poster's count after a list was posted.
    #[inline]
    pub(super) fn posted(&mut self, seq: u32) {
        self.poster_slot.posted.store(seq, Ordering::Release);
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        let poster_slot = self.poster_slot;
        if poster_slot.usage == Use::Notes || poster_slot.is_idle() {
            self.poster();
            poster_slot.state.store(FREE, Ordering::Release);
        } else {
            poster_slot.state.store(ORPHAN, Ordering::SeqCst);
            // the last completion may have come before the slot was marked as an orphan
            poster_slot.reap();
        }
    }
}
