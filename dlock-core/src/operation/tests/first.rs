// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs each operation twice, by its first effect and by an [`Operation`]. Both must make the same
//! chains, ledger entries, requests, results and clock readings, for every content of the words.

use super::super::{ended_by, needs_clock};
use super::*;
use crate::clock::Lease;
use crate::memory::words::RwWord;
use crate::wire::message::Reply;

/// The state outside the client: a word, a ledger entry, a primary, and a clock that moves with
/// each step.
#[derive(Clone, Debug, PartialEq)]
struct World {
    word: u64,
    /// The turn word and the lap of a fair lock.
    turn: [u64; 2],
    ledger: u64,
    at_ns: u64,
    horizon_ns: u64,
    /// How long the steps take, one after the other, again and again.
    takes_ns: [u64; 5],
    /// The outcomes of the chains, one after the other, again and again. `None`: the chain is
    /// executed.
    lost: [Option<Outcome>; 3],
    /// The primary's answer to every request.
    answer: Result<Reply, Status>,
    log: Vec<String>,
}

impl World {
    fn now(&self) -> Now {
        Now { horizon_ns: self.horizon_ns, ..at(self.at_ns) }
    }

    fn does(&mut self, what: String) {
        self.at_ns += self.takes_ns[self.log.len() % self.takes_ns.len()];
        self.log.push(what);
    }

    fn execute(&mut self, chain: &Chain) -> Outcome {
        let lost = self.lost[self.log.len() % self.lost.len()];
        self.does(format!("{chain:?}"));
        if matches!(lost, Some(Outcome::Refused(_))) {
            return lost.unwrap();
        }
        let mut values = Values::new();
        for word_op in chain.ops() {
            let is_turn = match word_op {
                WordOp::Cas { addr, .. } | WordOp::ReadPair { addr } => addr.word() == Word::W1,
                _ => false,
            };
            let word = if is_turn { &mut self.turn[0] } else { &mut self.word };
            let old = *word;
            match *word_op {
                WordOp::Cas { expect, swap, .. } if old == expect => *word = swap,
                WordOp::Cas { .. } | WordOp::Read { .. } | WordOp::ReadPair { .. } => {}
                WordOp::Faa { add, .. } => *word = old.wrapping_add(add),
                WordOp::WriteLedger { value, .. } => self.ledger = value,
            }
            values.push(old);
            if matches!(word_op, WordOp::ReadPair { .. }) {
                values.push(self.turn[1]);
            }
        }
        lost.unwrap_or(Outcome::Done(values))
    }

    fn write(&mut self, entry: LedgerEntry) {
        self.does(format!("{entry:?}"));
        self.ledger = entry.into_bits();
    }
}

/// Carries an operation out, effect by effect.
fn carry_out(w: &mut World, e: &mut LockEntry, mut o: Operation, mut last: Now) -> OpResult {
    loop {
        match o.next(e) {
            Effect::Done(result) => return result,
            Effect::Post { chain, .. } => {
                let outcome = w.execute(&chain);
                if o.needs_clock(e) {
                    last = w.now();
                }
                o.outcome(e, outcome, last);
            }
            Effect::WriteLedger(entry) => w.write(entry),
            Effect::ReadClock => o.clock(w.now()),
            Effect::Ask { request, .. } => {
                w.does(format!("{request:?}"));
                o.reply(e, w.answer, w.now());
            }
            Effect::Tell(request) => w.does(format!("{request:?}")),
            Effect::Count(counter) => w.log.push(format!("{counter:?}")),
            other => panic!("{other:?}"),
        }
    }
}

fn by_operation(w: &mut World, e: &mut LockEntry, op: Op) -> OpResult {
    let now = w.now();
    match Operation::begin(e, op, now, Bounds::since(now.local_ns)) {
        Started::Done(result) => result,
        Started::Running(operation) => carry_out(w, e, operation, now),
    }
}

/// Carries an operation out as the client library does: by its first effect, which decides most
/// calls.
fn by_effect(w: &mut World, e: &mut LockEntry, op: Op, decided: &mut u32) -> OpResult {
    let now = w.now();
    let (chain, first) = match e.first_op(op, &now) {
        Some((word_op, first)) => (Chain::one(word_op), first),
        None => match e.first_chain(op, &now) {
            Some(first) => (e.chain_of(op, first), first),
            None => return by_operation(w, e, op),
        },
    };
    let outcome = w.execute(&chain);
    let after = if needs_clock(op, e, now) { w.now() } else { now };
    if let Outcome::Done(values) = &outcome {
        if let Some(result) = ended_by(e, op, first, values.as_slice(), &now, &after) {
            *decided += 1;
            if let Some(entry) = e.take_ledger_write() {
                w.write(entry);
            }
            return result;
        }
    }
    let mut o = Operation::after(e, op, first, now, Bounds::since(now.local_ns));
    o.outcome(e, outcome, after);
    carry_out(w, e, o, after)
}

/// A generator of numbers that look random and are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The turn word with `told` set, as when a client sleeps at the arbiter.
fn told([turn, lap]: [u64; 2]) -> [u64; 2] {
    [TurnWord::from_bits(turn).with_told(true).into_bits(), lap]
}

/// What other clients may have made of the word.
fn meddled(draw: &mut Draw, lock_type: LockType, word: u64) -> u64 {
    match (lock_type, draw.below(6)) {
        (LockType::Atomic, 0) => others_word(),
        (LockType::Atomic, 1) => AtomicWord::from_bits(word).with_waiters(true).into_bits(),
        (LockType::Rw, 0) => RwWord::new().with_client(8).into_bits(),
        (LockType::Rw, 1) => RwWord::from_bits(word).with_waiters(true).into_bits(),
        (LockType::Fair, 0) => word.wrapping_add(TakenWord::TAKE_SHARED),
        (LockType::Fair, 1) => word.wrapping_add(TakenWord::TAKE_EXCLUSIVE),
        (LockType::Fair, 2) => TakenWord::new().with_mx(crate::limits::FAIR_DIVERT).into_bits(),
        (_, 3) => 0,
        _ => word,
    }
}

#[test]
fn what_one_chain_decides_is_decided_as_by_an_operation() {
    let mut draw = Draw(1);
    let refused = |status| Some(Outcome::Refused(status));
    let losses = [
        None,
        None,
        None,
        None,
        None,
        Some(Outcome::Unknown),
        refused(Status::NotReady),
        refused(Status::BadResponse),
    ];
    // how many operations the first effect alone has decided
    let mut decided = 0;
    // for failures and for successes: how often both logs were the same, and not empty
    let mut ways = [0_u32; 2];
    for round in 0..60_000 {
        let lock_type = draw.of(&[LockType::Atomic, LockType::Rw, LockType::Fair]);
        let denied = Reply::Denied { status: Status::Fail, word: 0 };
        let mut w = World {
            word: 0,
            turn: [0; 2],
            ledger: 0,
            at_ns: 0,
            horizon_ns: draw.of(&[u64::MAX, u64::MAX, START + 2 * NS]),
            takes_ns: [(); 5].map(|()| draw.of(&[1, 1, 1, NS / 10, NS, 6 * NS])),
            lost: [(); 3].map(|()| draw.of(&losses)),
            answer: draw.of(&[Err(Status::BadResponse), Ok(denied), Ok(Reply::Done { word: 0 })]),
            log: Vec::new(),
        };
        let mut e = entry(lock_type);
        for _ in 0..4 {
            let mode = draw.of(&[X, S]);
            let op = match draw.below(6) {
                0 | 1 => Op::TryLock { mode, lease: Lease::secs(5) },
                2 => Op::Lock { mode, lease: Lease::secs(1) },
                3 => Op::Extend { mode, lease: Lease::secs(7) },
                _ => Op::Unlock,
            };
            w.word = meddled(&mut draw, lock_type, w.word);
            w.turn = draw.of(&[w.turn, w.turn, told(w.turn), [w.word, 0], [0, 1]]);
            w.log.clear();
            let why = format!("round {round}: {op:?} on {lock_type:?}");
            let (before_w, before_e) = (w.clone(), e.clone());
            let result = by_operation(&mut w, &mut e, op);
            let (mut other_w, mut other_e) = (before_w, before_e);
            let other = by_effect(&mut other_w, &mut other_e, op, &mut decided);
            assert_eq!(other, result, "{why}");
            assert_eq!((&w, &e), (&other_w, &other_e), "{why}");
            ways[usize::from(result.status == Status::Success)] += u32::from(!w.log.is_empty());
        }
    }
    assert!(ways.iter().all(|&n| n > 10_000) && decided > 10_000, "{ways:?}, {decided}");
}

#[test]
fn what_its_first_effect_decides_needs_no_operation() {
    for lock_type in [LockType::Atomic, LockType::Rw] {
        let mut e = entry(lock_type);
        for op in [TAKE, Op::Unlock] {
            let result = at_once(&mut e, op, at(0), at(1)).expect("decided");
            assert_eq!(result.status, Status::Success, "{lock_type:?} {op:?}");
        }
    }
}

/// Begins an operation whose first compare-and-swap finds what it expects.
fn unhindered(e: &mut LockEntry, op: Op, now: Now) -> Operation {
    let Started::Running(mut o) = Operation::begin(e, op, now, Bounds::since(now.local_ns)) else {
        panic!("{op:?}")
    };
    let WordOp::Cas { expect, .. } = posted(o.next(e))[0] else { panic!("{op:?}") };
    o.outcome(e, values(&[expect]), now);
    o
}

/// The release asks whether the lock is still held, and the answer to that is not its result.
#[test]
fn a_release_that_leaves_the_lock_held_says_so() {
    let mut e = entry(LockType::Atomic);
    for status in [Status::Success, Status::AlreadyLocked] {
        let mut o = unhindered(&mut e, TAKE, at(0));
        assert_eq!(done(o.next(&mut e)), status);
    }
    assert_eq!(e.refs(), 2);
    let another = Now { discontinuities: 1, ..at(2) };
    let mut o = unhindered(&mut e, Op::Unlock, another);
    assert_eq!(done(o.next(&mut e)), Status::AlreadyLocked);
    assert_eq!(e.refs(), 1);
}
