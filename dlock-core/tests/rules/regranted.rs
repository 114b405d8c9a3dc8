// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client claims of a hold that it has got anew after a failover, and what it may write into
//! its ledger when its rights are taken away.

use crate::common::entry::{entry, executed};
use crate::common::site::{w0, Site};
use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::ids::{Epoch, Seq};
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, TakenWord};
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::primary::Event;
use dlock_core::rights::{Right, Rule};
use dlock_core::wire::control::FabricKind;
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::wire::status::Status;

const TRY: Op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(600) };
const QUERY: Op = Op::Extend { mode: Mode::Exclusive, lease: Lease::NONE };

fn at(seconds: u64) -> Now {
    Now::within(ServerTime(seconds * NS), 3)
}

/// Carries the operation out, and returns its status; each chain finds a free lock, and `reply` is
/// the primary's answer.
fn run(e: &mut LockEntry, op: Op, now: Now, reply: Reply) -> Status {
    let mut operation = match Operation::begin(e, op, now, Bounds::since(now.local_ns)) {
        Started::Running(operation) => operation,
        Started::Done(result) => return result.status,
    };
    loop {
        match operation.next(e) {
            Effect::Post { chain, .. } => operation.outcome(e, executed(&chain, 0), now),
            Effect::Ask { .. } => operation.reply(e, Ok(reply), now),
            Effect::ReadClock => operation.clock(now),
            Effect::Done(result) => return result.status,
            _ => {}
        }
    }
}

/// The client lost its hold of the first primary at the second one, and was granted another one
/// there. The third primary ranks claims by the incarnation that granted them.
#[test]
fn a_claim_of_a_new_hold_tells_when_that_one_was_granted() {
    let denied = Reply::Denied { status: Status::Fail, word: 0 };
    for is_told in [false, true] {
        let mut e = entry(LockType::Atomic);
        assert_eq!(run(&mut e, TRY, at(1_000), denied), Status::Success);
        e.is_claimed(Epoch(1), at(1_001), at(1_001));
        if is_told {
            e.lose(); // the second primary has refused the claim
        }
        assert_eq!(run(&mut e, QUERY, at(1_002), denied), Status::Fail, "it is lost");
        assert_eq!(run(&mut e, TRY, at(1_003), Reply::Done { word: 0 }), Status::Success);
        let held = e.claim(at(1_004), Epoch(2)).held.expect("it holds the lock");
        assert_eq!((held.epoch, held.deadline), (Epoch(2), at(1_003).deadline(Lease::secs(600))));
    }
}

/// The arbiter has granted the hold, and the client's ledger does not say so yet.
#[test]
fn a_ledger_write_of_what_was_granted_needs_no_right() {
    let mut site = Site::new();
    let peer = site.join(FabricKind::Tcp, 0);
    let lock = site.get(peer, "f", LockType::Fair);
    let (handle, mode) = (lock.handle, Mode::Exclusive);
    let claim = |until| LedgerEntry::claim(mode, 1).with_deadline(until).into_bits();
    let value = claim(Now::exact(site.now).deadline(Lease::secs(3)));
    let take = Chain::one(WordOp::WriteLedger { handle, value })
        .then(WordOp::Faa { addr: w0(&lock), add: TakenWord::addend(mode) })
        .then(WordOp::ReadPair { addr: WordAddr::new(lock.slot, Word::W1) });
    let values = site.execute(peer, &take);
    let lap = *values.as_slice().last().expect("the pair");
    let ticket = Some(TakenWord::START.next(lap));
    let wait = Request::Wait { handle, mode, lease: Lease::secs(9), wait: WaitNumber(1), ticket };
    site.command(peer.id, Seq(7), wait);
    let Some(Reply::Granted { deadline, .. }) =
        site.out.iter().find(|sent| sent.seq == Seq(7)).map(|sent| sent.reply)
    else {
        panic!("{:?}", site.out);
    };
    let rights = [Right::Get].into_iter().collect();
    let (names, prefixes) = (vec!["*".into()], vec![Vec::new()]);
    site.handle(Event::Rules(vec![Rule { names, prefixes, rights, ..Rule::default() }]));
    let may_note = |site: &mut Site, deadline| {
        let entry = LedgerEntry::from_bits(claim(deadline));
        site.primary.locks().check_note(&mut site.memory, peer.id, handle, entry)
    };
    assert_eq!(may_note(&mut site, deadline), Ok(()), "no longer than it was granted");
    assert_eq!(may_note(&mut site, Deadline(deadline.0 + 1)), Err(Status::Denied));
}
