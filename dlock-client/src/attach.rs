// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives a session its data path.
//!
//! ```text
//!   PathSearch (dlock-core: which fabric, and whether another will do if it fails)
//!     next_kind ─▶ Fabric::attach ─ Ok ──▶ the session's executor
//!         ▲                       └─ Err ─▶ failed ─▶ the next kind, or no session
//!         └──────────────────────────────────┘
//! ```

use std::sync::Arc;

use dlock_core::memory::exec::Executor;
use dlock_core::session::PathSearch;
use dlock_core::wire::status::Status;
use log::Level;

use crate::config::FabricChoice;
use crate::fabrics::{Attached, Fabric, Place};
use crate::logged_once::LoggedOnce;

/// A test's function that replaces the executor of a session.
#[cfg(feature = "fault-injection")]
pub type Wrap = Arc<dyn Fn(Arc<dyn Executor>) -> Arc<dyn Executor> + Send + Sync>;
/// Without the feature `fault-injection` there is no value of this type.
#[cfg(not(feature = "fault-injection"))]
pub(crate) type Wrap = std::convert::Infallible;

/// Returns the executor that the session uses: `exec`, or the one that the test's function returns.
pub(crate) fn wrapped(wrap: Option<&Wrap>, exec: Arc<dyn Executor>) -> Arc<dyn Executor> {
    match wrap {
        None => exec,
        #[cfg(feature = "fault-injection")]
        Some(wrap) => wrap(exec),
        #[cfg(not(feature = "fault-injection"))]
        Some(&never) => match never {},
    }
}

/// Gives a session its data path.
///
/// # Errors
/// `NotReady` (the primary recovers, and its clients cannot attach yet), `ServerNoResource` (the
/// primary has no room for another client of this fabric), `Error`. The log has the cause and its
/// remedy.
pub(crate) fn attach(
    place: &Place<'_>,
    choice: FabricChoice,
    said: &LoggedOnce,
) -> Result<Attached, Status> {
    let Place { config, session, primary, .. } = *place;
    let mut search = PathSearch::new(choice, config.device.is_some(), session);
    for kind in search.missing() {
        let Fabric { what, remedy, .. } = Fabric::of(kind);
        if choice == FabricChoice::Only(kind) {
            let reason = format!("the primary at {primary} offers no {what}; {remedy}");
            said.log(Level::Error, reason);
        } else if let (true, Some(device)) = (search.is_demanded(kind), &config.device) {
            log::info!("device {device} is not used: the primary offers no {what}");
        } else {
            log::debug!("the primary at {primary} offers no {what}");
        }
    }
    while let Some(kind) = search.next_kind() {
        let fabric = Fabric::of(kind);
        let error = match (fabric.attach)(place) {
            Ok(attached) => return Ok(attached),
            Err(error) => error,
        };
        let (client, what) = (session.client, fabric.what);
        if let Err(status) = search.failed(kind, (fabric.failure)(&error)) {
            said.log(Level::Error, format!("client {client} has no {what}: {error}"));
            return Err(status);
        }
        let level = (fabric.level)(&error);
        let reason = format!("client {client} has no {what}, and tries another fabric: {error}");
        said.log(level, reason);
    }
    let client = session.client;
    said.log(Level::Error, format!("client {client} has no data path to the primary at {primary}"));
    Err(search.exhausted())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread::JoinHandle;

    use dlock_core::clock::ServerTime;
    use dlock_core::ids::{ClientId, Epoch};
    use dlock_core::wire::codec::{self, Frame};
    use dlock_core::wire::control::{
        Attached as Answer, FabricKind, Offers, Secret, Session, Terms, VERSION,
    };
    use dlock_fabric::ClockEstimate;

    use super::*;
    use crate::config::ClientConfig;

    /// Starts a primary that answers one attach over shared memory with this status. It also offers
    /// tcp, on a closed port.
    fn refusing(status: Status, name: &str) -> (Session, JoinHandle<()>) {
        let name = format!("dlock-attach-{name}-{}", std::process::id()).into_bytes();
        let listener = dlock_fabric::os::net::listen_abstract(&name).unwrap();
        let primary = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            codec::encode(&Frame::Attached(Answer::bare(status)), &mut bytes);
            stream.write_all(&bytes).unwrap();
            while stream.read(&mut [0; 256]).is_ok_and(|len| len > 0) {}
        });
        let session = Session {
            version: VERSION,
            client: ClientId::new(7).unwrap(),
            secret: Secret([1; 16]),
            epoch: Epoch(3),
            anchor_s: 100,
            now: ServerTime(0),
            recovering: true,
            offers: Offers::none().with(FabricKind::Shm, &name).with(FabricKind::Tcp, &[]),
            terms: Terms::UNLIMITED,
        };
        (session, primary)
    }

    fn attached(choice: FabricChoice, session: &Session) -> Option<Status> {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let clock = ClockEstimate::from_exchange(0, 0, ServerTime(0));
        let config = ClientConfig::default();
        let place =
            Place { config: &config, session, primary: nowhere, clock, tls: None, until_ns: None };
        attach(&place, choice, &LoggedOnce::default()).err()
    }

    #[test]
    fn a_named_shm_that_is_refused_while_the_primary_recovers_may_be_asked_for_again() {
        for (status, wanted) in
            [(Status::NotReady, Status::NotReady), (Status::ClientRemoved, Status::Error)]
        {
            let (session, primary) = refusing(status, "named");
            assert_eq!(attached(FabricChoice::Shm, &session), Some(wanted), "{status}");
            primary.join().unwrap();
        }
    }

    #[test]
    fn without_a_demand_the_next_executor_is_tried_and_its_failure_does_not_hide_not_ready() {
        let (session, primary) = refusing(Status::NotReady, "auto");
        assert_eq!(attached(FabricChoice::Auto, &session), Some(Status::NotReady));
        primary.join().unwrap();
        let (session, primary) = refusing(Status::Error, "auto");
        assert_eq!(attached(FabricChoice::Auto, &session), Some(Status::Error));
        primary.join().unwrap();
    }

    #[test]
    fn what_the_primary_does_not_offer_is_not_tried() {
        let (session, primary) = refusing(Status::Error, "not offered");
        let bare = Session { offers: Offers::none(), ..session.clone() };
        for choice in FabricChoice::all() {
            assert_eq!(attached(choice, &bare), Some(Status::Error), "{choice:?}");
        }
        assert_eq!(attached(FabricChoice::Shm, &session), Some(Status::Error));
        primary.join().unwrap(); // the primary has ended after one attach
    }
}
