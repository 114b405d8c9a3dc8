// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client asks about a hold whose program listens, and how it handles the answers.

use super::*;
use crate::lock::{Heard, Listening, ASK_AGAIN_NS, ASK_NS_MIN};

const HANDLE: Handle = Handle(3);

fn listen(knows: bool, until: u64) -> Request {
    Request::Listen { handle: HANDLE, knows, until: ServerTime(until) }
}

fn contended(waiters: u32, until: u64) -> Result<Reply, Status> {
    Ok(Reply::Contended { waiters, until: ServerTime(until) })
}

fn told(waiters: u32, until_ns: Option<u64>) -> Option<(u64, Heard)> {
    Some((1, Heard::Contended { waiters, until_ns }))
}

/// A hold whose listeners know that it has begun.
fn heard(lock_type: LockType) -> (LockEntry, Listening) {
    let (e, mut l) = (held(lock_type), Listening::default());
    assert_eq!(l.asks(&e, at(0)), None, "its listeners do not know of it");
    assert_eq!(l.next(&e, at(0)), Some((1, Heard::Granted)));
    (e, l)
}

#[test]
fn a_hold_is_asked_about_once_until_there_is_an_answer() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let (e, mut l) = heard(lock_type);
        assert_eq!(l.asks(&e, at(1)), Some((1, listen(false, 0))), "{lock_type:?}");
        assert_eq!((l.asks(&e, at(9 * NS)), l.asks_at_ns()), (None, u64::MAX));
        assert_eq!(l.answered(1, contended(2, 0), &e, at(10 * NS)), told(2, None));
        assert_eq!(l.asks(&e, at(10 * NS)), Some((1, listen(true, 0))), "of a deadline alone");
        let again_ns = 10 * NS + ASK_AGAIN_NS;
        assert_eq!((l.asks(&e, at(again_ns - 1)), l.asks_at_ns()), (None, START + again_ns));
        assert_eq!(l.asks(&e, at(again_ns)), Some((1, listen(false, 0))));
        assert_eq!(l.answered(1, contended(2, 0), &e, at(again_ns)), None, "its program knows");
        assert_eq!(l.answered(1, contended(3, 0), &e, at(again_ns)), told(3, None));
    }
}

#[test]
fn a_deadline_is_told_at_once_and_once() {
    let (e, mut l) = heard(LockType::Atomic);
    l.asks(&e, at(0));
    l.answered(1, contended(1, 0), &e, at(NS));
    assert_eq!(l.asks(&e, at(NS)), Some((1, listen(true, 0))));
    let until = START + 6 * NS;
    let uncertain = Now { uncertainty_ns: 5, ..at(2 * NS) };
    assert_eq!(l.answered(1, contended(1, until), &e, uncertain), told(1, Some(until - 5)));
    assert_eq!(l.asks(&e, at(2 * NS)), Some((1, listen(true, until))));
    let (mut unasked, after) = (0, 2 * NS + ASK_NS_MIN);
    for n in 0..1_000 {
        // the primary answers at once, always with the same answer
        unasked += u32::from(l.asks(&e, at(after + n)).is_none());
        assert_eq!(l.answered(1, contended(1, until), &e, at(after + n)), None);
    }
    assert!(unasked >= 999, "it is not asked without a pause");
}

#[test]
fn an_answer_about_an_earlier_hold_is_dropped() {
    let (mut e, mut l) = heard(LockType::Atomic);
    assert_eq!(l.asks(&e, at(0)), Some((1, listen(false, 0))));
    release(&mut e);
    assert_eq!(l.answered(1, contended(1, 0), &e, at(1)), None, "its hold has ended");
    let (mut e, mut l) = heard(LockType::Atomic);
    l.asks(&e, at(0));
    release(&mut e);
    assert_eq!(finish(&mut e, TAKE, 0).status, Status::Success);
    while l.next(&e, at(2)).is_some() {}
    let mut unasked = l;
    assert_eq!(unasked.answered(1, contended(1, 0), &e, at(2)), None);
    assert_eq!(l.asks(&e, at(2)), Some((2, listen(false, 0))), "the next one is asked about");
    assert_eq!(l.answered(1, contended(1, 0), &e, at(3)), None);
    assert_eq!(l.asks(&e, at(3)), None, "its own question is out");
    let its = Some((2, Heard::Contended { waiters: 1, until_ns: None }));
    assert_eq!(l.answered(2, contended(1, 0), &e, at(4)), its);
}

/// Releases an atomic lock whose word is as the client expects.
fn release(e: &mut LockEntry) {
    let (client, timeout) = (e.client().get(), e.deadline());
    let word = AtomicWord::new().with_client(client).with_timeout(timeout).into_bits();
    assert_eq!(finish(e, Op::Unlock, word).status, Status::Success);
}

#[test]
fn a_question_without_an_answer_is_asked_again_after_a_pause() {
    let denied = Ok(Reply::Denied { status: Status::NotReady, word: 0 });
    for answer in [Err(Status::BadResponse), denied] {
        let (e, mut l) = heard(LockType::Fair);
        l.asks(&e, at(0));
        assert_eq!(l.answered(1, answer, &e, at(NS)), None);
        let again_ns = NS + ASK_AGAIN_NS;
        assert_eq!((l.asks(&e, at(again_ns - 1)), l.asks_at_ns()), (None, START + again_ns));
        assert_eq!(l.asks(&e, at(again_ns)), Some((1, listen(false, 0))));
    }
}
