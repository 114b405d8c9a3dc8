// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hostile tcp client can do no more harm to others than a slow one.

use crate::common::Memory;
use dlock_core::arbiter::FAIR_WORK_MAX;
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::limits::FAIR_DIVERT;
use dlock_core::locks::{Locks, PrimaryConfig, Sent};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{
    AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, Ticket, TurnWord,
};
use dlock_core::token::TokenFloor;
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

const START: ServerTime = ServerTime(5_000 * NS);

/// The deadline this many seconds after the start.
fn until(seconds: u32) -> Deadline {
    START.deadline(Lease::secs(seconds))
}
const MINUS_ONE: u64 = u64::MAX;

/// A primary with one lock, and tcp clients that have all got it.
struct World {
    primary: Locks,
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
        Self::of(lock_type, 8)
    }

    fn of(lock_type: LockType, clients_max: usize) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            tp_mode: 0,
            recovery_clients: 0,
            clients_max,
            locks_max: 2,
            objects_max: 0,
            absent_grace_ns: None,
            tokens: TokenFloor::default(),
        };
        let (primary, memory) = (Locks::new(config), Memory::default());
        Self { primary, memory, now: START, lock_type, seq: 0 }
    }

    fn join(&mut self, fabric: FabricKind) -> Peer {
        self.seq += 1;
        let id = ClientId::new(100 + self.seq as u32).unwrap();
        self.primary.add_client(id).unwrap();
        self.attach(id, fabric);
        let desc = LockDesc { name: vec![1], lock_type: self.lock_type, lease_s: 0, tokens: false };
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

    /// Checks a chain and executes it, as the command thread does.
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

    /// Passes the turn of a fair lock on by a chain.
    fn pass_on(&mut self, peer: Peer, from: TurnWord, mode: Mode) -> Result<u64, Status> {
        let addr = WordAddr::new(peer.grant.slot, Word::W1);
        let (expect, swap) = (from.into_bits(), from.done(mode).into_bits());
        self.run(peer, Chain::one(WordOp::Cas { addr, expect, swap }))
    }

    /// Takes a ticket of a fair lock as an honest client does: a claim of `claim_s` seconds, then
    /// the ticket.
    fn take(&mut self, peer: Peer, mode: Mode, claim_s: u32) -> Ticket {
        self.seq += 1;
        let entry = LedgerEntry::claim(mode, self.seq as u32).with_deadline(until(claim_s));
        let taken = TakenWord::from_bits(self.word(peer));
        let claim = WordOp::WriteLedger { handle: peer.grant.handle, value: entry.into_bits() };
        let add = WordOp::Faa { addr: w0(peer), add: TakenWord::addend(mode) };
        self.run(peer, Chain::one(claim).then(add)).expect("there is room");
        taken.next(0)
    }

    fn turn(&mut self, peer: Peer) -> TurnWord {
        TurnWord::from_bits(self.memory.read(WordAddr::new(peer.grant.slot, Word::W1)))
    }

    fn release(&mut self, peer: Peer, mode: Mode, ticket: Option<Ticket>) -> Vec<Sent> {
        self.ask(peer, Request::Release { handle: peer.grant.handle, mode, ticket })
    }

    fn pass(&mut self, seconds: u64) -> Vec<Sent> {
        let mut out = Vec::new();
        for _ in 0..seconds {
            self.now = self.now.plus_ns(NS);
            self.primary.tick(self.now, &mut self.memory, &mut out);
        }
        out
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
        let lease = ticket.map_or(Lease::ENDLESS, |_| Lease::secs(60));
        self.ask(peer, Request::Wait { handle, mode, lease, wait, ticket })
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
    // a client can take its own share off once, even if its ledger says otherwise
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
        lease: Lease::secs(9),
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
    // an entry that says `Intent` for ever would keep a recount waiting
    w.write_ledger(liar, LedgerEntry::new().with_state(LedgerState::Intent));
    // a client adds itself to the count by its own CPU, and dies before its next word operation
    w.memory.faa(w0(dead), 1);
    let intent = LedgerEntry::new().with_state(LedgerState::Intent);
    w.memory.ledgers.insert((dead.id, dead.grant.handle), intent);
    w.fence(dead);
    assert_eq!(w.rw(honest), RwWord::new().with_rcount(2));
}

fn is_granted(out: &[Sent], peer: Peer) -> bool {
    out.iter().any(|s| s.client == peer.id && matches!(s.reply, Reply::Granted { .. }))
}

/// The victim holds the lock; the thief names the victim's ticket in its own ledger and requests.
#[test]
fn a_fair_ticket_is_ended_only_by_its_client() {
    for mode in [X, S] {
        let (mut w, [victim, thief, other]) = World::peers(LockType::Fair);
        let held = w.take(victim, mode, 600);
        let before = w.turn(victim);
        assert_eq!(w.pass_on(thief, before, mode), Err(Status::Invalid), "{mode:?}");
        let handle = thief.grant.handle;
        for entry in [LedgerEntry::new(), LedgerEntry::claim(mode, 7).with_deadline(until(600))] {
            w.write_ledger(thief, entry);
            let (ticket, lease) = (held, Lease::secs(9));
            w.ask(thief, Request::Abandon { handle, mode, ticket });
            assert!(w.is_denied(thief, Request::Poll { handle, mode, ticket, lease }));
            assert!(
                w.is_denied(thief, Request::Extend { handle, mode, ticket: Some(ticket), lease })
            );
            let (ticket, wait) = (Some(ticket), WaitNumber(1));
            assert!(w.is_denied(thief, Request::Release { handle, mode, ticket }));
            assert!(w.is_denied(thief, Request::Wait { handle, mode, lease, wait, ticket }));
            w.resolve(thief);
            assert_eq!(w.turn(victim), before, "{mode:?}");
        }
        w.write_ledger(thief, LedgerEntry::claim(X, 8).with_deadline(until(600)));
        let behind = w.take(other, X, 600);
        assert!(w.wait(other, X, Some(behind)).is_empty(), "{mode:?}");
        assert!(w.pass(20).is_empty(), "{mode:?}");
        w.fence(thief);
        assert!(w.pass(20).is_empty(), "{mode:?}");
        assert!(is_granted(&w.release(victim, mode, Some(held)), other), "{mode:?}");
    }
}

/// A reader holds, a writer waits for it, and the thief's share is behind the writer.
#[test]
fn a_share_is_not_done_before_its_turn() {
    for way in 0..4 {
        let (mut w, [reader, writer, thief]) = World::peers(LockType::Fair);
        w.take(reader, S, 600);
        let writers = w.take(writer, X, 600);
        let its = w.take(thief, S, 600);
        let before = w.turn(reader);
        let handle = thief.grant.handle;
        if way == 0 {
            assert_eq!(w.pass_on(thief, before, S), Err(Status::Invalid));
        }
        assert!(w.wait(writer, X, Some(writers)).is_empty(), "the reader is inside");
        let out = match way {
            0 => Vec::new(),
            1 => w.release(thief, S, Some(its)),
            2 => w.ask(thief, Request::Abandon { handle, mode: S, ticket: its }),
            _ => w.resolve(thief),
        };
        assert!(!is_granted(&out, writer), "way {way}: {out:?}");
        assert!(w.pass(20).is_empty(), "way {way}");
        assert_eq!(w.turn(reader).ns(), TurnWord::START.ns(), "way {way}");
    }
}

#[test]
fn a_share_is_counted_once_however_it_is_disowned() {
    let (mut w, [reader, thief, writer]) = World::peers(LockType::Fair);
    let held = w.take(reader, S, 600);
    w.take(thief, S, 600);
    w.write_ledger(thief, LedgerEntry::new()); // no ledger has a claim for the thief's share now
    let ticket = w.take(writer, X, 600);
    w.wait(writer, X, Some(ticket));
    assert!(w.pass(5).is_empty(), "the reader is inside");
    assert_eq!(w.turn(reader).ns(), 2, "the other share is counted as done");
    let told = w.turn(thief);
    assert_eq!(w.pass_on(thief, told, S), Err(Status::Invalid));
    assert_eq!(w.pass_on(thief, told.with_told(false), S), Err(Status::Invalid));
    w.resolve(thief);
    w.fence(thief);
    assert_eq!(w.turn(reader).ns(), 2);
    assert!(is_granted(&w.release(reader, S, Some(held)), writer));
}

#[test]
fn a_turn_is_passed_on_by_the_mode_and_number_of_its_ticket_alone() {
    let (mut w, [a, b]) = World::peers(LockType::Fair);
    let first = TurnWord::START;
    w.take(a, S, 600);
    assert_eq!(w.pass_on(a, first, X), Err(Status::Invalid), "it has a share");
    assert_eq!(w.pass_on(b, first, S), Err(Status::Invalid), "it has none");
    assert!(w.pass_on(a, first, S).is_ok());
    assert_eq!(w.pass_on(a, first.done(S), S), Err(Status::Invalid), "it had one");
    w.take(a, X, 600);
    w.take(b, X, 600);
    let head = w.turn(a);
    assert_eq!(w.pass_on(b, head, X), Err(Status::Invalid), "b is second in the queue");
    assert_eq!(w.pass_on(a, head.done(X), X), Err(Status::Invalid), "not the head's number");
    let told = head.with_told(true);
    assert_eq!(w.pass_on(a, told, X), Err(Status::Invalid), "the arbiter's to change");
    assert!(w.pass_on(a, head, X).is_ok());
    assert_eq!(w.turn(a).nx(), 1);
}

/// Each dropped ticket comes to the head with a claim that is over; one call of the arbiter does
/// not pass all of them.
#[test]
fn tickets_that_are_taken_and_dropped_are_passed_in_bounded_steps() {
    const DROPPED: u32 = 200;
    let mut w = World::of(LockType::Fair, DROPPED as usize + 2);
    let [holder, waiter] = [(); 2].map(|()| w.join(FabricKind::Tcp));
    let held = w.take(holder, X, 600);
    for _ in 0..DROPPED {
        let dropper = w.join(FabricKind::Tcp);
        w.take(dropper, X, 3);
    }
    w.pass(10);
    let ticket = w.take(waiter, X, 600);
    assert!(w.wait(waiter, X, Some(ticket)).is_empty());
    w.primary.take_work();
    let mut out = w.release(holder, X, Some(held));
    assert!(!is_granted(&out, waiter), "after {DROPPED} others, at once");
    let mut calls = 0;
    while !is_granted(&out, waiter) {
        let work = w.primary.take_work();
        assert!(u64::from(work) <= FAIR_WORK_MAX, "{work}");
        calls += 1;
        assert!(calls <= DROPPED, "no end: {:?}", w.turn(holder));
        w.now = w.now.plus_ns(1_000);
        w.primary.tick(w.now, &mut w.memory, &mut out);
    }
    assert_eq!(w.turn(waiter).nx(), ticket.tx);
}

#[test]
fn a_chain_takes_no_high_number() {
    for add in [TakenWord::TAKE_EXCLUSIVE, TakenWord::TAKE_SHARED] {
        let (mut w, [thief]) = World::peers(LockType::Fair);
        let near = FAIR_DIVERT - 3;
        w.memory.set(w0(thief), TakenWord::new().with_mx(near).with_ms(near).into_bits());
        let taken = (0..10).take_while(|_| w.add(thief, add).is_ok()).count();
        assert_eq!(taken, 3);
        // of a client that may map the memory, only the kind of a chain is checked
        let shm = w.join(FabricKind::Shm);
        assert_eq!(w.add(shm, add), Err(Status::Fail));
    }
}

/// A lock that `holder` holds exclusively, and tickets of the others if it is a fair one.
fn held<const N: usize>(w: &mut World, holder: Peer, others: [Peer; N]) -> [Option<Ticket>; N] {
    let (me, mut tickets) = (holder.id.get(), [None; N]);
    match w.lock_type {
        LockType::Atomic => {
            let mine = AtomicWord::new().with_client(me).with_timeout(Deadline::at_s(5_600));
            w.cas(holder, 0, mine.into_bits()).unwrap();
        }
        LockType::Rw => {
            w.cas(holder, 0, RwWord::new().with_client(me).into_bits()).unwrap();
        }
        LockType::Fair => {
            w.take(holder, X, 600);
            tickets = others.map(|peer| Some(w.take(peer, X, 600)));
        }
    }
    tickets
}

/// The ticket with which `held` has taken a fair lock.
fn first(w: &World) -> Option<Ticket> {
    (w.lock_type == LockType::Fair).then_some(TakenWord::START.next(0))
}

#[test]
fn a_later_wait_ends_the_earlier_one_and_says_so() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let (mut w, [holder, eager, second]) = World::peers(lock_type);
        let [ticket] = held(&mut w, holder, [eager]);
        assert!(w.wait(eager, X, ticket).is_empty());
        for _ in 0..10 {
            let before = w.seq;
            let out = w.wait(eager, X, ticket);
            let ended = |s: &Sent| {
                (s.client, s.seq, matches!(s.reply, Reply::Cancelled { .. }))
                    == (eager.id, Seq(before), true)
            };
            assert!(out.len() == 1 && ended(&out[0]), "{lock_type:?}: {out:?}");
        }
        let before = w.seq;
        if let Some(ticket) = ticket {
            // a poll of the same ticket ends the wait; both requests are answered
            let handle = eager.grant.handle;
            let out =
                w.ask(eager, Request::Poll { handle, mode: X, ticket, lease: Lease::secs(9) });
            let of = |seq: u64| out.iter().find(|s| s.seq == Seq(seq)).map(|s| s.reply);
            assert!(matches!(of(before), Some(Reply::Cancelled { .. })), "{out:?}");
            assert!(matches!(of(w.seq), Some(Reply::Queued { .. })), "{out:?}");
            assert!(w.wait(eager, X, Some(ticket)).is_empty());
        }
        let last = w.seq;
        if lock_type != LockType::Fair {
            assert!(w.wait(second, X, None).is_empty());
        }
        let ticket = first(&w);
        let out = w.release(holder, X, ticket);
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
        let tickets = held(&mut w, holder, [gone, next]);
        let free = w.word(holder);
        assert!(w.wait(gone, X, tickets[0]).is_empty());
        assert!(w.attach(gone.id, FabricKind::Tcp).is_empty());
        assert_eq!(w.word(holder), free, "{lock_type:?}: the waiters bit stays");
        w.seq = 1_000; // request numbers begin again on a new channel; any number will do
        assert!(w.wait(next, X, tickets[1]).is_empty());
        let ticket = first(&w);
        let mut out = w.release(holder, X, ticket);
        out.extend(w.pass(700)); // a fair ticket keeps its turn while its claim runs
        assert!(out.iter().all(|s| s.client != gone.id), "{lock_type:?}: {out:?}");
        assert!(is_granted(&out, next), "{lock_type:?}: {out:?}");
    }
}
