// SPDX-License-Identifier: MIT OR Apache-2.0
//! A raw client: sockets and the codec, nothing else, so that it can misbehave.
#![allow(dead_code)] // every test program uses a part of it

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use dlock_core::ids::Seq;
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::wire::about::About;
use dlock_core::wire::codec::{self, Frame, HEADER_LEN};
use dlock_core::wire::control::{
    Attach, Attached, ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant, Session,
    HORIZON_FOREVER, VERSION,
};
use dlock_core::wire::message::{LockType, Reply, Request};
use dlock_core::wire::status::Status;
use dlock_server::{Server, ServerConfig, VerbsUse};

/// More time than a healthy primary takes for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A primary on a free port; on an RDMA device with `DLOCK_FABRIC=verbs` in the environment, or
/// if the configuration says so.
pub fn server(config: ServerConfig) -> Server {
    let on_verbs = std::env::var("DLOCK_FABRIC").is_ok_and(|fabric| fabric == "verbs");
    let verbs = match config.verbs {
        VerbsUse::Auto if on_verbs => VerbsUse::On,
        VerbsUse::Auto => VerbsUse::Off,
        said => said,
    };
    Server::start(ServerConfig { port: 0, verbs, ..config }).expect("a primary starts")
}

/// A loopback address for the tests of this process alone, made from its process id. A test may
/// free a port of this address and bind it again later: no test of another process takes the port
/// in between.
pub fn own_address() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 0x80, b, c).into()
}

/// A connection to a primary.
pub struct Peer {
    pub stream: TcpStream,
    seq: u64,
}

impl Peer {
    pub fn connect(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect(addr).expect("the primary listens"))
    }

    pub fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, seq: 0 }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the primary reads");
    }

    pub fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        codec::encode(frame, &mut bytes);
        self.write(&bytes);
    }

    /// The next frame; `None`: the primary has closed the connection.
    pub fn receive(&mut self) -> Option<Frame> {
        let mut head = [0; HEADER_LEN];
        if !self.fill(&mut head) {
            return None;
        }
        let header = codec::header(&head).expect("the primary sends frames");
        let mut payload = vec![0; header.len];
        assert!(self.fill(&mut payload), "a frame was cut off");
        Some(codec::decode(header.kind, &payload).expect("the primary sends valid frames"))
    }

    fn fill(&mut self, into: &mut [u8]) -> bool {
        match self.stream.read_exact(into) {
            Ok(()) => true,
            Err(error) => match error.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    false
                }
                _ => panic!("no answer, and no end: {error}"),
            },
        }
    }

    pub fn call(&mut self, request: ControlRequest) -> ControlReply {
        self.seq += 1;
        self.send(&Frame::Control(Seq(self.seq), request));
        match self.receive() {
            Some(Frame::ControlReply(seq, reply)) => {
                assert_eq!(seq, Seq(self.seq));
                reply
            }
            other => panic!("no control reply: {other:?}"),
        }
    }

    /// Checks that the answer is this refusal, and that the connection then ends.
    pub fn is_refused(&mut self, seq: u64, status: Status) {
        let refusal = Frame::ControlReply(Seq(seq), ControlReply::Error(status));
        assert_eq!(self.receive(), Some(refusal));
        assert_eq!(self.receive(), None, "the connection is closed");
    }

    pub fn try_init(addr: SocketAddr) -> Result<(Self, Session), Status> {
        let mut peer = Self::connect(addr);
        match peer.call(INIT) {
            ControlReply::Session(session) => Ok((peer, session)),
            ControlReply::Error(status) => Err(status),
            other => panic!("no answer to Init: {other:?}"),
        }
    }

    pub fn init(addr: SocketAddr) -> (Self, Session) {
        Self::try_init(addr).expect("the client is let in")
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.call(ControlRequest::Heartbeat), ControlReply::Alive { .. })
    }

    pub fn get(&mut self, name: &str, lock_type: LockType) -> LockGrant {
        match self.call(ControlRequest::GetLocks(vec![desc(name, lock_type)])) {
            ControlReply::Locks(mut locks) => locks.remove(0).expect("there is room for locks"),
            other => panic!("no locks: {other:?}"),
        }
    }

    /// A connection that asks to be a command channel.
    pub fn attach(addr: SocketAddr, attach: Attach) -> (Self, Attached) {
        let mut peer = Self::connect(addr);
        peer.send(&Frame::Attach(attach));
        match peer.receive() {
            Some(Frame::Attached(attached)) => (peer, attached),
            other => panic!("no answer to Attach: {other:?}"),
        }
    }

    /// The TCP command channel of a session.
    pub fn channel(addr: SocketAddr, session: &Session) -> Self {
        let (peer, attached) = Self::attach(addr, attach(session));
        assert_eq!(attached.status, Status::Success);
        peer
    }

    pub fn execute(&mut self, chain: Chain) -> Outcome {
        self.seq += 1;
        self.send(&Frame::Batch(Seq(self.seq), vec![chain]));
        match self.receive() {
            Some(Frame::Outcomes(seq, mut outcomes)) => {
                assert_eq!((seq, outcomes.len()), (Seq(self.seq), 1));
                outcomes.remove(0)
            }
            other => panic!("no outcome: {other:?}"),
        }
    }

    pub fn request(&mut self, request: Request) -> Reply {
        self.seq += 1;
        self.send(&Frame::Request(Seq(self.seq), request));
        match self.receive() {
            Some(Frame::Reply(seq, reply)) => {
                assert_eq!(seq, Seq(self.seq));
                reply
            }
            other => panic!("no reply: {other:?}"),
        }
    }

    /// Whether the command channel answers.
    pub fn pings(&mut self) -> bool {
        matches!(self.request(Request::Ping), Reply::Pong { .. })
    }
}

pub const INIT: ControlRequest = ControlRequest::Init {
    version_min: 1,
    version_max: VERSION,
    tp_mode: 0,
    horizon_s: HORIZON_FOREVER,
    about: About::NOTHING,
};

pub fn reinit(session: &Session) -> ControlRequest {
    ControlRequest::Reinit {
        version_min: 1,
        version_max: VERSION,
        tp_mode: 0,
        horizon_s: HORIZON_FOREVER,
        client: session.client,
        secret: session.secret,
        about: About::NOTHING,
    }
}

pub fn attach(session: &Session) -> Attach {
    Attach {
        client: session.client,
        secret: session.secret,
        fabric: FabricKind::Tcp,
        verbs: None,
        returns: true,
    }
}

pub fn desc(name: &str, lock_type: LockType) -> LockDesc {
    LockDesc { name: name.as_bytes().to_vec(), lock_type, lease_s: 0, tokens: false }
}

/// Checks a condition again and again until it holds.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}
