// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primary notes in a client's ledger when it has executed one of its chains.

use crate::common::site::{w0, Peer, Site};
use dlock_core::control::FabricKind::{Shm, Tcp, Verbs};
use dlock_core::control::LockGrant;
use dlock_core::exec::LockMemory;
use dlock_core::ids::Seq;
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::rights::{Right, Rule};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::words::{AtomicWord, FairWord, LedgerEntry, LedgerState, RwWord, Ticket, TurnWord};

/// A site, a tcp client, and a lock that it has got.
fn with(lock_type: LockType) -> (Site, Peer, LockGrant) {
    let mut site = Site::new();
    let client = site.join(Tcp, 0);
    let grant = site.get(client, "l", lock_type);
    (site, client, grant)
}

fn notes(grant: &LockGrant, entry: LedgerEntry) -> WordOp {
    WordOp::WriteLedger { handle: grant.handle, value: entry.into_bits() }
}

fn ledger(site: &Site, client: Peer, grant: &LockGrant) -> LedgerEntry {
    let entry = site.memory.ledgers.get(&(client.id, grant.handle));
    entry.copied().unwrap_or_default()
}

/// An intent whose lease ends so many seconds after the anchor.
fn intent(mode: Mode, lease_s: u32) -> LedgerEntry {
    LedgerEntry::intent(mode, true, 7).with_detail(lease_s)
}

fn take(grant: &LockGrant, mode: Mode, noted: Option<LedgerEntry>) -> Chain {
    let add = match mode {
        Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
        Mode::Shared => FairWord::TAKE_SHARED,
    };
    let add = WordOp::Faa { addr: w0(grant), add };
    match noted {
        Some(noted) => Chain::one(notes(grant, noted)).then(add),
        None => Chain::one(add),
    }
}

const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

#[test]
fn a_ticket_that_has_its_turn_is_noted_as_held_with_the_lease_of_its_intent() {
    for (mode, state) in
        MODES.into_iter().zip([LedgerState::HeldExclusive, LedgerState::HeldShared])
    {
        let (mut site, client, grant) = with(LockType::Fair);
        site.memory.set(w0(&grant), FairWord::new().with_nx(5).with_mx(5).into_bits());
        site.execute(client, &take(&grant, mode, Some(intent(mode, 60))));
        let held = LedgerEntry::of_ticket(state, Ticket { tx: 5, ts: 0 }).with_detail(60);
        assert_eq!(ledger(&site, client, &grant), held);
    }
}

#[test]
fn a_ticket_that_waits_is_noted_without_a_lease() {
    let states = [LedgerState::TicketExclusive, LedgerState::TicketShared];
    for (mode, state) in MODES.into_iter().zip(states) {
        let (mut site, client, grant) = with(LockType::Fair);
        let held = FairWord::new().with_nx(5).with_mx(6);
        // the word of a relayed lock does not say which number is served, whatever its lanes are
        for word in [held, held.relayed(), FairWord::new().with_mx(FairWord::RELAYED).relayed()] {
            let turn = WordAddr::new(grant.slot, Word::W1);
            site.memory.set(turn, TurnWord::new().with_nx(5).into_bits());
            site.memory.set(w0(&grant), word.into_bits());
            site.execute(client, &take(&grant, mode, Some(intent(mode, 60))));
            let ticket = LedgerEntry::of_ticket(state, word.next());
            assert_eq!(ledger(&site, client, &grant), ticket);
        }
    }
}

#[test]
fn nothing_is_noted_of_a_ticket_without_an_intent_in_its_chain() {
    let (mut site, client, grant) = with(LockType::Fair);
    site.execute(client, &take(&grant, Mode::Exclusive, None));
    assert_eq!(ledger(&site, client, &grant), LedgerEntry::new());
    let (mut site, client, grant) = with(LockType::Fair);
    let other = LedgerEntry::of_ticket(LedgerState::TicketShared, Ticket { tx: 1, ts: 2 });
    site.execute(client, &take(&grant, Mode::Exclusive, Some(other)));
    assert_eq!(ledger(&site, client, &grant), LedgerEntry::new(), "that is not its own");
}

#[test]
fn a_release_clears_the_ledger_if_it_took_effect_and_not_otherwise() {
    for mode in MODES {
        for is_found in [true, false] {
            let (mut site, client, grant) = with(LockType::Fair);
            site.execute(client, &take(&grant, mode, Some(intent(mode, 60))));
            let held = FairWord::from_bits(site.word(&grant));
            if !is_found {
                site.memory.set(w0(&grant), held.exclusive_taken().into_bits());
            }
            let ticket = Ticket { tx: 0, ts: 0 };
            let done = match mode {
                Mode::Exclusive => held.exclusive_done(),
                Mode::Shared => held.shared_done(1),
            };
            let (expect, swap) = (held.into_bits(), done.into_bits());
            let cas = WordOp::Cas { addr: w0(&grant), expect, swap };
            let leaving = LedgerEntry::of_ticket(LedgerState::Leaving, ticket).with_detail(60);
            let (chain, before) = match mode {
                Mode::Exclusive => (Chain::one(cas), ledger(&site, client, &grant)),
                Mode::Shared => (Chain::one(notes(&grant, leaving)).then(cas), leaving),
            };
            site.execute(client, &chain);
            let after = if is_found { LedgerEntry::new() } else { before };
            assert_eq!(ledger(&site, client, &grant), after, "{mode:?}");
        }
    }
}

/// The entry may be the only record of that other ticket.
#[test]
fn a_release_of_one_ticket_leaves_the_note_of_another() {
    let (mut site, client, grant) = with(LockType::Fair);
    let other = LedgerEntry::of_ticket(LedgerState::HeldExclusive, Ticket { tx: 9, ts: 0 });
    let shared = LedgerEntry::of_ticket(LedgerState::Leaving, Ticket { tx: 0, ts: 0 });
    let held = FairWord::new().exclusive_taken();
    for entry in [other, shared, intent(Mode::Exclusive, 5)] {
        site.memory.set(w0(&grant), 0);
        site.execute(client, &take(&grant, Mode::Exclusive, Some(intent(Mode::Exclusive, 60))));
        site.memory.ledgers.insert((client.id, grant.handle), entry);
        let (expect, swap) = (held.into_bits(), held.exclusive_done().into_bits());
        site.execute(client, &Chain::one(WordOp::Cas { addr: w0(&grant), expect, swap }));
        assert_eq!(ledger(&site, client, &grant), entry);
    }
}

#[test]
fn a_reader_is_noted_if_it_is_inside_and_not_if_it_has_to_step_back() {
    let owned = RwWord::new().with_client(77);
    let waited_for = RwWord::new().with_waiters(true).with_rcount(1);
    let full = RwWord::new().with_rcount(u32::MAX - 1);
    for (found, is_inside) in [
        (RwWord::new(), true),
        (RwWord::new().with_rcount(3), true),
        (owned, false),
        (waited_for, false),
        (full, true),
    ] {
        let (mut site, client, grant) = with(LockType::Rw);
        site.memory.set(w0(&grant), found.into_bits());
        let intent = LedgerEntry::new().with_state(LedgerState::Intent).with_detail(3);
        let add = WordOp::Faa { addr: w0(&grant), add: 1 };
        site.execute(client, &Chain::one(notes(&grant, intent)).then(add));
        let state = if is_inside { LedgerState::HeldShared } else { LedgerState::Intent };
        assert_eq!(ledger(&site, client, &grant), intent.with_state(state), "{found:?}");
        // the chain of a reader that leaves writes the ledger itself: the primary adds nothing
        let leaving = intent.with_state(LedgerState::Leaving).with_detail(4);
        let less = WordOp::Faa { addr: w0(&grant), add: u64::MAX };
        site.execute(client, &Chain::one(notes(&grant, leaving)).then(less));
        assert_eq!(ledger(&site, client, &grant), leaving);
    }
}

/// Its word says who holds it.
#[test]
fn of_an_atomic_lock_nothing_is_noted() {
    let (mut site, client, grant) = with(LockType::Atomic);
    let mine = AtomicWord::new().with_client(client.id.get()).with_timeout(9_000).into_bits();
    site.execute(client, &Chain::one(WordOp::Cas { addr: w0(&grant), expect: 0, swap: mine }));
    assert_eq!(ledger(&site, client, &grant), LedgerEntry::new());
    assert_eq!(site.word(&grant), mine);
}

/// Its own device or processor executes them: the primary does not see them.
#[test]
fn a_client_that_executes_its_chains_itself_notes_itself() {
    let mut site = Site::new();
    let client = site.join(Shm, 0);
    let grant = site.get(client, "l", LockType::Fair);
    let noted = intent(Mode::Exclusive, 60);
    site.execute(client, &take(&grant, Mode::Exclusive, Some(noted)));
    assert_eq!(ledger(&site, client, &grant), noted);
}

/// It has not said that it leaves. If the words may be changed by others, whether it has is not
/// known by what it held.
#[test]
fn a_share_that_was_not_said_to_leave_stays_noted_if_its_client_may_reach_the_memory() {
    for may_reach in [true, false] {
        let (mut site, client, grant) = with(LockType::Fair);
        site.execute(client, &take(&grant, Mode::Shared, Some(intent(Mode::Shared, 60))));
        let before = ledger(&site, client, &grant);
        assert_eq!(before.state(), LedgerState::HeldShared);
        let held = FairWord::from_bits(site.word(&grant));
        let (expect, swap) = (held.into_bits(), held.shared_done(1).into_bits());
        if may_reach {
            site.primary.will_attach(client.id, Verbs);
        }
        site.execute(client, &Chain::one(WordOp::Cas { addr: w0(&grant), expect, swap }));
        let expected = if may_reach { before } else { LedgerEntry::new() };
        assert_eq!(ledger(&site, client, &grant), expected, "{may_reach}");
    }
}

/// Its ledger names the hold already, with the lease before. The rules change behind the answer.
#[test]
fn a_ledger_write_of_an_extended_lease_needs_no_right() {
    let (mut site, peer, lock) = with(LockType::Fair);
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
    site.execute(peer, &Chain::one(notes(&lock, held(deadline_s))));
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
