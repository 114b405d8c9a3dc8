// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock: the arbiter's side.

use crate::common::lock::{
    expiry, id, is_denied, is_done, is_granted, until, World, HANDLE, RESOLVE, S, X,
};
use dlock_core::clock::{Lease, NS};
use dlock_core::ids::Slot;
use dlock_core::limits::{FAIR_DIVERT, FAIR_GRACE, FAIR_LANE_END, HINDRANCE_S};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Word, WordAddr, WordOp};
use dlock_core::memory::words::{TakenWord, Ticket, TurnWord};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

const GRACE_NS: u64 = FAIR_GRACE.ns();
/// A time longer than any pause between two looks of the arbiter.
const SOON_NS: u64 = 2 * NS;

fn fair(clients: u32) -> World {
    World::new(LockType::Fair, clients)
}

/// A lock of which client 1 has the turn for `lease_s` seconds; client 2 sleeps behind it. Returns
/// both tickets, too.
fn claimed(lease_s: u32) -> (World, Ticket, Ticket) {
    let mut w = fair(3);
    let first = w.take(1, X, lease_s);
    let second = w.take(2, X, 0);
    assert!(w.wait(2, X, second).is_empty());
    (w, first, second)
}

#[test]
fn a_claimed_turn_is_held_until_its_deadline_and_no_longer() {
    let (mut w, ..) = claimed(30);
    let left = expiry(30) - w.now.0;
    assert!(w.pass(left - 1).is_empty(), "it may be held");
    assert!(is_granted(&w.pass(1), 2));
}

#[test]
fn a_turn_without_a_deadline_ends_with_its_release_alone() {
    let (mut w, ..) = claimed(u32::MAX);
    assert!(w.pass(1_000 * NS).is_empty());
    assert!(w.turn().told(), "whoever releases asks the arbiter");
}

#[test]
fn who_has_claimed_its_turn_may_extend_and_release_through_the_arbiter() {
    let (mut w, first, second) = claimed(30);
    assert_eq!(w.extend(2, X, second, Lease::secs(40)), None, "not its turn");
    assert_eq!(w.extend(1, X, first, Lease::NONE), Some(until(30)));
    assert_eq!(w.extend(1, X, first, Lease::secs(50)), Some(until(50)));
    assert_eq!(
        w.extend(1, X, first, Lease::secs(10)),
        Some(until(50)),
        "no extend shortens a lease"
    );
    w.claims(1, X, 1, 60); // client 1 has extended its claim by itself
    assert_eq!(w.extend(1, X, first, Lease::NONE), Some(until(60)), "it was told so");
    let out = w.release(1, X, first);
    assert!(is_done(&out, 1) && is_granted(&out, 2));
    assert!(is_denied(&w.release(1, X, first)));
    assert_eq!(w.extend(1, X, first, Lease::secs(50)), None);
}

#[test]
fn a_turn_that_is_waited_for_is_granted_and_one_that_is_undone_is_passed_on() {
    let (mut w, first, _) = claimed(30);
    assert!(is_granted(&w.wait(1, X, first), 1));
    let (mut w, ..) = claimed(30);
    let out = w.ask(1, RESOLVE);
    assert!(is_done(&out, 1) && is_granted(&out, 2));
    let (mut w, ..) = claimed(30);
    assert!(is_granted(&w.forget(1), 2));
}

#[test]
fn a_release_that_was_under_way_when_the_word_was_told_is_seen_by_a_look() {
    let mut w = fair(2);
    w.take(1, X, 600);
    let second = w.take(2, X, 0);
    let before = w.memory.turn;
    assert!(w.wait(2, X, second).is_empty());
    assert!(w.turn().told());
    // client 1's compare-and-swap would fail, its ledger entry says none, and it dies before it
    // asks the arbiter
    assert_ne!(w.memory.turn, before);
    w.memory.ledgers.remove(&id(1));
    assert!(is_granted(&w.pass(NS / 10), 2), "soon");
}

/// The arbiter knows that client 2 has a share. That client has released it by itself, and its
/// ledger entry changes later.
#[test]
fn a_share_that_was_released_before_the_word_was_told_is_seen_by_a_look() {
    let mut w = fair(3);
    let given_up = w.take(1, S, 600);
    let held = w.take(2, S, 600);
    assert!(is_granted(&w.wait(2, S, held), 2));
    w.ask(1, Request::Abandon { handle: HANDLE, mode: S, ticket: given_up });
    w.memory.ledgers.remove(&id(1));
    let behind = w.take(3, X, 600);
    w.memory.turn = w.turn().done(S).into_bits();
    assert!(w.wait(3, X, behind).is_empty(), "a share is open, and client 2 may have it");
    w.memory.ledgers.remove(&id(2));
    assert!(is_granted(&w.pass(NS / 10), 3), "soon, not at the end of its lease");
}

#[test]
fn told_is_set_while_somebody_sleeps_and_no_longer() {
    let (mut w, first, second) = claimed(30);
    let out = w.release(1, X, first);
    assert!(is_granted(&out, 2) && !w.turn().told());
    let _ = second;
    let third = w.take(3, X, 30);
    assert!(w.wait(3, X, third).is_empty() && w.turn().told());
    let cancel = Request::Cancel { handle: HANDLE, wait: WaitNumber(1) };
    let out = w.ask(3, cancel);
    assert!(is_done(&out, 3) && !w.turn().told(), "{out:?}");
    assert!(matches!(out[0].reply, Reply::Cancelled { .. }), "{out:?}");
}

#[test]
fn a_place_whose_claim_is_over_is_kept_while_its_client_sleeps() {
    let (mut w, first, second) = claimed(30);
    let third = w.take(3, X, 30);
    assert!(is_done(&w.release(1, X, first), 1));
    // client 2 is granted the lock for 30 s, and is dead
    assert!(w.wait(3, X, third).is_empty());
    let _ = second;
    assert!(is_granted(&w.pass(40 * NS), 3));
}

#[test]
fn who_asks_once_keeps_its_place_and_its_turn_for_a_grace_that_others_want() {
    let mut w = fair(3);
    let first = w.take(1, X, 600);
    let second = w.take(2, X, 0);
    let out = w.poll(2, X, second);
    assert!(matches!(out[..], [ref s] if matches!(s.reply, Reply::Queued { .. })), "{out:?}");
    assert!(!w.turn().told(), "nobody sleeps");
    w.passes_on(1, X);
    w.pass(10 * GRACE_NS);
    assert!(is_granted(&w.poll(2, X, second), 2), "nobody else wanted it");
    assert!(is_done(&w.release(2, X, second), 2));
    let _ = first;

    let mut w = fair(3);
    let first = w.take(1, X, 600);
    let second = w.take(2, X, 0);
    w.poll(2, X, second);
    let third = w.take(3, X, 30);
    assert!(w.wait(3, X, third).is_empty());
    assert!(is_done(&w.release(1, X, first), 1));
    assert!(w.pass(GRACE_NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 3));
    assert!(is_denied(&w.poll(2, X, second)), "its place is gone");
}

#[test]
fn a_place_that_was_given_up_is_passed() {
    let mut w = fair(3);
    let first = w.take(1, X, 600);
    let second = w.take(2, X, 30);
    let third = w.take(3, X, 30);
    assert!(w.wait(3, X, third).is_empty());
    assert!(is_done(&w.release(1, X, first), 1));
    w.memory.ledgers.remove(&id(1));
    w.memory.ledgers.remove(&id(2));
    let abandon = Request::Abandon { handle: HANDLE, mode: X, ticket: second };
    let out = w.ask(2, abandon);
    assert!(is_granted(&out, 3), "{out:?} {:?} {:?}", w.taken(), w.turn());
}

/// A ticket number at the head whose owner is not known may belong to any claim that existed when
/// it came to the head.
#[test]
fn a_number_that_nobody_is_known_to_have_waits_for_the_claims_that_were_there() {
    let mut w = fair(4);
    let gone = w.take(1, X, 600);
    w.memory.ledgers.remove(&id(1)); // client 1 is dead, and its session has ended
    w.claims(3, X, 7, 20); // client 3 may be the owner of that number
    let second = w.take(2, X, 0);
    assert!(w.wait(2, X, second).is_empty(), "{gone:?}");
    // client 4's claim was written after the number came to the head, so client 4 is not the owner
    w.claims(4, X, 1, 600);
    assert!(w.pass(expiry(20) - w.now.0 - 1).is_empty());
    assert!(is_granted(&w.pass(SOON_NS), 2));
}

#[test]
fn a_claim_of_another_ticket_is_not_waited_for() {
    let mut w = fair(3);
    w.take(1, X, 600);
    w.memory.ledgers.remove(&id(1));
    w.claims(3, X, 7, 600);
    let second = w.take(2, X, 0);
    assert!(w.wait(2, X, second).is_empty());
    w.claims(3, X, 8, 600); // a new stamp in client 3's claim shows that its earlier ticket is done
    assert!(is_granted(&w.pass(SOON_NS), 2));
}

#[test]
fn an_exclusive_ticket_behind_shares_waits_for_those_that_may_be_held() {
    let mut w = fair(4);
    let a = w.take(1, S, 20);
    w.take(2, S, 600);
    let x = w.take(3, X, 0);
    assert_eq!((a.tx, x.ts), (0, 2));
    assert!(w.wait(3, X, x).is_empty());
    w.memory.ledgers.remove(&id(2)); // dead
    w.pass(SOON_NS);
    assert_eq!(w.turn().ns(), 1, "the share of one of them is counted as done");
    assert!(w.pass(expiry(20) - w.now.0 - 1).is_empty());
    assert!(is_granted(&w.pass(SOON_NS), 3));
}

/// The client's clock may have stood still. Then its own compare-and-swap would count another
/// client's share as done.
#[test]
fn a_client_that_may_not_know_that_its_share_was_counted_releases_through_the_arbiter() {
    let mut w = fair(3);
    w.take(1, S, 20);
    let x = w.take(3, X, 600);
    assert!(w.wait(3, X, x).is_empty());
    assert!(is_granted(&w.pass(30 * NS), 3));
    assert!(w.turn().told(), "no client sleeps, and client 1 has not said none");
    w.memory.ledgers.remove(&id(1));
    assert!(is_done(&w.release(3, X, x), 3) && !w.turn().told());
}

#[test]
fn a_share_that_was_counted_as_done_is_refused() {
    let mut w = fair(3);
    let a = w.take(1, S, 20);
    let x = w.take(3, X, 0);
    assert!(w.wait(3, X, x).is_empty());
    assert!(is_granted(&w.pass(30 * NS), 3));
    assert_eq!(w.extend(1, S, a, Lease::secs(30)), None);
    assert!(is_denied(&w.release(1, S, a)));
    assert!(is_denied(&w.wait(1, S, a)));
    assert_eq!(w.turn().ns(), 1);
}

#[test]
fn shares_that_stay_are_not_counted_for_those_that_are_gone() {
    let mut w = fair(4);
    let a = w.take(1, S, 600);
    let b = w.take(2, S, 600);
    let x = w.take(3, X, 0);
    assert!(w.wait(3, X, x).is_empty());
    let out = w.forget(2);
    assert!(out.is_empty(), "{out:?}");
    w.memory.ledgers.remove(&id(2));
    w.pass(SOON_NS);
    assert_eq!(w.turn().ns(), 1);
    assert_eq!(w.extend(1, S, a, Lease::NONE), Some(until(600)), "{b:?}");
    let out = w.release(1, S, a);
    assert!(is_done(&out, 1) && is_granted(&out, 3));
}

#[test]
fn readers_that_are_inside_are_counted() {
    let mut w = fair(4);
    let counts = |ticket| Request::CountReaders { handle: HANDLE, mode: S, ticket };
    let count = |w: &mut World, ticket| match w.ask(4, counts(ticket))[..] {
        [dlock_core::arbiter::Sent { reply: Reply::Done { word }, .. }] => word,
        ref other => panic!("{other:?}"),
    };
    w.take(1, S, 600);
    w.take(2, S, 600);
    assert_eq!(count(&mut w, None), 2);
    let x = w.take(3, X, 0);
    assert_eq!(count(&mut w, None), 2, "as many as may be inside");
    let behind = w.take(4, S, 600);
    assert_eq!(count(&mut w, Some(behind)), 2, "it says that it is not inside");
    assert!(w.wait(3, X, x).is_empty());
    assert_eq!(count(&mut w, None), 2);
}

/// A fair lock whose next number is the last one that is a ticket.
fn nearly_high(clients: u32) -> World {
    let mut w = fair(clients);
    w.memory.word = TakenWord::new().with_mx(FAIR_DIVERT - 1).into_bits();
    w.memory.turn = TurnWord::new().with_nx(FAIR_DIVERT - 1).into_bits();
    w.memory.lap = 5;
    w
}

const TAKE: Request = Request::TakeTicket { handle: HANDLE, mode: X, lease: Lease::secs(30) };

/// A client's addition has found a high number, so the client asks the arbiter for a ticket.
fn asks_for_one(w: &mut World, n: u32) -> Vec<dlock_core::arbiter::Sent> {
    assert!(w.taken().is_high());
    w.take(n, X, 30);
    w.ask(n, TAKE)
}

#[test]
fn the_lanes_start_again_when_nothing_of_a_lap_can_take_effect() {
    let mut w = nearly_high(3);
    let last = w.take(1, X, 600);
    // an addition that finds a high number takes no ticket, so no client has this number
    let out = asks_for_one(&mut w, 2);
    assert!(out.is_empty(), "{out:?}");
    let out = w.release(1, X, last);
    assert!(is_done(&out, 1) && !is_done(&out, 2), "its entry is there: {out:?}");
    w.memory.ledgers.remove(&id(1));
    let out = w.pass(NS / 2);
    assert!(is_done(&out, 2), "it takes one itself: {out:?}");
    assert_eq!((w.taken(), w.turn()), (TakenWord::START, TurnWord::START));
    assert!(w.memory.lap > 5 + u64::from(FAIR_DIVERT));
    assert!(w.memory.lap < 5 + 3 * u64::from(FAIR_DIVERT));
    assert!(is_denied(&w.release(1, X, last)), "it is of the lap before");
    assert!(is_denied(&w.wait(1, X, last)));
}

#[test]
fn who_was_held_back_for_long_gets_a_high_number_from_the_arbiter() {
    let mut w = nearly_high(3);
    w.take(1, X, 600);
    assert!(asks_for_one(&mut w, 2).is_empty());
    assert!(w.pass(NS - 1).is_empty());
    let out = w.pass(1);
    let [ref sent] = out[..] else { panic!("{out:?}") };
    let Reply::Queued { ticket, .. } = sent.reply else { panic!("{out:?}") };
    assert!(ticket.tx >= FAIR_DIVERT && ticket.lap == 5, "{ticket:?}");
    assert!(w.wait(2, X, ticket).is_empty());
    w.memory.ledgers.remove(&id(1));
    assert!(is_granted(&w.pass(SOON_NS), 2), "the number between is nobody's");
}

/// Two clients died at the same time: the client behind them waits for one grace, not for two.
#[test]
fn the_graces_of_clients_whose_channels_ended_end_together() {
    let mut w = fair(4);
    let first = w.take(1, X, 600);
    for n in [2, 3] {
        let ticket = w.take(n, X, 0);
        assert!(w.wait(n, X, ticket).is_empty());
    }
    let last = w.take(4, X, 0);
    assert!(w.wait(4, X, last).is_empty());
    for n in [2, 3] {
        w.call(|arbiter, now, memory, lock, _, out| {
            arbiter.drop_waits(now, memory, lock, id(n), out);
        });
    }
    assert!(w.pass(GRACE_NS).is_empty());
    assert!(is_granted(&w.release(1, X, first), 4));
}

/// Takes a ticket for a client whose chains the primary executes.
fn takes_by_primary(w: &mut World, n: u32, lease_s: u32) -> Ticket {
    w.arbiter.proxy(id(n));
    let before = w.memory.word;
    let ticket = w.take(n, X, lease_s);
    let claim = w.memory.ledgers[&id(n)];
    let addr = WordAddr::new(Slot(0), Word::W0);
    let took = WordOp::Faa { addr, add: TakenWord::addend(X) };
    w.call(|arbiter, _, memory, lock, _, _| {
        arbiter.executed_word_op(memory, lock, (id(n), HANDLE), claim, &took, before);
    });
    ticket
}

/// Nothing but this primary can show the client its turn. A client that looks by itself may have
/// seen its turn since, and so may one whose turn has come.
#[test]
fn a_place_of_a_client_whose_channel_has_ended_is_kept_for_a_grace_only() {
    let ends = |w: &mut World, n| {
        w.call(|arbiter, now, memory, lock, _, out| {
            arbiter.drop_waits(now, memory, lock, id(n), out);
        })
    };
    for (is_by_primary, comes_back) in [(true, false), (false, false), (true, true)] {
        let mut w = fair(3);
        let first = w.take(1, X, 600);
        let second = match is_by_primary {
            true => takes_by_primary(&mut w, 2, 58),
            false => w.take(2, X, 58),
        };
        let third = w.take(3, X, 58);
        assert!(w.wait(2, X, second).is_empty() && w.wait(3, X, third).is_empty());
        assert!(ends(&mut w, 2).is_empty());
        assert!(w.pass(GRACE_NS / 2).is_empty(), "the first has its turn");
        if comes_back {
            w.claims(2, X, 1, 58); // the new channel begins with what the client claims
            assert!(w.wait(2, X, second).is_empty());
        }
        assert!(w.pass(GRACE_NS + NS).is_empty(), "the first has its turn");
        let out = w.release(1, X, first);
        assert_eq!(is_granted(&out, 3), is_by_primary && !comes_back, "{out:?}");
        assert_eq!(is_granted(&out, 2), comes_back, "{out:?}");
    }
    let mut w = fair(1);
    takes_by_primary(&mut w, 1, 30);
    assert!(ends(&mut w, 1).is_empty());
    assert_eq!(w.memory.ledgers[&id(1)].deadline(), until(30), "it may rely on its turn");
}

/// An answer to a request of the earlier channel would be taken for an answer on the next channel.
#[test]
fn who_is_held_back_is_not_answered_on_another_channel() {
    let mut w = nearly_high(3);
    w.take(1, X, 600);
    assert!(asks_for_one(&mut w, 2).is_empty());
    assert_eq!(w.arbiter.waits_len(id(2)), 1);
    let out = w.call(|arbiter, now, memory, lock, _, out| {
        arbiter.drop_waits(now, memory, lock, id(2), out);
    });
    assert!(out.is_empty() && w.pass(2 * NS).is_empty());
}

#[test]
fn there_is_an_end_of_a_lane() {
    let mut w = fair(2);
    w.memory.word = TakenWord::new().with_mx(FAIR_LANE_END).into_bits();
    w.memory.turn = TurnWord::new().with_nx(FAIR_LANE_END - 1).into_bits();
    w.claims(1, X, 1, 600);
    assert!(asks_for_one(&mut w, 2).is_empty());
    assert!(is_denied(&w.pass(NS)));
}

/// A client hangs, and its ledger entry is over: the arbiter has it fenced.
#[test]
fn an_entry_that_is_over_hinders_a_lap_until_its_client_is_fenced() {
    let mut w = nearly_high(3);
    w.take(1, X, 1);
    assert!(asks_for_one(&mut w, 2).is_empty());
    w.pass(5 * NS);
    let hinderer = |w: &mut World| w.arbiter.hinderer(&|_| false);
    assert!(asks_for_one(&mut w, 2).is_empty(), "once more");
    assert_eq!(hinderer(&mut w), None);
    w.pass((u64::from(HINDRANCE_S) + 10) * NS);
    assert_eq!(hinderer(&mut w), Some(id(1)));
}

/// The compare-and-swap fails only if a client changes the word between the arbiter's look and the
/// swap.
#[test]
fn a_decision_that_a_client_has_overtaken_is_taken_again() {
    struct Overtaken<'a>(&'a mut crate::common::lock::Memory, bool);
    impl LockMemory for Overtaken<'_> {
        fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
            if std::mem::take(&mut self.1) && addr.word() == Word::W1 {
                self.0.turn = TurnWord::from_bits(self.0.turn).done(X).into_bits();
                self.0.ledgers.remove(&id(1));
            }
            self.0.cas(addr, expect, swap)
        }
        fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
            self.0.faa(addr, add)
        }
        fn read(&mut self, addr: WordAddr) -> u64 {
            self.0.read(addr)
        }
        fn set(&mut self, addr: WordAddr, value: u64) {
            self.0.set(addr, value);
        }
        fn ledger(
            &mut self,
            client: dlock_core::ids::ClientId,
            handle: dlock_core::ids::Handle,
        ) -> dlock_core::memory::words::LedgerEntry {
            self.0.ledger(client, handle)
        }
        fn set_ledger(
            &mut self,
            client: dlock_core::ids::ClientId,
            handle: dlock_core::ids::Handle,
            entry: dlock_core::memory::words::LedgerEntry,
        ) {
            self.0.set_ledger(client, handle, entry);
        }
    }
    let mut w = fair(2);
    w.take(1, X, 600);
    let ticket = w.take(2, X, 0);
    let wait = WaitNumber(1);
    let request = Request::Wait {
        handle: HANDLE,
        mode: X,
        lease: Lease::secs(30),
        wait,
        ticket: Some(ticket),
    };
    let out = w.call(|arbiter, now, memory, lock, seq, out| {
        let from = dlock_core::arbiter::Caller { client: id(2), handle: HANDLE, seq };
        arbiter.request(now, &mut Overtaken(memory, true), lock, from, request, out);
    });
    assert!(is_granted(&out, 2), "{out:?}");
    assert_eq!((w.turn().nx(), w.turn().told()), (1, false));
}

#[test]
fn a_forged_word_makes_no_lock_of_two_and_ends() {
    for (taken, turn) in [(0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX), (5, 1 << 40)] {
        let mut w = fair(2);
        (w.memory.word, w.memory.turn) = (taken, turn);
        w.claims(1, X, 1, 600);
        w.claims(2, S, 1, 600);
        for mode in [Mode::Exclusive, Mode::Shared] {
            let ticket = Ticket { lap: 0, tx: 3, ts: 4 };
            w.ask(1, Request::Poll { handle: HANDLE, mode, ticket, lease: Lease::secs(5) });
            w.ask(2, Request::TakeTicket { handle: HANDLE, mode, lease: Lease::secs(5) });
        }
        w.pass(2 * NS);
    }
}
