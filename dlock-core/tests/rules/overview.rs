// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primary reports of itself: its clients, and how much work it has done.

use crate::common::world::{names, World, NOW};
use dlock_core::clock::Lease;
use dlock_core::ids::{LockId, Seq};
use dlock_core::locks::{ClientSnapshot, WaitersSnapshot};
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind};
use dlock_core::wire::message::{LockType, Mode, Request};

use FabricKind::{Shm, Tcp};

#[test]
fn all_clients_are_told_in_the_order_of_their_ids_with_what_they_have_got() {
    let mut w = World::new(10);
    assert_eq!(w.primary.clients_snapshot(), []);
    let [b, a] = [6, 5].map(|id| w.client(id, Shm));
    w.get(b, &names(3), LockType::Rw);
    let snapshot = |client, handles| ClientSnapshot { client, handles };
    assert_eq!(w.primary.clients_snapshot(), [snapshot(a, 0), snapshot(b, 3)]);
}

#[test]
fn waiters_that_are_counted_in_parts_are_all_counted_once() {
    let mut w = World::new(10);
    let [holder, one, two] = [5, 6, 7].map(|id| w.client(id, Shm));
    let grants = w.get(holder, &names(5), LockType::Atomic);
    for at in [0, 3, 4] {
        w.take(holder, &grants[at], LockType::Atomic);
    }
    for (client, at) in [(one, 0), (two, 0), (one, 3), (one, 4)] {
        let its = w.get(client, &names(5), LockType::Atomic);
        w.wait(client, &its[at], Mode::Exclusive);
    }
    for part in [1, 2, 5, 9] {
        let mut counted = w.primary.count_waiters(WaitersSnapshot::default(), part);
        while counted.last.is_some() {
            counted = w.primary.count_waiters(counted, part);
        }
        assert_eq!((counted.waiters, counted.locks), (4, 3), "{part} at a time");
    }
}

#[test]
fn each_lock_of_a_release_is_work() {
    let mut w = World::new(10);
    let client = w.client(5, Shm);
    let mut work = |count: usize| {
        w.primary.take_work();
        w.control(client, ControlRequest::ReleaseLocks(vec![LockId(-1); count]));
        w.primary.take_work()
    };
    assert_eq!(work(9), work(1) + 8);
}

/// A lock that is used before it has learned of a client's change of fabric learns of it then,
/// which is work.
#[test]
fn each_client_that_a_lock_may_have_to_be_told_of_is_work() {
    let mut w = World::new(10);
    let client = w.client(5, Shm);
    let handle = w.get(client, &names(1), LockType::Atomic)[0].handle;
    let mut seq = 0;
    let mut work = |w: &mut World| {
        seq += 1;
        w.primary.take_work();
        let ask = Request::Resolve { handle };
        w.primary.command(NOW, &mut w.memory, client, Seq(seq), ask, &mut w.out);
        w.primary.take_work()
    };
    let alone = work(&mut w);
    for (changing, id) in (1..).zip(6..9) {
        let other = w.client(id, Tcp);
        w.get(other, &[format!("a {id}"), format!("b {id}"), format!("c {id}")], LockType::Rw);
        w.primary.attached(NOW, &mut w.memory, other, Shm, &mut w.out);
        assert_eq!(work(&mut w), alone + changing);
    }
}

#[test]
fn each_handle_of_a_lapse_is_work_and_so_is_everybody_who_has_got_the_same() {
    let mut w = World::new(10);
    let name = b"shared".to_vec();
    for id in 1..=3 {
        let client = w.client(id, Tcp);
        let create =
            ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(9), init: 1 };
        w.control(client, create);
        let get = ControlRequest::ObjectGet { name: name.clone(), lease: Lease::secs(9) };
        assert!(matches!(w.control(client, get), ControlReply::Object(_)));
        let mut lapse = w.primary.begin_lapse(client);
        assert!(w.primary.lapse(NOW, &mut w.memory, &mut lapse, &mut w.out));
        assert_eq!(lapse.work(), 1 + id);
    }
}
