// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the primary writes into a client's ledger after it has executed a chain of that client.

use crate::common::site::{w0, Peer, Site, START};
use dlock_core::clock::{Deadline, Lease};
use dlock_core::ids::Seq;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, Ticket};
use dlock_core::wire::control::FabricKind::{Shm, Tcp};
use dlock_core::wire::control::LockGrant;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

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

/// The ledger entry of a claim until `seconds` after the start.
fn claim(mode: Mode, seconds: u32) -> LedgerEntry {
    LedgerEntry::claim(mode, 7).with_deadline(START.deadline(Lease::secs(seconds)))
}

fn take(grant: &LockGrant, mode: Mode, noted: Option<LedgerEntry>) -> Chain {
    let add = WordOp::Faa { addr: w0(grant), add: TakenWord::addend(mode) };
    match noted {
        Some(noted) => Chain::one(notes(grant, noted)).then(add),
        None => Chain::one(add),
    }
}

/// A tcp client that counts the fence of a read-write lock up while readers are inside would give
/// them different tokens.
#[test]
fn the_end_of_an_exclusive_hold_is_counted_for_its_owner_alone() {
    let fence = |grant: &LockGrant| WordAddr::new(grant.slot, Word::Fence);
    let count = |grant: &LockGrant, add| Chain::one(WordOp::Faa { addr: fence(grant), add });
    for (lock_type, owner, add, may) in [
        (LockType::Rw, true, 2, true),
        (LockType::Rw, true, 1, false),
        (LockType::Rw, false, 2, false),
        // a failed attempt is counted, which leaves a gap in the tokens
        (LockType::Atomic, false, 1, true),
        (LockType::Atomic, true, 2, false),
        (LockType::Fair, true, 2, false),
    ] {
        let (mut site, client, grant) = with(lock_type);
        let who = if owner { client.id.get() } else { 77 };
        site.memory.set(w0(&grant), RwWord::new().with_client(who).into_bits());
        let chain = count(&grant, add);
        let checked =
            site.primary.locks().check_chain(site.now, &mut site.memory, client.id, &chain);
        assert_eq!(checked.is_ok(), may, "{lock_type:?} {owner} {add}: {checked:?}");
    }
    let (mut site, client, grant) = with(LockType::Rw);
    let swap = WordOp::Cas { addr: fence(&grant), expect: 0, swap: 9 };
    let locks = site.primary.locks();
    let checked = locks.check_chain(site.now, &mut site.memory, client.id, &Chain::one(swap));
    assert_eq!(checked, Err(Status::Invalid));
}

const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

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

/// The word of an atomic lock names its holder, so the ledger says nothing of it.
#[test]
fn of_an_atomic_lock_nothing_is_noted() {
    let (mut site, client, grant) = with(LockType::Atomic);
    let mine = AtomicWord::new()
        .with_client(client.id.get())
        .with_timeout(Deadline::at_s(9_000))
        .into_bits();
    site.execute(client, &Chain::one(WordOp::Cas { addr: w0(&grant), expect: 0, swap: mine }));
    assert_eq!(ledger(&site, client, &grant), LedgerEntry::new());
    assert_eq!(site.word(&grant), mine);
}

/// A client on shared memory executes its chains itself, and writes its ledger itself.
#[test]
fn a_client_that_executes_its_chains_itself_notes_itself() {
    let mut site = Site::new();
    let client = site.join(Shm, 0);
    let grant = site.get(client, "l", LockType::Fair);
    let noted = claim(Mode::Exclusive, 60);
    site.execute(client, &take(&grant, Mode::Exclusive, Some(noted)));
    assert_eq!(ledger(&site, client, &grant), noted);
}

/// The primary knows the ticket of a client whose chain it has executed itself.
#[test]
fn a_ticket_that_was_executed_here_is_the_only_one_its_client_has() {
    for mode in MODES {
        let (mut site, client, grant) = with(LockType::Fair);
        site.execute(client, &take(&grant, mode, Some(claim(mode, 60))));
        let mut seq = 0;
        let mut ask = |site: &mut Site, tx, ts| {
            seq += 1;
            let ticket = Ticket { lap: 0, tx, ts };
            let (handle, lease) = (grant.handle, Lease::secs(5));
            let request = Request::Poll { handle, mode, ticket, lease };
            site.out.clear();
            site.command(client.id, Seq(seq), request);
            matches!(site.out[..], [ref sent] if matches!(sent.reply, Reply::Granted { .. }))
        };
        assert!(!ask(&mut site, 1, 1) && !ask(&mut site, 0, 2), "another one's, perhaps");
        assert!(ask(&mut site, 0, 1), "{:?}", site.out);
    }
}

#[test]
fn a_pair_reaches_no_word_of_the_next_slot() {
    let (mut site, client, grant) = with(LockType::Fair);
    for word in [Word::W0, Word::W1, Word::Fence, Word::Gen] {
        let addr = WordAddr::new(grant.slot, word);
        let read = Chain::one(WordOp::ReadPair { addr });
        let may = site.primary.locks().check_chain(site.now, &mut site.memory, client.id, &read);
        let expected = if word == Word::Gen { Err(Status::Invalid) } else { Ok(false) };
        assert_eq!(may, expected, "{word:?}");
    }
}
