// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter decides about expiry and ownership, one rule at a time.

use crate::common::lock::{expiry, id, is_denied, is_done, is_granted, World};
use crate::common::lock::{HANDLE, RESOLVE, S, START_S, WAKE, X};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::limits::{FAIR_GRACE_S, FAIR_LANE_DIVERT, FAIR_LANE_MAX, LOOK_S};
use dlock_core::message::{LockType, Reply, Request, WaitNumber};
use dlock_core::word_op::{Word, WordAddr, WordOp};
use dlock_core::words::{AtomicWord, FairWord, LedgerEntry, LedgerState, RwWord, Ticket};

const STEAL: Request = Request::Steal { handle: HANDLE, expire_s: 30 };

#[test]
fn an_expired_hold_goes_to_who_asks_for_it_and_no_earlier() {
    let mut w = World::new(LockType::Atomic, 3);
    let held = AtomicWord::new().with_client(2).with_timeout(START_S + 3);
    w.memory.word = held.into_bits();
    w.now = ServerTime(expiry(3) - 1);
    assert!(is_denied(&w.ask(1, STEAL)));
    assert_eq!(w.memory.word, held.into_bits());
    w.now = ServerTime(expiry(3));
    assert!(is_granted(&w.ask(1, STEAL), 1));
    let stolen = held.with_client(1).with_timeout(w.now.deadline(30));
    assert_eq!(w.memory.word, stolen.into_bits());
    w.memory.word = 0;
    assert!(is_granted(&w.ask(1, STEAL), 1), "it is free");
}

#[test]
fn an_expired_hold_goes_to_the_first_in_the_queue_and_not_to_who_asks_for_it() {
    let mut w = World::new(LockType::Atomic, 3);
    w.memory.word = AtomicWord::new().with_client(2).with_timeout(START_S + 3).into_bits();
    let wait = WaitNumber(1);
    let wait = Request::Wait { handle: HANDLE, mode: X, expire_s: 9, wait, ticket: None };
    assert!(w.ask(3, wait).is_empty());
    w.now = ServerTime(expiry(3));
    let out = w.ask(1, STEAL);
    assert!(is_granted(&out, 3) && !is_granted(&out, 1), "{out:?}");
}

#[test]
fn a_turn_that_is_over_lasts_until_somebody_waits_for_the_next() {
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, X, LedgerState::HeldExclusive, 5);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    let word = w.word();
    w.pass(60 * NS);
    w.ask(3, WAKE);
    assert_eq!(w.word(), word, "nobody waits");
    assert!(is_granted(&w.wait(2, X, next), 2));
}

/// A client that has operated on the words itself took a share over tcp; the note was lost with the
/// channel, and it released the share itself again. Another share, which nobody claims, does not
/// pass for it.
#[test]
fn a_share_that_the_primary_took_for_a_client_is_over_when_its_ledger_has_dropped_it() {
    let mut w = World::new(LockType::Fair, 2);
    w.executes_a_share(1, 600);
    let nobodys = w.word().shared_taken();
    w.memory.word = nobodys.into_bits();
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty(), "the share may be known to its client");
    w.memory.word = w.word().shared_done(1).into_bits();
    w.memory.ledgers.remove(&id(1));
    let out = w.pass((u64::from(FAIR_GRACE_S) + 3) * NS);
    assert!(is_granted(&out, 2), "{out:?} {:?}", w.word());
}

#[test]
fn an_exclusive_hold_whose_release_is_in_doubt_is_ended_by_its_resolve() {
    let mut w = World::new(LockType::Fair, 5);
    w.arbiter.proxy(id(4));
    // a ticket without an owner would be kept for this one
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    let leaving = w.take(3, S, LedgerState::Leaving, 9);
    w.memory.word = w.word().shared_done(1).into_bits();
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    assert_eq!(leaving.tx, held.tx, "a share with the number of the hold");
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 };
    w.ask(4, take); // behind it, and known without its ledger
    let out = w.ask(1, RESOLVE);
    assert!(is_done(&out, 1) && is_granted(&out, 2), "{out:?}");
    assert!(is_denied(&w.release(1, X, held)), "it is ended once");
}

#[test]
fn a_claim_to_the_ticket_of_a_client_without_a_ledger_does_not_end_it() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(2));
    let out = w.ask(2, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 600 });
    let Reply::Granted { ticket: Some(held), .. } = out[0].reply else { panic!("{out:?}") };
    let word = w.word();
    w.writes(1, LedgerState::HeldExclusive, held, 600);
    w.ask(1, RESOLVE);
    assert_eq!(w.word(), word);
}

#[test]
fn an_extend_never_shortens_and_is_for_the_holder_alone() {
    for (mode, held, queued) in [
        (X, LedgerState::HeldExclusive, LedgerState::TicketExclusive),
        (S, LedgerState::HeldShared, LedgerState::TicketShared),
    ] {
        let mut w = World::new(LockType::Fair, 3);
        let ticket = w.take(1, mode, held, 50);
        assert_eq!(w.extend(1, mode, ticket, 0), Some(50), "it only asks");
        assert_eq!(w.extend(1, mode, ticket, 20), Some(50));
        assert_eq!(w.extend(1, mode, ticket, 70), Some(70));
        assert_eq!(w.extend(1, mode, ticket, 0), Some(70), "its ledger does not say so yet");
        w.now = ServerTime(expiry(90));
        assert_eq!(w.extend(1, mode, ticket, 0), Some(70), "it is over, and nobody wanted it");
        w.now = ServerTime(expiry(0) - NS);
        let other = Ticket { tx: ticket.tx + 1, ts: ticket.ts + 1 };
        assert_eq!(w.extend(1, mode, other, 70), None, "another ticket");
        assert_eq!(w.extend(2, mode, ticket, 70), None, "another client");
        let mut w = World::new(LockType::Fair, 3);
        w.take(2, X, LedgerState::HeldExclusive, 600);
        let behind = w.take(1, mode, held, 50);
        assert_eq!(w.extend(1, mode, behind, 70), None, "not its turn");
        let mut w = World::new(LockType::Fair, 3);
        let not_granted = w.take(1, mode, queued, 0);
        assert_eq!(w.extend(1, mode, not_granted, 70), None);
        let poll = Request::Poll { handle: HANDLE, mode, ticket: not_granted, expire_s: 40 };
        assert!(is_granted(&w.ask(1, poll), 1));
        assert_eq!(w.extend(1, mode, not_granted, 0), Some(40), "its ledger does not say so yet");
    }
    // its hold names another ticket than it asks for
    let mut w = World::new(LockType::Fair, 3);
    let first = w.take(1, S, LedgerState::HeldShared, 50);
    w.take(1, S, LedgerState::HeldShared, 50);
    assert_eq!(w.extend(1, S, first, 70), None);
    // a reader before it is inside
    let mut w = World::new(LockType::Fair, 3);
    w.take(2, S, LedgerState::HeldShared, 600);
    let not_held = w.take(1, X, LedgerState::HeldExclusive, 50);
    assert_eq!(w.extend(1, X, not_held, 70), None);
}

/// What a primary executed and its client has not noted yet may take long on tcp.
#[test]
fn a_ticket_that_was_given_out_is_skipped_after_ten_seconds_and_not_before() {
    let mut w = World::new(LockType::Fair, 2);
    let (slot, add) = (dlock_core::ids::Slot(0), FairWord::TAKE_EXCLUSIVE);
    let addr = WordAddr::new(slot, Word::W0);
    w.call(|arbiter, _, memory, lock, _, _| {
        let word_op = WordOp::Faa { addr, add };
        let (whose, old) = ((id(1), HANDLE), memory.word);
        arbiter.executed_word_op(memory, lock, whose, LedgerEntry::new(), &word_op, old);
        memory.word = FairWord::from_bits(memory.word).exclusive_taken().into_bits();
    });
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    assert!(w.pass(10 * NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 2));
}

#[test]
fn a_lane_starts_again_only_if_no_ticket_of_its_last_lap_is_open() {
    let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 };
    let ticket = |out: &[dlock_core::arbiter::Sent]| match out[0].reply {
        Reply::Granted { ticket: Some(ticket), .. } | Reply::Queued { ticket, .. } => ticket.tx,
        other => panic!("{other:?}"),
    };
    // the open ones are of the ring: they end before the new lap comes there
    let mut w = World::new(LockType::Fair, 2);
    let open = FairWord::new().with_nx(FAIR_LANE_MAX + 3).with_mx(FAIR_LANE_MAX + 4);
    w.memory.word = open.into_bits();
    assert_eq!(ticket(&w.ask(1, take)), 0);
    // an open one that a client took by itself
    let mut w = World::new(LockType::Fair, 2);
    let open = FairWord::new().with_nx(FAIR_LANE_DIVERT - 1).with_mx(FAIR_LANE_DIVERT);
    w.memory.word = open.into_bits();
    assert_eq!(ticket(&w.ask(1, take)), FAIR_LANE_MAX);
}

fn wait_as(handle_wait: u32) -> Request {
    let wait = WaitNumber(handle_wait);
    Request::Wait { handle: HANDLE, mode: X, expire_s: 9, wait, ticket: None }
}

fn is_cancelled(out: &[dlock_core::arbiter::Sent], n: u32) -> bool {
    out.iter().any(|s| s.client == id(n) && matches!(s.reply, Reply::Cancelled { .. }))
}

#[test]
fn a_cancel_ends_the_wait_that_it_names_and_no_other() {
    let cancel = |wait| Request::Cancel { handle: HANDLE, wait: WaitNumber(wait) };
    let mut w = World::new(LockType::Atomic, 3);
    w.memory.word = AtomicWord::new().with_client(1).with_timeout(START_S + 60).into_bits();
    assert!(w.ask(2, wait_as(1)).is_empty() && w.ask(3, wait_as(2)).is_empty());
    for (n, wait, ends) in [(1, 1, false), (3, 1, false), (2, 2, false), (3, 2, true)] {
        let out = w.ask(n, cancel(wait));
        assert!(is_done(&out, n), "{out:?}");
        assert_eq!(is_cancelled(&out, n), ends, "{n} cancels {wait}: {out:?}");
        assert_eq!(out.len(), 1 + usize::from(ends));
    }
    assert!(is_granted(&w.pass(70 * NS), 2));
}

#[test]
fn a_cancelled_wait_for_a_read_write_lock_is_granted_to_nobody() {
    let mut w = World::new(LockType::Rw, 2);
    w.memory.word = RwWord::new().with_client(1).into_bits();
    assert!(w.ask(2, wait_as(1)).is_empty());
    let out = w.ask(2, Request::Cancel { handle: HANDLE, wait: WaitNumber(1) });
    assert!(is_cancelled(&out, 2) && is_done(&out, 2), "{out:?}");
    assert!(is_done(&w.release(1, X, Ticket { tx: 0, ts: 0 }), 1));
    assert_eq!(w.memory.word, 0);
}

#[test]
fn a_cancelled_wait_for_a_fair_lock_keeps_its_ticket() {
    let mut w = World::new(LockType::Fair, 2);
    let held = w.take(1, X, LedgerState::HeldExclusive, 60);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    let out = w.ask(2, Request::Cancel { handle: HANDLE, wait: WaitNumber(1) });
    assert!(is_cancelled(&out, 2) && is_done(&out, 2), "{out:?}");
    let out = w.release(1, X, held);
    assert!(is_done(&out, 1) && !is_granted(&out, 2), "it does not wait any more: {out:?}");
    w.memory.ledgers.remove(&id(1));
    let poll = Request::Poll { handle: HANDLE, mode: X, ticket: next, expire_s: 9 };
    assert!(is_granted(&w.ask(2, poll), 2));
}

#[test]
fn a_hold_that_is_over_goes_to_readers_behind_it() {
    let mut w = World::new(LockType::Fair, 2);
    w.take(1, X, LedgerState::HeldExclusive, 5);
    let next = w.take(2, S, LedgerState::TicketShared, 0);
    assert!(w.wait(2, S, next).is_empty());
    w.now = ServerTime(expiry(5) - 1);
    assert!(w.ask(1, WAKE).is_empty());
    assert!(is_granted(&w.pass(1), 2));
}

#[test]
fn a_ticket_that_nobody_has_is_skipped_for_readers_behind_it() {
    let mut w = World::new(LockType::Fair, 2);
    w.memory.word = w.word().exclusive_taken().into_bits();
    let next = w.take(2, S, LedgerState::TicketShared, 0);
    assert!(is_granted(&w.wait(2, S, next), 2));
}

/// Its session was lost before it sent its wake-up.
#[test]
fn a_reader_that_left_without_a_word_keeps_nobody_waiting() {
    let mut w = World::new(LockType::Rw, 2);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    assert!(w.ask(2, wait_as(2)).is_empty());
    w.memory.word = RwWord::from_bits(w.memory.word).with_rcount(0).into_bits();
    assert!(w.pass(u64::from(LOOK_S) * NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 2));
}

/// Its ledger is what is known of a client that may map the memory.
#[test]
fn a_share_of_a_client_with_a_ledger_is_not_remembered() {
    let mut w = World::new(LockType::Rw, 2);
    w.call(|arbiter, _, memory, lock, _, _| {
        let addr = WordAddr::new(lock.slot, Word::W0);
        let word_op = WordOp::Faa { addr, add: 1 };
        arbiter.executed_word_op(memory, lock, (id(1), HANDLE), LedgerEntry::new(), &word_op, 0);
    });
    // it has given the share back by itself
    assert!(is_granted(&w.ask(1, wait_as(1)), 1));
}

#[test]
fn a_lane_starts_again_only_if_no_ledger_can_bring_an_old_number_back() {
    let take = |w: &mut World, n| {
        w.memory.word = FairWord::new().with_nx(FAIR_LANE_DIVERT).with_mx(FAIR_LANE_DIVERT).into();
        let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 });
        let Reply::Granted { ticket: Some(ticket), .. } = out[0].reply else { panic!("{out:?}") };
        ticket.tx
    };
    let old = Ticket { tx: 7, ts: 0 };
    let with = |entries: &[(u32, LedgerState)]| {
        let mut w = World::new(LockType::Fair, 4);
        entries.iter().for_each(|&(n, state)| w.writes(n, state, old, 0));
        w
    };
    use LedgerState::{GivenUpExclusive, HeldExclusive, Intent};
    assert_eq!(take(&mut with(&[]), 1), 0);
    assert_eq!(take(&mut with(&[(2, Intent), (3, Intent)]), 1), FAIR_LANE_MAX);
    assert_eq!(take(&mut with(&[(2, Intent), (3, Intent), (4, Intent)]), 1), FAIR_LANE_MAX);
    assert_eq!(take(&mut with(&[(1, Intent)]), 1), 0, "its request came behind");
    assert_eq!(take(&mut with(&[(1, GivenUpExclusive)]), 1), 0, "its request came behind");
    assert_eq!(take(&mut with(&[(1, HeldExclusive)]), 1), FAIR_LANE_MAX);
    let mut w = with(&[(2, GivenUpExclusive)]);
    assert_eq!(take(&mut w, 1), FAIR_LANE_MAX, "its abandon may be on its way");
    w.memory.word = FairWord::new().with_nx(old.tx).with_mx(old.tx + 1).into();
    w.ask(2, Request::Abandon { handle: HANDLE, mode: X, ticket: old });
    w.memory.ledgers.remove(&id(1));
    w.ask(1, RESOLVE);
    assert_eq!(take(&mut w, 3), 0, "it was served");
}

/// The arbiter ends it before its client's ledger names it.
#[test]
fn a_ticket_that_was_ended_stays_ended_when_its_ledger_comes_late() {
    for before in [LedgerState::None, LedgerState::GivenUpExclusive] {
        let mut w = World::new(LockType::Fair, 3);
        w.memory.word = FairWord::new().with_nx(5).with_mx(5).into();
        w.writes(1, before, Ticket { tx: 4, ts: 0 }, 0);
        let take = Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 9 };
        let out = w.ask(1, take);
        let Reply::Queued { ticket: late, .. } = out[0].reply else { panic!("{out:?}") };
        let next = w.take(2, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(2, X, next).is_empty());
        assert!(is_granted(&w.pass(u64::from(FAIR_GRACE_S) * NS), 2));
        w.writes(2, LedgerState::HeldExclusive, next, 600);
        w.ask(3, WAKE);
        w.writes(1, LedgerState::TicketShared, late, 0);
        let poll = Request::Poll { handle: HANDLE, mode: S, ticket: late, expire_s: 9 };
        assert!(is_denied(&w.ask(1, poll)), "after {before:?}");
        assert!(is_denied(&w.release(1, S, late)), "after {before:?}");
    }
}

#[test]
fn what_is_looked_at_is_counted_as_work() {
    let mut w = World::new(LockType::Fair, 21);
    w.take(1, X, LedgerState::HeldExclusive, 600);
    for n in 2..=21 {
        let ticket = w.take(n, X, LedgerState::TicketExclusive, 0);
        w.wait(n, X, ticket);
    }
    w.ask(1, WAKE);
    assert!(w.arbiter.work() >= 21 + 20, "ledgers and records: {}", w.arbiter.work());
}

#[test]
fn a_client_that_was_granted_waits_for_nothing() {
    let mut w = World::new(LockType::Atomic, 3);
    assert!(is_granted(&w.ask(1, wait_as(1)), 1));
    assert!(w.ask(2, wait_as(1)).is_empty() && w.ask(3, wait_as(1)).is_empty());
    let release = Request::Release { handle: HANDLE, mode: X, ticket: None };
    assert!(is_granted(&w.ask(1, release), 2));
    let waits = [1, 2, 3].map(|n| w.arbiter.take_waits(id(n)).len());
    assert_eq!(waits, [0, 0, 1]);
}

/// It was granted by a message, and has not written its ledger yet.
#[test]
fn a_recount_counts_a_reader_whose_ledger_says_that_it_waits() {
    let mut w = World::new(LockType::Rw, 3);
    w.memory.word = RwWord::new().with_client(2).into_bits();
    let waiting = LedgerEntry::new().with_state(LedgerState::Waiting).with_detail(1);
    w.memory.ledgers.insert(id(1), waiting);
    let wait =
        Request::Wait { handle: HANDLE, mode: S, expire_s: 9, wait: WaitNumber(1), ticket: None };
    assert!(w.ask(1, wait).is_empty());
    let release = Request::Release { handle: HANDLE, mode: X, ticket: None };
    assert!(is_granted(&w.ask(2, release), 1));
    let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
    w.memory.ledgers.insert(id(3), leaving);
    w.memory.word = RwWord::new().with_rcount(2).into_bits();
    w.forget(3);
    let word = RwWord::from_bits(w.memory.word);
    assert_eq!((word.rcount(), word.waiters()), (1, false));
}

/// Its ledger does not say so yet when it begins to operate on the word itself.
#[test]
fn a_granted_share_that_was_given_back_is_not_counted_again() {
    let mut w = World::new(LockType::Rw, 2);
    w.arbiter.proxy(id(1));
    let waiting = LedgerEntry::new().with_state(LedgerState::Waiting).with_detail(1);
    w.memory.ledgers.insert(id(1), waiting);
    let wait =
        Request::Wait { handle: HANDLE, mode: S, expire_s: 9, wait: WaitNumber(1), ticket: None };
    assert!(is_granted(&w.ask(1, wait), 1));
    let old = std::mem::take(&mut w.memory.word);
    executes(&mut w, 1, old, |addr| WordOp::Faa { addr, add: u64::MAX });
    w.arbiter.unproxy(id(1));
    let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
    w.memory.ledgers.insert(id(2), leaving);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    w.forget(2);
    assert_eq!(w.memory.word, 0, "nobody is inside");
}

fn executes(w: &mut World, n: u32, old: u64, word_op: impl FnOnce(WordAddr) -> WordOp) {
    executes_noted(w, n, LedgerEntry::new(), old, word_op);
}

fn executes_noted(
    w: &mut World,
    n: u32,
    noted: LedgerEntry,
    old: u64,
    word_op: impl FnOnce(WordAddr) -> WordOp,
) {
    w.call(|arbiter, _, memory, lock, _, _| {
        let word_op = word_op(WordAddr::new(lock.slot, Word::W0));
        arbiter.executed_word_op(memory, lock, (id(n), HANDLE), noted, &word_op, old);
    });
}

/// The answer is stuck behind a broken connection, or its caller knows of its hold already.
#[test]
fn a_client_that_was_served_at_once_keeps_the_lease_of_its_intent() {
    let intent = LedgerEntry::new().with_state(LedgerState::Intent).with_detail(60);
    for (mode, add) in [(X, FairWord::TAKE_EXCLUSIVE), (S, FairWord::TAKE_SHARED)] {
        for other in [None, Some(X)] {
            let mut w = World::new(LockType::Fair, 3);
            w.arbiter.proxy(id(1));
            if let Some(mode) = other {
                w.take(3, mode, LedgerState::HeldExclusive, 5);
            }
            w.memory.ledgers.insert(id(1), intent);
            let old = w.memory.word;
            w.memory.word += add;
            executes_noted(&mut w, 1, intent, old, |addr| WordOp::Faa { addr, add });
            let next = w.take(2, X, LedgerState::TicketExclusive, 0);
            assert!(w.wait(2, X, next).is_empty());
            // in the queue it is not told by the word alone: it has to ask
            let granted_by = if other.is_none() { 60 } else { 5 + FAIR_GRACE_S };
            let until = expiry(granted_by) - w.now.0;
            assert!(w.pass(until - 1).is_empty(), "{mode:?} {other:?}");
            assert!(is_granted(&w.pass(2 * NS), 2), "{mode:?} {other:?}");
        }
    }
}

#[test]
fn a_chain_that_found_another_word_has_ended_no_ticket() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    executes(&mut w, 1, 0, |addr| WordOp::Faa { addr, add: FairWord::TAKE_EXCLUSIVE });
    let held = w.word().exclusive_taken();
    w.memory.word = held.shared_taken().into(); // somebody came in between
    let swap = held.exclusive_done().into();
    let expect = held.into();
    let found = w.memory.word;
    executes(&mut w, 1, found, |addr| WordOp::Cas { addr, expect, swap });
    assert!(is_done(&w.release(1, X, Ticket { tx: 0, ts: 0 }), 1));
}

#[test]
fn the_next_client_of_an_id_is_known_by_its_own_ledger() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    w.arbiter.gone(id(1));
    let ticket = w.take(1, X, LedgerState::HeldExclusive, 50);
    assert_eq!(w.extend(1, X, ticket, 0), Some(50));
}

/// Somebody is between intent and publication all the time.
#[test]
fn a_ticket_that_its_ledger_gives_up_is_skipped_at_once() {
    let mut w = World::new(LockType::Fair, 5);
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    w.take(2, X, LedgerState::GivenUpExclusive, 0);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    assert!(is_granted(&w.release(1, X, held), 3));
}

#[test]
fn a_client_whose_wait_was_dropped_loses_its_turn_after_a_grace() {
    let mut w = World::new(LockType::Fair, 3);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    for n in [2, 3] {
        let ticket = w.take(n, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(n, X, ticket).is_empty());
    }
    w.call(|arbiter, now, memory, lock, _, out| {
        arbiter.drop_waits(now, memory, lock, id(2), out);
    });
    assert!(is_done(&w.release(1, X, held), 1));
    w.memory.ledgers.remove(&id(1));
    assert!(w.pass(u64::from(FAIR_GRACE_S) * NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 3));
}

#[test]
fn waits_outlast_a_client_that_maps_the_memory_from_now_on() {
    let mut w = World::new(LockType::Rw, 3);
    w.arbiter.proxy(id(1));
    w.memory.word = RwWord::new().with_client(3).into();
    assert!(w.ask(2, wait_as(1)).is_empty());
    w.arbiter.unproxy(id(1));
    let release = Request::Release { handle: HANDLE, mode: X, ticket: None };
    assert!(is_granted(&w.ask(3, release), 2));
}

#[test]
fn what_the_last_call_took_is_no_part_of_the_state() {
    let mut w = World::new(LockType::Fair, 3);
    let before = w.arbiter.clone();
    w.ask(1, WAKE);
    assert!(w.arbiter == before && w.arbiter.work() != before.work());
}

#[test]
fn a_ticket_that_is_not_at_its_turn_is_not_released() {
    let mut w = World::new(LockType::Fair, 2);
    w.take(1, X, LedgerState::HeldExclusive, 60);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    let word = w.word();
    assert!(is_denied(&w.release(2, X, next)));
    assert_eq!(w.word(), word);
}

#[test]
fn a_ticket_that_was_ended_is_forgotten_when_its_ledger_has_dropped_it() {
    for looks in 0..4 {
        let mut w = World::new(LockType::Fair, 3);
        w.take(1, X, LedgerState::HeldExclusive, 0);
        let next = w.take(2, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(2, X, next).is_empty());
        assert!(is_granted(&w.pass(NS), 2), "the first is ended");
        (0..looks).for_each(|_| _ = w.ask(3, WAKE));
        w.memory.ledgers.remove(&id(1));
        assert!(is_done(&w.release(2, X, next), 2));
        w.memory.ledgers.remove(&id(2));
        w.ask(3, RESOLVE);
        w.ask(2, RESOLVE);
        let end = FairWord::new().with_nx(FAIR_LANE_DIVERT).with_mx(FAIR_LANE_DIVERT);
        w.memory.word = end.into();
        let out = w.ask(3, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 });
        let Reply::Granted { ticket: Some(ticket), .. } = out[0].reply else { panic!("{out:?}") };
        assert_eq!(ticket.tx, 0, "no old number is remembered after {looks} looks");
    }
}

#[test]
fn a_client_that_waits_no_more_keeps_nobody_waiting_when_a_lease_ends() {
    for is_dropped in [true, false] {
        let mut w = World::new(LockType::Fair, 3);
        w.take(1, X, LedgerState::HeldExclusive, 5);
        for n in [2, 3] {
            let ticket = w.take(n, X, LedgerState::TicketExclusive, 0);
            assert!(w.wait(n, X, ticket).is_empty());
        }
        match is_dropped {
            true => w.call(|arbiter, now, memory, lock, _, out| {
                arbiter.drop_waits(now, memory, lock, id(2), out);
            }),
            false => w.ask(2, Request::Cancel { handle: HANDLE, wait: WaitNumber(1) }),
        };
        let out = w.pass((6 + u64::from(FAIR_GRACE_S)) * NS);
        assert!(is_granted(&out, 3), "dropped: {is_dropped}");
    }
}

/// It may name the ticket once it is on another fabric.
#[test]
fn a_lane_starts_again_once_a_client_of_tcp_knows_that_its_ticket_was_ended() {
    let mut w = World::new(LockType::Fair, 3);
    w.arbiter.proxy(id(1));
    let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 1 };
    assert!(is_granted(&w.ask(1, take), 1));
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    assert!(is_granted(&w.pass(3 * NS), 2), "the first is ended");
    assert!(is_done(&w.release(2, X, next), 2));
    w.memory.ledgers.remove(&id(2));
    w.ask(2, RESOLVE);
    w.memory.word = FairWord::new().with_nx(FAIR_LANE_DIVERT).with_mx(FAIR_LANE_DIVERT).into();
    let takes = |w: &mut World| {
        let out = w.ask(3, take);
        let Reply::Granted { ticket: Some(ticket), .. } = out[0].reply else { panic!("{out:?}") };
        assert!(is_done(&w.release(3, X, ticket), 3));
        ticket.tx
    };
    assert_eq!(takes(&mut w), FAIR_LANE_MAX);
    w.call(|arbiter, _, memory, lock, _, _| {
        arbiter.noted(memory, lock, (id(1), HANDLE), LedgerEntry::new());
    });
    assert_eq!(takes(&mut w), 0);
}

/// A client between two verbs keeps the count from being known.
#[test]
fn a_client_in_doubt_is_waited_for_once_however_often_it_asks() {
    let mut w = World::new(LockType::Rw, 2);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    let intent = |n: u32| LedgerEntry::new().with_state(LedgerState::Intent).with_detail(n);
    w.memory.ledgers.insert(id(1), intent(1));
    w.memory.ledgers.insert(id(2), intent(2));
    assert!(w.ask(2, RESOLVE).is_empty());
    for _ in 0..3 {
        let told = w.ask(2, RESOLVE);
        assert!(told.len() == 1 && matches!(told[0].reply, Reply::Cancelled { .. }), "{told:?}");
    }
    w.memory.ledgers.insert(id(1), LedgerEntry::new());
    let told = w.pass(u64::from(LOOK_S) * NS);
    assert!(is_done(&told, 2) && told.len() == 1, "{told:?}");
}
