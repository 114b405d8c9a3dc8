// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of the command channel: what clients ask of the arbiter, and what it answers.
//!
//! Every request carries a [`Seq`](crate::ids::Seq) and is answered by exactly one reply with
//! the same number, but for [`Request::Wake`] and [`Request::Abandon`], which have none. The
//! reply to [`Request::Wait`] comes when the lock is granted or the wait is cancelled, however
//! long that takes. A request that is sent again with the same number is not executed again.

use crate::clock::ServerTime;
use crate::ids::Handle;
use crate::memory::words::Ticket;
use crate::token::Token;
use crate::wire::status::Status;

/// How a lock is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// By one client.
    Exclusive = 0,
    /// Together with other readers.
    Shared = 1,
}

/// The kind of a lock (`dlock_type` of the C API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LockType {
    /// Exclusive, with a lease, unordered.
    Atomic = 0,
    /// Readers and one writer, without a lease.
    Rw = 1,
    /// Readers and one writer, with a lease, in order of arrival.
    Fair = 2,
}

impl LockType {
    /// `None` if the number is no lock type.
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Atomic),
            1 => Some(Self::Rw),
            2 => Some(Self::Fair),
            _ => None,
        }
    }
}

/// The number a client gives to one wait on one lock; 28 bits, grows by one per wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitNumber(pub u32);

/// Client to primary. `handle` names a lock this client has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Queue me until the lock is mine. Answered by `Granted`, `Denied` or (after a cancel)
    /// `Cancelled`.
    Wait {
        /// The lock.
        handle: Handle,
        /// The mode wanted.
        mode: Mode,
        /// Lease in seconds, counted from the grant.
        expire_s: u32,
        /// The number that `Cancel` and the ledger refer to.
        wait: WaitNumber,
        /// Fair locks: the ticket I have.
        ticket: Option<Ticket>,
    },
    /// I no longer wait. Answered by `Done`; the wait itself is answered first, by `Cancelled`
    /// or by the `Granted` that crossed this request. A fair lock's ticket stays.
    Cancel {
        /// The lock.
        handle: Handle,
        /// The wait.
        wait: WaitNumber,
    },
    /// I give the lock up. Answered by `Done` or by `Denied(Fail)` if it was not mine.
    Release {
        /// The lock.
        handle: Handle,
        /// How it is held.
        mode: Mode,
        /// Fair locks: the ticket it is held under.
        ticket: Option<Ticket>,
    },
    /// I left a read-write lock free with waiters behind. No reply.
    Wake {
        /// The lock.
        handle: Handle,
    },
    /// Is it my ticket's turn? Answered by `Granted`, `Queued` or `Denied(Fail)` (place lost).
    Poll {
        /// The lock.
        handle: Handle,
        /// The mode of the ticket.
        mode: Mode,
        /// The ticket.
        ticket: Ticket,
        /// Lease in seconds, counted from the grant.
        expire_s: u32,
    },
    /// Take a ticket for me: the lanes are high. Answered by `Queued`, `Denied`, or `Done`: they
    /// have started again, and I take one myself.
    TakeTicket {
        /// The lock.
        handle: Handle,
        /// The mode wanted.
        mode: Mode,
        /// Lease in seconds, counted from the grant.
        expire_s: u32,
    },
    /// I have given my place in the queue up, as my ledger says. No reply.
    Abandon {
        /// The lock.
        handle: Handle,
        /// The mode of the ticket.
        mode: Mode,
        /// The ticket.
        ticket: Ticket,
    },
    /// Extend my fair hold; `expire_s` 0 only asks whether it is still mine. Answered by
    /// `Granted` or `Denied(Fail)`.
    Extend {
        /// The lock.
        handle: Handle,
        /// How it is held.
        mode: Mode,
        /// The ticket it is held under.
        ticket: Ticket,
        /// Lease in seconds from now.
        expire_s: u32,
    },
    /// The hold on this atomic lock may have expired within my clock's uncertainty: take it
    /// over if it has. Answered by `Granted` or `Denied(Fail)`.
    Steal {
        /// The lock.
        handle: Handle,
        /// Lease in seconds, counted from the grant.
        expire_s: u32,
    },
    /// I do not know what became of my last operation on this lock: undo whatever it did.
    /// Answered by `Done` once this client holds nothing of the lock.
    Resolve {
        /// The lock.
        handle: Handle,
    },
    /// How many readers are inside the fair lock? The word does not tell where others are queued.
    /// Answered by `Done` with their number in place of the word.
    CountReaders {
        /// The lock.
        handle: Handle,
        /// How I ask for the lock, or have had it.
        mode: Mode,
        /// My ticket, if I am not inside myself.
        ticket: Option<Ticket>,
    },
    /// What of that which I have claimed of this lock is mine? Of a primary that has recovered.
    /// Answered by `Granted`, `Queued` (a fair lock's ticket) or `Denied(Fail)`: nothing.
    Confirm {
        /// The lock.
        handle: Handle,
        /// How I have it, or asked for it.
        mode: Mode,
    },
    /// Answered by `Pong`: a bare message round trip, and a reading of the server clock.
    Ping,
}

impl Request {
    /// The lock a request is about.
    pub fn handle(&self) -> Option<Handle> {
        match *self {
            Request::Wait { handle, .. }
            | Request::Cancel { handle, .. }
            | Request::Release { handle, .. }
            | Request::Wake { handle }
            | Request::Poll { handle, .. }
            | Request::TakeTicket { handle, .. }
            | Request::Abandon { handle, .. }
            | Request::Extend { handle, .. }
            | Request::Steal { handle, .. }
            | Request::Resolve { handle }
            | Request::CountReaders { handle, .. }
            | Request::Confirm { handle, .. } => Some(handle),
            Request::Ping => None,
        }
    }

    /// Whether the primary answers it.
    pub fn has_reply(&self) -> bool {
        !matches!(self, Request::Wake { .. } | Request::Abandon { .. })
    }
}

/// Primary to client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The lock is yours.
    Granted {
        /// The lock word after the grant.
        word: u64,
        /// Its deadline, seconds since 1970 (read-write locks: the time of the grant).
        deadline_s: u32,
        /// When, on the server clock: leases count from here.
        at: ServerTime,
        /// Fair locks: the ticket it is held under, which tells the fencing token.
        ticket: Option<Ticket>,
        /// The fencing token of other locks, where it is counted.
        token: Token,
    },
    /// You have a ticket, and it is not its turn.
    Queued {
        /// The lock word.
        word: u64,
        /// The ticket.
        ticket: Ticket,
    },
    /// Refused, and nothing changed.
    Denied {
        /// Why.
        status: Status,
        /// The lock word.
        word: u64,
    },
    /// The wait has ended without a grant.
    Cancelled {
        /// The lock word.
        word: u64,
    },
    /// Done; the lock word afterwards.
    Done {
        /// The lock word.
        word: u64,
    },
    /// The answer to `Ping`.
    Pong {
        /// The server clock when it was answered.
        at: ServerTime,
    },
}
