// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `dlockd` tells the service manager that started it (sd_notify(3)). Started by a person it
//! tells nobody.
//!
//! ```text
//!   standby waits ─▶ READY, STATUS    primary listens ─▶ READY, STATUS: how far its recovery is
//!   recovery goes on ─▶ STATUS        it is over ─▶ STATUS: serves
//!   SIGHUP ─▶ RELOADING, then READY   SIGTERM, SIGINT ─▶ STOPPING
//!   both threads have answered ─▶ WATCHDOG, four times in the time that the manager waits
//! ```

use std::cell::RefCell;
use std::time::Duration;

use dlock_server::Server;
use sd_notify::NotifyState;

/// Between two looks at a recovery.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pings in the time after which the manager takes this process for dead.
const PINGS: u32 = 4;

/// The service manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manager {
    /// It started this process, and wants to be told.
    listens: bool,
    /// After this long without a ping it takes this process for dead.
    patience: Option<Duration>,
}

impl Manager {
    /// As the environment says.
    pub(crate) fn of_this_process() -> Self {
        let listens = std::env::var_os("NOTIFY_SOCKET").is_some();
        let is_asked = |patience: &Duration| listens && !patience.is_zero();
        let patience = sd_notify::watchdog_enabled().filter(is_asked);
        Self { listens, patience }
    }

    /// Whether a service manager started this process.
    pub(crate) fn is_there(self) -> bool {
        self.listens
    }

    /// This process does what it is for, and `status` says what that is.
    pub(crate) fn ready(self, status: &str) {
        self.tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// What was configured is read again; [`ready`](Self::ready) ends that.
    pub(crate) fn reloading(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => log::warn!("the service manager is not told of a reload: {error}"),
        }
    }

    /// It ends because it was asked to.
    pub(crate) fn stopping(self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// Pings without end, each time that the primary has answered: not for one that is stuck.
    pub(crate) async fn watches(self, server: &Server) {
        self.pings(|| server.responds()).await;
    }

    /// The same for a standby: it lives in the thread that this runs in.
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

    /// A primary is ready, and says once more what it does when that changes: it recovers, and then
    /// serves. `status` is what it has said. Goes on without end.
    pub(crate) async fn follows(self, server: &Server, serves: &str, status: &RefCell<String>) {
        loop {
            let recovery = server.recovery().await;
            let now = recovery.map_or_else(|| serves.to_string(), |recovery| recovery.to_string());
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
        if !self.listens {
            return;
        }
        if let Err(error) = sd_notify::notify(what) {
            log::warn!("the service manager cannot be told {what:?}: {error}");
        }
    }
}
