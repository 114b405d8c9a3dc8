// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers that a client's lock machine gets seldom.

use crate::common::entry::{entry, executed};
use dlock_core::clock::{Lease, Now, ServerTime, NS};
use dlock_core::lock::{Begin, EntryState, LockEntry, Machine, Op, Step};
use dlock_core::membership::{Draws, Exit};
use dlock_core::memory::word_op::{Outcome, WordOp};
use dlock_core::memory::words::{LedgerState, RwWord};
use dlock_core::wire::control::Secret;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

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
    let (mut machine, step) =
        begin(&mut e, Op::TryLock { mode: Mode::Shared, lease: Lease::secs(5) });
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    let full = RwWord::new().with_rcount(u32::MAX).into_bits();
    let step = machine.outcome(&mut e, executed(&chain, full), now());
    let Step::Chain(chain) = step else { panic!("{step:?}") };
    assert!(chain.ops().iter().any(|op| matches!(op, WordOp::Faa { .. })), "{chain:?}");
    assert_eq!(e.state(), EntryState::Initialized);
}

#[test]
fn the_randomness_of_an_admission_is_not_printed() {
    let draws = Draws { secret: Secret([7; 16]), numbers: [7; 6] };
    assert_eq!(format!("{draws:?}"), "Draws");
}

#[test]
fn every_reason_to_remove_a_client_has_a_sentence_of_its_own() {
    use Exit::*;
    let all = [Evicted, Grace, Horizon, Hindered, LeasesOver, NoMemory, Left, Operator, Died];
    let told: std::collections::BTreeSet<_> = all.iter().map(Exit::to_string).collect();
    assert_eq!(told.len(), all.len());
}

#[test]
fn a_refused_operation_on_a_read_write_lock_clears_the_ledger_of_who_holds_nothing_alone() {
    let share = Op::TryLock { mode: Mode::Shared, lease: Lease::secs(5) };
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
