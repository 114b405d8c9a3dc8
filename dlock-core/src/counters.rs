// SPDX-License-Identifier: MIT OR Apache-2.0
//! The debug counters of the C API: one table, one kind of storage for clients and primaries.
//!
//! ```text
//!   client   decides ─▶ its own Counters
//!            decides on the primary's memory by itself (shm, verbs) ─▶ Effect::Count
//!                         └▶ a count in its ledger ── collected when asked, and when it leaves ──┐
//!   primary  control thread, command thread ──────────────────────────────▶ its Counters ◀──────┘
//! ```
//! A new counter is one line of the table. Counters are relaxed atomics: they order nothing, and
//! any thread counts without waiting for another.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Op;
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

/// The side that counts events with a counter: client or primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// The client library counts.
    Client,
    /// The primary counts.
    Primary,
    /// Client and primary count, each for itself.
    Both,
    /// Neither counts: the counter stays 0, as in UMDK DLock, or because its event cannot happen in
    /// this implementation.
    Nobody,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The counter.
    pub counter: Counter,
    /// The name, as in `DEBUG_STATS_…` of the C API.
    pub name: &'static str,
    /// The events that it counts.
    pub help: &'static str,
    /// The side that counts.
    pub by: By,
}

macro_rules! counters {
    ($($counter:ident, $name:literal, $by:ident, $help:literal;)*) => {
        /// A counter; its number is that of `debug_stats_code` in the C API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Counter { $(#[doc = $help] $counter,)* }

        /// Every counter, by its number.
        pub const TABLE: [Info; COUNTERS] = [$(Info {
            counter: Counter::$counter, name: $name, help: $help, by: By::$by,
        },)*];
    };
}

/// The number of counters (`DEBUG_STATS_MAX` of the C API).
pub const COUNTERS: usize = 45;

counters! {
    Again, "EAGAIN", Primary, "asks for a fair lock whose turn had not come";
    NoBuffer, "NO_URMA_BUF", Nobody, "batches without a buffer";
    NoMemory, "ENOMEM", Nobody, "operations without memory";
    TimedOut, "ETIMEOUT", Client, "asynchronous operations that took more than 5 s";
    InvalidOp, "EINVAL_LOCK_OP", Both, "operations that the lock's type or state does not permit";
    InvalidType, "EINVAL_LOCK_TYPE", Nobody, "operations on a lock of a type that does not exist";
    InvalidOffset, "EINVAL_LOCK_OFFSET", Primary, "requests for a lock that was not got";
    InvalidReturn, "EINVAL_LOCK_RET", Client, "failed acquires and releases, contention included";
    Ticket, "ETICKET", Client, "acquires in another mode than the ticket's";
    Async, "EASYNC", Client, "calls while an asynchronous operation was under way";
    ClientNotInit, "CLIENT_NOT_INIT", Nobody, "calls of a client that does not exist";
    LockNotGet, "LOCK_NOT_GET", Client, "operations on a lock that was not got";
    AlreadyLocked, "ALREADY_LOCKED", Client, "re-entries and partial releases";
    AlreadyUnlocked, "ALREADY_UNLOCKED", Client, "releases of a lock that was not held";
    AtomicTryLockFail, "ATOMIC_TRYLOCK_FAIL", Primary, "acquires of an atomic lock that was held";
    AtomicUnlockFail, "ATOMIC_UNLOCK_FAIL", Primary, "releases of an atomic lock that was lost";
    AtomicExtendFail, "ATOMIC_EXTEND_FAIL", Primary, "extends of an atomic lock that was lost";
    RwTryLockExFail, "RW_TRYLOCK_EX_FAIL", Primary, "exclusive acquires of a held read-write lock";
    RwUnlockExFail, "RW_UNLOCK_EX_FAIL", Primary, "exclusive releases of a lost read-write lock";
    RwTryLockShFail, "RW_TRYLOCK_SH_FAIL", Primary, "shared acquires of a held read-write lock";
    RwUnlockShFail, "RW_UNLOCK_SH_FAIL", Primary, "shared releases of a lost read-write lock";
    FairQueueLimit, "FAIR_QUEUE_LIMIT", Primary, "acquires of a fair lock whose queue was full";
    FairUnlockExFail, "FAIR_UNLOCK_EX_FAIL", Primary, "exclusive releases of a lost fair lock";
    FairUnlockShFail, "FAIR_UNLOCK_SH_FAIL", Primary, "shared releases of a lost fair lock";
    FairExTicketPassed, "FAIR_EX_TICKET_PASSED", Primary, "exclusive tickets that were passed over";
    FairShTicketPassed, "FAIR_SH_TICKET_PASSED", Primary, "shared tickets that were passed over";
    InvalidLockState, "INVALID_LOCK_STATE", Nobody, "operations in a state that does not exist";
    TicketToUnlock, "TICKET_TO_UNLOCK", Nobody, "locks given back with a ticket";
    NetworkFail, "NETWORK_FAIL", Client, "operations whose answer did not come";
    SendFail, "SEND_FAIL", Primary, "answers that could not be sent";
    BadResponse, "BAD_RESPONSE", Client, "asynchronous operations whose answer did not come";
    ClientDisconnect, "CLIENT_DISCONNECT", Primary, "control connections that broke";
    Fail, "FAIL", Nobody, "entries that are not valid";
    ClientManagerNotInit, "CLIENTMGR_NOT_INIT", Nobody, "calls before the library was initialised";
    NotReady, "NOT_READY", Client, "releases and extends at a primary in recovery";
    NoAsync, "NO_ASYNC", Client, "checks without an asynchronous operation";
    AsyncAgain, "ASYNC_AGAIN", Nobody, "checks of an asynchronous operation that was under way";
    ReplicaInitFail, "REPLICA_INIT_FAIL", Nobody, "replicas that could not start";
    ServerNotInit, "SERVER_NOT_INIT", Nobody, "calls of a primary that does not exist";
    EncryptFail, "ENCRYPT_FAIL", Nobody, "messages that could not be encrypted";
    DecryptFail, "DECRYPT_FAIL", Nobody, "messages that could not be decrypted";
    ClientIdVerifyFail, "CLIENT_ID_VERIFY_FAIL", Primary, "requests of strangers";
    BadRequest, "BAD_REQUEST", Primary, "frames that are not valid";
    ObjectNotGet, "OBJECT_NOT_GET", Client, "operations on an object that was not got";
    ObjectCasFailed, "OBJECT_CAS_FAILED", Client, "compare-and-swaps that found another value";
}

/// Counters of one client or one primary.
#[derive(Debug)]
pub struct Counters([AtomicU64; COUNTERS]);

impl Default for Counters {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; COUNTERS])
    }
}

impl Counters {
    /// Counts one event.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts `events` events; wraps.
    #[inline]
    pub fn add(&self, counter: Counter, events: u64) {
        self.0[counter as usize].fetch_add(events, Ordering::Relaxed);
    }

    /// The value of this counter.
    pub fn of(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }

    /// All values, by the numbers of the counters.
    pub fn read(&self) -> [u64; COUNTERS] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    /// Sets all counters to 0.
    pub fn clear(&self) {
        for counter in &self.0 {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// The number of counters for which a ledger has room.
pub const TOLD_MAX: usize = 16;

/// The counters that a client counts for the primary, in the order of its ledger. They count events
/// that the client decides by itself on the primary's memory. In UMDK DLock, whose counters these
/// are, the primary decided them.
pub const TOLD: [Counter; 13] = [
    Counter::Again,
    Counter::AtomicTryLockFail,
    Counter::AtomicUnlockFail,
    Counter::AtomicExtendFail,
    Counter::RwTryLockExFail,
    Counter::RwUnlockExFail,
    Counter::RwTryLockShFail,
    Counter::RwUnlockShFail,
    Counter::FairQueueLimit,
    Counter::FairUnlockExFail,
    Counter::FairUnlockShFail,
    Counter::FairExTicketPassed,
    Counter::FairShTicketPassed,
];
const _: () = assert!(TOLD.len() <= TOLD_MAX);

/// The counts in a client's ledger, one for each of [`TOLD`].
pub type Told = [u64; TOLD_MAX];

impl Counter {
    /// The index of the counter in a ledger; `None`: clients do not count it for the primary.
    pub fn place(self) -> Option<usize> {
        TOLD.iter().position(|&counter| counter == self)
    }

    /// The counter that a primary of UMDK DLock would have increased for an operation that this
    /// library's client has decided by itself. `mode`: the mode in which the operation asks for the
    /// lock, or held it.
    pub fn of_decision(lock_type: LockType, op: Op, mode: Mode, status: Status) -> Option<Self> {
        use {LockType as L, Mode as M};
        let is_acquire = matches!(op, Op::TryLock { .. } | Op::Lock { .. });
        match (status, lock_type, mode) {
            (Status::Again, ..) => Some(Self::Again),
            (Status::Fail, L::Atomic, _) if is_acquire => Some(Self::AtomicTryLockFail),
            (Status::Fail, L::Rw, M::Exclusive) if is_acquire => Some(Self::RwTryLockExFail),
            (Status::Fail, L::Rw, M::Shared) if is_acquire => Some(Self::RwTryLockShFail),
            (Status::Fail, L::Fair, M::Exclusive) if is_acquire => Some(Self::FairExTicketPassed),
            (Status::Fail, L::Fair, M::Shared) if is_acquire => Some(Self::FairShTicketPassed),
            (Status::Fail, lock_type, mode) => Self::of_loss(lock_type, op, mode),
            _ => None,
        }
    }

    /// The counter for a release or an extend of a lost hold; `None`: UMDK DLock, whose counters
    /// these are, has none. (Read-write locks cannot be extended, and UMDK DLock does not count
    /// extends of fair locks.)
    fn of_loss(lock_type: LockType, op: Op, mode: Mode) -> Option<Self> {
        match (lock_type, mode, matches!(op, Op::Unlock)) {
            (LockType::Atomic, _, true) => Some(Self::AtomicUnlockFail),
            (LockType::Atomic, _, false) => Some(Self::AtomicExtendFail),
            (LockType::Rw, Mode::Exclusive, true) => Some(Self::RwUnlockExFail),
            (LockType::Rw, Mode::Shared, true) => Some(Self::RwUnlockShFail),
            (LockType::Fair, Mode::Exclusive, true) => Some(Self::FairUnlockExFail),
            (LockType::Fair, Mode::Shared, true) => Some(Self::FairUnlockShFail),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Lease;

    #[test]
    fn the_table_is_that_of_the_c_header() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../include/dlock_types.h");
        let header = std::fs::read_to_string(path).expect("the C header");
        let number = |line: &str| {
            let (name, number) = line.trim().strip_prefix("DEBUG_STATS_")?.split_once(" = ")?;
            Some((name.to_string(), number.trim_end_matches(',').parse::<usize>().ok()?))
        };
        let mut of_header: Vec<_> = header.lines().filter_map(number).collect();
        assert_eq!(of_header.pop(), Some(("MAX".to_string(), COUNTERS)));
        let of_table = TABLE.iter().map(|info| (info.name.to_string(), info.counter as usize));
        assert_eq!(of_table.collect::<Vec<_>>(), of_header);
        assert!(TABLE.iter().all(|info| !info.help.is_empty()));
    }

    #[test]
    fn what_clients_count_for_the_primary_is_the_primarys_and_has_one_place() {
        for (place, counter) in TOLD.into_iter().enumerate() {
            assert_eq!(TABLE[counter as usize].by, By::Primary, "{counter:?}");
            assert_eq!(counter.place(), Some(place));
        }
        assert_eq!(Counter::BadRequest.place(), None);
    }

    #[test]
    fn counting_clearing_and_adding_concern_one_counter_or_all() {
        let counters = Counters::default();
        counters.count(Counter::Async);
        counters.add(Counter::Again, 3);
        let mut expected = [0; COUNTERS];
        (expected[9], expected[0]) = (1, 3);
        assert_eq!(counters.read(), expected);
        assert_eq!(counters.of(Counter::Again), 3);
        counters.clear();
        assert_eq!(counters.read(), [0; COUNTERS]);
    }

    #[test]
    fn a_decision_counts_as_at_the_originals_primary() {
        let take = Op::TryLock { mode: Mode::Shared, lease: Lease::secs(1) };
        let of = |lock_type, op, mode, status| {
            Counter::of_decision(lock_type, op, mode, status).map(|counter| counter as usize)
        };
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        let extend = Op::Extend { mode: x, lease: Lease::secs(1) };
        for (lock_type, op, mode, status, number) in [
            (LockType::Fair, take, s, Status::Again, Some(0)),
            (LockType::Atomic, take, x, Status::Fail, Some(14)),
            (LockType::Atomic, Op::Unlock, x, Status::Fail, Some(15)),
            (LockType::Atomic, extend, x, Status::Fail, Some(16)),
            (LockType::Rw, take, x, Status::Fail, Some(17)),
            (LockType::Rw, Op::Unlock, x, Status::Fail, Some(18)),
            (LockType::Rw, take, s, Status::Fail, Some(19)),
            (LockType::Rw, Op::Unlock, s, Status::Fail, Some(20)),
            (LockType::Fair, Op::Unlock, x, Status::Fail, Some(22)),
            (LockType::Fair, Op::Unlock, s, Status::Fail, Some(23)),
            (LockType::Fair, extend, x, Status::Fail, None),
            (LockType::Atomic, take, x, Status::Success, None),
            (LockType::Atomic, Op::Unlock, x, Status::AlreadyUnlocked, None),
            (LockType::Rw, take, s, Status::BadResponse, None),
        ] {
            assert_eq!(of(lock_type, op, mode, status), number, "{lock_type:?} {op:?} {mode:?}");
        }
    }
}
