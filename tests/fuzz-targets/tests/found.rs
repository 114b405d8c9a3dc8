// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inputs by which the fuzzers have found errors, each as small as possible.

use dlock_core::arbiter::{Arbiter, Caller, LockRef};
use dlock_core::clock::{Lease, Now, ServerTime, NS};
use dlock_core::ids::{ClientId, Handle, LockId, Seq, Slot};
use dlock_core::lock::{Begin, LockEntry, Op, Step};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Outcome, Values, WordAddr};
use dlock_core::memory::words::{LedgerEntry, RwWord, Ticket};
use dlock_core::wire::about::About;
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

const HANDLE: Handle = Handle(0);
const TRY_SHARED: Op = Op::TryLock { mode: Mode::Shared, lease: Lease::secs(5) };

/// A memory of a single word, with empty ledgers.
struct OneWord(u64);

impl LockMemory for OneWord {
    fn cas(&mut self, _: WordAddr, expect: u64, swap: u64) -> u64 {
        let old = self.0;
        self.0 = if old == expect { swap } else { old };
        old
    }
    fn faa(&mut self, _: WordAddr, add: u64) -> u64 {
        let old = self.0;
        self.0 = old.wrapping_add(add);
        old
    }
    fn read(&mut self, _: WordAddr) -> u64 {
        self.0
    }
    fn set(&mut self, _: WordAddr, value: u64) {
        self.0 = value;
    }
    fn ledger(&mut self, _: ClientId, _: Handle) -> LedgerEntry {
        LedgerEntry::new()
    }
    fn set_ledger(&mut self, _: ClientId, _: Handle, _: LedgerEntry) {}
}

fn client() -> ClientId {
    ClientId::new(7).unwrap()
}

fn now() -> Now {
    Now::exact(ServerTime(1_000 * NS))
}

fn entry(lock_type: LockType) -> LockEntry {
    let (lock, slot) = (LockId(5), Slot(0));
    let grant = LockGrant { lock, handle: HANDLE, slot, word: 0, already: false, tokens: false };
    LockEntry::new(
        client(),
        0,
        lock_type,
        &grant,
        LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false },
    )
}

fn values(list: &[u64]) -> Outcome {
    let mut values = Values::new();
    list.iter().for_each(|&value| values.push(value));
    Outcome::Done(values)
}

fn arbitrate(lock_type: LockType, word: u64, request: Request) -> Vec<Reply> {
    let refs = [(client(), HANDLE)];
    let lock = LockRef { slot: Slot(0), lock_type, tokens: false, refs: &refs };
    let from = Caller { client: client(), handle: HANDLE, seq: Seq(1) };
    let (mut memory, mut out) = (OneWord(word), Vec::new());
    Arbiter::default().request(now().time, &mut memory, lock, from, request, &mut out);
    out.iter().map(|sent| sent.reply).collect()
}

/// Found by `client` (in the client's machine) and by `arbiter` (at a grant): an addition
/// overflowed.
#[test]
fn a_word_that_counts_all_the_readers_it_can_is_no_panic() {
    let full = RwWord::new().with_rcount(u32::MAX).into_bits();
    let mut entry = entry(LockType::Rw);
    let Begin::Run(mut machine, _) = entry.begin(TRY_SHARED, now()) else { panic!() };
    let _ = machine.outcome(&mut entry, values(&[0, full]), now());
    let (handle, mode, ticket) = (HANDLE, Mode::Shared, None);
    let wait = dlock_core::wire::message::WaitNumber(1);
    arbitrate(
        LockType::Rw,
        full,
        Request::Wait { handle, mode, lease: Lease::secs(5), wait, ticket },
    );
}

/// Found by `arbiter`: a request that a kind of lock does not know was answered with a refusal even
/// if it is of a kind that has no reply.
#[test]
fn a_request_without_a_reply_is_not_answered_by_any_kind_of_lock() {
    let ticket = Ticket { lap: 0, tx: 0, ts: 0 };
    let abandon = Request::Abandon { handle: HANDLE, mode: Mode::Shared, ticket };
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        for request in [abandon, Request::Wake { handle: HANDLE }] {
            assert_eq!(arbitrate(lock_type, 0, request), [], "{lock_type:?} {request:?}");
        }
    }
}

/// Found by `client`: an answer that told the holder of a fair lock that it is queued made the
/// entry count as held and as queued.
#[test]
fn a_reentry_that_is_told_to_queue_leaves_the_hold_as_it_is() {
    let mut entry = entry(LockType::Fair);
    let Begin::Run(mut machine, step) = entry.begin(TRY_SHARED, now()) else { panic!() };
    assert!(matches!(step, Step::Chain(_)));
    let step = machine.outcome(&mut entry, values(&[0, 0, 0, 0]), now());
    assert!(matches!(step, Step::Done(result) if result.status == Status::Success), "{step:?}");
    let held = entry.state();
    assert_eq!(entry.refs(), 1);
    let late = Now::exact(now().time.plus_ns(100 * NS));
    let Begin::Run(mut machine, step) = entry.begin(TRY_SHARED, late) else { panic!() };
    assert!(matches!(step, Step::Request(Request::Extend { .. })), "{step:?}");
    let queued = Reply::Queued { word: 0, ticket: Ticket { lap: 0, tx: 9, ts: 9 } };
    let step = machine.reply(&mut entry, Ok(queued), late);
    let Step::Done(result) = step else { panic!("{step:?}") };
    assert_eq!(result.status, Status::BadResponse);
    assert_eq!((entry.state(), entry.refs()), (held, 1));
}

/// Found by the target `frames`, which took them for a second encoding of the same frame.
#[test]
fn fields_of_a_later_version_are_dropped() {
    use dlock_core::wire::codec::{self, Frame, Kind, HEADER_LEN};
    use dlock_core::wire::control::ControlRequest;
    let init = ControlRequest::Init {
        version_min: 1,
        version_max: 3,
        tp_mode: 0,
        horizon_s: 9,
        about: About::new("a", "b", "c", 4).unwrap(),
    };
    let mut bytes = Vec::new();
    codec::encode(&Frame::Control(Seq(7), init.clone()), &mut bytes);
    bytes.extend([1, 2, 3]);
    let payload = &bytes[HEADER_LEN..];
    assert_eq!(codec::decode(Kind::Control, payload), Ok(Frame::Control(Seq(7), init)));
    let later = [&[0][..], payload].concat(); // the kind of the first byte is Control
    dlock_fuzz_targets::frames::run(&later);
}
