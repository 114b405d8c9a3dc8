// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client's lock machines do with rare words and answers.

use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, LockId, Slot};
use dlock_core::limits::{CAS_ROUNDS_MAX, FAIR_DIVERT};
use dlock_core::lock::{Begin, EntryState, LockEntry, Machine, Op, OpResult, Step};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, RwWord, TakenWord, Ticket};
use dlock_core::wire::control::{Claim, LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const TRY: Op = Op::TryLock { mode: X, lease: Lease::secs(5) };
const ME: u32 = 7;

fn at(seconds: u64) -> Now {
    Now::within(ServerTime((1_000 + seconds) * NS), 3)
}

fn entry_at(lock_type: LockType, word: u64) -> LockEntry {
    let (handle, slot) = (Handle(3), Slot(9));
    let grant = LockGrant { lock: LockId(5), handle, slot, word, already: false, tokens: false };
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
    LockEntry::new(ClientId::new(ME).unwrap(), 0, lock_type, &grant, desc)
}

fn entry(lock_type: LockType) -> LockEntry {
    entry_at(lock_type, 0)
}

/// The outcome of a chain all of whose word operations find this word.
fn found(chain: &Chain, word: u64) -> Outcome {
    let mut values = Values::new();
    (0..chain.values_len()).for_each(|_| values.push(word));
    Outcome::Done(values)
}

fn begin(entry: &mut LockEntry, op: Op, now: Now) -> (Machine, Step) {
    match entry.begin(op, now) {
        Begin::Run(machine, step) => (machine, step),
        Begin::Local(result) => panic!("{result:?}"),
    }
}

fn chain(step: Step) -> Chain {
    match step {
        Step::Chain(chain) => chain,
        other => panic!("{other:?}"),
    }
}

fn done(step: Step) -> OpResult {
    match step {
        Step::Done(result) => result,
        other => panic!("{other:?}"),
    }
}

/// An entry whose client has taken the lock at once, from this word.
fn taken(lock_type: LockType, mode: Mode, word: u64) -> LockEntry {
    let mut e = entry(lock_type);
    let (mut machine, step) = begin(&mut e, Op::TryLock { mode, lease: Lease::secs(5) }, at(0));
    let step = machine.outcome(&mut e, found(&chain(step), word), at(0));
    assert_eq!(done(step).status, Status::Success);
    e.take_ledger_write();
    e
}

fn atomic(client: u32, timeout: u32) -> AtomicWord {
    AtomicWord::new().with_client(client).with_timeout(Deadline::at_s(timeout))
}

#[test]
fn an_acquire_tries_so_often_and_then_says_that_another_has_the_lock() {
    let mut e = entry(LockType::Atomic);
    let (mut machine, mut step) = begin(&mut e, TRY, at(0));
    for round in 1..=CAS_ROUNDS_MAX {
        let chain = chain(step);
        let [WordOp::Cas { expect, .. }] = *chain.ops() else { panic!("{chain:?}") };
        // the word is never what the chain expects, because others release and take the lock all
        // the time
        let word = if expect == 0 { atomic(8 + round, 900).into_bits() } else { 0 };
        step = machine.outcome(&mut e, found(&chain, word), at(0));
    }
    assert_eq!(done(step).status, Status::Fail);
}

#[test]
fn an_expired_hold_is_taken_over_unless_somebody_is_queued() {
    let after = |word: AtomicWord, now: Now| {
        let mut e = entry(LockType::Atomic);
        let (mut machine, step) = begin(&mut e, TRY, now);
        machine.outcome(&mut e, found(&chain(step), word.into_bits()), now)
    };
    let word = atomic(8, 900);
    let step = after(word, at(0));
    let [WordOp::Cas { expect, swap, .. }] = *chain(step).ops() else { panic!("{step:?}") };
    assert_eq!((expect, AtomicWord::from_bits(swap).client()), (word.into_bits(), ME));
    assert_eq!(done(after(word.with_waiters(true), at(0))).status, Status::Fail);
    assert_eq!(done(after(atomic(8, 1_000), at(0))).status, Status::Fail, "it runs");
    let perhaps = Now::within(Deadline::at_s(1_000).expiry(), 3);
    let step = after(atomic(8, 1_000), perhaps);
    assert!(
        matches!(step, Step::Request(Request::Steal { lease, .. }) if lease == Lease::secs(5)),
        "{step:?}"
    );
}

#[test]
fn an_extend_tries_so_often_and_then_does_not_know() {
    let mut e = taken(LockType::Atomic, X, 0);
    let (mut machine, mut step) =
        begin(&mut e, Op::Extend { mode: X, lease: Lease::secs(9) }, at(1));
    for round in 1..=CAS_ROUNDS_MAX {
        let chain = chain(step);
        let [WordOp::Cas { expect, .. }] = *chain.ops() else { panic!("{chain:?}") };
        // the waiters bit comes and goes, so no compare-and-swap finds its word
        let word = AtomicWord::from_bits(expect);
        let word = word.with_waiters(!word.waiters()).with_timeout(Deadline::at_s(1_005 + round));
        step = machine.outcome(&mut e, found(&chain, word.into_bits()), at(1));
    }
    assert_eq!(done(step).status, Status::BadResponse);
}

#[test]
fn a_query_moves_no_deadline() {
    let query = Op::Extend { mode: X, lease: Lease::NONE };
    for now in [at(1), at(20)] {
        let mut e = taken(LockType::Atomic, X, 0);
        let (_, step) = begin(&mut e, query, now);
        let [WordOp::Cas { expect, swap, .. }] = *chain(step).ops() else { panic!("{step:?}") };
        assert_eq!(expect, swap);
    }
    // a lease without an end is not turned into one with an end
    let mut e = entry(LockType::Fair);
    let (mut machine, step) = begin(&mut e, TRY, at(0));
    machine.outcome(&mut e, found(&chain(step), 0), at(0));
    let (_, step) = begin(&mut e, query, at(4));
    assert!(matches!(*chain(step).ops(), [WordOp::ReadPair { .. }]));
}

#[test]
fn a_release_that_the_arbiter_denies_says_that_the_hold_is_lost() {
    let mut e = taken(LockType::Atomic, X, 0);
    let (mut machine, step) = begin(&mut e, Op::Unlock, at(1));
    let word = atomic(ME, 1_005).with_waiters(true).into_bits();
    let step = machine.outcome(&mut e, found(&chain(step), word), at(1));
    assert!(matches!(step, Step::Request(Request::Release { .. })), "{step:?}");
    let denied = Reply::Denied { status: Status::Fail, word: 0 };
    let result = done(machine.reply(&mut e, Ok(denied), at(1)));
    assert_eq!((result.status, e.state()), (Status::Fail, EntryState::Initialized));
    assert!(!e.in_doubt());
}

fn claimed(entry: &LockEntry) -> Claim {
    entry.claim(at(1), Epoch(1))
}

#[test]
fn what_is_lost_is_not_claimed() {
    let mut e = taken(LockType::Atomic, X, 0);
    assert!(claimed(&e).held.is_some());
    e.lose();
    assert_eq!(claimed(&e).held, None);
}

#[test]
fn a_hold_is_claimed_in_its_mode_and_nothing_else_is() {
    for lock_type in [LockType::Rw, LockType::Fair] {
        for mode in [X, S] {
            let e = taken(lock_type, mode, 0);
            assert_eq!(claimed(&e).held.map(|held| held.mode), Some(mode), "{lock_type:?}");
        }
        assert_eq!(claimed(&entry(lock_type)).held, None);
    }
}

#[test]
fn a_hold_is_lost_until_its_caller_was_told() {
    let mut e = taken(LockType::Atomic, X, 0);
    assert!(!e.is_lost());
    e.lose();
    assert!(e.is_lost());
    let Begin::Local(told) = e.begin(TRY, at(1)) else { panic!("it is told at once") };
    assert_eq!(told.status, Status::Fail);
    assert!(!e.is_lost() && e.in_doubt());
}

#[test]
fn there_is_something_to_write_to_the_ledger_until_it_was_taken() {
    let mut e = entry(LockType::Fair);
    assert!(!e.has_ledger_write());
    e.rewrite_ledger();
    assert!(e.has_ledger_write());
    assert!(e.take_ledger_write().is_some() && !e.has_ledger_write());
}

/// The reader adds itself, finds an owner, and takes itself off again.
#[test]
fn a_reader_that_steps_back_wakes_those_whom_it_has_kept_out() {
    let owned = RwWord::new().with_client(8);
    for (left, wakes) in [
        (RwWord::new().with_rcount(1).with_waiters(true), true),
        (RwWord::new().with_rcount(2).with_waiters(true), false),
        (owned.with_rcount(1).with_waiters(true), false),
        (owned.with_rcount(1), false),
    ] {
        let mut e = entry(LockType::Rw);
        let (mut machine, step) =
            begin(&mut e, Op::TryLock { mode: S, lease: Lease::secs(5) }, at(0));
        let step = machine.outcome(&mut e, found(&chain(step), owned.into_bits()), at(0));
        let back = chain(step);
        assert!(matches!(back.ops()[0], WordOp::Faa { add: u64::MAX, .. }), "{back:?}");
        match machine.outcome(&mut e, found(&back, left.into_bits()), at(0)) {
            Step::Request(Request::Wake { .. }) => assert!(wakes),
            step => assert_eq!((done(step).status, wakes), (Status::Fail, false)),
        }
        assert_eq!(e.state(), EntryState::Initialized);
    }
}

#[test]
fn a_release_tries_so_often_by_itself_and_then_asks_the_arbiter() {
    let mut e = taken(LockType::Atomic, X, 0);
    let (mut machine, mut step) = begin(&mut e, Op::Unlock, at(1));
    for round in 1..=CAS_ROUNDS_MAX {
        // extends whose answers were lost take effect now
        let word = atomic(ME, 1_005 + round).into_bits();
        step = machine.outcome(&mut e, found(&chain(step), word), at(1));
    }
    assert!(matches!(step, Step::Request(Request::Release { .. })), "{step:?}");
}

#[test]
fn no_two_chains_on_a_count_and_no_two_intents_look_the_same() {
    for (lock_type, mode, chains) in [(LockType::Rw, S, 9), (LockType::Fair, X, 0x1_0002)] {
        let mut e = entry(lock_type);
        let intents: Vec<u64> = (0..chains)
            .map(|_| {
                let (_, step) = begin(&mut e, Op::TryLock { mode, lease: Lease::secs(5) }, at(0));
                let WordOp::WriteLedger { value, .. } = chain(step).ops()[0] else {
                    panic!("{step:?}")
                };
                value
            })
            .collect();
        let all: std::collections::BTreeSet<_> = intents.iter().collect();
        assert_eq!(all.len(), intents.len(), "{lock_type:?}");
    }
}

#[test]
fn a_fair_lock_without_room_in_its_lanes_asks_the_arbiter_the_next_time() {
    for (refusal, asks) in [(Status::Fail, true), (Status::NotReady, false)] {
        let mut e = entry(LockType::Fair);
        let (mut machine, _) = begin(&mut e, TRY, at(0));
        let step = machine.outcome(&mut e, Outcome::Refused(refusal), at(0));
        assert_eq!(done(step).status, refusal);
        let (_, step) = begin(&mut e, TRY, at(0));
        let is_asked = matches!(step, Step::Request(Request::TakeTicket { .. }));
        assert_eq!(is_asked, asks, "{step:?}");
    }
}

/// An entry whose machine asks the arbiter about its ticket.
fn asking(op: Op) -> (LockEntry, Machine) {
    let high = TakenWord::new().with_mx(FAIR_DIVERT);
    let mut e = entry_at(LockType::Fair, high.into_bits());
    let (machine, step) = begin(&mut e, op, at(0));
    assert!(matches!(step, Step::Request(Request::TakeTicket { .. })), "{step:?}");
    (e, machine)
}

#[test]
fn a_place_that_is_lost_is_taken_again_once_by_who_waits() {
    let denied = || Ok(Reply::Denied { status: Status::Fail, word: 0 });
    let (mut e, mut machine) = asking(TRY);
    assert_eq!(done(machine.reply(&mut e, denied(), at(0))).status, Status::Fail);
    let (mut e, mut machine) = asking(Op::Lock { mode: X, lease: Lease::secs(5) });
    let queued = |n| {
        let ticket = Ticket { lap: 0, tx: FAIR_DIVERT + n, ts: 0 };
        Ok(Reply::Queued { word: 0, ticket })
    };
    let waits = machine.reply(&mut e, queued(0), at(0));
    assert!(matches!(waits, Step::Request(Request::Wait { .. })), "{waits:?}");
    let again = machine.reply(&mut e, denied(), at(0));
    assert!(matches!(again, Step::Request(Request::TakeTicket { .. })), "{again:?}");
    machine.reply(&mut e, queued(1), at(0));
    assert_eq!(done(machine.reply(&mut e, denied(), at(0))).status, Status::Fail, "once");
    // a hold that is over when it is entered again is lost
    let mut e = taken(LockType::Fair, X, 0);
    let (mut machine, step) = begin(&mut e, Op::Lock { mode: X, lease: Lease::secs(5) }, at(9));
    assert!(matches!(step, Step::Request(Request::Extend { .. })), "{step:?}");
    assert_eq!(done(machine.reply(&mut e, denied(), at(9))).status, Status::Fail);
}

/// The arbiter undoes a doubt by the ledger entry. If the client wrote the entry anew, a reader's
/// entry would say that it has left the count.
#[test]
fn a_resolve_that_is_refused_leaves_the_ledger_to_the_next_one() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let mut e = entry(lock_type);
        let mode = if lock_type == LockType::Atomic { X } else { S };
        let op = Op::TryLock { mode, lease: Lease::secs(5) };
        let (mut machine, _) = begin(&mut e, op, at(0));
        assert_eq!(
            done(machine.outcome(&mut e, Outcome::Unknown, at(0))).status,
            Status::BadResponse
        );
        let (mut machine, step) = begin(&mut e, op, at(1));
        assert!(matches!(step, Step::Request(Request::Resolve { .. })), "{step:?}");
        let refused = Ok(Reply::Denied { status: Status::NotReady, word: 0 });
        assert_eq!(done(machine.reply(&mut e, refused, at(1))).status, Status::NotReady);
        assert_eq!((e.take_ledger_write(), e.in_doubt()), (None, true), "{lock_type:?}");
    }
}

#[test]
fn a_wait_for_a_read_write_lock_that_ends_without_a_grant_leaves_nothing() {
    for reply in [Reply::Cancelled { word: 0 }, Reply::Denied { status: Status::Fail, word: 0 }] {
        let mut e = entry(LockType::Rw);
        let (mut machine, step) = begin(&mut e, Op::Lock { mode: X, lease: Lease::secs(5) }, at(0));
        let other = RwWord::new().with_client(8).into_bits();
        let step = machine.outcome(&mut e, found(&chain(step), other), at(0));
        assert!(matches!(step, Step::Request(Request::Wait { .. })), "{step:?}");
        assert!(e.take_ledger_write().is_some(), "its ledger says that it waits");
        assert_eq!(done(machine.reply(&mut e, Ok(reply), at(0))).status, Status::Fail);
        assert!(e.take_ledger_write().is_some(), "its ledger says that it waits no more");
        assert!(!e.in_doubt());
    }
}

#[test]
fn a_release_whose_answer_was_lost_is_one_when_it_is_resolved() {
    let mut e = taken(LockType::Atomic, X, 0);
    let (mut machine, _) = begin(&mut e, Op::Unlock, at(1));
    let lost = done(machine.outcome(&mut e, Outcome::Unknown, at(1)));
    assert_eq!((lost.status, e.in_doubt()), (Status::BadResponse, true));
    let (mut machine, step) = begin(&mut e, Op::Unlock, at(1));
    assert!(matches!(step, Step::Request(Request::Resolve { .. })), "{step:?}");
    let result = done(machine.reply(&mut e, Ok(Reply::Done { word: 0 }), at(1)));
    assert_eq!((result.status, e.in_doubt()), (Status::Success, false));
}

#[test]
fn an_extend_by_the_client_itself_never_shortens() {
    for (lease, until) in [(Lease::secs(2), 1_005), (Lease::secs(9), 1_010)] {
        let mut e = taken(LockType::Fair, X, 0);
        let (_, step) = begin(&mut e, Op::Extend { mode: X, lease }, at(1));
        let WordOp::WriteLedger { value, .. } = chain(step).ops()[0] else { panic!("{step:?}") };
        assert_eq!(LedgerEntry::from_bits(value).deadline(), Deadline::at_s(until));
    }
}

/// The client may still hold the lock, or hold it again, because the answer to a claim may be lost.
#[test]
fn after_a_hold_was_lost_the_primary_is_asked_what_is_left_of_it() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let mut e = taken(lock_type, X, 0);
        e.lose();
        let told = e.begin(Op::Unlock, at(1));
        assert!(matches!(told, Begin::Local(result) if result.status == Status::Fail), "{told:?}");
        let (_, step) = begin(&mut e, TRY, at(1));
        assert!(matches!(step, Step::Request(Request::Resolve { .. })), "{lock_type:?} {step:?}");
    }
}

#[test]
fn who_is_denied_an_expired_hold_knows_that_it_has_nothing() {
    let perhaps = Now::within(Deadline::at_s(1_000).expiry(), 3);
    let mut e = entry(LockType::Atomic);
    let (mut machine, step) = begin(&mut e, TRY, perhaps);
    let word = atomic(8, 1_000).into_bits();
    let step = machine.outcome(&mut e, found(&chain(step), word), perhaps);
    assert!(matches!(step, Step::Request(Request::Steal { .. })), "{step:?}");
    let denied = Reply::Denied { status: Status::Fail, word };
    let result = done(machine.reply(&mut e, Ok(denied), perhaps));
    assert_eq!((result.status, e.in_doubt()), (Status::Fail, false));
}

/// Each of these extends without an end may have taken effect.
#[test]
fn a_hold_that_may_last_for_ever_is_lost_by_a_lapse_however_often_that_was_asked_for() {
    let mut e = taken(LockType::Atomic, X, 0);
    for _ in 0..2 {
        let (mut machine, _) = begin(&mut e, Op::Extend { mode: X, lease: Lease::ENDLESS }, at(1));
        let lost = done(machine.outcome(&mut e, Outcome::Unknown, at(1)));
        assert_eq!(lost.status, Status::BadResponse);
        assert!(e.clone().lapse());
    }
}
