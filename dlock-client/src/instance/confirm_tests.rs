// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client asks its new primary once it is back: on an executor with scripted answers. And a
//! client that begins anew, at a real primary.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_core::clock::{Deadline, ServerTime, NS};
use dlock_core::ids::{Epoch, Handle, LockId};
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::words::AtomicWord;
use dlock_core::token::Token;
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_fabric::os::clock::boot_ns;
use dlock_server::{Server, ServerConfig, VerbsUse};

use super::late_tests::own_address;
use super::tests::{instance, ME};
use super::*;
use crate::config::FabricChoice;
use crate::driver::failover::{look_after, Plan};
use dlock_test_support::fake::Fake;

const X: Mode = Mode::Exclusive;
const DEADLINE_S: u32 = 1_600;
const WAIT: Duration = Duration::from_secs(60);
/// More locks than one request can ask about.
const LOCKS: usize = BATCH_MAX + 9;

/// A client that holds `count` locks, has come to the second incarnation of its primary, and has
/// claimed the locks there.
fn claimed(count: usize) -> (Instance, Arc<Fake>) {
    let (instance, fake) = instance(&vec![LockType::Atomic; count]);
    for n in 1..=count {
        assert_eq!(instance.trylock(LockId(n as i32), X, 600).status, Status::Success);
    }
    let link = instance.link.load_full();
    let (exec, pulse) = (Arc::clone(&link.exec), Arc::clone(&link.pulse));
    let link = SessionState { exec, pulse, verbs: None, epoch: Epoch(2), ..*link };
    instance.link.store(Arc::new(link));
    let now = fake.now();
    for (lock, index) in instance.table.indices() {
        let mut guard = instance.table.lock_slot(index).lock_until(|| 0).unwrap();
        let held = guard.as_mut().unwrap();
        let (handle, slot, word) = (held.entry.handle(), held.entry.slot(), 0);
        let grant = LockGrant { lock, handle, slot, word, already: false, tokens: false };
        assert!(!held.binding.moves_to(Epoch(2), now));
        held.binding.bind(&mut held.entry, &grant, (Epoch(2), 0), false, now);
    }
    fake.requests.lock().clear();
    (instance, fake)
}

fn granted() -> Option<Reply> {
    let word =
        AtomicWord::new().with_client(ME).with_timeout(Deadline::at_s(DEADLINE_S)).into_bits();
    let at = ServerTime(1_000 * NS);
    Some(Reply::Granted {
        word,
        deadline: Deadline::at_s(DEADLINE_S),
        at,
        ticket: None,
        token: Token::NONE,
    })
}

fn unconfirmed(instance: &Instance) -> usize {
    let indices = instance.table.indices();
    let is_open = |index| {
        let guard = instance.table.lock_slot(index).lock_until(|| 0).unwrap();
        guard.as_ref().is_some_and(|held| held.entry.is_unconfirmed())
    };
    indices.iter().filter(|(_, index)| is_open(*index)).count()
}

#[test]
fn what_was_claimed_is_asked_for_however_many_locks_there_are() {
    let (instance, fake) = claimed(LOCKS);
    assert_eq!(unconfirmed(&instance), LOCKS);
    fake.answer(|request| match request {
        Request::Confirm { .. } => granted(),
        other => panic!("{other:?}"),
    });
    assert!(instance.confirm_all(WAIT));
    assert_eq!((unconfirmed(&instance), fake.requests.lock().len()), (0, LOCKS));
}

#[test]
fn a_question_that_is_not_answered_is_not_taken_for_one_that_is() {
    for silent in [0, BATCH_MAX + 2] {
        let (instance, fake) = claimed(LOCKS);
        let silent = Handle(silent as u32);
        fake.answer(move |request| match request {
            Request::Confirm { handle, .. } if *handle == silent => None,
            _ => granted(),
        });
        assert!(!instance.confirm_all(WAIT), "{silent:?}");
        assert!(unconfirmed(&instance) > 0);
        fake.answer(|_| granted());
        assert!(instance.confirm_all(WAIT), "{silent:?}");
        assert_eq!(unconfirmed(&instance), 0);
    }
}

#[test]
fn what_is_in_doubt_and_is_not_undone_is_not_taken_for_undone() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.deaf.store(true, SeqCst);
    assert_eq!(instance.trylock(LockId(1), X, 5).status, Status::BadResponse);
    fake.deaf.store(false, SeqCst);
    fake.answer(|_| None);
    assert!(!instance.confirm_all(WAIT));
    fake.answer(|_| Some(Reply::Done { word: 0 }));
    assert!(instance.confirm_all(WAIT));
}

fn primary() -> Server {
    let (bind, verbs) = (own_address(), VerbsUse::Off);
    let config = ServerConfig { bind, port: 0, verbs, ..Default::default() };
    Server::start(config).expect("the primary starts")
}

fn joined(server: &Server, fabric: FabricChoice) -> Instance {
    let addr = server.local_addr();
    let horizon_s = Some(60);
    let config = ClientConfig { port: addr.port(), fabric, horizon_s, ..Default::default() };
    Instance::init(&config, &addr.ip().to_string()).expect("the primary admits a client")
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT, "{what}");
        thread::sleep(Duration::from_millis(1)); // leaves the CPU to other threads
    }
}

/// A client with one lock. Its control connection leads to a real primary, its data path to a
/// [`Fake`]. Also returns that executor, the lock, and the client's [`Watch`].
fn half_real(server: &Server) -> (Arc<Instance>, Arc<Fake>, LockId, Arc<Watch>) {
    let mut instance = joined(server, FabricChoice::Tcp);
    let (fake, link) = (Arc::new(Fake::new()), instance.link.load_full());
    let (exec, pulse): (Arc<dyn Executor>, _) = (fake.clone(), Arc::clone(&link.pulse));
    instance.link.store(Arc::new(SessionState { exec, pulse, verbs: None, ..*link }));
    let (addresses, silence) = (vec![server.local_addr().into()], Duration::from_millis(200));
    let watch = Arc::new(Watch::new(Plan { addresses, silence }));
    instance.watch = Some(Arc::clone(&watch));
    let desc =
        LockDesc { name: b"l".to_vec(), lock_type: LockType::Atomic, lease_s: 0, tokens: false };
    let lock = instance.get_lock(desc).1.unwrap();
    (Arc::new(instance), fake, lock, watch)
}

/// The client has its primary, only its data path gets no answers, and the program does not operate
/// on the lock again. Then the failover thread asks for the undo, again and again.
#[test]
fn what_an_operation_leaves_in_doubt_is_asked_for_until_it_is_undone() {
    type Operates = fn(&Instance, LockId) -> Status;
    let unlocks: Operates = |instance, lock| instance.unlock(lock).status;
    let tries: Operates = |instance, lock| instance.trylock(lock, X, 600).status;
    let tries_many: Operates = |instance, lock| {
        let mut out = [code(Status::Error)];
        assert_eq!(instance.batch_trylock(&[(lock, X, 600)], &mut out), Status::Success);
        out[0].status
    };
    let tries_later: Operates = |instance, lock| {
        let take = AsyncOp::TryLock { mode: X, expire_s: 600 };
        match instance.request_async(lock, take) {
            Status::Success => instance.result_check().status,
            at_once => at_once,
        }
    };
    for (operates, is_held, status) in [
        // the answer of the release was lost, and the hold has ended all the same
        (unlocks, true, Status::Success),
        (tries, false, Status::BadResponse),
        (tries_many, false, Status::BadResponse),
        (tries_later, false, Status::BadResponse),
    ] {
        let server = primary();
        let (instance, fake, lock, watch) = half_real(&server);
        if is_held {
            assert_eq!(instance.trylock(lock, X, 600).status, Status::Success);
        }
        fake.answer(|_| None);
        fake.deaf.store(true, SeqCst);
        assert_eq!(operates(&instance, lock), status);
        fake.deaf.store(false, SeqCst);
        look_after(&instance, &watch);
        let asked = |count| fake.requests.lock().len() >= count;
        let before = fake.requests.lock().len();
        eventually("it is asked for once more", || asked(before + 3));
        fake.answer(|_| Some(Reply::Done { word: 0 }));
        let in_doubt = || {
            let lock_slot = instance.table.lock_slot(instance.table.find(lock).unwrap());
            lock_slot.try_lock().is_none_or(|guard| guard.as_ref().unwrap().entry.in_doubt())
        };
        eventually("it is undone", || !in_doubt());
    }
}

/// The primary still counts the lock as this client's, because a release or a get was not answered.
/// The client's ledger entry for the lock would keep other clients waiting, so getting the lock
/// undoes it, without waiting for an operation of the program.
#[test]
fn a_lock_that_was_given_before_is_undone_when_it_is_got_again() {
    let server = primary();
    let (instance, fake, lock, _watch) = half_real(&server);
    let desc = {
        let index = instance.table.find(lock).unwrap();
        let mut guard = instance.table.lock_slot(index).try_lock().unwrap();
        let desc = guard.as_ref().unwrap().entry.desc().clone();
        instance.table.remove(index, &mut guard);
        desc
    };
    assert!(fake.requests.lock().is_empty());
    let (status, again) = instance.get_lock(desc);
    assert_eq!((status, again), (Status::Success, Some(lock)));
    assert!(matches!(fake.requests.lock()[..], [Request::Resolve { .. }]));
}

/// A successor has given the lock to another client. The library learns this first, and the
/// program's next call must still return the loss.
#[test]
fn a_hold_that_the_library_finds_lost_is_told_to_be_lost_by_the_next_call() {
    let (instance, fake) = claimed(2);
    fake.answer(|request| match request {
        Request::Confirm { handle, .. } if handle.0 == 0 => {
            Some(Reply::Denied { status: Status::Fail, word: 0 })
        }
        Request::Confirm { .. } => granted(),
        _ => Some(Reply::Done { word: 0 }),
    });
    assert!(instance.confirm_all(WAIT));
    let unlock = || [1, 2].map(|n| instance.unlock(LockId(n)).status);
    let told = unlock();
    assert!(told.contains(&Status::Success) && told.contains(&Status::Fail), "{told:?}");
    assert_eq!(unlock(), [Status::AlreadyUnlocked; 2]);
}

/// The primary has ended the client's holds, and the client has come back; but an operation had the
/// lock's slot locked for so long that the lock itself was not told.
#[test]
fn a_lock_whose_session_was_ended_by_an_earlier_move_has_lapsed() {
    let server = primary();
    let instance = joined(&server, FabricChoice::Tcp);
    let desc = LockDesc { name: b"l".to_vec(), lock_type: LockType::Rw, lease_s: 0, tokens: false };
    let lock = instance.get_lock(desc).1.unwrap();
    for is_ended in [false, true] {
        assert_eq!(instance.trylock(lock, Mode::Shared, 5).status, Status::Success);
        if is_ended {
            instance.link.load().pulse.end();
        }
        let came =
            instance.reinit_at(&server.local_addr().into(), Patience::OF_CALL, log::Level::Debug);
        assert_eq!(came.map_err(Status::from), Ok(()));
        let status = if is_ended { Status::Fail } else { Status::Success };
        assert_eq!(instance.unlock(lock).status, status);
    }
}

/// Thread A's release is not answered. Thread B waits for the same lock slot meanwhile, and then
/// acquires the lock: the failed release must not end the hold of B.
#[test]
fn a_release_that_is_not_heard_of_ends_no_hold_of_another_thread() {
    let unlocks: [fn(&Instance) -> Status; 2] = [
        |instance| instance.unlock(LockId(1)).status,
        |instance| {
            let mut out = [code(Status::Error)];
            assert_eq!(instance.batch_unlock(&[LockId(1)], &mut out), Status::Success);
            out[0].status
        },
    ];
    for unlock in unlocks {
        let (mut instance, fake) = instance(&[LockType::Atomic]);
        let plan = Plan { addresses: Vec::new(), silence: WAIT };
        instance.watch = Some(Arc::new(Watch::new(plan)));
        let instance = Arc::new(instance);
        assert_eq!(instance.trylock(LockId(1), X, 600).status, Status::Success);
        let (other, told) = std::sync::mpsc::channel();
        let (of_other, ears) = (Arc::clone(&instance), Arc::clone(&fake));
        let is_first = std::sync::atomic::AtomicBool::new(true);
        fake.answer(move |_| {
            if is_first.swap(false, SeqCst) {
                let instance = Arc::clone(&of_other);
                let take = move || instance.trylock(LockId(1), X, 600).status;
                other.send(thread::spawn(take)).unwrap();
                thread::sleep(Duration::from_millis(100)); // the thread waits for the slot by now
                ears.deaf.store(false, SeqCst);
            }
            Some(Reply::Done { word: 0 })
        });
        fake.deaf.store(true, SeqCst);
        assert_eq!(unlock(&instance), Status::Success);
        assert_eq!(told.recv().unwrap().join().unwrap(), Status::Success);
        let lock_slot = instance.table.lock_slot(instance.table.find(LockId(1)).unwrap());
        let guard = lock_slot.lock();
        let entry = &guard.as_ref().unwrap().entry;
        assert_eq!((entry.state().is_held(), entry.in_doubt()), (true, false));
    }
}

/// The client begins anew at the same incarnation, because its primary has forgotten it.
#[test]
fn nothing_goes_on_in_the_session_of_a_client_that_begins_anew() {
    for fabric in [FabricChoice::Shm, FabricChoice::Tcp] {
        let server = primary();
        let a = joined(&server, fabric);
        let old = a.link.load_full();
        assert!(!old.exec.is_cut_off() && old.pulse.horizon_ns() > boot_ns());
        let came = a.begin_anew_at(&server.local_addr().into(), Patience::OF_CALL);
        assert_eq!(came.map_err(Status::from), Ok(()));
        assert!(old.exec.is_cut_off(), "{fabric:?}");
        assert!(old.pulse.horizon_ns() <= boot_ns(), "{fabric:?}: nothing is relied on there");
        let new = a.link.load_full();
        assert_ne!(new.client, old.client);
        assert!(!new.exec.is_cut_off() && new.pulse.horizon_ns() > boot_ns(), "{fabric:?}");
        assert_eq!(a.deinit(), Status::Success);
    }
}

/// The program leaves while the primary is about to admit the client anew.
#[test]
fn who_leaves_while_it_begins_anew_takes_no_new_session() {
    let server = primary();
    let a = Arc::new(joined(&server, FabricChoice::Tcp));
    let line = TcpListener::bind((own_address(), 0)).unwrap();
    let at = line.local_addr().unwrap();
    let anew = {
        let a = Arc::clone(&a);
        thread::spawn(move || a.begin_anew_at(&at.into(), Patience::OF_CALL))
    };
    let (near, _) = line.accept().unwrap();
    let to = server.local_addr();
    let far = TcpStream::connect(to).unwrap();
    pass(near.try_clone().unwrap(), far.try_clone().unwrap());
    a.gate.store(LEFT, SeqCst);
    pass(far, near);
    thread::spawn(move || {
        // forwards the later connections, of the data path
        for near in line.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(to).unwrap();
            pass(near.try_clone().unwrap(), far.try_clone().unwrap());
            pass(far, near);
        }
    });
    assert_eq!(anew.join().unwrap().map_err(Status::from), Err(Status::Invalid));
    assert_eq!(a.link.load().client, a.id);
}

/// Forwards bytes from one connection to the other, in a thread of its own.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || std::io::copy(&mut from, &mut to));
}

/// The operation timed out when the program asked for its result, and the program does not use the
/// lock again.
#[test]
fn what_an_asynchronous_operation_that_timed_out_leaves_in_doubt_is_undone() {
    let server = primary();
    let (instance, fake, lock, watch) = half_real(&server);
    fake.slow.store(true, SeqCst);
    let take = AsyncOp::TryLock { mode: X, expire_s: 600 };
    assert_eq!(instance.request_async(lock, take), Status::Success);
    instance.expire_async();
    assert_eq!(instance.result_check().status, Status::TimedOut);
    let in_doubt = || {
        let lock_slot = instance.table.lock_slot(instance.table.find(lock).unwrap());
        lock_slot.try_lock().is_none_or(|guard| guard.as_ref().unwrap().entry.in_doubt())
    };
    assert!(in_doubt(), "it may have been executed");
    look_after(&instance, &watch);
    eventually("it is undone", || !in_doubt());
}

/// The primary did not answer the release of the lock, and the client has come to another
/// incarnation since.
#[test]
fn a_lock_that_was_left_is_not_got_again_by_the_library() {
    let server = primary();
    let instance = joined(&server, FabricChoice::Tcp);
    let desc =
        LockDesc { name: b"l".to_vec(), lock_type: LockType::Atomic, lease_s: 0, tokens: false };
    let lock = instance.get_lock(desc).1.unwrap();
    let lock_slot = instance.table.lock_slot(instance.table.find(lock).unwrap());
    lock_slot.try_lock().unwrap().as_mut().unwrap().entry.leaves();
    let link = instance.link.load_full();
    let (exec, pulse) = (Arc::clone(&link.exec), Arc::clone(&link.pulse));
    let epoch = Epoch(link.epoch.0 + 1);
    instance.link.store(Arc::new(SessionState { exec, pulse, verbs: None, epoch, ..*link }));
    instance.confirm_all(WAIT);
    assert!(lock_slot.try_lock().unwrap().as_ref().unwrap().entry.has_left());
}

/// The client sends about four heartbeats in its horizon of one second, and does not send the next
/// one as soon as the primary has answered.
#[test]
fn the_thread_that_sends_heartbeats_waits_until_the_next_is_due() {
    let server = primary();
    let addr = server.local_addr();
    let config = ClientConfig { port: addr.port(), horizon_s: Some(1), ..Default::default() };
    let instance = Instance::init(&config, &addr.ip().to_string()).unwrap();
    let pulse = Arc::clone(&instance.link.load().pulse);
    thread::sleep(Duration::from_millis(300)); // the first heartbeat is due by then
    eventually("the next is due later", || !pulse.is_due(boot_ns()));
}

/// A client itself writes to its ledger what its chains take only if the primary does not do so.
#[test]
fn a_primary_of_this_version_notes_what_chains_over_tcp_take() {
    let server = primary();
    let instance = joined(&server, FabricChoice::Tcp);
    assert!(instance.link.load().exec.chains_are_noted());
}
