// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of an instance on an executor that loses answers on demand.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use dlock_core::clock::{Deadline, Lease, NS};
use dlock_core::ids::{ClientId, Epoch, Generation, Handle, LockId, ObjectId, Slot};
use dlock_core::lock::LockEntry;
use dlock_core::memory::words::{AtomicWord, RwWord};
use dlock_core::wire::control::{LockDesc, LockGrant, ObjectGrant, Secret};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_fabric::os::{clock::boot_ns, fork};
use parking_lot::{Mutex, RwLock};

use super::*;
use crate::table::ClientLock;
use dlock_test_support::fake::Fake;

pub(super) const ME: u32 = 7;
const OTHER: u32 = 8;
const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

pub(super) fn instance(types: &[LockType]) -> (Instance, Arc<Fake>) {
    instance_on(Fake::new(), types)
}

pub(super) fn instance_on(fake: Fake, types: &[LockType]) -> (Instance, Arc<Fake>) {
    let fake = Arc::new(fake);
    let exec: Arc<dyn Executor> = fake.clone();
    let link = SessionState {
        exec: Arc::clone(&exec),
        verbs: None,
        client: ClientId::new(ME).unwrap(),
        epoch: Epoch(1),
        anchor_s: 0,
        secret: Secret([0; 16]),
        recovering: false,
        lapses: 0,
        asks_readers: false,
        pulse: Arc::new(Pulse::new(0, 0)),
    };
    let me = ClientId::new(ME).unwrap();
    let instance = Instance {
        id: me,
        process: fork::process().into(),
        config: ClientConfig::default(),
        wrap: None,
        gate: AtomicU8::new(OPEN),
        table: Arc::new(Table::new()),
        link: ArcSwap::from_pointee(link),
        control: SharedControl::default(),
        earlier: Mutex::default(),
        line: Mutex::new(None),
        lifecycle: RwLock::new(()),
        pending: Mutex::new(None),
        objects: RwLock::default(),
        stats: Stats::default(),
        feeds: Feeds::default(),
        has_told: AtomicBool::new(false),
        has_refused: AtomicBool::new(false),
        is_taken_away: AtomicBool::new(false),
        removal: Mutex::default(),
        said: LoggedOnce::default(),
        driven: Driven::default(),
        watch: None,
    };
    for (i, &lock_type) in types.iter().enumerate() {
        let (lock, handle, slot) = (LockId(i as i32 + 1), Handle(i as u32), Slot(i as u32));
        let grant = LockGrant { lock, handle, slot, word: 0, already: false, tokens: false };
        let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
        let entry = LockEntry::new(me, 0, lock_type, &grant, desc);
        let (exec, pulse) = (Arc::clone(&exec), Arc::new(Pulse::new(0, 0)));
        instance.table.insert(ClientLock::new(lock, entry, exec, pulse, Epoch(1)));
    }
    (instance, fake)
}

pub(super) fn others_hold() -> u64 {
    AtomicWord::new().with_client(OTHER).with_timeout(Deadline::NEVER).into_bits()
}

#[test]
fn a_lost_answer_is_bad_response_and_is_undone_before_the_next_operation() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.deaf.store(true, SeqCst);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::BadResponse);
    let resolve = Request::Resolve { handle: Handle(0) };
    assert_eq!(*fake.requests.lock(), [resolve], "the arbiter is told at once");
    fake.deaf.store(false, SeqCst);
    fake.words.lock().clear(); // as if the arbiter had undone the operation
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::Success);
    assert_eq!(*fake.requests.lock(), [resolve, resolve]);
    assert_eq!(instance.stats()[28], 1);
}

#[test]
fn a_batch_flushes_for_one_item_and_posts_again_for_another_in_the_same_round() {
    const RUN_MAX: Duration = Duration::from_secs(60);
    let (instance, fake) = instance(&[LockType::Atomic, LockType::Fair]);
    let expired =
        AtomicWord::new().with_client(OTHER).with_timeout(Deadline::at_s(900)).into_bits();
    fake.words.lock().insert(0, expired); // taken over by a second word operation
    let batch = std::thread::spawn(move || {
        let mut out = [code(Status::Error); 2];
        let items = [(LockId(1), X, 5), (LockId(2), X, 5)];
        assert_eq!(instance.batch_trylock(&items, &mut out), Status::Success);
        out.map(|result| result.status)
    });
    let start = Instant::now();
    while !batch.is_finished() && start.elapsed() < RUN_MAX {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(batch.is_finished(), "it waits for a flush that was never asked for");
    assert_eq!(batch.join().unwrap(), [Status::Success; 2]);
}

#[test]
fn an_unlock_on_a_dead_session_keeps_the_hold() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::Success);
    fake.gone.store(true, SeqCst);
    assert_eq!(instance.unlock(LockId(1)).status, Status::BadResponse);
    assert_eq!(instance.release_lock(LockId(1)), Status::Error, "it is held");
    fake.gone.store(false, SeqCst);
    fake.words.lock().clear();
    assert_eq!(instance.unlock(LockId(1)).status, Status::Success);
}

#[test]
fn a_lock_is_not_released_before_it_is_known_that_nothing_of_it_is_under_way() {
    let (instance, fake) = instance(&[LockType::Atomic, LockType::Fair]);
    fake.deaf.store(true, SeqCst);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::BadResponse);
    let resolve = Request::Resolve { handle: Handle(0) };
    fake.answer(|_| Some(Reply::Denied { status: Status::NotReady, word: 0 }));
    assert_eq!(instance.release_lock(LockId(1)), Status::NotReady);
    fake.answer(|_| None);
    assert_eq!(instance.release_lock(LockId(1)), Status::BadResponse);
    assert_eq!(*fake.requests.lock(), [resolve; 3]);
    fake.answer(|_| Some(Reply::Done { word: 0 }));
    // the release goes on to the control call, which fails, because this instance has no control
    // connection
    assert_eq!(instance.release_lock(LockId(1)), Status::BadResponse);
    assert_eq!(instance.release_lock(LockId(1)), Status::BadResponse);
    assert_eq!(*fake.requests.lock(), [resolve; 4], "it is asked once");
    let published = fake.publishes.load(SeqCst);
    assert_eq!(instance.release_lock(LockId(2)), Status::BadResponse);
    assert_eq!(fake.publishes.load(SeqCst), published + 1, "its notes are waited for");
}

#[test]
fn a_guard_that_ends_without_an_answer_is_undone_before_the_next_one() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    let (taken, first) = instance.try_guard(LockId(1), X, Lease::secs(5));
    assert_eq!(taken.status, Status::Success);
    assert_eq!(
        instance.try_guard(LockId(1), X, Lease::secs(5)).0.status,
        Status::Fail,
        "another guard has it"
    );
    fake.gone.store(true, SeqCst);
    assert_eq!(instance.end_guard(LockId(1), first), Status::BadResponse);
    assert_eq!(instance.try_guard(LockId(1), X, Lease::secs(5)).0.status, Status::BadResponse);
    fake.gone.store(false, SeqCst);
    fake.words.lock().clear();
    let (taken, second) = instance.try_guard(LockId(1), X, Lease::secs(5));
    assert_eq!(taken.status, Status::Success);
    assert_eq!(instance.end_guard(LockId(1), first), Status::AlreadyUnlocked);
    assert_eq!(instance.end_guard(LockId(1), second), Status::Success);
}

#[test]
fn the_guard_of_a_lost_hold_cannot_end_a_later_one() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    let (_, first) = instance.try_guard(LockId(1), X, Lease::secs(5));
    fake.words.lock().insert(0, others_hold());
    assert_eq!(
        instance.extend_guard(LockId(1), first, X, Lease::NONE).status,
        Status::Fail,
        "stolen"
    );
    fake.words.lock().clear();
    let (taken, second) = instance.try_guard(LockId(1), X, Lease::secs(5));
    assert_eq!(taken.status, Status::Success);
    assert_eq!(instance.end_guard(LockId(1), first), Status::AlreadyUnlocked);
    assert_eq!(
        instance.extend_guard(LockId(1), first, X, Lease::secs(5)).status,
        Status::AlreadyUnlocked
    );
    assert_ne!(fake.word(0), 0, "the second guard holds it");
    assert_eq!(instance.end_guard(LockId(1), second), Status::Success);
    assert_eq!(fake.word(0), 0);
}

#[test]
fn a_wait_that_lasts_too_long_is_cancelled_and_its_own_reply_decides() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.words.lock().insert(0, others_hold());
    fake.answer(|request| match request {
        Request::Wait { .. } => None,
        _ => Some(Reply::Done { word: 0 }),
    });
    let result = instance.lock(LockId(1), X, 5);
    assert_eq!(result.status, Status::BadResponse, "neither grant nor cancellation came");
    let requests = fake.requests.lock().clone();
    assert!(matches!(requests[0], Request::Wait { .. }), "{requests:?}");
    assert!(matches!(requests[1], Request::Ping), "is it there? {requests:?}");
    assert!(matches!(requests[2], Request::Cancel { .. }), "{requests:?}");
    assert!(matches!(requests[3], Request::Resolve { .. }), "{requests:?}");
    assert_eq!(fake.forgotten.lock().len(), 3, "nothing of it is waited for");
}

#[test]
fn no_answer_is_waited_for_beyond_the_bound_of_a_call() {
    let (instance, fake) = instance(&[LockType::Fair]);
    fake.answer(|_| None);
    fake.words.lock().insert(0, 0xd000_0000_d000_0000); // so high that a client asks the arbiter
    let start = Instant::now();
    fake.deaf.store(true, SeqCst);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::BadResponse);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::BadResponse);
    assert!(start.elapsed().as_secs() < 5, "the fake says at once that nothing comes");
}

#[test]
fn a_second_take_of_a_lock_that_was_free_before_the_batch_fails_without_effect() {
    let (instance, fake) = instance(&[LockType::Atomic, LockType::Rw]);
    let mut out = [code(Status::Done); 4];
    let items = [(LockId(1), X, 5), (LockId(1), X, 5), (LockId(2), X, 5), (LockId(2), S, 5)];
    assert_eq!(instance.batch_trylock(&items, &mut out), Status::Success);
    let codes = out.map(|result| result.status);
    assert_eq!(codes, [Status::Success, Status::Fail, Status::Success, Status::Fail]);
    assert_eq!(fake.executes.load(SeqCst), 1, "one round trip for both locks");
    let unlocks = [LockId(1), LockId(1), LockId(2), LockId(9)];
    assert_eq!(instance.batch_unlock(&unlocks, &mut out), Status::Success);
    let codes = out.map(|result| result.status);
    use Status::{AlreadyUnlocked, LockNotGet, Success};
    assert_eq!(codes, [Success, AlreadyUnlocked, Success, LockNotGet]);
    assert_eq!((fake.word(0), fake.word(4)), (0, 0));
}

#[test]
fn a_second_share_in_a_batch_is_a_second_hold_by_the_same_reader() {
    let (instance, fake) = instance(&[LockType::Rw]);
    let mut out = [code(Status::Done); 3];
    let items = [(LockId(1), S, 5); 3];
    assert_eq!(instance.batch_trylock(&items, &mut out), Status::Success);
    assert_eq!(out.map(|result| result.status), [Status::Success; 3]);
    assert_eq!(RwWord::from_bits(fake.word(0)).rcount(), 1, "one reader at the primary");
    let codes: Vec<_> = (0..4).map(|_| instance.unlock(LockId(1)).status).collect();
    use Status::{AlreadyLocked, AlreadyUnlocked, Success};
    assert_eq!(codes, [AlreadyLocked, AlreadyLocked, Success, AlreadyUnlocked]);
    assert_eq!(fake.word(0), 0);
}

#[test]
fn a_lock_held_before_the_batch_is_re_entered_by_every_item() {
    let (instance, _fake) = instance(&[LockType::Atomic]);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::Success);
    let mut out = [code(Status::Done); 2];
    assert_eq!(instance.batch_trylock(&[(LockId(1), X, 5); 2], &mut out), Status::Success);
    assert_eq!(out.map(|result| result.status), [Status::AlreadyLocked; 2]);
    let extend = [(LockId(1), X, 0), (LockId(1), S, 0)];
    assert_eq!(instance.batch_extend(&extend, &mut out), Status::Success);
    assert_eq!(out.map(|result| result.status), [Status::Success, Status::Invalid]);
}

#[test]
fn a_lost_batch_puts_the_same_code_in_every_sent_item() {
    let (instance, fake) = instance(&[LockType::Atomic, LockType::Atomic]);
    fake.deaf.store(true, SeqCst);
    fake.answer(|_| None);
    let mut out = [code(Status::Done); 3];
    let items = [(LockId(1), X, 5), (LockId(2), X, 5), (LockId(2), X, 0)];
    assert_eq!(instance.batch_trylock(&items, &mut out), Status::Success);
    let codes = out.map(|result| result.status);
    assert_eq!(codes, [Status::BadResponse, Status::BadResponse, Status::Success]);
}

#[test]
fn a_batch_has_1_to_31_items() {
    let (instance, _fake) = instance(&[LockType::Atomic]);
    let mut out = [code(Status::Done); 32];
    assert_eq!(instance.batch_unlock(&[], &mut out), Status::Invalid);
    assert_eq!(instance.batch_unlock(&[LockId(1); 32], &mut out), Status::Invalid);
    assert_eq!(instance.batch_unlock(&[LockId(1); 2], &mut out[..1]), Status::Invalid);
    assert_eq!(instance.batch_unlock(&[LockId(1); 31], &mut out), Status::Success);
}

#[test]
fn an_asynchronous_operation_keeps_all_others_out_until_it_was_checked() {
    let (instance, _fake) = instance(&[LockType::Atomic, LockType::Atomic]);
    let take = AsyncOp::TryLock { mode: X, expire_s: 5 };
    assert_eq!(instance.result_check().status, Status::NoAsync);
    assert_eq!(
        instance.request_async(LockId(1), AsyncOp::TryLock { mode: X, expire_s: 0 }),
        Status::Invalid
    );
    assert_eq!(instance.request_async(LockId(9), take), Status::LockNotGet);
    assert_eq!(instance.request_async(LockId(1), AsyncOp::Unlock), Status::AlreadyUnlocked);
    assert_eq!(instance.request_async(LockId(1), take), Status::Success);
    assert_eq!(instance.request_async(LockId(2), take), Status::Async);
    assert_eq!(instance.trylock(LockId(2), X, 5).status, Status::Async);
    assert_eq!(instance.faa(ObjectId(1), 1), Err(Status::Async));
    assert_eq!(instance.release_lock(LockId(1)), Status::Async);
    let mut ids = [1];
    assert_eq!(instance.batch_release_lock(&mut ids), Status::Error);
    assert_eq!(ids, [0]);
    assert_eq!(instance.result_check().status, Status::Success);
    assert_eq!(instance.result_check().status, Status::NoAsync);
    assert_eq!(instance.unlock(LockId(1)).status, Status::Success);
    assert_eq!((instance.stats()[9], instance.stats()[35]), (4, 2));
}

#[test]
fn an_asynchronous_operation_that_timed_out_does_not_poison_the_next() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.slow.store(true, SeqCst);
    let take = AsyncOp::TryLock { mode: X, expire_s: 5 };
    assert_eq!(instance.request_async(LockId(1), take), Status::Success);
    assert_eq!(instance.result_check().status, Status::AsyncAgain);
    instance.expire_async();
    assert_eq!(instance.result_check().status, Status::TimedOut);
    assert_eq!(instance.stats()[3], 1);
    assert_eq!(fake.forgotten.lock()[0], dlock_core::ids::Seq(1), "its outcome is dropped");
    let resolve = Request::Resolve { handle: Handle(0) };
    assert_eq!(*fake.requests.lock(), [resolve], "a late grant is released at once");
    fake.slow.store(false, SeqCst);
    assert_eq!(instance.request_async(LockId(1), take), Status::Success);
    assert_eq!(instance.result_check().status, Status::Success);
    assert_eq!(*fake.requests.lock(), [resolve, resolve]);
}

#[test]
fn an_asynchronous_operation_that_cannot_be_sent_is_not_pending() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.gone.store(true, SeqCst);
    let take = AsyncOp::TryLock { mode: X, expire_s: 5 };
    assert_eq!(instance.request_async(LockId(1), take), Status::BadResponse);
    assert_eq!(instance.result_check().status, Status::NoAsync);
}

#[test]
fn the_result_of_an_asynchronous_operation_is_not_looked_at_while_the_time_is_asked_for() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    let take = AsyncOp::TryLock { mode: X, expire_s: 5 };
    assert_eq!(instance.request_async(LockId(1), take), Status::Success);
    fake.clockless.store(true, SeqCst);
    for _ in 0..3 {
        assert_eq!(instance.result_check().status, Status::AsyncAgain);
    }
    fake.clockless.store(false, SeqCst);
    assert_eq!(instance.result_check().status, Status::Success);
}

#[test]
fn a_client_that_has_left_answers_so_everywhere() {
    let (instance, _fake) = instance(&[LockType::Atomic]);
    assert_eq!(instance.deinit(), Status::BadResponse, "there is no control connection");
    assert_eq!(instance.deinit(), Status::Error);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::ClientNotInit);
    assert_eq!(
        instance.batch_unlock(&[LockId(1)], &mut [code(Status::Done)]),
        Status::ClientNotInit
    );
    assert_eq!(instance.result_check().status, Status::ClientNotInit);
    assert_eq!(instance.release_lock(LockId(1)), Status::Error);
    assert_eq!(instance.update_all_locks(), Status::ClientNotInit);
    assert_eq!(instance.reinit("127.0.0.1"), Status::Invalid);
    assert_eq!(instance.heartbeat(1), Status::Invalid);
    assert_eq!(instance.faa(ObjectId(1), 1), Err(Status::ClientNotInit));
}

#[test]
fn a_lock_whose_place_is_not_known_refuses_and_keeps_its_state() {
    let (instance, _fake) = instance(&[LockType::Atomic, LockType::Rw, LockType::Fair]);
    for id in 1..=3 {
        assert_eq!(instance.trylock(LockId(id), X, 5).status, Status::Success);
        let (_, mut guard) = instance.at_once(LockId(id)).unwrap();
        guard
            .as_mut()
            .unwrap()
            .go_over_to(Arc::new(dlock_fabric::Refuse), Arc::new(Pulse::new(0, 0)));
        drop(guard);
        assert_eq!(instance.unlock(LockId(id)).status, Status::NotReady);
        assert_eq!(instance.trylock(LockId(id), X, 0).status, Status::Success, "a local question");
        assert_eq!(instance.release_lock(LockId(id)), Status::Error, "it is still held");
    }
    assert_eq!(instance.stats()[34], 3);
}

#[test]
fn a_lock_is_not_given_back_to_a_primary_that_recovers_and_no_id_is_changed() {
    let (instance, _fake) = instance(&[LockType::Atomic, LockType::Rw, LockType::Fair]);
    for id in 1..=3 {
        let (_, mut guard) = instance.at_once(LockId(id)).unwrap();
        let (refuse, pulse) = (Arc::new(dlock_fabric::Refuse), Arc::new(Pulse::new(0, 0)));
        guard.as_mut().unwrap().go_over_to(refuse, pulse);
    }
    let mut ids = [1, 2, 3];
    assert_eq!(instance.batch_release_lock(&mut ids), Status::NotReady);
    assert_eq!(ids, [1, 2, 3]);
    for id in ids {
        assert_eq!(instance.release_lock(LockId(id)), Status::NotReady);
        assert!(instance.at_once(LockId(id)).unwrap().1.is_some(), "it is still got");
    }
}

/// A reinit may take longer than any other call. Each other call gives up waiting for it at its own
/// time limit.
#[test]
fn no_call_waits_for_a_reinit_longer_than_it_may() {
    let calls: [fn(&Instance) -> Status; 8] = [
        |a| {
            a.get_lock(LockDesc {
                name: vec![9],
                lock_type: LockType::Rw,
                lease_s: 0,
                tokens: false,
            })
            .0
        },
        |a| a.release_lock(LockId(1)),
        |a| a.batch_release_lock(&mut [1]),
        |a| a.update_all_locks(),
        |a| a.reinit_done(),
        |a| a.object_get(b"o", Lease::secs(1)).unwrap_err(),
        |a| a.object_release(ObjectId(1)),
        |a| a.object_destroy(ObjectId(1)),
    ];
    let (instance, _fake) = instance(&[LockType::Atomic]);
    let reinit = instance.lifecycle.write();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let instance = &instance;
        let calls = calls.map(|call| scope.spawn(move || call(instance)));
        let all_ended = || calls.iter().all(|call| call.is_finished());
        while !all_ended() && start.elapsed() < 6 * CONTROL_WAIT {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let have_ended = all_ended();
        drop(reinit);
        assert!(have_ended, "one of them waits on");
        assert_eq!(calls.map(|call| call.join().unwrap()), [Status::BadResponse; 8]);
    });
}

#[test]
fn an_object_is_given_back_when_no_operation_on_it_is_under_way() {
    let (instance, fake) = instance(&[]);
    let object = ObjectId(3);
    let grant = ObjectGrant { object, handle: Handle(0), slot: Slot(4), generation: Generation(9) };
    instance.objects.write().insert(object, super::objects::Got::new(grant, Epoch(1)));
    let release = || {
        let before = fake.executes.load(SeqCst);
        let status = instance.object_release(object);
        (status, fake.executes.load(SeqCst) - before)
    };
    // nothing is in doubt, and there is no connection to ask on: the handle is kept
    assert_eq!(instance.faa(object, 5), Ok(0));
    assert_eq!(release(), (Status::BadResponse, 0));
    fake.deaf.store(true, SeqCst);
    assert_eq!(instance.faa(object, 5), Err(Status::BadResponse));
    assert_eq!(release(), (Status::BadResponse, 1), "it asks, in vain");
    assert_eq!(release(), (Status::BadResponse, 1));
    fake.deaf.store(false, SeqCst);
    assert_eq!(release(), (Status::BadResponse, 1), "it asks, and is answered");
    assert_eq!(release(), (Status::BadResponse, 0));
    assert_eq!(instance.snapshot(object), Ok(10));
}

/// Replaces the session's pulse: its last answer came `ago_s` seconds ago.
fn silent_since(instance: &Instance, horizon_s: u64, ago_s: u64) {
    let heard_ns = boot_ns().saturating_sub(ago_s * NS);
    let pulse = Arc::new(Pulse::new(horizon_s * NS, heard_ns));
    for (_, index) in instance.table.indices() {
        let mut guard = instance.table.lock_slot(index).lock_until(|| 0).unwrap();
        guard.as_mut().unwrap().pulse = Arc::clone(&pulse);
    }
}

#[test]
fn past_its_horizon_a_client_posts_nothing_and_believes_nothing() {
    let types = [LockType::Atomic, LockType::Rw, LockType::Fair];
    let (instance, fake) = instance(&types);
    let ids = [LockId(1), LockId(2), LockId(3)];
    silent_since(&instance, 1_000, 10);
    for id in ids {
        assert_eq!(instance.trylock(id, X, 500).status, Status::Success);
    }
    let (words, executes) = (fake.words.lock().clone(), fake.executes.load(SeqCst));
    fake.requests.lock().clear();
    silent_since(&instance, 1_000, 1_001);
    for id in ids {
        assert_eq!(instance.trylock(id, X, 500).status, Status::BadResponse, "a re-entry");
        assert_eq!(instance.extend(id, X, 0).status, Status::BadResponse);
        assert_eq!(instance.unlock(id).status, Status::BadResponse);
        assert_eq!(instance.lock(id, X, 500).status, Status::BadResponse);
    }
    let mut out = [code(Status::Done); 3];
    let items = ids.map(|id| (id, X, 500));
    assert_eq!(instance.batch_trylock(&items, &mut out), Status::Success);
    assert!(out.iter().all(|result| result.status == Status::BadResponse), "{out:?}");
    let op = AsyncOp::TryLock { mode: X, expire_s: 500 };
    assert_eq!(instance.request_async(ids[0], op), Status::BadResponse);
    assert_eq!(fake.executes.load(SeqCst), executes, "nothing was posted");
    assert!(fake.requests.lock().is_empty(), "nor asked for");
    assert_eq!(*fake.words.lock(), words);
    // the client is within its horizon again, and the primary has ended none of its holds
    silent_since(&instance, 1_000, 10);
    for id in ids {
        assert_eq!(instance.trylock(id, X, 500).status, Status::AlreadyLocked);
    }
}

#[test]
fn what_a_guard_knows_of_its_hold_and_session_is_told_without_asking() {
    let (instance, fake) = instance(&[LockType::Rw]);
    let id = LockId(1);
    let (taken, hold) = instance.try_guard(id, X, Lease::ENDLESS);
    assert_eq!(taken.status, Status::Success);
    let executes = fake.executes.load(SeqCst);
    let pulse = || {
        let guard = instance.table.lock_slot(0).lock_until(|| 0).unwrap();
        Arc::clone(&guard.as_ref().unwrap().pulse)
    };
    let sessions_is_the_locks = || {
        let link = instance.link.load_full();
        let (exec, pulse) = (Arc::clone(&link.exec), pulse());
        instance.link.store(Arc::new(SessionState { exec, verbs: None, pulse, ..*link }));
    };
    silent_since(&instance, 1_000, 10);
    assert_eq!(instance.known_of_guard(id, hold), Status::NotReady, "it is another session's");
    sessions_is_the_locks();
    assert_eq!(instance.known_of_guard(id, hold), Status::Success);
    assert_eq!(instance.known_of_guard(id, hold + 1), Status::AlreadyUnlocked);
    silent_since(&instance, 1_000, 1_001);
    sessions_is_the_locks();
    assert_eq!(instance.known_of_guard(id, hold), Status::BadResponse, "past the horizon");
    silent_since(&instance, 1_000, 10);
    let slot = instance.table.lock_slot(0);
    assert!(slot.lock_until(|| 0).unwrap().as_mut().unwrap().entry.lapse());
    assert_eq!(instance.known_of_guard(id, hold), Status::Fail, "lost");
    assert_eq!(fake.executes.load(SeqCst), executes);
}

#[test]
fn an_outcome_that_comes_after_the_horizon_is_unknown() {
    let (instance, fake) = instance(&[LockType::Atomic, LockType::Rw]);
    for id in [LockId(1), LockId(2)] {
        let heard_ns = boot_ns();
        let pulse = Arc::new(Pulse::new(NS, heard_ns));
        let mut guard = instance.table.lock_slot(id.0 as u32 - 1).lock_until(|| 0).unwrap();
        guard.as_mut().unwrap().pulse = pulse;
        drop(guard);
        fake.delay(Duration::from_millis(1_100));
        assert_eq!(instance.trylock(id, X, 500).status, Status::BadResponse);
        fake.delay(Duration::ZERO);
        let resolve = Request::Resolve { handle: Handle(id.0 as u32 - 1) };
        assert_eq!(fake.requests.lock().pop(), Some(resolve), "it is undone");
    }
}

/// The program may ask for the result late, when the horizon is over.
#[test]
fn an_asynchronous_result_that_is_asked_for_after_the_horizon_is_no_success() {
    for (lock_type, expire_s) in [(LockType::Rw, 500), (LockType::Atomic, u32::MAX)] {
        let (instance, fake) = instance(&[lock_type]);
        silent_since(&instance, 1_000, 10);
        let op = AsyncOp::TryLock { mode: X, expire_s };
        assert_eq!(instance.request_async(LockId(1), op), Status::Success);
        silent_since(&instance, 1_000, 1_001);
        assert_eq!(instance.result_check().status, Status::Fail, "{lock_type:?}");
        let resolve = Request::Resolve { handle: Handle(0) };
        assert_eq!(fake.requests.lock().pop(), Some(resolve), "it is undone");
    }
}

/// Client and primary are cut off from each other. After the grace the primary may have ended holds
/// without a lease, and cannot tell the client.
#[test]
fn who_is_cut_off_does_not_enter_a_lock_without_a_lease_again() {
    let (instance, fake) = instance(&[LockType::Rw]);
    let id = LockId(1);
    assert_eq!(instance.trylock(id, X, 500).status, Status::Success);
    fake.gone.store(true, SeqCst);
    assert_eq!(instance.trylock(id, X, 500).status, Status::BadResponse);
    assert_eq!(instance.lock(id, X, 500).status, Status::BadResponse);
    let op = AsyncOp::TryLock { mode: X, expire_s: 500 };
    assert_eq!(instance.request_async(id, op), Status::BadResponse);
    let mut out = [code(Status::Done)];
    assert_eq!(instance.batch_trylock(&[(id, X, 500)], &mut out), Status::Success);
    assert_eq!(out[0].status, Status::BadResponse);
    fake.gone.store(false, SeqCst);
    assert_eq!(instance.trylock(id, X, 500).status, Status::AlreadyLocked);
}
