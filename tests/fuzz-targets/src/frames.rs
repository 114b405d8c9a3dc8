// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames: a header and a payload, as a peer may send them.
//!
//! What decodes has exactly one encoding: the very bytes it came from. Behind those of a frame that
//! has grown there may be fields of a later version, which are skipped.

use dlock_core::limits::FRAME_LEN_MAX;
use dlock_core::wire::codec::{self, Frame, Header, Kind, HEADER_LEN};
use dlock_core::wire::control::{ControlReply as C, ControlRequest as R, VERSION, VERSION_MIN};

/// Kinds of frames whose payloads are tried with any header.
const KINDS: [Kind; 11] = [
    Kind::Control,
    Kind::Attach,
    Kind::Batch,
    Kind::Note,
    Kind::Request,
    Kind::ControlReply,
    Kind::Attached,
    Kind::Outcomes,
    Kind::Reply,
    Kind::ForeignControl,
    Kind::ForeignControlReply,
];

/// Whether fields of a later version may follow the payload of this frame.
fn may_go_on(frame: &Frame) -> bool {
    match frame {
        Frame::Control(_, request) => matches!(request, R::Init { .. } | R::Reinit { .. }),
        Frame::ControlReply(_, reply) => matches!(reply, C::Session(_) | C::Alive { .. }),
        frame => matches!(frame, Frame::Attach(_) | Frame::Attached(_)),
    }
}

/// Reads the bytes as a stream of frames, then once more as the payload of each kind.
///
/// # Panics
/// If a frame does not encode to the bytes it was decoded from.
pub fn run(data: &[u8]) {
    stream(data);
    if let Some((&first, payload)) = data.split_first() {
        let kind = KINDS[usize::from(first) % KINDS.len()];
        payload_of(kind, payload);
    }
}

fn stream(mut data: &[u8]) {
    while let Some((head, rest)) = data.split_first_chunk::<HEADER_LEN>() {
        let Ok(Header { kind, len }) = codec::header(head) else { return };
        assert!(len <= FRAME_LEN_MAX - HEADER_LEN);
        let Some((payload, rest)) = rest.split_at_checked(len) else {
            payload_of(kind, rest);
            return;
        };
        payload_of(kind, payload);
        data = rest;
    }
}

/// Decodes a payload in every possible way, and encodes each result again.
fn payload_of(kind: Kind, payload: &[u8]) {
    let frame = codec::decode(kind, payload);
    let (mut chains, mut outcomes) = (Vec::new(), Vec::new());
    match (kind, &frame) {
        (Kind::Batch, Ok(Frame::Batch(seq, expected))) => {
            assert_eq!(codec::decode_batch(payload, &mut chains), Ok(*seq));
            assert_eq!(&chains, expected);
        }
        (Kind::Batch, Err(error)) => {
            assert_eq!(codec::decode_batch(payload, &mut chains), Err(*error));
        }
        (Kind::Outcomes, Ok(Frame::Outcomes(seq, expected))) => {
            assert_eq!(codec::decode_outcomes(payload, &mut outcomes), Ok(*seq));
            assert_eq!(&outcomes, expected);
        }
        (Kind::Outcomes, Err(error)) => {
            assert_eq!(codec::decode_outcomes(payload, &mut outcomes), Err(*error));
        }
        _ => {}
    }
    let Ok(frame) = frame else { return };
    if payload.len() > FRAME_LEN_MAX - HEADER_LEN {
        return; // no header can announce so long a payload
    }
    let mut bytes = Vec::new();
    codec::encode(&frame, &mut bytes);
    let own = &bytes[HEADER_LEN..];
    match may_go_on(&frame) {
        true => assert!(payload.starts_with(own), "{frame:?}: {own:?} of {payload:?}"),
        false => assert_eq!(own, payload, "{frame:?}"),
    }
    let head = bytes.first_chunk().map(codec::header);
    let Some(Ok(head)) = head else { panic!("a header of our own is refused: {frame:?}") };
    assert_eq!(head.len, own.len());
    assert!((VERSION_MIN..=VERSION).contains(&bytes[2]));
    assert_eq!(codec::decode(head.kind, own), Ok(frame));
}
