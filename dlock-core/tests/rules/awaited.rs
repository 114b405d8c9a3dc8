// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which clients a recovery waits for, and for how long.

use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::{ClientId, LockId};
use dlock_core::locks::{Known, Laggard, Recovered, TELLING_S};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Word, WordAddr};
use dlock_core::wire::control::{Claim, ControlReply, ControlRequest, HeldClaim, LockDesc, Secret};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use crate::common::world::{World, NOW};

const DEADLINE_S: u32 = 30;

fn known(id: u32, horizon_s: u32) -> Known {
    let secrets = [id as u8, 98, 99].map(|byte| Secret([byte; 16]));
    Known {
        client: ClientId::new(id).unwrap(),
        secrets,
        identity: None,
        horizon_s,
        has_locks: true,
    }
}

fn after(seconds: u64) -> ServerTime {
    NOW.plus_ns(seconds * NS)
}

fn waiting(known: &[Known]) -> World {
    let mut w = World::new(10);
    w.primary.awaits(NOW, known, DEADLINE_S);
    w
}

impl World {
    fn comes(&mut self, of: Known) {
        assert_eq!(self.primary.may_adopt(of.client, of.secrets[0], None), Ok(()));
        self.admit(of.client.get()).unwrap();
        self.primary.came_back(NOW, of.client);
    }

    fn tells(&mut self, of: Known) -> ControlReply {
        self.control(of.client, ControlRequest::ReinitDone)
    }

    fn claims_of(&mut self, of: Known) -> WordAddr {
        let desc = LockDesc {
            name: b"l".to_vec(),
            lock_type: LockType::Atomic,
            lease_s: 0,
            tokens: false,
        };
        let held = Some(HeldClaim::hold(Mode::Exclusive, 600 * NS));
        let claim = Claim { lock: LockId(9), desc, held };
        match self.control(of.client, ControlRequest::UpdateLocks(vec![claim])) {
            ControlReply::Locks(locks) => WordAddr::new(locks[0].unwrap().slot, Word::W0),
            other => panic!("{other:?}"),
        }
    }

    fn is_over_at(&mut self, at: ServerTime) -> bool {
        self.primary.has_heard(at);
        while self.step(at, 1_000).more {}
        !self.primary.is_recovering()
    }
}

#[test]
fn those_who_were_known_are_waited_for_and_no_stranger_counts() {
    let all = [known(5, 0), known(6, 0)];
    let mut w = waiting(&all);
    assert!(w.primary.is_recovering());
    w.comes(all[0]);
    assert_eq!(w.tells(all[0]), ControlReply::Done);
    let strangers = [(7, 7, Status::ClientRemoved), (6, 5, Status::Error)];
    for (id, secret, status) in strangers {
        let client = ClientId::new(id).unwrap();
        assert_eq!(w.primary.may_adopt(client, Secret([secret; 16]), None), Err(status));
    }
    assert_eq!(w.primary.may_adopt(all[1].client, all[1].secrets[2], None), Ok(()));
    assert!(!w.is_over_at(after(1_000_000)), "it has no horizon");
    let progress = w.primary.progress().unwrap();
    assert_eq!((progress.expected, progress.back, progress.told), (2, 1, 1));
    assert_eq!(progress.missing, [(all[1].client, None)]);
    w.comes(all[1]);
    assert_eq!(w.tells(all[1]), ControlReply::Done);
    assert!(!w.primary.is_recovering() && w.primary.progress().is_none());
    let of = Recovered { clients: 2, ..Recovered::default() };
    assert_eq!(w.primary.take_recovered(), Some(of));
    assert_eq!(w.primary.take_recovered(), None);
    let late = w.primary.may_adopt(all[0].client, all[0].secrets[0], None);
    assert_eq!(late, Err(Status::ClientRemoved), "the recovery is over");
}

#[test]
fn who_does_not_come_is_given_up_after_the_deadline_and_its_horizon() {
    for (horizon_s, until_s) in [(10, 30), (30, 30), (100, 100)] {
        let mut w = waiting(&[known(5, 10), known(6, horizon_s)]);
        assert_eq!(w.primary.recovery_due(), Some(after(until_s)));
        assert_eq!(w.primary.next_wakeup(), None, "it was not listened yet");
        assert!(!w.is_over_at(ServerTime(after(until_s).0 - 1)), "{horizon_s}");
        assert!(w.is_over_at(after(until_s)), "{horizon_s}");
        let of = Recovered { given_up: 2, ..Recovered::default() };
        assert_eq!(w.primary.take_recovered(), Some(of));
        let late = w.primary.may_adopt(known(5, 10).client, known(5, 10).secrets[0], None);
        assert_eq!(late, Err(Status::ClientRemoved), "it starts anew");
    }
}

/// The primary stood still, so requests of its clients may lie unread in its sockets.
#[test]
fn who_is_missing_is_not_given_up_before_everything_was_heard_that_had_come() {
    let mut w = waiting(&[known(5, 10), known(6, 10)]);
    assert!(!w.step(after(600), 1_000).more);
    assert!(w.primary.is_recovering(), "nothing was listened to since");
    assert_eq!(w.primary.next_wakeup(), None, "and nothing is due before that");
    w.primary.has_heard(ServerTime(after(30).0 - 1));
    assert!(!w.step(after(600), 1_000).more && w.primary.is_recovering());
    w.primary.has_heard(after(30));
    assert!(w.is_over_at(after(1)), "what was heard stays heard");
}

#[test]
fn who_is_back_is_waited_for_beyond_the_deadline() {
    let all = [known(5, 10), known(6, 10)];
    let mut w = waiting(&all);
    w.comes(all[1]);
    assert_eq!(w.primary.next_wakeup(), Some(after(30)), "it lags then");
    let laggard = Laggard { client: all[1].client, is_hurried: false };
    assert_eq!(w.primary.take_laggard(ServerTime(after(30).0 - 1)), None);
    assert_eq!(w.primary.take_laggard(after(30)), Some(laggard));
    assert_eq!((w.primary.take_laggard(after(31)), w.primary.next_wakeup()), (None, None));
    w.primary.came_back(after(31), all[1].client);
    assert_eq!(w.primary.take_laggard(after(99)), None, "it is named once");
    assert!(!w.is_over_at(after(1_000)));
    let at = w.claims_of(all[1]);
    assert_eq!(w.tells(all[1]), ControlReply::Done);
    assert!(!w.primary.is_recovering(), "the other has not come in time");
    assert_ne!(w.memory.read(at), 0);
}

/// The client has claimed a hold, and leaves before it has claimed everything: then none of its
/// claims counts.
#[test]
fn of_a_client_that_has_not_told_everything_nothing_counts() {
    let all = [known(5, 10), known(6, 0)];
    for is_told in [false, true] {
        let mut w = waiting(&all);
        w.comes(all[0]);
        let at = w.claims_of(all[0]);
        if is_told {
            assert_eq!(w.tells(all[0]), ControlReply::Done);
        }
        w.primary.is_dead(all[1].client);
        assert_eq!(w.is_over_at(NOW), is_told);
        if is_told {
            assert_ne!(w.memory.read(at), 0);
            continue;
        }
        w.primary.hurries();
        assert!(!w.is_over_at(after(1)), "it is here");
        assert_eq!(w.primary.take_laggard(after(29)), None, "and may take as long as that");
        let laggard = Laggard { client: all[0].client, is_hurried: true };
        assert_eq!(w.primary.take_laggard(after(30)), Some(laggard));
        w.primary.fenced(all[0].client);
        assert!(w.is_over_at(after(2)));
        assert_eq!(w.memory.read(at), 0);
    }
}

#[test]
fn who_is_dead_is_not_waited_for_and_never_adopted() {
    let all = [known(5, 0), known(6, 0)];
    let mut w = waiting(&all);
    w.primary.is_dead(all[0].client);
    let zombie = w.primary.may_adopt(all[0].client, all[0].secrets[0], None);
    assert_eq!(zombie, Err(Status::ClientRemoved));
    w.comes(all[1]);
    w.primary.is_dead(all[1].client);
    assert!(!w.is_over_at(after(100)), "the second one is here");
    assert_eq!(w.tells(all[1]), ControlReply::Done);
    assert!(w.is_over_at(after(100)));
}

#[test]
fn whose_list_was_lost_is_waited_for_until_an_operator_does_not_want_to() {
    for all in [vec![], vec![known(5, 0)]] {
        let mut w = waiting(&all);
        w.primary.awaits_unlisted();
        assert!(w.primary.is_recovering() && w.primary.progress().unwrap().is_unlisted);
        // the clients of the list, and one that the lost part of the list would have had
        for of in all.into_iter().chain([known(6, 0)]) {
            w.comes(of);
            assert_eq!(w.tells(of), ControlReply::Done);
        }
        assert_eq!(w.primary.recovery_due(), None);
        assert!(!w.is_over_at(after(1_000_000)), "there may be others");
        w.primary.hurries();
        assert!(w.is_over_at(after(1_000_000)));
    }
}

#[test]
fn an_operator_may_not_want_to_wait() {
    let all = [known(5, 0), known(6, 0)];
    let mut w = waiting(&all);
    w.comes(all[0]);
    w.primary.hurries();
    assert!(!w.is_over_at(NOW), "who is here is waited for");
    assert_eq!(w.tells(all[0]), ControlReply::Done);
    assert!(w.is_over_at(NOW));
    assert_eq!(w.primary.take_recovered().map(|of| of.given_up), Some(1));
    let mut counted = World::recovering(10, 3);
    counted.primary.hurries();
    assert!(counted.is_over_at(NOW));
}

/// The answer that admitted the client may be lost with the primary. Then no client has this id,
/// and the recovery would wait for ever.
#[test]
fn who_was_never_given_a_lock_is_not_waited_for_and_may_come_at_any_time() {
    let idle = |id| Known { has_locks: false, ..known(id, 0) };
    let mut w = waiting(&[idle(7), idle(8)]);
    assert!(!w.primary.is_recovering());
    assert_eq!(w.primary.may_adopt(idle(7).client, idle(8).secrets[0], None), Err(Status::Error));
    assert_eq!(w.primary.may_adopt(known(9, 0).client, idle(8).secrets[0], None), {
        Err(Status::ClientRemoved)
    });
    w.comes(idle(7));
    assert!(w.primary.idle().eq([idle(8).client]) && w.primary.is_idle(idle(8).client));
    assert_eq!(w.tells(idle(7)), ControlReply::Done);
    assert_eq!(w.primary.may_adopt(idle(7).client, idle(7).secrets[0], None), {
        Err(Status::ClientRemoved)
    });
    w.primary.is_dead(idle(8).client);
    assert_eq!(w.primary.may_adopt(idle(8).client, idle(8).secrets[0], None), {
        Err(Status::ClientRemoved)
    });

    let mut w = waiting(&[known(5, 0), idle(7), idle(8)]);
    assert_eq!(w.primary.progress().map(|progress| progress.expected), Some(1));
    w.comes(idle(7));
    w.comes(known(5, 0));
    assert_eq!(w.tells(known(5, 0)), ControlReply::Done);
    assert!(w.is_over_at(NOW), "who has nothing to tell need not say so");
    assert_eq!(w.tells(idle(7)), ControlReply::Done);
    w.comes(idle(8));
    let many: Vec<Known> = (10..40).map(idle).collect();
    assert_eq!(waiting(&many).primary.idle().count(), 10, "no more than there is room for");
}

/// After `dlock recover --now` a client that was named as a laggard before is named once more.
#[test]
fn who_takes_long_is_named_again_for_an_operator() {
    let mut w = waiting(&[known(5, 0)]);
    w.comes(known(5, 0));
    let client = known(5, 0).client;
    for is_hurried in [false, true] {
        assert_eq!(w.primary.take_laggard(after(40)), Some(Laggard { client, is_hurried }));
        assert_eq!(w.primary.take_laggard(after(40)), None);
        w.primary.hurries();
    }
    assert_eq!(w.tells(known(5, 0)), ControlReply::Done);
    assert!(!w.primary.is_recovering());
}

/// The recovery waits for another client, and this one comes back once more, because its session
/// broke.
#[test]
fn who_has_told_everything_does_not_lag() {
    let all = [known(5, 0), known(6, 0)];
    let mut w = waiting(&all);
    w.comes(all[0]);
    assert!(w.primary.take_laggard(after(31)).is_some());
    assert_eq!(w.tells(all[0]), ControlReply::Done);
    w.primary.came_back(after(32), all[0].client);
    w.primary.hurries();
    assert_eq!(w.primary.take_laggard(after(999)), None);
}

#[test]
fn who_is_here_has_some_time_whatever_the_deadline() {
    let mut w = World::new(10);
    w.primary.awaits(NOW, &[known(5, 0)], 0);
    w.comes(known(5, 0));
    let lags_at = after(u64::from(TELLING_S));
    assert_eq!(w.primary.take_laggard(ServerTime(lags_at.0 - 1)), None);
    assert!(w.primary.take_laggard(lags_at).is_some());
}

#[test]
fn who_is_here_has_as_long_as_the_deadline() {
    let deadline = 3 * TELLING_S;
    let mut w = World::new(10);
    w.primary.awaits(NOW, &[known(5, 0)], deadline);
    w.comes(known(5, 0));
    let lags_at = after(u64::from(deadline));
    assert_eq!(w.primary.take_laggard(ServerTime(lags_at.0 - 1)), None);
    assert!(w.primary.take_laggard(lags_at).is_some());
}

/// If something were due, the primary would listen again and again for clients that it only counts.
#[test]
fn while_clients_are_waited_for_by_their_number_nothing_is_due() {
    let mut w = World::recovering(10, 1);
    assert_eq!(w.primary.recovery_due(), None);
    w.primary.awaits(NOW, &[known(5, 10)], DEADLINE_S);
    assert_eq!(w.primary.recovery_due(), None);
    w.primary.hurries();
    assert!(w.primary.recovery_due().is_some());
}

#[test]
fn without_anybody_to_wait_for_there_is_no_recovery() {
    assert!(!waiting(&[]).primary.is_recovering());
}

#[test]
fn a_client_of_the_predecessor_comes_with_its_own_certificate_alone() {
    use dlock_core::ids::Identity;
    let identities = [None, Some(Identity([1; 32])), Some(Identity([2; 32]))];
    for (own, has_locks) in identities.into_iter().flat_map(|own| [(own, true), (own, false)]) {
        let of = Known { identity: own, has_locks, ..known(7, 10) };
        let w = waiting(&[of, known(8, 10)]);
        for shown in identities {
            let wanted = if shown == own { Ok(()) } else { Err(Status::Error) };
            assert_eq!(w.primary.may_adopt(of.client, of.secrets[0], shown), wanted);
        }
    }
}
