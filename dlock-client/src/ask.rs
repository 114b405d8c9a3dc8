// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks a primary a question without being its client.

use std::time::Duration;

use dlock_core::session::Heard;
use dlock_core::wire::control::{ControlReply, ControlRequest};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_fabric::tls::Tls;

use crate::control::{CallError, Control, Patience};
use crate::host::Address;

/// Asks, without being a client, whether there is a primary at this address. Connecting and the
/// answer may take `wait` together.
///
/// # Errors
/// The reason why there is no answer, in a few words.
pub(crate) fn ask(peer: &Address, wait: Duration, tls: Option<&Tls>) -> Result<Heard, String> {
    let until_ns = deadline_in(wait);
    let patience = Patience { until_ns, ..Patience::OF_CALL };
    let connected = Control::connect(peer, patience, log::Level::Debug, tls);
    let mut control = connected.map_err(|unreached| unreached.why)?;
    let why = match control.call(ControlRequest::Heartbeat, until_ns) {
        Ok(ControlReply::Alive { recovering: true, .. }) => return Ok(Heard::Recovers),
        Ok(ControlReply::Error(Status::NotReady)) => "it is not ready",
        Ok(_) => return Ok(Heard::Serves),
        Err(CallError::Transport) if boot_ns() < until_ns => "it has closed the connection",
        Err(CallError::Transport) => "it is stopped or busy: it has taken the connection alone",
        Err(CallError::Foreign | CallError::Protocol) => {
            "it is no dlock primary, or one that wants TLS (DLOCK_TLS_CA)"
        }
    };
    Err(control.why.unwrap_or_else(|| why.into()))
}
