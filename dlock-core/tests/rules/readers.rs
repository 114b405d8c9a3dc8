// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of a fair lock at the arbiter: whose share is taken off, when, and how often.

use crate::common::lock::{
    expiry, id, is_denied, is_done, is_granted, World, HANDLE, RESOLVE, S, WAKE, X,
};
use dlock_core::arbiter::Sent;
use dlock_core::clock::{ServerTime, NS};
use dlock_core::limits::{FAIR_GRACE_S, FAIR_LANE_DIVERT, FAIR_LANE_MAX, FAIR_READERS_MAX};
use dlock_core::message::{LockType, Reply, Request};
use dlock_core::word_op::{Word, WordAddr, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, RwWord, Ticket};

#[test]
fn a_share_is_released_once_and_by_its_client_alone() {
    let served = |state| {
        let mut w = World::new(LockType::Fair, 2);
        let ticket = w.take(1, S, state, 60);
        (w, ticket)
    };
    for state in [LedgerState::HeldShared, LedgerState::Leaving] {
        let (mut w, ticket) = served(state);
        let other = Ticket { ts: ticket.ts + 1, ..ticket };
        assert!(is_denied(&w.release(1, S, other)), "another ticket");
        assert!(is_denied(&w.release(2, S, ticket)), "another client");
        assert!(is_done(&w.release(1, S, ticket), 1), "{state:?}");
        assert_eq!(w.word().open_shared(), 0);
        w.memory.word = w.word().shared_taken().into_bits();
        assert!(is_denied(&w.release(1, S, ticket)), "once");
    }
    // a share that was not granted is none to release
    let (mut w, ticket) = served(LedgerState::TicketShared);
    assert!(is_denied(&w.release(1, S, ticket)));
    let poll = Request::Poll { handle: HANDLE, mode: S, ticket, expire_s: 60 };
    assert!(is_granted(&w.ask(1, poll), 1));
    assert!(is_done(&w.release(1, S, ticket), 1), "granted, and not noted yet");
    let (mut w, ticket) = served(LedgerState::GivenUpShared);
    assert!(is_denied(&w.release(1, S, ticket)));
}

#[test]
fn a_share_that_may_have_been_released_holds_the_next_up_until_its_lease_ends() {
    let mut w = World::new(LockType::Fair, 2);
    w.take(1, S, LedgerState::Leaving, 5);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    w.now = ServerTime(expiry(5) - 1);
    assert!(w.ask(1, WAKE).is_empty());
    assert!(is_granted(&w.pass(u64::from(FAIR_GRACE_S) * 2 * NS), 2));
}

#[test]
fn a_reader_is_let_in_as_soon_as_one_of_the_most_that_may_be_inside_is_over() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    for n in 1..=readers {
        w.take(n, S, LedgerState::HeldShared, 10 + n);
    }
    let next = w.take(70, S, LedgerState::TicketShared, 0);
    assert!(w.wait(70, S, next).is_empty());
    w.now = ServerTime(expiry(11) - 1);
    assert!(w.ask(80, WAKE).is_empty());
    assert!(is_granted(&w.pass(1), 70), "the lease of the first is over");
    let more = w.take(71, S, LedgerState::TicketShared, 0);
    assert!(w.wait(71, S, more).is_empty(), "no other one is");
}

/// Readers whose chains the primary has executed see by themselves that they have their turn.
#[test]
fn no_more_readers_are_let_in_than_may_be_inside_with_those_that_came_by_themselves() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    for n in 1..=readers {
        w.arbiter.proxy(id(n));
        w.executes_a_share(n, 600);
    }
    let next = w.take(70, S, LedgerState::TicketShared, 0);
    assert!(w.wait(70, S, next).is_empty());
}

/// The chains by which they took their shares have noted nothing: they are still to say so.
#[test]
fn a_share_that_was_only_issued_counts_among_the_readers_inside() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    for n in 1..=readers {
        w.arbiter.proxy(id(n));
        let old = w.memory.word;
        w.memory.word = w.word().shared_taken().into_bits();
        w.call(|arbiter, _, memory, lock, _, _| {
            let addr = WordAddr::new(lock.slot, Word::W0);
            let add = WordOp::Faa { addr, add: FairWord::TAKE_SHARED };
            let (client, noted) = ((id(n), HANDLE), LedgerEntry::new());
            arbiter.executed_word_op(memory, lock, client, noted, &add, old);
        });
    }
    let next = w.take(70, S, LedgerState::TicketShared, 0);
    assert!(w.wait(70, S, next).is_empty());
}

/// It asks, and does not wait: its place is kept, and nobody is ended for it.
#[test]
fn a_reader_that_asks_beyond_the_most_that_may_be_inside_keeps_its_place() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    let mut inside = Vec::new();
    for n in 1..=readers {
        inside.push(w.take(n, S, LedgerState::HeldShared, 600));
    }
    let ticket = w.take(70, S, LedgerState::TicketShared, 0);
    let poll = Request::Poll { handle: HANDLE, mode: S, ticket, expire_s: 60 };
    for _ in 0..2 {
        let out = w.ask(70, poll);
        let is_queued = matches!(out[..], [Sent { reply: Reply::Queued { ticket: t, .. }, .. }]
            if t == ticket);
        assert!(is_queued, "{out:?}");
    }
    assert!(is_done(&w.release(1, S, inside[0]), 1));
    w.memory.ledgers.remove(&id(1));
    assert!(is_granted(&w.ask(70, poll), 70));
}

#[test]
fn a_client_that_only_asks_ends_no_hold() {
    for (mode, state) in [(X, LedgerState::TicketExclusive), (S, LedgerState::TicketShared)] {
        let mut w = World::new(LockType::Fair, 3);
        w.take(1, X, LedgerState::HeldExclusive, 5);
        let next = w.take(2, mode, state, 0);
        w.ask(2, Request::Poll { handle: HANDLE, mode, ticket: next, expire_s: 60 });
        let word = w.word();
        w.pass(60 * NS);
        w.ask(3, WAKE);
        assert_eq!(w.word(), word, "{mode:?}: no client waits");
    }
}

/// The lease of client 1 is over; it releases after the word was read, before its ledger was.
#[test]
fn a_hold_that_is_released_meanwhile_is_not_ended_from_the_later_word() {
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, X, LedgerState::HeldExclusive, 5);
    let second = w.take(2, X, LedgerState::TicketExclusive, 0);
    let third = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, second).is_empty() && w.wait(3, X, third).is_empty());
    w.now = ServerTime(expiry(5));
    let released = FairWord::from_bits(w.memory.word).exclusive_done();
    w.memory.moves = Some((id(1), LedgerEntry::new(), released.into_bits()));
    let out = w.pass(1);
    assert!(is_granted(&out, 2) && !is_granted(&out, 3), "{out:?}");
    assert_eq!(w.word().nx(), second.tx);
}

/// The holder releases after the word was read; the next one has given its ticket up in its ledger.
#[test]
fn a_ticket_that_was_given_up_is_skipped_by_the_look_that_has_found_it() {
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, X, LedgerState::HeldExclusive, 60);
    w.take(2, X, LedgerState::GivenUpExclusive, 0);
    let released = FairWord::from_bits(w.memory.word).exclusive_done();
    w.memory.moves = Some((id(1), LedgerEntry::new(), released.into_bits()));
    w.ask(3, WAKE);
    assert_eq!(w.word().open_exclusive(), 0);
}

#[test]
fn a_ticket_that_nobody_claims_is_not_skipped_for_readers_in_front_of_it() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    for n in 1..=readers {
        w.take(n, S, LedgerState::HeldShared, 600);
    }
    let next = w.take(70, S, LedgerState::TicketShared, 0);
    w.take(71, X, LedgerState::Intent, 0);
    assert!(w.wait(70, S, next).is_empty());
    assert!(w.pass(60 * NS).is_empty());
    assert_eq!(w.word().open_exclusive(), 1);
}

#[test]
fn a_share_that_nobody_claims_makes_room_for_a_reader_after_a_grace() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    for n in 1..readers {
        w.take(n, S, LedgerState::HeldShared, 600);
    }
    w.memory.word = w.word().shared_taken().into_bits();
    let next = w.take(70, S, LedgerState::TicketShared, 0);
    assert!(w.wait(70, S, next).is_empty());
    assert!(w.pass(u64::from(FAIR_GRACE_S) * NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 70));
    assert_eq!(u32::from(w.word().open_shared()), readers);
}

/// It may be the one that was passed over, or another that nobody claims.
#[test]
fn a_share_that_may_have_been_passed_over_keeps_the_next_waiting_for_a_grace() {
    let mut w = World::new(LockType::Fair, 5);
    let late = w.take(1, S, LedgerState::Intent, 0);
    let first = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, first).is_empty());
    let grace_ns = u64::from(FAIR_GRACE_S) * NS;
    assert!(is_granted(&w.pass(grace_ns + NS / 100), 2), "the share is passed over");
    w.writes(2, LedgerState::HeldExclusive, first, 600);
    // now its owner comes out with it; another share is lost behind it
    w.writes(1, LedgerState::TicketShared, late, 0);
    w.memory.word = w.word().shared_taken().into_bits();
    let last = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, last).is_empty());
    assert!(is_done(&w.release(2, X, first), 2));
    w.memory.ledgers.remove(&id(2));
    assert!(is_granted(&w.pass(3 * grace_ns), 3));
    let poll = Request::Poll { handle: HANDLE, mode: S, ticket: late, expire_s: 9 };
    assert!(is_denied(&w.ask(1, poll)), "it has come too late");
}

/// It came out with its share, was refused and has dropped it; then it asks what is left, or goes.
#[test]
fn a_share_that_was_passed_over_is_not_taken_off_with_its_owner() {
    let ends: [fn(&mut World); 3] =
        [|w| _ = w.ask(1, RESOLVE), |w| _ = w.forget(1), |w| _ = w.pass(60 * NS)];
    for (n, end) in ends.into_iter().enumerate() {
        let (mut w, late, first) = World::passed_over();
        w.writes(1, LedgerState::TicketShared, late, 0);
        let poll = Request::Poll { handle: HANDLE, mode: S, ticket: late, expire_s: 9 };
        assert!(is_denied(&w.ask(1, poll)));
        w.memory.ledgers.remove(&id(1));
        let held = w.take(3, S, LedgerState::HeldShared, 600);
        let next = w.take(4, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(4, X, next).is_empty());
        assert!(is_done(&w.release(2, X, first), 2));
        w.memory.ledgers.remove(&id(2));
        end(&mut w);
        assert_eq!(w.word().open_shared(), 1, "way {n}: {:?}", w.word());
        assert!(is_granted(&w.release(3, S, held), 4), "way {n}");
    }
}

#[test]
fn a_client_that_came_out_with_no_ticket_is_not_suspected_of_the_next() {
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, S, LedgerState::Intent, 0);
    let first = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, first).is_empty());
    assert!(is_granted(&w.pass(u64::from(FAIR_GRACE_S) * NS + NS / 100), 2));
    w.writes(2, LedgerState::HeldExclusive, first, 600);
    w.memory.ledgers.remove(&id(1));
    assert!(is_done(&w.release(2, X, first), 2));
    w.memory.ledgers.remove(&id(2));
    let ticket = w.take(1, S, LedgerState::TicketShared, 0);
    let poll = Request::Poll { handle: HANDLE, mode: S, ticket, expire_s: 9 };
    assert!(is_granted(&w.ask(1, poll), 1));
}

#[test]
fn readers_at_the_end_of_a_lane_leave_it_where_it_can_start_again() {
    let shared = |word: FairWord| {
        let mut w = World::new(LockType::Fair, 3);
        w.writes(3, LedgerState::HeldExclusive, Ticket { tx: 7, ts: 0 }, 1);
        w.memory.word = word.into();
        let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 9 });
        let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
        ticket.tx
    };
    let at = |nx, mx| FairWord::new().with_nx(nx).with_mx(mx);
    assert_eq!(shared(at(FAIR_LANE_DIVERT, FAIR_LANE_DIVERT)), FAIR_LANE_MAX);
    let open = at(FAIR_LANE_DIVERT, FAIR_LANE_DIVERT + 1);
    assert_eq!(shared(open), FAIR_LANE_DIVERT + 1, "behind the exclusive one");
    let ring = at(FAIR_LANE_MAX + 2, FAIR_LANE_MAX + 2);
    assert_eq!(shared(ring), FAIR_LANE_MAX + 2, "it is in the ring already");
}

/// By a message, or by its client's ledger alone.
#[test]
fn a_share_that_is_given_up_is_taken_off_once() {
    for is_told in [true, false] {
        let mut w = World::new(LockType::Fair, 3);
        let ticket = w.take(1, S, LedgerState::GivenUpShared, 0);
        w.take(2, S, LedgerState::HeldShared, 600);
        for _ in 0..3 {
            if is_told {
                w.ask(1, Request::Abandon { handle: HANDLE, mode: S, ticket });
            }
            w.ask(3, WAKE);
            assert_eq!(w.word().open_shared(), 1, "the other one's");
        }
        w.ask(1, RESOLVE);
        assert_eq!(w.word().open_shared(), 1);
    }
}

/// Its ledger names it for as long as it has not looked.
#[test]
fn a_share_that_was_ended_is_not_taken_off_with_its_owner() {
    let ends: [fn(&mut World); 2] = [|w| _ = w.ask(1, RESOLVE), |w| _ = w.forget(1)];
    for end in ends {
        let mut w = World::new(LockType::Fair, 3);
        w.take(1, S, LedgerState::HeldShared, 5);
        let next = w.take(2, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(2, X, next).is_empty());
        assert!(is_granted(&w.pass(7 * NS), 2), "its lease is over");
        assert!(is_done(&w.release(2, X, next), 2));
        w.memory.ledgers.remove(&id(2));
        w.take(3, S, LedgerState::HeldShared, 600);
        end(&mut w);
        assert_eq!(w.word().open_shared(), 1, "the other one's");
    }
}

#[test]
fn a_share_that_lapsed_is_not_believed_when_its_client_comes_back() {
    let mut w = World::new(LockType::Fair, 3);
    let lapsed = w.take(1, S, LedgerState::HeldShared, 60);
    let held = w.take(2, S, LedgerState::HeldShared, 600);
    w.call(|arbiter, now, memory, lock, _, out| {
        arbiter.lapse(now, memory, lock, id(1), HANDLE, out);
    });
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    // its ledger says still what it said
    assert!(is_denied(&w.release(1, S, lapsed)));
    assert!(w.pass(100 * NS).is_empty());
    assert_eq!(w.word().open_shared(), 1, "the other one's");
    assert!(is_granted(&w.release(2, S, held), 3));
}

/// As above.
#[test]
fn a_share_whose_lease_ends_is_taken_off_at_once() {
    let mut w = World::new(LockType::Fair, 5);
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    w.take(1, S, LedgerState::HeldShared, 0);
    w.take(2, S, LedgerState::HeldShared, 0);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    assert!(w.pass(NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 3));
}

#[test]
fn the_shared_lane_starts_again_when_the_lock_is_idle() {
    let end = FAIR_LANE_DIVERT;
    let idle = |ms: u16| FairWord::new().with_ns(ms).with_ms(ms);
    for (word, ts) in [
        (idle(end), 0),
        (idle(end - 1), end - 1),
        (idle(5), 5),
        (idle(end).with_ns(end - 1), 1),
        (idle(end).with_mx(1), end),
    ] {
        let mut w = World::new(LockType::Fair, 2);
        w.memory.word = word.into();
        let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 9 });
        let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
        assert_eq!(ticket.ts, ts, "{word:?}");
    }
}

/// Its share was passed over, so that the shares that are left are others'.
#[test]
fn a_hold_that_came_too_late_takes_no_share_off_when_its_lease_ends() {
    let (mut w, late, first) = World::passed_over();
    w.writes(1, LedgerState::HeldShared, late, 20);
    assert!(is_done(&w.release(2, X, first), 2));
    w.memory.ledgers.remove(&id(2));
    w.take(4, S, LedgerState::HeldShared, 600);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    assert!(w.pass(500 * NS).is_empty(), "another reader is inside");
    assert_eq!(w.word().open_shared(), 1);
    assert!(is_granted(&w.pass(200 * NS), 3));
}

#[test]
fn a_hold_that_came_too_late_takes_no_share_off_with_its_owner() {
    let ends: [fn(&mut World); 2] = [|w| _ = w.ask(1, RESOLVE), |w| _ = w.forget(1)];
    for end in ends {
        let (mut w, late, first) = World::passed_over();
        w.writes(1, LedgerState::HeldShared, late, 20);
        assert!(is_done(&w.release(2, X, first), 2));
        w.memory.ledgers.remove(&id(2));
        w.take(4, S, LedgerState::HeldShared, 600);
        end(&mut w);
        assert_eq!(w.word().open_shared(), 1, "the other one's");
    }
}

/// It came out with its share while the others waited for it.
#[test]
fn a_share_that_was_claimed_within_the_grace_makes_no_room_for_a_reader() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    for n in 1..readers {
        w.take(n, S, LedgerState::HeldShared, 600);
    }
    let late = w.take(readers, S, LedgerState::Intent, 0);
    let next = w.take(70, S, LedgerState::TicketShared, 0);
    assert!(w.wait(70, S, next).is_empty());
    w.writes(readers, LedgerState::HeldShared, late, 600);
    assert!(w.pass(3 * u64::from(FAIR_GRACE_S) * NS).is_empty());
    assert_eq!(u32::from(w.word().open_shared()), readers + 1);
}

#[test]
fn the_arbiter_counts_the_readers_inside() {
    let inside = |readers: u32| {
        let mut w = World::new(LockType::Fair, 9);
        (1..=readers).for_each(|n| _ = w.take(n, S, LedgerState::HeldShared, 60));
        let out = w.ask(9, Request::CountReaders { handle: HANDLE });
        let Reply::Done { word } = out[0].reply else { panic!("{out:?}") };
        word
    };
    assert_eq!([1, 2, 3].map(inside), [1, 2, 3]);
}

/// A chain took it, the note was lost with the channel, and the client was away when its lease
/// ended. Its ledger names the share when it has come back over another fabric.
#[test]
fn a_share_that_ended_before_a_lapse_or_in_it_is_not_ended_again_when_its_client_comes_back() {
    for (is_proxied, is_wanted) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut w = World::new(LockType::Fair, 3);
        if is_proxied {
            w.arbiter.proxy(id(1));
        }
        let share = w.executes_a_share(1, 1);
        let other = w.take(2, S, LedgerState::HeldShared, 600);
        let next = w.take(3, X, LedgerState::TicketExclusive, 0);
        if is_wanted {
            assert!(w.wait(3, X, next).is_empty());
        }
        assert!(w.pass(9 * NS).is_empty());
        assert_eq!(w.word().open_shared(), 2 - u16::from(is_wanted), "ended for the one behind");
        w.refs.retain(|r| r.0 != id(1));
        w.call(|arbiter, now, memory, lock, _, out| {
            arbiter.lapse(now, memory, lock, id(1), HANDLE, out);
        });
        w.memory.ledgers.remove(&id(1));
        w.refs.push((id(1), HANDLE));
        assert_eq!(w.word().open_shared(), 1);
        w.arbiter.unproxy(id(1));
        w.writes(1, LedgerState::HeldShared, share, 1);
        if !is_wanted {
            assert!(w.wait(3, X, next).is_empty(), "proxied: {is_proxied}");
        }
        assert!(w.pass(500 * NS).is_empty(), "proxied: {is_proxied}, wanted: {is_wanted}");
        assert_eq!(w.word().open_shared(), 1, "the other reader's is left");
        assert!(is_granted(&w.release(2, S, other), 3));
    }
}

/// The chain's note was lost, and the client went back to shared memory.
#[test]
fn a_share_that_its_client_released_by_itself_is_not_taken_off_with_a_later_one() {
    enum Since {
        Nothing,
        Named,
        Intent,
    }
    for since in [Since::Nothing, Since::Named, Since::Intent] {
        let mut w = World::new(LockType::Fair, 2);
        w.executes_a_share(1, 600);
        w.memory.word = w.word().shared_done(1).into_bits();
        w.take(2, S, LedgerState::HeldShared, 600);
        let taken = match since {
            Since::Named => {
                w.take(1, S, LedgerState::HeldShared, 600);
                1
            }
            Since::Nothing => {
                w.memory.ledgers.remove(&id(1));
                0
            }
            // it stopped before its ticket
            Since::Intent => {
                w.writes(1, LedgerState::Intent, Ticket { tx: 0, ts: 2 }, 600);
                0
            }
        };
        assert_eq!(w.word().open_shared(), 1 + taken);
        w.ask(1, RESOLVE);
        assert_eq!(w.word().open_shared(), 1, "the other reader's is left");
    }
}

/// Of a chain that noted nothing, which no honest client sends.
#[test]
fn a_share_without_a_note_is_not_taken_off_once_more_by_whom_it_may_have_released() {
    let mut w = World::new(LockType::Fair, 2);
    w.call(|arbiter, _, memory, lock, _, _| {
        let add = FairWord::TAKE_SHARED;
        let word_op = WordOp::Faa { addr: WordAddr::new(lock.slot, Word::W0), add };
        let (whose, old) = ((id(1), HANDLE), memory.word);
        arbiter.executed_word_op(memory, lock, whose, LedgerEntry::new(), &word_op, old);
    });
    w.memory.word = w.word().shared_taken().shared_done(1).into_bits();
    w.take(2, S, LedgerState::HeldShared, 600);
    w.ask(1, RESOLVE);
    assert_eq!(w.word().open_shared(), 1, "the other reader's is left");
}

/// They get their turn together, when the writer before them leaves.
#[test]
fn of_readers_that_wait_together_only_as_many_as_fit_are_let_in() {
    let mut w = World::new(LockType::Fair, 80);
    let readers = u32::from(FAIR_READERS_MAX);
    let held = w.take(80, X, LedgerState::HeldExclusive, 600);
    for n in 1..=readers + 1 {
        let ticket = w.take(n, S, LedgerState::TicketShared, 0);
        assert!(w.wait(n, S, ticket).is_empty());
    }
    let out = w.release(80, X, held);
    let granted = (1..=readers + 1).filter(|&n| is_granted(&out, n));
    assert_eq!(granted.count() as u32, readers);
}

/// It counts again: by what it has seen first, the share that was left behind is the reader's own.
#[test]
fn a_recount_does_not_count_a_reader_that_leaves_meanwhile() {
    let mut w = World::new(LockType::Rw, 3);
    let shares = |n| RwWord::new().with_waiters(true).with_rcount(n).into_bits();
    let noted = |state| LedgerEntry::new().with_state(state).with_detail(3);
    w.memory.ledgers.insert(id(2), noted(LedgerState::HeldShared));
    w.memory.ledgers.insert(id(3), noted(LedgerState::Leaving));
    w.memory.word = shares(2);
    w.memory.moves = Some((id(2), noted(LedgerState::None), shares(1)));
    w.forget(3);
    assert_eq!(w.memory.moves, None);
    w.pass(NS);
    assert_eq!(w.memory.word, 0);
}

#[test]
fn what_has_no_reply_is_not_answered() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let ticket = Ticket { tx: 0, ts: 0 };
        for request in [WAKE, Request::Abandon { handle: HANDLE, mode: S, ticket }] {
            assert!(!request.has_reply());
            let mut w = World::new(lock_type, 1);
            assert!(w.ask(1, request).is_empty(), "{lock_type:?} {request:?}");
        }
    }
}

/// The primary has noted what its chain took; the answer was lost, and so was what it has noted
/// itself since.
#[test]
fn a_client_that_asks_for_what_is_noted_as_held_has_it() {
    for (mode, state) in [(X, LedgerState::HeldExclusive), (S, LedgerState::HeldShared)] {
        for lease_s in [1, 60] {
            let asked = || {
                let mut w = World::new(LockType::Fair, 2);
                let ticket = w.take(1, mode, state, lease_s);
                w.now = w.now.plus_ns(9 * NS);
                (w, ticket)
            };
            let (mut w, ticket) = asked();
            assert!(is_granted(&w.wait(1, mode, ticket), 1), "{state:?}, {lease_s} s");
            let (mut w, ticket) = asked();
            let poll = Request::Poll { handle: HANDLE, mode, ticket, expire_s: 60 };
            assert!(is_granted(&w.ask(1, poll), 1), "{state:?}, {lease_s} s");
        }
    }
}
