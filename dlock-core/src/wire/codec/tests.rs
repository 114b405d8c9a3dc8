// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::*;
use crate::limits::*;
use crate::memory::word_op::*;
use crate::memory::words::*;
use crate::token::Token;
use crate::wire::about::About;
use crate::wire::control::*;
use crate::wire::fabric::OFFERS_MAX;
use crate::wire::message::*;
use crate::wire::status::Status;

use gen::Gen;

mod gen;

const CONTROL_REQUESTS: usize = 13;
const CONTROL_REPLIES: usize = 10;
const REQUESTS: usize = 15;
const REPLIES: usize = 7;

fn control_request(g: &mut Gen, variant: usize) -> ControlRequest {
    use ControlRequest as R;
    let (version_min, version_max, tp_mode) = (g.next() as u8, g.next() as u8, g.next() as u8);
    let horizon_s = g.u32();
    match variant {
        0 => R::Init { version_min, version_max, tp_mode, horizon_s, about: g.about() },
        1 => {
            let (client, secret, about) = (g.client(), g.secret(), g.about());
            R::Reinit { version_min, version_max, tp_mode, horizon_s, client, secret, about }
        }
        2 => R::ReinitDone,
        3 => R::Deinit,
        4 => R::Heartbeat,
        5 => R::GetLocks(g.list(Gen::desc)),
        6 => R::ReleaseLocks(g.list(|g| LockId(g.u32() as i32))),
        7 => R::UpdateLocks(g.list(Gen::claim)),
        8 => R::ObjectCreate { name: g.name(), lease: g.lease(), init: g.next() },
        9 => R::ObjectGet { name: g.name(), lease: g.lease() },
        10 => R::ObjectRelease(ObjectId(g.u32() as i32)),
        11 => R::ObjectDestroy(ObjectId(g.u32() as i32)),
        _ => R::Operate(g.act()),
    }
}

fn control_reply(g: &mut Gen, variant: usize) -> ControlReply {
    use ControlReply as R;
    match variant {
        0 => R::Error(g.status()),
        1 => R::Session(g.session()),
        2 => R::Done,
        3 => R::Alive {
            now: ServerTime(g.next()),
            recovering: g.bool(),
            until: ServerTime(g.next()),
            asked: ServerTime(g.next()),
            recovery: Told { told: g.u32(), of: g.u32() },
        },
        4 => R::Locks(g.list(|g| {
            let grant = LockGrant {
                lock: LockId(g.u32() as i32),
                handle: g.handle(),
                slot: Slot(g.u32()),
                word: g.next(),
                already: g.bool(),
                tokens: g.bool(),
            };
            g.bool().then_some(grant).ok_or_else(|| g.status())
        })),
        5 => R::Statuses(g.list(Gen::status)),
        6 => R::Created(ObjectId(g.u32() as i32)),
        7 => R::Object(ObjectGrant {
            object: ObjectId(g.u32() as i32),
            handle: g.handle(),
            slot: Slot(g.u32()),
            generation: Generation(g.next()),
        }),
        8 => R::Operated(g.u32()),
        _ => R::Removed { by: "an operator".repeat(g.below(20)), now: g.below(2) > 0 },
    }
}

fn request(g: &mut Gen, variant: usize) -> Request {
    let (handle, mode, lease) = (g.handle(), g.mode(), Lease(g.u32()));
    let (wait, ticket) = (g.wait(), g.ticket());
    let maybe = g.bool().then(|| g.ticket());
    match variant {
        0 => Request::Wait { handle, mode, lease, wait, ticket: maybe },
        1 => Request::Cancel { handle, wait },
        2 => Request::Release { handle, mode, ticket: maybe },
        3 => Request::Wake { handle },
        4 => Request::Poll { handle, mode, ticket, lease },
        5 => Request::TakeTicket { handle, mode, lease },
        6 => Request::Abandon { handle, mode, ticket },
        7 => Request::Extend { handle, mode, ticket: maybe, lease },
        8 => Request::Steal { handle, mode, lease },
        9 => Request::Resolve { handle },
        10 => Request::CountReaders { handle, mode, ticket: maybe },
        11 => Request::Confirm { handle, mode: g.mode() },
        12 => Request::Listen { handle, knows: g.bool(), until: ServerTime(g.next()) },
        13 => Request::Downgrade { handle, stamp: g.u32(), ticket: maybe },
        _ => Request::Ping,
    }
}

fn reply(g: &mut Gen, variant: usize) -> Reply {
    let word = g.next();
    match variant {
        0 => Reply::Granted {
            word,
            deadline: Deadline(g.u32()),
            at: ServerTime(g.next()),
            ticket: g.bool().then(|| g.ticket()),
            token: Token(g.next()),
        },
        1 => Reply::Queued { word, ticket: g.ticket() },
        2 => Reply::Denied { status: g.refusal(), word },
        3 => Reply::Cancelled { word },
        4 => Reply::Done { word },
        5 => Reply::Contended { waiters: g.u32(), until: ServerTime(word) },
        _ => Reply::Pong { at: ServerTime(word) },
    }
}

/// Frames with every variant of every kind of message.
fn one_of_each(g: &mut Gen) -> Vec<Frame> {
    let seq = Seq(g.next());
    let mut frames = Vec::new();
    frames.extend((0..CONTROL_REQUESTS).map(|v| Frame::Control(seq, control_request(g, v))));
    frames.extend((0..CONTROL_REPLIES).map(|v| Frame::ControlReply(seq, control_reply(g, v))));
    frames.extend((0..REQUESTS).map(|v| Frame::Request(seq, request(g, v))));
    frames.extend((0..REPLIES).map(|v| Frame::Reply(seq, reply(g, v))));
    for fabric in FabricKind::ALL.into_iter().chain([FabricKind::Verbs]) {
        let verbs = fabric.needs_device().then(|| g.verbs_attach());
        let (client, secret) = (g.client(), g.secret());
        frames.push(Frame::Attach(Attach {
            client,
            secret,
            fabric,
            verbs,
            returns: g.below(2) > 0,
        }));
    }
    for has_verbs in [false, true] {
        frames.push(Frame::Attached(Attached {
            status: g.status(),
            slots: g.u32(),
            ledger_entries: g.u32(),
            clock_offset_ns: g.next(),
            verbs: has_verbs.then(|| g.verbs_attached()),
            until: ServerTime(g.next()),
        }));
    }
    frames.push(Frame::Batch(seq, g.list(Gen::chain)));
    frames.push(Frame::Outcomes(seq, g.list(Gen::outcome)));
    frames.push(Frame::Note(g.handle(), LedgerEntry::from_bits(g.next())));
    frames
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    encode(frame, &mut out);
    out
}

fn decoded(bytes: &[u8]) -> Result<Frame, FrameError> {
    let (head, payload) = bytes.split_first_chunk().ok_or(FrameError::Truncated)?;
    let header = header(head)?;
    match header.len == payload.len() {
        true => decode(header.kind, payload),
        false => Err(FrameError::Truncated),
    }
}

/// Whether the frame is short enough for a test that flips each of its bits.
fn is_small(bytes: &[u8]) -> bool {
    bytes.len() <= 1_500
}

#[test]
fn every_variant_survives_the_round_trip() {
    let mut g = Gen(1);
    for _ in 0..200 {
        for frame in one_of_each(&mut g) {
            let bytes = encoded(&frame);
            assert_eq!(decoded(&bytes).as_ref(), Ok(&frame));
        }
    }
}

#[test]
fn frames_are_appended() {
    let frame = Frame::Request(Seq(1), Request::Ping);
    let mut out = encoded(&frame);
    encode(&frame, &mut out);
    assert_eq!(out[..out.len() / 2], out[out.len() / 2..]);
    assert_eq!(decoded(&out[out.len() / 2..]), Ok(frame));
}

#[test]
fn no_prefix_of_a_payload_is_a_payload_but_what_a_client_tells_of_itself_may_be_missing() {
    let mut g = Gen(2);
    for frame in (0..4).flat_map(|_| one_of_each(&mut g)).collect::<Vec<_>>() {
        let bytes = encoded(&frame);
        let kind = decode_kind(&bytes);
        let without = without_about(&frame).map(|frame| encoded(&frame).len() - HEADER_LEN);
        for len in (0..bytes.len() - HEADER_LEN).filter(|&len| without != Some(len)) {
            let result = decode(kind, &bytes[HEADER_LEN..HEADER_LEN + len]);
            assert!(result.is_err(), "{len} bytes of {frame:?}");
        }
    }
}

/// The same `Init` or `Reinit` of a client that tells nothing of itself.
fn without_about(frame: &Frame) -> Option<Frame> {
    let mut frame = frame.clone();
    match &mut frame {
        Frame::Control(
            _,
            ControlRequest::Init { about, .. } | ControlRequest::Reinit { about, .. },
        ) => {
            *about = About::NOTHING;
            Some(frame)
        }
        _ => None,
    }
}

fn decoded_payload(bytes: &[u8]) -> Result<Frame, FrameError> {
    decode(decode_kind(bytes), &bytes[HEADER_LEN..])
}

fn decode_kind(bytes: &[u8]) -> Kind {
    header(bytes.first_chunk().unwrap()).unwrap().kind
}

#[test]
fn bytes_after_a_payload_are_fields_of_a_later_version_or_refused() {
    use ControlReply as A;
    use ControlRequest as R;
    for frame in one_of_each(&mut Gen(3)) {
        let bytes = [&encoded(&frame)[..], &[0]].concat();
        let expected = match frame {
            Frame::Control(_, R::Init { .. } | R::Reinit { .. })
            | Frame::ControlReply(_, A::Session(_) | A::Alive { .. })
            | Frame::Attach(_)
            | Frame::Attached(_) => Ok(frame),
            _ => Err(FrameError::Trailing),
        };
        assert_eq!(decoded_payload(&bytes), expected);
    }
}

#[test]
fn a_client_that_tells_nothing_of_itself_ends_its_frame_before_and_hidden_text_is_refused() {
    let init = |about| {
        let (version_min, version_max, tp_mode, horizon_s) = (1, 1, 0, 9);
        let init = ControlRequest::Init { version_min, version_max, tp_mode, horizon_s, about };
        Frame::Control(Seq(1), init)
    };
    let nothing = init(About::NOTHING);
    let bare = encoded(&nothing);
    assert_eq!(decoded_payload(&bare), Ok(nothing.clone()));
    assert_eq!(decoded_payload(&[&bare[..], &[0; 7]].concat()), Ok(nothing));
    let some = About::new("orders", "node1", "7", 4_711).unwrap();
    let tail = [b"\x06orders\x05node1\x017".as_slice(), &4_711_u32.to_le_bytes()].concat();
    let bytes = encoded(&init(some.clone()));
    assert_eq!(bytes[HEADER_LEN..], [&bare[HEADER_LEN..], &tail].concat());
    assert_eq!(decoded_payload(&bytes), Ok(init(some)));
    for wrong in [b"\x01\n\0\0\0\0\0\0".as_slice(), b"\x01\xff\0\0\0\0\0\0"] {
        let bytes = [&bare[..], wrong].concat();
        assert_eq!(decoded_payload(&bytes), Err(FrameError::Invalid("about")), "{wrong:?}");
    }
    let long = [&[65][..], &[b'x'; 65], &[0; 6]].concat();
    assert_eq!(decoded_payload(&[&bare[..], &long].concat()), Err(FrameError::Invalid("about")));
}

#[test]
fn whatever_one_flipped_bit_decodes_to_has_just_this_encoding() {
    let mut g = Gen(4);
    for frame in (0..6).flat_map(|_| one_of_each(&mut g)).collect::<Vec<_>>() {
        let bytes = encoded(&frame);
        if !is_small(&bytes) {
            continue;
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = decoded(&flipped) {
                let again = encoded(&other);
                match may_grow(&other) {
                    // a frame of an unknown version may decode to anything: the connection ends
                    _ if flipped[2] != LAYOUT => {}
                    true => assert!(flipped[HEADER_LEN..].starts_with(&again[HEADER_LEN..])),
                    false => assert_eq!(again, flipped, "bit {bit} of {frame:?}"),
                }
            }
        }
    }
}

#[test]
fn noise_of_every_kind_is_decoded_without_panic() {
    let mut g = Gen(5);
    for raw in 0..=255_u8 {
        for _ in 0..50 {
            let len = g.below(200);
            let mut noise: Vec<u8> = (0..len).map(|_| g.next() as u8).collect();
            if len > 8 {
                noise[8] %= 16; // mostly a tag that exists
            }
            let mut head = [b'D', b'L', LAYOUT, raw, 0, 0, 0, 0];
            head[4..].copy_from_slice(&(len as u32).to_le_bytes());
            let Ok(header) = header(&head) else { continue };
            if let Ok(frame) = decode(header.kind, &noise) {
                let again = encoded(&frame);
                match may_grow(&frame) {
                    false => assert_eq!(&again[HEADER_LEN..], noise),
                    true => assert!(noise.starts_with(&again[HEADER_LEN..])),
                }
            }
        }
    }
}

#[test]
fn a_refusal_that_calls_itself_a_success_is_refused() {
    for status in [Status::Success, Status::Done] {
        let refused = Frame::Outcomes(Seq(1), vec![Outcome::Refused(status)]);
        let denied = Frame::Reply(Seq(1), Reply::Denied { status, word: 0 });
        for frame in [refused, denied] {
            assert_eq!(decoded(&encoded(&frame)), Err(FrameError::Invalid("refusal")));
        }
    }
}

#[test]
fn a_count_reserves_nothing_the_payload_cannot_fill() {
    let mut payload = 7_u64.to_le_bytes().to_vec();
    payload.push(BATCH_MAX as u8);
    payload.extend_from_slice(&[1, 2, 0, 0, 0, 0]);
    let mut chains = Vec::new();
    assert_eq!(decode_batch(&payload, &mut chains), Err(FrameError::Truncated));
    assert_eq!(chains.capacity(), 0);
    payload[8] = BATCH_MAX as u8 + 1;
    assert_eq!(decode_batch(&payload, &mut chains), Err(FrameError::Invalid("count")));
}

#[test]
fn lists_are_reused_by_the_hot_path() {
    let mut g = Gen(6);
    let (mut chains, mut outcomes) = (Vec::new(), Vec::new());
    for seq in (0..50).map(Seq) {
        let (expected, results) = (g.list(Gen::chain), g.list(Gen::outcome));
        let (mut batch, mut done) = (Vec::new(), Vec::new());
        encode_batch(seq, &expected, &mut batch);
        encode_outcomes(seq, &results, &mut done);
        assert_eq!(decode_batch(&batch[HEADER_LEN..], &mut chains), Ok(seq));
        assert_eq!(decode_outcomes(&done[HEADER_LEN..], &mut outcomes), Ok(seq));
        assert_eq!((&chains, &outcomes), (&expected, &results));
    }
}

/// The bytes of an `Attach` with verbs, from its first queue pair on.
fn verbs_payload(change: impl FnOnce(&mut VerbsAttach)) -> Result<Frame, FrameError> {
    let mut g = Gen(7);
    let mut verbs = VerbsAttach { messages: None, ..g.verbs_attach() };
    change(&mut verbs);
    let (client, secret, fabric) = (g.client(), g.secret(), FabricKind::Verbs);
    let attach = Attach { client, secret, fabric, verbs: Some(verbs), returns: true };
    decoded(&encoded(&Frame::Attach(attach)))
}

#[test]
fn queue_pairs_and_rings_out_of_their_bounds_are_refused() {
    assert!(verbs_payload(|_| ()).is_ok());
    let endpoint = Err(FrameError::Invalid("queue pair"));
    assert_eq!(verbs_payload(|v| v.chains.qp_num = 1 << 24), endpoint);
    assert_eq!(verbs_payload(|v| v.chains.psn = 1 << 24), endpoint);
    assert_eq!(verbs_payload(|v| v.chains.mtu = 0), endpoint);
    assert_eq!(verbs_payload(|v| v.chains.mtu = 6), endpoint);
    assert_eq!(verbs_payload(|v| v.chains.reads = 0), endpoint);
    let ring = Err(FrameError::Invalid("receive ring"));
    assert_eq!(verbs_payload(|v| v.ring_slots = VERBS_RING_SLOTS_MIN - 1), ring);
    assert_eq!(verbs_payload(|v| v.ring_slots = VERBS_RING_SLOTS_MAX + 1), ring);
    assert_eq!(verbs_payload(|v| v.message_bytes = VERBS_MESSAGE_BYTES_MIN - 1), ring);
    assert_eq!(verbs_payload(|v| v.message_bytes = VERBS_MESSAGE_BYTES_MAX + 1), ring);
    let mut verbs = Gen(8).verbs_attached();
    verbs.ledger = VerbsRegion { base: u64::MAX, bytes: 1, rkey: 0 };
    let attached = Attached { verbs: Some(verbs), ..Attached::bare(Status::Success) };
    let result = decoded(&encoded(&Frame::Attached(attached)));
    assert_eq!(result, Err(FrameError::Invalid("region")));
}

#[test]
fn every_message_fits_into_the_smallest_verbs_buffer() {
    let mut g = Gen(9);
    for _ in 0..100 {
        for frame in one_of_each(&mut g) {
            if let Frame::Request(..) | Frame::Reply(..) = frame {
                assert!(encoded(&frame).len() <= VERBS_MESSAGE_BYTES_MIN as usize, "{frame:?}");
            }
        }
    }
}

#[test]
fn a_wrong_header_is_refused() {
    assert_eq!(header(b"DM\x01\x01\0\0\0\0"), Err(FrameError::Magic));
    assert_eq!(header(b"DL\x01\x06\0\0\0\0"), Err(FrameError::Kind(6)));
    assert_eq!(header(b"DL\x01\x7f\0\0\0\0"), Err(FrameError::Kind(0x7f)));
    assert_eq!(header(b"DL\x01\xff\0\0\0\0"), Err(FrameError::Kind(0xff)));
    for (version, kind) in [(0, 2), (0, 3), (2, 3), (2, 0x82)] {
        let head = [b'D', b'L', version, kind, 0, 0, 0, 0];
        assert_eq!(header(&head), Err(FrameError::ForeignVersion(version)));
    }
    let len_max = FRAME_LEN_MAX - HEADER_LEN;
    let mut head = *b"DL\x01\x01\0\0\0\0";
    head[4..].copy_from_slice(&(len_max as u32).to_le_bytes());
    assert_eq!(header(&head), Ok(Header { kind: Kind::Control, len: len_max }));
    head[4..].copy_from_slice(&(len_max as u32 + 1).to_le_bytes());
    assert_eq!(header(&head), Err(FrameError::TooLong(len_max as u32 + 1)));
}

#[test]
fn a_client_of_another_version_can_be_told_so() {
    // a tag and the range of versions, then bytes that only that version knows
    for (version, tag) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        let mut bytes = b"DL\x09\x01\x0e\0\0\0\x2a\0\0\0\0\0\0\0".to_vec();
        bytes[2] = version;
        bytes.extend_from_slice(&[tag, version, 9, 0xff, 0xfe, 0xfd]);
        let expected = FrameError::Version { seq: Seq(42), min: version, max: 9 };
        assert_eq!(decoded(&bytes), Err(expected));
        bytes[HEADER_LEN + 8] = 2; // a request of that version with an unknown tag
        assert!(matches!(decoded(&bytes), Err(FrameError::Invalid(_))));
    }
}

#[test]
fn a_primary_of_another_version_can_say_so() {
    for version in [0, 2] {
        let mut bytes = b"DL\x09\x81\x0d\0\0\0\x2a\0\0\0\0\0\0\0\0".to_vec();
        bytes[2] = version;
        bytes.extend_from_slice(&status_to_wire(Status::VersionMismatch).to_le_bytes());
        let expected = ControlReply::Error(Status::VersionMismatch);
        assert_eq!(decoded(&bytes), Ok(Frame::ControlReply(Seq(42), expected)));
        bytes[16] = 2;
        assert!(matches!(decoded(&bytes), Err(FrameError::Invalid(_))));
    }
}

#[test]
fn the_largest_frames_fit() {
    let desc = LockDesc { name: vec![b'x'; DESC_LEN_MAX], ..Gen(1).desc() };
    let fair = Some(Place { epoch: Epoch(1), ticket: Ticket { lap: 3, tx: 1, ts: 2 } });
    let held = Some(HeldClaim { fair, ..HeldClaim::hold(Mode::Shared, u64::MAX) });
    let claims = vec![Claim { lock: LockId(1), desc, held }; BATCH_MAX];
    let frame = Frame::Control(Seq(1), ControlRequest::UpdateLocks(claims));
    assert_eq!(decoded(&encoded(&frame)), Ok(frame));
    let addr = WordAddr::from_index(0);
    let cas = WordOp::Cas { addr, expect: 0, swap: 0 };
    let frame = Frame::Batch(Seq(1), vec![Chain::one(cas).then(cas).then(cas).then(cas); 31]);
    assert_eq!(decoded(&encoded(&frame)), Ok(frame));
}

#[test]
fn offers_that_are_unknown_are_kept_and_those_out_of_order_or_bounds_are_refused() {
    let session = |offers: &[(u8, &[u8])]| {
        let mut session = Gen(11).session();
        session.offers = Offers::none();
        offers.iter().for_each(|(number, place)| session.offers.push(*number, place.to_vec()));
        Frame::ControlReply(Seq(1), ControlReply::Session(session))
    };
    let longest = [7; 255];
    let known = session(&[(0, b"shm"), (1, b""), (200, &longest)]);
    assert_eq!(decoded(&encoded(&known)), Ok(known));
    let invalid = Err(FrameError::Invalid("offers"));
    for wrong in [&[(1, &b""[..]), (0, b"")][..], &[(9, b"a"), (9, b"b")]] {
        assert_eq!(decoded(&encoded(&session(wrong))), invalid);
    }
    let numbers: Vec<(u8, &[u8])> = (0..OFFERS_MAX as u8).map(|n| (n, &b""[..])).collect();
    let mut bytes = encoded(&session(&numbers));
    assert_eq!(decoded(&bytes), Ok(session(&numbers)));
    let before = encoded(&session(&[])).len() - 4 - 8 - 4 - 1; // the terms, and the count
    assert_eq!(usize::from(bytes[before]), OFFERS_MAX);
    bytes[before] += 1;
    assert_eq!(decoded(&bytes), invalid);
}
