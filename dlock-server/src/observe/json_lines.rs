// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Unix stream socket for operators: each line of JSON is answered by a line of JSON. The mode of
//! its file (`admin_socket.rs`) says who may use it: the user of this process, root, and its group
//! if that is configured.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use parking_lot::Mutex;
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::control::ACCEPT_PAUSE;
use crate::observe::admin_socket::AdminListener;
use crate::observe::log_limit::{limited, Cause};

/// Connections at a time.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// Bytes of a request line.
const LINE_MAX: u64 = 4 * 1024;
/// The most bytes that are read of a longer line after its answer.
const DISCARDED_MAX: u64 = 64 * 1024;
/// How long a connection may be silent, and a reply may stay unread.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// The process at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) uid: u32,
    /// `None`: the process is not in this process's namespace.
    pub(crate) pid: Option<i32>,
}

/// The part that answers operators.
pub(crate) trait Answers: Send + Sync + 'static {
    /// The answer to a line.
    fn reply(&self, line: &[u8], asker: Asker) -> impl Future<Output = Value> + Send;
}

/// An answer with `ok` false, and the reason.
pub(crate) fn failure(why: &str) -> Value {
    json!({ "ok": false, "error": why })
}

/// Serves the socket without end. If a connection comes and there is no room, closes the one whose
/// peer has been silent for longest.
pub(crate) async fn serve(mut listener: AdminListener, endpoint: Arc<impl Answers>) {
    let room = Arc::new(Room::default());
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let permit = room.permit().await;
                let (endpoint, room) = (endpoint.clone(), room.clone());
                tokio::spawn(async move {
                    let silent = Silent { room: &room, closed: Arc::default() };
                    if let Err(error) = converse(stream, &*endpoint, &silent).await {
                        log::debug!("an admin connection has ended: {error}");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                limited!(
                    Cause::Admin,
                    Level::Warn,
                    "an admin connection cannot be accepted: {error}"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The limited places for connections.
struct Room {
    permits: Arc<Semaphore>,
    /// Connections that wait for their peers, and have nothing to answer.
    silent: Mutex<BTreeMap<u64, Arc<Notify>>>,
    /// Notified when a connection is added to `silent`.
    is_silent: Notify,
    next: AtomicU64,
}

impl Default for Room {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (silent, is_silent) = (Mutex::default(), Notify::new());
        Self { permits, silent, is_silent, next: AtomicU64::new(0) }
    }
}

impl Room {
    /// Takes a free place, or that of the connection whose peer has been silent for longest.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        loop {
            let longest = self.silent.lock().pop_first();
            if let Some((_, closed)) = longest {
                closed.notify_one();
                break;
            }
            tokio::select! {
                permit = self.permits.clone().acquire_owned() => return permit.ok(),
                () = self.is_silent.notified() => {}
            }
        }
        // the semaphore is never closed, so this is always a permit
        self.permits.clone().acquire_owned().await.ok()
    }
}

/// A connection that may be closed while it waits for its peer.
struct Silent<'a> {
    room: &'a Room,
    closed: Arc<Notify>,
}

impl Silent<'_> {
    /// Waits for the peer, at most [`IDLE_WAIT`]. Fails if the connection has to give its place to
    /// another one.
    async fn peer<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let number = self.room.next.fetch_add(1, Ordering::Relaxed);
        self.room.silent.lock().insert(number, self.closed.clone());
        self.room.is_silent.notify_one();
        let done = tokio::select! {
            biased;
            done = timeout(IDLE_WAIT, work) => done.map_err(io::Error::from).and_then(|done| done),
            () = self.closed.notified() => Err(io::Error::other("another one has its place")),
        };
        self.room.silent.lock().remove(&number);
        done
    }
}

async fn converse(
    mut stream: UnixStream,
    endpoint: &impl Answers,
    silent: &Silent<'_>,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let asker = Asker { uid: peer.uid(), pid: peer.pid().filter(|&pid| pid > 0) };
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut lines).take(LINE_MAX);
        silent.peer(bounded.read_until(b'\n', &mut line)).await?;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n");
        let mut reply = match whole {
            true => endpoint.reply(&line, asker).await.to_string(),
            false => failure("the request is longer than 4096 bytes, or has no end").to_string(),
        };
        reply.push('\n');
        silent.peer(write.write_all(reply.as_bytes())).await?;
        if !whole {
            // If the connection were closed before the end of the line, the sender's write would
            // fail, and it would not read the answer.
            let mut rest = (&mut lines).take(DISCARDED_MAX);
            line.clear();
            silent.peer(rest.read_until(b'\n', &mut line)).await?;
            return Ok(());
        }
    }
}
