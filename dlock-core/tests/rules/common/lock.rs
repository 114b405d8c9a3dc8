// SPDX-License-Identifier: MIT OR Apache-2.0
//! One lock, its arbiter, and clients that operate on the word themselves.

use std::collections::HashMap;

use dlock_core::arbiter::{Arbiter, Caller, LockRef, Sent};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::limits::FAIR_GRACE_S;
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::word_op::{Word, WordAddr, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket, TurnWord};

pub const X: Mode = Mode::Exclusive;
pub const S: Mode = Mode::Shared;
pub const HANDLE: Handle = Handle(0);
pub const START_S: u32 = 5_000;
pub const WAKE: Request = Request::Wake { handle: HANDLE };
pub const RESOLVE: Request = Request::Resolve { handle: HANDLE };

/// The moment at which a lease ends whose deadline is so many seconds after the start.
pub fn expiry(deadline_s: u32) -> u64 {
    ServerTime::expiry_of(START_S + deadline_s).0
}

#[derive(Default)]
pub struct Memory {
    pub word: u64,
    /// Whether a release is to be told to the arbiter; the turn, while the lock is relayed.
    pub companion: u64,
    pub ledgers: HashMap<ClientId, LedgerEntry>,
    /// Once this client's entry was looked at, the client moves: to this entry, and this word.
    pub moves: Option<(ClientId, LedgerEntry, u64)>,
}

impl Memory {
    pub fn at(&mut self, addr: WordAddr) -> &mut u64 {
        match addr.word() {
            Word::W1 => &mut self.companion,
            _ => &mut self.word,
        }
    }

    /// Whether a release is to be told to the arbiter.
    pub fn is_told(&self) -> bool {
        TurnWord::from_bits(self.companion).told()
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
    /// A fair lock. The share of client 1, which has not come out with it, was passed over;
    /// client 2 holds the lock. Their tickets.
    pub fn passed_over() -> (Self, Ticket, Ticket) {
        let mut w = Self::new(LockType::Fair, 5);
        let late = w.take(1, S, LedgerState::Intent, 0);
        let first = w.take(2, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(2, X, first).is_empty());
        assert!(is_granted(&w.pass(u64::from(FAIR_GRACE_S) * NS + NS / 100), 2));
        w.writes(2, LedgerState::HeldExclusive, first, 600);
        (w, late, first)
    }

    /// The primary executes the chain by which client `n`, behind its intent, takes a share; its
    /// note is lost.
    pub fn executes_a_share(&mut self, n: u32, lease_s: u32) -> Ticket {
        self.writes(n, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, lease_s);
        let (noted, old) = (self.memory.ledgers[&id(n)], self.memory.word);
        self.memory.word = self.word().shared_taken().into_bits();
        self.call(|arbiter, _, memory, lock, _, _| {
            let addr = WordAddr::new(lock.slot, Word::W0);
            let add = WordOp::Faa { addr, add: FairWord::TAKE_SHARED };
            arbiter.executed_word_op(memory, lock, (id(n), HANDLE), noted, &add, old);
        });
        FairWord::from_bits(old).next()
    }

    pub fn new(lock_type: LockType, clients: u32) -> Self {
        Self {
            lock_type,
            arbiter: Arbiter::new(START_S),
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
        let lock = LockRef { slot: Slot(0), lock_type: self.lock_type, refs: &refs };
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

    /// The client is gone, and whatever it had is undone.
    pub fn forget(&mut self, n: u32) -> Vec<Sent> {
        self.refs.retain(|r| r.0 != id(n));
        self.call(|arbiter, now, memory, lock, _, out| {
            arbiter.forget(now, memory, lock, id(n), HANDLE, out);
        })
    }

    /// What it has is ended, and it is there again with an empty ledger.
    pub fn lapse(&mut self, n: u32) {
        let refs = self.refs.clone();
        self.refs.retain(|r| r.0 != id(n));
        self.call(|arbiter, now, memory, lock, _, out| {
            arbiter.lapse(now, memory, lock, id(n), HANDLE, out);
        });
        self.memory.ledgers.remove(&id(n));
        self.refs = refs;
    }

    pub fn word(&self) -> FairWord {
        FairWord::from_bits(self.memory.word).told_by(TurnWord::from_bits(self.memory.companion))
    }

    pub fn writes(&mut self, n: u32, state: LedgerState, ticket: Ticket, lease_s: u32) {
        let entry = LedgerEntry::of_ticket(state, ticket).with_detail(lease_s);
        self.memory.ledgers.insert(id(n), entry);
    }

    /// A ticket by fetch-and-add, and what the ledger says of it.
    pub fn take(&mut self, n: u32, mode: Mode, state: LedgerState, lease_s: u32) -> Ticket {
        let w = self.word();
        self.memory.word = match mode {
            X => w.exclusive_taken(),
            S => w.shared_taken(),
        }
        .into_bits();
        let ticket = Ticket { tx: w.mx(), ts: w.ms() };
        let said = match state {
            LedgerState::Intent => LedgerEntry::intent(mode, false, w.mx().into()).ticket(),
            _ => ticket,
        };
        self.writes(n, state, said, lease_s);
        ticket
    }

    pub fn release(&mut self, n: u32, mode: Mode, ticket: Ticket) -> Vec<Sent> {
        self.ask(n, Request::Release { handle: HANDLE, mode, ticket: Some(ticket) })
    }

    /// The deadline that the arbiter says an extended hold has; `None`: it is refused.
    pub fn extend(&mut self, n: u32, mode: Mode, ticket: Ticket, expire_s: u32) -> Option<u32> {
        let out = self.ask(n, Request::Extend { handle: HANDLE, mode, ticket, expire_s });
        match out[0].reply {
            Reply::Granted { deadline_s, .. } => Some(deadline_s - START_S),
            _ => None,
        }
    }

    pub fn wait(&mut self, n: u32, mode: Mode, ticket: Ticket) -> Vec<Sent> {
        let (wait, ticket) = (WaitNumber(1), Some(ticket));
        self.ask(n, Request::Wait { handle: HANDLE, mode, expire_s: 30, wait, ticket })
    }

    /// One exclusive hold through the arbiter, which is released; its ticket.
    pub fn cycle(&mut self, n: u32) -> Ticket {
        let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 };
        let out = self.ask(n, take);
        let Reply::Granted { ticket: Some(ticket), .. } = out[0].reply else { panic!("{out:?}") };
        self.writes(n, LedgerState::HeldExclusive, ticket, 60);
        let release = Request::Release { handle: HANDLE, mode: X, ticket: Some(ticket) };
        let out = self.ask(n, release);
        assert!(matches!(out[0].reply, Reply::Done { .. }), "{out:?}");
        self.memory.ledgers.remove(&id(n));
        ticket
    }
}

/// Whether the request was refused, and nothing else was said.
pub fn is_denied(out: &[Sent]) -> bool {
    matches!(out, [Sent { reply: Reply::Denied { .. }, .. }])
}

pub fn is_done(out: &[Sent], n: u32) -> bool {
    out.iter().any(|s| s.client == id(n) && matches!(s.reply, Reply::Done { .. }))
}

pub fn is_granted(out: &[Sent], n: u32) -> bool {
    out.iter().any(|s| s.client == id(n) && matches!(s.reply, Reply::Granted { .. }))
}
