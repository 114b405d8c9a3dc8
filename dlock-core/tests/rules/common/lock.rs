// SPDX-License-Identifier: MIT OR Apache-2.0
//! One lock, its arbiter, and clients that operate on the word themselves.

use std::collections::HashMap;

use dlock_core::arbiter::{Arbiter, Caller, LockRef, Sent};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::memory::words::{LedgerEntry, TakenWord, Ticket, TurnWord};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

pub const X: Mode = Mode::Exclusive;
pub const S: Mode = Mode::Shared;
pub const HANDLE: Handle = Handle(0);
pub const START_S: u32 = 5_000;
pub const WAKE: Request = Request::Wake { handle: HANDLE };
pub const RESOLVE: Request = Request::Resolve { handle: HANDLE };

/// The deadline so many seconds after the start.
pub fn until(seconds: u32) -> Deadline {
    Deadline::at_s(seconds.saturating_add(START_S))
}

/// The moment at which a lease ends whose deadline is so many seconds after the start.
pub fn expiry(seconds: u32) -> u64 {
    until(seconds).expiry().0
}

#[derive(Default)]
pub struct Memory {
    pub word: u64,
    /// The turn word of a fair lock (`w1`).
    pub turn: u64,
    /// The lap of a fair lock (the `fence` word).
    pub lap: u64,
    pub ledgers: HashMap<ClientId, LedgerEntry>,
    /// A client that moves right after the arbiter has read its ledger entry, and the entry and
    /// lock word that it then leaves.
    pub moves: Option<(ClientId, LedgerEntry, u64)>,
}

impl Memory {
    pub fn at(&mut self, addr: WordAddr) -> &mut u64 {
        match addr.word() {
            Word::W1 => &mut self.turn,
            Word::Fence => &mut self.lap,
            _ => &mut self.word,
        }
    }
}

impl LockMemory for Memory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let word = self.at(addr);
        let old = *word;
        *word = if old == expect { swap } else { old };
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        let word = self.at(addr);
        *word = word.wrapping_add(add);
        word.wrapping_sub(add)
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        *self.at(addr)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        *self.at(addr) = value;
    }
    fn ledger(&mut self, client: ClientId, _: Handle) -> LedgerEntry {
        let entry = self.ledgers.get(&client).copied().unwrap_or_default();
        if let Some((_, next, word)) = self.moves.take_if(|moves| moves.0 == client) {
            self.ledgers.insert(client, next);
            self.word = word;
        }
        entry
    }
    fn set_ledger(&mut self, client: ClientId, _: Handle, entry: LedgerEntry) {
        match entry == LedgerEntry::new() {
            true => _ = self.ledgers.remove(&client),
            false => _ = self.ledgers.insert(client, entry),
        }
    }
}

/// One lock, its arbiter, and clients that operate on the word themselves.
pub struct World {
    pub lock_type: LockType,
    pub arbiter: Arbiter,
    pub memory: Memory,
    pub refs: Vec<(ClientId, Handle)>,
    pub now: ServerTime,
    pub seq: u64,
    pub work: u64,
}

pub fn id(n: u32) -> ClientId {
    ClientId::new(n).unwrap()
}

impl World {
    pub fn new(lock_type: LockType, clients: u32) -> Self {
        Self {
            lock_type,
            arbiter: Arbiter::default(),
            memory: Memory::default(),
            refs: (1..=clients).map(|n| (id(n), HANDLE)).collect(),
            now: ServerTime(u64::from(START_S) * NS),
            seq: 0,
            work: 0,
        }
    }

    pub fn call(
        &mut self,
        f: impl FnOnce(&mut Arbiter, ServerTime, &mut Memory, LockRef<'_>, Seq, &mut Vec<Sent>),
    ) -> Vec<Sent> {
        self.seq += 1;
        let refs = self.refs.clone();
        let lock = LockRef { slot: Slot(0), lock_type: self.lock_type, tokens: false, refs: &refs };
        let mut out = Vec::new();
        f(&mut self.arbiter, self.now, &mut self.memory, lock, Seq(self.seq), &mut out);
        self.work = self.work.max(self.arbiter.work());
        out
    }

    pub fn ask(&mut self, n: u32, request: Request) -> Vec<Sent> {
        self.call(|arbiter, now, memory, lock, seq, out| {
            let from = Caller { client: id(n), handle: HANDLE, seq };
            arbiter.request(now, memory, lock, from, request, out);
        })
    }

    pub fn pass(&mut self, ns: u64) -> Vec<Sent> {
        let end = self.now.plus_ns(ns);
        let mut all = Vec::new();
        while let Some(at) = self.arbiter.next_wakeup().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.arbiter.pop_due(self.now);
            all.extend(self.call(|arbiter, now, memory, lock, _, out| {
                arbiter.tick(now, memory, lock, out);
            }));
        }
        self.now = end;
        all
    }

    /// Removes the client, and undoes everything that it had.
    pub fn forget(&mut self, n: u32) -> Vec<Sent> {
        self.refs.retain(|r| r.0 != id(n));
        self.call(|arbiter, now, memory, lock, _, out| {
            arbiter.forget(now, memory, lock, id(n), HANDLE, out);
        })
    }

    /// Ends everything that the client has; the client stays, with an empty ledger.
    pub fn lapse(&mut self, n: u32) {
        let refs = self.refs.clone();
        self.forget(n);
        self.memory.ledgers.remove(&id(n));
        self.refs = refs;
    }

    pub fn taken(&self) -> TakenWord {
        TakenWord::from_bits(self.memory.word)
    }

    pub fn turn(&self) -> TurnWord {
        TurnWord::from_bits(self.memory.turn)
    }

    /// Writes a client's claim of a turn into its ledger, until `until_s` seconds after the start.
    /// A claim with a new stamp is for a new ticket.
    pub fn claims(&mut self, n: u32, mode: Mode, stamp: u32, until_s: u32) {
        self.memory
            .ledgers
            .insert(id(n), LedgerEntry::claim(mode, stamp).with_deadline(until(until_s)));
    }

    /// A client writes a claim into its ledger, and then takes a ticket by fetch-and-add.
    pub fn take(&mut self, n: u32, mode: Mode, until_s: u32) -> Ticket {
        let before = self.memory.ledgers.get(&id(n)).map_or(0, |entry| entry.stamp());
        self.claims(n, mode, before + 1, until_s);
        let taken = self.taken();
        self.memory.word = taken.taken(mode).into_bits();
        taken.next(self.memory.lap)
    }

    /// A client passes its turn on by itself, and its ledger says so.
    pub fn passes_on(&mut self, n: u32, mode: Mode) {
        assert!(!self.turn().told());
        self.memory.turn = self.turn().done(mode).into_bits();
        self.memory.ledgers.remove(&id(n));
    }

    pub fn release(&mut self, n: u32, mode: Mode, ticket: Ticket) -> Vec<Sent> {
        self.ask(n, Request::Release { handle: HANDLE, mode, ticket: Some(ticket) })
    }

    /// The deadline that the arbiter says an extended hold has; `None`: it is refused.
    pub fn extend(&mut self, n: u32, mode: Mode, ticket: Ticket, lease: Lease) -> Option<Deadline> {
        let out =
            self.ask(n, Request::Extend { handle: HANDLE, mode, ticket: Some(ticket), lease });
        match out[0].reply {
            Reply::Granted { deadline, .. } => Some(deadline),
            _ => None,
        }
    }

    pub fn poll(&mut self, n: u32, mode: Mode, ticket: Ticket) -> Vec<Sent> {
        self.ask(n, Request::Poll { handle: HANDLE, mode, ticket, lease: Lease::secs(30) })
    }

    pub fn wait(&mut self, n: u32, mode: Mode, ticket: Ticket) -> Vec<Sent> {
        let (wait, ticket) = (WaitNumber(1), Some(ticket));
        self.ask(n, Request::Wait { handle: HANDLE, mode, lease: Lease::secs(30), wait, ticket })
    }
}

/// Whether the only reply is a refusal.
pub fn is_denied(out: &[Sent]) -> bool {
    matches!(out, [Sent { reply: Reply::Denied { .. }, .. }])
}

pub fn is_done(out: &[Sent], n: u32) -> bool {
    out.iter().any(|s| s.client == id(n) && matches!(s.reply, Reply::Done { .. }))
}

pub fn is_granted(out: &[Sent], n: u32) -> bool {
    out.iter().any(|s| s.client == id(n) && matches!(s.reply, Reply::Granted { .. }))
}
