// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a session at a primary that no instance uses yet: connection, registration, data path.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::NS;
use dlock_core::ids::ClientId;
use dlock_core::membership::SHOW_WAIT_NS;
use dlock_core::session;
use dlock_core::wire::control::{
    ControlReply, ControlRequest, Secret, Session, VERSION, VERSION_MIN,
};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_fabric::ClockEstimate;
use log::Level;

use super::{call_on, done, SessionState};
use crate::attach::{attach, wrapped, Wrap};
use crate::config::ClientConfig;
use crate::control::{CallError, Control, Patience, CONTROL_WAIT};
use crate::driver::heartbeat::Pulse;
use crate::fabrics::{Attached, Place};
use crate::host::{Address, Removal, Unreached};
use crate::logged_once::LoggedOnce;

/// A session that the primary has granted. A session after `Reinit` is only prepared: it replaces
/// the old one once the client has [shown](Self::show) it.
pub(super) struct Joined {
    pub(super) client: ClientId,
    pub(super) control: Control,
    pub(super) link: SessionState,
    /// From this time on the primary has surely dropped a prepared session; until then the session
    /// may replace the old one.
    until_ns: u64,
}

/// Why, as far as this client knows, a prepared session has not replaced the old one.
pub(super) enum Unshown {
    /// The connection ended; the primary may have received the request.
    Cut,
    /// The primary refused the request, or did not answer until the session could not count any
    /// more.
    Failed(Status),
}

impl Joined {
    /// Shows the primary that this client has all answers, by a heartbeat on the new connection;
    /// then the primary ends the old session. `silence`: see [`Patience`].
    pub(super) fn show(&mut self, silence: Option<Duration>) -> Result<(), Unshown> {
        let until_ns = self.until_ns;
        match self.control.call_while_there(ControlRequest::Heartbeat, until_ns, silence) {
            // a recovering primary may answer `NotReady`
            Ok(ControlReply::Alive { .. } | ControlReply::Error(Status::NotReady)) => Ok(()),
            Ok(_) => Err(Unshown::Failed(Status::BadResponse)),
            Err(CallError::Transport) if boot_ns() < until_ns => Err(Unshown::Cut),
            Err(error) => Err(Unshown::Failed(error.status_of_init())),
        }
    }

    /// Leaves over this session; `NotReady`: the primary recovers, and does not wait for this
    /// client.
    pub(super) fn leave(&mut self) -> Status {
        let until_ns = deadline_in(CONTROL_WAIT);
        done(call_on(&mut self.control, ControlRequest::Deinit, until_ns))
    }
}

/// At which primary a session is made, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct To<'a> {
    pub(super) peer: &'a Address,
    pub(super) patience: Patience,
    /// The level at which a failure is logged.
    pub(super) level: Level,
    /// Failures that were already logged.
    pub(super) said: &'a LoggedOnce,
}

/// The request of a client that joins for the first time.
pub(super) fn init(config: &ClientConfig) -> ControlRequest {
    let (version_min, version_max) = (VERSION_MIN, VERSION);
    let horizon_s = config.effective_horizon_s();
    ControlRequest::Init {
        version_min,
        version_max,
        tp_mode: config.tp_mode,
        horizon_s,
        about: config.about(),
    }
}

/// The request of a client that comes back.
pub(super) fn reinit(config: &ClientConfig, client: ClientId, secret: Secret) -> ControlRequest {
    let (version_min, version_max) = (VERSION_MIN, VERSION);
    let (tp_mode, horizon_s) = (config.tp_mode, config.effective_horizon_s());
    let about = config.about();
    ControlRequest::Reinit { version_min, version_max, tp_mode, horizon_s, client, secret, about }
}

/// Connects, registers and attaches. `request` is `Init`, or the `Reinit` of the client `expected`.
pub(super) fn join(
    config: &ClientConfig,
    To { peer, patience, level, said }: To<'_>,
    request: ControlRequest,
    expected: Option<ClientId>,
    wrap: Option<&Wrap>,
) -> Result<Joined, Unreached> {
    let choice = config.effective_fabric()?;
    let tls = config.tls.material()?;
    let mut control = Control::connect(peer, patience, level, tls.as_ref())?;
    let sent_ns = boot_ns();
    let reply = control.call_while_there(request, patience.deadline(), patience.silence);
    let received_ns = boot_ns();
    let until_ns = deadline_in(Duration::from_nanos(SHOW_WAIT_NS));
    let reply =
        reply.map_err(|e| Unreached { why: control.why(e), ..e.status_of_init().into() })?;
    if let ControlReply::Error(status) = &reply {
        let peer = control.peer();
        said.log(level, format!("the primary at {peer} refuses this client: {status}"));
    }
    let mut removal = None;
    if let (ControlReply::Removed { by, now }, Some(client)) = (&reply, expected) {
        removal = Some(Removal { client, by: by.clone(), now: *now });
        let what = "what it held is lost, and may be given to others; it has to begin anew";
        let line = format!("client {client} was removed by an operator, {by:?}: {what}");
        said.log(log::Level::Error, line);
    }
    let session = session::accept(reply, expected)
        .map_err(|status| Unreached { removal, ..status.into() })?;
    let clock = ClockEstimate::from_exchange(sent_ns, received_ns, session.now);
    let (primary, tls, until_attached) = (control.peer(), tls.as_ref(), patience.until_ns);
    let place =
        Place { config, session: &session, primary, clock, tls, until_ns: Some(until_attached) };
    match attach(&place, choice, said) {
        Ok(Attached { exec, verbs }) => {
            let Session { client, secret, epoch, anchor_s, recovering, terms, .. } = session;
            log::info!("client {client}: data path over {}", exec.name());
            let pulse = Arc::new(Pulse::new(u64::from(terms.horizon_s) * NS, sent_ns));
            control.extends(&pulse);
            let exec = wrapped(wrap, exec);
            let link = SessionState {
                exec,
                verbs,
                client,
                epoch,
                anchor_s,
                secret,
                recovering,
                lapses: terms.lapses,
                pulse,
                asks_readers: config.exact_views,
            };
            Ok(Joined { client, control, link, until_ns })
        }
        Err(status) => {
            if expected.is_none() {
                // a client that could not join will not come back
                let _ = control.call(ControlRequest::Deinit, patience.deadline());
            }
            Err(status.into())
        }
    }
}
