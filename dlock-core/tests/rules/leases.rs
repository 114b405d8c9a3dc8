// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of `docs/leases.md`: what ends a hold, and when. One row here is one row there.

use crate::common::site;
use crate::common::site::{w0, Peer, Site, GRACE_S, START};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::Seq;
use dlock_core::membership::{Gone, Orphans};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{
    AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, TurnWord,
};
use dlock_core::primary::Event;
use dlock_core::wire::control::{Act, ControlReply, ControlRequest, FabricKind, LockGrant, Whose};
use dlock_core::wire::message::{LockType, Mode, Request};

const LEASE_S: u32 = 100;
const HORIZON_S: u32 = 50;

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hold {
    AtomicLeased,
    AtomicForEver,
    RwExclusive,
    RwShared,
    RwExclusiveLeased,
    RwSharedLeased,
    FairExclusiveLeased,
    FairSharedLeased,
    FairForEver,
    FairTicket,
}

use Hold::*;

const HOLDS: [Hold; 10] = [
    AtomicLeased,
    AtomicForEver,
    RwExclusive,
    RwShared,
    RwExclusiveLeased,
    RwSharedLeased,
    FairExclusiveLeased,
    FairSharedLeased,
    FairForEver,
    FairTicket,
];

impl Hold {
    fn lock_type(self) -> LockType {
        match self {
            AtomicLeased | AtomicForEver => LockType::Atomic,
            RwExclusive | RwShared | RwExclusiveLeased | RwSharedLeased => LockType::Rw,
            _ => LockType::Fair,
        }
    }
    fn has_lease(self) -> bool {
        matches!(self, AtomicLeased | FairExclusiveLeased | FairSharedLeased) || self.is_arbiters()
    }
    /// Whether the arbiter keeps the lease of this hold, and ends the hold even if its client
    /// cannot be fenced.
    fn is_arbiters(self) -> bool {
        matches!(self, RwExclusiveLeased | RwSharedLeased)
    }
}

/// What happens to the client.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cause {
    /// The client's host closes its connections.
    Closed,
    /// The client's host closes its connections, and `orphans` is `grace`.
    ClosedOrphansGrace,
    /// The client's host closes its connections, and the client knows its horizon.
    ClosedWithHorizon,
    /// The client's host closes its connections, it has no horizon, and `absent_grace_s` is
    /// `forever`.
    ClosedForEver,
    /// The client's connection breaks, because its host does not answer; it has no horizon.
    SilentConnection,
    /// The client sends nothing more on open connections; it has no horizon.
    Silent,
    /// The client sends nothing more on open connections, and knows its horizon.
    SilentWithHorizon,
    /// The client's process ends. Only shm proves that; on other fabrics its host closes its
    /// connections.
    Died,
    Left,
    /// An operator removes the client, which has no horizon.
    Removed,
    /// An operator removes the client, which knows its horizon.
    RemovedWithHorizon,
    /// An operator removes the client with `--now`.
    RemovedNow,
}

use Cause::*;

const CAUSES: [Cause; 12] = [
    Closed,
    ClosedOrphansGrace,
    ClosedWithHorizon,
    ClosedForEver,
    SilentConnection,
    Silent,
    SilentWithHorizon,
    Died,
    Left,
    Removed,
    RemovedWithHorizon,
    RemovedNow,
];

/// When a hold ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Now,
    Grace,
    Horizon,
    Lease,
    /// A place in a queue ends with its claim, which is over already.
    Claim,
    /// Not before the client's process has ended or has unmapped the memory, because the client
    /// cannot be fenced before.
    Unmapped,
    Never,
}

/// The table of `docs/leases.md`: when this hold ends, over this fabric, by this cause.
fn table(hold: Hold, fabric: FabricKind, cause: Cause) -> Ends {
    let is_mapped = fabric == FabricKind::Shm;
    match (cause, hold.has_lease()) {
        (Died, _) if is_mapped => Ends::Now,
        (Left, _) => Ends::Now,
        (RemovedNow, _) if !is_mapped => Ends::Now,
        (ClosedOrphansGrace, _) if !is_mapped => Ends::Grace,
        _ if hold.is_arbiters() => Ends::Lease,
        // a shared-memory client that is alive can always act
        (Closed | ClosedOrphansGrace | ClosedWithHorizon, _) if is_mapped => Ends::Unmapped,
        (SilentWithHorizon, _) if is_mapped => Ends::Unmapped,
        (Removed | RemovedWithHorizon | RemovedNow, _) if is_mapped => Ends::Unmapped,
        (Removed, _) if hold == FairTicket => Ends::Claim,
        (RemovedNow, _) | (Removed, false) => Ends::Now,
        (ClosedOrphansGrace, _) => Ends::Grace,
        (Closed | Died | ClosedWithHorizon | SilentWithHorizon, true) => Ends::Lease,
        (Removed | RemovedWithHorizon, true) => Ends::Lease,
        (Closed | Died, false) => Ends::Grace,
        // the connection may have been reset on the way, and the client lives
        (ClosedWithHorizon | SilentWithHorizon | RemovedWithHorizon, false) => Ends::Horizon,
        // the primary undoes nothing; when the lock's own lease is over, other clients may take it
        // over
        (ClosedForEver | SilentConnection | Silent, _) => Ends::Never,
    }
}

fn hold(site: &mut Site, peer: Peer, grant: &LockGrant, hold: Hold) {
    let (addr, handle) = (w0(grant), grant.handle);
    let note = |entry: LedgerEntry| WordOp::WriteLedger { handle, value: entry.into_bits() };
    let me = peer.id.get();
    let deadline = START.deadline(Lease::secs(LEASE_S));
    let cas = |swap: u64| Chain::one(WordOp::Cas { addr, expect: 0, swap });
    let atomic = |timeout| AtomicWord::new().with_client(me).with_timeout(timeout).into_bits();
    let claim = |mode, deadline| {
        let entry = LedgerEntry::claim(mode, 1).with_deadline(deadline);
        Chain::one(note(entry))
    };
    let take = |add| Chain::one(WordOp::Faa { addr, add });
    let fair = |mode, deadline| vec![claim(mode, deadline), take(TakenWord::addend(mode))];
    if hold.is_arbiters() {
        let mode = if hold == RwSharedLeased { Mode::Shared } else { Mode::Exclusive };
        let steal = Request::Steal { handle, mode, lease: Lease::secs(LEASE_S) };
        return site.command(peer.id, Seq(1), steal);
    }
    let shared = LedgerEntry::new().with_state(LedgerState::HeldShared).with_detail(1);
    let chains = match hold {
        AtomicLeased => vec![cas(atomic(deadline))],
        AtomicForEver => vec![cas(atomic(Deadline::NEVER))],
        RwExclusive => vec![cas(RwWord::new().with_client(me).into_bits())],
        RwShared => vec![take(1), Chain::one(note(shared))],
        RwExclusiveLeased | RwSharedLeased => vec![],
        FairExclusiveLeased => fair(Mode::Exclusive, deadline),
        FairSharedLeased => fair(Mode::Shared, deadline),
        FairForEver => fair(Mode::Exclusive, Deadline::NEVER),
        FairTicket => fair(Mode::Exclusive, START.tick()),
    };
    for chain in &chains {
        site.execute(peer, chain);
    }
}

/// Whether the lock word still says that a client holds the lock.
fn is_held(site: &mut Site, grant: &LockGrant, lock_type: LockType) -> bool {
    let word = site.word(grant);
    match lock_type {
        LockType::Atomic | LockType::Rw => word != 0,
        LockType::Fair => {
            let turn = site.memory.read(WordAddr::new(grant.slot, Word::W1));
            let (taken, turn) = (TakenWord::from_bits(word), TurnWord::from_bits(turn));
            (turn.nx(), turn.ns()) != (taken.mx(), taken.ms())
        }
    }
}

fn cell(what: Hold, fabric: FabricKind, cause: Cause) {
    let orphans = if cause == ClosedOrphansGrace { Orphans::Grace } else { Orphans::Lease };
    let grace_s = (cause != ClosedForEver).then_some(GRACE_S);
    let mut site = Site::with(grace_s, orphans, 3);
    let has_horizon = matches!(cause, ClosedWithHorizon | SilentWithHorizon | RemovedWithHorizon);
    let horizon_s = if has_horizon { HORIZON_S } else { 0 };
    let peer = site.join(fabric, horizon_s);
    let grant = site.get(peer, "l", what.lock_type());
    // another client has a handle, too, so that the lock outlives its holder
    let other = site.join(FabricKind::Verbs, 0);
    site.get(other, "l", what.lock_type());
    hold(&mut site, peer, &grant, what);
    let lock_type = what.lock_type();
    assert!(is_held(&mut site, &grant, lock_type));
    match cause {
        Closed | ClosedOrphansGrace | ClosedWithHorizon | ClosedForEver => {
            site.lose(peer, Gone::Closed);
        }
        SilentConnection => site.lose(peer, Gone::Silent),
        Silent | SilentWithHorizon => {}
        Died if fabric == FabricKind::Shm => site.die(peer),
        Died => site.lose(peer, Gone::Closed),
        Left => {
            site.memory.mapped.remove(&peer.id);
            assert_eq!(site.control(peer, ControlRequest::Deinit), ControlReply::Done);
        }
        Removed | RemovedWithHorizon | RemovedNow => {
            let whose = Whose::Client(peer.id);
            let act = Act::TakeAway { whose, grace_s: 0, now: cause == RemovedNow };
            site.handle(Event::Operate { act, by: "uid 0".into() });
            site.settle();
        }
    }
    let at = |s: u64| START.plus_ns(s * NS);
    let expected = table(what, fabric, cause);
    let end = match expected {
        Ends::Now => START,
        Ends::Grace => at(GRACE_S),
        Ends::Horizon => at(HORIZON_S.into()),
        Ends::Lease => START.deadline(Lease::secs(LEASE_S)).expiry(),
        Ends::Claim => START.tick().expiry(),
        Ends::Unmapped | Ends::Never => at(100_000),
    };
    let name = format!("{what:?} over {fabric:?}, {cause:?}: {expected:?}");
    if end > START {
        site.until(ServerTime(end.0 - 1));
        assert!(is_held(&mut site, &grant, lock_type), "too early: {name}");
    }
    site.until(end);
    let is_kept = matches!(expected, Ends::Unmapped | Ends::Never);
    assert_eq!(is_held(&mut site, &grant, lock_type), is_kept, "{name}");
    if expected == Ends::Unmapped {
        site.memory.mapped.remove(&peer.id);
        site.handle(Event::Retry);
        site.settle();
        assert!(!is_held(&mut site, &grant, lock_type), "unmapped, and not free: {name}");
    }
}

#[test]
fn what_ends_a_hold_and_when_is_as_in_the_table() {
    for what in HOLDS {
        for fabric in [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs] {
            for cause in CAUSES {
                cell(what, fabric, cause);
            }
        }
    }
}

/// A client that is silent for ten minutes keeps its lease of fifteen, while 999 strangers come and
/// go.
#[test]
fn a_client_silent_for_10_minutes_keeps_a_lease_of_15_among_strangers() {
    for fabric in [FabricKind::Tcp, FabricKind::Verbs] {
        for cause in [Gone::Closed, Gone::Silent] {
            for horizon_s in [0, 10] {
                lease_of_15_minutes(fabric, cause, horizon_s);
            }
        }
    }
}

fn lease_of_15_minutes(fabric: FabricKind, cause: Gone, horizon_s: u32) {
    let mut site = Site::with(Some(GRACE_S), Orphans::Lease, 2);
    let peer = site.join(fabric, horizon_s);
    let grant = site.get(peer, "l", LockType::Atomic);
    let (me, deadline) = (peer.id.get(), START.deadline(Lease::secs(15 * 60)));
    let word = AtomicWord::new().with_client(me).with_timeout(deadline).into_bits();
    site.execute(peer, &Chain::one(WordOp::Cas { addr: w0(&grant), expect: 0, swap: word }));
    site.lose(peer, cause);
    for second in 0..600 {
        site.until(START.plus_ns(second * NS));
        for _ in 0..2 {
            // there is room for one stranger; no client loses its place to the next one
            let admission = site.open_twice(&site::init(0)).expect("one place is free");
            let stranger = site.peer(admission, fabric);
            let crowd = site.open_twice(&site::init(0)).map(drop);
            assert_eq!(crowd, Err(dlock_core::wire::status::Status::ServerNoResource));
            site.control(stranger, ControlRequest::Deinit);
        }
    }
    let back = site.come_back(peer).expect("its lease runs");
    assert_eq!((site.word(&grant), back.terms.lapses), (word, 0));
}
