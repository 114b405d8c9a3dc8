// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primaries on a device have in common: a thread that accepts clients, a thread for each
//! client, and a thread that takes the device's arrivals. The [`Primary`] decides what is done with
//! an accepted client, and with an arrival.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use dlock_core::ids::ClientId;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, FabricKind};
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, PeerId};
use dlock_fabric::{os::net, VerbsHost};
use mio::unix::SourceFd;

use crate::primary::lock;

/// The longest sleep of the service thread. No test depends on it.
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

/// The work of a test primary for its clients.
pub(crate) trait Primary: Send + Sync + Sized + 'static {
    /// The state that the primary keeps for a client.
    type Session: Send;

    /// Attaches a client. When its liveness connection ends, releases what the client has.
    fn serve(&self, device: &Device<Self>, stream: &mut TcpStream) -> io::Result<()>;

    /// Handles an arrival for the session.
    fn arrived(&self, session: &mut Self::Session, arrival: &Arrival) -> io::Result<()>;
}

/// A primary on this host's device; stops, with all its threads, when dropped.
pub(crate) struct Running<P: Primary> {
    device: Arc<Device<P>>,
    addr: SocketAddr,
    threads: Vec<JoinHandle<()>>,
    next_client: AtomicU32,
}

/// The data that the threads of a primary share.
pub(crate) struct Device<P: Primary> {
    pub(crate) primary: P,
    pub(crate) host: Arc<VerbsHost>,
    sessions: Mutex<HashMap<PeerId, Arc<Mutex<P::Session>>>>,
    stopping: AtomicBool,
    life_lines: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
}

impl<P: Primary> Running<P> {
    pub(crate) fn start(host: Arc<VerbsHost>, primary: P) -> Self {
        let tcp = net::listen(Ipv4Addr::LOCALHOST.into(), 0).expect("a free port");
        let addr = tcp.local_addr().expect("a bound listener");
        let device = Arc::new(Device {
            primary,
            host,
            sessions: Mutex::default(),
            stopping: AtomicBool::new(false),
            life_lines: Mutex::default(),
        });
        let threads = vec![
            spawn(&device, move |device| device.accept(&tcp)),
            spawn(&device, |device| device.service().expect("the device works")),
        ];
        Self { device, addr, threads, next_client: AtomicU32::new(1) }
    }

    pub(crate) fn primary(&self) -> &P {
        &self.device.primary
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn new_client_id(&self) -> ClientId {
        ClientId::new(self.next_client.fetch_add(1, Ordering::Relaxed)).expect("few clients")
    }
}

impl<P: Primary> Drop for Running<P> {
    fn drop(&mut self) {
        self.device.stopping.store(true, Ordering::SeqCst);
        // wakes the acceptor, which looks at `stopping` after each connection
        drop(net::connect(self.addr));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for (liveness, thread) in std::mem::take(&mut *lock(&self.device.life_lines)) {
            // a socket that is closed already is fine, too
            let _ = liveness.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
        lock(&self.device.sessions).clear();
    }
}

fn spawn<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    run: impl FnOnce(&Arc<T>) + Send + 'static,
) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || run(&shared))
}

impl<P: Primary> Device<P> {
    /// From now on, arrivals at these queue pairs are handed to this session.
    pub(crate) fn enter(&self, ids: &[PeerId], session: P::Session) -> Arc<Mutex<P::Session>> {
        let session = Arc::new(Mutex::new(session));
        for &id in ids {
            lock(&self.sessions).insert(id, Arc::clone(&session));
        }
        session
    }

    /// From now on, arrivals at these queue pairs are ignored.
    pub(crate) fn leave(&self, ids: &[PeerId]) {
        for id in ids {
            lock(&self.sessions).remove(id);
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((mut stream, _)) = listener.accept() {
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            let Ok(again) = stream.try_clone() else { continue };
            let thread = spawn(self, move |device| {
                if let Err(error) = device.primary.serve(device, &mut stream) {
                    eprintln!("a client of the test primary is gone: {error}");
                }
                // a socket that is closed already is fine, too
                let _ = stream.shutdown(Shutdown::Both);
            });
            lock(&self.life_lines).push((again, thread));
        }
    }

    /// Serves the device until the primary stops, in the way of a command thread.
    fn service(&self) -> io::Result<()> {
        let mut poll = mio::Poll::new()?;
        let fd = self.host.fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), mio::Token(0), mio::Interest::READABLE)?;
        let (mut events, mut arrivals) = (mio::Events::with_capacity(1), Vec::new());
        let mut is_armed = false;
        while !self.stopping.load(Ordering::SeqCst) {
            arrivals.clear();
            self.host.poll(&mut arrivals).map_err(io::Error::other)?;
            for arrival in &arrivals {
                let session = lock(&self.sessions).get(&arrival.peer()).map(Arc::clone);
                if let Some(session) = session {
                    if let Err(error) = self.primary.arrived(&mut lock(&session), arrival) {
                        eprintln!("the channel of a test client has ended: {error}");
                    }
                }
            }
            if !arrivals.is_empty() {
                is_armed = false;
            } else if !is_armed {
                self.host.arm().map_err(io::Error::other)?;
                is_armed = true; // the loop must look for arrivals once more before it sleeps
            } else {
                match poll.poll(&mut events, Some(SLEEP_MAX)) {
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                    _ => drop(self.host.take_events().map_err(io::Error::other)?),
                }
                is_armed = false;
            }
        }
        Ok(())
    }
}

/// Reads the first frame of a connection, which must be an `Attach` over this fabric.
pub(crate) fn first_attach(
    fabric: FabricKind,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Attach> {
    let mut buffer = FrameBuffer::new();
    loop {
        let len = read(buffer.space())?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.filled(len);
        let Some((kind, payload)) = buffer.next().map_err(io::Error::other)? else { continue };
        return match codec::decode(kind, payload).map_err(io::Error::other)? {
            Frame::Attach(attach) if attach.fabric == fabric => Ok(attach),
            _ => Err(io::Error::other("a frame out of place")),
        };
    }
}

/// How a liveness connection has ended; `read`: the result of the read from it.
pub(crate) fn ended(read: io::Result<usize>) -> io::Result<()> {
    match read {
        Ok(0) => Ok(()),
        Ok(_) => Err(io::Error::other("bytes on the life line")),
        Err(error) => Err(error),
    }
}
