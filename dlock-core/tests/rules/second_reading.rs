// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules that bugs planted by a second reader have shown to be unchecked.

use dlock_core::clock::NS;
use dlock_core::control::{ControlReply, ControlRequest, FabricKind, Secret, VERSION};
use dlock_core::ids::{ClientId, Identity, Seq};
use dlock_core::membership::{Effect, State};
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::primary::Known;
use dlock_core::rights::{Access, Quotas, Right, Rule};
use dlock_core::roster::Change;
use dlock_core::standby::{Standby, Task, SILENCE_NS};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, WordOp};
use dlock_core::words::{LedgerEntry, LedgerState, RwWord};

use crate::common::lock::{id, is_granted, World, HANDLE, RESOLVE, S, WAKE, X};
use crate::common::site::{reinit, Peer, Site};

/// A client of the predecessor with locks.
fn known(id: u32) -> Known {
    Known {
        client: ClientId::new(id).unwrap(),
        secrets: [Secret([id as u8; 16]); 3],
        identity: None,
        horizon_s: 9,
        has_locks: true,
    }
}

/// It comes back over tcp.
fn comes(site: &mut Site, known: Known) -> Peer {
    let (id, secret, fabric) = (known.client, known.secrets[0], FabricKind::Tcp);
    let peer = Peer { id, secret, control: 0, fabric, terms: None };
    let admission = site.open_twice(&reinit(peer, VERSION, known.horizon_s)).unwrap();
    let peer = site.peer(admission, fabric);
    assert_eq!(site.attach(peer), Status::Success);
    peer
}

/// A primary that crashes before the client is fenced leaves the list to the next one.
#[test]
fn a_client_that_leaves_a_recovering_primary_is_known_to_have_left_at_once() {
    let mut site = Site::new();
    site.primary.awaits(site.now, &[known(1), known(2)], 30);
    let peer = comes(&mut site, known(1));
    site.unfenced.insert(peer.id);
    let reply = site.control(peer, ControlRequest::Deinit);
    assert_eq!(reply, ControlReply::Error(Status::NotReady), "it recovers");
    assert!(matches!(site.state(peer), Some(State::Ending(_))));
    let left = Effect::Keep(Change::Left { client: peer.id });
    assert!(site.effects.contains(&left), "{:?}", site.effects);
}

/// The host has been up for an hour when the standby starts.
#[test]
fn the_silence_of_a_primary_that_was_never_heard_counts_from_the_start_of_the_standby() {
    let start_ns = 3_600 * NS;
    let mut standby = Standby::new(start_ns, SILENCE_NS, true);
    for passed_ns in [0, 1, SILENCE_NS - 1] {
        assert!(!standby.promoted(start_ns + passed_ns), "after {passed_ns} ns");
        let task = standby.next(start_ns + passed_ns);
        assert!(!matches!(task, Task::TakeOver(_)), "after {passed_ns} ns");
    }
    assert!(standby.promoted(start_ns + SILENCE_NS));
}

/// Each bound for itself: two rules that both name it.
#[test]
fn the_lowest_of_two_values_of_each_bound_of_a_quota_counts() {
    let all = |max| Quotas {
        clients_max: Some(max),
        locks_max: Some(max),
        objects_max: Some(max),
        waits_max: Some(max),
    };
    for two in [[2, 5], [5, 2]] {
        let rule = |max| Rule {
            names: vec!["*".into()],
            prefixes: vec![Vec::new()],
            rights: [Right::Get].into_iter().collect(),
            quotas: all(max),
        };
        let mut access = Access::default();
        access.set_rules(two.map(rule).to_vec());
        let client = ClientId::new(1).unwrap();
        access.enter(client, Some(Identity([1; 32])), &["a".to_string()]);
        assert_eq!(access.quotas(client), all(2));
    }
}

/// Its ledger names the hold already, with the lease before. The rules change behind the answer.
#[test]
fn a_ledger_write_of_an_extended_lease_needs_no_right() {
    let mut site = Site::new();
    let peer = site.join(FabricKind::Tcp, 0);
    let lock = site.get(peer, "f", LockType::Fair);
    let asks = |site: &mut Site, seq, request| {
        let (now, out) = (site.now, &mut site.out);
        site.primary.command(now, &mut site.memory, peer.id, Seq(seq), request, out);
        out.iter().find(|sent| sent.seq == Seq(seq)).map(|sent| sent.reply)
    };
    let (handle, mode) = (lock.handle, Mode::Exclusive);
    let take = Request::TakeTicket { handle, mode, expire_s: 9 };
    let granted = asks(&mut site, 1, take);
    let Some(Reply::Granted { deadline_s, ticket: Some(ticket), .. }) = granted else {
        panic!("{granted:?}");
    };
    let anchor_s = site.primary.config().anchor_s;
    let held = |deadline_s| {
        let entry = LedgerEntry::of_ticket(LedgerState::HeldExclusive, ticket);
        entry.with_deadline_s(deadline_s, anchor_s)
    };
    let value = held(deadline_s).into_bits();
    site.execute(peer, &Chain::one(WordOp::WriteLedger { handle, value }));
    let extended = asks(&mut site, 2, Request::Extend { handle, mode, ticket, expire_s: 60 });
    let Some(Reply::Granted { deadline_s: later_s, .. }) = extended else {
        panic!("{extended:?}");
    };
    assert!(later_s > deadline_s);
    let rights = [Right::Get].into_iter().collect();
    let (names, prefixes) = (vec!["*".into()], vec![Vec::new()]);
    site.primary.set_rules(vec![Rule { names, prefixes, rights, ..Rule::default() }]);
    let may_note = |site: &mut Site, deadline_s| {
        site.primary.check_note(&mut site.memory, peer.id, handle, held(deadline_s))
    };
    assert_eq!(may_note(&mut site, later_s), Ok(()), "no longer than it was extended");
    assert_eq!(may_note(&mut site, later_s + 1), Err(Status::Denied));
}

/// As `a_client_that_only_asks_ends_no_hold`, of a reader.
#[test]
fn a_reader_that_only_asks_ends_no_hold() {
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, X, LedgerState::HeldExclusive, 5);
    let next = w.take(2, S, LedgerState::TicketShared, 0);
    w.ask(2, Request::Poll { handle: HANDLE, mode: S, ticket: next, expire_s: 60 });
    let word = w.word();
    w.pass(60 * NS);
    w.ask(3, WAKE);
    assert_eq!(w.word(), word, "no client waits");
}

/// Client 1 had a share, has released it, and has noted its next wait, which is not asked for yet.
/// Client 2 reads.
#[test]
fn the_grant_of_an_earlier_wait_takes_no_share_of_another_client_off() {
    for dies in [false, true] {
        let mut w = World::new(LockType::Rw, 2);
        let wait = WaitNumber(1);
        let asks = Request::Wait { handle: HANDLE, mode: S, expire_s: 9, wait, ticket: None };
        assert!(is_granted(&w.ask(1, asks), 1));
        let entry = |state, detail| LedgerEntry::new().with_state(state).with_detail(detail);
        w.memory.ledgers.insert(id(1), entry(LedgerState::Waiting, 2));
        w.memory.ledgers.insert(id(2), entry(LedgerState::HeldShared, 0));
        let _ = if dies { w.forget(1) } else { w.ask(1, RESOLVE) };
        assert_eq!(RwWord::from_bits(w.memory.word).rcount(), 1, "client 2 reads");
    }
}
