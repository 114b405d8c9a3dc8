// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the HTTP endpoint says of this process: its role, and whether it works.
//!
//! ```text
//!   Starting ──▶ Standby ──▶ Starting ──▶ Primary ──▶ Starting (it has stopped, or has failed)
//!       └──────────────────────────────────▲
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_fabric::os::sink;
use dlock_fabric::os::threads::ProcessLimits;
use dlock_fabric::tls::{Ending, Tls};

use super::admin::ServerInfo;
use super::log_limit::LIMITS;
use super::snapshot::{ControlSnapshot, Published, Snapshot, LATE};
use crate::command::mailbox::Mailbox;
use crate::host::capacity::Capacity;

/// The role of this process.
#[derive(Debug)]
pub(crate) enum Role {
    /// It is not yet a primary or a standby, or is none any more.
    Starting,
    Standby(WatchesStandby),
    Primary(Box<PrimaryParts>),
}

/// Where the state of a standby is seen.
pub(crate) struct WatchesStandby(pub(crate) Box<dyn Fn() -> StandbyView + Send + Sync>);

impl fmt::Debug for WatchesStandby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a standby")
    }
}

/// Where the state of a primary is seen.
#[derive(Clone, Debug)]
pub(crate) struct PrimaryParts {
    pub(crate) info: ServerInfo,
    pub(crate) capacity: Capacity,
    pub(crate) locks_max: usize,
    pub(crate) objects_max: usize,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) published: Arc<Published>,
}

/// A standby at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StandbyView {
    pub(crate) was_heard: bool,
    pub(crate) silent_ms: u64,
    pub(crate) has_place: bool,
}

/// A primary at one moment.
#[derive(Debug)]
pub(crate) struct PrimaryView {
    pub(crate) parts: PrimaryParts,
    pub(crate) command: Option<Arc<Snapshot>>,
    pub(crate) control: Option<Arc<ControlSnapshot>>,
}

impl std::ops::Deref for PrimaryView {
    type Target = PrimaryParts;

    fn deref(&self) -> &PrimaryParts {
        &self.parts
    }
}

/// What a request sees: the process at one moment.
#[derive(Debug)]
pub(crate) struct View {
    role: RoleView,
    pub(crate) endings: Vec<Ending>,
    pub(crate) left_out: Vec<(&'static str, u64)>,
    pub(crate) lines_lost: u64,
    pub(crate) limits: Option<ProcessLimits>,
}

#[derive(Debug)]
enum RoleView {
    Starting,
    Standby(StandbyView),
    Primary(Box<PrimaryView>),
}

impl View {
    pub(crate) fn of(role: &Role, tls: Option<&Tls>) -> Self {
        let role = match role {
            Role::Starting => RoleView::Starting,
            Role::Standby(watches) => RoleView::Standby((watches.0)()),
            Role::Primary(parts) if parts.mailbox.has_ended() => RoleView::Starting,
            Role::Primary(parts) => RoleView::Primary(Box::new(PrimaryView {
                parts: PrimaryParts::clone(parts),
                command: parts.published.command.load_full(),
                control: parts.published.control.load_full(),
            })),
        };
        Self {
            role,
            endings: tls.map(Tls::endings).unwrap_or_default(),
            left_out: LIMITS.left_out_totals().to_vec(),
            lines_lost: sink::lost_total(),
            limits: ProcessLimits::of_this_process().ok(),
        }
    }

    pub(crate) fn primary(&self) -> Option<&PrimaryView> {
        match &self.role {
            RoleView::Primary(primary) => Some(primary),
            RoleView::Starting | RoleView::Standby(_) => None,
        }
    }

    pub(crate) fn standby(&self) -> Option<&StandbyView> {
        match &self.role {
            RoleView::Standby(standby) => Some(standby),
            RoleView::Starting | RoleView::Primary(_) => None,
        }
    }
}

/// The answer to a question whether something is so: the reason, for people.
pub(crate) type Verdict = Result<String, String>;

/// Whether this process is the primary.
pub(crate) fn is_primary(role: &Role) -> Verdict {
    match role {
        Role::Primary(parts) if parts.mailbox.has_ended() => Err("the primary has ended".into()),
        Role::Primary(parts) => Ok(format!("primary at {}", parts.info.address)),
        Role::Standby(_) => Err("standby".into()),
        Role::Starting => Err("neither primary nor standby".into()),
    }
}

/// Whether this process waits for the place of a primary.
pub(crate) fn is_standby(role: &Role) -> Verdict {
    match role {
        Role::Standby(_) => Ok("standby".into()),
        Role::Primary(_) => Err("primary".into()),
        Role::Starting => Err("neither primary nor standby".into()),
    }
}

/// Whether this process works: if not, it should be started again.
pub(crate) fn is_alive(role: &Role) -> Verdict {
    let Role::Primary(parts) = role else { return Ok("alive".into()) };
    if parts.mailbox.has_ended() {
        return Err("the command thread has ended".into());
    }
    let started = parts.info.started;
    let at = |seen: Option<Instant>| seen.unwrap_or(started).elapsed();
    let command = at(parts.published.command.load().as_ref().map(|seen| seen.at));
    let control = at(parts.published.control.load().as_ref().map(|seen| seen.at));
    let late = |thread: &str, age: Duration| {
        format!("the {thread} thread has not shown up for {} s", age.as_secs())
    };
    match () {
        () if command >= LATE && !parts.mailbox.is_out() => Err(late("command", command)),
        () if control >= LATE => Err(late("control", control)),
        () => Ok("alive".into()),
    }
}

/// Whether clients are served; a standby that waits does what it is to do.
pub(crate) fn is_ready(role: &Role) -> Verdict {
    let parts = match role {
        Role::Starting => return Err("starting".into()),
        Role::Standby(watches) if (watches.0)().has_place => {
            return Err(
                "it has taken the place of the primary, and cannot serve: see its log".into()
            );
        }
        Role::Standby(_) => return Ok("standby".into()),
        Role::Primary(parts) => parts,
    };
    is_alive(role)?;
    if parts.mailbox.is_out() {
        return Err("the primary waits for its RDMA device".into());
    }
    let seen = parts.published.command.load_full().ok_or("starting")?;
    match (&seen.recovery, seen.is_draining) {
        (Some(recovery), _) => {
            Err(format!("recovering: {} of {} clients are back", recovery.back, recovery.expected))
        }
        (None, true) => Err("draining".into()),
        (None, false) => Ok("serving".into()),
    }
}
