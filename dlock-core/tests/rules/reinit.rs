// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reinit has two phases: what becomes of the old session, and of the prepared one.

use crate::common::site::{init, reinit, w0, Peer, Site, GRACE_S, START};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::Seq;
use dlock_core::membership::{Exit, Gone, Orphans, State, PREPARED_S, SHOW_WAIT_NS};
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::AtomicWord;
use dlock_core::primary::{Effect, Event};
use dlock_core::roster::Change;
use dlock_core::wire::about::About;
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind, Secret, UNLIMITED};
use dlock_core::wire::message::{LockType, Mode, Request, WaitNumber};
use dlock_core::wire::status::Status;

use FabricKind::{Shm, Tcp, Verbs};

fn is_served(site: &mut Site, peer: Peer) -> bool {
    match site.control(peer, ControlRequest::Heartbeat) {
        ControlReply::Alive { .. } => true,
        ControlReply::Error(Status::Error) => false,
        other => panic!("{other:?}"),
    }
}

/// Takes an atomic lock without an end; returns its word afterwards.
fn take(site: &mut Site, peer: Peer, name: &str) -> u64 {
    let grant = site.get(peer, name, LockType::Atomic);
    let swap =
        AtomicWord::new().with_client(peer.id.get()).with_timeout(Deadline::NEVER).into_bits();
    site.execute(peer, &Chain::one(WordOp::Cas { addr: w0(&grant), expect: 0, swap }));
    site.word(&grant)
}

/// Has the client wait for a lock that another client holds; [`waiters`] tells whether it is
/// queued.
fn wait_for(site: &mut Site, peer: Peer, name: &str) {
    let handle = site.get(peer, name, LockType::Atomic).handle;
    let (mode, wait) = (Mode::Exclusive, WaitNumber(1));
    let request = Request::Wait { handle, mode, lease: Lease::secs(60), wait, ticket: None };
    site.command(peer.id, Seq(1), request);
}

fn waiters(site: &mut Site, peer: Peer, name: &str) -> usize {
    let grant = site.get(peer, name, LockType::Atomic);
    site.locks().waiters(grant.slot)
}

fn at(seconds: u64) -> ServerTime {
    START.plus_ns(seconds * NS)
}

#[test]
fn what_a_client_tells_of_itself_is_kept_and_replaced_by_that_client_alone() {
    let tells = |request: ControlRequest, label: &str| match request {
        ControlRequest::Init { version_min, version_max, tp_mode, horizon_s, .. } => {
            let about = About::new(label, "node1", "7", 9).unwrap();
            ControlRequest::Init { version_min, version_max, tp_mode, horizon_s, about }
        }
        ControlRequest::Reinit {
            version_min,
            version_max,
            tp_mode,
            horizon_s,
            client,
            secret,
            ..
        } => {
            let about = About::new(label, "node1", "7", 9).unwrap();
            ControlRequest::Reinit {
                version_min,
                version_max,
                tp_mode,
                horizon_s,
                client,
                secret,
                about,
            }
        }
        other => panic!("{other:?}"),
    };
    let mut site = Site::new();
    let admission = site.open_twice(&tells(init(0), "first")).expect("it is let in");
    let peer = site.peer(admission, Tcp);
    let label = |site: &Site| site.members().about(peer.id).map(|about| about.label().to_string());
    assert_eq!(label(&site), Some("first".into()));
    let thief = Peer { secret: Secret([9; 16]), ..peer };
    assert!(site.open(&tells(reinit(thief, 0), "thief")).is_err());
    assert_eq!(label(&site), Some("first".into()));
    site.open(&tells(reinit(peer, 0), "second")).expect("it comes back");
    assert_eq!(label(&site), Some("second".into()));
}

#[test]
fn a_session_goes_on_until_its_client_shows_that_it_has_the_next_one() {
    for fabric in [Shm, Tcp, Verbs] {
        let mut site = Site::new();
        let (holder, old) = (site.join(Tcp, 0), site.join(fabric, 0));
        take(&mut site, holder, "held");
        wait_for(&mut site, old, "held");
        assert_eq!(waiters(&mut site, holder, "held"), 1);
        site.effects.clear();
        let new = site.ask_back(old).unwrap();
        assert_ne!(new.secret, old.secret, "an Attach tells which session it is for");
        assert!(
            matches!(site.effects[..], [Effect::Keep(Change::Prepared { .. })]),
            "nothing ends"
        );
        assert!(is_served(&mut site, old));
        assert_eq!(site.attach(new), Status::Success);
        assert!(is_served(&mut site, old), "nor when it has its channel");
        assert_eq!(waiters(&mut site, holder, "held"), 1, "what it waits for it waits for");
        let closes = |effect: &Effect| matches!(effect, Effect::CloseControl { .. });
        assert!(!site.effects.iter().any(closes));

        site.effects.clear();
        assert!(is_served(&mut site, new));
        let (client, control) = (old.id, old.control);
        let expected = [
            Effect::CloseControl { client, control },
            Effect::CloseChannel { client, channel: Some(1) },
            Effect::Keep(Change::Moved { client }),
            Effect::Switch { client },
        ];
        assert_eq!(site.effects, expected);
        assert_eq!(waiters(&mut site, holder, "held"), 0, "a wait ends with its channel");
        assert!(!is_served(&mut site, old), "the old connection speaks for nobody");
        site.lose(old, Gone::Closed);
        assert_eq!(site.state(new), Some(State::Present), "nor does its end");
    }
}

#[test]
fn a_reinit_whose_answers_do_not_arrive_changes_nothing_and_may_be_repeated() {
    for (fabric, attaches) in [(Shm, true), (Tcp, true), (Verbs, true), (Tcp, false)] {
        let mut site = Site::new();
        let old = site.join(fabric, 0);
        let word = take(&mut site, old, "held");
        for _ in 0..3 {
            let lost = site.ask_back(old).unwrap();
            if attaches {
                assert_eq!(site.attach(lost), Status::Success);
            }
            site.lose(lost, Gone::Closed);
            assert_eq!(site.state(old), Some(State::Present));
            assert!(is_served(&mut site, old));
            assert!(!is_served(&mut site, lost));
        }
        let back = site.come_back(old).unwrap();
        assert!(is_served(&mut site, back) && !is_served(&mut site, old));
        let grant = site.get(back, "held", LockType::Atomic);
        assert_eq!(site.word(&grant), word);
    }
}

#[test]
fn of_all_attempts_of_a_client_one_is_prepared() {
    let mut site = Site::new();
    let old = site.join(Tcp, 0);
    let mut before = site.ask_back(old).unwrap();
    assert_eq!(site.attach(before), Status::Success);
    for _ in 0..100 {
        let client = old.id;
        site.effects.clear();
        let next = site.ask_back(old).unwrap();
        let closed = Effect::CloseControl { client, control: before.control };
        assert_eq!(site.effects.first(), Some(&closed));
        let closes_one = |e: &&Effect| matches!(e, Effect::CloseChannel { channel: Some(_), .. });
        assert_eq!(site.effects.iter().filter(closes_one).count(), 1);
        assert_eq!(site.attach(before), Status::Error, "it was given up");
        assert_eq!(site.attach(next), Status::Success);
        before = next;
    }
    assert!(is_served(&mut site, old));
    assert!(is_served(&mut site, before) && !is_served(&mut site, old));
}

#[test]
fn a_client_that_stops_in_between_keeps_its_session_and_the_prepared_one_is_given_up() {
    for attaches in [false, true] {
        let mut site = Site::new();
        let old = site.join(Tcp, 0);
        let new = site.ask_back(old).unwrap();
        if attaches {
            assert_eq!(site.attach(new), Status::Success);
        }
        site.until(ServerTime(at(PREPARED_S).0 - 1));
        let closed = Effect::CloseControl { client: new.id, control: new.control };
        assert!(!site.effects.contains(&closed));
        site.until(at(PREPARED_S));
        assert!(site.effects.contains(&closed));
        assert_eq!(site.attach(new), Status::Error);
        assert!(!is_served(&mut site, new), "it goes on too late");
        assert!(is_served(&mut site, old));
    }
}

#[test]
fn what_comes_too_late_moves_nothing_although_nobody_has_noticed_the_time() {
    for attaches in [false, true] {
        let mut site = Site::new();
        let old = site.join(Tcp, 0);
        let new = site.ask_back(old).unwrap();
        if attaches {
            assert_eq!(site.attach(new), Status::Success);
        }
        // the primary stood still for the whole time of a prepared session
        site.now = at(PREPARED_S);
        if !attaches {
            assert_eq!(site.attach(new), Status::Error);
        }
        assert!(!is_served(&mut site, new));
        assert!(is_served(&mut site, old));
    }
    const { assert!(SHOW_WAIT_NS > PREPARED_S * NS) };
}

#[test]
fn a_client_that_is_coming_back_keeps_its_place_and_what_it_has_until_it_is_given_up() {
    let mut site = Site::with(Some(GRACE_S), Orphans::Lease, 1);
    let old = site.join(Tcp, 0);
    let word = take(&mut site, old, "held");
    site.lose(old, Gone::Closed);
    site.until(at(GRACE_S - 1));
    let first = site.ask_back(old).unwrap();
    assert_eq!(site.attach(first), Status::Success);
    let is_absent = |site: &Site| matches!(site.state(old), Some(State::Absent { .. }));
    site.until(at(GRACE_S + 1));
    assert!(is_absent(&site), "it is coming back");
    assert_eq!(site.open(&init(0)), Err(Status::ServerNoResource));
    let grant = site.get(first, "held", LockType::Atomic);
    assert_eq!((site.word(&grant), site.state(old)), (word, Some(State::Present)));

    site.lose(first, Gone::Closed);
    let second = site.ask_back(first).unwrap();
    site.until(at(GRACE_S + 1 + GRACE_S.max(PREPARED_S)));
    assert!(site.effects.contains(&Effect::Lapses { client: old.id }), "it was given up");
    assert!(!is_served(&mut site, second));
    let back = site.ask_back(first).map(drop);
    assert_eq!(back, Err(Status::ClientRemoved));
}

#[test]
fn a_member_without_connections_comes_back_at_once_and_again_if_the_answer_is_lost() {
    let mut site = Site::new();
    let old = site.join(Tcp, 0);
    let word = take(&mut site, old, "held");
    site.lose(old, Gone::Closed);
    site.primary.parts().0.channel_ended(old.id, 1, false);
    for _ in 0..3 {
        let lost = site.ask_back(old).unwrap();
        assert_eq!((lost.secret, site.state(old)), (old.secret, Some(State::Present)));
        site.lose(lost, Gone::Closed);
    }
    let back = site.come_back(old).unwrap();
    let grant = site.get(back, "held", LockType::Atomic);
    assert_eq!(site.word(&grant), word);
}

#[test]
fn the_secret_that_a_client_had_is_a_proof_until_the_next_one_is_in_use() {
    let mut site = Site::new();
    let first = site.join(Tcp, 0);
    // the client has moved to its prepared session, and the answer to that is lost
    let second = site.come_back(first).unwrap();
    assert_eq!(site.attach(first), Status::Error, "no proof of being the session");
    let third = site.come_back(first).unwrap();
    assert!(is_served(&mut site, third));
    let refused = site.open(&reinit(second, 0));
    assert_eq!(refused, Err(Status::Error), "its client never had it");
    // here the answer is not lost
    let fourth = site.come_back(third).unwrap();
    let fifth = site.come_back(fourth).unwrap();
    for old in [first, second, third] {
        assert_eq!(site.open(&reinit(old, 0)), Err(Status::Error));
    }
    assert!(is_served(&mut site, fifth));
}

/// The client was quiet for as long as the grace, and had attached a channel to its present
/// session.
#[test]
fn a_session_that_takes_the_place_of_a_quiet_one_is_not_quiet() {
    let mut site = Site::new();
    let (holder, old) = (site.join(Tcp, 0), site.join(Tcp, 0));
    take(&mut site, holder, "held");
    site.lose(old, Gone::Silent);
    site.until(at(GRACE_S));
    assert_eq!(site.attach(old), Status::Success);
    let new = site.come_back(old).unwrap();
    wait_for(&mut site, new, "held");
    site.lose(new, Gone::Silent);
    for (ns, waits) in [(GRACE_S * NS - 1, 1), (1, 0)] {
        site.until(site.now.plus_ns(ns));
        assert_eq!(waiters(&mut site, holder, "held"), waits, "its places end with a grace");
    }
}

/// The client has moved to its next session, and has attached no channel to that one. Its process
/// still has the memory mapped.
#[test]
fn a_process_that_mapped_the_memory_for_the_session_before_ends_its_client() {
    let mut site = Site::new();
    let old = site.join(Shm, 0);
    let new = site.ask_back(old).unwrap();
    assert!(is_served(&mut site, new));
    site.die(old);
    assert_eq!(site.exits(new), [Exit::Died]);
}

#[test]
fn a_request_before_any_attach_moves_too() {
    let mut site = Site::new();
    let old = site.join(Verbs, 0);
    let new = site.ask_back(old).unwrap();
    assert!(is_served(&mut site, new) && !is_served(&mut site, old));
    assert_eq!(site.attach(new), Status::Success);
    assert_eq!(site.control(new, ControlRequest::ReinitDone), ControlReply::Done);
    let again = site.control(new, ControlRequest::ReinitDone);
    assert_eq!(again, ControlReply::Error(Status::Error), "once per reinit");
}

#[test]
fn a_reinit_that_does_not_take_place_is_none_to_be_done_with() {
    let mut site = Site::new();
    let old = site.join(Tcp, 0);
    let lost = site.ask_back(old).unwrap();
    site.lose(lost, Gone::Closed);
    let done = site.control(old, ControlRequest::ReinitDone);
    assert_eq!(done, ControlReply::Error(Status::Error));
}

#[test]
fn whatever_ends_a_member_ends_what_is_prepared_before_anything_is_undone() {
    for fabric in [Tcp, Verbs] {
        let mut site = Site::new();
        let old = site.join(fabric, 0);
        take(&mut site, old, "held");
        let new = site.ask_back(old).unwrap();
        assert_eq!(site.attach(new), Status::Success);
        site.effects.clear();
        site.handle(Event::removes(old.id));
        site.settle();
        let client = old.id;
        let place = |wanted: Effect| site.effects.iter().position(|e| *e == wanted);
        let undone = place(Effect::Removes { client, exit: Exit::OperatorNow }).unwrap();
        for control in [old.control, new.control] {
            assert!(place(Effect::CloseControl { client, control }) < Some(undone));
        }
        assert!(place(Effect::CloseChannel { client, channel: Some(2) }) < Some(undone));
        assert!(place(Effect::Fence { client }) < Some(undone));
        assert_eq!(site.attach(new), Status::ClientRemoved);
        assert_eq!(site.open(&reinit(new, 0)), Err(Status::ClientRemoved));
    }
}

#[test]
fn the_later_of_both_horizons_holds_while_either_session_may_be_the_one_in_use() {
    // the client is told a horizon without end, and may rely on that before it has shown that it
    // has the answer
    let mut site = Site::new();
    let old = site.join(Tcp, 10);
    let unlimited = site.open_twice(&reinit(old, 0)).unwrap();
    assert_eq!(unlimited.terms.until, UNLIMITED);
    site.until(ServerTime(at(PREPARED_S).0 - 1));
    assert_eq!(site.state(old), Some(State::Present));
    site.until(at(PREPARED_S));
    assert_eq!(site.state(old), None, "that session was given up, and it was silent in its own");
    // a client that requests a shorter horizon obeys it from its move to the new session on, and
    // not before
    let mut site = Site::new();
    let old = site.join(Tcp, 0);
    let terms = site.open_twice(&reinit(old, 10)).unwrap().terms;
    assert_eq!((terms.until, terms.horizon_s), (at(10), 10));
    site.until(at(20));
    assert_eq!(site.state(old), Some(State::Present));
    let admission = site.open_twice(&reinit(old, 10)).unwrap();
    let new = site.peer(admission, Tcp);
    assert!(is_served(&mut site, new));
    site.until(ServerTime(at(30).0 - 1));
    assert_eq!(site.state(old), Some(State::Present));
    site.until(at(30));
    assert_ne!(site.state(old), Some(State::Present));
}

#[test]
fn a_session_whose_predecessor_cannot_be_fenced_has_no_channel() {
    let mut site = Site::new();
    let old = site.join(Verbs, 0);
    let new = site.ask_back(old).unwrap();
    assert_eq!(site.attach(new), Status::Success);
    site.unfenced.insert(old.id);
    site.effects.clear();
    assert!(is_served(&mut site, new));
    let closed = |channel| Effect::CloseChannel { client: old.id, channel: Some(channel) };
    assert_eq!(site.effects[1], closed(1));
    assert_eq!(site.effects[4], closed(2), "both could act");
    assert_eq!(site.attach(new), Status::Error);
    site.unfenced.clear();
    assert_eq!(site.attach(new), Status::Success);
}

#[test]
fn queue_pairs_of_an_attempt_that_was_given_up_end_no_session() {
    let mut site = Site::new();
    let old = site.join(Verbs, 0);
    let lost = site.ask_back(old).unwrap();
    assert_eq!(site.attach(lost), Status::Success);
    site.unfenced.insert(old.id);
    site.effects.clear();
    site.lose(lost, Gone::Closed);
    let closed = Effect::CloseChannel { client: old.id, channel: Some(2) };
    assert!(site.effects.contains(&closed));
    assert!(!site.effects.contains(&Effect::CloseChannel { client: old.id, channel: Some(1) }));
    assert!(is_served(&mut site, old));
    let next = site.ask_back(old).unwrap();
    assert_eq!(site.attach(next), Status::Error);
    assert!(is_served(&mut site, old));
}

#[test]
fn a_session_with_a_shorter_horizon_cuts_no_promise_short() {
    let mut site = Site::new();
    let old = site.join(Tcp, 60);
    let admission = site.open_twice(&reinit(old, 5)).unwrap();
    let new = site.peer(admission, Tcp);
    assert_eq!(site.attach(new), Status::Success);
    assert!(is_served(&mut site, new));
    assert_eq!(site.members().until(new.id), Some(at(60)));
}

#[test]
fn a_request_that_waits_on_either_connection_is_no_silence_and_one_on_another_is_nothing() {
    let mut site = Site::new();
    let old = site.join(Tcp, 60);
    let new = site.ask_back(old).unwrap();
    let stranger = new.control + 1;
    for (seconds, control, until) in
        [(1, old.control, 61), (2, stranger, 61), (3, new.control, 63), (4, stranger, 63)]
    {
        site.primary.handle(
            at(seconds),
            &mut site.memory,
            Event::Heard { client: old.id, control },
        );
        assert_eq!(site.members().until(old.id), Some(at(until)), "{seconds}");
    }
}
