// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that make queue pairs, and the places that keep one client from blocking others.
//!
//! ```text
//!   a place of the client ─▶ of its certificate or address ─▶ of all ─▶ of those at work ─▶ made
//!         1                     OF_ONE_MAX                     MAX        BUSY_MAX, for BUSY_TIME
//! ```
//! Making queue pairs takes milliseconds of work. Connecting them takes seconds of waiting if the
//! client gave an address without a host, perhaps on purpose: an admission that takes longer than
//! [`BUSY_TIME`] only waits, and gives its place at work to the next. Admissions wait in the order
//! in which they came, for each kind of place. An admission that has waited for as long as a client
//! waits for its answer is refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::ids::{ClientId, Identity};
use dlock_core::wire::control::{Attach, VerbsAttach};
use dlock_core::wire::status::Status;
use dlock_fabric::os::fds::is_open;
use dlock_fabric::{FabricError, VerbsHost};
use log::Level;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{timeout, timeout_at, Instant};

use super::{Conn, ATTACH_WAIT};
use crate::command::mailbox::{Event, Mailbox};
use crate::control::of_address;
use crate::host::blocking::on_a_thread;
use crate::observe::log_limit::{limited, Cause};

/// The most clients whose queue pairs are being made at a time.
const BUSY_MAX: usize = 4;
/// An admission that takes longer than this is waiting for an address to be resolved, and no longer
/// counts as work.
const BUSY_TIME: Duration = Duration::from_millis(250);
/// The most clients that are being admitted at a time; each has a thread.
pub(crate) const MAX: usize = 128;
/// The most of these clients with one certificate, or, without TLS, from one address.
const OF_ONE_MAX: usize = 8;

/// The device on which queue pairs are made, and the places for that.
#[derive(Debug)]
pub(super) struct Admissions {
    pub(super) host: Arc<VerbsHost>,
    pub(super) name: String,
    places: Places,
}

impl Admissions {
    /// Makes queue pairs on this device.
    pub(super) fn new((host, name): &(Arc<VerbsHost>, String)) -> Self {
        Self { host: host.clone(), name: name.clone(), places: Places::new() }
    }

    /// Calls `make` on a thread, for the queue pairs of a client that may attach.
    ///
    /// # Errors
    /// The status for the client.
    pub(super) async fn admit<T: Send + 'static>(
        &self,
        attach: &Attach,
        connection: &dyn Conn,
        mailbox: &Mailbox,
        make: impl FnOnce(&VerbsAttach) -> Result<T, FabricError> + Send + 'static,
    ) -> Result<T, Status> {
        let deadline = Instant::now() + ATTACH_WAIT;
        let identity = connection.identity();
        let wanted: VerbsAttach = attach.verbs.ok_or(Status::Error)?;
        if mailbox.is_out() {
            return Err(Status::NotReady);
        }
        let may = |reply| Event::MayAttach { attach: *attach, identity, reply };
        match mailbox.ask(may).await {
            Ok(Status::Success) => {}
            Ok(status) => return Err(status),
            Err(_) => return Err(Status::Error),
        }
        let (client, fabric) = (attach.client, attach.fabric);
        let place = self.places.take(client, who(connection));
        let Ok(mut place) = timeout_at(deadline, place).await else {
            limited!(
                Cause::NoResource,
                Level::Warn,
                "client {client} cannot attach over {fabric} yet: too many wait for addresses \
                 that nobody answers at (OF_ONE_MAX, {OF_ONE_MAX} of one)"
            );
            return Err(Status::NotReady);
        };
        if !is_open(connection.socket()) {
            return Err(Status::NotReady); // the client has closed the connection while it waited
        }
        let mut making = pin!(on_a_thread("queue-pairs", move || make(&wanted)));
        let made = match timeout(BUSY_TIME, &mut making).await {
            Ok(made) => made,
            Err(_) => {
                place.is_waiting();
                making.await
            }
        };
        match made {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(error)) => {
                limited!(
                    Cause::NoResource,
                    Level::Warn,
                    "client {client} cannot attach over {fabric}: {error}"
                );
                Err(match error {
                    FabricError::Verbs(error) if error.is_exhausted() => Status::ServerNoResource,
                    _ => Status::Error,
                })
            }
            Err(error) => {
                limited!(
                    Cause::NoThread,
                    Level::Error,
                    "client {client} cannot attach over {fabric} yet: the thread that makes its \
                     queue pairs: {error}"
                );
                Err(Status::NotReady)
            }
        }
    }
}

/// The owner of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    Client(ClientId),
    Identity(Identity),
    Address(Option<IpAddr>),
}

impl Who {
    fn max(self) -> usize {
        match self {
            Self::Client(_) => 1,
            Self::Identity(_) | Self::Address(_) => OF_ONE_MAX,
        }
    }
}

/// The owner of the connection's places: the certificate that the peer has shown, or else its
/// address.
fn who(connection: &dyn Conn) -> Who {
    let address = || {
        let address = SockRef::from(&connection.socket()).peer_addr();
        let ip = address.ok().and_then(|address| address.as_socket()).map(|address| address.ip());
        ip.map(of_address)
    };
    connection.identity().map_or_else(|| Who::Address(address()), Who::Identity)
}

/// The places of all kinds.
#[derive(Debug)]
struct Places {
    busy: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// The places of each owner that has one, or waits for one.
    own: Arc<Mutex<HashMap<Who, Weak<Semaphore>>>>,
}

/// The places of one client; dropping it frees them.
#[derive(Debug)]
struct Place {
    busy: Option<OwnedSemaphorePermit>,
    _all: OwnedSemaphorePermit,
    _own: [Own; 2],
}

impl Place {
    /// Frees the place at work, because the admission only waits for the network from now on.
    fn is_waiting(&mut self) {
        self.busy = None;
    }
}

impl Places {
    fn new() -> Self {
        let (busy, all) = (Arc::new(Semaphore::new(BUSY_MAX)), Arc::new(Semaphore::new(MAX)));
        Self { busy, all, own: Arc::default() }
    }

    /// Waits for all places that this client of this peer needs.
    async fn take(&self, client: ClientId, who: Who) -> Place {
        let first = self.own(Who::Client(client)).await;
        let second = self.own(who).await;
        let all = permit(&self.all).await;
        let busy = Some(permit(&self.busy).await);
        Place { busy, _all: all, _own: [first, second] }
    }

    async fn own(&self, who: Who) -> Own {
        let places = {
            let mut own = self.own.lock();
            own.get(&who).and_then(Weak::upgrade).unwrap_or_else(|| {
                let places = Arc::new(Semaphore::new(who.max()));
                own.insert(who, Arc::downgrade(&places));
                places
            })
        };
        let mut own = Own { who, permit: None, places: Some(places), all: self.own.clone() };
        if let Some(places) = &own.places {
            own.permit = Some(permit(places).await);
        }
        own
    }
}

/// A place that belongs to a client, a certificate or an address; or the wait for such a place.
#[derive(Debug)]
struct Own {
    who: Who,
    permit: Option<OwnedSemaphorePermit>,
    places: Option<Arc<Semaphore>>,
    all: Arc<Mutex<HashMap<Who, Weak<Semaphore>>>>,
}

impl Drop for Own {
    /// Forgets the owner if it has no place and waits for none.
    fn drop(&mut self) {
        let mut all = self.all.lock();
        self.permit = None;
        self.places = None;
        if all.get(&self.who).is_some_and(|places| places.strong_count() == 0) {
            all.remove(&self.who);
        }
    }
}

async fn permit(places: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match places.clone().acquire_owned().await {
        Ok(permit) => permit,
        // the semaphore is never closed, so this does not happen
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    fn identity(n: u8) -> Who {
        Who::Identity(Identity([n; 32]))
    }

    /// The places of this client, if they are free now.
    async fn now(places: &Places, n: u32, who: Who) -> Option<Place> {
        timeout(Duration::ZERO, places.take(client(n), who)).await.ok()
    }

    #[tokio::test]
    async fn who_waits_for_an_address_keeps_its_own_place_and_nobody_elses() {
        let places = Places::new();
        let mut waiting = Vec::new();
        for n in 1..=OF_ONE_MAX as u32 {
            let mut place = now(&places, n, identity(1)).await.expect("a place");
            assert!(now(&places, n, identity(1)).await.is_none(), "one for each client");
            place.is_waiting();
            waiting.push(place);
        }
        assert!(now(&places, 99, identity(1)).await.is_none(), "so many of one identity");
        let other = now(&places, 100, identity(2)).await;
        assert!(other.is_some(), "all others have theirs");
        waiting.pop();
        assert!(now(&places, 99, identity(1)).await.is_some());
    }

    #[tokio::test]
    async fn few_are_at_work_at_a_time_and_threads_are_bounded() {
        let places = Places::new();
        let mut taken = Vec::new();
        for n in 1..=BUSY_MAX as u32 {
            taken.push(now(&places, n, identity(n as u8)).await.expect("a place"));
        }
        assert!(now(&places, 99, identity(99)).await.is_none());
        taken.iter_mut().for_each(Place::is_waiting);
        for n in taken.len() as u32 + 1..=MAX as u32 {
            let mut place = now(&places, n, identity(n as u8)).await.expect("a place");
            place.is_waiting();
            taken.push(place);
        }
        assert!(now(&places, 999, identity(200)).await.is_none());
        taken.pop();
        assert!(now(&places, 999, identity(200)).await.is_some());
    }

    #[tokio::test]
    async fn those_that_have_no_place_are_forgotten() {
        let places = Places::new();
        let kept = now(&places, 1, identity(1)).await;
        for n in 2..50 {
            drop(now(&places, n, Who::Address(None)).await.expect("a place"));
        }
        assert!(now(&places, 1, identity(1)).await.is_none());
        assert_eq!(places.own.lock().len(), 2, "the client's and its identity's");
        drop(kept);
        assert!(places.own.lock().is_empty());
    }

    #[tokio::test]
    async fn places_are_given_in_the_order_in_which_they_were_asked_for() {
        let places = Arc::new(Places::new());
        let first = places.take(client(1), identity(1)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..5)
            .map(|n| {
                let (places, order) = (places.clone(), order.clone());
                tokio::spawn(async move {
                    let _place = places.take(client(1), identity(1)).await;
                    order.lock().push(n);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(first);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
    }
}
