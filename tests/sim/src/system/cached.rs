// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that clients keep after their release (`dlock_core::lock`, the lock cache), as the library
//! keeps them (`dlock-client/src/driver/kept.rs`).
//!
//! ```text
//!   finish ─ kept ─▶ Listen ─ Contended, or the channel ends ─▶ idle: Operation::undo
//!                                                           └─▶ in use: Listen(knows)
//! ```
//! A kept lock that is not in use is no hold for the other checkers, so that every acquire and
//! release that a client serves by itself is judged as any other. The checker here: no client waits
//! for long for a lock that its client keeps without using it.

use dlock_core::clock::{Now, NS};
use dlock_core::ids::Seq;
use dlock_core::lock::{Op, Wanted};
use dlock_core::operation::{Bounds, Operation, Started};
use dlock_core::wire::message::Reply;

use super::server::World;
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
    /// Since when the client keeps the lock from others, and does not use it.
    since: Option<u64>,
}

impl Cached {
    /// The client has got the lock; `is_new`: it had none, and so no question.
    pub(super) fn asks_anew(&mut self, is_new: bool) {
        if is_new {
            self.asks_nothing();
        }
    }

    /// The client has given its reference to the lock back, and with it the question.
    pub(super) fn asks_nothing(&mut self) {
        *self = Self::default();
    }

    /// Whether the client waits for the answer with this number on this channel.
    pub(super) fn has_asked(&self, seq: Seq, gen: u32) -> bool {
        self.asked == Some((seq, gen))
    }
}

/// A client that is well gives a lock that it does not use back within this time.
const GIVES_BACK_NS_MAX: u64 = 3 * NS;

impl World {
    /// Checks that no client waits for a lock that another one, which has heard of that, keeps
    /// without using it.
    pub(super) fn nobody_waits_for_an_idle_lock(&mut self) {
        let (Some(primary), sys) = (self.primary.as_ref(), &mut self.sys) else { return };
        let locks = if sys.plan.caches > 0 { sys.plan.locks.len() } else { 0 };
        for l in 0..locks {
            let slot = sys.slot_of(l, primary);
            let is_wanted = slot.is_some_and(|slot| primary.locks().waiters(slot) > 0);
            for c in 0..sys.clients.len() {
                let (at, is_kept) = (sys.now, is_wanted && sys.keeps_unused(c, l));
                let since = &mut sys.thread(c, l).cached.since;
                *since = is_kept.then(|| since.unwrap_or(at));
                if since.is_some_and(|since| at > since + GIVES_BACK_NS_MAX) {
                    let why = format!("cache: client {c} keeps lock {l}, and does not use it");
                    return sys.fail(why);
                }
            }
        }
    }
}

impl Sys {
    /// Whether the client keeps the lock without using it, although it could give it back.
    fn keeps_unused(&self, c: usize, l: usize) -> bool {
        let (client, t) = (&self.clients[c], &self.clients[c].threads[l]);
        let is_idle = t.entry.as_ref().is_some_and(|entry| entry.is_idle());
        let is_here = t.epoch == self.epoch && client.epoch == self.epoch;
        let is_served = self.put_off_until <= self.now && !self.recovering;
        let is_well = client.paused_until <= self.now && self.is_connected(c, l);
        let is_heard = !self.has_messages_under_way(c) && !self.was_fenced(c);
        is_idle && is_here && is_served && is_well && is_heard && t.doing == Doing::Idle
    }

    /// Whether the client caches a lock that it gets now.
    pub(super) fn may_cache(&mut self) -> bool {
        self.plan.caches > 0 && self.rng.chance(self.plan.caches)
    }

    /// An operation is over: the client asks whether others want what it keeps.
    pub(super) fn may_keep(&mut self, c: usize, l: usize) {
        self.forgets_question(c, l);
        let t = &self.clients[c].threads[l];
        let keeps = t.entry.as_ref().is_some_and(|entry| entry.asks_for_others().is_some());
        if keeps && t.cached.asked.is_none() || t.cached.is_wanted {
            let ns = self.library_takes();
            self.looks_at_cache(c, l, ns);
        }
    }

    /// How long the library's thread takes to come to it.
    fn library_takes(&mut self) -> u64 {
        let most = self.rng.pick(&[1_000, 100_000, 10_000_000]);
        self.rng.range(1, most)
    }

    /// A new session has taken the place of the one in which the client asked: nothing is kept of
    /// that one.
    fn forgets_question(&mut self, c: usize, l: usize) {
        let gen = self.clients[c].gen;
        let cached = &mut self.thread(c, l).cached;
        cached.asked = cached.asked.filter(|asked| asked.1 == gen);
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
        let ns = self.library_takes();
        self.looks_at_cache(c, l, ns);
    }

    /// The channel has ended, and with it the questions on it.
    pub(super) fn questions_end(&mut self, c: usize) {
        for l in 0..self.clients[c].threads.len() {
            let cached = &mut self.thread(c, l).cached;
            if cached.asked.take().is_some() {
                cached.is_wanted = true;
                let ns = self.library_takes();
                self.looks_at_cache(c, l, ns);
            }
        }
    }

    /// The library's turn: it asks, gives back, or says that the program uses the lock.
    pub(super) fn cache_turn(&mut self, c: usize, l: usize) {
        self.thread(c, l).cached.is_due = false;
        self.forgets_question(c, l);
        let now = self.thread_now(c, l);
        let is_connected = self.is_connected(c, l);
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else {
            return t.cached = Cached { is_due: false, ..Cached::default() };
        };
        if t.doing == Doing::Control {
            return self.looks_at_cache(c, l, 1_000_000); // the lock is being given back
        }
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
