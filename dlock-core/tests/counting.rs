// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients count for the primary in their ledgers.

mod common;

use common::Memory;
use dlock_core::counters::{Counter, Told};
use dlock_core::ids::{ClientId, Epoch};
use dlock_core::primary::{Primary, PrimaryConfig};

struct World {
    primary: Primary,
    memory: Memory,
}

fn config() -> PrimaryConfig {
    PrimaryConfig {
        epoch: Epoch(1),
        anchor_s: 0,
        tp_mode: 0,
        recovery_clients: 0,
        clients_max: 4,
        locks_max: 4,
        objects_max: 4,
        absent_grace_ns: None,
    }
}

#[test]
fn what_clients_count_in_their_ledgers_is_collected_once_and_outlives_them() {
    let mut w = World { primary: Primary::new(config()), memory: Memory::default() };
    let [a, b] = [1, 2].map(|id| ClientId::new(id).unwrap());
    for client in [a, b] {
        w.primary.add_client(client).unwrap();
    }
    let eagain = |w: &mut World| w.primary.stats(&mut w.memory)[0];
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
    assert_eq!(w.primary.stats(&mut w.memory)[42], 1, "it spoils what it counts, nothing else");
}

fn told(events: u64) -> Told {
    let mut told = Told::default();
    told[Counter::Again.place().unwrap()] = events;
    told
}

#[test]
fn the_counters_of_a_primary_are_the_same_whoever_asks() {
    let primary = Primary::new(config());
    assert!(std::sync::Arc::ptr_eq(primary.counters(), primary.counters()));
}
