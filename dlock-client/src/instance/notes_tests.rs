// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes of fair locks that are late: the thread that writes them, on an executor whose verbs cost
//! something.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_core::limits::NOTE_LATE_NS;
use dlock_core::message::{LockType, Mode};
use dlock_core::words::{LedgerEntry, LedgerState};

use super::tests::instance_on;
use super::*;
use crate::execute::settle;
use crate::fake::Fake;

const X: Mode = Mode::Exclusive;
const ID: LockId = LockId(1);
/// Nothing here may take so long.
const STUCK: Duration = Duration::from_secs(60);

fn one_sided() -> (Instance, Arc<Fake>) {
    let fake = Fake::new();
    fake.one_sided.store(true, SeqCst);
    instance_on(fake, &[LockType::Fair])
}

fn ends(what: &str, mut is_over: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_over() {
        assert!(start.elapsed() < STUCK, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn succeeds(result: OpResult) {
    assert_eq!(result.status, Status::Success);
}

fn states(entries: &[LedgerEntry]) -> Vec<LedgerState> {
    entries.iter().map(|entry| entry.state()).collect()
}

#[test]
fn what_nothing_follows_is_written_by_the_thread() {
    let (instance, fake) = one_sided();
    let noted = |want: &[LedgerState]| {
        ends("it is never written", || states(&fake.notes.lock()) == want);
    };
    succeeds(instance.lock(ID, X, 30));
    noted(&[LedgerState::HeldExclusive]);
    succeeds(instance.unlock(ID));
    noted(&[LedgerState::HeldExclusive, LedgerState::None]);
    // that was an end: the next ticket has an intent of its own, and all begins anew
    succeeds(instance.lock(ID, X, 30));
    noted(&[LedgerState::HeldExclusive, LedgerState::None, LedgerState::HeldExclusive]);
    assert_eq!(states(&fake.chained.lock()), [LedgerState::Intent; 2]);
}

#[test]
fn what_another_operation_follows_soon_is_not_written() {
    let (late, start) = (Duration::from_nanos(NOTE_LATE_NS), Instant::now());
    let (instance, fake) = one_sided();
    let mut is_judged = false;
    while !is_judged && start.elapsed() < STUCK {
        fake.notes.lock().clear();
        let (scene, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
        while scene.elapsed() < 5 * late {
            succeeds(instance.lock(ID, X, 30));
            succeeds(instance.unlock(ID));
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        let noted = fake.notes.lock().len();
        is_judged = longest.max(last.elapsed()) < late; // on a busy machine something was late
        assert!(!is_judged || noted == 0, "{noted} notes, operations {longest:?} apart at most");
        ends("the last is never written", || {
            fake.notes.lock().last().is_some_and(|entry| entry.state() == LedgerState::None)
        });
    }
}

#[test]
fn a_lock_that_is_to_be_released_leaves_no_note_behind() {
    let (instance, fake) = one_sided();
    succeeds(instance.lock(ID, X, 30));
    let lock_slot = instance.table.lock_slot(0);
    let mut guard = lock_slot.lock_until(Instant::now).expect("nobody else is there");
    let noted = fake.notes.lock().len();
    if noted == 0 {
        assert_eq!(settle(lock_slot, &mut guard, Instant::now() + STUCK), Ok(()));
    }
    assert_eq!(states(&fake.notes.lock()), [LedgerState::HeldExclusive]);
    drop(guard);
    thread::sleep(3 * Duration::from_nanos(NOTE_LATE_NS));
    assert_eq!(fake.notes.lock().len(), 1, "it is written once");
}

#[test]
fn a_client_that_is_dropped_is_looked_after_no_more() {
    let (instance, fake) = one_sided();
    succeeds(instance.lock(ID, X, 30));
    let table = Arc::downgrade(&instance.table);
    drop(instance);
    ends("something keeps its locks", || table.strong_count() == 0);
    let noted = fake.notes.lock().len();
    thread::sleep(3 * Duration::from_nanos(NOTE_LATE_NS));
    assert_eq!(fake.notes.lock().len(), noted);
}
