// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that hold a lock and listen: the primary tells them when they keep others waiting.
//!
//! ```text
//!   Listen ─▶ kept ── others wait ────────────────┬─▶ Contended, or Denied(Fail): does not hold it
//!                └── an operator wants it back ───┘
//! ```
//! A client sends one question for each hold, and the primary answers it once: the primary sends
//! nothing unasked, and keeps nothing of clients that do not listen. A lock may have many readers
//! that listen, and an operator may want everything back: the primary answers those in the slices
//! of [`Locks::step`]. A question belongs to its command channel, and ends with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{lock_ref, Locks};
use crate::arbiter::{Caller, Sent};
use crate::budget::work::Metered;
use crate::clock::ServerTime;
use crate::ids::{ClientId, LockId, Slot};
use crate::planted::{self, Bug};
use crate::wire::message::Reply;
use crate::wire::status::Status;

/// How many listeners of one lock the primary answers at once when others come to wait; the rest
/// follow in slices.
const TOLD_AT_ONCE: usize = 2;

/// The questions that the primary has not answered yet.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    of: BTreeMap<ClientId, BTreeMap<Slot, Question>>,
    /// For each lock, the listeners that do not know that others wait. Clients whose question has
    /// ended may still be among them.
    unaware: BTreeMap<Slot, BTreeSet<ClientId>>,
    /// Locks for which others wait, and whose listeners the primary is answering.
    due: BTreeSet<Slot>,
    /// Clients from which an operator wants something back: by when, and which lock (`None`: all).
    wanted: BTreeMap<ClientId, (ServerTime, Option<LockId>)>,
    /// The clients in `wanted` that the primary is answering, each with the last slot for which it
    /// has answered.
    telling: BTreeMap<ClientId, Option<Slot>>,
}

/// A client's question about one lock.
#[derive(Clone, Copy, Debug)]
struct Question {
    from: Caller,
    /// The operator's deadline that the client knows.
    until: ServerTime,
}

impl Listeners {
    /// Whether [`Locks::step`] has a listener to answer.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty() || !self.telling.is_empty()
    }

    /// Drops the questions of a client whose channel has ended.
    pub(super) fn channel_ended(&mut self, client: ClientId) {
        if !planted::is(Bug::QuestionKept) {
            self.of.remove(&client);
        }
    }

    /// Drops the question of a client that has no reference to this lock any more.
    pub(super) fn forget_lock(&mut self, client: ClientId, slot: Slot) {
        self.take(client, slot);
    }

    /// Drops everything of a client that is gone.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.of.remove(&client);
        self.wanted_no_more(client);
    }

    /// Records that no operator wants anything of this client back any more.
    pub(super) fn wanted_no_more(&mut self, client: ClientId) {
        self.wanted.remove(&client);
        self.telling.remove(&client);
    }

    /// Takes the question of a client about a lock.
    fn take(&mut self, client: ClientId, slot: Slot) -> Option<Question> {
        self.hears_nothing_of_waiters(client, slot);
        let questions = self.of.get_mut(&client)?;
        let question = questions.remove(&slot);
        if questions.is_empty() {
            self.of.remove(&client);
        }
        question
    }

    fn hears_nothing_of_waiters(&mut self, client: ClientId, slot: Slot) {
        if let Some(clients) = self.unaware.get_mut(&slot) {
            clients.remove(&client);
            if clients.is_empty() {
                self.unaware.remove(&slot);
                self.due.remove(&slot);
            }
        }
    }

    /// Whether the client has asked about this lock, and has no answer.
    pub(super) fn asks(&self, client: ClientId, slot: Slot) -> bool {
        self.of.get(&client).is_some_and(|of| of.contains_key(&slot))
    }

    /// The client's next question, after that about the lock `after`, to be answered with an
    /// operator's deadline.
    fn next_of(&mut self, client: ClientId, after: Option<Slot>) -> Option<(Slot, Question)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.of.get(&client)?.range((from, Bound::Unbounded)).next();
        next.map(|(&slot, &question)| (slot, question))
    }

    /// Checks that nothing is kept of clients that are gone.
    pub(super) fn assert_consistent(
        &self,
        has: impl Fn(ClientId, Slot) -> bool,
    ) -> Result<(), String> {
        let mut all =
            self.of.iter().flat_map(|(client, of)| of.keys().map(|slot| (*client, *slot)));
        match all.find(|&(client, slot)| !has(client, slot)) {
            Some((client, slot)) => Err(format!("{client:?} listens to {slot:?}, and is gone")),
            None => Ok(()),
        }
    }
}

impl Locks {
    /// Handles [`Request::Listen`](crate::wire::message::Request::Listen).
    pub(super) fn listens(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        (slot, from): (Slot, Caller),
        (knows, until): (bool, ServerTime),
        out: &mut Vec<Sent>,
    ) {
        let client = from.client;
        self.listeners.take(client, slot);
        let question = Question { from, until };
        self.listeners.of.entry(client).or_default().insert(slot, question);
        if !knows {
            self.listeners.unaware.entry(slot).or_default().insert(client);
        }
        let is_contended = !knows && self.others_wait(mem, client, slot) > 0;
        if is_contended || self.wants_more(client, slot, &question) {
            self.tell_listener(now, mem, client, slot, out);
        }
    }

    /// Answers listeners of this lock, if another client has come to wait for it.
    pub(super) fn may_be_contended(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        let has_listeners = self.listeners.unaware.contains_key(&slot);
        if !has_listeners || self.arbiter.waiters(slot) == 0 || planted::is(Bug::ContendedUntold) {
            return;
        }
        self.listeners.due.insert(slot);
        for _ in 0..TOLD_AT_ONCE {
            self.tell_next_of(now, mem, slot, out);
        }
    }

    /// Records that an operator wants this lock of the client (`None`: all its locks) back by
    /// `until`.
    pub(crate) fn wants_back(&mut self, client: ClientId, until: ServerTime, lock: Option<LockId>) {
        self.listeners.wanted.insert(client, (until, lock));
        if self.listeners.of.contains_key(&client) {
            self.listeners.telling.insert(client, None);
        }
    }

    /// Forgets what an operator wants back from this client: the client has been judged.
    pub(crate) fn wants_no_more(&mut self, client: ClientId) {
        self.listeners.wanted_no_more(client);
    }

    /// Answers one listener; returns whether there may be another.
    pub(super) fn tell_next_listener(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        out: &mut Vec<Sent>,
    ) -> bool {
        if let Some(&slot) = self.listeners.due.first() {
            self.tell_next_of(now, mem, slot, out);
            return true;
        }
        let Some((&client, &after)) = self.listeners.telling.first_key_value() else {
            return false;
        };
        mem.visited(1);
        let Some((slot, question)) = self.listeners.next_of(client, after) else {
            self.listeners.telling.remove(&client);
            return true;
        };
        self.listeners.telling.insert(client, Some(slot));
        if self.wants_more(client, slot, &question) {
            self.tell_listener(now, mem, client, slot, out);
        }
        true
    }

    /// Answers the next listener of a lock for which others wait.
    fn tell_next_of(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        mem.visited(1);
        let next = self.listeners.unaware.get(&slot).and_then(|clients| clients.first().copied());
        match next.filter(|_| self.arbiter.waiters(slot) > 0) {
            Some(client) => self.tell_listener(now, mem, client, slot, out),
            None => _ = self.listeners.due.remove(&slot),
        }
    }

    pub(super) fn tell_listener(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        let waiters = self.others_wait(mem, client, slot);
        let Some(question) = self.listeners.take(client, slot) else { return };
        let Caller { handle, seq, .. } = question.from;
        let lock = lock_ref(&self.registry, slot);
        let holds = |lock| self.arbiter.may_hold(now, mem, lock, client, handle);
        let reply = match lock.is_some_and(holds) {
            true => {
                let until = self.wanted_by(client, slot);
                Reply::Contended { waiters, until }
            }
            false => Reply::Denied { status: Status::Fail, word: 0 },
        };
        out.push(Sent { client, seq, reply });
    }

    /// How many other clients are queued for the lock.
    fn others_wait(&self, mem: &mut Metered<'_>, client: ClientId, slot: Slot) -> u32 {
        mem.visited(1 + self.arbiter.searched(slot));
        u32::try_from(self.arbiter.others_wait(slot, client)).unwrap_or(u32::MAX)
    }

    /// By when an operator wants this lock of the client back; 0: no operator does.
    fn wanted_by(&self, client: ClientId, slot: Slot) -> ServerTime {
        let is_it = |lock| self.registry.locks.by_slot(slot).is_some_and(|one| one.id() == lock);
        match self.listeners.wanted.get(&client) {
            _ if planted::is(Bug::DeadlineUntold) => ServerTime(0),
            Some(&(until, lock)) if lock.is_none_or(is_it) => until,
            _ => ServerTime(0),
        }
    }

    /// Whether an operator's deadline differs from the one that the client knows.
    fn wants_more(&self, client: ClientId, slot: Slot, question: &Question) -> bool {
        let until = self.wanted_by(client, slot);
        until != ServerTime(0) && until != question.until
    }
}
