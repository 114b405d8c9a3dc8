// SPDX-License-Identifier: MIT OR Apache-2.0
//! An exclusive hold that is made a share: what the arbiter does, and what the client knows.

use crate::common::lock::{id, is_denied, is_granted, until, World, HANDLE, S, X};
use dlock_core::arbiter::Sent;
use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, LockId, Slot};
use dlock_core::lock::{Begin, EntryState, LockEntry, Machine, Op, Step};
use dlock_core::memory::word_op::{Outcome, Values};
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord, TakenWord, Ticket, TurnWord};
use dlock_core::token::Token;
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

fn downgrade(w: &mut World, n: u32, stamp: u32, ticket: Option<Ticket>) -> Vec<Sent> {
    w.ask(n, Request::Downgrade { handle: HANDLE, stamp, ticket })
}

fn wait(w: &mut World, n: u32, mode: Mode) -> Vec<Sent> {
    let (lease, wait) = (Lease::secs(9), WaitNumber(1));
    w.memory.ledgers.insert(id(n), share(1).with_state(LedgerState::Waiting));
    w.ask(n, Request::Wait { handle: HANDLE, mode, lease, wait, ticket: None })
}

fn share(stamp: u32) -> LedgerEntry {
    LedgerEntry::new().with_state(LedgerState::HeldShared).with_detail(stamp)
}

fn word(w: &World) -> RwWord {
    RwWord::from_bits(w.memory.word)
}

/// A read-write lock that client 1 has exclusively.
fn owned() -> World {
    let mut w = World::new(LockType::Rw, 4);
    w.memory.word = RwWord::new().with_client(1).into_bits();
    w
}

#[test]
fn an_owner_becomes_a_reader_and_readers_at_the_head_of_the_queue_join_it() {
    let mut w = owned();
    for (n, mode) in [(2, S), (3, X), (4, S)] {
        assert!(wait(&mut w, n, mode).is_empty());
    }
    let out = downgrade(&mut w, 1, 7, None);
    assert!(is_granted(&out, 1) && is_granted(&out, 2), "{out:?}");
    assert!(!is_granted(&out, 3) && !is_granted(&out, 4), "the order of the queue: {out:?}");
    assert_eq!(word(&w), RwWord::new().with_rcount(2).with_waiters(true));
    assert_eq!(w.memory.ledgers[&id(1)], share(7), "the arbiter has written it");
}

/// The answer to the downgrade was lost, and the client asks again.
#[test]
fn a_downgrade_that_is_asked_for_again_is_granted_and_changes_nothing() {
    let mut w = owned();
    assert!(is_granted(&downgrade(&mut w, 1, 7, None), 1));
    let before = word(&w);
    assert!(is_granted(&downgrade(&mut w, 1, 7, None), 1));
    assert_eq!(word(&w), before);
    assert!(is_denied(&downgrade(&mut w, 1, 8, None)), "not the share that it has");
    assert!(is_denied(&downgrade(&mut w, 2, 7, None)), "it has nothing");
}

/// A reader dies half-way: the readers are counted anew by their ledgers.
#[test]
fn a_recount_knows_the_share_of_a_downgrade() {
    let mut w = owned();
    downgrade(&mut w, 1, 7, None);
    w.memory.word = word(&w).with_rcount(2).into_bits();
    w.memory.ledgers.insert(id(2), share(3).with_state(LedgerState::Leaving));
    w.forget(2);
    assert_eq!(word(&w).rcount(), 1);
    w.forget(1);
    assert_eq!(w.memory.word, 0, "and it can be undone");
}

/// A fair lock whose clients have taken these tickets, the first of which is at the head.
fn taken<const N: usize>(modes: [Mode; N]) -> (World, [Ticket; N]) {
    let mut w = World::new(LockType::Fair, N as u32);
    (w.memory.word, w.memory.turn) = (TakenWord::START.into_bits(), TurnWord::START.into_bits());
    let mut n = 0;
    let tickets = modes.map(|mode| {
        n += 1;
        w.take(n, mode, 30)
    });
    (w, tickets)
}

#[test]
fn an_exclusive_ticket_is_made_a_share_that_the_next_writer_waits_for() {
    let (mut w, [first, reader, writer, last]) = taken([X, S, X, S]);
    for (n, mode, ticket) in [(2, S, reader), (3, X, writer), (4, S, last)] {
        assert!(w.wait(n, mode, ticket).is_empty());
    }
    let out = downgrade(&mut w, 1, 9, Some(first));
    let share = first.downgraded().unwrap();
    assert!(is_granted(&out, 1) && is_granted(&out, 2), "{out:?}");
    assert!(!is_granted(&out, 3) && !is_granted(&out, 4), "{out:?}");
    let claim = LedgerEntry::claim(S, 9).with_deadline(until(30));
    assert_eq!(w.memory.ledgers[&id(1)], claim, "until its deadline");
    assert!(is_granted(&downgrade(&mut w, 1, 9, Some(first)), 1), "asked for again");
    // one reader leaves, then the other one
    assert!(!is_granted(&w.release(2, S, reader), 3));
    assert!(is_granted(&w.release(1, S, share), 3), "{:?}", w.turn());
    assert!(is_denied(&downgrade(&mut w, 1, 9, Some(first))), "it is over");
}

/// The shared tickets before the new share are counted as done already.
#[test]
fn a_share_of_a_downgrade_is_not_below_those_that_were_counted_as_done() {
    let (mut w, [_, writer, next]) = taken([S, X, X]);
    w.memory.ledgers.remove(&id(1)); // the reader has given up, so no client has its share
    assert!(is_granted(&w.wait(2, X, writer), 2));
    assert!(w.wait(3, X, next).is_empty());
    let out = downgrade(&mut w, 2, 9, Some(writer));
    assert!(is_granted(&out, 2) && !is_granted(&out, 3), "{out:?}");
    assert!(is_granted(&w.release(2, S, writer.downgraded().unwrap()), 3));
}

/// A client of `lock_type` that has taken the lock exclusively, with tokens.
fn holder(lock_type: LockType) -> LockEntry {
    let (handle, slot) = (Handle(3), Slot(9));
    let grant = LockGrant { lock: LockId(5), handle, slot, word: 0, already: false, tokens: true };
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: true };
    let mut e = LockEntry::new(ClientId::new(7).unwrap(), 0, lock_type, &grant, desc);
    let take = Op::TryLock { mode: X, lease: Lease::secs(60) };
    let (mut machine, step) = begin(&mut e, take);
    assert!(matches!(step, Step::Chain(_)), "{step:?}");
    let mut values = Values::new();
    let found: &[u64] = match lock_type {
        LockType::Fair => &[0, TakenWord::START.into_bits(), TurnWord::START.into_bits(), 4],
        LockType::Atomic | LockType::Rw => &[0, 4],
    };
    found.iter().for_each(|&value| values.push(value));
    is_done(machine.outcome(&mut e, Outcome::Done(values), now()), Status::Success);
    e.take_ledger_write();
    e
}

fn now() -> Now {
    Now::within(ServerTime(1_000 * NS), 3)
}

fn begin(e: &mut LockEntry, op: Op) -> (Machine, Step) {
    match e.begin(op, now()) {
        Begin::Run(machine, step) => (machine, step),
        Begin::Local(result) => panic!("{result:?}"),
    }
}

fn is_done(step: Step, status: Status) {
    assert!(matches!(step, Step::Done(result) if result.status == status), "{step:?}");
}

fn request(step: &Step) -> Request {
    match *step {
        Step::Request(request) => request,
        _ => panic!("{step:?}"),
    }
}

fn granted(e: &LockEntry) -> Reply {
    let (word, deadline) = match e.lock_type() {
        LockType::Fair => (TurnWord::START.downgraded().unwrap().into_bits(), e.deadline()),
        _ => (RwWord::new().with_rcount(1).into_bits(), Deadline::at_s(1_000)),
    };
    let ticket = e.ticket().and_then(Ticket::downgraded);
    Reply::Granted { word, deadline, at: now().time, ticket, token: Token(6) }
}

const KINDS: [LockType; 2] = [LockType::Rw, LockType::Fair];

#[test]
fn a_hold_goes_on_as_a_share_with_a_later_token() {
    for lock_type in KINDS {
        let mut e = holder(lock_type);
        let (hold, token, deadline) = (e.hold(), e.token().unwrap(), e.deadline());
        let (mut machine, step) = begin(&mut e, Op::Downgrade);
        assert!(matches!(request(&step), Request::Downgrade { .. }));
        assert_eq!((e.hold(), e.token()), (hold, None), "{lock_type:?}");
        assert!(e.is_surely_held(now()), "as the one or the other");
        let answer = granted(&e);
        is_done(machine.reply(&mut e, Ok(answer), now()), Status::Success);
        assert_eq!((e.state(), e.in_doubt()), (EntryState::SharedLocked, false));
        assert_eq!((e.hold(), e.deadline()), (hold, deadline));
        assert!(e.token().unwrap() > token, "{:?} {token:?}", e.token());
        assert!(!e.has_ledger_write(), "the arbiter has written the share");
    }
}

#[test]
fn a_request_that_was_refused_leaves_the_hold_exclusive() {
    for lock_type in KINDS {
        let mut e = holder(lock_type);
        let (token, ticket) = (e.token(), e.ticket());
        let (mut machine, _) = begin(&mut e, Op::Downgrade);
        let refused = Reply::Denied { status: Status::NotReady, word: 0 };
        is_done(machine.reply(&mut e, Ok(refused), now()), Status::NotReady);
        assert_eq!((e.state(), e.in_doubt()), (EntryState::ExclusiveLocked, false));
        assert_eq!((e.token(), e.ticket()), (token, ticket));
    }
}

#[test]
fn a_downgrade_without_an_answer_is_asked_for_again_by_the_next_operation() {
    for lock_type in KINDS {
        let mut e = holder(lock_type);
        let (mut machine, step) = begin(&mut e, Op::Downgrade);
        is_done(machine.reply(&mut e, Err(Status::BadResponse), now()), Status::BadResponse);
        assert!(e.in_doubt() && !e.is_to_be_undone());
        let first = request(&step);
        // a refusal of the second request does not tell what became of the first one
        let (mut machine, step) = begin(&mut e, Op::Downgrade);
        assert_eq!(request(&step), first, "the arbiter knows it by its stamp");
        let refused = Reply::Denied { status: Status::NotReady, word: 0 };
        is_done(machine.reply(&mut e, Ok(refused), now()), Status::NotReady);
        assert!(e.in_doubt());
        let (mut machine, step) = begin(&mut e, Op::Unlock);
        assert_eq!(request(&step), first);
        let answer = granted(&e);
        let step = machine.reply(&mut e, Ok(answer), now());
        assert!(matches!(step, Step::Chain(_)), "it releases the share: {step:?}");
        assert_eq!(e.state(), EntryState::SharedLocked);
    }
}

#[test]
fn a_downgrade_that_is_denied_is_the_end_of_the_hold() {
    for lock_type in KINDS {
        let mut e = holder(lock_type);
        let (mut machine, _) = begin(&mut e, Op::Downgrade);
        let denied = Reply::Denied { status: Status::Fail, word: 0 };
        is_done(machine.reply(&mut e, Ok(denied), now()), Status::Fail);
        assert!(e.hold().is_none() && !e.in_doubt());
    }
}

/// The successor of the primary is told of a share, without the token of the exclusive hold.
#[test]
fn while_a_downgrade_is_under_way_a_share_is_claimed() {
    for lock_type in KINDS {
        let mut e = holder(lock_type);
        let (mut machine, _) = begin(&mut e, Op::Downgrade);
        let claim = e.claim(now(), Epoch(1)).held.unwrap();
        assert_eq!((claim.mode, claim.is_queued, claim.token), (S, false, Token::NONE));
        e.is_claimed(Epoch(1), now(), now());
        // the answer of the predecessor comes too late
        let late = granted(&e);
        is_done(machine.reply(&mut e, Ok(late), now()), Status::BadResponse);
        assert!(e.is_unconfirmed());
        let (mut machine, step) = begin(&mut e, Op::Downgrade);
        assert_eq!(request(&step), Request::Confirm { handle: Handle(3), mode: S });
        let ticket = e.ticket().map(|_| TakenWord::START.next(8));
        let (word, deadline) = (TurnWord::START.into_bits(), e.deadline());
        let confirmed = Reply::Granted { word, deadline, at: now().time, ticket, token: Token(8) };
        match machine.reply(&mut e, Ok(confirmed), now()) {
            // the client looks at the turn, because it must know whether its lease runs
            Step::Chain(_) if lock_type == LockType::Fair => {}
            step => is_done(step, Status::Success),
        }
        assert_eq!((e.state(), e.token()), (EntryState::SharedLocked, Some(Token(8))));
    }
}

#[test]
fn what_cannot_be_made_a_share_is_refused() {
    let refused = |e: &mut LockEntry| match e.begin(Op::Downgrade, now()) {
        Begin::Local(result) => result.status == Status::Invalid,
        Begin::Run(..) => false,
    };
    assert!(refused(&mut holder(LockType::Atomic)), "it has no shares");
    let mut twice = holder(LockType::Rw);
    let again = Op::TryLock { mode: X, lease: Lease::secs(60) };
    assert!(matches!(twice.begin(again, now()), Begin::Local(_)));
    assert!(refused(&mut twice), "the hold was entered again");
    let mut released = holder(LockType::Rw);
    released.lose();
    assert!(!refused(&mut released), "its program learns of the loss");
}
