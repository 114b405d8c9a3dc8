// SPDX-License-Identifier: MIT OR Apache-2.0
//! Up to 31 operations whose chains and requests travel together.
//!
//! ```text
//!   next ─▶ (item, effect) … ─▶ None: every active item waits for something
//!     the executor posts all chains at once, flushes once, awaits the replies; reports each item
//!   next ─▶ … until is_done
//! ```
//! Items on different locks advance side by side, each exactly as a single call would. Of several
//! items on one lock the later one begins when the earlier one is done. A lock that was free before
//! the batch, and that an item has taken, counts as taken for later items: by another client if the
//! hold is exclusive (`Fail`), by a fellow reader if it is shared or the lock is fair (`Success`).
//! The caller gets all results together: a grant whose lease is over at the last answer is given
//! back.

use super::{lease, Bounds, Effect, Operation, Started};
use crate::clock::Now;
use crate::lock::{EntryState, LockEntry, Op, OpResult};
use crate::memory::word_op::Outcome;
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode, Reply};
use crate::wire::status::Status;

/// The locks of a batch, under the numbers that [`Batch::place`] returned.
pub trait Entries {
    /// The entry of this lock.
    fn entry(&mut self, place: usize) -> &mut LockEntry;
    /// The client's clock for an operation on this lock that begins now, or whose result is judged
    /// now.
    fn now(&mut self, place: usize) -> Now;
}

/// A batch under way.
#[derive(Clone, Debug)]
pub struct Batch {
    bounds: Bounds,
    items: Vec<Item>,
    places: Vec<Place>,
    /// How many items [`judge`](Self::judge) has judged once more, after all had their results.
    judged: usize,
}

#[derive(Clone, Debug)]
struct Item {
    op: Op,
    place: usize,
    run: Run,
}

// not boxed: there are 31 at most, and no item allocates anything
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
enum Run {
    Queued,
    Active(Operation),
    Done(OpResult),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    lock_type: LockType,
    /// Whether the client had neither a hold nor a ticket of the lock before the batch.
    was_free: bool,
    turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// No item has begun.
    First,
    /// An item is active.
    Taken,
    /// An item is done; the next one may begin.
    Later,
}

/// The place of an item that was decided without its lock.
const NOWHERE: usize = usize::MAX;

impl Batch {
    /// How long the batch may take.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// A batch without items.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, items: Vec::new(), places: Vec::new(), judged: 0 }
    }

    /// Adds a lock, in its state before the batch. Returns its place; places count from 0.
    pub fn place(&mut self, entry: &LockEntry) -> usize {
        let was_free = matches!(entry.state(), EntryState::Initialized | EntryState::Unlocked);
        let lock_type = entry.lock_type();
        self.places.push(Place { lock_type, was_free, turn: Turn::First });
        self.places.len() - 1
    }

    /// Adds an operation on the lock in this place. Items count from 0.
    pub fn push(&mut self, op: Op, place: usize) {
        self.items.push(Item { op, place, run: Run::Queued });
    }

    /// Adds an item whose result is known.
    pub fn push_decided(&mut self, op: Op, result: OpResult) {
        self.items.push(Item { op, place: NOWHERE, run: Run::Done(result) });
    }

    /// Adds an operation of the library; no other item may be on its lock.
    pub fn push_unheard(&mut self, operation: Operation, place: usize) {
        self.places[place].turn = Turn::Taken;
        self.items.push(Item { op: Op::Unlock, place, run: Run::Active(operation) });
    }

    /// The place of an item; `None`: the item was decided without its lock.
    pub fn place_of(&self, item: usize) -> Option<usize> {
        Some(self.items[item].place).filter(|&place| place != NOWHERE)
    }

    /// The next effect of an item, never [`Effect::Done`]; `None`: each item is done or waits.
    pub fn next(&mut self, entries: &mut impl Entries) -> Option<(usize, Effect)> {
        for i in 0..self.items.len() {
            self.begin(i, entries);
            if let Some(effect) = self.effect(i, entries) {
                return Some((i, effect));
            }
        }
        self.judge(entries)
    }

    /// Judges all results once more, when every item has one, because the caller gets them
    /// together: a grant whose lease may be over by now, since other items took longer, is given
    /// back like a late one.
    fn judge(&mut self, entries: &mut impl Entries) -> Option<(usize, Effect)> {
        if !self.is_done() || planted::is(Bug::ToldLate) {
            return None;
        }
        while self.judged < self.items.len() {
            let i = self.judged;
            self.judged += 1;
            let Item { op, place, run: Run::Done(result) } = self.items[i] else { continue };
            if place == NOWHERE {
                continue;
            }
            let now = entries.now(place);
            let entry = entries.entry(place);
            let is_over = lease::is_over(entry, op, &result, now);
            let is_lost = lease::says_held(op, &result) && self.has_lost(place, entry);
            if !is_over && !is_lost {
                continue;
            }
            let here = self.items.iter_mut().filter(|item| item.place == place);
            for item in here.filter(|item| !matches!(item.op, Op::Unlock)) {
                item.run = Run::Done(OpResult::of(Status::Fail));
            }
            // the entry no longer shows a hold that another item of the batch has ended
            let was_known = is_lost && !self.places[place].was_free;
            let was_held = lease::was_held(entry, op) || was_known;
            if is_over {
                entry.give_back();
            }
            if was_held {
                continue; // a single call, too, undoes such a hold only later
            }
            if let Some(request) = entry.undo_request(now) {
                if !planted::is(Bug::JudgedOnce) {
                    // Undoing takes time, too, so all results are judged again; no item is given
                    // back twice.
                    self.judged = 0;
                }
                return Some((i, Effect::Tell(request)));
            }
        }
        None
    }

    /// Begins an item, if no other item is active on its lock.
    fn begin(&mut self, i: usize, entries: &mut impl Entries) {
        let &mut Item { op, place, ref run } = &mut self.items[i];
        if !matches!(run, Run::Queued) || self.places[place].turn == Turn::Taken {
            return;
        }
        let entry = entries.entry(place);
        if let Some(result) = taken_by_this_batch(&self.places[place], entry, op) {
            self.items[i].run = Run::Done(result);
            return;
        }
        if self.has_lost_untold(i, entries) {
            self.items[i].run = Run::Done(OpResult::of(Status::Fail));
            return;
        }
        let now = entries.now(place);
        let entry = entries.entry(place);
        self.places[place].turn = Turn::Taken;
        match Operation::begin(entry, op, now, self.bounds) {
            Started::Done(result) => self.finish(i, result),
            Started::Running(operation) => self.items[i].run = Run::Active(operation),
        }
    }

    /// The next effect of an item that has begun.
    fn effect(&mut self, i: usize, entries: &mut impl Entries) -> Option<Effect> {
        let item = &mut self.items[i];
        let Run::Active(operation) = &mut item.run else { return None };
        if operation.is_waiting() {
            return None;
        }
        match operation.next(entries.entry(item.place)) {
            Effect::Done(result) => {
                self.finish(i, result);
                None
            }
            effect => Some(effect),
        }
    }

    fn finish(&mut self, i: usize, mut result: OpResult) {
        let item = &mut self.items[i];
        let place = &mut self.places[item.place];
        let is_reentry =
            matches!(item.op, Op::TryLock { .. }) && result.status == Status::AlreadyLocked;
        if is_reentry && place.was_free {
            result.status = Status::Success; // the item re-enters a hold of this batch
        }
        place.turn = Turn::Later;
        item.run = Run::Done(result);
    }

    /// Whether an earlier item was granted a hold that a later item has found lost.
    fn has_lost(&self, place: usize, entry: &LockEntry) -> bool {
        !lease::is_held(entry) && !self.releases(place)
    }

    /// Whether an earlier item has found that the caller's hold from before the batch is lost, and
    /// this item would undo it: the caller has to learn of the loss first, and may then ask anew.
    fn has_lost_untold(&self, i: usize, entries: &mut impl Entries) -> bool {
        let Item { op, place, .. } = self.items[i];
        let (entry, was_held) = (entries.entry(place), !self.places[place].was_free);
        let takes = matches!(op, Op::TryLock { lease, .. } if !lease.is_none());
        let is_lost = self.has_lost(place, entry) && entry.in_doubt();
        let is_untold = was_held && self.places[place].turn == Turn::Later;
        takes && is_lost && is_untold && !planted::is(Bug::ReentryUndone)
    }

    /// Whether an item of this batch releases the lock.
    fn releases(&self, place: usize) -> bool {
        self.items.iter().any(|item| item.place == place && matches!(item.op, Op::Unlock))
    }

    /// Like [`Operation::outcome`].
    pub fn outcome(&mut self, item: usize, e: &mut LockEntry, outcome: Outcome, now: Now) {
        if let Some(operation) = self.active(item) {
            operation.outcome(e, outcome, now);
        }
    }

    /// Like [`Operation::queues`]: a batch does not wait for a single lock.
    pub fn queues(&mut self, item: usize, e: &mut LockEntry) {
        if let Some(operation) = self.active(item) {
            operation.queues(e);
        }
    }

    /// Like [`Operation::reply`].
    pub fn reply(&mut self, item: usize, e: &mut LockEntry, r: Result<Reply, Status>, now: Now) {
        if let Some(operation) = self.active(item) {
            operation.reply(e, r, now);
        }
    }

    /// Like [`Operation::deadline`].
    pub fn deadline(&mut self, item: usize, e: &LockEntry, now: Now) {
        if let Some(operation) = self.active(item) {
            operation.deadline(e, true, now); // no item of a batch waits for a grant
        }
    }

    fn active(&mut self, item: usize) -> Option<&mut Operation> {
        match &mut self.items[item].run {
            Run::Active(operation) => Some(operation),
            _ => None,
        }
    }

    /// Like [`Operation::clock`].
    pub fn clock(&mut self, item: usize, now: Now) {
        if let Some(operation) = self.active(item) {
            operation.clock(now);
        }
    }

    /// Whether every item has a result.
    pub fn is_done(&self) -> bool {
        self.items.iter().all(|item| matches!(item.run, Run::Done(_)))
    }

    /// The items in order: the operation, the kind of the lock if there is one, and the result
    /// (`BadResponse` while there is none).
    pub fn results(&self) -> impl Iterator<Item = (Op, Option<LockType>, OpResult)> + '_ {
        self.items.iter().map(|item| {
            let lock_type = self.places.get(item.place).map(|place| place.lock_type);
            let result = match &item.run {
                Run::Done(result) => *result,
                _ => OpResult::of(Status::BadResponse),
            };
            (item.op, lock_type, result)
        })
    }
}

/// The result of a trylock of a lock that an earlier item of the same batch has taken, unless this
/// item re-enters that hold.
fn taken_by_this_batch(place: &Place, entry: &LockEntry, op: Op) -> Option<OpResult> {
    let Op::TryLock { mode, lease } = op else { return None };
    if place.turn != Turn::Later || !place.was_free || lease.is_none() {
        return None;
    }
    let is_taken = match (place.lock_type, entry.state()) {
        (LockType::Atomic, EntryState::ExclusiveLocked) => mode == Mode::Exclusive,
        (LockType::Rw, EntryState::ExclusiveLocked) => true,
        (LockType::Rw, EntryState::SharedLocked) => mode == Mode::Exclusive,
        _ => false,
    };
    is_taken.then(|| OpResult::of(Status::Fail))
}
