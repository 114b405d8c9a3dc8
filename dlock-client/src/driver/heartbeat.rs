// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own heartbeats, for sessions that have a horizon.
//!
//! ```text
//!   driver ─ due? ─▶ control connection, if no call is under way on it ─▶ Heartbeat frame
//!   call   ─ due? ─▶ heartbeat first: calls one after the other leave the driver no turn
//!            the driver or the next call reads the answers; neither waits for them
//!   answered ─▶ Pulse: the horizon on the client's own clock, read by every operation
//! ```
//! [`Heartbeats`] decides when heartbeats are due and what they mean. A program may send
//! heartbeats, too: both kinds extend the horizon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dlock_core::session::Heartbeats;
use dlock_fabric::os::clock::boot_ns;
use parking_lot::Mutex;

use crate::control::Control;
use crate::driver::{register, Next, Source, Work};

/// The longest time between two turns of a session's work.
const SLEEP_NS_MAX: u64 = 250_000_000;
/// The time until the next turn if a call is under way on the control connection.
pub(crate) const BUSY_RETRY_NS: u64 = 20_000_000;

/// The control connection of an instance; `None` after the instance has left.
pub(crate) type SharedControl = Arc<Mutex<Option<Control>>>;

/// The horizon of one session, and the times of its heartbeats.
#[derive(Debug)]
pub(crate) struct Pulse {
    horizon_ns: AtomicU64,
    beats: Mutex<Heartbeats>,
}

impl Pulse {
    /// The pulse of a session that the client requested at `sent_ns`, with this horizon (0: none).
    pub(crate) fn new(horizon_ns: u64, sent_ns: u64) -> Self {
        let beats = Heartbeats::new(horizon_ns, sent_ns);
        Self { horizon_ns: AtomicU64::new(beats.horizon_ns()), beats: Mutex::new(beats) }
    }

    /// Until when the client may rely on the session, on the client's own clock.
    #[inline]
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.horizon_ns.load(Ordering::Relaxed)
    }

    /// Records that the primary has answered a request sent at `sent_ns` on the control connection.
    pub(crate) fn answered(&self, sent_ns: u64) {
        let mut beats = self.beats.lock();
        beats.answered(sent_ns);
        self.horizon_ns.store(beats.horizon_ns(), Ordering::Relaxed);
    }

    /// Makes the horizon over at once. The primary has ended what this client had without a lease:
    /// an operation still under way on this session must not report it as held.
    pub(crate) fn end(&self) {
        let mut beats = self.beats.lock();
        beats.end();
        self.horizon_ns.store(beats.horizon_ns(), Ordering::Relaxed);
    }

    /// Whether the session's next heartbeat is due.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.beats.lock().next_ns() <= now_ns
    }

    fn next_ns(&self) -> u64 {
        self.beats.lock().next_ns()
    }

    /// Records that a heartbeat was sent at `at_ns`, or could not be sent.
    pub(crate) fn sent(&self, at_ns: u64) {
        self.beats.lock().sent(at_ns);
    }
}

/// The driver's work for the heartbeats of one session.
struct Session(Weak<Pulse>, Weak<Mutex<Option<Control>>>);

/// Has the library send the heartbeats of a session that has a horizon.
pub(crate) fn look_after(pulse: &Arc<Pulse>, control: &SharedControl) {
    if pulse.next_ns() == u64::MAX {
        return;
    }
    let session = Session(Arc::downgrade(pulse), Arc::downgrade(control));
    if let Err(error) = register(|_| Box::new(session)) {
        log::error!(
            "heartbeats are not sent: call heartbeat() before the horizon ends: no thread \
             dlock-client: {error}"
        );
    }
}

impl Work for Session {
    /// Sends the heartbeat of the session if it is due.
    fn turn(&mut self, _: bool, _: bool) -> Next {
        let (Some(pulse), Some(control)) = (self.0.upgrade(), self.1.upgrade()) else {
            return Next::Over;
        };
        let now_ns = boot_ns();
        let again = |in_ns: u64| Next::Until(now_ns.saturating_add(in_ns), Source::None);
        let Some(mut control) = control.try_lock() else { return again(BUSY_RETRY_NS) };
        let Some(connection) = control.as_mut() else { return again(SLEEP_NS_MAX) };
        connection.take_beats(); // an answer may have come
        if pulse.is_due(now_ns) {
            pulse.sent(now_ns);
            connection.beat();
        }
        again(pulse.next_ns().saturating_sub(now_ns).min(SLEEP_NS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: u64 = 1_000_000_000;

    #[test]
    fn an_answer_extends_the_horizon_from_before_it_was_asked_for() {
        let pulse = Pulse::new(10 * NS, 0);
        let first = pulse.horizon_ns();
        assert!(first < 10 * NS);
        pulse.answered(2 * NS);
        assert_eq!(pulse.horizon_ns(), first + 2 * NS);
        assert!(!pulse.is_due(2 * NS));
        assert!(pulse.is_due(3 * NS));
        pulse.sent(3 * NS);
        assert!(!pulse.is_due(3 * NS));
    }

    #[test]
    fn a_session_without_a_horizon_has_none_and_needs_no_heartbeats() {
        let pulse = Pulse::new(0, 0);
        assert_eq!((pulse.horizon_ns(), pulse.next_ns()), (u64::MAX, u64::MAX));
        pulse.end();
        assert_eq!(pulse.horizon_ns(), 0, "until it is replaced after a lapse");
    }
}
