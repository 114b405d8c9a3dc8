// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary as its driver sees it.

use crate::common::{stats, Memory};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, LockId, Seq};
use dlock_core::locks::{Locks, PrimaryConfig, Sent};
use dlock_core::membership::{Draws, Opened, Rules};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{
    AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, TurnWord,
};
use dlock_core::primary::{Effect, Event, Primary};
use dlock_core::token::TokenFloor;
use dlock_core::wire::about::About;
use dlock_core::wire::control::{
    Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc, LockGrant, Secret, Told,
    HORIZON_FOREVER,
};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

const NOW: ServerTime = ServerTime(5_000 * NS);

struct World {
    primary: Primary,
    memory: Memory,
    random: u32,
    seq: u64,
}

impl World {
    fn new() -> Self {
        Self::with(0)
    }
    fn with(recovery_clients: u32) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            tp_mode: 0,
            recovery_clients,
            clients_max: 3,
            locks_max: 4,
            objects_max: 4,
            absent_grace_ns: Some(10 * NS),
            tokens: TokenFloor::default(),
        };
        let primary = Primary::new(config.clone(), Rules::of(&config));
        Self { primary, memory: Memory::default(), random: 10, seq: 0 }
    }
    fn admit(&mut self, request: &ControlRequest) -> Result<ClientId, Status> {
        self.random += 1;
        let draws = Draws { secret: Secret([7; 16]), numbers: [self.random; 6] };
        let open = Event::Open { request: request.clone(), caller: 1.into(), draws };
        match self.handle(open).pop() {
            Some(Effect::Opened { opened: Ok(Opened::Admitted(admitted)), .. }) => {
                self.handle(Event::Shown { client: admitted.client, control: 1 });
                Ok(admitted.client)
            }
            Some(Effect::Opened { opened: Err(status), .. }) => Err(status),
            other => panic!("{other:?}"),
        }
    }
    /// Passes an event to the primary and executes its effects; every fence succeeds at once.
    /// Returns the effects that drivers report.
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        self.primary.handle(NOW, &mut self.memory, event);
        let mut effects = Vec::new();
        while let Some(effect) = self.primary.poll() {
            if effect.is_reported() {
                self.primary.handle(NOW, &mut self.memory, Event::Done { unfenced: false });
            }
            effects.push(effect);
        }
        effects
    }
    fn locks(&mut self) -> &mut Locks {
        self.primary.parts().1
    }
    fn client(&mut self) -> ClientId {
        self.admit(&init(1, 1, 0)).unwrap()
    }
    fn control(&mut self, client: ClientId, request: ControlRequest) -> ControlReply {
        self.primary.parts().1.control(NOW, &mut self.memory, client, request, &mut Vec::new())
    }
    fn get(&mut self, client: ClientId, name: &str, lock_type: LockType) -> LockGrant {
        let request = ControlRequest::GetLocks(vec![desc(name, lock_type)]);
        match self.control(client, request) {
            ControlReply::Locks(locks) => locks[0].unwrap(),
            other => panic!("{other:?}"),
        }
    }
    fn command(&mut self, client: ClientId, request: Request) -> Vec<Sent> {
        self.seq += 1;
        let mut out = Vec::new();
        let seq = Seq(self.seq);
        self.primary.parts().1.command(NOW, &mut self.memory, client, seq, request, &mut out);
        out
    }
    fn check(&mut self, client: ClientId, word_op: WordOp) -> Result<(), Status> {
        let chain = Chain::one(word_op);
        self.primary.parts().1.check_chain(NOW, &mut self.memory, client, &chain).map(|_| ())
    }
    fn attach(&mut self, client: ClientId, fabric: FabricKind) -> Vec<Sent> {
        let mut out = Vec::new();
        self.primary.parts().1.attached(NOW, &mut self.memory, client, fabric, &mut out);
        out
    }
    fn fence(&mut self, client: ClientId) -> Vec<Sent> {
        let sent = |effect| match effect {
            Effect::Send(sent) => Some(sent),
            _ => None,
        };
        self.handle(Event::removes(client)).into_iter().filter_map(sent).collect()
    }
}

fn init(version_min: u8, version_max: u8, tp_mode: u8) -> ControlRequest {
    ControlRequest::Init {
        version_min,
        version_max,
        tp_mode,
        horizon_s: HORIZON_FOREVER,
        about: About::NOTHING,
    }
}

fn reinit(client: ClientId, secret: u8) -> ControlRequest {
    let secret = Secret([secret; 16]);
    ControlRequest::Reinit {
        version_min: 1,
        version_max: 1,
        tp_mode: 0,
        horizon_s: HORIZON_FOREVER,
        client,
        secret,
        about: About::NOTHING,
    }
}

fn desc(name: &str, lock_type: LockType) -> LockDesc {
    LockDesc { name: name.as_bytes().to_vec(), lock_type, lease_s: 0, tokens: false }
}

fn w0(grant: &LockGrant) -> WordAddr {
    WordAddr::new(grant.slot, Word::W0)
}

fn wait(grant: &LockGrant, mode: Mode) -> Request {
    let wait = WaitNumber(1);
    Request::Wait { handle: grant.handle, mode, lease: Lease::secs(30), wait, ticket: None }
}

#[test]
fn a_client_comes_back_only_with_its_own_secret() {
    let mut w = World::new();
    let a = w.client();
    assert_eq!(w.admit(&reinit(a, 8)), Err(Status::Error));
    assert_eq!(w.admit(&reinit(a, 7)), Ok(a));
    let nobody = ClientId::new(99).unwrap();
    assert_eq!(w.admit(&reinit(nobody, 7)), Err(Status::ClientRemoved));
    assert_eq!(w.control(a, ControlRequest::ReinitDone), ControlReply::Done);
    let again = w.control(a, ControlRequest::ReinitDone);
    assert_eq!(again, ControlReply::Error(Status::Error));
}

#[test]
fn what_a_fenced_client_held_goes_to_the_next_in_line() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let (ga, gb) = (w.get(a, "l", LockType::Rw), w.get(b, "l", LockType::Rw));
    w.memory.set(w0(&ga), RwWord::new().with_client(a.get()).into_bits());
    assert!(w.command(b, wait(&gb, Mode::Shared)).is_empty(), "it waits");
    let out = w.fence(a);
    assert!(matches!(out[..], [Sent { client, reply: Reply::Granted { .. }, .. }] if client == b));
    assert_eq!(w.memory.read(w0(&gb)), RwWord::new().with_rcount(1).into_bits());
}

/// The thief read the word before the first waiter came.
#[test]
fn who_takes_an_expired_hold_over_does_not_pass_the_queue() {
    let mut w = World::new();
    let all = [w.client(), w.client(), w.client()];
    let [ga, gb, gc] = all.map(|client| w.get(client, "l", LockType::Atomic));
    let [a, b, c] = all;
    let held = AtomicWord::new().with_client(a.get());
    w.memory.set(w0(&ga), held.with_timeout(Deadline::at_s(5_001)).into_bits());
    assert!(w.command(b, wait(&gb, Mode::Exclusive)).is_empty(), "it waits");
    w.memory.set(w0(&ga), held.with_timeout(Deadline::at_s(4_990)).with_waiters(true).into_bits());
    let out = w.command(
        c,
        Request::Steal { handle: gc.handle, mode: Mode::Exclusive, lease: Lease::secs(30) },
    );
    let to = |client, is: fn(&Reply) -> bool| {
        out.iter().any(|sent| sent.client == client && is(&sent.reply))
    };
    assert!(to(c, |reply| matches!(reply, Reply::Denied { .. })), "{out:?}");
    assert!(to(b, |reply| matches!(reply, Reply::Granted { .. })), "{out:?}");
    assert_eq!(AtomicWord::from_bits(w.memory.read(w0(&gb))).client(), b.get());
}

#[test]
fn a_reader_that_died_half_way_is_recounted() {
    for (state, count_before) in [
        (LedgerState::Intent, 2),
        (LedgerState::Intent, 1),
        (LedgerState::Leaving, 2),
        (LedgerState::Leaving, 1),
    ] {
        let mut w = World::new();
        let (dead, reader) = (w.client(), w.client());
        let (gd, gr) = (w.get(dead, "l", LockType::Rw), w.get(reader, "l", LockType::Rw));
        w.memory.set(w0(&gd), RwWord::new().with_rcount(count_before).into_bits());
        let half_way = LedgerEntry::new().with_state(state);
        w.memory.ledgers.insert((dead, gd.handle), half_way);
        let held = LedgerEntry::new().with_state(LedgerState::HeldShared);
        w.memory.ledgers.insert((reader, gr.handle), held);
        w.fence(dead);
        assert_eq!(w.memory.read(w0(&gr)), RwWord::new().with_rcount(1).into_bits(), "{state:?}");
    }
}

#[test]
fn a_recount_waits_for_a_live_client_that_is_half_way() {
    let mut w = World::new();
    let (dead, live) = (w.client(), w.client());
    let (gd, gl) = (w.get(dead, "l", LockType::Rw), w.get(live, "l", LockType::Rw));
    w.memory.set(w0(&gd), RwWord::new().with_rcount(2).into_bits());
    let intent = LedgerEntry::new().with_state(LedgerState::Intent);
    w.memory.ledgers.insert((dead, gd.handle), intent);
    w.memory.ledgers.insert((live, gl.handle), intent);
    w.fence(dead);
    let word = RwWord::from_bits(w.memory.read(w0(&gl)));
    assert!(word.waiters(), "new arrivals are diverted meanwhile");
    let held = LedgerEntry::new().with_state(LedgerState::HeldShared);
    w.memory.ledgers.insert((live, gl.handle), held);
    let due = w.primary.parts().1.next_wakeup().unwrap();
    w.primary.parts().1.tick(due, &mut w.memory, &mut Vec::new());
    assert_eq!(w.memory.read(w0(&gl)), RwWord::new().with_rcount(1).into_bits());
}

#[test]
fn a_request_that_is_sent_again_is_not_executed_again() {
    let mut w = World::new();
    let a = w.client();
    let g = w.get(a, "l", LockType::Atomic);
    assert_eq!(w.command(a, wait(&g, Mode::Exclusive)).len(), 1);
    w.seq -= 1;
    assert!(w.command(a, wait(&g, Mode::Exclusive)).is_empty());
    w.attach(a, FabricKind::Shm);
    w.seq = 0;
    let ping = w.command(a, Request::Ping);
    assert!(matches!(ping[..], [Sent { reply: Reply::Pong { .. }, .. }]));
}

#[test]
fn a_handle_that_is_not_the_clients_own_is_refused() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let g = w.get(a, "l", LockType::Atomic);
    let out = w.command(b, wait(&g, Mode::Exclusive));
    assert!(matches!(out[0].reply, Reply::Denied { status: Status::LockNotGet, .. }));
    assert_eq!(w.check(b, WordOp::Read { addr: w0(&g) }), Err(Status::LockNotGet));
    let forged = WordOp::WriteLedger { handle: Handle(77), value: 1 };
    assert_eq!(w.check(b, forged), Err(Status::LockNotGet));
}

#[test]
fn a_chain_changes_an_atomic_word_only_as_its_client_may() {
    let mut w = World::new();
    let a = w.client();
    let g = w.get(a, "l", LockType::Atomic);
    let addr = w0(&g);
    let cas = |expect: AtomicWord, swap: AtomicWord| WordOp::Cas {
        addr,
        expect: expect.into_bits(),
        swap: swap.into_bits(),
    };
    let free = AtomicWord::new();
    let of = |client: u32, timeout| AtomicWord::new().with_client(client).with_timeout(timeout);
    let (mine, theirs) = (of(a.get(), Deadline::at_s(5_100)), of(999, Deadline::at_s(5_100)));
    assert_eq!(w.check(a, cas(free, mine)), Ok(()));
    assert_eq!(w.check(a, cas(mine, free)), Ok(()));
    assert_eq!(w.check(a, cas(mine, of(a.get(), Deadline::at_s(6_000)))), Ok(()));
    assert_eq!(w.check(a, cas(of(999, Deadline::at_s(4_999)), mine)), Ok(()), "expired");
    for forged in [
        cas(free, theirs),
        cas(mine, of(a.get(), Deadline::at_s(5_099))),
        cas(theirs, mine),
        cas(theirs, free),
        cas(of(999, Deadline::at_s(5_000)), mine),
        cas(of(999, Deadline::at_s(4_999)).with_waiters(true), mine),
        cas(of(999, Deadline::at_s(4_999)).with_waiters(true), mine.with_waiters(true)),
        cas(mine.with_waiters(true), free),
        cas(free, mine.with_waiters(true)),
        WordOp::Faa { addr, add: 1 },
        WordOp::Cas { addr: WordAddr::new(g.slot, Word::Gen), expect: 0, swap: 1 },
    ] {
        assert_eq!(w.check(a, forged), Err(Status::Invalid), "{forged:?}");
    }
}

#[test]
fn recovery_counts_clients_and_not_messages() {
    let mut w = World::with(2);
    assert_eq!(w.admit(&init(1, 1, 0)), Err(Status::NotReady));
    let (a, b) = (ClientId::new(5).unwrap(), ClientId::new(6).unwrap());
    for _ in 0..3 {
        assert_eq!(w.admit(&reinit(a, 7)), Ok(a));
        assert_eq!(w.control(a, ControlRequest::ReinitDone), ControlReply::Done);
    }
    assert!(w.primary.parts().1.is_recovering());
    let late = w.control(a, ControlRequest::UpdateLocks(Vec::new()));
    assert_eq!(late, ControlReply::Error(Status::Error), "it has said that it has told all");
    let heartbeat = w.control(a, ControlRequest::Heartbeat);
    let told = match heartbeat {
        ControlReply::Alive { recovering: true, recovery, .. } => recovery,
        other => panic!("{other:?}"),
    };
    assert_eq!(told, Told { told: 1, of: 2 }, "who waits is told how far it is");
    assert_eq!(w.admit(&reinit(b, 7)), Ok(b));
    assert_eq!(w.control(b, ControlRequest::ReinitDone), ControlReply::Done);
    assert!(!w.primary.parts().1.is_recovering());
}

/// The client's claims were undone, and other clients may have claimed the same locks since then.
/// So the client must not go on as if its claims had been accepted.
#[test]
fn who_was_fenced_in_a_recovery_is_not_adopted_again_and_not_waited_for() {
    let mut w = World::with(3);
    let [a, b, c] = [5, 6, 7].map(|id| ClientId::new(id).unwrap());
    for client in [a, b] {
        assert_eq!(w.admit(&reinit(client, 7)), Ok(client));
    }
    assert_eq!(w.control(a, ControlRequest::ReinitDone), ControlReply::Done);
    w.fence(a);
    w.fence(b);
    for client in [a, b] {
        assert_eq!(w.admit(&reinit(client, 7)), Err(Status::ClientRemoved));
    }
    assert!(w.primary.parts().1.is_recovering(), "the third has told nothing yet");
    assert_eq!(w.admit(&reinit(c, 7)), Ok(c));
    assert_eq!(w.control(c, ControlRequest::ReinitDone), ControlReply::Done);
    assert!(!w.primary.parts().1.is_recovering());
}

/// After a lost answer the arbiter clears the ledger entry, which then looks as if the client had
/// nothing but its claimed share.
#[test]
fn a_claimed_share_that_was_given_back_is_not_undone_by_a_later_resolve() {
    let mut w = World::with(2);
    let [a, b] = [5, 6].map(|id| ClientId::new(id).unwrap());
    let held = Some(HeldClaim::hold(Mode::Shared, u64::MAX));
    let claim = Claim { lock: LockId(9), desc: desc("l", LockType::Rw), held };
    let [grant, other] = [a, b].map(|client| {
        assert_eq!(w.admit(&reinit(client, 7)), Ok(client));
        let update = ControlRequest::UpdateLocks(vec![claim.clone()]);
        let ControlReply::Locks(locks) = w.control(client, update) else { panic!() };
        locks[0].unwrap()
    });
    for client in [a, b] {
        assert_eq!(w.control(client, ControlRequest::ReinitDone), ControlReply::Done);
        assert_eq!(w.attach(client, FabricKind::Shm), []);
    }
    assert_eq!(RwWord::from_bits(w.memory.read(w0(&other))).rcount(), 2);
    // client a gives its share back and takes it again, so that the count is as before, and the
    // answer is lost
    let intent = LedgerEntry::new().with_state(LedgerState::Intent).with_detail(4);
    w.memory.ledgers.insert((a, grant.handle), intent);
    for _ in 0..2 {
        let out = w.command(a, Request::Resolve { handle: grant.handle });
        assert!(matches!(out[..], [Sent { reply: Reply::Done { .. }, .. }]), "{out:?}");
        assert_eq!(RwWord::from_bits(w.memory.read(w0(&grant))).rcount(), 1, "b holds it");
    }
}

/// The library of the C API forgets the client with any answer to `Deinit`.
#[test]
fn a_client_that_leaves_while_the_primary_recovers_is_refused_and_not_waited_for() {
    let mut w = World::with(1);
    let a = ClientId::new(5).unwrap();
    assert_eq!(w.admit(&reinit(a, 7)), Ok(a));
    let request = ControlRequest::Deinit;
    let effects = w.handle(Event::Control { client: a, control: 1, request });
    let reply = ControlReply::Error(Status::NotReady);
    assert!(effects.contains(&Effect::Answer { control: 1, reply }), "{effects:?}");
    w.handle(Event::Upkeep { budget: u32::MAX });
    assert!(!w.locks().is_recovering());
}

#[test]
fn claims_are_refused_by_a_ready_primary_and_change_nothing() {
    let mut w = World::new();
    let a = w.client();
    let update = w.control(a, ControlRequest::UpdateLocks(Vec::new()));
    assert_eq!(update, ControlReply::Error(Status::Error));
}

#[test]
fn a_deinit_keeps_the_clients_objects_for_others() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let name = b"o".to_vec();
    let create =
        ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(5), init: 3 };
    assert!(matches!(w.control(a, create), ControlReply::Created(_)));
    assert_eq!(w.control(a, ControlRequest::Deinit), ControlReply::Done);
    w.fence(a);
    let ControlReply::Object(grant) =
        w.control(b, ControlRequest::ObjectGet { name, lease: Lease::secs(5) })
    else {
        panic!("the object is gone")
    };
    assert_eq!(w.memory.read(WordAddr::new(grant.slot, Word::W0)), 3);
    assert_eq!(w.control(b, ControlRequest::ObjectDestroy(grant.object)), ControlReply::Done);
}

#[test]
fn a_lock_that_everybody_released_is_gone() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let (ga, _) = (w.get(a, "l", LockType::Atomic), w.get(b, "l", LockType::Atomic));
    for client in [a, b] {
        let release = w.control(client, ControlRequest::ReleaseLocks(vec![ga.lock]));
        assert_eq!(release, ControlReply::Statuses(vec![Status::Success]));
    }
    assert_eq!(w.primary.parts().1.totals(), (2, 0, 0));
    let again = w.control(a, ControlRequest::ReleaseLocks(vec![ga.lock, LockId(-1)]));
    assert_eq!(again, ControlReply::Statuses(vec![Status::Error; 2]));
}

#[test]
fn a_chain_changes_rw_and_fair_words_only_as_its_client_may() {
    let mut w = World::new();
    let a = w.client();
    let (rw, fair) = (w.get(a, "r", LockType::Rw), w.get(a, "f", LockType::Fair));
    let me = RwWord::new().with_client(a.get());
    let cas = |addr, expect, swap| WordOp::Cas { addr, expect, swap };
    let w1 = WordAddr::new(fair.slot, Word::W1);
    let passes = |old: TurnWord, new: TurnWord| cas(w1, old.into_bits(), new.into_bits());
    let (first, x, s) = (TurnWord::new(), Mode::Exclusive, Mode::Shared);
    let ok = [
        cas(w0(&rw), 0, me.into_bits()),
        cas(w0(&rw), me.with_rcount(2).into_bits(), RwWord::new().with_rcount(2).into_bits()),
        WordOp::Faa { addr: w0(&rw), add: 1 },
        WordOp::Faa { addr: w0(&fair), add: TakenWord::TAKE_SHARED },
        passes(first, first.done(x)),
        passes(first.with_parked(true), first.with_parked(true).done(s)),
    ];
    let forged = [
        cas(w0(&rw), 0, RwWord::new().with_client(999).into_bits()),
        cas(w0(&rw), me.into_bits(), RwWord::new().with_rcount(5).into_bits()),
        cas(w0(&rw), me.with_waiters(true).into_bits(), 0),
        cas(w0(&rw), RwWord::new().with_client(999).into_bits(), 0),
        WordOp::Faa { addr: w0(&rw), add: 2 },
        WordOp::Faa { addr: w0(&rw), add: u64::MAX },
        WordOp::Faa { addr: w0(&fair), add: 3 },
        cas(w0(&fair), 0, TakenWord::TAKE_SHARED),
        WordOp::Faa { addr: w1, add: 1 },
        passes(first, first),
        passes(first, first.with_parked(true)),
        passes(first, first.with_told(true)),
        passes(first.done(x), first),
        passes(first, first.done(x).done(x)),
        passes(first, first.done(x).done(s)),
        passes(first.with_told(true), first.with_told(true).done(x)),
    ];
    for word_op in ok {
        assert_eq!(w.check(a, word_op), Ok(()), "{word_op:?}");
    }
    for word_op in forged {
        assert_eq!(w.check(a, word_op), Err(Status::Invalid), "{word_op:?}");
    }
    let full = RwWord::new().with_rcount(u32::MAX);
    w.memory.set(w0(&rw), full.into_bits());
    let carry = WordOp::Faa { addr: w0(&rw), add: 1 };
    assert_eq!(w.check(a, carry), Err(Status::Invalid), "it would make an owner");
}

#[test]
fn what_a_tcp_client_fails_at_is_counted() {
    let mut w = World::new();
    let a = w.client();
    let (atomic, rw) = (w.get(a, "l", LockType::Atomic), w.get(a, "r", LockType::Rw));
    let fair = w.get(a, "f", LockType::Fair);
    let mut counted = |verbs: &[WordOp], olds: &[u64]| {
        let chain =
            verbs[1..].iter().fold(Chain::one(verbs[0]), |chain, word_op| chain.then(*word_op));
        let mut values = Values::new();
        olds.iter().for_each(|&old| values.push(old));
        w.primary.parts().1.clear_stats(&mut w.memory);
        w.primary.parts().1.count_chain(NOW, a, &chain, &values);
        let stats = stats(w.primary.parts().1, &mut w.memory);
        assert!(stats.iter().sum::<u64>() <= 1, "{stats:?}");
        stats.iter().position(|&count| count == 1)
    };
    let faa = |slot, add| WordOp::Faa { addr: w0(slot), add };
    // the turn and the lap are what the chain reads last
    let w1 = WordAddr::new(fair.slot, Word::W1);
    let taken = TakenWord::new().with_mx(1).into_bits();
    let readers = TakenWord::new().with_ms(5).into_bits();
    let takes = |mode| [faa(&fair, TakenWord::addend(mode)), WordOp::ReadPair { addr: w1 }];
    let (exclusive, shared) = (takes(Mode::Exclusive), takes(Mode::Shared));
    assert_eq!(counted(&exclusive, &[0, 0, 0]), None);
    assert_eq!(counted(&exclusive, &[taken, 0, 0]), Some(0), "EAGAIN");
    assert_eq!(counted(&shared, &[taken, 0, 0]), Some(0), "EAGAIN");
    assert_eq!(counted(&shared, &[readers, 0, 0]), None);
    let (held, passed) = (TurnWord::new(), TurnWord::new().with_nx(1));
    let swap = held.done(Mode::Exclusive).into_bits();
    let release = WordOp::Cas { addr: w1, expect: held.into_bits(), swap };
    let is_passed = counted(&[release], &[passed.into_bits()]);
    assert_eq!(is_passed, Some(22), "a release of a passed ticket");
    assert_eq!(counted(&[release], &[held.with_told(true).into_bits()]), None, "one sleeps");

    let word = |client: u32, timeout| {
        AtomicWord::new().with_client(client).with_timeout(timeout).into_bits()
    };
    let (mine, longer, theirs) = (
        word(a.get(), Deadline::at_s(6_000)),
        word(a.get(), Deadline::at_s(7_000)),
        word(999, Deadline::at_s(6_000)),
    );
    let cas = |expect, swap| WordOp::Cas { addr: w0(&atomic), expect, swap };
    assert_eq!(counted(&[cas(mine, 0)], &[mine]), None);
    assert_eq!(counted(&[cas(mine, 0)], &[theirs]), Some(15), "a release of a stolen lock");
    assert_eq!(counted(&[cas(mine, longer)], &[theirs]), Some(16), "an extend of a stolen lock");
    assert_eq!(counted(&[cas(mine, longer)], &[longer]), None, "its own word");
    assert_eq!(counted(&[cas(0, mine)], &[theirs]), Some(14), "an acquire of a held lock");
    assert_eq!(
        counted(&[cas(0, mine)], &[word(999, Deadline::at_s(1))]),
        None,
        "it is taken over next"
    );
    assert_eq!(
        counted(&[cas(word(999, Deadline::at_s(1)), mine)], &[0]),
        None,
        "it is free, and taken next"
    );

    let note = WordOp::WriteLedger { handle: rw.handle, value: 0 };
    let (owned, free) = (RwWord::new().with_client(999).into_bits(), 0);
    let (add, less) = (faa(&rw, 1), faa(&rw, u64::MAX));
    let cas = |expect, swap| WordOp::Cas { addr: w0(&rw), expect, swap };
    let mine = RwWord::new().with_client(a.get()).into_bits();
    assert_eq!(counted(&[cas(0, mine)], &[owned]), Some(17), "an exclusive acquire");
    assert_eq!(counted(&[cas(mine, 0)], &[owned]), Some(18), "an exclusive release");
    assert_eq!(counted(&[note, add], &[0, owned]), Some(19), "a shared acquire");
    assert_eq!(counted(&[note, add], &[0, free]), None);
    assert_eq!(counted(&[less, note], &[1, 0]), None, "a step back");
    assert_eq!(counted(&[note, less, note], &[0, 1, 0]), None);
    assert_eq!(counted(&[note, less, note], &[0, 0, 0]), Some(20), "a shared release");
    assert_eq!(counted(&[add], &[owned]), None, "a correction");
}
