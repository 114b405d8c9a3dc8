// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `dlockd` tells the service manager that started it (sd_notify(3)). Started by a person it
//! tells nobody.
//!
//! ```text
//!   standby waits ─▶ READY, STATUS    primary serves ─▶ READY, STATUS
//!   SIGHUP ─▶ RELOADING, then READY   SIGTERM, SIGINT ─▶ STOPPING
//!   both threads have answered ─▶ WATCHDOG, four times in the time that the manager waits
//! ```

use std::time::Duration;

use dlock_server::Server;
use sd_notify::NotifyState;

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
        let patience = sd_notify::watchdog_enabled().filter(|_| listens);
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

    fn tell(self, what: &[NotifyState<'_>]) {
        if !self.listens {
            return;
        }
        if let Err(error) = sd_notify::notify(what) {
            log::warn!("the service manager cannot be told {what:?}: {error}");
        }
    }
}
