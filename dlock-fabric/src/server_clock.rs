// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's knowledge of the server clock: kept up to date by replies that carry the time, and by
//! asking for it.
//!
//! ```text
//!   reading ── fresh ──▶ the estimate
//!           └─ stale: a Ping is out ──▶ answered by now? taken; if not, the estimate as it is
//!                     none is ────────▶ Ping, waited for as long as the executor wants
//! ```
//! Code that must not wait checks whether the reading [is ready](is_ready), which sends the `Ping`,
//! too.
//!
//! Only one call waits for a primary that does not answer: until the answer, all threads go on with
//! the old estimate, whose uncertainty grows. An answer that contradicts the estimate (a clock
//! stood still, or jumped) replaces it, and is counted: see [`TrackedClock`].

use std::sync::Mutex;

use dlock_core::clock::{ClockEstimate, Refresh, TrackedClock};
use dlock_core::ids::Seq;
use dlock_core::wire::message::Reply;
use dlock_core::wire::status::Status;

use crate::memory::published::Published;
use crate::os::clock::boot_ns;
use crate::stream::inbox::{Answer, Broken};

/// The estimate in use: read by every operation, and rarely replaced.
#[derive(Debug)]
pub(crate) struct SharedEstimate {
    words: Published<4>,
    drift_ppm: u64,
}

impl SharedEstimate {
    pub(crate) fn new(estimate: ClockEstimate) -> Self {
        let words = Published::new(to_words(TrackedClock::new(estimate)));
        Self { words, drift_ppm: estimate.drift_ppm }
    }

    #[inline]
    pub(crate) fn get(&self) -> ClockEstimate {
        self.tracked().estimate
    }

    /// The estimate in use and the number of wrong ones before it, both of one moment.
    #[inline]
    pub(crate) fn tracked(&self) -> TrackedClock {
        self.made_of(self.words.get())
    }

    /// Takes a new estimate if it is more exact than the one in use is by now, or proves the one in
    /// use wrong.
    pub(crate) fn refresh(&self, candidate: ClockEstimate) -> Refresh {
        let candidate = ClockEstimate { drift_ppm: self.drift_ppm, ..candidate };
        self.words.update(|words| {
            let mut clock = self.made_of(words);
            let refresh = clock.refresh(candidate, boot_ns());
            let changed = refresh != Refresh::Rejected;
            (changed.then(|| to_words(clock)), refresh)
        })
    }

    /// Ages the estimate, as if there had been no answer for that time.
    #[cfg(test)]
    pub(crate) fn age(&self, by_ns: u64) {
        self.words.update(|words| {
            let mut clock = self.made_of(words);
            let taken_at_ns = &mut clock.estimate.taken_at_ns;
            *taken_at_ns = taken_at_ns.saturating_sub(by_ns);
            (Some(to_words(clock)), ())
        });
    }

    #[inline]
    fn made_of(&self, words: [u64; 4]) -> TrackedClock {
        let [offset_ns, half_trip_ns, taken_at_ns, discontinuities] = words;
        let drift_ppm = self.drift_ppm;
        let estimate = ClockEstimate { offset_ns, half_trip_ns, taken_at_ns, drift_ppm };
        TrackedClock { estimate, discontinuities }
    }
}

fn to_words(clock: TrackedClock) -> [u64; 4] {
    let ClockEstimate { offset_ns, half_trip_ns, taken_at_ns, .. } = clock.estimate;
    [offset_ns, half_trip_ns, taken_at_ns, clock.discontinuities]
}

/// The reply of a wait; takes the time from it, if it carries one.
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

/// Pause between two checks for the answer to an outstanding `Ping`.
const LOOK_NS: u64 = 1_000_000;

/// A `Ping` that was not answered in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ping {
    seq: Seq,
    sent_ns: u64,
    looked_ns: u64,
}

/// Asks for the time, unless an answer is outstanding (`ping`) or another thread is asking. `reply`
/// is the executor's own, so that it takes other answers, too.
pub(crate) fn ask(
    clock: &SharedEstimate,
    ping: &Mutex<Option<Ping>>,
    now_ns: u64,
    wait_ns: u64,
    send: impl FnOnce() -> Result<Seq, Status>,
    reply: impl Fn(Seq, u64) -> Result<Option<Reply>, Status>,
) {
    let Ok(mut ping) = ping.try_lock() else { return };
    if let Some(Ping { seq, looked_ns, .. }) = &mut *ping {
        if now_ns.saturating_sub(*looked_ns) < LOOK_NS {
            return;
        }
        *looked_ns = now_ns;
        if matches!(reply(*seq, 0), Ok(None)) {
            return;
        }
        *ping = None;
        if !clock.get().is_stale(now_ns) {
            return;
        }
    }
    if let Ok(seq) = send() {
        if matches!(reply(seq, now_ns.saturating_add(wait_ns)), Ok(None)) {
            *ping = Some(Ping { seq, sent_ns: now_ns, looked_ns: now_ns });
        }
    }
}

/// Whether the server clock can be read now as well as after a wait of `wait_ns`. If the estimate
/// is stale, a `Ping` is sent. `reply` as in [`ask`].
pub(crate) fn is_ready(
    clock: &SharedEstimate,
    ping: &Mutex<Option<Ping>>,
    now_ns: u64,
    wait_ns: u64,
    send: impl FnOnce() -> Result<Seq, Status>,
    reply: impl Fn(Seq, u64) -> Result<Option<Reply>, Status>,
) -> bool {
    if !clock.get().is_stale(now_ns) {
        return true;
    }
    // Another thread is asking, and may wait.
    let Ok(mut ping) = ping.try_lock() else { return false };
    if let Some(Ping { seq, sent_ns, .. }) = *ping {
        if matches!(reply(seq, 0), Ok(None)) {
            return now_ns.saturating_sub(sent_ns) >= wait_ns;
        }
        *ping = None;
        if !clock.get().is_stale(now_ns) {
            return true;
        }
    }
    let Ok(seq) = send() else { return true }; // no answer will bring the time any more
    *ping = Some(Ping { seq, sent_ns: now_ns, looked_ns: now_ns });
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dlock_core::clock::{ServerTime, NS};

    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_once_and_waited_for_once() {
        let clock = SharedEstimate::new(ClockEstimate::from_exchange(0, 2, ServerTime(1)));
        let ping = Mutex::default();
        let (sent, waited) = (Cell::new(0), Cell::new(0));
        let answer = Cell::new(None);
        let wait_ns = NS;
        let now_ns = Cell::new(boot_ns());
        let ask = || {
            now_ns.set(now_ns.get() + LOOK_NS);
            let send = || {
                sent.set(sent.get() + 1);
                Ok(Seq(sent.get()))
            };
            let reply = |_, until_ns: u64| {
                waited.set(waited.get() + until_ns.saturating_sub(now_ns.get()));
                Ok(answer.get())
            };
            super::ask(&clock, &ping, now_ns.get(), wait_ns, send, reply);
            (sent.get(), waited.get())
        };
        for _ in 0..3 {
            assert_eq!(ask(), (1, wait_ns));
        }
        // the answer was awaited a moment ago, so the client does not ask again yet
        answer.set(Some(Reply::Pong { at: ServerTime(1) }));
        now_ns.set(now_ns.get() - LOOK_NS);
        assert_eq!(ask(), (1, wait_ns));
        // the answer has come by now, but too late to tell the time: a new request is sent
        assert_eq!(ask(), (2, 2 * wait_ns));
        answer.set(None);
        assert_eq!(ask(), (3, 3 * wait_ns));
        // the answer has told the time
        answer.set(Some(Reply::Pong { at: ServerTime(1) }));
        let sent_ns = boot_ns();
        clock.refresh(ClockEstimate::from_exchange(sent_ns, sent_ns + 2, ServerTime(1)));
        assert_eq!(ask(), (3, 3 * wait_ns));
    }

    #[test]
    fn who_must_not_wait_looks_again_until_the_answer_is_there_or_late() {
        let clock = SharedEstimate::new(ClockEstimate::from_exchange(0, 2, ServerTime(1)));
        let ping = Mutex::default();
        let (wait_ns, start_ns) = (NS, boot_ns());
        let (sent, answer) = (Cell::new(0), Cell::new(None));
        let is_ready = |after_ns: u64| {
            let send = || {
                sent.set(sent.get() + 1);
                Ok(Seq(sent.get()))
            };
            let reply = |_, until_ns| {
                assert_eq!(until_ns, 0, "it polls");
                Ok(answer.get())
            };
            super::is_ready(&clock, &ping, start_ns + after_ns, wait_ns, send, reply)
        };
        for after_ns in [0, 1, NS - 1] {
            assert!(!is_ready(after_ns));
        }
        assert!(is_ready(NS), "waited for once");
        assert_eq!(sent.get(), 1);
        // the answer has come by now, but too late to tell the time: a new request is sent
        answer.set(Some(Reply::Pong { at: ServerTime(1) }));
        assert!(!is_ready(NS + 1));
        assert_eq!(sent.get(), 2);
        let sent_ns = boot_ns();
        clock.refresh(ClockEstimate::from_exchange(sent_ns, sent_ns + 2, ServerTime(1)));
        assert!(is_ready(NS + 2));
        assert_eq!(sent.get(), 2);
    }

    #[test]
    fn a_reply_that_tells_the_time_is_taken_if_it_is_more_exact() {
        let now_ns = boot_ns();
        let far_ns = now_ns + 1_000_000_000;
        let vague = ClockEstimate::from_exchange(now_ns, far_ns, ServerTime(5));
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

    #[test]
    fn a_reply_that_contradicts_the_clock_is_taken_and_counted() {
        let now_ns = boot_ns();
        let pong = |at| Reply::Pong { at: ServerTime(at) };
        let first = ClockEstimate::from_exchange(now_ns, now_ns + 10, ServerTime(5 * NS));
        let clock = SharedEstimate::new(first);
        // The primary's host was suspended, and its clock did not count that: the server clock is
        // 60 s behind the estimate. The answer took 1 s.
        let (sent_ns, received_ns) = (now_ns + 70 * NS, now_ns + 71 * NS);
        let answer = |at| Ok(Some(Answer::Reply { reply: pong(at), sent_ns, received_ns }));
        assert_eq!(reply(&clock, answer(15 * NS)), Ok(Some(pong(15 * NS))));
        assert_eq!(clock.tracked().discontinuities, 1);
        let known = clock.get().at(received_ns);
        assert!(known.time.0.abs_diff(15 * NS) <= known.uncertainty_ns);
        assert_eq!(reply(&clock, answer(15 * NS)), Ok(Some(pong(15 * NS))));
        assert_eq!(clock.tracked().discontinuities, 1, "what agrees with it does not count");
    }
}
