// SPDX-License-Identifier: MIT OR Apache-2.0
//! Heavy clients: all others are served, the order of each is kept, and all they leave is undone.

mod common;

use dlock_core::clock::Lease;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{reinit, server, Peer};
use dlock_core::ids::Seq;
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
use dlock_core::memory::words::AtomicWord;
use dlock_core::wire::codec::Frame;
use dlock_core::wire::control::{ControlReply, ControlRequest, LockGrant, Session};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;
use dlock_server::{Server, ServerConfig};

/// A lease that outlasts every test.
const LEASE_S: u32 = 1_000;
/// The number of frames that a flooding client has under way.
const DEPTH: usize = 16;

fn get_all(control: &mut Peer, prefix: &str, count: usize) -> Vec<LockGrant> {
    let names: Vec<String> = (0..count).map(|i| format!("{prefix} {i}")).collect();
    let mut grants = Vec::new();
    for batch in names.chunks(BATCH_MAX) {
        let descs = batch.iter().map(|name| common::desc(name, LockType::Atomic)).collect();
        match control.call(ControlRequest::GetLocks(descs)) {
            ControlReply::Locks(got) => grants.extend(got.into_iter().map(Result::unwrap)),
            other => panic!("{other:?}"),
        }
    }
    grants
}

fn acquire(grant: &LockGrant, session: &Session) -> Chain {
    let swap = AtomicWord::new()
        .with_client(session.client.get())
        .with_timeout(session.now.deadline(Lease::secs(LEASE_S)))
        .into_bits();
    Chain::one(WordOp::Cas { addr: WordAddr::new(grant.slot, Word::W0), expect: 0, swap })
}

fn config() -> ServerConfig {
    ServerConfig { clients_max: 20, locks_max: 3_000, objects_max: 100, ..ServerConfig::default() }
}

/// Sends batches and pings in a pipeline until `stop` is set; every answer comes, in order.
fn flood(server: &Server, name: &str, stop: &AtomicBool) -> u64 {
    let (mut control, session) = Peer::init(server.local_addr());
    let grants = get_all(&mut control, name, BATCH_MAX);
    let mut channel = Peer::channel(server.local_addr(), &session);
    let chains: Vec<Chain> = grants.iter().map(|grant| acquire(grant, &session)).collect();
    let (mut sent, mut received) = (0, 0);
    let mut under_way = VecDeque::new();
    while !stop.load(Ordering::Relaxed) || !under_way.is_empty() {
        while under_way.len() < DEPTH && !stop.load(Ordering::Relaxed) {
            sent += 1;
            let is_ping = sent % 5 == 0;
            under_way.push_back((sent, is_ping));
            channel.send(&match is_ping {
                true => Frame::Request(Seq(sent), Request::Ping),
                false => Frame::Batch(Seq(sent), chains.clone()),
            });
        }
        let Some((seq, is_ping)) = under_way.pop_front() else { break };
        match channel.receive() {
            Some(Frame::Outcomes(Seq(n), outcomes)) => {
                assert!(!is_ping && n == seq && outcomes.len() == BATCH_MAX, "{n} for {seq}");
                let done = |outcome: &Outcome| matches!(outcome, Outcome::Done(_));
                assert!(outcomes.iter().all(done), "{outcomes:?}");
            }
            Some(Frame::Reply(Seq(n), Reply::Pong { .. })) => assert!(is_ping && n == seq),
            other => panic!("{other:?} for {seq}"),
        }
        received += 1;
    }
    assert_eq!(sent, received);
    received
}

#[test]
fn clients_that_flood_keep_their_order_and_starve_nobody() {
    let server = server(config());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let floods: Vec<_> = ["a", "b", "c"]
            .map(|name| scope.spawn(|| flood(&server, name, &stop)))
            .into_iter()
            .collect();
        let (mut control, session) = Peer::init(server.local_addr());
        let mut channel = Peer::channel(server.local_addr(), &session);
        for _ in 0..100 {
            let lock = control.get("innocent", LockType::Atomic);
            let chain = acquire(&lock, &session);
            assert!(matches!(channel.execute(chain), Outcome::Done(_)));
            assert!(control.is_alive() && channel.pings());
            let released = control.call(ControlRequest::ReleaseLocks(vec![lock.lock]));
            assert_eq!(released, ControlReply::Statuses(vec![Status::Success]));
            let (_, stranger) = Peer::init(server.local_addr());
            let mut control = Peer::connect(server.local_addr());
            let back = control.call(reinit(&stranger));
            assert!(matches!(back, ControlReply::Session(_)), "{back:?}");
            assert_eq!(control.call(ControlRequest::Deinit), ControlReply::Done);
        }
        stop.store(true, Ordering::Relaxed);
        for flood in floods {
            assert!(flood.join().unwrap() > 0);
        }
    });
}

#[test]
fn who_leaves_with_many_locks_is_unknown_at_once_and_its_waiters_are_granted() {
    let server = server(config());
    let (mut leaver, session) = Peer::init(server.local_addr());
    let grants = get_all(&mut leaver, "l", 2_000);
    let mut channel = Peer::channel(server.local_addr(), &session);
    for grant in &grants {
        assert!(matches!(channel.execute(acquire(grant, &session)), Outcome::Done(_)));
    }
    let (mut control, waiter) = Peer::init(server.local_addr());
    let mut waits = Peer::channel(server.local_addr(), &waiter);
    for (n, i) in [0, 1_000, 1_999].into_iter().enumerate() {
        let lock = control.get(&format!("l {i}"), LockType::Atomic);
        let wait = Request::Wait {
            handle: lock.handle,
            mode: Mode::Exclusive,
            lease: Lease::secs(LEASE_S),
            wait: WaitNumber(1),
            ticket: None,
        };
        waits.send(&Frame::Request(Seq(n as u64 + 1), wait));
    }
    waits.send(&Frame::Request(Seq(10), Request::Ping));
    assert!(matches!(waits.receive(), Some(Frame::Reply(Seq(10), Reply::Pong { .. }))));

    assert_eq!(leaver.call(ControlRequest::Deinit), ControlReply::Done);
    let mut again = Peer::connect(server.local_addr());
    assert_eq!(again.call(reinit(&session)), ControlReply::Error(Status::ClientRemoved));
    for n in 1..=3 {
        match waits.receive() {
            Some(Frame::Reply(seq, Reply::Granted { .. })) => assert_eq!(seq, Seq(n)),
            other => panic!("{other:?}"),
        }
    }
    // all of its locks are free, and all but three are gone
    let all = get_all(&mut control, "other", 3_000 - 3);
    assert_eq!(all.len(), 3_000 - 3);
}

#[test]
fn a_client_waits_for_the_place_of_one_that_leaves() {
    let server = server(ServerConfig { clients_max: 1, ..config() });
    for _ in 0..5 {
        let (mut leaver, _) = Peer::init(server.local_addr());
        get_all(&mut leaver, "l", 2_000);
        let late = Peer::try_init(server.local_addr());
        assert!(matches!(late, Err(Status::ServerNoResource)), "there is no room");
        assert_eq!(leaver.call(ControlRequest::Deinit), ControlReply::Done);
        let (mut next, _) = Peer::init(server.local_addr());
        assert_eq!(next.call(ControlRequest::Deinit), ControlReply::Done);
    }
}
