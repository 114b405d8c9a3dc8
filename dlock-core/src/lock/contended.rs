// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a program that listens learns that other clients wait for its lock, and by when an operator
//! wants the lock back.
//!
//! ```text
//!   granted ─▶ Listen ─ Contended ─▶ told ─▶ Listen(knows) ─ a second ─▶ Listen ─▶ …
//!                 └ Denied, no answer: a second ─▶ Listen ─▶ …
//! ```
//! A client asks once for each hold. It asks again after an answer, or when the session in which it
//! asked has ended. The client drops an answer that comes after the end of the hold, even if it
//! holds the lock again by then. The primary answers a client that knows of waiters only if an
//! operator sets a deadline. So a program hears once in [`ASK_AGAIN_NS`] how many clients wait, and
//! of a deadline at once.

use super::heard::{Heard, Listening};
use super::LockEntry;
use crate::clock::{Now, ServerTime, NS};
use crate::planted::{self, Bug};
use crate::wire::message::{Reply, Request};
use crate::wire::status::Status;

/// How long a client does not ask again after it has heard of waiters, or had no answer,
/// nanoseconds.
pub const ASK_AGAIN_NS: u64 = NS;
/// The least time between two questions about one hold, nanoseconds.
pub const ASK_NS_MIN: u64 = 20_000_000;

/// What a client has asked about its hold. Fields without a unit are times of the server clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Question {
    /// The number of the hold that the question is about.
    hold: u64,
    /// When the client may ask next, on its own clock.
    next_ns: u64,
    /// Until when, on its own clock, the client counts as knowing that others wait.
    aware_until_ns: u64,
    /// What the question without an answer says: whether the client knows of waiters. `None`: no
    /// question is without an answer.
    out: Option<bool>,
    /// What the program last heard of the hold: how many wait, and the operator's deadline.
    waiters: u32,
    until: ServerTime,
}

impl Listening {
    /// The question that is due about the hold of which the listeners know; the caller sends it in
    /// the same turn. It replaces an earlier question, whose answer no longer counts.
    pub fn asks(&mut self, entry: &LockEntry, now: Now) -> Option<(u64, Request)> {
        let hold = entry.hold().filter(|&hold| self.hold() == Some(hold))?;
        let question = &mut self.question;
        if question.hold != hold {
            let is_kept = planted::is(Bug::ContendedLate) && question.out.is_some();
            *question = match is_kept {
                true => Question { hold, ..*question },
                false => Question { hold, ..Question::default() },
            };
        }
        let knows = now.local_ns < question.aware_until_ns;
        if question.out == Some(knows) || now.local_ns < question.next_ns {
            return None;
        }
        question.out = Some(knows);
        question.next_ns = now.local_ns.saturating_add(ASK_NS_MIN);
        let (handle, until) = (entry.handle(), question.until);
        Some((hold, Request::Listen { handle, knows, until }))
    }

    /// When this client next asks the primary whether others wait for its lock, on its own clock;
    /// an answer may change that. `u64::MAX`: not before the answer to the last question.
    pub fn asks_at_ns(&self) -> u64 {
        let Question { next_ns, aware_until_ns, out, .. } = self.question;
        match out {
            None => next_ns,
            Some(true) => aware_until_ns.max(next_ns),
            Some(false) => u64::MAX,
        }
    }

    /// Handles the answer to the last question about this hold, or the error because of which there
    /// is no answer. Returns the event for the program, if there is one.
    pub fn answered(
        &mut self,
        hold: u64,
        reply: Result<Reply, Status>,
        entry: &LockEntry,
        now: Now,
    ) -> Option<(u64, Heard)> {
        let (question, known) = (&mut self.question, self.hold);
        let is_of = |has| has == hold || planted::is(Bug::ContendedLate);
        if !is_of(question.hold) {
            return None;
        }
        let again_ns = now.local_ns.saturating_add(ASK_AGAIN_NS);
        let Ok(Reply::Contended { waiters, until }) = reply else {
            if !planted::is(Bug::QuestionLost) {
                (question.out, question.next_ns) = (None, again_ns);
            }
            return None;
        };
        question.out = None;
        let is_new = (question.waiters, question.until) != (waiters, until);
        (question.waiters, question.until) = (waiters, until);
        match waiters {
            0 if !is_new => question.next_ns = again_ns,
            0 => {}
            _ => question.aware_until_ns = again_ns,
        }
        let hold = entry.hold().filter(|&has| is_of(has) && known == Some(has))?;
        let until_ns = (until != ServerTime(0)).then(|| local_ns(until, now));
        is_new.then_some((hold, Heard::Contended { waiters, until_ns }))
    }
}

/// The earliest time on the client's own clock that can be this time of the server clock.
fn local_ns(until: ServerTime, now: Now) -> u64 {
    let latest_ns = now.time.0.saturating_add(now.uncertainty_ns);
    now.local_ns.saturating_add(until.0.saturating_sub(latest_ns))
}
