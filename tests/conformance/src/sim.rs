// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plainest executor: plain memory behind one mutex, messages in one queue, time that stands
//! still until it is moved.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Handle, Seq};
use dlock_core::memory::exec::{Executor, LockMemory, Posted};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::left_until;

use crate::{Client, Fixture, Layout, HANDLES, SLOTS};

/// A memory and its clients.
#[derive(Clone, Default)]
pub struct SimFabric {
    shared: Arc<(Mutex<State>, Condvar)>,
}

/// The whole state.
pub struct State {
    words: Vec<u64>,
    ledgers: HashMap<ClientId, Vec<u64>>,
    now: ServerTime,
    messages: VecDeque<(ClientId, Seq, Request)>,
    /// Requests that the primary has read and not answered.
    waiting: Vec<(ClientId, Seq, Request)>,
    /// The replies that are expected, by client and number. `None`: the reply has not come.
    replies: HashMap<(ClientId, Seq), Option<Reply>>,
    last_seq: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            words: vec![0; SLOTS as usize * 4],
            ledgers: HashMap::new(),
            now: ServerTime(1_000 * NS),
            messages: VecDeque::new(),
            waiting: Vec::new(),
            replies: HashMap::new(),
            last_seq: 0,
        }
    }
}

impl SimFabric {
    /// The whole state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Layout for SimFabric {}

impl Fixture for SimFabric {
    fn client(&self) -> Client {
        let mut state = self.state();
        let id = u32::try_from(state.ledgers.len() + 1).ok().and_then(ClientId::new);
        let id = id.expect("few clients");
        state.ledgers.insert(id, vec![0; HANDLES as usize]);
        Client { id, executor: Box::new(SimExecutor { fabric: self.clone(), id }) }
    }

    fn memory(&self, look: &mut dyn FnMut(&mut dyn LockMemory)) {
        look(&mut *self.state());
    }
}

struct SimExecutor {
    fabric: SimFabric,
    id: ClientId,
}

impl Executor for SimExecutor {
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], _until_ns: u64) {
        for (chain, outcome) in chains.iter().zip(outcomes) {
            *outcome = self.fabric.state().execute(self.id, chain);
        }
    }

    fn post(&self, chain: &Chain) -> Posted {
        Posted::Ready(self.fabric.state().execute(self.id, chain))
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        match posted {
            Posted::Ready(outcome) => Some(outcome),
            Posted::Pending(_) => Some(Outcome::Unknown),
        }
    }

    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        if let Some(word) = self.fabric.state().entry(self.id, handle) {
            *word = entry.into_bits();
        }
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        let mut state = self.fabric.state();
        state.last_seq += 1;
        let seq = Seq(state.last_seq);
        if request.has_reply() {
            state.replies.insert((self.id, seq), None);
        }
        state.messages.push_back((self.id, seq, *request));
        Ok(seq)
    }

    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status> {
        let mut state = self.fabric.state();
        loop {
            if state.deliver() {
                self.fabric.shared.1.notify_all();
            }
            let key = (self.id, seq);
            match state.replies.get(&key) {
                None => return Ok(None),
                Some(Some(_)) => return Ok(state.replies.remove(&key).flatten()),
                Some(None) => {}
            }
            let left = left_until(until_ns);
            if left.is_zero() {
                return Ok(None);
            }
            let woken = self.fabric.shared.1.wait_timeout(state, left);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn forget(&self, seq: Seq) {
        self.fabric.state().replies.remove(&(self.id, seq));
    }

    fn now(&self) -> Now {
        Now::exact(self.fabric.state().now)
    }

    fn reads_are_free(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}

impl State {
    fn word(&mut self, addr: WordAddr) -> Option<&mut u64> {
        self.words.get_mut(addr.index() as usize)
    }

    fn entry(&mut self, client: ClientId, handle: Handle) -> Option<&mut u64> {
        self.ledgers.get_mut(&client)?.get_mut(handle.0 as usize)
    }

    fn execute(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        let permitted = chain.ops().iter().all(|word_op| match *word_op {
            WordOp::Cas { addr, .. } | WordOp::Faa { addr, .. } | WordOp::Read { addr } => {
                self.word(addr).is_some()
            }
            WordOp::ReadPair { addr } => self.word(addr.next()).is_some(),
            WordOp::WriteLedger { handle, .. } => self.entry(client, handle).is_some(),
        });
        if !permitted {
            return Outcome::Refused(Status::Invalid);
        }
        let (mut values, mut pair) = (Values::new(), None);
        for word_op in chain.ops() {
            values.push(match *word_op {
                WordOp::Cas { addr, expect, swap } => self.cas(addr, expect, swap),
                WordOp::Faa { addr, add } => self.faa(addr, add),
                WordOp::Read { addr } => self.read(addr),
                WordOp::ReadPair { addr } => {
                    pair = Some(self.read(addr.next()));
                    self.read(addr)
                }
                WordOp::WriteLedger { handle, value } => {
                    self.entry(client, handle).map_or(0, |word| {
                        *word = value;
                        0
                    })
                }
            });
        }
        // the second value of a pair comes last
        pair.into_iter().for_each(|value| values.push(value));
        Outcome::Done(values)
    }

    /// Has the primary read all messages. Returns whether there were any.
    fn deliver(&mut self) -> bool {
        let mut answered = false;
        while let Some((client, seq, request)) = self.messages.pop_front() {
            match request {
                Request::Wait { .. } => self.waiting.push((client, seq, request)),
                Request::Cancel { handle, wait } => {
                    let cancelled = self.waiting.iter().position(|(who, _, waiting)| {
                        let Request::Wait { handle: h, wait: w, .. } = *waiting else {
                            return false;
                        };
                        (*who, h, w) == (client, handle, wait)
                    });
                    if let Some(index) = cancelled {
                        let (_, waited, _) = self.waiting.remove(index);
                        self.answer(client, waited, Reply::Cancelled { word: 0 });
                    }
                    self.answer(client, seq, Reply::Done { word: 0 });
                }
                Request::Ping => self.answer(client, seq, Reply::Pong { at: self.now }),
                _ => self.answer(client, seq, Reply::Done { word: 0 }),
            }
            answered = true;
        }
        answered
    }

    fn answer(&mut self, client: ClientId, seq: Seq, reply: Reply) {
        if let Some(place) = self.replies.get_mut(&(client, seq)) {
            *place = Some(reply);
        }
    }
}

impl LockMemory for State {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let word = &mut self.words[addr.index() as usize];
        let old = *word;
        if old == expect {
            *word = swap;
        }
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        let word = &mut self.words[addr.index() as usize];
        let old = *word;
        *word = old.wrapping_add(add);
        old
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.words[addr.index() as usize]
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.words[addr.index() as usize] = value;
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.entry(client, handle).map_or(LedgerEntry::new(), |word| LedgerEntry::from_bits(*word))
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        if let Some(word) = self.entry(client, handle) {
            *word = entry.into_bits();
        }
    }
}
