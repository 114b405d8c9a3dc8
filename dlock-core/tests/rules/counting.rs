// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primary counts, what clients count for it in their ledgers, and when it is full.

use crate::common::world;
use crate::common::{stats, Memory};
use dlock_core::clock::{Deadline, Lease, ServerTime};
use dlock_core::counters::{Counter, Told};
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::locks::{Locks, PrimaryConfig};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Values, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, RwWord, TakenWord, Ticket};
use dlock_core::token::TokenFloor;
use dlock_core::wire::control::FabricKind;
use dlock_core::wire::message::{LockType, Mode, Request};
use dlock_core::wire::status::Status;

struct World {
    primary: Locks,
    memory: Memory,
}

fn config() -> PrimaryConfig {
    PrimaryConfig {
        epoch: Epoch(1),
        tp_mode: 0,
        recovery_clients: 0,
        clients_max: 4,
        locks_max: 4,
        objects_max: 4,
        absent_grace_ns: None,
        tokens: TokenFloor::default(),
    }
}

#[test]
fn what_clients_count_in_their_ledgers_is_collected_once_and_outlives_them() {
    let mut w = World { primary: Locks::new(config()), memory: Memory::default() };
    let [a, b] = [1, 2].map(|id| ClientId::new(id).unwrap());
    for client in [a, b] {
        w.primary.add_client(client).unwrap();
    }
    let eagain = |w: &mut World| stats(&mut w.primary, &mut w.memory)[0];
    w.memory.told.insert(a, told(3));
    w.memory.told.insert(b, told(4));
    assert_eq!((eagain(&mut w), eagain(&mut w)), (7, 7));
    w.memory.told.insert(a, told(5));
    w.primary.count(Counter::Again);
    assert_eq!(eagain(&mut w), 10);
    w.primary.clear_stats(&mut w.memory);
    assert_eq!(eagain(&mut w), 0);
    w.memory.told.insert(a, told(6));
    w.primary.collect_last(&mut w.memory, a);
    w.memory.told.remove(&a);
    assert_eq!(eagain(&mut w), 1, "it has left");
    w.memory.told.insert(b, told(2));
    assert_eq!(eagain(&mut w), 3, "a new channel counts anew");
    w.memory.told.insert(b, told(u64::MAX));
    w.primary.count(Counter::BadRequest);
    assert_eq!(
        stats(&mut w.primary, &mut w.memory)[42],
        1,
        "it spoils what it counts, nothing else"
    );
}

#[test]
fn what_a_client_has_not_counted_since_is_not_added_again() {
    let mut w = World { primary: Locks::new(config()), memory: Memory::default() };
    let client = ClientId::new(1).unwrap();
    w.primary.add_client(client).unwrap();
    let mut counts = told(3);
    for other in 1..=2 {
        counts[Counter::AtomicTryLockFail.place().unwrap()] = other;
        w.memory.told.insert(client, counts);
        assert_eq!(stats(&mut w.primary, &mut w.memory)[0], 3, "{other}");
    }
}

#[test]
fn counts_that_are_collected_in_parts_are_all_collected_once() {
    let mut w = World { primary: Locks::new(config()), memory: Memory::default() };
    for id in 1..=4 {
        let client = ClientId::new(id).unwrap();
        w.primary.add_client(client).unwrap();
        w.memory.told.insert(client, told(10_u64.pow(id)));
    }
    let mut collected = || {
        w.primary.collect_some(&mut w.memory, 3);
        w.primary.counters().read()[0]
    };
    assert_eq!([collected(), collected(), collected()], [1_110, 11_110, 11_110]);
    w.memory.told.insert(ClientId::new(4).unwrap(), told(20_000));
    w.primary.collect_some(&mut w.memory, 3);
    assert_eq!(w.primary.counters().read()[0], 21_110, "the next part");
}

fn told(events: u64) -> Told {
    let mut told = Told::default();
    told[Counter::Again.place().unwrap()] = events;
    told
}

#[test]
fn the_counters_of_a_primary_are_the_same_whoever_asks() {
    let primary = Locks::new(config());
    assert!(std::sync::Arc::ptr_eq(primary.counters(), primary.counters()));
}

/// The first request says that the lock is held; the client asks again when the lease is over.
#[test]
fn an_atomic_lock_that_is_found_held_is_counted_until_the_lease_is_over_and_no_longer() {
    let mut w = world::World::new(2);
    let thief = w.client(1, FabricKind::Tcp);
    let grant = w.get(thief, &world::names(1), LockType::Atomic)[0];
    let deadline = world::NOW.deadline(Lease::secs(5));
    let found = AtomicWord::new().with_client(2).with_timeout(deadline).into_bits();
    let swap = AtomicWord::new().with_client(1).with_timeout(Deadline(deadline.0 + 9)).into_bits();
    let chain = Chain::one(WordOp::Cas { addr: world::w0(&grant), expect: 0, swap });
    let mut values = Values::new();
    values.push(found);
    let end = deadline.expiry().0;
    for (now, counted) in [(end - 1, 1), (end, 0), (end + 1, 0)] {
        w.primary.clear_stats(&mut w.memory);
        w.primary.count_chain(ServerTime(now), thief, &chain, &values);
        let all: u64 = stats(&mut w.primary, &mut w.memory).iter().sum();
        assert_eq!(all, counted, "{}", now as i64 - end as i64);
    }
}

/// The release goes to the primary, because a client waits there for the lock.
#[test]
fn a_read_write_release_that_finds_the_hold_and_a_waiter_is_none_that_failed() {
    let mut w = world::World::new(2);
    let owner = w.client(1, FabricKind::Tcp);
    let grant = w.get(owner, &world::names(1), LockType::Rw)[0];
    let held = RwWord::new().with_client(1);
    let chain =
        Chain::one(WordOp::Cas { addr: world::w0(&grant), expect: held.into_bits(), swap: 0 });
    for (found, counted) in [(held.with_waiters(true), 0), (RwWord::new().with_client(2), 1)] {
        w.primary.clear_stats(&mut w.memory);
        let mut values = Values::new();
        values.push(found.into_bits());
        w.primary.count_chain(world::NOW, owner, &chain, &values);
        let stats = stats(&mut w.primary, &mut w.memory);
        assert_eq!(stats[Counter::RwUnlockExFail as usize], counted, "{found:?}");
        assert_eq!(stats.iter().sum::<u64>(), counted);
    }
}

#[test]
fn a_place_in_a_queue_and_a_request_that_is_none_of_its_lock_are_counted() {
    let mut w = world::World::new(2);
    let client = w.client(1, FabricKind::Verbs);
    let grant = w.get(client, &world::names(1), LockType::Fair)[0];
    let (handle, mode) = (grant.handle, Mode::Shared);
    let until = world::NOW.deadline(Lease::secs(60));
    // the client's ticket is behind an exclusive one
    let (taken, ticket) = (TakenWord::new().with_mx(1), Ticket { lap: 0, tx: 1, ts: 0 });
    // the lease of the exclusive ticket's client runs
    let owner = w.client(2, FabricKind::Verbs);
    let at_owner = w.get(owner, &world::names(1), LockType::Fair)[0].handle;
    w.memory.set_ledger(
        owner,
        at_owner,
        LedgerEntry::claim(Mode::Exclusive, 1).with_deadline(until),
    );
    w.memory.set(world::w0(&grant), taken.taken(mode).into_bits());
    let entry = LedgerEntry::claim(mode, 1).with_deadline(until);
    w.memory.set_ledger(client, handle, entry);
    for (request, counter) in [
        (Request::Poll { handle, mode, ticket, lease: Lease::secs(5) }, Counter::Again),
        (Request::Steal { handle, mode, lease: Lease::secs(5) }, Counter::InvalidOp),
    ] {
        w.primary.clear_stats(&mut w.memory);
        w.seq += 1;
        let seq = Seq(w.seq);
        w.primary.command(world::NOW, &mut w.memory, client, seq, request, &mut w.out);
        let stats = stats(&mut w.primary, &mut w.memory);
        assert_eq!(stats[counter as usize], 1, "{:?}", w.out.last());
        assert_eq!(stats.iter().sum::<u64>(), 1);
    }
}

#[test]
fn a_primary_is_full_with_as_many_clients_as_it_may_have_and_says_so() {
    let mut w = world::World::new(2);
    for id in [1, 2] {
        assert!(!w.primary.is_full());
        w.admit(id).unwrap();
    }
    assert!(w.primary.is_full());
    assert_eq!(w.admit(3), Err(Status::ServerNoResource));
}
