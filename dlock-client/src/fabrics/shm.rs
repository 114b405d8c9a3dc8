// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory: for clients on the primary's own host.

use std::sync::Arc;

use dlock_core::control::FabricKind;
use dlock_fabric::{FabricError, ShmExecutor};
use log::Level;

use super::{failure_of, Attached, Fabric, Place};

pub(super) static FABRIC: Fabric = Fabric {
    kind: FabricKind::Shm,
    what: "shared memory",
    remedy: "allow tcp, or enable shm there",
    attach,
    failure: failure_of,
    // the usual case: the primary is on another host
    level: |_| Level::Info,
};

fn attach(place: &Place<'_>) -> Result<Attached, FabricError> {
    let socket = place.session.offers.place(FabricKind::Shm).unwrap_or_default();
    let exec = ShmExecutor::attach(socket, &place.request(FabricKind::Shm))?;
    Ok(Attached { exec: Arc::new(exec), verbs: None })
}
