// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients of a primary that is gone have at its successor. The clients' entries and machines
//! and the primary are the real ones; only word operations and messages pass between them.

use std::cell::Cell;

use dlock_core::clock::{Lease, Now, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, LockId, Seq};
use dlock_core::lock::{Begin, EntryState, LockEntry, Machine, Op, Step};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord, TakenWord};
use dlock_core::session::Binding;
use dlock_core::wire::control::{
    Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc,
};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::common::world::{World, NOW};

const ANCHOR_S: u32 = 5_000;
const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

fn try_lock(mode: Mode) -> Op {
    Op::TryLock { mode, lease: Lease::secs(60) }
}

thread_local! {
    /// Nanoseconds since [`NOW`], by the server clock of the test.
    static PASSED_NS: Cell<u64> = const { Cell::new(0) };
}

fn now() -> Now {
    let passed_ns = PASSED_NS.get();
    Now { local_ns: 77 * NS + passed_ns, ..Now::exact(NOW.plus_ns(passed_ns)) }
}

/// A client with one lock.
struct Side {
    id: ClientId,
    fabric: FabricKind,
    entry: LockEntry,
    binding: Binding,
}

impl World {
    fn operate(&mut self, side: &mut Side, op: Op) -> Status {
        match side.entry.begin(op, now()) {
            Begin::Local(result) => result.status,
            Begin::Run(mut machine, step) => self.drive(side, &mut machine, step),
        }
    }

    fn drive(&mut self, side: &mut Side, machine: &mut Machine, mut step: Step) -> Status {
        loop {
            if let Some(entry) = side.entry.take_ledger_write() {
                let note = WordOp::WriteLedger { handle: side.entry.handle(), value: entry.into() };
                self.execute(side, Chain::one(note));
            }
            step = match step {
                Step::Chain(chain) => {
                    let values = self.execute(side, chain);
                    machine.outcome(&mut side.entry, Outcome::Done(values), now())
                }
                Step::Request(request) => {
                    let reply = self.ask(side.id, request).ok_or(Status::BadResponse);
                    let reply = match request.has_reply() {
                        true => reply,
                        false => Ok(Reply::Done { word: 0 }),
                    };
                    machine.reply(&mut side.entry, reply, now())
                }
                Step::Again { .. } | Step::Park { .. } => panic!("nobody tries again here"),
                Step::Done(result) => return result.status,
            };
        }
    }

    fn execute(&mut self, side: &Side, chain: Chain) -> Values {
        let mut values = Values::new();
        for word_op in chain.ops() {
            match *word_op {
                WordOp::Cas { addr, expect, swap } => {
                    values.push(self.memory.cas(addr, expect, swap));
                }
                WordOp::Faa { addr, add } => values.push(self.memory.faa(addr, add)),
                WordOp::Read { addr } => values.push(self.memory.read(addr)),
                WordOp::ReadPair { addr } => {
                    for addr in [addr, addr.next()] {
                        values.push(self.memory.read(addr));
                    }
                }
                WordOp::WriteLedger { handle, value } => {
                    self.memory.set_ledger(side.id, handle, LedgerEntry::from_bits(value));
                    values.push(0);
                }
            }
        }
        if side.fabric == FabricKind::Tcp {
            self.primary.executed(&mut self.memory, side.id, &chain, &values);
        }
        values
    }

    fn ask(&mut self, client: ClientId, request: Request) -> Option<Reply> {
        self.seq += 1;
        let (seq, before) = (Seq(self.seq), self.out.len());
        self.primary.command(NOW, &mut self.memory, client, seq, request, &mut self.out);
        let sent = self.out[before..].iter().find(|s| (s.client, s.seq) == (client, seq));
        sent.map(|sent| sent.reply)
    }

    fn side(&mut self, id: u32, fabric: FabricKind, lock_type: LockType) -> Side {
        let id = self.client(id, fabric);
        let grant = self.get(id, &["l".to_string()], lock_type)[0];
        let desc = LockDesc { name: b"l".to_vec(), lock_type, lease_s: 0, tokens: false };
        let entry = LockEntry::new(id, ANCHOR_S, lock_type, &grant, desc);
        Side { id, fabric, entry, binding: Binding::new(epoch(self)) }
    }

    /// Starts the successor, to which these clients come in this order and claim everything.
    fn fails_over(self, n: u64, sides: &mut [&mut Side]) -> World {
        let mut next = World::recovering_as(10, sides.len() as u32, epoch(&self).0 + n);
        drop(self);
        for side in sides.iter_mut() {
            side.binding.moves_to(epoch(&next), now());
            assert_eq!(next.admit(side.id.get()), Ok(side.id));
            next.primary.came_back(NOW, side.id);
            let World { primary, memory, out, .. } = &mut next;
            primary.attached(NOW, memory, side.id, side.fabric, out);
            for _ in 0..2 {
                next.claims(side);
            }
            if side.entry.is_unconfirmed() {
                let mode = if side.entry.state() == EntryState::SharedLocked { S } else { X };
                assert_eq!(next.operate(side, try_lock(mode)), Status::NotReady);
            }
            assert_eq!(next.control(side.id, ControlRequest::ReinitDone), ControlReply::Done);
        }
        assert!(!next.primary.is_recovering());
        next
    }

    fn claims(&mut self, side: &mut Side) {
        let claim = side.binding.claim(&mut side.entry, now());
        let reply = self.control(side.id, ControlRequest::UpdateLocks(vec![claim]));
        let ControlReply::Locks(locks) = reply else { panic!("{reply:?}") };
        let at = (epoch(self), ANCHOR_S);
        side.binding.bind(&mut side.entry, &locks[0].unwrap(), at, false, now());
    }

    fn word(&mut self, side: &Side) -> u64 {
        self.memory.read(WordAddr::new(side.entry.slot(), Word::W0))
    }
}

fn epoch(world: &World) -> Epoch {
    world.primary.config().epoch
}

/// The indexes of the clients that have the lock, by the answers to their requests for it.
fn holder(world: &mut World, sides: &mut [&mut Side], mode: Mode) -> Vec<usize> {
    let mut has = |side: &mut Side| match world.operate(side, try_lock(mode)) {
        Status::Success | Status::AlreadyLocked => true,
        Status::Again => false,
        other => panic!("{other:?}"),
    };
    (0..sides.len()).filter(|&i| has(sides[i])).collect()
}

const FABRICS: [[FabricKind; 3]; 4] = {
    use FabricKind::{Shm, Tcp};
    [[Shm, Shm, Shm], [Tcp, Tcp, Tcp], [Shm, Tcp, Shm], [Tcp, Shm, Tcp]]
};

#[test]
fn a_fair_lock_keeps_its_holder_and_its_queue_in_their_order() {
    for fabrics in FABRICS {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut w = World::new(10);
            let mut sides: Vec<Side> =
                (0..3).map(|i| w.side(5 + i, fabrics[i as usize], LockType::Fair)).collect();
            assert_eq!(w.operate(&mut sides[0], try_lock(X)), Status::Success);
            assert_eq!(w.operate(&mut sides[1], try_lock(X)), Status::Again);
            assert_eq!(w.operate(&mut sides[2], try_lock(X)), Status::Again);
            let mut all: Vec<(usize, &mut Side)> = sides.iter_mut().enumerate().collect();
            all.sort_by_key(|(i, _)| order[*i]);
            let mut all: Vec<&mut Side> = all.into_iter().map(|(_, side)| side).collect();
            let mut w = w.fails_over(1, &mut all);
            for turn in 0..3 {
                let mut all: Vec<&mut Side> = sides.iter_mut().skip(turn).collect();
                assert_eq!(holder(&mut w, &mut all, X), [0], "{fabrics:?} {order:?} {turn}");
                while w.operate(&mut sides[turn], Op::Unlock) == Status::AlreadyLocked {}
                assert_eq!(sides[turn].entry.state(), EntryState::Unlocked);
            }
        }
    }
}

/// A client comes with its old ticket, about which it has not asked the first successor.
#[test]
fn a_queue_keeps_its_order_over_two_failures_whoever_has_asked_in_between() {
    for asks in 0..8_u32 {
        let mut w = World::new(10);
        let mut sides: Vec<Side> =
            (0..3).map(|i| w.side(5 + i, FabricKind::Shm, LockType::Fair)).collect();
        // other tickets were taken before, so that the numbers at the two primaries differ
        for _ in 0..9 {
            assert_eq!(w.operate(&mut sides[2], try_lock(X)), Status::Success);
            assert_eq!(w.operate(&mut sides[2], Op::Unlock), Status::Success);
        }
        for (i, side) in sides.iter_mut().enumerate() {
            let status = if i == 0 { Status::Success } else { Status::Again };
            assert_eq!(w.operate(side, try_lock(X)), status);
        }
        let mut w = w.fails_over(1, &mut sides.iter_mut().collect::<Vec<_>>());
        for (i, side) in sides.iter_mut().enumerate().filter(|(i, _)| asks >> i & 1 == 1) {
            let status = if i == 0 { Status::AlreadyLocked } else { Status::Again };
            assert_eq!(w.operate(side, try_lock(X)), status);
        }
        let mut late = w.side(9, FabricKind::Shm, LockType::Fair);
        assert_eq!(w.operate(&mut late, try_lock(X)), Status::Again);
        sides.push(late);
        let mut w = w.fails_over(1, &mut sides.iter_mut().rev().collect::<Vec<_>>());
        for turn in 0..4 {
            let mut all: Vec<&mut Side> = sides.iter_mut().skip(turn).collect();
            assert_eq!(holder(&mut w, &mut all, X), [0], "{asks:b} {turn}");
            while w.operate(&mut sides[turn], Op::Unlock) == Status::AlreadyLocked {}
        }
    }
}

#[test]
fn readers_of_a_fair_lock_are_inside_together_and_one_that_waits_is_let_in_after_them() {
    for fabrics in FABRICS {
        let mut w = World::new(10);
        let [mut a, mut b, mut c] =
            [0, 1, 2].map(|i| w.side(5 + i, fabrics[i as usize], LockType::Fair));
        assert_eq!(w.operate(&mut a, try_lock(S)), Status::Success);
        assert_eq!(w.operate(&mut b, try_lock(S)), Status::Success);
        assert_eq!(w.operate(&mut c, try_lock(X)), Status::Again);
        let mut w = w.fails_over(1, &mut [&mut c, &mut b, &mut a]);
        assert_eq!(w.operate(&mut a, Op::Extend { mode: S, lease: Lease::NONE }), Status::Success);
        assert_eq!(w.operate(&mut a, Op::Unlock), Status::Success);
        assert_eq!(w.operate(&mut c, try_lock(X)), Status::Again);
        assert_eq!(w.operate(&mut b, Op::Unlock), Status::Success);
        assert_eq!(w.operate(&mut c, try_lock(X)), Status::Success);
    }
}

/// The successor does not wait for this client.
#[test]
fn of_a_client_that_does_not_come_back_nothing_stands_in_the_way() {
    let mut w = World::new(10);
    let [mut a, mut b, mut c] = [5, 6, 7].map(|id| w.side(id, FabricKind::Shm, LockType::Fair));
    assert_eq!(w.operate(&mut a, try_lock(X)), Status::Success);
    assert_eq!(w.operate(&mut b, try_lock(X)), Status::Again);
    assert_eq!(w.operate(&mut c, try_lock(X)), Status::Again);
    let mut w = w.fails_over(1, &mut [&mut c]);
    assert_eq!(w.operate(&mut c, try_lock(X)), Status::Success);
}

#[test]
fn atomic_and_read_write_holds_go_on_and_are_released() {
    for fabrics in FABRICS {
        for (lock_type, mode) in [(LockType::Atomic, X), (LockType::Rw, X), (LockType::Rw, S)] {
            let mut w = World::new(10);
            let [mut a, mut b, mut c] =
                [0, 1, 2].map(|i| w.side(5 + i, fabrics[i as usize], lock_type));
            assert_eq!(w.operate(&mut a, try_lock(mode)), Status::Success);
            let second = w.operate(&mut b, try_lock(mode));
            assert_eq!(second == Status::Success, mode == S);
            let mut w = w.fails_over(1, &mut [&mut b, &mut c, &mut a]);
            assert_eq!(w.operate(&mut c, try_lock(X)), Status::Fail, "{lock_type:?} {mode:?}");
            if lock_type == LockType::Atomic {
                let extended = w.operate(&mut a, Op::Extend { mode, lease: Lease::NONE });
                assert_eq!(extended, Status::Success, "{lock_type:?} {mode:?} {fabrics:?}");
                let late = a.entry.deadline().0 - NOW.deadline(Lease::secs(60)).0;
                assert!(late <= 1, "rounded up, once: {late}");
            } else {
                let refused = w.operate(&mut a, Op::Extend { mode, lease: Lease::NONE });
                assert_eq!(refused, Status::Invalid, "{lock_type:?} {mode:?} {fabrics:?}");
            }
            assert!(!a.entry.is_unconfirmed(), "whatever is asked, this is asked first");
            let again = w.operate(&mut a, try_lock(mode));
            assert_eq!(again, Status::AlreadyLocked, "{lock_type:?} {mode:?} {fabrics:?}");
            while w.operate(&mut a, Op::Unlock) == Status::AlreadyLocked {}
            if mode == S {
                assert_eq!(w.operate(&mut c, try_lock(X)), Status::Fail, "b is inside");
                assert_eq!(w.operate(&mut b, Op::Unlock), Status::Success);
            }
            assert_eq!(w.word(&a), 0, "{lock_type:?} {mode:?} {fabrics:?}");
            assert_eq!(w.operate(&mut c, try_lock(X)), Status::Success);
        }
    }
}

/// The release may not have taken effect, and then its caller believes that it holds the lock.
#[test]
fn a_hold_whose_release_was_not_answered_is_claimed_and_released_when_that_is_asked_again() {
    for (lock_type, mode) in [(LockType::Atomic, X), (LockType::Rw, S), (LockType::Fair, X)] {
        for is_again in [true, false] {
            let mut w = World::new(10);
            let mut a = w.side(5, FabricKind::Shm, lock_type);
            assert_eq!(w.operate(&mut a, try_lock(mode)), Status::Success);
            let Begin::Run(mut machine, _) = a.entry.begin(Op::Unlock, now()) else { panic!() };
            let lost = machine.outcome(&mut a.entry, Outcome::Unknown, now());
            assert!(matches!(lost, Step::Done(result) if result.status == Status::BadResponse));
            let mut w = w.fails_over(1, &mut [&mut a]);
            assert_ne!(w.word(&a), 0, "{lock_type:?}");
            let op = if is_again { Op::Unlock } else { try_lock(mode) };
            assert_eq!(w.operate(&mut a, op), Status::Success, "{lock_type:?}");
            if !is_again {
                assert_eq!(a.entry.refs(), 1, "{lock_type:?}");
                assert_eq!(w.operate(&mut a, Op::Unlock), Status::Success);
            }
            let mut b = w.side(6, FabricKind::Shm, lock_type);
            assert_eq!(w.operate(&mut b, try_lock(X)), Status::Success, "{lock_type:?}");
        }
    }
}

/// If the first hold was released, that was before the second client was granted the lock.
#[test]
fn a_hold_that_may_be_released_gives_way_to_any_other() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let mut w = World::new(10);
        let [mut a, mut b] = [5, 6].map(|id| w.side(id, FabricKind::Shm, lock_type));
        PASSED_NS.set(NS);
        assert_eq!(w.operate(&mut a, try_lock(X)), Status::Success);
        let Begin::Run(mut machine, Step::Chain(chain)) = a.entry.begin(Op::Unlock, now()) else {
            panic!()
        };
        w.execute(&a, chain);
        machine.outcome(&mut a.entry, Outcome::Unknown, now());
        PASSED_NS.set(0); // the second client's clock is behind that of the first one
        assert_eq!(w.operate(&mut b, try_lock(X)), Status::Success);
        let mut w = w.fails_over(1, &mut [&mut a, &mut b]);
        assert_eq!(w.operate(&mut a, Op::Unlock), Status::Success, "{lock_type:?}");
        assert_ne!(w.word(&b), 0, "{lock_type:?}");
        assert_eq!(w.operate(&mut b, Op::Unlock), Status::Success, "{lock_type:?}");
    }
}

#[test]
fn of_an_acquire_that_was_not_answered_nothing_is_claimed() {
    let mut w = World::new(10);
    let mut a = w.side(5, FabricKind::Shm, LockType::Atomic);
    let Begin::Run(mut machine, Step::Chain(chain)) = a.entry.begin(try_lock(X), now()) else {
        panic!()
    };
    w.execute(&a, chain);
    machine.outcome(&mut a.entry, Outcome::Unknown, now());
    let mut w = w.fails_over(1, &mut [&mut a]);
    assert_eq!(w.word(&a), 0);
    assert_eq!(w.operate(&mut a, try_lock(X)), Status::Success);
}

/// A hold was taken away, and its client does not know that.
#[test]
fn of_holds_that_exclude_each_other_the_later_one_goes_on_and_the_other_is_told() {
    let all = [LockType::Atomic, LockType::Rw, LockType::Fair];
    let first = [Op::Unlock, Op::Extend { mode: X, lease: Lease::NONE }];
    for (lock_type, op) in all.iter().flat_map(|&lock_type| first.map(|op| (lock_type, op))) {
        for is_first in [false, true] {
            PASSED_NS.set(0);
            let mut w = World::new(10);
            let [mut a, mut b] = [5, 6].map(|id| w.side(id, FabricKind::Shm, lock_type));
            assert_eq!(w.operate(&mut a, try_lock(X)), Status::Success);
            let free = match lock_type {
                LockType::Fair => TakenWord::START.into_bits(),
                LockType::Atomic | LockType::Rw => 0,
            };
            w.memory.set(WordAddr::new(a.entry.slot(), Word::W0), free);
            let (handle, value) = (a.entry.handle(), LedgerEntry::new());
            w.memory.set_ledger(a.id, handle, value);
            PASSED_NS.set(NS / 2);
            assert_eq!(w.operate(&mut b, try_lock(X)), Status::Success);
            b.binding = Binding::new(epoch(&w));
            let mut sides = [&mut a, &mut b];
            if is_first {
                sides.reverse();
            }
            let mut w = w.fails_over(1, &mut sides);
            assert_ne!(w.word(&b), 0);
            assert_eq!(w.operate(&mut a, op), Status::Fail, "{lock_type:?} {op:?}");
            assert_eq!(w.operate(&mut b, Op::Unlock), Status::Success, "{lock_type:?}");
        }
    }
}

fn claim(lock_type: LockType, held: Option<HeldClaim>) -> Claim {
    let desc = LockDesc { name: b"l".to_vec(), lock_type, lease_s: 0, tokens: false };
    Claim { lock: LockId(9), desc, held }
}

impl World {
    fn back(&mut self, id: u32) -> ClientId {
        let client = self.admit(id).unwrap();
        self.primary.came_back(NOW, client);
        client
    }

    fn told(&mut self, client: ClientId, claim: Claim) -> Result<WordAddr, Status> {
        match self.control(client, ControlRequest::UpdateLocks(vec![claim])) {
            ControlReply::Locks(locks) => locks[0].map(|l| WordAddr::new(l.slot, Word::W0)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_claim_that_no_client_can_make_is_refused() {
    use dlock_core::memory::words::Ticket;
    use dlock_core::wire::control::Place;
    let mut w = World::recovering(10, 1);
    let a = w.back(5);
    let hold = |mode| HeldClaim::hold(mode, 60 * NS);
    let place = Some(Place { epoch: Epoch(0), ticket: Ticket { lap: 0, tx: 4, ts: 0 } });
    let refused = [
        (LockType::Atomic, hold(S)),
        (LockType::Atomic, HeldClaim { is_queued: true, ..hold(X) }),
        (LockType::Atomic, HeldClaim { fair: place, ..hold(X) }),
        (LockType::Rw, HeldClaim { is_queued: true, ..hold(S) }),
        (LockType::Rw, HeldClaim { fair: place, ..hold(S) }),
        (LockType::Fair, hold(X)),
    ];
    for (i, (lock_type, held)) in refused.into_iter().enumerate() {
        let mut claim = claim(lock_type, Some(held));
        claim.desc.name = format!("{lock_type:?}").into_bytes();
        assert_eq!(w.told(a, claim), Err(Status::Fail), "{i}");
    }
    let other = claim(LockType::Fair, Some(HeldClaim { fair: place, ..hold(X) }));
    assert!(w.told(a, other).is_ok());
    let other = w.told(a, claim(LockType::Rw, Some(hold(X))));
    assert!(other.is_err(), "there is a fair lock of this name");
}

/// The recovery waits for a number of clients; this one has not said that it is ready.
#[test]
fn of_a_client_that_is_not_waited_for_and_has_not_told_everything_nothing_counts() {
    let mut w = World::recovering(10, 1);
    let [slow, other] = [5, 6].map(|id| w.back(id));
    let hold = claim(LockType::Atomic, Some(HeldClaim::hold(X, u64::MAX)));
    let at = w.told(slow, hold).unwrap();
    w.control(other, ControlRequest::ReinitDone);
    assert!(!w.primary.is_recovering());
    assert_eq!(w.memory.read(at), 0);
}

#[test]
fn what_a_client_does_not_claim_any_more_does_not_count() {
    let mut w = World::recovering(10, 1);
    let a = w.back(5);
    let hold = claim(LockType::Atomic, Some(HeldClaim::hold(X, u64::MAX)));
    w.told(a, hold).unwrap();
    let at = w.told(a, claim(LockType::Atomic, None)).unwrap();
    w.control(a, ControlRequest::ReinitDone);
    assert_eq!(w.memory.read(at), 0);
}

#[test]
fn the_last_word_of_a_client_counts() {
    let mut w = World::recovering(10, 1);
    let a = w.back(5);
    let hold = |mode| claim(LockType::Rw, Some(HeldClaim::hold(mode, u64::MAX)));
    for told in [hold(X), claim(LockType::Rw, None), hold(S), hold(S)] {
        let at = w.told(a, told).unwrap();
        assert_eq!(w.memory.read(at), 0, "nothing is settled yet");
    }
    let at = w.told(a, hold(S)).unwrap();
    w.control(a, ControlRequest::ReinitDone);
    assert_eq!(RwWord::from_bits(w.memory.read(at)), RwWord::new().with_rcount(1));
    let confirm = |mode| Request::Confirm { handle: Handle(0), mode };
    assert!(matches!(w.ask(a, confirm(S)), Some(Reply::Granted { .. })));
    assert!(matches!(w.ask(a, confirm(X)), Some(Reply::Denied { status: Status::Fail, .. })));
}

/// A client claims a hold, and is then silent for too long while the others come back.
#[test]
fn what_is_claimed_lapses_and_lasts_as_what_is_held() {
    for (left_ns, lasts) in [(60 * NS, true), (u64::MAX, false)] {
        let mut w = World::recovering(10, 2);
        let (a, b) = (w.back(5), w.back(6));
        let held = Some(HeldClaim::hold(X, left_ns));
        let at = w.told(a, claim(LockType::Atomic, held)).unwrap();
        assert!(w.primary.has_something(NOW, &mut w.memory, a));
        assert!(!w.primary.has_something(NOW, &mut w.memory, b));
        let mut lapse = w.primary.begin_lapse(a);
        assert!(w.primary.lapse(NOW, &mut w.memory, &mut lapse, &mut w.out));
        assert_eq!((lapse.lapsed().ended, lapse.lapsed().until.is_some()), (!lasts, lasts));
        assert_eq!(w.primary.has_something(NOW, &mut w.memory, a), lasts);
        w.control(b, ControlRequest::ReinitDone);
        w.step(NOW.plus_ns(1), 1);
        assert!(!w.primary.is_recovering(), "the first has told what it had to");
        assert_eq!(w.memory.read(at) != 0, lasts);
    }
}

/// A client that is removed before it has claimed everything has claimed nothing.
#[test]
fn claims_of_a_client_that_is_fenced_do_not_count() {
    let mut w = World::recovering(10, 2);
    let (a, b) = (w.back(5), w.back(6));
    let held = Some(HeldClaim::hold(X, u64::MAX));
    let at = w.told(a, claim(LockType::Rw, held)).unwrap();
    w.told(b, claim(LockType::Rw, None)).unwrap();
    w.control(b, ControlRequest::ReinitDone);
    w.primary.fenced(a);
    assert!(w.primary.is_recovering());
    w.step(NOW, 1);
    assert!(!w.primary.is_recovering());
    assert_eq!(w.memory.read(at), 0);
    while w.step(NOW, 1_000).more {}
    assert_eq!(w.primary.assert_consistent(), Ok(()));
}

/// The operator is told how many claims were not granted.
#[test]
fn a_claim_is_lost_only_if_another_one_has_the_lock() {
    let [hold, share] = [X, S].map(|mode| HeldClaim::hold(mode, 60 * NS));
    for (lock_type, held, lost) in
        [(LockType::Atomic, hold, 1), (LockType::Rw, hold, 1), (LockType::Rw, share, 0)]
    {
        for (claims, lost) in [(1, 0), (2, lost)] {
            let mut w = World::recovering(10, claims);
            for client in [5, 6].map(|id| w.back(id)).into_iter().take(claims as usize) {
                w.told(client, claim(lock_type, Some(held))).unwrap();
                w.control(client, ControlRequest::ReinitDone);
            }
            let recovered = w.primary.take_recovered().unwrap();
            assert_eq!((recovered.claims, recovered.lost), (claims as usize, lost));
        }
    }
}

/// The client's channel is made before it has claimed everything, or afterwards.
#[test]
fn a_share_is_known_whenever_the_channel_of_its_client_is_made() {
    use FabricKind::{Shm, Tcp};
    for (fabric, is_early) in [(Shm, true), (Shm, false), (Tcp, true), (Tcp, false)] {
        let mut w = World::recovering(10, 1);
        let a = w.back(5);
        let attach = |w: &mut World| w.primary.attached(NOW, &mut w.memory, a, fabric, &mut w.out);
        if is_early {
            attach(&mut w);
        }
        let held = Some(HeldClaim::hold(S, u64::MAX));
        let at = w.told(a, claim(LockType::Rw, held)).unwrap();
        w.control(a, ControlRequest::ReinitDone);
        if !is_early {
            attach(&mut w);
        }
        let told = w.ask(a, Request::Confirm { handle: Handle(0), mode: S });
        let why = format!("{fabric:?}, early: {is_early}: {told:?}");
        assert!(matches!(told, Some(Reply::Granted { .. })), "{why}");
        let b = w.client(6, FabricKind::Tcp);
        w.get(b, &["l".to_string()], LockType::Rw);
        w.primary.fenced(a);
        while w.step(NOW, 1_000).more {}
        assert_eq!(w.memory.read(at), 0, "{why}");
    }
}

/// The primary does not see the word operations of the client: only its ledger tells what it has.
#[test]
fn what_a_client_takes_by_itself_after_a_recovery_is_undone_when_it_dies() {
    let mut w = World::recovering(10, 1);
    let a = w.back(5);
    w.primary.attached(NOW, &mut w.memory, a, FabricKind::Shm, &mut w.out);
    w.told(a, claim(LockType::Rw, Some(HeldClaim::hold(S, u64::MAX)))).unwrap();
    w.control(a, ControlRequest::ReinitDone);
    let grant = w.get(a, &["m".to_string()], LockType::Rw)[0];
    let at = WordAddr::new(grant.slot, Word::W0);
    assert_eq!(w.memory.cas(at, 0, RwWord::new().with_rcount(1).into_bits()), 0);
    let share = LedgerEntry::new().with_state(LedgerState::HeldShared);
    w.memory.set_ledger(a, grant.handle, share);
    let b = w.client(6, FabricKind::Tcp);
    w.get(b, &["m".to_string()], LockType::Rw);
    w.primary.fenced(a);
    while w.step(NOW, 1_000).more {}
    assert_eq!(w.memory.read(at), 0);
}

/// Before a hold is confirmed, the successor may have given the lock to a later client.
#[test]
fn a_hold_is_of_the_incarnation_that_granted_or_confirmed_it_last() {
    let mut w = World::new(10);
    let first = epoch(&w);
    let mut a = w.side(5, FabricKind::Shm, LockType::Atomic);
    assert_eq!(w.operate(&mut a, try_lock(X)), Status::Success);
    let of = |a: &mut Side| a.binding.claim(&mut a.entry, now()).held.unwrap().epoch;
    let mut w = w.fails_over(1, &mut [&mut a]);
    assert_eq!(of(&mut a), first);
    assert_eq!(w.operate(&mut a, Op::Extend { mode: X, lease: Lease::NONE }), Status::Success);
    assert_eq!(of(&mut a), epoch(&w));
    assert_ne!(epoch(&w), first);
}
