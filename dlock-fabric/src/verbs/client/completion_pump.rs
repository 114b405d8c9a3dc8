// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations that a client has under way: posters, completions, and waiting for them.
//!
//! ```text
//!   thread ─▶ PosterSlot (claimed) ─post─▶ Qp ─▶ device ─▶ Cq ◀─look── any thread that waits
//!     ▲                                                        └─▶ files each completion on the
//!     └─── reads the completions of its own poster slot ◀─────────  poster slot of its request
//! ```
//! A waiting thread first polls. If that takes too long, one thread, the leader, sleeps on the
//! completion channel, and the others sleep until they are woken.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use dlock_core::wire::status::Status;

use super::poster_slot::{Claim, PosterSlot, Use};
use crate::os::clock::{boot_ns, deadline_in, left_until};
use crate::stream::inbox::lock;
use crate::verbs::device::completion::{Channel, Completion, Cq};
use crate::verbs::device::error::VerbsError;
use crate::verbs::device::qp::Qp;

/// Poster slots for chains: how many there are, and how many verbs each has room for.
const SMALL: (usize, u32) = (8, 16);
/// Poster slots for batches: a batch has up to 31 chains of 4 verbs.
const LARGE: (usize, u32) = (2, 128);
/// Poster slots for ledger writes.
const NOTES: (usize, u32) = (4, 32);
/// How many verbs of chains that no thread waits for may be under way.
pub(super) const RING_VERBS: u32 = 256;
/// The number of send slots that all posters together take.
pub(super) const SEND_SLOTS: u32 =
    SMALL.0 as u32 * SMALL.1 + LARGE.0 as u32 * LARGE.1 + NOTES.0 as u32 * NOTES.1 + RING_VERBS;

/// The longest time that a thread polls before it sleeps: a sleep costs some 20 µs.
const SPIN_MAX: Duration = Duration::from_millis(1);
/// As [`SPIN_MAX`], for a client that prefers to sleep.
const SPIN_SLEEPY: Duration = Duration::from_micros(2);
/// While polling is of no use, the time for polling is halved, down to this part of the longest.
const SPIN_PARTS: u32 = 32;
/// How often a thread polls between two readings of the clock. Then it yields: the device may need
/// this CPU.
const LOOKS: u32 = 32;
/// How many completions a poll takes from the queue at most.
const POLLED: usize = 16;
/// How long a thread sleeps at a time for a poster slot: no event reports that an orphan has become
/// free.
const CLAIM_SLICE: Duration = Duration::from_millis(1);

/// Why a wait has ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The deadline has come.
    TimedOut,
    /// The session has ended: no result will come.
    Broken,
}

impl From<Stop> for Status {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::TimedOut => Self::TimedOut,
            Stop::Broken => Self::BadResponse,
        }
    }
}

/// The receiver of a completion.
#[derive(Clone, Copy, Debug)]
enum Target {
    PosterSlot(u16),
    Ring,
    Nobody,
}

/// The send side of one session.
#[derive(Debug)]
pub(in crate::verbs) struct CompletionPump {
    poster_slots: Box<[PosterSlot]>,
    /// For each owner number on the queue pair of chains: the receiver of its completions.
    targets: Box<[Target]>,
    chains_qp: u32,
    ring_done: AtomicU32,
    ring_posted: AtomicU32,
    /// The queue pair of messages, and their number in completions.
    messages: (u32, u16),
    messages_sent: AtomicU32,
    polled: Mutex<[Completion; POLLED]>,
    broken: Arc<AtomicBool>,
    /// Whether a chain has timed out: it may still be under way.
    strict: AtomicBool,
    leading: AtomicBool,
    park: Park,
    /// How long to poll before sleeping.
    spin_ns: AtomicU32,
    spin_max_ns: u32,
    channel: Arc<Channel>,
    cq: Arc<Cq>,
}

/// Threads that sleep while another one leads.
#[derive(Debug, Default)]
struct Park {
    sleepers: AtomicU32,
    mutex: Mutex<()>,
    woken: Condvar,
}

/// The parts of a [`CompletionPump`].
#[derive(Debug)]
pub(super) struct CompletionPumpParts {
    /// The queue pair for chains.
    pub(super) chains: Arc<Qp>,
    /// The number of the poster that posts without waiting.
    pub(super) ring_owner: u16,
    /// The queue pair of messages, and their number in completions.
    pub(super) messages: (u32, u16),
    pub(super) cq: Arc<Cq>,
    pub(super) channel: Arc<Channel>,
    pub(super) broken: Arc<AtomicBool>,
    /// Prefer sleeping to polling.
    pub(super) sleep: bool,
}

impl CompletionPump {
    pub(super) fn new(parts: CompletionPumpParts) -> Result<Self, VerbsError> {
        let mut poster_slots = Vec::new();
        let uses = [(SMALL, Use::Chains), (LARGE, Use::Chains), (NOTES, Use::Notes)];
        for ((count, slots), usage) in uses {
            for _ in 0..count {
                poster_slots.push(PosterSlot::new(&parts.chains, slots, usage)?);
            }
        }
        let owners = poster_slots.iter().map(PosterSlot::owner).chain([parts.ring_owner]);
        let last = owners.max().unwrap_or(0);
        let mut targets = vec![Target::Nobody; usize::from(last) + 1];
        for (i, poster_slot) in poster_slots.iter().enumerate() {
            targets[usize::from(poster_slot.owner())] = Target::PosterSlot(i as u16);
        }
        targets[usize::from(parts.ring_owner)] = Target::Ring;
        let spin = if parts.sleep { SPIN_SLEEPY } else { SPIN_MAX };
        let spin_max_ns = spin.as_nanos() as u32;
        Ok(Self {
            poster_slots: poster_slots.into(),
            targets: targets.into(),
            chains_qp: parts.chains.qp_num(),
            ring_done: AtomicU32::new(0),
            ring_posted: AtomicU32::new(0),
            messages: parts.messages,
            messages_sent: AtomicU32::new(0),
            polled: Mutex::new([Completion::default(); POLLED]),
            broken: parts.broken,
            strict: AtomicBool::new(false),
            leading: AtomicBool::new(false),
            park: Park::default(),
            spin_ns: AtomicU32::new(spin_max_ns),
            spin_max_ns,
            channel: parts.channel,
            cq: parts.cq,
        })
    }

    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Ends the session: all waiting threads return, and no further request is posted.
    pub(super) fn fail(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.park.wake();
    }

    /// The count up to which messages have been sent.
    pub(super) fn messages_sent(&self) -> u32 {
        self.messages_sent.load(Ordering::SeqCst)
    }

    /// Whether chains that were posted without waiting have completed up to this count.
    pub(super) fn is_ring_done(&self, seq: u32) -> bool {
        self.ring_done.load(Ordering::SeqCst).wrapping_sub(seq) as i32 >= 0
    }

    /// Records the count after a chain that no thread waits for was posted.
    pub(super) fn ring_posted(&self, seq: u32) {
        self.ring_posted.store(seq, Ordering::SeqCst);
    }

    /// Whether chains that were posted without waiting may still be under way.
    #[inline]
    pub(super) fn is_ring_busy(&self) -> bool {
        !self.is_ring_done(self.ring_posted.load(Ordering::SeqCst))
    }

    /// Claims a poster slot for a list with that many verbs, if one is free and the session has
    /// not ended.
    #[inline]
    pub(super) fn claim_now(&self, verbs: usize) -> Option<Claim<'_>> {
        if self.is_broken() {
            return None;
        }
        let fits = |s: &&PosterSlot| s.usage() == Use::Chains && s.slots() as usize >= verbs;
        self.poster_slots.iter().filter(fits).find_map(PosterSlot::claim)
    }

    /// Claims a poster slot for a list with that many verbs; waits for one.
    pub(super) fn claim(&self, verbs: usize, until_ns: u64) -> Result<Claim<'_>, Stop> {
        let fits = |s: &&PosterSlot| s.usage() == Use::Chains && s.slots() as usize >= verbs;
        self.claim_if(fits, until_ns)
    }

    /// Claims a poster slot with room for a ledger write.
    pub(super) fn claim_for_note(&self, until_ns: u64) -> Result<Claim<'_>, Stop> {
        let mut claim = self.claim_if(|s| s.usage() == Use::Notes, until_ns)?;
        if claim.poster().free() == 0 {
            self.wait(until_ns, || (claim.poster().free() > 0).then_some(()))?;
        }
        Ok(claim)
    }

    #[inline]
    fn claim_if(
        &self,
        fits: impl Fn(&&PosterSlot) -> bool,
        until_ns: u64,
    ) -> Result<Claim<'_>, Stop> {
        loop {
            // The first free one: the fewer are in use, the fewer cache lines are.
            match self.poster_slots.iter().filter(&fits).find_map(PosterSlot::claim) {
                _ if self.is_broken() => return Err(Stop::Broken),
                Some(claim) => return Ok(claim),
                None => {}
            }
            if boot_ns() >= until_ns {
                return Err(Stop::TimedOut);
            }
            self.look();
            self.park.sleep(until_ns.min(deadline_in(CLAIM_SLICE)), || false);
        }
    }

    /// Whether a list must be fenced against earlier lists, because they may be under way.
    #[inline]
    pub(super) fn is_strict(&self) -> bool {
        self.strict.load(Ordering::SeqCst)
    }

    /// Releases a poster slot whose list has not completed in time.
    #[cold]
    pub(super) fn abandon(&self, claim: Claim<'_>) {
        self.strict.store(true, Ordering::SeqCst);
        self.release(claim);
    }

    /// Releases a poster slot.
    #[inline]
    pub(super) fn release(&self, claim: Claim<'_>) {
        drop(claim);
        self.park.wake();
    }

    /// Waits until all earlier ledger writes have taken effect; with `chains`, also all chains that
    /// no thread waits for. If an abandoned chain does not complete in time, the session ends,
    /// because the chain must not take effect after the request that undoes it.
    pub(super) fn settled(&self, chains: bool, until_ns: u64) -> Result<(), Stop> {
        for poster_slot in self.poster_slots.iter().filter(|s| s.usage() == Use::Notes) {
            let posted = poster_slot.posted();
            self.wait(until_ns, || poster_slot.is_done(posted).then_some(()))?;
        }
        if chains {
            let posted = self.ring_posted.load(Ordering::SeqCst);
            self.wait(until_ns, || self.is_ring_done(posted).then_some(()))?;
            for (poster_slot, posted) in self.abandoned() {
                let over = self.wait(until_ns, || poster_slot.is_done(posted).then_some(()));
                over.map_err(|_| Stop::Broken)?;
            }
        }
        Ok(())
    }

    /// Abandoned lists that may still be under way, with their poster slots.
    pub(in crate::verbs) fn abandoned(&self) -> impl Iterator<Item = (&PosterSlot, u32)> {
        let poster_slots = if self.is_strict() { &self.poster_slots[..] } else { &[] };
        poster_slots.iter().filter_map(|poster_slot| Some((poster_slot, poster_slot.abandoned()?)))
    }

    /// Waits until `ready` returns a value; only a completion may make it ready.
    #[inline]
    pub(super) fn wait<T>(
        &self,
        until_ns: u64,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, Stop> {
        let mut started = None;
        let spin_ns = self.spin_ns.load(Ordering::Relaxed);
        loop {
            // In this order, so that a completion before the session ended counts.
            let broken = self.is_broken();
            if let Some(value) = self.look_for(&mut ready) {
                return Ok(value);
            }
            if broken {
                return Err(Stop::Broken);
            }
            let now_ns = boot_ns();
            let start_ns = *started.get_or_insert(now_ns);
            if now_ns >= until_ns || now_ns >= start_ns + u64::from(spin_ns) {
                let slept = self.wait_asleep(until_ns, ready);
                self.adapt(boot_ns() - start_ns);
                return slept;
            }
            std::thread::yield_now();
        }
    }

    /// Polls a few times, for all threads unless another thread is polling.
    #[inline]
    pub(super) fn look_for<T>(&self, ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
        let mut polled = self.polled.try_lock();
        for _ in 0..LOOKS {
            if let Ok(polled) = &mut polled {
                self.take(polled);
            }
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Adapts the time for polling after a wait that ended in sleep.
    fn adapt(&self, waited_ns: u64) {
        let longest = self.spin_max_ns;
        let ns = match waited_ns < longest.into() {
            true => longest,
            false => (self.spin_ns.load(Ordering::Relaxed) / 2).max(longest / SPIN_PARTS),
        };
        self.spin_ns.store(ns, Ordering::Relaxed);
    }

    fn wait_asleep<T>(
        &self,
        until_ns: u64,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T, Stop> {
        loop {
            let broken = self.is_broken();
            if let Some(value) = ready() {
                return Ok(value);
            }
            if broken {
                return Err(Stop::Broken);
            }
            if boot_ns() >= until_ns {
                return Err(Stop::TimedOut);
            }
            if !self.leading.swap(true, Ordering::SeqCst) {
                let found = self.lead(until_ns, &mut ready);
                self.leading.store(false, Ordering::SeqCst);
                self.park.wake();
                if let Some(value) = found {
                    return Ok(value);
                }
            } else {
                let mut found = None;
                self.park.sleep(until_ns, || {
                    found = ready();
                    found.is_some() || self.is_broken() || !self.leading.load(Ordering::SeqCst)
                });
                if let Some(value) = found {
                    return Ok(value);
                }
            }
        }
    }

    /// Sleeps on the channel once, for all threads.
    fn lead<T>(&self, until_ns: u64, ready: &mut impl FnMut() -> Option<T>) -> Option<T> {
        if self.cq.arm(false).is_err() {
            self.fail();
            return None;
        }
        // completions that came before the queue was armed raise no event, so take them now
        self.look_for_sure();
        let found = ready();
        if found.is_none() && !self.is_broken() && self.channel.wait(until_ns).is_err() {
            self.fail();
        }
        self.look_for_sure();
        found
    }

    /// Takes completions that are there, unless another thread is polling.
    #[inline]
    pub(super) fn look(&self) {
        if let Ok(mut polled) = self.polled.try_lock() {
            self.take(&mut polled);
        }
    }

    fn look_for_sure(&self) {
        self.take(&mut lock(&self.polled));
    }

    #[inline]
    fn take(&self, polled: &mut [Completion; POLLED]) {
        loop {
            let Ok(len) = self.cq.poll(polled) else { return self.fail() };
            if len == 0 {
                return;
            }
            polled[..len].iter().for_each(|completion| self.file(completion));
            self.park.wake();
            if len < POLLED {
                return;
            }
        }
    }

    /// Files a completion. Called by one thread at a time, in the order of completion.
    #[inline]
    fn file(&self, completion: &Completion) {
        if !completion.is_success() {
            // Later requests come back flushed.
            return self.fail();
        }
        let work = completion.work();
        if (completion.qp_num(), work.owner) == self.messages {
            return self.messages_sent.store(work.seq, Ordering::SeqCst);
        }
        if completion.qp_num() != self.chains_qp {
            return;
        }
        match self.targets.get(usize::from(work.owner)) {
            Some(&Target::PosterSlot(i)) => self.poster_slots[usize::from(i)].completed(work.seq),
            Some(Target::Ring) => self.ring_done.store(work.seq, Ordering::SeqCst),
            Some(Target::Nobody) | None => {}
        }
    }
}

impl Park {
    /// Wakes all threads that sleep here.
    #[inline]
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread that has counted itself and found nothing is asleep once this mutex is free.
            drop(lock(&self.mutex));
            self.woken.notify_all();
        }
    }

    /// Sleeps until it is woken or the deadline comes, unless `awake` returns `true` first.
    fn sleep(&self, until_ns: u64, mut awake: impl FnMut() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let guard = lock(&self.mutex);
        if !awake() {
            // The caller checks again, whether the thread was woken or not.
            drop(self.woken.wait_timeout(guard, left_until(until_ns)));
        } else {
            drop(guard);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
