// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's step from arbitrary input: requests, chains and ledger writes of three clients on
//! three locks and an object, lost connections, fencings and time, in any order.
//!
//! Checked after every step: a request is answered at most once, at once unless it may wait, and
//! only to a client that is there; a granted word names the one it was granted to; the waiters
//! bit stands as the arbiters of atomic and read-write locks promise. At the end every wait can
//! be cancelled, and nothing of a client stays behind.
//!
//! In a *hostile* run two of the clients are honest: see `arbiter/hostile.rs`.
//!
//! A *wild* run also sets words and ledgers as a client that maps them could: then only answers
//! are checked, and that nothing panics or hangs.

mod hostile;

use std::collections::BTreeMap;

use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, LockId, Seq, Slot};
use dlock_core::limits::{FAIR_DIVERT, FAIR_LANE_END};
use dlock_core::locks::{Locks, PrimaryConfig, Sent};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{
    AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, Ticket, TurnWord,
};
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

use crate::tape::Tape;
use dlock_core::token::TokenFloor;
use dlock_test_support::Memory;

const CLIENTS: usize = 3;
const STEPS_MAX: usize = 300;
const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];

/// A client, and the facts about it that the test keeps.
struct Known {
    client: ClientId,
    seq: u64,
    /// The lock grants, by lock type.
    grants: [Option<LockGrant>; 3],
    unanswered: BTreeMap<Seq, Request>,
}

struct World {
    primary: Locks,
    memory: Memory,
    now: ServerTime,
    clients: [Option<Known>; CLIENTS],
    next_client: u32,
    wild: bool,
    victim: Option<hostile::Victim>,
    /// The client that has held the atomic lock without an end. If it sets an end later, the
    /// arbiter gets no message about that: the waiters stay as they were, and no wake-up is due for
    /// them.
    endless: u32,
}

/// Drives a primary by the choices in these bytes.
///
/// # Panics
/// If the primary panics, or breaks a rule in the comment at the top of this file.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let mut world = World::new(tape.u8());
    world.take_victim(&mut tape);
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            break;
        }
        world.step(&mut tape);
        world.check();
    }
    world.end();
}

/// Whether the answer to this request may come later. If the client's channel ends before that, no
/// answer comes.
fn waits(request: &Request) -> bool {
    matches!(request, Request::Wait { .. } | Request::TakeTicket { .. })
}

impl World {
    fn new(choice: u8) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            tp_mode: 0,
            recovery_clients: 0,
            clients_max: CLIENTS,
            locks_max: 3,
            objects_max: 1,
            absent_grace_ns: (choice & 1 == 0).then_some(10 * NS),
            tokens: TokenFloor::default(),
        };
        let mut world = Self {
            primary: Locks::new(config),
            memory: Memory::default(),
            now: ServerTime(1_000 * NS),
            clients: [None, None, None],
            next_client: 10,
            wild: choice & 0xe0 == 0xe0,
            victim: None,
            endless: 0,
        };
        for at in 0..CLIENTS {
            world.join(at);
        }
        // the counters of the fair lock's lanes: some runs begin shortly before they are high, or
        // shortly before they end
        let lanes = [0, FAIR_DIVERT - 2, FAIR_LANE_END - 2][usize::from(choice >> 1 & 3).min(2)];
        if let Some(slot) = world.slot_of(LockType::Fair) {
            let taken = TakenWord::new().with_mx(lanes).with_ms(lanes.max(1)).into_bits();
            let turn = TurnWord::new().with_nx(lanes).with_ns(lanes.max(1)).into_bits();
            for (word, value) in [(Word::W0, taken), (Word::W1, turn)] {
                world.memory.set(WordAddr::new(slot, word), value);
            }
        }
        world
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        let at = match self.victim {
            None => tape.below(CLIENTS),
            Some(_) => hostile::HOSTILE,
        };
        match tape.below(16) {
            0..=5 => self.request(tape, at),
            6..=9 => self.chain(tape, at),
            10 => self.write_ledger(tape, at),
            11 | 12 => self.pass_time(tape),
            13 => match tape.below(4) {
                0 | 1 => self.fence(at),
                2 => self.join(at),
                _ => {
                    let client = self.clients[at].as_ref().map(|known| known.client);
                    let fabric = if self.wild { FabricKind::Shm } else { FabricKind::Tcp };
                    client.into_iter().for_each(|client| self.attach(client, fabric));
                }
            },
            14 => self.release(tape, at),
            _ => self.forge(tape),
        }
    }

    /// Adds a client at this place if there is none. Gets the locks and the object that the client
    /// does not have.
    fn join(&mut self, at: usize) {
        if self.clients[at].is_none() {
            self.next_client += 1;
            let id = self.next_client;
            let Some(client) = ClientId::new(id) else { panic!("{id} is no client's") };
            assert_eq!(self.primary.add_client(client), Ok(()), "there is room");
            let unanswered = BTreeMap::new();
            self.clients[at] = Some(Known { client, seq: 0, grants: [None; 3], unanswered });
            self.attach(client, if self.wild { FabricKind::Shm } else { FabricKind::Tcp });
        }
        let Some(known) = &self.clients[at] else { return };
        let client = known.client;
        let descs = TYPES.map(|lock_type| LockDesc {
            name: vec![lock_type as u8],
            lock_type,
            lease_s: 0,
            tokens: false,
        });
        let reply = self.control(client, ControlRequest::GetLocks(descs.to_vec()));
        let ControlReply::Locks(locks) = reply else { panic!("{reply:?}") };
        if let Some(known) = &mut self.clients[at] {
            for (grant, result) in known.grants.iter_mut().zip(locks) {
                *grant = Some(result.unwrap_or_else(|status| panic!("there is room: {status}")));
            }
        }
        let get = ControlRequest::ObjectGet { name: b"o".to_vec(), lease: Lease::secs(9) };
        let create =
            ControlRequest::ObjectCreate { name: b"o".to_vec(), lease: Lease::secs(9), init: 1 };
        self.control(client, create);
        self.control(client, get);
    }

    /// Attaches a new command channel for the client. The numbers of its requests continue, and no
    /// answer to an earlier wait comes on it.
    fn attach(&mut self, client: ClientId, fabric: FabricKind) {
        let is_it = |known: &Known| known.client == client;
        if let Some(known) = self.clients.iter_mut().flatten().find(|known| is_it(known)) {
            known.unanswered.retain(|_, r| !waits(r));
        }
        let mut out = Vec::new();
        self.primary.attached(self.now, &mut self.memory, client, fabric, &mut out);
        out.retain(|sent| sent.client != client);
        self.take(out);
        // a request that is repeated later must have been sent on this channel first, because
        // nothing that was sent before is sent again on it
        if let Some(at) = self.clients.iter().position(|k| k.as_ref().is_some_and(is_it)) {
            if let Some(known) = &mut self.clients[at] {
                known.seq += 1;
            }
            self.command(at, Request::Ping);
        }
    }

    fn control(&mut self, client: ClientId, request: ControlRequest) -> ControlReply {
        let mut out = Vec::new();
        let reply = self.primary.control(self.now, &mut self.memory, client, request, &mut out);
        self.take(out);
        reply
    }

    fn slot_of(&self, lock_type: LockType) -> Option<Slot> {
        let grants = self.clients.iter().flatten();
        grants.filter_map(|known| known.grants[lock_type as usize]).map(|grant| grant.slot).next()
    }

    fn request(&mut self, tape: &mut Tape<'_>, at: usize) {
        let request = self.any_request(tape, at);
        let again = tape.u8() == 77;
        let Some(known) = &mut self.clients[at] else { return };
        if !again {
            known.seq += 1;
        }
        let (client, seq) = (known.client, Seq(known.seq));
        if again {
            let mut out = Vec::new();
            self.primary.command(self.now, &mut self.memory, client, seq, request, &mut out);
            assert!(out.is_empty(), "executed twice: {out:?}");
        } else {
            self.command(at, request);
        }
    }

    fn command(&mut self, at: usize, request: Request) {
        let Some(known) = &mut self.clients[at] else { return };
        let (client, seq) = (known.client, Seq(known.seq));
        known.unanswered.insert(seq, request);
        let mut out = Vec::new();
        self.primary.command(self.now, &mut self.memory, client, seq, request, &mut out);
        self.take(out);
        let Some(known) = &mut self.clients[at] else { return };
        let listens = |request: &Request| matches!(request, Request::Listen { .. });
        let waits = waits(&request) || listens(&request);
        let waits = waits || matches!(request, Request::Resolve { .. });
        if !request.has_reply() {
            known.unanswered.remove(&seq);
        }
        let silent = !waits && known.unanswered.contains_key(&seq);
        assert!(!silent, "{request:?} was not answered");
        if matches!(request, Request::Resolve { .. }) {
            // the client's waits for this lock are undone without an answer
            let handle = request.handle();
            let stays = |r: &Request| r.handle() != handle || *r == request || listens(r);
            known.unanswered.retain(|_, r| stays(r));
        }
    }

    fn any_request(&self, tape: &mut Tape<'_>, at: usize) -> Request {
        let handle = match tape.u8() {
            255 => Handle(tape.u32()),
            small => self.handle(at, usize::from(small % 4)),
        };
        let mode = if tape.flip() { Mode::Shared } else { Mode::Exclusive };
        let wait = WaitNumber(u32::from(tape.u8() % 4));
        let ticket = self.ticket(tape);
        match tape.below(11) {
            0 | 1 => {
                let ticket = tape.flip().then_some(ticket);
                Request::Wait { handle, mode, lease: tape.lease(), wait, ticket }
            }
            2 => Request::Cancel { handle, wait },
            3 if wait.0 == 3 => {
                let ticket = tape.flip().then_some(ticket);
                Request::Keep { handle, mode, ticket, lease: tape.lease() }
            }
            3 => Request::Release { handle, mode, ticket: tape.flip().then_some(ticket) },
            4 if mode == Mode::Shared => {
                Request::CountReaders { handle, mode, ticket: (wait.0 == 1).then_some(ticket) }
            }
            4 => Request::Wake { handle },
            5 => Request::Poll { handle, mode, ticket, lease: tape.lease() },
            6 => Request::TakeTicket { handle, mode, lease: tape.lease() },
            7 => Request::Abandon { handle, mode, ticket },
            8 => {
                let ticket = tape.flip().then_some(ticket);
                Request::Extend { handle, mode, ticket, lease: tape.lease() }
            }
            9 if wait.0 == 3 => {
                let ticket = tape.flip().then_some(ticket);
                Request::Downgrade { handle, stamp: tape.u32(), ticket }
            }
            9 if wait.0 == 2 => Request::Try { handle, mode, lease: tape.lease(), wait },
            9 => Request::Steal { handle, mode, lease: tape.lease() },
            10 if wait.0 == 3 => Request::Confirm { handle, mode },
            10 if wait.0 == 2 => {
                Request::Listen { handle, knows: tape.flip(), until: ServerTime(0) }
            }
            _ if tape.flip() => Request::Ping,
            _ => Request::Resolve { handle },
        }
    }

    fn handle(&self, at: usize, which: usize) -> Handle {
        let known = self.clients[at].as_ref();
        let grant = known.and_then(|known| *known.grants.get(which)?);
        grant.map_or(Handle(which as u32), |grant| grant.handle)
    }

    /// A ticket with numbers close to the present turn.
    fn ticket(&self, tape: &mut Tape<'_>) -> Ticket {
        let choice = tape.u8();
        if choice == 255 {
            return Ticket { lap: tape.u64(), tx: tape.u16().into(), ts: tape.u16().into() };
        }
        let [turn, lap] = self.fair_turn();
        let turn = TurnWord::from_bits(turn);
        let near = |lane: u32, by: u8| lane.wrapping_add(u32::from(by & 7)).wrapping_sub(3);
        Ticket { lap, tx: near(turn.nx(), choice), ts: near(turn.ns(), choice >> 3) }
    }

    /// The turn of the fair lock, and its lap.
    fn fair_turn(&self) -> [u64; 2] {
        self.slot_of(LockType::Fair).map_or([0; 2], |slot| {
            [Word::W1, Word::Fence].map(|word| self.memory.peek(WordAddr::new(slot, word)))
        })
    }

    /// Executes a chain if the primary permits it, as for a client over tcp.
    fn chain(&mut self, tape: &mut Tape<'_>, at: usize) {
        let Some(client) = self.clients[at].as_ref().map(|known| known.client) else { return };
        let mut chain = Chain::one(self.word_op(tape, at));
        for _ in 0..tape.below(4) {
            chain = chain.then(self.word_op(tape, at));
        }
        let checked = self.primary.check_chain(self.now, &mut self.memory, client, &chain);
        let Ok(tells) = checked else { return };
        let values = self.memory.execute(client, &chain);
        if tells {
            self.primary.executed(&mut self.memory, client, &chain, &values);
        }
    }

    fn word_op(&self, tape: &mut Tape<'_>, at: usize) -> WordOp {
        let which = tape.below(5);
        let known = self.clients[at].as_ref();
        let me = known.map_or(0, |known| known.client.get());
        let grant = known.and_then(|known| *known.grants.get(which)?);
        let slot = grant.map_or(Slot(which as u32), |grant| grant.slot);
        let word = [Word::W0, Word::W0, Word::W0, Word::W1, Word::Fence][tape.below(5)];
        let addr = WordAddr::new(slot, word);
        let seen = self.memory.peek(addr);
        match tape.below(6) {
            0 => WordOp::Read { addr },
            1 => WordOp::Faa { addr, add: [1, u64::MAX, 1 << 32, 7][tape.below(4)] },
            2 => WordOp::WriteLedger {
                handle: self.handle(at, which),
                value: self.entry(tape).into_bits(),
            },
            3 => WordOp::Cas { addr, expect: tape.u64(), swap: tape.u64() },
            _ => {
                let expect = if tape.flip() { seen } else { 0 };
                WordOp::Cas { addr, expect, swap: self.plausible(tape, which, seen, me) }
            }
        }
    }

    /// A value to which a client might want to set the word.
    fn plausible(&self, tape: &mut Tape<'_>, which: usize, seen: u64, me: u32) -> u64 {
        if tape.below(4) == 0 {
            return 0;
        }
        match which {
            0 => AtomicWord::from_bits(seen)
                .with_client(me)
                .with_timeout(self.now.deadline(tape.lease()))
                .into_bits(),
            1 if tape.flip() => RwWord::from_bits(seen).with_client(me).into_bits(),
            1 => RwWord::from_bits(seen).with_client(0).into_bits(),
            2 if tape.flip() => seen.wrapping_add(1 << 32),
            2 => seen.wrapping_add(1),
            _ => tape.u64(),
        }
    }

    fn entry(&self, tape: &mut Tape<'_>) -> LedgerEntry {
        let state = LedgerState::from_bits(tape.u8() & 7);
        let entry = LedgerEntry::new().with_state(state).with_stamp(u32::from(tape.u8() & 3));
        entry.with_deadline(Deadline(Deadline::at_s(1_000).0 + u32::from(tape.u8())))
    }

    fn write_ledger(&mut self, tape: &mut Tape<'_>, at: usize) {
        let handle = self.handle(at, tape.below(4));
        let entry = self.entry(tape);
        let Some(client) = self.clients[at].as_ref().map(|known| known.client) else { return };
        if self.primary.check_note(&mut self.memory, client, handle, entry).is_ok() {
            let chain = Chain::one(WordOp::WriteLedger { handle, value: entry.into_bits() });
            let values = self.memory.execute(client, &chain);
            if tape.flip() {
                self.primary.executed(&mut self.memory, client, &chain, &values);
            }
        }
    }

    fn pass_time(&mut self, tape: &mut Tape<'_>) {
        let ns = match tape.below(4) {
            0 => u64::from(tape.u8()),
            1 => u64::from(tape.u16()) * (NS / 64),
            2 => u64::from(tape.u8()) * 3_600 * NS,
            _ => {
                let due = self.primary.next_wakeup().unwrap_or(self.now);
                due.0.saturating_sub(self.now.0)
            }
        };
        self.now = self.now.plus_ns(ns);
        self.tick();
    }

    fn tick(&mut self) {
        let mut out = Vec::new();
        self.primary.tick(self.now, &mut self.memory, &mut out);
        self.take(out);
        let due = self.primary.next_wakeup();
        assert!(due.is_none_or(|due| due > self.now), "{due:?} has come: {:?}", self.now);
    }

    fn fence(&mut self, at: usize) {
        let Some(client) = self.clients[at].as_ref().map(|known| known.client) else { return };
        // the client's channels are closed, so answers to it are dropped
        let mut out = Vec::new();
        self.primary.fenced(client);
        self.primary.tick(self.now, &mut self.memory, &mut out);
        self.clients[at] = None;
        out.retain(|sent| sent.client != client);
        self.take(out);
    }

    fn release(&mut self, tape: &mut Tape<'_>, at: usize) {
        let which = tape.below(3);
        let Some(known) = &mut self.clients[at] else { return };
        let Some(grant) = known.grants[which].take() else { return };
        let client = known.client;
        known.unanswered.retain(|_, request| request.handle() != Some(grant.handle));
        let mut out = Vec::new();
        let request = ControlRequest::ReleaseLocks(vec![grant.lock]);
        self.primary.control(self.now, &mut self.memory, client, request, &mut out);
        out.retain(|sent| sent.client != client);
        self.take(out);
    }

    /// Changes a word as a process could that has mapped the memory.
    fn forge(&mut self, tape: &mut Tape<'_>) {
        if !self.wild {
            return;
        }
        let Some(slot) = self.slot_of(TYPES[tape.below(3)]) else { return };
        self.memory.set(WordAddr::new(slot, Word::W0), tape.u64());
    }

    /// Checks that each answer belongs to a request that was not answered yet.
    fn take(&mut self, out: Vec<Sent>) {
        for sent in out {
            let known = self.clients.iter_mut().flatten().find(|k| k.client == sent.client);
            let Some(known) = known else { panic!("{sent:?} to nobody") };
            let request = known.unanswered.remove(&sent.seq);
            let Some(request) = request else { panic!("{sent:?} answers nothing") };
            assert!(request.has_reply(), "{sent:?} to {request:?}");
            let known_grants = known.grants;
            self.check_granted(&sent, &request);
            if let (Reply::Granted { word, .. }, false) = (sent.reply, self.wild) {
                let is = |which: usize| known_grants[which].map(|g| g.handle) == request.handle();
                let me = sent.client.get();
                if is(LockType::Atomic as usize) {
                    assert_eq!(AtomicWord::from_bits(word).client(), me, "{request:?}");
                }
                let exclusive = matches!(
                    request,
                    Request::Wait { mode: Mode::Exclusive, .. }
                        | Request::Steal { mode: Mode::Exclusive, .. }
                        | Request::Try { mode: Mode::Exclusive, .. }
                        | Request::Keep { mode: Mode::Exclusive, .. }
                        | Request::Extend { mode: Mode::Exclusive, .. }
                        | Request::Confirm { mode: Mode::Exclusive, .. }
                );
                if is(LockType::Rw as usize) {
                    let owner = RwWord::from_bits(word).client();
                    assert_eq!(owner, if exclusive { me } else { 0 }, "{request:?}");
                }
            }
        }
    }

    fn check(&mut self) {
        if self.wild {
            return;
        }
        let wakes = self.primary.next_wakeup().is_some();
        for lock in self.primary.locks_snapshot(ServerTime(0), &mut self.memory, LockId(0), 8) {
            match lock.lock_type {
                LockType::Atomic => {
                    let word = AtomicWord::from_bits(lock.word);
                    assert_eq!(word.waiters(), lock.waiters > 0, "{lock:?}");
                    if word.timeout().is_never() {
                        self.endless = word.client();
                    } else if word.client() != self.endless {
                        self.endless = 0;
                    }
                    // a word with the waiters bit has an owner, and the end of that hold wakes the
                    // waiters, if it has an end
                    let owned = word.client() != 0 && (wakes || self.endless != 0);
                    assert!(!word.waiters() || owned, "{lock:?}");
                }
                LockType::Rw => {
                    let word = RwWord::from_bits(lock.word);
                    let bit = word.waiters();
                    assert!(word.rcount() <= CLIENTS as u32, "{lock:?}: a share too many");
                    let is_its = |known: &Known| known.client.get() == word.client();
                    let owned = self.clients.iter().flatten().any(is_its);
                    assert!(word.client() == 0 || owned, "{lock:?}: no client's");
                    assert!(bit || lock.waiters == 0, "{lock:?}");
                    assert!(!bit || lock.waiters > 0 || wakes, "{lock:?}");
                }
                LockType::Fair => {}
            }
        }
        self.check_victim();
    }

    fn end(mut self) {
        self.end_victim();
        let tame = if self.wild { 0 } else { CLIENTS };
        for at in 0..tame {
            self.cancel_all(at);
        }
        self.now = self.now.plus_ns(100 * NS);
        self.tick();
        for at in 0..CLIENTS {
            self.fence(at);
        }
        let (clients, locks, _) = self.primary.totals();
        assert_eq!((clients, locks), (0, 0));
        self.now = ServerTime(u64::MAX);
        self.tick();
    }

    /// Checks that a wait on an atomic or a read-write lock is answered when it is cancelled.
    fn cancel_all(&mut self, at: usize) {
        let Some(known) = &self.clients[at] else { return };
        let fair = known.grants[LockType::Fair as usize].map(|grant| grant.handle);
        let waits: Vec<(Seq, Handle, WaitNumber)> = known
            .unanswered
            .iter()
            .filter_map(|(&seq, request)| match *request {
                Request::Wait { handle, wait, .. } if Some(handle) != fair => {
                    Some((seq, handle, wait))
                }
                _ => None,
            })
            .collect();
        for &(_, handle, wait) in &waits {
            if let Some(known) = &mut self.clients[at] {
                known.seq += 1;
            }
            self.command(at, Request::Cancel { handle, wait });
        }
        let Some(known) = &self.clients[at] else { return };
        for (seq, _, _) in waits {
            assert!(!known.unanswered.contains_key(&seq), "a wait that cannot be cancelled");
        }
    }
}
