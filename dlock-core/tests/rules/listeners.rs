// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that hold a lock and listen are told when they keep others waiting.

use crate::common::site::{w0, Peer, Site, START};
use dlock_core::clock::{Lease, ServerTime, NS};
use dlock_core::ids::Seq;
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::{LedgerEntry, TakenWord};
use dlock_core::primary::Event;
use dlock_core::wire::control::{Act, FabricKind, LockGrant, Whose};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

use FabricKind::{Tcp, Verbs};

const NO_DEADLINE: ServerTime = ServerTime(0);
const NOT_HELD: Reply = Reply::Denied { status: Status::Fail, word: 0 };

fn contended(waiters: u32, until: ServerTime) -> Reply {
    Reply::Contended { waiters, until }
}

fn listen(site: &mut Site, peer: Peer, grant: LockGrant, seq: u64, known: (bool, ServerTime)) {
    let (knows, until) = known;
    let request = Request::Listen { handle: grant.handle, knows, until };
    site.command(peer.id, Seq(seq), request);
}

/// Queues a client for an exclusive hold; of a fair lock it takes a ticket first.
fn wait(site: &mut Site, peer: Peer, grant: LockGrant, lock_type: LockType, seq: u64) {
    let (handle, mode, wait) = (grant.handle, Mode::Exclusive, WaitNumber(seq as u32));
    let ticket = match lock_type {
        LockType::Fair => Some(take_ticket(site, peer, grant)),
        LockType::Atomic | LockType::Rw => None,
    };
    let request = Request::Wait { handle, mode, lease: Lease::secs(50), wait, ticket };
    site.command(peer.id, Seq(seq), request);
}

fn take_ticket(site: &mut Site, peer: Peer, grant: LockGrant) -> dlock_core::memory::words::Ticket {
    let claim = LedgerEntry::claim(Mode::Exclusive, 50).with_detail(1).into_bits();
    let chain = Chain::one(WordOp::WriteLedger { handle: grant.handle, value: claim })
        .then(WordOp::Faa { addr: w0(&grant), add: TakenWord::TAKE_EXCLUSIVE });
    let values = site.execute(peer, &chain);
    TakenWord::from_bits(values.as_slice()[1]).next(0)
}

/// The replies to this client since the last call.
fn replies(site: &mut Site, peer: Peer) -> Vec<(u64, Reply)> {
    let all = std::mem::take(&mut site.out).into_iter();
    all.filter(|sent| sent.client == peer.id).map(|sent| (sent.seq.0, sent.reply)).collect()
}

/// A lock that `holder` holds; returns the handles of both clients.
fn held(site: &mut Site, holder: Peer, other: Peer, lock_type: LockType) -> [LockGrant; 2] {
    let grants = [holder, other].map(|peer| site.get(peer, "one", lock_type));
    wait(site, holder, grants[0], lock_type, 1);
    let granted = replies(site, holder);
    assert!(matches!(granted[..], [(1, Reply::Granted { .. })]), "{granted:?}");
    grants
}

const KINDS: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];

#[test]
fn a_client_that_listens_is_told_once_when_others_come_to_wait() {
    for lock_type in KINDS {
        let mut site = Site::new();
        let [holder, other] = [0, 1].map(|_| site.join(Tcp, 60));
        let [mine, its] = held(&mut site, holder, other, lock_type);
        listen(&mut site, holder, mine, 2, (false, NO_DEADLINE));
        assert_eq!(replies(&mut site, holder), []);
        wait(&mut site, other, its, lock_type, 1);
        let told = [(2, contended(1, NO_DEADLINE))];
        assert_eq!(replies(&mut site, holder), told, "{lock_type:?}");
        wait(&mut site, other, its, lock_type, 2);
        site.upkeep();
        assert_eq!(replies(&mut site, holder), [], "it is answered once");
        listen(&mut site, holder, mine, 3, (true, NO_DEADLINE));
        assert_eq!(replies(&mut site, holder), [], "it knows");
        listen(&mut site, holder, mine, 4, (false, NO_DEADLINE));
        assert_eq!(replies(&mut site, holder), [(4, contended(1, NO_DEADLINE))]);
    }
}

#[test]
fn a_client_that_does_not_hold_the_lock_hears_that_and_not_how_many_wait() {
    for lock_type in KINDS {
        let mut site = Site::new();
        let [holder, other, third] = [0, 1, 2].map(|_| site.join(Tcp, 60));
        let [_, its] = held(&mut site, holder, other, lock_type);
        let thirds = site.get(third, "one", lock_type);
        wait(&mut site, other, its, lock_type, 1);
        site.out.clear();
        listen(&mut site, third, thirds, 1, (false, NO_DEADLINE));
        assert_eq!(replies(&mut site, third), [(1, NOT_HELD)], "{lock_type:?}");
        listen(&mut site, other, its, 2, (false, NO_DEADLINE));
        assert_eq!(replies(&mut site, other), [], "its own wait is none of another client");
    }
}

#[test]
fn what_was_asked_on_a_channel_that_has_ended_is_not_answered_on_the_next() {
    let mut site = Site::new();
    let [holder, other] = [Verbs, Tcp].map(|fabric| site.join(fabric, 60));
    let [mine, its] = held(&mut site, holder, other, LockType::Atomic);
    listen(&mut site, holder, mine, 2, (false, NO_DEADLINE));
    assert_eq!(site.attach(holder), Status::Success);
    wait(&mut site, other, its, LockType::Atomic, 1);
    assert_eq!(replies(&mut site, holder), [], "this number is that of another request now");
    listen(&mut site, holder, mine, 1, (false, NO_DEADLINE));
    assert_eq!(replies(&mut site, holder), [(1, contended(1, NO_DEADLINE))]);
}

#[test]
fn many_readers_are_told_in_slices() {
    let mut site = Site::new();
    let readers = [0; 5].map(|_| site.join(Tcp, 60));
    let writer = site.join(Tcp, 60);
    for reader in readers {
        let grant = site.get(reader, "one", LockType::Rw);
        site.execute(reader, &Chain::one(WordOp::Faa { addr: w0(&grant), add: 1 }));
        listen(&mut site, reader, grant, 1, (false, NO_DEADLINE));
    }
    let its = site.get(writer, "one", LockType::Rw);
    wait(&mut site, writer, its, LockType::Rw, 1);
    let is_told = |reply| matches!(reply, Reply::Contended { .. });
    let told = |site: &Site| site.out.iter().filter(|sent| is_told(sent.reply)).count();
    assert_eq!(told(&site), 2);
    assert!(site.primary.has_upkeep(site.now));
    site.upkeep();
    assert_eq!(told(&site), 5);
}

#[test]
fn an_operators_deadline_is_told_at_once_to_the_client_that_holds_the_lock() {
    for whose in [None, Some(Whose::All)] {
        let mut site = Site::new();
        let [holder, other] = [0, 1].map(|_| site.join(Tcp, 60));
        let [mine, its] = held(&mut site, holder, other, LockType::Atomic);
        let another = site.get(holder, "another", LockType::Atomic);
        wait(&mut site, holder, another, LockType::Atomic, 2);
        wait(&mut site, other, its, LockType::Atomic, 1);
        listen(&mut site, holder, mine, 3, (true, NO_DEADLINE));
        listen(&mut site, holder, another, 4, (false, NO_DEADLINE));
        site.out.clear();
        let is_of_all = whose.is_some();
        let holders = Whose::Holders { name: b"one".to_vec(), client: None };
        let act = Act::TakeAway { whose: whose.unwrap_or(holders), grace_s: 5, now: true };
        site.handle(Event::Operate { act, by: "uid 0".into() });
        site.upkeep();
        let until = START.plus_ns(5 * NS);
        let mut told = replies(&mut site, holder);
        told.sort_by_key(|one| one.0);
        let both = [(3, contended(1, until)), (4, contended(0, until))];
        assert_eq!(told, both[..1 + usize::from(is_of_all)]);
        listen(&mut site, holder, mine, 5, (true, until));
        site.upkeep();
        assert_eq!(replies(&mut site, holder), [], "it knows");
        listen(&mut site, holder, mine, 6, (true, NO_DEADLINE));
        assert_eq!(replies(&mut site, holder), [(6, contended(1, until))], "the answer was lost");
        let release = Request::Release { handle: mine.handle, mode: Mode::Exclusive, ticket: None };
        site.command(holder.id, Seq(7), release);
        site.until(START.plus_ns(6 * NS));
        assert_eq!(site.state(holder).is_some(), !is_of_all, "it has given the lock back in time");
    }
}
