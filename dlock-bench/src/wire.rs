// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client without the client library, over tcp. It can have any number of frames under way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use dlock_client::TlsUse;
use dlock_core::ids::{LockId, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::word_op::Chain;
use dlock_core::wire::about::About;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant, Session,
    HORIZON_FOREVER, VERSION, VERSION_MIN,
};
use dlock_core::wire::message::{LockType, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::Tls;

use dlock_cli_common::failure::Failure;
use dlock_fabric::os::clock::deadline_in;

/// A time longer than any answer of a healthy primary takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the primary that uses no client library.
pub struct Wire {
    stream: TcpStream,
    tls: Option<TlsSession>,
    input: FrameBuffer,
    seq: u64,
    /// How long a send may wait for room in the socket's buffer.
    patience: Duration,
}

fn broken(what: impl std::fmt::Display) -> Failure {
    Failure::plain(format!("bench: a connection by hand: {what}"))
}

impl Wire {
    /// Connects; with TLS if the environment variables of a client say so.
    pub fn connect(primary: SocketAddr) -> Result<Self, Failure> {
        let material = TlsUse::Environment.material().map_err(broken)?;
        Self::connect_by(primary, material.as_ref())
    }

    pub fn connect_by(primary: SocketAddr, tls: Option<&Tls>) -> Result<Self, Failure> {
        let stream = TcpStream::connect(primary).map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        let tls = match tls {
            None => None,
            Some(material) => {
                let mut tls = TlsSession::connect(material, primary.ip()).map_err(broken)?;
                tls.shake_until(stream.as_fd(), deadline_in(PATIENCE)).map_err(broken)?;
                Some(tls)
            }
        };
        Ok(Self { stream, tls, input: FrameBuffer::new(), seq: 0, patience: PATIENCE })
    }

    /// The number of the next frame.
    pub fn number(&mut self) -> Seq {
        self.seq += 1;
        Seq(self.seq)
    }

    /// From now on, a send fails if there is no room for the frame within a millisecond.
    pub fn write_at_once(&mut self) -> Result<(), Failure> {
        self.patience = Duration::from_millis(1);
        self.stream.set_write_timeout(Some(self.patience)).map_err(broken)
    }

    pub fn send(&mut self, frame: &Frame) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        codec::encode(frame, &mut bytes);
        self.send_bytes(&bytes)
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.tls {
            None => self.stream.write_all(bytes).map_err(broken),
            Some(tls) => {
                let until = deadline_in(self.patience);
                let sent = tls.write_until(self.stream.as_fd(), bytes, until);
                sent.map_err(|(_, error)| broken(error))
            }
        }
    }

    pub fn receive(&mut self) -> Result<Frame, Failure> {
        loop {
            if let Some((kind, payload)) = self.input.next().map_err(broken)? {
                return codec::decode(kind, payload).map_err(broken);
            }
            let received = match &mut self.tls {
                None => self.stream.read(self.input.space()),
                Some(tls) => {
                    let deadline = deadline_in(PATIENCE);
                    tls.read_until(self.stream.as_fd(), self.input.space(), deadline)
                }
            };
            match received.map_err(broken)? {
                0 => return Err(broken("it was closed")),
                len => self.input.filled(len),
            }
        }
    }

    /// Sends a control request.
    pub fn ask(&mut self, request: ControlRequest) -> Result<(), Failure> {
        let seq = self.number();
        self.send(&Frame::Control(seq, request))
    }

    /// Receives the reply to a control request.
    pub fn answer(&mut self) -> Result<ControlReply, Failure> {
        match self.receive()? {
            Frame::ControlReply(_, reply) => Ok(reply),
            other => Err(broken(format!("{other:?} is no reply"))),
        }
    }

    pub fn call(&mut self, request: ControlRequest) -> Result<ControlReply, Failure> {
        self.ask(request)?;
        self.answer()
    }
}

/// A client without the client library: its control connection and its command channel.
pub struct Peer {
    pub control: Wire,
    pub channel: Wire,
    pub session: Session,
}

pub const INIT: ControlRequest = ControlRequest::Init {
    version_min: VERSION_MIN,
    version_max: VERSION,
    tp_mode: 0,
    horizon_s: HORIZON_FOREVER,
    about: About::NOTHING,
};

impl Peer {
    pub fn new(primary: SocketAddr) -> Result<Self, Failure> {
        let material = TlsUse::Environment.material().map_err(broken)?;
        Self::by(primary, material.as_ref())
    }

    /// Joins the primary as a new client, in TLS or in the clear.
    pub fn by(primary: SocketAddr, tls: Option<&Tls>) -> Result<Self, Failure> {
        let mut control = Wire::connect_by(primary, tls)?;
        control.ask(INIT)?;
        let session = session(&mut control)?;
        let mut channel = Wire::connect_by(primary, tls)?;
        channel.send(&attach(&session))?;
        attached(&mut channel)?;
        Ok(Self { control, channel, session })
    }

    /// Gets as many of these locks as there is room for.
    pub fn get(
        &mut self,
        names: &[String],
        lock_type: LockType,
    ) -> Result<Vec<LockGrant>, Failure> {
        let mut grants = Vec::with_capacity(names.len());
        for batch in names.chunks(BATCH_MAX) {
            self.control.ask(get(batch, lock_type))?;
            match self.control.answer()? {
                ControlReply::Locks(got) => grants.extend(got.into_iter().filter_map(Result::ok)),
                other => return Err(broken(format!("{other:?} instead of locks"))),
            }
        }
        Ok(grants)
    }

    /// Sends chains in one frame.
    pub fn batch(&mut self, chains: Vec<Chain>) -> Result<(), Failure> {
        let seq = self.channel.number();
        self.channel.send(&Frame::Batch(seq, chains))
    }

    /// Sends a request.
    pub fn request(&mut self, request: Request) -> Result<(), Failure> {
        let seq = self.channel.number();
        self.channel.send(&Frame::Request(seq, request))
    }
}

pub fn get(names: &[String], lock_type: LockType) -> ControlRequest {
    let desc = |name: &String| LockDesc {
        name: name.clone().into(),
        lock_type,
        lease_s: 0,
        tokens: false,
    };
    ControlRequest::GetLocks(names.iter().map(desc).collect())
}

pub fn release(grants: &[LockId]) -> ControlRequest {
    ControlRequest::ReleaseLocks(grants.to_vec())
}

pub fn session(control: &mut Wire) -> Result<Session, Failure> {
    match control.answer()? {
        ControlReply::Session(session) => Ok(session),
        ControlReply::Error(status) => Err(Failure::refused("a client by hand", status)),
        other => Err(broken(format!("{other:?} instead of a session"))),
    }
}

pub fn attach(session: &Session) -> Frame {
    let (client, secret, fabric) = (session.client, session.secret, FabricKind::Tcp);
    Frame::Attach(Attach { client, secret, fabric, verbs: None, returns: false })
}

pub fn attached(channel: &mut Wire) -> Result<(), Failure> {
    match channel.receive()? {
        Frame::Attached(attached) if attached.status == Status::Success => Ok(()),
        other => Err(broken(format!("{other:?} instead of a command channel"))),
    }
}
