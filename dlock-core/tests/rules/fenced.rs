// SPDX-License-Identifier: MIT OR Apache-2.0
//! Members that are fenced although they have not been silent: they keep others waiting in the
//! middle of an operation, or their certificate was revoked. Such a client may not have heard that
//! its session is over, and may rely on what it holds.

use crate::common::site::{init, reinit, w0, Peer, Site, START};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::ClientId;
use dlock_core::limits::{HINDRANCE_S, LOOK_S};
use dlock_core::membership::{Connection, Ending, Exit, Gone, Orphans, State, PREPARED_S};
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord};
use dlock_core::primary::{Effect, Event};
use dlock_core::wire::control::{ControlRequest, FabricKind, Terms};
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;

use FabricKind::{Shm, Tcp, Verbs};

const HORIZON_S: u64 = 10;

fn at_s(seconds: u64) -> ServerTime {
    START.plus_ns(seconds * NS)
}

/// Fences the first client of a fabric, which is on its first channel.
fn fence(site: &mut Site, peer: Peer, why: Exit) {
    match why {
        Exit::Hindered => site.primary.parts().0.hinders(peer.id),
        _ => {
            let connection = Connection::Channel(1);
            site.tell(Event::Revoked { client: peer.id, connection });
        }
    }
    site.settle();
}

/// Whether a client has the read-write lock, by its word.
fn has_rw(site: &mut Site, other: Peer, peer: Peer) -> bool {
    let grant = site.get(other, "rw", LockType::Rw);
    RwWord::from_bits(site.word(&grant)).client() == peer.id.get()
}

#[test]
fn who_is_fenced_keeps_what_has_no_lease_until_the_horizon_that_it_knows() {
    for (why, fabric) in [
        (Exit::Hindered, Verbs),
        (Exit::Hindered, Tcp),
        (Exit::Revoked, Verbs),
        (Exit::Revoked, Tcp),
    ] {
        let mut site = Site::new();
        let other = site.join(Tcp, 0);
        let peer = site.join(fabric, HORIZON_S as u32);
        site.take_rw(peer);
        site.take_lease(peer, 1_000);
        site.until(at_s(3));
        site.control(peer, ControlRequest::Heartbeat);
        let until = site.members().until(peer.id).unwrap();
        assert_eq!(until, at_s(3 + HORIZON_S));
        fence(&mut site, peer, why);
        assert_eq!(site.state(peer), Some(State::Fenced(why)));
        assert!(site.effects.contains(&Effect::Fence { client: peer.id }));
        assert!(!site.effects.contains(&Effect::Lapses { client: peer.id }));
        assert!(!site.members().has_quarantined(), "it is fenced, and not to be fenced again");
        site.until(ServerTime(until.0 - 1));
        assert_eq!(site.state(peer), Some(State::Fenced(why)));
        assert_eq!(site.members().until(peer.id), Some(until), "nothing prolongs it");
        assert!(has_rw(&mut site, other, peer));
        site.until(until);
        assert!(matches!(site.state(peer), Some(State::Lingering { .. })), "it has a lease");
        assert!(!has_rw(&mut site, other, peer));
        assert_eq!(site.come_back(peer).unwrap().terms.lapses, 1);
        assert_eq!(site.members().assert_consistent(), Ok(()));
    }
}

/// A client that came back would keep the others waiting once more, and its horizon would begin
/// again.
#[test]
fn who_is_fenced_may_not_come_back_before_its_horizon() {
    let mut site = Site::new();
    let peer = site.join(Verbs, HORIZON_S as u32);
    site.take_rw(peer);
    fence(&mut site, peer, Exit::Hindered);
    for seconds in 0..HORIZON_S {
        site.until(at_s(seconds));
        assert_eq!(site.ask_back(peer).map(drop), Err(Status::NotReady));
        assert_eq!(site.attach(peer), Status::ClientRemoved);
        assert_eq!(site.state(peer), Some(State::Fenced(Exit::Hindered)));
    }
    site.until(at_s(HORIZON_S));
    assert_eq!(site.state(peer), None, "it has had nothing but a read-write lock");
}

/// A client whose certificate was revoked comes back with another one, and has lost nothing.
#[test]
fn who_was_fenced_for_its_certificate_comes_back_to_what_it_has() {
    let mut site = Site::new();
    let other = site.join(Tcp, 0);
    let peer = site.join(Verbs, HORIZON_S as u32);
    site.take_rw(peer);
    fence(&mut site, peer, Exit::Revoked);
    site.until(at_s(HORIZON_S - 1));
    let back = site.come_back(peer).unwrap();
    assert_eq!((site.state(back), back.terms.lapses), (Some(State::Present), 0));
    site.until(at_s(HORIZON_S + 1));
    assert!(has_rw(&mut site, other, peer));
}

#[test]
fn a_session_that_was_prepared_counts_for_the_horizon_of_who_is_fenced() {
    let mut site = Site::new();
    let peer = site.join(Verbs, 1);
    let promised = site.open_twice(&reinit(peer, HORIZON_S as u32)).unwrap().terms;
    assert_eq!(promised.until, at_s(HORIZON_S));
    fence(&mut site, peer, Exit::Hindered);
    site.until(at_s(HORIZON_S - 1));
    assert_eq!(site.state(peer), Some(State::Fenced(Exit::Hindered)));
}

#[test]
fn who_is_fenced_and_ends_is_undone_at_once() {
    type End = fn(&mut Site, Peer);
    let ends: [(End, Exit); 2] = [
        (|site, peer| _ = site.handle(Event::removes(peer.id)), Exit::OperatorNow),
        (|site, peer| site.die(peer), Exit::Died),
    ];
    for (end, exit) in ends {
        let fabric = if exit == Exit::Died { Shm } else { Verbs };
        let mut site = Site::new();
        let peer = site.join(fabric, HORIZON_S as u32);
        let other = site.join(Tcp, 0);
        site.take_lease(peer, 1_000);
        fence(&mut site, peer, Exit::Hindered);
        let waits = match fabric {
            // the client's process lives, and has the memory mapped
            Shm => State::Ending(Ending::Fence(Exit::Hindered)),
            _ => State::Fenced(Exit::Hindered),
        };
        assert_eq!(site.state(peer), Some(waits));
        assert_eq!(site.members().has_quarantined(), fabric == Shm);
        let status = Status::BadResponse; // this status tells the client that it may come back
        let revokes = site.effects.contains(&Effect::Revoke { client: peer.id, status });
        assert_eq!(revokes, fabric == Shm, "its chains are refused at the memory");
        end(&mut site, peer);
        site.settle();
        assert_eq!((site.state(peer), site.exits(peer)), (None, vec![exit]));
        let grant = site.get(other, "leased", LockType::Atomic);
        assert_eq!(site.word(&grant), 0);
    }
}

/// A client without a horizon was promised nothing for holds without a lease.
#[test]
fn without_a_horizon_what_has_no_lease_ends_as_soon_as_its_client_is_fenced() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 0);
    let other = site.join(Tcp, 0);
    site.take_rw(peer);
    site.take_lease(peer, 1_000);
    fence(&mut site, peer, Exit::Revoked);
    let Some(State::Lingering { until }) = site.state(peer) else {
        panic!("{:?}", site.state(peer));
    };
    assert!(!has_rw(&mut site, other, peer));
    site.until(until.plus_ns(NS));
    assert_eq!(site.state(peer), None, "it is forgotten");
}

/// The client's process still has the memory mapped when the horizon passes, so the client is
/// fenced only when the process ends.
#[test]
fn who_cannot_be_fenced_before_its_horizon_keeps_everything_until_it_is() {
    let mut site = Site::new();
    let peer = site.join(Shm, HORIZON_S as u32);
    let other = site.join(Tcp, 0);
    site.take_rw(peer);
    fence(&mut site, peer, Exit::Hindered);
    for (seconds, ending) in [
        (HORIZON_S - 1, Ending::Fence(Exit::Hindered)),
        (3 * HORIZON_S, Ending::Lapse(Exit::Hindered)),
    ] {
        site.until(at_s(seconds));
        assert_eq!(site.state(peer), Some(State::Ending(ending)));
    }
    assert!(has_rw(&mut site, other, peer));
    site.memory.mapped.clear();
    site.handle(Event::Retry);
    site.settle();
    assert_eq!(site.state(peer), None);
    assert!(!has_rw(&mut site, other, peer));
}

/// An old connection of a fenced client may end late, and that changes nothing.
#[test]
fn the_end_of_an_old_connection_leaves_who_is_fenced_alone() {
    let mut site = Site::new();
    let peer = site.join(Verbs, HORIZON_S as u32);
    fence(&mut site, peer, Exit::Hindered);
    site.lose(peer, Gone::Closed);
    site.primary.parts().0.channel_ended(peer.id, 1, false);
    site.settle();
    assert_eq!(site.state(peer), Some(State::Fenced(Exit::Hindered)));
}

/// The client was told a horizon, and its threads rely on that. Neither a later session without a
/// horizon nor the request for one cuts it short.
#[test]
fn a_session_without_a_horizon_takes_none_away_that_was_told() {
    for why in [Exit::Hindered, Exit::Revoked] {
        let mut site = Site::new();
        let other = site.join(Tcp, 0);
        let peer = site.join(Verbs, HORIZON_S as u32);
        site.take_rw(peer);
        site.open_twice(&reinit(peer, 0)).unwrap();
        fence(&mut site, peer, why);
        assert_eq!(site.state(peer), Some(State::Fenced(why)));
        if why == Exit::Revoked {
            site.open_twice(&reinit(peer, 0)).unwrap();
            assert_eq!(site.state(peer), Some(State::Present));
            site.primary.parts().0.hinders(peer.id);
            site.settle();
        }
        assert_eq!(site.state(peer), Some(State::Fenced(why.min(Exit::Hindered))));
        assert!(has_rw(&mut site, other, peer));
        site.until(at_s(HORIZON_S));
        assert!(!has_rw(&mut site, other, peer));
    }
}

/// Operations of the client's earlier session rely on the horizon of that session, which ends
/// later.
#[test]
fn a_session_with_a_shorter_horizon_takes_none_away_that_was_told() {
    for between in [None, Some(0)] {
        let mut site = Site::new();
        let other = site.join(Tcp, 0);
        let mut peer = site.join(Verbs, HORIZON_S as u32);
        site.take_rw(peer);
        for horizon_s in between.into_iter().chain([2]) {
            let terms = Terms { horizon_s, ..peer.terms };
            peer = site.come_back(Peer { terms, ..peer }).unwrap();
        }
        site.until(at_s(1));
        site.control(peer, ControlRequest::Heartbeat);
        fence(&mut site, peer, Exit::Hindered);
        site.until(at_s(HORIZON_S - 1));
        assert_eq!(site.state(peer), Some(State::Fenced(Exit::Hindered)), "{between:?}");
        assert!(has_rw(&mut site, other, peer));
        site.until(at_s(HORIZON_S));
        assert!(!has_rw(&mut site, other, peer));
    }
}

/// Nothing of a silent client ends before the latest of all horizons that it was told.
#[test]
fn a_silent_client_keeps_what_it_has_until_the_latest_horizon_that_it_was_told() {
    for between in [None, Some(0)] {
        let mut site = Site::new();
        let other = site.join(Tcp, 0);
        let mut peer = site.join(Verbs, HORIZON_S as u32);
        site.take_rw(peer);
        for horizon_s in between.into_iter().chain([2]) {
            let terms = Terms { horizon_s, ..peer.terms };
            peer = site.come_back(Peer { terms, ..peer }).unwrap();
        }
        site.until(at_s(HORIZON_S - 1));
        assert!(has_rw(&mut site, other, peer), "{between:?}");
        site.until(at_s(HORIZON_S));
        assert!(!has_rw(&mut site, other, peer));
    }
}

/// The client comes back with another certificate before its queue pairs could be fenced.
#[test]
fn queue_pairs_that_could_not_be_fenced_are_remembered_and_tried_again() {
    let mut site = Site::new();
    let peer = site.join(Verbs, HORIZON_S as u32);
    site.unfenced.insert(peer.id);
    fence(&mut site, peer, Exit::Revoked);
    assert_eq!(site.state(peer), Some(State::Ending(Ending::Fence(Exit::Revoked))));
    site.effects.clear();
    let admission = site.open_twice(&reinit(peer, HORIZON_S as u32)).unwrap();
    let again = Effect::CloseChannel { client: peer.id, channel: None };
    assert!(site.effects.contains(&again), "{:?}", site.effects);
    let back = site.peer(admission, Verbs);
    assert_eq!(site.attach(back), Status::Error, "they may act");
    site.unfenced.clear();
    assert_eq!(site.attach(back), Status::Success);
}

/// The prepared session that the client had requested was given up.
#[test]
fn a_client_that_has_asked_for_a_session_without_a_horizon_in_vain_is_silent_past_its_own() {
    let mut site = Site::new();
    let peer = site.join(Verbs, HORIZON_S as u32);
    site.take_rw(peer);
    site.open_twice(&reinit(peer, 0)).unwrap();
    site.lose(peer, Gone::Silent);
    site.until(at_s(PREPARED_S - 1));
    assert!(matches!(site.state(peer), Some(State::Absent { .. })), "it may come");
    site.until(at_s(PREPARED_S));
    assert_eq!(site.state(peer), None);
}

/// Puts a client between two word operations on the read-write lock `rw`; `adds`: it has added
/// itself to the count.
fn is_between(site: &mut Site, peer: Peer, stamp: u32, adds: bool) {
    let grant = site.get(peer, "rw", LockType::Rw);
    let entry = LedgerEntry::new().with_state(LedgerState::Intent).with_detail(stamp);
    site.memory.ledgers.insert((peer.id, grant.handle), entry);
    if adds {
        site.execute(peer, &Chain::one(WordOp::Faa { addr: w0(&grant), add: 1 }));
    }
}

/// A client that stays between two word operations. `adds`: it has added itself to the count. The
/// primary must find the count out, because another client, of which the contrary holds, is gone.
fn is_waited_for(site: &mut Site, horizon_s: u32, adds: bool) -> Peer {
    let [stays, gone] = [(); 2].map(|()| site.join(Verbs, horizon_s));
    is_between(site, stays, 1, adds);
    is_between(site, gone, 2, !adds);
    site.handle(Event::removes(gone.id));
    site.settle();
    stays
}

/// Has the primary do what is due next. Returns the client that the primary finds to keep others
/// waiting.
fn wakes(site: &mut Site) -> Option<ClientId> {
    site.now = site.primary.next_wakeup()?.max(site.now);
    site.upkeep();
    let before = site.effects.len();
    site.handle(Event::Tick);
    site.effects[before..].iter().find_map(|effect| match *effect {
        Effect::Hinders { client } => Some(client),
        _ => None,
    })
}

#[test]
fn who_is_waited_for_up_to_its_horizon_is_not_looked_at_all_the_time() {
    let mut site = Site::new();
    let _other = site.join(Tcp, 0);
    let stopped = is_waited_for(&mut site, 3_600, false);
    let mut looks = 0;
    while wakes(&mut site).is_none() {
        assert!(site.primary.next_wakeup().is_some(), "it is not waited for");
        looks += 1;
    }
    assert_eq!(site.state(stopped), Some(State::Fenced(Exit::Hindered)));
    let late_ns = site.now.0 - at_s(u64::from(HINDRANCE_S)).0;
    assert!(late_ns <= u64::from(LOOK_S) * NS, "{late_ns}");
    assert!(looks < 1_000, "{looks}");
    let fenced = site.now;
    looks = 0;
    while site.now < fenced.plus_ns(60 * NS) {
        assert_eq!(wakes(&mut site), None);
        assert!(site.primary.next_wakeup().is_some(), "it is not waited for");
        looks += 1;
    }
    assert!(looks <= 61, "{looks}");
}

/// The client's certificate was revoked in the middle of an operation, which the client ends when
/// it is back.
#[test]
fn who_was_cut_off_in_an_operation_and_is_back_has_as_long_for_it_as_before() {
    let mut site = Site::new();
    let back = is_waited_for(&mut site, 60, false);
    fence(&mut site, back, Exit::Revoked);
    while site.now < at_s(u64::from(HINDRANCE_S) + 5) {
        assert_eq!(wakes(&mut site), None, "it is fenced");
        assert!(site.primary.next_wakeup().is_some(), "it is not waited for");
    }
    let came = site.now;
    site.come_back(back).unwrap();
    while wakes(&mut site).is_none() {
        assert!(site.primary.next_wakeup().is_some(), "it is not waited for");
    }
    assert!(site.now >= came.plus_ns(u64::from(HINDRANCE_S) * NS));
}

#[test]
fn who_is_fenced_and_has_nothing_gives_its_place_to_another() {
    for has_lock in [false, true] {
        let mut site = Site::with(Some(30), Orphans::Lease, 2);
        let _other = site.join(Tcp, 0);
        let peer = site.join(Verbs, 3_600);
        if has_lock {
            site.take_rw(peer);
        }
        fence(&mut site, peer, Exit::Revoked);
        assert_eq!(site.open_twice(&init(0)).is_ok(), !has_lock);
        assert_eq!(site.state(peer).is_some(), has_lock);
    }
}

/// A client that has gone on since the primary's last look gets more time.
#[test]
fn who_has_gone_on_since_it_was_seen_last_is_not_cut_off() {
    let mut site = Site::new();
    let slow = is_waited_for(&mut site, 0, true);
    while site.now < at_s(u64::from(HINDRANCE_S) - 1) {
        assert_eq!(wakes(&mut site), None);
    }
    let handle = site.get(slow, "rw", LockType::Rw).handle;
    let entry = LedgerEntry::new().with_state(LedgerState::HeldShared).with_detail(1);
    site.memory.ledgers.insert((slow.id, handle), entry);
    site.now = at_s(u64::from(HINDRANCE_S) + 1);
    site.handle(Event::Tick);
    assert_eq!(site.state(slow), Some(State::Present), "it was not looked at");
    assert_eq!(wakes(&mut site), None);
    assert_eq!(site.primary.next_wakeup(), None, "the count is known");
}

#[test]
fn a_client_whose_certificate_was_revoked_is_fenced_and_undone_and_only_by_its_own_connections() {
    let mut site = Site::new();
    let by_channel = site.join(FabricKind::Tcp, 0);
    let connection = Connection::Channel(1); // 1 is the number of a client's first channel
    site.handle(Event::Revoked { client: by_channel.id, connection });
    site.settle();
    assert_eq!(site.state(by_channel), None);
    let peer = site.join(FabricKind::Tcp, 0);
    let control = (0..100).find(|&n| site.members().speaks(peer.id, n)).unwrap();
    for other in [Connection::Control(control + 1), Connection::Channel(77)] {
        site.handle(Event::Revoked { client: peer.id, connection: other });
        site.settle();
        assert!(site.members().speaks(peer.id, control));
    }
    site.handle(Event::Revoked { client: peer.id, connection: Connection::Control(control) });
    site.settle();
    let undo = Effect::Removes { client: peer.id, exit: Exit::Revoked };
    assert!(site.effects.contains(&undo), "{:?}", site.effects);
    assert_eq!(site.state(peer), None, "it is forgotten");
}
