// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client over a network knows of the server clock: kept fresh by the replies that carry
//! the time, and by asking for it.
//!
//! ```text
//!   reading ── fresh ──▶ the estimate
//!           └─ stale: a Ping is out ──▶ answered by now? taken; if not, the estimate as it is
//!                     none is ────────▶ Ping, waited for as long as the executor wants
//! ```
//! A primary that does not answer is waited for once: until it has, everybody goes on with the
//! old estimate, whose uncertainty grows.

use std::sync::Mutex;
use std::time::Duration;

use dlock_core::ids::Seq;
use dlock_core::message::Reply;
use dlock_core::status::Status;

use crate::clock::{monotonic_ns, ClockEstimate};
use crate::inbox::{lock, Answer, Broken};

/// Takes a new estimate, if it is better than the one in use is by now.
pub(crate) fn refresh(clock: &Mutex<ClockEstimate>, candidate: ClockEstimate) {
    let mut clock = lock(clock);
    let now_ns = monotonic_ns();
    if candidate.uncertainty_ns(now_ns) < clock.uncertainty_ns(now_ns) {
        *clock = candidate;
    }
}

/// The reply that was waited for; if it carries the time, that is taken.
pub(crate) fn reply(
    clock: &Mutex<ClockEstimate>,
    waited: Result<Option<Answer>, Broken>,
) -> Result<Option<Reply>, Status> {
    match waited {
        Ok(Some(Answer::Reply { reply, sent_ns, received_ns })) => {
            if let Reply::Pong { at } | Reply::Granted { at, .. } = reply {
                refresh(clock, ClockEstimate::from_exchange(sent_ns, received_ns, at));
            }
            Ok(Some(reply))
        }
        Ok(_) => Ok(None),
        Err(Broken) => Err(Status::BadResponse),
    }
}

/// Between two looks for the answer of a primary that has not told the time.
const LOOK_NS: u64 = 1_000_000;

/// A request for the time that was not answered in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    seq: Seq,
    looked_ns: u64,
}

/// Asks for the time, unless an answer is outstanding (`ping`), or somebody else is just asking. `reply` is the executor's own, so that it takes what comes.
pub(crate) fn ask(
    clock: &Mutex<ClockEstimate>,
    ping: &Mutex<Option<Ping>>,
    wait: Duration,
    send: impl FnOnce() -> Result<Seq, Status>,
    reply: impl Fn(Seq, Duration) -> Result<Option<Reply>, Status>,
) {
    let Ok(mut ping) = ping.try_lock() else { return };
    let now_ns = monotonic_ns();
    if let Some(Ping { seq, looked_ns }) = &mut *ping {
        if now_ns.saturating_sub(*looked_ns) < LOOK_NS {
            return;
        }
        *looked_ns = now_ns;
        if matches!(reply(*seq, Duration::ZERO), Ok(None)) {
            return;
        }
        *ping = None;
        if !lock(clock).is_stale(now_ns) {
            return;
        }
    }
    if let Ok(seq) = send() {
        if matches!(reply(seq, wait), Ok(None)) {
            *ping = Some(Ping { seq, looked_ns: now_ns });
        }
    }
}
