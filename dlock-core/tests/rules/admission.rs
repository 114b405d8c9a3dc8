// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which clients are admitted, which absent clients lose their place to others, and what must be
//! over before that.

use crate::common::site::{init, reinit, w0, Peer, Site, GRACE_S, START};
use dlock_core::clock::{Deadline, Lease, NS};
use dlock_core::ids::{ClientId, Seq};
use dlock_core::limits::HINDRANCE_S;
use dlock_core::locks::{Lapsed, LOOKS_MAX};
use dlock_core::membership::{
    Caller, Draws, Ending, Exit, Gone, Joining, Opened, Orphans, Rules, State, EVICTION_LOOKS_MAX,
    HORIZON_S_DEFAULT, HORIZON_S_MAX, PROCESSES_MAX,
};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord};
use dlock_core::primary::{Effect, Event};
use dlock_core::wire::control::{
    Attach, ControlReply, ControlRequest, FabricKind, Secret, Terms, HORIZON_FOREVER, UNLIMITED,
};
use dlock_core::wire::message::{LockType, Mode, Request, WaitNumber};
use dlock_core::wire::status::Status;

use FabricKind::{Shm, Tcp, Verbs};

/// Every absent client holds a lock for ever; the site has room for one more.
fn full(site: &mut Site, clients: usize) -> Vec<Peer> {
    let peers: Vec<Peer> = (0..clients).map(|_| site.join(Tcp, 0)).collect();
    for (n, &peer) in peers.iter().enumerate() {
        let grant = site.get(peer, &format!("l{n}"), LockType::Atomic);
        let held = AtomicWord::new().with_client(peer.id.get()).with_timeout(Deadline::NEVER);
        site.memory.set(w0(&grant), held.into_bits());
        site.lose(peer, Gone::Closed);
    }
    peers
}

#[test]
fn all_absent_clients_are_looked_at_in_turn_until_one_has_nothing() {
    let clients = 2 * EVICTION_LOOKS_MAX + 3;
    for free in [0, EVICTION_LOOKS_MAX, clients - 1] {
        let mut site = Site::with(None, Orphans::Lease, clients);
        let mut peers = full(&mut site, clients);
        peers.sort_by_key(|peer| peer.id);
        assert_eq!(site.open(&init(0)), Err(Status::ServerNoResource), "the first looks");
        // the client that the primary has looked at first, or last, has nothing any more
        site.memory.words.iter_mut().for_each(|(_, word)| {
            if AtomicWord::from_bits(*word).client() == peers[free].id.get() {
                *word = 0;
            }
        });
        let tries = clients.div_ceil(EVICTION_LOOKS_MAX);
        let went = (0..tries).any(|_| site.open(&init(0)).is_ok());
        assert!(went, "client {free} of {clients} is found after {tries} rounds");
        assert_eq!(site.exits(peers[free]), [Exit::Evicted]);
    }
}

/// A stranger that asks again and again makes the primary look at a bounded number of handles.
#[test]
fn absent_clients_with_many_handles_are_looked_at_one_at_a_time() {
    for handles in [LOOKS_MAX, LOOKS_MAX - 1] {
        let mut site = Site::with(None, Orphans::Lease, 3);
        let mut peers: Vec<Peer> = (0..3).map(|_| site.join(Tcp, 0)).collect();
        peers.sort_by_key(|peer| peer.id);
        for (i, &peer) in peers.iter().enumerate() {
            let grants: Vec<_> = (0..handles)
                .map(|n| site.get(peer, &format!("{i}, {n}"), LockType::Atomic))
                .collect();
            if i < 2 {
                let held =
                    AtomicWord::new().with_client(peer.id.get()).with_timeout(Deadline::NEVER);
                site.memory.set(w0(&grants[0]), held.into_bits());
            }
            site.lose(peer, Gone::Closed);
        }
        let opened: Vec<_> = (0..3).map(|_| site.open(&init(0))).collect();
        let full = Err(Status::ServerNoResource);
        assert_eq!(opened[..2], [full, full]);
        assert!(opened[2].is_ok());
    }
}

#[test]
fn a_client_whose_process_may_live_with_the_memory_is_not_evicted() {
    for is_dead in [false, true] {
        let mut site = Site::with(None, Orphans::Lease, 1);
        let peer = site.join(Shm, 0);
        assert_eq!(site.attach(Peer { fabric: Tcp, ..peer }), Status::Success);
        site.lose(peer, Gone::Closed);
        if is_dead {
            site.die(peer); // the ended process need not be the client's last one
        }
        assert_eq!(site.open(&init(0)).is_ok(), is_dead);
    }
}

/// Between the primary's look at the client and its eviction, the client may have got something.
#[test]
fn a_client_that_has_something_after_all_is_not_evicted() {
    for has_something in [true, false] {
        let mut site = Site::with(None, Orphans::Lease, 1);
        let peer = site.join(Tcp, 0);
        let grant = w0(&site.get(peer, "l", LockType::Atomic));
        site.lose(peer, Gone::Closed);
        let before = site.state(peer);
        site.tell(open(init(0), 9.into()));
        assert!(matches!(site.primary.poll(), Some(Effect::Fence { .. })));
        if has_something {
            let held = AtomicWord::new().with_client(peer.id.get()).with_timeout(Deadline::NEVER);
            site.memory.set(grant, held.into_bits());
        }
        site.tell(Event::Done { unfenced: false });
        let state = site.state(peer);
        assert_eq!(state == before, has_something, "{state:?}");
        assert_eq!(state.is_none(), !has_something, "{state:?}");
    }
}

#[test]
fn a_client_that_cannot_be_fenced_is_not_evicted() {
    let mut site = Site::with(None, Orphans::Lease, 1);
    let peer = site.join(Verbs, 0);
    site.lose(peer, Gone::Closed);
    let before = site.state(peer);
    site.unfenced.insert(peer.id);
    assert_eq!(site.open(&init(0)), Ok(Opened::Wait));
    assert_eq!(site.state(peer), before, "it is absent as before");
    assert!(!site.effects.iter().any(|effect| matches!(effect, Effect::Revoke { .. })));
}

#[test]
fn a_fabric_that_is_not_offered_is_refused() {
    for (fabric, joining) in [
        (Tcp, Joining::over(Tcp)),
        (Verbs, Joining::over(Verbs)),
        (Shm, Joining::by(Shm, Some(1), true)),
    ] {
        let mut site = Site::new();
        let all = Rules::of(site.locks().config());
        for is_offered in [true, false] {
            let is_one = |&kind: &FabricKind| kind != fabric || is_offered;
            let offered = [Tcp, Verbs, Shm].into_iter().filter(is_one).collect();
            let rules = Rules { offered, ..all };
            site.begins(rules);
            let admission = site.open_twice(&init(0)).unwrap();
            let attach = attach_of(site.peer(admission, fabric));
            let status = site.primary.may_attach(&attach, joining);
            assert_eq!(status == Status::Success, is_offered, "{fabric:?}: {status:?}");
        }
    }
}

#[test]
fn a_client_has_so_many_channels_in_its_life() {
    let mut site = Site::new();
    let all = Rules::of(site.locks().config());
    site.begins(Rules { channels_max: 3, ..all });
    let peer = site.join(Tcp, 0);
    assert_eq!(site.attach(peer), Status::Success);
    assert_eq!(site.attach(peer), Status::ServerNoResource, "the third");
}

#[test]
fn clients_that_map_the_memory_take_more_of_the_descriptors_and_are_refused_before_they_lack() {
    let mut site = Site::new();
    let all = Rules::of(site.locks().config());
    // four clients that do not map the memory, two that do, or two and one
    site.begins(Rules { files_max: 8, ..all });
    let peers: Vec<Peer> = (0..3)
        .map(|_| {
            let admission = site.open_twice(&init(0)).unwrap();
            site.peer(admission, Shm)
        })
        .collect();
    assert_eq!(site.members().files(), 6);
    assert_eq!(site.attach(peers[0]), Status::Success);
    assert_eq!(site.members().files(), 8);
    assert_eq!(site.attach(peers[0]), Status::Success, "it has what it needs");
    assert_eq!(site.attach(peers[1]), Status::ServerNoResource);
    let over_tcp = Peer { fabric: Tcp, ..peers[1] };
    assert_eq!(site.attach(over_tcp), Status::Success, "that is kept for every client");
    assert_eq!(site.open_twice(&init(0)).err(), Some(Status::ServerNoResource));
    site.die(peers[0]);
    site.settle();
    assert_eq!(site.members().files(), 4, "all of it is given back");
    assert_eq!(site.attach(peers[1]), Status::Success);
    assert!(site.open_twice(&init(0)).is_ok());
    assert_eq!(site.open_twice(&init(0)).err(), Some(Status::ServerNoResource));
}

#[test]
fn each_process_that_maps_the_memory_for_a_client_takes_a_descriptor() {
    let mut site = Site::new();
    let all = Rules::of(site.locks().config());
    site.begins(Rules { files_max: 6, ..all });
    let peer = site.join(Shm, 0);
    let attach = attach_of(peer);
    let maps = |site: &mut Site, pid| {
        let joining = Joining::by(peer.fabric, Some(pid), true);
        match site.primary.may_attach(&attach, joining) {
            Status::Success => {
                Ok(site.primary.parts().0.finish_attach(&attach, joining).unwrap().watch)
            }
            refused => Err(refused),
        }
    };
    assert_eq!(site.members().files(), 4);
    let [second, third] = [2, 3].map(|pid| maps(&mut site, pid).unwrap().unwrap());
    assert_eq!(site.members().files(), 6);
    assert_eq!(maps(&mut site, 4), Err(Status::ServerNoResource));
    assert_eq!(maps(&mut site, 3), Ok(None), "it has what it needs");
    site.tell(Event::ProcessEnded { client: peer.id, process: second });
    assert!(maps(&mut site, 4).is_ok_and(|watch| watch > Some(third)));
    assert_eq!(site.members().files(), 6, "what told of the end of the other is closed");
}

#[test]
fn so_many_processes_may_have_the_memory_for_one_client() {
    let mut site = Site::new();
    let peer = site.join(Shm, 0);
    let Peer { id: client, fabric, .. } = peer;
    let attach = attach_of(peer);
    let joining = |pid: i32| Joining::by(fabric, Some(pid), true);
    let may = |site: &Site, pid| site.primary.may_attach(&attach, joining(pid));
    let maps = |site: &mut Site, pid| {
        assert_eq!(may(site, pid), Status::Success);
        site.primary.parts().0.finish_attach(&attach, joining(pid)).unwrap().watch
    };
    let watched: Vec<u64> =
        (1..PROCESSES_MAX as i32).map(|n| maps(&mut site, n).unwrap()).collect();
    assert_eq!(may(&site, 1), Status::Success, "it is known");
    assert_eq!(may(&site, 99), Status::ServerNoResource);
    // a process that has ended maps nothing, so its place is free
    site.tell(Event::ProcessEnded { client, process: watched[0] });
    assert!(maps(&mut site, 99).is_some());
    assert_eq!(may(&site, 1), Status::ServerNoResource, "it would be another process");
    assert_eq!(may(&site, 99), Status::Success);
}

#[test]
fn a_client_that_names_no_horizon_has_one_of_a_primary_that_recovers_by_itself() {
    for recovers_by_itself in [false, true] {
        let mut site = Site::new();
        let all = Rules::of(site.locks().config());
        site.begins(Rules { recovers_by_itself, ..all });
        let unnamed_s = if recovers_by_itself { HORIZON_S_DEFAULT } else { 0 };
        let cases = [(0, unnamed_s), (7, 7), (HORIZON_FOREVER, 0), (100_000, HORIZON_S_MAX)];
        for (asked_s, horizon_s) in cases {
            let admission = site.open_twice(&init(asked_s)).unwrap();
            assert_eq!(admission.terms.horizon_s, horizon_s, "asked for {asked_s}");
            let until = match horizon_s {
                0 => UNLIMITED,
                _ => START.plus_ns(u64::from(horizon_s) * NS),
            };
            assert_eq!(site.members().until(admission.client), Some(until));
        }
    }
}

#[test]
fn a_promise_is_not_made_shorter_by_a_shorter_horizon() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 60);
    assert_eq!(site.members().until(peer.id), Some(START.plus_ns(60 * NS)));
    assert!(site.open_twice(&reinit(peer, 5)).is_ok());
    assert_eq!(site.members().until(peer.id), Some(START.plus_ns(60 * NS)));
    site.until(START.plus_ns(58 * NS));
    assert!(site.open_twice(&reinit(peer, 5)).is_ok());
    assert_eq!(site.members().until(peer.id), Some(START.plus_ns(63 * NS)));
}

#[test]
fn the_channel_of_a_silent_client_is_closed_once_after_the_grace() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 0);
    site.lose(peer, Gone::Silent);
    site.effects.clear();
    let close = Effect::CloseChannel { client: peer.id, channel: Some(1) };
    site.until(START.plus_ns(GRACE_S * NS - 1));
    assert!(!site.effects.contains(&close));
    site.until(START.plus_ns(3 * GRACE_S * NS));
    assert_eq!(site.effects, [close]);
    assert_eq!(site.primary.next_wakeup(), None);
}

/// A client in the middle of a lapse, without a driver.
fn lapsing(site: &mut Site) -> Peer {
    let peer = site.join(Tcp, 10);
    let now = site.now;
    site.now = START.plus_ns(10 * NS);
    for event in [Event::Tick, Event::Listened, Event::Tick] {
        site.tell(event);
    }
    while let Some(effect) = site.primary.poll() {
        if matches!(effect, Effect::Fence { .. }) {
            site.tell(Event::Done { unfenced: false });
        }
    }
    site.now = now;
    assert_eq!(site.state(peer), Some(State::Lapsing(Exit::Horizon)));
    peer
}

#[test]
fn a_lease_that_ends_with_the_lapse_keeps_nothing() {
    let end = START.plus_ns(20 * NS);
    for (now, state) in [
        (START.plus_ns(20 * NS - 1), State::Lingering { until: end }),
        (START.plus_ns(20 * NS), State::Undoing),
    ] {
        let mut site = Site::new();
        let peer = lapsing(&mut site);
        site.primary.parts().0.lapsed(now, peer.id, Lapsed { ended: true, until: Some(end) });
        assert_eq!(site.members().state(peer.id), Some(state));
    }
}

#[test]
fn a_client_is_told_to_wait_for_its_lapse_unless_it_must_go_altogether() {
    let mut site = Site::new();
    let peer = lapsing(&mut site);
    let back = reinit(peer, 10);
    let answer = |site: &mut Site| {
        site.tell(open(back.clone(), 9.into()));
        match std::iter::from_fn(|| site.primary.poll()).last() {
            Some(Effect::Opened { opened, .. }) => opened.map(drop),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(&mut site), Err(Status::NotReady));
    site.tell(Event::removes(peer.id));
    assert_eq!(answer(&mut site), Err(Status::ClientRemoved));
    let kept = Lapsed { ended: true, until: Some(START.plus_ns(900 * NS)) };
    site.primary.parts().0.lapsed(START, peer.id, kept);
    assert_eq!(site.state(peer), Some(State::Undoing), "leases too");
}

#[test]
fn queue_pairs_that_could_not_be_fenced_are_remembered_until_they_are() {
    let mut site = Site::new();
    let peer = site.join(Verbs, 0);
    site.primary.parts().0.channel_ended(peer.id, 1, true);
    // the end of the channel is reported twice
    site.primary.parts().0.channel_ended(peer.id, 1, true);
    let attach = attach_of(peer);
    let finish = |site: &mut Site| {
        site.primary.parts().0.finish_attach(&attach, Joining::over(Verbs)).map(drop)
    };
    assert_eq!(finish(&mut site), Err(Status::Error));
    site.primary.parts().0.channel_ended(peer.id, 1, false);
    assert_eq!(finish(&mut site), Err(Status::Error), "that of another channel says nothing");
    site.primary.parts().0.channel_closed(peer.id, Some(1), false);
    assert!(finish(&mut site).is_ok());
}

#[test]
fn a_channel_tells_the_horizon_of_its_session() {
    let mut site = Site::new();
    let first = site.open_twice(&init(9)).unwrap();
    let prepared = site.open_twice(&reinit(site.peer(first, Tcp), 3)).unwrap();
    for (session, seconds, is_prepared) in [(first, 9, false), (prepared, 3, true)] {
        let attach = attach_of(site.peer(session, Tcp));
        let channel = site.primary.parts().0.finish_attach(&attach, Joining::over(Tcp)).unwrap();
        assert_eq!(
            (channel.until, channel.is_prepared),
            (START.plus_ns(seconds * NS), is_prepared)
        );
        assert_eq!(session.terms.until, channel.until);
    }
}

fn open(request: ControlRequest, caller: Caller) -> Event {
    let draws = Draws { secret: Secret([caller.control as u8; 16]), numbers: [5; 6] };
    Event::Open { request, caller, draws }
}

fn attach_of(peer: Peer) -> Attach {
    let Peer { id: client, secret, fabric, .. } = peer;
    Attach { client, secret, fabric, verbs: None, returns: true }
}

#[test]
fn a_client_for_which_there_is_no_memory_goes() {
    let mut site = Site::new();
    let peer = site.join(Verbs, 0);
    site.tell(Event::NoMemory { client: peer.id, is_new: true });
    assert_eq!(site.state(peer), Some(State::Ending(Ending::All(Exit::NoMemory))));
    site.settle();
    assert_eq!(site.exits(peer), [Exit::NoMemory]);
}

#[test]
fn a_stranger_is_no_member() {
    let mut site = Site::new();
    let stranger = ClientId::new(77).unwrap();
    site.handle(Event::removes(stranger));
    assert!(matches!(&site.effects[..], [Effect::Operated { clients, .. }] if clients.is_empty()));
    let secret = Secret([7; 16]);
    let attach = Attach { client: stranger, secret, fabric: Tcp, verbs: None, returns: true };
    let refused = site.primary.parts().0.finish_attach(&attach, Joining::over(Tcp)).map(drop);
    assert_eq!(refused, Err(Status::ClientRemoved));
    assert_eq!(site.members().state(stranger), None);
}

#[test]
fn each_process_of_a_client_is_watched_once_and_all_must_end() {
    let mut site = Site::new();
    let peer = site.join(Shm, 0);
    let first = peer.id.get() as i32;
    let attach = |site: &mut Site, pid: i32| {
        let joining = Joining::by(Shm, Some(pid), true);
        site.primary.parts().0.finish_attach(&attach_of(peer), joining).unwrap().watch
    };
    let other = site.join(Shm, 0);
    let known = site.watched[&peer.id];
    assert_ne!(known, site.watched[&other.id], "no two have the same number");
    assert_eq!(attach(&mut site, first), None, "it is watched");
    let second = attach(&mut site, first + 1).unwrap();
    assert_ne!(second, known);
    assert_eq!(attach(&mut site, first + 1), None);
    site.tell(Event::ProcessEnded { client: peer.id, process: known });
    assert_eq!(site.state(peer), Some(State::Present), "the second lives");
    // a new process may have the process id of one that has ended
    let third = attach(&mut site, first).unwrap();
    assert!(third != known && third != second);
    site.tell(Event::ProcessEnded { client: peer.id, process: second });
    assert_eq!(site.state(peer), Some(State::Present), "the third lives");
    site.tell(Event::ProcessEnded { client: peer.id, process: third });
    assert_eq!(site.state(peer), Some(State::Ending(Ending::All(Exit::Died))));
}

#[test]
fn an_id_has_31_bits_and_is_nobody_elses() {
    let mut site = Site::new();
    assert!(site.members().is_empty());
    let numbers = [[0x8000_0005, 1, 1, 1, 1, 1], [0, 5, 0x8000_0006, 1, 1, 1]];
    for (numbers, (id, len)) in numbers.into_iter().zip([(5, 1), (6, 2)]) {
        let draws = Draws { secret: Secret([7; 16]), numbers };
        let opened = site.handle(Event::Open { request: init(0), caller: 1.into(), draws });
        let Some(Effect::Opened { opened: Ok(Opened::Admitted(admission)), .. }) = opened else {
            panic!("{opened:?}")
        };
        assert_eq!((admission.client.get(), site.members().len()), (id, len));
    }
    assert!(!site.members().is_empty());
}

/// A client that operates on the memory itself may have gone on while the primary stood still.
#[test]
fn nobody_hinders_others_before_a_primary_that_stood_still_has_looked_again() {
    for goes_on in [true, false] {
        let mut site = Site::new();
        let [slow, gone, waits] = [Verbs; 3].map(|fabric| site.join(fabric, 0));
        let [grant, gones, theirs] =
            [slow, gone, waits].map(|peer| site.get(peer, "rw", LockType::Rw));
        let notes = |site: &mut Site, peer: Peer, handle, state| {
            let entry = LedgerEntry::new().with_state(state).with_detail(1);
            site.memory.ledgers.insert((peer.id, handle), entry);
        };
        notes(&mut site, slow, grant.handle, LedgerState::Intent);
        notes(&mut site, gone, gones.handle, LedgerState::Leaving);
        site.memory.set(w0(&grant), RwWord::new().with_rcount(1).into_bits());
        assert_eq!(site.control(gone, ControlRequest::Deinit), ControlReply::Done);
        let (handle, wait, mode) = (theirs.handle, WaitNumber(1), Mode::Exclusive);
        let wait = Request::Wait { handle, mode, lease: Lease::secs(9), wait, ticket: None };
        site.command(waits.id, Seq(1), wait);
        site.until(START.plus_ns(NS));
        if goes_on {
            notes(&mut site, slow, grant.handle, LedgerState::HeldShared);
        }
        let at = START.plus_ns(60 * NS);
        let hinderer = |site: &Site| site.locks().hinderer(&|_| false);
        assert_eq!(hinderer(&site), None, "it was not looked at for so long");
        site.now = at;
        site.upkeep();
        assert_eq!(hinderer(&site), None, "it may have stood still, too");
        for s in 1..u64::from(HINDRANCE_S) {
            site.now = at.plus_ns(s * NS);
            site.upkeep();
        }
        assert_eq!(hinderer(&site), (!goes_on).then_some(slow.id));
    }
}

/// Memory that a device operates on cannot refuse the chains of clients that claim nothing yet.
#[test]
fn nobody_gets_queue_pairs_while_the_primary_recovers() {
    let mut site = Site::new();
    site.begins_recovering(1);
    let client = ClientId::new(77).unwrap();
    let secret = Secret([7; 16]);
    let back = Peer { id: client, secret, control: 1, fabric: Tcp, terms: Terms::UNLIMITED };
    let admission = site.open_twice(&reinit(back, 0)).unwrap();
    for (fabric, status) in [(Verbs, Status::NotReady), (Tcp, Status::Success)] {
        let attach = attach_of(site.peer(admission, fabric));
        let may = site.primary.may_attach(&attach, Joining::over(fabric));
        assert_eq!(may, status, "{fabric:?}");
    }
}

/// The client has a prepared session, to which it has not moved yet.
#[test]
fn a_client_that_is_about_to_come_back_is_not_evicted() {
    for comes_back in [true, false] {
        let mut site = Site::with(None, Orphans::Lease, 1);
        let peer = site.join(Tcp, 0);
        if comes_back {
            assert!(site.open_twice(&reinit(peer, 0)).is_ok());
        }
        site.lose(peer, Gone::Closed);
        assert!(matches!(site.state(peer), Some(State::Absent { .. })));
        assert_eq!(site.open(&init(0)).is_ok(), !comes_back);
    }
}

/// A secret that was stolen is worth nothing without the certificate of its client.
#[test]
fn a_client_comes_back_and_attaches_with_its_own_certificate_alone() {
    use dlock_core::ids::Identity;
    let identities = [None, Some(Identity([1; 32])), Some(Identity([2; 32]))];
    for own in identities {
        let mut site = Site::new();
        let asks = |site: &mut Site, request: &ControlRequest, control: u64, identity| {
            let caller = Caller { identity, ..control.into() };
            match site.handle(open(request.clone(), caller)) {
                Some(Effect::Opened { opened, .. }) => opened,
                other => panic!("{other:?}"),
            }
        };
        let Ok(Opened::Admitted(admitted)) = asks(&mut site, &init(0), 1, own) else {
            panic!("not let in");
        };
        let peer = site.peer(admitted, Tcp);
        for shown in identities {
            let is_own = shown == own;
            let Peer { id: client, secret, fabric, .. } = peer;
            let attach = Attach { client, secret, fabric, verbs: None, returns: true };
            let may =
                |joining: Joining| site.primary.may_attach(&attach, joining) == Status::Success;
            assert_eq!(may(Joining::over(Tcp).shown(shown)), is_own, "{own:?} {shown:?}");
            let mapping = Attach { fabric: Shm, ..attach };
            let joining = Joining::by(Shm, Some(1), true).shown(shown);
            let may_map = site.primary.may_attach(&mapping, joining);
            assert_eq!(may_map, Status::Success, "its process has shown its credentials");
            let back = asks(&mut site, &reinit(peer, 10), 2, shown);
            assert_eq!(back.is_ok(), is_own, "{own:?} {shown:?}");
            if !is_own {
                assert_eq!(back, Err(Status::Error), "as with a wrong secret");
            }
        }
    }
}
