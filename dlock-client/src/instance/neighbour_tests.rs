// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client tells its neighbours, and when it relies on them: on an executor whose chains
//! reach the words without the primary.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::control::LockGrant;
use dlock_core::ids::{Epoch, Handle, Slot};
use dlock_core::lock::View;
use dlock_core::message::{LockType, Mode, Request};
use dlock_core::session::Binding;
use dlock_core::words::{AtomicWord, FairWord};
use dlock_fabric::clock::boot_ns;
use dlock_fabric::neighbours::{Neighbours, Place, Slept};

use super::tests::instance_on;
use super::*;
use crate::fake::Fake;
use crate::heartbeat::Pulse;
use crate::neighbour::Rest;
use crate::pass::{Pause, Trying};
use crate::table::ClientLock;

const X: Mode = Mode::Exclusive;
const ID: LockId = LockId(1);
/// Of the places of this process's tests.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A lock, and the place of its neighbours, which no other test has; `None`: this system has none.
fn lock_of(lock_type: LockType, one_sided: bool) -> Option<(Instance, Arc<Fake>, &'static Place)> {
    let Some(neighbours) = Neighbours::own() else {
        eprintln!("SKIP: no System V shared memory here");
        return None;
    };
    let fake = Fake::new();
    fake.one_sided.store(one_sided, SeqCst);
    let (instance, fake) = instance_on(fake, &[lock_type]);
    let slot = Slot((std::process::id() + NEXT.fetch_add(7, SeqCst)) % 4_000);
    let grant = LockGrant { lock: ID, handle: Handle(0), slot, word: 0, already: false };
    held(&instance, |held| {
        held.entry.rebind(&grant, 0);
        held.binding = Binding::new(Epoch(std::process::id().into()));
    });
    Some((instance, fake, neighbours.place(slot.0)))
}

fn held<T>(instance: &Instance, f: impl FnOnce(&mut ClientLock) -> T) -> T {
    let mut guard = instance.table.lock_slot(0).lock_until(Instant::now).expect("it is free");
    f(guard.as_mut().expect("it has the lock"))
}

fn reaches_memory_of_this_host(instance: &Instance, fake: &Arc<Fake>) {
    fake.local.store(true, SeqCst);
    held(instance, |held| held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0))));
}

fn succeeds(result: OpResult) {
    assert_eq!(result.status, Status::Success);
}

/// So many take a ticket.
fn queue(instance: &Instance, fake: &Fake, exclusive: u64) {
    let index = held(instance, |held| held.entry.slot().0 * 4);
    *fake.words.lock().get_mut(&index).expect("it was used") +=
        exclusive * FairWord::TAKE_EXCLUSIVE;
}

/// Who has its turn by now releases the lock, too.
fn releases(instance: &Instance, fake: &Fake) {
    let index = held(instance, |held| held.entry.slot().0 * 4);
    let mut words = fake.words.lock();
    let word = FairWord::from_bits(words[&index]);
    match word.is_relayed() {
        true => *words.get_mut(&(index + 1)).expect("it was used") += 1,
        false => _ = words.insert(index, word.exclusive_done().into_bits()),
    }
}

/// The mark that hints about the lock have.
fn mark(instance: &Instance) -> u16 {
    held(instance, |held| held.mark()) as u16
}

/// Whether the turn of this ticket was announced.
fn is_announced(instance: &Instance, place: &Place, tx: u16) -> bool {
    place.serves(mark(instance), tx.wrapping_add(1))
}

#[test]
fn a_release_is_told_where_others_wait_for_the_lock() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
    succeeds(instance.lock(ID, X, 30));
    succeeds(instance.unlock(ID));
    assert!(!is_announced(&instance, place, 1), "nobody waits");
    succeeds(instance.lock(ID, X, 30));
    queue(&instance, &fake, 1);
    succeeds(instance.unlock(ID));
    assert!(is_announced(&instance, place, 2));
}

#[test]
fn over_shared_memory_a_release_is_told_where_others_are_known_to_wait() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
    reaches_memory_of_this_host(&instance, &fake);
    for expected in [false, true] {
        succeeds(instance.lock(ID, X, 30));
        let tx = held(&instance, |held| held.number_to_tell().expect("it holds it"));
        queue(&instance, &fake, 1);
        succeeds(instance.unlock(ID)); // by now it knows that others follow
        assert_eq!(is_announced(&instance, place, tx.wrapping_add(1)), expected);
        place.serves(!mark(&instance), 0); // forgets it
        releases(&instance, &fake);
    }
}

#[test]
fn a_turn_that_the_arbiter_has_given_away_is_not_announced() {
    let Some((instance, _fake, place)) = lock_of(LockType::Fair, true) else { return };
    succeeds(instance.lock(ID, X, 30));
    let view = |nx| View::Fair { nx, ns: 0, mx: 9, ms: 0, time_out: 0, t_value: None };
    for (nx, expected) in [(2, false), (1, true)] {
        let result = OpResult { status: Status::Success, view: Some(view(nx)) };
        held(&instance, |held| held.tells_neighbours(0, &result));
        assert_eq!(is_announced(&instance, place, nx), expected);
        place.serves(!mark(&instance), 0);
    }
}

/// Whether the lock was handed on to this ticket, within the time of the test.
fn is_handed_on(instance: &Instance, place: &Place, tx: u16, since: u64) -> bool {
    let handed = place.handed(held(instance, |held| held.mark()), tx);
    handed.is_some_and(|ns| (since.saturating_sub(1_024)..=boot_ns()).contains(&ns))
}

#[test]
fn over_a_network_a_relayed_lock_is_handed_on_by_its_release() {
    for (is_local, expected) in [(false, true), (true, false)] {
        let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
        if is_local {
            reaches_memory_of_this_host(&instance, &fake);
        }
        let start = boot_ns();
        succeeds(instance.lock(ID, X, 30));
        succeeds(instance.unlock(ID));
        assert!(!is_handed_on(&instance, place, 1, start), "nobody waits");
        succeeds(instance.lock(ID, X, 30));
        queue(&instance, &fake, 1);
        succeeds(instance.unlock(ID));
        assert_eq!(is_handed_on(&instance, place, 2, start), expected, "it begins the relay");
        releases(&instance, &fake);
        let before = boot_ns();
        succeeds(instance.lock(ID, X, 30));
        queue(&instance, &fake, 1);
        succeeds(instance.unlock(ID));
        assert_eq!(is_handed_on(&instance, place, 4, before), expected);
    }
}

/// The word of a relayed lock: the next ticket is 5.
fn relayed() -> u64 {
    FairWord::new().with_mx(5).relayed().into_bits()
}

/// Ticket 3 of the lock has its turn. Where its words are, and its mark.
fn is_relayed(instance: &Instance, fake: &Fake) -> (u32, u64) {
    let (index, mark) = held(instance, |held| (held.entry.slot().0 * 4, held.mark()));
    fake.words.lock().extend([(index, relayed()), (index + 1, 3)]);
    (index, mark)
}

/// The words never say that it is its turn.
#[test]
fn who_is_handed_a_lock_has_it() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
    held(&instance, |held| held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0))));
    let (index, mark) = is_relayed(&instance, &fake);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(SeqCst) {
                place.hand_on(mark, 5, boot_ns());
                std::thread::yield_now();
            }
        });
        let result = instance.lock(ID, X, 30);
        is_over.store(true, SeqCst);
        succeeds(result);
    });
    assert!(!has_waited(&fake) && fake.word(index + 1) == 3);
    fake.words.lock().insert(index + 1, 5); // the release before it has come
    succeeds(instance.unlock(ID));
    assert_eq!(fake.word(index + 1), 6, "it hands it on");
}

/// A lock that another client holds, in memory of this host, for as long as the test takes.
fn held_by_another(lock_type: LockType, word: u64) -> Option<(Instance, Arc<Fake>)> {
    let (instance, fake, _) = lock_of(lock_type, true)?;
    reaches_memory_of_this_host(&instance, &fake);
    let index = held(&instance, |held| held.entry.slot().0 * 4);
    fake.words.lock().insert(index, word);
    Some((instance, fake))
}

fn has_waited(fake: &Fake) -> bool {
    fake.requests.lock().iter().any(|request| matches!(request, Request::Wait { .. }))
}

#[test]
fn a_turn_that_is_looked_for_no_more_is_asked_for() {
    let word = FairWord::new().with_mx(1).into_bits();
    let Some((instance, fake)) = held_by_another(LockType::Fair, word) else { return };
    let _ = instance.lock(ID, X, 30);
    assert!(has_waited(&fake));
    // 20 us, or 250, and not the 1,024 looks or the 10 ms that the core allows
    assert!(fake.executes.load(SeqCst) < 900, "{}", fake.executes.load(SeqCst));
}

#[test]
fn after_some_tries_in_memory_of_this_host_a_thread_sleeps_between_them() {
    let word = AtomicWord::new().with_client(8).with_timeout(u32::MAX).into_bits();
    let Some((instance, fake)) = held_by_another(LockType::Atomic, word) else { return };
    let _ = instance.lock(ID, X, 30);
    assert!(has_waited(&fake));
    let tries = fake.executes.load(SeqCst);
    assert!(tries < 500, "{tries} tries in 10 ms: 256, and the others 50 us apart");
}

#[test]
fn over_shared_memory_a_turn_that_does_not_come_soon_is_left_to_the_primary() {
    let Some((instance, fake, _)) = lock_of(LockType::Fair, true) else { return };
    let rest = |is_local, ahead, looked| {
        let pause = Pause { time: Duration::ZERO, ahead, is_local };
        let since = match looked {
            0 => Instant::now() + Duration::from_secs(60), // however slow this machine is
            _ => Instant::now().checked_sub(Duration::from_micros(looked)).unwrap(),
        };
        let trying = Trying { since, pauses: 2 };
        held(&instance, |held| match held.rest(pause, trying) {
            Rest::Pass => "pass",
            Rest::Bed(_) => "bed",
            Rest::Queue => "queue",
        })
    };
    succeeds(instance.lock(ID, X, 30));
    for (is_local, ahead) in [(false, 1), (false, 2), (true, 0)] {
        assert_eq!(rest(is_local, ahead, 1_000_000), "pass");
    }
    assert_eq!(rest(true, 2, 1_000_000), "queue", "a client without neighbours");
    assert_eq!(rest(true, 1, 0), "queue", "the next one, too");
    assert_eq!(rest(true, 1, 0), "pass", "and then it is looked for again");
    reaches_memory_of_this_host(&instance, &fake);
    held(&instance, ClientLock::is_told_of_turns);
    assert_eq!(rest(true, u16::MAX, 1_000_000), "bed");
    assert_eq!(rest(true, 1, 0), "pass");
    assert_eq!(rest(true, 1, 1_000), "queue", "the hold may last");
}

#[test]
fn where_the_primary_executes_the_chains_nobody_is_told() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, false) else { return };
    succeeds(instance.lock(ID, X, 30));
    queue(&instance, &fake, 1);
    assert!(held(&instance, |held| held.number_to_tell().is_none()));
    let _ = instance.unlock(ID);
    assert!(!is_announced(&instance, place, 1));
}

#[test]
fn a_client_tells_nothing_while_its_primary_is_gone_or_executes_its_chains() {
    let Some((instance, fake, _)) = lock_of(LockType::Fair, true) else { return };
    succeeds(instance.lock(ID, X, 30));
    held(&instance, |held| {
        assert!(held.number_to_tell().is_some());
        held.refuse(Arc::new(dlock_fabric::Refuse));
        assert!(held.number_to_tell().is_none());
        held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0)));
        assert!(held.number_to_tell().is_some());
        fake.one_sided.store(false, SeqCst);
        held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0)));
        assert!(held.number_to_tell().is_none());
    });
}

#[test]
fn only_a_far_waiter_whose_turns_were_announced_sleeps() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
    for turn in 0..3_u16 {
        succeeds(instance.lock(ID, X, 30));
        held(&instance, |held| assert!(held.bed(2).is_none(), "turn {turn}"));
        queue(&instance, &fake, 1);
        // a neighbour has told of this turn
        place.serves(mark(&instance), 2 * turn);
        succeeds(instance.unlock(ID));
        releases(&instance, &fake); // who waited has its turn, too
    }
    for _ in 0..3 {
        // the first release is announced still; the last ticket is two after that
        succeeds(instance.lock(ID, X, 30));
        succeeds(instance.unlock(ID));
    }
    succeeds(instance.lock(ID, X, 30));
    let bed = held(&instance, |held| {
        assert!(held.bed(0).is_none() && held.bed(1).is_none(), "it is next");
        held.bed(2).expect("it was told three times")
    });
    let pause = Pause { time: Duration::ZERO, ahead: 2, is_local: false };
    assert_eq!(bed.pass(pause, Trying::now()), Slept::Late, "nobody ends it");
    held(&instance, |held| {
        held.has_slept(Slept::Told);
        assert!(held.bed(2).is_some());
        held.has_slept(Slept::Late);
        assert!(held.bed(2).is_none(), "it looks by itself");
    });
}

#[test]
fn a_session_is_looked_at_once_in_a_millisecond_for_what_is_handed_on() {
    let Some((instance, fake, _)) = lock_of(LockType::Fair, true) else { return };
    let stands = |now_ns| held(&instance, |held| held.stands(now_ns));
    assert!(stands(5_000_000));
    fake.gone.store(true, SeqCst);
    assert!(stands(5_000_000) && stands(5_999_999), "it was seen to stand");
    assert!(!stands(4_999_999), "not later than that");
    assert!(!stands(5_000_000), "and now it was seen to be gone");
    fake.gone.store(false, SeqCst);
    assert!(stands(7_000_000));
    fake.gone.store(true, SeqCst);
    assert!(!stands(8_000_000));
    fake.gone.store(false, SeqCst);
    assert!(stands(9_000_000));
    fake.gone.store(true, SeqCst);
    held(&instance, |held| held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0))));
    assert!(!stands(9_000_000), "of another session nothing was seen");
}

/// The words never say that it is its turn, and its connection is seen to be gone.
#[test]
fn who_is_cut_off_is_handed_nothing() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
    held(&instance, |held| held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0))));
    let (index, mark) = is_relayed(&instance, &fake);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while fake.word(index) == relayed() {
                std::thread::yield_now(); // it has not taken its ticket
            }
            fake.gone.store(true, SeqCst);
            while !is_over.load(SeqCst) {
                place.hand_on(mark, 5, boot_ns());
                std::thread::yield_now();
            }
        });
        let result = instance.lock(ID, X, 30);
        is_over.store(true, SeqCst);
        assert_ne!(result.status, Status::Success);
    });
}

/// The name may have been that of another lock then.
#[test]
fn what_was_handed_on_before_a_lock_was_got_does_not_count() {
    let Some((instance, fake, place)) = lock_of(LockType::Fair, true) else { return };
    let (index, mark) = is_relayed(&instance, &fake);
    place.hand_on(mark, 5, boot_ns());
    std::thread::sleep(Duration::from_micros(2)); // it is told in units of 1,024 ns
    held(&instance, |held| held.go_over_to(fake.clone(), Arc::new(Pulse::new(0, 0))));
    let result = instance.lock(ID, X, 30);
    assert_ne!(result.status, Status::Success);
    assert_eq!(fake.word(index + 1), 3);
}
