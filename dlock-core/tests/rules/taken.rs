// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operator takes away what clients hold, or has the primary give no more locks.

use crate::common::site::{reinit, w0, Peer, Site, START};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{ClientId, Seq};
use dlock_core::locks::Known;
use dlock_core::membership::{Exit, Gone, Rules, State};
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::{AtomicWord, RwWord};
use dlock_core::primary::{Draining, Effect, Event};
use dlock_core::wire::control::{
    Act, ControlReply, ControlRequest, FabricKind, LockGrant, Secret, Terms, Whose,
};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

use FabricKind::{Shm, Tcp, Verbs};

const HORIZON_S: u32 = 10;

fn at_s(seconds: u64) -> ServerTime {
    START.plus_ns(seconds * NS)
}

fn operate(site: &mut Site, act: Act) {
    site.handle(Event::Operate { act, by: "uid 0".into() });
}

fn take(site: &mut Site, whose: Whose, grace_s: u32, now: bool) {
    operate(site, Act::TakeAway { whose, grace_s, now });
}

fn holders(name: &str) -> Whose {
    Whose::Holders { name: name.as_bytes().to_vec(), client: None }
}

fn word(site: &mut Site, other: Peer, name: &str) -> AtomicWord {
    let grant = site.get(other, name, LockType::Atomic);
    AtomicWord::from_bits(site.word(&grant))
}

#[test]
fn a_removed_client_keeps_its_lease_and_does_not_come_back() {
    for fabric in [Tcp, Verbs] {
        let mut site = Site::new();
        let (other, peer) = (site.join(Tcp, 0), site.join(fabric, HORIZON_S));
        site.take_lease(peer, 100);
        site.take_rw(peer);
        take(&mut site, Whose::Client(peer.id), 0, false);
        assert_eq!(site.state(peer), Some(State::Fenced(Exit::Operator)));
        let refused = site.ask_back(peer).map(drop);
        assert_eq!(refused, Err(Status::ClientRemoved));
        let answer = site.primary.refusal(&reinit(peer, 9), Status::ClientRemoved);
        assert_eq!(answer, ControlReply::Removed { by: "uid 0".into(), now: false });
        site.until(at_s(u64::from(HORIZON_S) - 1));
        let rw = site.get(other, "rw", LockType::Rw);
        assert_eq!(RwWord::from_bits(site.word(&rw)).client(), peer.id.get());
        site.until(at_s(u64::from(HORIZON_S)));
        assert_eq!(site.word(&rw), 0, "what has no lease ends with the horizon");
        assert!(matches!(site.state(peer), Some(State::Lingering { .. })));
        assert_eq!(site.ask_back(peer).map(drop), Err(Status::ClientRemoved));
        assert_eq!(word(&mut site, other, "leased").client(), peer.id.get());
        site.until(at_s(102));
        assert_eq!(site.state(peer), None);
        assert_eq!(word(&mut site, other, "leased").client(), 0);
        let answer = site.primary.refusal(&reinit(peer, 9), Status::ClientRemoved);
        assert_eq!(
            answer,
            ControlReply::Removed { by: "uid 0".into(), now: false },
            "it is remembered"
        );
    }
}

#[test]
fn at_once_a_lease_ends_with_its_client() {
    let mut site = Site::new();
    let (other, peer) = (site.join(Tcp, 0), site.join(Verbs, HORIZON_S));
    site.take_lease(peer, 100);
    take(&mut site, Whose::Client(peer.id), 0, true);
    assert_eq!((site.state(peer), site.exits(peer)), (None, vec![Exit::OperatorNow]));
    assert_eq!(word(&mut site, other, "leased").client(), 0);
    let answer = site.primary.refusal(&reinit(peer, 9), Status::ClientRemoved);
    assert_eq!(answer, ControlReply::Removed { by: "uid 0".into(), now: true });
}

/// A stopped process has the memory mapped, so the lock stays held, and the operator is told why.
#[test]
fn a_removed_client_that_cannot_be_fenced_is_told_of() {
    let mut site = Site::new();
    let (other, peer) = (site.join(Tcp, 0), site.join(Shm, HORIZON_S));
    site.take_lease(peer, 100);
    let told = Effect::Unfenced { client: peer.id };
    assert!(!site.effects.contains(&told));
    take(&mut site, Whose::Client(peer.id), 0, true);
    assert!(site.effects.contains(&told));
    assert_eq!(word(&mut site, other, "leased").client(), peer.id.get());
    site.memory.mapped.clear();
    site.handle(Event::Retry);
    site.settle();
    assert_eq!((site.state(peer), site.exits(peer)), (None, vec![Exit::OperatorNow]));
    assert_eq!(word(&mut site, other, "leased").client(), 0);
}

#[test]
fn a_client_has_the_time_that_it_was_given_and_is_told() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 60);
    take(&mut site, Whose::Client(peer.id), 5, true);
    let beat = site.control(peer, ControlRequest::Heartbeat);
    assert!(matches!(beat, ControlReply::Alive { asked, .. } if asked == at_s(5)), "{beat:?}");
    site.until(ServerTime(at_s(5).0 - 1));
    assert_eq!(site.state(peer), Some(State::Present));
    site.until(at_s(5));
    assert_eq!(site.state(peer), None);
    assert_eq!(site.exits(peer), [Exit::OperatorNow]);
}

/// A request that had come before the end of the grace counts, even if it is read later.
#[test]
fn nothing_is_judged_before_everything_was_heard() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 60);
    take(&mut site, Whose::Client(peer.id), 5, true);
    site.deaf = true;
    site.until(at_s(6));
    assert_eq!(site.state(peer), Some(State::Present));
    site.listened();
    site.settle();
    assert_eq!(site.state(peer), None);
}

#[test]
fn to_break_a_lock_removes_who_holds_it_and_nobody_else() {
    let mut site = Site::new();
    let (holder, waiter, other) = (site.join(Tcp, 60), site.join(Tcp, 60), site.join(Tcp, 60));
    site.take_lease(holder, 100);
    let grant = site.get(waiter, "leased", LockType::Atomic);
    site.get(other, "leased", LockType::Atomic);
    wait(&mut site, waiter, grant, 1);
    take(&mut site, holders("another"), 0, true);
    assert!(site.primary.operated().is_empty());
    take(&mut site, holders("leased"), 0, true);
    assert_eq!(site.primary.operated(), [holder.id]);
    assert_eq!(site.state(holder), None);
    assert_eq!(site.state(waiter), Some(State::Present));
    assert_eq!(word(&mut site, other, "leased").client(), waiter.id.get(), "it is handed over");
}

#[test]
fn of_several_readers_the_named_one_is_removed() {
    let mut site = Site::new();
    let readers = [site.join(Tcp, 60), site.join(Tcp, 60)];
    for reader in readers {
        let grant = site.get(reader, "shared", LockType::Rw);
        site.execute(reader, &Chain::one(WordOp::Faa { addr: w0(&grant), add: 1 }));
    }
    let client = Some(readers[1].id);
    let whose = Whose::Holders { name: b"shared".to_vec(), client };
    take(&mut site, whose, 0, true);
    assert_eq!(site.primary.operated(), [readers[1].id]);
    let grant = site.get(readers[0], "shared", LockType::Rw);
    assert_eq!(RwWord::from_bits(site.word(&grant)).rcount(), 1);
    take(&mut site, holders("shared"), 0, true);
    assert_eq!(site.primary.operated(), [readers[0].id]);
}

#[test]
fn who_has_given_the_lock_back_in_time_stays() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 60);
    site.take_lease(peer, 100);
    take(&mut site, holders("leased"), 5, true);
    let grant = site.get(peer, "leased", LockType::Atomic);
    let expect = site.word(&grant);
    site.execute(peer, &Chain::one(WordOp::Cas { addr: w0(&grant), expect, swap: 0 }));
    site.until(at_s(6));
    assert_eq!(site.state(peer), Some(State::Present));
    assert_eq!(site.members().asked_until(peer.id), None);
}

#[test]
fn a_reset_is_of_all_or_of_those_that_have_departed() {
    let mut site = Site::new();
    let (here, gone) = (site.join(Tcp, 60), site.join(Tcp, 60));
    site.take_lease(gone, 1_000);
    site.lose(gone, Gone::Closed);
    take(&mut site, Whose::Departed, 0, true);
    assert_eq!((site.state(gone), site.state(here)), (None, Some(State::Present)));
    let others: Vec<_> = (0..3).map(|_| site.join(Tcp, 60)).collect();
    take(&mut site, Whose::All, 0, true);
    site.until(at_s(1));
    assert!(others.iter().all(|&peer| site.state(peer).is_none()));
    assert!(site.members().is_empty());
}

fn wait(site: &mut Site, peer: Peer, grant: LockGrant, seq: u64) {
    let (handle, mode, wait) = (grant.handle, Mode::Exclusive, WaitNumber(1));
    let request = Request::Wait { handle, mode, lease: Lease::secs(5), wait, ticket: None };
    site.command(peer.id, Seq(seq), request);
}

/// The primary's verdict on a word operation of a client whose chains it executes.
fn check(site: &mut Site, peer: Peer, op: WordOp) -> Result<(), Status> {
    let (now, chain) = (site.now, Chain::one(op));
    let (_, locks) = site.primary.parts();
    locks.check_chain(now, &mut site.memory, peer.id, &chain).map(drop)
}

fn drain(site: &mut Site, is_on: bool) {
    operate(site, Act::Drain { is_on });
    site.upkeep();
}

#[test]
fn in_a_drain_no_lock_is_taken_and_what_is_held_is_given_back() {
    let mut site = Site::new();
    let (peer, other) = (site.join(Tcp, 60), site.join(Tcp, 60));
    site.take_lease(peer, 100);
    let grant = site.get(other, "leased", LockType::Atomic);
    wait(&mut site, other, grant, 1);
    site.out.clear();
    drain(&mut site, true);
    let denied = |site: &Site| {
        let last = site.out.last().map(|sent| (sent.client, sent.reply));
        matches!(last, Some((to, Reply::Denied { status: Status::NotReady, .. })) if to == other.id)
    };
    assert!(denied(&site), "{:?}", site.out);
    assert_eq!(site.locks().draining(), Some(Draining::Held(grant.lock)));
    site.out.clear();
    wait(&mut site, other, grant, 2);
    assert!(denied(&site), "{:?}", site.out);

    let rw = site.get(other, "rw", LockType::Rw);
    let fair = site.get(other, "fair", LockType::Fair);
    let free = site.get(other, "free", LockType::Atomic);
    let mine = AtomicWord::new().with_client(other.id.get()).with_timeout(Deadline::NEVER);
    let writer = RwWord::new().with_client(other.id.get());
    for op in [
        WordOp::Cas { addr: w0(&free), expect: 0, swap: mine.into_bits() },
        WordOp::Cas { addr: w0(&rw), expect: 0, swap: writer.into_bits() },
        WordOp::Faa { addr: w0(&rw), add: 1 },
        WordOp::Faa { addr: w0(&fair), add: 1 },
    ] {
        assert_eq!(check(&mut site, other, op), Err(Status::NotReady), "{op:?}");
    }
    let held = site.get(peer, "leased", LockType::Atomic);
    let expect = site.word(&held);
    let longer = AtomicWord::from_bits(expect).with_timeout(Deadline::NEVER).into_bits();
    let extend = WordOp::Cas { addr: w0(&held), expect, swap: longer };
    let release = WordOp::Cas { addr: w0(&held), expect, swap: 0 };
    assert_eq!((check(&mut site, peer, extend), check(&mut site, peer, release)), (Ok(()), Ok(())));
    assert!(!site.effects.contains(&Effect::Idle));
    site.execute(peer, &Chain::one(release));
    site.until(at_s(1));
    assert_eq!(site.locks().draining(), Some(Draining::Idle));
    assert_eq!(site.effects.iter().filter(|effect| **effect == Effect::Idle).count(), 1);

    drain(&mut site, false);
    let take = WordOp::Cas { addr: w0(&free), expect: 0, swap: mine.into_bits() };
    assert_eq!(check(&mut site, other, take), Ok(()));
    assert_eq!(site.locks().draining(), None);
}

#[test]
fn a_client_that_reaches_the_memory_is_to_come_back_over_another_fabric() {
    let mut site = Site::new();
    let (peer, plain) = (site.join(Verbs, HORIZON_S), site.join(Verbs, 0));
    site.stays = true;
    let waits_for_its_program = site.join(Verbs, HORIZON_S);
    site.stays = false;
    site.take_lease(peer, 100);
    drain(&mut site, true);
    assert_eq!(site.state(peer), Some(State::Fenced(Exit::Drained)));
    assert_eq!(site.state(plain), Some(State::Present), "it would lose what has no lease");
    let state = site.state(waits_for_its_program);
    assert_eq!(state, Some(State::Present), "it would lose everything");
    take(&mut site, Whose::Client(waits_for_its_program.id), 0, true);
    let back = site.ask_back(peer).unwrap();
    assert_eq!(site.attach(back), Status::NotReady);
    assert_eq!(site.attach(Peer { fabric: Tcp, ..back }), Status::Success);
    let held = site.get(back, "leased", LockType::Atomic);
    let expect = site.word(&held);
    assert_eq!(AtomicWord::from_bits(expect).client(), peer.id.get());
    site.execute(back, &Chain::one(WordOp::Cas { addr: w0(&held), expect, swap: 0 }));
    site.until(at_s(1));
    assert!(!site.effects.contains(&Effect::Idle), "another reaches the memory");
    take(&mut site, Whose::Client(plain.id), 0, true);
    site.until(at_s(2));
    assert!(site.effects.contains(&Effect::Idle));
}

#[test]
fn where_no_other_fabric_is_offered_a_drain_cuts_no_client_off() {
    for (offered, state) in
        [(vec![Shm, Verbs], State::Present), (vec![Shm, Verbs, Tcp], State::Fenced(Exit::Drained))]
    {
        let mut site = Site::new();
        let offered = offered.into_iter().collect();
        site.begins(Rules { offered, ..Rules::of(site.locks().config()) });
        let peer = site.join(Verbs, HORIZON_S);
        site.take_lease(peer, 100);
        drain(&mut site, true);
        assert_eq!(site.state(peer), Some(state));
    }
}

/// A client that may come back must not be told that it is removed, because then it would not come
/// back.
#[test]
fn who_is_refused_at_the_memory_is_told_whether_it_is_removed() {
    for (is_removed, status) in [(false, Status::BadResponse), (true, Status::ClientRemoved)] {
        let mut site = Site::new();
        let peer = site.join(Shm, HORIZON_S);
        match is_removed {
            true => take(&mut site, Whose::Client(peer.id), 0, false),
            false => drain(&mut site, true),
        }
        assert!(site.effects.contains(&Effect::Revoke { client: peer.id, status }), "{status:?}");
    }
}

#[test]
fn without_a_rule_no_client_operates_the_primary() {
    let mut site = Site::new();
    let (peer, other) = (site.join(Tcp, 60), site.join(Tcp, 60));
    let whose = Whose::Client(other.id);
    let act = Act::TakeAway { whose, grace_s: 0, now: true };
    let reply = site.control(peer, ControlRequest::Operate(act));
    assert_eq!(reply, ControlReply::Error(Status::Denied));
    assert_eq!(site.state(other), Some(State::Present));
}

/// No session of the client is left that could be asked, or fenced.
#[test]
fn a_missing_client_that_an_operator_removes_is_not_waited_for_and_does_not_come() {
    let of_old = |id: u32, horizon_s| Known {
        client: ClientId::new(id).unwrap(),
        secrets: [Secret([id as u8; 16]); 3],
        identity: None,
        horizon_s,
        has_locks: true,
    };
    let removes = |site: &mut Site, known: &Known, grace_s, now| {
        take(site, Whose::Client(known.client), grace_s, now);
        site.primary.operated().to_vec()
    };
    let all = [of_old(5, 0), of_old(6, 10)];
    for is_now in [true, false] {
        let mut site = Site::new();
        site.handle(Event::Awaits { known: all.to_vec(), deadline_s: 30 });
        let stranger = of_old(9, 0);
        assert!(removes(&mut site, &stranger, 0, true).is_empty());
        assert!(removes(&mut site, &all[1], 60, is_now).is_empty(), "there is no one to ask");
        assert_eq!(removes(&mut site, &all[1], 0, is_now), [all[1].client]);
        let peer = Peer {
            id: all[1].client,
            secret: all[1].secrets[0],
            control: 0,
            fabric: Tcp,
            terms: Terms::UNLIMITED,
        };
        let refused = site.open_twice(&reinit(peer, 10)).map(drop);
        assert_eq!(refused, Err(Status::ClientRemoved));
        let answer = site.primary.refusal(&reinit(peer, 10), Status::ClientRemoved);
        assert_eq!(answer, ControlReply::Removed { by: "uid 0".into(), now: is_now });
        // one without a horizon relies on its locks until it is known to have ended
        assert_eq!(removes(&mut site, &all[0], 0, false), [all[0].client]);
        site.until(START.plus_ns(10_000 * NS));
        assert!(site.locks().is_recovering());
        if !is_now {
            let left = site.locks().progress().unwrap().missing;
            let horizon = Some(START.plus_ns(10 * NS));
            assert_eq!(left, [(all[0].client, None), (all[1].client, horizon)]);
        }
        assert_eq!(removes(&mut site, &all[0], 0, true), [all[0].client]);
        site.until(site.now);
        assert!(!site.locks().is_recovering());
    }
}
