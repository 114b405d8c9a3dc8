// SPDX-License-Identifier: MIT OR Apache-2.0
//! Word operations of a client against those of the arbiter, on loom's memory: in every order of
//! effects, a waiter gets the lock in the end, once, and the word says so. Messages are not
//! modelled: what the client asks the arbiter for is served once its thread has ended.

use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_core::arbiter::{Arbiter, Caller, LockRef, Sent};
use dlock_core::clock::{Lease, NS, Now, ServerTime};
use dlock_core::ids::{ClientId, Handle, LockId, Seq, Slot};
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::words::{
    AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, TurnWord,
};
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;
use dlock_loom::{carry_out, Shared, SharedWord};
use loom::sync::Arc;
use loom::thread;

const EX: Mode = Mode::Exclusive;
const SH: Mode = Mode::Shared;

/// A model must have more executions than this: with fewer, the threads hardly ever meet.
const RUNS_MIN: usize = 4;

fn model(f: impl Fn() + Sync + Send + 'static) {
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    loom::model(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        f();
    });
    println!("{} executions", runs.load(Ordering::Relaxed));
    assert!(runs.load(Ordering::Relaxed) > RUNS_MIN, "the threads hardly ever met");
}

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

/// How far an operation comes without the arbiter.
enum At {
    Done(Status),
    Asks(Request),
}

/// Runs an operation up to its first request.
fn run(shared: &Shared, n: u32, entry: &mut LockEntry, op: Op) -> At {
    let mut asked = None;
    let told = carry_out(shared, client(n), entry, op, now(), |request| {
        asked = Some(request);
        false
    });
    match (told, asked) {
        (Some(status), None) => At::Done(status),
        (_, Some(request)) => At::Asks(request),
        (None, None) => unreachable!("only a request ends it early"),
    }
}

/// The arbiter of a lock, of which clients 1 and 2 have a handle.
struct Primary {
    arbiter: Arbiter,
    memory: Shared,
    lock_type: LockType,
    seq: u64,
    sent: Vec<Sent>,
}

impl Primary {
    fn new(memory: &Shared, lock_type: LockType) -> Self {
        let (arbiter, memory) = (Arbiter::default(), memory.clone());
        Self { arbiter, memory, lock_type, seq: 0, sent: Vec::new() }
    }

    fn serve(&mut self, n: u32, request: Request) {
        self.seq += 1;
        let refs = [(client(1), Handle(0)), (client(2), Handle(0))];
        let lock = LockRef { slot: Slot(0), lock_type: self.lock_type, tokens: false, refs: &refs };
        let from = Caller { client: client(n), handle: Handle(0), seq: Seq(self.seq) };
        let (time, memory) = (now().time, &mut self.memory);
        self.arbiter.request(time, memory, lock, from, request, &mut self.sent);
    }

    fn grants_to(&self, n: u32) -> usize {
        let granted = |s: &&Sent| s.client == client(n) && matches!(s.reply, Reply::Granted { .. });
        self.sent.iter().filter(granted).count()
    }
}

fn try_lock(mode: Mode) -> Op {
    Op::TryLock { mode, lease: Lease::secs(30) }
}

fn held(shared: &Shared, lock_type: LockType, mode: Mode) -> LockEntry {
    let mut entry = entry(1, lock_type);
    let At::Done(status) = run(shared, 1, &mut entry, try_lock(mode)) else { panic!() };
    assert_eq!(status, Status::Success);
    entry
}

fn lock(mode: Mode) -> Op {
    Op::Lock { mode, lease: Lease::secs(30) }
}

/// Client 1 releases the lock while client 2 asks for it. In the end client 2 has the lock.
fn release_against_lock(lock_type: LockType, holds: Mode, wants: Mode) {
    model(move || {
        let shared = Shared::default();
        let mut first = held(&shared, lock_type, holds);
        let mut primary = Primary::new(&shared, lock_type);
        let of_client = shared.clone();
        let releases = thread::spawn(move || match run(&of_client, 1, &mut first, Op::Unlock) {
            At::Done(status) => (status, None),
            At::Asks(request) => (Status::Success, Some(request)),
        });
        let mut second = entry(2, lock_type);
        let at_once = match run(&shared, 2, &mut second, lock(wants)) {
            At::Done(status) => {
                assert_eq!(status, Status::Success);
                1
            }
            At::Asks(request) => {
                primary.serve(2, request);
                0
            }
        };
        let (status, request) = releases.join().unwrap();
        assert_eq!(status, Status::Success);
        if let Some(request) = request {
            primary.serve(1, request);
        }
        assert_eq!(at_once + primary.grants_to(2), 1, "{:?}", primary.sent);
        let word = shared.word.load();
        match lock_type {
            LockType::Atomic => {
                let word = AtomicWord::from_bits(word);
                assert_eq!((word.client(), word.waiters()), (2, false));
            }
            LockType::Rw => {
                let (owner, readers) = if wants == EX { (2, 0) } else { (0, 1) };
                let word = RwWord::from_bits(word);
                let is = (word.client(), word.rcount(), word.waiters());
                assert_eq!(is, (owner, readers, false));
            }
            LockType::Fair => {
                let taken = TakenWord::from_bits(word);
                let turn = TurnWord::from_bits(shared.turn.load());
                let open = (taken.mx() - turn.nx(), taken.ms() - turn.ns());
                assert_eq!(open, if wants == EX { (1, 0) } else { (0, 1) });
            }
        }
    });
}

#[test]
fn a_release_of_an_atomic_lock_meets_a_waiter() {
    release_against_lock(LockType::Atomic, EX, EX);
}

#[test]
fn a_release_of_a_read_write_lock_meets_a_waiter() {
    release_against_lock(LockType::Rw, EX, EX);
    release_against_lock(LockType::Rw, EX, SH);
    release_against_lock(LockType::Rw, SH, EX);
}

#[test]
fn a_release_of_a_fair_lock_meets_a_waiter() {
    release_against_lock(LockType::Fair, EX, EX);
    release_against_lock(LockType::Fair, EX, SH);
    release_against_lock(LockType::Fair, SH, EX);
}

/// Client 1 tries to read while the arbiter gives the lock to client 2, a writer. Client 1 either
/// gets the lock, or steps back. After that, client 2 gets the lock: from the arbiter at once, or
/// at the `Wake` that client 1 sends.
#[test]
fn a_reader_that_comes_while_a_writer_is_let_in_steps_back_or_is_waited_for() {
    model(|| {
        let shared = Shared::default();
        let mut primary = Primary::new(&shared, LockType::Rw);
        let of_client = shared.clone();
        let reader = thread::spawn(move || {
            let mut entry = entry(1, LockType::Rw);
            let mut asked = Vec::new();
            let mut status = Status::Fail;
            match run(&of_client, 1, &mut entry, try_lock(SH)) {
                At::Done(done) => status = done,
                // the client has stepped back, and sends a `Wake`
                At::Asks(request) => asked.push(request),
            }
            if status == Status::Success {
                if let At::Asks(request) = run(&of_client, 1, &mut entry, Op::Unlock) {
                    asked.push(request);
                }
            }
            asked
        });
        let (handle, wait) = (Handle(0), WaitNumber(1));
        let lease = Lease::secs(30);
        primary.serve(2, Request::Wait { handle, mode: EX, lease, wait, ticket: None });
        for request in reader.join().unwrap() {
            assert!(matches!(request, Request::Wake { .. }), "{request:?}");
            primary.serve(1, request);
        }
        assert_eq!(primary.grants_to(2), 1, "{:?}", primary.sent);
        let word = RwWord::from_bits(shared.word.load());
        assert_eq!((word.client(), word.rcount(), word.waiters()), (2, 0, false));
    });
}

/// Client 2 died within a chain. During the recount, client 1 leaves the lock and comes back, so
/// that its entry looks as before except for its stamp. In the end the count is right.
#[test]
fn a_recount_is_not_fooled_by_a_reader_that_leaves_and_comes_back() {
    model(|| {
        let shared = Shared::default();
        let mut first = held(&shared, LockType::Rw, SH);
        shared.word.faa(1);
        shared.write_ledger(client(2), LedgerEntry::new().with_state(LedgerState::Intent));
        let mut memory = shared.clone();
        let reader = thread::spawn(move || {
            let unlocked = run(&shared, 1, &mut first, Op::Unlock);
            assert!(matches!(unlocked, At::Done(Status::Success) | At::Asks(_)));
            match run(&shared, 1, &mut first, try_lock(SH)) {
                At::Done(status) => u32::from(status == Status::Success),
                At::Asks(_) => 0, // the client has stepped back, and sends a `Wake`
            }
        });
        let mut arbiter = Arbiter::default();
        let mut out = Vec::new();
        let refs = [(client(1), Handle(0))];
        let lock = LockRef { slot: Slot(0), lock_type: LockType::Rw, tokens: false, refs: &refs };
        let time = now().time;
        arbiter.forget(time, &mut memory, lock, client(2), Handle(0), &mut out);
        let readers = reader.join().unwrap();
        arbiter.tick(time.plus_ns(NS), &mut memory, lock, &mut out);
        let word = RwWord::from_bits(memory.word.load());
        assert_eq!((word.rcount(), word.client(), word.waiters()), (readers, 0, false));
    });
}

/// A client that sees that the primary has died also sees all that the primary did before.
#[test]
fn who_sees_the_vigil_end_sees_all_that_was_done_before() {
    model(|| {
        // the word that says whether the primary lives, and a lock word
        let words = Arc::new([0, 0].map(SharedWord::new));
        let of_client = words.clone();
        let client = thread::spawn(move || {
            if of_client[0].load() != 0 {
                assert_eq!(of_client[1].load(), 7);
            }
        });
        words[1].store(7);
        words[0].store(0x4000_0000);
        client.join().unwrap();
    });
}
