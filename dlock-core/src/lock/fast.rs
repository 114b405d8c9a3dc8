// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shortest way through an atomic lock: one compare-and-swap that nobody interferes with.
//!
//! ```text
//!   fast(op) ──▶ Some(cas) ─ the word was as expected ─▶ fast_done ─▶ result
//!            │             └ anything else ─▶ begin(op) with the same clock; its machine takes
//!            │                                the outcome, as if it had asked for it
//!            └─▶ None: begin(op)
//! ```
//! It decides exactly what the machine would; it only spares building one.

use super::{Doubt, EntryState, LockEntry, Op, OpResult, View};
use crate::clock::Now;
use crate::message::{LockType, Mode};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::verb::{Verb, WordAddr};
use crate::words::AtomicWord;

/// The compare-and-swap of an uncontended acquire or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCas {
    /// The word.
    pub addr: WordAddr,
    /// What it is if nobody interferes.
    pub expect: u64,
    /// What it becomes.
    pub swap: u64,
}

impl FastCas {
    /// The verb.
    #[inline]
    pub fn verb(self) -> Verb {
        Verb::Cas { addr: self.addr, expect: self.expect, swap: self.swap }
    }

    /// The deadline that it writes, seconds since 1970; `None`: it is a release.
    #[inline]
    pub fn deadline_s(self) -> Option<u32> {
        (self.swap != 0).then(|| AtomicWord::from_bits(self.swap).timeout())
    }
}

impl LockEntry {
    /// The one verb that decides `op` if nobody interferes; `None` if it takes more, or less.
    #[inline]
    pub fn fast(&self, op: Op, now: Now) -> Option<FastCas> {
        if self.lock_type != LockType::Atomic || self.doubt != Doubt::None || now.is_past_horizon()
        {
            return None;
        }
        let (expect, swap) = match op {
            Op::TryLock { mode: Mode::Exclusive, expire_s }
            | Op::Lock { mode: Mode::Exclusive, expire_s }
                if self.refs == 0 && expire_s > 0 =>
            {
                let deadline = now.deadline(expire_s);
                (0, AtomicWord::new().with_client(self.me.get()).with_timeout(deadline).into_bits())
            }
            // with the waiters bit the word is the arbiter's to change
            Op::Unlock
                if self.refs == 1
                    && (!AtomicWord::from_bits(self.word).waiters()
                        || planted::is(Bug::FastIgnoresBit)) =>
            {
                (self.word, 0)
            }
            _ => return None,
        };
        Some(FastCas { addr: self.w0(), expect, swap })
    }

    /// The word was as `cas` expected: the operation is done.
    #[inline]
    pub fn fast_done(&mut self, cas: FastCas) -> OpResult {
        self.word = cas.swap;
        let word = AtomicWord::from_bits(cas.swap);
        let view = View::Atomic { client_id: word.client(), time_out: word.timeout() };
        self.cache = view;
        if cas.swap == 0 {
            self.state = EntryState::Unlocked;
            self.refs = 0;
        } else {
            self.state = EntryState::ExclusiveLocked;
            self.refs = 1;
            self.time_s = word.timeout();
        }
        OpResult { status: Status::Success, view: Some(view) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Begin, Step};
    use super::*;
    use crate::clock::{ServerTime, NS};
    use crate::control::{LockDesc, LockGrant};
    use crate::ids::{ClientId, Handle, LockId, Slot};
    use crate::verb::{Chain, Outcome, Values};

    fn entry(lock_type: LockType) -> LockEntry {
        let (handle, slot) = (Handle(3), Slot(9));
        let grant = LockGrant { lock: LockId(5), handle, slot, word: 0, already: false };
        let desc = LockDesc { name: vec![1], lock_type, lease_s: 0 };
        LockEntry::new(ClientId::new(7).unwrap(), 0, lock_type, &grant, desc)
    }

    fn now() -> Now {
        Now::within(ServerTime(1_000 * NS), 3)
    }

    /// Both ways, side by side, through a whole life of the lock.
    #[test]
    fn the_short_way_and_the_machine_agree() {
        let (mut short, mut long) = (entry(LockType::Atomic), entry(LockType::Atomic));
        let take = Op::TryLock { mode: Mode::Exclusive, expire_s: 5 };
        for op in [take, Op::Unlock, take, Op::Unlock] {
            let cas = short.fast(op, now()).expect("uncontended");
            let Begin::Run(mut machine, step) = long.begin(op, now()) else { panic!() };
            assert_eq!(step, Step::Chain(Chain::one(cas.verb())));
            let mut values = Values::new();
            values.push(cas.expect);
            let step = machine.outcome(&mut long, Outcome::Done(values), now());
            assert_eq!(Step::Done(short.fast_done(cas)), step);
            assert_eq!(format!("{short:?}"), format!("{long:?}"));
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
        e.fast_done(cas);
        assert_eq!(e.fast(take, now()), None, "a re-entry");
        e.word = AtomicWord::from_bits(e.word).with_waiters(true).into_bits();
        assert_eq!(e.fast(Op::Unlock, now()), None, "somebody waits");
        assert_eq!(entry(LockType::Rw).fast(take, now()), None);
        assert_eq!(entry(LockType::Fair).fast(take, now()), None);
    }
}
