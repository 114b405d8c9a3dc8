// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of known frames. After the first release none of them changes any more, also if others
//! are added.
use dlock_core::clock::{Deadline, Lease, ServerTime};
use dlock_core::ids::*;
use dlock_core::memory::word_op::*;
use dlock_core::memory::words::*;
use dlock_core::token::Token;
use dlock_core::wire::about::About;
use dlock_core::wire::codec::*;
use dlock_core::wire::control::*;
use dlock_core::wire::message::*;
use dlock_core::wire::status::Status;

const SECRET: Secret = Secret(*b"0123456789abcdef");
const TICKET: Ticket = Ticket { lap: 0x0e, tx: 0x0a0b, ts: 0x0c0d };
const HANDLE: Handle = Handle(3);
const UNTIL: ServerTime = ServerTime(0x0102_0304_0506_0708);

fn client() -> ClientId {
    ClientId::new(0x0102_0304).unwrap()
}

fn desc() -> LockDesc {
    LockDesc { name: b"ab".to_vec(), lock_type: LockType::Fair, lease_s: 9, tokens: true }
}

fn control_frames() -> Vec<Frame> {
    use ControlRequest as R;
    let fair = Some(Place { epoch: Epoch(8), ticket: TICKET });
    let (mode, is_queued) = (Mode::Shared, true);
    let (epoch, deadline) = (Epoch(9), Deadline(10));
    let held = HeldClaim {
        mode,
        is_queued,
        left_ns: 4,
        age_ms: 7,
        epoch,
        deadline,
        fair,
        token: Token(8),
    };
    let claim = Claim { lock: LockId(77), desc: desc(), held: Some(held) };
    let (version_min, version_max, tp_mode, horizon_s) = (1, 2, 1, 10);
    let requests = [
        R::Init { version_min, version_max, tp_mode, horizon_s, about: About::NOTHING },
        R::Reinit {
            version_min,
            version_max,
            tp_mode,
            horizon_s,
            client: client(),
            secret: SECRET,
            about: About::NOTHING,
        },
        R::ReinitDone,
        R::Deinit,
        R::Heartbeat,
        R::GetLocks(vec![desc()]),
        R::ReleaseLocks(vec![LockId(77)]),
        R::UpdateLocks(vec![claim]),
        R::ObjectCreate { name: b"o".to_vec(), lease: Lease(5), init: 6 },
        R::ObjectGet { name: b"o".to_vec(), lease: Lease(5) },
        R::ObjectRelease(ObjectId(7)),
        R::ObjectDestroy(ObjectId(7)),
        R::Operate(Act::TakeAway {
            whose: Whose::Holders { name: b"lock".to_vec(), client: Some(client()) },
            grace_s: 9,
            now: true,
        }),
        R::Operate(Act::TakeAway { whose: Whose::Client(client()), grace_s: 0, now: false }),
        R::Operate(Act::TakeAway { whose: Whose::Departed, grace_s: 0, now: false }),
        R::Operate(Act::TakeAway { whose: Whose::All, grace_s: 0, now: false }),
        R::Operate(Act::Drain { is_on: true }),
    ];
    requests.into_iter().map(|r| Frame::Control(Seq(1), r)).collect()
}

fn control_replies() -> Vec<Frame> {
    use ControlReply as R;
    let session = Session {
        version: 1,
        client: client(),
        secret: SECRET,
        epoch: Epoch(2),
        anchor_s: 3,
        now: ServerTime(4),
        recovering: false,
        offers: Offers::none()
            .with(FabricKind::Shm, b"sock")
            .with(FabricKind::Tcp, &[])
            .with(FabricKind::Verbs, &[]),
        terms: Terms { horizon_s: 10, until: ServerTime(5), lapses: 1 },
    };
    let (lock, slot, word) = (LockId(77), Slot(5), 0x0102_0304_0506_0708);
    let grant = LockGrant { lock, handle: HANDLE, slot, word, already: true, tokens: true };
    let (object, generation) = (ObjectId(7), Generation(8));
    let replies = [
        R::Error(Status::VersionMismatch),
        R::Session(session),
        R::Done,
        R::Alive {
            now: ServerTime(4),
            recovering: true,
            until: UNTIL,
            asked: ServerTime(6),
            recovery: Told { told: 2, of: 3 },
        },
        R::Locks(vec![Ok(grant), Err(Status::Error)]),
        R::Statuses(vec![Status::Success, Status::LockNotGet]),
        R::Created(object),
        R::Object(ObjectGrant { object, handle: HANDLE, slot, generation }),
        R::Operated(3),
        R::Removed { by: "uid 0".to_string(), now: true },
    ];
    replies.into_iter().map(|r| Frame::ControlReply(Seq(1), r)).collect()
}

fn attach(fabric: FabricKind, verbs: Option<VerbsAttach>) -> Attach {
    Attach { client: client(), secret: SECRET, fabric, verbs, returns: true }
}

fn endpoint(qp_num: u32) -> VerbsEndpoint {
    VerbsEndpoint { qp_num, psn: 0x0a_0b0c, gid: SECRET.0, lid: 0x0d0e, mtu: 3, reads: 16 }
}

fn verbs_attach(messages: Option<VerbsEndpoint>) -> VerbsAttach {
    VerbsAttach { chains: endpoint(7), messages, ring_slots: 32, message_bytes: 256 }
}

fn verbs_attached() -> VerbsAttached {
    let region = |base, rkey| VerbsRegion { base, bytes: 0x2000, rkey };
    VerbsAttached {
        chains: endpoint(8),
        messages: Some(endpoint(9)),
        slots: region(0x1000, 5),
        ledger: region(0x8000, 6),
        ring_slots: 32,
        message_bytes: 256,
    }
}

fn data_frames() -> Vec<Frame> {
    let addr = WordAddr::new(Slot(5), Word::W0);
    let chain = Chain::one(WordOp::Cas { addr, expect: 1, swap: 2 })
        .then(WordOp::Faa { addr, add: 3 })
        .then(WordOp::Read { addr })
        .then(WordOp::WriteLedger { handle: HANDLE, value: 4 });
    let mut values = Values::new();
    values.push(0x0102);
    let outcomes =
        vec![Outcome::Done(values), Outcome::Unknown, Outcome::Refused(Status::NotReady)];
    let status = Status::Success;
    let attached = Attached {
        status,
        slots: 1,
        ledger_entries: 2,
        clock_offset_ns: 3,
        verbs: None,
        until: UNTIL,
    };
    vec![
        Frame::Attach(attach(FabricKind::Tcp, None)),
        Frame::Attach(attach(FabricKind::Verbs, Some(verbs_attach(None)))),
        Frame::Attach(attach(FabricKind::Verbs, Some(verbs_attach(Some(endpoint(9)))))),
        Frame::Attached(attached),
        Frame::Attached(Attached { verbs: Some(verbs_attached()), ..attached }),
        Frame::Batch(Seq(5), vec![chain]),
        Frame::Outcomes(Seq(5), outcomes),
        Frame::Note(HANDLE, LedgerEntry::claim(Mode::Shared, 0x0a0b).with_detail(0x0c0d)),
    ]
}

fn message_frames() -> Vec<Frame> {
    let (handle, mode, lease) = (HANDLE, Mode::Shared, Lease(7));
    let (wait, ticket, word) = (WaitNumber(8), TICKET, 1);
    let requests = [
        Request::Wait { handle, mode, lease, wait, ticket: Some(ticket) },
        Request::Cancel { handle, wait },
        Request::Release { handle, mode, ticket: None },
        Request::Wake { handle },
        Request::Poll { handle, mode, ticket, lease },
        Request::TakeTicket { handle, mode, lease },
        Request::Abandon { handle, mode, ticket },
        Request::Extend { handle, mode, ticket: Some(ticket), lease },
        Request::Steal { handle, mode, lease },
        Request::Resolve { handle },
        Request::Ping,
        Request::CountReaders { handle, mode, ticket: Some(ticket) },
        Request::Confirm { handle, mode },
        Request::Listen { handle, knows: true, until: ServerTime(4) },
        Request::Downgrade { handle, stamp: 0x0102, ticket: Some(ticket) },
    ];
    let at = ServerTime(3);
    let replies = [
        Reply::Granted {
            word,
            deadline: Deadline::at_s(2),
            at,
            ticket: Some(ticket),
            token: Token(6),
        },
        Reply::Queued { word, ticket },
        Reply::Denied { status: Status::Fail, word },
        Reply::Cancelled { word },
        Reply::Done { word },
        Reply::Pong { at },
        Reply::Contended { waiters: 9, until: at },
    ];
    let requests = requests.into_iter().map(|r| Frame::Request(Seq(6), r));
    requests.chain(replies.into_iter().map(|r| Frame::Reply(Seq(6), r))).collect()
}

/// One line per frame, header | payload.
const GOLDEN: &str = "
444c010110000000|0100000000000000000102010a000000
444c010124000000|0100000000000000010102010a0000000403020130313233343536373839616263646566
444c010109000000|010000000000000002
444c010109000000|010000000000000003
444c010109000000|010000000000000004
444c010114000000|0100000000000000050102006162020900000001
444c01010e000000|010000000000000006014d000000
444c010154000000|010000000000000007014d00000002006162020900000001010101040000000000000007000000090\
00000000000000a0000000108000000000000000e000000000000000b0a00000d0c00000800000000000000
444c010118000000|01000000000000000801006f050000000600000000000000
444c010110000000|01000000000000000901006f05000000
444c01010d000000|01000000000000000a07000000
444c01010d000000|01000000000000000b07000000
444c01011b000000|01000000000000000c000104006c6f636b01040302010900000001
444c010114000000|01000000000000000c0000040302010000000000
444c010110000000|01000000000000000c00020000000000
444c010110000000|01000000000000000c00030000000000
444c01010b000000|01000000000000000c0101
444c01810d000000|0100000000000000000e200000
444c01814e000000|010000000000000001010403020130313233343536373839616263646566020000000000000003000\
000040000000000000000030004736f636b010002000a000000050000000000000001000000
444c018109000000|010000000000000002
444c01812a000000|0100000000000000030400000000000000010807060504030201060000000000000002000000030\
00000
444c018126000000|01000000000000000402004d00000003000000050000000807060504030201010101ffffffff
444c018112000000|010000000000000005020000000001200000
444c01810d000000|01000000000000000607000000
444c01811d000000|0100000000000000070700000003000000050000000800000000000000
444c01810d000000|01000000000000000803000000
444c018110000000|01000000000000000905756964203001
444c010216000000|04030201303132333435363738396162636465660101
444c010239000000|040302013031323334353637383961626364656602070000000c0b0a0030313233343536373839616\
2636465660e0d03100020000001000001
444c010255000000|040302013031323334353637383961626364656602070000000c0b0a0030313233343536373839616\
2636465660e0d031001090000000c0b0a00303132333435363738396162636465660e0d031020000001000001
444c01821d000000|0000000001000000020000000300000000000000000807060504030201
444c018284000000|000000000100000002000000030000000000000001080000000c0b0a0030313233343536373839616\
2636465660e0d031001090000000c0b0a00303132333435363738396162636465660e0d031000100000000000000020000\
0000000000500000000800000000000000020000000000000060000002000000100000807060504030201
444c01033e000000|050000000000000001040014000000010000000000000002000000000000000114000000030000000\
0000000021400000003030000000400000000000000
444c018319000000|05000000000000000300010201000000000000010208200000
444c01040c000000|030000000d0c00000b0a00c0
444c010527000000|06000000000000000003000000010700000008000000010e000000000000000b0a00000d0c0000
444c010511000000|0600000000000000010300000008000000
444c01050f000000|060000000000000002030000000100
444c01050d000000|06000000000000000303000000
444c010522000000|06000000000000000403000000010e000000000000000b0a00000d0c000007000000
444c010512000000|060000000000000005030000000107000000
444c01051e000000|06000000000000000603000000010e000000000000000b0a00000d0c0000
444c010523000000|0600000000000000070300000001010e000000000000000b0a00000d0c000007000000
444c010512000000|060000000000000008030000000107000000
444c01050d000000|06000000000000000903000000
444c010509000000|06000000000000000a
444c01051f000000|06000000000000000b0300000001010e000000000000000b0a00000d0c0000
444c01050e000000|06000000000000000c0300000001
444c010516000000|06000000000000000d03000000010400000000000000
444c010522000000|06000000000000000e0300000002010000010e000000000000000b0a00000d0c0000
444c018536000000|0600000000000000000100000000000000200000000300000000000000010e000000000000000b0a0\
0000d0c00000600000000000000
444c018521000000|06000000000000000101000000000000000e000000000000000b0a00000d0c0000
444c018515000000|060000000000000002062000000100000000000000
444c018511000000|0600000000000000030100000000000000
444c018511000000|0600000000000000040100000000000000
444c018511000000|0600000000000000050300000000000000
444c018515000000|060000000000000006090000000300000000000000
";

#[test]
fn the_bytes_of_known_frames_never_change() {
    let frames = [control_frames(), control_replies(), data_frames(), message_frames()];
    let mut text = String::from("\n");
    for frame in frames.concat() {
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
        for (i, b) in bytes.iter().enumerate() {
            let mark = if i == HEADER_LEN { "|" } else { "" };
            text += &format!("{mark}{b:02x}");
        }
        text.push('\n');
    }
    assert_eq!(text, GOLDEN, "the wire format has changed:{text}");
}
