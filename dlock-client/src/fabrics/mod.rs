// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabrics of a client's data path, a module each.
//!
//! ```text
//!   attach.rs ─ a kind ─▶ FABRICS ─▶ Fabric { attach, failure, .. } ─▶ executor (dlock-fabric)
//! ```
//! A new fabric is a module with its [`Fabric`], and a line in [`FABRICS`].

mod sealed;
mod shm;
mod tcp;
mod verbs;

use std::net::SocketAddr;
use std::sync::Arc;

use dlock_core::memory::exec::Executor;
use dlock_core::session::Failure;
use dlock_core::wire::control::{Attach, FabricKind, Session};
use dlock_core::wire::status::Status;
use dlock_fabric::tls::Tls;
use dlock_fabric::{ClockEstimate, FabricError, VerbsPath};
use log::Level;

use crate::config::ClientConfig;

/// Every fabric.
static FABRICS: &[&Fabric] = &[&verbs::FABRIC, &shm::FABRIC, &sealed::FABRIC, &tcp::FABRIC];

/// How a client uses one fabric.
pub(crate) struct Fabric {
    /// The kind of the fabric.
    pub(crate) kind: FabricKind,
    /// What the fabric gives a client, for messages: "no {what}".
    pub(crate) what: &'static str,
    /// The remedy if the configuration demands the fabric, and the primary does not offer it.
    pub(crate) remedy: &'static str,
    /// Attaches a session.
    pub(crate) attach: fn(&Place<'_>) -> Result<Attached, FabricError>,
    /// The meaning of an error of `attach`.
    pub(crate) failure: fn(&FabricError) -> Failure,
    /// At which level to log that the session goes on without this fabric.
    pub(crate) level: fn(&FabricError) -> Level,
}

/// The arguments with which a session is attached.
pub(crate) struct Place<'a> {
    pub(crate) config: &'a ClientConfig,
    pub(crate) session: &'a Session,
    pub(crate) primary: SocketAddr,
    /// The estimate of the server clock, from the answers on the control connection.
    pub(crate) clock: ClockEstimate,
    /// The certificates and the key, if the control connection uses TLS.
    pub(crate) tls: Option<&'a Tls>,
    /// When attaching must be over; `None`: each connection has a limit of its own.
    pub(crate) until_ns: Option<u64>,
}

/// The data path of a session.
pub(crate) struct Attached {
    /// The executor.
    pub(crate) exec: Arc<dyn Executor>,
    /// The same executor, with its own type, if it is that of verbs.
    pub(crate) verbs: Option<Arc<VerbsPath>>,
}

impl Fabric {
    /// The fabric of this kind.
    pub(crate) fn of(kind: FabricKind) -> &'static Fabric {
        let fabric = FABRICS.iter().copied().find(|fabric| fabric.kind == kind);
        fabric.expect("a test looks for every kind in the list")
    }
}

impl Place<'_> {
    /// The request that opens a command channel.
    fn request(&self, fabric: FabricKind) -> Attach {
        let Session { client, secret, .. } = *self.session;
        // the executor of verbs brings its queue pairs itself
        Attach { client, secret, fabric, verbs: None, returns: self.config.returns() }
    }
}

/// The meaning of an error for most fabrics.
fn failure_of(error: &FabricError) -> Failure {
    match error {
        FabricError::Refused(Status::NotReady) => Failure::NotReady,
        FabricError::Refused(Status::ServerNoResource) => Failure::NoRoom,
        _ => Failure::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fabric_is_in_the_list_once() {
        for kind in FabricKind::ALL {
            assert_eq!(FABRICS.iter().filter(|fabric| fabric.kind == kind).count(), 1, "{kind:?}");
            assert_eq!(Fabric::of(kind).kind, kind);
        }
    }
}
