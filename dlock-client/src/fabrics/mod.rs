// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabrics that a client can have its data path over, a module each.
//!
//! ```text
//!   attach.rs ─ a kind ─▶ FABRICS ─▶ Fabric { attach, failure, .. } ─▶ executor (dlock-fabric)
//! ```
//! A new one is a module with its [`Fabric`], and its line in [`FABRICS`].

mod sealed;
mod shm;
mod tcp;
mod verbs;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

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
    /// Which it is.
    pub(crate) kind: FabricKind,
    /// What it gives a client, for messages: "no {what}".
    pub(crate) what: &'static str,
    /// What helps if the configuration demands it, and the primary does not offer it.
    pub(crate) remedy: &'static str,
    /// Attaches a session.
    pub(crate) attach: fn(&Place<'_>) -> Result<Attached, FabricError>,
    /// What it means that it did not attach.
    pub(crate) failure: fn(&FabricError) -> Failure,
    /// How loudly the user is told that the session goes on without it.
    pub(crate) level: fn(&FabricError) -> Level,
}

/// What a session is attached with.
pub(crate) struct Place<'a> {
    pub(crate) config: &'a ClientConfig,
    pub(crate) session: &'a Session,
    pub(crate) primary: SocketAddr,
    /// As the control channel has told the server clock.
    pub(crate) clock: ClockEstimate,
    /// What the port is spoken to with.
    pub(crate) tls: Option<&'a Tls>,
    /// When it is over at the latest; `None`: when the time of a connection is.
    pub(crate) until: Option<Instant>,
}

/// A data path.
pub(crate) struct Attached {
    /// The executor.
    pub(crate) exec: Arc<dyn Executor>,
    /// The same, if it is that of verbs.
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
    /// The first frame of a command channel.
    fn request(&self, fabric: FabricKind) -> Attach {
        let Session { client, secret, .. } = *self.session;
        // the executor of verbs brings its queue pairs itself
        Attach { client, secret, fabric, verbs: None }
    }
}

/// What it means for most fabrics that they did not attach.
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
