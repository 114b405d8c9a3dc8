// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shortest way through an atomic lock, and an exclusive one through a read-write lock: one
//! compare-and-swap that nobody interferes with.
//!
//! ```text
//!   fast(op) ──▶ Some(cas) ─ the word was as expected ─▶ fast_done ─▶ result
//!            │     ▲       ├ another holds it, first time ─▶ fast_again
//!            │     └───────┼────────────────────────────────────┘
//!            │             └ anything else ─▶ begin(op) with the same clock; its machine takes
//!            │                                the outcome, as if it had asked for it
//!            └─▶ None: begin(op)
//! ```
//! It decides exactly what the machine would; it only spares building one. Of clients that want one
//! lock again and again, most have it at the second try.

use super::{EntryState, LockEntry, Op, OpResult, View};
use crate::clock::Now;
use crate::memory::word_op::{WordAddr, WordOp};
use crate::memory::words::{AtomicWord, RwWord};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

/// The compare-and-swap of an uncontended acquire or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCas {
    /// The word.
    pub addr: WordAddr,
    /// What it is if nobody interferes.
    pub expect: u64,
    /// What it becomes.
    pub swap: u64,
    /// The end of the lease that it begins, seconds since 1970 (read-write locks have none:
    /// `u32::MAX`); `None`: it is a release.
    pub deadline_s: Option<u32>,
    /// It was tried before, and lost against another's hold.
    is_again: bool,
}

impl FastCas {
    /// No compare-and-swap: a place for one.
    pub const NONE: Self =
        Self { addr: WordAddr::NONE, expect: 0, swap: 0, deadline_s: None, is_again: false };

    /// The word operation.
    #[inline]
    pub fn word_op(self) -> WordOp {
        WordOp::Cas { addr: self.addr, expect: self.expect, swap: self.swap }
    }
}

impl LockEntry {
    /// The one word operation that decides `op` if nobody interferes; `None` if it takes more, or
    /// less.
    #[inline]
    pub fn fast(&self, op: Op, now: Now) -> Option<FastCas> {
        // a chain, and no single word operation, takes a token, and counts the end of a hold
        let counts = match op {
            Op::Unlock => self.counts_end && self.lock_type == LockType::Rw,
            _ => self.desc.tokens,
        };
        if counts || !self.is_settled() || now.is_past_horizon() {
            return None;
        }
        let (expect, swap, deadline_s) = match (self.lock_type, op) {
            (
                LockType::Atomic | LockType::Rw,
                Op::TryLock { mode: Mode::Exclusive, expire_s }
                | Op::Lock { mode: Mode::Exclusive, expire_s },
            ) if self.refs == 0 && expire_s > 0 => {
                let me = self.me.get();
                match self.lock_type {
                    LockType::Rw => (0, RwWord::new().with_client(me).into_bits(), Some(u32::MAX)),
                    _ => {
                        let deadline = now.deadline(expire_s);
                        let word = AtomicWord::new().with_client(me).with_timeout(deadline);
                        (0, word.into_bits(), Some(deadline))
                    }
                }
            }
            // with the waiters bit the word is the arbiter's to change
            (LockType::Atomic, Op::Unlock)
                if self.refs == 1
                    && !self.asks_at_once()
                    && (!AtomicWord::from_bits(self.word).waiters()
                        || planted::is(Bug::FastIgnoresBit)) =>
            {
                (self.word, 0, None)
            }
            (LockType::Rw, Op::Unlock)
                if self.refs == 1
                    && matches!(self.state, EntryState::ExclusiveLocked)
                    && !self.asks_at_once()
                    && (!RwWord::from_bits(self.word).waiters()
                        || planted::is(Bug::FastIgnoresBit)) =>
            {
                (self.word, RwWord::from_bits(self.word).with_client(0).into_bits(), None)
            }
            _ => return None,
        };
        Some(FastCas { addr: self.w0(), expect, swap, deadline_s, is_again: false })
    }

    /// The word was not as `cas` expected, but `found`: the same once more, if the operation waits
    /// and another holds the lock. `now`: later than the outcome, or at most
    /// [`COARSE_NS_MAX`](crate::clock::COARSE_NS_MAX) earlier. The lease counts from where it did.
    #[inline]
    pub fn fast_again(&self, op: Op, cas: FastCas, found: u64, now: Now) -> Option<FastCas> {
        let is_acquire = matches!(op, Op::Lock { .. }) && cas.deadline_s.is_some();
        if !is_acquire || !self.may_try || cas.is_again || now.is_past_horizon() || found == 0 {
            return None;
        }
        let is_for_arbiter = match self.lock_type {
            LockType::Rw => RwWord::from_bits(found).waiters(),
            _ => {
                let word = AtomicWord::from_bits(found);
                word.waiters() || now.maybe_expired(word.timeout())
            }
        };
        (!is_for_arbiter).then_some(FastCas { is_again: true, ..cas })
    }

    /// The word was as `cas` expected: the operation is done. `begun` is the clock from before.
    #[inline]
    pub fn fast_done(&mut self, cas: FastCas, begun: Now) -> OpResult {
        let is_rw = matches!(self.lock_type, LockType::Rw);
        self.word = if is_rw && cas.deadline_s.is_none() { 0 } else { cas.swap };
        let view = match is_rw {
            true => {
                let word = RwWord::from_bits(cas.swap);
                let time_out = cas.deadline_s.map_or(0, |_| begun.time.seconds());
                View::Rw { time_out, client_id: word.client(), rcount: word.rcount() }
            }
            false => {
                let word = AtomicWord::from_bits(cas.swap);
                View::Atomic { client_id: word.client(), time_out: word.timeout() }
            }
        };
        self.cache = view;
        match cas.deadline_s {
            None => {
                self.state = EntryState::Unlocked;
                self.refs = 0;
                self.may_be_endless = false;
            }
            Some(deadline_s) => {
                self.state = EntryState::ExclusiveLocked;
                self.refs = 1;
                self.time_s = if is_rw { begun.time.seconds() } else { deadline_s };
                self.is_judged_by(begun);
            }
        }
        OpResult { status: Status::Success, view: Some(view) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Begin, Step};
    use super::*;
    use crate::clock::{ServerTime, NS};
    use crate::ids::{ClientId, Handle, LockId, Slot};
    use crate::memory::word_op::{Chain, Outcome, Values};
    use crate::wire::control::{LockDesc, LockGrant};

    fn entry(lock_type: LockType) -> LockEntry {
        let (handle, slot) = (Handle(3), Slot(9));
        let grant =
            LockGrant { lock: LockId(5), handle, slot, word: 0, already: false, tokens: false };
        let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
        LockEntry::new(ClientId::new(7).unwrap(), 0, lock_type, &grant, desc)
    }

    fn now() -> Now {
        Now::within(ServerTime(1_000 * NS), 3)
    }

    /// Both ways, side by side, through a whole life of the lock.
    #[test]
    fn the_short_way_and_the_machine_agree() {
        let take = Op::TryLock { mode: Mode::Exclusive, expire_s: 5 };
        for lock_type in [LockType::Atomic, LockType::Rw] {
            let (mut short, mut long) = (entry(lock_type), entry(lock_type));
            for op in [take, Op::Unlock, take, Op::Unlock] {
                let cas = short.fast(op, now()).expect("uncontended");
                let Begin::Run(mut machine, step) = long.begin(op, now()) else { panic!() };
                assert_eq!(step, Step::Chain(Chain::one(cas.word_op())));
                let mut values = Values::new();
                values.push(cas.expect);
                let step = machine.outcome(&mut long, Outcome::Done(values), now());
                assert_eq!(Step::Done(short.fast_done(cas, now())), step);
                assert_eq!(format!("{short:?}"), format!("{long:?}"));
            }
        }
    }

    #[test]
    fn what_takes_more_or_less_than_one_verb_has_no_short_way() {
        let take = Op::TryLock { mode: Mode::Exclusive, expire_s: 5 };
        let mut e = entry(LockType::Atomic);
        assert_eq!(e.fast(Op::Unlock, now()), None);
        assert_eq!(e.fast(Op::TryLock { mode: Mode::Exclusive, expire_s: 0 }, now()), None);
        assert_eq!(e.fast(Op::TryLock { mode: Mode::Shared, expire_s: 5 }, now()), None);
        assert_eq!(e.fast(Op::Extend { mode: Mode::Exclusive, expire_s: 5 }, now()), None);
        let cas = e.fast(take, now()).unwrap();
        e.fast_done(cas, now());
        assert_eq!(e.fast(take, now()), None, "a re-entry");
        e.word = AtomicWord::from_bits(e.word).with_waiters(true).into_bits();
        assert_eq!(e.fast(Op::Unlock, now()), None, "somebody waits");
        let mut e = entry(LockType::Rw);
        let shared = Op::TryLock { mode: Mode::Shared, expire_s: 5 };
        assert_eq!(e.fast(shared, now()), None, "an intent comes first");
        let cas = e.fast(take, now()).unwrap();
        e.fast_done(cas, now());
        e.word = RwWord::from_bits(e.word).with_waiters(true).into_bits();
        assert_eq!(e.fast(Op::Unlock, now()), None, "somebody waits");
        e.word = RwWord::from_bits(e.word).with_waiters(false).into_bits();
        e.state = EntryState::SharedLocked;
        assert_eq!(e.fast(Op::Unlock, now()), None, "a share is not in the word alone");
        assert_eq!(entry(LockType::Fair).fast(take, now()), None);
    }

    fn trying(lock_type: LockType) -> LockEntry {
        let mut e = entry(lock_type);
        e.may_try(true);
        e
    }

    /// Another's hold of this lock, which runs until then.
    fn others(lock_type: LockType, until_s: u32) -> u64 {
        match lock_type {
            LockType::Rw => RwWord::new().with_client(8).into_bits(),
            _ => AtomicWord::new().with_client(8).with_timeout(until_s).into_bits(),
        }
    }

    const LOCK: Op = Op::Lock { mode: Mode::Exclusive, expire_s: 5 };

    /// What the machine would do, with no pause between.
    #[test]
    fn who_waits_and_finds_a_hold_tries_the_same_again_once() {
        for lock_type in [LockType::Atomic, LockType::Rw] {
            let found = others(lock_type, 2_000);
            let (short, mut long) = (trying(lock_type), trying(lock_type));
            let cas = short.fast(LOCK, now()).unwrap();
            let Begin::Run(mut machine, step) = long.begin(LOCK, now()) else { panic!() };
            assert_eq!(step, Step::Chain(Chain::one(cas.word_op())));
            let mut values = Values::new();
            values.push(found);
            let step = machine.outcome(&mut long, Outcome::Done(values), now());
            assert_eq!(step, Step::Again { pause_ns: 0, ahead: 0 });
            let again = short.fast_again(LOCK, cas, found, now()).expect("another's hold");
            let step = machine.paused(&mut long, now());
            assert_eq!(step, Step::Chain(Chain::one(again.word_op())));
            assert_eq!((again.word_op(), again.deadline_s), (cas.word_op(), cas.deadline_s));
            assert_eq!(short.fast_again(LOCK, again, found, now()), None, "once");
        }
    }

    #[test]
    fn what_does_not_wait_or_is_for_the_arbiter_is_not_tried_again() {
        let take = Op::TryLock { mode: Mode::Exclusive, expire_s: 5 };
        for lock_type in [LockType::Atomic, LockType::Rw] {
            let found = others(lock_type, 2_000);
            let mut e = trying(lock_type);
            let cas = e.fast(LOCK, now()).unwrap();
            assert!(e.fast_again(LOCK, cas, found, now()).is_some());
            assert_eq!(e.fast_again(take, cas, found, now()), None, "it does not wait");
            assert_eq!(e.fast_again(LOCK, cas, 0, now()), None, "the lease was over when told");
            let late = Now { horizon_ns: now().local_ns, ..now() };
            assert_eq!(e.fast_again(LOCK, cas, found, late), None, "past the horizon");
            let queued = match lock_type {
                LockType::Rw => RwWord::from_bits(found).with_waiters(true).into_bits(),
                _ => AtomicWord::from_bits(found).with_waiters(true).into_bits(),
            };
            assert_eq!(e.fast_again(LOCK, cas, queued, now()), None, "others are queued");
            e.may_try(false);
            assert_eq!(e.fast_again(LOCK, cas, found, now()), None, "the primary executes it");
            e.may_try(true);
            e.fast_done(cas, now());
            let release = e.fast(Op::Unlock, now()).unwrap();
            assert_eq!(e.fast_again(Op::Unlock, release, found, now()), None, "a release");
        }
        let e = trying(LockType::Atomic);
        let cas = e.fast(LOCK, now()).unwrap();
        let over = others(LockType::Atomic, 900);
        assert_eq!(e.fast_again(LOCK, cas, over, now()), None, "it is over");
    }
}
