// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that listens hears that its hold keeps others waiting, and by when an operator wants
//! it back.
//!
//! ```text
//!   granted ─▶ Listen ─ Contended ─▶ told ─▶ Listen(knows) ─ a second ─▶ Listen ─▶ …
//!                 └ Denied, no answer: a second ─▶ Listen ─▶ …
//! ```
//! A client asks once for each hold, and asks again after an answer, or when the session ends in
//! which it asked. An answer that comes after the end of its hold is dropped, even if the client
//! holds the lock again by then. The primary answers a client that knows of waiters only if an
//! operator sets a deadline; so a program hears once in [`ASK_AGAIN_NS`] how many wait, and of a
//! deadline at once.

use super::heard::{Heard, Listening};
use super::LockEntry;
use crate::clock::{Now, ServerTime, NS};
use crate::planted::{self, Bug};
use crate::wire::message::{Reply, Request};
use crate::wire::status::Status;

/// How long a client that knows of waiters, or has no answer, does not ask for more, nanoseconds.
pub const ASK_AGAIN_NS: u64 = NS;
/// The least time between two questions about one hold, nanoseconds.
pub const ASK_NS_MIN: u64 = 20_000_000;

/// What a client has asked about its hold. Times without a unit are those of the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Question {
    /// The number of the hold.
    hold: u64,
    /// Not asked before.
    next_ns: u64,
    /// Until then the client knows that others wait.
    aware_until_ns: u64,
    /// Whether the question that is not answered says that the client knows of waiters; `None`:
    /// there is no such question.
    out: Option<bool>,
    /// What the program was told of the hold.
    waiters: u32,
    until: ServerTime,
}

impl Listening {
    /// The question that is due about the hold that the listeners know; the caller sends it in the
    /// same turn. It takes the place of an earlier one, whose answer is not waited for any more.
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

    /// When the next question is due by the client's own clock, if nothing happens before.
    pub fn asks_at_ns(&self) -> u64 {
        let Question { next_ns, aware_until_ns, out, .. } = self.question;
        match out {
            None => next_ns,
            Some(true) => aware_until_ns.max(next_ns),
            Some(false) => u64::MAX,
        }
    }

    /// Handles the answer to the last question about this hold, or that there will be none.
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

/// The earliest that this time of the primary may be by the client's own clock.
fn local_ns(until: ServerTime, now: Now) -> u64 {
    let latest_ns = now.time.0.saturating_add(now.uncertainty_ns);
    now.local_ns.saturating_add(until.0.saturating_sub(latest_ns))
}
