// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the models found, step by step.

use dlock_core::arbiter::{Arbiter, Caller, LockRef};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::limits::FAIR_GRACE_S;
use dlock_core::message::{LockType, Mode, Request, WaitNumber};
use dlock_core::word_op::{Word, WordAddr};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket};

const HANDLE: Handle = Handle(0);
const START: ServerTime = ServerTime(1_000 * NS);

/// One word, a ledger entry for each of four clients, and the companion word.
struct Memory(u64, [LedgerEntry; 4], u64);

impl LockMemory for Memory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let word = if addr.word() == Word::W1 { &mut self.2 } else { &mut self.0 };
        let old = *word;
        *word = if old == expect { swap } else { old };
        old
    }
    fn faa(&mut self, _: WordAddr, add: u64) -> u64 {
        self.0 += add;
        self.0 - add
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        if addr.word() == Word::W1 {
            self.2
        } else {
            self.0
        }
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        assert_eq!(addr.word(), Word::W1, "the companion of a lock in use");
        self.2 = value;
    }
    fn ledger(&mut self, client: ClientId, _: Handle) -> LedgerEntry {
        self.1[client.get() as usize - 1]
    }
    fn set_ledger(&mut self, client: ClientId, _: Handle, entry: LedgerEntry) {
        self.1[client.get() as usize - 1] = entry;
    }
}

struct World {
    arbiter: Arbiter,
    memory: Memory,
    seq: u64,
}

impl World {
    fn new() -> Self {
        let memory = Memory(0, [LedgerEntry::new(); 4], 0);
        Self { arbiter: Arbiter::new(1_000), memory, seq: 0 }
    }

    fn with(&mut self, f: impl FnOnce(&mut Arbiter, &mut Memory, LockRef<'_>, Seq)) {
        let refs = [1, 2, 3, 4].map(|n| (ClientId::new(n).unwrap(), HANDLE));
        self.seq += 1;
        let lock = LockRef { slot: Slot(0), lock_type: LockType::Fair, refs: &refs };
        f(&mut self.arbiter, &mut self.memory, lock, Seq(self.seq));
    }

    fn ask(&mut self, n: u32, at: ServerTime, request: Request) {
        self.with(|arbiter, memory, lock, seq| {
            let from = Caller { client: ClientId::new(n).unwrap(), handle: HANDLE, seq };
            arbiter.request(at, memory, lock, from, request, &mut Vec::new());
        });
    }

    /// A ticket by fetch-and-add, published.
    fn take(&mut self, n: usize, mode: Mode, state: LedgerState) -> Ticket {
        let old = FairWord::from_bits(self.memory.0);
        self.memory.0 += match mode {
            Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
            Mode::Shared => FairWord::TAKE_SHARED,
        };
        let ticket = old.next();
        let entry = LedgerEntry::of_ticket(state, ticket).with_deadline_s(2_000, 1_000);
        self.memory.1[n - 1] = entry;
        ticket
    }
}

/// Readers that are done are only counted. A reader that gave up its ticket late, after the
/// arbiter had passed it over, was counted twice: the second time, the share of another reader
/// ended, and a writer was let in beside it.
fn a_late_abandon(ledger_is_cleared: bool) {
    let mut world = World::new();
    let first = world.take(1, Mode::Exclusive, LedgerState::HeldExclusive);
    let given_up = world.take(2, Mode::Shared, LedgerState::TicketShared);
    let third = world.take(3, Mode::Exclusive, LedgerState::TicketExclusive);
    if ledger_is_cleared {
        world.memory.1[1] = LedgerEntry::new(); // and the client is paused before it says so
    }
    let (handle, mode, expire_s) = (HANDLE, Mode::Exclusive, 100);
    let (wait, ticket) = (WaitNumber(1), Some(third));
    world.ask(3, START, Request::Wait { handle, mode, expire_s, wait, ticket });
    world.ask(1, START, Request::Release { handle, mode, ticket: Some(first) });
    let later = START.plus_ns(u64::from(FAIR_GRACE_S) * NS);
    world.with(|arbiter, memory, lock, _| {
        arbiter.tick(later, memory, lock, &mut Vec::new());
    });
    world.ask(3, later, Request::Release { handle, mode, ticket: Some(third) });
    let word = FairWord::from_bits(world.memory.0);
    assert_eq!((word.nx(), word.mx(), word.ns(), word.ms()), (2, 2, 1, 1), "all is done");
    // another reader holds it now, and the message arrives
    world.take(4, Mode::Shared, LedgerState::HeldShared);
    let mode = Mode::Shared;
    world.ask(2, later, Request::Abandon { handle, mode, ticket: given_up });
    let word = FairWord::from_bits(world.memory.0);
    assert_eq!((word.ns(), word.ms()), (1, 2), "the other reader's share has ended");
}

#[test]
fn a_reader_that_gives_up_late_ends_nobody_elses_share() {
    a_late_abandon(true);
    a_late_abandon(false);
}
