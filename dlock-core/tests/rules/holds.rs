// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client has, what of it a lapse ends, and what of it a successor takes over.

use crate::common::site::{w0, Peer, Site, START};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS, TICK_NS};
use dlock_core::ids::{ClientId, Epoch, LockId, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::locks::{Locks, PrimaryConfig, LAPSE_SLICE, LOOKS_MAX};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{
    AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, Ticket, TurnWord,
};
use dlock_core::wire::control::{
    Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc, LockGrant,
};
use dlock_core::wire::message::{LockType, Mode, Request, WaitNumber};
use dlock_core::wire::status::Status;

use crate::common::Memory;
use dlock_core::token::TokenFloor;
use FabricKind::{Shm, Tcp, Verbs};

fn has_something(site: &mut Site, peer: Peer) -> bool {
    site.primary.locks().has_something(site.now, &mut site.memory, peer.id)
}

fn notes(site: &mut Site, peer: Peer, grant: &LockGrant, state: LedgerState) {
    let entry = LedgerEntry::new().with_state(state).with_detail(60);
    site.memory.ledgers.insert((peer.id, grant.handle), entry);
}

fn wait(site: &mut Site, peer: Peer, grant: &LockGrant, mode: Mode) {
    let (handle, wait) = (grant.handle, WaitNumber(1));
    let request = Request::Wait { handle, mode, lease: Lease::secs(9), wait, ticket: None };
    site.command(peer.id, Seq(1), request);
}

#[test]
fn what_counts_as_something_of_a_read_write_lock() {
    let mut site = Site::new();
    let (a, b) = (site.join(Shm, 0), site.join(Shm, 0));
    let grant = site.get(a, "l", LockType::Rw);
    site.get(b, "l", LockType::Rw);
    assert!(!has_something(&mut site, a));
    for state in [LedgerState::Intent, LedgerState::HeldShared, LedgerState::Leaving] {
        notes(&mut site, a, &grant, state);
        assert!(has_something(&mut site, a) && !has_something(&mut site, b), "{state:?}");
    }
    site.memory.ledgers.clear();
    let owned = RwWord::new().with_client(a.id.get()).into_bits();
    site.memory.set(w0(&grant), owned);
    assert!(has_something(&mut site, a) && !has_something(&mut site, b));
}

#[test]
fn a_share_of_a_client_without_a_ledger_counts_as_something() {
    let mut site = Site::new();
    let a = site.join(Tcp, 0);
    let grant = site.get(a, "l", LockType::Rw);
    site.execute(a, &Chain::one(WordOp::Faa { addr: w0(&grant), add: 1 }));
    assert!(has_something(&mut site, a));
    site.execute(a, &Chain::one(WordOp::Faa { addr: w0(&grant), add: u64::MAX }));
    assert!(!has_something(&mut site, a));
    notes(&mut site, a, &grant, LedgerState::HeldShared);
    assert!(!has_something(&mut site, a), "what it notes counts as far as it agrees");
}

#[test]
fn a_hold_counts_as_something_until_its_lease_ends() {
    let mut site = Site::new();
    let a = site.join(Shm, 0);
    let grant = site.get(a, "l", LockType::Atomic);
    let held =
        AtomicWord::new().with_client(a.id.get()).with_timeout(START.deadline(Lease::secs(60)));
    site.memory.set(w0(&grant), held.into_bits());
    site.now = START.plus_ns(60 * NS + TICK_NS - 1);
    assert!(has_something(&mut site, a));
    site.now = START.plus_ns(60 * NS + TICK_NS);
    assert!(!has_something(&mut site, a));
}

#[test]
fn a_queue_place_counts_as_something_for_who_has_it() {
    let mut site = Site::new();
    let (a, b, c) = (site.join(Shm, 0), site.join(Shm, 0), site.join(Shm, 0));
    let grant = site.get(a, "l", LockType::Atomic);
    let [waits, idle] = [b, c].map(|peer| site.get(peer, "l", LockType::Atomic));
    let held =
        AtomicWord::new().with_client(a.id.get()).with_timeout(START.deadline(Lease::secs(60)));
    site.memory.set(w0(&grant), held.into_bits());
    wait(&mut site, b, &waits, Mode::Exclusive);
    assert!(has_something(&mut site, b) && !has_something(&mut site, c), "{idle:?}");
}

fn lapses(site: &mut Site, peer: Peer) -> dlock_core::locks::Lapsed {
    let mut lapse = site.primary.parts().1.begin_lapse(peer.id);
    while !site.primary.parts().1.lapse(site.now, &mut site.memory, &mut lapse, &mut site.out) {}
    lapse.lapsed()
}

/// A client with a ticket of a fair lock and a claim of 60 s, which it has made by itself.
fn claims(site: &mut Site) -> (Peer, LockGrant) {
    let a = site.join(Verbs, 10);
    let grant = site.get(a, "l", LockType::Fair);
    let entry = LedgerEntry::claim(Mode::Exclusive, 1);
    let entry = entry.with_deadline(START.deadline(Lease::secs(60)));
    site.memory.ledgers.insert((a.id, grant.handle), entry);
    (a, grant)
}

fn asks(site: &mut Site, peer: Peer, request: Request) {
    site.command(peer.id, Seq(1), request);
    assert_eq!(site.out.len(), 1, "{:?}", site.out);
}

/// The client's session lapses. The client may have seen its turn after its request, and may rely
/// on its claim, so the claim lasts.
#[test]
fn a_claim_lasts_whatever_its_client_has_asked_for() {
    let until = Some(START.deadline(Lease::secs(60)).expiry());
    let mode = Mode::Exclusive;
    for (ahead, lease) in [(1, Lease::secs(5)), (0, Lease::ENDLESS)] {
        let mut site = Site::new();
        let (a, grant) = claims(&mut site);
        let taken = TakenWord::new().with_mx(ahead);
        site.memory.set(w0(&grant), taken.taken(mode).into_bits());
        let w1 = WordAddr::new(grant.slot, Word::W1);
        let lap = site.memory.read(w1.next());
        let ticket = Ticket { lap, tx: ahead, ts: 0 };
        if ahead > 0 {
            // the claim of the client whose ticket is before this one
            let b = site.join(Verbs, 10);
            let handle = site.get(b, "l", LockType::Fair).handle;
            let entry = LedgerEntry::claim(mode, 1).with_deadline(Deadline::NEVER);
            site.memory.ledgers.insert((b.id, handle), entry);
        }
        // the ticket is queued and then has its turn; or it is granted without an end
        asks(&mut site, a, Request::Poll { handle: grant.handle, mode, ticket, lease });
        site.memory.set(w1, TurnWord::new().with_nx(ahead).into_bits());
        assert_eq!(lapses(&mut site, a).until, until, "{ahead} before it");
    }
}

#[test]
fn an_object_counts_as_something_until_the_lease_of_its_own_reference_ends() {
    let mut site = Site::new();
    let (a, b) = (site.join(Shm, 0), site.join(Shm, 0));
    let name = b"o".to_vec();
    let create =
        ControlRequest::ObjectCreate { name: name.clone(), lease: Lease::secs(90), init: 3 };
    assert!(matches!(site.control(a, create), ControlReply::Created(_)));
    let get = |s| ControlRequest::ObjectGet { name: name.clone(), lease: Lease::secs(s) };
    assert!(matches!(site.control(a, get(5)), ControlReply::Object(_)));
    assert!(matches!(site.control(b, get(50)), ControlReply::Object(_)));
    let at = |site: &mut Site, now: ServerTime| {
        site.now = now;
        (has_something(site, a), has_something(site, b))
    };
    assert_eq!(at(&mut site, START.plus_ns(5 * NS - 1)), (true, true));
    assert_eq!(at(&mut site, START.plus_ns(5 * NS)), (false, true));
    assert_eq!(at(&mut site, START.plus_ns(50 * NS)), (false, false));
}

#[test]
fn a_client_with_too_many_handles_to_look_at_counts_as_one_that_has_something() {
    let mut site = Site::new();
    let a = site.join(Shm, 0);
    for n in 0..LOOKS_MAX {
        site.get(a, &format!("l{n}"), LockType::Atomic);
    }
    assert!(!has_something(&mut site, a));
    site.get(a, "more", LockType::Atomic);
    assert!(has_something(&mut site, a));
}

/// One reader lapses while the count is suspect: a recount counts the other readers.
#[test]
fn a_recount_during_a_lapse_counts_the_others() {
    let mut site = Site::new();
    let [a, b, c, d, e] = [0; 5].map(|_| site.join(Shm, 0));
    let [ga, gb, gc, gd, ge] = [a, b, c, d, e].map(|peer| site.get(peer, "l", LockType::Rw));
    for (peer, grant) in [(a, &ga), (b, &gb), (c, &gc)] {
        notes(&mut site, peer, grant, LedgerState::HeldShared);
    }
    // d died while it left, and its share is still counted; e is stopped before it adds its own
    // share
    notes(&mut site, d, &gd, LedgerState::Leaving);
    notes(&mut site, e, &ge, LedgerState::Intent);
    site.memory.set(w0(&ga), RwWord::new().with_rcount(4).into_bits());
    site.die(d);
    let mut lapse = site.primary.parts().1.begin_lapse(a.id);
    let (now, out) = (site.now, &mut site.out);
    assert!(site.primary.parts().1.lapse(now, &mut site.memory, &mut lapse, out));
    let word = RwWord::from_bits(site.word(&ga));
    assert_eq!((word.rcount(), word.waiters()), (3, true), "it is not known yet whose they are");
}

fn recovering(clients: u32) -> (Locks, Memory) {
    let config = PrimaryConfig {
        epoch: Epoch(2),
        tp_mode: 0,
        recovery_clients: clients,
        clients_max: 8,
        locks_max: 1_000,
        objects_max: 0,
        absent_grace_ns: None,
        tokens: TokenFloor::default(),
    };
    (Locks::new(config), Memory::default())
}

/// A client of the predecessor is back.
fn back(primary: &mut Locks, n: u32) -> ClientId {
    let client = ClientId::new(n).unwrap();
    primary.add_client(client).unwrap();
    primary.came_back(START, client);
    client
}

fn claim(n: i32, lock_type: LockType, mode: Option<Mode>) -> Claim {
    let desc =
        LockDesc { name: format!("l{n}").into_bytes(), lock_type, lease_s: 0, tokens: false };
    let left_ns = if lock_type == LockType::Rw { u64::MAX } else { 60 * NS };
    let held = mode.map(|mode| HeldClaim::hold(mode, left_ns));
    Claim { lock: LockId(n), desc, held }
}

fn update(
    primary: &mut Locks,
    memory: &mut Memory,
    client: ClientId,
    claims: Vec<Claim>,
) -> Result<Vec<Result<LockGrant, Status>>, Status> {
    let request = ControlRequest::UpdateLocks(claims);
    match primary.control(START, memory, client, request, &mut Vec::new()) {
        ControlReply::Locks(locks) => Ok(locks),
        ControlReply::Error(status) => Err(status),
        other => panic!("{other:?}"),
    }
}

#[test]
fn claims_are_told_in_batches_with_names() {
    let (mut primary, mut memory) = recovering(3);
    let a = back(&mut primary, 5);
    let many = |n: usize| (0..n).map(|n| claim(n as i32 + 1, LockType::Atomic, None)).collect();
    assert!(update(&mut primary, &mut memory, a, many(BATCH_MAX)).is_ok());
    let refused = update(&mut primary, &mut memory, a, many(BATCH_MAX + 1));
    assert_eq!(refused, Err(Status::Invalid));
    let mut unnamed = claim(99, LockType::Atomic, None);
    unnamed.desc.name.clear();
    let refused = update(&mut primary, &mut memory, a, vec![unnamed]);
    assert_eq!(refused, Err(Status::Invalid));
    for client in [1, 2, 3].map(|n| back(&mut primary, 10 + n)) {
        assert!(update(&mut primary, &mut memory, client, many(1)).is_ok());
        primary.control(START, &mut memory, client, ControlRequest::ReinitDone, &mut Vec::new());
    }
    assert!(!primary.is_recovering());
    let refused = update(&mut primary, &mut memory, a, many(1));
    assert_eq!(refused, Err(Status::Error), "the recovery is over");
    let stranger = ClientId::new(77).unwrap();
    primary.add_client(stranger).unwrap();
    let refused = update(&mut primary, &mut memory, stranger, many(1));
    assert_eq!(refused, Err(Status::Error), "it is no client of the predecessor");
}

#[test]
fn a_client_that_claimed_a_share_and_goes_on_by_tcp_can_give_it_back_once() {
    let (mut primary, mut memory) = recovering(1);
    let a = back(&mut primary, 5);
    let claims = vec![claim(9, LockType::Rw, Some(Mode::Shared))];
    let grant = update(&mut primary, &mut memory, a, claims).unwrap()[0].unwrap();
    primary.control(START, &mut memory, a, ControlRequest::ReinitDone, &mut Vec::new());
    primary.attached(START, &mut memory, a, Tcp, &mut Vec::new());
    let leave = Chain::one(WordOp::Faa { addr: w0(&grant), add: u64::MAX });
    for (is_its_own, rcount) in [(true, 0), (false, 0)] {
        let may = primary.check_chain(START, &mut memory, a, &leave);
        assert_eq!(may.is_ok(), is_its_own, "{may:?}");
        if is_its_own {
            let mut values = dlock_core::memory::word_op::Values::new();
            values.push(memory.faa(w0(&grant), u64::MAX));
            primary.executed(&mut memory, a, &leave, &values);
        }
        assert_eq!(memory.read(w0(&grant)), rcount);
    }
}

/// No client asks for the lock at the successor.
#[test]
fn a_read_write_hold_with_a_lease_has_its_end_at_a_successor_too() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (mut primary, mut memory) = recovering(1);
        let (a, out) = (back(&mut primary, 5), &mut Vec::new());
        let held = Some(HeldClaim::hold(mode, 60 * NS));
        let told = vec![Claim { held, ..claim(9, LockType::Rw, None) }];
        let grant = update(&mut primary, &mut memory, a, told).unwrap()[0].unwrap();
        primary.control(START, &mut memory, a, ControlRequest::ReinitDone, out);
        let held = memory.read(w0(&grant));
        assert_ne!(held, 0);
        let end = START.deadline_of_rest(60 * NS).expiry();
        primary.tick(ServerTime(end.0 - 1), &mut memory, out);
        assert_eq!(memory.read(w0(&grant)), held, "{mode:?}");
        primary.tick(end, &mut memory, out);
        assert_eq!(memory.read(w0(&grant)), 0, "{mode:?}");
    }
}

/// The client goes over from tcp, where the primary executes its chains, to shared memory and back.
#[test]
fn a_client_that_changes_its_fabric_is_known_by_its_ledger_from_then_on() {
    let mut site = Site::new();
    let a = site.join(Tcp, 0);
    let grant = site.get(a, "l", LockType::Rw);
    notes(&mut site, a, &grant, LedgerState::HeldShared);
    assert!(!has_something(&mut site, a), "the primary has executed nothing of the kind");
    for fabric in [Shm, Tcp] {
        let (now, out) = (site.now, &mut site.out);
        site.primary.parts().1.attached(now, &mut site.memory, a.id, fabric, out);
        assert!(has_something(&mut site, a), "{fabric:?}");
    }
}

/// A client with many handles is still lapsing, in slices: no other client may get what it has.
#[test]
fn a_recovery_is_not_over_before_the_lapse_of_its_last_client_is() {
    let (mut primary, mut memory) = recovering(1);
    let a = back(&mut primary, 5);
    let claims: Vec<Claim> =
        (1..=LAPSE_SLICE as i32 + 1).map(|n| claim(n, LockType::Atomic, None)).collect();
    for part in claims.chunks(BATCH_MAX) {
        assert!(update(&mut primary, &mut memory, a, part.to_vec()).is_ok());
    }
    let mut lapse = primary.begin_lapse(a);
    assert!(!primary.lapse(START, &mut memory, &mut lapse, &mut Vec::new()));
    assert!(primary.is_recovering());
    assert!(primary.lapse(START, &mut memory, &mut lapse, &mut Vec::new()));
    assert!(!primary.is_recovering());
}

#[test]
fn a_note_goes_to_the_entry_of_a_lock_of_its_client_alone() {
    let mut site = Site::new();
    let (a, b) = (site.join(Tcp, 0), site.join(Tcp, 0));
    let grant = site.get(a, "l", LockType::Rw);
    let nothing = LedgerEntry::new();
    let mut may =
        |client| site.primary.locks().check_note(&mut site.memory, client, grant.handle, nothing);
    assert_eq!(may(a.id), Ok(()));
    assert_eq!(may(b.id), Err(Status::LockNotGet));
    assert_eq!(may(ClientId::new(9_999).unwrap()), Err(Status::ClientRemoved));
}

#[test]
fn requests_about_objects_have_a_name_and_a_lease() {
    let mut site = Site::new();
    let a = site.join(Shm, 0);
    let invalid = ControlReply::Error(Status::Invalid);
    for (name, lease) in [(&b""[..], Lease(5)), (b"o", Lease::NONE)] {
        let name = name.to_vec();
        let get = ControlRequest::ObjectGet { name: name.clone(), lease };
        assert_eq!(site.control(a, get), invalid);
        let create = ControlRequest::ObjectCreate { name, lease, init: 3 };
        assert_eq!(site.control(a, create), invalid);
    }
}

#[test]
fn locks_are_released_in_batches_and_what_is_asked_for_is_counted_as_work() {
    let mut site = Site::new();
    let a = site.join(Shm, 0);
    let names: Vec<String> = (0..BATCH_MAX).map(|n| format!("l{n}")).collect();
    site.primary.take_work();
    let ids: Vec<LockId> =
        names.iter().map(|name| site.get(a, name, LockType::Atomic).lock).collect();
    assert!(site.primary.take_work() > 0);
    assert_eq!(site.primary.take_work(), 0, "it is told once");
    let descs = names.iter().map(|name| LockDesc {
        name: name.clone().into_bytes(),
        lock_type: LockType::Atomic,
        lease_s: 0,
        tokens: false,
    });
    let work = |site: &mut Site, descs: Vec<LockDesc>| {
        site.control(a, ControlRequest::GetLocks(descs));
        site.primary.take_work()
    };
    let all: Vec<LockDesc> = descs.collect();
    let one = work(&mut site, all[..1].to_vec());
    let more = 2 * (BATCH_MAX as u32 - 1);
    assert!(work(&mut site, all) >= one + more, "each is asked for, and looked up");
    let mut more = ids.clone();
    more.push(LockId(-1));
    let refused = site.control(a, ControlRequest::ReleaseLocks(more));
    assert_eq!(refused, ControlReply::Error(Status::Invalid));
    let released = site.control(a, ControlRequest::ReleaseLocks(ids));
    assert_eq!(released, ControlReply::Statuses(vec![Status::Success; BATCH_MAX]));
}

#[test]
fn every_request_is_work_and_so_is_each_of_its_items() {
    let (mut primary, mut memory) = recovering(3);
    let a = back(&mut primary, 5);
    let mut work = |request: ControlRequest| {
        primary.take_work();
        primary.control(START, &mut memory, a, request, &mut Vec::new());
        primary.take_work()
    };
    assert!(work(ControlRequest::Heartbeat) > 0);
    let unnamed = || {
        let desc =
            LockDesc { name: Vec::new(), lock_type: LockType::Rw, lease_s: 0, tokens: false };
        Claim { lock: LockId(1), desc, held: None }
    };
    let mut refused = |n: usize| work(ControlRequest::UpdateLocks(vec![unnamed(); n]));
    assert_eq!(refused(9), refused(1) + 8);
}
