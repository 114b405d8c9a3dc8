// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS on the port: peers that get in, peers that do not, and the cost of the latter.

#[path = "common/certs.rs"]
mod certs;
mod common;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use certs::Ca;
use common::{attach, eventually, reinit, server, INIT, PATIENCE};
use dlock_core::counters::Counter;
use dlock_core::ids::Seq;
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::wire::codec::{self, Frame, HEADER_LEN};
use dlock_core::wire::control::{ControlReply, ControlRequest, Session};
use dlock_core::wire::message::{LockType, Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::os::threads;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::tls::session::{Shake, TlsSession};
use dlock_fabric::tls::Tls;
use dlock_server::{Server, ServerConfig};
use socket2::SockRef;

/// A raw client behind TLS.
struct Sealed {
    stream: TcpStream,
    tls: TlsSession,
    seq: u64,
    received: FrameBuffer,
}

impl Sealed {
    fn try_connect(addr: SocketAddr, tls: &Tls) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let mut session = TlsSession::connect(tls, addr.ip()).unwrap();
        session.shake_until(stream.as_fd(), deadline_in(PATIENCE))?;
        Ok(Self { stream, tls: session, seq: 0, received: FrameBuffer::new() })
    }

    fn connect(addr: SocketAddr, tls: &Tls) -> Self {
        Self::try_connect(addr, tls).expect("the primary lets it in")
    }

    fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        codec::encode(frame, &mut bytes);
        let deadline = deadline_in(PATIENCE);
        self.tls.write_until(self.stream.as_fd(), &bytes, deadline).expect("the primary reads");
    }

    /// The next frame.
    fn receive(&mut self) -> io::Result<Frame> {
        loop {
            if let Some((kind, payload)) = self.received.next().unwrap() {
                return Ok(codec::decode(kind, payload).expect("the primary sends valid frames"));
            }
            let deadline = deadline_in(PATIENCE);
            match self.tls.read_until(self.stream.as_fd(), self.received.space(), deadline)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => self.received.filled(len),
            }
        }
    }

    fn call(&mut self, request: ControlRequest) -> ControlReply {
        self.seq += 1;
        self.send(&Frame::Control(Seq(self.seq), request));
        match self.receive() {
            Ok(Frame::ControlReply(_, reply)) => reply,
            other => panic!("no control reply: {other:?}"),
        }
    }

    fn init(addr: SocketAddr, tls: &Tls) -> (Self, Session) {
        let mut peer = Self::connect(addr, tls);
        match peer.call(INIT) {
            ControlReply::Session(session) => (peer, session),
            other => panic!("not let in: {other:?}"),
        }
    }

    fn attach(addr: SocketAddr, tls: &Tls, session: &Session) -> (Self, Status) {
        let mut peer = Self::connect(addr, tls);
        peer.send(&Frame::Attach(attach(session)));
        match peer.receive() {
            Ok(Frame::Attached(attached)) => (peer, attached.status),
            other => panic!("no answer to Attach: {other:?}"),
        }
    }

    fn pings(&mut self) -> bool {
        self.seq += 1;
        self.send(&Frame::Request(Seq(self.seq), Request::Ping));
        matches!(self.receive(), Ok(Frame::Reply(_, Reply::Pong { .. })))
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.call(ControlRequest::Heartbeat), ControlReply::Alive { .. })
    }
}

fn secured(ca: &Ca) -> Server {
    server(ServerConfig { tls: Some(ca.tls("primary")), ..ServerConfig::default() })
}

fn refused(server: &Server) -> u64 {
    server.stats()[Counter::BadRequest as usize]
}

/// The answer to a peer that has sent these bytes.
fn answer_to(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer); // a reset is an end, too
    answer
}

#[test]
fn who_has_no_certificate_of_the_ca_gets_no_frame_and_is_counted() {
    let (ca, other) = (Ca::new("ours"), Ca::new("theirs"));
    let server = secured(&ca);
    let addr = server.local_addr();
    // a peer without TLS
    let mut bytes = Vec::new();
    codec::encode(&Frame::Control(Seq(1), INIT), &mut bytes);
    let answer = answer_to(addr, &bytes);
    assert!(codec::header(answer.first_chunk::<HEADER_LEN>().unwrap_or(&[0; HEADER_LEN])).is_err());
    eventually("the peer without TLS is counted", || refused(&server) == 1);
    // no bytes, and half a record
    assert_eq!(answer_to(addr, b""), b"");
    assert_eq!(answer_to(addr, &[0x16, 3, 1, 1]), b"");
    eventually("they are counted", || refused(&server) == 3);
    // a client of another CA that trusts this primary is refused
    let mut files = other.issue("stranger");
    files.ca = ca.folder().join("ca.pem");
    let mut stranger = Sealed::connect(addr, &certs::load(files));
    stranger.send(&Frame::Control(Seq(1), INIT));
    let error = stranger.receive().unwrap_err();
    assert!(error.to_string().contains("UnknownCA"), "{error}");
    eventually("the stranger is counted", || refused(&server) == 4);
    // a client that does not trust the primary
    let error = Sealed::try_connect(addr, &other.tls("distrustful")).map(drop).unwrap_err();
    assert!(error.to_string().contains("add the peer's CA"), "{error}");
    eventually("the distrustful one is counted", || refused(&server) == 5);
    let (mut good, _) = Sealed::init(addr, &ca.tls("good"));
    assert!(good.is_alive());
    assert_eq!(refused(&server), 5);
}

/// OpenSSL's own client, where it is installed.
#[test]
fn tls_1_2_is_refused_and_openssl_gets_in_with_1_3() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let files = ca.issue("openssl");
    let connect = |version: &str| {
        let mut command = Command::new("openssl");
        command.args(["s_client", version, "-connect", &server.local_addr().to_string()]);
        command.arg("-CAfile").arg(&files.ca).arg("-cert").arg(&files.cert);
        command.arg("-key").arg(&files.key).arg("-verify_return_error");
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().ok()?;
        let (out, err) = (output.stdout, output.stderr);
        Some(String::from_utf8_lossy(&[out, err].concat()).into_owned())
    };
    let Some(old) = connect("-tls1_2") else {
        return eprintln!("skipped: there is no openssl here");
    };
    assert!(old.contains("alert protocol version"), "{old}");
    eventually("it is counted", || refused(&server) == 1);
    let new = connect("-tls1_3").unwrap();
    assert!(new.contains("TLS_AES_256_GCM_SHA384"), "{new}");
    assert!(new.contains("Verify return code: 0 (ok)"), "{new}");
    assert_eq!(refused(&server), 1, "it shook hands");
}

#[test]
fn a_thousand_connections_without_a_handshake_disturb_nobody_and_end() {
    threads::raise_file_limit().unwrap();
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let addr = server.local_addr();
    let (tls, began) = (ca.tls("client"), Instant::now());
    let mut silent: Vec<TcpStream> = (0..1_000)
        .map(|n| {
            let mut stream = TcpStream::connect(addr).unwrap();
            if n % 2 == 0 {
                stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).unwrap(); // a hello begins
            }
            stream
        })
        .collect();
    let asked = Instant::now();
    let (mut control, session) = Sealed::init(addr, &tls);
    let (mut channel, status) = Sealed::attach(addr, &tls, &session);
    assert_eq!(status, Status::Success);
    assert!(control.is_alive() && channel.pings());
    let took = asked.elapsed();
    assert!(began.elapsed() > Duration::from_secs(9) || took < Duration::from_secs(5), "{took:?}");
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "nothing is said to it");
    }
    assert!(began.elapsed() < 2 * PATIENCE, "they are closed after ten seconds");
    assert!(control.is_alive() && channel.pings());
}

/// `HANDSHAKES_MAX` of the primary, and `HANDSHAKES_PER_ADDRESS_MAX`.
const HANDSHAKES_MAX: usize = 1_024;
const HANDSHAKES_AT_ONCE: usize = 6_000;

/// Whether the primary has closed the connection; it sends no bytes before a hello.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    !matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn of_more_handshakes_than_there_may_be_the_oldest_make_room() {
    threads::raise_file_limit().unwrap();
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let began = Instant::now();
    let shaking: Vec<TcpStream> = (0..HANDSHAKES_MAX + 8)
        .map(|_| {
            let mut stream = TcpStream::connect(server.local_addr()).unwrap();
            stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).unwrap(); // a hello begins
            stream
        })
        .collect();
    let is_slow = began.elapsed() > Duration::from_secs(1);
    eventually("the oldest are closed", || shaking[..8].iter().all(is_closed));
    let others = shaking[8..].iter().filter(|stream| is_closed(stream)).count();
    // all of them end after ten seconds, so the check says nothing on a slow machine
    assert!(
        is_slow || (began.elapsed() < Duration::from_secs(9) && others == 0),
        "{others} others"
    );
}

#[test]
fn handshakes_of_an_address_beyond_its_rate_are_refused_unheard() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let addr = server.local_addr();
    let tls = ca.tls("client");
    let began = Instant::now();
    let knock = |times| {
        for _ in 0..times {
            drop(TcpStream::connect(addr).unwrap());
        }
    };
    knock(HANDSHAKES_AT_ONCE);
    // meanwhile the address may make five hundred more a second
    while Sealed::try_connect(addr, &tls).is_ok() {
        knock(500);
        assert!(began.elapsed() < Duration::from_secs(60), "never refused");
    }
    eventually("it is let in again", || Sealed::try_connect(addr, &tls).is_ok());
}

#[test]
fn who_was_revoked_between_its_handshake_and_its_first_frame_is_not_heard() {
    let ca = Ca::new("ours");
    let tls = Some(ca.tls_with_list("primary"));
    let server = server(ServerConfig { tls, ..ServerConfig::default() });
    let addr = server.local_addr();
    let (other, one) = (ca.tls("other"), ca.tls("one"));
    let revoked = ca.last_serial();
    let [mut revoked_peer, mut peer] = [&one, &other].map(|tls| Sealed::connect(addr, tls));
    ca.revokes(&[revoked]);
    server.reload_tls();
    assert!(matches!(peer.call(INIT), ControlReply::Session(_)), "the other is heard");
    revoked_peer.send(&Frame::Control(Seq(1), INIT));
    assert!(revoked_peer.receive().is_err());
}

/// A client may have another certificate by now than the one with which it attached a channel.
#[test]
fn a_revocation_is_seen_of_a_channel_whose_client_has_another_certificate_by_now() {
    let ca = Ca::new("ours");
    let tls = Some(ca.tls_with_list("primary"));
    let server = server(ServerConfig { tls, ..ServerConfig::default() });
    let addr = server.local_addr();
    let old = ca.tls("client");
    let revoked = ca.last_serial();
    let renewed = ca.tls("client");
    let (mut control, session) = Sealed::init(addr, &renewed);
    let (mut channel, status) = Sealed::attach(addr, &old, &session);
    assert_eq!(status, Status::Success);
    assert!(channel.pings() && control.is_alive());
    ca.revokes(&[revoked]);
    server.reload_tls();
    assert!(channel.receive().is_err(), "it ends");
}

/// A socket that passes one byte at a time.
struct Slow<'a>(&'a TcpStream);

impl Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(&mut into[..1])
    }
}

impl Write for Slow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..1])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_peer_that_sends_byte_by_byte_is_served() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let addr = server.local_addr();
    let slowly = |frame: Frame| {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut tls = TlsSession::connect(&ca.tls("slow"), addr.ip()).unwrap();
        assert_eq!(tls.shake(&mut Slow(&stream)).unwrap(), Shake::Done);
        let mut bytes = Vec::new();
        codec::encode(&frame, &mut bytes);
        assert_eq!(tls.write(&mut Slow(&stream), &bytes).unwrap(), bytes.len());
        Sealed { stream, tls, seq: 1, received: FrameBuffer::new() }
    };
    let mut control = slowly(Frame::Control(Seq(1), INIT));
    let Ok(Frame::ControlReply(_, ControlReply::Session(session))) = control.receive() else {
        panic!("not let in");
    };
    let mut channel = slowly(Frame::Attach(attach(&session)));
    assert!(matches!(channel.receive(), Ok(Frame::Attached(a)) if a.status == Status::Success));
    let mut bytes = Vec::new();
    codec::encode(&Frame::Request(Seq(9), Request::Ping), &mut bytes);
    let Sealed { stream, tls, .. } = &mut channel;
    tls.write(&mut Slow(stream), &bytes).unwrap();
    assert!(matches!(channel.receive(), Ok(Frame::Reply(Seq(9), _))));
    assert!(control.is_alive());
}

/// A stream that keeps the bytes written to it.
struct Kept(Vec<u8>);

impl Read for Kept {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn half_a_record_is_waited_for_without_keeping_others_and_garbage_ends_a_channel() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let (addr, tls) = (server.local_addr(), ca.tls("client"));
    let (_control, session) = Sealed::init(addr, &tls);
    let (mut channel, _) = Sealed::attach(addr, &tls, &session);
    let (_other_control, other_session) = Sealed::init(addr, &tls);
    let (mut other, _) = Sealed::attach(addr, &tls, &other_session);
    let mut bytes = Vec::new();
    codec::encode(&Frame::Request(Seq(1), Request::Ping), &mut bytes);
    let mut record = Kept(Vec::new());
    channel.tls.write(&mut record, &bytes).unwrap();
    let (half, rest) = record.0.split_at(record.0.len() / 2);
    channel.stream.write_all(half).unwrap();
    for _ in 0..100 {
        assert!(other.pings());
    }
    channel.stream.write_all(rest).unwrap();
    assert!(matches!(channel.receive(), Ok(Frame::Reply(Seq(1), _))));
    // several records at once, and a frame in parts
    let mut records = Kept(Vec::new());
    for seq in 2..=40 {
        let mut bytes = Vec::new();
        codec::encode(&Frame::Request(Seq(seq), Request::Ping), &mut bytes);
        let (front, back) = bytes.split_at(seq as usize % bytes.len());
        for part in [front, back].into_iter().filter(|part| !part.is_empty()) {
            channel.tls.write(&mut records, part).unwrap();
        }
    }
    channel.stream.write_all(&records.0).unwrap();
    for seq in 2..=40 {
        assert!(matches!(channel.receive(), Ok(Frame::Reply(got, _)) if got == Seq(seq)));
    }
    // a record that is not sealed
    channel.stream.write_all(&[0x17, 3, 3, 0, 32]).unwrap();
    channel.stream.write_all(&[7; 32]).unwrap();
    let error = channel.receive().unwrap_err();
    let is_told = error.to_string().contains("BadRecordMac") || error.kind() != ErrorKind::TimedOut;
    assert!(is_told, "{error}");
    assert!(other.pings());
}

#[test]
fn large_batches_go_both_ways_and_one_that_reads_nothing_ends_alone() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let (addr, tls) = (server.local_addr(), ca.tls("client"));
    let (mut control, session) = Sealed::init(addr, &tls);
    let get = ControlRequest::GetLocks(vec![common::desc("l", LockType::Atomic)]);
    let ControlReply::Locks(locks) = control.call(get) else { panic!("no lock") };
    let addr_of = WordAddr::new(locks[0].unwrap().slot, Word::W0);
    let (mut channel, _) = Sealed::attach(addr, &tls, &session);
    let chains = vec![Chain::one(WordOp::Read { addr: addr_of }); BATCH_MAX];
    for seq in 1..=200 {
        channel.send(&Frame::Batch(Seq(seq), chains.clone()));
    }
    for seq in 1..=200 {
        match channel.receive() {
            Ok(Frame::Outcomes(got, outcomes)) => {
                assert_eq!((got, outcomes.len()), (Seq(seq), BATCH_MAX));
            }
            other => panic!("no outcomes: {other:?}"),
        }
    }
    let (_other_control, other_session) = Sealed::init(addr, &tls);
    let (mut other, _) = Sealed::attach(addr, &tls, &other_session);
    // the client sends on and reads nothing, until the primary takes no more and then disconnects
    // it
    let mut bytes = Vec::new();
    codec::encode(&Frame::Batch(Seq(1), chains), &mut bytes);
    // the buffer is full soon: only the primary's kernel notices that the client reads nothing
    SockRef::from(&channel.stream).set_recv_buffer_size(64 * 1024).unwrap();
    let ended = Instant::now() + 4 * PATIENCE;
    loop {
        let wait = deadline_in(Duration::from_millis(20));
        match channel.tls.write_until(channel.stream.as_fd(), &bytes, wait) {
            Ok(()) => {}
            Err((_, error)) if error.kind() == ErrorKind::TimedOut => {}
            Err(_) => break,
        }
        assert!(other.pings());
        assert!(Instant::now() < ended, "it is never ended");
    }
    assert!(other.pings() && control.is_alive());
}

#[test]
fn a_stolen_secret_is_worth_nothing_with_another_certificate() {
    let ca = Ca::new("ours");
    let folder = Ca::new("state"); // a folder that is removed at the end
    let config = || ServerConfig {
        tls: Some(ca.tls("primary")),
        state_file: Some(folder.folder().join("epoch")),
        ..ServerConfig::default()
    };
    let primary = server(config());
    let addr = primary.local_addr();
    let (owner, thief) = (ca.tls("owner"), ca.tls("thief"));
    let (mut control, session) = Sealed::init(addr, &owner);
    let get = ControlRequest::GetLocks(vec![common::desc("l", LockType::Atomic)]);
    assert!(matches!(control.call(get), ControlReply::Locks(_)));
    let refused = ControlReply::Error(Status::Error);
    let steals = |addr| Sealed::connect(addr, &thief).call(reinit(&session));
    assert_eq!(Sealed::attach(addr, &thief, &session).1, Status::Error);
    assert_eq!(steals(addr), refused);
    let (mut channel, status) = Sealed::attach(addr, &owner, &session);
    assert_eq!(status, Status::Success);
    assert!(control.is_alive() && channel.pings(), "its session is as it was");
    // a renewed certificate belongs to the same client
    let renewed = ca.tls("owner");
    assert_eq!(Sealed::attach(addr, &renewed, &session).1, Status::Success);
    // the successor does not let the thief in, either
    primary.stop();
    let successor = server(config());
    let addr = successor.local_addr();
    assert_eq!(steals(addr), refused);
    match Sealed::connect(addr, &renewed).call(reinit(&session)) {
        ControlReply::Session(back) => assert_eq!(back.client, session.client),
        other => panic!("the owner does not come back: {other:?}"),
    }
}

#[test]
fn files_are_loaded_again_without_ending_sessions_and_wrong_ones_change_nothing() {
    let (ca, next) = (Ca::new("ours"), Ca::new("next"));
    let server = secured(&ca);
    let addr = server.local_addr();
    let (mut control, session) = Sealed::init(addr, &ca.tls("client"));
    let (mut channel, _) = Sealed::attach(addr, &ca.tls("client"), &session);
    std::fs::write(ca.folder().join("primary.key"), "no key").unwrap();
    server.reload_tls();
    let old = ca.tls("client");
    assert!(Sealed::init(addr, &old).0.is_alive(), "what was loaded before is used on");
    // the primary moves to another CA
    next.issue("primary");
    for file in ["ca.pem", "primary.pem", "primary.key"] {
        std::fs::copy(next.folder().join(file), ca.folder().join(file)).unwrap();
    }
    server.reload_tls();
    let error = Sealed::try_connect(addr, &old).map(drop).unwrap_err();
    assert!(error.to_string().contains("add the peer's CA"), "{error}");
    assert!(Sealed::init(addr, &next.tls("client")).0.is_alive());
    assert!(control.is_alive() && channel.pings(), "sessions go on");
}
