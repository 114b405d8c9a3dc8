// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of tcp that goes over to another fabric: from then on its ledger counts by itself.

use crate::common::site::{w0, Peer, Site, GRACE_S, START};
use dlock_core::clock::NS;
use dlock_core::control::{FabricKind, LockGrant};
use dlock_core::exec::LockMemory;
use dlock_core::ids::Seq;
use dlock_core::limits::FAIR_LANE_DIVERT;
use dlock_core::membership::Orphans;
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket};

const X: Mode = Mode::Exclusive;

/// A client and its handle of the lock.
struct Client {
    peer: Peer,
    grant: LockGrant,
    seq: u64,
}

impl Client {
    fn new(site: &mut Site, fabric: FabricKind) -> Self {
        let peer = site.join(fabric, 0);
        let grant = site.get(peer, "l", LockType::Fair);
        Self { peer, grant, seq: 0 }
    }

    fn asks(&mut self, site: &mut Site, request: Request) -> Option<Reply> {
        self.seq += 1;
        let (now, seq, id) = (site.now, Seq(self.seq), self.peer.id);
        site.out.clear();
        site.primary.command(now, &mut site.memory, id, seq, request, &mut site.out);
        site.out.iter().find(|sent| sent.client == id).map(|sent| sent.reply)
    }

    fn takes(&mut self, site: &mut Site) -> Ticket {
        let request = Request::TakeTicket { handle: self.grant.handle, mode: X, expire_s: 30 };
        match self.asks(site, request) {
            Some(Reply::Granted { ticket: Some(ticket), .. } | Reply::Queued { ticket, .. }) => {
                ticket
            }
            reply => panic!("{reply:?}"),
        }
    }

    fn releases(&mut self, site: &mut Site, ticket: Ticket) {
        let handle = self.grant.handle;
        let request = Request::Release { handle, mode: X, ticket: Some(ticket) };
        assert!(matches!(self.asks(site, request), Some(Reply::Done { .. })));
    }

    fn waits(&mut self, site: &mut Site, ticket: Ticket) -> Option<Reply> {
        let (handle, ticket) = (self.grant.handle, Some(ticket));
        let wait = Request::Wait { handle, mode: X, expire_s: 30, wait: WaitNumber(1), ticket };
        self.asks(site, wait)
    }

    fn notes(&self, site: &mut Site, entry: LedgerEntry) {
        let note = WordOp::WriteLedger { handle: self.grant.handle, value: entry.into_bits() };
        site.execute(self.peer, &Chain::one(note));
    }

    fn gives_up(&mut self, site: &mut Site, ticket: Ticket) {
        self.notes(site, LedgerEntry::of_ticket(LedgerState::GivenUpExclusive, ticket));
        let handle = self.grant.handle;
        self.asks(site, Request::Abandon { handle, mode: X, ticket });
    }

    /// By itself, on a fabric where the primary executes nothing for it.
    fn holds(&self, site: &mut Site, s: u32) -> Ticket {
        let before = word(site, self);
        site.memory.set(w0(&self.grant), before.exclusive_taken().into_bits());
        site.memory.set_ledger(self.peer.id, self.grant.handle, held(before.next(), s));
        before.next()
    }

    fn ledger(&self, site: &mut Site) -> LedgerEntry {
        site.memory.ledger(self.peer.id, self.grant.handle)
    }

    fn goes_over_to(&self, site: &mut Site, fabric: FabricKind) {
        let back = site.ask_back(self.peer).expect("it comes back");
        assert_eq!(site.attach(Peer { fabric, ..back }), Status::Success);
    }
}

fn held(ticket: Ticket, s: u32) -> LedgerEntry {
    let entry = LedgerEntry::of_ticket(LedgerState::HeldExclusive, ticket);
    entry.with_deadline_s(START.seconds() + s, START.seconds())
}

fn word(site: &mut Site, client: &Client) -> FairWord {
    FairWord::from_bits(site.word(&client.grant))
}

/// The next ticket comes from the arbiter: the lane starts again, or goes on in the ring.
fn ends_the_lane(site: &mut Site, client: &Client) {
    let end = FairWord::new().with_nx(FAIR_LANE_DIVERT).with_mx(FAIR_LANE_DIVERT);
    site.memory.set(w0(&client.grant), end.into_bits());
}

/// Its lease was over, and it does not know that the lock is another's.
#[test]
fn a_ticket_that_was_ended_is_not_believed_on_another_fabric() {
    let mut site = Site::with(Some(GRACE_S), Orphans::Lease, 4);
    let mut p = Client::new(&mut site, FabricKind::Tcp);
    let mut x = Client::new(&mut site, FabricKind::Verbs);
    let ended = p.takes(&mut site);
    p.notes(&mut site, held(ended, 5));
    let next = x.takes(&mut site);
    assert_eq!(x.waits(&mut site, next), None);
    site.until(START.plus_ns(40 * NS));
    assert_eq!(word(&mut site, &p).nx(), next.tx);
    assert_eq!(p.ledger(&mut site), LedgerEntry::new(), "it names no ticket that is over");
    p.notes(&mut site, held(ended, 90));
    assert_eq!(p.ledger(&mut site), LedgerEntry::new(), "nor does a late note");

    x.releases(&mut site, next);
    ends_the_lane(&mut site, &p);
    let first = x.takes(&mut site);
    assert_ne!(first.tx, 0, "it may name the ticket once more");
    p.goes_over_to(&mut site, FabricKind::Verbs);
    site.memory.set_ledger(p.peer.id, p.grant.handle, held(ended, 90));
    let release = Request::Release { handle: p.grant.handle, mode: X, ticket: Some(ended) };
    assert!(matches!(p.asks(&mut site, release), Some(Reply::Denied { .. })));
    assert_eq!(word(&mut site, &x).nx(), first.tx, "another holds the lock");
}

/// The frame comes when another client holds the lock with the same number.
#[test]
fn a_late_release_of_the_channel_before_ends_no_other_hold() {
    let mut site = Site::with(Some(GRACE_S), Orphans::Lease, 4);
    let mut p = Client::new(&mut site, FabricKind::Tcp);
    let mut x = Client::new(&mut site, FabricKind::Verbs);
    let ticket = p.takes(&mut site);
    p.notes(&mut site, held(ticket, 30));
    let held = word(&mut site, &p);
    let addr = w0(&p.grant);
    let (expect, swap) = (held.into_bits(), held.exclusive_done().into_bits());
    let release = Chain::one(WordOp::Cas { addr, expect, swap });
    let may = |site: &mut Site, p: &Client| {
        site.primary.check_chain(site.now, &mut site.memory, p.peer.id, &release)
    };
    assert_eq!(may(&mut site, &p), Ok(true));
    let next = x.takes(&mut site);
    assert_eq!(x.waits(&mut site, next), None);
    site.until(START.plus_ns(60 * NS));
    assert_eq!(word(&mut site, &p).nx(), next.tx, "its lease is over");
    assert_eq!(may(&mut site, &p), Err(Status::Invalid));
    site.memory.set(addr, expect); // a lap later
    p.goes_over_to(&mut site, FabricKind::Verbs);
    assert_eq!(may(&mut site, &p), Err(Status::Invalid));
}
