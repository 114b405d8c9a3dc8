// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client keeps after a release, and what it serves by itself.

use super::*;
use crate::lock::Wanted;
use crate::wire::message::{Reply, Request};

const LEASE: Lease = Lease::secs(5);

/// An atomic lock that the client holds.
fn held() -> LockEntry {
    let mut e = entry(LockType::Atomic);
    e.caches(true);
    let result = finish(&mut e, TAKE, 0);
    assert_eq!(result.status, Status::Success);
    e
}

/// Asks to keep the lock, `ns` after the start; the request.
fn asks_to_keep(e: &mut LockEntry, ns: u64) -> (Operation, Request) {
    let mut operation = begins(e, Op::Unlock, ns);
    match operation.next(e) {
        Effect::Ask { request, .. } => (operation, request),
        other => panic!("{other:?}"),
    }
}

fn kept() -> LockEntry {
    let mut e = held();
    let (mut operation, request) = asks_to_keep(&mut e, 0);
    let Request::Keep { lease, .. } = request else { panic!("{request:?}") };
    assert!(lease >= Lease::secs(10), "twice as long: {lease:?}");
    let now = at(0);
    let word = AtomicWord::new().with_client(7).with_kept(true).with_timeout(now.deadline(lease));
    let (deadline, ticket, token) = (word.timeout(), None, Token::NONE);
    let reply = Reply::Granted { word: word.into_bits(), deadline, at: now.time, ticket, token };
    operation.reply(&mut e, Ok(reply), now);
    assert_eq!(done(operation.next(&mut e)), Status::Success);
    assert!(e.is_kept() && e.is_idle());
    e
}

/// The result of an operation that the client decides by itself.
fn served(e: &mut LockEntry, op: Op, ns: u64) -> Option<Status> {
    match Operation::begin(e, op, at(ns), Bounds::since(START + ns)) {
        Started::Done(result) => Some(result.status),
        Started::Running(_) => None,
    }
}

const AGAIN: Op = Op::TryLock { mode: X, lease: LEASE };

#[test]
fn a_kept_lock_is_released_for_its_program_and_entered_again_without_the_primary() {
    let mut e = kept();
    assert_eq!((e.state(), e.refs(), e.hold()), (EntryState::Unlocked, 0, None));
    assert_eq!(served(&mut e, Op::Unlock, 1), Some(Status::AlreadyUnlocked));
    assert_eq!(served(&mut e, Op::Extend { mode: X, lease: LEASE }, 1), Some(Status::Invalid));
    let before = e.holds();
    assert_eq!(served(&mut e, AGAIN, 2), Some(Status::Success));
    assert_eq!((e.state(), e.hold()), (EntryState::ExclusiveLocked, Some(before + 1)));
    assert_eq!(served(&mut e, Op::Unlock, 3), Some(Status::Success));
    assert_eq!((e.state(), e.hits()), (EntryState::Unlocked, 1));
}

#[test]
fn a_kept_lock_serves_an_acquire_only_for_the_whole_lease() {
    for (ns, is_served) in [(0, true), (4 * NS, true), (6 * NS, false)] {
        let mut e = kept();
        assert_eq!(served(&mut e, AGAIN, ns).is_some(), is_served, "{ns}");
        assert_eq!(e.is_kept(), is_served);
    }
    let mut e = kept();
    let long = Op::TryLock { mode: X, lease: Lease::secs(60) };
    let mut operation = begins(&mut e, long, 0);
    let first = operation.next(&mut e);
    assert!(matches!(first, Effect::Ask { request: Request::Resolve { .. }, .. }), "{first:?}");
}

#[test]
fn a_release_that_may_come_after_the_lease_asks_the_primary() {
    let mut e = kept();
    assert_eq!(served(&mut e, AGAIN, 0), Some(Status::Success));
    assert_eq!(served(&mut e, Op::Unlock, 20 * NS), None);
}

#[test]
fn what_others_want_is_given_back_at_once_or_by_the_next_release() {
    let mut e = kept();
    assert!(matches!(e.asks_for_others(), Some(Request::Listen { knows: false, .. })));
    assert_eq!(e.is_wanted(at(1)), Wanted::GiveBack);
    assert!(!e.is_kept() && e.is_to_be_undone());
    let mut e = kept();
    served(&mut e, AGAIN, 1);
    let told = e.is_wanted(at(2));
    assert!(matches!(told, Wanted::InUse(Request::Listen { knows: true, .. })), "{told:?}");
    assert_eq!(e.is_wanted(at(3)), Wanted::No, "it is told once");
    let mut release = begins(&mut e, Op::Unlock, 4);
    assert!(matches!(release.next(&mut e), Effect::Post { .. }), "as any other release");
}

#[test]
fn a_lock_that_others_want_is_kept_again_later_and_later_while_it_is_not_used() {
    let (mut e, mut now_ns) = (entry(LockType::Atomic), 0);
    e.caches(true);
    for (doubled, hits) in [(1, 0), (2, 0), (3, 0), (0, 1), (1, 0)] {
        e = kept_again(e, &mut now_ns);
        (0..hits).for_each(|_| {
            served(&mut e, AGAIN, now_ns);
            served(&mut e, Op::Unlock, now_ns);
        });
        e.is_wanted(at(now_ns));
        let pause_ns = crate::limits::KEEP_AGAIN_NS << doubled;
        for (ns, may) in [(pause_ns - 1, false), (pause_ns, true)] {
            let mut later = e.clone();
            take_again(&mut later, now_ns + ns);
            let mut operation = begins(&mut later, Op::Unlock, now_ns + ns);
            let asks = matches!(operation.next(&mut later), Effect::Ask { .. });
            assert_eq!(asks, may, "{doubled} {ns}");
        }
    }
}

/// Takes the lock; what is in doubt is undone before.
fn take_again(e: &mut LockEntry, ns: u64) {
    if e.refs() > 0 {
        return;
    }
    let mut operation = begins(e, AGAIN, ns);
    loop {
        match operation.next(e) {
            Effect::Ask { .. } => operation.reply(e, Ok(Reply::Done { word: 0 }), at(ns)),
            Effect::Post { .. } => operation.outcome(e, values(&[0]), at(ns)),
            Effect::ReadClock => operation.clock(at(ns)),
            Effect::Done(result) => return assert_eq!(result.status, Status::Success),
            _ => {}
        }
    }
}

/// The lock, kept once more, at a time at which that may be.
fn kept_again(mut e: LockEntry, now_ns: &mut u64) -> LockEntry {
    *now_ns += 60 * NS;
    take_again(&mut e, *now_ns);
    let (mut operation, _) = asks_to_keep(&mut e, *now_ns);
    let now = at(*now_ns);
    let word = AtomicWord::new().with_client(7).with_kept(true);
    let word = word.with_timeout(now.deadline(Lease::secs(10)));
    let (deadline, ticket, token) = (word.timeout(), None, Token::NONE);
    let reply = Reply::Granted { word: word.into_bits(), deadline, at: now.time, ticket, token };
    operation.reply(&mut e, Ok(reply), now);
    assert_eq!(done(operation.next(&mut e)), Status::Success);
    e
}

#[test]
fn a_lock_is_not_kept_without_an_end_and_a_hold_with_a_token_never() {
    let mut e = entry(LockType::Atomic);
    e.caches(true);
    let for_ever = Op::TryLock { mode: X, lease: Lease::ENDLESS };
    assert_eq!(finish(&mut e, for_ever, 0).status, Status::Success);
    assert!(matches!(begin(&mut e, Op::Unlock).next(&mut e), Effect::Post { .. }));
    let mut e = entry(LockType::Atomic);
    e.caches(false);
    assert_eq!(finish(&mut e, TAKE, 0).status, Status::Success);
    assert!(matches!(begin(&mut e, Op::Unlock).next(&mut e), Effect::Post { .. }));
}

#[test]
fn a_new_channel_and_a_failover_end_the_keeping() {
    let mut e = kept();
    let undo = crate::session::resume(&mut e, false, at(1));
    assert!(matches!(undo, Some(Request::Resolve { .. })), "{undo:?}");
    assert!(!e.is_kept());
    let mut e = kept();
    served(&mut e, AGAIN, 1);
    let in_use = crate::session::resume(&mut e, false, at(1));
    assert!(matches!(in_use, Some(Request::Listen { knows: true, .. })), "its program uses it");
    assert!(!e.is_kept() && e.state() == EntryState::ExclusiveLocked);
    let mut e = kept();
    let binding = crate::session::Binding::new(crate::ids::Epoch(1));
    assert_eq!(binding.claim(&mut e, at(1)).held, None);
}
