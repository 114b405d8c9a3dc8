// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory: for clients on the primary's own host.

use std::sync::Arc;

use dlock_core::wire::control::FabricKind;
use dlock_core::wire::status::Status;
use dlock_fabric::{os::environment, os::users, FabricError, ShmExecutor};
use log::Level;

use super::{failure_of, Attached, Fabric, Place};

/// The environment variable that names the user of the primary's process, if that is not the
/// client's own user. The service runs as user `dlock`.
const PRIMARY_USER_VARIABLE: &str = "DLOCK_PRIMARY_USER";

pub(super) static FABRIC: Fabric = Fabric {
    kind: FabricKind::Shm,
    what: "shared memory",
    remedy: "allow tcp, or enable shm there",
    attach,
    failure: failure_of,
    level: |error| match error {
        FabricError::Refused(Status::ServerNoResource) => Level::Warn,
        _ => Level::Info, // the usual case: the primary is on another host
    },
};

fn attach(place: &Place<'_>) -> Result<Attached, FabricError> {
    let socket = place.session.offers.place(FabricKind::Shm).unwrap_or_default();
    let request = place.request(FabricKind::Shm);
    let Place { clock, until_ns, .. } = *place;
    let exec = ShmExecutor::attach_trusting(socket, &request, clock, &trusted(), until_ns)?;
    Ok(Attached { exec: Arc::new(exec), verbs: None })
}

/// The users, apart from the client's own and root, whose primaries' memory this client maps.
fn trusted() -> Vec<u32> {
    let Some(list) = environment::text(PRIMARY_USER_VARIABLE) else { return Vec::new() };
    users::uids(&list).unwrap_or_else(|why| {
        log::warn!("{PRIMARY_USER_VARIABLE} is not used: {why}");
        Vec::new()
    })
}
