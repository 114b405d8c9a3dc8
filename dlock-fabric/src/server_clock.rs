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

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use dlock_core::ids::Seq;
use dlock_core::message::Reply;
use dlock_core::status::Status;

use crate::clock::{monotonic_ns, ClockEstimate};
use crate::inbox::{lock, Answer, Broken};

/// The estimate in use, read by every operation and rarely replaced: readers write nothing, so
/// that threads do not take cache lines from each other.
///
/// ```text
///   version   even ──▶ odd ──offset, half trip, taken at──▶ even      writers: one at a time
///   a reader  reads it before and after; if it was odd, or has changed, it waits for the writer
/// ```
#[derive(Debug)]
pub(crate) struct SharedEstimate {
    version: AtomicU64,
    offset_ns: AtomicU64,
    half_trip_ns: AtomicU64,
    taken_at_ns: AtomicU64,
    writing: Mutex<()>,
}

impl SharedEstimate {
    pub(crate) fn new(estimate: ClockEstimate) -> Self {
        let ClockEstimate { offset_ns, half_trip_ns, taken_at_ns } = estimate;
        Self {
            version: AtomicU64::new(0),
            offset_ns: AtomicU64::new(offset_ns),
            half_trip_ns: AtomicU64::new(half_trip_ns),
            taken_at_ns: AtomicU64::new(taken_at_ns),
            writing: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> ClockEstimate {
        let version = self.version.load(Ordering::Acquire);
        let estimate = self.parts();
        // Whatever of a later write was seen, its version is seen here, too.
        if version % 2 == 0 && self.version.load(Ordering::Relaxed) == version {
            return estimate;
        }
        self.get_in_turn()
    }

    #[cold]
    fn get_in_turn(&self) -> ClockEstimate {
        let _writing = lock(&self.writing);
        self.parts()
    }

    #[inline]
    fn parts(&self) -> ClockEstimate {
        ClockEstimate {
            offset_ns: self.offset_ns.load(Ordering::Acquire),
            half_trip_ns: self.half_trip_ns.load(Ordering::Acquire),
            taken_at_ns: self.taken_at_ns.load(Ordering::Acquire),
        }
    }

    /// Takes a new estimate, if it is better than the one in use is by now.
    pub(crate) fn refresh(&self, candidate: ClockEstimate) {
        let _writing = lock(&self.writing);
        let now_ns = monotonic_ns();
        if candidate.uncertainty_ns(now_ns) >= self.parts().uncertainty_ns(now_ns) {
            return;
        }
        self.set(candidate);
    }

    /// By one thread at a time.
    fn set(&self, estimate: ClockEstimate) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        self.offset_ns.store(estimate.offset_ns, Ordering::Release);
        self.half_trip_ns.store(estimate.half_trip_ns, Ordering::Release);
        self.taken_at_ns.store(estimate.taken_at_ns, Ordering::Release);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// As if nothing had been heard of the server clock for so long.
    #[cfg(test)]
    pub(crate) fn age(&self, by_ns: u64) {
        let _writing = lock(&self.writing);
        let clock = self.parts();
        self.set(ClockEstimate { taken_at_ns: clock.taken_at_ns.saturating_sub(by_ns), ..clock });
    }
}

/// The reply that was waited for; if it carries the time, that is taken.
pub(crate) fn reply(
    clock: &SharedEstimate,
    waited: Result<Option<Answer>, Broken>,
) -> Result<Option<Reply>, Status> {
    match waited {
        Ok(Some(Answer::Reply { reply, sent_ns, received_ns })) => {
            if let Reply::Pong { at } | Reply::Granted { at, .. } = reply {
                clock.refresh(ClockEstimate::from_exchange(sent_ns, received_ns, at));
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

/// Asks for the time, unless an answer is outstanding (`ping`), or somebody else is just asking.
/// `reply` is the executor's own, so that it takes what comes.
pub(crate) fn ask(
    clock: &SharedEstimate,
    ping: &Mutex<Option<Ping>>,
    now_ns: u64,
    wait: Duration,
    send: impl FnOnce() -> Result<Seq, Status>,
    reply: impl Fn(Seq, Duration) -> Result<Option<Reply>, Status>,
) {
    let Ok(mut ping) = ping.try_lock() else { return };
    if let Some(Ping { seq, looked_ns }) = &mut *ping {
        if now_ns.saturating_sub(*looked_ns) < LOOK_NS {
            return;
        }
        *looked_ns = now_ns;
        if matches!(reply(*seq, Duration::ZERO), Ok(None)) {
            return;
        }
        *ping = None;
        if !clock.get().is_stale(now_ns) {
            return;
        }
    }
    if let Ok(seq) = send() {
        if matches!(reply(seq, wait), Ok(None)) {
            *ping = Some(Ping { seq, looked_ns: now_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dlock_core::clock::ServerTime;

    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_once_and_waited_for_once() {
        let clock = SharedEstimate::new(ClockEstimate::from_exchange(0, 2, ServerTime(1)));
        let ping = Mutex::default();
        let (sent, waited) = (Cell::new(0), Cell::new(Duration::ZERO));
        let answer = Cell::new(None);
        let wait = Duration::from_secs(1);
        let now_ns = Cell::new(monotonic_ns());
        let ask = || {
            now_ns.set(now_ns.get() + LOOK_NS);
            let send = || {
                sent.set(sent.get() + 1);
                Ok(Seq(sent.get()))
            };
            let reply = |_, wait| {
                waited.set(waited.get() + wait);
                Ok(answer.get())
            };
            super::ask(&clock, &ping, now_ns.get(), wait, send, reply);
            (sent.get(), waited.get())
        };
        for _ in 0..3 {
            assert_eq!(ask(), (1, wait));
        }
        // looked for a moment ago: not looked for again
        answer.set(Some(Reply::Pong { at: ServerTime(1) }));
        now_ns.set(now_ns.get() - LOOK_NS);
        assert_eq!(ask(), (1, wait));
        // answered by now, but too late to tell the time: asked anew
        assert_eq!(ask(), (2, 2 * wait));
        answer.set(None);
        assert_eq!(ask(), (3, 3 * wait));
        // the answer has told the time
        answer.set(Some(Reply::Pong { at: ServerTime(1) }));
        let sent_ns = monotonic_ns();
        clock.refresh(ClockEstimate::from_exchange(sent_ns, sent_ns + 2, ServerTime(1)));
        assert_eq!(ask(), (3, 3 * wait));
    }

    #[test]
    fn an_estimate_is_read_as_it_was_written() {
        const ROUNDS: u64 = 100_000;
        let nth = |n: u64| ClockEstimate {
            offset_ns: n,
            half_trip_ns: u64::MAX / 2 - n,
            taken_at_ns: u64::MAX - n,
        };
        let clock = SharedEstimate::new(nth(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < ROUNDS {
                        let seen = clock.get();
                        assert_eq!(seen, nth(seen.offset_ns));
                        assert!(seen.offset_ns >= last);
                        last = seen.offset_ns;
                    }
                });
            }
            for n in 1..=ROUNDS {
                clock.refresh(nth(n));
            }
        });
    }

    #[test]
    fn a_reply_that_tells_the_time_is_taken_if_it_is_more_exact() {
        let now_ns = monotonic_ns();
        let vague = ClockEstimate::from_exchange(now_ns, now_ns + 1_000_000_000, ServerTime(5));
        let clock = SharedEstimate::new(vague);
        let answer =
            |reply, received_ns| Ok(Some(Answer::Reply { reply, sent_ns: now_ns, received_ns }));
        let pong = Reply::Pong { at: ServerTime(7) };
        assert_eq!(reply(&clock, answer(pong, now_ns + 10)), Ok(Some(pong)));
        let exact = ClockEstimate::from_exchange(now_ns, now_ns + 10, ServerTime(7));
        assert_eq!(clock.get(), exact);
        let late = Reply::Pong { at: ServerTime(9) };
        assert_eq!(reply(&clock, answer(late, now_ns + 1_000_000)), Ok(Some(late)));
        assert_eq!(clock.get(), exact);
        assert_eq!(reply(&clock, Ok(None)), Ok(None));
        assert_eq!(reply(&clock, Err(Broken)), Err(Status::BadResponse));
    }
}
