// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the clients of one user on one host tell each other about fair locks that they wait for,
//! so that those far behind in a queue sleep instead of looking at a word.
//!
//! ```text
//!   holder   releases a lock ─▶ Place::serves ── futex ─▶ whose turn it is, and who is next
//!   waiter   far behind ─▶ Place::sleep ─ wakes who is next ─ sleeps ─▶ next, or late ─▶ looks
//! ```
//! No hint grants a lock. A client that is woken looks at the lock's word, and so does a
//! client that is not woken, when the time of its sleep is over. So wrong values that another
//! process writes here cost time, [`SLEEP_MAX`] for each look at most.
//!
//! That a lock was [handed on](Place::hand_on) is no hint: it is believed (`dlock-core`,
//! `lock/fair_handed.rs`), unless [`NEIGHBOURS_VARIABLE`] says `hints`. So it counts for those
//! alone who know the lock's mark of 64 bits, and what others write by mistake, or two at once,
//! does not count.
//!
//! The memory is a System V segment of the user, 256 KiB, which outlives its processes. Unlike a
//! file it cannot be truncated, which would kill everybody who has it mapped. One that others than
//! the user may write, or that the user has not created, is not used.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Set to `off`, nothing is told to neighbours, nor heard; to `hints`, no lock is handed on.
pub const NEIGHBOURS_VARIABLE: &str = "DLOCK_NEIGHBOURS";
/// The longest sleep.
pub const SLEEP_MAX: Duration = Duration::from_millis(8);

const PLACES: usize = 4_096;
/// The key of user 0's segment: "dlk", and the version of [`Place`].
const KEY: u32 = 0x646c_6b32;
/// The lowest bit of every mark, so that no value that was written is zero, as fresh memory is.
const WRITTEN: u16 = 1;
/// A moment is told in units of 2^10 ns: in 48 bits they go round after 9 years.
const UNIT_BITS: u32 = 10;
/// Turns that others may have had while one who announces the next was stopped. Further away a
/// number is of another lock of the name, or the lane has begun again.
const LATE_TURNS_MAX: u16 = 256;

/// The segment of this user.
#[derive(Debug)]
pub struct Neighbours {
    places: &'static [Place],
    /// Locks are handed on here.
    hand_on: bool,
}

/// Turns before one's own of which one is announced where all that wait are neighbours.
const TOLD_MAX: u16 = 3;

/// How a sleep went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// Not at all: the ticket is said to be next.
    No,
    /// Until a neighbour said so.
    Told,
    /// Until the time was over.
    Late,
}

/// One lock, or several: they disturb each other, and cost each other looks.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Place {
    /// The mark of a lock, and below it the number of the ticket that has its turn.
    served: AtomicU32,
    /// Who sleeps: a bit for each ticket, modulo 32.
    asleep: AtomicU32,
    /// The number of the ticket that a lock was handed on to, and above it since when, in units of
    /// 1,024 ns.
    handed: AtomicU64,
    /// The mark of that lock, [`sealed`] with `handed`.
    seal: AtomicU64,
}

impl Neighbours {
    /// Those of this process, if there is such memory.
    pub fn own() -> Option<&'static Self> {
        static OWN: OnceLock<Option<Neighbours>> = OnceLock::new();
        OWN.get_or_init(Self::of_user).as_ref()
    }

    fn of_user() -> Option<Self> {
        let variable = crate::environment::variable(NEIGHBOURS_VARIABLE).unwrap_or_default();
        if variable == "off" {
            return None;
        }
        // SAFETY: no arguments.
        let neighbours = Self::attach(key_of(unsafe { libc::geteuid() }))?;
        Some(Self { hand_on: variable != "hints", ..neighbours })
    }

    fn attach(key: u32) -> Option<Self> {
        if signed(key) == libc::IPC_PRIVATE {
            return None; // a segment of each process
        }
        let size = PLACES * size_of::<Place>();
        // SAFETY: no memory is passed.
        let id = unsafe { libc::shmget(signed(key), size, libc::IPC_CREAT | 0o600) };
        if id < 0 || !is_own(id, size) {
            return None;
        }
        // SAFETY: the system chooses a free range of addresses.
        let start = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        if start.addr() == usize::MAX {
            return None;
        }
        // SAFETY: so many places of atomics, for which all bytes are valid; it is never detached,
        // and a segment that is attached neither shrinks nor goes away.
        let places = unsafe { std::slice::from_raw_parts(start.cast::<Place>(), PLACES) };
        Some(Self { places, hand_on: true })
    }

    /// Whether locks are handed on here.
    pub fn hand_on(&self) -> bool {
        self.hand_on
    }

    /// That of the lock in this slot.
    pub fn place(&self, slot: u32) -> &'static Place {
        &self.places[slot as usize % PLACES]
    }
}

/// Each user has a key of its own.
fn key_of(user: libc::uid_t) -> u32 {
    KEY.wrapping_add(user)
}

fn signed(key: u32) -> libc::key_t {
    libc::key_t::from_ne_bytes(key.to_ne_bytes())
}

/// Whether this segment is of this user, for nobody else, and large enough.
fn is_own(id: libc::c_int, size: usize) -> bool {
    // SAFETY: zeros are a value of this structure.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is a local.
    let rc = unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut about) };
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    let by = &about.shm_perm;
    let is_private = by.cuid == user && by.uid == user && by.mode & 0o077 == 0;
    rc == 0 && is_private && about.shm_segsz >= size
}

impl Place {
    /// The lock of this mark was released: the ticket of this number has its turn. Its owner and
    /// who is next are woken if they sleep. Whether one of the last turns before it was announced
    /// in the same way: the very last may be late.
    pub fn serves(&self, mark: u16, tx: u16) -> bool {
        let now = value(mark, tx);
        let before = self.served.swap(now, Ordering::SeqCst);
        let earlier = marked(before, mark).map(|before| tx.wrapping_sub(before));
        let is_told = earlier.is_some_and(|turns| (1..=TOLD_MAX).contains(&turns));
        // announced by one who was stopped since, after others had their turns
        if marked(before, mark).is_some_and(|newer| newer.wrapping_sub(tx) < LATE_TURNS_MAX) {
            let _ = self.served.compare_exchange(now, before, Ordering::SeqCst, Ordering::Relaxed);
        }
        self.wake(tx);
        self.wake(tx.wrapping_add(1));
        is_told
    }

    /// Sleeps until the ticket of number `tx` is next after the one that has its turn, or somebody
    /// thinks that it is; at most for so long, nor longer than [`SLEEP_MAX`]. `nx` has its turn as
    /// far as the caller knows; who is next after that is woken.
    pub fn sleep(&self, mark: u16, tx: u16, nx: u16, time: Duration) -> Slept {
        self.sleep_until(mark, tx, nx, Instant::now() + time.min(SLEEP_MAX))
    }

    fn sleep_until(&self, mark: u16, tx: u16, nx: u16, end: Instant) -> Slept {
        let (mut known, mut has_slept) = (nx, false);
        loop {
            let served = self.served.load(Ordering::SeqCst);
            if let Some(nx) = marked(served, mark) {
                // what is not between is of another time
                if tx.wrapping_sub(nx) < tx.wrapping_sub(known) {
                    known = nx;
                }
            }
            if tx.wrapping_sub(known) <= 1 {
                return if has_slept { Slept::Told } else { Slept::No };
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Slept::Late;
            }
            has_slept = true;
            self.asleep.fetch_or(bit(tx), Ordering::SeqCst);
            self.wake(known.wrapping_add(1));
            let is_woken = wait(&self.served, served, bit(tx), left);
            self.asleep.fetch_and(!bit(tx), Ordering::SeqCst);
            if is_woken {
                return Slept::Told;
            }
        }
    }

    /// The lock of this mark was handed on to the ticket of this number, by one that had the lock
    /// under the ticket before at `since_ns`. `mark`: of the lock and its
    /// primary, which no other lock has.
    pub fn hand_on(&self, mark: u64, tx: u16, since_ns: u64) {
        let handed = since_ns >> UNIT_BITS << u16::BITS | u64::from(tx);
        self.seal.store(sealed(mark, handed), Ordering::Relaxed);
        self.handed.store(handed, Ordering::Release);
    }

    /// Since when the lock of this mark was handed on to the ticket of this number, if it was; up
    /// to 1,024 ns too early.
    #[inline]
    pub fn handed(&self, mark: u64, tx: u16) -> Option<u64> {
        let handed = self.handed.load(Ordering::Acquire);
        let is_it =
            handed as u16 == tx && self.seal.load(Ordering::Relaxed) == sealed(mark, handed);
        is_it.then_some(handed >> u16::BITS << UNIT_BITS)
    }

    /// Wakes the owner of this ticket, if it sleeps.
    fn wake(&self, tx: u16) {
        let bit = bit(tx);
        if self.asleep.load(Ordering::SeqCst) & bit == 0 {
            return;
        }
        // one that was killed in its sleep is not woken again and again
        self.asleep.fetch_and(!bit, Ordering::SeqCst);
        // SAFETY: the word is mapped; nothing else is passed.
        unsafe {
            let (word, op) = (self.served.as_ptr(), libc::FUTEX_WAKE_BITSET);
            let none = std::ptr::null::<libc::timespec>();
            libc::syscall(libc::SYS_futex, word, op, i32::MAX, none, none, bit);
        }
    }
}

/// Sleeps while the word is `value`, until a wake for one of these bits: whether there was one.
fn wait(word: &AtomicU32, value: u32, bits: u32, time: Duration) -> bool {
    // FUTEX_WAIT_BITSET takes a moment, not a time
    // SAFETY: zeros are a value of this structure.
    let mut end: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `end` is a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut end) };
    let ns = end.tv_nsec + i64::from(time.subsec_nanos());
    let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    end.tv_sec = end.tv_sec.saturating_add(seconds).saturating_add(ns / 1_000_000_000);
    end.tv_nsec = ns % 1_000_000_000;
    // SAFETY: the word is mapped, and `end` is a local.
    let rc = unsafe {
        let (op, none) = (libc::FUTEX_WAIT_BITSET, std::ptr::null::<u32>());
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const end, none, bits)
    };
    rc == 0
}

/// A mark as it is beside a value: beside any other it is not taken for this one. Fresh memory is
/// sealed with no mark but one in 2^64.
fn sealed(mark: u64, handed: u64) -> u64 {
    // the finalizer of SplitMix64: other values have other results
    let mut x = handed;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mark ^ x ^ x >> 31
}

fn value(mark: u16, tx: u16) -> u32 {
    u32::from(mark | WRITTEN) << 16 | u32::from(tx)
}

/// The number in a value of this mark.
fn marked(value: u32, mark: u16) -> Option<u16> {
    ((value >> 16) as u16 == mark | WRITTEN).then_some(value as u16)
}

fn bit(tx: u16) -> u32 {
    1 << (tx % 32)
}

#[cfg(test)]
mod tests {
    use std::thread::{scope, sleep};

    use super::*;

    const MARK: u16 = 0x7770;
    const LONG: Duration = Duration::from_secs(60);

    /// Waits until these sleep.
    fn until_asleep(place: &Place, bits: u32) {
        let start = Instant::now();
        while place.asleep.load(Ordering::SeqCst) & bits != bits {
            assert!(start.elapsed() < LONG, "nobody sleeps");
            std::thread::yield_now();
        }
        sleep(Duration::from_millis(1)); // it has set its bit, and now sleeps
    }

    /// Sleeps until it is woken.
    fn sleeps(place: &Place, tx: u16, nx: u16) {
        assert_eq!(place.sleep_until(MARK, tx, nx, Instant::now() + LONG), Slept::Told);
    }

    #[test]
    fn who_is_next_does_not_sleep() {
        let place = Place::default();
        assert_eq!(place.sleep(MARK, 5, 4, LONG), Slept::No);
        assert_eq!(place.sleep(MARK, 0, u16::MAX, LONG), Slept::No, "the numbers go round");
        assert!(!place.serves(MARK, 4));
        assert_eq!(place.sleep(MARK, 5, 1, LONG), Slept::No, "it was told");
        assert_eq!(place.sleep(MARK, 6, 1, Duration::from_micros(10)), Slept::Late, "not it");
        place.serves(MARK, 2_000);
        assert_eq!(place.sleep(MARK, 9, 8, LONG), Slept::No, "what it knows itself is newer");
    }

    #[test]
    fn no_sleep_is_longer_than_it_may_be() {
        let place = Place::default();
        assert_eq!(place.sleep(MARK, 9, 4, LONG), Slept::Late);
        assert_eq!(place.sleep(MARK, 9, 4, Duration::ZERO), Slept::Late);
        assert_eq!(place.asleep.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn who_sleeps_is_woken_when_it_is_next_or_served() {
        for (tx, nx, served) in [(9, 4, 8), (9, 4, 9), (1, 0xFFFE, 0), (40, 2, 40)] {
            let place = Place::default();
            scope(|threads| {
                threads.spawn(|| sleeps(&place, tx, nx));
                until_asleep(&place, bit(tx));
                place.serves(MARK, served);
            });
            assert_eq!(place.asleep.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn who_goes_to_sleep_wakes_who_is_next() {
        let place = Place::default();
        scope(|threads| {
            // the one believes that it has three before it, the other knows better
            threads.spawn(|| sleeps(&place, 9, 6));
            until_asleep(&place, bit(9));
            assert_eq!(place.sleep(MARK, 12, 8, Duration::from_micros(10)), Slept::Late);
        });
    }

    #[test]
    fn others_than_the_next_sleep_on() {
        let place = Place::default();
        scope(|threads| {
            let far = threads.spawn(|| place.sleep(MARK, 9, 4, LONG));
            until_asleep(&place, bit(9));
            place.asleep.fetch_or(bit(5), Ordering::SeqCst); // it wakes this one alone
            place.serves(MARK, 5);
            place.serves(!MARK, 7); // of another lock
            assert_eq!(far.join().unwrap(), Slept::Late);
        });
    }

    #[test]
    fn one_that_was_killed_in_its_sleep_is_woken_once() {
        let place = Place::default();
        place.asleep.store(bit(5), Ordering::SeqCst);
        place.serves(MARK, 5);
        assert_eq!(place.asleep.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_late_announcement_does_not_replace_a_newer_one() {
        let place = Place::default();
        assert!(!place.serves(MARK, 0xFFFE), "nothing was announced before");
        assert!(place.serves(MARK, 0xFFFF));
        assert!(place.serves(MARK, 0));
        assert!(!place.serves(MARK, 0xFFFF), "late");
        assert_eq!(marked(place.served.load(Ordering::SeqCst), MARK), Some(0));
        assert!(!place.serves(MARK, 0), "the same once more");
        assert!(place.serves(MARK, 1));
        assert!(place.serves(MARK, 1 + TOLD_MAX));
        assert!(!place.serves(MARK, 2 + 2 * TOLD_MAX), "some of clients elsewhere");
        assert!(!place.serves(MARK, 0xE000) && place.serves(MARK, 0xE001), "numbers begun anew");
        assert!(!place.serves(!MARK, 10), "of another lock");
        assert_eq!(marked(place.served.load(Ordering::SeqCst), !MARK), Some(10));
    }

    #[test]
    fn a_lock_is_handed_on_to_the_next_ticket_of_that_lock_alone() {
        const MARK: u64 = 0x7770_1234_5678_9abc;
        let place = Place::default();
        assert!((0..8).all(|tx| place.handed(MARK, tx).is_none()), "fresh memory");
        for tx in [5, 0xFFFF] {
            place.hand_on(MARK, tx, 123_456_789);
            let since_ns = place.handed(MARK, tx).expect("it was handed on");
            assert!((123_455_765..=123_456_789).contains(&since_ns));
            assert_eq!(place.handed(MARK, tx.wrapping_add(1)), None);
            assert_eq!(place.handed(MARK + 1, tx), None);
            assert_eq!(place.handed(!MARK, tx), None);
        }
        place.hand_on(MARK, 5, u64::MAX);
        assert!(place.handed(MARK, 5).is_some_and(|since_ns| since_ns < u64::MAX), "it goes round");
    }

    /// Two that write at once, and garbage.
    #[test]
    fn a_seal_beside_another_value_does_not_count() {
        let (place, other) = (Place::default(), Place::default());
        place.hand_on(1, 5, 1 << 30);
        other.hand_on(2, 5, 1 << 31);
        place.seal.store(other.seal.load(Ordering::Relaxed), Ordering::Relaxed);
        assert!(place.handed(1, 5).is_none() && place.handed(2, 5).is_none());
        for garbage in [0, 5, u64::MAX, 0x5555_5555_5555_0005] {
            place.handed.store(garbage, Ordering::Relaxed);
            assert!(place.handed(1, garbage as u16).is_none(), "{garbage:x}");
            assert!(place.handed(2, garbage as u16).is_none(), "{garbage:x}");
        }
    }

    /// A segment that goes away with the test.
    struct Segment {
        key: u32,
    }

    impl Segment {
        fn new(mode: u16, size: usize) -> Self {
            let key = KEY ^ std::process::id().rotate_left(12) ^ u32::from(mode);
            let (signed, mode) = (signed(key), libc::c_int::from(mode));
            // SAFETY: no memory is passed.
            let id = unsafe { libc::shmget(signed, size, libc::IPC_CREAT | mode) };
            assert!(id >= 0, "{}", std::io::Error::last_os_error());
            Self { key }
        }
    }

    impl Drop for Segment {
        fn drop(&mut self) {
            // SAFETY: no memory is passed.
            unsafe {
                let id = libc::shmget(signed(self.key), 0, 0);
                libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            }
        }
    }

    #[test]
    fn no_user_has_a_segment_for_each_process() {
        let user = KEY.wrapping_neg();
        assert_eq!(signed(key_of(user)), libc::IPC_PRIVATE);
        assert!(Neighbours::attach(key_of(user)).is_none());
        assert_ne!(key_of(0), key_of(1));
    }

    #[test]
    fn all_processes_of_a_user_have_the_same_places_and_others_none() {
        let size = PLACES * size_of::<Place>();
        let segment = Segment::new(0o600, size);
        let one = Neighbours::attach(segment.key).expect("it is this user's");
        let other = Neighbours::attach(segment.key).unwrap();
        one.place(4_097).serves(MARK, 4);
        assert!(other.place(1).serves(MARK, 5));
        drop(segment);
        assert!(other.place(1).serves(MARK, 6), "it stays while it is attached");
        for (mode, size) in [(0o620, size), (0o602, size), (0o600, size - 1)] {
            let segment = Segment::new(mode, size);
            assert!(Neighbours::attach(segment.key).is_none(), "{mode:o} {size}");
        }
    }
}
