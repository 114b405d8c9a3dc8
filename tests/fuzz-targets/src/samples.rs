// SPDX-License-Identifier: MIT OR Apache-2.0
//! One frame of every kind and of every request and reply, as bytes.

use dlock_core::clock::{Deadline, Lease, ServerTime};
use dlock_core::ids::{ClientId, Epoch, Generation, Handle, LockId, ObjectId, Seq, Slot};
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, Ticket};
use dlock_core::token::Token;
use dlock_core::wire::about::About;
use dlock_core::wire::codec::{self, Frame, HEADER_LEN};
use dlock_core::wire::control::{
    Act, Attach, Attached, Claim, ControlReply as C, ControlRequest as R, FabricKind, HeldClaim,
    LockDesc, LockGrant, ObjectGrant, Offers, Place, Secret, Session, Terms, Told, VerbsAttach,
    VerbsAttached, VerbsEndpoint, VerbsRegion, Whose, VERSION,
};
use dlock_core::wire::message::{LockType, Mode, Reply, Request as Q, WaitNumber};
use dlock_core::wire::status::Status;

const SEQ: Seq = Seq(0x0102);
const HANDLE: Handle = Handle(3);
const TICKET: Ticket = Ticket { lap: 4, tx: 5, ts: 0xfff0 };
const SECRET: Secret = Secret(*b"0123456789abcdef");

/// A frame of every kind, and of every request and reply.
///
/// # Panics
/// Never: 7 is a client id.
pub fn frames() -> Vec<Vec<u8>> {
    let client = ClientId::new(7).expect("7 is a client id");
    let mut frames = requests(client);
    frames.extend(replies(client));
    frames.extend(data());
    let encoded = |frame: &Frame| {
        let mut bytes = Vec::new();
        codec::encode(frame, &mut bytes);
        bytes
    };
    let mut list: Vec<Vec<u8>> = frames.iter().map(encoded).collect();
    list.extend(foreign(&list));
    list
}

/// The first frames of connections in `list`, in the form in which a peer of another version sends
/// them.
fn foreign(list: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let firsts = [
        encoded_like(list, |f| matches!(f, Frame::Control(_, R::Init { .. }))),
        encoded_like(list, |f| matches!(f, Frame::Control(_, R::Reinit { .. }))),
        encoded_like(list, |f| matches!(f, Frame::ControlReply(_, C::Error(_)))),
    ];
    let mut foreign: Vec<Vec<u8>> = firsts.into_iter().flatten().collect();
    for frame in &mut foreign {
        frame[2] = VERSION + 1;
    }
    foreign
}

fn encoded_like(list: &[Vec<u8>], wanted: impl Fn(&Frame) -> bool) -> Option<Vec<u8>> {
    let is = |bytes: &&Vec<u8>| {
        let header = bytes.first_chunk().and_then(|head| codec::header(head).ok());
        let frame = header.and_then(|h| codec::decode(h.kind, &bytes[HEADER_LEN..]).ok());
        frame.is_some_and(|frame| wanted(&frame))
    };
    list.iter().find(is).cloned()
}

fn requests(client: ClientId) -> Vec<Frame> {
    let (version_min, version_max, tp_mode) = (1, 1, 0);
    let desc =
        LockDesc { name: b"lock".to_vec(), lock_type: LockType::Fair, lease_s: 9, tokens: false };
    let fair = Some(Place { epoch: Epoch(8), ticket: TICKET });
    let held = HeldClaim { fair, ..HeldClaim::hold(Mode::Shared, 4) };
    let claim = Claim { lock: LockId(77), desc: desc.clone(), held: Some(held) };
    let all = [
        R::Init { version_min, version_max, tp_mode, horizon_s: 9, about: About::NOTHING },
        R::Reinit {
            version_min,
            version_max,
            tp_mode,
            horizon_s: 9,
            client,
            secret: SECRET,
            about: About::new("orders", "node1", "7", 4_711).unwrap_or_default(),
        },
        R::ReinitDone,
        R::Deinit,
        R::Heartbeat,
        R::GetLocks(vec![desc.clone(), desc]),
        R::ReleaseLocks(vec![LockId(77), LockId(78)]),
        R::UpdateLocks(vec![claim]),
        R::ObjectCreate { name: b"o".to_vec(), lease: Lease::secs(5), init: 6 },
        R::ObjectGet { name: b"o".to_vec(), lease: Lease::secs(5) },
        R::ObjectRelease(ObjectId(7)),
        R::ObjectDestroy(ObjectId(7)),
        R::Operate(Act::TakeAway {
            whose: Whose::Holders { name: b"lock".to_vec(), client: Some(client) },
            grace_s: 9,
            now: true,
        }),
        R::Operate(Act::TakeAway { whose: Whose::Client(client), grace_s: 0, now: false }),
        R::Operate(Act::TakeAway { whose: Whose::Departed, grace_s: 0, now: false }),
        R::Operate(Act::TakeAway { whose: Whose::All, grace_s: 0, now: false }),
        R::Operate(Act::Drain { is_on: true }),
    ];
    let mut frames: Vec<Frame> = all.into_iter().map(|r| Frame::Control(SEQ, r)).collect();
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let attach = Attach { client, secret: SECRET, fabric, verbs: None, returns: true };
        frames.push(Frame::Attach(attach));
    }
    for messages in [None, Some(endpoint(2))] {
        let verbs =
            VerbsAttach { chains: endpoint(1), messages, ring_slots: 32, message_bytes: 256 };
        let (fabric, verbs) = (FabricKind::Verbs, Some(verbs));
        frames.push(Frame::Attach(Attach {
            client,
            secret: SECRET,
            fabric,
            verbs,
            returns: false,
        }));
    }
    frames
}

fn endpoint(qp_num: u32) -> VerbsEndpoint {
    VerbsEndpoint { qp_num, psn: 3, gid: SECRET.0, lid: 4, mtu: 3, reads: 16 }
}

fn replies(client: ClientId) -> Vec<Frame> {
    let session = Session {
        version: 1,
        client,
        secret: SECRET,
        epoch: Epoch(2),
        anchor_s: 3,
        now: ServerTime(4),
        recovering: false,
        offers: Offers::none()
            .with(FabricKind::Shm, b"socket")
            .with(FabricKind::Tcp, &[])
            .with(FabricKind::Verbs, &[]),
        terms: Terms { horizon_s: 9, until: ServerTime(5), lapses: 1 },
    };
    let (lock, slot, object) = (LockId(77), Slot(5), ObjectId(8));
    let grant = LockGrant { lock, handle: HANDLE, slot, word: 6, already: true, tokens: false };
    let all = [
        C::Error(Status::VersionMismatch),
        C::Session(session),
        C::Done,
        C::Alive {
            now: ServerTime(9),
            recovering: true,
            until: ServerTime(9),
            asked: ServerTime(9),
            recovery: Told { told: 1, of: 2 },
        },
        C::Locks(vec![Ok(grant), Err(Status::ServerNoResource)]),
        C::Statuses(vec![Status::Success, Status::Fail]),
        C::Created(object),
        C::Object(ObjectGrant { object, handle: HANDLE, slot, generation: Generation(3) }),
        C::Operated(3),
        C::Removed { by: "uid 0".to_string(), now: false },
    ];
    let mut frames: Vec<Frame> = all.into_iter().map(|r| Frame::ControlReply(SEQ, r)).collect();
    let (status, slots) = (Status::Success, 100);
    let region = |rkey| VerbsRegion { base: 0x1000, bytes: 0x2000, rkey };
    let verbs = VerbsAttached {
        chains: endpoint(1),
        messages: Some(endpoint(2)),
        slots: region(3),
        ledger: region(4),
        ring_slots: 32,
        message_bytes: 256,
    };
    let until = ServerTime(9);
    for verbs in [None, Some(verbs)] {
        let attached =
            Attached { status, slots, ledger_entries: 9, clock_offset_ns: 1, verbs, until };
        frames.push(Frame::Attached(attached));
    }
    frames
}

fn data() -> Vec<Frame> {
    let (handle, mode, lease) = (HANDLE, Mode::Exclusive, Lease::secs(30));
    let (wait, ticket) = (WaitNumber(4), TICKET);
    let requests = [
        Q::Wait { handle, mode, lease, wait, ticket: Some(ticket) },
        Q::Wait { handle, mode, lease, wait, ticket: None },
        Q::Cancel { handle, wait },
        Q::Release { handle, mode, ticket: Some(ticket) },
        Q::Wake { handle },
        Q::Poll { handle, mode, ticket, lease },
        Q::TakeTicket { handle, mode, lease },
        Q::Abandon { handle, mode, ticket },
        Q::Extend { handle, mode, ticket: Some(ticket), lease },
        Q::Steal { handle, mode, lease },
        Q::Resolve { handle },
        Q::CountReaders { handle, mode, ticket: Some(ticket) },
        Q::Confirm { handle, mode },
        Q::Listen { handle, knows: true, until: ServerTime(9) },
        Q::Downgrade { handle, stamp: 6, ticket: Some(ticket) },
        Q::Keep { handle, mode, ticket: Some(ticket), lease: Lease(9) },
        Q::Try { handle, mode, lease: Lease(9), wait: WaitNumber(8) },
        Q::Ping,
    ];
    let (word, at) = (0x0102_0304_0506_0708, ServerTime(11));
    let replies = [
        Reply::Granted { word, deadline: Deadline(8), at, ticket: Some(ticket), token: Token(4) },
        Reply::Queued { word, ticket },
        Reply::Denied { status: Status::Fail, word },
        Reply::Cancelled { word },
        Reply::Done { word },
        Reply::Pong { at },
        Reply::Contended { waiters: 3, until: at },
    ];
    let addr = WordAddr::new(Slot(2), Word::W0);
    let entry = LedgerEntry::claim(Mode::Shared, 7).with_detail(9);
    let chain = Chain::one(WordOp::Cas { addr, expect: 1, swap: 2 })
        .then(WordOp::Faa { addr, add: 1 })
        .then(WordOp::Read { addr })
        .then(WordOp::WriteLedger { handle, value: entry.into_bits() });
    let mut values = Values::new();
    values.push(word);
    let outcomes = vec![Outcome::Done(values), Outcome::Unknown, Outcome::Refused(Status::Invalid)];
    let mut frames = vec![
        Frame::Batch(SEQ, vec![chain, Chain::one(WordOp::ReadPair { addr })]),
        Frame::Outcomes(SEQ, outcomes),
        Frame::Note(handle, entry),
    ];
    frames.extend(requests.map(|request| Frame::Request(SEQ, request)));
    frames.extend(replies.map(|reply| Frame::Reply(SEQ, reply)));
    frames
}
