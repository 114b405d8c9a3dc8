// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: carries out the effects of up to 31 operations together; [`Batch`] decides what they
//! are.
//!
//! ```text
//!   lock all slots in the order of their indices
//!   next … ─▶ all chains in one execute ─▶ all ledger writes in one flush ─▶ all replies awaited
//! ```
//! Where every item is one word operation if nothing interferes ([`LockEntry::fast`]), all of
//! them go at once; those that were interfered with go on as a [`Batch`].

use std::sync::Arc;
use std::time::Instant;

use dlock_core::clock::Now;
use dlock_core::ids::{LockId, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::lock::{FastCas, LockEntry, Op, OpResult};
use dlock_core::memory::exec::{Executor, Single};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::operation::{Batch, Bounds, Effect, Entries, Operation};
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::{code, Instance};
use crate::execute::{left_ns, tell, Limit, CLOCK_WAIT, DATA_WAIT};
use crate::table::{Busy, ClientLock, LockSlot, LockSlotGuard, LockSlotIndex};

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
        let mut start_ns = None;
        if let Some(short) = self.short(ops.clone(), &mut start_ns) {
            return self.run_short(short, ops, out);
        }
        let bounds = Bounds::since(start_ns.unwrap_or_else(boot_ns));
        let mut batch = Batch::new(bounds);
        let places = self.lock_places(ops, &mut batch, bounds);
        self.carry_out_batch(batch, places, out)
    }

    /// Carries a batch out and tells its results. A release that no primary has heard of is one all
    /// the same, as that of one lock is.
    fn carry_out_batch(
        &self,
        mut batch: Batch,
        mut places: Vec<Place<'_>>,
        out: &mut [OpResult],
    ) -> Status {
        run(&mut batch, &mut places);
        let mut is_in_doubt = false;
        for (item, ((op, lock_type, result), out)) in batch.results().zip(out).enumerate() {
            *out = result;
            if let (Some(place), Some(lock_type)) = (batch.place_of(item), lock_type) {
                self.stats.count_batched(lock_type, op, out);
                if matches!(op, Op::Unlock) {
                    let place = &mut places[place];
                    if self.watch().is_some() && out.status.is_without_primary() {
                        *out = place.held().release_unheard(out.status).unwrap_or(*out);
                        is_in_doubt = true;
                    }
                    place.lock_slot.changed.notify_all();
                }
            }
        }
        for place in &mut places {
            is_in_doubt |= place.held().entry.is_to_be_undone();
        }
        drop(places);
        if let Some(watch) = self.watch().filter(|_| is_in_doubt) {
            watch.leaves_in_doubt();
        }
        Status::Success
    }

    /// Asks what a successor makes of holds of these locks, whose slots the caller has locked; the
    /// status of each.
    pub(super) fn confirm_together(
        &self,
        claimed: Vec<(LockId, &LockSlot, LockSlotGuard<'_>)>,
        limit: Limit,
    ) -> Vec<(LockId, Status)> {
        let mut batch = Batch::new(limit.bounds(boot_ns()));
        let mut places = Vec::with_capacity(claimed.len());
        let mut locks = Vec::with_capacity(claimed.len());
        for (lock, lock_slot, guard) in claimed {
            let mut place = Place { lock_slot, guard };
            let held = place.held();
            let (at, now) = (batch.place(&held.entry), held.now());
            let asked = Operation::confirm(&mut held.entry, now, batch.bounds());
            if let Some(operation) = asked {
                batch.push_unheard(operation, at);
                locks.push(lock);
            }
            places.push(place);
        }
        run(&mut batch, &mut places);
        for place in &places {
            place.lock_slot.changed.notify_all();
        }
        let statuses = batch.results().map(|(_, _, result)| result.status);
        locks.into_iter().zip(statuses).collect()
    }

    /// The word operations of all items, if each is on a lock of its own, which no thread
    /// operates on now, and is one word operation if nothing interferes. No slot is waited for,
    /// so the order does not matter. The clock may have to be asked for: `start_ns` is set before.
    fn short(
        &self,
        ops: impl ExactSizeIterator<Item = (LockId, Op)>,
        start_ns: &mut Option<u64>,
    ) -> Option<Short<'_>> {
        let mut places: Vec<Place<'_>> = Vec::with_capacity(ops.len());
        let mut cases = [FastCas::NONE; BATCH_MAX];
        let mut session: Option<(*const (), Now)> = None;
        for ((id, op), case) in ops.zip(&mut cases) {
            let lock_slot = self.table.lock_slot(self.table.hint(id)?);
            let mut guard = lock_slot.try_lock()?;
            let held = guard.as_mut().filter(|held| held.id == id && held.busy == Busy::No)?;
            let exec = Arc::as_ptr(&held.exec).cast::<()>();
            let now = match session {
                None => {
                    let (came_ns, now) = held.exec.now_since();
                    *start_ns = Some(came_ns);
                    held.within_horizon(now)
                }
                Some((same, now)) if same == exec => now,
                Some(_) => return None,
            };
            session = Some((exec, now));
            *case = held.entry.fast(op, now)?;
            held.last_now = now;
            places.push(Place { lock_slot, guard });
        }
        let (_, now) = session?;
        let bounds = Bounds::since(start_ns.unwrap_or(now.local_ns));
        Some(Short { places, cases, now, bounds })
    }

    fn run_short(
        &self,
        short: Short<'_>,
        ops: impl ExactSizeIterator<Item = (LockId, Op)> + Clone,
        out: &mut [OpResult],
    ) -> Status {
        let Short { mut places, cases, now, bounds } = short;
        let count = places.len();
        let verbs = cases.map(FastCas::word_op);
        let mut singles = [Single::Unknown; BATCH_MAX];
        let exec = Arc::clone(&places[0].held().exec);
        let wait = match places[0].held().is_local {
            true => DATA_WAIT,
            false => left_ns(bounds.until_ns),
        };
        exec.execute_singles(&verbs[..count], &mut singles[..count], wait);
        let local_ns = exec.local_coarse_ns(now.local_ns);
        let mut ended = [false; BATCH_MAX];
        for (i, (place, out)) in places.iter_mut().zip(&mut *out).enumerate() {
            let cas = cases[i];
            if singles[i] != Single::Done(cas.expect) {
                continue;
            }
            let held = place.held();
            let begun = held.within_horizon(now); // as it is by now
            if let Some(result) = held.entry.fast_end(cas, begun, || local_ns) {
                (*out, ended[i]) = (result, true);
                if cas.deadline_s.is_none() {
                    place.lock_slot.changed.notify_all();
                }
            }
        }
        match ended[..count].iter().all(|&ended| ended) {
            true => Status::Success,
            false => self.go_on(places, (&singles, &ended), (now, bounds), ops, out),
        }
    }

    /// Some items were interfered with: they go on from the outcome of their first operation.
    #[cold]
    fn go_on(
        &self,
        mut places: Vec<Place<'_>>,
        (singles, ended): (&[Single; BATCH_MAX], &[bool; BATCH_MAX]),
        (begun, bounds): (Now, Bounds),
        ops: impl Iterator<Item = (LockId, Op)>,
        out: &mut [OpResult],
    ) -> Status {
        let is_answered = singles[..places.len()].iter().any(|&s| s != Single::Unknown);
        let now = match is_answered {
            true => places[0].held().now(),
            false => places[0].held().clock_unanswered(),
        };
        let mut batch = Batch::new(bounds);
        for (i, ((_, op), place)) in ops.zip(&mut places).enumerate() {
            let entry = &mut place.held().entry;
            let at = batch.place(entry);
            if ended[i] {
                batch.push_ended(op, at, out[i]);
                continue;
            }
            let outcome = Outcome::from(singles[i]);
            let started = Operation::after_fast(entry, op, outcome, begun, now, bounds);
            batch.push_started(op, at, started);
        }
        self.carry_out_batch(batch, places, out)
    }

    /// Locks the slot of every lock named, in the order of their indices, so that batches of
    /// other threads cannot wait for each other in a circle.
    fn lock_places(
        &self,
        ops: impl ExactSizeIterator<Item = (LockId, Op)> + Clone,
        batch: &mut Batch,
        bounds: Bounds,
    ) -> Vec<Place<'_>> {
        let deadline = Instant::now() + left_ns(bounds.until_ns);
        let mut wanted: Vec<(LockSlotIndex, LockId)> = Vec::with_capacity(ops.len());
        wanted.extend(ops.clone().filter_map(|(id, _)| Some((self.table.find(id)?, id))));
        wanted.sort_unstable();
        wanted.dedup();
        let mut places: Vec<Place<'_>> = Vec::with_capacity(wanted.len());
        let mut found: Vec<(LockId, Result<usize, Status>)> = Vec::with_capacity(wanted.len());
        for (index, id) in wanted {
            let place = self.idle_at(index, id, deadline).map(|mut place| {
                let at = batch.place(&place.held().entry);
                places.push(place);
                at
            });
            found.push((id, place));
        }
        for (id, op) in ops {
            match found.iter().find(|(found, _)| *found == id) {
                Some(&(_, Ok(place))) => match places[place].held().unfounded(op) {
                    Some(status) => batch.push_decided(op, code(status)),
                    None => batch.push(op, place),
                },
                Some(&(_, Err(status))) => batch.push_decided(op, code(status)),
                None => batch.push_decided(op, code(self.not_got())),
            }
        }
        places
    }

    fn idle_at(
        &self,
        index: LockSlotIndex,
        id: LockId,
        deadline: Instant,
    ) -> Result<Place<'_>, Status> {
        let lock_slot = self.table.lock_slot(index);
        let mut guard = lock_slot.lock_until(|| deadline).ok_or(Status::BadResponse)?;
        loop {
            let held = guard.as_ref().filter(|held| held.id == id);
            let held = held.ok_or_else(|| self.not_got())?;
            match held.busy {
                Busy::No => return Ok(Place { lock_slot, guard }),
                Busy::Async => return Err(self.refuse(super::ASYNC)),
                Busy::Waiting => {}
            }
            if lock_slot.changed.wait_until(&mut guard, deadline).timed_out() {
                return Err(Status::BadResponse);
            }
        }
    }
}

/// A batch of single word operations.
struct Short<'a> {
    places: Vec<Place<'a>>,
    /// One for each place; what is beyond them has no meaning.
    cases: [FastCas; BATCH_MAX],
    /// From before they were posted: leases count from there.
    now: Now,
    bounds: Bounds,
}

/// One lock of the batch.
struct Place<'a> {
    lock_slot: &'a LockSlot,
    guard: LockSlotGuard<'a>,
}

impl Place<'_> {
    fn held(&mut self) -> &mut ClientLock {
        // idle_at has seen the lock, and it is not taken out while this guard lives
        self.guard.as_mut().expect("a locked place holds its lock")
    }
}

/// The locks of a batch, and the clock of each session, read once per round.
struct Places<'r, 'a> {
    places: &'r mut [Place<'a>],
    clock: Option<(*const (), Now)>,
    /// Until when the batch may take: a clock that is not there in time is not waited for.
    until_ns: u64,
}

impl Entries for Places<'_, '_> {
    fn entry(&mut self, place: usize) -> &mut LockEntry {
        &mut self.places[place].held().entry
    }

    fn now(&mut self, place: usize) -> Now {
        let held = self.places[place].held();
        let session = Arc::as_ptr(&held.exec).cast::<()>();
        let now = match self.clock {
            Some((same, now)) if same == session => now,
            _ if left_ns(self.until_ns) < CLOCK_WAIT && !held.exec.is_clock_ready() => {
                held.clock_unanswered()
            }
            _ => held.now(),
        };
        self.clock = Some((session, now));
        held.last_now = now;
        now
    }
}

/// An item, and the session that carries it.
type On = (usize, Arc<dyn Executor>);

/// Carries the effects of all items out, round by round.
fn run(batch: &mut Batch, places: &mut [Place<'_>]) {
    let mut asked: Vec<Option<(Seq, u64)>> = vec![None; BATCH_MAX];
    loop {
        let mut on = Places { places, clock: None, until_ns: batch.bounds().until_ns };
        let mut posts: Vec<(On, Chain, u64)> = Vec::new();
        while let Some((i, effect)) = batch.next(&mut on) {
            // an item with an effect is active, so it has a place
            let Some(place) = batch.place_of(i) else { continue };
            let held = on.places[place].held();
            let exec = Arc::clone(&held.exec);
            match effect {
                Effect::Post { chain, until_ns } => posts.push(((i, exec), chain, until_ns)),
                // either may take as long as a socket blocks: what follows is judged anew
                Effect::WriteLedger(entry) => {
                    exec.write_ledger(held.entry.handle(), entry);
                    on.clock = None;
                }
                Effect::Tell(request) => {
                    tell(&*exec, &request);
                    on.clock = None;
                }
                Effect::ReadClock => batch.clock(i, held.now()),
                Effect::Count(counter) => exec.count(counter),
                Effect::Wake { addr, half } => exec.wake(addr, half),
                Effect::Pause { .. } | Effect::Park { .. } => batch.queues(i, &mut held.entry),
                Effect::Ask { request, until_ns } => match exec.send(&request) {
                    Ok(seq) => asked[i] = Some((seq, until_ns)),
                    Err(status) => {
                        let now = held.now();
                        batch.reply(i, &mut held.entry, Err(status), now);
                    }
                },
                Effect::Probe { until_ns } | Effect::Await { until_ns } => {
                    asked[i] = asked[i].map(|(seq, _)| (seq, until_ns));
                }
                Effect::Forget => {
                    if let Some((seq, _)) = asked[i].take() {
                        exec.forget(seq);
                    }
                }
                Effect::Done(_) => {}
            }
        }
        let places = &mut *on.places;
        if batch.is_done() {
            return;
        }
        if posts.is_empty() {
            await_replies(batch, places, &mut asked);
            continue;
        }
        execute(batch, places, posts);
    }
}

/// One `execute` for the chains of all items; one per session if a reinit is under way.
fn execute(batch: &mut Batch, places: &mut [Place<'_>], mut posts: Vec<(On, Chain, u64)>) {
    while let Some(((_, exec), _, until_ns)) = posts.first() {
        let (exec, until_ns) = (Arc::clone(exec), *until_ns);
        let (here, rest): (Vec<_>, Vec<_>) =
            posts.into_iter().partition(|((_, other), _, _)| Arc::ptr_eq(other, &exec));
        let chains: Vec<Chain> = here.iter().map(|&(_, chain, _)| chain).collect();
        let mut outcomes = vec![Outcome::Unknown; chains.len()];
        let wait = match exec.reads_are_free() {
            true => DATA_WAIT, // nothing is waited for
            false => left_ns(until_ns),
        };
        if !wait.is_zero() {
            exec.execute(&chains, &mut outcomes, wait);
        }
        // what is decided now needs the time of now, which a primary that is silent does not tell
        let is_answered = outcomes.iter().any(|&outcome| outcome != Outcome::Unknown);
        let now = is_answered.then(|| exec.now());
        for (((i, _), _, _), outcome) in here.into_iter().zip(outcomes) {
            if let Some(place) = batch.place_of(i) {
                let held = places[place].held();
                let now = match now {
                    Some(now) => held.within_horizon(now),
                    None => held.clock_unanswered(),
                };
                batch.outcome(i, &mut held.entry, outcome, now);
            }
        }
        posts = rest;
    }
}

/// Waits for the replies to all requests that are out.
fn await_replies(batch: &mut Batch, places: &mut [Place<'_>], asked: &mut [Option<(Seq, u64)>]) {
    assert!(asked.iter().any(Option::is_some), "an item of a batch waits for nothing");
    for (i, asked) in asked.iter_mut().enumerate() {
        let Some((seq, until_ns)) = *asked else { continue };
        let Some(place) = batch.place_of(i) else { continue };
        let held = places[place].held();
        let reply = held.exec.reply(seq, left_ns(until_ns));
        let now = held.now();
        let reply = match reply {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => {
                batch.deadline(i, &held.entry, now);
                continue;
            }
            Err(status) => Err(status),
        };
        *asked = None;
        batch.reply(i, &mut held.entry, reply, now);
    }
}
