// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every limit of the protocol by name. The C API's own limits have the C API as their source.

use crate::clock::Lease;

/// Clients of one primary (C API).
pub const CLIENTS_MAX: usize = 1_000;
/// Locks of one primary (C API).
pub const LOCKS_MAX: usize = 51_200;
/// State objects of one primary (C API).
pub const OBJECTS_MAX: usize = 102_400;
/// Slots of the lock memory: one for every lock and every object.
pub const SLOTS_MAX: usize = LOCKS_MAX + OBJECTS_MAX;
/// Locks one client may have got at a time: the entries of its ledger.
pub const HANDLES_MAX: usize = LOCKS_MAX;
/// Items of one batch (`MAX_LOCK_BATCH_SIZE` of the C API).
pub const BATCH_MAX: usize = 31;
/// Bytes of a lock or object descriptor (`MAX_LOCK_DESC_LEN` of the C API).
pub const DESC_LEN_MAX: usize = 512;
/// Primaries in one process (C API).
pub const SERVERS_MAX: usize = 32;
/// Readers a fair lock serves at a time (the 6 bits of `rcnt` in the C API).
pub const FAIR_READERS_MAX: u16 = 63;
/// From this number on, in either lane of a fair lock, a fetch-and-add takes no ticket: the arbiter
/// gives tickets out, until it has started the lanes again. Each client adds a few times at most
/// before it knows.
pub const FAIR_DIVERT: u32 = 0x7000_0000;
/// From this number on the arbiter gives no ticket out.
pub const FAIR_LANE_END: u32 = 0x7fff_0000;
const _: () = assert!(FAIR_DIVERT < FAIR_LANE_END && (1 << 31) - FAIR_LANE_END > 0xf000);
/// Bytes of one frame on any channel, header included.
pub const FRAME_LEN_MAX: usize = 64 * 1024;
/// Buffers of a verbs receive ring: enough that two peers never both run out of credit.
pub const VERBS_RING_SLOTS_MIN: u16 = 8;
/// Buffers of a verbs receive ring at most: the peer has a slot of its send queue for each.
pub const VERBS_RING_SLOTS_MAX: u16 = 32;
/// Bytes of a verbs message buffer: every request and reply fits.
pub const VERBS_MESSAGE_BYTES_MIN: u32 = 128;
/// Bytes of a verbs message buffer at most.
pub const VERBS_MESSAGE_BYTES_MAX: u32 = 4_096;
/// Seconds the C `lock` waits, and seconds a data-path call waits for its answer.
pub const LOCK_WAIT_S: u64 = 5;
/// Seconds a client waits for the answer of a control call (C API).
pub const CONTROL_WAIT_S: u64 = 10;
/// For how long a ticket of a fair lock has its turn whose client does not ask for it.
pub const FAIR_GRACE: Lease = Lease::secs(2);
/// Seconds between two looks at a read-write or fair lock that somebody is queued for: the wake-up
/// of a client that leaves is lost if its session ends in between.
pub const LOOK_S: u32 = 1;
/// Seconds that a client may stay between two verbs of one operation while others wait for what it
/// is about to do; then it must be fenced.
pub const HINDRANCE_S: u32 = 10;
/// Compare-and-swap rounds of one operation before it is handed to the arbiter.
pub const CAS_ROUNDS_MAX: u32 = 8;
/// Holds of others that a waiting operation finds, try by try, before it queues. Of 8 clients that
/// are equally lucky one in 5,000 operations loses so often.
pub const TRIES_HOLDS_MAX: u16 = 64;
/// Tries of one operation before it queues, whatever it finds, and whatever its clock says.
pub const TRIES_MAX: u16 = 1_024;
/// Nanoseconds for which an operation finds the same hold before it queues (10 ms): longer than it
/// takes to wake whoever was granted the lock in the queue, so that a queue, once there, drains.
pub const TRY_SAME_HOLD_NS_MAX: u64 = 10_000_000;
/// Nanoseconds between two tries at most (400 µs).
pub const TRY_PAUSE_NS_MAX: u64 = 400_000;
/// Nanoseconds for which an operation that has found one hold alone tries without pauses (2 ms):
/// longer than a hold of 1 ms that a timer ends late.
pub const TRY_AT_ONCE_NS_MAX: u64 = 2_000_000;
/// Tries without a pause between them, of an operation that finds one hold.
pub const TRIES_AT_ONCE_MAX: u16 = 64;
/// Nanoseconds between two tries up to which they are a quarter of the time that the hold has
/// lasted (25 µs): above, they are a sixteenth for who has lost the lock to nobody else.
pub const TRY_PAUSE_NS_SHORT: u64 = 25_000;
/// Nanoseconds between two tries at most of who has others before it in a fair lock's queue (4 ms).
pub const FAR_PAUSE_NS_MAX: u64 = 4_000_000;
/// The longest lease that a client claims before its turn. A client that stops for ever
/// while it waits keeps the lock from others for that long. A longer lease is claimed for this
/// long, and extended at the turn.
pub const CLAIM_LEASE_MAX: Lease = Lease::secs(60);
/// Nanoseconds for which a client of shared memory sees one turn of a fair lock before it sleeps on
/// the word (100 µs): a wake-up costs as much as a few short holds.
pub const PARK_AFTER_NS: u64 = 100_000;
/// Largest heartbeat timeout in seconds (C API).
pub const HEARTBEAT_S_MAX: u32 = 300;
/// Largest `recovery_client_num` (C API).
pub const RECOVERY_CLIENTS_MAX: u32 = 1_000;
/// The TCP port of the control channel where none is given (C API).
pub const PORT_DEFAULT: u16 = 21_616;
/// The first port that a program of the C API can be configured with (C API).
pub const PORT_MIN: u16 = 1_024;
