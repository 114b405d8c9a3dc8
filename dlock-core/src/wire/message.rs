// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of the command channel: requests of clients to the arbiter, and its replies.
//!
//! Every request carries a [`Seq`](crate::ids::Seq) and has exactly one reply, with the same
//! number, except [`Request::Wake`] and [`Request::Abandon`], which have none. The reply to
//! [`Request::Wait`] comes when the primary grants the lock or the wait is cancelled, however long
//! that takes. The reply to [`Request::Listen`] comes when there is something to report, or never.
//! If a client sends a request again with the same number, the primary does not execute it again.

use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::Handle;
use crate::memory::words::Ticket;
use crate::token::Token;
use crate::wire::status::Status;

/// The mode in which a client holds or asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// One client alone.
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
    /// Readers and one writer, with or without a lease, unordered.
    Rw = 1,
    /// Readers and one writer, with a lease, in order of arrival.
    Fair = 2,
}

impl LockType {
    /// The type with this code; `None`: no lock type has the code.
    pub fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Atomic),
            1 => Some(Self::Rw),
            2 => Some(Self::Fair),
            _ => None,
        }
    }
}

/// The number that a client gives to one wait on one lock: 28 bits, one more for each wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitNumber(pub u32);

/// Requests of a client; `handle` names a lock that it has got, and "I" is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Queue me until the lock is mine. Answered by `Granted`, `Denied` or (after a cancel)
    /// `Cancelled`.
    Wait {
        /// The lock.
        handle: Handle,
        /// The mode in which I want the lock.
        mode: Mode,
        /// The lease, counted from the grant. `ENDLESS`, for a read-write lock: no lease.
        lease: Lease,
        /// The number that `Cancel` and the ledger name.
        wait: WaitNumber,
        /// Fair locks: my ticket.
        ticket: Option<Ticket>,
    },
    /// Take me out of the queue. Answered by `Done`; the wait itself is answered first, by
    /// `Cancelled` or by the `Granted` that crossed this request. The ticket of a fair lock stays.
    Cancel {
        /// The lock.
        handle: Handle,
        /// The number of the wait.
        wait: WaitNumber,
    },
    /// Release my hold. Answered by `Done`, or by `Denied(Fail)` if it was not mine.
    Release {
        /// The lock.
        handle: Handle,
        /// The mode of the hold.
        mode: Mode,
        /// Fair locks: the ticket of the hold.
        ticket: Option<Ticket>,
    },
    /// I have freed a read-write lock that has waiters. No reply.
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
        /// The lease, counted from the grant.
        lease: Lease,
    },
    /// Take a ticket for me, because the ticket counters are too high for a fetch-and-add. Answered
    /// by `Queued`, `Denied`, or `Done`: the counters were reset, and I take a ticket myself.
    TakeTicket {
        /// The lock.
        handle: Handle,
        /// The mode in which I want the lock.
        mode: Mode,
        /// The lease, counted from the grant.
        lease: Lease,
    },
    /// I have given up my ticket, and my ledger says so. No reply.
    Abandon {
        /// The lock.
        handle: Handle,
        /// The mode of the ticket.
        mode: Mode,
        /// The ticket.
        ticket: Ticket,
    },
    /// Extend my hold of a fair lock, or my hold with a lease of a read-write lock; a `lease` of 0
    /// only asks whether I still have it. Answered by `Granted` or `Denied(Fail)`.
    Extend {
        /// The lock.
        handle: Handle,
        /// The mode of the hold.
        mode: Mode,
        /// Fair locks: the ticket of the hold.
        ticket: Option<Ticket>,
        /// The new lease; it begins now.
        lease: Lease,
    },
    /// Give me the lock if that is possible now: an atomic lock whose hold may have expired, within
    /// my clock's uncertainty; a read-write lock with a lease. Answered by `Granted` or
    /// `Denied(Fail)`.
    Steal {
        /// The lock.
        handle: Handle,
        /// The mode in which I want the lock.
        mode: Mode,
        /// The lease, counted from the grant.
        lease: Lease,
    },
    /// I do not know the result of my last operation on this lock: undo it. Answered by `Done` once
    /// I hold nothing of the lock.
    Resolve {
        /// The lock.
        handle: Handle,
    },
    /// How many readers hold the fair lock? The word does not tell while clients are queued.
    /// Answered by `Done`, with the number in the place of the word.
    CountReaders {
        /// The lock.
        handle: Handle,
        /// The mode in which I ask for the lock, or have had it.
        mode: Mode,
        /// My ticket, if I do not hold the lock.
        ticket: Option<Ticket>,
    },
    /// Which of my claims to this lock was granted? Sent to a primary that has recovered. Answered
    /// by `Granted`, `Queued` (the ticket of a fair lock) or `Denied(Fail)`: none.
    Confirm {
        /// The lock.
        handle: Handle,
        /// The mode in which I held the lock, or asked for it.
        mode: Mode,
    },
    /// I hold or keep the lock: tell me when others wait for it. Answered by `Contended` once
    /// others wait, or by `Denied(Fail)` if I do not hold the lock then. A later `Listen` for the
    /// same lock replaces this one, which then has no answer. From a client that keeps the lock
    /// `knows` says that its program uses it.
    Listen {
        /// The lock.
        handle: Handle,
        /// Whether I know that others wait for the lock: then only an operator's deadline is
        /// reported.
        knows: bool,
        /// The operator's deadline that I know; 0: none.
        until: ServerTime,
    },
    /// Make my exclusive hold of a read-write or fair lock a share, by one change of the word.
    /// Answered by `Granted`, also if an earlier request of mine has done so, or by `Denied(Fail)`:
    /// I hold the lock no more.
    Downgrade {
        /// The lock.
        handle: Handle,
        /// The stamp of the ledger entry that the primary writes for the share.
        stamp: u32,
        /// Fair locks: the ticket of the exclusive hold.
        ticket: Option<Ticket>,
    },
    /// Release my hold, or, if no other client wants the lock, let me keep it for later. Answered
    /// by `Granted` (I keep the lock until the deadline, and ask by `Listen` whether others want
    /// it), `Done` (released), or `Denied(Fail)` if the hold was not mine.
    Keep {
        /// The lock.
        handle: Handle,
        /// The mode of the hold.
        mode: Mode,
        /// Fair locks: the ticket of the hold.
        ticket: Option<Ticket>,
        /// The new lease; it begins now.
        lease: Lease,
    },
    /// Give me an atomic or a read-write lock, of which I have seen that another client may keep it
    /// without using it. Answered within [`TRY_KEPT_NS_MAX`](crate::limits::TRY_KEPT_NS_MAX) by
    /// `Granted` or `Denied(Fail)`.
    Try {
        /// The lock.
        handle: Handle,
        /// The mode in which I want the lock.
        mode: Mode,
        /// The lease, counted from the grant. `ENDLESS`, for a read-write lock: no lease.
        lease: Lease,
        /// The number that the ledger names.
        wait: WaitNumber,
    },
    /// Measure a message round trip, and read the server clock. Answered by `Pong`.
    Ping,
}

impl Request {
    /// The lock that the request is about; `None`: it is about no lock.
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
            | Request::Confirm { handle, .. }
            | Request::Listen { handle, .. }
            | Request::Downgrade { handle, .. }
            | Request::Keep { handle, .. }
            | Request::Try { handle, .. } => Some(handle),
            Request::Ping => None,
        }
    }

    /// Whether the primary answers the request.
    pub fn has_reply(&self) -> bool {
        !matches!(self, Request::Wake { .. } | Request::Abandon { .. })
    }
}

/// Replies of the arbiter; "you" is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The lock is yours.
    Granted {
        /// The lock word after the grant.
        word: u64,
        /// The deadline of the hold.
        deadline: Deadline,
        /// The time of the grant on the server clock: the lease counts from there.
        at: ServerTime,
        /// Fair locks: the ticket of the hold.
        ticket: Option<Ticket>,
        /// The fencing token of an atomic or read-write lock, if the lock has tokens.
        token: Token,
    },
    /// You have a ticket, and it is not yet its turn.
    Queued {
        /// The lock word.
        word: u64,
        /// The ticket.
        ticket: Ticket,
    },
    /// The primary refuses the request; nothing has changed.
    Denied {
        /// The reason.
        status: Status,
        /// The lock word.
        word: u64,
    },
    /// The wait has ended without a grant.
    Cancelled {
        /// The lock word.
        word: u64,
    },
    /// The request is done.
    Done {
        /// The lock word.
        word: u64,
    },
    /// You hold the lock, and keep others waiting.
    Contended {
        /// How many clients wait for the lock.
        waiters: u32,
        /// Until when an operator gives you time to give the lock back; 0: no operator does.
        until: ServerTime,
    },
    /// The answer to `Ping`.
    Pong {
        /// The server clock when the primary answered.
        at: ServerTime,
    },
}
