// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client machines and the arbiter of `dlock-core` itself, on loom's memory. What a lock
//! protects is a plain cell: an acquire that does not order what follows it after what the last
//! holder did is a data race, which loom reports.

use dlock_core::arbiter::{Arbiter, LockRef};
use dlock_core::clock::{Lease, NS, Now, ServerTime};
use dlock_core::ids::{ClientId, Handle, LockId, Slot};
use dlock_core::limits::PARK_AFTER_NS;
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::words::RwWord;
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_loom::{carry_out, Shared, SharedWord};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

fn now() -> Now {
    Now::exact(ServerTime(1_000 * NS))
}

fn client(n: u32) -> ClientId {
    ClientId::new(n).unwrap()
}

fn entry(n: u32, lock_type: LockType) -> LockEntry {
    let (lock, handle, slot) = (LockId(5), Handle(0), Slot(0));
    let grant = LockGrant { lock, handle, slot, word: 0, already: false, tokens: false };
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
    LockEntry::new(client(n), 0, lock_type, &grant, desc)
}

/// Runs an operation. Its requests to the arbiter get no answers.
fn run(shared: &Shared, n: u32, entry: &mut LockEntry, op: Op) -> Status {
    carry_out(shared, client(n), entry, op, now(), |_| true).unwrap_or(Status::Error)
}

fn try_lock(mode: Mode) -> Op {
    Op::TryLock { mode, lease: Lease::secs(30) }
}

/// Two clients each try the lock once, and access a plain cell while they hold it.
fn exclusion(lock_type: LockType, modes: [Mode; 2]) {
    loom::model(move || {
        let (shared, cell) = (Shared::default(), Arc::new(UnsafeCell::new(0_u32)));
        let one = move |n: u32, mode: Mode, shared: Shared, cell: Arc<UnsafeCell<u32>>| {
            let mut entry = entry(n, lock_type);
            if run(&shared, n, &mut entry, try_lock(mode)) == Status::Success {
                // loom checks whether two accesses race; the cell's content is not used
                match mode {
                    Mode::Exclusive => cell.with_mut(|_| ()),
                    Mode::Shared => cell.with(|_| ()),
                }
                run(&shared, n, &mut entry, Op::Unlock);
            }
        };
        let (other_shared, other_lock_slot) = (shared.clone(), cell.clone());
        let other = thread::spawn(move || one(2, modes[1], other_shared, other_lock_slot));
        one(1, modes[0], shared, cell);
        other.join().unwrap();
    });
}

#[test]
fn holders_of_an_atomic_lock_are_ordered() {
    exclusion(LockType::Atomic, [Mode::Exclusive; 2]);
}

#[test]
fn writer_and_reader_of_a_read_write_lock_are_ordered() {
    exclusion(LockType::Rw, [Mode::Exclusive, Mode::Shared]);
}

#[test]
fn writers_of_a_read_write_lock_are_ordered() {
    exclusion(LockType::Rw, [Mode::Exclusive; 2]);
}

#[test]
fn holders_of_a_fair_lock_are_ordered() {
    exclusion(LockType::Fair, [Mode::Exclusive; 2]);
}

#[test]
fn writer_and_reader_of_a_fair_lock_are_ordered() {
    exclusion(LockType::Fair, [Mode::Exclusive, Mode::Shared]);
}

/// An entry of a fair lock whose clients sleep on the word.
fn parks(n: u32) -> LockEntry {
    let mut entry = entry(n, LockType::Fair);
    entry.may_try(true);
    entry.may_park(true);
    entry
}

/// Waits until it is the client's turn. Sleeps on the word after it has looked once.
fn waits(shared: &Shared, n: u32, entry: &mut LockEntry, mode: Mode) -> Status {
    let op = Op::Lock { mode, lease: Lease::secs(30) };
    let mut now = now();
    let bounds = Bounds::since(now.local_ns);
    let Started::Running(mut operation) = Operation::begin(entry, op, now, bounds) else {
        panic!("a ticket is to be taken");
    };
    loop {
        match operation.next(entry) {
            Effect::Post { chain, .. } => {
                operation.outcome(entry, shared.execute(client(n), &chain), now);
            }
            Effect::Pause { .. } => {
                now.local_ns += PARK_AFTER_NS;
                operation.paused(entry, now);
            }
            Effect::Park { half, value, .. } => {
                shared.park(half, value);
                operation.paused(entry, now);
            }
            Effect::WriteLedger(write) => shared.write_ledger(client(n), write),
            Effect::ReadClock => operation.clock(now),
            Effect::Count(_) => {}
            Effect::Done(result) => return result.status,
            other => panic!("it asks nobody: {other:?}"),
        }
    }
}

/// Client 1 releases while client 2 takes a ticket, announces that it sleeps, and sleeps. Client 2
/// is woken.
fn wakes(holds: Mode, wants: Mode) {
    loom::model(move || {
        let shared = Shared::default();
        let mut first = parks(1);
        assert_eq!(run(&shared, 1, &mut first, try_lock(holds)), Status::Success);
        let of_waiter = shared.clone();
        let waiter = thread::spawn(move || waits(&of_waiter, 2, &mut parks(2), wants));
        assert_eq!(run(&shared, 1, &mut first, Op::Unlock), Status::Success);
        assert_eq!(waiter.join().unwrap(), Status::Success);
    });
}

#[test]
fn a_release_wakes_a_client_that_sleeps_on_the_turn() {
    wakes(Mode::Exclusive, Mode::Exclusive);
    wakes(Mode::Exclusive, Mode::Shared);
}

#[test]
fn a_reader_that_leaves_wakes_a_writer_that_sleeps_on_the_shares() {
    wakes(Mode::Shared, Mode::Exclusive);
}

/// Client 2 died within a chain. Client 1 takes a share, and keeps it, while the arbiter recounts.
/// The share is neither lost nor counted twice.
#[test]
fn a_recount_never_takes_a_living_reader_off() {
    loom::model(|| {
        let shared = Shared::default();
        shared.word.faa(1);
        let entry_of_dead = dlock_core::memory::words::LedgerEntry::new();
        let intent = dlock_core::memory::words::LedgerState::Intent;
        shared.write_ledger(client(2), entry_of_dead.with_state(intent));
        let mut memory = shared.clone();
        let reader = thread::spawn(move || {
            let mut entry = entry(1, LockType::Rw);
            run(&shared, 1, &mut entry, try_lock(Mode::Shared))
        });
        let mut arbiter = Arbiter::default();
        let mut out = Vec::new();
        let refs = [(client(1), Handle(0))];
        let lock = LockRef { slot: Slot(0), lock_type: LockType::Rw, tokens: false, refs: &refs };
        let time = now().time;
        arbiter.forget(time, &mut memory, lock, client(2), Handle(0), &mut out);
        let got = reader.join().unwrap();
        arbiter.tick(time.plus_ns(NS), &mut memory, lock, &mut out);
        let word = RwWord::from_bits(memory.word.load());
        let readers = u32::from(got == Status::Success);
        assert_eq!((word.rcount(), word.client(), word.waiters()), (readers, 0, false));
    });
}

/// A client that passed the gate before it was closed finishes its access before the primary sees
/// its detach.
#[test]
fn what_a_detached_client_did_is_visible() {
    loom::model(|| {
        // the gate, the number of detaches, and a lock word
        let words = Arc::new([0, 0, 0].map(SharedWord::new));
        let of_client = words.clone();
        let client = thread::spawn(move || {
            if of_client[0].load() == 0 {
                of_client[2].store(7);
            }
            of_client[1].faa(1);
        });
        words[0].store(1);
        if words[1].load() == 1 {
            let seen = words[2].load();
            client.join().unwrap();
            assert_eq!(words[2].load(), seen, "an access after the fence");
        } else {
            client.join().unwrap();
        }
    });
}
