// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events that programs get without asking (`dlock_core::lock::Listening`), and their checker.
//!
//! The checker knows the results of the programs' calls. Of a hold that a call has reported, the
//! program gets one event, and gets it before that of its loss. It gets the event of a loss before
//! that of the next hold, and as soon as a call, or a look of the library, finds the loss.

use dlock_core::lock::{Heard, Listening};

use super::state::Sys;

/// The events that the program of a thread has got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listener {
    listening: Listening,
    /// The hold of which it has got the event.
    known: Option<u64>,
    last: u64,
    /// Whether it has asked for the end of that hold.
    is_ended: bool,
}

impl Listener {
    /// The program asks for the end of its hold.
    pub(super) fn ends(&mut self, is_release: bool) {
        self.is_ended |= is_release;
    }
}

impl Sys {
    /// The lock may have changed: passes the events to the program.
    pub(super) fn hears(&mut self, c: usize, l: usize) {
        if !self.plan.listens {
            return;
        }
        let now = self.unheard_now(c, l);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_ref() else { return };
        let listener = &mut t.listener;
        let mut wrong = None;
        while let Some((hold, heard)) = listener.listening.next(entry, now) {
            let known = listener.known;
            match heard {
                Heard::Granted => {
                    if known.is_some() && !listener.is_ended || hold <= listener.last {
                        wrong = Some(format!("hears that {hold} is granted, and knows {known:?}"));
                    }
                    (listener.known, listener.last, listener.is_ended) = (Some(hold), hold, false);
                }
                Heard::Lost(_) if known == Some(hold) => listener.known = None,
                Heard::RenewalFailing { .. } if known == Some(hold) => {}
                _ => wrong = Some(format!("hears {heard:?} of {hold}, and knows {known:?}")),
            }
        }
        let has = entry.hold();
        if has.is_none() && listener.known.is_some() && !listener.is_ended {
            wrong = Some(format!("does not hear that {:?} is over", listener.known));
        }
        if has.is_some() && has != listener.known {
            wrong = Some(format!("does not hear of {has:?}"));
        }
        if let Some(wrong) = wrong {
            self.fail(format!("events: client {c} {wrong}, of lock {l}"));
        }
    }
}
