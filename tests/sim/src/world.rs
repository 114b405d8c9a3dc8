// SPDX-License-Identifier: MIT OR Apache-2.0
//! One lock, its clients, the arbiter and the clock, advanced one step at a time.

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use dlock_core::arbiter::{Arbiter, Caller, LockRef, Sent};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::{ClientId, Handle, LockId, Slot};
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::LockType;

use crate::clients::{Client, Clients, Doing, Memory};
use crate::tape::Tape;

/// One step of a client's script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An operation.
    Op(Op),
    /// An operation that is repeated until it returns neither `Fail` nor `Again`.
    Until(Op),
    /// The client ends here without a message: it is fenced, then forgotten.
    Crash,
}

/// A scenario to explore.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The kind of the lock.
    pub lock_type: LockType,
    /// The clients' scripts.
    pub scripts: Vec<Vec<Action>>,
    /// The value of the lock word at the start (fair locks near a wrap).
    pub start_word: u64,
    /// Whether a `Lock` may give up waiting at any moment.
    pub impatient: bool,
    /// Whether the primary executes the clients' chains (tcp): as a whole, and it knows their
    /// tickets.
    pub by_primary: bool,
    /// Whether time may pass (to the next deadline) while clients could run.
    pub time_passes: bool,
    /// Whether no client may have to wait for a deadline: a release is to be handed over by
    /// messages alone.
    pub without_timers: bool,
    /// The client that may die before any of its steps.
    pub mortal: Option<usize>,
}

const START: ServerTime = ServerTime(1_000_000 * NS);
const SLOT: Slot = Slot(7);
const STEPS_MAX: usize = 100_000;

/// The whole system in one value.
pub struct World {
    clients: Clients,
    arbiter: Arbiter,
    refs: Vec<(ClientId, Handle)>,
    time_passes: bool,
    without_timers: bool,
}

/// The primary's access to memory; clients may run before each of its word operations.
struct Interleaved<'a> {
    clients: &'a mut Clients,
    tape: &'a mut Tape,
}

impl Interleaved<'_> {
    fn others(&mut self) {
        if self.clients.by_primary {
            // the clients' chains are executed by the primary's own thread, so none can come in
            // between
            return;
        }
        loop {
            let runnable = self.clients.runnable();
            let mortal = self.clients.mortal();
            let pick = self.tape.choose(runnable.len() + 1 + usize::from(mortal.is_some()));
            match (pick, mortal) {
                (0, _) => return,
                (n, _) if n <= runnable.len() => self.clients.step(runnable[n - 1]),
                (_, Some(dies)) => self.clients.die(dies),
                _ => return,
            }
        }
    }
}

impl LockMemory for Interleaved<'_> {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.others();
        let word = self.clients.memory.word(addr);
        let old = *word;
        if old == expect {
            *word = swap;
        }
        let now = *word;
        self.clients.log(|| format!("arbiter cas {old:#x} → {now:#x}"));
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.others();
        let word = self.clients.memory.word(addr);
        let old = *word;
        *word = old.wrapping_add(add);
        old
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.others();
        *self.clients.memory.word(addr)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.others();
        *self.clients.memory.word(addr) = value;
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.others();
        let raw = self.clients.memory.ledgers.get(&(client, handle)).copied().unwrap_or(0);
        LedgerEntry::from_bits(raw)
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        match entry == LedgerEntry::new() {
            true => _ = self.clients.memory.ledgers.remove(&(client, handle)),
            false => _ = self.clients.memory.ledgers.insert((client, handle), entry.into_bits()),
        }
    }
}

impl World {
    /// A world whose clients all have the lock's handle.
    pub fn new(scenario: &Scenario) -> Self {
        let mut memory = Memory::default();
        let w0 = WordAddr::new(SLOT, dlock_core::memory::word_op::Word::W0);
        *memory.word(w0) = scenario.start_word;
        let lock_type = scenario.lock_type;
        let list: Vec<Client> = scenario
            .scripts
            .iter()
            .enumerate()
            .map(|(i, script)| {
                let id = ClientId::new(i as u32 + 1).expect("small numbers are client ids");
                let desc =
                    LockDesc { name: b"lock".to_vec(), lock_type, lease_s: 0, tokens: false };
                let grant = LockGrant {
                    lock: LockId(1),
                    handle: Handle(i as u32),
                    slot: SLOT,
                    word: scenario.start_word,
                    already: false,
                    tokens: false,
                };
                let mut entry = LockEntry::new(id, 0, lock_type, &grant, desc);
                entry.is_by_primary(scenario.by_primary);
                Client {
                    id,
                    entry,
                    script: script.clone(),
                    at: 0,
                    doing: Doing::Nothing,
                    operation: None,
                    asked: None,
                    inbox: VecDeque::new(),
                    seq: 0,
                    gone: false,
                    holds: None,
                    op_started: START,
                }
            })
            .collect();
        let refs = list.iter().map(|c| (c.id, c.entry.handle())).collect();
        let clients = Clients {
            list,
            memory,
            requests: VecDeque::new(),
            executed: Vec::new(),
            now: START,
            lock_type,
            by_primary: scenario.by_primary,
            impatient: scenario.impatient,
            mortal: scenario.mortal,
            violation: None,
            trace: Vec::new(),
        };
        let mut arbiter = Arbiter::default();
        for client in clients.list.iter().filter(|_| scenario.by_primary) {
            arbiter.proxy(client.id);
        }
        let (time_passes, without_timers) = (scenario.time_passes, scenario.without_timers);
        Self { clients, arbiter, refs, time_passes, without_timers }
    }

    /// The trace of events, one per line.
    pub fn trace(&self) -> String {
        self.clients.trace.join("\n")
    }

    /// Runs until no event is left; an error is a violated property. `seen` has the states that
    /// were explored before.
    pub fn run(
        &mut self,
        tape: &mut Tape,
        mut seen: Option<&mut HashSet<u64>>,
    ) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            if let Some(violation) = self.clients.violation.take() {
                return Err(violation);
            }
            self.tell_executed(tape);
            self.waiters_bit()?;
            if let Some(seen) = &mut seen {
                if tape.is_fresh() && !seen.insert(self.fingerprint()) {
                    return Ok(());
                }
            }
            let runnable = self.clients.runnable();
            let has_request = !self.clients.requests.is_empty();
            let gone = self.gone_and_not_forgotten();
            let due = self.arbiter.next_wakeup();
            let time = due.is_some() && (self.time_passes || (runnable.is_empty() && !has_request));
            let mortal = self.clients.mortal();
            let kinds = runnable.len()
                + usize::from(has_request)
                + usize::from(gone.is_some())
                + usize::from(mortal.is_some());
            let is_finished = self.without_timers && !self.clients.waits();
            if kinds == 0 && (!time || is_finished) {
                return self.quiescent();
            }
            let pick = tape.choose(kinds + usize::from(time));
            let mut rest = (pick + 1).saturating_sub(runnable.len());
            let mut is = |there: bool| {
                rest = rest.saturating_sub(usize::from(there));
                there && rest == 0
            };
            if pick < runnable.len() {
                self.clients.step(runnable[pick]);
            } else if is(has_request) {
                self.serve(tape);
            } else if is(gone.is_some()) {
                self.forget(gone.expect("it is there"), tape);
            } else if is(mortal.is_some()) {
                self.clients.die(mortal.expect("it is there"));
            } else if self.without_timers {
                return Err("somebody has to wait for a timer".to_string());
            } else {
                self.pass_time(tape);
            }
        }
        Err("no end in sight: a livelock".to_string())
    }

    /// Checks that the word shows to others whether a client is queued.
    fn waiters_bit(&mut self) -> Result<(), String> {
        use dlock_core::memory::words::{AtomicWord, RwWord};
        let w0 = WordAddr::new(SLOT, dlock_core::memory::word_op::Word::W0);
        let word = *self.clients.memory.word(w0);
        let bit = match self.clients.lock_type {
            LockType::Atomic => AtomicWord::from_bits(word).waiters(),
            LockType::Rw => RwWord::from_bits(word).waiters(),
            LockType::Fair => return Ok(()),
        };
        match self.arbiter.waiters(SLOT) {
            n if n > 0 && !bit => Err(format!("{n} are queued behind a word without the bit")),
            _ => Ok(()),
        }
    }

    /// A hash of everything that decides which events can follow.
    fn fingerprint(&self) -> u64 {
        let c = &self.clients;
        let text = format!(
            "{:?}{:?}{:?}{:?}{:?}{:?}",
            c.list, c.memory, c.requests, c.now, self.arbiter, self.refs
        );
        let mut hasher = std::hash::DefaultHasher::new();
        text.hash(&mut hasher);
        hasher.finish()
    }

    fn tell_executed(&mut self, tape: &mut Tape) {
        let lock = LockRef {
            slot: SLOT,
            lock_type: self.clients.lock_type,
            tokens: false,
            refs: &self.refs,
        };
        for (client, chain, values) in std::mem::take(&mut self.clients.executed) {
            for (word_op, &old) in chain.ops().iter().zip(values.as_slice()) {
                let took_effect = match *word_op {
                    WordOp::Faa { .. } => true,
                    WordOp::Cas { expect, .. } => old == expect,
                    _ => false,
                };
                let is_plain = matches!(
                    (lock.lock_type, word_op),
                    (LockType::Atomic, _) | (LockType::Rw, WordOp::Cas { .. })
                );
                if self.clients.by_primary && took_effect && !is_plain {
                    let may = self.arbiter.may(SLOT, lock.lock_type, client, old, word_op);
                    assert_eq!(may, Ok(()), "{client} would have been refused {word_op:?}");
                }
            }
            let handle = self.refs.iter().find(|r| r.0 == client).map(|r| r.1);
            let Some(handle) = handle else { continue };
            let mut noted = LedgerEntry::new();
            for (word_op, &old) in chain.ops().iter().zip(values.as_slice()) {
                match word_op {
                    WordOp::WriteLedger { value, .. } => noted = LedgerEntry::from_bits(*value),
                    WordOp::Faa { .. } | WordOp::Cas { .. } => {
                        let whose = (client, handle);
                        let mut mem = Interleaved { clients: &mut self.clients, tape };
                        self.arbiter.executed_word_op(&mut mem, lock, whose, noted, word_op, old);
                    }
                    WordOp::Read { .. } | WordOp::ReadPair { .. } => {}
                }
            }
        }
    }

    fn serve(&mut self, tape: &mut Tape) {
        let Some((i, seq, request)) = self.clients.requests.pop_front() else { return };
        let (client, handle) = (self.clients.list[i].id, self.clients.list[i].entry.handle());
        if self.clients.list[i].gone && !self.refs.iter().any(|r| r.0 == client) {
            return; // the reply is dropped: its client's channel is closed
        }
        self.clients.log(|| format!("arbiter serves client {i}: {request:?}"));
        let now = self.clients.now;
        let lock = LockRef {
            slot: SLOT,
            lock_type: self.clients.lock_type,
            tokens: false,
            refs: &self.refs,
        };
        let mut out = Vec::new();
        let mut mem = Interleaved { clients: &mut self.clients, tape };
        let from = Caller { client, handle, seq };
        self.arbiter.request(now, &mut mem, lock, from, request, &mut out);
        self.deliver(out);
    }

    fn deliver(&mut self, out: Vec<Sent>) {
        for sent in out {
            let to = self.clients.list.iter_mut().find(|c| c.id == sent.client);
            if let Some(client) = to {
                client.inbox.push_back((sent.seq, sent.reply));
            }
        }
    }

    fn gone_and_not_forgotten(&self) -> Option<usize> {
        (0..self.clients.list.len()).find(|&i| {
            let c = &self.clients.list[i];
            c.gone && self.refs.iter().any(|r| r.0 == c.id)
        })
    }

    /// Fences the client, so that nothing of it is under way, and then undoes what it held.
    fn forget(&mut self, i: usize, tape: &mut Tape) {
        let (client, handle) = (self.clients.list[i].id, self.clients.list[i].entry.handle());
        self.refs.retain(|r| r.0 != client);
        self.clients.requests.retain(|r| r.0 != i);
        self.clients.log(|| format!("client {i} is fenced and forgotten"));
        let now = self.clients.now;
        let lock = LockRef {
            slot: SLOT,
            lock_type: self.clients.lock_type,
            tokens: false,
            refs: &self.refs,
        };
        let mut out = Vec::new();
        let mut mem = Interleaved { clients: &mut self.clients, tape };
        self.arbiter.forget(now, &mut mem, lock, client, handle, &mut out);
        self.deliver(out);
    }

    fn pass_time(&mut self, tape: &mut Tape) {
        let Some(due) = self.arbiter.next_wakeup() else { return };
        let now = self.clients.now.max(due);
        self.clients.now = now;
        self.clients.log(|| format!("time {}", now.0));
        while self.arbiter.pop_due(now).is_some() {
            let lock = LockRef {
                slot: SLOT,
                lock_type: self.clients.lock_type,
                tokens: false,
                refs: &self.refs,
            };
            let mut out = Vec::new();
            let mut mem = Interleaved { clients: &mut self.clients, tape };
            self.arbiter.tick(now, &mut mem, lock, &mut out);
            self.deliver(out);
        }
    }

    /// Checks the end: every script is finished, and the remaining clients hold what the word says.
    fn quiescent(&mut self) -> Result<(), String> {
        use dlock_core::memory::words::{AtomicWord, RwWord, TakenWord, TurnWord};
        for (i, c) in self.clients.list.iter().enumerate() {
            if !c.gone && c.at < c.script.len() {
                return Err(format!(
                    "client {i} never finished {:?}: {:?}",
                    c.script[c.at], c.doing
                ));
            }
        }
        let now = self.clients.now;
        let live = |c: &&Client| !c.gone && c.holds.is_some_and(|(_, end)| end > now);
        let holders = self.clients.list.iter().filter(live).count();
        let w0 = WordAddr::new(SLOT, dlock_core::memory::word_op::Word::W0);
        let w1 = WordAddr::new(SLOT, dlock_core::memory::word_op::Word::W1);
        let [word, turn] = [w0, w1].map(|addr| *self.clients.memory.word(addr));
        let held = match self.clients.lock_type {
            LockType::Atomic => usize::from(AtomicWord::from_bits(word).client() != 0),
            LockType::Rw => {
                let w = RwWord::from_bits(word);
                if w.waiters() {
                    return Err(format!("the waiters bit is left behind: {word:#x}"));
                }
                usize::from(w.client() != 0) + w.rcount() as usize
            }
            LockType::Fair => {
                let (taken, turn) = (TakenWord::from_bits(word), TurnWord::from_bits(turn));
                (taken.mx() - turn.nx() + taken.ms() - turn.ns()) as usize
            }
        };
        // an expired hold, and a ticket that no client claims, end when a client wants the lock
        let exact = self.clients.lock_type == LockType::Rw;
        if held != holders && (exact || held < holders) {
            return Err(format!("{holders} hold the lock, but its word is {word:#x}"));
        }
        Ok(())
    }
}
