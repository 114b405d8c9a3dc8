// SPDX-License-Identifier: MIT OR Apache-2.0
//! Releases that no primary has carried out.

use super::*;
use crate::clock::Lease;

#[test]
fn a_release_that_finds_no_primary_is_one_all_the_same() {
    let now = Now::exact(ServerTime(1_001 * NS));
    for (lock_type, refused) in
        [(LockType::Atomic, Status::NotReady), (LockType::Fair, Status::BadResponse)]
    {
        let mut held = held_until_1005(lock_type);
        assert_eq!(held.release_unheard(refused, now).unwrap().status, Status::Success);
        assert!(!held.state().is_held() && held.in_doubt(), "it is asked to be undone");
        let claim = held.claim(now, Epoch(4));
        assert_eq!(claim.held, None, "a successor is not told of it");
        let twice = held.release_unheard(refused, now);
        assert_eq!(twice.map(|result| result.status), Some(Status::AlreadyUnlocked));
    }
    let mut answered = held_until_1005(LockType::Atomic);
    assert_eq!(answered.release_unheard(Status::Denied, now), None);
    let mut lost = held_until_1005(LockType::Atomic);
    lost.lose();
    assert_eq!(lost.release_unheard(Status::BadResponse, now), None, "the caller is to hear of it");
    let mut left = entry(LockType::Atomic);
    left.leaves();
    assert_eq!(left.release_unheard(Status::BadResponse, now), None);
}

/// Another client may have the lock once the lease or the horizon is over.
#[test]
fn a_release_that_finds_no_primary_fails_once_the_lease_or_the_horizon_may_be_over() {
    let refused = Status::BadResponse;
    let lease_end = Deadline::at_s(1_005).expiry().0;
    let told = |mut held: LockEntry, now| held.release_unheard(refused, now).unwrap().status;
    for lock_type in [LockType::Atomic, LockType::Fair, LockType::Rw] {
        let held = || held(lock_type);
        let at = |ns| Now::within(ServerTime(ns), 5);
        let after_lease = match lock_type {
            LockType::Rw => Status::Success, // a read-write hold has no lease here
            LockType::Atomic | LockType::Fair => Status::Fail,
        };
        assert_eq!(told(held(), at(lease_end - 6)), Status::Success, "{lock_type:?}");
        assert_eq!(told(held(), at(lease_end - 5)), after_lease, "{lock_type:?}");
        let horizon_ns = 1_002 * NS;
        let before = Now { horizon_ns, ..at(horizon_ns - 1) };
        let past = Now { horizon_ns, ..at(horizon_ns) };
        assert_eq!(told(held(), before), Status::Success, "{lock_type:?}");
        assert_eq!(told(held(), past), Status::Fail, "{lock_type:?}");
        let mut held = held();
        held.release_unheard(refused, past);
        assert!(!held.state().is_held() && held.in_doubt(), "it is asked to be undone");
    }
}

/// The successor's clock did not judge the lease, so the release counts by the client's own clock.
#[test]
fn a_claim_that_is_not_confirmed_is_released_by_what_was_sure_when_it_was_claimed() {
    let horizon_ns = 1_004 * NS;
    let old = |ns| Now { horizon_ns, ..Now::within(ServerTime(ns), 5) };
    let new = |ns| Now { local_ns: ns, ..Now::exact(ServerTime(7_000 * NS + ns)) };
    let sure_ns = Deadline::at_s(1_005).expiry().0 - 5;
    for lock_type in [LockType::Atomic, LockType::Fair, LockType::Rw] {
        let claimed = |at_ns| {
            let mut held = held(lock_type);
            let mut binding = Binding::new(Epoch(4));
            assert!(!binding.moves_to(Epoch(5), old(1_002 * NS)));
            let grant = LockGrant {
                lock: held.lock(),
                handle: Handle(3),
                slot: held.slot(),
                word: 0,
                already: false,
                tokens: false,
            };
            binding.bind(&mut held, &grant, (Epoch(5), 0), false, new(at_ns));
            held
        };
        let told = |mut held: LockEntry, at_ns| {
            let is_sure = held.is_surely_held(new(at_ns));
            let status = held.release_unheard(Status::NotReady, new(at_ns)).unwrap().status;
            assert_eq!(is_sure, status == Status::Success, "{lock_type:?}");
            assert!(!held.is_surely_held(new(at_ns)), "{lock_type:?}: its program has released it");
            status
        };
        let is_rw = lock_type == LockType::Rw;
        let after_lease = if is_rw { Status::Success } else { Status::Fail };
        assert_eq!(told(claimed(1_003 * NS), sure_ns - 2_000_000), Status::Success);
        assert_eq!(told(claimed(1_003 * NS), sure_ns), after_lease, "{lock_type:?}");
        assert_eq!(told(claimed(horizon_ns), horizon_ns), Status::Fail, "{lock_type:?}");
        let mut lost = claimed(1_003 * NS);
        lost.lose();
        assert!(!lost.is_surely_held(new(1_003 * NS)), "{lock_type:?}");
    }
}

/// The program has entered the hold several times: the release of each entry returns the loss, and
/// the last one ends the hold.
#[test]
fn a_hold_that_was_entered_again_is_not_said_to_be_held_still_past_the_horizon() {
    let now = Now::exact(ServerTime(1_001 * NS));
    for (horizon_ns, part) in [(u64::MAX, Status::AlreadyLocked), (0, Status::Fail)] {
        let mut held = held(LockType::Rw);
        let _ = held.begin(Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(5) }, now);
        let now = Now { horizon_ns, ..now };
        let told = held.release_unheard(Status::BadResponse, now);
        assert_eq!(told.map(|result| result.status), Some(part));
        assert_eq!(held.refs(), 1);
    }
}
