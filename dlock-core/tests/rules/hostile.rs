// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a tcp client that means harm can do to others: nothing but what a slow one can.

use crate::common::Memory;
use dlock_core::clock::{ServerTime, NS};
use dlock_core::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::primary::{Primary, PrimaryConfig, Sent};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::words::{LedgerEntry, LedgerState, RwWord, Ticket};

const START: ServerTime = ServerTime(5_000 * NS);
const ANCHOR_S: u32 = 5_000;
const MINUS_ONE: u64 = u64::MAX;

/// A primary with one lock, and tcp clients that have all got it.
struct World {
    primary: Primary,
    memory: Memory,
    now: ServerTime,
    lock_type: LockType,
    seq: u64,
}

#[derive(Clone, Copy)]
struct Peer {
    id: ClientId,
    grant: LockGrant,
}

impl World {
    fn new(lock_type: LockType) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            anchor_s: ANCHOR_S,
            tp_mode: 0,
            recovery_clients: 0,
            clients_max: 8,
            locks_max: 2,
            objects_max: 0,
            absent_grace_ns: None,
        };
        let (primary, memory) = (Primary::new(config), Memory::default());
        Self { primary, memory, now: START, lock_type, seq: 0 }
    }

    fn join(&mut self, fabric: FabricKind) -> Peer {
        self.seq += 1;
        let id = ClientId::new(100 + self.seq as u32).unwrap();
        self.primary.add_client(id).unwrap();
        self.attach(id, fabric);
        let desc = LockDesc { name: vec![1], lock_type: self.lock_type, lease_s: 0 };
        let get = ControlRequest::GetLocks(vec![desc]);
        let mut out = Vec::new();
        match self.primary.control(self.now, &mut self.memory, id, get, &mut out) {
            ControlReply::Locks(locks) => Peer { id, grant: locks[0].unwrap() },
            other => panic!("{other:?}"),
        }
    }

    fn peers<const N: usize>(lock_type: LockType) -> (Self, [Peer; N]) {
        let mut world = Self::new(lock_type);
        let peers = std::array::from_fn(|_| world.join(FabricKind::Tcp));
        (world, peers)
    }

    fn attach(&mut self, id: ClientId, fabric: FabricKind) -> Vec<Sent> {
        let mut out = Vec::new();
        self.primary.attached(self.now, &mut self.memory, id, fabric, &mut out);
        out
    }

    /// As the command thread does it.
    fn run(&mut self, peer: Peer, chain: Chain) -> Result<u64, Status> {
        let Self { primary, memory, now, .. } = self;
        let tells = primary.check_chain(*now, memory, peer.id, &chain)?;
        let mut values = Values::new();
        for word_op in chain.ops() {
            let value = match *word_op {
                WordOp::Cas { addr, expect, swap } => memory.cas(addr, expect, swap),
                WordOp::Faa { addr, add } => memory.faa(addr, add),
                WordOp::Read { addr } => memory.read(addr),
                WordOp::ReadPair { addr } => {
                    values.push(memory.read(addr));
                    memory.read(addr.next())
                }
                WordOp::WriteLedger { handle, value } => {
                    memory.ledgers.insert((peer.id, handle), LedgerEntry::from_bits(value));
                    0
                }
            };
            values.push(value);
        }
        if tells {
            primary.executed(memory, peer.id, &chain, &values);
        }
        Ok(values.as_slice().last().copied().unwrap_or(0))
    }

    fn add(&mut self, peer: Peer, add: u64) -> Result<u64, Status> {
        self.run(peer, Chain::one(WordOp::Faa { addr: w0(peer), add }))
    }

    fn cas(&mut self, peer: Peer, expect: u64, swap: u64) -> Result<u64, Status> {
        self.run(peer, Chain::one(WordOp::Cas { addr: w0(peer), expect, swap }))
    }

    fn write_ledger(&mut self, peer: Peer, entry: LedgerEntry) {
        let handle = peer.grant.handle;
        let note = WordOp::WriteLedger { handle, value: entry.into_bits() };
        self.run(peer, Chain::one(note)).expect("notes are free");
    }

    fn ask(&mut self, peer: Peer, request: Request) -> Vec<Sent> {
        self.seq += 1;
        let mut out = Vec::new();
        let seq = Seq(self.seq);
        self.primary.command(self.now, &mut self.memory, peer.id, seq, request, &mut out);
        out
    }

    fn is_denied(&mut self, peer: Peer, request: Request) -> bool {
        let out = self.ask(peer, request);
        matches!(out[..], [Sent { reply: Reply::Denied { .. }, client, .. }] if client == peer.id)
    }

    fn wait(&mut self, peer: Peer, mode: Mode, ticket: Option<Ticket>) -> Vec<Sent> {
        let (handle, wait) = (peer.grant.handle, WaitNumber(1));
        self.ask(peer, Request::Wait { handle, mode, expire_s: 60, wait, ticket })
    }

    fn resolve(&mut self, peer: Peer) -> Vec<Sent> {
        self.ask(peer, Request::Resolve { handle: peer.grant.handle })
    }

    fn fence(&mut self, peer: Peer) {
        self.primary.fenced(peer.id);
        self.primary.tick(self.now, &mut self.memory, &mut Vec::new());
    }

    fn word(&mut self, peer: Peer) -> u64 {
        self.memory.read(w0(peer))
    }

    fn rw(&mut self, peer: Peer) -> RwWord {
        RwWord::from_bits(self.word(peer))
    }
}

fn w0(peer: Peer) -> WordAddr {
    WordAddr::new(peer.grant.slot, Word::W0)
}

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

#[test]
fn a_share_that_is_not_its_own_cannot_be_taken_off() {
    let (mut w, [reader, thief]) = World::peers(LockType::Rw);
    assert_eq!(w.add(thief, MINUS_ONE), Err(Status::Invalid), "borrowed from the owner");
    assert_eq!(w.add(reader, 1), Ok(0));
    assert_eq!(w.add(thief, MINUS_ONE), Err(Status::Invalid));
    // a share of its own comes off once, whatever it notes
    assert_eq!(w.add(thief, 1), Ok(1));
    assert_eq!(w.add(thief, 1), Err(Status::Invalid), "a second one");
    let twice = WordOp::Faa { addr: w0(thief), add: MINUS_ONE };
    assert_eq!(w.run(thief, Chain::one(twice).then(twice)), Err(Status::Invalid));
    assert_eq!(w.add(thief, MINUS_ONE), Ok(2));
    let held = LedgerEntry::new().with_state(LedgerState::HeldShared);
    w.write_ledger(thief, held);
    assert_eq!(w.add(thief, MINUS_ONE), Err(Status::Invalid));
    for _ in 0..2 {
        w.resolve(thief);
        assert_eq!(w.rw(reader).rcount(), 1, "the reader's share was taken off");
        w.write_ledger(thief, held);
    }
    w.fence(thief);
    assert_eq!(w.rw(reader), RwWord::new().with_rcount(1));
    assert_eq!(w.add(reader, MINUS_ONE), Ok(1));
}

#[test]
fn a_share_of_a_client_that_denies_it_goes_with_the_client() {
    for state in [LedgerState::None, LedgerState::Intent, LedgerState::Leaving] {
        let (mut w, [liar, reader]) = World::peers(LockType::Rw);
        assert_eq!((w.add(liar, 1), w.add(reader, 1)), (Ok(0), Ok(1)));
        w.write_ledger(liar, LedgerEntry::new().with_state(state));
        w.fence(liar);
        assert_eq!(w.rw(reader), RwWord::new().with_rcount(1), "{state:?}");
    }
}

#[test]
fn a_granted_share_is_known_like_one_that_was_taken() {
    let (mut w, [writer, reader, thief]) = World::peers(LockType::Rw);
    let mine = RwWord::new().with_client(writer.id.get()).into_bits();
    assert_eq!(w.cas(writer, 0, mine), Ok(0));
    assert!(w.wait(reader, S, None).is_empty());
    let release = Request::Release { handle: writer.grant.handle, mode: X, ticket: None };
    let out = w.ask(writer, release);
    let granted = |s: &Sent| s.client == reader.id && matches!(s.reply, Reply::Granted { .. });
    assert!(out.iter().any(granted), "{out:?}");
    assert_eq!(w.add(thief, MINUS_ONE), Err(Status::Invalid));
    let again = Request::Wait {
        handle: reader.grant.handle,
        mode: S,
        expire_s: 9,
        wait: WaitNumber(2),
        ticket: None,
    };
    assert!(w.is_denied(reader, again), "one share each");
    assert_eq!(w.add(reader, MINUS_ONE), Ok(1));
    assert_eq!(w.word(reader), 0);
}

#[test]
fn a_recount_counts_what_is_known_and_not_what_is_noted() {
    let (mut w, [liar, honest]) = World::peers(LockType::Rw);
    let dead = w.join(FabricKind::Shm);
    assert_eq!((w.add(liar, 1), w.add(honest, 1)), (Ok(0), Ok(1)));
    w.write_ledger(liar, LedgerEntry::new().with_state(LedgerState::Intent)); // would never settle
    w.memory.faa(w0(dead), 1); // by itself, and then it died half way
    let intent = LedgerEntry::new().with_state(LedgerState::Intent);
    w.memory.ledgers.insert((dead.id, dead.grant.handle), intent);
    w.fence(dead);
    assert_eq!(w.rw(honest), RwWord::new().with_rcount(2));
}
