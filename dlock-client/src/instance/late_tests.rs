// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of real primaries, whose messages or word operations a test delays, loses, or moves to
//! another time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlock_core::clock::NS;
use dlock_core::lock::{Op, View};
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::message::{LockType, Mode};
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_server::{Server, ServerConfig, VerbsUse};

use super::*;
use crate::config::FabricChoice;
use dlock_test_support::late::{Late, Point};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const FABRICS: [FabricChoice; 2] = [FabricChoice::Shm, FabricChoice::Tcp];
/// A scene depends on timing. If a busy host has spoilt it, the test plays it again, this often at
/// most.
const SCENES_MAX: u32 = 50;
/// How often a test asks for a lock, 5 s each time.
const WAITS_MAX: u32 = 12;

/// A loopback address for the tests of this process alone: no other process takes its ports.
pub(super) fn own_address() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 0xc0, b, c).into()
}

fn server(config: ServerConfig) -> Server {
    let config = ServerConfig { bind: own_address(), verbs: VerbsUse::Off, ..config };
    Server::start(config).expect("the primary starts")
}

fn fresh_server() -> Server {
    server(ServerConfig { port: 0, ..Default::default() })
}

fn join(server: &Server, fabric: FabricChoice) -> Instance {
    let addr = server.local_addr();
    let config = ClientConfig { port: addr.port(), fabric, ..Default::default() };
    Instance::init(&config, &addr.ip().to_string()).expect("the primary admits a client")
}

/// A client whose present session runs over a [`Late`] executor, which the test controls.
fn join_late(server: &Server, fabric: FabricChoice, ahead_ns: i64) -> (Instance, Arc<Late>) {
    let instance = join(server, fabric);
    let link = instance.link.load_full();
    let late = Arc::new(Late::new(Arc::clone(&link.exec), ahead_ns));
    let exec: Arc<dyn Executor> = late.clone();
    let pulse = Arc::clone(&link.pulse);
    instance.link.store(Arc::new(SessionState { exec, verbs: None, pulse, ..*link }));
    (instance, late)
}

fn got(instance: &Instance, name: &str, lock_type: LockType) -> LockId {
    let desc = LockDesc { name: name.into(), lock_type, lease_s: 0, tokens: false };
    let (status, id) = instance.get_lock(desc);
    assert_eq!(status, Status::Success, "{name}");
    id.expect("a success has an id")
}

/// Acquires the lock, however long its turn takes on this machine.
fn lock(instance: &Instance, id: LockId, mode: Mode) {
    let waits = (0..WAITS_MAX).map(|_| instance.lock(id, mode, 600).status);
    assert!({ waits }.any(|status| status == Status::Success), "{id} {mode:?}");
}

fn deadline_s(result: OpResult) -> i64 {
    match result {
        OpResult { status: Status::Success, view: Some(View::Atomic { time_out, .. }) } => {
            time_out.seconds().into()
        }
        other => panic!("{other:?}"),
    }
}

/// After a failover, the rest of a lease counts on the clock of the primary that gave it. The
/// successor's clock may be ahead, so that another client would get the lock too early, or behind,
/// so that the lease would last too long.
#[test]
fn what_is_left_of_a_lease_is_told_by_the_clock_of_the_primary_that_gave_it() {
    const AHEAD_S: i64 = 1_000;
    const TOLERATED_S: i64 = 300; // far less than `AHEAD_S`, and far more than this test takes
    for (fabric, ahead_s) in
        FABRICS.into_iter().flat_map(|fabric| [(fabric, AHEAD_S), (fabric, -AHEAD_S)])
    {
        let first = fresh_server();
        let port = first.local_addr().port();
        let (a, _late) = join_late(&first, fabric, ahead_s * NS as i64);
        let id = got(&a, "leased", LockType::Atomic);
        let before_s = deadline_s(a.trylock(id, X, 600)) - ahead_s;
        first.stop();
        let second = server(ServerConfig { port, recovery_clients: 1, ..Default::default() });
        let ip = own_address().to_string();
        assert_eq!(a.reinit(&ip), Status::Success);
        assert_eq!(a.reinit(&ip), Status::Success, "nothing was claimed: still the first's clock");
        assert_eq!(a.update_all_locks(), Status::Success);
        assert_eq!(a.reinit_done(), Status::Success);
        let claimed_s = deadline_s(a.extend(id, X, 0));
        assert!((claimed_s - before_s).abs() < TOLERATED_S, "{before_s}, then {claimed_s}");
        let b = join(&second, fabric);
        got(&b, "leased", LockType::Atomic);
        assert_eq!(b.trylock(id, X, 600).status, Status::Fail);
        assert_eq!(a.unlock(id).status, Status::Success);
        let fresh_s = deadline_s(a.trylock(id, X, 600));
        assert!((fresh_s - before_s).abs() < TOLERATED_S, "by the new clock: {fresh_s}");
    }
}

/// If the ledger did not name the shared ticket, the primary would take it for released, and the
/// ticket would lose its place in the queue.
#[test]
fn a_reinit_in_place_tells_the_ledger_what_the_old_channel_has_lost() {
    let server = fresh_server();
    let ip = own_address().to_string();
    let (a, late) = join_late(&server, FabricChoice::Tcp, 0);
    let b = join(&server, FabricChoice::Tcp);
    let id = got(&a, "told again", LockType::Fair);
    got(&b, "told again", LockType::Fair);
    assert_eq!(b.trylock(id, X, 600).status, Status::Success);
    late.mute.store(true, SeqCst);
    assert_eq!(a.trylock(id, S, 600).status, Status::Again);
    assert_eq!(a.reinit(&ip), Status::Success);
    assert_eq!(a.trylock(id, S, 600).status, Status::Again, "it has its place");
    assert_eq!(b.unlock(id).status, Status::Success);
    assert_eq!(a.trylock(id, S, 600).status, Status::Success);
    assert_eq!(a.unlock(id).status, Status::Success);
    lock(&b, id, X);
}

/// If a client does not hear of a grant, its ledger says which wait was granted. If a reinit wrote
/// the ledger entry again while the grant is under way, a shared hold would stay counted for ever.
#[test]
fn a_reinit_in_place_leaves_the_ledger_of_a_wait_alone() {
    for fabric in FABRICS {
        let server = fresh_server();
        let ip = own_address().to_string();
        let (a, late) = join_late(&server, fabric, 0);
        let b = join(&server, fabric);
        let id = got(&a, "granted late", LockType::Rw);
        got(&b, "granted late", LockType::Rw);
        if let Ok((_, mut guard)) = a.opened(id, boot_ns() + DATA_WAIT_NS) {
            guard.as_mut().unwrap().entry.may_try(false); // the wait queues at once, without a try
        }
        assert_eq!(b.trylock(id, X, 600).status, Status::Success);
        late.hold(Point::Reply, 0);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| a.lock(id, S, 600).status);
            let is_queued = || {
                let (_, guard) = a.opened(id, boot_ns() + DATA_WAIT_NS).unwrap();
                guard.as_ref().is_some_and(|held| held.busy == Busy::Waiting)
            };
            while !is_queued() && !waiter.is_finished() {
                thread::yield_now();
            }
            // the request of the reader may still be under way; then the reader gets the lock
            // without queueing
            assert_eq!(b.unlock(id).status, Status::Success);
            assert!(late.is_reached(|| waiter.is_finished()), "the grant is held up");
            assert_eq!(a.reinit(&ip), Status::Success);
            late.let_go();
            assert_eq!(waiter.join().unwrap(), Status::BadResponse, "it was of the old session");
        });
        assert_eq!(a.unlock(id).status, Status::AlreadyUnlocked);
        lock(&b, id, X);
        assert_eq!(b.unlock(id).status, Status::Success);
        lock(&a, id, S);
        assert_eq!(a.unlock(id).status, Status::Success);
    }
}

/// The client leaves while a reinit is under way, and does not wait for it. It cannot tell the
/// primary that it leaves, because the reinit's connection is not yet the client's: the reinit
/// itself must leave.
#[test]
fn a_reinit_that_comes_after_its_client_has_left_leaves_no_session_behind() {
    let server = fresh_server();
    let ip = own_address().to_string();
    for fabric in FABRICS {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let id = got(&a, "left behind", LockType::Atomic);
        got(&b, "left behind", LockType::Atomic);
        assert_eq!(a.trylock(id, X, 600).status, Status::Success);
        let call = a.lifecycle.read();
        thread::scope(|scope| {
            let reinit = scope.spawn(|| a.reinit(&ip));
            while a.lifecycle.try_read().is_some() && !reinit.is_finished() {
                thread::yield_now(); // until it waits for its turn
            }
            a.gate.store(LEFT, SeqCst); // as if a deinit had waited for the reinit for too long
            drop(call);
            assert_eq!(reinit.join().unwrap(), Status::Invalid);
        });
        drop(a);
        lock(&b, id, X);
        assert_eq!(b.deinit(), Status::Success);
    }
}

/// Repeats a scene until its chain was held up in time. A busy machine may be too slow: then a
/// lease has ended before, or a ticket was given up, which happens after a second.
fn until_held(mut scene: impl FnMut(u32) -> bool) {
    assert!((0..SCENES_MAX).any(&mut scene), "never in time");
}

/// A client extends its shared hold. Before the extension arrives, the lease ends and a writer gets
/// the lock.
fn extend_too_late(fabric: FabricChoice, point: Point, extend: fn(&Instance, LockId) -> Status) {
    let server = fresh_server();
    until_held(|scene| {
        let (a, late) = join_late(&server, fabric, 0);
        let b = join(&server, fabric);
        let name = format!("extended {scene}");
        let id = got(&a, &name, LockType::Fair);
        got(&b, &name, LockType::Fair);
        if a.trylock(id, S, 1).status != Status::Success {
            return false;
        }
        late.hold(point, 0);
        thread::scope(|scope| {
            let extender = scope.spawn(|| extend(&a, id));
            if !late.is_reached(|| extender.is_finished()) {
                return false;
            }
            lock(&b, id, X);
            late.let_go();
            assert_eq!(extender.join().unwrap(), Status::Fail, "{fabric:?}: a writer has it");
            let extended = b.extend(id, X, 0);
            assert_eq!(extended.status, Status::Success, "{fabric:?} {extended:?}");
            true
        })
    });
}

fn extend_asynchronously(instance: &Instance, id: LockId) -> Status {
    let extend = AsyncOp::Extend { mode: S, expire_s: 600 };
    match instance.request_async(id, extend) {
        Status::Success => loop {
            match instance.result_check().status {
                Status::AsyncAgain => thread::yield_now(),
                status => return status,
            }
        },
        status => status,
    }
}

#[test]
fn an_extend_that_was_executed_after_the_lease_is_no_success() {
    for fabric in FABRICS {
        extend_too_late(fabric, Point::Chain, |a, id| a.extend(id, S, 600).status);
    }
}

#[test]
fn an_asynchronous_extend_that_was_executed_after_the_lease_is_no_success() {
    extend_too_late(FabricChoice::Shm, Point::Chain, extend_asynchronously);
    extend_too_late(FabricChoice::Shm, Point::Poll, extend_asynchronously);
    extend_too_late(FabricChoice::Tcp, Point::Poll, extend_asynchronously);
}

#[test]
fn a_batch_of_extends_that_was_executed_after_the_lease_is_no_success() {
    extend_too_late(FabricChoice::Shm, Point::Chain, |a, id| {
        let mut out = [code(Status::Done)];
        assert_eq!(a.batch_extend(&[(id, S, 600)], &mut out), Status::Success);
        out[0].status
    });
}

/// A reader releases its shared hold after the arbiter has ended it. Its second attempt comes so
/// late that another reader has the lock: the release must not end that reader's hold.
#[test]
fn a_release_whose_second_attempt_comes_after_the_lease_takes_nobody_elses_share_off() {
    for fabric in FABRICS {
        let server = fresh_server();
        until_held(|scene| {
            let (a, late) = join_late(&server, fabric, 0);
            let [b, c] = [(); 2].map(|()| join(&server, fabric));
            let name = format!("released {scene}");
            let id = got(&a, &name, LockType::Fair);
            for client in [&b, &c] {
                got(client, &name, LockType::Fair);
            }
            if a.trylock(id, S, 1).status != Status::Success {
                return false;
            }
            lock(&c, id, S);
            // so the word that a has seen is not the latest
            assert_eq!(c.unlock(id).status, Status::Success);
            late.hold(Point::Chain, 1);
            thread::scope(|scope| {
                let leaver = scope.spawn(|| a.unlock(id).status);
                if !late.is_reached(|| leaver.is_finished()) {
                    return false;
                }
                lock(&b, id, X);
                assert_eq!(b.unlock(id).status, Status::Success);
                lock(&c, id, S);
                late.let_go();
                assert_eq!(leaver.join().unwrap(), Status::Fail, "{fabric:?}: it was over");
                let tried = b.trylock(id, X, 600).status;
                assert_ne!(tried, Status::Success, "{fabric:?}: c reads");
                assert_eq!(c.extend(id, S, 0).status, Status::Success);
                assert_eq!(c.unlock(id).status, Status::Success);
                true
            })
        });
    }
}

/// A forked child has a copy of the client's secret. If it could come back as the client, it would
/// end its parent's session and share its parent's holds.
#[test]
fn a_forked_child_does_not_come_back_as_its_parents_client() {
    let server = fresh_server();
    let ip = own_address().to_string();
    for fabric in FABRICS {
        let a = join(&server, fabric);
        let id = got(&a, "parent", LockType::Atomic);
        assert_eq!(a.trylock(id, X, 600).status, Status::Success);
        let fork = || a.process.fetch_xor(1, Ordering::Relaxed);
        fork();
        assert_eq!(a.reinit(&ip), Status::Invalid);
        let soon = deadline_in(Duration::from_secs(5));
        assert_ne!(a.leave_at(&server.local_addr().into(), soon), Status::Success);
        fork();
        assert_eq!(a.heartbeat(60), Status::Success, "its parent's session stands");
        assert_eq!(a.reinit(&ip), Status::Success);
        assert_eq!(a.extend(id, X, 0).status, Status::Success, "and its hold");
        assert_eq!(a.unlock(id).status, Status::Success);
    }
}

/// The time limit of a release must count from the release, not from the operation before it.
#[test]
fn a_release_long_after_the_acquire_waits_for_its_answer_although_others_wait() {
    for fabric in FABRICS {
        let server = fresh_server();
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let id = got(&a, "long held", LockType::Atomic);
        got(&b, "long held", LockType::Atomic);
        assert_eq!(a.trylock(id, X, 600).status, Status::Success);
        let index = a.table.find(id).expect("it was got");
        let knows_of_waiters = || {
            assert_eq!(a.extend(id, X, 0).status, Status::Success);
            let guard = a.table.lock_slot(index).lock_until(|| 0).expect("nobody else");
            let held = guard.as_ref().expect("it was got");
            let now = held.fresh();
            held.entry.first_op(Op::Unlock, &now).is_none()
        };
        thread::scope(|scope| {
            scope.spawn(|| lock(&b, id, X));
            while !knows_of_waiters() {
                thread::sleep(Duration::from_millis(1));
            }
            let mut guard = a.table.lock_slot(index).lock_until(|| 0).expect("nobody else");
            let last_now = &mut guard.as_mut().expect("it was got").last_now;
            last_now.local_ns = last_now.local_ns.saturating_sub(60 * NS);
            drop(guard);
            assert_eq!(a.unlock(id).status, Status::Success, "{fabric:?}");
        });
    }
}

/// A lease longer than a minute takes two chains. Until the second one takes the lock, the claim of
/// the first one keeps other clients out.
#[test]
fn a_free_fair_lock_is_got_for_long_however_late_the_second_chain_comes() {
    const GRACE: Duration = Duration::from_nanos(dlock_core::limits::FAIR_GRACE.ns());
    for fabric in FABRICS {
        let server = fresh_server();
        for mode in [X, S] {
            let (a, slow) = join_late(&server, fabric, 0);
            let name = format!("{mode:?}");
            let (b, id) = (join(&server, fabric), got(&a, &name, LockType::Fair));
            got(&b, &name, LockType::Fair);
            slow.hold(Point::Chain, 1);
            thread::scope(|scope| {
                let call = scope.spawn(|| a.trylock(id, mode, 600).status);
                assert!(slow.is_reached(|| call.is_finished()), "{fabric:?}, {name}");
                thread::sleep(GRACE + GRACE / 4);
                assert_eq!(b.trylock(id, X, 600).status, Status::Again);
                slow.let_go();
                assert_eq!(call.join().unwrap(), Status::Success, "{fabric:?}, {name}");
            });
            assert_eq!(b.unlock(id).status, Status::Success, "its ticket");
            assert_eq!(a.unlock(id).status, Status::Success);
            lock(&b, id, X);
            assert_eq!(b.unlock(id).status, Status::Success);
        }
    }
}

/// The successor grants locks again once this client says that it has made all claims. By then the
/// program must have ended what relies on a lost hold, whichever call returned the loss.
#[test]
fn a_loss_that_a_call_was_told_counts_until_the_successor_goes_on() {
    for (fabric, is_past_horizon) in FABRICS.into_iter().flat_map(|f| [(f, false), (f, true)]) {
        let first = fresh_server();
        let (port, ip) = (first.local_addr().port(), own_address().to_string());
        // the calls after the reinit take less than this, also on a busy machine
        let horizon_s = if is_past_horizon { 5 } else { 600 };
        let config =
            ClientConfig { port, fabric, horizon_s: Some(horizon_s), ..Default::default() };
        let a = Instance::init(&config, &ip).expect("the primary admits a client");
        let locks = ["one", "two"].map(|name| got(&a, name, LockType::Rw));
        for id in locks {
            assert_eq!(a.trylock(id, X, 600).status, Status::Success);
        }
        first.stop();
        while is_past_horizon && a.horizon_ns() > boot_ns() {
            thread::sleep(Duration::from_millis(10));
        }
        let (locks_max, lost) = if is_past_horizon { (2, 2) } else { (1, 1) };
        let config = ServerConfig { port, recovery_clients: 1, locks_max, ..Default::default() };
        let _second = server(config);
        assert_eq!(a.reinit(&ip), Status::Success);
        assert!(!a.has_refused.load(SeqCst), "nothing was claimed yet");
        assert_eq!(a.update_all_locks(), Status::Success);
        let told = locks.map(|id| a.unlock(id).status);
        let is_told = |status: &&Status| matches!(status, Status::Fail | Status::LockNotGet);
        assert_eq!(told.iter().filter(is_told).count(), lost, "{fabric:?}: {told:?}");
        assert!(a.may_have_lost(), "{fabric:?} {is_past_horizon}: a program may rely on it still");
        assert_eq!(a.reinit_done(), Status::Success);
        assert!(!a.may_have_lost(), "the successor has gone on");
    }
}
