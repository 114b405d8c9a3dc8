// SPDX-License-Identifier: MIT OR Apache-2.0
//! Just enough of a primary to stand behind the sealed executor: TLS on its port, a queue pair for
//! each client, and a thread that executes the chains of what arrives. No lock logic at all.
//!
//! ```text
//!   acceptor    handshake, Attach ─▶ admit_sealed ─▶ Attached; then it watches the connection
//!   service     the device's arrivals ─▶ frames ─▶ chains, ledger writes, Desk ─▶ answers
//! ```

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use dlock_core::ids::ClientId;
use dlock_core::memory::exec::LockMemory;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attached, FabricKind};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::{Tls, TlsFiles};
use dlock_fabric::verbs::{Arrival, MessageError};
use dlock_fabric::{CpuMemory, FabricError, SealedPeer, TcpExecutor, VerbsHost, VerbsOptions};

use crate::certs::{self, Ca};
use crate::desk::Desk;
use crate::device::{ended, first_attach, has_device, Device, Primary, Running};
use crate::primary::{attach, exact_clock, lock, SECRET};
use crate::{Client, Fixture, Layout, HANDLES, SLOTS};

/// How long a connection of this test may be silent.
const PATIENCE: Duration = Duration::from_secs(600);

/// A primary on this host's device; stops, with all its threads, when dropped.
pub struct SealedPrimary {
    running: Running<OnSealed>,
    client_files: TlsFiles,
    ca: Ca,
}

struct OnSealed {
    tls: Tls,
    memory: Mutex<CpuMemory>,
}

struct Session {
    client: ClientId,
    peer: SealedPeer,
    desk: Desk,
    input: FrameBuffer,
    /// Bytes of answers, of which the first `sent` were sent to the client.
    output: Vec<u8>,
    sent: usize,
}

impl SealedPrimary {
    /// Starts a primary; `None`: this host has no device, and a line of output has said so.
    pub fn start() -> Option<Self> {
        if !has_device() {
            return None;
        }
        let ca = Ca::new("conformance");
        let tls = ca.tls("primary");
        let client_files = ca.issue("client");
        let choice = VerbsHost::choose(None, &[0; 16]).expect("it was there");
        let host = VerbsHost::open_for_frames(&choice).expect("the device can be used");
        let memory = Mutex::new(CpuMemory::create(SLOTS, HANDLES).expect("memory"));
        let running = Running::start(host, OnSealed { tls, memory });
        Some(Self { running, client_files, ca })
    }
}

fn attach_to(addr: SocketAddr, tls: &Tls, client: ClientId) -> Result<TcpExecutor, FabricError> {
    let options = VerbsOptions::default();
    TcpExecutor::attach_over_verbs(&options, addr, tls, &attach(client), exact_clock())
}

/// Becomes a client of the primary that wrote this invitation, in another process.
pub(crate) fn accept_invitation(place: &str, id: ClientId) -> Option<Client> {
    let (addr, folder) = place.split_once(',')?;
    let file = |name: &str| Path::new(folder).join(name);
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let tls = certs::load(TlsFiles { ca, crl: None, cert, key });
    let executor = attach_to(addr.parse().ok()?, &tls, id).ok()?;
    Some(Client { id, executor: Box::new(executor) })
}

impl Layout for SealedPrimary {}

impl Fixture for SealedPrimary {
    fn client(&self) -> Client {
        let id = self.running.new_client_id();
        let tls = certs::load(self.client_files.clone());
        let executor = attach_to(self.running.addr(), &tls, id).expect("the primary accepts");
        Client { id, executor: Box::new(executor) }
    }

    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory)) {
        look(&mut *lock(&self.running.primary().memory));
    }

    fn invitation(&self) -> Option<String> {
        let folder = self.ca.folder().display();
        let (addr, id) = (self.running.addr(), self.running.new_client_id());
        Some(format!("sealed {addr},{folder} {id}"))
    }
}

impl Primary for OnSealed {
    type Session = Session;

    fn serve(&self, device: &Device<Self>, stream: &mut TcpStream) -> io::Result<()> {
        let deadline = deadline_in(PATIENCE);
        let socket = stream.as_fd();
        let mut tls = TlsSession::accept(&self.tls).map_err(io::Error::other)?;
        tls.shake_until(socket, deadline)?;
        let attach =
            first_attach(FabricKind::Sealed, |space| tls.read_until(socket, space, deadline))?;
        let Some(verbs) = attach.verbs.filter(|_| attach.secret == SECRET) else {
            return Err(io::Error::other("no client of this test"));
        };
        let client = attach.client;
        lock(&self.memory).add_client(client).map_err(io::Error::other)?;
        let secrets = tls.seal_secrets(client).map_err(io::Error::other)?;
        let (peer, verbs) =
            device.host.admit_sealed(client, &verbs, secrets).map_err(io::Error::other)?;
        let (ids, (desk, input)) = (peer.ids(), Default::default());
        let session = Session { client, peer, desk, input, output: Vec::new(), sent: 0 };
        device.enter(&ids, session);
        let attached = Attached {
            slots: SLOTS,
            ledger_entries: HANDLES,
            verbs: Some(verbs),
            ..Attached::bare(Status::Success)
        };
        let mut bytes = Vec::new();
        codec::encode(&Frame::Attached(attached), &mut bytes);
        tls.write_until(socket, &bytes, deadline).map_err(|(_, error)| error)?;
        let read = tls.read_until(socket, &mut [0; 1], deadline);
        device.leave(&ids);
        ended(read)
    }

    fn arrived(&self, session: &mut Session, arrival: &Arrival) -> io::Result<()> {
        session.arrived(arrival, &self.memory)
    }
}

impl Session {
    fn arrived(&mut self, arrival: &Arrival, memory: &Mutex<CpuMemory>) -> io::Result<()> {
        self.peer.take(arrival)?;
        while self.peer.has_arrived() {
            let len = self.peer.read(self.input.space())?;
            self.input.filled(len);
            while let Some((kind, payload)) = self.input.next().map_err(io::Error::other)? {
                let frame = codec::decode(kind, payload).map_err(io::Error::other)?;
                let (client, output) = (self.client, &mut self.output);
                match frame {
                    Frame::Batch(seq, chains) => {
                        let mut memory = lock(memory);
                        let outcomes: Vec<_> = chains
                            .iter()
                            .map(|chain| memory.execute_chain(client, chain))
                            .collect();
                        codec::encode_outcomes(seq, &outcomes, output);
                    }
                    Frame::Note(handle, entry) => {
                        lock(memory).write_ledger(client, handle, entry);
                    }
                    Frame::Request(seq, request) => {
                        self.desk.request(seq, request, |seq, reply| {
                            codec::encode(&Frame::Reply(seq, reply), output);
                        });
                    }
                    _ => return Err(io::Error::other("a frame out of place")),
                }
            }
        }
        self.send()
    }

    /// Sends what the client has room for; the next arrival brings more.
    fn send(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.peer.write(&self.output[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(MessageError::Busy) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }
}
