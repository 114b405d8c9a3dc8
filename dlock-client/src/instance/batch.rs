// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: carries out the effects of up to 31 operations together. [`Batch`] decides which
//! effects.
//!
//! ```text
//!   lock all slots in the order of their indices
//!   next … ─▶ all chains in one execute ─▶ all ledger writes in one flush ─▶ all replies awaited
//! ```

use std::sync::Arc;

use dlock_core::clock::{Lease, Now};
use dlock_core::ids::{LockId, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::lock::{LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::operation::{Batch, Bounds, Effect, Entries, Operation};
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::{code, Instance};
use crate::execute::{tell, CLOCK_WAIT_NS};
use crate::table::{Busy, ClientLock, LockSlot, LockSlotGuard, LockSlotIndex};

impl Instance {
    /// [`trylock`](Self::trylock) for up to 31 locks at once; `out` gets the result of each item.
    ///
    /// # Errors
    /// `Invalid` (no item, too many, or `out` too short), `ClientNotInit`, `Async`: no item was
    /// begun. Any other status is that of an item, in `out`.
    ///
    /// # Latency
    /// As many round trips as the item that needs most; one without contention.
    pub fn batch_trylock(&self, items: &[(LockId, Mode, u32)], out: &mut [OpResult]) -> Status {
        let op = |&(lock, mode, expire_s): &_| {
            (lock, Op::TryLock { mode, lease: Lease::secs(expire_s) })
        };
        self.batch(items.iter().map(op), out)
    }

    /// [`unlock`](Self::unlock) for up to 31 locks at once; `out` gets the result of each item.
    ///
    /// # Errors
    /// As [`batch_trylock`](Self::batch_trylock).
    ///
    /// # Latency
    /// As `batch_trylock`.
    pub fn batch_unlock(&self, locks: &[LockId], out: &mut [OpResult]) -> Status {
        self.batch(locks.iter().map(|&lock| (lock, Op::Unlock)), out)
    }

    /// [`extend`](Self::extend) for up to 31 locks at once; `out` gets the result of each item.
    ///
    /// # Errors
    /// As [`batch_trylock`](Self::batch_trylock).
    ///
    /// # Latency
    /// As `batch_trylock`.
    pub fn batch_extend(&self, items: &[(LockId, Mode, u32)], out: &mut [OpResult]) -> Status {
        let op =
            |&(lock, mode, expire_s): &_| (lock, Op::Extend { mode, lease: Lease::secs(expire_s) });
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
        let bounds = Bounds::since(boot_ns());
        let mut batch = Batch::new(bounds);
        let places = match self.idle_now(ops.clone().map(|(id, _)| id)) {
            Some(mut places) => {
                for (at, (_, op)) in ops.enumerate() {
                    let held = places[at].held();
                    batch.place(&held.entry);
                    match held.unfounded(op) {
                        Some(status) => batch.push_decided(op, code(status)),
                        None => batch.push(op, at),
                    }
                }
                places
            }
            None => self.lock_places(ops, &mut batch, bounds),
        };
        self.carry_out_batch(batch, places, out)
    }

    /// Carries a batch out and writes its results to `out`. If this client finds the successor of
    /// its primary by itself, a release that no primary has heard ends the hold, as that of a
    /// single lock does.
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

    /// Asks a successor whether it confirms the holds of these locks, whose slots the caller has
    /// locked. Returns the status of each lock that was asked about.
    pub(super) fn confirm_together(
        &self,
        claimed: Vec<(LockId, &LockSlot, LockSlotGuard<'_>)>,
        bounds: Bounds,
    ) -> Vec<(LockId, Status)> {
        let mut batch = Batch::new(bounds);
        let mut places = Vec::with_capacity(claimed.len());
        let mut locks = Vec::with_capacity(claimed.len());
        for (lock, lock_slot, guard) in claimed {
            let mut place = Place { lock_slot, guard };
            let held = place.held();
            let (at, now) = (batch.place(&held.entry), held.fresh());
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

    /// The slots of these locks, if the batch names each lock once and no thread operates on any of
    /// them now. This function waits for no slot, so the order of locking does not matter.
    fn idle_now(&self, ids: impl ExactSizeIterator<Item = LockId>) -> Option<Vec<Place<'_>>> {
        let mut places: Vec<Place<'_>> = Vec::with_capacity(ids.len());
        for id in ids {
            let (lock_slot, guard) = self.at_once(id)?;
            places.push(Place { lock_slot, guard });
        }
        Some(places)
    }

    /// Locks the slot of every lock of the batch in the order of their indices, so that batches of
    /// several threads cannot deadlock.
    fn lock_places(
        &self,
        ops: impl ExactSizeIterator<Item = (LockId, Op)> + Clone,
        batch: &mut Batch,
        bounds: Bounds,
    ) -> Vec<Place<'_>> {
        let until_ns = bounds.until_ns;
        let mut wanted: Vec<(LockSlotIndex, LockId)> = Vec::with_capacity(ops.len());
        wanted.extend(ops.clone().filter_map(|(id, _)| Some((self.table.find(id)?, id))));
        wanted.sort_unstable();
        wanted.dedup();
        let mut places: Vec<Place<'_>> = Vec::with_capacity(wanted.len());
        let mut found: Vec<(LockId, Result<usize, Status>)> = Vec::with_capacity(wanted.len());
        for (index, id) in wanted {
            let place = self.idle_at(index, id, until_ns).map(|mut place| {
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
        until_ns: u64,
    ) -> Result<Place<'_>, Status> {
        let lock_slot = self.table.lock_slot(index);
        let mut guard = lock_slot.lock_until(|| until_ns).ok_or(Status::BadResponse)?;
        loop {
            let held = guard.as_ref().filter(|held| held.id == id);
            let held = held.ok_or_else(|| self.not_got())?;
            match held.busy {
                Busy::No => return Ok(Place { lock_slot, guard }),
                Busy::Async => return Err(self.refuse(super::ASYNC)),
                Busy::Waiting => {}
            }
            if lock_slot.changed.wait_until(&mut guard, until_ns) {
                return Err(Status::BadResponse);
            }
        }
    }
}

/// One lock of the batch, with its slot locked.
struct Place<'a> {
    lock_slot: &'a LockSlot,
    guard: LockSlotGuard<'a>,
}

impl Place<'_> {
    fn held(&mut self) -> &mut ClientLock {
        // idle_at has seen the lock, and no thread removes it while this guard lives
        self.guard.as_mut().expect("a locked place holds its lock")
    }
}

/// The locks of a batch, and the clock of each session, read once per round.
struct Places<'r, 'a> {
    places: &'r mut [Place<'a>],
    clock: Option<(*const (), Now)>,
    /// When the batch must end. If less than [`CLOCK_WAIT_NS`] is left and the server clock is not
    /// known, the batch goes on without it.
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
            _ if self.until_ns < boot_ns() + CLOCK_WAIT_NS => held.fresh_if_ready(),
            _ => held.fresh(),
        };
        self.clock = Some((session, now));
        held.last_now = now;
        now
    }
}

/// A chain of an item, and until when the item waits for its outcome.
type Post = (usize, Chain, u64);

/// Carries out the effects of all items, round by round.
fn run(batch: &mut Batch, places: &mut [Place<'_>]) {
    let mut asked: [Option<(Seq, u64)>; BATCH_MAX] = [None; BATCH_MAX];
    let mut posts: Vec<Post> = Vec::with_capacity(places.len());
    loop {
        let mut on = Places { places, clock: None, until_ns: batch.bounds().until_ns };
        while let Some((i, effect)) = batch.next(&mut on) {
            // an item with an effect is active, so it has a place
            let Some(place) = batch.place_of(i) else { continue };
            let held = on.places[place].held();
            match effect {
                Effect::Post { chain, until_ns } => posts.push((i, chain, until_ns)),
                // both effects may block for as long as a socket does, so the clock is read again
                // afterwards
                Effect::WriteLedger(entry) => {
                    held.exec.write_ledger(held.entry.handle(), entry);
                    on.clock = None;
                }
                Effect::Tell(request) => {
                    tell(&*held.exec, &request);
                    on.clock = None;
                }
                Effect::ReadClock => batch.clock(i, held.fresh()),
                Effect::Count(counter) => held.exec.count(counter),
                Effect::Wake { addr, half } => held.exec.wake(addr, half),
                Effect::Pause { .. } | Effect::Park { .. } => batch.queues(i, &mut held.entry),
                Effect::Ask { request, until_ns } => match held.exec.send(&request) {
                    Ok(seq) => asked[i] = Some((seq, until_ns)),
                    Err(status) => {
                        let now = held.fresh();
                        batch.reply(i, &mut held.entry, Err(status), now);
                    }
                },
                Effect::Probe { until_ns } | Effect::Await { until_ns } => {
                    asked[i] = asked[i].map(|(seq, _)| (seq, until_ns));
                }
                Effect::Forget => {
                    if let Some((seq, _)) = asked[i].take() {
                        held.exec.forget(seq);
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
        execute(batch, places, &mut posts);
    }
}

/// Executes the chains of all items in one `execute`; in one for each session if a reinit is under
/// way.
fn execute(batch: &mut Batch, places: &mut [Place<'_>], posts: &mut Vec<Post>) {
    while let Some(&(i, _, until_ns)) = posts.first() {
        let held = places[batch.place_of(i).unwrap_or_default()].held();
        let (exec, is_local, before) = (Arc::clone(&held.exec), held.is_local, held.last_now);
        let mut here: Vec<usize> = Vec::with_capacity(posts.len());
        let mut chains: Vec<Chain> = Vec::with_capacity(posts.len());
        posts.retain(|&(i, chain, _)| {
            let held = batch.place_of(i).and_then(|place| places[place].guard.as_ref());
            let is_here = held.is_some_and(|held| Arc::ptr_eq(&held.exec, &exec));
            if is_here {
                here.push(i);
                chains.push(chain);
            }
            !is_here
        });
        let mut outcomes = [Outcome::Unknown; BATCH_MAX];
        let outcomes = &mut outcomes[..chains.len()];
        // a chain on memory of this host does not wait
        if is_local || until_ns > boot_ns() {
            exec.execute(&chains, outcomes, until_ns);
        }
        // decisions need the present time; a primary that is silent is not asked for it
        let is_answered = outcomes.iter().any(|&outcome| outcome != Outcome::Unknown);
        let now = is_answered.then(|| exec.now_again(before));
        for (i, &mut outcome) in here.into_iter().zip(outcomes) {
            if let Some(place) = batch.place_of(i) {
                let held = places[place].held();
                let now = match now {
                    Some(now) => held.within_horizon(now),
                    None => held.unasked(),
                };
                batch.outcome(i, &mut held.entry, outcome, now);
            }
        }
    }
}

/// Waits for the replies to all requests under way.
fn await_replies(batch: &mut Batch, places: &mut [Place<'_>], asked: &mut [Option<(Seq, u64)>]) {
    assert!(asked.iter().any(Option::is_some), "an item of a batch waits for nothing");
    for (i, asked) in asked.iter_mut().enumerate() {
        let Some((seq, until_ns)) = *asked else { continue };
        let Some(place) = batch.place_of(i) else { continue };
        let held = places[place].held();
        let reply = held.exec.reply(seq, until_ns);
        let now = held.fresh();
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
        held.may_be_kept();
    }
}
