// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call of the arbiter, one word operation at a time.
//!
//! The arbiter is a plain function that calls its memory. Clients must be able to run between two
//! of its word operations. So a call under way is kept as the arbiter before the call, and the
//! values of the call's word operations so far. To find the next word operation, a copy of the
//! arbiter is called again with these values: the arbiter is pure, so it repeats its word
//! operations and goes on to the next one, where the call is unwound.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use dlock_core::arbiter::{Arbiter, Caller, LockRef, Sent};
use dlock_core::clock::ServerTime;
use dlock_core::ids::{ClientId, Handle, Seq};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, TurnWord};
use dlock_core::wire::message::{LockType, Request};

use crate::bug::Bug;
use crate::state::{id, Event, Setup, State, CLIENTS, HANDLE};

/// The reason of a call of the arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum What {
    Request(usize, Seq, Request),
    Forget(usize),
    Tick,
}

/// A call under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) what: What,
    /// The arbiter's clock when the call began.
    pub(crate) at: ServerTime,
    /// The values of the word operations that were executed.
    pub(crate) values: Vec<u64>,
}

/// The payload with which a call is unwound at its next word operation.
struct Suspended;

/// How far a call has come.
pub(crate) enum Advanced {
    Done(Vec<Sent>),
    /// The next word operation of the call is on the lock word.
    BeforeWord,
    /// The next word operation of the call reads or clears this client's ledger entry.
    BeforeLedger(usize),
}

/// Replays the known values, executes one more word operation, and stops before the one after it;
/// or goes on to the end of the call.
struct Replay<'a> {
    state: &'a mut State,
    setup: &'a Setup,
    values: Vec<u64>,
    at: usize,
    executed: bool,
    /// The first reading of each ledger ([`Bug::LedgersReadOnce`]).
    first: [Option<u64>; CLIENTS],
    what: What,
    events: Vec<Event>,
    /// The client whose ledger entry the next word operation is on; `None`: it is on a word.
    ledger: Option<usize>,
    /// Whether the call is executed to its end, because no client can come in between.
    whole: bool,
}

impl Replay<'_> {
    fn word(&mut self, execute: impl FnOnce(&mut State, &Setup) -> u64) -> u64 {
        self.word_op(None, execute)
    }

    fn word_op(
        &mut self,
        ledger: Option<usize>,
        execute: impl FnOnce(&mut State, &Setup) -> u64,
    ) -> u64 {
        if self.at == self.values.len() {
            if self.executed && !self.whole {
                self.ledger = ledger;
                resume_unwind(Box::new(Suspended));
            }
            self.executed = true;
            let value = execute(self.state, self.setup);
            self.values.push(value);
        }
        self.at += 1;
        self.values[self.at - 1]
    }
}

/// The word as the arbiter writes it; with [`Bug::WaitersBitLost`] without the waiters bit.
fn written(setup: &Setup, word: u64) -> u64 {
    if setup.bug != Some(Bug::WaitersBitLost) {
        return word;
    }
    match setup.lock_type {
        LockType::Atomic => AtomicWord::from_bits(word).with_waiters(false).into_bits(),
        LockType::Rw => RwWord::from_bits(word).with_waiters(false).into_bits(),
        LockType::Fair => word,
    }
}

/// The [`Event`] to record when the arbiter, called for `what`, changes the lock's word to `new`;
/// `None`: the change is none of the events. The word of a fair lock is `w1`, otherwise `w0`.
fn event_of(state: &State, setup: &Setup, what: What, new: u64) -> Option<Event> {
    match setup.lock_type {
        LockType::Atomic => None,
        LockType::Rw => {
            let (old, new) = (RwWord::from_bits(state.word), RwWord::from_bits(new));
            let recount = match what {
                What::Tick => true,
                What::Forget(i) => in_doubt(state.ledgers[i]),
                What::Request(..) => false,
            };
            (recount && new.rcount() < old.rcount()).then_some(Event::Recounted)
        }
        LockType::Fair => {
            let (old, new) = (TurnWord::from_bits(state.turn), TurnWord::from_bits(new));
            if new == TurnWord::START && old.with_told(false) != new {
                return Some(Event::LapBegun);
            }
            let ended = (old.nx(), old.ns()) != (new.nx(), new.ns());
            let nobody_holds = state.clients.iter().all(|c| c.gone || c.entry.refs() == 0);
            (ended && nobody_holds).then_some(Event::TicketSkipped)
        }
    }
}

/// Whether the entry does not tell if its client is counted as a reader.
pub(crate) fn in_doubt(entry: LedgerEntry) -> bool {
    matches!(entry.state(), LedgerState::Intent | LedgerState::Leaving)
}

impl LockMemory for Replay<'_> {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let (what, mut event) = (self.what, None);
        let old = self.word(|state, setup| {
            let old = *state.word_at(addr);
            let is_telling = (addr.word() == Word::W1) == (setup.lock_type == LockType::Fair);
            if old == expect {
                event = event_of(state, setup, what, swap).filter(|_| is_telling);
                *state.word_at(addr) = written(setup, swap);
            } else {
                event = Some(Event::ArbiterRaced);
            }
            old
        });
        self.events.extend(event);
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.word(|state, _| {
            let word = state.word_at(addr);
            let old = *word;
            *word = old.wrapping_add(add);
            old
        })
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.word(|state, _| *state.word_at(addr))
    }
    fn set(&mut self, addr: WordAddr, _: u64) {
        unreachable!("{addr:?} of a lock that is in use is set");
    }
    fn ledger(&mut self, client: ClientId, _: Handle) -> LedgerEntry {
        let i = client.get() as usize - 1;
        let value = self.word_op(Some(i), |state, _| state.ledgers[i].into_bits());
        let first = *self.first[i].get_or_insert(value);
        let once = self.setup.bug == Some(Bug::LedgersReadOnce);
        LedgerEntry::from_bits(if once { first } else { value })
    }
    fn set_ledger(&mut self, client: ClientId, _: Handle, entry: LedgerEntry) {
        let i = client.get() as usize - 1;
        self.word_op(Some(i), |state, _| {
            state.ledgers[i] = entry;
            0
        });
    }
}

fn call(arbiter: &mut Arbiter, memory: &mut Replay<'_>, call: &Call) -> Vec<Sent> {
    let refs: Vec<_> =
        (0..CLIENTS).filter(|&i| memory.state.clients[i].known).map(|i| (id(i), HANDLE)).collect();
    let lock = LockRef {
        slot: memory.state.slot,
        lock_type: memory.setup.lock_type,
        tokens: false,
        refs: &refs,
    };
    let mut out = Vec::new();
    match call.what {
        What::Request(i, seq, request) => {
            let from = Caller { client: id(i), handle: HANDLE, seq };
            arbiter.request(call.at, memory, lock, from, request, &mut out);
        }
        What::Forget(i) => arbiter.forget(call.at, memory, lock, id(i), HANDLE, &mut out),
        What::Tick => {
            arbiter.pop_due(call.at);
            arbiter.tick(call.at, memory, lock, &mut out);
        }
    }
    out
}

/// Executes the next word operation of the call under way, or all that are left (`whole`).
pub(crate) fn advance(
    state: &mut State,
    setup: &Setup,
    whole: bool,
    seen: impl FnMut(Event),
) -> Option<Advanced> {
    let under_way = state.call.take()?;
    let mut arbiter = state.arbiter.clone();
    let mut memory = Replay {
        state: &mut *state,
        setup,
        values: under_way.values.clone(),
        at: 0,
        executed: false,
        first: [None; CLIENTS],
        what: under_way.what,
        events: Vec::new(),
        ledger: None,
        whole,
    };
    let result = catch_unwind(AssertUnwindSafe(|| call(&mut arbiter, &mut memory, &under_way)));
    let (values, ledger) = (memory.values, memory.ledger);
    memory.events.into_iter().for_each(seen);
    match result {
        Ok(out) => {
            state.arbiter = arbiter;
            if let What::Forget(i) = under_way.what {
                state.ledgers[i] = LedgerEntry::new(); // the arbiter does not read it any more
            }
            Some(Advanced::Done(out))
        }
        Err(payload) if payload.is::<Suspended>() => {
            state.call = Some(Call { values, ..under_way });
            Some(ledger.map_or(Advanced::BeforeWord, Advanced::BeforeLedger))
        }
        Err(panic) => resume_unwind(panic),
    }
}
