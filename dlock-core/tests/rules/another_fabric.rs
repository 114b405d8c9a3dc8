// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client with a fair lock that goes over to another fabric: from then on its ledger tells what
//! it has.

use crate::common::site::{w0, Peer, Site, GRACE_S, START};
use dlock_core::clock::{Lease, NS};
use dlock_core::ids::Seq;
use dlock_core::membership::Orphans;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, TakenWord, Ticket, TurnWord};
use dlock_core::wire::control::{FabricKind, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

const X: Mode = Mode::Exclusive;

/// A client and its handle of the lock.
struct Client {
    peer: Peer,
    grant: LockGrant,
    seq: u64,
    stamp: u32,
}

impl Client {
    fn new(site: &mut Site, fabric: FabricKind) -> Self {
        let peer = site.join(fabric, 0);
        let grant = site.get(peer, "l", LockType::Fair);
        Self { peer, grant, seq: 0, stamp: 0 }
    }

    fn asks(&mut self, site: &mut Site, request: Request) -> Option<Reply> {
        self.seq += 1;
        let (seq, id) = (Seq(self.seq), self.peer.id);
        site.out.clear();
        site.command(id, seq, request);
        site.out.iter().find(|sent| sent.client == id).map(|sent| sent.reply)
    }

    /// Writes a claim of `claim_s` seconds into the client's ledger, and takes a ticket.
    fn takes(&mut self, site: &mut Site, claim_s: u32) -> Ticket {
        self.stamp += 1;
        let (until, handle) = (START.deadline(Lease::secs(claim_s)), self.grant.handle);
        let entry = LedgerEntry::claim(X, self.stamp).with_deadline(until);
        let add = WordOp::Faa { addr: w0(&self.grant), add: TakenWord::TAKE_EXCLUSIVE };
        let ticket = TakenWord::from_bits(site.word(&self.grant)).next(0);
        let claim = WordOp::WriteLedger { handle, value: entry.into_bits() };
        site.execute(self.peer, &Chain::one(claim).then(add));
        ticket
    }

    fn releases(&mut self, site: &mut Site, ticket: Ticket) -> bool {
        let handle = self.grant.handle;
        let request = Request::Release { handle, mode: X, ticket: Some(ticket) };
        matches!(self.asks(site, request), Some(Reply::Done { .. }))
    }

    fn waits(&mut self, site: &mut Site, ticket: Ticket) -> Option<Reply> {
        let (handle, ticket) = (self.grant.handle, Some(ticket));
        let wait =
            Request::Wait { handle, mode: X, lease: Lease::secs(30), wait: WaitNumber(1), ticket };
        self.asks(site, wait)
    }

    fn goes_over_to(&mut self, site: &mut Site, fabric: FabricKind) {
        let back = site.ask_back(self.peer).expect("it comes back");
        self.peer = Peer { fabric, ..back };
        assert_eq!(site.attach(self.peer), Status::Success);
    }
}

fn w1(client: &Client) -> WordAddr {
    WordAddr::new(client.grant.slot, Word::W1)
}

fn turn(site: &mut Site, client: &Client) -> TurnWord {
    use dlock_core::memory::exec::LockMemory;
    TurnWord::from_bits(site.memory.read(w1(client)))
}

fn is_granted(site: &Site, client: &Client) -> bool {
    let is_grant = |reply: Reply| matches!(reply, Reply::Granted { .. });
    site.out.iter().any(|sent| sent.client == client.peer.id && is_grant(sent.reply))
}

/// A client of the first fabric, and another one that waits for the lock.
fn site(fabric: FabricKind) -> (Site, Client, Client) {
    let mut site = Site::with(Some(GRACE_S), Orphans::Lease, 4);
    let p = Client::new(&mut site, fabric);
    let x = Client::new(&mut site, FabricKind::Verbs);
    (site, p, x)
}

const TO: [(FabricKind, FabricKind); 3] = [
    (FabricKind::Tcp, FabricKind::Verbs),
    (FabricKind::Tcp, FabricKind::Shm),
    (FabricKind::Verbs, FabricKind::Tcp),
];

#[test]
fn what_a_client_holds_it_holds_on_another_fabric_until_its_claim_ends() {
    for (from, to) in TO {
        for is_released in [true, false] {
            let (mut site, mut p, mut x) = site(from);
            let held = p.takes(&mut site, 45);
            p.goes_over_to(&mut site, to);
            let next = x.takes(&mut site, 600);
            assert_eq!(x.waits(&mut site, next), None, "{from:?} {to:?}: it is held");
            site.until(START.plus_ns(44 * NS));
            assert!(!is_granted(&site, &x), "{from:?} {to:?}");
            match is_released {
                true => assert!(p.releases(&mut site, held), "{from:?} {to:?}"),
                false => site.until(START.plus_ns(60 * NS)),
            }
            assert!(is_granted(&site, &x), "{from:?} {to:?}");
            assert!(!p.releases(&mut site, held), "it is over");
        }
    }
}

/// The client has released its ticket, but the ledger write of that is lost. Its next ticket has a
/// claim of its own.
#[test]
fn a_ticket_that_was_released_counts_neither_itself_nor_against_the_next() {
    for (from, to) in TO {
        let (mut site, mut p, mut x) = site(from);
        let first = p.takes(&mut site, 45);
        assert!(p.releases(&mut site, first));
        p.goes_over_to(&mut site, to);
        let before = x.takes(&mut site, 600);
        assert!(matches!(x.waits(&mut site, before), Some(Reply::Granted { .. })));
        let second = p.takes(&mut site, 45);
        assert!(x.releases(&mut site, before));
        let behind = x.takes(&mut site, 600);
        assert_eq!(x.waits(&mut site, behind), None, "{from:?} {to:?}: it is held");
        assert_eq!(turn(&mut site, &p).nx(), second.tx);
    }
}

/// The chain of a release arrives when the lease of its hold is over, and another client holds the
/// lock.
#[test]
fn a_late_release_of_the_channel_before_ends_no_other_hold() {
    let (mut site, mut p, mut x) = site(FabricKind::Tcp);
    p.takes(&mut site, 30);
    let held = turn(&mut site, &p);
    let (expect, swap) = (held.into_bits(), held.done(X).into_bits());
    let release = Chain::one(WordOp::Cas { addr: w1(&p), expect, swap });
    let checked = site.primary.locks().check_chain(site.now, &mut site.memory, p.peer.id, &release);
    assert_eq!(checked, Ok(true));
    let next = x.takes(&mut site, 600);
    assert_eq!(x.waits(&mut site, next), None);
    site.until(START.plus_ns(60 * NS));
    assert!(is_granted(&site, &x), "its lease is over");
    site.execute(p.peer, &release);
    p.goes_over_to(&mut site, FabricKind::Verbs);
    site.execute(p.peer, &release);
    assert_eq!(turn(&mut site, &x).nx(), next.tx, "it finds another word");
}
