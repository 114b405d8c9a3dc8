// SPDX-License-Identifier: MIT OR Apache-2.0
mod by_primary;
mod contended;
mod counting;
mod fair;
mod first;
mod kept;
mod renewal;
mod told;
mod tries;

use super::*;
use crate::clock::{Deadline, Lease, ServerTime, NS, TICK_NS};
use crate::ids::{Handle, Slot};
use crate::lock::testing::entry;
use crate::lock::{EntryState, TimeOut, View};
use crate::memory::word_op::{Values, Word, WordOp};
use crate::memory::words::{AtomicWord, LedgerEntry, TakenWord, TurnWord};
use crate::token::Token;
use crate::wire::message::{LockType, Mode, WaitNumber};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const TAKE: Op = Op::TryLock { mode: X, lease: Lease::secs(5) };
const LOCK: Op = Op::Lock { mode: X, lease: Lease::secs(5) };
/// The moment at which every test begins.
const START: u64 = 1_000 * NS;

/// The moment `ns` nanoseconds after the start.
fn at(ns: u64) -> Now {
    Now::exact(ServerTime(START + ns))
}

fn bounds() -> Bounds {
    Bounds::since(START)
}

/// Carries the operation out; every chain finds this word.
fn finish(e: &mut LockEntry, op: Op, word: u64) -> OpResult {
    let mut operation = begin(e, op);
    loop {
        match operation.next(e) {
            Effect::Post { chain, .. } => {
                operation.outcome(e, values(&vec![word; chain.values_len()]), at(0));
            }
            Effect::ReadClock => operation.clock(at(0)),
            Effect::Done(result) => return result,
            _ => {}
        }
    }
}

fn begin(entry: &mut LockEntry, op: Op) -> Operation {
    match Operation::begin(entry, op, at(0), bounds()) {
        Started::Running(operation) => operation,
        Started::Done(result) => panic!("{result:?}"),
    }
}

fn begins(e: &mut LockEntry, op: Op, ns: u64) -> Operation {
    match Operation::begin(e, op, at(ns), Bounds::since(START + ns)) {
        Started::Running(operation) => operation,
        Started::Done(result) => panic!("{result:?}"),
    }
}

fn values(all: &[u64]) -> Outcome {
    let mut values = Values::new();
    all.iter().for_each(|&value| values.push(value));
    Outcome::Done(values)
}

fn posted(effect: Effect) -> Vec<WordOp> {
    match effect {
        Effect::Post { chain, .. } => chain.ops().to_vec(),
        other => panic!("{other:?} is no post"),
    }
}

fn done(effect: Effect) -> Status {
    match effect {
        Effect::Done(result) => result.status,
        other => panic!("{other:?} is no end"),
    }
}

fn others_word() -> u64 {
    AtomicWord::new().with_client(8).with_timeout(Deadline::at_s(9_999)).into_bits()
}

/// A lock that the client holds since the start, for 5 s.
fn held(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    let mut o = begin(&mut e, TAKE);
    let Effect::Post { chain, .. } = o.next(&mut e) else { panic!("it posts") };
    o.outcome(&mut e, values(&vec![0; chain.values_len()]), at(1));
    loop {
        match o.next(&mut e) {
            Effect::WriteLedger(_) => {}
            Effect::ReadClock => o.clock(at(2)),
            Effect::Done(result) => {
                assert_eq!(result.status, Status::Success);
                return e;
            }
            other => panic!("{other:?}"),
        }
    }
}

const RESOLVE: Request = Request::Resolve { handle: Handle(3) };

#[test]
fn a_lost_outcome_is_undone_at_once_and_for_sure_before_the_next_operation() {
    for lost in [
        Outcome::Unknown,
        Outcome::Refused(Status::BadResponse),
        Outcome::Refused(Status::TimedOut),
    ] {
        let mut e = entry(LockType::Atomic);
        let mut o = begin(&mut e, TAKE);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, lost, at(1));
        assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE), "{lost:?}");
        assert_eq!(done(o.next(&mut e)), Status::BadResponse);
        let mut o = begin(&mut e, TAKE);
        let asked = Effect::Ask { request: RESOLVE, until_ns: START + CHAIN_WAIT_NS };
        assert_eq!(o.next(&mut e), asked);
        o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(2));
        assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0]), at(3));
        assert_eq!(done(o.next(&mut e)), Status::Success);
    }
}

#[test]
fn an_undo_that_is_not_answered_is_not_asked_for_twice() {
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TAKE);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, Outcome::Unknown, at(1));
    while !matches!(o.next(&mut e), Effect::Done(_)) {}
    let mut undo = Operation::undo(&mut e, at(2), bounds()).expect("it is in doubt");
    assert!(matches!(undo.next(&mut e), Effect::Ask { request: RESOLVE, .. }));
    undo.deadline(&e, false, at(CHAIN_WAIT_NS));
    assert_eq!(undo.next(&mut e), Effect::Forget);
    assert_eq!(done(undo.next(&mut e)), Status::BadResponse);
    assert!(Operation::undo(&mut entry(LockType::Atomic), at(2), bounds()).is_none());
}

/// Begins a `Lock` of an atomic lock that another client holds, and carries it out up to its `Ask`.
fn waiting(e: &mut LockEntry, bounds: Bounds) -> (Operation, u64) {
    let Started::Running(mut o) = Operation::begin(e, LOCK, at(0), bounds) else { panic!() };
    let _ = posted(o.next(e));
    o.outcome(e, values(&[others_word()]), at(1));
    match o.next(e) {
        Effect::Ask { request: Request::Wait { .. }, until_ns } => (o, until_ns),
        other => panic!("{other:?}"),
    }
}

const CANCEL: Request = Request::Cancel { handle: Handle(3), wait: WaitNumber(1) };

#[test]
fn a_wait_is_probed_cancelled_and_its_own_reply_still_counts() {
    let mut e = entry(LockType::Atomic);
    let (mut o, until_ns) = waiting(&mut e, bounds());
    let end_ns = CHAIN_WAIT_NS;
    assert_eq!(until_ns, START + end_ns - PROBE_NS);
    o.deadline(&e, false, at(end_ns - PROBE_NS));
    assert_eq!(o.next(&mut e), Effect::Probe { until_ns: START + end_ns });
    o.deadline(&e, true, at(end_ns));
    assert_eq!(o.next(&mut e), Effect::Tell(CANCEL));
    assert_eq!(o.next(&mut e), Effect::Await { until_ns: START + end_ns + CANCEL_WAIT_NS });
    let word = AtomicWord::new().with_client(7).with_timeout(Deadline::at_s(1_020)).into_bits();
    let at_ns = ServerTime(START + end_ns);
    let granted = Reply::Granted {
        word,
        deadline: Deadline::at_s(1_020),
        at: at_ns,
        ticket: None,
        token: Token::NONE,
    };
    o.reply(&mut e, Ok(granted), at(end_ns + 5));
    assert_eq!(done(o.next(&mut e)), Status::Success);
    assert_eq!(e.state(), EntryState::ExclusiveLocked);
}

#[test]
fn a_cancel_that_is_not_answered_leaves_a_doubt() {
    let mut e = entry(LockType::Atomic);
    let (mut o, _) = waiting(&mut e, bounds());
    o.deadline(&e, false, at(CHAIN_WAIT_NS - PROBE_NS));
    assert!(matches!(o.next(&mut e), Effect::Probe { .. }));
    o.deadline(&e, true, at(CHAIN_WAIT_NS));
    assert_eq!(o.next(&mut e), Effect::Tell(CANCEL));
    assert!(matches!(o.next(&mut e), Effect::Await { .. }));
    o.deadline(&e, false, at(CHAIN_WAIT_NS + CANCEL_WAIT_NS));
    assert_eq!(o.next(&mut e), Effect::Forget);
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
}

#[test]
fn a_primary_that_answers_no_probe_is_not_asked_to_cancel() {
    let mut e = entry(LockType::Atomic);
    let (mut o, _) = waiting(&mut e, bounds());
    o.deadline(&e, false, at(CHAIN_WAIT_NS - PROBE_NS));
    assert!(matches!(o.next(&mut e), Effect::Probe { .. }));
    o.deadline(&e, false, at(CHAIN_WAIT_NS));
    assert_eq!(o.next(&mut e), Effect::Forget);
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
}

#[test]
fn a_short_wait_has_no_time_for_a_probe() {
    let mut e = entry(LockType::Atomic);
    let (mut o, until_ns) = waiting(&mut e, Bounds::waiting(START, PROBE_NS));
    assert_eq!(until_ns, START + PROBE_NS);
    o.deadline(&e, false, at(PROBE_NS));
    assert_eq!(o.next(&mut e), Effect::Tell(CANCEL));
}

#[test]
fn a_reply_of_a_session_that_was_replaced_does_not_count() {
    let mut e = entry(LockType::Atomic);
    let (mut o, _) = waiting(&mut e, bounds());
    o.replaced(&mut e, at(5));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
}

#[test]
fn success_means_a_running_lease() {
    // deadline 1005 s: valid through that tick
    let end_ns = 5 * NS + TICK_NS;
    for (ns, status) in [(end_ns - 1, Status::Success), (end_ns, Status::Fail)] {
        let mut e = entry(LockType::Atomic);
        let mut o = begin(&mut e, TAKE);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0]), at(ns));
        let told = loop {
            match o.next(&mut e) {
                Effect::WriteLedger(_) => {}
                Effect::Tell(request) => assert_eq!(request, RESOLVE),
                Effect::Done(result) => break result.status,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told, status, "{ns}");
        assert_eq!(e.in_doubt(), told == Status::Fail);
    }
}

#[test]
fn a_reentry_whose_lease_is_over_when_it_is_answered_ends_the_hold() {
    let mut e = held(LockType::Atomic);
    let mut o = begin(&mut e, TAKE);
    let [WordOp::Cas { expect, .. }] = posted(o.next(&mut e))[..] else { panic!() };
    o.outcome(&mut e, values(&[expect]), at(6 * NS));
    // the program relies on the hold until it learns of the loss, so nothing undoes the hold before
    assert_eq!(done(o.next(&mut e)), Status::Fail);
    assert_eq!((e.state(), e.refs()), (EntryState::Initialized, 0));
    assert!(e.in_doubt());
}

#[test]
fn a_query_of_a_lease_that_is_over_says_so() {
    let mut e = held(LockType::Atomic);
    let mut o = begin(&mut e, Op::Extend { mode: X, lease: Lease::NONE });
    let [WordOp::Cas { expect, .. }] = posted(o.next(&mut e))[..] else { panic!() };
    o.outcome(&mut e, values(&[expect]), at(6 * NS));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
    assert!(e.in_doubt());
}

#[test]
fn a_grant_that_is_told_too_late_is_given_back_and_waited_for_anew() {
    let mut e = entry(LockType::Atomic);
    let Started::Running(mut o) =
        Operation::begin(&mut e, LOCK, at(0), Bounds::waiting(START, 100 * NS))
    else {
        panic!()
    };
    for round in 0..LATE_GRANTS_MAX {
        let _ = posted(o.next(&mut e));
        let late = u64::from(round + 1) * 10 * NS;
        o.outcome(&mut e, values(&[0]), at(late));
        let Effect::Ask { request: RESOLVE, .. } = o.next(&mut e) else { panic!("round {round}") };
        o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(late));
        assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    }
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0]), at(90 * NS));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::Fail, "late so often");
}

/// The result of an operation whose first effect is executed; or the operation that goes on.
#[allow(clippy::result_large_err)]
fn at_once(e: &mut LockEntry, op: Op, begun: Now, now: Now) -> Result<OpResult, Operation> {
    let Some((WordOp::Cas { expect, .. }, first)) = e.first_op(op, &begun) else {
        panic!("{op:?}")
    };
    if let Some(result) = ended(e, op, first, expect, &begun, &now) {
        return Ok(result);
    }
    let mut o = Operation::after(e, op, first, begun, Bounds::since(begun.local_ns));
    o.outcome(e, values(&[expect]), now);
    Err(o)
}

#[test]
fn the_first_chain_decides_only_while_its_lease_runs() {
    let mut e = entry(LockType::Atomic);
    let Err(mut o) = at_once(&mut e, TAKE, at(0), at(6 * NS)) else { panic!() };
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
    let mut e = entry(LockType::Atomic);
    let Ok(result) = at_once(&mut e, TAKE, at(0), at(5 * NS)) else { panic!() };
    assert_eq!(result.status, Status::Success);
    assert_eq!(
        result.view,
        Some(View::Atomic {
            client_id: 7,
            time_out: TimeOut { at: Deadline::at_s(1_005), anchor_s: 0 }
        })
    );
    assert!(!needs_clock(Op::Unlock, &e, at(6 * NS)), "a release has no lease");
    let released = at_once(&mut e, Op::Unlock, at(6 * NS), at(6 * NS));
    assert!(matches!(released, Ok(OpResult { status: Status::Success, .. })));
}

#[test]
fn what_was_given_up_is_undone() {
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TAKE);
    let _ = posted(o.next(&mut e));
    assert!(o.is_waiting() && !o.is_over());
    o.give_up(&mut e, Status::TimedOut, at(CHAIN_WAIT_NS));
    assert!(!o.is_waiting() && o.is_over());
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::TimedOut);
    o.outcome(&mut e, values(&[0]), at(CHAIN_WAIT_NS + 1));
    assert_eq!(done(o.next(&mut e)), Status::TimedOut, "what comes later changes nothing");
    assert!(e.in_doubt());
}

#[test]
fn a_chain_is_a_step_that_is_not_taken_past_their_bound() {
    for (steps, is_taken) in [(STEPS_MAX - 1, true), (STEPS_MAX, false)] {
        let mut e = entry(LockType::Atomic);
        let mut o = begin(&mut e, TAKE);
        o.steps = steps;
        let effect = o.next(&mut e);
        assert_eq!(matches!(effect, Effect::Post { .. }), is_taken, "{effect:?}");
        if is_taken {
            assert_eq!(o.steps, STEPS_MAX);
        }
        if !is_taken {
            assert_eq!(effect, Effect::Tell(RESOLVE));
            assert_eq!(done(o.next(&mut e)), Status::BadResponse);
        }
    }
}

/// An undo that the primary refused is asked for again by the next operation, not by this one.
#[test]
fn what_was_not_undone_is_not_asked_for_twice() {
    let mut e = entry(LockType::Atomic);
    e.give_back();
    let mut o = begin(&mut e, TAKE);
    assert!(matches!(o.next(&mut e), Effect::Ask { request, .. } if request == RESOLVE));
    o.reply(&mut e, Ok(Reply::Denied { status: Status::NotReady, word: 0 }), at(1));
    assert_eq!(done(o.next(&mut e)), Status::NotReady);
    assert!(e.in_doubt());
}

#[test]
fn a_call_without_time_or_past_its_horizon_does_not_begin() {
    let mut e = entry(LockType::Rw);
    let bad = Started::Done(OpResult::of(Status::BadResponse));
    assert_eq!(Operation::begin(&mut e, TAKE, at(CHAIN_WAIT_NS), bounds()), bad);
    let past = Now { horizon_ns: START + 5, ..at(5) };
    assert_eq!(Operation::begin(&mut e, TAKE, past, bounds()), bad);
    let before = Now { horizon_ns: START + 5, ..at(4) };
    assert!(matches!(Operation::begin(&mut e, TAKE, before, bounds()), Started::Running(_)));
}

#[test]
fn whatever_comes_after_the_horizon_is_unknown() {
    let mut e = entry(LockType::Rw);
    let now = |ns| Now { horizon_ns: START + 5, ..at(ns) };
    let Started::Running(mut o) = Operation::begin(&mut e, TAKE, now(0), bounds()) else {
        panic!()
    };
    assert!(o.needs_clock(&e), "though a read-write lock has no lease");
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0]), now(5));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
    let mut e = entry(LockType::Atomic);
    let (mut o, _) = waiting(&mut e, bounds());
    let word = AtomicWord::new().with_client(7).with_timeout(Deadline::at_s(1_020)).into_bits();
    let granted = Reply::Granted {
        word,
        deadline: Deadline::at_s(1_020),
        at: ServerTime(START),
        ticket: None,
        token: Token::NONE,
    };
    o.reply(&mut e, Ok(granted), now(5));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
    // neither an acquire nor a release is decided by a chain that ended after the horizon, because
    // another client may have had the lock by then
    let mut e = entry(LockType::Atomic);
    let told = |op, e: &mut LockEntry, ns| at_once(e, op, now(0), now(ns)).is_ok();
    assert!(!told(TAKE, &mut e.clone(), 5) && told(TAKE, &mut e, 4));
    assert!(needs_clock(Op::Unlock, &e, now(0)));
    assert!(!told(Op::Unlock, &mut e.clone(), 5) && told(Op::Unlock, &mut e, 4));
}

/// The locks of a batch, and the clock.
struct Rig(Vec<LockEntry>, Now);

impl Entries for Rig {
    fn entry(&mut self, place: usize) -> &mut LockEntry {
        &mut self.0[place]
    }
    fn now(&mut self, _: usize) -> Now {
        self.1
    }
}

fn batch(entries: Vec<LockEntry>, items: &[(Op, usize)]) -> (Batch, Rig) {
    let mut batch = Batch::new(bounds());
    for entry in &entries {
        batch.place(entry);
    }
    items.iter().for_each(|&(op, place)| batch.push(op, place));
    (batch, Rig(entries, at(0)))
}

fn codes(batch: &Batch) -> Vec<Status> {
    batch.results().map(|(_, _, result)| result.status).collect()
}

/// Runs a batch on a memory of one word per lock. Returns how many rounds of waiting it took.
fn run(batch: &mut Batch, rig: &mut Rig, words: &mut [u64]) -> usize {
    let mut turns = vec![0; words.len()];
    for round in 0.. {
        let mut reports: Vec<(usize, Effect)> = Vec::new();
        while let Some((i, effect)) = batch.next(rig) {
            match effect {
                Effect::WriteLedger(_) | Effect::Tell(_) | Effect::Forget => {}
                Effect::ReadClock => batch.clock(i, at(1)),
                effect => reports.push((i, effect)),
            }
        }
        if batch.is_done() {
            return round;
        }
        assert!(!reports.is_empty(), "it waits for nothing, and is not done");
        for (i, effect) in reports {
            let place = batch.place_of(i).unwrap();
            let e = rig.entry(place);
            match effect {
                Effect::Post { chain, .. } => {
                    let mut all = Vec::new();
                    for word_op in chain.ops() {
                        let is_turn = match word_op {
                            WordOp::Cas { addr, .. } => addr.word() == Word::W1,
                            _ => matches!(word_op, WordOp::ReadPair { .. }),
                        };
                        let words = if is_turn { &mut turns } else { &mut *words };
                        all.push(execute(word_op, &mut words[place]));
                    }
                    // the values behind the first one, such as the lap, are 0
                    all.resize(chain.values_len(), 0);
                    batch.outcome(i, e, values(&all), at(1));
                }
                _ => batch.reply(i, e, Ok(Reply::Done { word: 0 }), at(1)),
            }
        }
    }
    unreachable!()
}

fn execute(word_op: &WordOp, word: &mut u64) -> u64 {
    let old = *word;
    match *word_op {
        WordOp::Cas { expect, swap, .. } if expect == old => *word = swap,
        WordOp::Faa { add, .. } => *word = old.wrapping_add(add),
        WordOp::WriteLedger { .. } => return 0,
        WordOp::Cas { .. } | WordOp::Read { .. } | WordOp::ReadPair { .. } => {}
    }
    old
}

#[test]
fn of_items_on_one_lock_the_later_begins_when_the_earlier_is_done() {
    use Status::{AlreadyLocked, AlreadyUnlocked, Fail, Success};
    let share = Op::TryLock { mode: S, lease: Lease::secs(5) };
    let free = || [LockType::Atomic, LockType::Rw, LockType::Fair].map(entry).to_vec();
    let items = [(TAKE, 0), (TAKE, 0), (share, 1), (share, 1), (TAKE, 1), (TAKE, 2), (TAKE, 2)];
    let (mut b, mut rig) = batch(free(), &items);
    run(&mut b, &mut rig, &mut [0; 3]);
    assert_eq!(codes(&b), [Success, Fail, Success, Success, Fail, Success, Success]);
    let items = [(TAKE, 0), (Op::Unlock, 0), (Op::Unlock, 0)];
    let (mut b, mut rig) = batch(free(), &items);
    run(&mut b, &mut rig, &mut [0; 3]);
    assert_eq!(codes(&b), [Success, Success, AlreadyUnlocked]);
    // the client held the lock before the batch, so the item enters it once more, as a single call
    // would
    let mut words = [rig.0[0].refs() as u64, 0, 0];
    let mut e = held(LockType::Atomic);
    let cas = Operation::begin(&mut e, TAKE, at(0), bounds());
    let Started::Running(mut o) = cas else { panic!() };
    let [WordOp::Cas { expect, .. }] = posted(o.next(&mut e))[..] else { panic!() };
    words[0] = expect;
    let (mut b, mut rig) = batch(vec![held(LockType::Atomic)], &[(TAKE, 0)]);
    run(&mut b, &mut rig, &mut words);
    assert_eq!(codes(&b), [AlreadyLocked]);
}

#[test]
fn an_item_without_a_lock_takes_its_place() {
    let e = entry(LockType::Atomic);
    let mut b = Batch::new(bounds());
    let place = b.place(&e);
    b.push_decided(TAKE, OpResult::of(Status::LockNotGet));
    b.push(TAKE, place);
    assert_eq!((b.place_of(0), b.place_of(1)), (None, Some(0)));
    let mut rig = Rig(vec![e], at(0));
    assert_eq!(run(&mut b, &mut rig, &mut [others_word()]), 1);
    assert_eq!(codes(&b), [Status::LockNotGet, Status::Fail]);
}
