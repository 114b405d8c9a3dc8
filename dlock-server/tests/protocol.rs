// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers of a primary on control connections, to clients and to strangers.

mod common;

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant, UNIX_EPOCH};

use common::{attach, reinit, server, Peer, INIT};
use dlock_core::clock::{Lease, ServerTime};
use dlock_core::ids::{ClientId, Handle, LockId, ObjectId, Seq};
use dlock_core::limits::FRAME_LEN_MAX;
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::about::About;
use dlock_core::wire::codec::{self, Frame, HEADER_LEN, MAGIC};
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, LockDesc, Secret, Session, VERSION,
};
use dlock_core::wire::message::{LockType, Reply, Request};
use dlock_core::wire::status::Status;
use dlock_server::{Server, ServerConfig, VerbsUse};

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(frame, &mut bytes);
    bytes
}

#[test]
fn a_client_is_let_in_asks_and_leaves() {
    let server = server(ServerConfig { verbs: VerbsUse::Off, ..ServerConfig::default() });
    let (mut peer, session) = Peer::init(server.local_addr());
    assert_eq!((session.version, session.recovering), (VERSION, false));
    assert_eq!(session.epoch, server.epoch());
    let offers = &session.offers;
    assert!(offers.has(FabricKind::Tcp) && offers.place(FabricKind::Shm).is_some());
    let wall_s = u64::from(session.anchor_s) + session.now.0 / 1_000_000_000;
    let now_s = UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(wall_s.abs_diff(now_s) < 5, "{wall_s} {now_s}");
    assert!(peer.is_alive());
    let lock = peer.get("a lock", LockType::Atomic);
    assert!(lock.lock.0 > 0 && !lock.already);
    assert_eq!(
        peer.call(ControlRequest::ReleaseLocks(vec![lock.lock, LockId(1)])),
        ControlReply::Statuses(vec![Status::Success, Status::Error])
    );
    assert_eq!(peer.call(ControlRequest::Deinit), ControlReply::Done);
    assert_eq!(peer.receive(), None);
    // The client is removed for good: not even its secret brings it back.
    let again = Peer::connect(server.local_addr()).call(reinit(&session));
    assert_eq!(again, ControlReply::Error(Status::ClientRemoved));
}

#[test]
fn versions_are_negotiated_and_refused_at_once() {
    let server = server(ServerConfig::default());
    let init = |version_min, version_max| {
        let request = ControlRequest::Init {
            version_min,
            version_max,
            tp_mode: 0,
            horizon_s: 0,
            about: About::NOTHING,
        };
        Peer::connect(server.local_addr()).call(request)
    };
    for (min, max) in [(1, 1), (0, 1), (0, 255), (1, 2)] {
        match init(min, max) {
            ControlReply::Session(session) => assert_eq!(session.version, VERSION),
            other => panic!("{min} to {max}: {other:?}"),
        }
    }
    for (min, max) in [(2, 9), (0, 0), (1, 0)] {
        assert_eq!(init(min, max), ControlReply::Error(Status::VersionMismatch));
    }
    // Clients with another framing.
    for version in [0, 2] {
        let mut bytes = bytes_of(&Frame::Control(Seq(77), INIT));
        bytes[2] = version;
        let mut stranger = Peer::connect(server.local_addr());
        stranger.write(&bytes);
        stranger.is_refused(77, Status::VersionMismatch);
        let mut bytes = bytes_of(&Frame::Control(Seq(78), ControlRequest::Heartbeat));
        bytes[2] = version;
        let mut stranger = Peer::connect(server.local_addr());
        stranger.write(&bytes);
        stranger.receive().expect("a status");
        assert_eq!(stranger.receive(), None);
    }
}

#[test]
fn another_tp_mode_is_refused() {
    let server = server(ServerConfig { tp_mode: 1, ..ServerConfig::default() });
    let mut peer = Peer::connect(server.local_addr());
    assert_eq!(peer.call(INIT), ControlReply::Error(Status::Error));
    assert_eq!(peer.receive(), None);
}

#[test]
fn bytes_that_are_no_frame_get_a_status_and_a_closed_connection() {
    let server = server(ServerConfig::default());
    let (mut witness, session) = Peer::init(server.local_addr());
    let good = bytes_of(&Frame::Control(Seq(5), INIT));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let long = |len: usize| {
        let mut bytes = [MAGIC[0], MAGIC[1], 1, 1, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&(len as u32).to_le_bytes());
        bytes.to_vec()
    };
    let trailing = {
        let mut bytes = bytes_of(&Frame::Control(Seq(5), ControlRequest::Heartbeat));
        bytes[4] += 1;
        bytes.push(0);
        bytes
    };
    let entry = LedgerEntry::new();
    for (bytes, seq, what) in [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), 0, "another protocol"),
        (vec![0xff; 4_096], 0, "garbage"),
        (with(3, 0x40), 0, "an unknown kind"),
        (with(HEADER_LEN + 8, 0xee), 5, "an unknown request"),
        (trailing, 5, "a frame with bytes after its end"),
        (long(FRAME_LEN_MAX), 0, "an oversized frame"),
        (long(usize::MAX), 0, "an absurd frame"),
        (long(60_000), 0, "a long frame of a stranger"),
        (bytes_of(&Frame::ControlReply(Seq(5), ControlReply::Done)), 0, "the wrong direction"),
        (bytes_of(&Frame::Note(Handle(0), entry)), 0, "a command without a channel"),
    ] {
        let mut peer = Peer::connect(server.local_addr());
        peer.write(&bytes);
        let refusal = Frame::ControlReply(Seq(seq), ControlReply::Error(Status::Error));
        assert_eq!(peer.receive(), Some(refusal), "{what}");
        assert_eq!(peer.receive(), None, "{what}");
        // The same bytes from a client that is let in.
        let (mut client, _) = Peer::init(server.local_addr());
        client.write(&bytes);
        if what != "a long frame of a stranger" {
            assert!(matches!(client.receive(), Some(Frame::ControlReply(..))), "{what}");
            assert_eq!(client.receive(), None, "{what}");
        }
        assert!(witness.is_alive(), "{what}");
    }
    assert!(server.stats()[42] >= 10, "bad requests are counted");
    drop(session);
}

#[test]
fn a_truncated_frame_gets_a_status_and_a_closed_connection() {
    let server = server(ServerConfig::default());
    let good = bytes_of(&Frame::Control(Seq(5), INIT));
    for len in 1..good.len() {
        let mut peer = Peer::connect(server.local_addr());
        peer.write(&good[..len]);
        peer.stream.shutdown(Shutdown::Write).unwrap();
        peer.is_refused(0, Status::Error);
    }
    Peer::init(server.local_addr());
}

#[test]
fn a_client_that_vanishes_within_a_frame_harms_nobody() {
    let server = server(ServerConfig::default());
    let (mut witness, _) = Peer::init(server.local_addr());
    let request = ControlRequest::GetLocks(vec![common::desc("x", LockType::Rw)]);
    let bytes = bytes_of(&Frame::Control(Seq(2), request));
    let sessions: Vec<_> = (1..bytes.len())
        .map(|len| {
            let (mut peer, session) = Peer::init(server.local_addr());
            peer.write(&bytes[..len]);
            session
        })
        .collect();
    assert!(witness.is_alive());
    // Each client may come back.
    for session in sessions {
        let mut back = Peer::connect(server.local_addr());
        assert!(matches!(back.call(reinit(&session)), ControlReply::Session(_)));
    }
}

#[test]
fn an_unbound_connection_can_ask_for_nothing_and_touches_nobody() {
    let server = server(ServerConfig::default());
    let (mut victim, _) = Peer::init(server.local_addr());
    let lock = victim.get("mine", LockType::Atomic);
    let name = b"object".to_vec();
    for request in [
        ControlRequest::Deinit,
        ControlRequest::ReinitDone,
        ControlRequest::GetLocks(vec![common::desc("mine", LockType::Atomic)]),
        ControlRequest::ReleaseLocks(vec![lock.lock]),
        ControlRequest::UpdateLocks(Vec::new()),
        ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(1), init: 0 },
        ControlRequest::ObjectGet { name, lease: Lease::secs(1) },
        ControlRequest::ObjectRelease(ObjectId(1)),
        ControlRequest::ObjectDestroy(ObjectId(1)),
    ] {
        let mut peer = Peer::connect(server.local_addr());
        peer.send(&Frame::Control(Seq(3), request));
        peer.is_refused(3, Status::Error);
    }
    assert_eq!(server.stats()[41], 9);
    // a stranger may ask once whether the primary serves
    let mut peer = Peer::connect(server.local_addr());
    let alive = peer.call(ControlRequest::Heartbeat);
    let ControlReply::Alive { recovering: false, until: ServerTime(0), .. } = alive else {
        panic!("{alive:?}");
    };
    assert_eq!(peer.receive(), None, "the connection is closed");
    assert!(victim.is_alive());
    assert!(victim.get("mine", LockType::Atomic).already);
}

#[test]
fn a_primary_that_recovers_says_so_to_who_asks() {
    let server = server(ServerConfig { recovery_clients: 1, ..Default::default() });
    let alive = Peer::connect(server.local_addr()).call(ControlRequest::Heartbeat);
    assert!(matches!(alive, ControlReply::Alive { recovering: true, .. }), "{alive:?}");
}

#[test]
fn a_bound_connection_stays_with_its_client() {
    let server = server(ServerConfig::default());
    let (_other, other) = Peer::init(server.local_addr());
    for request in [INIT, reinit(&other)] {
        let (mut peer, session) = Peer::init(server.local_addr());
        peer.send(&Frame::Control(Seq(9), request));
        peer.is_refused(9, Status::Error);
        let mut back = Peer::connect(server.local_addr());
        assert!(matches!(back.call(reinit(&session)), ControlReply::Session(_)));
    }
}

#[test]
fn nobody_is_reinitialised_without_its_secret() {
    let server = server(ServerConfig::default());
    let (mut victim, session) = Peer::init(server.local_addr());
    let mut channel = Peer::channel(server.local_addr(), &session);
    let mut forged = session.clone();
    for byte in 0..16 {
        forged.secret = Secret(session.secret.0);
        forged.secret.0[byte] ^= 1;
        let mut thief = Peer::connect(server.local_addr());
        assert_eq!(thief.call(reinit(&forged)), ControlReply::Error(Status::Error));
        assert_eq!(thief.receive(), None);
    }
    let unknown = ClientId::new(session.client.get() ^ 1).unwrap();
    let mut thief = Peer::connect(server.local_addr());
    let reply = thief.call(reinit(&Session { client: unknown, ..session }));
    assert_eq!(reply, ControlReply::Error(Status::ClientRemoved));
    assert!(victim.is_alive() && channel.pings());
}

#[test]
fn a_reinit_ends_the_old_connections_when_a_request_shows_that_it_was_answered() {
    let server = server(ServerConfig::default());
    let (mut old, session) = Peer::init(server.local_addr());
    let lock = old.get("kept", LockType::Atomic);
    let mut channel = Peer::channel(server.local_addr(), &session);
    let mut new = Peer::connect(server.local_addr());
    let again = match new.call(reinit(&session)) {
        ControlReply::Session(again) => again,
        other => panic!("not let in again: {other:?}"),
    };
    assert!(again.client == session.client && again.secret != session.secret);
    assert!(channel.pings() && old.is_alive());
    let kept = new.get("kept", LockType::Atomic);
    assert_eq!(channel.receive(), None);
    assert_eq!(old.receive(), None);
    assert!(kept.already && kept.lock == lock.lock);
    assert_eq!(new.call(ControlRequest::ReinitDone), ControlReply::Done);
    assert_eq!(new.call(ControlRequest::ReinitDone), ControlReply::Error(Status::Error));
    assert!(Peer::channel(server.local_addr(), &again).pings());
}

#[test]
fn nobody_attaches_without_its_secret() {
    let server = server(ServerConfig::default());
    let (_peer, session) = Peer::init(server.local_addr());
    let good = attach(&session);
    let mut wrong = session.secret;
    wrong.0[15] ^= 0x80;
    let unknown = ClientId::new(session.client.get() ^ 2).unwrap();
    for (attach, status) in [
        (Attach { secret: wrong, ..good }, Status::Error),
        (Attach { client: unknown, ..good }, Status::ClientRemoved),
        (Attach { fabric: FabricKind::Shm, ..good }, Status::Error),
    ] {
        let (mut channel, attached) = Peer::attach(server.local_addr(), attach);
        assert_eq!((attached.status, attached.slots), (status, 0));
        assert_eq!(channel.receive(), None);
    }
    assert!(Peer::channel(server.local_addr(), &session).pings());
}

#[test]
fn a_fabric_that_is_off_is_not_offered_and_refused() {
    let server =
        server(ServerConfig { tcp: false, verbs: VerbsUse::Off, ..ServerConfig::default() });
    let (_peer, session) = Peer::init(server.local_addr());
    assert!(!session.offers.has(FabricKind::Tcp) && session.offers.has(FabricKind::Shm));
    let (_, attached) = Peer::attach(server.local_addr(), attach(&session));
    assert_eq!(attached.status, Status::Error);
    let server = common::server(ServerConfig { shm: false, ..ServerConfig::default() });
    let (_peer, session) = Peer::init(server.local_addr());
    assert!(session.offers.has(FabricKind::Tcp) && !session.offers.has(FabricKind::Shm));
}

#[test]
fn a_primary_with_one_fabric_alone_starts_and_offers_that() {
    for alone in FabricKind::without_device() {
        let others = FabricKind::ALL.into_iter().filter(|&kind| kind != alone);
        let config = others.fold(ServerConfig::default(), ServerConfig::without);
        let server = server(config);
        let offered = FabricKind::ALL.into_iter().filter(|&kind| server.offers().has(kind));
        assert_eq!(offered.collect::<Vec<_>>(), [alone]);
    }
}

#[test]
fn a_recovering_primary_lets_nobody_new_in_and_serves_after_the_last_has_come_back() {
    let server = server(ServerConfig { recovery_clients: 2, ..ServerConfig::default() });
    let addr = server.local_addr();
    assert_eq!(Peer::try_init(addr).err(), Some(Status::NotReady));
    let old = common::server(ServerConfig::default());
    let mut back: Vec<Peer> = (0..2)
        .map(|_| {
            let (_, session) = Peer::init(old.local_addr());
            let mut peer = Peer::connect(addr);
            match peer.call(reinit(&session)) {
                ControlReply::Session(session) => assert!(session.recovering),
                other => panic!("not let in again: {other:?}"),
            }
            peer
        })
        .collect();
    let alive = back[0].call(ControlRequest::Heartbeat);
    assert!(matches!(alive, ControlReply::Alive { recovering: true, .. }), "{alive:?}");
    assert_eq!(back[0].call(ControlRequest::ReinitDone), ControlReply::Done);
    assert_eq!(Peer::try_init(addr).err(), Some(Status::NotReady));
    assert_eq!(back[1].call(ControlRequest::ReinitDone), ControlReply::Done);
    assert!(back.iter_mut().all(Peer::is_alive));
    Peer::init(addr);
}

#[test]
fn silent_and_slow_peers_cost_nobody_anything_and_are_closed_after_ten_seconds() {
    let server = server(ServerConfig::default());
    let started = Instant::now();
    let mut silent: Vec<Peer> = (0..100).map(|_| Peer::connect(server.local_addr())).collect();
    let half = bytes_of(&Frame::Control(Seq(1), INIT));
    for (n, peer) in silent.iter_mut().enumerate().skip(50) {
        peer.write(&half[..1 + n % (half.len() - 1)]);
    }
    let (mut client, session) = Peer::init(server.local_addr());
    let mut channel = Peer::channel(server.local_addr(), &session);
    for _ in 0..100 {
        assert!(client.is_alive() && channel.pings());
    }
    assert!(started.elapsed() < Duration::from_secs(9), "others had to wait");
    for peer in &mut silent {
        assert_eq!(peer.receive(), None);
    }
    assert!(started.elapsed() >= Duration::from_secs(9), "they had their time");
    assert!(client.is_alive() && channel.pings());
}

#[test]
fn requests_of_one_connection_are_answered_in_order() {
    let server = server(ServerConfig::default());
    let (mut peer, _) = Peer::init(server.local_addr());
    let mut bytes = Vec::new();
    for n in 0..500 {
        let name = format!("lock {n}");
        let request = ControlRequest::GetLocks(vec![common::desc(&name, LockType::Fair)]);
        codec::encode(&Frame::Control(Seq(1_000 + n), request), &mut bytes);
    }
    let mut writer = peer.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&bytes));
    for n in 0..500 {
        match peer.receive() {
            Some(Frame::ControlReply(seq, ControlReply::Locks(locks))) => {
                assert_eq!((seq, locks.len()), (Seq(1_000 + n), 1));
            }
            other => panic!("no locks: {other:?}"),
        }
    }
    writing.join().unwrap().unwrap();
}

/// A client may send 10,000 requests at once, and 5,000 a second after that: further ones wait, and
/// other clients do not.
#[test]
fn who_asks_without_end_waits_and_the_others_do_not() {
    const AT_ONCE: u64 = 10_000;
    const MORE: u64 = 8_000;
    let server = server(ServerConfig::default());
    let (mut peer, _) = Peer::init(server.local_addr());
    let (mut other, _) = Peer::init(server.local_addr());
    let mut bytes = Vec::new();
    for n in 0..AT_ONCE + MORE {
        codec::encode(&Frame::Control(Seq(1_000 + n), ControlRequest::Heartbeat), &mut bytes);
    }
    let since = Instant::now();
    let mut writer = peer.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&bytes));
    for n in 0..AT_ONCE + MORE {
        let answer = peer.receive();
        assert!(matches!(answer, Some(Frame::ControlReply(seq, _)) if seq == Seq(1_000 + n)));
        if n == AT_ONCE + MORE / 2 {
            let asked = Instant::now();
            assert!(other.is_alive() && asked.elapsed() < Duration::from_secs(5));
        }
    }
    let took = since.elapsed();
    assert!(took >= Duration::from_millis(1_500), "{took:?}");
    writing.join().unwrap().unwrap();
    assert!(peer.is_alive());
}

/// Requests a second session for a client that has one.
fn prepared(server: &Server, session: &Session) -> (Peer, Session) {
    let mut peer = Peer::connect(server.local_addr());
    match peer.call(reinit(session)) {
        ControlReply::Session(prepared) => (peer, prepared),
        other => panic!("not let in again: {other:?}"),
    }
}

#[test]
fn a_prepared_session_is_served_once_its_client_has_shown_that_it_has_the_answers() {
    let server = server(ServerConfig::default());
    let (mut old, session) = Peer::init(server.local_addr());
    let mut channel = Peer::channel(server.local_addr(), &session);
    let (mut new, prepared) = prepared(&server, &session);
    assert_ne!(prepared.secret, session.secret);
    let (mut next, attached) = Peer::attach(server.local_addr(), attach(&prepared));
    assert_eq!(attached.status, Status::Success);
    next.send(&Frame::Request(Seq(1), Request::Ping));
    assert!(channel.pings() && old.is_alive(), "what the new one sends ends nothing");
    assert!(new.is_alive());
    assert_eq!((channel.receive(), old.receive()), (None, None));
    assert!(matches!(next.receive(), Some(Frame::Reply(Seq(1), Reply::Pong { .. }))));
    let (_, stale) = Peer::attach(server.local_addr(), attach(&session));
    assert_eq!(stale.status, Status::Error, "the old secret attaches nothing any more");
}

#[test]
fn a_reinit_that_its_client_gives_up_leaves_the_old_session_alone() {
    let server = server(ServerConfig::default());
    let (mut old, session) = Peer::init(server.local_addr());
    let mut channel = Peer::channel(server.local_addr(), &session);
    for attaches in [false, true] {
        let (new, prepared) = prepared(&server, &session);
        let next = attaches.then(|| Peer::attach(server.local_addr(), attach(&prepared)).0);
        drop(new);
        // the primary notices the end, and closes the connection of the new session
        if let Some(mut next) = next {
            assert_eq!(next.receive(), None);
        }
        assert!(channel.pings() && old.is_alive());
    }
    assert!(Peer::channel(server.local_addr(), &session).pings());
}

/// A successor waits for clients that have locks. So a primary records that a client has one before
/// it answers, and an answer without a lock is not recorded.
#[test]
fn who_hears_of_a_lock_is_a_client_whom_a_successor_waits_for() {
    let folder = std::env::temp_dir().join(format!("dlock-has-locks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state_file = Some(folder.join("state"));
    let server = server(ServerConfig { state_file, ..ServerConfig::default() });
    let kept = || std::fs::read_to_string(folder.join("state.clients")).unwrap();
    for n in 0..50 {
        let (mut peer, session) = Peer::init(server.local_addr());
        let line = format!("locks {}\n", session.client);
        let name = vec![b'x'; 1 + n];
        let desc =
            |lock_type| LockDesc { name: name.clone(), lock_type, lease_s: 0, tokens: false };
        assert_eq!(peer.call(ControlRequest::GetLocks(vec![])), ControlReply::Locks(vec![]));
        assert!(!kept().contains(&line), "{n}: {}", kept());
        match peer.call(ControlRequest::GetLocks(vec![desc(LockType::Fair)])) {
            ControlReply::Locks(locks) => assert!(locks[0].is_ok(), "{locks:?}"),
            other => panic!("{other:?}"),
        }
        assert!(kept().contains(&line), "{n}: {}", kept());
    }
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}
