// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connections of the control thread, counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::mailbox::Link;

/// Connections at a time that are not command channels (C API).
pub(crate) const CONNECTIONS_MAX: usize = 4_000;

/// All connections of one control thread.
#[derive(Debug)]
pub(super) struct Table {
    max: usize,
    numbers: AtomicU64,
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    taken: usize,
    /// Connections that never sent a byte, the oldest first.
    silent: BTreeMap<u64, Arc<Link>>,
}

/// The place of one connection, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    table: Arc<Table>,
    pub(super) link: Arc<Link>,
}

impl Table {
    pub(super) fn new(max: usize) -> Arc<Self> {
        let seats = Mutex::new(Seats::default());
        Arc::new(Self { max, numbers: AtomicU64::new(1), seats })
    }

    /// A place for a new connection. If all are taken, the oldest connection that never sent a
    /// byte is closed for it; `None`: there is no such connection.
    pub(super) fn seat(self: &Arc<Self>) -> Option<Seat> {
        let mut seats = self.seats.lock();
        if seats.taken >= self.max {
            let (_, silent) = seats.silent.pop_first()?;
            silent.close();
        }
        seats.taken += 1;
        let link = Arc::new(Link::new(self.numbers.fetch_add(1, Ordering::Relaxed)));
        seats.silent.insert(link.id, link.clone());
        Some(Seat { table: self.clone(), link })
    }

    /// How many connections there are.
    pub(super) fn len(&self) -> usize {
        self.seats.lock().taken
    }

    /// Closes the oldest connection that never sent a byte, because the system has no room.
    pub(super) fn close_silent(&self) -> bool {
        let silent = self.seats.lock().silent.pop_first();
        silent.map(|(_, link)| link.close()).is_some()
    }
}

impl Seat {
    /// The connection has sent something.
    pub(super) fn heard(&self) {
        self.table.seats.lock().silent.remove(&self.link.id);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.table.seats.lock();
        seats.silent.remove(&self.link.id);
        seats.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closed(seat: &Seat) -> bool {
        let mut closed = std::pin::pin!(seat.link.closed());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::future::Future::poll(closed.as_mut(), &mut context).is_ready()
    }

    #[test]
    fn a_full_table_closes_the_oldest_silent_connection_or_refuses() {
        let table = Table::new(3);
        let seats: Vec<Seat> = (0..3).map(|_| table.seat().unwrap()).collect();
        seats[0].heard();
        let fourth = table.seat().expect("two connections are silent");
        assert!(is_closed(&seats[1]) && !is_closed(&seats[0]) && !is_closed(&seats[2]));
        seats[2].heard();
        fourth.heard();
        assert!(table.seat().is_none());
        drop(seats);
        assert_eq!(table.len(), 1);
        assert!(table.seat().is_some());
    }
}
