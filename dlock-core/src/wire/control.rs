// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of the control channel (TCP; TLS in secure mode), and of attaching a command channel.
//!
//! ```text
//!   client ──Init──▶ primary          one control connection per client instance
//!          ◀─Session─
//!          ──Attach{client, secret}──▶ a second connection becomes the command channel:
//!          ◀─Attached─                 TCP to the same port, or the Unix socket of the offer
//! ```
//! With verbs and sealed the exchange carries both ends of the queue pairs, and the connection
//! stays open as liveness connection: if either end closes it, the session's data path ends.
//!
//! `Init`, `Reinit`, `Session`, `Alive`, `Attach` and `Attached` may grow: fields that a later
//! version adds at their ends are skipped.
//!
//! A connection is bound to the client that `Init` or `Reinit` gave it; no other request carries a
//! client id. The `secret` keeps other clients from reinitialising or attaching as this one.

use crate::clock::ServerTime;
use crate::ids::{ClientId, Epoch, Generation, Handle, LockId, ObjectId, Slot};
use crate::memory::words::Ticket;
use crate::token::Token;
pub use crate::wire::fabric::{FabricKind, Offers};
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

/// The newest protocol version that this library speaks.
pub const VERSION: u8 = 1;
/// The oldest protocol version this library speaks.
pub const VERSION_MIN: u8 = 1;

/// Proof of a client's identity: random, known to the primary and that client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A lock as its first user describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockDesc {
    /// 1 to 512 bytes.
    pub name: Vec<u8>,
    /// The kind.
    pub lock_type: LockType,
    /// Stored, never enforced (as in the C API).
    pub lease_s: u32,
    /// The client wants [tokens](crate::token) of it.
    pub tokens: bool,
}

/// A client's claim of a lock, sent to a recovering primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The id the lock had.
    pub lock: LockId,
    /// The descriptor of the lock.
    pub desc: LockDesc,
    /// The hold or queue place that the client claims; `None`: only its reference.
    pub held: Option<HeldClaim>,
}

/// The part of a [`Claim`] about a hold, or about a place in the queue of a fair lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldClaim {
    /// The mode in which the lock is held, or asked for.
    pub mode: Mode,
    /// Whether the client is queued, and does not hold the lock. Fair locks only.
    pub is_queued: bool,
    /// Rest of the lease when the claim was sent, nanoseconds; `u64::MAX`: no end.
    pub left_ns: u64,
    /// Milliseconds from the last grant or confirmation of the hold to the sending of the claim;
    /// `u32::MAX`: longer, or the hold may have been released since.
    pub age_ms: u32,
    /// The incarnation that granted or confirmed the hold last; 0: not known, or it may have been
    /// released since.
    pub epoch: Epoch,
    /// The end of the lease by the clock of that incarnation, seconds since 1970; `u32::MAX`: no
    /// end.
    pub deadline_s: u32,
    /// The place in the order of tickets; fair locks only.
    pub fair: Option<Place>,
    /// The fencing token of the hold, if there is one and no other client can have the lock.
    pub token: Token,
}

impl HeldClaim {
    /// A hold of a lock that has no tickets, confirmed just now.
    pub fn hold(mode: Mode, left_ns: u64) -> Self {
        let (epoch, deadline_s) = (Epoch(0), 0);
        let (is_queued, age_ms, token) = (false, 0, Token::NONE);
        Self { mode, is_queued, left_ns, age_ms, epoch, deadline_s, fair: None, token }
    }
}

/// A place in the order of a fair lock's tickets. It outlasts the primary that gave the ticket: a
/// successor starts new ticket numbers, but the place remains that of the first ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The incarnation at which the ticket was taken; tickets of later ones are behind it.
    pub epoch: Epoch,
    /// The ticket.
    pub ticket: Ticket,
}

/// Client to primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Register a new client. The versions come first in the frame, in a layout that never changes.
    Init {
        /// Oldest version the client speaks.
        version_min: u8,
        /// Newest version the client speaks.
        version_max: u8,
        /// `trans_mode_t` of the C API: must be the primary's.
        tp_mode: u8,
        /// The session horizon asked for, seconds. 0: the primary chooses it; [`HORIZON_FOREVER`]:
        /// unlimited.
        horizon_s: u32,
    },
    /// Come back as a known client, or come to a successor.
    Reinit {
        /// Oldest version the client speaks.
        version_min: u8,
        /// Newest version the client speaks.
        version_max: u8,
        /// `trans_mode_t` of the C API: must be the primary's.
        tp_mode: u8,
        /// As in `Init`.
        horizon_s: u32,
        /// The client's id.
        client: ClientId,
        /// The client's secret.
        secret: Secret,
    },
    /// All claims were sent. Answered by `Done`.
    ReinitDone,
    /// The client leaves: its references and holds are released. Answered by `Done`.
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
        /// 1 to 512 bytes.
        name: Vec<u8>,
        /// Lease in seconds, not 0.
        lease_s: u32,
        /// The initial value.
        init: u64,
    },
    /// Get an object. Answered by `Object`.
    ObjectGet {
        /// 1 to 512 bytes.
        name: Vec<u8>,
        /// Lease in seconds, not 0.
        lease_s: u32,
    },
    /// Release an object. Answered by `Done`.
    ObjectRelease(ObjectId),
    /// Destroy an object. Answered by `Done`.
    ObjectDestroy(ObjectId),
    /// Operate the primary, which needs the right to do that. Answered by `Operated`.
    Operate(Act),
}

/// What an operator wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Have clients give back what they hold, and fence those that do not.
    TakeAway {
        /// Which clients.
        whose: Whose,
        /// The time that they are given, seconds.
        grace_s: u32,
        /// Their leases end with them; else each at its end.
        now: bool,
    },
    /// Give no lock to a client any more; or do so again.
    Drain {
        /// Whether no lock is given.
        is_on: bool,
    },
}

/// From which clients something is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This one.
    Client(ClientId),
    /// Those that hold the lock of this name; if one is named, that one alone.
    Holders {
        /// 1 to 512 bytes.
        name: Vec<u8>,
        /// That client.
        client: Option<ClientId>,
    },
    /// Those without a control connection.
    Departed,
    /// All.
    All,
}

/// A lock as the primary gives it to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockGrant {
    /// The id, the same for all clients.
    pub lock: LockId,
    /// This client's handle for it.
    pub handle: Handle,
    /// The slot of its words.
    pub slot: Slot,
    /// The lock word when it was got (fair locks: the tickets taken).
    pub word: u64,
    /// Whether this client had a reference already.
    pub already: bool,
    /// The end of an exclusive hold is counted, for clients that want tokens.
    pub tokens: bool,
}

/// An object as the primary gives it to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectGrant {
    /// The id, the same for all clients.
    pub object: ObjectId,
    /// This client's handle for it.
    pub handle: Handle,
    /// The slot of its value.
    pub slot: Slot,
    /// The generation of the slot while the object lives.
    pub generation: Generation,
}

/// The primary's answer to `Init` and `Reinit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The version both speak from now on.
    pub version: u8,
    /// The client's id.
    pub client: ClientId,
    /// The client's secret.
    pub secret: Secret,
    /// The primary's incarnation.
    pub epoch: Epoch,
    /// The anchor of ledger deadlines: seconds since 1970 on the server clock.
    pub anchor_s: u32,
    /// The server clock when this was written.
    pub now: ServerTime,
    /// Whether the primary is in recovery, and asks for claims.
    pub recovering: bool,
    /// The fabrics that the primary offers. The place of shm is the abstract name of a Unix socket.
    pub offers: Offers,
    /// The terms of the session.
    pub terms: Terms,
}

/// The terms that the primary promises a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The session horizon, seconds; 0: unlimited.
    pub horizon_s: u32,
    /// Until when the primary does not act on this client's silence, on the server clock.
    /// [`UNLIMITED`]: it never does.
    pub until: ServerTime,
    /// How often this primary has ended what the client had without a lease (holds, queue places).
    /// A client that knows another number must treat all of these as lost, but not its holds with a
    /// lease, which last until their leases end. 0 after `Init`.
    pub lapses: u32,
}

impl Terms {
    /// The terms of a new client without a horizon.
    pub const UNLIMITED: Self = Self { horizon_s: 0, until: UNLIMITED, lapses: 0 };
}

/// The horizon of a request for an unlimited one.
pub const HORIZON_FOREVER: u32 = u32::MAX;

/// A horizon that is never reached.
pub const UNLIMITED: ServerTime = ServerTime(u64::MAX);

/// How many of how many clients have told a recovering primary what they hold; 0 of 0: it does not
/// recover, or is not asked by a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told {
    /// So many have told everything.
    pub told: u32,
    /// The recovery waits for so many, or has waited.
    pub of: u32,
}

/// Answers of a primary to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlReply {
    /// Refused; nothing changed.
    Error(Status),
    /// Admitted.
    Session(Session),
    /// Done.
    Done,
    /// The answer to `Heartbeat`.
    Alive {
        /// The server clock when it was answered.
        now: ServerTime,
        /// Whether the primary is in recovery.
        recovering: bool,
        /// See [`Terms::until`]; 0: the peer is no client, and is promised nothing.
        until: ServerTime,
        /// Until when an operator wants something of the client back; 0: nothing.
        asked: ServerTime,
        /// How far the recovery is.
        recovery: Told,
    },
    /// One result per lock asked for.
    Locks(Vec<Result<LockGrant, Status>>),
    /// One status per lock.
    Statuses(Vec<Status>),
    /// The object's id.
    Created(ObjectId),
    /// The object.
    Object(ObjectGrant),
    /// Done, for so many clients.
    Operated(u32),
    /// The answer to `Reinit` of a client that an operator has removed: as `ClientRemoved`.
    Removed {
        /// The operator: at most 255 bytes.
        by: String,
    },
}

/// The first frame of a connection that is to become a client's command channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The id of that client.
    pub client: ClientId,
    /// The secret of the session.
    pub secret: Secret,
    /// The fabric of the connection.
    pub fabric: FabricKind,
    /// The client's queue pairs; present exactly if `fabric` needs a device.
    pub verbs: Option<VerbsAttach>,
}

/// The answer to [`Attach`]. On a Unix socket its frame carries the file descriptors of the
/// slot memory and of the client's ledger, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// `Success`, or the reason of the refusal.
    pub status: Status,
    /// Slots in the lock memory.
    pub slots: u32,
    /// Entries of the client's ledger.
    pub ledger_entries: u32,
    /// Server clock minus the primary's CLOCK_BOOTTIME, nanoseconds (shm only; else 0). A client in
    /// another time namespace reads a different CLOCK_BOOTTIME.
    pub clock_offset_ns: u64,
    /// The primary's queue pairs and memory (fabrics that need a device).
    pub verbs: Option<VerbsAttached>,
    /// See [`Terms::until`]; 0 if refused.
    pub until: ServerTime,
}

impl VerbsRegion {
    /// No memory at all.
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
    /// The packet sequence number at which it starts: 24 bits.
    pub psn: u32,
    /// The GID of its port, network order.
    pub gid: [u8; 16],
    /// The local identifier of its port; InfiniBand only.
    pub lid: u16,
    /// The path MTU, 1 = 256 bytes … 5 = 4,096.
    pub mtu: u8,
    /// Reads and atomics that it executes at a time; not 0.
    pub reads: u8,
}

/// Memory of the primary that a client's queue pair may operate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsRegion {
    /// The address in the primary's process.
    pub base: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The key: worth nothing on any other client's queue pair.
    pub rkey: u32,
}

/// A verbs client's queue pairs and receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsAttach {
    /// The queue pair for chains; with `Sealed` it carries everything.
    pub chains: VerbsEndpoint,
    /// The queue pair for messages; `None`: messages go over the queue pair for chains.
    pub messages: Option<VerbsEndpoint>,
    /// Buffers of its receive ring, [`VERBS_RING_SLOTS_MIN`] to [`VERBS_RING_SLOTS_MAX`].
    ///
    /// [`VERBS_RING_SLOTS_MIN`]: crate::limits::VERBS_RING_SLOTS_MIN
    /// [`VERBS_RING_SLOTS_MAX`]: crate::limits::VERBS_RING_SLOTS_MAX
    pub ring_slots: u16,
    /// Bytes of a buffer, [`VERBS_MESSAGE_BYTES_MIN`] to [`VERBS_MESSAGE_BYTES_MAX`].
    ///
    /// [`VERBS_MESSAGE_BYTES_MIN`]: crate::limits::VERBS_MESSAGE_BYTES_MIN
    /// [`VERBS_MESSAGE_BYTES_MAX`]: crate::limits::VERBS_MESSAGE_BYTES_MAX
    pub message_bytes: u32,
}

/// The primary's side of a [`VerbsAttach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsAttached {
    /// The queue pair for chains.
    pub chains: VerbsEndpoint,
    /// The queue pair for messages, if the client has one.
    pub messages: Option<VerbsEndpoint>,
    /// The slots: remote read and atomics. With `Sealed` this region and the next are empty.
    pub slots: VerbsRegion,
    /// The client's ledger: remote write.
    pub ledger: VerbsRegion,
    /// Buffers of its receive ring, bounded as in [`VerbsAttach`].
    pub ring_slots: u16,
    /// Bytes of a buffer, bounded as in [`VerbsAttach`].
    pub message_bytes: u32,
}
