// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair ticket whose note is published late, or by a client that knows the time badly.

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::lock::{Begin, LockEntry, Machine, Op, Step};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::status::Status;
use dlock_core::word_op::{Outcome, Values};
use dlock_core::words::{FairWord, LedgerState};

use crate::common::entry::{entry, old_word};

// a shorter lease is claimed by the intent, and its note not waited for
const TRY: Op = Op::TryLock { mode: Mode::Exclusive, expire_s: 61 };
const LOCK: Op = Op::Lock { mode: Mode::Exclusive, expire_s: 61 };

/// Takes the first ticket of a free lock, and publishes it at once.
fn ticket(entry: &mut LockEntry, op: Op, now: Now) -> Machine {
    let Begin::Run(mut machine, Step::Chain(_)) = entry.begin(op, now) else { panic!() };
    assert_eq!(machine.outcome(entry, old_word(0), now), Step::Confirm);
    machine
}

fn status(step: Step) -> Status {
    match step {
        Step::Done(result) => result.status,
        other => panic!("{other:?}"),
    }
}

/// A busy machine may have made the only exchange that told the time take seconds.
#[test]
fn who_knows_the_time_badly_publishes_in_time_all_the_same() {
    for op in [TRY, LOCK] {
        let mut entry = entry(LockType::Fair);
        let rough = |ns| Now::within(ServerTime(1_000 * NS + ns), 3 * NS);
        let mut machine = ticket(&mut entry, op, rough(0));
        let published = Outcome::Done(Values::new());
        let step = machine.outcome(&mut entry, published, rough(1_000));
        assert_eq!(status(step), Status::Success);
    }
}

#[test]
fn a_better_estimate_of_the_time_is_no_passing_of_time() {
    let mut entry = entry(LockType::Fair);
    let before = Now::within(ServerTime(1_000 * NS), 9 * NS);
    let mut machine = ticket(&mut entry, TRY, before);
    // the same moment, as it turns out later
    let after = Now { time: ServerTime(1_005 * NS), uncertainty_ns: 5, ..before };
    let step = machine.outcome(&mut entry, Outcome::Done(Values::new()), after);
    assert_eq!(status(step), Status::Success);
}

#[test]
fn the_arbiter_is_asked_for_a_ticket_that_was_published_late_and_a_lock_takes_another_once() {
    let at = |seconds: u64| Now::exact(ServerTime((1_000 + seconds) * NS));
    let word = FairWord::new().with_mx(1).into_bits();
    let granted = Reply::Granted { word, deadline_s: 1_070, at: at(2).time, ticket: None };
    let denied = Reply::Denied { status: Status::Fail, word };
    for (reply, result) in [(granted, Status::Success), (denied, Status::Fail)] {
        let mut tried = entry(LockType::Fair);
        let mut machine = ticket(&mut tried, TRY, at(0));
        let published = tried.take_ledger_write().map(|note| note.state());
        assert_eq!(published, Some(LedgerState::HeldExclusive));
        let step = machine.outcome(&mut tried, Outcome::Done(Values::new()), at(2));
        assert!(matches!(step, Step::Request(Request::Poll { .. })), "{step:?}");
        let asked = tried.take_ledger_write().map(|note| note.state());
        assert_eq!(asked, Some(LedgerState::TicketExclusive), "no hold before it is granted");
        assert_eq!(status(machine.reply(&mut tried, Ok(reply), at(2))), result);
    }
    for (reply, is_granted) in [(granted, true), (denied, false)] {
        let mut waiting = entry(LockType::Fair);
        let mut machine = ticket(&mut waiting, LOCK, at(0));
        let step = machine.outcome(&mut waiting, Outcome::Done(Values::new()), at(2));
        assert!(matches!(step, Step::Request(Request::Wait { ticket: Some(_), .. })), "{step:?}");
        let step = machine.reply(&mut waiting, Ok(reply), at(2));
        if is_granted {
            assert_eq!(status(step), Status::Success);
            continue;
        }
        // the place is lost: another one, once
        assert!(matches!(step, Step::Chain(_)), "{step:?}");
        assert_eq!(machine.outcome(&mut waiting, old_word(word), at(2)), Step::Confirm);
        let step = machine.outcome(&mut waiting, Outcome::Done(Values::new()), at(4));
        assert!(matches!(step, Step::Request(Request::Wait { ticket: Some(_), .. })), "{step:?}");
        assert_eq!(status(machine.reply(&mut waiting, Ok(denied), at(4))), Status::Fail);
    }
}
