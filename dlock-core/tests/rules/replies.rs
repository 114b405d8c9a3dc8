// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client's lock machine makes of each answer.

use crate::common::entry::{entry, executed, old_word};
use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::limits::CAS_ROUNDS_MAX;
use dlock_core::lock::{Begin, EntryState, LockEntry, Machine, Op, OpResult, Step, View};
use dlock_core::memory::word_op::{Outcome, WordOp};
use dlock_core::memory::words::{AtomicWord, RwWord};
use dlock_core::operation::Bounds;
use dlock_core::token::Token;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const DENIED: Reply = Reply::Denied { status: Status::Fail, word: 0 };

fn at(s: u64) -> Now {
    Now::within(ServerTime(s * NS), 3)
}

fn begin(e: &mut LockEntry, op: Op, now: Now) -> (Machine, Step) {
    match e.begin(op, now) {
        Begin::Run(machine, step) => (machine, step),
        Begin::Local(result) => panic!("{result:?}"),
    }
}

fn done(step: Step) -> OpResult {
    match step {
        Step::Done(result) => result,
        other => panic!("{other:?}"),
    }
}

/// Carries the machine on while its steps are chains, which find this word; returns the first other
/// step.
fn after_chains(
    e: &mut LockEntry,
    (mut m, mut step): (Machine, Step),
    word: u64,
) -> (Machine, Step) {
    loop {
        step = match step {
            Step::Chain(chain) => m.outcome(e, executed(&chain, word), at(1_000)),
            step => return (m, step),
        };
    }
}

fn take(e: &mut LockEntry, mode: Mode, word: u64) -> OpResult {
    let begun = begin(e, Op::TryLock { mode, lease: Lease::secs(5) }, at(1_000));
    done(after_chains(e, begun, word).1)
}

fn held(lock_type: LockType, mode: Mode) -> LockEntry {
    let mut e = entry(lock_type);
    assert_eq!(take(&mut e, mode, 0).status, Status::Success);
    e
}

/// The arbiter says that the client does not hold the lock.
#[test]
fn a_hold_that_the_arbiter_denies_is_lost() {
    let mut fair = held(LockType::Fair, X);
    let op = Op::Extend { mode: X, lease: Lease::secs(5) };
    for (op, late) in [(op, at(1_006)), (Op::Unlock, at(1_006))] {
        let mut e = fair.clone();
        let (mut m, step) = begin(&mut e, op, late);
        assert!(matches!(step, Step::Request(_)), "it is late: {step:?}");
        assert_eq!(done(m.reply(&mut e, Ok(DENIED), late)).status, Status::Fail, "{op:?}");
        assert_eq!((e.state(), e.refs()), (EntryState::Initialized, 0));
    }
    let (mut m, _) = begin(&mut fair, op, at(1_006));
    let granted = Reply::Granted {
        word: 0,
        deadline: Deadline::at_s(1_020),
        at: at(1_006).time,
        ticket: None,
        token: Token::NONE,
    };
    assert_eq!(done(m.reply(&mut fair, Ok(granted), at(1_006))).status, Status::Success);

    let mut e = held(LockType::Rw, X);
    let (mut m, step) = begin(&mut e, Op::Unlock, at(1_000));
    let Step::Chain(_) = step else { panic!("{step:?}") };
    let waited_for = RwWord::new().with_client(7).with_waiters(true).into_bits();
    let step = m.outcome(&mut e, old_word(waited_for), at(1_000));
    assert!(matches!(step, Step::Request(Request::Release { .. })), "{step:?}");
    assert_eq!(done(m.reply(&mut e, Ok(DENIED), at(1_000))).status, Status::Fail);
    assert_eq!(e.state(), EntryState::Initialized);
}

#[test]
fn a_wait_for_a_read_write_lock_ends_with_its_grant() {
    for (mode, state) in [(X, EntryState::ExclusiveLocked), (S, EntryState::SharedLocked)] {
        let mut e = entry(LockType::Rw);
        let begun = begin(&mut e, Op::Lock { mode, lease: Lease::secs(5) }, at(1_000));
        let owned = RwWord::new().with_client(8).with_rcount(1).into_bits();
        let (mut m, step) = after_chains(&mut e, begun, owned);
        assert!(matches!(step, Step::Request(Request::Wait { .. })), "{step:?}");
        let word = RwWord::new().with_rcount(3).into_bits();
        let granted = Reply::Granted {
            word,
            deadline: Deadline::at_s(9),
            at: at(1_000).time,
            ticket: None,
            token: Token::NONE,
        };
        let result = done(m.reply(&mut e, Ok(granted), at(1_000)));
        assert_eq!((result.status, e.state()), (Status::Success, state));
        let Some(View::Rw { rcount, .. }) = result.view else { panic!("{result:?}") };
        assert_eq!(rcount, 3);
    }
}

#[test]
fn who_was_not_given_an_expired_lock_waits_for_it() {
    let mut e = entry(LockType::Atomic);
    let begun = begin(&mut e, Op::Lock { mode: X, lease: Lease::secs(5) }, at(1_000));
    let now = Now::within(at(1_000).time, 2 * NS);
    let word = AtomicWord::new().with_client(8).with_timeout(Deadline::at_s(1_000)).into_bits();
    let (mut m, Step::Chain(chain)) = begun else { panic!("{begun:?}") };
    let step = m.outcome(&mut e, executed(&chain, word), now);
    assert!(matches!(step, Step::Request(Request::Steal { .. })), "{step:?}");
    let step = m.reply(&mut e, Ok(DENIED), now);
    assert!(matches!(step, Step::Request(Request::Wait { .. })), "{step:?}");
}

#[test]
fn what_was_undone_was_not_held() {
    for (op, lost, status) in [
        (Op::TryLock { mode: X, lease: Lease::secs(5) }, entry(LockType::Atomic), Status::Fail),
        (Op::Unlock, held(LockType::Atomic, X), Status::Success),
    ] {
        let mut e = lost;
        let (mut m, _) = begin(&mut e, op, at(1_000));
        assert_eq!(
            done(m.outcome(&mut e, Outcome::Unknown, at(1_000))).status,
            Status::BadResponse
        );
        let (mut undo, _) = e.undo(at(1_000)).expect("it is in doubt");
        let step = undo.reply(&mut e, Ok(Reply::Done { word: 0 }), at(1_000));
        assert_eq!(done(step).status, status, "{op:?}");
    }
}

#[test]
fn a_view_of_a_read_write_lock_counts_the_readers_inside() {
    let rcount = |result: OpResult| match result.view {
        Some(View::Rw { rcount, time_out, .. }) => (rcount, time_out.seconds()),
        other => panic!("{other:?}"),
    };
    let with = |n| RwWord::new().with_rcount(n).into_bits();
    for before in [0, 4] {
        let mut e = entry(LockType::Rw);
        assert_eq!(rcount(take(&mut e, S, with(before))).0, before + 1);
        for (op, refs) in [(Op::TryLock { mode: S, lease: Lease::secs(5) }, 2), (Op::Unlock, 1)] {
            let Begin::Local(result) = e.begin(op, at(1_000)) else { panic!("nothing is asked") };
            assert_eq!((result.status, e.refs()), (Status::AlreadyLocked, refs));
        }
        let begun = begin(&mut e, Op::Unlock, at(1_000));
        let released = done(after_chains(&mut e, begun, with(before + 1)).1);
        let time_out = if before == 0 { 0 } else { 1_000 };
        assert_eq!(rcount(released), (before, time_out), "a lock nobody is inside has no time");
    }
}

/// The arbiter has taken the share off the count: the client's own subtraction is put back.
#[test]
fn a_share_that_was_not_counted_any_more_is_lost() {
    let mut e = held(LockType::Rw, S);
    let (mut m, Step::Chain(chain)) = begin(&mut e, Op::Unlock, at(1_000)) else { panic!() };
    let step = m.outcome(&mut e, executed(&chain, 0), at(1_000));
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    assert!(matches!(chain.ops(), [WordOp::Faa { add: 1, .. }]), "{chain:?}");
    assert_eq!(done(m.outcome(&mut e, executed(&chain, u64::MAX), at(1_000))).status, Status::Fail);
}

/// Readers that add and subtract themselves change the word before each attempt.
#[test]
fn an_exclusive_release_that_others_come_between_goes_to_the_arbiter_after_so_many_rounds() {
    let mut e = held(LockType::Rw, X);
    let (mut m, mut step) = begin(&mut e, Op::Unlock, at(1_000));
    let mut rounds = 0;
    while let Step::Chain(_) = step {
        rounds += 1;
        assert!(rounds <= CAS_ROUNDS_MAX, "it has no end");
        let word = RwWord::new().with_client(7).with_rcount(rounds).into_bits();
        step = m.outcome(&mut e, old_word(word), at(1_000));
    }
    assert!(matches!(step, Step::Request(Request::Release { .. })), "{step:?}");
    assert_eq!(rounds, CAS_ROUNDS_MAX);
}

#[test]
fn a_probe_of_a_short_wait_is_at_its_end() {
    let bounds = Bounds::waiting(0, 5 * NS);
    assert_eq!(bounds.probe_ns(4 * NS - 1), 4 * NS);
    assert_eq!(bounds.probe_ns(4 * NS), 5 * NS, "not at once");
}

#[test]
fn a_chain_that_was_refused_leaves_nothing_in_the_ledger() {
    for (lock_type, is_cleared) in [(LockType::Rw, true), (LockType::Fair, true)] {
        let mut e = entry(lock_type);
        let (mut m, _) = begin(&mut e, Op::TryLock { mode: S, lease: Lease::secs(5) }, at(1_000));
        let step = m.outcome(&mut e, Outcome::Refused(Status::NotReady), at(1_000));
        assert_eq!(done(step).status, Status::NotReady);
        assert_eq!(e.take_ledger_write().is_some(), is_cleared, "{lock_type:?}");
    }
}
