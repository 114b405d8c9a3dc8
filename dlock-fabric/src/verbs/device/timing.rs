// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits on how long a device retries: lease arithmetic and fencing rely on them.
//!
//! ```text
//!   post ──▶ sent ──no answer: 4.096 µs × 2^TIMEOUT … 4 × that──▶ sent again, RETRIES times ──▶
//!   RETRY_EXC_ERR; the queue pair is in error, everything behind is flushed
//! ```
//! The InfiniBand specification lets a device take up to four times the nominal timeout. A request
//! that gets through restarts the retry count for the requests behind it.

use std::time::Duration;

/// How often a request without an answer is repeated. 7 means "for ever" on SoftRoCE.
pub const RETRY_CNT: u8 = 6;
/// How often a message is repeated because the receiver had no buffer; 7 means "for ever".
pub const RNR_RETRY: u8 = 6;
/// The local ACK timeout, as an exponent: 4.096 µs × 2^14 = 67.1 ms.
pub const TIMEOUT: u8 = 14;
/// How long a sender waits for a receive buffer, as a code of the standard's table: 0.64 ms.
pub const MIN_RNR_TIMER: u8 = 12;
/// Nanoseconds of [`MIN_RNR_TIMER`].
const RNR_TIMER_NS: u64 = 640_000;
/// Nominal nanoseconds of [`TIMEOUT`].
const TIMEOUT_NS: u64 = 4_096 << TIMEOUT;
/// The factor by which a device may exceed the nominal timeout (InfiniBand specification
/// 9.7.6.1.3).
const TIMEOUT_FACTOR_MAX: u64 = 4;

/// Longest time in nanoseconds until a request at the head of its queue is executed or has failed:
/// 1.88 s for its timeouts, and a few ms for missing receive buffers.
pub const HEAD_EFFECT_NS_MAX: u64 = (RETRY_CNT as u64 + 1) * TIMEOUT_NS * TIMEOUT_FACTOR_MAX
    + (RNR_RETRY as u64 + 1) * RNR_TIMER_NS;

/// Longest time from posting until a request can still take effect, if `requests` of its queue pair
/// (itself included) are under way: each may need all its retries before the next is at the head.
/// Packets that wait inside the network come on top.
pub const fn effect_ns_max(requests: u32) -> u64 {
    HEAD_EFFECT_NS_MAX.saturating_mul(requests as u64)
}

/// The longest time until a word operation on an otherwise empty queue shows that the peer is gone.
pub const DEAD_PEER_MAX: Duration = Duration::from_nanos(HEAD_EFFECT_NS_MAX);

const _: () = {
    assert!(RETRY_CNT <= 6 && RNR_RETRY <= 6, "7 is not a bound on SoftRoCE");
    assert!(HEAD_EFFECT_NS_MAX < 2_000_000_000);
};
