// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that are back at a recovering primary, and do not tell everything; and when a primary
//! must know that a client has locks.

use crate::common::site::{reinit, Peer, Site, GRACE_S, START};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::{ClientId, LockId};
use dlock_core::locks::Known;
use dlock_core::membership::{Connection, Exit, Gone, State};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::memory::words::AtomicWord;
use dlock_core::primary::{Effect, Event};
use dlock_core::roster::Change;
use dlock_core::session::was_heard;
use dlock_core::wire::control::{
    Claim, ControlReply, ControlRequest, FabricKind, HeldClaim, LockDesc, Secret, Terms, UNLIMITED,
};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use FabricKind::{Shm, Tcp};

const DEADLINE_S: u32 = 30;

/// A client of the predecessor.
fn of_old(id: u32, horizon_s: u32) -> Known {
    let secrets = [Secret([id as u8; 16]); 3];
    Known {
        client: ClientId::new(id).unwrap(),
        secrets,
        identity: None,
        horizon_s,
        has_locks: true,
    }
}

/// A primary that waits for these.
fn waiting(known: &[Known]) -> Site {
    let mut site = Site::new();
    site.handle(Event::Awaits { known: known.to_vec(), deadline_s: DEADLINE_S });
    site
}

/// It comes back.
fn comes(site: &mut Site, known: Known) -> Peer {
    comes_by(site, known, Tcp)
}

fn comes_by(site: &mut Site, known: Known, fabric: FabricKind) -> Peer {
    let (id, secret) = (known.client, known.secrets[0]);
    let peer = Peer { id, secret, control: 0, fabric, terms: Terms::UNLIMITED };
    let admission = site.open_twice(&reinit(peer, known.horizon_s)).unwrap();
    let peer = site.peer(admission, fabric);
    assert_eq!(site.attach(peer), Status::Success);
    peer
}

/// What it is told of its horizon.
fn beats(site: &mut Site, peer: Peer) -> ServerTime {
    let is_recovering = site.locks().is_recovering();
    match site.control(peer, ControlRequest::Heartbeat) {
        reply @ ControlReply::Alive { until, recovering, .. } => {
            assert!(was_heard(&reply) && recovering == is_recovering);
            until
        }
        other => panic!("{other:?}"),
    }
}

fn claims(site: &mut Site, peer: Peer, lease_ns: u64) -> WordAddr {
    let desc =
        LockDesc { name: b"l".to_vec(), lock_type: LockType::Atomic, lease_s: 0, tokens: false };
    let held = Some(HeldClaim::hold(Mode::Exclusive, lease_ns));
    let claim = Claim { lock: LockId(9), desc, held };
    match site.control(peer, ControlRequest::UpdateLocks(vec![claim])) {
        ControlReply::Locks(locks) => WordAddr::new(locks[0].unwrap().slot, Word::W0),
        other => panic!("{other:?}"),
    }
}

fn at(seconds: u64) -> ServerTime {
    START.plus_ns(seconds * NS)
}

/// Its connection was reset before it could tell what it holds, which its leases are not known of.
#[test]
fn a_client_that_is_cut_off_before_its_claims_is_waited_for_and_its_claims_count() {
    let known = of_old(5, 0);
    let mut site = waiting(&[known]);
    let peer = comes(&mut site, known);
    site.lose(peer, Gone::Closed);
    site.until(at(2 * u64::from(DEADLINE_S) + GRACE_S));
    assert!(site.locks().is_recovering() && site.exits(peer).is_empty());
    let peer = comes(&mut site, known);
    let word = claims(&mut site, peer, 100 * NS);
    assert_eq!(site.control(peer, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(!site.locks().is_recovering());
    assert_ne!(site.memory.read(word), 0, "it has kept its lock");
    // from now on it is known what it has
    site.lose(peer, Gone::Closed);
    site.until(site.now.plus_ns((GRACE_S + 1) * NS));
    assert_ne!(site.state(peer), Some(State::Absent { since: at(0), is_closed: true }));
    assert!(!matches!(site.state(peer), Some(State::Absent { .. } | State::Present)));
}

/// Nothing is known of what it holds: it is as if it had not come.
#[test]
fn a_client_that_comes_back_and_cannot_be_given_memory_is_waited_for() {
    let known = of_old(5, 0);
    let mut site = waiting(&[known]);
    let (id, secret) = (known.client, known.secrets[0]);
    let peer = Peer { id, secret, control: 0, fabric: Tcp, terms: Terms::UNLIMITED };
    let request = reinit(peer, 0);
    let admission = site.open_twice(&request).unwrap();
    let refused = site.peer(admission, Tcp);
    site.tell(Event::NoMemory { client: id, is_new: false });
    site.settle();
    assert!(site.exits(refused).is_empty() && site.locks().is_recovering());
    assert!(!site.effects.contains(&Effect::Keep(Change::Left { client: id })));
    assert_eq!(
        site.control(refused, ControlRequest::Heartbeat),
        ControlReply::Error(Status::Error)
    );
    site.until(at(2 * u64::from(DEADLINE_S)));
    assert!(site.locks().is_recovering());
    let peer = comes(&mut site, known);
    claims(&mut site, peer, 100 * NS);
    assert_eq!(site.control(peer, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(!site.locks().is_recovering());
}

/// Stopped between its reinit and its claims, with the memory mapped: it cannot be fenced,
/// nor does it act.
#[test]
fn a_client_that_cannot_be_fenced_keeps_no_recovery_from_ending() {
    let cases = [(10, false), (10, true), (0, true)];
    let leases = [true, false];
    for ((horizon_s, is_hurried), is_leased) in
        cases.into_iter().flat_map(|case| leases.map(|is_leased| (case, is_leased)))
    {
        let all = [of_old(5, horizon_s), of_old(6, horizon_s)];
        let mut site = waiting(&all);
        let stopped = comes_by(&mut site, all[0], Shm);
        let word = claims(&mut site, stopped, if is_leased { 100 * NS } else { u64::MAX });
        let other = comes(&mut site, all[1]);
        assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
        if is_hurried {
            site.handle(Event::Hurries);
        }
        // the other one lives
        let last = at(u64::from(DEADLINE_S) + 10);
        let mut s = 0;
        while site.locks().is_recovering() {
            assert!(site.now < last, "{horizon_s} {is_hurried}: {:?}", site.locks().progress());
            s += 1;
            site.until(at(s));
            beats(&mut site, other);
        }
        if horizon_s > 0 {
            assert!(s >= 10, "what it relied on it relies on until its horizon");
        }
        let lock = site.get(other, "l", LockType::Atomic);
        assert_eq!(site.word(&lock) != 0, is_leased, "a lease outlasts a session");
        assert_eq!(site.word(&lock), site.memory.read(word));
        assert!(
            matches!(site.state(stopped), Some(State::Ending(_))),
            "it may still act: not here"
        );
        assert!(site.exits(stopped).is_empty());
        site.die(stopped);
        site.handle(Event::Retry);
        site.settle();
        site.until(site.now.plus_ns(100 * NS));
        assert_eq!(site.state(stopped), None);
        assert_eq!(site.word(&lock), 0);
    }
}

/// It has not told what it holds, and relies on that: also where it cannot be fenced.
#[test]
fn a_client_whose_certificate_is_revoked_in_a_recovery_is_waited_for_until_its_horizon() {
    const HORIZON_S: u64 = 60;
    for fabric in [Tcp, Shm] {
        let known = of_old(5, HORIZON_S as u32);
        let mut site = waiting(&[known]);
        site.until(at(HORIZON_S - 10));
        let peer = comes_by(&mut site, known, fabric);
        let until = site.members().until(peer.id).unwrap();
        assert_eq!(until, at(2 * HORIZON_S - 10));
        site.handle(Event::Revoked { client: peer.id, connection: Connection::Channel(1) });
        for s in HORIZON_S - 10..=2 * HORIZON_S {
            site.until(at(s));
            site.handle(Event::Retry);
            site.settle();
            site.until(at(s));
            assert_eq!(site.locks().is_recovering(), at(s) < until, "{fabric:?}: {s}");
        }
    }
}

/// It was cut off when it was named, or before; it may not come back to be waited for again.
#[test]
fn a_laggard_whose_certificate_is_revoked_keeps_no_recovery_from_ending() {
    for last_s in [25, 31] {
        let known = of_old(5, 20);
        let mut site = waiting(&[known]);
        let peer = comes(&mut site, known);
        for s in [0, 10, 20, last_s] {
            site.until(at(s));
            site.control(peer, ControlRequest::Heartbeat);
        }
        site.handle(Event::Revoked { client: peer.id, connection: Connection::Channel(1) });
        site.settle();
        assert_eq!(site.state(peer), Some(State::Fenced(Exit::Revoked)));
        site.until(at(35));
        assert_eq!(site.ask_back(peer).map(drop), Err(Status::NotReady));
        assert!(site.locks().is_recovering(), "it may rely on what it held");
        site.until(at(52));
        assert!(!site.locks().is_recovering());
        assert_eq!((site.state(peer), site.exits(peer)), (None, vec![Exit::Laggard]));
    }
}

/// It goes on while the recovery lasts, and is told nothing of its being given up.
#[test]
fn a_client_that_was_given_up_and_comes_back_is_waited_for_again() {
    let all = [of_old(5, 10), of_old(6, 0)];
    let mut site = waiting(&all);
    let stopped = comes_by(&mut site, all[0], Shm);
    site.until(at(11));
    assert!(matches!(site.state(stopped), Some(State::Ending(_))));
    let back = site.come_back(stopped).unwrap();
    let other = comes(&mut site, all[1]);
    assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(site.locks().is_recovering());
    let word = claims(&mut site, back, 100 * NS);
    assert_eq!(site.control(back, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(!site.locks().is_recovering());
    assert_ne!(site.memory.read(word), 0, "its claims count");
}

/// It relied on a hold without a lease, which the recovery has not kept.
#[test]
fn a_client_that_comes_back_after_the_recovery_that_gave_it_up_is_told_what_was_ended() {
    for is_leased in [true, false] {
        let all = [of_old(5, 10), of_old(6, 10)];
        let mut site = Site::new();
        site.begins_recovering(0);
        site.handle(Event::Awaits { known: all.to_vec(), deadline_s: 1 });
        let stopped = comes_by(&mut site, all[0], Shm);
        let word = claims(&mut site, stopped, if is_leased { 100 * NS } else { u64::MAX });
        let other = comes(&mut site, all[1]);
        assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
        let mut s = 0;
        while site.locks().is_recovering() {
            s += 1;
            site.until(at(s));
            beats(&mut site, other);
        }
        assert_eq!(site.memory.read(word) != 0, is_leased);
        let back = site.come_back(stopped).unwrap();
        assert_eq!(back.terms.lapses - stopped.terms.lapses, 1, "a lease is told by the lock");
    }
}

/// The recovery knows how many clients there are, and not which.
#[test]
fn a_client_that_was_given_up_and_comes_back_counts_as_one_that_has_not_told() {
    let mut site = Site::new();
    site.begins_recovering(2);
    site.handle(Event::Awaits { known: Vec::new(), deadline_s: DEADLINE_S });
    let stopped = comes_by(&mut site, of_old(5, 10), Shm);
    site.until(at(11));
    assert!(matches!(site.state(stopped), Some(State::Ending(_))));
    let back = site.come_back(stopped).unwrap();
    let other = comes(&mut site, of_old(6, 60));
    assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(site.locks().is_recovering(), "client 5 may hold something");
    assert_eq!(site.control(back, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(!site.locks().is_recovering());
}

/// The primary has closed its connection, so that nothing tells of the client's end: it has the
/// grace to try again.
#[test]
fn a_client_that_cannot_be_given_memory_and_does_not_try_again_ends_with_the_grace() {
    let known = of_old(5, 0);
    let mut site = waiting(&[known]);
    let peer = comes(&mut site, known);
    assert_eq!(site.control(peer, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(!site.locks().is_recovering());
    site.lose(peer, Gone::Silent);
    site.until(site.now.plus_ns((GRACE_S + 1) * NS));
    for tries in 0..3 {
        let request = reinit(peer, 0);
        let admission = site.open_twice(&request).unwrap();
        let refused = site.peer(admission, Tcp);
        site.tell(Event::NoMemory { client: peer.id, is_new: false });
        site.settle();
        site.until(site.now.plus_ns((GRACE_S - 1) * NS));
        assert_eq!(site.exits(refused), [], "the grace begins with every try: {tries}");
    }
    site.until(site.now.plus_ns(NS));
    assert_eq!(site.exits(peer), [Exit::Grace]);
}

/// It was killed between the answer to `Reinit` and its attach: no process of it is known here.
#[test]
fn a_client_that_has_come_back_and_died_before_it_attached_is_not_waited_for() {
    let all = [of_old(5, 0), of_old(6, 0)];
    let mut site = waiting(&all);
    let other = comes(&mut site, all[1]);
    assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
    let (id, secret) = (all[0].client, all[0].secrets[0]);
    let peer = Peer { id, secret, control: 0, fabric: Shm, terms: Terms::UNLIMITED };
    let admission = site.open_twice(&reinit(peer, 0)).unwrap();
    let dead = site.peer(admission, Shm);
    for client in [other.id, dead.id] {
        assert!(site.locks().is_recovering());
        site.handle(Event::PredecessorEnded { client });
        site.until(at(1));
    }
    assert!(!site.locks().is_recovering());
    assert_eq!(site.exits(dead), [Exit::Died]);
    assert_eq!(site.state(other), Some(State::Present), "it has attached: its own are watched");
}

/// The primary stood still: clients may have knocked all the time.
#[test]
fn a_recovery_gives_a_client_up_after_a_listening_and_not_before() {
    let mut site = waiting(&[of_old(5, 10)]);
    site.now = at(600);
    for is_over in [false, true] {
        site.tell(Event::Tick);
        site.tell(Event::Upkeep { budget: u32::MAX });
        assert_eq!(site.locks().is_recovering(), !is_over);
        let asked = std::iter::from_fn(|| site.primary.poll()).collect::<Vec<_>>();
        assert_eq!(asked.contains(&Effect::Listen), !is_over, "{asked:?}");
        site.tell(Event::Listened);
    }
}

/// It beats for ever, and never says that it has told everything.
#[test]
fn a_recovery_does_not_wait_for_ever_for_a_client_with_a_horizon_that_is_here() {
    for leased in [true, false] {
        let all = [of_old(5, 10), of_old(6, 10)];
        let mut site = waiting(&all);
        let [slow, other] = all.map(|known| comes(&mut site, known));
        assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
        let word = claims(&mut site, slow, if leased { 600 * NS } else { u64::MAX });
        for s in (0..30).step_by(5) {
            site.until(at(s));
            assert_eq!([slow, other].map(|peer| beats(&mut site, peer)), [at(s + 10); 2]);
        }
        let closed = Effect::CloseControl { client: slow.id, control: slow.control };
        for s in [30, 34] {
            site.until(at(s));
            assert!(site.effects.contains(&closed), "no answer extends its horizon any more");
            let refused = site.control(slow, ControlRequest::ReinitDone);
            assert_eq!(refused, ControlReply::Error(Status::Error));
            let again = site.open(&reinit(slow, 10));
            assert_eq!(again, Err(Status::NotReady), "nor does another session");
            assert_eq!(beats(&mut site, other), at(s + 10));
            assert!(site.locks().is_recovering());
        }
        site.until(at(35));
        assert_eq!(site.exits(slow), [Exit::Laggard], "as if it had not come");
        assert!(!site.locks().is_recovering());
        assert_eq!(site.memory.read(word), 0);
    }
}

#[test]
fn who_has_told_everything_in_time_keeps_its_session_however_long_others_are_waited_for() {
    let mut site = waiting(&[of_old(5, 10), of_old(6, 600)]);
    let early = comes(&mut site, of_old(5, 10));
    let word = claims(&mut site, early, u64::MAX);
    assert_eq!(site.control(early, ControlRequest::ReinitDone), ControlReply::Done);
    for s in (0..=500).step_by(5) {
        site.until(at(s));
        assert_eq!(beats(&mut site, early), at(s + 10));
    }
    assert!(site.locks().is_recovering(), "somebody else is waited for");
    site.until(at(509));
    let other = comes(&mut site, of_old(6, 600));
    assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
    assert!(!site.locks().is_recovering() && site.memory.read(word) != 0);
}

/// Its process stands still: it lapses, and cannot be fenced. Then it goes on, and comes back.
#[test]
fn a_client_that_lags_while_it_is_fenced_does_not_come_back() {
    let mut site = waiting(&[of_old(5, 10)]);
    let slow = comes_by(&mut site, of_old(5, 10), Shm);
    for (s, is_lagging) in [(20, false), (31, true)] {
        site.until(at(s));
        assert!(matches!(site.state(slow), Some(State::Ending(_))), "it has the memory mapped");
        if is_lagging {
            assert_eq!(site.open(&reinit(slow, 10)), Err(Status::ClientRemoved), "{s}");
        }
    }
    assert!(!site.locks().is_recovering(), "its process lives, and is not waited for");
    assert!(matches!(site.state(slow), Some(State::Ending(_))));
    site.die(slow);
    site.handle(Event::Retry);
    site.until(at(32));
    assert_eq!(site.state(slow), None);
}

/// A drop-in program takes as long as it wants to, but for an operator.
#[test]
fn a_client_without_a_horizon_is_waited_for_until_an_operator_does_not_want_to() {
    let mut site = waiting(&[of_old(5, 0)]);
    let slow = comes(&mut site, of_old(5, 0));
    site.until(at(100_000));
    assert!(site.locks().is_recovering());
    assert_eq!(beats(&mut site, slow), UNLIMITED);
    assert_eq!(site.state(slow), Some(State::Present));
    site.handle(Event::Hurries);
    site.until(at(100_001));
    assert!(!site.locks().is_recovering());
    assert_eq!(site.exits(slow), [Exit::Laggard], "it had nothing");

    let mut site = waiting(&[of_old(5, 0)]);
    site.handle(Event::Hurries);
    site.until(at(0));
    assert!(!site.locks().is_recovering(), "it is not here");
}

/// The end of a recovery in which it was counted, but not known, ends its lagging.
#[test]
fn who_lags_in_a_recovery_that_is_over_does_not_lag_any_more() {
    let mut site = Site::new();
    site.begins_recovering(1);
    site.handle(Event::Awaits { known: Vec::new(), deadline_s: DEADLINE_S });
    let [slow, other] = [5, 6].map(|id| comes(&mut site, of_old(id, 60)));
    site.until(at(31));
    assert_eq!(site.open(&reinit(slow, 60)), Err(Status::NotReady), "it lags");
    let other = site.come_back(other);
    assert!(other.is_err(), "both do");
    let third = comes(&mut site, of_old(7, 60));
    assert_eq!(site.control(third, ControlRequest::ReinitDone), ControlReply::Done);
    assert!(!site.locks().is_recovering());
    let slow = site.come_back(slow).unwrap();
    assert_eq!(beats(&mut site, slow), at(91));
    let lock = site.get(slow, "l", LockType::Atomic);
    let until = at(600).tick();
    let word = AtomicWord::new().with_client(slow.id.get()).with_timeout(until).into_bits();
    site.memory.set(WordAddr::new(lock.slot, Word::W0), word);
    site.lose(slow, Gone::Silent);
    site.until(at(92));
    assert!(site.exits(slow).is_empty(), "what has a lease is kept, as of anybody else");
    assert_eq!(site.memory.read(WordAddr::new(lock.slot, Word::W0)), word);
}

/// It is given up, ends, and is one of those that are counted, not two.
#[test]
fn a_client_that_is_given_up_and_ends_counts_once() {
    let mut site = Site::new();
    site.begins_recovering(2);
    site.handle(Event::Awaits { known: Vec::new(), deadline_s: DEADLINE_S });
    let stopped = comes_by(&mut site, of_old(5, 10), Shm);
    site.until(at(11));
    assert!(matches!(site.state(stopped), Some(State::Ending(_))));
    site.die(stopped);
    site.handle(Event::Retry);
    site.until(at(100));
    assert_eq!(site.state(stopped), None);
    assert!(site.locks().is_recovering(), "another one is waited for");
    let other = comes(&mut site, of_old(6, 60));
    assert_eq!(site.control(other, ControlRequest::ReinitDone), ControlReply::Done);
    site.settle();
    assert!(!site.locks().is_recovering());
}

/// It asks for another session, and does not tell anything.
#[test]
fn a_session_that_is_prepared_does_not_help_a_client_that_lags() {
    let mut site = waiting(&[of_old(5, 60)]);
    let slow = comes(&mut site, of_old(5, 60));
    site.until(at(29));
    let prepared = site.ask_back(slow).unwrap();
    site.until(at(30));
    let closed = |peer: Peer| Effect::CloseControl { client: peer.id, control: peer.control };
    assert!([slow, prepared].map(closed).iter().all(|one| site.effects.contains(one)));
    let shown = site.control(prepared, ControlRequest::ReinitDone);
    assert_eq!(shown, ControlReply::Error(Status::Error));
}

/// Nobody else gets the id of a client that may come at any time.
#[test]
fn a_new_client_has_no_id_of_one_that_may_come_back() {
    let idle = Known { has_locks: false, ..of_old(101, 0) };
    let mut site = waiting(&[idle]);
    let new = site.join(Tcp, 0);
    assert_ne!(new.id, idle.client);
    assert_eq!(comes(&mut site, idle).id, idle.client);
}

/// What is kept for a successor must name it before it hears of its first lock, and only then.
#[test]
fn a_client_that_is_given_its_first_lock_has_locks() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 0);
    beats(&mut site, peer);
    let has_locks = Effect::Keep(Change::HasLocks { client: peer.id });
    let wrong =
        vec![
            LockDesc { name: b"l".to_vec(), lock_type: LockType::Rw, lease_s: 0, tokens: false };
            32
        ];
    site.control(peer, ControlRequest::GetLocks(wrong));
    assert!(!site.effects.contains(&has_locks), "it was given none");
    let desc = |name: &[u8], lock_type| LockDesc {
        name: name.to_vec(),
        lock_type,
        lease_s: 0,
        tokens: false,
    };
    site.control(peer, ControlRequest::GetLocks(Vec::new()));
    assert!(!site.effects.contains(&has_locks), "nor was it here");
    let other = site.join(Tcp, 0);
    site.get(other, "l", LockType::Fair);
    let of_two = vec![desc(b"l", LockType::Rw), desc(b"m", LockType::Rw)];
    match site.control(peer, ControlRequest::GetLocks(of_two)) {
        ControlReply::Locks(locks) => assert!(locks[0].is_err() && locks[1].is_ok()),
        other => panic!("{other:?}"),
    }
    site.get(peer, "n", LockType::Rw);
    let told = site.effects.iter().filter(|effect| **effect == has_locks).count();
    assert_eq!(told, 1);

    let mut site = waiting(&[of_old(5, 0)]);
    let back = comes(&mut site, of_old(5, 0));
    claims(&mut site, back, NS);
    let has_locks = Effect::Keep(Change::HasLocks { client: back.id });
    assert!(site.effects.contains(&has_locks), "places count as well");
}

/// A primary that crashes before the client is fenced leaves the list to the next one.
#[test]
fn a_client_that_leaves_a_recovering_primary_is_known_to_have_left_at_once() {
    let known = [of_old(1, 9), of_old(2, 9)];
    let mut site = waiting(&known);
    let peer = comes(&mut site, known[0]);
    site.unfenced.insert(peer.id);
    let reply = site.control(peer, ControlRequest::Deinit);
    assert_eq!(reply, ControlReply::Error(Status::NotReady), "it recovers");
    assert!(matches!(site.state(peer), Some(State::Ending(_))));
    let left = Effect::Keep(Change::Left { client: peer.id });
    assert!(site.effects.contains(&left), "{:?}", site.effects);
}

/// The answer by which it would have heard of its shorter horizon may be lost: then it relies on
/// what it has by its session at the predecessor.
#[test]
fn a_client_that_comes_back_with_a_shorter_horizon_keeps_its_predecessors() {
    const HORIZON_S: u64 = 10;
    let known = of_old(1, HORIZON_S as u32);
    let mut site = waiting(&[known, of_old(2, 0)]);
    site.until(START.plus_ns(NS));
    let peer = comes(&mut site, Known { horizon_s: 2, ..known });
    claims(&mut site, peer, u64::from(u32::MAX) * NS);
    site.until(START.plus_ns((HORIZON_S - 1) * NS));
    assert_eq!(site.state(peer), Some(State::Present));
    site.until(START.plus_ns(HORIZON_S * NS));
    assert_ne!(site.state(peer), Some(State::Present), "it is silent");
}
