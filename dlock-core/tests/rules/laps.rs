// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair locks whose lanes start again, clients that stop half-way, and what one call may take.

use crate::common::entry::executed;
use crate::common::lock;
use crate::common::lock::{id, is_granted, World, HANDLE, S, START_S, X};
use dlock_core::arbiter::{Sent, FAIR_WORK_MAX};
use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::control::{LockDesc, LockGrant};
use dlock_core::ids::{LockId, Slot};
use dlock_core::limits::{
    CLIENTS_MAX, FAIR_LANE_DIVERT, FAIR_LANE_MAX, FAIR_LANE_RING_END, HINDRANCE_S,
};
use dlock_core::lock::{Begin, LockEntry, Op, Step};
use dlock_core::message::{LockType, Reply, Request, WaitNumber};
use dlock_core::status::Status;
use dlock_core::word_op::{Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, RwWord, Ticket};

fn lanes_at(number: u16) -> u64 {
    FairWord::new().with_nx(number).with_mx(number).into_bits()
}

fn entry(lock_type: LockType) -> LockEntry {
    let grant =
        LockGrant { lock: LockId(5), handle: HANDLE, slot: Slot(0), word: 0, already: false };
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0 };
    LockEntry::new(id(1), START_S, lock_type, &grant, desc)
}

fn at(seconds: u64) -> Now {
    Now::exact(ServerTime((u64::from(START_S) + seconds) * NS))
}

/// An entry that has acquired the free lock for 5 s.
fn holder() -> LockEntry {
    let mut entry = entry(LockType::Fair);
    let op = Op::TryLock { mode: X, expire_s: 5 };
    let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, at(0)) else { panic!() };
    let done = machine.outcome(&mut entry, executed(&chain, 0), at(0));
    assert!(matches!(done, Step::Done(result) if result.status == Status::Success));
    entry
}

#[test]
fn an_intent_comes_before_the_ticket() {
    let mut entry = entry(LockType::Fair);
    let op = Op::TryLock { mode: X, expire_s: 5 };
    let Begin::Run(_, Step::Chain(chain)) = entry.begin(op, at(0)) else { panic!() };
    let [WordOp::WriteLedger { value, .. }, WordOp::Faa { .. }] = chain.ops() else {
        panic!("{chain:?}")
    };
    assert_eq!(LedgerEntry::from_bits(*value).state(), LedgerState::Intent);
}

#[test]
fn a_number_that_a_ledger_names_is_not_given_out_again() {
    let mut w = World::new(LockType::Fair, 3);
    // its release took effect, and it stopped before its ledger said so
    w.writes(1, LedgerState::HeldExclusive, Ticket { tx: 7, ts: 0 }, 1);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    // and another one did with a number of the ring
    w.writes(3, LedgerState::HeldExclusive, Ticket { tx: FAIR_LANE_MAX + 9, ts: 0 }, 1);
    for _ in 0..5_000 {
        let ticket = w.cycle(2);
        assert!(ticket.tx >= FAIR_LANE_MAX, "{ticket:?}");
        assert_ne!(ticket.tx, FAIR_LANE_MAX + 9);
    }
    w.memory.ledgers.clear();
    assert_eq!(w.cycle(2).tx, 0, "the lane starts again");
}

/// A fetch-and-add that carried would change the next lane of the word.
#[test]
fn there_is_room_above_the_ring_for_an_addition_of_each_client_that_does_not_know() {
    let mut w = World::new(LockType::Fair, 2);
    w.writes(1, LedgerState::Intent, Ticket { tx: 7, ts: 1 }, 1);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    for _ in 0..5_000 {
        w.cycle(2);
        assert!(usize::from(u16::MAX - w.word().mx()) >= CLIENTS_MAX, "{:?}", w.word());
    }
    // they have added, and the arbiter's numbers go on in the ring
    let above = FAIR_LANE_RING_END + 9;
    w.memory.word = lanes_at(above);
    assert!((FAIR_LANE_MAX..FAIR_LANE_RING_END).contains(&w.cycle(2).tx));
}

fn w0(slot: Slot) -> WordAddr {
    WordAddr::new(slot, Word::W0)
}

fn try_take_ticket(w: &mut World, n: u32) -> Option<Ticket> {
    let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 });
    let ticket = match out[..] {
        [Sent { reply: Reply::Granted { ticket, .. }, .. }] => ticket,
        [Sent { reply: Reply::Queued { ticket, .. }, .. }] => Some(ticket),
        _ => None,
    }?;
    w.writes(n, LedgerState::TicketExclusive, ticket, 0);
    Some(ticket)
}

fn take_ticket(w: &mut World, n: u32) -> Ticket {
    try_take_ticket(w, n).unwrap()
}

/// With the head in the ring and the last ticket of a new lap, those of the ring's beginning would
/// look done.
#[test]
fn a_queue_that_comes_round_in_the_ring_keeps_its_order() {
    let mut w = World::new(LockType::Fair, 6);
    w.memory.word = lanes_at(FAIR_LANE_RING_END - 2);
    w.writes(6, LedgerState::HeldExclusive, Ticket { tx: 7, ts: 0 }, 1); // in its release
    let mut tickets: Vec<Ticket> = (1..=4).map(|n| take_ticket(&mut w, n)).collect();
    assert!(tickets[2].tx < tickets[1].tx, "round: {tickets:?}");
    w.memory.ledgers.remove(&id(6));
    tickets.push(take_ticket(&mut w, 5));
    for n in 2..=5 {
        assert!(w.wait(n, X, tickets[n as usize - 1]).is_empty(), "{n} of {tickets:?}");
    }
    for n in 1..5 {
        let out = w.release(n, X, tickets[n as usize - 1]);
        w.memory.ledgers.remove(&id(n));
        assert!(is_granted(&out, n + 1), "{out:?} after {n} of {tickets:?}");
    }
}

/// One reader stays while the numbers of the ring come round to its own, by requests and by clients
/// that do not know where the lane is.
#[test]
fn a_share_is_inside_however_often_the_numbers_come_to_its_own() {
    for n in 7..=10 {
        let mut w = World::new(LockType::Fair, 4);
        w.writes(4, LedgerState::HeldExclusive, Ticket { tx: 8, ts: 0 }, 1);
        w.memory.word = lanes_at(FAIR_LANE_MAX + 9);
        let share = w.take(1, S, LedgerState::HeldShared, 600);
        take_ticket(&mut w, 3); // the arbiter sees the share at its turn
        w.memory.ledgers.remove(&id(3));
        let nx = FAIR_LANE_MAX + n;
        w.memory.word = w.word().with_nx(nx).with_mx(nx).into_bits();
        let ticket = w.take(2, X, LedgerState::TicketExclusive, 0);
        w.memory.word = w.word().with_mx(nx + 4).into_bits(); // of no client
        assert!(w.wait(2, X, ticket).is_empty());
        assert!(w.pass(100 * NS).is_empty(), "the share is taken off: {:?}", w.word());
        assert_eq!(w.word().open_shared(), 1);
        let out = w.release(1, S, share);
        assert!(is_granted(&out, 2), "{out:?}");
    }
}

/// Behind the last number of the ring, with others open, the share would seem to wait for them.
#[test]
fn the_ring_does_not_come_round_past_a_share_of_an_earlier_number() {
    let mut w = World::new(LockType::Fair, 4);
    let share = w.take(1, S, LedgerState::HeldShared, 600);
    w.memory.word =
        w.word().with_nx(FAIR_LANE_RING_END - 1).with_mx(FAIR_LANE_RING_END - 1).into_bits();
    let last = take_ticket(&mut w, 2);
    assert_eq!(last.tx, FAIR_LANE_RING_END - 1);
    assert_eq!(try_take_ticket(&mut w, 3), None);
    assert!(w.wait(2, X, last).is_empty());
    assert!(w.pass(590 * NS).is_empty(), "{:?}", w.word());
    let out = w.release(1, S, share);
    w.memory.ledgers.remove(&id(1));
    assert!(is_granted(&out, 2));
    assert_eq!(take_ticket(&mut w, 3).tx, 0, "the lane starts again");
}

/// Of a client whose chains the primary executes it knows the share without its ledger.
#[test]
fn the_lane_does_not_start_again_past_a_share_that_no_ledger_names() {
    let mut w = World::new(LockType::Fair, 3);
    w.arbiter.proxy(id(1));
    w.memory.word = lanes_at(FAIR_LANE_RING_END - 9);
    let old = w.memory.word;
    w.memory.word = w.word().shared_taken().into_bits();
    w.call(|arbiter, _, memory, lock, _, _| {
        let word_op = WordOp::Faa { addr: w0(lock.slot), add: FairWord::TAKE_SHARED };
        arbiter.executed_word_op(memory, lock, (id(1), HANDLE), LedgerEntry::new(), &word_op, old);
    });
    w.memory.word = w.word().with_nx(FAIR_LANE_MAX).with_mx(FAIR_LANE_MAX).into_bits();
    let head = take_ticket(&mut w, 2);
    assert!(w.wait(2, X, head).is_empty(), "the share is inside");
    assert_eq!(take_ticket(&mut w, 3).tx, head.tx + 1);
    assert_eq!(w.word().open_shared(), 1);
}

/// The message that says so would give up whoever has the number by then.
#[test]
fn a_number_that_was_given_up_is_not_given_out_again_before_the_message_came() {
    let mut w = World::new(LockType::Fair, 2);
    let ticket = Ticket { tx: 7, ts: 0 };
    w.writes(1, LedgerState::GivenUpExclusive, ticket, 0);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    for _ in 0..10 {
        assert!(w.cycle(2).tx >= FAIR_LANE_MAX);
    }
    w.ask(1, Request::Abandon { handle: HANDLE, mode: X, ticket });
    assert_eq!(w.cycle(2).tx, 0, "the lane starts again");
}

#[test]
fn a_lane_does_not_start_again_while_somebody_may_come_out_with_an_old_number() {
    let mut w = World::new(LockType::Fair, 2);
    w.writes(1, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 1);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    assert!(w.cycle(2).tx >= FAIR_LANE_MAX);
    w.memory.ledgers.clear();
    assert_eq!(w.cycle(2).tx, 0);
}

/// Over 65,536 tickets, and twice round.
#[test]
fn a_release_that_takes_effect_laps_later_finds_another_word() {
    let mut w = World::new(LockType::Fair, 2);
    let mut zombie = holder();
    let held = w.take(1, X, LedgerState::HeldExclusive, 5);
    let Begin::Run(_, Step::Chain(release)) = zombie.begin(Op::Unlock, at(1)) else { panic!() };
    let [WordOp::Cas { expect, .. }] = *release.ops() else { panic!("{release:?}") };
    assert_eq!(w.memory.word, expect, "now it would be right");
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    assert!(is_granted(&w.pass(7 * NS), 2), "the hold of {held:?} is over");
    let release = Request::Release { handle: HANDLE, mode: X, ticket: Some(next) };
    w.ask(2, release);
    w.memory.ledgers.remove(&id(2));
    for _ in 0..2 * 65_536 {
        let word = w.word();
        if word.mx() < FAIR_LANE_DIVERT {
            // by itself, as fast as it can
            w.memory.word = word.exclusive_taken().into_bits();
            assert_ne!(w.memory.word, expect);
            w.memory.word = w.word().exclusive_done().into_bits();
        } else {
            let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 };
            let out = w.ask(2, take);
            let Reply::Granted { ticket, .. } = out[0].reply else { panic!("{out:?}") };
            assert_ne!(w.memory.word, expect, "it would end {ticket:?}");
            w.ask(2, Request::Release { handle: HANDLE, mode: X, ticket });
        }
    }
}

#[test]
fn a_release_that_may_be_late_goes_to_the_arbiter() {
    let early = holder().begin(Op::Unlock, at(4));
    assert!(matches!(early, Begin::Run(_, Step::Chain(_))), "{early:?}");
    let late = holder().begin(Op::Unlock, at(6));
    assert!(matches!(late, Begin::Run(_, Step::Request(Request::Release { .. }))), "{late:?}");
}

#[test]
fn a_release_in_doubt_is_resolved_without_being_asked() {
    let mut entry = holder();
    let Begin::Run(mut machine, Step::Chain(_)) = entry.begin(Op::Unlock, at(1)) else { panic!() };
    machine.outcome(&mut entry, Outcome::Unknown, at(1));
    assert!(matches!(entry.undo(at(1)), Some((_, Step::Request(Request::Resolve { .. })))));
}

#[test]
fn two_claims_to_one_ticket_never_end_a_hold() {
    let mut w = World::new(LockType::Fair, 3);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    w.writes(2, LedgerState::HeldExclusive, held, 1);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    assert!(w.pass(500 * NS).is_empty());
    assert!(w.forget(2).is_empty(), "the one that is gone had none");
    assert!(w.pass(50 * NS).is_empty());
    assert!(is_granted(&w.pass(100 * NS), 3));
}

#[test]
fn readers_that_come_and_go_do_not_end_a_long_share() {
    for passed in [1, 40_000, 65_535, 65_536] {
        let mut w = World::new(LockType::Fair, 2);
        w.take(1, S, LedgerState::HeldShared, 600);
        let (word, n) = (w.word(), passed as u16);
        let (ns, ms) = (word.ns().wrapping_add(n), word.ms().wrapping_add(n));
        w.memory.word = word.with_ns(ns).with_ms(ms).into_bits();
        let next = w.take(2, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(2, X, next).is_empty());
        assert!(w.pass(590 * NS).is_empty(), "after {passed} others");
        assert!(is_granted(&w.pass(20 * NS), 2));
    }
}

#[test]
fn a_ticket_that_no_client_can_come_out_with_is_skipped_at_once() {
    let mut w = World::new(LockType::Fair, 2);
    w.take(1, X, LedgerState::Intent, 0);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    assert!(w.pass(NS).is_empty(), "it may come out with it");
    // another intent: what it took with the first one, it has dropped
    w.writes(1, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    assert!(is_granted(&w.pass(NS / 100), 2));
}

/// The message that gives the ticket up is overtaken by the end of the session.
#[test]
fn a_ticket_that_is_given_up_by_a_client_that_leaves_keeps_nobody_waiting() {
    let mut w = World::new(LockType::Fair, 3);
    let mut entry = entry(LockType::Fair);
    let held = w.take(3, X, LedgerState::HeldExclusive, 600);
    let op = Op::TryLock { mode: X, expire_s: 5 };
    let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, at(0)) else { panic!() };
    let outcome = executed(&chain, w.memory.word);
    w.memory.word = w.word().exclusive_taken().into_bits();
    machine.outcome(&mut entry, outcome, at(0));
    machine.outcome(&mut entry, Outcome::Done(Values::new()), at(0));
    w.memory.ledgers.insert(id(1), entry.take_ledger_write().unwrap());
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    let Begin::Run(_, Step::Request(give_up)) = entry.begin(Op::Unlock, at(0)) else { panic!() };
    assert!(matches!(give_up, Request::Abandon { .. }));
    w.memory.ledgers.insert(id(1), entry.take_ledger_write().unwrap());
    w.forget(1);
    let release = Request::Release { handle: HANDLE, mode: X, ticket: Some(held) };
    assert!(is_granted(&w.ask(3, release), 2));
}

/// The worst that valid requests of a thousand clients can prepare.
#[test]
fn a_call_takes_no_more_than_its_bound() {
    let clients = 1_000;
    let mut w = World::new(LockType::Fair, clients);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    for n in 2..200 {
        let (mode, state) = match n % 2 {
            0 => (X, LedgerState::TicketExclusive),
            _ => (S, LedgerState::TicketShared),
        };
        for _ in 0..15 {
            let ticket = w.take(n, mode, state, 0);
            w.ask(n, Request::Abandon { handle: HANDLE, mode, ticket });
        }
    }
    for n in 200..=clients {
        let ticket = w.take(n, S, LedgerState::TicketShared, 0);
        w.wait(n, S, ticket);
    }
    let mut out = w.ask(1, Request::Release { handle: HANDLE, mode: X, ticket: Some(held) });
    w.memory.ledgers.remove(&id(1));
    out.extend(w.pass(NS / 100));
    let granted = out.iter().filter(|s| matches!(s.reply, Reply::Granted { .. })).count();
    assert!(granted >= 63, "{granted} readers");
    w.memory.word = w.word().with_nx(FAIR_LANE_DIVERT).with_mx(FAIR_LANE_DIVERT).into_bits();
    w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 });
    assert!(w.work > 2_000, "{} units", w.work);
    assert!(w.work <= FAIR_WORK_MAX, "{} units of {FAIR_WORK_MAX}", w.work);
}

/// A reader that died while it left made the count suspect; another one is stopped before it adds
/// itself.
#[test]
fn a_client_that_stops_between_two_verbs_must_be_fenced() {
    for (counted, is_clear) in [(0, true), (1, false)] {
        let mut w = World::new(LockType::Rw, 3);
        let stopped = LedgerEntry::new().with_state(LedgerState::Intent).with_detail(7);
        w.memory.ledgers.insert(id(1), stopped);
        let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
        w.memory.ledgers.insert(id(2), leaving);
        w.memory.word = RwWord::new().with_rcount(counted).into_bits();
        w.forget(2);
        let wait = WaitNumber(1);
        let ask = Request::Wait { handle: HANDLE, mode: X, expire_s: 9, wait, ticket: None };
        // a count of no more than the settled readers says enough
        assert_eq!(is_granted(&w.ask(3, ask), 3), is_clear);
        let nobody = |_| false;
        assert!(w.pass(NS).is_empty());
        assert_eq!(w.arbiter.hinderer(&nobody), None);
        assert!(w.pass(u64::from(HINDRANCE_S) * NS).is_empty());
        let hinderer = w.arbiter.hinderer(&nobody);
        assert_eq!(hinderer, (!is_clear).then_some(id(1)));
        if let Some(client) = hinderer {
            assert_eq!(w.arbiter.hinderer(&|c| c == client), None);
            assert!(is_granted(&w.forget(1), 3));
            assert_eq!(w.arbiter.hinderer(&nobody), None);
        }
    }
}

/// Somebody forged the word, so that it has passed a number that was given up.
#[test]
fn a_number_that_was_given_up_in_an_earlier_lap_is_not_skipped_in_the_next() {
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, X, LedgerState::HeldExclusive, 600);
    let ticket = w.take(2, X, LedgerState::TicketExclusive, 0);
    w.ask(2, Request::Abandon { handle: HANDLE, mode: X, ticket });
    w.memory.ledgers.clear();
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    assert_eq!(w.cycle(3).tx, 0, "the lane starts again");
    assert_eq!(w.take(3, X, LedgerState::HeldExclusive, 600).tx, ticket.tx);
    w.ask(1, Request::Wake { handle: HANDLE });
    assert_eq!(w.word().open_exclusive(), 1);
}

/// The answer to its request may be on its way, also when its ticket was ended meanwhile.
#[test]
fn a_lane_does_not_start_again_while_a_client_may_yet_write_down_an_old_ticket() {
    for is_ended in [false, true] {
        let mut w = World::new(LockType::Fair, 3);
        w.ask(1, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 9 });
        if is_ended {
            let next = w.take(2, X, LedgerState::TicketExclusive, 0);
            assert!(w.wait(2, X, next).is_empty());
            assert!(is_granted(&w.pass(60 * NS), 2), "nobody claims the share");
            w.release(2, X, next);
            w.memory.ledgers.remove(&id(2));
        }
        let end = FAIR_LANE_DIVERT;
        w.memory.word = w.word().with_nx(end).with_mx(end).into_bits();
        assert_eq!(take_ticket(&mut w, 2).tx, FAIR_LANE_MAX, "ended: {is_ended}");
    }
}

#[test]
fn a_lane_starts_again_for_a_client_that_has_released_its_share_by_itself() {
    let mut w = World::new(LockType::Fair, 2);
    let ticket = w.take(1, S, LedgerState::TicketShared, 0);
    let poll = Request::Poll { handle: HANDLE, mode: S, ticket, expire_s: 60 };
    assert!(is_granted(&w.ask(1, poll), 1));
    w.memory.ledgers.remove(&id(1));
    w.memory.word = w.word().shared_done(1).into_bits();
    let end = FAIR_LANE_DIVERT;
    w.memory.word = w.word().with_nx(end).with_mx(end).into_bits();
    assert_eq!(take_ticket(&mut w, 1).tx, 0);
}

/// Nobody knew of it while the numbers came round to its own.
#[test]
fn a_share_that_was_taken_before_the_head_has_its_turn_whatever_its_number() {
    let mut w = World::new(LockType::Fair, 2);
    w.memory.word = lanes_at(FAIR_LANE_MAX + 9);
    let share = w.take(1, S, LedgerState::Intent, 0);
    let nx = FAIR_LANE_MAX + 8;
    w.memory.word = w.word().with_nx(nx).with_mx(nx).into_bits();
    let head = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(!w.word().is_served(share.tx), "by the numbers alone");
    assert!(w.wait(2, X, head).is_empty());
    w.writes(1, LedgerState::TicketShared, share, 0);
    let poll = Request::Poll { handle: HANDLE, mode: S, ticket: share, expire_s: 60 };
    assert!(is_granted(&w.ask(1, poll), 1));
    w.writes(1, LedgerState::HeldShared, share, 60);
    assert!(is_granted(&w.release(1, S, share), 2));
}

/// No client takes it for its own, so nobody may come out with it.
#[test]
fn a_number_of_the_ring_that_nobody_claims_is_skipped_at_once() {
    let mut w = World::new(LockType::Fair, 3);
    w.writes(3, LedgerState::Intent, Ticket { tx: 7, ts: 1 }, 1);
    w.memory.word = lanes_at(FAIR_LANE_MAX + 2);
    w.memory.word = w.word().exclusive_taken().into_bits(); // by an addition
    let next = take_ticket(&mut w, 2);
    assert_eq!(next.tx, FAIR_LANE_MAX + 3);
    assert!(is_granted(&w.wait(2, X, next), 2));
}

/// Each of its chains writes another stamp.
#[test]
fn a_client_that_goes_on_slowly_is_not_fenced_for_the_others() {
    let mut w = World::new(LockType::Rw, 3);
    let between = |stamp| LedgerEntry::new().with_state(LedgerState::Intent).with_detail(stamp);
    let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
    w.memory.ledgers.extend([(id(1), between(1)), (id(2), leaving)]);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    w.forget(2);
    let wait = WaitNumber(1);
    w.ask(3, Request::Wait { handle: HANDLE, mode: X, expire_s: 9, wait, ticket: None });
    let most = u64::from(HINDRANCE_S) * NS * 3 / 4;
    for stamp in 2..5 {
        w.pass(most);
        assert_eq!(w.arbiter.hinderer(&|_| false), None, "it has moved");
        w.memory.ledgers.insert(id(1), between(stamp));
    }
    w.pass(2 * most);
    assert_eq!(w.arbiter.hinderer(&|_| false), Some(id(1)));
}

/// A client that did not know better has added to the lane: it leaves the number, and asks for one
/// that it may have. Where no more are left, that one is in the way of all.
#[test]
fn a_number_of_the_ring_that_nobody_was_given_is_skipped_though_nobody_waits() {
    let mut w = World::new(LockType::Fair, 2);
    w.memory.word =
        FairWord::new().with_nx(FAIR_LANE_MAX + 5).with_mx(FAIR_LANE_MAX + 6).into_bits();
    assert!(w.ask(1, lock::WAKE).is_empty());
    assert_eq!(w.word().open_exclusive(), 0);
    // one below the ring may be its owner's still
    w.memory.word = FairWord::new().with_mx(1).into_bits();
    assert!(w.ask(1, lock::WAKE).is_empty());
    assert_eq!(w.word().open_exclusive(), 1);
}
