// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::clock::{Deadline, Lease, Now, ServerTime, NS, TICK_NS};
use crate::ids::{Handle, LockId, Slot};
use crate::lock::testing::{entry, grant};
use crate::lock::{Begin, EntryState, Listening, LockEntry, Loss, Op, OpResult, Step};
use crate::memory::word_op::{Outcome, Values, WordOp};
use crate::memory::words::AtomicWord;
use crate::wire::control::{
    Claim, ControlRequest, FabricKind, HeldClaim, LockDesc, LockGrant, Offers, Secret, Terms,
};
use crate::wire::message::{LockType, Mode, Reply, Request};

mod unheard;

fn client() -> ClientId {
    ClientId::new(7).unwrap()
}

fn all_offers() -> Offers {
    let kinds = [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs];
    kinds.into_iter().fold(Offers::none(), |offers, kind| offers.with(kind, &[1]))
}

fn tcp_alone() -> Session {
    Session { offers: Offers::none().with(FabricKind::Tcp, &[]), ..session() }
}

fn session() -> Session {
    Session {
        version: VERSION,
        client: client(),
        secret: Secret([1; 16]),
        epoch: Epoch(3),
        anchor_s: 100,
        now: ServerTime(1_000 * NS),
        recovering: false,
        offers: all_offers(),
        terms: Terms::UNLIMITED,
    }
}

fn held_until_1005(lock_type: LockType) -> LockEntry {
    let entry = held(lock_type);
    assert_eq!(entry.deadline(), Deadline::at_s(1_005));
    entry
}

fn held(lock_type: LockType) -> LockEntry {
    let mut entry = entry(lock_type);
    take_it(&mut entry);
    entry
}

fn take_it(entry: &mut LockEntry) {
    let take = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(5) };
    let now = Now::exact(ServerTime(1_000 * NS));
    let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(take, now) else { panic!() };
    let mut values = Values::new();
    (0..chain.values_len()).for_each(|_| values.push(0));
    let Step::Done(_) = machine.outcome(entry, Outcome::Done(values), now) else { panic!() };
}

#[test]
fn a_session_is_that_of_the_client_that_asked() {
    assert_eq!(accept(ControlReply::Session(session()), None), Ok(session()));
    assert_eq!(accept(ControlReply::Session(session()), Some(client())), Ok(session()));
    let other = ClientId::new(8);
    assert_eq!(accept(ControlReply::Session(session()), other), Err(Status::BadResponse));
    assert_eq!(accept(ControlReply::Done, None), Err(Status::BadResponse));
    let removed = ControlReply::Removed { by: "uid 0".into(), now: true };
    assert_eq!(accept(removed, None), Err(Status::ClientRemoved));
    let refused = ControlReply::Error(Status::Success);
    assert_eq!(accept(refused, None), Err(Status::BadResponse), "a refusal is no success");
    let refused = ControlReply::Error(Status::ServerNoResource);
    assert_eq!(accept(refused, None), Err(Status::ServerNoResource), "why, is told");
    for version in [VERSION_MIN - 1, VERSION + 1] {
        let other = Session { version, ..session() };
        assert_eq!(accept(ControlReply::Session(other), None), Err(Status::VersionMismatch));
    }
}

#[test]
fn each_call_is_answered_by_the_state_as_the_table_says() {
    use Call::{Locks, Operation, Other};
    let row = |gate: Gate| [Operation, Locks, Other, Call::Session].map(|call| gate.refuses(call));
    assert_eq!(row(Gate::Open), [None; 4]);
    assert_eq!(row(Gate::Async), [Some(Status::Async), None, None, None]);
    let left = [Status::ClientNotInit, Status::Error, Status::ClientNotInit, Status::Invalid];
    assert_eq!(row(Gate::Left), left.map(Some));
}

#[test]
fn executors_are_tried_in_their_order_as_far_as_they_are_offered_and_wanted() {
    let all = |choice, session: &Session| {
        let mut search = PathSearch::new(choice, false, session);
        std::iter::from_fn(move || search.next_kind()).collect::<Vec<_>>()
    };
    use FabricKind::{Shm, Tcp, Verbs};
    assert_eq!(all(PathChoice::Auto, &session()), [Verbs, Shm, Tcp]);
    assert_eq!(all(PathChoice::Only(Shm), &session()), [Shm]);
    assert_eq!(all(PathChoice::Auto, &tcp_alone()), [Tcp]);
    assert_eq!(all(PathChoice::Only(Verbs), &tcp_alone()), []);
}

#[test]
fn an_executor_that_must_work_ends_the_search_when_it_does_not() {
    use FabricKind::{Shm, Tcp, Verbs};
    let search = |choice, named| PathSearch::new(choice, named, &session());
    let mut auto = search(PathChoice::Auto, false);
    assert_eq!(auto.failed(Verbs, Failure::Other), Ok(()));
    assert_eq!(auto.failed(Shm, Failure::NotReady), Ok(()));
    assert_eq!(auto.failed(Tcp, Failure::Other), Ok(()));
    let mut named = search(PathChoice::Auto, true);
    assert_eq!(named.failed(Verbs, Failure::Other), Err(Status::Error));
    assert_eq!(named.failed(Shm, Failure::Other), Ok(()));
    for kind in FabricKind::ALL {
        let mut only = search(PathChoice::Only(kind), false);
        assert_eq!(only.failed(kind, Failure::Other), Err(Status::Error));
        assert_eq!(only.failed(kind, Failure::NotReady), Err(Status::NotReady));
        assert_eq!(only.failed(kind, Failure::NoRoom), Err(Status::ServerNoResource));
    }
}

#[test]
fn an_eid_that_is_no_ports_ends_the_search_whatever_was_chosen() {
    for choice in [PathChoice::Auto, PathChoice::Only(FabricKind::Verbs)] {
        let mut search = PathSearch::new(choice, false, &session());
        assert_eq!(search.next_kind(), Some(FabricKind::Verbs));
        let failed = search.failed(FabricKind::Verbs, Failure::WrongAddress);
        assert_eq!(failed, Err(Status::Error), "{choice:?}");
    }
}

#[test]
fn a_search_in_vain_tells_whether_asking_again_may_help() {
    use FabricKind::{Shm, Tcp, Verbs};
    let mut search = PathSearch::new(PathChoice::Auto, false, &session());
    assert_eq!(search.exhausted(), Status::Error);
    assert_eq!(search.failed(Verbs, Failure::NoRoom), Ok(()));
    assert_eq!(search.exhausted(), Status::ServerNoResource);
    assert_eq!(search.failed(Shm, Failure::NotReady), Ok(()));
    assert_eq!(search.failed(Tcp, Failure::Other), Ok(()));
    assert_eq!(search.exhausted(), Status::NotReady);
}

#[test]
fn what_is_wanted_and_not_offered_is_named() {
    use FabricKind::{Shm, Tcp};
    let missing = |choice, session: &Session| -> Vec<FabricKind> {
        PathSearch::new(choice, false, session).missing().collect()
    };
    let others = FabricKind::ALL.into_iter().filter(|&kind| kind != Tcp);
    assert_eq!(missing(PathChoice::Auto, &tcp_alone()), others.collect::<Vec<_>>());
    assert_eq!(missing(PathChoice::Only(Shm), &tcp_alone()), [Shm]);
    assert_eq!(missing(PathChoice::Only(Tcp), &tcp_alone()), []);
}

#[test]
fn every_choice_has_a_name_that_is_read_again() {
    for choice in PathChoice::all() {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    assert_eq!("rdma".parse::<PathChoice>(), Err(UnknownPath));
    let names: Vec<&str> = FabricKind::ALL.into_iter().map(FabricKind::name).collect();
    assert_eq!(UnknownPath.to_string(), format!("must be one of auto, {}", names.join(", ")));
    assert!(FabricKind::ALL.into_iter().all(|kind| PathChoice::from(kind).name() == kind.name()));
}

#[test]
fn a_lock_at_a_successor_is_claimed_on_the_clock_its_deadline_is_of() {
    let mut entry = held_until_1005(LockType::Atomic);
    let mut binding = Binding::new(Epoch(3));
    let old = Now { local_ns: 50 * NS, ..Now::exact(ServerTime(1_002 * NS)) };
    assert!(binding.moves_to(Epoch(3), old), "the same incarnation");
    assert!(!binding.moves_to(Epoch(4), old));
    // the successor's clock is far ahead; on the client's own clock a second has passed
    let new = Now { local_ns: 51 * NS, ..Now::exact(ServerTime(9_000 * NS)) };
    let claim = binding.claim(&mut entry, new);
    // The deadline is 1005 s and valid through its tick. The old clock shows 1003 s, or a little
    // less because of drift.
    assert_eq!(claim.held.map(|held| held.left_ns), Some(2 * NS + TICK_NS + 501_501));
    // a second failover before the lock was claimed: the clock of the first incarnation still
    // counts
    assert!(!binding.moves_to(Epoch(5), new));
    assert_eq!(binding.claim(&mut entry, new).held, claim.held);
}

/// The predecessor may have given the lock to another client before it ended.
#[test]
fn what_has_no_lease_is_not_claimed_past_the_horizon() {
    for (lock_type, horizon_ns, is_claimed) in [
        (LockType::Rw, 52 * NS, true),
        (LockType::Rw, 51 * NS, false),
        (LockType::Rw, u64::MAX, true),
        (LockType::Atomic, 51 * NS, true),
    ] {
        let mut entry = held(lock_type);
        let mut binding = Binding::new(Epoch(3));
        let clock = Now::exact(ServerTime(1_002 * NS));
        binding.moves_to(Epoch(4), Now { local_ns: 50 * NS, horizon_ns, ..clock });
        let new = Now { local_ns: 51 * NS, ..Now::exact(ServerTime(9_000 * NS)) };
        let claim = binding.claim(&mut entry, new);
        assert_eq!(claim.held.is_some(), is_claimed, "{lock_type:?} {horizon_ns}");
        assert_eq!(entry.in_doubt(), !is_claimed);
    }
}

#[test]
fn what_a_successor_refuses_is_lost_and_told_by_the_next_operation() {
    let mut entry = held_until_1005(LockType::Atomic);
    let mut binding = Binding::new(Epoch(3));
    let now = Now::exact(ServerTime(1_001 * NS));
    assert!(!binding.moves_to(Epoch(4), now));
    binding.bind(&mut entry, &grant(), (Epoch(4), 200), true, now);
    assert!(binding.is_at(Epoch(4)));
    let take = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(5) };
    let Begin::Local(result) = entry.begin(take, Now::exact(ServerTime(1_001 * NS))) else {
        panic!()
    };
    assert_eq!(result.status, Status::Fail);
}

fn claim(held: bool) -> Claim {
    let desc = LockDesc { name: vec![1], lock_type: LockType::Atomic, lease_s: 0, tokens: false };
    let held = held.then_some(HeldClaim::hold(Mode::Exclusive, 9 * NS));
    Claim { lock: LockId(5), desc, held }
}

#[test]
fn a_hold_that_is_refused_is_claimed_again_without_it_and_once() {
    let mut claims = Claims::new(vec![('a', claim(true)), ('b', claim(true))], false);
    assert!(matches!(claims.request(), Some(ControlRequest::UpdateLocks(all)) if all.len() == 2));
    let reply = ControlReply::Locks(vec![Err(Status::Fail), Ok(grant())]);
    let placed = |is_lost| Verdict::Place { grant: grant(), is_lost };
    let verdicts = claims.answered(Ok(reply)).unwrap();
    assert_eq!(verdicts, [('a', Verdict::Lost(Status::Fail)), ('b', placed(false))]);
    let again = claims.request();
    assert_eq!(again, Some(ControlRequest::UpdateLocks(vec![claim(false)])));
    let reply = ControlReply::Locks(vec![Ok(grant())]);
    assert_eq!(claims.answered(Ok(reply)), Ok(vec![('a', placed(true))]));
    assert_eq!((claims.request(), claims.result()), (None, Status::Success));
}

/// Claims that the rules do not permit, or for which there is no room, stay refused for the whole
/// recovery.
#[test]
fn claims_that_are_refused_for_good_are_told_and_not_repeated() {
    for status in [Status::Denied, Status::ServerNoResource, Status::Error] {
        let mut claims = Claims::new(vec![(1, claim(true)), (2, claim(false))], false);
        assert!(claims.request().is_some());
        let refused = Verdict::Refused(status);
        let verdicts = claims.answered(Ok(ControlReply::Locks(vec![Err(status); 2]))).unwrap();
        assert_eq!(verdicts, [(1, Verdict::Lost(status)), (2, refused)]);
        let again = claims.request();
        assert_eq!(
            again,
            Some(ControlRequest::UpdateLocks(vec![claim(false)])),
            "without the hold"
        );
        let verdicts = claims.answered(Ok(ControlReply::Locks(vec![Err(status)]))).unwrap();
        assert_eq!(verdicts, [(1, refused)]);
        assert_eq!((claims.request(), claims.result()), (None, Status::Success));
    }
}

#[test]
fn claims_of_locks_that_are_in_use_are_to_be_repeated() {
    let mut claims = Claims::new(vec![(1, claim(true))], true);
    assert!(claims.request().is_some());
    assert_eq!(claims.answered(Ok(ControlReply::Locks(vec![]))), Err(Status::BadResponse));
    assert_eq!((claims.request(), claims.result()), (None, Status::Again));
}

#[test]
fn a_client_gives_up_before_its_primary_does_whatever_the_network_did() {
    let mut beats = Heartbeats::new(10 * NS, 100 * NS);
    assert_eq!(beats.next_ns(), 100 * NS + 10 * NS / 4);
    assert_eq!(beats.horizon_ns(), 110 * NS - 105_010_501);
    beats.sent(103 * NS);
    assert_eq!(beats.horizon_ns(), 110 * NS - 105_010_501, "not answered yet");
    beats.answered(103 * NS);
    assert_eq!(beats.horizon_ns(), 113 * NS - 105_010_501, "from before it was sent");
    beats.answered(101 * NS);
    assert_eq!(beats.horizon_ns(), 113 * NS - 105_010_501, "a late answer takes nothing back");
    let mut unlimited = Heartbeats::new(0, 100 * NS);
    assert_eq!((unlimited.next_ns(), unlimited.horizon_ns()), (u64::MAX, u64::MAX));
    for beats in [&mut beats, &mut unlimited] {
        beats.end();
        beats.answered(200 * NS);
        assert_eq!(beats.horizon_ns(), 0, "an answer to a session that was replaced");
    }
}

#[test]
fn an_answer_proves_that_the_client_was_heard_unless_the_primary_may_not_know_of_it() {
    use ControlReply as R;
    let refused = [Status::ObjectNotCreate, Status::ObjectExisted, Status::Invalid, Status::Fail];
    assert!(refused.iter().all(|&status| was_heard(&R::Error(status))), "a refusal is an answer");
    assert!(was_heard(&R::Done) && was_heard(&R::Locks(vec![Err(Status::ServerNoResource)])));
    // refusals on a connection that is not the client's, of a primary that waits for its device,
    // and of a wrong frame
    let unheard = [Status::Error, Status::ClientRemoved, Status::NotReady, Status::VersionMismatch];
    assert!(unheard.iter().all(|&status| !was_heard(&R::Error(status))));
}

#[test]
fn the_next_heartbeat_is_a_quarter_of_the_horizon_after_the_last_one_was_sent() {
    let mut beats = Heartbeats::new(8 * NS, 100 * NS);
    beats.answered(100 * NS);
    assert_eq!(beats.next_ns(), 102 * NS);
    beats.sent(103 * NS);
    assert_eq!(beats.next_ns(), 105 * NS, "answered or not");
    let mut short = Heartbeats::new(1, 100 * NS);
    short.sent(101 * NS);
    assert_eq!(short.next_ns(), 101 * NS + 1, "never at once again");
}

#[test]
fn a_place_that_is_not_adopted_is_to_be_told_again() {
    let mut claims = Claims::new(vec![(1, claim(false))], false);
    assert!(claims.request().is_some());
    assert!(claims.answered(Ok(ControlReply::Locks(vec![Ok(grant())]))).is_ok());
    assert_eq!(claims.result(), Status::Success);
    claims.not_adopted();
    assert_eq!(claims.result(), Status::Again);
}

#[test]
fn a_claim_has_a_place_if_the_lock_is_fair_and_nothing_if_nothing_is_held() {
    let now = Now::exact(ServerTime(1_001 * NS));
    let held = |entry: &LockEntry| entry.claim(now, Epoch(3)).held;
    let atomic = held_until_1005(LockType::Atomic);
    assert_eq!(held(&atomic).map(|h| (h.mode, h.fair)), Some((Mode::Exclusive, None)));
    assert_eq!(held(&entry(LockType::Atomic)), None);
    let fair = fair_after(LockType::Fair, 0);
    let is_fair = |h: HeldClaim| h.mode == Mode::Exclusive && h.fair.is_some();
    assert!(held(&fair).is_some_and(is_fair), "{:?}", held(&fair));
    let ticket = fair_after(LockType::Fair, crate::memory::words::TakenWord::TAKE_EXCLUSIVE);
    let queued = held(&ticket).unwrap();
    assert!(queued.is_queued && queued.fair.is_some_and(|place| place.epoch == Epoch(3)));
}

/// A fair lock whose `w0` was `old` when its ticket was taken, exclusively; no turn is done.
fn fair_after(lock_type: LockType, old: u64) -> LockEntry {
    let mut entry = entry(lock_type);
    let take = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(5) };
    let now = Now::exact(ServerTime(1_000 * NS));
    let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(take, now) else { panic!() };
    let mut values = Values::new();
    assert_eq!(chain.values_len(), 4);
    [0, old, 0, 0].into_iter().for_each(|value| values.push(value));
    machine.outcome(&mut entry, Outcome::Done(values), now);
    entry
}

#[test]
fn at_a_successor_a_claimed_hold_has_what_is_left_of_its_lease_and_is_to_be_confirmed() {
    for (epoch, deadline) in
        [(Epoch(3), Deadline::at_s(1_005)), (Epoch(4), Deadline(9_003 * 16 + 1))]
    {
        let mut binding = Binding::new(Epoch(3));
        let mut held = held_until_1005(LockType::Atomic);
        let clock = Now::exact(ServerTime(1_001 * NS));
        binding.moves_to(epoch, Now { local_ns: 50 * NS, ..clock });
        let new = Now { local_ns: 51 * NS, ..Now::exact(ServerTime(9_000 * NS)) };
        binding.bind(&mut held, &grant(), (epoch, 0), false, new);
        assert_eq!((held.deadline(), held.in_doubt()), (deadline, epoch == Epoch(4)));
    }
    let now = Now::exact(ServerTime(1_001 * NS));
    let mut held = held_until_1005(LockType::Atomic);
    Binding::new(Epoch(3)).bind(&mut held, &grant(), (Epoch(3), 0), true, now);
    assert!(!held.in_doubt(), "it is at this primary, which refuses no claims");
    let mut idle = entry(LockType::Atomic);
    Binding::new(Epoch(3)).bind(&mut idle, &grant(), (Epoch(4), 0), false, now);
    assert!(!idle.in_doubt(), "nothing was claimed");
}

#[test]
fn a_new_channel_carries_again_what_the_old_one_may_have_lost() {
    let now = Now::exact(ServerTime(1_001 * NS));
    let mut held = fair_after(LockType::Fair, 0);
    let entry = crate::memory::words::LedgerEntry::claim(Mode::Exclusive, 1);
    let published = Some(entry.with_deadline(Deadline::at_s(1_005)));
    assert_eq!(resume(&mut held, true, now), None);
    assert_eq!(held.take_ledger_write(), None, "the operation does it at its end");
    assert_eq!(resume(&mut held, false, now), None);
    assert_eq!(held.take_ledger_write(), published);
    held.give_back();
    let undo = resume(&mut held, false, now);
    assert_eq!(undo, Some(crate::wire::message::Request::Resolve { handle: Handle(3) }));
    assert_eq!(held.take_ledger_write(), None, "it is asked to be undone");
}

/// The program has entered the hold several times, and the release of each entry must return the
/// loss.
#[test]
fn a_hold_that_was_entered_again_and_is_lost_is_told_to_be_lost_by_each_release() {
    let now = Now::exact(ServerTime(1_001 * NS));
    let mut held = held(LockType::Rw);
    let again = held.begin(Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(5) }, now);
    assert!(matches!(again, Begin::Local(OpResult { status: Status::AlreadyLocked, .. })));
    held.lose();
    for expected in [Status::Fail, Status::Fail, Status::AlreadyUnlocked] {
        let Begin::Local(result) = held.begin(Op::Unlock, now) else { panic!("it is known") };
        assert_eq!(result.status, expected);
    }
}

#[test]
fn a_lock_is_at_one_incarnation() {
    let binding = Binding::new(Epoch(3));
    assert!(binding.is_at(Epoch(3)) && !binding.is_at(Epoch(4)));
}

/// The primary gives the lock's id to another lock.
#[test]
fn only_a_lock_that_was_left_or_not_claimed_has_no_place_any_more() {
    let mut binding = Binding::new(Epoch(3));
    let mut known = entry(LockType::Atomic);
    assert!(!binding.loses_place(&known, Epoch(3)), "the primary is wrong");
    assert!(binding.is_at(Epoch(3)));
    assert!(binding.loses_place(&known, Epoch(4)), "it was not claimed");
    assert!(binding.is_at(Epoch(3)), "its claim says where it was");
    known.leaves();
    assert!(binding.loses_place(&known, Epoch(3)), "its release was done");
    assert!(!binding.is_at(Epoch(3)));
    assert!(binding.loses_place(&known, Epoch(3)));
}

#[test]
fn objects_survive_at_the_same_incarnation_that_has_not_lost_them() {
    assert!(objects_survive(Epoch(3), Epoch(3), false));
    assert!(!objects_survive(Epoch(3), Epoch(3), true));
    assert!(!objects_survive(Epoch(3), Epoch(4), false));
}

#[test]
fn a_read_write_hold_that_is_entered_again_rests_on_the_session() {
    let cut_off = Some(Status::BadResponse);
    let rests = |entry: &LockEntry, op| entry.unfounded(op, || true, || None) == cut_off;
    let take = |lease| Op::TryLock { mode: Mode::Exclusive, lease };
    let wait = Op::Lock { mode: Mode::Exclusive, lease: Lease::secs(5) };
    let mut held = entry(LockType::Rw);
    assert!(!rests(&held, take(Lease::secs(5))), "nothing is held");
    take_it(&mut held);
    assert!(rests(&held, take(Lease::secs(5))) && rests(&held, wait));
    assert!(!rests(&held, take(Lease::NONE)) && !rests(&held, Op::Unlock));
    assert!(!rests(&held_until_1005(LockType::Atomic), take(Lease::secs(5))), "it has a lease");
    let refused = held.unfounded(wait, || false, || Some(Status::NotReady));
    assert_eq!(refused, Some(Status::NotReady), "its executor refuses everything");
    assert_eq!(held.unfounded(wait, || false, || None), None, "the session stands");
}

/// The lock's slot and handle may belong to another lock by now.
#[test]
fn a_lock_whose_release_was_not_answered_is_neither_operated_on_nor_written_of() {
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let now = Now::exact(ServerTime(1_000 * NS));
        let mut left = entry(lock_type);
        left.leaves();
        assert!(left.has_left() && !left.in_doubt());
        let take = |lease| Op::TryLock { mode: Mode::Exclusive, lease };
        let extend = Op::Extend { mode: Mode::Exclusive, lease: Lease::secs(5) };
        for op in [take(Lease::secs(5)), take(Lease::NONE), Op::Unlock, extend] {
            let Begin::Local(result) = left.begin(op, now) else {
                panic!("{op:?} on {lock_type:?}")
            };
            assert_eq!(result.status, Status::LockNotGet);
        }
        assert_eq!(resume(&mut left, false, now), None);
        assert_eq!(left.take_ledger_write(), None);
        assert!(left.undo(now).is_none());
        assert!(!left.lapse());
        left.lose();
        assert!(left.has_left(), "that it is left is not forgotten");
        assert_eq!(Binding::new(Epoch(3)).claim(&mut left, now).held, None);
        left.rebind(&grant(), 0);
        let Begin::Run(_, Step::Request(request)) = left.begin(take(Lease::secs(5)), now) else {
            panic!()
        };
        assert_eq!(request, Request::Resolve { handle: Handle(3) }, "what was before is undone");
    }
}

#[test]
fn a_lock_that_is_got_again_is_where_the_primary_says() {
    let at = |slot, already| LockGrant { slot: Slot(slot), already, ..grant() };
    let desc = |name| LockDesc {
        name: vec![name],
        lock_type: LockType::Atomic,
        lease_s: 0,
        tokens: false,
    };
    let adopt = |entry: &mut LockEntry, bound, grant: &LockGrant, name| {
        let mut binding = Binding::new(Epoch(bound));
        let is_new = binding.adopt(entry, client(), grant, &desc(name), (Epoch(3), 0));
        assert!(is_new.is_none() || binding.is_at(Epoch(3)));
        is_new
    };
    let mut known = held(LockType::Atomic);
    assert_eq!(adopt(&mut known, 3, &at(9, true), 1), Some(false), "it was got before");
    assert_eq!(known.state(), EntryState::ExclusiveLocked, "and is held");
    let left = || {
        let mut left = entry(LockType::Atomic);
        left.leaves();
        left
    };
    let mut again = left();
    assert_eq!(adopt(&mut again, 3, &at(9, true), 1), Some(true), "the release did not arrive");
    assert!(again.in_doubt(), "something may be left of before");
    let mut anew = left();
    assert_eq!(adopt(&mut anew, 3, &at(12, false), 1), Some(true), "it was carried out");
    assert!(!anew.in_doubt() && !anew.has_left() && anew.slot() == Slot(12));
    let mut others = left();
    assert_eq!(adopt(&mut others, 3, &at(12, true), 2), None, "its id is another lock's");
    assert!(others.has_left() && others.desc().name == [1]);
    // the entry has claimed a hold, and does not know any more what became of it
    let mut untold = entry(LockType::Atomic);
    assert_eq!(adopt(&mut untold, 2, &at(12, true), 1), Some(true));
    assert!(untold.in_doubt() && untold.slot() == Slot(12));
    let nothing = |grant: &LockGrant| LockEntry::new(client(), 0, LockType::Atomic, grant, desc(1));
    assert!(nothing(&at(12, true)).in_doubt() && !nothing(&at(12, false)).in_doubt());
    for already in [false, true] {
        let mut lost = held(LockType::Atomic);
        assert_eq!(adopt(&mut lost, 2, &at(12, already), 1), Some(true), "it was not claimed");
        assert!(lost.slot() == Slot(12) && lost.in_doubt());
        let now = Now::exact(ServerTime(1_000 * NS));
        let Begin::Local(told) = lost.begin(Op::Unlock, now) else { panic!("it is told") };
        assert_eq!(told.status, Status::Fail, "the hold is lost");
    }
}

/// This holds at the same primary, too: the handles of the client's old id are not used there.
#[test]
fn the_locks_of_a_client_that_begins_anew_are_got_again_and_their_holds_lost() {
    for is_held in [true, false] {
        let mut one = if is_held { held(LockType::Atomic) } else { entry(LockType::Atomic) };
        let mut binding = Binding::new(Epoch(3));
        binding.begins_anew(&mut one, false);
        assert!(!binding.is_at(Epoch(3)) && one.is_lost() == is_held);
        let (me, desc) = (ClientId::new(99).unwrap(), one.desc().clone());
        let grant = LockGrant { slot: Slot(12), ..grant() };
        assert_eq!(binding.adopt(&mut one, me, &grant, &desc, (Epoch(3), 0)), Some(true));
        let now = Now::exact(ServerTime(1_000 * NS));
        if is_held {
            let Begin::Local(told) = one.begin(Op::Unlock, now) else { panic!("it is told") };
            assert_eq!(told.status, Status::Fail);
        }
        let take = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(5) };
        let step = match one.begin(take, now) {
            Begin::Run(mut machine, Step::Request(_)) => {
                machine.reply(&mut one, Ok(Reply::Done { word: 0 }), now)
            }
            Begin::Run(_, step) => step,
            Begin::Local(result) => panic!("{result:?}"),
        };
        let Step::Chain(chain) = step else { panic!("{step:?}") };
        let [WordOp::Cas { swap, .. }] = chain.ops() else { panic!("{chain:?}") };
        assert_eq!(AtomicWord::from_bits(*swap).client(), 99, "held: {is_held}");
    }
}

#[test]
fn a_hold_that_an_operator_has_taken_away_is_told_as_such() {
    for (is_taken_away, loss) in [(false, Loss::Session), (true, Loss::TakenAway)] {
        let (mut one, mut listening) = (held(LockType::Atomic), Listening::default());
        let now = Now::exact(ServerTime(1_000 * NS));
        assert_eq!(listening.next(&one, now).map(|told| told.1), Some(crate::lock::Heard::Granted));
        Binding::new(Epoch(3)).begins_anew(&mut one, is_taken_away);
        assert_eq!(
            listening.next(&one, now).map(|told| told.1),
            Some(crate::lock::Heard::Lost(loss))
        );
    }
}

#[test]
fn a_release_that_is_told_twice_is_one() {
    assert_eq!(released(Status::Error, true), Status::Success, "the first one was not answered");
    assert_eq!(released(Status::Error, false), Status::Error);
    assert_eq!(released(Status::NotReady, true), Status::NotReady);
}

#[test]
fn a_release_is_decided_by_every_answer_but_that_it_is_to_be_asked_for_again() {
    for status in [Status::Success, Status::Error, Status::ClientRemoved] {
        assert!(is_decided(status), "{status:?}");
    }
    for status in [Status::NotReady, Status::BadResponse] {
        assert!(!is_decided(status), "{status:?}");
    }
}
