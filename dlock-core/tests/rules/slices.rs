// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leaving, expiry and hand-over happen in steps of bounded work, counted and not timed.

use crate::common::world::{names, w0, World, LEASE_S, NOW};
use dlock_core::budget::work::{GRANTS_PER_LOOK, ITEM_WORK_MAX, QUANTUM};
use dlock_core::clock::{Lease, NS};
use dlock_core::ids::{ClientId, Seq};
use dlock_core::limits::{BATCH_MAX, CLIENTS_MAX, LOCKS_MAX};
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::{LedgerEntry, LedgerState};
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind, LockDesc};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

#[test]
fn a_client_with_all_locks_leaves_in_short_steps_and_others_are_served_between() {
    let mut w = World::new(10);
    let leaver = w.client(5, FabricKind::Shm);
    let grants = w.get(leaver, &names(LOCKS_MAX), LockType::Atomic);
    grants.iter().for_each(|grant| w.take(leaver, grant, LockType::Atomic));
    let other = w.client(6, FabricKind::Tcp);
    let mine = w.get(other, &names(1), LockType::Atomic)[0];
    let last = w.get(other, &names(LOCKS_MAX)[LOCKS_MAX - 1..], LockType::Atomic)[0];
    let first_wait = w.wait(other, &mine, Mode::Exclusive);
    let last_wait = w.wait(other, &last, Mode::Exclusive);

    assert!(!w.primary.fenced(leaver), "it has something to undo");
    let (mut steps, mut worst, mut first_granted_at) = (0, 0, None);
    loop {
        let step = w.step(NOW, QUANTUM);
        steps += 1;
        worst = worst.max(step.work);
        if first_granted_at.is_none() && w.granted(first_wait) {
            first_granted_at = Some(steps);
        }
        assert_eq!(step.more, step.gone.is_none());
        if step.gone.is_some() {
            assert_eq!(step.gone, Some(leaver));
            break;
        }
        assert!(w.primary.next_wakeup().is_some_and(|at| at <= NOW), "it is to go on at once");
        // another client's chain on its own lock is executed between two slices
        let chain = Chain::one(WordOp::Read { addr: w0(&mine) });
        assert!(w.primary.check_chain(NOW, &mut w.memory, other, &chain).is_ok());
    }
    assert_eq!(first_granted_at, Some(1), "when the turn of its lock came, not in the end");
    assert!(w.granted(last_wait));
    // locks with one client are small items, so a step hardly exceeds its budget
    assert!(worst <= QUANTUM + 16, "{worst}");
    assert!(steps >= LOCKS_MAX / QUANTUM as usize, "{steps}");
    assert_eq!(w.primary.totals(), (1, 2, 0));
    assert_eq!(w.primary.assert_consistent(), Ok(()));
}

#[test]
fn a_leaving_client_is_unknown_but_its_id_and_its_place_are_nobody_elses() {
    let mut w = World::new(2);
    let leaver = w.client(5, FabricKind::Tcp);
    let grants = w.get(leaver, &names(100), LockType::Rw);
    w.take(leaver, &grants[99], LockType::Rw);
    let other = w.client(6, FabricKind::Tcp);
    w.primary.fenced(leaver);
    assert!(!w.primary.fenced(leaver), "the second fencing changes nothing");

    let chain = Chain::one(WordOp::Read { addr: w0(&grants[0]) });
    while w.primary.is_leaving(leaver) {
        assert_eq!(w.admit(5), Err(Status::Error), "nor is its id");
        assert_eq!(w.admit(7), Err(Status::ServerNoResource), "its place is not free");
        let reply = w.control(leaver, ControlRequest::Heartbeat);
        assert_eq!(reply, ControlReply::Error(Status::Error));
        let checked = w.primary.check_chain(NOW, &mut w.memory, leaver, &chain);
        assert_eq!(checked, Err(Status::ClientRemoved));
        w.step(NOW, 1);
    }
    assert_eq!(w.admit(5), Ok(leaver), "a new client may have the id now");
    assert_eq!(w.primary.assert_consistent(), Ok(()));
    w.primary.fenced(other);
    assert!(!w.primary.is_leaving(other), "it had nothing: it is gone at once");
}

#[test]
fn an_id_is_not_drawn_while_what_its_client_had_is_undone() {
    let mut w = World::new(10);
    let leaver = w.client(5, FabricKind::Tcp);
    w.get(leaver, &names(100), LockType::Atomic);
    w.primary.fenced(leaver);
    w.step(NOW, 1);
    assert_eq!(w.admit(5), Err(Status::Error), "the only number drawn is in use");
}

#[test]
fn several_clients_that_leave_at_once_are_undone_in_turns() {
    let mut w = World::new(10);
    let heavy = w.client(5, FabricKind::Tcp);
    w.get(heavy, &names(5_000), LockType::Atomic);
    let light = w.client(6, FabricKind::Tcp);
    let one = w.get(light, &["light".to_string()], LockType::Atomic)[0];
    w.take(light, &one, LockType::Atomic);
    w.primary.fenced(heavy);
    w.primary.fenced(light);
    let mut gone = Vec::new();
    let mut steps = 0;
    while w.primary.is_undoing() {
        gone.extend(w.step(NOW, QUANTUM).gone);
        steps += 1;
        if steps == 2 {
            assert_eq!(gone, [light], "who has little is not behind who has much");
        }
    }
    assert_eq!(gone, [light, heavy]);
}

/// A primary with the most clients, all of which have got one lock; all but the holder wait for it.
fn crowd(lock_type: LockType, mode: Mode, fabric: FabricKind) -> (World, ClientId) {
    let mut w = World::new(CLIENTS_MAX);
    let holder = w.client(1, fabric);
    let grant = w.get(holder, &names(1), lock_type)[0];
    w.take(holder, &grant, lock_type);
    for id in 2..=CLIENTS_MAX as u32 {
        let client = w.client(id, fabric);
        let grant = w.get(client, &names(1), lock_type)[0];
        w.wait(client, &grant, mode);
    }
    (w, holder)
}

#[test]
fn a_step_on_a_lock_with_a_thousand_waiters_has_bounded_work() {
    let kinds = [
        (LockType::Atomic, Mode::Exclusive),
        (LockType::Rw, Mode::Exclusive),
        (LockType::Rw, Mode::Shared),
    ];
    for (lock_type, mode) in kinds {
        for fabric in [FabricKind::Tcp, FabricKind::Shm] {
            let (mut w, holder) = crowd(lock_type, mode, fabric);
            w.primary.fenced(holder);
            let mut worst = 0;
            while w.primary.next_wakeup().is_some_and(|at| at <= NOW) {
                let before = w.out.len();
                worst = worst.max(w.step(NOW, 1).work);
                // a step has at most one look at the lock, and one undoing that ends in a look
                assert!(w.out.len() - before <= 2 * GRANTS_PER_LOOK);
            }
            assert!(worst > CLIENTS_MAX as u32, "the crowd was visited: {worst}");
            let granted = w.out.iter().filter(|s| matches!(s.reply, Reply::Granted { .. }));
            let wanted = if mode == Mode::Shared { CLIENTS_MAX - 1 } else { 1 };
            assert_eq!(granted.count(), wanted, "{lock_type:?} {mode:?} {fabric:?}");
        }
    }
}

#[test]
fn locks_that_expire_in_the_same_second_are_handed_over_in_short_steps() {
    let mut w = World::new(10);
    let holder = w.client(1, FabricKind::Shm);
    let waiter = w.client(2, FabricKind::Shm);
    let names = names(3_000);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    for grant in w.get(waiter, &names, LockType::Atomic) {
        w.wait(waiter, &grant, Mode::Exclusive);
    }
    let later = NOW.plus_ns(u64::from(LEASE_S + 1) * NS);
    let mut steps = 0;
    while w.primary.next_wakeup().is_some_and(|at| at <= later) {
        let step = w.step(later, QUANTUM);
        assert!(step.work <= QUANTUM + 16, "{step:?}");
        steps += 1;
    }
    assert!(steps > 100, "{steps}");
    let granted = w.out.iter().filter(|s| matches!(s.reply, Reply::Granted { .. }));
    assert_eq!(granted.count(), names.len());
}

#[test]
fn objects_of_a_client_that_leaves_or_is_fenced_are_undone_in_steps() {
    for leaves in [true, false] {
        let mut w = World::new(10);
        let (owner, other) = (w.client(1, FabricKind::Tcp), w.client(2, FabricKind::Tcp));
        for i in 0..500 {
            let name = format!("object {i}").into_bytes();
            let create =
                ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(9), init: 1 };
            assert!(matches!(w.control(owner, create), ControlReply::Created(_)));
            let get = ControlRequest::ObjectGet { name, lease: Lease::secs(9) };
            assert!(matches!(w.control(owner, get), ControlReply::Object(_)));
        }
        let mine = ControlRequest::ObjectGet { name: b"object 7".to_vec(), lease: Lease::secs(9) };
        let ControlReply::Object(mine) = w.control(other, mine) else { panic!("not got") };
        if leaves {
            assert_eq!(w.control(owner, ControlRequest::Deinit), ControlReply::Done);
        }
        let destroyed = w.control(other, ControlRequest::ObjectDestroy(mine.object));
        let wanted = match leaves {
            true => ControlReply::Done,
            false => ControlReply::Error(Status::ObjectInvalidOwner),
        };
        assert_eq!(destroyed, wanted, "what a client leaves behind is everybody's at once");
        w.primary.fenced(owner);
        let mut steps = 0;
        while w.primary.is_undoing() {
            let step = w.step(NOW, QUANTUM);
            assert!(step.work <= QUANTUM + 16, "{step:?}");
            steps += 1;
        }
        assert!(steps > 500 / QUANTUM, "{steps}");
        let objects = if leaves { 500 } else { 1 };
        assert_eq!(w.primary.totals(), (1, 0, objects), "leaves: {leaves}");
        assert_eq!(w.primary.assert_consistent(), Ok(()));
    }
}

#[test]
fn the_waits_of_an_ended_channel_are_dropped_in_steps_and_before_new_requests() {
    let mut w = World::new(10);
    let holder = w.client(1, FabricKind::Shm);
    let waiter = w.client(2, FabricKind::Tcp);
    let names = names(2_000);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    let mine = w.get(waiter, &names, LockType::Atomic);
    mine.iter().for_each(|grant| _ = w.wait(waiter, grant, Mode::Exclusive));
    w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
    assert_eq!(w.primary.assert_consistent(), Ok(()));
    let left = |w: &World| mine.iter().filter(|grant| w.primary.waiters(grant.slot) > 0).count();
    assert!(left(&w) > 1_900, "the most of it is left to steps");

    // the client waits for the last of these locks again, on its new channel, and that wait stays
    w.primary.attached(NOW, &mut w.memory, waiter, FabricKind::Tcp, &mut w.out);
    let last = mine.iter().max_by_key(|grant| grant.slot).unwrap();
    let again = w.wait(waiter, last, Mode::Exclusive);
    let (mut steps, mut work) = (0, 0);
    while w.primary.next_wakeup().is_some_and(|at| at <= NOW) {
        let step = w.step(NOW, QUANTUM);
        assert!(step.work <= QUANTUM + 16, "{step:?}");
        steps += 1;
        work += step.work;
    }
    assert!(work >= 4 * 1_900, "each wait, its queue, and two words: {work}");
    assert!(steps > 50, "{steps}");
    assert_eq!((left(&w), w.primary.waiters(last.slot)), (1, 1));
    assert_eq!(w.primary.assert_consistent(), Ok(()));
    w.primary.fenced(holder);
    while w.step(NOW, QUANTUM).gone != Some(holder) {}
    assert!(w.granted(again), "and is granted");
    assert_eq!(w.out.len(), 1, "nothing else was answered: {:?}", w.out);
}

#[test]
fn a_client_with_many_locks_maps_the_memory_and_they_are_told_in_short_steps() {
    const MANY: usize = 5_000;
    for leaves_at_once in [false, true] {
        let mut w = World::new(10);
        let reader = w.client(5, FabricKind::Tcp);
        let grants = w.get(reader, &names(MANY), LockType::Rw);
        let last = grants[MANY - 1];
        let request = Request::Wait {
            handle: last.handle,
            mode: Mode::Shared,
            lease: Lease::secs(LEASE_S),
            wait: WaitNumber(1),
            ticket: None,
        };
        w.primary.command(NOW, &mut w.memory, reader, Seq(1), request, &mut w.out);
        assert!(w.granted(Seq(1)), "the primary itself gives it the share");

        w.primary.attached(NOW, &mut w.memory, reader, FabricKind::Shm, &mut w.out);
        let more = |w: &World| w.primary.next_wakeup().is_some_and(|at| at <= NOW);
        assert!(more(&w), "most locks are told later");
        let writer = w.client(6, FabricKind::Shm);
        let its = w.get(writer, &names(MANY)[MANY - 1..], LockType::Rw)[0];
        w.seq = 1;
        // the share counts, whether or not the lock has learned of the client's fabric
        let wait = w.wait(writer, &its, Mode::Exclusive);
        let mut steps = 0;
        while !leaves_at_once && more(&w) {
            w.step(NOW, QUANTUM);
            steps += 1;
        }
        assert!(leaves_at_once || steps >= MANY / QUANTUM as usize, "{steps}");
        assert!(!w.granted(wait));
        w.primary.fenced(reader);
        while w.primary.is_leaving(reader) {
            w.step(NOW, QUANTUM);
        }
        assert!(w.granted(wait), "the share went with its client");
        assert_eq!(w.primary.assert_consistent(), Ok(()));
    }
}

/// A primary with one object that all clients have got.
fn shared_object() -> (World, ClientId, Vec<ClientId>) {
    let mut w = World::new(CLIENTS_MAX);
    let owner = w.client(1, FabricKind::Tcp);
    let name = b"shared".to_vec();
    let create =
        ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(9), init: 1 };
    assert!(matches!(w.control(owner, create), ControlReply::Created(_)));
    let others = (2..=CLIENTS_MAX as u32).map(|id| {
        let client = w.client(id, FabricKind::Tcp);
        let get = ControlRequest::ObjectGet { name: name.clone(), lease: Lease::secs(9) };
        assert!(matches!(w.control(client, get), ControlReply::Object(_)));
        client
    });
    let others = others.collect();
    (w, owner, others)
}

/// To undo a client's part in an object, the primary searches all references of the object.
#[test]
fn undoing_an_object_is_as_much_work_as_its_references() {
    let (mut w, owner, others) = shared_object();
    let all = others.len() as u32;
    w.primary.fenced(others[0]);
    let worst = |w: &mut World| {
        let mut worst = 0;
        while w.primary.is_undoing() {
            worst = worst.max(w.step(NOW, 1).work);
        }
        worst
    };
    let reference = worst(&mut w);
    assert!((all..ITEM_WORK_MAX).contains(&reference), "{reference}");
    w.primary.fenced(owner);
    let owned = worst(&mut w);
    assert!((all..ITEM_WORK_MAX).contains(&owned), "{owned}");
}

#[test]
fn a_request_about_an_object_is_as_much_work_as_its_references() {
    let (mut w, owner, others) = shared_object();
    let name = b"shared".to_vec();
    w.primary.take_work();
    let mut work = |client, request| {
        let reply = w.control(client, request);
        (reply, w.primary.take_work())
    };
    let all = others.len() as u32;
    let get = ControlRequest::ObjectGet { name: name.clone(), lease: Lease::secs(9) };
    let (ControlReply::Object(grant), get) = work(others[0], get) else { panic!("not got") };
    let release = work(others[0], ControlRequest::ObjectRelease(grant.object)).1;
    let destroy = work(owner, ControlRequest::ObjectDestroy(grant.object)).1;
    let create = ControlRequest::ObjectCreate { name, lease: Lease::secs(9), init: 1 };
    let create = work(owner, create).1;
    for (what, work) in [get, release, destroy, create].into_iter().enumerate() {
        assert!((all - 1..ITEM_WORK_MAX).contains(&work), "{what}: {work}");
    }
}

/// A request about a lock searches its queue and its references.
#[test]
fn a_request_about_a_lock_is_as_much_work_as_its_queue() {
    for kind in [LockType::Atomic, LockType::Rw] {
        let (mut w, asks) = crowd(kind, Mode::Exclusive, FabricKind::Shm);
        let handle = w.get(asks, &names(1), kind)[0].handle;
        w.primary.take_work();
        w.seq += 1;
        let wake = Request::Wake { handle };
        w.primary.command(NOW, &mut w.memory, asks, Seq(w.seq), wake, &mut w.out);
        let work = w.primary.take_work();
        assert!((CLIENTS_MAX as u32 - 2..ITEM_WORK_MAX).contains(&work), "{kind:?}: {work}");
    }
}

/// The queue of the lock is searched when the lock is handed over.
#[test]
fn looking_at_a_lock_whose_lease_is_over_is_as_much_work_as_its_queue() {
    let (mut w, _) = crowd(LockType::Atomic, Mode::Exclusive, FabricKind::Shm);
    let later = NOW.plus_ns(u64::from(LEASE_S + 1) * NS);
    let step = w.step(later, 1);
    assert!(step.work > CLIENTS_MAX as u32, "{step:?}");
    assert_eq!(w.out.len(), 1, "it is handed over");
}

/// The client waits for many locks, behind other clients, on one channel after the other.
#[test]
fn the_end_of_a_channel_is_bounded_work_whatever_its_client_waited_for() {
    let mut w = World::new(CLIENTS_MAX);
    let holder = w.client(1, FabricKind::Shm);
    let names = names(20);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    let mut last = holder;
    for id in 2..=CLIENTS_MAX as u32 {
        last = w.client(id, FabricKind::Shm);
        for grant in w.get(last, &names, LockType::Atomic) {
            w.wait(last, &grant, Mode::Exclusive);
        }
    }
    w.primary.take_work();
    w.primary.detached(NOW, &mut w.memory, last, &mut w.out);
    let work = w.primary.take_work();
    assert!(work >= CLIENTS_MAX as u32, "a queue was searched: {work}");
    assert!(work <= 2 * ITEM_WORK_MAX, "not {} queues: {work}", names.len());
    let queued = |w: &World| grants.iter().map(|g| w.primary.waiters(g.slot)).sum::<usize>();
    while w.primary.next_wakeup().is_some_and(|at| at <= NOW) {
        w.step(NOW, QUANTUM);
    }
    assert_eq!(queued(&w), names.len() * (CLIENTS_MAX - 2));
    assert_eq!(w.primary.assert_consistent(), Ok(()));
}

/// No step moves all waits of the ended channels at once.
#[test]
fn waits_of_many_ended_channels_are_put_together_in_bounded_work() {
    const CHANNELS: usize = 12;
    let mut w = World::new(10);
    let (holder, waiter) = (w.client(1, FabricKind::Shm), w.client(2, FabricKind::Shm));
    let names = names(LOCKS_MAX / 2);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    let mine = w.get(waiter, &names, LockType::Atomic);
    let mut worst = 0;
    for waits in mine.chunks(mine.len().div_ceil(CHANNELS)) {
        waits.iter().for_each(|grant| _ = w.wait(waiter, grant, Mode::Exclusive));
        w.primary.take_work();
        w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
        worst = worst.max(w.primary.take_work());
        w.primary.attached(NOW, &mut w.memory, waiter, FabricKind::Shm, &mut w.out);
    }
    assert!(worst > 1_000, "what is moved is counted: {worst}");
    assert!(worst <= ITEM_WORK_MAX, "{worst}");
    while w.primary.next_wakeup().is_some_and(|at| at <= NOW) {
        w.step(NOW, QUANTUM);
    }
    assert_eq!(mine.iter().map(|g| w.primary.waiters(g.slot)).sum::<usize>(), 0);
}

/// A lapse looks at all clients that have got the same locks.
#[test]
fn a_slice_of_a_lapse_is_bounded_work_however_many_have_got_the_same_locks() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let mut w = World::new(CLIENTS_MAX);
        let names = names(31);
        let client = w.client(1, FabricKind::Shm);
        let grants = w.get(client, &names, lock_type);
        for id in 2..=CLIENTS_MAX as u32 {
            let other = w.client(id, FabricKind::Shm);
            w.get(other, &names, lock_type);
        }
        for grant in &grants {
            let entry = LedgerEntry::new().with_state(LedgerState::Intent);
            w.memory.ledgers.insert((client, grant.handle), entry);
        }
        let mut lapse = w.primary.begin_lapse(client);
        let (mut slices, mut work) = (0, 0);
        loop {
            let is_done = w.primary.lapse(NOW, &mut w.memory, &mut lapse, &mut w.out);
            assert!(lapse.work() <= 2 * ITEM_WORK_MAX, "{lock_type:?}: {}", lapse.work());
            work += lapse.work();
            slices += 1;
            if is_done {
                break;
            }
        }
        assert!(work >= (names.len() * CLIENTS_MAX) as u32, "{lock_type:?}: {work}");
        assert!(slices >= names.len() / 6, "{lock_type:?}: {slices}");
    }
}

/// Three cases of work that is due: two locks whose leases are over, the waits of an ended channel,
/// and the locks of a client that changes its fabric.
#[test]
fn a_step_with_budget_enough_does_all_that_is_due_and_one_without_nothing() {
    let due = [
        |w: &mut World| {
            let (holder, waiter) = (w.client(1, FabricKind::Shm), w.client(2, FabricKind::Shm));
            for grant in w.get(holder, &names(2), LockType::Atomic) {
                w.take(holder, &grant, LockType::Atomic);
            }
            for grant in w.get(waiter, &names(2), LockType::Atomic) {
                w.wait(waiter, &grant, Mode::Exclusive);
            }
        },
        |w: &mut World| {
            let (holder, waiter) = (w.client(1, FabricKind::Shm), w.client(2, FabricKind::Shm));
            for grant in w.get(holder, &names(60), LockType::Rw) {
                w.take(holder, &grant, LockType::Rw);
            }
            for grant in w.get(waiter, &names(60), LockType::Rw) {
                w.wait(waiter, &grant, Mode::Exclusive);
            }
            w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
        },
        |w: &mut World| {
            let client = w.client(1, FabricKind::Tcp);
            w.get(client, &names(60), LockType::Atomic);
            w.primary.will_attach(client, FabricKind::Shm);
        },
    ];
    for (case, make) in due.into_iter().enumerate() {
        let mut w = World::new(10);
        make(&mut w);
        let at = NOW.plus_ns(u64::from(LEASE_S + 9) * NS);
        let mut work = w.step(at, 0);
        assert_eq!((work.work, work.more), (0, true), "case {case}");
        work = w.step(at, 10_000);
        assert!(work.work > 0 && !work.more, "case {case}: {work:?}");
    }
}

/// Finding a client among all that have got a lock or an object, or that wait, is charged as work.
#[test]
fn who_is_searched_for_among_many_is_charged_for_them() {
    const CLIENTS: usize = 200;
    let mut w = World::new(CLIENTS);
    let clients: Vec<_> = (1..=CLIENTS as u32).map(|id| w.client(id, FabricKind::Shm)).collect();
    let create =
        ControlRequest::ObjectCreate { name: b"o".to_vec(), lease: Lease::secs(LEASE_S), init: 0 };
    w.control(clients[0], create);
    let mut work = 0;
    for &client in &clients {
        w.primary.take_work();
        let get = ControlRequest::ObjectGet { name: b"o".to_vec(), lease: Lease::secs(LEASE_S) };
        assert!(matches!(w.control(client, get), ControlReply::Object(_)));
        work = w.primary.take_work();
    }
    assert!(work >= 2 * CLIENTS as u32 - 2, "for the client, and for the last lease: {work}");

    let mut mine = None;
    for &client in &clients {
        let grant = w.get(client, &names(1), LockType::Atomic)[0];
        match mine {
            None => w.take(client, &grant, LockType::Atomic),
            Some(_) => _ = w.wait(client, &grant, Mode::Exclusive),
        }
        mine.get_or_insert(grant);
    }
    let mut lapse = w.primary.begin_lapse(clients[0]);
    assert!(w.primary.lapse(NOW, &mut w.memory, &mut lapse, &mut w.out));
    assert!(lapse.work() >= 2 * CLIENTS as u32 - 1, "references and queue: {}", lapse.work());
}

#[test]
fn too_many_locks_or_a_bad_name_among_them_are_refused_alone() {
    let mut w = World::new(1);
    let client = w.client(1, FabricKind::Tcp);
    let desc =
        |name: Vec<u8>| LockDesc { name, lock_type: LockType::Rw, lease_s: 0, tokens: false };
    let many = (0..=BATCH_MAX as u8).map(|n| desc(vec![n])).collect();
    let unnamed = vec![desc(vec![1]), desc(Vec::new())];
    for descs in [many, unnamed] {
        let reply = w.control(client, ControlRequest::GetLocks(descs));
        assert_eq!(reply, ControlReply::Error(Status::Invalid));
    }
    assert_eq!(w.primary.totals(), (1, 0, 0));
}

#[test]
fn what_was_waited_for_is_forgotten_with_the_reference() {
    let mut w = World::new(10);
    let (holder, waiter) = (w.client(1, FabricKind::Shm), w.client(2, FabricKind::Shm));
    for grant in w.get(holder, &names(31), LockType::Rw) {
        w.take(holder, &grant, LockType::Rw);
    }
    let grants = w.get(waiter, &names(31), LockType::Rw);
    grants.iter().for_each(|grant| _ = w.wait(waiter, grant, Mode::Exclusive));
    let locks = grants.iter().map(|grant| grant.lock).collect();
    w.control(waiter, ControlRequest::ReleaseLocks(locks));
    w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
    let is_due = w.primary.next_wakeup().is_some_and(|at| at <= NOW);
    assert!(!is_due, "there is no wait to be dropped");
}
