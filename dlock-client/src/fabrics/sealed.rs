// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sealed frames over RDMA queue pairs: for clients with TLS whose RDMA port reaches the primary's.

use std::sync::Arc;

use dlock_core::wire::control::FabricKind;
use dlock_fabric::{FabricError, TcpExecutor};

use super::{verbs, Attached, Fabric, Place};

pub(super) static FABRIC: Fabric = Fabric {
    kind: FabricKind::Sealed,
    what: "sealed verbs",
    remedy: "start it with TLS on a host with an RDMA device",
    attach,
    failure: verbs::failure,
    level: verbs::level,
};

fn attach(place: &Place<'_>) -> Result<Attached, FabricError> {
    // a primary that offers this fabric has TLS, and so have its clients
    let tls = place.tls.ok_or(FabricError::Unexpected)?;
    let options = verbs::options(place)?;
    let request = place.request(FabricKind::Sealed);
    let exec = TcpExecutor::attach_over_verbs(&options, place.primary, tls, &request, place.clock)?;
    Ok(Attached { exec: Arc::new(exec), verbs: None })
}
