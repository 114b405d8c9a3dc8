// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: up to 31 operations whose chains and requests travel together.
//!
//! ```text
//!   lock all cells in the order of their indices
//!   round:  begin what may begin ─▶ all chains in one execute ─▶ their notes in one publish
//!           ─▶ all requests sent, then awaited
//!   until every item is done
//! ```
//! Where every item is one verb if nobody interferes ([`LockEntry::fast`]), all of them go at once
//! and no round begins; those that were interfered with go on in rounds.
//!
//! [`LockEntry::fast`]: dlock_core::lock::LockEntry::fast
//!
//! Items on different locks advance in lockstep, each exactly as a single call would. Of items
//! on the same lock the later one begins when the earlier one is done; but a lock that was free
//! before the batch and is taken by it counts as taken for later items: by somebody else for
//! exclusive holds (`Fail`), by a fellow reader for shared and for fair ones (`Success`).

use std::sync::Arc;
use std::time::Instant;

use dlock_core::clock::Now;
use dlock_core::exec::{Executor, Single};
use dlock_core::ids::{LockId, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::lock::{Begin, EntryState, FastCas, Machine, Op, OpResult, Step};
use dlock_core::message::{LockType, Mode, Reply};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome, WordAddr};

use super::{code, Instance};
use crate::drive::{abandon, await_reply, left, DATA_WAIT, PUBLISH_WAIT, STEPS_MAX};
use crate::table::{Busy, Cell, CellGuard, CellIndex, Held};

impl Instance {
    /// [`trylock`](Self::trylock) for up to 31 locks at once; item by item in `out`.
    ///
    /// # Errors
    /// `Invalid` (no item, too many, or `out` too short), `ClientNotInit`, `Async`: nothing was
    /// done. All other codes are the items' own.
    ///
    /// # Latency
    /// As many round trips as the item that needs most; one where there is no contention.
    pub fn batch_trylock(&self, items: &[(LockId, Mode, u32)], out: &mut [OpResult]) -> Status {
        let op = |&(lock, mode, expire_s): &_| (lock, Op::TryLock { mode, expire_s });
        self.batch(items.iter().map(op), out)
    }

    /// [`unlock`](Self::unlock) for up to 31 locks at once; item by item in `out`.
    ///
    /// # Errors
    /// As [`batch_trylock`](Self::batch_trylock).
    ///
    /// # Latency
    /// As `batch_trylock`.
    pub fn batch_unlock(&self, locks: &[LockId], out: &mut [OpResult]) -> Status {
        self.batch(locks.iter().map(|&lock| (lock, Op::Unlock)), out)
    }

    /// [`extend`](Self::extend) for up to 31 locks at once; item by item in `out`.
    ///
    /// # Errors
    /// As [`batch_trylock`](Self::batch_trylock).
    ///
    /// # Latency
    /// As `batch_trylock`.
    pub fn batch_extend(&self, items: &[(LockId, Mode, u32)], out: &mut [OpResult]) -> Status {
        let op = |&(lock, mode, expire_s): &_| (lock, Op::Extend { mode, expire_s });
        self.batch(items.iter().map(op), out)
    }

    fn batch(
        &self,
        ops: impl ExactSizeIterator<Item = (LockId, Op)> + Clone,
        out: &mut [OpResult],
    ) -> Status {
        if ops.len() == 0 || ops.len() > BATCH_MAX || out.len() < ops.len() {
            return Status::Invalid;
        }
        if let Err(status) = self.admit() {
            return status;
        }
        let mut start = None;
        if let Some(short) = self.short(ops.clone(), &mut start) {
            return self.run_short(short, ops, start, out);
        }
        let deadline = start.unwrap_or_else(Instant::now) + DATA_WAIT;
        let mut items: Vec<Item> = ops.map(Item::new).collect();
        let mut places = self.lock_places(&mut items, deadline);
        self.run_rounds(&mut items, &mut places, deadline, out)
    }

    fn run_rounds(
        &self,
        items: &mut [Item],
        places: &mut [Place<'_>],
        deadline: Instant,
        out: &mut [OpResult],
    ) -> Status {
        Rounds { items, places }.run(deadline);
        for (item, out) in items.iter().zip(out) {
            *out = item.result();
            if let Some(place) = item.place {
                self.stats.count(places[place].lock_type, item.op, out);
                if matches!(item.op, Op::Unlock) {
                    places[place].cell.changed.notify_all();
                }
            }
        }
        Status::Success
    }

    /// The verbs of all items, if each is on a lock of its own, which nobody operates on now, and
    /// is one verb if nobody interferes. No cell is waited for, so the order does not matter. The
    /// clock may have to be asked for: `start` is set before.
    fn short(
        &self,
        ops: impl ExactSizeIterator<Item = (LockId, Op)>,
        start: &mut Option<Instant>,
    ) -> Option<Short<'_>> {
        let mut places: Vec<Place<'_>> = Vec::with_capacity(ops.len());
        let mut cases = [NO_CAS; BATCH_MAX];
        let mut session: Option<(*const (), Now)> = None;
        for ((id, op), case) in ops.zip(&mut cases) {
            let cell = self.table.cell(self.table.hint(id)?);
            let mut guard = cell.try_lock()?;
            let held = guard.as_mut().filter(|held| held.id == id && held.busy == Busy::No)?;
            let exec = Arc::as_ptr(&held.exec).cast::<()>();
            let now = match session {
                None => {
                    *start = (!held.is_local).then(Instant::now);
                    held.exec.now()
                }
                Some((same, now)) if same == exec => now,
                Some(_) => return None,
            };
            session = Some((exec, now));
            *case = held.entry.fast(op, now)?;
            held.last_now = now;
            let (lock_type, turn) = (held.entry.lock_type(), Turn::First);
            places.push(Place {
                cell,
                guard,
                lock_type,
                was_free: !matches!(op, Op::Unlock),
                turn,
            });
        }
        let (_, now) = session?;
        Some(Short { places, cases, now })
    }

    fn run_short(
        &self,
        short: Short<'_>,
        ops: impl ExactSizeIterator<Item = (LockId, Op)> + Clone,
        start: Option<Instant>,
        out: &mut [OpResult],
    ) -> Status {
        let Short { mut places, cases, now } = short;
        let count = places.len();
        let verbs = cases.map(FastCas::verb);
        let mut singles = [Single::Unknown; BATCH_MAX];
        let exec = Arc::clone(&places[0].held().exec);
        let wait = start.map_or(DATA_WAIT, |at| left(at + DATA_WAIT).unwrap_or_default());
        exec.execute_singles(&verbs[..count], &mut singles[..count], wait);
        let mut undecided = false;
        for (((place, cas), single), out) in
            places.iter_mut().zip(cases).zip(singles).zip(&mut *out)
        {
            if single == Single::Done(cas.expect) {
                *out = place.held().entry.fast_done(cas);
                if cas.swap == 0 {
                    place.cell.changed.notify_all();
                }
            } else {
                undecided = true;
            }
        }
        if undecided {
            let deadline = start.unwrap_or_else(Instant::now) + DATA_WAIT;
            let so_far = Undecided { cases: &cases, singles: &singles, now, deadline };
            return self.go_on(&mut places, so_far, ops, out);
        }
        Status::Success
    }

    /// Some items were interfered with: they go on from the outcome of their first verb.
    #[cold]
    fn go_on(
        &self,
        places: &mut [Place<'_>],
        so_far: Undecided<'_>,
        ops: impl Iterator<Item = (LockId, Op)>,
        out: &mut [OpResult],
    ) -> Status {
        let Undecided { cases, singles, now, deadline } = so_far;
        let mut items: Vec<Item> = Vec::with_capacity(places.len());
        for (i, (op, place)) in ops.zip(places.iter_mut()).enumerate() {
            let mut item = Item::new(op);
            item.place = Some(i);
            item.run = if singles[i] == Single::Done(cases[i].expect) {
                Run::Done(out[i])
            } else {
                let held = place.held();
                match held.entry.begin(item.op, now) {
                    Begin::Local(result) => Run::Done(result),
                    Begin::Run(mut machine, _) => {
                        let step = held.outcome(&mut machine, singles[i].into(), now);
                        Run::Active(machine, step)
                    }
                }
            };
            place.turn = Turn::Taken;
            items.push(item);
        }
        let mut rounds = Rounds { items: &mut items, places };
        for i in 0..rounds.items.len() {
            rounds.settle(i);
        }
        self.run_rounds(&mut items, places, deadline, out)
    }

    /// Locks the cell of every lock named, in the order of their indices, so that batches of
    /// other threads cannot wait for each other in a circle.
    fn lock_places(&self, items: &mut [Item], deadline: Instant) -> Vec<Place<'_>> {
        let mut wanted: Vec<(CellIndex, usize)> = Vec::with_capacity(items.len());
        for (i, item) in items.iter_mut().enumerate() {
            match self.table.find(item.lock) {
                Some(index) => wanted.push((index, i)),
                None => item.run = Run::Done(code(self.not_got())),
            }
        }
        wanted.sort_unstable();
        let mut places: Vec<Place<'_>> = Vec::with_capacity(wanted.len());
        let mut last: Option<(CellIndex, Result<usize, Status>)> = None;
        for (index, i) in wanted {
            let place = match last {
                Some((same, place)) if same == index => place,
                _ => match self.idle_at(index, items[i].lock, deadline) {
                    Ok(place) => {
                        places.push(place);
                        Ok(places.len() - 1)
                    }
                    Err(status) => Err(status),
                },
            };
            last = Some((index, place));
            match place {
                Ok(place) => items[i].place = Some(place),
                Err(status) => items[i].run = Run::Done(code(status)),
            }
        }
        places
    }

    fn idle_at(
        &self,
        index: CellIndex,
        id: LockId,
        deadline: Instant,
    ) -> Result<Place<'_>, Status> {
        let cell = self.table.cell(index);
        let mut guard = cell.lock_until(|| deadline).ok_or(Status::BadResponse)?;
        loop {
            let held = guard.as_ref().filter(|held| held.id == id);
            let held = held.ok_or_else(|| self.not_got())?;
            match held.busy {
                Busy::No => {
                    let was_free = matches!(
                        held.entry.state(),
                        EntryState::Initialized | EntryState::Unlocked
                    );
                    let lock_type = held.entry.lock_type();
                    return Ok(Place { cell, guard, lock_type, was_free, turn: Turn::First });
                }
                Busy::Async => return Err(self.refuse(super::ASYNC)),
                Busy::Waiting => {}
            }
            if cell.changed.wait_until(&mut guard, deadline).timed_out() {
                return Err(Status::BadResponse);
            }
        }
    }
}

/// A batch of single verbs.
struct Short<'a> {
    places: Vec<Place<'a>>,
    /// One for each place; what is beyond them has no meaning.
    cases: [FastCas; BATCH_MAX],
    /// From before they were posted: leases count from there.
    now: Now,
}

/// What became of the single verbs.
struct Undecided<'a> {
    cases: &'a [FastCas],
    singles: &'a [Single],
    now: Now,
    deadline: Instant,
}

const NO_CAS: FastCas = FastCas { addr: WordAddr::NONE, expect: 0, swap: 0 };

/// One operation of the batch.
struct Item {
    lock: LockId,
    op: Op,
    /// The lock's place, if it could be locked.
    place: Option<usize>,
    run: Run,
}

enum Run {
    Queued,
    Active(Machine, Step),
    Done(OpResult),
}

impl Item {
    fn new((lock, op): (LockId, Op)) -> Self {
        Self { lock, op, place: None, run: Run::Queued }
    }

    fn result(&self) -> OpResult {
        match self.run {
            Run::Done(result) => result,
            Run::Queued | Run::Active(..) => code(Status::BadResponse), // `run` leaves none behind
        }
    }
}

/// One lock of the batch.
struct Place<'a> {
    cell: &'a Cell,
    guard: CellGuard<'a>,
    lock_type: LockType,
    /// Not held and no ticket, before the batch.
    was_free: bool,
    turn: Turn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// No item has begun.
    First,
    /// An item is active.
    Taken,
    /// An item is done, the next may begin.
    Later,
}

impl Place<'_> {
    fn held(&mut self) -> &mut Held {
        // idle_at has seen the lock, and nobody takes it out while this guard lives
        self.guard.as_mut().expect("a locked place holds its lock")
    }
}

struct Rounds<'r, 'a> {
    items: &'r mut [Item],
    places: &'r mut [Place<'a>],
}

impl Rounds<'_, '_> {
    fn run(&mut self, deadline: Instant) {
        for _ in 0..STEPS_MAX * BATCH_MAX {
            self.begin_queued();
            if !self.items.iter().any(|item| matches!(item.run, Run::Active(..))) {
                return;
            }
            self.execute_chains(deadline);
            self.confirm_notes(deadline);
            self.exchange_requests(deadline);
            self.confirm_notes(deadline);
        }
        self.abandon_rest();
    }

    fn abandon_rest(&mut self) {
        for item in self.items.iter_mut() {
            if let (Run::Active(machine, _), Some(place)) = (&item.run, item.place) {
                abandon(self.places[place].held(), *machine);
            }
        }
    }

    /// Begins every item whose lock no earlier item is active on.
    fn begin_queued(&mut self) {
        // read once per session: leases count from here, before anything was posted
        let mut clock: Option<(*const (), Now)> = None;
        for i in 0..self.items.len() {
            let item = &mut self.items[i];
            let (Run::Queued, Some(place)) = (&item.run, item.place) else { continue };
            let place = &mut self.places[place];
            if place.turn == Turn::Taken {
                continue;
            }
            if let Some(result) = taken_by_this_batch(place, item.op) {
                item.run = Run::Done(result);
                continue;
            }
            let held = place.held();
            let session = Arc::as_ptr(&held.exec).cast::<()>();
            let now = match clock {
                Some((same, now)) if same == session => now,
                _ => held.exec.now(),
            };
            clock = Some((session, now));
            held.last_now = now;
            match held.entry.begin(item.op, now) {
                Begin::Local(result) => {
                    held.write_note();
                    finish(item, place, result);
                }
                Begin::Run(machine, step) => {
                    held.write_note();
                    place.turn = Turn::Taken;
                    item.run = Run::Active(machine, step);
                    self.settle(i);
                }
            }
        }
    }

    /// Takes an item over the steps that need nobody else, up to its end.
    fn settle(&mut self, i: usize) {
        let item = &mut self.items[i];
        let Some(place) = item.place else { return };
        let place = &mut self.places[place];
        while let Run::Active(_, step) = &mut item.run {
            match *step {
                Step::Done(result) => {
                    if result.status == Status::BadResponse {
                        place.held().undo_lost();
                    }
                    finish(item, place, result);
                }
                Step::Chain(_) | Step::Request(_) | Step::Confirm => return,
            }
        }
    }

    /// One `execute` for the chains of all items; one per session if a reinit is under way.
    fn execute_chains(&mut self, deadline: Instant) {
        let mut waiting: Vec<(usize, Chain)> = Vec::with_capacity(self.items.len());
        for (i, item) in self.items.iter().enumerate() {
            if let Run::Active(_, Step::Chain(chain)) = item.run {
                waiting.push((i, chain));
            }
        }
        while let Some(&(first, _)) = waiting.first() {
            let exec = self.exec_of(first);
            let (now, rest): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|&(i, _)| Arc::ptr_eq(&exec, &self.exec_of(i)));
            self.execute_on(&*exec, &now, deadline);
            waiting = rest;
        }
    }

    fn execute_on(&mut self, exec: &dyn Executor, batch: &[(usize, Chain)], deadline: Instant) {
        let chains: Vec<Chain> = batch.iter().map(|&(_, chain)| chain).collect();
        let mut outcomes = vec![Outcome::Unknown; chains.len()];
        if let Some(left) = left(deadline) {
            exec.execute(&chains, &mut outcomes, left);
        }
        let now = exec.now(); // what a fair lock decides now needs the time of now
        for (&(i, _), outcome) in batch.iter().zip(outcomes) {
            let item = &mut self.items[i];
            if let (Run::Active(machine, step), Some(place)) = (&mut item.run, item.place) {
                *step = self.places[place].held().outcome(machine, outcome, now);
            }
            self.settle(i);
        }
    }

    /// One `publish` for the notes of all items; one per session if a reinit is under way.
    fn confirm_notes(&mut self, deadline: Instant) {
        let is_waiting = |item: &Item| matches!(item.run, Run::Active(_, Step::Confirm));
        let waiting = (0..self.items.len()).filter(|&i| is_waiting(&self.items[i]));
        let waiting: Vec<usize> = waiting.collect();
        let mut published: Option<(Arc<dyn Executor>, bool)> = None;
        for i in waiting {
            let exec = self.exec_of(i);
            let is_published = match &published {
                Some((same, is_published)) if Arc::ptr_eq(same, &exec) => *is_published,
                _ => exec.publish(left(deadline).unwrap_or_default().min(PUBLISH_WAIT)),
            };
            published = Some((exec, is_published));
            let item = &mut self.items[i];
            if let (Run::Active(machine, step), Some(place)) = (&mut item.run, item.place) {
                *step = self.places[place].held().confirmed(machine, is_published);
            }
            self.settle(i);
        }
    }

    fn exec_of(&mut self, i: usize) -> Arc<dyn Executor> {
        let place = self.items[i].place.expect("an active item has a place");
        Arc::clone(&self.places[place].held().exec)
    }

    /// Sends the requests of all items, then waits for the replies.
    fn exchange_requests(&mut self, deadline: Instant) {
        let mut sent: Vec<(usize, Arc<dyn Executor>, Sent)> = Vec::new();
        for i in 0..self.items.len() {
            if let Run::Active(_, Step::Request(request)) = self.items[i].run {
                let exec = self.exec_of(i);
                let state = match exec.send(&request) {
                    Err(status) => Sent::Failed(status),
                    Ok(_) if !request.has_reply() => Sent::NoReply,
                    Ok(seq) => Sent::Awaited(seq),
                };
                sent.push((i, exec, state));
            }
        }
        for (i, exec, state) in sent {
            let reply = match state {
                Sent::Failed(status) => Err(status),
                Sent::NoReply => Ok(Reply::Done { word: 0 }),
                Sent::Awaited(seq) => await_reply(&*exec, seq, deadline),
            };
            let item = &mut self.items[i];
            if let (Run::Active(machine, step), Some(place)) = (&mut item.run, item.place) {
                *step = self.places[place].held().reply(machine, reply);
            }
            self.settle(i);
        }
    }
}

enum Sent {
    Failed(Status),
    NoReply,
    Awaited(Seq),
}

fn finish(item: &mut Item, place: &mut Place<'_>, mut result: OpResult) {
    let is_reentry =
        matches!(item.op, Op::TryLock { .. }) && result.status == Status::AlreadyLocked;
    if is_reentry && place.was_free {
        result.status = Status::Success; // the hold it re-enters is this batch's own
    }
    place.turn = Turn::Later;
    item.run = Run::Done(result);
}

/// The answer to a trylock of a lock that an earlier item of the same batch has taken, where it
/// is not a further hold.
fn taken_by_this_batch(place: &mut Place<'_>, op: Op) -> Option<OpResult> {
    let Op::TryLock { mode, expire_s } = op else { return None };
    if place.turn != Turn::Later || !place.was_free || expire_s == 0 {
        return None;
    }
    let lock_type = place.lock_type;
    let is_taken = match (lock_type, place.held().entry.state()) {
        (LockType::Atomic, EntryState::ExclusiveLocked) => mode == Mode::Exclusive,
        (LockType::Rw, EntryState::ExclusiveLocked) => true,
        (LockType::Rw, EntryState::SharedLocked) => mode == Mode::Exclusive,
        _ => false,
    };
    is_taken.then(|| code(Status::Fail))
}
