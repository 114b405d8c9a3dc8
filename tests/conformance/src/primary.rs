// SPDX-License-Identifier: MIT OR Apache-2.0
//! Just enough of a primary to stand behind an executor: it attaches clients, executes their
//! chains, and answers pings, waits and cancels. A thread per connection; no lock logic at all.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::ClientId;
use dlock_core::memory::exec::LockMemory;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, Attached, FabricKind, Secret, UNLIMITED};
use dlock_core::wire::fabric::Executes;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_fabric::os::fds::Credentials;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::{
    os::net, stream::handshake, ClockEstimate, CpuMemory, ShmExecutor, TcpExecutor,
};

use crate::desk::Desk;
use crate::{sealed, verbs, Client, Fixture, Layout, HANDLES, SLOTS};

/// Server clock minus CLOCK_BOOTTIME of every test primary.
pub const CLOCK_OFFSET_NS: u64 = 1_000_000 * NS;
/// The text of the panic when a fixture asks this primary for a device: it has none.
const NO_DEVICE: &str = "only `verbs::VerbsPrimary` and `sealed::SealedPrimary` have a device";
/// The secret of every test client.
pub const SECRET: Secret = Secret(*b"conformance test");

/// The server clock.
pub fn server_now() -> ServerTime {
    ServerTime(boot_ns() + CLOCK_OFFSET_NS)
}

/// A primary for tests; stops, with all its threads, when dropped.
pub struct TestPrimary {
    kind: FabricKind,
    shared: Arc<Shared>,
    name: Vec<u8>,
    addr: SocketAddr,
    acceptors: Vec<JoinHandle<()>>,
    next_client: AtomicU32,
}

struct Shared {
    memory: Mutex<CpuMemory>,
    stopping: AtomicBool,
    connections: Mutex<Vec<(Connection, JoinHandle<()>)>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestPrimary {
    /// Starts a primary whose fixture's clients use this fabric.
    pub fn start(kind: FabricKind) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("dlock-conformance-{}-{number}", std::process::id()).into_bytes();
        let unix = net::listen_abstract(&name).expect("a free name");
        let tcp = net::listen(Ipv4Addr::LOCALHOST.into(), 0).expect("a free port");
        let addr = tcp.local_addr().expect("a bound listener");
        let memory = CpuMemory::create(SLOTS, HANDLES).expect("memory");
        let shared = Arc::new(Shared {
            memory: Mutex::new(memory),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let acceptors = vec![
            spawn(&shared, move |shared| accept_unix(shared, &unix)),
            spawn(&shared, move |shared| accept_tcp(shared, &tcp)),
        ];
        let next_client = AtomicU32::new(1);
        Self { kind, shared, name, addr, acceptors, next_client }
    }

    /// The memory of this primary, locked: meanwhile no connection is served.
    pub fn cpu_memory(&self) -> MutexGuard<'_, CpuMemory> {
        lock(&self.shared.memory)
    }

    /// Closes all connections; new ones are still accepted.
    pub fn disconnect_all(&self) {
        for (connection, _) in &*lock(&self.shared.connections) {
            connection.close();
        }
    }

    /// A client that was not there before.
    pub fn new_client_id(&self) -> ClientId {
        let id = self.next_client.fetch_add(1, Ordering::Relaxed);
        ClientId::new(id).expect("few clients")
    }

    /// The name of the Unix socket of this primary.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The TCP address of this primary.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Attaches over shm.
    pub fn attach_shm(&self, client: ClientId) -> ShmExecutor {
        let attached = ShmExecutor::attach(&self.name, &attach(client), exact_clock());
        attached.expect("the primary accepts")
    }

    /// Attaches over tcp.
    pub fn attach_tcp(&self, client: ClientId) -> TcpExecutor {
        TcpExecutor::attach(self.addr, &attach(client), exact_clock()).expect("the primary accepts")
    }
}

/// The `Attach` of a test client.
pub fn attach(client: ClientId) -> Attach {
    Attach { client, secret: SECRET, fabric: FabricKind::Shm, verbs: None, returns: true }
}

/// The test primaries' clock, known for certain: they are on this host.
pub fn exact_clock() -> ClockEstimate {
    let now_ns = boot_ns();
    ClockEstimate::from_exchange(now_ns, now_ns, ServerTime(now_ns + CLOCK_OFFSET_NS))
}

/// Becomes a client of the primary that wrote this invitation, in another process.
pub fn accept_invitation(invitation: &str) -> Option<Client> {
    let mut parts = invitation.split_ascii_whitespace();
    let (kind, place, id) = (parts.next()?, parts.next()?, parts.next()?);
    let id = ClientId::new(id.parse().ok()?)?;
    let executor: Box<dyn dlock_core::memory::exec::Executor> = match kind {
        "shm" => Box::new(ShmExecutor::attach(place.as_bytes(), &attach(id), exact_clock()).ok()?),
        "tcp" => {
            let addr = place.parse().ok()?;
            Box::new(TcpExecutor::attach(addr, &attach(id), exact_clock()).ok()?)
        }
        "sealed" => return sealed::accept_invitation(place, id),
        kind => return verbs::accept_invitation(kind, place, id),
    };
    Some(Client { id, executor })
}

impl Layout for TestPrimary {}

impl Fixture for TestPrimary {
    fn client(&self) -> Client {
        let id = self.new_client_id();
        match self.kind {
            FabricKind::Shm => Client { id, executor: Box::new(self.attach_shm(id)) },
            FabricKind::Tcp => Client { id, executor: Box::new(self.attach_tcp(id)) },
            FabricKind::Verbs | FabricKind::Sealed => panic!("{NO_DEVICE}"),
        }
    }

    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory)) {
        look(&mut *self.cpu_memory());
    }

    fn invitation(&self) -> Option<String> {
        let id = self.new_client_id();
        Some(match self.kind {
            FabricKind::Shm => format!("shm {} {id}", String::from_utf8_lossy(&self.name)),
            FabricKind::Tcp => format!("tcp {} {id}", self.addr),
            FabricKind::Verbs | FabricKind::Sealed => panic!("{NO_DEVICE}"),
        })
    }
}

impl Drop for TestPrimary {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // connects to both acceptors, because they look at `stopping` after they have accepted a
        // connection
        drop((net::connect_abstract(&self.name), net::connect(self.addr)));
        for acceptor in self.acceptors.drain(..) {
            let _ = acceptor.join();
        }
        let connections = std::mem::take(&mut *lock(&self.shared.connections));
        for (connection, thread) in connections {
            connection.close();
            let _ = thread.join();
        }
    }
}

fn spawn(shared: &Arc<Shared>, run: impl FnOnce(&Arc<Shared>) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || run(&shared))
}

/// Either kind of stream.
enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    fn again(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    fn close(&self) {
        // a connection that is closed already is fine, too
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.write_all(bytes),
            Self::Tcp(stream) => stream.write_all(bytes),
        }
    }
}

fn accept_unix(shared: &Arc<Shared>, listener: &UnixListener) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        if Credentials::of_peer(stream.as_fd()).is_ok_and(|peer| peer.may_map(&[])) {
            serve(shared, Connection::Unix(stream));
        }
    }
}

fn accept_tcp(shared: &Arc<Shared>, listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        if stream.set_nodelay(true).is_ok() {
            serve(shared, Connection::Tcp(stream));
        }
    }
}

fn serve(shared: &Arc<Shared>, connection: Connection) {
    let Ok(again) = connection.again() else { return };
    // `disconnect_all` must find every client that a thread has let in
    let mut connections = lock(&shared.connections);
    let thread = spawn(shared, move |shared| {
        let mut session = Session { connection, client: None, desk: Desk::default() };
        let _ = session.run(shared);
        session.connection.close();
    });
    connections.push((again, thread));
}

struct Session {
    connection: Connection,
    client: Option<ClientId>,
    desk: Desk,
}

impl Session {
    fn run(&mut self, shared: &Shared) -> io::Result<()> {
        let (mut buffer, mut out) = (FrameBuffer::new(), Vec::new());
        loop {
            let len = self.connection.read(buffer.space())?;
            if len == 0 {
                return Ok(());
            }
            buffer.filled(len);
            while let Some((kind, payload)) = buffer.next().map_err(invalid)? {
                let frame = codec::decode(kind, payload).map_err(invalid)?;
                self.frame(shared, frame, &mut out)?;
            }
            self.connection.write(&out)?;
            out.clear();
        }
    }

    fn frame(&mut self, shared: &Shared, frame: Frame, out: &mut Vec<u8>) -> io::Result<()> {
        match (self.client, frame) {
            (None, Frame::Attach(attach)) => self.attach(shared, attach),
            (Some(client), Frame::Batch(seq, chains)) => {
                let mut memory = lock(&shared.memory);
                let outcomes: Vec<_> =
                    chains.iter().map(|chain| memory.execute_chain(client, chain)).collect();
                codec::encode_outcomes(seq, &outcomes, out);
                Ok(())
            }
            (Some(client), Frame::Note(handle, entry)) => {
                lock(&shared.memory).write_ledger(client, handle, entry);
                Ok(())
            }
            (Some(_), Frame::Request(seq, request)) => {
                self.desk.request(seq, request, |seq, reply| {
                    codec::encode(&Frame::Reply(seq, reply), out);
                });
                Ok(())
            }
            _ => Err(invalid("a frame out of place")),
        }
    }

    fn attach(&mut self, shared: &Shared, attach: Attach) -> io::Result<()> {
        let until_ns = deadline_in(Duration::from_secs(5));
        let mut memory = lock(&shared.memory);
        let mut attached = Attached {
            status: Status::Success,
            slots: memory.slots(),
            ledger_entries: memory.ledger_entries(),
            clock_offset_ns: CLOCK_OFFSET_NS,
            verbs: None,
            until: UNLIMITED,
        };
        if attach.secret != SECRET {
            attached.status = Status::ClientRemoved;
            return self.answer(&attached, None, until_ns);
        }
        self.client = Some(attach.client);
        match attach.fabric.executes() {
            Executes::Client => {
                let shared = memory.share(attach.client).map_err(invalid)?;
                self.answer(&attached, Some(&shared), until_ns)
            }
            Executes::Primary => {
                memory.add_client(attach.client).map_err(invalid)?;
                self.answer(&attached, None, until_ns)
            }
            Executes::Device => Err(invalid(NO_DEVICE)),
        }
    }

    fn answer(
        &self,
        attached: &Attached,
        shared: Option<&dlock_fabric::memory::cpu::Shared<'_>>,
        until_ns: u64,
    ) -> io::Result<()> {
        match &self.connection {
            Connection::Unix(stream) => {
                handshake::answer(stream.as_fd(), attached, shared, until_ns)
            }
            Connection::Tcp(stream) => {
                handshake::answer(stream.as_fd(), attached, shared, until_ns)
            }
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A connected pair of sockets for one executor: the client's end, and the primary's.
pub fn socket_pair(kind: FabricKind) -> io::Result<(OwnedFd, OwnedFd)> {
    match kind {
        FabricKind::Shm => UnixStream::pair().map(|(near, far)| (near.into(), far.into())),
        FabricKind::Tcp => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let near = TcpStream::connect(listener.local_addr()?)?;
            let (far, _) = listener.accept()?;
            Ok((near.into(), far.into()))
        }
        FabricKind::Verbs | FabricKind::Sealed => Err(invalid(NO_DEVICE)),
    }
}
