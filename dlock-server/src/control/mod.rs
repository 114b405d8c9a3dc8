// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control thread: a runtime of one thread, with a task for every connection.
//!
//! ```text
//!   TCP listener ──▶ session::serve ─┬─ control connection ──── Event ──▶ command thread
//!                                    ├─ Attach ─▶ transports ── Guest ──▶ command thread
//!   a transport's ─▶ session::attach ┘
//!   admin socket ──▶ admin
//! ```
//! A peer that is silent, slow or sends rubbish costs a task and a small buffer, for ten seconds;
//! no other peer waits for it.

pub(crate) mod recovery;
pub(crate) mod secure;
mod session;
pub(crate) mod table;
pub(crate) mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::ids::ClientId;
use dlock_core::primary;
use dlock_core::roster::Kept;
use dlock_fabric::os::named;
use dlock_fabric::tls::Tls;
use log::Level;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::command::mailbox::{Event, Mailbox};
use crate::coordinator::Receipts;
use crate::host::capacity::FilesLeft;
use crate::host::clock::ServerClock;
use crate::observe::admin::{self, ServerInfo};
use crate::observe::admin_socket::{AdminListener, AdminSocket};
use crate::observe::json_lines;
use crate::observe::log_limit::{limited, Cause, LIMITS};
use crate::observe::snapshot::{ControlSnapshot, Published, PUBLISH_EVERY};
use crate::transport::{Opened, Transport};
pub use recovery::Recovery;
pub(crate) use table::{of_address, CONNECTIONS_MAX};
use table::{ConnectionPermit, Table};
pub(crate) use wire::refuse_attach;

/// A client's host that does not answer counts as dead after 60 s idle and 9 probes, 6 s apart.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_PROBES: u32 = 9;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(6);
/// Pause after a failed accept: the system has no room, and an accept at once would fail, too.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// To listen for the primary, the control thread polls its sockets this often, each time after a
/// pause. The first poll accepts a waiting connection, the second reads its request, and two more
/// are for a busy host. The primary ends a silent client only if this was done after the client's
/// horizon.
const LISTEN_POLLS: u32 = 4;
const LISTEN_PAUSE: Duration = Duration::from_millis(25);
/// One poll can report every connection, those of operators, and the listeners.
const EVENTS_A_POLL: usize = CONNECTIONS_MAX + json_lines::CONNECTIONS_MAX + 16;

/// The parts of the control thread. The listeners are nonblocking.
pub(crate) struct Parts {
    pub(crate) tcp: TcpListener,
    pub(crate) transports: Vec<Opened>,
    pub(crate) admin: Option<(AdminSocket, UnixListener)>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) info: ServerInfo,
    /// The TLS of the port's connections; `None`: they have none.
    pub(crate) tls: Option<Tls>,
    /// The descriptors that are left for connections without a client.
    pub(crate) files: Arc<FilesLeft>,
    /// Reports which changes of the roster are written.
    pub(crate) receipts: Receipts,
    /// The predecessor's clients.
    pub(crate) awaited: Vec<(ClientId, Kept)>,
    /// Where to publish what the metrics show; `None`: they are not shown.
    pub(crate) published: Option<Arc<Published>>,
    /// Notified when the thread is to end.
    pub(crate) stop: Arc<Notify>,
}

/// The listeners, registered with the runtime.
pub(crate) struct Listeners {
    tcp: tokio::net::TcpListener,
    /// Transports that have a listener of their own.
    own: Vec<(tokio::net::UnixListener, Arc<dyn Transport>)>,
    /// Transports whose clients come to the port.
    at_port: Arc<[Arc<dyn Transport>]>,
    admin: Option<AdminListener>,
    mailbox: Arc<Mailbox>,
    info: ServerInfo,
    tls: Option<Tls>,
    files: Arc<FilesLeft>,
    receipts: Receipts,
    awaited: Vec<(ClientId, Kept)>,
    published: Option<Arc<Published>>,
    stop: Arc<Notify>,
}

/// A runtime of one thread: the one that calls `block_on`.
pub(crate) fn runtime() -> io::Result<Runtime> {
    crate::runtime(|builder| builder.max_io_events_per_tick(EVENTS_A_POLL))
}

/// Registers the listeners with the runtime.
pub(crate) fn prepare(runtime: &Runtime, parts: Parts) -> io::Result<Listeners> {
    let _guard = runtime.enter();
    let refused = |error| named("fcntl, epoll_ctl", error);
    let unix = |listener| tokio::net::UnixListener::from_std(listener).map_err(refused);
    let (mut own, mut at_port) = (Vec::new(), Vec::new());
    for Opened { transport, listener } in parts.transports {
        match listener {
            Some(listener) => own.push((unix(listener)?, transport)),
            None => at_port.push(transport),
        }
    }
    Ok(Listeners {
        tcp: tokio::net::TcpListener::from_std(parts.tcp).map_err(refused)?,
        own,
        at_port: at_port.into(),
        admin: parts.admin.map(AdminListener::new).transpose().map_err(refused)?,
        mailbox: parts.mailbox,
        info: parts.info,
        tls: parts.tls,
        files: parts.files,
        receipts: parts.receipts,
        awaited: parts.awaited,
        published: parts.published,
        stop: parts.stop,
    })
}

/// Serves until it is stopped. Dropping the runtime afterwards closes every connection.
pub(crate) fn run(runtime: &Runtime, listeners: Listeners) {
    let Listeners { tcp, own, at_port, admin, mailbox, info, tls, .. } = listeners;
    let Listeners { files, receipts, awaited, published, stop, .. } = listeners;
    let table = Table::new(files);
    runtime.block_on(async {
        tokio::spawn(LIMITS.report());
        tokio::spawn(listen(mailbox.clone()));
        tokio::spawn(recovery::watch(mailbox.clone(), info.clock, awaited));
        tokio::spawn(replaced(mailbox.clone(), receipts.clone()));
        if let Some(tls) = tls.clone() {
            tokio::spawn(secure::watch(tls, mailbox.clone()));
        }
        if let Some(published) = published {
            tokio::spawn(publish(published, table.clone(), receipts.clone()));
        }
        let (mail, clock) = (mailbox.clone(), info.clock);
        let service = Service { mailbox: mail, at_port, receipts, clock, tls };
        tokio::spawn(accept_tcp(tcp, table.clone(), service));
        for (listener, transport) in own {
            tokio::spawn(accept_own(listener, table.clone(), mailbox.clone(), transport));
        }
        if let Some(admin) = admin {
            tokio::spawn(admin::serve(admin, info, table, mailbox));
        }
        stop.notified().await;
    });
}

/// Publishes what the metrics show of this thread. Never returns.
async fn publish(published: Arc<Published>, table: Arc<Table>, receipts: Receipts) {
    loop {
        let [connections, of_clients, handshakes] = table.counts();
        let (at, roster_fails) = (std::time::Instant::now(), receipts.is_failing());
        let seen = ControlSnapshot { at, connections, of_clients, handshakes, roster_fails };
        published.control_is(seen);
        tokio::time::sleep(PUBLISH_EVERY).await;
    }
}

/// Ends this primary if another one has taken its place. That may happen while this one is stopped.
async fn replaced(mailbox: Arc<Mailbox>, receipts: Receipts) {
    receipts.replaced().await;
    mailbox.stop_because("another primary has taken its place, and has its state file");
}

/// Each time the command thread asks for it, reports that all events that had arrived by then are
/// sent. The runtime polls the sockets before the timers, and runs tasks whose sockets are readable
/// before tasks whose timers have expired. So those tasks have sent their events before this one
/// does.
async fn listen(mailbox: Arc<Mailbox>) {
    loop {
        mailbox.asked_to_listen().await;
        for _ in 0..LISTEN_POLLS {
            tokio::time::sleep(LISTEN_PAUSE).await;
        }
        if mailbox.send(Event::tell(vec![primary::Event::Listened])).await.is_err() {
            return; // the command thread has ended
        }
    }
}

/// The data that the tasks of the port's connections share.
#[derive(Clone)]
pub(super) struct Service {
    mailbox: Arc<Mailbox>,
    at_port: Arc<[Arc<dyn Transport>]>,
    receipts: Receipts,
    clock: ServerClock,
    /// The TLS of the port's connections; `None`: they have none.
    tls: Option<Tls>,
}

async fn accept_tcp(listener: tokio::net::TcpListener, table: Arc<Table>, service: Service) {
    loop {
        let accepted = listener.accept().await;
        let of = |from: &SocketAddr| Some(from.ip());
        let Some((stream, from, permit)) = seated(accepted, of, &table).await else { continue };
        if let Err(error) = set_options(&stream) {
            log::debug!("a connection was lost at once: {error}");
            continue;
        }
        tokio::spawn(session::serve(stream, from, permit, service.clone()));
    }
}

async fn accept_own(
    listener: tokio::net::UnixListener,
    table: Arc<Table>,
    mailbox: Arc<Mailbox>,
    transport: Arc<dyn Transport>,
) {
    loop {
        let accepted = listener.accept().await;
        let Some((stream, _, permit)) = seated(accepted, |_| None, &table).await else { continue };
        tokio::spawn(session::attach(Box::new(stream), permit, mailbox.clone(), transport.clone()));
    }
}

/// An accepted connection, with the peer's address and its permit. `None`: the connection was
/// refused, or the accept failed.
async fn seated<S, A>(
    accepted: io::Result<(S, A)>,
    address: impl Fn(&A) -> Option<IpAddr>,
    table: &Arc<Table>,
) -> Option<(S, A, ConnectionPermit)> {
    match accepted {
        Ok((stream, from)) => {
            let permit = table.permit(address(&from));
            if let Err(why) = &permit {
                limited!(Cause::TableFull, Level::Warn, "a connection is refused: {why}");
            }
            Some((stream, from, permit.ok()?))
        }
        Err(error) => {
            let freed = table.close_silent();
            limited!(
                Cause::NotAccepted,
                Level::Warn,
                "a connection cannot be accepted: {error}; {} open, {}",
                table.len(),
                if freed { "a silent one is closed" } else { "raise the file limit (ulimit -n)" }
            );
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
