// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `dlockd` reports to the service manager that started it (sd_notify(3)); nothing, if a
//! person started it.
//!
//! ```text
//!   standby waits ─▶ READY, STATUS    primary listens ─▶ READY, STATUS: how far its recovery is
//!   recovery goes on ─▶ STATUS        it is over ─▶ STATUS: serves
//!   SIGHUP ─▶ RELOADING, then READY   SIGTERM, SIGINT ─▶ STOPPING
//!   both threads have answered ─▶ WATCHDOG, four times in the time that the manager waits
//! ```

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use dlock_server::Server;
use sd_notify::NotifyState;

/// The time between two checks of the progress of a recovery.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How many pings are sent in the time after which the manager takes this process for dead.
const PINGS: u32 = 4;
/// How long a message to a manager that does not read may take. It must be short, because the same
/// thread handles SIGTERM.
const SEND_PATIENCE: Duration = Duration::from_secs(1);

/// The service manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manager {
    /// Whether a service manager started this process and expects messages.
    listens: bool,
    /// The time without a ping after which the manager takes this process for dead; `None`: it
    /// expects no pings.
    patience: Option<Duration>,
}

impl Manager {
    /// The manager that the environment names.
    pub(crate) fn of_this_process() -> Self {
        let listens = std::env::var_os("NOTIFY_SOCKET").is_some();
        // a watchdog time of 0 means that the manager expects no pings
        let patience = sd_notify::watchdog_enabled().filter(|time| listens && !time.is_zero());
        Self { listens, patience }
    }

    /// Whether a service manager started this process.
    pub(crate) fn is_there(self) -> bool {
        self.listens
    }

    /// Reports that this process is ready; `status` says what it does.
    pub(crate) fn ready(self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Reports that the configuration is read again; [`ready`](Self::ready) ends that.
    pub(crate) fn reloading(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => log::warn!("the service manager is not told of a reload: {error}"),
        }
    }

    /// Reports that the process ends because it was asked to.
    pub(crate) fn stopping(self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// Pings each time that the primary has answered a question, so that a stuck primary does not
    /// ping. Never returns.
    pub(crate) async fn watches(self, server: &Server) {
        self.pings(|| server.responds()).await;
    }

    /// Pings for a standby, which works in the thread that runs this. Never returns.
    pub(crate) async fn watches_standby(self) {
        self.pings(|| std::future::ready(true)).await;
    }

    async fn pings<F: std::future::Future<Output = bool>>(self, responds: impl Fn() -> F) {
        let Some(patience) = self.patience else { return std::future::pending().await };
        loop {
            if responds().await {
                self.tell(&[NotifyState::Watchdog]);
            }
            tokio::time::sleep(patience / PINGS).await;
        }
    }

    /// Reports the status of a ready primary when it changes: it recovers, and then serves.
    /// `status` is the text that was reported last. Never returns.
    pub(crate) async fn follows(self, server: &Server, serves: &str, status: &RefCell<String>) {
        loop {
            let recovery = server.recovery().await;
            let now = recovery.as_ref().map_or_else(|| serves.to_string(), ToString::to_string);
            if status.replace(now.clone()) != now {
                self.tell(&[NotifyState::Status(&now)]);
            }
            if recovery.is_none() {
                return std::future::pending().await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn tell(self, what: &[NotifyState<'_>]) {
        let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|_| self.listens) else {
            return;
        };
        let mut message = String::new();
        for state in what {
            let _ = writeln!(message, "{state}"); // writing into a `String` cannot fail
        }
        if let Err(error) = send(&socket, message.as_bytes()) {
            log::warn!("the service manager cannot be told {what:?}: {error}");
        }
    }
}

/// Sends to a notification socket: a path, or an abstract name after `@`. `sd_notify::notify` knows
/// no such names, and waits without end for a manager that does not read.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_write_timeout(Some(SEND_PATIENCE))?;
    datagram.send_to_addr(message, &address).map(|_| ())
}
