// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that a client's lock machine gets seldom.

use crate::common::entry::{entry, executed};
use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::control::Secret;
use dlock_core::limits::CAS_ROUNDS_MAX;
use dlock_core::lock::{Begin, EntryState, LockEntry, Machine, Op, Step};
use dlock_core::membership::{Draws, Exit};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::status::Status;
use dlock_core::word_op::{Outcome, Values, WordOp};
use dlock_core::words::{FairWord, LedgerState, RwWord};

fn now() -> Now {
    Now::within(ServerTime(1_000 * NS), 3)
}

fn begin(e: &mut LockEntry, op: Op) -> (Machine, Step) {
    match e.begin(op, now()) {
        Begin::Run(machine, step) => (machine, step),
        Begin::Local(result) => panic!("{result:?}"),
    }
}

#[test]
fn a_reader_that_finds_a_full_count_steps_back() {
    let mut e = entry(LockType::Rw);
    let (mut machine, step) = begin(&mut e, Op::TryLock { mode: Mode::Shared, expire_s: 5 });
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    let full = RwWord::new().with_rcount(u32::MAX).into_bits();
    let step = machine.outcome(&mut e, executed(&chain, full), now());
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    assert!(chain.ops().iter().any(|op| matches!(op, WordOp::Faa { .. })), "{chain:?}");
    assert_eq!(e.state(), EntryState::Initialized);
}

#[test]
fn a_fair_wait_that_was_cancelled_keeps_its_ticket_and_leaves_no_doubt() {
    for (mode, other) in [(Mode::Exclusive, Mode::Shared), (Mode::Shared, Mode::Exclusive)] {
        let mut e = entry(LockType::Fair);
        let (mut machine, step) = begin(&mut e, Op::Lock { mode, expire_s: 5 });
        let Step::Chain(chain) = step else { panic!("{step:?}") };
        let word = FairWord::new().with_mx(1).into_bits();
        let mut step = machine.outcome(&mut e, executed(&chain, word), now());
        if step == Step::Confirm {
            step = machine.outcome(&mut e, Outcome::Done(Values::new()), now());
        }
        assert!(matches!(step, Step::Request(Request::Wait { .. })), "{step:?}");
        let Step::Done(result) = machine.reply(&mut e, Ok(Reply::Cancelled { word }), now()) else {
            panic!("it is over")
        };
        assert_eq!(result.status, Status::Again);
        assert!(result.view.is_some() && e.ticket().is_some() && !e.in_doubt());
        // and a place in one mode is none in the other
        match e.begin(Op::TryLock { mode: other, expire_s: 5 }, now()) {
            Begin::Local(result) => assert_eq!(result.status, Status::Ticket),
            Begin::Run(_, step) => panic!("{step:?}"),
        }
    }
}

#[test]
fn the_randomness_of_an_admission_is_not_printed() {
    let draws = Draws { secret: Secret([7; 16]), number: &mut || 7 };
    assert_eq!(format!("{draws:?}"), "Draws");
}

#[test]
fn every_reason_to_remove_a_client_has_a_sentence_of_its_own() {
    use Exit::*;
    let all = [Evicted, Grace, Horizon, Hindered, LeasesOver, NoMemory, Left, Operator, Died];
    let told: std::collections::BTreeSet<_> = all.iter().map(Exit::to_string).collect();
    assert_eq!(told.len(), all.len());
}

/// A fair lock that was free, and is held with a lease of 5 s.
fn held(mode: Mode) -> LockEntry {
    let mut e = entry(LockType::Fair);
    let (mut machine, step) = begin(&mut e, Op::TryLock { mode, expire_s: 5 });
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    let Step::Done(result) = machine.outcome(&mut e, executed(&chain, 0), now()) else {
        panic!("it is over")
    };
    assert_eq!(result.status, Status::Success);
    let _ = e.take_ledger_write();
    e
}

#[test]
fn a_place_in_the_queue_is_no_answer_to_who_holds_the_lock() {
    for (mode, state) in
        [(Mode::Exclusive, EntryState::ExclusiveLocked), (Mode::Shared, EntryState::SharedLocked)]
    {
        let mut e = held(mode);
        let ticket = e.ticket().unwrap();
        let over = Now::within(ServerTime(1_100 * NS), 3);
        let word = FairWord::new().with_mx(3).into_bits();
        for reply in [Reply::Queued { word, ticket }, Reply::Cancelled { word }] {
            let begun = e.begin(Op::TryLock { mode, expire_s: 5 }, over);
            let Begin::Run(mut machine, step) = begun else { panic!("{begun:?}") };
            assert!(matches!(step, Step::Request(Request::Extend { .. })), "{step:?}");
            let Step::Done(result) = machine.reply(&mut e, Ok(reply), over) else {
                panic!("it is over")
            };
            assert_eq!(result.status, Status::BadResponse);
            assert_eq!((e.state(), e.refs(), e.ticket()), (state, 1, Some(ticket)));
        }
    }
}

#[test]
fn a_release_that_others_overtake_again_and_again_is_left_to_the_arbiter() {
    let mut e = held(Mode::Shared);
    let (mut machine, mut step) = begin(&mut e, Op::Unlock);
    let mut chains = 0;
    for others in 1.. {
        let Step::Chain(chain) = step else { break };
        chains += 1;
        assert!(chains <= CAS_ROUNDS_MAX);
        let word = FairWord::new().with_ns(others).with_ms(others + 2).into_bits();
        step = machine.outcome(&mut e, executed(&chain, word), now());
    }
    assert!(matches!(step, Step::Request(Request::Release { .. })), "{step:?}");
    assert_eq!(chains, CAS_ROUNDS_MAX);
}

#[test]
fn a_refused_operation_on_a_read_write_lock_clears_the_ledger_of_who_holds_nothing_alone() {
    let share = Op::TryLock { mode: Mode::Shared, expire_s: 5 };
    let mut e = entry(LockType::Rw);
    let (mut machine, _) = begin(&mut e, share);
    let step = machine.outcome(&mut e, Outcome::Refused(Status::NotReady), now());
    assert!(matches!(step, Step::Done(result) if result.status == Status::NotReady), "{step:?}");
    let written = e.take_ledger_write().map(|entry| entry.state());
    assert_eq!(written, Some(LedgerState::None), "its intent");
    let (mut machine, step) = begin(&mut e, share);
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    let _ = machine.outcome(&mut e, executed(&chain, 0), now());
    let written = e.take_ledger_write().map(|entry| entry.state());
    assert_eq!((e.refs(), written), (1, Some(LedgerState::HeldShared)));
    let (mut machine, _) = begin(&mut e, Op::Unlock);
    let _ = machine.outcome(&mut e, Outcome::Refused(Status::NotReady), now());
    assert_eq!((e.refs(), e.take_ledger_write()), (1, None), "the hold is named still");
}
