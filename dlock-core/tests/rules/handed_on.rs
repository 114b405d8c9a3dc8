// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair lock that is handed on while its word is behind, against a whole primary: H holds it, W
//! is next, X is behind W.

use crate::common::site::{Peer, Site, GRACE_S, START};
use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::control::{FabricKind, LockDesc, LockGrant};
use dlock_core::exec::LockMemory;
use dlock_core::ids::Seq;
use dlock_core::lock::{EntryState, LockEntry, NotedBy, Op};
use dlock_core::membership::{Gone, Orphans};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, Outcome, Word, WordAddr};
use dlock_core::words::{LedgerEntry, TurnWord};

struct Client {
    peer: Peer,
    grant: LockGrant,
    entry: LockEntry,
    op: Option<Operation>,
}

impl Client {
    fn new(site: &mut Site, horizon_s: u32) -> Self {
        let peer = site.join(FabricKind::Verbs, horizon_s);
        let grant = site.get(peer, "l", LockType::Fair);
        let desc = LockDesc { name: b"l".to_vec(), lock_type: LockType::Fair, lease_s: 0 };
        let mut entry = LockEntry::new(peer.id, START.seconds(), LockType::Fair, &grant, desc);
        entry.may_try(true);
        entry.noted_by(NotedBy::ClientLate);
        entry.is_got_at(START.0 - 1);
        Self { peer, grant, entry, op: None }
    }
    fn now(site: &Site) -> Now {
        Now::exact(site.now)
    }
    fn begin(&mut self, site: &Site, op: Op) {
        let bounds = Bounds::waiting(site.now.0, 100 * NS);
        match Operation::begin(&mut self.entry, op, Self::now(site), bounds) {
            Started::Running(o) => self.op = Some(o),
            Started::Done(r) => panic!("{r:?}"),
        }
    }
    fn note(&self, site: &mut Site, entry: LedgerEntry) {
        site.memory.ledgers.insert((self.peer.id, self.grant.handle), entry);
    }
    /// Up to its pause, its result, a request, or (`is_lost`) its first chain, which is lost.
    fn run(&mut self, site: &mut Site, is_lost: bool) -> Effect {
        let mut op = self.op.take().unwrap();
        loop {
            match op.next(&mut self.entry) {
                Effect::WriteLedger(entry) => self.note(site, entry),
                Effect::Count(_) => {}
                Effect::ReadClock => op.clock(Self::now(site)),
                Effect::Post { chain, until_ns } if is_lost => {
                    let effect = Effect::Post { chain, until_ns };
                    self.op = Some(op);
                    return effect;
                }
                Effect::Post { chain, .. } => {
                    let values = site.execute(self.peer, &chain);
                    op.outcome(&mut self.entry, Outcome::Done(values), Self::now(site));
                }
                effect => {
                    self.op = Some(op);
                    return effect;
                }
            }
        }
    }
    /// Looks for its turn until it has it.
    fn looks(&mut self, site: &mut Site) {
        loop {
            self.paused(site);
            match self.run(site, false) {
                Effect::Pause { .. } => {}
                effect => return assert!(is_success(effect)),
            }
        }
    }
    fn paused(&mut self, site: &Site) {
        self.op.as_mut().unwrap().paused(&mut self.entry, Self::now(site));
    }
}

const UNLOCK: Op = Op::Unlock;
fn lock(expire_s: u32) -> Op {
    Op::Lock { mode: Mode::Exclusive, expire_s }
}

fn is_success(effect: Effect) -> bool {
    matches!(effect, Effect::Done(result) if result.status == Status::Success)
}

/// H holds the relayed lock, W has the next ticket and looks for its turn, X is behind.
fn queue(horizon_s: u32) -> (Site, [Client; 3]) {
    let mut site = Site::with(Some(GRACE_S), Orphans::Lease, 4);
    let [mut h, mut w] = [(); 2].map(|()| Client::new(&mut site, horizon_s));
    let mut x = Client::new(&mut site, 0);
    // the lock is relayed once W has waited for H's first hold, and H takes it again
    h.begin(&site, lock(45));
    assert!(is_success(h.run(&mut site, false)));
    w.begin(&site, lock(45));
    assert!(matches!(w.run(&mut site, false), Effect::Pause { .. }));
    h.begin(&site, lock(45)); // reentry: it sees that W has come
    assert!(matches!(h.run(&mut site, false), Effect::Done(_)));
    for _ in 0..2 {
        let bounds = Bounds::since(site.now.0);
        let begun = Operation::begin(&mut h.entry, UNLOCK, Client::now(&site), bounds);
        if let Started::Running(o) = begun {
            h.op = Some(o);
            assert!(is_success(h.run(&mut site, false)));
        }
    }
    h.begin(&site, lock(45));
    assert!(matches!(h.run(&mut site, false), Effect::Pause { .. }));
    w.looks(&mut site);
    w.begin(&site, UNLOCK);
    assert!(is_success(w.run(&mut site, false)));
    h.looks(&mut site);
    w.begin(&site, lock(60));
    assert!(matches!(w.run(&mut site, false), Effect::Pause { .. }));
    x.begin(&site, lock(30));
    assert!(matches!(x.run(&mut site, false), Effect::Pause { .. }));
    (site, [h, w, x])
}

impl Client {
    /// Its chain has come to the words.
    fn executes(&mut self, site: &mut Site, chain: &Chain) {
        let values = site.execute(self.peer, chain);
        let now = Self::now(site);
        self.op.as_mut().unwrap().outcome(&mut self.entry, Outcome::Done(values), now);
    }
    fn sends(&mut self, site: &mut Site, seq: u64, request: Request) {
        let (now, out) = (site.now, &mut site.out);
        site.primary.command(now, &mut site.memory, self.peer.id, Seq(seq), request, out);
    }
    fn is_granted(&self, site: &Site) -> bool {
        let mut all = site.out.iter();
        all.any(|s| s.client == self.peer.id && matches!(s.reply, Reply::Granted { .. }))
    }
    fn asks(&mut self, site: &mut Site, seq: u64) {
        let Effect::Ask { request, .. } = self.run(site, false) else { panic!() };
        self.sends(site, seq, request);
    }
    /// Posts its release, and tells the other one; it is not executed yet.
    fn hands_on(&mut self, site: &mut Site, to: &mut Client) -> Chain {
        self.begin(site, UNLOCK);
        let Effect::Post { chain, .. } = self.run(site, true) else { panic!() };
        let (tx, since_ns) = self.op.as_ref().unwrap().hands_on_to(&self.entry).expect("it does");
        let op = to.op.as_mut().unwrap();
        assert_eq!(op.listens(&to.entry), Some(tx));
        op.handed(&mut to.entry, since_ns, Self::now(site));
        assert!(is_success(to.run(site, false)));
        assert_eq!(to.entry.state(), EntryState::ExclusiveLocked);
        chain
    }
}

/// H's compare-and-swap is refused since X sleeps, and H is stopped before it sends `Release`; W
/// comes back to the same primary, whose clock it does not know any more, and releases the lock.
#[test]
fn a_hold_whose_turn_has_not_come_is_released_after_a_new_attachment() {
    let (mut site, [mut h, mut w, mut x]) = queue(0);
    x.op.as_mut().unwrap().queues(&mut x.entry);
    x.asks(&mut site, 1);
    let chain = h.hands_on(&mut site, &mut w);
    w.entry.rewrite_ledger();
    w.begin(&site, UNLOCK);
    let Effect::Tell(request) = w.run(&mut site, false) else { panic!("nothing is told") };
    assert!(matches!(request, Request::Abandon { .. }));
    w.sends(&mut site, 1, request);
    assert!(is_success(w.run(&mut site, false)));
    h.executes(&mut site, &chain);
    h.asks(&mut site, 1);
    assert!(x.is_granted(&site), "the ticket between is skipped");
}

/// H's release is lost with the network of the host of both.
#[test]
fn a_hold_that_was_handed_on_outlasts_its_session() {
    for (horizon_s, is_noted) in [(0, false), (0, true), (20, false), (20, true)] {
        let (mut site, [mut h, mut w, mut x]) = queue(horizon_s);
        h.hands_on(&mut site, &mut w);
        if is_noted {
            let note = w.entry.take_late_note().expect("its hold is to be noted");
            w.note(&mut site, note);
        }
        let end = ServerTime::expiry_of(w.entry.deadline_s());
        site.lose(h.peer, Gone::Closed);
        site.lose(w.peer, Gone::Closed);
        x.op.as_mut().unwrap().queues(&mut x.entry);
        x.asks(&mut site, 1);
        for s in 1..60 {
            site.until(START.plus_ns(s * NS));
            let is_early = site.now < end && x.is_granted(&site);
            assert!(!is_early, "after {s} s, with a horizon of {horizon_s} s");
        }
        site.until(end.plus_ns(5 * NS));
        assert!(x.is_granted(&site), "nobody holds it");
    }
}

/// The arbiter has set `told` in the companion word, since X sleeps, and not yet put the number
/// back into the word, when W, which was handed the lock, extends its lease.
#[test]
fn a_release_after_an_extension_does_not_overwrite_told() {
    let (mut site, [mut h, mut w, mut x]) = queue(0);
    let chain = h.hands_on(&mut site, &mut w);
    h.executes(&mut site, &chain);
    assert!(is_success(h.run(&mut site, false)));
    // the first compare-and-swap of `relay::tell`
    let w1 = WordAddr::new(w.grant.slot, Word::W1);
    let turn = TurnWord::from_bits(site.memory.read(w1));
    site.memory.set(w1, turn.with_told(true).into_bits());
    w.begin(&site, Op::Extend { mode: Mode::Exclusive, expire_s: 60 });
    assert!(is_success(w.run(&mut site, false)));
    // the rest of what the arbiter does
    x.op.as_mut().unwrap().queues(&mut x.entry);
    x.asks(&mut site, 1);
    w.begin(&site, UNLOCK);
    let request = match w.run(&mut site, false) {
        Effect::Ask { request, .. } | Effect::Tell(request) => request,
        effect => panic!("it tells nobody: {effect:?}"),
    };
    w.sends(&mut site, 1, request);
    assert!(x.is_granted(&site), "who sleeps is woken");
}

/// W was handed the lock, has noted it, and is removed by an operator; then H's release comes.
/// A fourth client was stopped with an intent: a ticket that no ledger names may be that client's.
#[test]
fn the_ticket_of_one_removed_with_a_hold_ahead_of_the_word_is_skipped_at_its_turn() {
    let (mut site, [mut h, mut w, mut x]) = queue(0);
    let stopped = Client::new(&mut site, 0);
    let intent = LedgerEntry::intent(Mode::Exclusive, true, 1);
    let anchor_s = START.seconds();
    stopped.note(&mut site, intent.with_deadline_s(anchor_s + 60, anchor_s));
    let chain = h.hands_on(&mut site, &mut w);
    let note = w.entry.take_late_note().expect("its hold is to be noted");
    w.note(&mut site, note);
    assert_eq!(site.members.remove(w.peer.id), Ok(()));
    site.settle();
    x.op.as_mut().unwrap().queues(&mut x.entry);
    x.asks(&mut site, 1);
    assert!(!x.is_granted(&site), "H has not released it");
    h.executes(&mut site, &chain);
    h.asks(&mut site, 1);
    assert!(x.is_granted(&site), "nobody holds it");
}
