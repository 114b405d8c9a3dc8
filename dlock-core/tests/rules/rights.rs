// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rights at every kind of request of the primary: what no rule gives is refused, and what a rule
//! gives is allowed.

use crate::common::Memory;
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch, Handle, Identity, LockId, Seq};
use dlock_core::locks::{Known, PrimaryConfig};
use dlock_core::membership::{Caller, Draws, Joining, Opened, Rules};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, RwWord, TakenWord};
use dlock_core::primary::{Effect, Event, Primary};
use dlock_core::rights::{Quotas, Right, Rights, Rule};
use dlock_core::token::TokenFloor;
use dlock_core::wire::about::About;
use dlock_core::wire::control::{
    Attach, Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc, LockGrant,
    Secret, HORIZON_FOREVER, VERSION,
};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

const NOW: ServerTime = ServerTime(5_000 * NS);
const READER: &str = "DNS:reader";
const WRITER: &str = "DNS:writer";

fn rule(name: &str, prefix: &str, rights: &[Right], quotas: Quotas) -> Rule {
    let rights: Rights = rights.iter().copied().collect();
    Rule { names: vec![name.into()], prefixes: vec![prefix.into()], rights, quotas }
}

/// `READER` may share what begins with "r/", `WRITER` may lock what begins with "w/" or "r/".
fn rules() -> Vec<Rule> {
    let none = Quotas::default();
    vec![
        rule(READER, "r/", &[Right::LockShared], none),
        rule(WRITER, "w/", &[Right::LockExclusive, Right::Objects], none),
        rule(WRITER, "r/", &[Right::LockExclusive], none),
    ]
}

struct World {
    primary: Primary,
    memory: Memory,
    drawn: u32,
    seq: u64,
}

impl World {
    fn new(rules: Vec<Rule>, recovery_clients: u32) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            tp_mode: 0,
            recovery_clients,
            clients_max: 8,
            locks_max: 64,
            objects_max: 8,
            absent_grace_ns: None,
            tokens: TokenFloor::default(),
        };
        let primary = Primary::new(config.clone(), Rules::of(&config));
        let mut world = Self { primary, memory: Memory::default(), drawn: 10, seq: 0 };
        world.handle(Event::Rules(rules));
        world
    }

    /// Hands an event to the primary, and returns the last effect.
    fn handle(&mut self, event: Event) -> Option<Effect> {
        self.primary.handle(NOW, &mut self.memory, event);
        std::iter::from_fn(|| self.primary.poll()).last()
    }

    fn open(&mut self, request: &ControlRequest, name: &str) -> Result<ClientId, Status> {
        self.drawn += 1;
        let drawn = self.drawn;
        let names = vec![name.to_string()];
        let mut bytes = [0; 32];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let identity = Some(Identity(bytes));
        let caller = Caller { control: u64::from(drawn), identity, names };
        let draws = Draws { secret: Secret([7; 16]), numbers: [drawn; 6] };
        match self.handle(Event::Open { request: request.clone(), caller, draws }) {
            Some(Effect::Opened { opened: Ok(Opened::Admitted(admitted)), .. }) => {
                let (client, Self { primary, memory, .. }) = (admitted.client, self);
                let (_, locks) = primary.parts();
                locks.attached(NOW, memory, client, FabricKind::Tcp, &mut Vec::new());
                Ok(client)
            }
            Some(Effect::Opened { opened: Err(status), .. }) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    fn join(&mut self, name: &str) -> Result<ClientId, Status> {
        let init = ControlRequest::Init {
            version_min: 1,
            version_max: VERSION,
            tp_mode: 0,
            horizon_s: HORIZON_FOREVER,
            about: About::NOTHING,
        };
        self.open(&init, name)
    }

    fn control(&mut self, client: ClientId, request: ControlRequest) -> ControlReply {
        self.primary.parts().1.control(NOW, &mut self.memory, client, request, &mut Vec::new())
    }

    fn get(&mut self, client: ClientId, name: &str, kind: LockType) -> Result<LockGrant, Status> {
        match self.control(client, ControlRequest::GetLocks(vec![desc(name, kind)])) {
            ControlReply::Locks(locks) => locks[0],
            other => panic!("{other:?}"),
        }
    }

    fn may(&mut self, client: ClientId, word_op: WordOp) -> Result<bool, Status> {
        self.primary.parts().1.check_chain(NOW, &mut self.memory, client, &Chain::one(word_op))
    }

    fn ask(&mut self, client: ClientId, request: Request) -> Option<Reply> {
        self.seq += 1;
        let (seq, mut out) = (Seq(self.seq), Vec::new());
        self.primary.parts().1.command(NOW, &mut self.memory, client, seq, request, &mut out);
        out.into_iter().find(|sent| sent.client == client && sent.seq == seq).map(|sent| sent.reply)
    }
}

fn desc(name: &str, lock_type: LockType) -> LockDesc {
    LockDesc { name: name.into(), lock_type, lease_s: 0, tokens: false }
}

fn wait(handle: Handle, mode: Mode) -> Request {
    Request::Wait { handle, mode, lease: Lease::secs(9), wait: WaitNumber(1), ticket: None }
}

const DENIED: Option<Reply> = Some(Reply::Denied { status: Status::Denied, word: 0 });

fn reinit(client: ClientId, secret: Secret) -> ControlRequest {
    let (version_min, version_max, tp_mode, horizon_s) = (1, VERSION, 0, HORIZON_FOREVER);
    let about = About::NOTHING;
    ControlRequest::Reinit { version_min, version_max, tp_mode, horizon_s, client, secret, about }
}

#[test]
fn who_no_rule_names_is_not_let_in_and_the_others_are() {
    let mut world = World::new(rules(), 0);
    assert_eq!(world.join("DNS:stranger"), Err(Status::Denied));
    assert!(world.join(READER).is_ok() && world.join(WRITER).is_ok());
    assert_eq!(world.primary.parts().1.take_refusals().len(), 1);
}

#[test]
fn locks_are_got_by_the_prefixes_of_their_names() {
    let mut world = World::new(rules(), 0);
    let (reader, writer) = (world.join(READER).unwrap(), world.join(WRITER).unwrap());
    assert!(world.get(reader, "r/1", LockType::Rw).is_ok());
    assert_eq!(world.get(reader, "w/1", LockType::Rw), Err(Status::Denied));
    assert_eq!(world.get(reader, "r", LockType::Rw), Err(Status::Denied));
    assert!(world.get(writer, "w/1", LockType::Atomic).is_ok());
    let told = world.primary.parts().1.take_refusals();
    assert!(told[0].to_string().contains("the right get on \"w/1\""), "{told:?}");
    // a denied lock of a batch does not affect the others
    let both = vec![desc("r/2", LockType::Rw), desc("x", LockType::Rw)];
    match world.control(reader, ControlRequest::GetLocks(both)) {
        ControlReply::Locks(locks) => {
            assert!(locks[0].is_ok() && locks[1] == Err(Status::Denied), "{locks:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_for_as_much_as_it_may_gets_no_ticket_from_the_primary() {
    let quotas = Quotas { waits_max: Some(1), ..Quotas::default() };
    let rights = [Right::LockExclusive];
    let mut world = World::new(vec![rule("*", "", &rights, quotas)], 0);
    let (one, other) = (world.join(READER).unwrap(), world.join(WRITER).unwrap());
    let fair = world.get(one, "f", LockType::Fair).unwrap().handle;
    let take = Request::TakeTicket { handle: fair, mode: Mode::Exclusive, lease: Lease::secs(9) };
    let held = world.get(other, "r", LockType::Rw).unwrap().handle;
    let held = world.ask(other, wait(held, Mode::Exclusive));
    assert!(matches!(held, Some(Reply::Granted { .. })), "{held:?}");
    let waited_for = world.get(one, "r", LockType::Rw).unwrap().handle;
    assert_eq!(world.ask(one, wait(waited_for, Mode::Exclusive)), None, "it waits");
    let refused = Some(Reply::Denied { status: Status::ServerNoResource, word: 0 });
    assert_eq!(world.ask(one, take), refused);
    let cancel = Request::Cancel { handle: waited_for, wait: WaitNumber(1) };
    assert!(matches!(world.ask(one, cancel), Some(Reply::Done { .. })));
    assert!(matches!(world.ask(one, take), Some(Reply::Done { .. })), "it takes one itself");
}

#[test]
fn objects_need_their_right() {
    let mut world = World::new(rules(), 0);
    let (reader, writer) = (world.join(READER).unwrap(), world.join(WRITER).unwrap());
    let create = |name: &str| ControlRequest::ObjectCreate {
        name: name.into(),
        lease: Lease::secs(9),
        init: 5,
    };
    let get = |name: &str| ControlRequest::ObjectGet { name: name.into(), lease: Lease::secs(9) };
    let denied = ControlReply::Error(Status::Denied);
    assert_eq!(world.control(reader, create("r/o")), denied);
    assert_eq!(world.control(writer, create("r/o")), denied);
    let ControlReply::Created(object) = world.control(writer, create("w/o")) else {
        panic!("it may");
    };
    assert_eq!(world.control(reader, get("w/o")), denied);
    assert_eq!(world.control(reader, ControlRequest::ObjectDestroy(object)), denied);
    let ControlReply::Object(grant) = world.control(writer, get("w/o")) else { panic!("it may") };
    let addr = WordAddr::new(grant.slot, Word::W0);
    assert!(world.may(writer, WordOp::Faa { addr, add: 1 }).is_ok());
    // the handle that the client has already got gives it no right to use the object
    world.primary.parts().1.set_rules(vec![rule(WRITER, "w/", &[Right::Get], Quotas::default())]);
    for word_op in [WordOp::Read { addr }, WordOp::Faa { addr, add: 1 }] {
        assert_eq!(world.may(writer, word_op), Err(Status::Denied));
    }
    let release = ControlRequest::ObjectRelease(object);
    assert_eq!(world.control(writer, release), ControlReply::Done);
}

#[test]
fn new_rules_end_no_hold_and_let_nobody_lock_again() {
    let mut world = World::new(rules(), 0);
    let writer = world.join(WRITER).unwrap();
    let grant = world.get(writer, "w/1", LockType::Atomic).unwrap();
    let addr = WordAddr::new(grant.slot, Word::W0);
    let word =
        |timeout| AtomicWord::new().with_client(writer.get()).with_timeout(timeout).into_bits();
    let take = WordOp::Cas { addr, expect: 0, swap: word(Deadline::at_s(9_000)) };
    assert!(world.may(writer, take).is_ok());
    world.primary.parts().1.set_rules(rules().into_iter().take(1).collect());
    assert_eq!(world.may(writer, take), Err(Status::Denied));
    let extend = WordOp::Cas {
        addr,
        expect: word(Deadline::at_s(9_000)),
        swap: word(Deadline::at_s(9_900)),
    };
    assert_eq!(world.may(writer, extend), Err(Status::Denied));
    let release = WordOp::Cas { addr, expect: word(Deadline::at_s(9_000)), swap: 0 };
    assert!(world.may(writer, release).is_ok());
    let released = world.control(writer, ControlRequest::ReleaseLocks(vec![grant.lock]));
    assert_eq!(released, ControlReply::Statuses(vec![Status::Success]));
}

#[test]
fn a_claim_needs_the_right_to_what_it_claims() {
    let mut world = World::new(rules(), 2);
    let clients = [(READER, 1), (WRITER, 2)].map(|(name, id)| {
        let (client, secret) = (ClientId::new(id).unwrap(), Secret([7; 16]));
        let back = reinit(client, secret);
        (back, name, client)
    });
    for (back, name, id) in &clients {
        assert_eq!(world.open(back, name), Ok(*id));
    }
    let claim = |mode| {
        let held = HeldClaim::hold(mode, 0);
        Claim { lock: LockId(1), desc: desc("r/1", LockType::Rw), held: Some(held) }
    };
    let mut claims = |client, mode| match world
        .control(client, ControlRequest::UpdateLocks(vec![claim(mode)]))
    {
        ControlReply::Locks(locks) => locks[0].map(drop),
        other => panic!("{other:?}"),
    };
    let (reader, writer) = (clients[0].2, clients[1].2);
    assert_eq!(claims(reader, Mode::Exclusive), Err(Status::Denied));
    assert_eq!(claims(reader, Mode::Shared), Ok(()));
    assert_eq!(claims(writer, Mode::Shared), Err(Status::Denied));
    assert_eq!(claims(writer, Mode::Exclusive), Ok(()));
    // an atomic lock has one mode, and a ticket is a claim, too
    let mut claimed = |client, name, kind, held| {
        let claim = Claim { lock: LockId(2), desc: desc(name, kind), held: Some(held) };
        match world.control(client, ControlRequest::UpdateLocks(vec![claim])) {
            ControlReply::Locks(locks) => locks[0].map(drop),
            other => panic!("{other:?}"),
        }
    };
    let shared = HeldClaim::hold(Mode::Shared, 0);
    assert_eq!(claimed(reader, "r/2", LockType::Atomic, shared), Err(Status::Denied));
    let queued = HeldClaim { is_queued: true, ..HeldClaim::hold(Mode::Exclusive, 0) };
    assert_eq!(claimed(reader, "r/3", LockType::Fair, queued), Err(Status::Denied));
}

/// A successor with other rules admits the clients of its predecessor, and refuses claims that its
/// rules do not allow. If it did not admit them, the recovery would wait for them without end.
#[test]
fn new_rules_do_not_keep_a_client_of_the_predecessor_out() {
    let quotas = Quotas { clients_max: Some(0), ..Quotas::default() };
    let mut world = World::new(vec![rule(WRITER, "", &[Right::LockExclusive], quotas)], 0);
    let identity = |name: &str| {
        let mut bytes = [0; 32];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Identity(bytes))
    };
    let (client_of, secret) = (|id| ClientId::new(id).unwrap(), Secret([7; 16]));
    let known = [(READER, 1), (WRITER, 2)].map(|(name, id)| Known {
        client: client_of(id),
        secrets: [secret; 3],
        identity: identity(name),
        horizon_s: 0,
        has_locks: true,
    });
    world.primary.parts().1.awaits(NOW, &known, 30);
    let back = |id| reinit(client_of(id), secret);
    assert_eq!(world.open(&back(1), WRITER), Err(Status::Error), "of another");
    assert_eq!(world.open(&back(3), READER), Err(Status::ClientRemoved), "unknown");
    for (name, id) in [(READER, 1), (WRITER, 2)] {
        assert_eq!(world.open(&back(id), name), Ok(client_of(id)));
        let held = Some(HeldClaim::hold(Mode::Exclusive, 0));
        let lock = Claim { lock: LockId(5), desc: desc("l", LockType::Atomic), held };
        let claimed = world.control(client_of(id), ControlRequest::UpdateLocks(vec![lock]));
        let ControlReply::Locks(locks) = claimed else { panic!("{claimed:?}") };
        assert_eq!(locks[0].err(), (name == READER).then_some(Status::Denied));
        world.control(client_of(id), ControlRequest::ReinitDone);
    }
    assert!(!world.primary.parts().1.is_recovering());
    assert_eq!(world.join(READER), Err(Status::Denied), "no new one");
    assert_eq!(world.join(WRITER), Err(Status::ServerNoResource), "no new one");
}

/// At a successor: the clients are back, and each lock is claimed once.
#[test]
fn an_identity_claims_no_more_locks_than_it_may_have() {
    let quotas = Quotas { locks_max: Some(2), ..Quotas::default() };
    let all = [Right::LockExclusive];
    let rules = vec![rule(READER, "", &all, quotas), rule(WRITER, "", &all, Quotas::default())];
    let mut world = World::new(rules, 2);
    for (name, id) in [(READER, 1), (WRITER, 2)] {
        let (client, secret) = (ClientId::new(id).unwrap(), Secret([7; 16]));
        let back = reinit(client, secret);
        assert_eq!(world.open(&back, name), Ok(client));
    }
    let mut claims = |client, locks: std::ops::Range<i32>| {
        let held = Some(HeldClaim::hold(Mode::Exclusive, 0));
        let claim = |n: i32| {
            let desc = desc(&format!("lock {n}"), LockType::Atomic);
            Claim { lock: LockId(n), desc, held }
        };
        let claims = ControlRequest::UpdateLocks(locks.map(claim).collect());
        match world.control(ClientId::new(client).unwrap(), claims) {
            ControlReply::Locks(locks) => locks.iter().filter(|lock| lock.is_ok()).count(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(claims(1, 1..21), 2);
    assert_eq!(claims(1, 1..3), 2, "again");
    assert_eq!(claims(2, 11..31), 20);
    let refused = world.primary.parts().1.take_refusals();
    assert!(refused.iter().all(|refusal| refusal.to_string().contains("locks_max = 2")));
}

#[test]
fn each_quota_refuses_the_next_one_of_all_clients_of_an_identity_together() {
    let all = [Right::LockShared, Right::LockExclusive, Right::Objects];
    let (clients_max, locks_max, objects_max, waits_max) = (Some(2), Some(3), Some(2), Some(1));
    let quotas = Quotas { clients_max, locks_max, objects_max, waits_max };
    let mut world =
        World::new(vec![rule(READER, "", &all, quotas), rule("*", "", &all, Quotas::default())], 0);
    let [one, two] = [(); 2].map(|()| world.join(READER).unwrap());
    assert_eq!(world.join(READER), Err(Status::ServerNoResource));
    let other = world.join("DNS:of another").unwrap();
    let no_more = Err(Status::ServerNoResource);
    // locks
    let first = world.get(one, "1", LockType::Rw).unwrap();
    let same = world.get(two, "1", LockType::Rw).unwrap();
    let second = world.get(one, "2", LockType::Rw).unwrap();
    assert_eq!(world.get(two, "3", LockType::Rw), no_more);
    assert!(world.get(one, "2", LockType::Rw).unwrap().already, "it has that one");
    world.control(two, ControlRequest::ReleaseLocks(vec![same.lock]));
    assert!(world.get(two, "2", LockType::Rw).is_ok());
    assert!((0..9).all(|n| world.get(other, &n.to_string(), LockType::Rw).is_ok()));
    // objects
    let create = |n: u32| ControlRequest::ObjectCreate {
        name: n.to_string().into(),
        lease: Lease::secs(9),
        init: 0,
    };
    let ControlReply::Created(object) = world.control(one, create(1)) else { panic!("room") };
    assert!(matches!(world.control(two, create(2)), ControlReply::Created(_)));
    let refused = ControlReply::Error(Status::ServerNoResource);
    assert_eq!(world.control(two, create(3)), refused);
    let again = world.control(one, create(1));
    assert_eq!(again, ControlReply::Error(Status::ObjectCreated), "it makes none");
    assert!(matches!(world.control(other, create(4)), ControlReply::Created(_)));
    assert_eq!(world.control(one, ControlRequest::ObjectDestroy(object)), ControlReply::Done);
    assert!(matches!(world.control(two, create(3)), ControlReply::Created(_)));
    // waits
    let held = world.get(other, "1", LockType::Rw).unwrap();
    for handle in [held.handle, world.get(other, "2", LockType::Rw).unwrap().handle] {
        assert!(matches!(
            world.ask(other, wait(handle, Mode::Exclusive)),
            Some(Reply::Granted { .. })
        ));
    }
    assert_eq!(world.ask(one, wait(first.handle, Mode::Shared)), None, "it waits");
    let reply = world.ask(one, wait(second.handle, Mode::Shared));
    assert_eq!(reply, Some(Reply::Denied { status: Status::ServerNoResource, word: 0 }));
    let cancel = Request::Cancel { handle: first.handle, wait: WaitNumber(1) };
    assert!(matches!(world.ask(one, cancel), Some(Reply::Done { .. })));
    assert_eq!(world.ask(one, wait(second.handle, Mode::Shared)), None, "it waits");
    let told: Vec<String> =
        world.primary.parts().1.take_refusals().iter().map(|refusal| refusal.to_string()).collect();
    for bound in ["clients_max = 2", "locks_max = 3", "objects_max = 2", "waits_max = 1"] {
        assert!(told.iter().any(|line| line.contains(bound)), "{bound}: {told:?}");
    }
    assert_eq!(world.primary.parts().1.assert_consistent(), Ok(()));
}

#[test]
fn a_client_that_is_leaving_counts_no_more_among_its_identitys() {
    let quotas = Quotas { clients_max: Some(1), ..Quotas::default() };
    let mut world = World::new(vec![rule(READER, "", &[Right::Get], quotas)], 0);
    let first = world.join(READER).unwrap();
    assert_eq!(world.join(READER), Err(Status::ServerNoResource));
    let speaker = (first, u64::from(world.drawn - 1));
    let (client, control) = speaker;
    let asked = world.handle(Event::Control { client, control, request: ControlRequest::Deinit });
    assert_eq!(asked, Some(Effect::Fence { client }));
    // nothing was fenced or undone yet
    assert!(world.primary.members().state(first).is_some());
    world.handle(Event::Done { unfenced: true });
    assert!(world.join(READER).is_ok());
}

#[test]
fn memory_is_not_handed_to_who_may_not_do_everything_and_taken_from_who_may_not_any_more() {
    use FabricKind::Shm;
    let all = [Right::LockShared, Right::LockExclusive, Right::Objects];
    let everything = |name: &str| rule(name, "", &all, Quotas::default());
    let mut world = World::new([rules(), vec![everything("DNS:all")]].concat(), 0);
    let (writer, trusted) = (world.join(WRITER).unwrap(), world.join("DNS:all").unwrap());
    let attach = |client| {
        let (secret, fabric) = (Secret([7; 16]), Shm);
        Attach { client, secret, fabric, verbs: None, returns: true }
    };
    let joining = Joining::by(Shm, Some(1), true);
    assert_eq!(world.primary.may_attach(&attach(writer), joining), Status::Denied);
    let refused = world.handle(Event::Attach { attach: attach(writer), joining });
    assert_eq!(refused, Some(Effect::Attached { client: writer, channel: Err(Status::Denied) }));
    world.handle(Event::Attach { attach: attach(trusted), joining });
    let attached = world.handle(Event::Done { unfenced: false });
    assert!(matches!(attached, Some(Effect::Attached { channel: Ok(_), .. })), "{attached:?}");
    let same = [rules(), vec![everything("DNS:all")]].concat();
    assert_eq!(world.handle(Event::Rules(same)), None, "nothing has changed");
    let fence = |client| Some(Effect::Fence { client });
    assert_eq!(world.handle(Event::Rules(rules())), fence(trusted));
    assert_eq!(
        world.handle(Event::Done { unfenced: true }),
        Some(Effect::Revoke { client: trusted, status: Status::BadResponse })
    );
}

/// A release of one of several entries asks, when the lease may be over, whether the lock is still
/// held. That needs no right.
#[test]
fn a_holder_without_the_right_may_ask_whether_it_still_holds() {
    let mut world = World::new(rules(), 0);
    let writer = world.join(WRITER).unwrap();
    let grant = world.get(writer, "w/1", LockType::Atomic).unwrap();
    let addr = WordAddr::new(grant.slot, Word::W0);
    let word = AtomicWord::new().with_client(writer.get()).with_timeout(Deadline::at_s(5_001));
    let held = word.into_bits();
    assert_eq!(world.may(writer, WordOp::Cas { addr, expect: 0, swap: held }), Ok(false));
    world.primary.parts().1.set_rules(vec![rule(
        READER,
        "r/",
        &[Right::LockShared],
        Quotas::default(),
    )]);
    assert_eq!(world.may(writer, WordOp::Cas { addr, expect: held, swap: held }), Ok(false));
    let longer = word.with_timeout(Deadline::at_s(5_002)).into_bits();
    let extends = WordOp::Cas { addr, expect: held, swap: longer };
    assert_eq!(world.may(writer, extends), Err(Status::Denied));
}

#[test]
fn chains_and_requests_need_the_right_to_the_mode() {
    let mut world = World::new(rules(), 0);
    let (reader, writer) = (world.join(READER).unwrap(), world.join(WRITER).unwrap());
    for (kind, name) in [(LockType::Atomic, "r/a"), (LockType::Rw, "r/r"), (LockType::Fair, "r/f")]
    {
        for (client, may_share, may_exclude) in [(reader, true, false), (writer, false, true)] {
            let grant = world.get(client, name, kind).unwrap();
            let addr = WordAddr::new(grant.slot, Word::W0);
            let cas = |swap| WordOp::Cas { addr, expect: 0, swap };
            let faa = |add| WordOp::Faa { addr, add };
            let id = client.get();
            let exclusive = match kind {
                LockType::Atomic => cas(AtomicWord::new()
                    .with_client(id)
                    .with_timeout(Deadline::at_s(9_000))
                    .into_bits()),
                LockType::Rw => cas(RwWord::new().with_client(id).into_bits()),
                LockType::Fair => faa(TakenWord::TAKE_EXCLUSIVE),
            };
            let denied = |may: bool| if may { None } else { Some(Status::Denied) };
            assert_eq!(world.may(client, exclusive).err(), denied(may_exclude), "{kind:?}");
            if kind != LockType::Atomic {
                let shared = faa(1);
                assert_eq!(world.may(client, shared).err(), denied(may_share), "{kind:?}");
            }
            assert!(world.may(client, WordOp::Read { addr }).is_ok());
            for (mode, may) in [(Mode::Exclusive, may_exclude), (Mode::Shared, may_share)] {
                if kind == LockType::Rw {
                    let reply = world.ask(client, wait(grant.handle, mode));
                    assert_eq!(reply == DENIED, !may, "{mode:?}: {reply:?}");
                    world.ask(client, Request::Resolve { handle: grant.handle });
                }
                if kind == LockType::Fair {
                    let take =
                        Request::TakeTicket { handle: grant.handle, mode, lease: Lease::secs(9) };
                    let reply = world.ask(client, take);
                    assert_eq!(reply == DENIED, !may, "{mode:?}: {reply:?}");
                    world.ask(client, Request::Resolve { handle: grant.handle });
                }
            }
        }
    }
}

#[test]
fn a_chain_that_was_denied_is_told_with_its_right() {
    let mut world = World::new(rules(), 0);
    let reader = world.join(READER).unwrap();
    let grant = world.get(reader, "r/1", LockType::Fair).unwrap();
    let addr = WordAddr::new(grant.slot, Word::W0);
    let chain = Chain::one(WordOp::Faa { addr, add: TakenWord::TAKE_EXCLUSIVE });
    world.primary.parts().1.chain_was_denied(&mut world.memory, reader, &chain);
    let told = world.primary.parts().1.take_refusals();
    assert!(told[0].to_string().ends_with("the right lock-exclusive on \"r/1\""), "{told:?}");
}

/// A client holds a fair lock, and has lost the right to it since.
#[test]
fn a_hold_is_not_noted_longer_by_who_may_not_lock_any_more() {
    let none = Quotas::default();
    let mut world = World::new(vec![rule(READER, "f", &[Right::LockExclusive], none)], 0);
    let client = world.join(READER).unwrap();
    let lock = world.get(client, "f", LockType::Fair).unwrap();
    let word = WordAddr::new(lock.slot, Word::W0);
    let entry = |deadline: Deadline| LedgerEntry::claim(Mode::Exclusive, 1).with_deadline(deadline);
    let note =
        |entry: LedgerEntry| WordOp::WriteLedger { handle: lock.handle, value: entry.into_bits() };
    let take = WordOp::Faa { addr: word, add: TakenWord::TAKE_EXCLUSIVE };
    let chain = Chain::one(take);
    assert_eq!(world.may(client, take), Ok(true));
    let mut values = Values::new();
    values.push(world.memory.faa(word, TakenWord::TAKE_EXCLUSIVE));
    world.primary.parts().1.executed(&mut world.memory, client, &chain, &values);
    let notes = |world: &mut World, deadline| {
        let chain = Chain::one(note(entry(deadline)));
        let checked = world.may(client, note(entry(deadline)));
        let alone = world.primary.parts().1.check_note(
            &mut world.memory,
            client,
            lock.handle,
            entry(deadline),
        );
        assert_eq!(checked.map(drop), alone, "in a chain and on its own");
        if checked.is_ok() {
            world.memory.ledgers.insert((client, lock.handle), entry(deadline));
            let mut values = Values::new();
            values.push(0);
            world.primary.parts().1.executed(&mut world.memory, client, &chain, &values);
        }
        alone
    };
    assert_eq!(notes(&mut world, Deadline::at_s(5_010)), Ok(()));
    assert_eq!(notes(&mut world, Deadline::at_s(5_020)), Ok(()), "longer");
    world.primary.parts().1.set_rules(vec![rule(
        READER,
        "f",
        &[Right::Get, Right::LockShared],
        none,
    )]);
    for deadline in [5_021, u32::MAX] {
        assert_eq!(notes(&mut world, Deadline::at_s(deadline)), Err(Status::Denied));
    }
    for deadline in [5_020, 5_015] {
        assert_eq!(notes(&mut world, Deadline::at_s(deadline)), Ok(()), "no longer than before");
    }
    assert_eq!(notes(&mut world, Deadline::at_s(5_016)), Err(Status::Denied), "than it says now");
    world.primary.parts().1.take_refusals();
    let chain = Chain::one(note(entry(Deadline::NEVER)));
    world.primary.parts().1.chain_was_denied(&mut world.memory, client, &chain);
    let refused = world.primary.parts().1.take_refusals();
    assert!(refused[0].to_string().contains("lock-exclusive on \"f\""), "{}", refused[0]);
    // the client may write that it has given the lock back
    let left = note(LedgerEntry::new());
    assert!(world.may(client, left).is_ok());
}
