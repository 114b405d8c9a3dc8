// SPDX-License-Identifier: MIT OR Apache-2.0
//! Command channels: chains and messages, acts that a client is not permitted, and the fate of
//! holds.

mod common;

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use common::{attach, eventually, reinit, server, Peer, PATIENCE};
use dlock_core::clock::{Lease, NS};
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, RwWord, TakenWord, TurnWord};
use dlock_core::wire::about::About;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{ControlReply, ControlRequest, LockGrant, VERSION};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;
use dlock_server::{Orphans, Server, ServerConfig};

/// A lease that outlasts every test.
const LEASE_S: u32 = 1_000;

/// A client with its command channel and the lock `l`.
struct Client {
    control: Peer,
    channel: Peer,
    session: dlock_core::wire::control::Session,
    lock: LockGrant,
}

impl Client {
    fn new(server: &Server) -> Self {
        let (mut control, session) = Peer::init(server.local_addr());
        let lock = control.get("l", LockType::Atomic);
        let channel = Peer::channel(server.local_addr(), &session);
        Self { control, channel, session, lock }
    }

    fn id(&self) -> ClientId {
        self.session.client
    }

    fn word(&self) -> WordAddr {
        WordAddr::new(self.lock.slot, Word::W0)
    }

    fn held(&self) -> u64 {
        let deadline = self.session.now.deadline(Lease::secs(LEASE_S));
        AtomicWord::new().with_client(self.id().get()).with_timeout(deadline).into_bits()
    }

    fn acquire(&mut self) -> Outcome {
        let (addr, swap) = (self.word(), self.held());
        self.channel.execute(Chain::one(WordOp::Cas { addr, expect: 0, swap }))
    }

    fn holds(&mut self) -> bool {
        let (addr, held) = (self.word(), self.held());
        match self.channel.execute(Chain::one(WordOp::Read { addr })) {
            Outcome::Done(values) => values[0] & !(1 << 63) == held,
            other => panic!("not read: {other:?}"),
        }
    }

    fn send_wait(&mut self) {
        let wait = Request::Wait {
            handle: self.lock.handle,
            mode: Mode::Exclusive,
            lease: Lease::secs(LEASE_S),
            wait: WaitNumber(1),
            ticket: None,
        };
        self.channel.send(&Frame::Request(Seq(1_000), wait));
        assert!(self.channel.pings_with(1_001), "the wait is known to the primary");
    }

    fn is_granted(&mut self) {
        match self.channel.receive() {
            Some(Frame::Reply(Seq(1_000), Reply::Granted { .. })) => {}
            other => panic!("not granted: {other:?}"),
        }
    }
}

impl Peer {
    fn pings_with(&mut self, seq: u64) -> bool {
        self.send(&Frame::Request(Seq(seq), Request::Ping));
        matches!(self.receive(), Some(Frame::Reply(got, Reply::Pong { .. })) if got == Seq(seq))
    }
}

fn quick() -> ServerConfig {
    ServerConfig { absent_grace: Some(Duration::from_millis(30)), ..ServerConfig::default() }
}

#[test]
fn chains_take_effect_in_order_and_one_client_excludes_the_other() {
    let server = server(ServerConfig::default());
    let (mut a, mut b) = (Client::new(&server), Client::new(&server));
    assert!(matches!(a.acquire(), Outcome::Done(values) if values[0] == 0));
    let held = a.held();
    assert!(matches!(b.acquire(), Outcome::Done(values) if values[0] == held));
    assert!(a.holds());
    let read = Chain::one(WordOp::Read { addr: a.word() });
    a.channel.send(&Frame::Batch(Seq(50), vec![read; 31]));
    match a.channel.receive() {
        Some(Frame::Outcomes(Seq(50), outcomes)) => assert_eq!(outcomes.len(), 31),
        other => panic!("no outcomes: {other:?}"),
    }
}

#[test]
fn words_a_client_has_not_got_are_refused_and_untouched() {
    let server = server(ServerConfig::default());
    let (mut owner, mut thief) = (Client::new(&server), Peer::init(server.local_addr()));
    owner.acquire();
    let mut channel = Peer::channel(server.local_addr(), &thief.1);
    let (word, held) = (owner.word(), owner.held());
    for word_op in [
        WordOp::Cas { addr: word, expect: held, swap: 0 },
        WordOp::Faa { addr: word, add: 1 },
        WordOp::Read { addr: word },
        WordOp::WriteLedger { handle: owner.lock.handle, value: 0 },
        WordOp::Read { addr: WordAddr::new(Slot(u32::MAX / 4), Word::Gen) },
        WordOp::WriteLedger { handle: Handle(u32::MAX), value: 1 },
    ] {
        let outcome = channel.execute(Chain::one(word_op));
        assert_eq!(outcome, Outcome::Refused(Status::LockNotGet), "{word_op:?}");
    }
    // The thief has got the lock, but another client holds it.
    thief.0.get("l", LockType::Atomic);
    let steal = Chain::one(WordOp::Cas { addr: word, expect: held, swap: 0 });
    assert_eq!(channel.execute(steal), Outcome::Refused(Status::Invalid));
    assert!(owner.holds());
}

#[test]
fn a_client_takes_off_its_own_share_and_ends_its_own_ticket_alone() {
    let server = server(ServerConfig::default());
    let (mut owner, mut thief) = (Client::new(&server), Client::new(&server));
    let refused = Outcome::Refused(Status::Invalid);
    let faa = |lock: &LockGrant, add| {
        Chain::one(WordOp::Faa { addr: WordAddr::new(lock.slot, Word::W0), add })
    };
    let shares = owner.control.get("shares", LockType::Rw);
    thief.control.get("shares", LockType::Rw);
    assert_eq!(thief.channel.execute(faa(&shares, u64::MAX)), refused, "of a free lock");
    assert!(matches!(owner.channel.execute(faa(&shares, 1)), Outcome::Done(_)));
    assert_eq!(thief.channel.execute(faa(&shares, u64::MAX)), refused);
    assert!(matches!(owner.channel.execute(faa(&shares, u64::MAX)), Outcome::Done(v) if v[0] == 1));

    let tickets = owner.control.get("tickets", LockType::Fair);
    thief.control.get("tickets", LockType::Fair);
    let take = faa(&tickets, TakenWord::TAKE_EXCLUSIVE);
    let [taken, first] = [TakenWord::START.into_bits(), TurnWord::START.into_bits()];
    assert!(matches!(owner.channel.execute(take), Outcome::Done(v) if v[0] == taken));
    let done = Chain::one(WordOp::Cas {
        addr: WordAddr::new(tickets.slot, Word::W1),
        expect: first,
        swap: TurnWord::START.with_nx(1).into_bits(),
    });
    assert_eq!(thief.channel.execute(done), refused);
    assert!(matches!(owner.channel.execute(done), Outcome::Done(v) if v[0] == first));
}

#[test]
fn rubbish_ends_the_channel_and_nothing_else() {
    let server = server(ServerConfig::default());
    let mut client = Client::new(&server);
    client.acquire();
    let control = Frame::Control(Seq(1), ControlRequest::Deinit);
    let mut frames = vec![vec![0xff; 100], b"DL\x01\x03\xff\xff\xff\xff".to_vec()];
    for frame in [control, Frame::Attach(attach(&client.session)), Frame::Outcomes(Seq(1), vec![])]
    {
        let mut bytes = Vec::new();
        codec::encode(&frame, &mut bytes);
        frames.push(bytes);
    }
    for bytes in frames {
        client.channel.write(&bytes);
        assert_eq!(client.channel.receive(), None, "{bytes:?}");
        assert!(client.control.is_alive());
        client.channel = Peer::channel(server.local_addr(), &client.session);
        assert!(client.holds());
    }
}

#[test]
fn what_was_sent_before_rubbish_is_executed_and_answered() {
    let server = server(ServerConfig::default());
    let mut client = Client::new(&server);
    let mut bytes = Vec::new();
    codec::encode(&Frame::Request(Seq(1), Request::Ping), &mut bytes);
    bytes.extend_from_slice(b"rubbish!");
    client.channel.write(&bytes);
    assert!(matches!(client.channel.receive(), Some(Frame::Reply(Seq(1), _))));
    assert_eq!(client.channel.receive(), None);
}

#[test]
fn a_client_that_leaves_frees_what_it_holds_for_who_waits() {
    let server = server(ServerConfig::default());
    let (mut holder, mut waiter) = (Client::new(&server), Client::new(&server));
    holder.acquire();
    waiter.send_wait();
    assert_eq!(holder.control.call(ControlRequest::Deinit), ControlReply::Done);
    waiter.is_granted();
    assert_eq!(holder.channel.receive(), None);
    assert_eq!(holder.control.receive(), None);
}

#[test]
fn a_client_that_stays_away_frees_what_it_holds_after_the_grace() {
    let server = server(ServerConfig { orphans: Orphans::Grace, ..quick() });
    let (mut holder, mut waiter) = (Client::new(&server), Client::new(&server));
    holder.acquire();
    waiter.send_wait();
    let session = holder.session.clone();
    drop(holder.control);
    waiter.is_granted();
    // The holder's channel was closed before, and the primary no longer knows the client.
    assert_eq!(holder.channel.receive(), None);
    let back = Peer::connect(server.local_addr()).call(reinit(&session));
    assert_eq!(back, ControlReply::Error(Status::ClientRemoved));
    assert_eq!(server.stats()[31], 1);
}

#[test]
fn a_client_that_stays_away_past_the_grace_finds_its_lease_again_among_strangers() {
    let server = server(ServerConfig { clients_max: 2, ..quick() });
    let mut client = Client::new(&server);
    client.acquire();
    drop(client.control);
    // The channel is closed after the grace. Meanwhile strangers try to get the client's place.
    assert_eq!(client.channel.receive(), None);
    for _ in 0..99 {
        let (mut stranger, _) = Peer::init(server.local_addr());
        let crowd = Peer::try_init(server.local_addr()).map(drop);
        assert_eq!(crowd, Err(Status::ServerNoResource));
        assert_eq!(stranger.call(ControlRequest::Deinit), ControlReply::Done);
        assert_eq!(stranger.receive(), None);
    }
    client.control = Peer::connect(server.local_addr());
    let back = client.control.call(reinit(&client.session));
    assert!(matches!(back, ControlReply::Session(_)), "{back:?}");
    client.channel = Peer::channel(server.local_addr(), &client.session);
    assert!(client.holds());
}

#[test]
fn a_client_that_is_silent_past_its_horizon_loses_what_has_no_lease_and_is_told() {
    let server = server(ServerConfig::default());
    let (version_min, version_max, tp_mode, horizon_s) = (1, VERSION, 0, 1);
    let init = ControlRequest::Init {
        version_min,
        version_max,
        tp_mode,
        horizon_s,
        about: About::NOTHING,
    };
    let mut control = Peer::connect(server.local_addr());
    let ControlReply::Session(session) = control.call(init) else { panic!("not let in") };
    let terms = session.terms;
    assert_eq!((terms.horizon_s, terms.lapses), (1, 0));
    assert!(terms.until > session.now && terms.until <= session.now.plus_ns(NS));
    let lock = control.get("rw", LockType::Rw);
    let (mut channel, attached) = Peer::attach(server.local_addr(), attach(&session));
    assert!(attached.until >= terms.until);
    let owner = RwWord::new().with_client(session.client.get()).into_bits();
    let addr = WordAddr::new(lock.slot, Word::W0);
    let taken = channel.execute(Chain::one(WordOp::Cas { addr, expect: 0, swap: owner }));
    assert!(matches!(taken, Outcome::Done(values) if values[0] == 0));
    // Both connections stay open, like those of a dead client whose child has inherited them.
    assert_eq!(channel.receive(), None, "the primary has counted the silence itself");
    assert_eq!(control.receive(), None);
    let (client, secret) = (session.client, session.secret);
    let reinit = ControlRequest::Reinit {
        version_min,
        version_max,
        tp_mode,
        horizon_s,
        client,
        secret,
        about: About::NOTHING,
    };
    // The lapse ended the hold. The client had nothing with a lease, so it was removed altogether.
    eventually("it is removed", || {
        let back = Peer::connect(server.local_addr()).call(reinit.clone());
        back == ControlReply::Error(Status::ClientRemoved)
    });
    let mut other = Client::new(&server);
    let free = other.control.get("rw", LockType::Rw);
    assert_eq!(free.word, 0);
}

#[test]
fn a_client_that_comes_back_in_time_holds_on() {
    let server = server(ServerConfig::default());
    let mut client = Client::new(&server);
    client.acquire();
    drop(client.control);
    client.control = Peer::connect(server.local_addr());
    let back = client.control.call(reinit(&client.session));
    assert!(matches!(back, ControlReply::Session(_)));
    let old =
        std::mem::replace(&mut client.channel, Peer::channel(server.local_addr(), &client.session));
    assert_eq!({ old }.receive(), None, "it has ended before the new one is answered");
    assert!(client.holds());
}

#[test]
fn a_late_reply_to_a_former_channel_is_no_reply_on_the_new_one() {
    let server = server(ServerConfig::default());
    let (mut holder, mut waiter) = (Client::new(&server), Client::new(&server));
    holder.acquire();
    waiter.send_wait();
    waiter.channel = Peer::channel(server.local_addr(), &waiter.session);
    assert_eq!(holder.control.call(ControlRequest::Deinit), ControlReply::Done);
    assert!(holder.control.receive().is_none());
    // The channel gets only the answers to its own requests.
    for seq in 990..1_010 {
        assert!(waiter.channel.pings_with(seq));
    }
}

#[test]
fn the_last_channel_attached_is_the_channel() {
    let server = server(ServerConfig::default());
    let mut client = Client::new(&server);
    let mut second = Peer::channel(server.local_addr(), &client.session);
    assert_eq!(client.channel.receive(), None);
    assert!(second.pings());
}

#[test]
fn a_client_that_reads_no_replies_is_disconnected_and_holds_nobody_up() {
    let server = server(ServerConfig::default());
    let (mut greedy, mut other) = (Client::new(&server), Client::new(&server));
    // The client's side has little room for replies.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.connect(&server.local_addr().into()).unwrap();
    greedy.channel = Peer::over(socket.into());
    greedy.channel.send(&Frame::Attach(attach(&greedy.session)));
    assert!(matches!(greedy.channel.receive(), Some(Frame::Attached(_))));
    greedy.channel.stream.set_nonblocking(true).unwrap();

    // Megabytes of replies are needed, so their requests must cost the primary little: chains on an
    // emulated device would take minutes. The primary does not answer a number twice.
    let (mut bytes, mut at, mut seq) = (Vec::new(), 0, 0);
    let started = Instant::now();
    // Sends until the primary takes no more, and then until it closes the connection.
    let error = loop {
        let asked = Instant::now();
        assert!(other.channel.pings());
        assert!(asked.elapsed() < Duration::from_secs(9), "the other had to wait");
        if at == bytes.len() {
            bytes.clear();
            at = 0;
            for _ in 0..1_000 {
                seq += 1;
                codec::encode(&Frame::Request(Seq(seq), Request::Ping), &mut bytes);
            }
        }
        match greedy.channel.stream.write(&bytes[at..]) {
            Ok(len) => at += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => break error,
        }
        assert!(started.elapsed() < Duration::from_secs(60), "never disconnected");
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    assert!(started.elapsed() >= Duration::from_secs(9), "it had its time");
    assert!(greedy.control.is_alive() && other.channel.pings());
}

#[test]
fn a_flood_of_one_client_does_not_starve_the_others() {
    let server = server(ServerConfig::default());
    let (mut flood, mut other) = (Client::new(&server), Client::new(&server));
    let mut bytes = Vec::new();
    for _ in 0..1_000 {
        codec::encode(&Frame::Note(flood.lock.handle, LedgerEntry::new()), &mut bytes);
    }
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let flooding = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            flood.channel.write(&bytes);
        }
        // on a slow device all that was sent takes its time
        flood.channel.stream.set_read_timeout(Some(Duration::from_secs(240))).unwrap();
        flood.channel.pings()
    });
    for _ in 0..200 {
        let asked = Instant::now();
        assert!(other.channel.pings() && other.control.is_alive());
        assert!(asked.elapsed() < Duration::from_secs(10), "the other had to wait");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(flooding.join().unwrap());
}

/// A client that sends faster than its rate is slowed down, and no other client is.
#[test]
fn frames_beyond_the_rate_of_a_client_wait_and_those_of_others_do_not() {
    let config = ServerConfig { frames_per_second_max: 100, ..ServerConfig::default() };
    let server = server(config);
    let addr = server.local_addr();
    let (_control, session) = Peer::init(addr);
    let mut fast = Peer::channel(addr, &session);
    let (_other_control, other_session) = Peer::init(addr);
    let mut other = Peer::channel(addr, &other_session);
    let began = std::time::Instant::now();
    let pings = 250;
    for seq in 1..=pings {
        fast.send(&Frame::Request(Seq(seq), Request::Ping));
    }
    assert!((0..50).all(|_| other.pings()));
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_millis(900), "the others wait, too: {took:?}");
    for seq in 1..=pings {
        assert!(matches!(fast.receive(), Some(Frame::Reply(got, _)) if got == Seq(seq)));
    }
    let took = began.elapsed();
    assert!(took > std::time::Duration::from_millis(1_200), "{pings} in {took:?}");
}

/// A client that is always over its rate is slowed down to that rate, and no further.
#[test]
fn who_is_always_over_its_rate_goes_on_at_it() {
    let config = ServerConfig { frames_per_second_max: 10_000, ..ServerConfig::default() };
    let server = server(config);
    let addr = server.local_addr();
    let (_control, session) = Peer::init(addr);
    let mut fast = Peer::channel(addr, &session);
    let (_other_control, other_session) = Peer::init(addr);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let others = std::thread::spawn(move || {
        let mut other = Peer::channel(addr, &other_session);
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            assert!(other.pings());
            std::thread::sleep(Duration::from_micros(250));
        }
    });
    let (began, mut seq) = (Instant::now(), 0);
    while seq < 20_000 {
        assert!(began.elapsed() < 2 * PATIENCE, "{seq} frames");
        let mut bytes = Vec::new();
        for _ in 0..65 {
            seq += 1;
            codec::encode(&Frame::Request(Seq(seq), Request::Ping), &mut bytes);
        }
        fast.write(&bytes);
        for n in 0..65 {
            let got = fast.receive();
            assert!(matches!(got, Some(Frame::Reply(got, _)) if got == Seq(seq - 64 + n)));
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    others.join().unwrap();
    let rate = seq as f64 / began.elapsed().as_secs_f64();
    assert!(rate < 12_000.0, "{rate} frames a second");
}
