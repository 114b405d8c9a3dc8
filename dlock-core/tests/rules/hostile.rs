// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a tcp client that means harm can do to others: nothing but what a slow one can.

use crate::common::Memory;
use dlock_core::clock::{ServerTime, NS};
use dlock_core::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::limits::FAIR_LANE_MAX;
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::primary::{Primary, PrimaryConfig, Sent};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::words::{AtomicWord, FairWord, LedgerEntry, LedgerState, RwWord, Ticket};

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
            values.push(match *word_op {
                WordOp::Cas { addr, expect, swap } => memory.cas(addr, expect, swap),
                WordOp::Faa { addr, add } => memory.faa(addr, add),
                WordOp::Read { addr } => memory.read(addr),
                WordOp::WriteLedger { handle, value } => {
                    memory.ledgers.insert((peer.id, handle), LedgerEntry::from_bits(value));
                    0
                }
            });
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

    fn abandon(&mut self, peer: Peer, mode: Mode, ticket: Ticket) {
        self.ask(peer, Request::Abandon { handle: peer.grant.handle, mode, ticket });
    }

    fn fence(&mut self, peer: Peer) {
        self.primary.fenced(peer.id);
        self.primary.tick(self.now, &mut self.memory, &mut Vec::new());
    }

    fn pass(&mut self, seconds: u64) -> Vec<Sent> {
        let mut out = Vec::new();
        for _ in 0..seconds {
            self.now = self.now.plus_ns(NS);
            self.primary.tick(self.now, &mut self.memory, &mut out);
        }
        out
    }

    fn word(&mut self, peer: Peer) -> u64 {
        self.memory.read(w0(peer))
    }

    fn rw(&mut self, peer: Peer) -> RwWord {
        RwWord::from_bits(self.word(peer))
    }

    fn fair(&mut self, peer: Peer) -> FairWord {
        FairWord::from_bits(self.word(peer))
    }

    /// A fair ticket, with the note an honest client writes.
    fn take(&mut self, peer: Peer, mode: Mode) -> Ticket {
        let ticket = self.take_silently(peer, mode);
        let word = self.fair(peer);
        let served = match mode {
            Mode::Exclusive => word.nx() == ticket.tx && word.ns() == ticket.ts,
            Mode::Shared => word.nx() == ticket.tx,
        };
        let state = match (served, mode) {
            (true, Mode::Exclusive) => LedgerState::HeldExclusive,
            (true, Mode::Shared) => LedgerState::HeldShared,
            (false, Mode::Exclusive) => LedgerState::TicketExclusive,
            (false, Mode::Shared) => LedgerState::TicketShared,
        };
        self.write_ledger(peer, LedgerEntry::of_ticket(state, ticket).with_detail(600));
        ticket
    }

    fn take_silently(&mut self, peer: Peer, mode: Mode) -> Ticket {
        let add = match mode {
            Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
            Mode::Shared => FairWord::TAKE_SHARED,
        };
        let old = FairWord::from_bits(self.add(peer, add).expect("there is room"));
        Ticket { tx: old.mx(), ts: old.ms() }
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

/// `victim` holds exclusively or shared; the thief has a ticket of the same mode behind it.
#[test]
fn a_fair_ticket_is_ended_only_by_its_client() {
    for mode in [X, S] {
        let (mut w, [victim, thief, other]) = World::peers(LockType::Fair);
        let held = w.take(victim, mode);
        let before = w.fair(victim);
        let done = match mode {
            X => before.with_nx(before.nx() + 1),
            S => before.with_ns(before.ns() + 1),
        };
        let cas = w.cas(thief, before.into_bits(), done.into_bits());
        assert_eq!(cas, Err(Status::Invalid), "{mode:?}");
        let handle = thief.grant.handle;
        // with the victim's ticket in its own ledger, held or given up, expired or not
        for state in [
            LedgerState::None,
            LedgerState::HeldExclusive,
            LedgerState::HeldShared,
            LedgerState::Leaving,
            LedgerState::TicketExclusive,
            LedgerState::TicketShared,
        ] {
            w.write_ledger(thief, LedgerEntry::of_ticket(state, held));
            let (mode, ticket, expire_s) = (mode, held, 9);
            w.abandon(thief, mode, ticket);
            assert!(w.is_denied(thief, Request::Poll { handle, mode, ticket, expire_s }));
            assert!(w.is_denied(thief, Request::Extend { handle, mode, ticket, expire_s }));
            let ticket = Some(ticket);
            assert!(w.is_denied(thief, Request::Release { handle, mode, ticket }));
            let wait = WaitNumber(1);
            let wait = Request::Wait { handle, mode, expire_s, wait, ticket };
            assert!(w.is_denied(thief, wait));
            w.resolve(thief);
            assert_eq!(w.fair(victim), before, "{mode:?} {state:?}");
        }
        // somebody behind the victim makes the arbiter look for expired holds
        w.write_ledger(thief, LedgerEntry::of_ticket(LedgerState::HeldExclusive, held));
        let behind = w.take(other, X);
        w.wait(other, X, Some(behind));
        let out = w.pass(20);
        assert!(out.is_empty(), "{mode:?}: {out:?}");
        w.fence(thief);
        assert!(w.pass(20).is_empty(), "{mode:?}");
        let ticket = Some(held);
        let release = Request::Release { handle: victim.grant.handle, mode, ticket };
        let out = w.ask(victim, release);
        assert!(out.iter().any(|s| s.client == other.id), "{mode:?}: {out:?}");
    }
}

#[test]
fn a_shared_ticket_is_not_done_before_its_turn() {
    // A reader holds, a writer waits for it, and the thief's ticket is behind the writer.
    for way in 0..4 {
        let (mut w, [reader, writer, thief]) = World::peers(LockType::Fair);
        w.take(reader, S);
        let writers = w.take(writer, X);
        let its = w.take(thief, S);
        assert!(w.wait(writer, X, Some(writers)).is_empty(), "the reader is inside");
        let word = w.fair(reader);
        w.write_ledger(thief, LedgerEntry::of_ticket(LedgerState::HeldShared, its));
        let handle = thief.grant.handle;
        let out = match way {
            0 => {
                let done = word.with_ns(word.ns() + 1).into_bits();
                assert_eq!(w.cas(thief, word.into_bits(), done), Err(Status::Invalid));
                Vec::new()
            }
            1 => w.ask(thief, Request::Release { handle, mode: S, ticket: Some(its) }),
            2 => w.ask(thief, Request::Abandon { handle, mode: S, ticket: its }),
            _ => w.resolve(thief),
        };
        let granted = |s: &Sent| s.client == writer.id;
        assert!(!out.iter().any(granted), "the writer beside the reader, way {way}: {out:?}");
        assert!(w.pass(20).is_empty(), "way {way}");
        assert_eq!(w.fair(reader).ns(), 0, "way {way}");
    }
}

#[test]
fn a_shared_ticket_is_counted_once_however_it_is_disowned() {
    let (mut w, [reader, thief, writer]) = World::peers(LockType::Fair);
    let held = w.take(reader, S);
    w.take_silently(thief, S);
    w.write_ledger(thief, LedgerEntry::new()); // nobody claims it now, as far as ledgers go
    let ticket = w.take(writer, X);
    w.wait(writer, X, Some(ticket));
    assert!(w.pass(5).is_empty(), "the reader is inside");
    assert_eq!(w.fair(reader).ns(), 1, "the one nobody uses is skipped");
    let word = w.fair(thief);
    let done = word.with_ns(word.ns() + 1).into_bits();
    assert_eq!(w.cas(thief, word.into_bits(), done), Err(Status::Invalid));
    w.resolve(thief);
    w.fence(thief);
    assert_eq!(w.fair(reader).ns(), 1);
    let release = Request::Release { handle: reader.grant.handle, mode: S, ticket: Some(held) };
    assert!(w.ask(reader, release).iter().any(|s| s.client == writer.id));
}

#[test]
fn tickets_that_are_taken_and_dropped_end_at_a_bound() {
    let (mut w, [holder, thief, waiter]) = World::peers(LockType::Fair);
    let held = w.take(holder, X);
    let mut taken = 0;
    while let Ok(old) = w.add(thief, FairWord::TAKE_EXCLUSIVE) {
        let old = FairWord::from_bits(old);
        w.abandon(thief, X, Ticket { tx: old.mx(), ts: old.ms() });
        taken += 1;
        assert!(taken < 10_000, "no end");
    }
    let take = Request::TakeTicket { handle: thief.grant.handle, mode: X, expire_s: 9 };
    assert!(w.is_denied(thief, take));
    // others still can, and get their turn when the holder leaves
    let ticket = w.take(waiter, X);
    assert!(w.wait(waiter, X, Some(ticket)).is_empty());
    let release = Request::Release { handle: holder.grant.handle, mode: X, ticket: Some(held) };
    let mut sent = w.ask(holder, release);
    for _ in 0..10 {
        // so many are skipped in slices, with others served between
        let soon = w.now.plus_ns(1_000);
        w.primary.tick(soon, &mut w.memory, &mut sent);
    }
    assert!(sent.iter().any(|s| s.client == waiter.id));
    assert!(w.add(thief, FairWord::TAKE_EXCLUSIVE).is_ok(), "and then so can it");
}

#[test]
fn lanes_are_never_filled_by_additions() {
    for add in [FairWord::TAKE_EXCLUSIVE, FairWord::TAKE_SHARED] {
        let (mut w, [thief]) = World::peers(LockType::Fair);
        let near = FAIR_LANE_MAX - 3;
        let word = FairWord::new().with_nx(near).with_mx(near).with_ns(near).with_ms(near);
        w.memory.set(w0(thief), word.into_bits());
        let taken = (0..10).take_while(|_| w.add(thief, add).is_ok()).count();
        assert_eq!(taken, 3);
        let shm = w.join(FabricKind::Shm); // its chains over tcp are checked by kind alone
        assert_eq!(w.add(shm, add), Err(Status::Fail));
    }
}

#[test]
fn a_later_wait_ends_the_earlier_one_and_says_so() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let (mut w, [holder, eager, second]) = World::peers(lock_type);
        let (mut ticket, mut held) = (None, None);
        match lock_type {
            LockType::Atomic => {
                let mine = AtomicWord::new().with_client(holder.id.get()).with_timeout(5_600);
                w.cas(holder, 0, mine.into_bits()).unwrap();
            }
            LockType::Rw => {
                let mine = RwWord::new().with_client(holder.id.get());
                w.cas(holder, 0, mine.into_bits()).unwrap();
            }
            LockType::Fair => {
                held = Some(w.take(holder, X));
                ticket = Some(w.take(eager, X));
            }
        }
        assert!(w.wait(eager, X, ticket).is_empty());
        for _ in 0..10 {
            let first = w.seq;
            let out = w.wait(eager, X, ticket);
            let ended = |s: &Sent| {
                (s.client, s.seq, matches!(s.reply, Reply::Cancelled { .. }))
                    == (eager.id, Seq(first), true)
            };
            assert!(out.len() == 1 && ended(&out[0]), "{lock_type:?}: {out:?}");
        }
        let first = w.seq;
        if let Some(ticket) = ticket {
            // a poll ends a wait, too, and both are answered
            let handle = eager.grant.handle;
            let out = w.ask(eager, Request::Poll { handle, mode: X, ticket, expire_s: 9 });
            let of = |seq: u64| out.iter().find(|s| s.seq == Seq(seq)).map(|s| s.reply);
            assert!(matches!(of(first), Some(Reply::Cancelled { .. })), "{out:?}");
            assert!(matches!(of(w.seq), Some(Reply::Queued { .. })), "{out:?}");
            assert!(w.wait(eager, X, Some(ticket)).is_empty());
        }
        let last = w.seq;
        if lock_type != LockType::Fair {
            assert!(w.wait(second, X, None).is_empty());
        }
        let handle = holder.grant.handle;
        let out = w.ask(holder, Request::Release { handle, mode: X, ticket: held });
        let granted: Vec<_> =
            out.iter().filter(|s| matches!(s.reply, Reply::Granted { .. })).collect();
        assert!(granted.len() == 1 && granted[0].client == eager.id, "{lock_type:?}: {out:?}");
        assert_eq!(granted[0].seq, Seq(last));
    }
}

#[test]
fn what_an_earlier_channel_waited_for_is_not_waited_for_any_more() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let (mut w, [holder, gone, next]) = World::peers(lock_type);
        let (mut tickets, mut held) = ([None, None], None);
        let mine = holder.id.get();
        match lock_type {
            LockType::Atomic => {
                let mine = AtomicWord::new().with_client(mine).with_timeout(5_600);
                w.cas(holder, 0, mine.into_bits()).unwrap();
            }
            LockType::Rw => {
                w.cas(holder, 0, RwWord::new().with_client(mine).into_bits()).unwrap();
            }
            LockType::Fair => {
                held = Some(w.take(holder, X));
                tickets = [Some(w.take(gone, X)), Some(w.take(next, X))];
            }
        }
        let free = w.word(holder);
        assert!(w.wait(gone, X, tickets[0]).is_empty());
        assert!(w.attach(gone.id, FabricKind::Tcp).is_empty());
        assert_eq!(w.word(holder), free, "{lock_type:?}: the waiters bit stays");
        w.seq = 1_000; // its numbers begin anew; any will do
        assert!(w.wait(next, X, tickets[1]).is_empty());
        let handle = holder.grant.handle;
        let mut out = w.ask(holder, Request::Release { handle, mode: X, ticket: held });
        out.extend(w.pass(3)); // a fair ticket keeps its turn for the grace
        assert!(out.iter().all(|s| s.client != gone.id), "{lock_type:?}: {out:?}");
        let granted = |s: &Sent| s.client == next.id && matches!(s.reply, Reply::Granted { .. });
        assert!(out.iter().any(granted), "{lock_type:?}: {out:?}");
    }
}

#[test]
fn a_client_that_maps_the_memory_is_asked_for_tickets_of_its_own_too() {
    let mut w = World::new(LockType::Fair);
    let [victim, other, third] =
        [FabricKind::Shm, FabricKind::Shm, FabricKind::Tcp].map(|f| w.join(f));
    let take = |w: &mut World, peer: Peer, state| {
        let old = FairWord::from_bits(w.memory.faa(w0(peer), FairWord::TAKE_EXCLUSIVE));
        let ticket = Ticket { tx: old.mx(), ts: old.ms() };
        let entry = LedgerEntry::of_ticket(state, ticket).with_detail(600);
        w.memory.ledgers.insert((peer.id, peer.grant.handle), entry);
        ticket
    };
    let held = take(&mut w, victim, LedgerState::HeldExclusive);
    let thirds = w.take(third, X);
    let handle = other.grant.handle;
    for ticket in [held, thirds] {
        w.abandon(other, X, ticket);
        assert!(w.is_denied(other, Request::Poll { handle, mode: X, ticket, expire_s: 9 }));
        let ticket = Some(ticket);
        assert!(w.is_denied(other, Request::Release { handle, mode: X, ticket }));
        assert!(w.is_denied(
            other,
            Request::Wait { handle, mode: X, expire_s: 9, wait: WaitNumber(1), ticket }
        ));
    }
    assert_eq!(w.fair(victim).nx(), held.tx);
    assert!(w.pass(5).is_empty());
    // a ticket that no ledger names yet, or any more, is its own to give up
    let silent = w.memory.faa(w0(other), FairWord::TAKE_EXCLUSIVE);
    let silent = Ticket { tx: FairWord::from_bits(silent).mx(), ts: 0 };
    w.abandon(other, X, silent);
    let last = take(&mut w, other, LedgerState::TicketExclusive);
    assert!(w.wait(third, X, Some(thirds)).is_empty());
    assert!(w.wait(other, X, Some(last)).is_empty());
    let handle = victim.grant.handle;
    let out = w.ask(victim, Request::Release { handle, mode: X, ticket: Some(held) });
    assert!(out.iter().any(|s| s.client == third.id), "{out:?}");
    let handle = third.grant.handle;
    let out = w.ask(third, Request::Release { handle, mode: X, ticket: Some(thirds) });
    assert!(out.iter().any(|s| s.client == other.id), "{out:?}");
}

#[test]
fn a_ticket_is_ended_by_a_chain_of_its_own_mode_and_number_alone() {
    let (mut w, [a, b]) = World::peers(LockType::Fair);
    let word = |mx, ms| FairWord::new().with_mx(mx).with_ms(ms);
    // a has a share under the number that the exclusive ticket at the head has, too
    w.add(a, FairWord::TAKE_SHARED).unwrap();
    let head = word(1, 0);
    let ended = head.exclusive_done();
    assert_eq!(w.cas(a, head.into_bits(), ended.into_bits()), Err(Status::Invalid));
    let share = word(0, 1);
    let may = w.cas(b, share.into_bits(), share.shared_done(1).into_bits());
    assert_eq!(may, Err(Status::Invalid), "b has none");
    assert!(w.cas(a, share.into_bits(), share.shared_done(1).into_bits()).is_ok());
    // b is second in the queue
    w.add(a, FairWord::TAKE_EXCLUSIVE).unwrap();
    w.add(b, FairWord::TAKE_EXCLUSIVE).unwrap();
    assert_eq!(w.cas(b, head.into_bits(), ended.into_bits()), Err(Status::Invalid));
    assert!(w.cas(a, head.into_bits(), ended.into_bits()).is_ok(), "it finds another word");
}
