// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connections of the control thread, counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::mailbox::ConnectionHandle;

/// Connections at a time that are not command channels (C API).
pub(crate) const CONNECTIONS_MAX: usize = 4_000;

/// Handshakes of TLS at a time: all clients may come at once.
pub(crate) const HANDSHAKES_MAX: usize = 1_024;

/// All connections of one control thread.
#[derive(Debug)]
pub(super) struct Table {
    max: usize,
    numbers: AtomicU64,
    permits: Mutex<ConnectionPermits>,
}

#[derive(Debug, Default)]
struct ConnectionPermits {
    taken: usize,
    /// Connections that never sent a byte, the oldest first.
    silent: BTreeMap<u64, Arc<ConnectionHandle>>,
    /// Connections whose peer is not known yet, the oldest first.
    shaking: BTreeMap<u64, Arc<ConnectionHandle>>,
}

/// The place of one connection, free again when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    table: Arc<Table>,
    pub(super) link: Arc<ConnectionHandle>,
}

impl Table {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let permits = Mutex::new(ConnectionPermits::default());
        Arc::new(Self { max, numbers: AtomicU64::new(1), permits })
    }

    /// A place for a new connection. If all are taken, the oldest connection that never sent a
    /// byte is closed for it; `None`: there is no such connection.
    pub(super) fn permit(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let mut permits = self.permits.lock();
        if permits.taken >= self.max {
            let (_, silent) = permits.silent.pop_first()?;
            silent.close();
        }
        permits.taken += 1;
        let link = Arc::new(ConnectionHandle::new(self.numbers.fetch_add(1, Ordering::Relaxed)));
        permits.silent.insert(link.id, link.clone());
        Some(ConnectionPermit { table: self.clone(), link })
    }

    /// How many connections there are.
    pub(super) fn len(&self) -> usize {
        self.permits.lock().taken
    }

    /// Closes the oldest connection that never sent a byte, because the system has no room.
    pub(super) fn close_silent(&self) -> bool {
        let silent = self.permits.lock().silent.pop_first();
        silent.map(|(_, link)| link.close()).is_some()
    }
}

impl ConnectionPermit {
    /// It shakes hands until this is dropped. If too many do, the oldest of them is closed.
    pub(super) fn shakes_hands(&self) -> Shaking<'_> {
        let mut permits = self.table.permits.lock();
        if permits.shaking.len() >= HANDSHAKES_MAX {
            if let Some((_, oldest)) = permits.shaking.pop_first() {
                oldest.close();
            }
        }
        permits.shaking.insert(self.link.id, self.link.clone());
        Shaking(self)
    }

    /// The connection has sent something.
    pub(super) fn heard(&self) {
        self.table.permits.lock().silent.remove(&self.link.id);
    }
}

/// A handshake under way.
#[derive(Debug)]
pub(super) struct Shaking<'a>(&'a ConnectionPermit);

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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closed(permit: &ConnectionPermit) -> bool {
        let mut closed = std::pin::pin!(permit.link.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::future::Future::poll(closed.as_mut(), &mut context).is_ready()
    }

    #[test]
    fn the_oldest_of_too_many_handshakes_is_closed_and_one_that_is_done_is_none() {
        let table = Table::new(HANDSHAKES_MAX + 3);
        let permits: Vec<ConnectionPermit> =
            (0..HANDSHAKES_MAX + 3).map(|_| table.permit().unwrap()).collect();
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
        let table = Table::new(3);
        let permits: Vec<ConnectionPermit> = (0..3).map(|_| table.permit().unwrap()).collect();
        permits[0].heard();
        let fourth = table.permit().expect("two connections are silent");
        assert!(is_closed(&permits[1]) && !is_closed(&permits[0]) && !is_closed(&permits[2]));
        permits[2].heard();
        fourth.heard();
        assert!(table.permit().is_none());
        drop(permits);
        assert_eq!(table.len(), 1);
        assert!(table.permit().is_some());
    }
}
