// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own heartbeats: one thread for all sessions of this process that have a horizon.
//!
//! ```text
//!   thread ─ due? ─▶ control connection, if no call is under way on it ─▶ Heartbeat frame
//!   call   ─ due? ─▶ before its own request: calls one after the other leave the thread no turn
//!            answers are read by the thread, or by the call that comes next; neither is waited for
//!   answered ─▶ Pulse: the horizon on this host's local clock, read by every operation
//! ```
//! When heartbeats are due and what they mean is decided by [`Heartbeats`]. A program that sends
//! heartbeats itself is not disturbed: both extend the horizon. The thread takes no signals, never
//! waits for a primary, and ends with the last such session. A forked child has no such thread,
//! and no sessions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::session::Heartbeats;
use dlock_fabric::clock::boot_ns;
use parking_lot::{Mutex, MutexGuard};

use crate::control::Control;
use crate::per_process::{Cell, PerProcess};

/// Longest sleep of the thread while there are sessions.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Until a control connection that a call is under way on is looked at again.
const BUSY_RETRY: Duration = Duration::from_millis(20);

/// The control connection of an instance; none after it has left.
pub(crate) type SharedControl = Arc<Mutex<Option<Control>>>;

/// The horizon of one session.
#[derive(Debug)]
pub(crate) struct Pulse {
    horizon_ns: AtomicU64,
    beats: Mutex<Heartbeats>,
}

impl Pulse {
    /// Of a session that was asked for at `sent_ns`, with this horizon (0: none).
    pub(crate) fn new(horizon_ns: u64, sent_ns: u64) -> Self {
        let beats = Heartbeats::new(horizon_ns, sent_ns);
        Self { horizon_ns: AtomicU64::new(beats.horizon_ns()), beats: Mutex::new(beats) }
    }

    /// Until when the session may be relied on, on the local clock.
    #[inline]
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.horizon_ns.load(Ordering::Relaxed)
    }

    /// A request on the control connection that was sent at `sent_ns` was answered.
    pub(crate) fn answered(&self, sent_ns: u64) {
        let mut beats = self.beats.lock();
        beats.answered(sent_ns);
        self.horizon_ns.store(beats.horizon_ns(), Ordering::Relaxed);
    }

    /// As [`Heartbeats::end`].
    pub(crate) fn end(&self) {
        let mut beats = self.beats.lock();
        beats.end();
        self.horizon_ns.store(beats.horizon_ns(), Ordering::Relaxed);
    }

    /// Whether its next heartbeat is due.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.beats.lock().next_ns() <= now_ns
    }

    fn next_ns(&self) -> u64 {
        self.beats.lock().next_ns()
    }

    /// A heartbeat was sent, or could not be.
    pub(crate) fn sent(&self, at_ns: u64) {
        self.beats.lock().sent(at_ns);
    }
}

/// One session that the thread looks after.
type Session = (Weak<Pulse>, Weak<Mutex<Option<Control>>>);

static SESSIONS: Cell<Session> = Cell::const_empty();

/// Has the library send the heartbeats of a session that has a horizon.
pub(crate) fn look_after(pulse: &Arc<Pulse>, control: &SharedControl) {
    if pulse.next_ns() == u64::MAX {
        return;
    }
    let session = (Arc::downgrade(pulse), Arc::downgrade(control));
    if !PerProcess::mine(&SESSIONS).add(session, "dlock-heartbeat", run) {
        log::error!("heartbeats are not sent: call heartbeat() before the horizon ends");
    }
}

fn run() {
    let sessions = PerProcess::mine(&SESSIONS);
    let mut list = sessions.list.lock();
    loop {
        list.all.retain(|(pulse, control)| pulse.strong_count() > 0 && control.strong_count() > 0);
        if list.all.is_empty() {
            list.has_thread = false;
            return;
        }
        let now = list.all.clone();
        let sleep = MutexGuard::unlocked(&mut list, || now.iter().filter_map(tend).min());
        let _ = sessions.changed.wait_for(&mut list, sleep.unwrap_or(SLEEP_MAX));
    }
}

/// Sends the heartbeat of a session if it is due; how long it may be left alone.
fn tend((pulse, control): &Session) -> Option<Duration> {
    let (pulse, control) = (pulse.upgrade()?, control.upgrade()?);
    let now_ns = boot_ns();
    // an answer may have come
    let Some(mut control) = control.try_lock() else { return Some(BUSY_RETRY) };
    let connection = control.as_mut()?;
    connection.take_beats();
    if pulse.is_due(now_ns) {
        pulse.sent(now_ns);
        connection.beat();
    }
    let next = Duration::from_nanos(pulse.next_ns().saturating_sub(now_ns));
    Some(next.min(SLEEP_MAX))
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
