// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDMA verbs: for clients whose RDMA port reaches the primary's.

use std::sync::Arc;

use dlock_core::session::Failure;
use dlock_core::wire::control::FabricKind;
use dlock_fabric::verbs::{self, VerbsError};
use dlock_fabric::{FabricError, VerbsOptions, VerbsPath};
use log::Level;

use super::{failure_of, Attached, Fabric, Place};
use crate::config::is_wrong_address;

/// `trans_mode_t` of the C API: one queue pair carries both chains and messages.
const UNI_CONN: u8 = 1;

pub(super) static FABRIC: Fabric = Fabric {
    kind: FabricKind::Verbs,
    what: "verbs",
    remedy:
        "start it on a host with an RDMA device; with TLS take sealed, or have it serve one-sided",
    attach,
    failure,
    level,
};

fn attach(place: &Place<'_>) -> Result<Attached, FabricError> {
    let Place { session, primary, clock, .. } = *place;
    let options = options(place)?;
    let request = place.request(FabricKind::Verbs);
    let path = VerbsPath::open(options, primary, request, clock, session.recovering)?;
    let path = Arc::new(path);
    Ok(Attached { exec: path.clone(), verbs: Some(path) })
}

/// The options of the executor. The port is the one that the configuration names, or else the first
/// that can be used.
pub(super) fn options(place: &Place<'_>) -> Result<VerbsOptions, FabricError> {
    let config = place.config;
    let (device, eid) = (config.device.clone(), config.eid);
    let chosen = verbs::choose(&verbs::devices()?, device.as_deref(), &eid);
    let chosen = chosen.map_err(VerbsError::from)?;
    log::debug!("verbs: device {}, port {}, GID {}", chosen.device, chosen.port, chosen.gid.gid);
    let shared_qp = config.tp_mode == UNI_CONN;
    let (tls, until_ns) = (place.tls.cloned(), place.until_ns);
    Ok(VerbsOptions { device, eid, shared_qp, tls, until_ns, ..VerbsOptions::default() })
}

pub(super) fn failure(error: &FabricError) -> Failure {
    match is_wrong_address(error) {
        true => Failure::WrongAddress,
        false => failure_of(error),
    }
}

/// The level at which a failure is logged: most hosts have no RDMA; a host that has RDMA but cannot
/// use it gets a warning.
pub(super) fn level(error: &FabricError) -> Level {
    match error.is_absent() {
        true => Level::Info,
        false => Level::Warn,
    }
}

#[cfg(test)]
mod tests {
    use dlock_fabric::verbs::{Gid, NoPort};

    use super::*;

    #[test]
    fn an_eid_that_no_port_has_is_told_from_a_host_without_ports() {
        let failed = |error: NoPort| failure(&VerbsError::NoPort(error).into());
        let strange = NoPort::NoSuchAddress { gid: Gid([9; 16]), ports: vec!["a0 port 1".into()] };
        assert_eq!(failed(strange), Failure::WrongAddress);
        assert_eq!(failed(NoPort::NoDevice), Failure::Other);
        assert_eq!(level(&VerbsError::NoPort(NoPort::NoDevice).into()), Level::Info);
    }
}
