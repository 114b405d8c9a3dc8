// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connections of the control thread, counted and bounded.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use dlock_core::budget::rate::{Pace, Rate};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::command::mailbox::ConnectionHandle;
use crate::host::capacity::FilesLeft;

/// Connections at a time that are not command channels (C API).
pub(crate) const CONNECTIONS_MAX: usize = 4_000;

/// The most of these from one address ([`of_address`]): all clients of a primary may be on one
/// host, and come back at once.
pub(crate) const CONNECTIONS_PER_ADDRESS_MAX: usize = 3_000;

/// The most TLS handshakes at a time: all clients may come at once.
pub(crate) const HANDSHAKES_MAX: usize = 1_024;

/// The most handshakes of one address ([`of_address`]) in a second, and at once. All clients may be
/// on one host, and a client that comes back makes one handshake to find the primary and two for
/// its session.
pub(crate) const HANDSHAKES_PER_ADDRESS_MAX: Rate = Rate { per_second: 500, burst: 6_000 };

/// Addresses whose handshakes are counted apart; further addresses are counted as one.
const ADDRESSES_MAX: usize = 4_096;

/// All connections of one control thread.
#[derive(Debug)]
pub(crate) struct Table {
    max: usize,
    of_one_max: usize,
    files: Arc<FilesLeft>,
    numbers: AtomicU64,
    permits: Mutex<ConnectionPermits>,
    /// A semaphore with one permit; see [`ConnectionPermit::key_turn`].
    key_turn: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct ConnectionPermits {
    taken: usize,
    /// How many of the connections belong to clients; descriptors are reserved for these.
    of_clients: usize,
    /// The connections of each address that has any.
    of_address: HashMap<IpAddr, usize>,
    /// The handshakes of each address, as long as some of its rate is used.
    handshakes: HashMap<Option<IpAddr>, Pace>,
    /// Connections that have never sent a byte, the oldest first.
    silent: BTreeMap<u64, (Arc<ConnectionHandle>, Option<IpAddr>)>,
    /// Connections in a TLS handshake, the oldest first.
    shaking: BTreeMap<u64, Arc<ConnectionHandle>>,
}

/// The place of one connection; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    table: Arc<Table>,
    /// The peer's address; `None`: it came over a Unix socket.
    address: Option<IpAddr>,
    is_clients: bool,
    pub(crate) link: Arc<ConnectionHandle>,
}

impl Table {
    pub(crate) fn new(files: Arc<FilesLeft>) -> Arc<Self> {
        Self::with(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX, files)
    }

    fn with(max: usize, of_one_max: usize, files: Arc<FilesLeft>) -> Arc<Self> {
        let permits = Mutex::new(ConnectionPermits::default());
        let (numbers, key_turn) = (AtomicU64::new(1), Arc::new(Semaphore::new(1)));
        Arc::new(Self { max, of_one_max, files, numbers, permits, key_turn })
    }

    /// Takes a place for a new connection. If all are taken, closes the oldest connection that
    /// never sent a byte, to make room.
    ///
    /// # Errors
    /// The bound that is reached, for the log.
    pub(crate) fn permit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> Result<ConnectionPermit, String> {
        let address = address.map(of_address);
        let mut permits = self.permits.lock();
        let of_this = address.and_then(|address| permits.of_address.get(&address));
        if of_this.is_some_and(|&taken| taken >= self.of_one_max) {
            let is_its = |(_, (_, other)): &(&u64, &(_, Option<IpAddr>))| *other == address;
            let Some(oldest) = permits.silent.iter().find(is_its).map(|(&id, _)| id) else {
                let max = self.of_one_max;
                return Err(format!("its address has {max} already (CONNECTIONS_PER_ADDRESS_MAX)"));
            };
            if let Some((silent, _)) = permits.silent.remove(&oldest) {
                silent.close();
            }
        }
        let strangers = permits.taken - permits.of_clients;
        let is_full = permits.taken >= self.max;
        if is_full || strangers >= self.files.strangers_max() {
            let Some((_, (silent, _))) = permits.silent.pop_first() else {
                return Err(match is_full {
                    true => format!("there are {} already (CONNECTIONS_MAX)", permits.taken),
                    false => format!(
                        "there are {strangers} already that are not those of clients, and the \
                         other descriptors are kept for clients: raise the limit of open files \
                         (ulimit -n, or LimitNOFILE= of a systemd unit)"
                    ),
                });
            };
            silent.close();
        }
        permits.taken += 1;
        if let Some(address) = address {
            *permits.of_address.entry(address).or_default() += 1;
        }
        let link = Arc::new(ConnectionHandle::new(self.numbers.fetch_add(1, Ordering::Relaxed)));
        permits.silent.insert(link.id, (link.clone(), address));
        Ok(ConnectionPermit { table: self.clone(), address, is_clients: false, link })
    }

    /// The number of connections.
    pub(crate) fn len(&self) -> usize {
        self.permits.lock().taken
    }

    /// The number of connections, of those that are clients', and of handshakes under way.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let permits = self.permits.lock();
        [permits.taken, permits.of_clients, permits.shaking.len()]
    }

    /// Closes the oldest connection that never sent a byte, because the system has no room.
    pub(crate) fn close_silent(&self) -> bool {
        let silent = self.permits.lock().silent.pop_first();
        silent.map(|(_, (link, _))| link.close()).is_some()
    }
}

impl ConnectionPermit {
    /// Whether the address may begin another handshake now.
    pub(crate) fn may_shake_hands(&self, now_ns: u64) -> bool {
        let handshakes = &mut self.table.permits.lock().handshakes;
        if handshakes.len() >= ADDRESSES_MAX {
            handshakes.retain(|_, pace| !pace.is_idle(now_ns));
        }
        let is_listed = handshakes.contains_key(&self.address);
        let who = self.address.filter(|_| is_listed || handshakes.len() < ADDRESSES_MAX);
        let pace = handshakes.entry(who).or_insert(Pace::new(HANDSHAKES_PER_ADDRESS_MAX));
        pace.take(now_ns)
    }

    /// Counts the connection as shaking hands until the result is dropped. If too many do, closes
    /// the oldest.
    pub(crate) fn shakes_hands(&self) -> Shaking<'_> {
        let mut permits = self.table.permits.lock();
        if permits.shaking.len() >= HANDSHAKES_MAX {
            if let Some((_, oldest)) = permits.shaking.pop_first() {
                oldest.close();
            }
        }
        permits.shaking.insert(self.link.id, self.link.clone());
        Shaking(self)
    }

    /// The turn to try a private key that waits for its password; one connection has it at a time.
    pub(crate) fn key_turn(&self) -> Arc<Semaphore> {
        self.table.key_turn.clone()
    }

    /// Counts the connection as the control connection of a client from now on.
    pub(crate) fn becomes_clients(&mut self) {
        if !std::mem::replace(&mut self.is_clients, true) {
            self.table.permits.lock().of_clients += 1;
        }
    }

    /// Records that the connection has sent something.
    pub(crate) fn heard(&self) {
        self.table.permits.lock().silent.remove(&self.link.id);
    }
}

/// A handshake under way.
#[derive(Debug)]
pub(crate) struct Shaking<'a>(&'a ConnectionPermit);

impl Drop for Shaking<'_> {
    fn drop(&mut self) {
        self.0.table.permits.lock().shaking.remove(&self.0.link.id);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut permits = self.table.permits.lock();
        permits.silent.remove(&self.link.id);
        permits.taken -= 1;
        permits.of_clients -= usize::from(self.is_clients);
        let Some(address) = self.address else { return };
        if let Some(taken) = permits.of_address.get_mut(&address) {
            *taken -= 1;
            if *taken == 0 {
                permits.of_address.remove(&address);
            }
        }
    }
}

/// The address for which connections are counted. For IPv6 it is the network of 64 bits, because
/// one host may have all addresses of that network.
pub(crate) fn of_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(network.into())
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::capacity::{Capacity, Needs};
    use dlock_fabric::os::threads::ProcessLimits;

    fn table(max: usize, of_one_max: usize) -> Arc<Table> {
        Table::with(max, of_one_max, Arc::new(FilesLeft::unbounded()))
    }

    fn is_closed(permit: &ConnectionPermit) -> bool {
        let mut closed = std::pin::pin!(permit.link.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::future::Future::poll(closed.as_mut(), &mut context).is_ready()
    }

    #[test]
    fn the_oldest_of_too_many_handshakes_is_closed_and_one_that_is_done_is_none() {
        let table = table(HANDSHAKES_MAX + 3, CONNECTIONS_PER_ADDRESS_MAX);
        let permits: Vec<ConnectionPermit> =
            (0..HANDSHAKES_MAX + 3).map(|_| table.permit(None).unwrap()).collect();
        let done = permits[0].shakes_hands();
        let mut shaking: Vec<_> =
            permits[1..=HANDSHAKES_MAX].iter().map(ConnectionPermit::shakes_hands).collect();
        assert!(is_closed(&permits[0]) && !is_closed(&permits[1]));
        drop(done);
        shaking.push(permits[HANDSHAKES_MAX + 1].shakes_hands());
        assert!(is_closed(&permits[1]) && !is_closed(&permits[2]));
        drop(shaking.swap_remove(2));
        shaking.push(permits[HANDSHAKES_MAX + 2].shakes_hands());
        assert!(!is_closed(&permits[2]), "there was room");
    }

    #[test]
    fn a_full_table_closes_the_oldest_silent_connection_or_refuses() {
        let table = table(3, CONNECTIONS_PER_ADDRESS_MAX);
        let permits: Vec<ConnectionPermit> = (0..3).map(|_| table.permit(None).unwrap()).collect();
        permits[0].heard();
        let fourth = table.permit(None).expect("two connections are silent");
        assert!(is_closed(&permits[1]) && !is_closed(&permits[0]) && !is_closed(&permits[2]));
        permits[2].heard();
        fourth.heard();
        assert!(table.permit(None).is_err());
        drop(permits);
        assert_eq!(table.len(), 1);
        assert!(table.permit(None).is_ok());
    }

    #[test]
    fn descriptors_that_are_kept_for_clients_are_left_free_by_others() {
        let (clients_max, shm, locked_bytes) = (100, false, 0);
        let needs = Needs { clients_max, shm, locked_bytes };
        let limits = ProcessLimits { files: 16 + 32 + 8, files_open: 0, locked_bytes: None };
        let files = Arc::new(FilesLeft::new(&Capacity::new(needs, &limits)));
        let table = Table::with(100, 100, files.clone());
        let mut permits: Vec<_> = (0..34).map(|_| table.permit(None).unwrap()).collect();
        permits.iter().for_each(ConnectionPermit::heard);
        assert!(table.permit(None).unwrap_err().contains("LimitNOFILE="));
        // Two of the 34 connections become those of clients. The clients take 4 descriptors, which
        // lowers the limit for other connections from 34 to 33. There are 32, so one more fits.
        files.set_taken(4);
        permits[..2].iter_mut().for_each(ConnectionPermit::becomes_clients);
        permits.push(table.permit(None).expect("one more, as there were"));
        permits[34].heard();
        assert!(table.permit(None).is_err());
        drop(permits.drain(..3)); // two clients and a stranger leave
        files.set_taken(0);
        permits.extend((0..2).map(|_| table.permit(None).unwrap()));
        permits.iter().for_each(ConnectionPermit::heard);
        assert!(table.permit(None).is_err(), "{}", permits.len());
    }

    #[test]
    fn one_address_leaves_places_for_others_and_gets_back_what_it_frees() {
        let table = table(8, 6);
        let from = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let mut of_one: Vec<_> = (0..6).map(|_| table.permit(from(1)).unwrap()).collect();
        of_one[1..].iter().for_each(ConnectionPermit::heard);
        let instead = table.permit(from(1)).expect("one of its own was silent");
        assert!(is_closed(&of_one[0]) && !is_closed(&of_one[1]));
        instead.heard();
        of_one[0] = instead;
        let why = table.permit(from(1)).unwrap_err();
        assert!(why.contains("6 already (CONNECTIONS_PER_ADDRESS_MAX)"), "{why}");
        let other = table.permit(from(2)).expect("another address");
        assert!(table.permit(None).is_ok(), "and this host");
        of_one.pop();
        of_one.push(table.permit(from(1)).expect("it has given one back"));
        drop((of_one, other));
        assert!(table.permits.lock().of_address.is_empty());
        let a: IpAddr = "2001:db8::1".parse().unwrap();
        let b: IpAddr = "2001:db8::9:1".parse().unwrap();
        assert_eq!(of_address(a), of_address(b));
        assert_ne!(of_address(a), of_address("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(of_address("::ffff:10.0.0.1".parse().unwrap()), from(1).unwrap());
    }

    #[test]
    fn a_full_address_takes_no_place_of_another() {
        let table = table(8, 2);
        let from = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let silent = table.permit(from(1)).unwrap();
        let of_other: Vec<_> = (0..2).map(|_| table.permit(from(2)).unwrap()).collect();
        of_other.iter().for_each(ConnectionPermit::heard);
        assert!(table.permit(from(2)).is_err());
        assert!(!is_closed(&silent));
    }

    #[test]
    fn the_rate_of_handshakes_is_each_addresss_own_and_so_is_the_memory_for_it_bounded() {
        let table = table(8, CONNECTIONS_PER_ADDRESS_MAX);
        let from = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        let one = table.permit(from(1)).unwrap();
        let taken = (0..9_999).filter(|_| one.may_shake_hands(5)).count();
        assert_eq!(taken, HANDSHAKES_PER_ADDRESS_MAX.burst as usize);
        let second = dlock_core::clock::NS;
        assert!(!one.may_shake_hands(6) && one.may_shake_hands(second));
        for n in 2..2 * ADDRESSES_MAX as u32 {
            assert!(table.permit(from(n)).unwrap().may_shake_hands(second + 1) || n > 4_000);
        }
        assert!(table.permits.lock().handshakes.len() <= ADDRESSES_MAX + 1);
        assert!(table.permit(from(7_777_777)).unwrap().may_shake_hands(99 * second));
        assert!(table.permits.lock().handshakes.len() < 3, "those that are idle are forgotten");
    }
}
