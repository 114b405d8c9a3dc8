// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primary remembers of a client's channels and fabrics, and when it forgets that.

use crate::common::world::{names, w0, World, NOW};
use dlock_core::arbiter::Arbiter;
use dlock_core::budget::work::QUANTUM;
use dlock_core::ids::{ClientId, LockId};
use dlock_core::memory::words::RwWord;
use dlock_core::wire::control::{
    Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc, LockGrant,
};
use dlock_core::wire::message::{LockType, Mode};

use FabricKind::{Shm, Tcp};

fn is_quiet(w: &World) -> bool {
    w.primary.next_wakeup().is_none_or(|at| at > NOW)
}

fn steps(w: &mut World) {
    while !is_quiet(w) {
        w.step(NOW, QUANTUM);
    }
}

/// A client that holds `count` locks, and the grants of these locks for the client that is to wait.
fn waiting(w: &mut World, waiter: ClientId, count: usize) -> (ClientId, Vec<LockGrant>) {
    let holder = w.client(1, Shm);
    let names = names(count);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    (holder, w.get(waiter, &names, LockType::Atomic))
}

/// The first channel has more waits than the second one, or fewer.
#[test]
fn no_wait_of_an_ended_channel_is_granted_when_the_next_one_ends_too() {
    for first in [60, 30] {
        let mut w = World::new(10);
        let waiter = w.client(2, Shm);
        let (holder, mine) = waiting(&mut w, waiter, 100);
        for waits in [&mine[..first], &mine[first..]] {
            w.primary.attached(NOW, &mut w.memory, waiter, Shm, &mut w.out);
            waits.iter().for_each(|grant| _ = w.wait(waiter, grant, Mode::Exclusive));
            w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
            assert_eq!(w.primary.assert_consistent(), Ok(()));
        }
        let queued = |w: &World| mine.iter().filter(|g| w.primary.waiters(g.slot) > 0).count();
        assert!(queued(&w) > 60, "the most of both is left to steps: {}", queued(&w));
        steps(&mut w);
        assert_eq!(queued(&w), 0);
        w.primary.fenced(holder);
        steps(&mut w);
        assert!(w.out.is_empty(), "a grant to nobody: {:?}", w.out);
    }
}

#[test]
fn a_wait_of_an_ended_channel_goes_with_the_reference_to_its_lock() {
    let mut w = World::new(10);
    let waiter = w.client(2, Shm);
    let (_, mine) = waiting(&mut w, waiter, 30);
    mine.iter().for_each(|grant| _ = w.wait(waiter, grant, Mode::Exclusive));
    w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
    assert!(!is_quiet(&w), "some are left to steps");
    let locks = mine.iter().map(|grant| grant.lock).collect();
    w.control(waiter, ControlRequest::ReleaseLocks(locks));
    assert!(is_quiet(&w), "nothing is left to drop");
    assert_eq!(w.step(NOW, QUANTUM).work, 0);
}

/// If the primary remembered the client for longer, every access to a lock would look at that
/// client.
#[test]
fn a_client_whose_locks_were_told_of_its_fabric_is_not_told_of_again() {
    let mut w = World::new(10);
    let client = w.client(2, Tcp);
    w.get(client, &names(50), LockType::Rw);
    w.primary.attached(NOW, &mut w.memory, client, Shm, &mut w.out);
    assert!(!is_quiet(&w), "most of its locks are told in steps");
    steps(&mut w);
    w.primary.attached(NOW, &mut w.memory, client, Shm, &mut w.out);
    assert!(is_quiet(&w), "there is nothing new");
}

#[test]
fn a_client_that_goes_while_its_locks_are_told_leaves_nothing_to_tell() {
    let mut w = World::new(10);
    let client = w.client(2, Tcp);
    w.get(client, &names(50), LockType::Rw);
    w.primary.attached(NOW, &mut w.memory, client, Shm, &mut w.out);
    w.primary.fenced(client);
    steps(&mut w);
    assert!(!w.primary.is_leaving(client));
    let next = w.client(2, Tcp); // another client gets the same id
    w.get(next, &names(50), LockType::Rw);
    w.primary.attached(NOW, &mut w.memory, next, Tcp, &mut w.out);
    assert!(is_quiet(&w), "its fabric has not changed");
}

/// The arbiter, too, forgets that a client was changing its fabric when that client is gone.
#[test]
fn the_arbiter_forgets_that_a_client_was_changing_when_it_is_gone() {
    let (mut arbiter, client) = (Arbiter::default(), ClientId::new(7).unwrap());
    arbiter.proxy(client);
    assert!(!arbiter.is_changing(client), "it has nothing that a lock knows");
    arbiter.unproxy(client);
    assert!(arbiter.is_changing(client));
    arbiter.gone(client);
    assert!(!arbiter.is_changing(client));
}

/// The client claims a share before it has a channel, and then goes on over tcp.
#[test]
fn a_claimed_share_of_a_client_that_becomes_proxied_ends_with_it() {
    for count in [1, 40] {
        let mut w = World::recovering(10, 2);
        let [reader, writer] = [5, 6].map(|id| w.admit(id).unwrap());
        let held = Some(HeldClaim::hold(Mode::Shared, u64::MAX));
        let claims: Vec<Claim> = (0..count)
            .map(|n| {
                let name = format!("lock {n}").into_bytes();
                let desc = LockDesc { name, lock_type: LockType::Rw, lease_s: 0, tokens: false };
                Claim { lock: LockId(9), desc, held }
            })
            .collect();
        [reader, writer].iter().for_each(|&client| w.primary.came_back(NOW, client));
        let mut grants = Vec::new();
        for claims in claims.chunks(31) {
            let update = ControlRequest::UpdateLocks(claims.to_vec());
            let ControlReply::Locks(locks) = w.control(reader, update) else { panic!() };
            grants.extend(locks.into_iter().map(Result::unwrap));
        }
        for client in [reader, writer] {
            assert_eq!(w.control(client, ControlRequest::ReinitDone), ControlReply::Done);
        }
        w.primary.attached(NOW, &mut w.memory, reader, Tcp, &mut w.out);
        w.primary.attached(NOW, &mut w.memory, writer, Shm, &mut w.out);
        steps(&mut w);
        let last = w.get(writer, &names(count)[count - 1..], LockType::Rw)[0];
        assert_eq!((last.slot, last.word), (grants[count - 1].slot, 1));
        let wait = w.wait(writer, &last, Mode::Exclusive);
        w.primary.fenced(reader);
        steps(&mut w);
        let word = RwWord::from_bits(w.memory.words[&w0(&last).index()]);
        assert_eq!(word.rcount(), 0, "{count} claims");
        assert!(w.granted(wait));
    }
}
