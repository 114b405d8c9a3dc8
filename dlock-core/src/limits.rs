// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every limit of the protocol by name. The C API's own limits have the C API as their source.

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
/// Tickets outstanding per lane of a fair lock (C API).
pub const FAIR_QUEUE_MAX: u16 = 0x7fff;
/// From this lane value on tickets are taken through the arbiter, until the lane has wrapped.
/// Every client adds at most once before it notices, so that the rest of the lane must hold
/// [`CLIENTS_MAX`] tickets: it holds four times as many.
pub const FAIR_LANE_DIVERT: u16 = 0xf000;
const _: () = assert!((u16::MAX - FAIR_LANE_DIVERT) as usize >= 4 * CLIENTS_MAX);
/// From this lane value on the arbiter alone gives exclusive numbers out: a primary executes no
/// more additions for anybody, and a client that adds all the same has no ticket.
pub const FAIR_LANE_MAX: u16 = 0xf800;
const _: () = assert!((FAIR_LANE_MAX - FAIR_LANE_DIVERT) as usize >= CLIENTS_MAX);
/// The arbiter gives out exclusive numbers from [`FAIR_LANE_MAX`] to below this one, again and
/// again: one for each client. The rest of the lane has room for one addition of each client that
/// does not know where the lane is, so that no addition carries into the next lane.
pub const FAIR_LANE_RING_END: u16 = 0xfbff;
const _: () = assert!((FAIR_LANE_RING_END - FAIR_LANE_MAX) as usize >= CLIENTS_MAX);
const _: () = assert!((u16::MAX - FAIR_LANE_RING_END) as usize >= CLIENTS_MAX);
/// From this many tickets in a lane on they are taken through the arbiter, which refuses those
/// beyond [`FAIR_QUEUE_MAX`]: a fetch-and-add cannot be refused, and twice as many could not be
/// told apart from those that are done.
pub const FAIR_QUEUE_DIVERT: u16 = 0x4000;
const _: () = assert!((FAIR_QUEUE_MAX - FAIR_QUEUE_DIVERT) as usize >= 4 * CLIENTS_MAX);
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
/// Seconds after which a head ticket of a fair lock that nobody claims is skipped.
pub const FAIR_GRACE_S: u32 = 2;
/// Seconds between two looks at a read-write or fair lock that somebody is queued for: the wake-up
/// of a client that leaves is lost if its session ends in between.
pub const LOOK_S: u32 = 1;
/// Seconds that a client may stay between two verbs of one operation while others wait for what it
/// is about to do; then it must be fenced.
pub const HINDRANCE_S: u32 = 10;
/// Compare-and-swap rounds of one operation before it is handed to the arbiter.
pub const CAS_ROUNDS_MAX: u32 = 8;
/// Nanoseconds after the grant of a hold (5 ms) for which it counts that its holder has handed a
/// fair lock on. A lane comes to the same number again after [`FAIR_LANE_DIVERT`] tickets at least,
/// each of which takes two atomics on one word and two calls: 81 ns would have to be enough for
/// that, and it takes 100 in memory of one host without anybody else.
pub const HAND_ON_NS_MAX: u64 = 5_000_000;
const _: () = assert!(HAND_ON_NS_MAX / (FAIR_LANE_DIVERT as u64) < 90);
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
/// Seconds of the longest lease that a waiter claims ahead of its turn: who stops for ever while it
/// waits keeps the lock from others for so long at its turn, as any holder does.
pub const CLAIM_LEASE_S_MAX: u32 = 60;
/// Seconds for which an intent claims the turn beyond the lease, where notes may be late: for so
/// long more tickets can be taken under it.
pub const CLAIM_SLACK_S: u32 = 2;
/// Nanoseconds after which a note of a fair lock that was put off is written, and a ticket named
/// (10 ms).
pub const NOTE_LATE_NS: u64 = 10_000_000;
/// Largest heartbeat timeout in seconds (C API).
pub const HEARTBEAT_S_MAX: u32 = 300;
/// Largest `recovery_client_num` (C API).
pub const RECOVERY_CLIENTS_MAX: u32 = 1_000;
/// The TCP port of the control channel where none is given (C API).
pub const PORT_DEFAULT: u16 = 21_616;
/// The first port that a program of the C API can be configured with (C API).
pub const PORT_MIN: u16 = 1_024;
