// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sealed path as seen from the network: the clients that get a queue pair, and the end of a
//! client with a wrong record. Without an RDMA device these tests print so and are skipped;
//! `DLOCK_RXE_REQUIRED=1` makes that a failure.

#[path = "common/certs.rs"]
mod certs;
mod common;

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use certs::Ca;
use common::{attach, INIT, PATIENCE};
use dlock_core::counters::Counter;
use dlock_core::ids::Seq;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{
    Attach, Attached, ControlReply, ControlRequest, FabricKind, Session, VerbsAttach,
    VerbsEndpoint, VerbsRegion,
};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::tls::sealing::{Opener, Sealer};
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::Tls;
use dlock_fabric::verbs::{
    choose, devices, Completion, Context, Cq, Event, MessageSpec, Messages, Pd, Qp, QpSpec,
};
use dlock_fabric::VerbsHost;
use dlock_server::{Server, ServerConfig, VerbsUse};

const SLOTS: u16 = 16;
const BYTES: u32 = 1_024;

/// A connection behind TLS.
struct Line {
    stream: TcpStream,
    tls: TlsSession,
    received: FrameBuffer,
}

impl Line {
    fn connect(server: &Server, tls: &Tls) -> Self {
        let addr = server.local_addr();
        let stream = TcpStream::connect(addr).unwrap();
        let mut session = TlsSession::connect(tls, addr.ip()).unwrap();
        session.shake_until(stream.as_fd(), deadline_in(PATIENCE)).unwrap();
        Self { stream, tls: session, received: FrameBuffer::new() }
    }

    fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        codec::encode(frame, &mut bytes);
        self.tls.write_until(self.stream.as_fd(), &bytes, deadline_in(PATIENCE)).unwrap();
    }

    /// The next frame; `None`: the primary has closed the connection.
    fn receive(&mut self) -> Option<Frame> {
        loop {
            if let Some((kind, payload)) = self.received.next().unwrap() {
                return Some(codec::decode(kind, payload).unwrap());
            }
            let (space, deadline) = (self.received.space(), deadline_in(PATIENCE));
            match self.tls.read_until(self.stream.as_fd(), space, deadline) {
                Ok(0) => return None,
                Ok(len) => self.received.filled(len),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn init(server: &Server, tls: &Tls) -> (Self, Session) {
        let mut line = Self::connect(server, tls);
        line.send(&Frame::Control(Seq(1), INIT));
        match line.receive() {
            Some(Frame::ControlReply(_, ControlReply::Session(session))) => (line, session),
            other => panic!("not let in: {other:?}"),
        }
    }

    fn is_alive(&mut self) -> bool {
        self.send(&Frame::Control(Seq(2), ControlRequest::Heartbeat));
        matches!(self.receive(), Some(Frame::ControlReply(_, ControlReply::Alive { .. })))
    }
}

/// A queue pair that is not yet connected.
fn queue_pair() -> (Arc<Qp>, Arc<Cq>) {
    let choice = choose(&devices().unwrap(), None, &[0; 16]).unwrap();
    let context = Context::open(&choice).unwrap();
    let cq = Cq::new(&context, 128, None).unwrap();
    let spec = QpSpec {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        send_slots: 32,
        recv_slots: SLOTS.into(),
        inline_bytes: 0,
        serves: false,
        psn: 77,
    };
    (Qp::new(&Pd::new(&context).unwrap(), spec).unwrap(), cq)
}

/// A client that seals its records itself, and may do so wrongly.
struct Rogue {
    liveness: Line,
    messages: Messages,
    sealer: Sealer,
    opener: Opener,
    cq: Arc<Cq>,
    seq: u64,
}

impl Rogue {
    fn attach(server: &Server, tls: &Tls, session: &Session) -> Self {
        let (qp, cq) = queue_pair();
        let mut liveness = Line::connect(server, tls);
        let (attached, qp) = ask(&mut liveness, session, qp);
        let verbs = attached.verbs.expect("a queue pair");
        assert_eq!((verbs.slots, verbs.ledger), (VerbsRegion::EMPTY, VerbsRegion::EMPTY));
        let bytes = verbs.message_bytes.min(BYTES);
        let spec = MessageSpec { slots: SLOTS, peer_slots: verbs.ring_slots, bytes };
        let messages = Messages::new(&qp, spec).unwrap();
        qp.connect(&verbs.chains.into()).unwrap();
        let secrets = liveness.tls.seal_secrets(session.client).unwrap();
        let (sealer, opener) = secrets.of_client();
        Self { liveness, messages, sealer, opener, cq, seq: 0 }
    }

    fn ping(&mut self) -> Vec<u8> {
        let (mut frame, mut record) = (Vec::new(), Vec::new());
        self.seq += 1;
        codec::encode(&Frame::Request(Seq(self.seq), Request::Ping), &mut frame);
        self.sealer.seal(&frame, &mut record).unwrap();
        record
    }

    /// Sends a record and takes an answer; `None`: the primary has cut this client off.
    fn exchange(&mut self, record: &[u8]) -> Option<Frame> {
        self.messages.send(record).ok()?;
        self.answer()
    }

    fn answer(&mut self) -> Option<Frame> {
        let deadline = Instant::now() + PATIENCE;
        let mut stream = FrameBuffer::new();
        while Instant::now() < deadline {
            let mut some = [Completion::default(); 1];
            if self.cq.poll(&mut some).unwrap() == 0 {
                let mut byte = [0];
                match self.liveness.tls.read_until(self.liveness.stream.as_fd(), &mut byte, 0) {
                    Err(error) if error.kind() == std::io::ErrorKind::TimedOut => continue,
                    _ => return None,
                }
            }
            let mut message = Vec::new();
            if self.messages.take(&some[0], &mut message).ok()? != Event::Message {
                continue;
            }
            let plaintext = self.opener.open(&mut message).unwrap();
            stream.space()[..plaintext.len()].copy_from_slice(plaintext);
            stream.filled(plaintext.len());
            if let Some((kind, payload)) = stream.next().unwrap() {
                return Some(codec::decode(kind, payload).unwrap());
            }
        }
        panic!("neither an answer nor an end");
    }
}

fn ask(line: &mut Line, session: &Session, qp: Arc<Qp>) -> (Attached, Arc<Qp>) {
    let verbs = VerbsAttach {
        chains: qp.endpoint().into(),
        messages: None,
        ring_slots: SLOTS,
        message_bytes: BYTES,
    };
    let attach = Attach { fabric: FabricKind::Sealed, verbs: Some(verbs), ..attach(session) };
    line.send(&Frame::Attach(attach));
    match line.receive() {
        Some(Frame::Attached(attached)) => (attached, qp),
        other => panic!("no answer to an attach: {other:?}"),
    }
}

/// A primary with TLS on the device; `None`: there is no device.
fn primary(ca: &Ca) -> Option<Server> {
    if let Err(error) = VerbsHost::choose(None, &[0; 16]) {
        let required = std::env::var_os("DLOCK_RXE_REQUIRED").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        eprintln!("SKIP: {error}");
        return None;
    }
    let (tls, verbs) = (Some(ca.tls("primary")), VerbsUse::Sealed);
    Some(common::server(ServerConfig { tls, verbs, ..ServerConfig::default() }))
}

#[test]
fn a_primary_without_tls_does_not_start_with_sealed_verbs() {
    let config = ServerConfig { port: 0, verbs: VerbsUse::Sealed, ..ServerConfig::default() };
    let error = Server::start(config).unwrap_err().to_string();
    assert!(error.contains("without TLS"), "{error}");
}

#[test]
fn a_record_that_is_not_the_one_due_ends_the_channel_and_nothing_else() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca) else { return };
    let tls = ca.tls("rogue");
    type Spoil = fn(&mut Rogue) -> Vec<Vec<u8>>;
    let spoilers: [(&str, Spoil); 8] = [
        ("a bit of the ciphertext", |rogue| {
            let mut record = rogue.ping();
            record[20] ^= 1;
            vec![record]
        }),
        ("a bit of the header", |rogue| {
            let mut record = rogue.ping();
            record[9] ^= 0x80;
            vec![record]
        }),
        ("a replay", |rogue| {
            let record = rogue.ping();
            vec![record.clone(), record]
        }),
        ("two in the wrong order", |rogue| {
            let (first, second) = (rogue.ping(), rogue.ping());
            vec![second, first]
        }),
        ("one left out", |rogue| {
            rogue.ping();
            vec![rogue.ping()]
        }),
        ("one cut short", |rogue| {
            let record = rogue.ping();
            vec![record[..record.len() - 1].to_vec()]
        }),
        ("nothing at all", |_| vec![Vec::new()]),
        ("a frame in the clear", |_| {
            let mut frame = Vec::new();
            codec::encode(&Frame::Request(Seq(1), Request::Ping), &mut frame);
            vec![frame]
        }),
    ];
    for (what, spoil) in spoilers {
        let (mut control, session) = Line::init(&server, &tls);
        let mut rogue = Rogue::attach(&server, &tls, &session);
        let good = rogue.ping();
        let answered = rogue.exchange(&good);
        assert!(matches!(answered, Some(Frame::Reply(Seq(1), Reply::Pong { .. }))), "{what}");
        let before = server.stats()[Counter::BadRequest as usize];
        let mut records = spoil(&mut rogue);
        let last = records.pop().unwrap();
        for record in records {
            let _ = rogue.exchange(&record); // the first of two may be right
        }
        assert_eq!(rogue.exchange(&last), None, "{what}");
        assert!(server.stats()[Counter::BadRequest as usize] > before, "{what}");
        assert!(control.is_alive(), "its control connection, and others', go on: {what}");
        // the client comes back with other keys
        let mut again = Rogue::attach(&server, &tls, &session);
        let good = again.ping();
        assert!(again.exchange(&good).is_some(), "{what}");
    }
}

/// A record sealed with the keys of another session of the same client is refused.
#[test]
fn a_record_of_an_earlier_session_of_the_same_client_is_refused() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca) else { return };
    let tls = ca.tls("rogue");
    let (_control, session) = Line::init(&server, &tls);
    let mut first = Rogue::attach(&server, &tls, &session);
    let record = first.ping();
    let mut second = Rogue::attach(&server, &tls, &session);
    assert_eq!(second.exchange(&record), None);
}

#[test]
fn strangers_and_those_with_another_certificate_get_no_queue_pair() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca) else { return };
    let (_control, session) = Line::init(&server, &ca.tls("a"));
    let mut thief = Line::connect(&server, &ca.tls("thief"));
    let (attached, _) = ask(&mut thief, &session, queue_pair().0);
    assert_eq!((attached.status, attached.verbs), (Status::Error, None));
    let mut own = Line::connect(&server, &ca.tls("a"));
    assert_eq!(ask(&mut own, &session, queue_pair().0).0.status, Status::Success);
}

/// Lists are loaded while an attach waits for its queue pair, behind one whose peer never answers.
#[test]
fn who_is_revoked_while_its_queue_pair_is_made_gets_no_channel() {
    let ca = Ca::new("ours");
    if primary(&ca).is_none() {
        return;
    }
    let tls = Some(ca.tls_with_list("primary"));
    let config = ServerConfig { tls, verbs: VerbsUse::Sealed, ..ServerConfig::default() };
    let server = common::server(config);
    let old = ca.tls("client");
    let revoked = ca.last_serial();
    let renewed = ca.tls("client");
    let (_control, session) = Line::init(&server, &renewed);
    let asks = |tls: &Tls, change: fn(&mut VerbsEndpoint)| {
        let (qp, _cq) = queue_pair();
        let mut chains = qp.endpoint().into();
        change(&mut chains);
        let verbs = VerbsAttach { chains, messages: None, ring_slots: SLOTS, message_bytes: BYTES };
        let mut line = Line::connect(&server, tls);
        line.send(&Frame::Attach(Attach {
            fabric: FabricKind::Sealed,
            verbs: Some(verbs),
            ..attach(&session)
        }));
        std::thread::sleep(Duration::from_millis(300));
        line
    };
    let _deaf = asks(&renewed, |end| end.gid[15] = 100); // an address without a host
    let mut late = asks(&old, |_| {});
    ca.revokes(&[revoked]);
    server.reload_tls();
    match late.receive() {
        Some(Frame::Attached(attached)) if attached.status == Status::Success => {
            assert_eq!(late.receive(), None, "it is let in, and ended at once");
        }
        Some(Frame::Attached(_)) | None => {}
        other => panic!("{other:?}"),
    }
}

/// The device of the client still answers, so only the TLS connection shows that the client is
/// gone.
#[test]
fn the_end_of_the_tls_connection_ends_the_channel() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca) else { return };
    let tls = ca.tls("rogue");
    let (mut control, session) = Line::init(&server, &tls);
    let mut rogue = Rogue::attach(&server, &tls, &session);
    let good = rogue.ping();
    assert!(rogue.exchange(&good).is_some());
    rogue.liveness.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let record = rogue.ping();
        if rogue.exchange(&record).is_none() {
            break;
        }
        assert!(Instant::now() < deadline, "it is served on");
    }
    assert!(control.is_alive(), "its control connection goes on");
}

#[test]
fn records_without_room_and_a_second_queue_pair_are_refused() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca) else { return };
    let tls = ca.tls("rogue");
    let (mut control, session) = Line::init(&server, &tls);
    let cases = [(0, false), (31, false), (32, false), (BYTES, true), (BYTES, false)];
    for (message_bytes, second) in cases {
        let (qp, _cq) = queue_pair();
        let chains = qp.endpoint().into();
        let messages = second.then_some(chains);
        let verbs = VerbsAttach { chains, messages, ring_slots: SLOTS, message_bytes };
        let attach = Attach { fabric: FabricKind::Sealed, verbs: Some(verbs), ..attach(&session) };
        let mut line = Line::connect(&server, &tls);
        line.send(&Frame::Attach(attach));
        let answer = line.receive();
        let is_in = matches!(answer, Some(Frame::Attached(a)) if a.status == Status::Success);
        assert_eq!(is_in, message_bytes == BYTES && !second, "{message_bytes} bytes, {second}");
        assert!(control.is_alive());
    }
}
