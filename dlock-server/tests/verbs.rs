// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients that may have queue pairs, and their ends. Without an RDMA device these tests print
//! so and are skipped; `DLOCK_RXE_REQUIRED=1` makes that a failure.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{attach, eventually, reinit, server, Peer, INIT};
use dlock_core::clock::{Lease, ServerTime};
use dlock_core::ids::ClientId;
use dlock_core::memory::exec::{Executor, Single};
use dlock_core::memory::word_op::{Word, WordAddr, WordOp};
use dlock_core::wire::codec::Frame;
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, Secret, Session, VerbsAttach, VerbsEndpoint,
};
use dlock_core::wire::message::{LockType, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::{ClockEstimate, FabricError, VerbsExecutor, VerbsHost, VerbsOptions};
use dlock_server::{Server, ServerConfig, VerbsUse};

const WAIT: Duration = Duration::from_secs(20);

/// A primary on the device; `None`: there is no device.
fn primary(config: ServerConfig) -> Option<Server> {
    if let Err(error) = VerbsHost::choose(None, &[0; 16]) {
        let required = std::env::var_os("DLOCK_RXE_REQUIRED").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        eprintln!("SKIP: {error}");
        return None;
    }
    Some(server(ServerConfig { verbs: VerbsUse::On, ..config }))
}

fn over_verbs(addr: SocketAddr, session: &Session) -> Result<VerbsExecutor, FabricError> {
    over_verbs_as(addr, &attach(session))
}

fn over_verbs_as(addr: SocketAddr, attach: &Attach) -> Result<VerbsExecutor, FabricError> {
    let clock = ClockEstimate::from_exchange(0, 0, ServerTime(0));
    VerbsExecutor::attach(&VerbsOptions::default(), addr, attach, clock)
}

fn refusal(attached: Result<VerbsExecutor, FabricError>) -> Status {
    match attached {
        Err(FabricError::Refused(status)) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// An attach that names a queue pair, for a client without one.
fn pretended(session: &Session) -> Attach {
    let chains = VerbsEndpoint { qp_num: 17, psn: 1, gid: [0xfe; 16], lid: 0, mtu: 3, reads: 1 };
    let verbs = VerbsAttach { chains, messages: None, ring_slots: 8, message_bytes: 256 };
    Attach { fabric: FabricKind::Verbs, verbs: Some(verbs), ..attach(session) }
}

fn faa(executor: &VerbsExecutor, addr: WordAddr) -> Single {
    executor.execute_one(&WordOp::Faa { addr, add: 1 }, deadline_in(WAIT))
}

fn object(peer: &mut Peer, name: &str) -> WordAddr {
    let name = name.as_bytes().to_vec();
    let create =
        ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(60), init: 0 };
    assert!(matches!(
        peer.call(create),
        ControlReply::Created(_) | ControlReply::Error(Status::ObjectExisted)
    ));
    match peer.call(ControlRequest::ObjectGet { name, lease: Lease::secs(60) }) {
        ControlReply::Object(grant) => WordAddr::new(grant.slot, Word::W0),
        other => panic!("no object: {other:?}"),
    }
}

#[test]
fn a_primary_without_a_device_offers_no_verbs_and_refuses_them() {
    let server = server(ServerConfig { verbs: VerbsUse::Off, ..ServerConfig::default() });
    assert!(!server.offers().has(FabricKind::Verbs));
    let (mut peer, session) = Peer::init(server.local_addr());
    let offers = session.offers.clone();
    assert!(!offers.has(FabricKind::Verbs) && offers.has(FabricKind::Tcp));
    let (_, attached) = Peer::attach(server.local_addr(), pretended(&session));
    assert_eq!((attached.status, attached.verbs), (Status::Error, None));
    assert!(peer.is_alive());
}

#[test]
fn a_host_without_a_device_cannot_serve_over_verbs_alone() {
    if VerbsHost::choose(None, &[0; 16]).is_ok() {
        return eprintln!("SKIP: this host has a device");
    }
    let demanded = ServerConfig { port: 0, verbs: VerbsUse::On, ..ServerConfig::default() };
    let error = Server::start(demanded.clone()).unwrap_err().to_string();
    assert!(error.contains("RDMA"), "{error}");
    let auto = ServerConfig { verbs: VerbsUse::Auto, ..demanded };
    let alone = FabricKind::without_device().fold(auto, ServerConfig::without);
    let error = Server::start(alone).unwrap_err().to_string();
    assert!(error.contains("verbs cannot be used here"), "{error}");
}

#[test]
fn a_primary_on_a_device_offers_verbs_and_tcp_and_no_shared_memory() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let (mut peer, session) = Peer::init(server.local_addr());
    let offers = session.offers.clone();
    assert!(offers.has(FabricKind::Verbs) && offers.has(FabricKind::Tcp));
    assert!(!offers.has(FabricKind::Shm));
    let offers = server.offers();
    assert!(offers.detail(FabricKind::Verbs).is_some() && !offers.has(FabricKind::Shm));
    let executor = over_verbs(server.local_addr(), &session).unwrap();
    let addr = object(&mut peer, "counted");
    assert_eq!(faa(&executor, addr), Single::Done(0));
    assert_eq!(faa(&executor, addr), Single::Done(1));
}

#[test]
fn strangers_get_no_queue_pairs() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let addr = server.local_addr();
    let (mut peer, session) = Peer::init(addr);
    let good = attach(&session);
    let unknown = ClientId::new(session.client.get() ^ 1).unwrap();
    let (wrong, nobody) = (Secret([0; 16]), Attach { client: unknown, ..good });
    assert_eq!(refusal(over_verbs_as(addr, &nobody)), Status::ClientRemoved);
    assert_eq!(refusal(over_verbs_as(addr, &Attach { secret: wrong, ..good })), Status::Error);
    // a client that names a queue pair which it does not have gets an answer, and no more
    let (liar, attached) = Peer::attach(addr, pretended(&session));
    if attached.status == Status::Success {
        assert!(attached.verbs.is_some());
    }
    drop(liar);
    let executor = over_verbs(addr, &session).unwrap();
    let word = object(&mut peer, "untouched");
    assert_eq!(faa(&executor, word), Single::Done(0));
    assert!(peer.is_alive());
}

#[test]
fn nobody_gets_near_the_memory_of_a_recovering_primary() {
    let config = ServerConfig { recovery_clients: 1, ..ServerConfig::default() };
    let Some(server) = primary(config) else { return };
    let addr = server.local_addr();
    let old = common::server(ServerConfig { verbs: VerbsUse::Off, ..ServerConfig::default() });
    let (_, session) = Peer::init(old.local_addr());
    let mut back = Peer::connect(addr);
    let ControlReply::Session(session) = back.call(reinit(&session)) else {
        panic!("not let in again")
    };
    assert!(session.recovering && session.offers.has(FabricKind::Verbs));
    for _ in 0..3 {
        assert_eq!(refusal(over_verbs(addr, &session)), Status::NotReady);
    }
    assert_eq!(back.call(ControlRequest::ReinitDone), ControlReply::Done);
    let executor = over_verbs(addr, &session).unwrap();
    let word = object(&mut back, "recovered");
    assert_eq!(faa(&executor, word), Single::Done(0));
}

#[test]
fn a_second_attach_fences_the_first() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let addr = server.local_addr();
    let (mut peer, session) = Peer::init(addr);
    let word = object(&mut peer, "fenced");
    let first = over_verbs(addr, &session).unwrap();
    assert_eq!(faa(&first, word), Single::Done(0));
    let second = over_verbs(addr, &session).unwrap();
    // the primary has ended the first queue pairs, even if their owner does not know it
    assert!(!matches!(faa(&first, word), Single::Done(_)));
    assert_eq!(faa(&second, word), Single::Done(1));
    drop(first);
    assert_eq!(faa(&second, word), Single::Done(2));
    // a channel over tcp replaces one over queue pairs as well
    let mut tcp = Peer::channel(addr, &session);
    assert!(!matches!(faa(&second, word), Single::Done(_)));
    assert!(tcp.pings());
}

#[test]
fn a_client_that_left_is_fenced_before_its_locks_are_free() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let addr = server.local_addr();
    let (mut peer, session) = Peer::init(addr);
    let (mut other, other_session) = Peer::init(addr);
    let word = object(&mut peer, "left");
    assert_eq!(object(&mut other, "left"), word);
    let executor = over_verbs(addr, &session).unwrap();
    let theirs = over_verbs(addr, &other_session).unwrap();
    assert_eq!(faa(&executor, word), Single::Done(0));
    assert_eq!(peer.call(ControlRequest::Deinit), ControlReply::Done);
    assert!(!matches!(faa(&executor, word), Single::Done(_)));
    assert_eq!(faa(&theirs, word), Single::Done(1), "nothing of it was executed");
}

#[test]
fn a_life_line_that_ends_ends_the_channel_and_one_that_speaks_does_too() {
    let grace = Some(Duration::from_millis(50));
    let config = ServerConfig { absent_grace: grace, ..ServerConfig::default() };
    let Some(server) = primary(config) else { return };
    let addr = server.local_addr();
    let (mut peer, session) = Peer::init(addr);
    // the primary answers as if the queue pair existed
    let (mut line, attached) = Peer::attach(addr, pretended_on(&session));
    assert_eq!(attached.status, Status::Success);
    line.write(b"x");
    assert_eq!(line.receive(), None, "the connection is closed");
    let (line, attached) = Peer::attach(addr, pretended_on(&session));
    assert_eq!(attached.status, Status::Success);
    drop(line);
    assert!(peer.is_alive());
    // a client without any connection is removed
    drop(peer);
    let started = Instant::now();
    eventually("it is removed", || {
        let reply = Peer::connect(addr).call(reinit(&session));
        if matches!(reply, ControlReply::Session(_)) {
            // longer than the grace, and than the time in which the primary reacts to the end
            std::thread::sleep(Duration::from_secs(1));
        }
        reply == ControlReply::Error(Status::ClientRemoved)
    });
    assert!(started.elapsed() < Duration::from_secs(15));
    let ControlReply::Session(_) = Peer::connect(addr).call(INIT) else { panic!("it serves") };
}

/// As [`pretended`], with the device's own address, which can be reached.
fn pretended_on(session: &Session) -> Attach {
    let choice = VerbsHost::choose(None, &[0; 16]).expect("there is a device");
    let mut attach = pretended(session);
    if let Some(verbs) = &mut attach.verbs {
        verbs.chains.gid = choice.gid.gid.0;
        verbs.ring_slots = 32;
        verbs.messages = Some(VerbsEndpoint { qp_num: 18, ..verbs.chains });
    }
    attach
}

#[test]
fn addresses_that_nobody_answers_at_keep_no_other_client_out() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let addr = server.local_addr();
    let (mut deaf, session) = Peer::init(addr);
    let (_innocent, theirs) = Peer::init(addr);
    let lines: Vec<_> = (0..40)
        .map(|n| {
            let mut attach = pretended_on(&session);
            if let Some(VerbsAttach { chains, messages: Some(messages), .. }) = &mut attach.verbs {
                chains.gid[15] = 100 + n; // an address of this network without a host
                messages.gid[15] = 100 + n;
            }
            let mut line = Peer::connect(addr);
            line.send(&Frame::Attach(attach));
            line
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100)); // until the primary has taken them
    let started = Instant::now();
    let executor = over_verbs(addr, &theirs).expect("the other client is let in");
    // each of the forty would take three seconds, with four made at a time
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    drop((executor, lines));
    assert!(deaf.is_alive());
}

#[test]
fn messages_travel_over_queue_pairs_as_over_sockets() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let addr = server.local_addr();
    let (mut peer, session) = Peer::init(addr);
    let executor = over_verbs(addr, &session).unwrap();
    let grant = peer.get("asked for", LockType::Atomic);
    // far more requests than a receive ring has buffers, while the replies are not read
    let requests = (0..500).map(|n| match n % 2 {
        0 => Request::Ping,
        _ => Request::Resolve { handle: grant.handle },
    });
    let sent: Vec<_> = requests.map(|request| executor.send(&request)).collect();
    for seq in sent {
        let seq = seq.expect("a request is taken as long as the primary reads");
        let reply = executor.reply(seq, deadline_in(WAIT));
        assert!(matches!(reply, Ok(Some(_))), "request {}: {reply:?}", seq.0);
    }
}
