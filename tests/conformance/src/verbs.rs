// SPDX-License-Identifier: MIT OR Apache-2.0
//! Just enough of a primary to stand behind the verbs executor: lock memory of a device, queue
//! pairs for clients that attach, and answers to messages. No lock logic at all.
//!
//! ```text
//!   acceptor    Attach ─▶ add_client, admit ─▶ Attached; then it watches the liveness connection
//!   service     the device's arrivals ─▶ Desk ─▶ replies
//! ```

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use dlock_core::ids::ClientId;
use dlock_core::memory::exec::LockMemory;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attached, FabricKind, UNLIMITED};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, MessageError};
use dlock_fabric::{
    stream::handshake, NicMemory, VerbsExecutor, VerbsHost, VerbsOptions, VerbsPeer,
};

use crate::desk::Desk;
use crate::device::{ended, first_attach, has_device, Device, Primary, Running};
use crate::primary::{attach, exact_clock, lock, SECRET};
use crate::{Client, Fixture, Layout, HANDLES, SLOTS};

/// A primary on this host's device; stops, with all its threads, when dropped.
pub struct VerbsPrimary {
    shared_qp: bool,
    running: Running<OnVerbs>,
}

struct OnVerbs {
    memory: Mutex<NicMemory>,
}

struct Session {
    peer: VerbsPeer,
    desk: Desk,
    input: FrameBuffer,
    /// Frames the client has no room for yet.
    output: VecDeque<Vec<u8>>,
}

impl VerbsPrimary {
    /// Starts a primary, whose messages share the queue pairs of the chains (`shared_qp`) or have
    /// queue pairs of their own. `None`: this host has no device, and a line of output has said so.
    pub fn start(shared_qp: bool) -> Option<Self> {
        if !has_device() {
            return None;
        }
        let choice = VerbsHost::choose(None, &[0; 16]).expect("it was there");
        let (host, memory) =
            VerbsHost::open(&choice, SLOTS, HANDLES, shared_qp).expect("the device can be used");
        let running = Running::start(host, OnVerbs { memory: Mutex::new(memory) });
        Some(Self { shared_qp, running })
    }

    /// Attaches a client.
    pub fn attach(&self, client: ClientId) -> VerbsExecutor {
        attach_to(self.running.addr(), client, self.shared_qp).expect("the primary accepts")
    }
}

fn attach_to(
    addr: SocketAddr,
    client: ClientId,
    shared_qp: bool,
) -> Result<VerbsExecutor, dlock_fabric::FabricError> {
    let options = VerbsOptions { shared_qp, ..VerbsOptions::default() };
    VerbsExecutor::attach(&options, addr, &attach(client), exact_clock())
}

/// Becomes a client of the primary that wrote this invitation, in another process.
pub(crate) fn accept_invitation(kind: &str, place: &str, id: ClientId) -> Option<Client> {
    let shared_qp = match kind {
        "verbs" => false,
        "verbs-shared" => true,
        _ => return None,
    };
    let executor = attach_to(place.parse().ok()?, id, shared_qp).ok()?;
    Some(Client { id, executor: Box::new(executor) })
}

impl Layout for VerbsPrimary {}

impl Fixture for VerbsPrimary {
    fn client(&self) -> Client {
        let id = self.running.new_client_id();
        Client { id, executor: Box::new(self.attach(id)) }
    }

    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory)) {
        look(&mut *lock(&self.running.primary().memory));
    }

    fn invitation(&self) -> Option<String> {
        let kind = if self.shared_qp { "verbs-shared" } else { "verbs" };
        Some(format!("{kind} {} {}", self.running.addr(), self.running.new_client_id()))
    }
}

impl Primary for OnVerbs {
    type Session = Session;

    /// Fences the client when its liveness connection ends.
    fn serve(&self, device: &Device<Self>, stream: &mut TcpStream) -> io::Result<()> {
        let attach = first_attach(FabricKind::Verbs, |space| stream.read(space))?;
        let Some(verbs) = attach.verbs.filter(|_| attach.secret == SECRET) else {
            return Err(io::Error::other("no client of this test"));
        };
        lock(&self.memory).add_client(attach.client).map_err(io::Error::other)?;
        let (peer, attached) =
            device.host.admit(attach.client, &verbs).map_err(io::Error::other)?;
        let ids = peer.ids();
        let (desk, input) = (Desk::default(), FrameBuffer::new());
        let session = device.enter(&ids, Session { peer, desk, input, output: VecDeque::new() });
        let attached = Attached {
            status: Status::Success,
            slots: SLOTS,
            ledger_entries: HANDLES,
            clock_offset_ns: 0,
            verbs: Some(attached),
            until: UNLIMITED,
        };
        let until_ns = deadline_in(Duration::from_secs(5));
        handshake::answer(stream.as_fd(), &attached, None, until_ns)?;
        let read = stream.read(&mut [0; 1]);
        device.leave(&ids);
        let fenced = lock(&session).peer.fence();
        fenced.map_err(io::Error::other)?;
        ended(read)
    }

    fn arrived(&self, session: &mut Session, arrival: &Arrival) -> io::Result<()> {
        session.arrived(arrival);
        Ok(())
    }
}

impl Session {
    /// Answers the requests in an arrival. An error ends nothing here: the liveness connection of a
    /// client that is gone, or breaks the rules, ends its session.
    fn arrived(&mut self, arrival: &Arrival) {
        let mut frames = Vec::new();
        if self.peer.take(arrival, &mut frames).is_err() {
            return;
        }
        let mut bytes = &frames[..];
        while !bytes.is_empty() {
            let space = self.input.space();
            let len = space.len().min(bytes.len());
            space[..len].copy_from_slice(&bytes[..len]);
            self.input.filled(len);
            bytes = &bytes[len..];
            while let Ok(Some((kind, payload))) = self.input.next() {
                if let Ok(Frame::Request(seq, request)) = codec::decode(kind, payload) {
                    let output = &mut self.output;
                    self.desk.request(seq, request, |seq, reply| {
                        let mut frame = Vec::new();
                        codec::encode(&Frame::Reply(seq, reply), &mut frame);
                        output.push_back(frame);
                    });
                }
            }
        }
        while let Some(frame) = self.output.front() {
            match self.peer.send(frame) {
                Ok(()) => drop(self.output.pop_front()),
                Err(MessageError::Busy) | Err(_) => return,
            }
        }
    }
}
