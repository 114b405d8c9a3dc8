// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases that the library renews: when it posts a renewal, what ends the renewals, and when it
//! gives a hold up.

use super::*;
use crate::clock::{Deadline, Lease};
use crate::ids::{Epoch, LockId};
use crate::lock::{Due, Heard, Listening, Loss, LOST_AHEAD_NS};
use crate::wire::control::LockGrant;

/// When a lease of 5 s has surely ended, counted from the start.
const END_NS: u64 = 5 * NS + TICK_NS;
const DUE_NS: u64 = 5 * NS / 3;

fn renewed(lock_type: LockType) -> LockEntry {
    let mut e = held(lock_type);
    e.renews(Lease::secs(5), u64::MAX, at(0));
    e
}

fn renewal(e: &mut LockEntry, ns: u64) -> Operation {
    assert_eq!(e.due(false, at(ns)), Due::Renew);
    Operation::renew(e, at(ns)).expect("it is due")
}

/// Carries an operation out; every chain has this outcome.
fn ends(e: &mut LockEntry, mut o: Operation, outcome: Outcome, ns: u64) -> Status {
    loop {
        match o.next(e) {
            Effect::Post { .. } => o.outcome(e, outcome, at(ns)),
            Effect::ReadClock => o.clock(at(ns)),
            Effect::WriteLedger(_) | Effect::Forget | Effect::Tell(_) | Effect::Count(_) => {}
            Effect::Ask { .. } => o.reply(e, Err(Status::BadResponse), at(ns)),
            Effect::Done(result) => return result.status,
            other => panic!("{other:?}"),
        }
    }
}

/// Makes a call of the program; every chain finds this word.
fn call(e: &mut LockEntry, op: Op, word: u64) -> Status {
    match Operation::begin(e, op, at(0), bounds()) {
        Started::Done(result) => result.status,
        Started::Running(operation) => ends(e, operation, values(&[word]), 0),
    }
}

/// What a chain finds while the client holds the lock: the word, or the turn and its lap.
fn own(e: &LockEntry) -> Outcome {
    match e.lock_type() {
        LockType::Fair => values(&[0, 0, 0]),
        _ => values(&[word(e)]),
    }
}

fn word(e: &LockEntry) -> u64 {
    let (client, timeout) = (e.client().get(), e.deadline());
    AtomicWord::new().with_client(client).with_timeout(timeout).into_bits()
}

#[test]
fn a_lease_is_renewed_after_a_third_of_it_and_again_after_a_third_of_the_next() {
    for lock_type in [LockType::Atomic, LockType::Fair] {
        let mut e = renewed(lock_type);
        assert_eq!(e.due(false, at(1)), Due::At(START + DUE_NS));
        let o = renewal(&mut e, DUE_NS);
        let outcome = own(&e);
        assert_eq!(ends(&mut e, o, outcome, DUE_NS + 5), Status::Success, "{lock_type:?}");
        assert_eq!(e.deadline(), at(DUE_NS).deadline(Lease::secs(5)));
        assert_eq!(e.due(false, at(DUE_NS + 6)), Due::At(START + 2 * DUE_NS + 5));
    }
}

#[test]
fn a_lease_of_half_a_second_is_renewed_in_time_too() {
    let half = Lease(8);
    let mut e = entry(LockType::Atomic);
    assert_eq!(call(&mut e, Op::TryLock { mode: X, lease: half }, 0), Status::Success);
    e.renews(half, u64::MAX, at(0));
    let mut ns = half.ns() / 3;
    assert_eq!(e.due(false, at(0)), Due::At(START + ns));
    let o = renewal(&mut e, ns);
    let outcome = own(&e);
    assert_eq!(ends(&mut e, o, outcome, ns), Status::Success);
    let end_ns = at(ns).deadline(half).expiry().0 - START;
    assert_eq!(e.deadline().expiry().0 - START, end_ns);
    // the renewal is tried again, without an answer, up to the end of the lease
    let mut tries = 0;
    loop {
        match e.due(false, at(ns)) {
            Due::Renew => {
                let o = renewal(&mut e, ns);
                assert_eq!(ends(&mut e, o, Outcome::Unknown, ns), Status::BadResponse);
                tries += 1;
            }
            Due::At(next_ns) => ns = next_ns - START,
            due => break assert_eq!(due, Due::Lost),
        }
    }
    assert_eq!(ns, end_ns - LOST_AHEAD_NS);
    assert!(tries >= 5, "{tries}");
}

#[test]
fn a_renewal_without_an_answer_is_tried_again_up_to_the_end_and_then_the_hold_is_lost() {
    let (mut e, mut ns, mut tries) = (renewed(LockType::Atomic), DUE_NS, 0);
    loop {
        match e.due(false, at(ns)) {
            Due::Renew => {
                let mut o = Operation::renew(&mut e, at(ns)).unwrap();
                let Effect::Post { until_ns, .. } = o.next(&mut e) else { panic!("it posts") };
                assert!(until_ns <= START + END_NS - LOST_AHEAD_NS, "it ends before the lease");
                o.outcome(&mut e, Outcome::Unknown, at(ns));
                assert_eq!(done(o.next(&mut e)), Status::BadResponse);
                tries += 1;
            }
            Due::At(next_ns) => {
                assert!(next_ns - START > ns && next_ns - START - ns <= 5 * NS / 6);
                ns = next_ns - START;
            }
            Due::Lost => break,
            Due::Over => panic!("it is lost first"),
        }
    }
    assert_eq!(ns, END_NS - LOST_AHEAD_NS, "while the lease runs");
    assert!(tries >= 6, "{tries}");
    assert!(e.is_lost());
    assert_eq!(e.due(false, at(ns)), Due::Over);
    // the program learns of the loss from its next call, which has no other effect
    assert_eq!(call(&mut e, Op::Unlock, 0), Status::Fail);
}

/// The program was stopped for longer than its lease.
#[test]
fn a_hold_whose_lease_is_over_is_lost_and_not_renewed() {
    let mut e = renewed(LockType::Atomic);
    assert_eq!(e.due(false, at(20 * NS)), Due::Lost);
    assert!(e.is_lost());
}

/// Before the other acquire, the client has the arbiter undo the old hold.
#[test]
fn a_hold_that_is_over_is_given_up_for_another_acquire_and_undone_before_it() {
    for lock_type in [LockType::Atomic, LockType::Fair] {
        let mut e = held(lock_type);
        assert!(!e.gives_up_what_is_over(at(END_NS - 1)), "{lock_type:?}: its lease runs");
        assert_eq!((e.refs(), e.runs_until_ns(at(1))), (1, START + END_NS));
        assert!(e.gives_up_what_is_over(at(END_NS)));
        assert_eq!((e.refs(), e.runs_until_ns(at(END_NS))), (0, u64::MAX));
        assert!(!e.gives_up_what_is_over(at(END_NS)), "{lock_type:?}: nothing is held");
        let mut o = begin(&mut e, TAKE);
        assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::Resolve { .. }, .. }));
        // a hold that was lost before is given up in the same way
        let mut e = renewed(lock_type);
        assert_eq!(e.due(false, at(20 * NS)), Due::Lost);
        assert!(e.gives_up_what_is_over(at(20 * NS)) && e.refs() == 0 && !e.is_lost());
    }
    let mut e = held(LockType::Rw);
    assert!(!e.gives_up_what_is_over(at(1_000 * NS)), "it has no lease");
}

#[test]
fn a_renewal_ends_with_its_hold() {
    let mut e = renewed(LockType::Atomic);
    let own = word(&e);
    assert_eq!(call(&mut e, Op::Unlock, own), Status::Success);
    assert_eq!(e.due(false, at(1)), Due::Over);
    // no renewal was requested for the next hold
    assert_eq!(call(&mut e, TAKE, 0), Status::Success);
    assert_eq!(e.due(false, at(1)), Due::Over);
    assert!(Operation::renew(&mut e, at(DUE_NS)).is_none());
}

/// After the program has asked for the end of the hold, only the lease keeps the lock from others,
/// so the library must not renew it.
#[test]
fn a_hold_whose_release_had_no_answer_is_not_renewed() {
    for lost in [Outcome::Unknown, Outcome::Refused(Status::NotReady)] {
        let mut e = renewed(LockType::Atomic);
        let mut o = begin(&mut e, Op::Unlock);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, lost, at(1));
        while !matches!(o.next(&mut e), Effect::Done(_)) {}
        assert_eq!(e.due(false, at(DUE_NS)), Due::Over, "{lost:?}");
    }
    let mut e = renewed(LockType::Atomic);
    let past = Now { horizon_ns: START, ..at(1) };
    assert!(matches!(Operation::begin(&mut e, Op::Unlock, past, bounds()), Started::Done(_)));
    assert_eq!(e.due(false, at(DUE_NS)), Due::Over, "it did not begin");
}

#[test]
fn a_release_that_leaves_the_lock_held_does_not_end_the_renewal() {
    let mut e = renewed(LockType::Atomic);
    let own = word(&e);
    assert_eq!(call(&mut e, TAKE, own), Status::AlreadyLocked);
    assert_eq!(call(&mut e, Op::Unlock, own), Status::AlreadyLocked);
    assert_eq!(e.due(false, at(DUE_NS)), Due::Renew);
}

#[test]
fn a_renewal_that_finds_the_lock_anothers_tells_its_program_by_the_next_call() {
    for lock_type in [LockType::Atomic, LockType::Fair] {
        let mut e = renewed(lock_type);
        let o = renewal(&mut e, DUE_NS);
        let others = match lock_type {
            LockType::Fair => values(&[0, TurnWord::new().with_nx(1).into_bits(), 0]),
            _ => values(&[others_word()]),
        };
        assert_eq!(ends(&mut e, o, others, DUE_NS), Status::Fail);
        assert!(e.is_lost() && e.state().is_held(), "{lock_type:?}: it was not told yet");
        assert_eq!(call(&mut e, Op::Extend { mode: X, lease: Lease::secs(5) }, 0), Status::Fail);
        assert!(!e.state().is_held());
    }
}

#[test]
fn a_renewal_has_the_bound_that_its_program_sets() {
    let mut e = held(LockType::Atomic);
    e.renews(Lease::secs(5), 2 * NS, at(0));
    let o = renewal(&mut e, DUE_NS);
    let own = own(&e);
    assert_eq!(ends(&mut e, o, own, DUE_NS), Status::Success);
    let lost_ns = at(DUE_NS).deadline(Lease::secs(5)).expiry().0 - LOST_AHEAD_NS;
    assert_eq!(e.due(false, at(2 * DUE_NS)), Due::At(lost_ns));
}

#[test]
fn a_program_that_does_not_want_to_go_on_is_asked_again() {
    let mut e = renewed(LockType::Atomic);
    assert_eq!(e.due(false, at(DUE_NS)), Due::Renew);
    e.renewal_declined(at(DUE_NS));
    assert_eq!(e.due(false, at(DUE_NS)), Due::At(START + DUE_NS + 5 * NS / 24));
}

#[test]
fn nothing_is_posted_past_the_horizon() {
    let mut e = renewed(LockType::Atomic);
    let past = Now { horizon_ns: START + 1, ..at(DUE_NS) };
    assert!(matches!(e.due(false, past), Due::At(next_ns) if next_ns > START + DUE_NS));
}

#[test]
fn a_hold_without_an_end_is_not_renewed() {
    let mut e = renewed(LockType::Atomic);
    let own = word(&e);
    let for_ever = Op::Extend { mode: X, lease: Lease::ENDLESS };
    assert_eq!(call(&mut e, for_ever, own), Status::Success);
    assert_eq!(e.due(false, at(DUE_NS)), Due::Over);
}

/// The client first asks the successor to confirm the claim, and then for a longer lease.
#[test]
fn a_renewal_goes_on_at_a_successor() {
    let mut e = renewed(LockType::Atomic);
    e.is_claimed(Epoch(1), at(NS), at(NS));
    let (lock, handle, slot) = (LockId(6), Handle(3), Slot(9));
    let grant = LockGrant { lock, handle, slot, word: 0, already: true, tokens: false };
    e.rebind(&grant, 0);
    let mut o = renewal(&mut e, DUE_NS);
    let confirm = Request::Confirm { handle, mode: X };
    assert!(matches!(o.next(&mut e), Effect::Ask { request, .. } if request == confirm));
    let (time, word) = (ServerTime(START + DUE_NS), word(&e));
    let confirmed = Reply::Granted {
        word,
        deadline: Deadline::at_s(1_005),
        at: time,
        ticket: None,
        token: Token::NONE,
    };
    o.reply(&mut e, Ok(confirmed), at(DUE_NS));
    let outcome = values(&[word]);
    assert_eq!(ends(&mut e, o, outcome, DUE_NS), Status::Success);
    assert!(
        e.deadline() >= Deadline::at_s(1_006) && matches!(e.due(false, at(DUE_NS)), Due::At(_))
    );
}

/// All events that are due now.
fn told(listening: &mut Listening, e: &LockEntry, ns: u64) -> Vec<(u64, Heard)> {
    std::iter::from_fn(|| listening.next(e, at(ns))).collect()
}

#[test]
fn a_loss_is_told_before_the_next_grant() {
    for lock_type in [LockType::Atomic, LockType::Fair] {
        let (mut e, mut l) = (held(lock_type), Listening::default());
        assert_eq!(told(&mut l, &e, 2), [(1, Heard::Granted)]);
        assert_eq!(told(&mut l, &e, 2), []);
        assert_eq!(e.due(true, at(END_NS - LOST_AHEAD_NS)), Due::Lost, "also without a renewal");
        assert_eq!(call(&mut e, Op::Unlock, 0), Status::Fail);
        // the listener did not look in between
        e = again(e);
        let both = [(1, Heard::Lost(Loss::Expired)), (2, Heard::Granted)];
        assert_eq!(told(&mut l, &e, 5), both, "{lock_type:?}");
    }
}

/// Acquires the lock once more.
fn again(mut e: LockEntry) -> LockEntry {
    let mut o = begin(&mut e, TAKE);
    loop {
        match o.next(&mut e) {
            Effect::Ask { request: RESOLVE, .. } => {
                o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(3))
            }
            Effect::Post { chain, .. } => {
                o.outcome(&mut e, values(&vec![0; chain.values_len()]), at(3));
            }
            Effect::WriteLedger(_) => {}
            Effect::ReadClock => o.clock(at(4)),
            Effect::Done(result) => {
                assert_eq!(result.status, Status::Success);
                return e;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_end_that_the_program_has_asked_for_is_not_told() {
    let (mut e, mut l) = (held(LockType::Atomic), Listening::default());
    let own = word(&e);
    assert_eq!(told(&mut l, &e, 1), [(1, Heard::Granted)]);
    assert_eq!(call(&mut e, Op::Unlock, own), Status::Success);
    assert_eq!(told(&mut l, &again(e), 5), [(2, Heard::Granted)]);
}

#[test]
fn a_release_without_a_primary_is_no_loss() {
    let (mut e, mut l) = (held(LockType::Atomic), Listening::default());
    assert_eq!(told(&mut l, &e, 1), [(1, Heard::Granted)]);
    assert!(e.release_unheard(Status::NotReady, at(1)).is_some());
    assert_eq!(told(&mut l, &e, 2), []);
}

#[test]
fn a_renewal_that_fails_is_told_once_until_one_is_answered() {
    let (mut e, mut l) = (renewed(LockType::Atomic), Listening::default());
    assert_eq!(told(&mut l, &e, 1), [(1, Heard::Granted)]);
    let mut ns = DUE_NS;
    for outcome in [Outcome::Unknown, Outcome::Unknown, own(&e), Outcome::Unknown] {
        let o = renewal(&mut e, ns);
        ends(&mut e, o, outcome, ns);
        let is_told = !told(&mut l, &e, ns).is_empty();
        assert_eq!(is_told, outcome == Outcome::Unknown && (ns == DUE_NS || ns > 3 * NS), "{ns}");
        let Due::At(next_ns) = e.due(false, at(ns)) else { panic!("it goes on") };
        ns = next_ns - START;
    }
}

/// Each loss is reported with its reason, as far as the client can tell it.
#[test]
fn a_loss_has_a_reason() {
    let lost = |lose: fn(&mut LockEntry) -> u64| {
        let (mut e, mut l) = (held(LockType::Atomic), Listening::default());
        assert_eq!(told(&mut l, &e, 2), [(1, Heard::Granted)]);
        let ns = lose(&mut e);
        match told(&mut l, &e, ns)[..] {
            [(1, Heard::Lost(loss))] => loss,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        lost(|e| {
            e.lose();
            3
        }),
        Loss::Conflict
    );
    assert_eq!(
        lost(|e| {
            call(e, Op::Unlock, others_word());
            3
        }),
        Loss::Unknown
    );
    assert_eq!(
        lost(|e| {
            call(e, Op::Unlock, others_word());
            END_NS
        }),
        Loss::Expired
    );
    let mut e = held(LockType::Rw);
    let mut l = Listening::default();
    assert_eq!(told(&mut l, &e, 2), [(1, Heard::Granted)]);
    assert!(e.lapse());
    assert_eq!(told(&mut l, &e, 3), [(1, Heard::Lost(Loss::Session))]);
}
