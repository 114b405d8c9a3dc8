// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames over TCP, to the port of the control connection: for clients anywhere.

use std::sync::Arc;

use dlock_core::wire::control::FabricKind;
use dlock_fabric::{FabricError, TcpExecutor};
use log::Level;

use super::{failure_of, Attached, Fabric, Place};

pub(super) static FABRIC: Fabric = Fabric {
    kind: FabricKind::Tcp,
    what: "tcp data path",
    remedy: "enable it there",
    attach,
    failure: failure_of,
    level: |_| Level::Warn,
};

fn attach(place: &Place<'_>) -> Result<Attached, FabricError> {
    let request = place.request(FabricKind::Tcp);
    let Place { primary, tls, clock, until_ns, .. } = *place;
    let exec = TcpExecutor::attach_until(primary, tls, &request, clock, until_ns)?;
    Ok(Attached { exec: Arc::new(exec), verbs: None })
}
