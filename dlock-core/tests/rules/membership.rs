// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's membership: admission, horizons, fencing, eviction.

use crate::common::entry;
use crate::common::site::{init, reinit, w0, Peer, Site, GRACE_S, START};
use dlock_core::clock::{Deadline, Lease, NS};
use dlock_core::ids::ClientId;
use dlock_core::membership::{Ending, Exit, Gone, Opened, Orphans, Rules, State};
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::AtomicWord;
use dlock_core::primary::{Effect, Event};
use dlock_core::roster::Change;
use dlock_core::wire::about::About;
use dlock_core::wire::control::{
    ControlReply, ControlRequest, FabricKind, Secret, Terms, Told, UNLIMITED, VERSION, VERSION_MIN,
};
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;

use FabricKind::{Shm, Tcp, Verbs};

fn removed(result: Result<Peer, Status>) -> bool {
    result.map(drop) == Err(Status::ClientRemoved)
}

#[test]
fn versions_are_negotiated_and_foreign_ones_refused() {
    let mut site = Site::new();
    let request = |version_min, version_max, tp_mode| {
        let horizon_s = 3;
        ControlRequest::Init { version_min, version_max, tp_mode, horizon_s, about: About::NOTHING }
    };
    for (min, max) in [(VERSION + 1, 9), (0, VERSION_MIN - 1), (VERSION, VERSION_MIN - 1)] {
        assert_eq!(site.open(&request(min, max, 0)), Err(Status::VersionMismatch));
    }
    assert_eq!(site.open(&request(1, 1, 1)), Err(Status::Error), "another tp_mode");
    assert_eq!(site.open(&ControlRequest::Heartbeat), Err(Status::Error));
    for (min, max) in [(0, VERSION), (VERSION, VERSION + 1), (0, 9)] {
        let admission = site.open_twice(&request(min, max, 0)).unwrap();
        let terms = Terms { horizon_s: 3, until: START.plus_ns(3 * NS), lapses: 0 };
        assert_eq!((admission.version, admission.terms), (VERSION, terms));
    }
}

#[test]
fn an_id_is_not_given_twice_and_a_secret_proves_one_client_alone() {
    let mut site = Site::new();
    let (a, b) = (site.join(Tcp, 0), site.join(Tcp, 0));
    assert_ne!(a.id, b.id);
    for i in 0..16 {
        let mut secret = a.secret;
        secret.0[i] ^= 0x80;
        let other = Peer { secret, ..a };
        assert_eq!(site.come_back(other).map(drop), Err(Status::Error));
        assert_eq!(site.attach(other), Status::Error);
    }
    let nobody = Peer { id: ClientId::new(9).unwrap(), secret: Secret([0; 16]), ..a };
    assert!(removed(site.come_back(nobody)));
    assert_eq!(site.attach(nobody), Status::ClientRemoved);
}

#[test]
fn a_client_whose_queue_pairs_may_still_act_gets_no_new_ones() {
    let mut site = Site::new();
    let peer = site.join(Verbs, 0);
    site.unfenced.insert(peer.id);
    assert_eq!(site.attach(peer), Status::Error);
    site.unfenced.clear();
    assert_eq!(site.attach(peer), Status::Success);
}

#[test]
fn every_answer_that_says_so_extends_the_horizon_and_silence_ends_at_it() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 10);
    site.take_rw(peer);
    for second in [4, 8, 12, 16, 20] {
        site.until(START.plus_ns(second * NS));
        let reply = site.control(peer, ControlRequest::Heartbeat);
        let until = site.now.plus_ns(10 * NS);
        assert_eq!(
            reply,
            ControlReply::Alive {
                now: site.now,
                recovering: false,
                until,
                asked: dlock_core::clock::ServerTime(0),
                recovery: Told::default(),
            }
        );
    }
    let until = START.plus_ns(30 * NS);
    site.until(dlock_core::clock::ServerTime(until.0 - 1));
    assert_eq!(site.state(peer), Some(State::Present), "it may rely on it until then");
    site.until(until);
    assert_eq!(site.exits(peer), [Exit::Horizon], "though both connections are open");
    let closed = Effect::CloseControl { client: peer.id, control: peer.control };
    assert!(site.effects.contains(&closed));
}

#[test]
fn a_primary_that_stood_still_ends_nobody_who_was_heard_when_it_listened_again() {
    let mut site = Site::new();
    site.deaf = true;
    let [loud, queued, silent] = [Tcp; 3].map(|fabric| site.join(fabric, 10));
    [loud, queued, silent].into_iter().for_each(|peer| _ = site.take_rw(peer));
    site.until(START.plus_ns(25 * NS));
    let all = |site: &Site| [loud, queued, silent].map(|peer| site.state(peer));
    assert_eq!(all(&site), [Some(State::Present); 3], "what has come was not heard yet");
    assert!(site.primary.next_wakeup().is_none_or(|at| at > site.now), "nothing to do until then");
    let reply = site.control(loud, ControlRequest::Heartbeat);
    let until = site.now.plus_ns(10 * NS);
    assert!(matches!(reply, ControlReply::Alive { until: u, .. } if u == until), "{reply:?}");
    site.primary.handle(
        site.now,
        &mut site.memory,
        Event::Heard { client: queued.id, control: queued.control },
    );
    site.primary.handle(
        site.now,
        &mut site.memory,
        Event::Heard { client: silent.id, control: loud.control },
    ); // the connection is not one of this client
    assert_eq!(site.members().until(queued.id), Some(until), "it waits for its turn");
    site.listened();
    site.settle();
    assert_eq!(all(&site), [Some(State::Present), Some(State::Present), None]);
    assert_eq!(site.exits(silent), [Exit::Horizon]);
}

/// Silence that becomes due while the primary listens is judged only after the next listening.
#[test]
fn a_listening_tells_of_silence_up_to_its_beginning_alone() {
    let mut site = Site::new();
    site.deaf = true;
    let [first, second] = [10, 12].map(|horizon_s| site.join(Tcp, horizon_s));
    site.until(START.plus_ns(10 * NS));
    site.until(START.plus_ns(13 * NS));
    site.listened();
    site.settle();
    assert_eq!((site.state(first), site.state(second)), (None, Some(State::Present)));
    site.listened();
    site.settle();
    assert_eq!(site.state(second), None, "nothing was heard of it the second time, either");
}

/// The `Reinit` of an absent client may also lie unread in a socket.
#[test]
fn the_grace_of_an_absent_client_ends_when_the_primary_has_listened() {
    let mut site = Site::new();
    site.deaf = true;
    let [back, away] = [Verbs; 2].map(|fabric| site.join(fabric, 0));
    for peer in [back, away] {
        site.take_rw(peer);
        site.lose(peer, Gone::Closed);
    }
    site.until(START.plus_ns(2 * GRACE_S * NS));
    let back = site.come_back(back).unwrap();
    site.listened();
    site.settle();
    assert_eq!((site.state(back), site.state(away)), (Some(State::Present), None));
}

#[test]
fn without_a_horizon_silence_ends_nothing() {
    let mut site = Site::new();
    let peer = site.join(Tcp, 0);
    let word = site.take_rw(peer);
    let reply = site.control(peer, ControlRequest::Heartbeat);
    assert!(matches!(reply, ControlReply::Alive { until: UNLIMITED, .. }), "{reply:?}");
    site.until(START.plus_ns(1_000_000 * NS));
    assert_eq!(site.state(peer), Some(State::Present));
    site.lose(peer, Gone::Silent);
    site.until(START.plus_ns(2_000_000 * NS));
    assert!(matches!(site.state(peer), Some(State::Absent { is_closed: false, .. })));
    let back = site.come_back(peer).unwrap();
    let grant = site.get(back, "rw", LockType::Rw);
    assert_eq!(site.word(&grant), word);
}

#[test]
fn a_client_that_comes_back_is_told_that_what_had_no_lease_has_ended() {
    let mut site = Site::new();
    let peer = site.join(Verbs, 10);
    site.take_rw(peer);
    site.take_lease(peer, 1_000);
    site.until(START.plus_ns(100 * NS));
    assert!(matches!(site.state(peer), Some(State::Lingering { .. })));
    assert_eq!(site.attach(peer), Status::ClientRemoved, "it must ask first");
    let back = site.come_back(peer).unwrap();
    assert_eq!(back.terms.lapses, 1);
    let again = site.come_back(back).unwrap();
    assert_eq!(again.terms.lapses, 1, "an answer that was lost is told again");
    let grant = site.get(again, "rw", LockType::Rw);
    assert_eq!(site.word(&grant), 0);
    let grant = site.get(again, "leased", LockType::Atomic);
    assert_eq!(AtomicWord::from_bits(site.word(&grant)).client(), peer.id.get());
}

#[test]
fn a_place_is_taken_from_the_first_absent_client_that_has_nothing_and_from_nobody_else() {
    let mut site = Site::with(None, Orphans::Lease, 4);
    let [a, b, c, d] = [Tcp, Verbs, Tcp, Tcp].map(|fabric| site.join(fabric, 0));
    assert_eq!(site.open(&init(0)), Err(Status::ServerNoResource), "all are there");
    site.take_lease(a, 1_000);
    site.take_rw(b);
    for peer in [a, b, c] {
        site.lose(peer, Gone::Closed);
    }
    assert!(site.open_twice(&init(0)).is_ok());
    assert_eq!((site.exits(c), site.state(c)), (vec![Exit::Evicted], None));
    assert_eq!(site.open(&init(0)), Err(Status::ServerNoResource), "a and b have something");
    assert!(site.come_back(b).is_ok() && site.come_back(a).is_ok());
    assert_eq!(site.state(d), Some(State::Present));
}

#[test]
fn a_new_client_waits_while_the_one_before_it_is_being_undone() {
    let mut site = Site::with(None, Orphans::Lease, 1);
    site.begins(Rules { undone_at_once: 0, ..Rules::of(site.locks().config()) });
    let peer = site.join(Tcp, 0);
    site.get(peer, "l", LockType::Atomic);
    site.lose(peer, Gone::Closed);
    site.slow = true;
    for _ in 0..3 {
        assert_eq!(site.open(&init(0)), Ok(Opened::Wait));
        assert_eq!(site.state(peer), Some(State::Undoing));
        assert!(removed(site.come_back(peer)));
    }
    site.slow = false;
    site.settle();
    assert!(matches!(site.open(&init(0)), Ok(Opened::Admitted(_))));
}

#[test]
fn a_living_shm_client_is_quarantined_and_may_come_back() {
    let mut site = Site::new();
    let peer = site.join(Shm, 0);
    let word = site.take_rw(peer);
    site.lose(peer, Gone::Closed);
    site.until(START.plus_ns(GRACE_S * NS));
    assert_eq!(site.state(peer), Some(State::Ending(Ending::Lapse(Exit::Grace))));
    assert!(site
        .effects
        .contains(&Effect::Revoke { client: peer.id, status: Status::BadResponse }));
    let back = site.come_back(peer).unwrap();
    let grant = site.get(back, "rw", LockType::Rw);
    assert_eq!((site.word(&grant), back.terms.lapses), (word, 0));
}

#[test]
fn nothing_of_a_client_whose_process_has_ended_is_held_when_that_is_known() {
    let mut site = Site::new();
    let (peer, other) = (site.join(Shm, 0), site.join(Shm, 0));
    site.take_rw(peer);
    site.take_lease(peer, 1_000);
    site.die(peer);
    assert_eq!((site.exits(peer), site.state(peer)), (vec![Exit::Died], None));
    for (name, lock_type) in [("rw", LockType::Rw), ("leased", LockType::Atomic)] {
        let grant = site.get(other, name, lock_type);
        assert_eq!(site.word(&grant), 0);
    }
}

/// The process that used shared memory need not be the one that goes on over TCP.
#[test]
fn a_client_that_went_over_to_tcp_is_not_dead_when_its_shm_process_is() {
    let mut site = Site::new();
    let peer = site.join(Shm, 0);
    let over = Peer { fabric: Tcp, ..peer };
    assert_eq!(site.attach(over), Status::Success);
    site.die(peer);
    assert_eq!(site.state(peer), Some(State::Present));
}

/// The client's queue pairs cannot be fenced, so it stays a member for long. A successor must not
/// wait for it.
#[test]
fn a_client_that_leaves_is_known_to_have_left_at_once() {
    let mut site = Site::new();
    let peer = site.join(Verbs, 0);
    site.unfenced.insert(peer.id);
    assert_eq!(site.control(peer, ControlRequest::Deinit), ControlReply::Done);
    assert!(matches!(site.state(peer), Some(State::Ending(_))));
    let left = Effect::Keep(Change::Left { client: peer.id });
    assert!(site.effects.contains(&left), "{:?}", site.effects);
}

#[test]
fn a_client_that_has_left_does_not_come_back() {
    let mut site = Site::new();
    site.begins(Rules { undone_at_once: 0, ..Rules::of(site.locks().config()) });
    let peer = site.join(Tcp, 0);
    site.get(peer, "l", LockType::Atomic);
    site.slow = true;
    assert_eq!(site.control(peer, ControlRequest::Deinit), ControlReply::Done);
    assert_eq!(site.state(peer), Some(State::Undoing));
    assert!(removed(site.come_back(peer)));
    assert_eq!(site.attach(peer), Status::ClientRemoved);
    let again = site.control(peer, ControlRequest::Deinit);
    assert_eq!(again, ControlReply::Error(Status::Error));
}

/// A small generator (splitmix64): the same on every run.
struct Gen(u64);

impl Gen {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Random inputs. [`Site`] asserts that nothing is undone or lapses before its client is fenced.
/// This test checks that no living client loses a lease before its end, and that no client with a
/// lease is evicted.
#[test]
fn whatever_happens_a_lease_lasts_and_fencing_comes_first() {
    for seed in 0..300 {
        run(&mut Gen(seed));
    }
}

/// A client, and until when it has a lease.
struct Holder {
    peer: Peer,
    until: Deadline,
    is_condemned: bool,
}

fn run(g: &mut Gen) {
    let grace_s = [None, Some(0), Some(5)][g.below(3) as usize];
    let mut site = Site::with(grace_s, Orphans::Lease, 4);
    let mut holders: Vec<Holder> = Vec::new();
    for _ in 0..150 {
        let at = g.below(holders.len().max(1) as u64) as usize;
        match (g.below(14), holders.get_mut(at)) {
            (0..=2, _) => {
                let fabric = [Shm, Tcp, Verbs][g.below(3) as usize];
                if let Ok(admission) = site.open_twice(&init(g.below(3) as u32 * 4)) {
                    let peer = site.peer(admission, fabric);
                    site.attach(peer);
                    let mut until = Deadline::NONE;
                    if g.below(2) == 0 {
                        until = site.now.deadline(Lease(g.below(320) as u32));
                        let name = peer.id.get().to_string();
                        let grant = site.get(peer, &name, LockType::Atomic);
                        let word = AtomicWord::new().with_client(peer.id.get());
                        let swap = word.with_timeout(until).into_bits();
                        let cas = WordOp::Cas { addr: w0(&grant), expect: 0, swap };
                        site.execute(peer, &Chain::one(cas));
                    }
                    holders.push(Holder { peer, until, is_condemned: false });
                }
            }
            (3, Some(holder)) => site.lose(holder.peer, Gone::Closed),
            (4, Some(holder)) => site.lose(holder.peer, Gone::Silent),
            (5, Some(holder)) => {
                if let Ok(back) = site.open_twice(&reinit(holder.peer, 4)) {
                    holder.peer = site.peer(back, holder.peer.fabric);
                    site.attach(holder.peer);
                }
            }
            (6, Some(holder)) => {
                holder.peer.fabric = [Shm, Tcp, Verbs][g.below(3) as usize];
                site.attach(holder.peer);
            }
            (7, Some(holder)) => {
                let id = holder.peer.id;
                if !site.unfenced.remove(&id) {
                    site.unfenced.insert(id);
                }
                site.memory.mapped.remove(&id);
                site.handle(Event::Retry);
                site.settle();
            }
            (8, Some(holder)) => _ = site.control(holder.peer, ControlRequest::Heartbeat),
            (9, Some(holder)) if g.below(4) == 0 => {
                site.control(holder.peer, ControlRequest::Deinit);
                holder.is_condemned = true;
            }
            (10, Some(holder)) if holder.peer.fabric == Shm && g.below(4) == 0 => {
                site.die(holder.peer);
                holder.is_condemned = true;
            }
            (11, Some(holder)) if g.below(8) == 0 => {
                site.handle(Event::removes(holder.peer.id));
                site.settle();
                holder.is_condemned = true;
            }
            _ => {
                let ns = g.below(4) * NS + g.below(NS);
                let until = site.now.plus_ns(ns);
                site.until(until);
            }
        }
        for holder in &holders {
            let runs = site.now < holder.until.expiry();
            if runs && holder.until > Deadline::NONE && !holder.is_condemned {
                assert!(site.state(holder.peer).is_some(), "{} lost its lease", holder.peer.id);
                let locks = site.primary.locks().locks_snapshot(
                    site.now,
                    &mut site.memory,
                    dlock_core::ids::LockId(0),
                    1_000,
                );
                let name = holder.peer.id.get().to_string().into_bytes();
                let lock = locks.iter().find(|lock| lock.name == name).expect("its lock");
                assert_eq!(AtomicWord::from_bits(lock.word).client(), holder.peer.id.get());
            }
        }
    }
}

/// A client that is told of a lapse gives up its holds without a lease, and nothing else.
#[test]
fn a_lapse_loses_what_has_no_lease_and_nothing_else() {
    use dlock_core::clock::Now;
    use dlock_core::ids::{Handle, LockId, Slot};
    use dlock_core::lock::{Begin, LockEntry, Op, Step};
    use dlock_core::wire::control::LockGrant;
    use dlock_core::wire::message::Mode;
    let (handle, slot) = (Handle(0), Slot(0));
    let grant = LockGrant { lock: LockId(9), handle, slot, word: 0, already: false, tokens: false };
    for (lock_type, lease, is_lost) in
        [(LockType::Atomic, Lease::secs(60), false), (LockType::Atomic, Lease::ENDLESS, true)]
    {
        let me = ClientId::new(5).unwrap();
        let desc = dlock_core::wire::control::LockDesc {
            name: vec![1],
            lock_type,
            lease_s: 0,
            tokens: false,
        };
        let mut entry = LockEntry::new(me, 0, lock_type, &grant, desc);
        assert!(!entry.lapse(), "nothing is held");
        let op = Op::TryLock { mode: Mode::Exclusive, lease };
        let now = Now::exact(START);
        let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, now) else { panic!() };
        machine.outcome(&mut entry, entry::executed(&chain, 0), now);
        assert_eq!((entry.lapse(), entry.in_doubt()), (is_lost, is_lost), "{lock_type:?}");
    }
}

/// The caller relies on its first lease. The primary may have seen a hold without a lease, and may
/// have ended it.
#[test]
fn a_hold_that_was_asked_to_last_for_ever_in_vain_is_lost_by_a_lapse() {
    use dlock_core::clock::Now;
    use dlock_core::lock::{Begin, Op, Step};
    use dlock_core::memory::word_op::Outcome;
    use dlock_core::wire::message::Mode;
    let now = Now::exact(START);
    for lock_type in [LockType::Atomic, LockType::Fair] {
        for (lease, is_lost) in [(Lease::secs(70), false), (Lease::ENDLESS, true)] {
            let mut entry = entry::entry(lock_type);
            let op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(60) };
            let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, now) else {
                panic!()
            };
            let old = entry::executed(&chain, 0);
            let step = machine.outcome(&mut entry, old, now);
            assert!(matches!(step, Step::Done(result) if result.status == Status::Success));
            let op = Op::Extend { mode: Mode::Exclusive, lease };
            let Begin::Run(mut machine, Step::Chain(_)) = entry.begin(op, now) else { panic!() };
            machine.outcome(&mut entry, Outcome::Unknown, now);
            assert_eq!(entry.lapse(), is_lost, "{lock_type:?} {lease:?}");
        }
    }
}

#[test]
fn a_hold_is_not_lost_by_a_lapse_because_the_one_before_it_was_asked_to_last_for_ever() {
    use dlock_core::clock::Now;
    use dlock_core::lock::{Begin, Op, Step};
    use dlock_core::memory::word_op::Outcome;
    use dlock_core::wire::message::Mode;
    let now = Now::exact(START);
    let mut entry = entry::entry(LockType::Atomic);
    let held =
        AtomicWord::new().with_client(7).with_timeout(START.deadline(Lease::secs(60))).into_bits();
    let mode = Mode::Exclusive;
    let take = Op::TryLock { mode, lease: Lease::secs(60) };
    for (op, found) in [
        (take, Some(0)),
        (Op::Extend { mode, lease: Lease::ENDLESS }, None),
        (Op::Unlock, Some(held)),
        (take, Some(0)),
    ] {
        let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, now) else {
            panic!("{op:?}")
        };
        let outcome = found.map_or(Outcome::Unknown, |old| entry::executed(&chain, old));
        let step = machine.outcome(&mut entry, outcome, now);
        let Step::Done(result) = step else { panic!("{op:?} {step:?}") };
        let status = if found.is_some() { Status::Success } else { Status::BadResponse };
        assert_eq!(result.status, status, "{op:?}");
    }
    assert!(!entry.lapse(), "it has a lease");
}

/// The client is kept from the memory, and may come back and find its holds.
#[test]
fn a_release_that_is_refused_while_the_client_is_removed_releases_nothing() {
    use dlock_core::clock::Now;
    use dlock_core::lock::{Begin, EntryState, Op, Step};
    use dlock_core::memory::word_op::Outcome;
    use dlock_core::wire::message::Mode;
    let now = Now::exact(START);
    for (refused, is_held) in [(Status::ClientRemoved, true), (Status::LockNotGet, false)] {
        let mut entry = entry::entry(LockType::Rw);
        let op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(60) };
        let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, now) else { panic!() };
        machine.outcome(&mut entry, entry::executed(&chain, 0), now);
        let Begin::Run(mut machine, Step::Chain(_)) = entry.begin(Op::Unlock, now) else {
            panic!()
        };
        let step = machine.outcome(&mut entry, Outcome::Refused(refused), now);
        assert!(matches!(step, Step::Done(result) if result.status != Status::Success), "{step:?}");
        let held = entry.state() == EntryState::ExclusiveLocked && !entry.in_doubt();
        assert_eq!(held, is_held, "{refused:?}");
    }
}
