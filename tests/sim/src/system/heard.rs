// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events that a client's library reports to its program (`dlock_core::lock::Listening`), and
//! their checker.
//!
//! The checker knows the results of the programs' calls. Of a hold that a call has reported, the
//! program gets one event, and gets it before that of its loss. It gets the event of a loss before
//! that of the next hold, and as soon as a call, or a look of the library, finds the loss.

use dlock_core::clock::NS;
use dlock_core::ids::Seq;
use dlock_core::lock::{Heard, Listening};
use dlock_core::wire::message::Reply;
use dlock_core::wire::status::Status;

use super::server::World;
use super::state::{Arrived, Sys};

/// The longest time until a client that is well, and has no message under way, hears that others
/// wait for its lock: it asks the primary, and asks again after a second.
const HEARS_NS_MAX: u64 = 3 * NS;

/// The events that the program of a thread has got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listener {
    listening: Listening,
    /// The hold that was last reported to the program.
    known: Option<u64>,
    last: u64,
    /// Whether the program has asked for the end of that hold.
    is_ended: bool,
    /// The client's question to the primary that is not answered: its number, its channel, its
    /// hold.
    asked: Option<(Seq, u32, u64)>,
    /// The hold that the program knows to keep others waiting.
    contended: Option<u64>,
    /// Since when other clients wait for the lock without the program's knowledge.
    unaware_since: Option<u64>,
}

impl Listener {
    /// The program asks for an operation on its hold; `is_release`: one that ends it.
    pub(super) fn ends(&mut self, is_release: bool) {
        self.is_ended |= is_release;
    }

    /// Whether the client waits for the answer with this number on this channel.
    pub(super) fn has_asked(&self, seq: Seq, gen: u32) -> bool {
        self.asked.is_some_and(|asked| (asked.0, asked.1) == (seq, gen))
    }
}

impl Sys {
    /// Passes the events to the program that the present state of the lock's entry gives rise to.
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

    /// Asks the primary whether a hold keeps others waiting, if the time for that has come.
    pub(super) fn asks_about(&mut self, c: usize, l: usize) {
        if !self.plan.listens {
            return;
        }
        let (gen, is_connected) = (self.clients[c].gen, self.is_connected(c, l));
        if let Some((_, of, hold)) = self.thread(c, l).listener.asked {
            if of != gen || !is_connected {
                self.thread(c, l).listener.asked = None;
                self.answers(c, l, hold, Err(Status::BadResponse));
            }
        }
        let now = self.unheard_now(c, l);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_ref() else { return };
        let Some((hold, request)) = t.listener.listening.asks(entry, now) else { return };
        if !is_connected || t.epoch != self.clients[c].epoch {
            return self.answers(c, l, hold, Err(Status::BadResponse));
        }
        let seq = self.send_request(c, request);
        self.thread(c, l).listener.asked = Some((seq, gen, hold));
    }

    /// Handles the primary's answer to the question whether a hold keeps others waiting.
    pub(super) fn question_answered(&mut self, c: usize, l: usize, reply: Reply) {
        self.log(|| format!("client {c} lock {l} hears {reply:?}"));
        if let Some((.., hold)) = self.thread(c, l).listener.asked.take() {
            self.answers(c, l, hold, Ok(reply));
            self.asks_about(c, l);
        }
    }

    fn answers(&mut self, c: usize, l: usize, asked: u64, reply: Result<Reply, Status>) {
        let now = self.unheard_now(c, l);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_ref() else { return };
        let told = t.listener.listening.answered(asked, reply, entry, now);
        let Some((hold, Heard::Contended { .. })) = told else { return };
        t.listener.contended = Some(hold);
        if hold != asked || t.listener.known != Some(hold) {
            self.fail(format!(
                "events: client {c} hears that {hold} keeps others waiting, and asked about \
                 {asked}, of lock {l}"
            ));
        }
    }

    /// Checks that a client which is well hears within `HEARS_NS_MAX` that others wait for its
    /// lock.
    pub(super) fn hears_of_waiters(&mut self, c: usize, l: usize, is_well: bool) {
        let (at, others_wait) = (self.now, self.queued.get(l).is_some_and(|&queued| queued > 0));
        let listener = &self.clients[c].threads[l].listener;
        let holds = listener.known.is_some() && !listener.is_ended;
        let is_unaware = holds && listener.contended != listener.known;
        let is_well = is_well && !self.has_messages_under_way(c);
        if !self.plan.listens || !is_well || !others_wait || !is_unaware {
            return self.thread(c, l).listener.unaware_since = None;
        }
        let since = *self.thread(c, l).listener.unaware_since.get_or_insert(at);
        if at > since + HEARS_NS_MAX {
            self.fail(format!("events: client {c} does not hear that others wait for lock {l}"));
        }
    }

    pub(super) fn has_messages_under_way(&self, c: usize) -> bool {
        let client = &self.clients[c];
        let is_its = |one: &Arrived| match *one {
            Arrived::Unit { client, .. } => usize::from(client) == c,
            _ => false,
        };
        !client.up.is_empty() || !client.down.is_empty() || self.inbox.iter().any(is_its)
    }
}

impl World {
    /// How many clients are queued for each lock.
    pub(super) fn counts_waiters(&mut self) {
        let Some(primary) = self.primary.as_ref().filter(|_| self.sys.plan.listens) else { return };
        let waiters = |l| self.sys.slot_of(l, primary).map_or(0, |s| primary.locks().waiters(s));
        self.sys.queued = (0..self.sys.plan.locks.len()).map(waiters).collect();
    }
}
