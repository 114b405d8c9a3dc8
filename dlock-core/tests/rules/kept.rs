// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that clients keep after their release, at the primary.

use crate::common::site::{w0, Peer, Site, START};
use dlock_core::clock::{Lease, ServerTime, NS};
use dlock_core::ids::Seq;
use dlock_core::limits::{HINDRANCE_S, TRY_KEPT_NS_MAX};
use dlock_core::memory::word_op::{Chain, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, RwWord, TakenWord, Ticket};
use dlock_core::primary::{Effect, Event};
use dlock_core::wire::control::{Act, ControlRequest, FabricKind, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

use FabricKind::Tcp;

const KINDS: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];
const X: Mode = Mode::Exclusive;

/// A lock that the first client holds exclusively, and a second one has got.
struct Held {
    site: Site,
    lock_type: LockType,
    holder: Peer,
    other: Peer,
    mine: LockGrant,
    its: LockGrant,
    ticket: Option<Ticket>,
    seq: u64,
}

impl Held {
    fn new(lock_type: LockType) -> Self {
        let mut site = Site::new();
        let [holder, other] = [0, 1].map(|_| site.join(Tcp, 60));
        let [mine, its] = [holder, other].map(|peer| site.get(peer, "one", lock_type));
        let ticket = None;
        let mut held = Self { site, lock_type, holder, other, mine, its, ticket, seq: 1 };
        held.ticket = held.take_ticket(holder, mine);
        let (wait, ticket) = (WaitNumber(1), held.ticket);
        let lease = Lease::secs(50);
        let request = Request::Wait { handle: mine.handle, mode: X, lease, wait, ticket };
        assert!(matches!(held.asks(holder, request), Some(Reply::Granted { .. })));
        held
    }

    fn take_ticket(&mut self, peer: Peer, grant: LockGrant) -> Option<Ticket> {
        let claim = LedgerEntry::claim(X, 50).with_detail(u32::MAX - 1).into_bits();
        let chain = Chain::one(WordOp::WriteLedger { handle: grant.handle, value: claim })
            .then(WordOp::Faa { addr: w0(&grant), add: TakenWord::TAKE_EXCLUSIVE });
        (self.lock_type == LockType::Fair).then(|| {
            let values = self.site.execute(peer, &chain);
            TakenWord::from_bits(values.as_slice()[1]).next(0)
        })
    }

    /// The reply to this request, if there is one at once.
    fn asks(&mut self, peer: Peer, request: Request) -> Option<Reply> {
        self.seq += 1;
        self.site.command(peer.id, Seq(self.seq), request);
        let seq = Seq(self.seq);
        self.reply(peer, seq)
    }

    fn reply(&mut self, peer: Peer, seq: Seq) -> Option<Reply> {
        let at = self.site.out.iter().position(|sent| sent.client == peer.id && sent.seq == seq)?;
        Some(self.site.out.remove(at).reply)
    }

    fn keeps(&mut self) -> Option<Reply> {
        let (handle, ticket) = (self.mine.handle, self.ticket);
        self.asks(self.holder, Request::Keep { handle, mode: X, ticket, lease: Lease::secs(100) })
    }

    fn listens(&mut self, knows: bool) -> (Seq, Option<Reply>) {
        let (handle, until) = (self.mine.handle, ServerTime(0));
        let told = self.asks(self.holder, Request::Listen { handle, knows, until });
        (Seq(self.seq), told)
    }

    /// The other client tries the lock; the number of its request, and its answer.
    fn tries(&mut self) -> (Seq, Option<Reply>) {
        let (handle, lease) = (self.its.handle, Lease::secs(50));
        let request = match self.take_ticket(self.other, self.its) {
            Some(ticket) => Request::Poll { handle, mode: X, ticket, lease },
            None => Request::Try { handle, mode: X, lease, wait: WaitNumber(7) },
        };
        let told = self.asks(self.other, request);
        (Seq(self.seq), told)
    }

    fn waits(&mut self) -> Seq {
        let (handle, lease) = (self.its.handle, Lease::secs(50));
        let ticket = self.take_ticket(self.other, self.its);
        let request = Request::Wait { handle, mode: X, lease, wait: WaitNumber(7), ticket };
        assert_eq!(self.asks(self.other, request), None);
        Seq(self.seq)
    }

    fn gives_back(&mut self) {
        let handle = self.mine.handle;
        let done = self.asks(self.holder, Request::Resolve { handle });
        assert!(matches!(done, Some(Reply::Done { .. })), "{done:?}");
    }

    /// The holder makes its hold a share. Returns whether there are shares of such a lock.
    fn downgrades(&mut self) -> bool {
        let (handle, ticket) = (self.mine.handle, self.ticket);
        let share = self.asks(self.holder, Request::Downgrade { handle, stamp: 2, ticket });
        matches!(share, Some(Reply::Granted { .. }))
    }

    fn is_marked(&mut self) -> bool {
        let word = self.site.word(&self.mine);
        match self.lock_type {
            LockType::Atomic => AtomicWord::from_bits(word).kept(),
            LockType::Rw => RwWord::from_bits(word).kept(),
            LockType::Fair => self.site.locks().keepers(self.mine.slot) > 0,
        }
    }
}

fn is_refused(reply: Option<Reply>) -> bool {
    matches!(reply, Some(Reply::Denied { status: Status::Fail, .. } | Reply::Queued { .. }))
}

#[test]
fn a_lock_that_no_other_client_wants_is_kept_and_one_that_others_want_is_released() {
    for lock_type in KINDS {
        let mut held = Held::new(lock_type);
        let kept = held.keeps();
        assert!(matches!(kept, Some(Reply::Granted { .. })), "{lock_type:?}: {kept:?}");
        assert!(held.is_marked(), "{lock_type:?}");
        let mut held = Held::new(lock_type);
        let waits = held.waits();
        let released = held.keeps();
        assert!(matches!(released, Some(Reply::Done { .. })), "{lock_type:?}: {released:?}");
        let granted = held.reply(held.other, waits);
        assert!(matches!(granted, Some(Reply::Granted { .. })), "{lock_type:?}: {granted:?}");
        assert!(!held.is_marked(), "{lock_type:?}");
    }
}

#[test]
fn a_lease_is_made_as_long_as_its_keeper_asks() {
    for lock_type in [LockType::Atomic, LockType::Fair] {
        let mut held = Held::new(lock_type);
        let Some(Reply::Granted { deadline, .. }) = held.keeps() else { panic!("{lock_type:?}") };
        assert!(deadline >= START.plus_ns(99 * NS).tick(), "{lock_type:?}: {deadline:?}");
    }
}

#[test]
fn a_keeper_hears_that_others_wait_and_what_it_gives_back_goes_to_them() {
    for lock_type in KINDS {
        let mut held = Held::new(lock_type);
        held.keeps();
        let (question, told) = held.listens(false);
        assert_eq!(told, None, "{lock_type:?}");
        let waits = held.waits();
        let told = held.reply(held.holder, question);
        assert!(matches!(told, Some(Reply::Contended { waiters: 1, .. })), "{told:?}");
        held.gives_back();
        let granted = held.reply(held.other, waits);
        assert!(matches!(granted, Some(Reply::Granted { .. })), "{lock_type:?}: {granted:?}");
        assert!(!held.is_marked(), "{lock_type:?}");
    }
}

#[test]
fn a_try_waits_for_the_keeper_to_give_back_and_not_for_a_program_that_uses_the_lock() {
    for lock_type in KINDS {
        let mut held = Held::new(lock_type);
        held.keeps();
        held.listens(false);
        let (tried, told) = held.tries();
        assert_eq!(told, None, "{lock_type:?}");
        held.gives_back();
        let granted = held.reply(held.other, tried);
        assert!(matches!(granted, Some(Reply::Granted { .. })), "{lock_type:?}: {granted:?}");

        let mut held = Held::new(lock_type);
        held.keeps();
        held.listens(false);
        let (tried, _) = held.tries();
        held.listens(true);
        let refused = held.reply(held.other, tried);
        assert!(is_refused(refused), "{lock_type:?}: {refused:?}");
        if lock_type != LockType::Fair {
            let (_, told) = held.tries();
            assert!(is_refused(told), "{lock_type:?}: it is still in use: {told:?}");
        }
        assert!(held.site.locks().waiters(held.mine.slot) == 0, "{lock_type:?}");
    }
}

#[test]
fn a_try_fails_when_the_keeper_is_late_and_at_once_where_there_is_none() {
    for lock_type in KINDS {
        let mut held = Held::new(lock_type);
        held.keeps();
        held.listens(false);
        let (tried, _) = held.tries();
        held.site.until(START.plus_ns(TRY_KEPT_NS_MAX / 2));
        assert_eq!(held.reply(held.other, tried), None, "{lock_type:?}");
        held.site.until(START.plus_ns(TRY_KEPT_NS_MAX + 1_000_000));
        let refused = held.reply(held.other, tried);
        assert!(is_refused(refused), "{lock_type:?}: {refused:?}");

        let mut held = Held::new(lock_type);
        let (_, told) = held.tries();
        assert!(is_refused(told), "{lock_type:?}: {told:?}");
    }
}

#[test]
fn a_keeper_that_does_not_answer_is_fenced_and_one_whose_program_uses_the_lock_is_not() {
    for lock_type in KINDS {
        // how the client uses the lock: not at all, exclusively, or with a share
        for used in [None, Some(X), Some(Mode::Shared)] {
            let mut held = Held::new(lock_type);
            held.keeps();
            held.listens(false);
            if used == Some(Mode::Shared) && !held.downgrades() {
                continue;
            }
            held.waits();
            if used == Some(X) {
                held.listens(true);
            }
            let hinderer = |held: &Held| held.site.locks().hinderer(&|_| false);
            assert_eq!(hinderer(&held), None, "{lock_type:?}");
            for s in 1..=u64::from(HINDRANCE_S) + 3 {
                let is_over = hinderer(&held).is_some();
                assert!(!is_over || s >= u64::from(HINDRANCE_S), "{lock_type:?} after {s} s");
                for peer in [held.holder, held.other] {
                    let _ = held.site.control(peer, ControlRequest::Heartbeat);
                }
                held.site.until(START.plus_ns(s * NS));
            }
            let hinders = Effect::Hinders { client: held.holder.id };
            let is_fenced = held.site.effects.contains(&hinders);
            assert_eq!(is_fenced, used.is_none(), "{lock_type:?} {used:?}");
        }
    }
}

#[test]
fn in_a_drain_no_client_keeps_a_lock_and_keepers_are_asked() {
    for lock_type in KINDS {
        let drain = |held: &mut Held, is_on| {
            held.site.handle(Event::Operate { act: Act::Drain { is_on }, by: "uid 0".into() });
            held.site.until(START.plus_ns(NS / 10));
        };
        let mut held = Held::new(lock_type);
        drain(&mut held, true);
        let released = held.keeps();
        assert!(matches!(released, Some(Reply::Done { .. })), "{lock_type:?}: {released:?}");

        let mut held = Held::new(lock_type);
        held.keeps();
        let (question, _) = held.listens(false);
        drain(&mut held, true);
        let told = held.reply(held.holder, question);
        assert!(matches!(told, Some(Reply::Contended { .. })), "{lock_type:?}: {told:?}");
    }
}
