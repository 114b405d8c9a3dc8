// SPDX-License-Identifier: MIT OR Apache-2.0
//! Just enough of a primary to stand behind the sealed executor: TLS on its port, a queue pair for
//! each client, and a thread that executes the chains of what arrives. No lock logic at all.
//!
//! ```text
//!   acceptor    handshake, Attach ─▶ admit_sealed ─▶ Attached; then it watches the connection
//!   service     the device's arrivals ─▶ frames ─▶ chains, ledger writes, Desk ─▶ answers
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dlock_core::codec::{self, Frame};
use dlock_core::control::{Attach, Attached, FabricKind};
use dlock_core::exec::LockMemory;
use dlock_core::ids::ClientId;
use dlock_core::status::Status;
use dlock_fabric::frames::FrameBuffer;
use dlock_fabric::tls::{Tls, TlsFiles};
use dlock_fabric::tls_session::TlsSession;
use dlock_fabric::verbs::{Arrival, MessageError, PeerId};
use dlock_fabric::{net, CpuMemory, FabricError, SealedPeer, TcpExecutor, VerbsHost, VerbsOptions};
use mio::unix::SourceFd;

use crate::certs::{self, Ca};
use crate::desk::Desk;
use crate::primary::{attach, exact_clock, lock, SECRET};
use crate::verbs::has_device;
use crate::{Client, Fixture, Layout, HANDLES, SLOTS};

/// The longest sleep of the service, which nothing depends on.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// How long a connection of this test may be silent.
const PATIENCE: Duration = Duration::from_secs(600);

/// A primary on this host's device; stops, with all its threads, when dropped.
pub struct SealedPrimary {
    shared: Arc<Shared>,
    addr: SocketAddr,
    threads: Vec<JoinHandle<()>>,
    next_client: AtomicU32,
    client_files: TlsFiles,
    ca: Ca,
}

struct Shared {
    tls: Tls,
    host: Arc<VerbsHost>,
    memory: Mutex<CpuMemory>,
    sessions: Mutex<HashMap<PeerId, Arc<Mutex<Session>>>>,
    stopping: AtomicBool,
    life_lines: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
}

struct Session {
    client: ClientId,
    peer: SealedPeer,
    desk: Desk,
    input: FrameBuffer,
    /// Bytes of answers, and how many the client has taken.
    output: Vec<u8>,
    sent: usize,
}

impl SealedPrimary {
    /// Starts one; `None`: there is no device, which has been said.
    pub fn start() -> Option<Self> {
        if !has_device() {
            return None;
        }
        let ca = Ca::new("conformance");
        let tls = ca.tls("primary");
        let client_files = ca.issue("client");
        let choice = VerbsHost::choose(None, &[0; 16]).expect("it was there");
        let host = VerbsHost::open_for_frames(&choice).expect("the device can be used");
        let tcp = net::listen(Ipv4Addr::LOCALHOST.into(), 0).expect("a free port");
        let addr = tcp.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            tls,
            host,
            memory: Mutex::new(CpuMemory::create(SLOTS, HANDLES).expect("memory")),
            sessions: Mutex::default(),
            stopping: AtomicBool::new(false),
            life_lines: Mutex::default(),
        });
        let threads = vec![
            spawn(&shared, move |shared| accept(shared, &tcp)),
            spawn(&shared, |shared| service(shared).expect("the device works")),
        ];
        let next_client = AtomicU32::new(1);
        Some(Self { shared, addr, threads, next_client, client_files, ca })
    }

    fn new_client_id(&self) -> ClientId {
        ClientId::new(self.next_client.fetch_add(1, Ordering::Relaxed)).expect("few clients")
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
        let id = self.new_client_id();
        let tls = certs::load(self.client_files.clone());
        let executor = attach_to(self.addr, &tls, id).expect("the primary accepts");
        Client { id, executor: Box::new(executor) }
    }

    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory)) {
        look(&mut *lock(&self.shared.memory));
    }

    fn invitation(&self) -> Option<String> {
        let folder = self.ca.folder().display();
        Some(format!("sealed {},{folder} {}", self.addr, self.new_client_id()))
    }
}

impl Drop for SealedPrimary {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        drop(net::connect(self.addr)); // the acceptor looks at `stopping` once somebody has come
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for (liveness, thread) in std::mem::take(&mut *lock(&self.shared.life_lines)) {
            let _ = liveness.shutdown(Shutdown::Both); // closed already is closed, too
            let _ = thread.join();
        }
        lock(&self.shared.sessions).clear();
    }
}

fn spawn(shared: &Arc<Shared>, run: impl FnOnce(&Arc<Shared>) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || run(&shared))
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(again) = stream.try_clone() else { continue };
        let thread = spawn(shared, move |shared| {
            if let Err(error) = serve(shared, &stream) {
                eprintln!("a client of the test primary is gone: {error}");
            }
            let _ = stream.shutdown(Shutdown::Both); // as above
        });
        lock(&shared.life_lines).push((again, thread));
    }
}

/// Attaches one client, and forgets it when its liveness connection ends.
fn serve(shared: &Shared, stream: &TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut tls = TlsSession::accept(&shared.tls).map_err(io::Error::other)?;
    tls.shake_until(stream.as_fd(), deadline)?;
    let attach = first_frame(&mut tls, stream, deadline)?;
    let Some(verbs) = attach.verbs.filter(|_| attach.secret == SECRET) else {
        return Err(io::Error::other("no client of this test"));
    };
    let client = attach.client;
    lock(&shared.memory).add_client(client).map_err(io::Error::other)?;
    let secrets = tls.seal_secrets(client).map_err(io::Error::other)?;
    let (peer, verbs) =
        shared.host.admit_sealed(client, &verbs, secrets).map_err(io::Error::other)?;
    let (id, (desk, input)) = (peer.ids()[0], Default::default());
    let session = Session { client, peer, desk, input, output: Vec::new(), sent: 0 };
    lock(&shared.sessions).insert(id, Arc::new(Mutex::new(session)));
    let attached = Attached {
        slots: SLOTS,
        ledger_entries: HANDLES,
        verbs: Some(verbs),
        ..Attached::bare(Status::Success)
    };
    let mut bytes = Vec::new();
    codec::encode(&Frame::Attached(attached), &mut bytes);
    tls.write_until(stream.as_fd(), &bytes, deadline).map_err(|(_, error)| error)?;
    let ended = tls.read_until(stream.as_fd(), &mut [0; 1], deadline);
    lock(&shared.sessions).remove(&id);
    match ended {
        Ok(0) => Ok(()),
        Ok(_) => Err(io::Error::other("bytes on the life line")),
        Err(error) => Err(error),
    }
}

fn first_frame(tls: &mut TlsSession, stream: &TcpStream, deadline: Instant) -> io::Result<Attach> {
    let mut buffer = FrameBuffer::new();
    loop {
        let len = tls.read_until(stream.as_fd(), buffer.space(), deadline)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.filled(len);
        let Some((kind, payload)) = buffer.next().map_err(io::Error::other)? else { continue };
        return match codec::decode(kind, payload).map_err(io::Error::other)? {
            Frame::Attach(attach) if attach.fabric == FabricKind::Sealed => Ok(attach),
            _ => Err(io::Error::other("a frame out of place")),
        };
    }
}

/// What a primary's command thread does with its device.
fn service(shared: &Shared) -> io::Result<()> {
    let mut poll = mio::Poll::new()?;
    let fd = shared.host.fd().as_raw_fd();
    poll.registry().register(&mut SourceFd(&fd), mio::Token(0), mio::Interest::READABLE)?;
    let (mut events, mut arrivals) = (mio::Events::with_capacity(1), Vec::new());
    let mut is_armed = false;
    while !shared.stopping.load(Ordering::SeqCst) {
        arrivals.clear();
        shared.host.poll(&mut arrivals).map_err(io::Error::other)?;
        for arrival in &arrivals {
            let session = lock(&shared.sessions).get(&arrival.peer()).map(Arc::clone);
            if let Some(session) = session {
                if let Err(error) = lock(&session).arrived(arrival, shared) {
                    eprintln!("the channel of a test client has ended: {error}");
                }
            }
        }
        if !arrivals.is_empty() {
            is_armed = false;
        } else if !is_armed {
            shared.host.arm().map_err(io::Error::other)?;
            is_armed = true; // and look once more
        } else {
            match poll.poll(&mut events, Some(SLEEP_MAX)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => drop(shared.host.take_events().map_err(io::Error::other)?),
            }
            is_armed = false;
        }
    }
    Ok(())
}

impl Session {
    fn arrived(&mut self, arrival: &Arrival, shared: &Shared) -> io::Result<()> {
        self.peer.take(arrival)?;
        while self.peer.has_arrived() {
            let len = self.peer.read(self.input.space())?;
            self.input.filled(len);
            while let Some((kind, payload)) = self.input.next().map_err(io::Error::other)? {
                let frame = codec::decode(kind, payload).map_err(io::Error::other)?;
                let (client, output) = (self.client, &mut self.output);
                match frame {
                    Frame::Batch(seq, chains) => {
                        let mut memory = lock(&shared.memory);
                        let outcomes: Vec<_> = chains
                            .iter()
                            .map(|chain| memory.execute_chain(client, chain))
                            .collect();
                        codec::encode_outcomes(seq, &outcomes, output);
                    }
                    Frame::Note(handle, entry) => {
                        lock(&shared.memory).write_ledger(client, handle, entry);
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
