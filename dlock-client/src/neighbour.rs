// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that waits in the queue of a fair lock, and its neighbours: those of the same user on
//! this host that wait for the same lock.
//!
//! ```text
//!   unlock ─ others wait ─▶ released ─▶ Place::serves ─ was my own turn announced? ─▶ trust
//!   lock ─ others are before it ─▶ rest ─ trust ─▶ Place::sleep: until it is next
//!                                       ├ none ──▶ pass::pass: looks now and then
//!                                       └ none, over shared memory, and not for long ─▶ the
//!                                         primary's queue
//! ```
//! Only a client whose turns were announced lately sleeps: those before it in the queue are its
//! neighbours then. A client that no neighbour has woken from its sleep looks at the word from time
//! to time again, until its turns are announced.
//!
//! Over shared memory more waiters than processors are in each other's way, as the system may let
//! one that gives its processor away go on at once: those who are further behind than there are
//! processors sleep. A client without neighbours has the primary wake it, if its turn does not come
//! soon.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlock_core::control::LockDesc;
use dlock_core::ids::{Epoch, LockId, Slot};
use dlock_core::limits::HAND_ON_NS_MAX;
use dlock_core::lock::{OpResult, View};
use dlock_core::operation::Operation;
use dlock_core::status::Status;
use dlock_fabric::clock::boot_ns;
use dlock_fabric::neighbours::{Neighbours, Place, Slept, SLEEP_MAX};

use crate::pass::{pass, processors, Pause, Trying, AWAKE_MAX, SPIN_TURN_MAX};
use crate::table::ClientLock;

/// Announced turns after which a client relies on being told.
const TRUST: u8 = 3;
/// So many more are not worth more.
const TRUST_MAX: u8 = 8;
/// What an unannounced turn takes off.
const MISSED: u8 = 2;
/// What is taken off for a sleep that lasted until its time was over: the whole queue may have
/// waited for this client.
const OVERSLEPT: u8 = 4;

/// Turns before one's own of which one is that of the next in the queue.
const FAR: u16 = 2;
/// The same of a client whose last turns were handed on to it: to be woken takes longer than two
/// turns.
const FAR_HEARING: u16 = 3;
/// For so long a client without neighbours looks for its turn over shared memory: about as long as
/// it takes to have the primary wake it.
const LOOK_MAX: Duration = Duration::from_micros(20);
/// For so long a client that is next looks for its turn over shared memory: a hold that has lasted
/// for so long may last for much longer.
const NEXT_LOOK_MAX: Duration = Duration::from_micros(250);
/// Who is back only after this had given its processor away to one that has other work to do, not
/// to another waiter.
const AWAY_MIN: Duration = Duration::from_millis(1);
/// For so long, for each turn up to its own, a client that is near only listens, if its last turns
/// were handed on to it: what is told takes no verb.
const HEAR_MAX: Duration = Duration::from_micros(200);
/// Between two times that it gives the processor away meanwhile.
const HEAR_SPINS: u32 = 8;
/// For so long after it was seen to stand, a session is taken to stand for what is handed on. To
/// look costs a system call, which is more than all else that such a turn costs.
const STANDS_NS_MAX: u64 = 1_000_000;
/// After turns that did not come in that time, so many others are slept for at once, at most.
const UNSEEN_MAX: u8 = 63;

/// What a client knows of its neighbours at one lock.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// Of the lock's name. Programs that were built with different versions of the standard library
    /// may hash differently: then they do not understand each other's hints.
    name: DefaultHasher,
    /// It is known whose clock this process has.
    has_clock: bool,
    trust: u8,
    /// The same of turns that were handed on, not only announced.
    trust_handed: u8,
    /// When the session was last seen to stand.
    stood_ns: u64,
    looks: Looks,
}

/// Whether a turn is looked for over shared memory: the more turns in a row did not come soon, the
/// fewer are looked for.
#[derive(Debug, Default)]
struct Looks {
    /// Turns that are slept for at once after the last one that did not come soon.
    unseen: u8,
    /// How many of them are still to come.
    left: u8,
}

/// What a client does until it looks again.
pub(crate) enum Rest {
    /// It lets time pass.
    Pass,
    /// It sleeps until its neighbours wake it.
    Bed(Bed),
    /// It looks no more: it sleeps until the primary wakes it.
    Queue,
}

/// Where a waiter is to be told that it is next.
#[derive(Clone, Copy)]
pub(crate) struct Bed {
    place: &'static Place,
    mark: u16,
    tx: u16,
}

/// Where a waiter is told that it has its turn.
#[derive(Clone, Copy)]
pub(crate) struct Ear {
    place: &'static Place,
    mark: u64,
    tx: u16,
}

impl Neighbour {
    pub(crate) fn of(desc: &LockDesc) -> Self {
        let mut name = DefaultHasher::new();
        desc.name.hash(&mut name);
        let clock = clock();
        clock.hash(&mut name);
        Self {
            name,
            has_clock: clock.is_some(),
            trust: 0,
            trust_handed: 0,
            stood_ns: 0,
            looks: Looks::default(),
        }
    }

    /// Tells the lock from all others: those of another primary, and those that had its name
    /// before. No two primaries began in the same nanosecond. Who has another clock has another
    /// mark.
    fn mark(&self, lock: LockId, epoch: Epoch) -> u64 {
        let mut mark = self.name.clone();
        (lock.0, epoch.0).hash(&mut mark);
        mark.finish()
    }

    /// Whether the turn that has ended was announced.
    fn counts(&mut self, was_told: bool) {
        count(&mut self.trust, was_told);
    }

    /// Another session carries the lock's operations from here on.
    pub(crate) fn has_new_session(&mut self) {
        self.stood_ns = 0;
    }

    /// Whether a turn that was listened for was handed on.
    fn counts_handed(&mut self, was_told: bool) {
        count(&mut self.trust_handed, was_told);
    }

    fn place(slot: Slot) -> Option<&'static Place> {
        Some(Neighbours::own()?.place(slot.0))
    }

    /// Whether its turns are handed on to it.
    fn hears(&self) -> bool {
        self.trust_handed >= TRUST
    }

    /// Whether its turns are announced.
    fn is_told(&self) -> bool {
        self.trust >= TRUST
    }
}

/// Which clock this process has: that of its time namespace.
fn clock() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/ns/time").ok()
}

fn count(trust: &mut u8, was_told: bool) {
    *trust = match was_told {
        true => (*trust + 1).min(TRUST_MAX),
        false => trust.saturating_sub(MISSED),
    };
}

impl Looks {
    /// Whether a turn that was looked for so long is to be slept for. `is_told`: turns are
    /// announced.
    fn are_enough(&mut self, trying: Trying, is_told: bool) -> bool {
        let looked = trying.since.elapsed();
        let (at_once, max) = match is_told {
            true => (SPIN_TURN_MAX, NEXT_LOOK_MAX),
            false => (Duration::ZERO, LOOK_MAX),
        };
        if self.left > 0 && looked >= at_once {
            self.left -= 1;
            return true;
        }
        if looked < max || trying.pauses <= 1 {
            return false;
        }
        if !is_told || looked >= AWAY_MIN {
            self.unseen = (2 * self.unseen + 1).min(UNSEEN_MAX);
            self.left = self.unseen;
        }
        true
    }

    /// A turn came soon.
    fn have_seen(&mut self) {
        self.unseen /= 2;
        self.left = self.left.min(self.unseen);
    }
}

impl ClientLock {
    /// The exclusive ticket of this number was released, with this result: neighbours are told.
    #[inline]
    pub(crate) fn tells_neighbours(&mut self, tx: u16, result: &OpResult) {
        let Some(View::Fair { nx, mx, .. }) = result.view else { return };
        let next = tx.wrapping_add(1);
        let is_empty = mx == next && !self.entry.is_followed();
        // the arbiter may have skipped tickets: then the turn is that of a later one
        if result.status == Status::Success && nx == next && !is_empty {
            self.tells_of_turn(next);
        }
    }

    #[cold]
    fn tells_of_turn(&mut self, tx: u16) {
        if let Some(place) = Neighbour::place(self.entry.slot()) {
            let was_told = place.serves(short(self.mark()), tx);
            self.neighbour.counts(was_told);
        }
    }

    /// The number of the ticket whose release is to be told to neighbours: that of a fair lock
    /// whose word is reached without the primary.
    #[inline]
    pub(crate) fn number_to_tell(&self) -> Option<u16> {
        let is_told = self.is_local || self.exec.is_one_sided();
        self.entry.ticket().filter(|_| is_told).map(|ticket| ticket.tx)
    }

    pub(crate) fn mark(&self) -> u64 {
        self.neighbour.mark(self.entry.lock(), self.binding.epoch())
    }

    /// The place of neighbours that hand locks on.
    fn place_to_hand_on(&self) -> Option<&'static Place> {
        let neighbours = Neighbours::own().filter(|all| all.hand_on())?;
        self.neighbour.has_clock.then(|| neighbours.place(self.entry.slot().0))
    }

    /// The lock is being handed on to this ticket, by one that had it by this reading of the clock.
    pub(crate) fn hands_on(&self, tx: u16, since_ns: u64) {
        if let Some(place) = self.place_to_hand_on() {
            place.hand_on(self.mark(), tx, since_ns);
        }
    }

    /// Where an operation is told in its pause that it has its turn.
    pub(crate) fn ear(&self, operation: &Operation) -> Option<Ear> {
        if self.is_local || !self.exec.is_one_sided() {
            return None;
        }
        let tx = operation.listens(&self.entry)?;
        Some(Ear { place: self.place_to_hand_on()?, mark: self.mark(), tx })
    }

    /// Whether the session stands, or did so [`STANDS_NS_MAX`] ago at most.
    pub(crate) fn stands(&mut self, now_ns: u64) -> bool {
        let stood_ns = self.neighbour.stood_ns;
        let until_ns = stood_ns.saturating_add(STANDS_NS_MAX);
        if (stood_ns..until_ns).contains(&now_ns) {
            return true;
        }
        let stands = !self.exec.is_cut_off();
        self.neighbour.stood_ns = if stands { now_ns } else { 0 };
        stands
    }

    /// Whether a turn is rather waited for than looked for.
    pub(crate) fn only_listens(&self, pause: Pause, trying: Trying) -> bool {
        let is_near = (1..FAR_HEARING).contains(&pause.ahead);
        is_near && self.neighbour.hears() && trying.since.elapsed() < AWAKE_MAX
    }

    /// A turn that was listened for has come: was it handed on?
    pub(crate) fn has_listened(&mut self, was_told: bool) {
        self.neighbour.counts_handed(was_told);
    }

    /// What is to be done in a pause.
    pub(crate) fn rest(&mut self, pause: Pause, trying: Trying) -> Rest {
        if let Some(bed) = self.bed(pause.ahead) {
            return Rest::Bed(bed);
        }
        if !pause.is_local || pause.ahead == 0 {
            return Rest::Pass;
        }
        let is_told = self.neighbour.is_told();
        match self.neighbour.looks.are_enough(trying, is_told) {
            true => Rest::Queue,
            false => Rest::Pass,
        }
    }

    /// An operation has looked for its turn, and has had it come.
    pub(crate) fn has_looked(&mut self) {
        self.neighbour.looks.have_seen();
    }

    /// As if its turns had been announced.
    #[cfg(test)]
    pub(crate) fn is_told_of_turns(&mut self) {
        self.neighbour.trust = TRUST;
    }

    /// Where this client may sleep, with so many turns of others before its own.
    pub(crate) fn bed(&self, ahead: u16) -> Option<Bed> {
        let hears = !self.is_local && self.neighbour.hears();
        let far = if hears { FAR_HEARING } else { far(self.is_local) };
        if ahead < far || !self.neighbour.is_told() {
            return None;
        }
        let tx = self.number_to_tell()?;
        let place = Neighbour::place(self.entry.slot())?;
        Some(Bed { place, mark: short(self.mark()), tx })
    }

    /// It has slept; what its neighbours have told it is what it goes by the next time.
    pub(crate) fn has_slept(&mut self, slept: Slept) {
        if slept == Slept::Late {
            self.neighbour.trust = self.neighbour.trust.saturating_sub(OVERSLEPT);
        }
    }
}

/// The mark that hints have.
fn short(mark: u64) -> u16 {
    mark as u16
}

impl Ear {
    /// Whether the lock was handed on to this ticket: a reading of the clock by which its holder
    /// had it.
    pub(crate) fn handed(self) -> Option<u64> {
        let since_ns = self.place.handed(self.mark, self.tx)?;
        // what does not count any more is not asked about
        (boot_ns().saturating_sub(since_ns) <= HAND_ON_NS_MAX).then_some(since_ns)
    }

    /// Waits until the lock is handed on, with so many turns before that, not longer than a few
    /// looks take for each.
    pub(crate) fn listen(self, turns: u16) {
        let max = HEAR_MAX * u32::from(turns);
        let start = Instant::now();
        while self.handed().is_none() {
            for _ in 0..HEAR_SPINS {
                std::hint::spin_loop();
            }
            std::thread::yield_now();
            if start.elapsed() >= max {
                return;
            }
        }
    }
}

/// So many turns of others are enough to sleep for: over a network two, and in memory of this host
/// as many as there are processors. Who is nearer is sooner there by looking.
fn far(is_local: bool) -> u16 {
    match is_local {
        true => processors().max(FAR),
        false => FAR,
    }
}

impl Bed {
    /// Lets time pass until it is the next one's turn, or so.
    pub(crate) fn pass(self, pause: Pause, trying: Trying) -> Slept {
        let Self { place, mark, tx } = self;
        // as long as the turns before may take, if one of them is slower than they were lately
        let time = (4 * pause.time + SLEEP_MAX / 2).min(SLEEP_MAX);
        let slept = place.sleep(mark, tx, tx.wrapping_sub(pause.ahead), time);
        if slept == Slept::No {
            pass(pause, trying); // the word says otherwise
        }
        slept
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::message::LockType;

    use super::*;

    #[test]
    fn a_mark_is_of_a_name_a_lock_and_a_primary() {
        let desc = LockDesc { name: b"a".to_vec(), lock_type: LockType::Fair, lease_s: 0 };
        let other = Neighbour::of(&LockDesc { name: b"b".to_vec(), ..desc.clone() });
        let (lock, epoch) = (LockId(5), Epoch(1 << 40));
        let mark = Neighbour::of(&desc).mark(lock, epoch);
        assert_eq!(mark, Neighbour::of(&desc).mark(lock, epoch));
        assert_ne!(mark, other.mark(lock, epoch));
        assert_ne!(mark, Neighbour::of(&desc).mark(LockId(6), epoch));
        assert_ne!(mark, Neighbour::of(&desc).mark(lock, Epoch(1 + (1 << 40))));
    }

    #[test]
    fn in_memory_of_this_host_only_who_would_find_no_processor_is_far() {
        assert_eq!(far(false), 2);
        assert_eq!(far(true), processors().max(2));
    }

    #[test]
    fn turns_that_do_not_come_soon_are_slept_for() {
        let (new, long) = (looked(Duration::ZERO, 1), looked(LOOK_MAX, 2));
        let mut looks = Looks::default();
        assert!(!looks.are_enough(new, false), "it has just begun");
        assert!(!looks.are_enough(looked(LOOK_MAX, 1), false), "it has not looked twice");
        for unseen in [1, 3, 7, 15, 31, 63, 63] {
            assert!(looks.are_enough(long, false));
            let at_once = (0..100).take_while(|_| looks.are_enough(new, false)).count();
            assert_eq!(at_once, unseen);
        }
        assert!(looks.are_enough(long, false));
        for unseen in [31, 15, 7, 3, 1, 0, 0] {
            looks.have_seen();
            assert_eq!((looks.unseen, looks.left), (unseen, unseen));
        }
        assert!(looks.are_enough(long, false) && looks.are_enough(new, false), "and again");
    }

    /// With neighbours, turns are slept for at once after a processor that was away for long.
    #[test]
    fn who_was_away_for_long_looks_for_few_of_the_next_turns() {
        let (new, ahead) = (looked(Duration::ZERO, 1), looked(Duration::from_secs(60), 2));
        let mut looks = Looks::default();
        assert!(!looks.are_enough(looked(Duration::ZERO, 2), true));
        assert!(looks.are_enough(ahead, true) && looks.left == 1);
        let in_future = Trying { since: Instant::now() + Duration::from_secs(60), pauses: 2 };
        assert!(!looks.are_enough(in_future, true) && looks.left == 1, "it spins first");
        assert!(looks.are_enough(looked(SPIN_TURN_MAX, 2), true) && looks.left == 0);
        assert!(!looks.are_enough(new, true));
    }

    fn looked(time: Duration, pauses: u32) -> Trying {
        Trying { since: Instant::now().checked_sub(time).expect("it is later"), pauses }
    }

    #[test]
    fn only_who_was_told_lately_relies_on_it() {
        let desc = LockDesc { name: b"a".to_vec(), lock_type: LockType::Fair, lease_s: 0 };
        let mut neighbour = Neighbour::of(&desc);
        for n in 1..=20 {
            neighbour.counts(true);
            assert_eq!(neighbour.is_told(), n >= 3);
        }
        for missed in 1..=4 {
            neighbour.counts(false);
            assert_eq!(neighbour.is_told(), missed < 3);
        }
        assert_eq!(neighbour.trust, 0);
    }
}
