// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that clients keep after their release (`dlock_core::lock`, the lock cache), as the library
//! keeps them (`dlock-client/src/driver/kept.rs`).
//!
//! ```text
//!   finish ─ kept ─▶ Listen ─ Contended, or the channel ends ─▶ idle: Operation::undo
//!                                                           └─▶ in use: Listen(knows)
//! ```
//! There is no checker of its own: a kept lock that is not in use is no hold for the checkers, so
//! that every acquire and release that a client serves by itself is judged as any other.

use dlock_core::clock::Now;
use dlock_core::ids::Seq;
use dlock_core::lock::{Op, Wanted};
use dlock_core::operation::{Bounds, Operation, Started};
use dlock_core::wire::message::Reply;

use super::state::{Doing, Ev, Sys};

/// What a thread's client knows of others that want what it keeps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cached {
    /// The question that is not answered: its number, and its channel.
    asked: Option<(Seq, u32)>,
    /// Whether the question was answered, and the client has not looked at the answer.
    is_wanted: bool,
    /// Whether the next look is scheduled.
    is_due: bool,
}

impl Cached {
    /// Whether the client waits for the answer with this number on this channel.
    pub(super) fn has_asked(&self, seq: Seq, gen: u32) -> bool {
        self.asked == Some((seq, gen))
    }
}

impl Sys {
    /// Whether the client caches a lock that it gets now.
    pub(super) fn may_cache(&mut self) -> bool {
        self.plan.caches > 0 && self.rng.chance(self.plan.caches)
    }

    /// An operation is over: the client asks whether others want what it keeps.
    pub(super) fn may_keep(&mut self, c: usize, l: usize) {
        let t = &self.clients[c].threads[l];
        let keeps = t.entry.as_ref().is_some_and(|entry| entry.asks_for_others().is_some());
        if keeps && t.cached.asked.is_none() || t.cached.is_wanted {
            let ns = self.takes(3_000);
            self.looks_at_cache(c, l, ns);
        }
    }

    fn looks_at_cache(&mut self, c: usize, l: usize, ns: u64) {
        if !std::mem::replace(&mut self.thread(c, l).cached.is_due, true) {
            let inc = self.clients[c].inc;
            self.after(ns, Ev::Kept(c as u8, inc, l as u8));
        }
    }

    /// The primary has answered that others want what the client keeps, or that it keeps nothing.
    pub(super) fn others_want(&mut self, c: usize, l: usize, reply: Reply) {
        self.log(|| format!("client {c} lock {l}: what it keeps is wanted: {reply:?}"));
        let cached = &mut self.thread(c, l).cached;
        (cached.asked, cached.is_wanted) = (None, true);
        let ns = self.takes(2_000);
        self.looks_at_cache(c, l, ns);
    }

    /// The channel has ended, and with it the questions on it.
    pub(super) fn questions_end(&mut self, c: usize) {
        for l in 0..self.clients[c].threads.len() {
            let cached = &mut self.thread(c, l).cached;
            if cached.asked.take().is_some() {
                cached.is_wanted = true;
                let ns = self.takes(50_000);
                self.looks_at_cache(c, l, ns);
            }
        }
    }

    /// The library's turn: it asks, gives back, or says that the program uses the lock.
    pub(super) fn cache_turn(&mut self, c: usize, l: usize) {
        self.thread(c, l).cached.is_due = false;
        let now = self.thread_now(c, l);
        let is_connected = self.is_connected(c, l);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else {
            return t.cached = Cached { is_due: false, ..Cached::default() };
        };
        if t.doing != Doing::Idle {
            return; // the lock is in use just now: the client looks again at the end
        }
        if let Some(request) = entry.asks_for_others() {
            if is_connected && !t.cached.is_wanted {
                if t.cached.asked.is_none() {
                    let (gen, seq) = (self.clients[c].gen, self.send_request(c, request));
                    self.thread(c, l).cached.asked = Some((seq, gen));
                }
                return;
            }
            t.cached.is_wanted = true; // no channel tells whether others want it
        }
        if std::mem::take(&mut t.cached.is_wanted) {
            match entry.is_wanted(now) {
                Wanted::No => {}
                Wanted::GiveBack if is_connected => _ = self.gives_back(c, l),
                Wanted::GiveBack => {} // undone in the next session
                Wanted::InUse(request) => self.tell(c, l, request),
            }
        }
    }

    /// Gives back what the client keeps without using it, or has not undone yet. Returns whether
    /// there is something.
    fn gives_back(&mut self, c: usize, l: usize) -> bool {
        let now: Now = self.thread_now(c, l);
        let Some(entry) = self.clients[c].threads[l].entry.as_mut() else { return false };
        let operation = Operation::undo(entry, now, Bounds::since(now.local_ns));
        let Some(operation) = operation else { return false };
        self.calls(c, l, Op::Unlock);
        self.started(c, l, Started::Running(operation));
        true
    }

    /// At the end of the schedule, the client gives back what it keeps without using it.
    pub(super) fn empties_cache(&mut self, c: usize, l: usize) -> bool {
        let entry = self.thread(c, l).entry.as_mut();
        match entry.filter(|entry| entry.is_idle()) {
            Some(entry) => {
                entry.leaves_cache();
                self.gives_back(c, l)
            }
            None => false,
        }
    }
}
