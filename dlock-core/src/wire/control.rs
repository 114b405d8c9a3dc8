// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of the control channel (TCP; TLS in secure mode), and of attaching a command channel.
//!
//! ```text
//!   client ──Init──▶ primary          one control connection per client instance
//!          ◀─Session─
//!          ──Attach{client, secret}──▶ a second connection becomes the command channel:
//!          ◀─Attached─                 TCP to the same port, or the Unix socket of the offer
//! ```
//! With verbs and sealed, `Attach` and `Attached` carry both ends of the queue pairs, and the
//! connection stays open as liveness connection: if either end closes it, the data path of the
//! session ends.
//!
//! `Init`, `Reinit`, `Session`, `Alive`, `Attach` and `Attached` may grow: a reader skips fields
//! that a later version adds at their ends.
//!
//! All requests on a control connection are of one client. The answer to `Init` gives the client
//! its id, or the client names its id in `Reinit`; no other request names the client. The `secret`
//! keeps other clients from a reinit or an attach as this one.

use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::{ClientId, Epoch, Generation, Handle, LockId, ObjectId, Slot};
use crate::memory::words::Ticket;
use crate::token::Token;
use crate::wire::about::About;
pub use crate::wire::fabric::{FabricKind, Offers};
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

/// The newest protocol version that this library speaks.
pub const VERSION: u8 = 1;
/// The oldest protocol version that this library speaks.
pub const VERSION_MIN: u8 = 1;

/// The proof of a client's identity: a random value that only the primary and that client know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The description of a lock by a client that gets it; the first one counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockDesc {
    /// The name, 1 to 512 bytes.
    pub name: Vec<u8>,
    /// The kind.
    pub lock_type: LockType,
    /// The lease, seconds: the primary stores it and never enforces it (as in the C API).
    pub lease_s: u32,
    /// Whether the client wants [tokens](crate::token) of the lock.
    pub tokens: bool,
}

/// A client's claim of a lock, sent to a recovering primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The id that the lock had at the predecessor.
    pub lock: LockId,
    /// The descriptor of the lock.
    pub desc: LockDesc,
    /// The hold or queue place that the client claims; `None`: only its reference.
    pub held: Option<HeldClaim>,
}

/// The part of a [`Claim`] about a hold, or about a place in the queue of a fair lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldClaim {
    /// The mode in which the client holds the lock, or asks for it.
    pub mode: Mode,
    /// Whether the client is queued, and does not hold the lock. Fair locks only.
    pub is_queued: bool,
    /// How much of the lease was left when the client sent the claim, nanoseconds; `u64::MAX`: no
    /// end.
    pub left_ns: u64,
    /// The time from the last grant or confirmation of the hold to the sending of the claim,
    /// milliseconds; `u32::MAX`: longer, or the client may have released the hold since.
    pub age_ms: u32,
    /// The incarnation that last granted or confirmed the hold; 0: not known, or the client may
    /// have released the hold since.
    pub epoch: Epoch,
    /// The end of the lease, by the clock of that incarnation.
    pub deadline: Deadline,
    /// Fair locks: the place in the order of tickets.
    pub fair: Option<Place>,
    /// The fencing token of the hold, if there is one and no other client can have the lock.
    pub token: Token,
}

impl HeldClaim {
    /// A hold of a lock that has no tickets, confirmed just now.
    pub fn hold(mode: Mode, left_ns: u64) -> Self {
        let (epoch, deadline) = (Epoch(0), Deadline::NONE);
        let (is_queued, age_ms, token) = (false, 0, Token::NONE);
        Self { mode, is_queued, left_ns, age_ms, epoch, deadline, fair: None, token }
    }
}

/// A place in the order of a fair lock's tickets. It outlasts the primary that gave the ticket: a
/// successor starts new ticket numbers, but the place stays that of the first ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The incarnation at which the ticket was taken; tickets of later incarnations are behind it.
    pub epoch: Epoch,
    /// The ticket.
    pub ticket: Ticket,
}

/// Client to primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Register a new client. The versions come first in the frame, in a layout that never changes.
    Init {
        /// The oldest version that the client speaks.
        version_min: u8,
        /// The newest version that the client speaks.
        version_max: u8,
        /// `trans_mode_t` of the C API; must be the same as the primary's.
        tp_mode: u8,
        /// The session horizon that the client asks for, seconds. 0: the primary chooses;
        /// [`HORIZON_FOREVER`]: unlimited.
        horizon_s: u32,
        /// What the client tells of itself.
        about: About,
    },
    /// Come back as a known client, or come to a successor.
    Reinit {
        /// The oldest version that the client speaks.
        version_min: u8,
        /// The newest version that the client speaks.
        version_max: u8,
        /// `trans_mode_t` of the C API; must be the same as the primary's.
        tp_mode: u8,
        /// The session horizon that the client asks for, as in `Init`.
        horizon_s: u32,
        /// The client's id.
        client: ClientId,
        /// The client's secret.
        secret: Secret,
        /// As in `Init`.
        about: About,
    },
    /// The client has sent all its claims. Answered by `Done`.
    ReinitDone,
    /// The client leaves, and the primary releases its references and holds. Answered by `Done`.
    Deinit,
    /// A sign of life. Answered by `Alive`.
    Heartbeat,
    /// Get up to [`BATCH_MAX`](crate::limits::BATCH_MAX) locks. Answered by `Locks`.
    GetLocks(Vec<LockDesc>),
    /// Release up to [`BATCH_MAX`](crate::limits::BATCH_MAX) locks. Answered by `Statuses`.
    ReleaseLocks(Vec<LockId>),
    /// Claims for a recovering primary. Answered by `Locks`.
    UpdateLocks(Vec<Claim>),
    /// Create an object. Answered by `Created`.
    ObjectCreate {
        /// The name, 1 to 512 bytes.
        name: Vec<u8>,
        /// The lease; must not be 0.
        lease: Lease,
        /// The initial value.
        init: u64,
    },
    /// Get an object. Answered by `Object`.
    ObjectGet {
        /// The name, 1 to 512 bytes.
        name: Vec<u8>,
        /// The lease; must not be 0.
        lease: Lease,
    },
    /// Release an object. Answered by `Done`.
    ObjectRelease(ObjectId),
    /// Destroy an object. Answered by `Done`.
    ObjectDestroy(ObjectId),
    /// Operate the primary; the client needs the right to do so. Answered by `Operated`.
    Operate(Act),
}

/// What an operator asks the primary to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Make clients give back what they hold, and fence those that do not.
    TakeAway {
        /// The clients from which their holds are taken.
        whose: Whose,
        /// The time that the clients have, seconds.
        grace_s: u32,
        /// Whether the leases of a fenced client end at once; otherwise each lasts until its own
        /// end.
        now: bool,
    },
    /// Begin or end a drain, in which no client gets a lock.
    Drain {
        /// Whether the drain begins.
        is_on: bool,
    },
}

/// The clients from which an operator takes something away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The client with this id.
    Client(ClientId),
    /// The clients that hold the lock of this name; if `client` is given, only that client.
    Holders {
        /// The name, 1 to 512 bytes.
        name: Vec<u8>,
        /// The one client; `None`: all holders.
        client: Option<ClientId>,
    },
    /// The clients that have no control connection.
    Departed,
    /// All clients.
    All,
}

/// A lock as the primary gives it to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockGrant {
    /// The id of the lock, the same for all clients.
    pub lock: LockId,
    /// This client's handle of the lock.
    pub handle: Handle,
    /// The slot of the lock's words.
    pub slot: Slot,
    /// The lock word when the client got the lock (fair locks: the tickets taken).
    pub word: u64,
    /// Whether this client already had a reference.
    pub already: bool,
    /// Whether clients count the ends of exclusive holds, because some client wants tokens.
    pub tokens: bool,
}

/// An object as the primary gives it to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectGrant {
    /// The id of the object, the same for all clients.
    pub object: ObjectId,
    /// This client's handle of the object.
    pub handle: Handle,
    /// The slot of the object's value.
    pub slot: Slot,
    /// The generation of the slot while the object lives.
    pub generation: Generation,
}

/// The primary's answer to `Init` and `Reinit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The protocol version that both sides speak from now on.
    pub version: u8,
    /// The client's id.
    pub client: ClientId,
    /// The client's secret.
    pub secret: Secret,
    /// The primary's incarnation.
    pub epoch: Epoch,
    /// The anchor of the server clock, seconds since 1970: the server clock counts from there.
    pub anchor_s: u32,
    /// The server clock when the primary wrote this answer.
    pub now: ServerTime,
    /// Whether the primary is in recovery, so that the client has to send its claims.
    pub recovering: bool,
    /// The fabrics that the primary offers. For shm the place is the abstract name of a Unix
    /// socket.
    pub offers: Offers,
    /// The terms of the session.
    pub terms: Terms,
}

/// What the primary promises a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The session horizon, seconds; 0: unlimited.
    pub horizon_s: u32,
    /// Until when, on the server clock, the primary does not act on this client's silence.
    /// [`UNLIMITED`]: it never does.
    pub until: ServerTime,
    /// How often this primary has ended what the client had without a lease (holds, queue places).
    /// If the client knows another number, it must treat all of these as lost; its holds with a
    /// lease last until their leases end. 0 after `Init`.
    pub lapses: u32,
}

impl Terms {
    /// The terms of a new client without a horizon.
    pub const UNLIMITED: Self = Self { horizon_s: 0, until: UNLIMITED, lapses: 0 };
}

/// A value of `horizon_s` in `Init` and `Reinit`: the client asks for an unlimited horizon.
pub const HORIZON_FOREVER: u32 = u32::MAX;

/// A horizon that is never reached.
pub const UNLIMITED: ServerTime = ServerTime(u64::MAX);

/// The progress of a recovery: how many clients have claimed everything, of how many. 0 of 0: the
/// primary does not recover, or the peer that asks is no client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told {
    /// How many clients have claimed everything.
    pub told: u32,
    /// For how many clients the recovery waits, or has waited.
    pub of: u32,
}

/// The primary's answers to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlReply {
    /// The primary refuses the request; nothing has changed.
    Error(Status),
    /// The client is admitted.
    Session(Session),
    /// The request is done.
    Done,
    /// The answer to `Heartbeat`.
    Alive {
        /// The server clock when the primary answered.
        now: ServerTime,
        /// Whether the primary is in recovery.
        recovering: bool,
        /// See [`Terms::until`]; 0: the peer is no client, and gets no promise.
        until: ServerTime,
        /// Until when an operator gives the client time to give something back; 0: no operator
        /// does.
        asked: ServerTime,
        /// The progress of the recovery.
        recovery: Told,
    },
    /// One result for each lock that the client has asked for.
    Locks(Vec<Result<LockGrant, Status>>),
    /// One status for each lock.
    Statuses(Vec<Status>),
    /// The id of the new object.
    Created(ObjectId),
    /// The object that the client has got.
    Object(ObjectGrant),
    /// The operator's act is done; it concerns this many clients.
    Operated(u32),
    /// The answer to the `Reinit` of a client that an operator has removed; otherwise like
    /// `ClientRemoved`.
    Removed {
        /// The operator's name, at most 255 bytes.
        by: String,
        /// Whether the client's leases ended at once.
        now: bool,
    },
}

/// The first frame of a connection that is to become a client's command channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The id of that client.
    pub client: ClientId,
    /// The secret of the session.
    pub secret: Secret,
    /// The fabric of the new channel.
    pub fabric: FabricKind,
    /// The client's queue pairs; present if and only if `fabric` needs a device.
    pub verbs: Option<VerbsAttach>,
    /// Whether the client comes back by itself if the primary closes the channel.
    pub returns: bool,
}

/// The answer to [`Attach`]. On a Unix socket its frame carries the file descriptors of the
/// slot memory and of the client's ledger, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// `Success`, or the reason of the refusal.
    pub status: Status,
    /// How many slots the lock memory has.
    pub slots: u32,
    /// How many entries the client's ledger has.
    pub ledger_entries: u32,
    /// The server clock minus the primary's CLOCK_BOOTTIME, nanoseconds (shm only; otherwise 0). A
    /// client in another time namespace reads a different CLOCK_BOOTTIME.
    pub clock_offset_ns: u64,
    /// The primary's queue pairs and memory (only if the fabric needs a device).
    pub verbs: Option<VerbsAttached>,
    /// See [`Terms::until`]; 0 if the primary refuses.
    pub until: ServerTime,
}

impl VerbsRegion {
    /// A region without any memory.
    pub const EMPTY: Self = Self { base: 0, bytes: 0, rkey: 0 };
}

impl Attached {
    /// A refusal with this status.
    pub fn bare(status: Status) -> Self {
        let (slots, ledger_entries, until) = (0, 0, ServerTime(0));
        Self { status, slots, ledger_entries, clock_offset_ns: 0, verbs: None, until }
    }
}

/// One end of a reliable connection, as the other end needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsEndpoint {
    /// The queue pair number: 24 bits.
    pub qp_num: u32,
    /// The first packet sequence number of this end: 24 bits.
    pub psn: u32,
    /// The GID of this end's port, in network byte order.
    pub gid: [u8; 16],
    /// The local identifier (LID) of this end's port; InfiniBand only.
    pub lid: u16,
    /// The code of the path MTU: 1 = 256 bytes … 5 = 4,096 bytes.
    pub mtu: u8,
    /// How many reads and atomics this end executes at a time; not 0.
    pub reads: u8,
}

/// Memory of the primary that a client's queue pair may operate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsRegion {
    /// The address of the memory in the primary's process.
    pub base: u64,
    /// The length of the memory in bytes.
    pub bytes: u64,
    /// The remote key (rkey); it works only on this client's queue pair.
    pub rkey: u32,
}

/// A verbs client's queue pairs and receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsAttach {
    /// The queue pair for chains; with `Sealed` it carries everything.
    pub chains: VerbsEndpoint,
    /// The queue pair for messages; `None`: messages go over the queue pair for chains.
    pub messages: Option<VerbsEndpoint>,
    /// How many buffers the client's receive ring has,
    /// [`VERBS_RING_SLOTS_MIN`](crate::limits::VERBS_RING_SLOTS_MIN) to
    /// [`VERBS_RING_SLOTS_MAX`](crate::limits::VERBS_RING_SLOTS_MAX).
    pub ring_slots: u16,
    /// The bytes of one buffer, [`VERBS_MESSAGE_BYTES_MIN`](crate::limits::VERBS_MESSAGE_BYTES_MIN)
    /// to [`VERBS_MESSAGE_BYTES_MAX`](crate::limits::VERBS_MESSAGE_BYTES_MAX).
    pub message_bytes: u32,
}

/// The primary's side of a [`VerbsAttach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsAttached {
    /// The queue pair for chains.
    pub chains: VerbsEndpoint,
    /// The queue pair for messages, if the client has one.
    pub messages: Option<VerbsEndpoint>,
    /// The slots, for remote reads and atomics. With `Sealed` this region and the next are empty.
    pub slots: VerbsRegion,
    /// The client's ledger, for remote writes.
    pub ledger: VerbsRegion,
    /// How many buffers the primary's receive ring has; the limits are those of [`VerbsAttach`].
    pub ring_slots: u16,
    /// The bytes of one buffer; the limits are those of [`VerbsAttach`].
    pub message_bytes: u32,
}
