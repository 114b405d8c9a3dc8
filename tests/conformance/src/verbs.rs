// SPDX-License-Identifier: MIT OR Apache-2.0
//! Just enough of a primary to stand behind the verbs executor: lock memory of a device, queue
//! pairs for whoever attaches, and answers to messages. No lock logic at all.
//!
//! ```text
//!   acceptor    Attach ─▶ add_client, admit ─▶ Attached; then it watches the liveness connection
//!   service     the device's arrivals ─▶ Desk ─▶ replies
//! ```

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
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
use dlock_fabric::verbs::{Arrival, MessageError, PeerId};
use dlock_fabric::{handshake, net, NicMemory, VerbsExecutor, VerbsHost, VerbsOptions, VerbsPeer};
use mio::unix::SourceFd;

use crate::desk::Desk;
use crate::primary::{attach, exact_clock, lock, SECRET};
use crate::{Client, Fixture, Layout, HANDLES, SLOTS};

/// The longest sleep of the service, which nothing depends on.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Whether this host has an RDMA port that can be used; if not, says why, or fails if there must
/// be one (`DLOCK_RXE_REQUIRED=1`).
pub fn has_device() -> bool {
    let Err(error) = VerbsHost::choose(None, &[0; 16]) else { return true };
    let required = std::env::var_os("DLOCK_RXE_REQUIRED").is_some_and(|value| value == "1");
    assert!(!required, "{error}");
    eprintln!("SKIP: {error}");
    false
}

/// A primary on this host's device; stops, with all its threads, when dropped.
pub struct VerbsPrimary {
    shared_qp: bool,
    shared: Arc<Shared>,
    addr: SocketAddr,
    threads: Vec<JoinHandle<()>>,
    next_client: AtomicU32,
}

struct Shared {
    host: Arc<VerbsHost>,
    memory: Mutex<NicMemory>,
    sessions: Mutex<HashMap<PeerId, Arc<Mutex<Session>>>>,
    stopping: AtomicBool,
    life_lines: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
}

struct Session {
    peer: VerbsPeer,
    desk: Desk,
    input: FrameBuffer,
    /// Frames the client has no room for yet.
    output: VecDeque<Vec<u8>>,
}

impl VerbsPrimary {
    /// Starts one, with queue pairs of their own for messages or without; `None`: there is no
    /// device, which has been said.
    pub fn start(shared_qp: bool) -> Option<Self> {
        if !has_device() {
            return None;
        }
        let choice = VerbsHost::choose(None, &[0; 16]).expect("it was there");
        let (host, memory) =
            VerbsHost::open(&choice, SLOTS, HANDLES, shared_qp).expect("the device can be used");
        let tcp = net::listen(Ipv4Addr::LOCALHOST.into(), 0).expect("a free port");
        let addr = tcp.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            host,
            memory: Mutex::new(memory),
            sessions: Mutex::default(),
            stopping: AtomicBool::new(false),
            life_lines: Mutex::default(),
        });
        let threads = vec![
            spawn(&shared, move |shared| accept(shared, &tcp)),
            spawn(&shared, |shared| service(shared).expect("the device works")),
        ];
        Some(Self { shared_qp, shared, addr, threads, next_client: AtomicU32::new(1) })
    }

    fn new_client_id(&self) -> ClientId {
        ClientId::new(self.next_client.fetch_add(1, Ordering::Relaxed)).expect("few clients")
    }

    /// Attaches a client.
    pub fn attach(&self, client: ClientId) -> VerbsExecutor {
        attach_to(self.addr, client, self.shared_qp).expect("the primary accepts")
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
        let id = self.new_client_id();
        Client { id, executor: Box::new(self.attach(id)) }
    }

    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory)) {
        look(&mut *lock(&self.shared.memory));
    }

    fn invitation(&self) -> Option<String> {
        let kind = if self.shared_qp { "verbs-shared" } else { "verbs" };
        Some(format!("{kind} {} {}", self.addr, self.new_client_id()))
    }
}

impl Drop for VerbsPrimary {
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
            let mut stream = stream;
            if let Err(error) = serve(shared, &mut stream) {
                eprintln!("a client of the test primary is gone: {error}");
            }
            let _ = stream.shutdown(Shutdown::Both); // as above
        });
        lock(&shared.life_lines).push((again, thread));
    }
}

/// Attaches one client, and fences it when its liveness connection ends.
fn serve(shared: &Shared, stream: &mut TcpStream) -> io::Result<()> {
    let attach = first_frame(stream)?;
    let Some(verbs) = attach.verbs.filter(|_| attach.secret == SECRET) else {
        return Err(io::Error::other("no client of this test"));
    };
    lock(&shared.memory).add_client(attach.client).map_err(io::Error::other)?;
    let (peer, attached) = shared.host.admit(attach.client, &verbs).map_err(io::Error::other)?;
    let ids = peer.ids();
    let session =
        Session { peer, desk: Desk::default(), input: FrameBuffer::new(), output: VecDeque::new() };
    let session = Arc::new(Mutex::new(session));
    for id in ids {
        lock(&shared.sessions).insert(id, Arc::clone(&session));
    }
    let attached = Attached {
        status: Status::Success,
        slots: SLOTS,
        ledger_entries: HANDLES,
        clock_offset_ns: 0,
        verbs: Some(attached),
        until: None,
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    handshake::answer(stream.as_fd(), &attached, None, deadline)?;
    let ended = stream.read(&mut [0; 1]);
    for id in ids {
        lock(&shared.sessions).remove(&id);
    }
    let fenced = lock(&session).peer.fence();
    fenced.map_err(io::Error::other)?;
    match ended {
        Ok(0) => Ok(()),
        Ok(_) => Err(io::Error::other("bytes on the life line")),
        Err(error) => Err(error),
    }
}

fn first_frame(stream: &mut TcpStream) -> io::Result<Attach> {
    let mut buffer = FrameBuffer::new();
    loop {
        let len = stream.read(buffer.space())?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.filled(len);
        let Some((kind, payload)) = buffer.next().map_err(io::Error::other)? else { continue };
        return match codec::decode(kind, payload).map_err(io::Error::other)? {
            Frame::Attach(attach) if attach.fabric == FabricKind::Verbs => Ok(attach),
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
                lock(&session).arrived(arrival);
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
    /// A client that is gone, or breaks the rules, has its liveness connection for that.
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
