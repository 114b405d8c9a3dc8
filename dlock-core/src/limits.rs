// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every limit of the protocol by name. "(C API)" marks limits that the C API sets.

use crate::clock::Lease;

/// The most clients of one primary (C API).
pub const CLIENTS_MAX: usize = 1_000;
/// The most locks of one primary (C API).
pub const LOCKS_MAX: usize = 51_200;
/// The most state objects of one primary (C API).
pub const OBJECTS_MAX: usize = 102_400;
/// The slots of the lock memory: one for every lock and every object.
pub const SLOTS_MAX: usize = LOCKS_MAX + OBJECTS_MAX;
/// The most locks that one client may have got at a time: the entries of its ledger.
pub const HANDLES_MAX: usize = LOCKS_MAX;
/// The most items of one batch (`MAX_LOCK_BATCH_SIZE` of the C API).
pub const BATCH_MAX: usize = 31;
/// The most bytes of a lock or object descriptor (`MAX_LOCK_DESC_LEN` of the C API).
pub const DESC_LEN_MAX: usize = 512;
/// The most primaries in one process (C API).
pub const SERVERS_MAX: usize = 32;
/// The most readers that hold a fair lock at a time (the 6 bits of `rcnt` in the C API).
pub const FAIR_READERS_MAX: u16 = 63;
/// The number, in either ticket counter of a fair lock, from which a fetch-and-add takes no ticket:
/// from there on only the arbiter gives tickets, until it has reset the counters. Each client adds
/// a few times at most before it learns that.
pub const FAIR_DIVERT: u32 = 0x7000_0000;
/// The number from which the arbiter gives no ticket either.
pub const FAIR_LANE_END: u32 = 0x7fff_0000;
const _: () = assert!(FAIR_DIVERT < FAIR_LANE_END && (1 << 31) - FAIR_LANE_END > 0xf000);
/// The most bytes of one frame on any channel, header included.
pub const FRAME_LEN_MAX: usize = 64 * 1024;
/// The fewest buffers of a verbs receive ring: enough that two peers never both run out of credit.
pub const VERBS_RING_SLOTS_MIN: u16 = 8;
/// The most buffers of a verbs receive ring: the peer has a slot of its send queue for each.
pub const VERBS_RING_SLOTS_MAX: u16 = 32;
/// The fewest bytes of a verbs message buffer: every request and reply fits.
pub const VERBS_MESSAGE_BYTES_MIN: u32 = 128;
/// The most bytes of a verbs message buffer.
pub const VERBS_MESSAGE_BYTES_MAX: u32 = 4_096;
/// How long the C `lock` waits, and a data-path call waits for its answer, seconds.
pub const LOCK_WAIT_S: u64 = 5;
/// How long a client waits for the answer to a control call, seconds (C API).
pub const CONTROL_WAIT_S: u64 = 10;
/// How long a ticket of a fair lock keeps its turn if its client does not ask for it.
pub const FAIR_GRACE: Lease = Lease::secs(2);
/// The time between two looks at a read-write or fair lock for which a client is queued, seconds.
/// The wake-up of a client that leaves is lost if the client's session ends before it is sent.
pub const LOOK_S: u32 = 1;
/// How long a client may stay between two word operations of one operation while others wait for
/// what it is about to do, seconds; then it must be fenced.
pub const HINDRANCE_S: u32 = 10;
/// How long a try of a lock that another client keeps waits for that client to give it back or to
/// say that it uses it, nanoseconds (200 ms).
pub const TRY_KEPT_NS_MAX: u64 = 200_000_000;
/// For how long a client does not keep a lock again after others have wanted it, nanoseconds
/// (10 ms): twice as long for each time in a row that it had not used the lock meanwhile.
pub const KEEP_AGAIN_NS: u64 = 10_000_000;
/// How often that time doubles at most: to 10 s.
pub const KEEP_AGAIN_DOUBLED_MAX: u8 = 10;
/// The most locks that a client keeps without using them, if its configuration names no number.
pub const KEPT_MAX: usize = 1_024;
/// The most compare-and-swaps of one operation before the arbiter takes it over.
pub const CAS_ROUNDS_MAX: u32 = 8;
/// How many holds of other clients a waiting operation finds in its tries before it queues. Of 8
/// clients with equal chances, one in 5,000 operations loses that often.
pub const TRIES_HOLDS_MAX: u16 = 64;
/// The most tries of one operation before it queues, also if its clock stands still.
pub const TRIES_MAX: u16 = 1_024;
/// How long an operation finds the same hold before it queues, nanoseconds (10 ms): longer than it
/// takes to wake a queued client that was granted the lock, so that a queue, once there, drains.
pub const TRY_SAME_HOLD_NS_MAX: u64 = 10_000_000;
/// The longest time between two tries, nanoseconds (400 µs).
pub const TRY_PAUSE_NS_MAX: u64 = 400_000;
/// How long an operation that has found only one hold tries without pauses, nanoseconds (2 ms):
/// longer than a hold of 1 ms that a timer ends late.
pub const TRY_AT_ONCE_NS_MAX: u64 = 2_000_000;
/// The most tries without a pause between them, while an operation finds only one hold.
pub const TRIES_AT_ONCE_MAX: u16 = 64;
/// The longest pause, nanoseconds (25 µs), that is a quarter of the time for which the hold has
/// lasted. A longer pause is a sixteenth of that time, unless the client has lost the lock to
/// others.
pub const TRY_PAUSE_NS_SHORT: u64 = 25_000;
/// The longest time between two tries while others come before the client in a fair lock's queue,
/// nanoseconds (4 ms).
pub const FAR_PAUSE_NS_MAX: u64 = 4_000_000;
/// The longest lease that a client claims before its turn. A client that stops for ever while it
/// waits keeps the lock from others for that long. A client that wants a longer lease claims this
/// one, and lengthens it at its turn.
pub const CLAIM_LEASE_MAX: Lease = Lease::secs(60);
/// How long a client on shared memory sees the same turn of a fair lock before it sleeps on the
/// word, nanoseconds (100 µs): a wake-up costs as much as a few short holds.
pub const PARK_AFTER_NS: u64 = 100_000;
/// The longest heartbeat timeout, seconds (C API).
pub const HEARTBEAT_S_MAX: u32 = 300;
/// The largest `recovery_client_num` (C API).
pub const RECOVERY_CLIENTS_MAX: u32 = 1_000;
/// The TCP port of the control channel if the configuration names none (C API).
pub const PORT_DEFAULT: u16 = 21_616;
/// The first port with which a program of the C API can be configured (C API).
pub const PORT_MIN: u16 = 1_024;
