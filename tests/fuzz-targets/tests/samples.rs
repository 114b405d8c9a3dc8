// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sample frames leave nothing out: every kind of frame, every variant of what it carries,
//! both versions of a control header. The matches have no wildcard, so that a new variant does
//! not compile until it is counted here, and does not pass until it has a sample.

use std::collections::BTreeSet;

use dlock_core::memory::word_op::{Outcome, WordOp};
use dlock_core::wire::codec::{self, Frame, FrameError, HEADER_LEN};
use dlock_core::wire::control::{ControlReply as C, ControlRequest as R};
use dlock_core::wire::message::{Reply, Request as Q};
use dlock_fuzz_targets::samples;

/// The variants that occur in the samples: the name of the type, and the number of the variant
/// there.
type Seen = BTreeSet<(&'static str, usize)>;

/// How many variants each type has.
const VARIANTS: [(&str, usize); 8] = [
    ("frame", 9),
    ("control request", 13),
    ("control reply", 10),
    ("request", 17),
    ("reply", 7),
    ("word_op", 5),
    ("outcome", 3),
    ("foreign", 3),
];

fn frame(frame: &Frame, seen: &mut Seen) {
    let number = match frame {
        Frame::Control(_, r) => {
            seen.insert(("control request", control_request(r)));
            0
        }
        Frame::ControlReply(_, r) => {
            seen.insert(("control reply", control_reply(r)));
            1
        }
        Frame::Attach(_) => 2,
        Frame::Attached(_) => 3,
        Frame::Batch(_, chains) => {
            let verbs = chains.iter().flat_map(|chain| chain.ops());
            seen.extend(verbs.map(|v| ("word_op", word_op(v))));
            4
        }
        Frame::Outcomes(_, outcomes) => {
            seen.extend(outcomes.iter().map(|o| ("outcome", outcome(o))));
            5
        }
        Frame::Note(..) => 6,
        Frame::Request(_, r) => {
            seen.insert(("request", request(r)));
            7
        }
        Frame::Reply(_, r) => {
            seen.insert(("reply", reply(r)));
            8
        }
    };
    seen.insert(("frame", number));
}

fn control_request(request: &R) -> usize {
    match request {
        R::Init { .. } => 0,
        R::Reinit { .. } => 1,
        R::ReinitDone => 2,
        R::Deinit => 3,
        R::Heartbeat => 4,
        R::GetLocks(_) => 5,
        R::ReleaseLocks(_) => 6,
        R::UpdateLocks(_) => 7,
        R::ObjectCreate { .. } => 8,
        R::ObjectGet { .. } => 9,
        R::ObjectRelease(_) => 10,
        R::ObjectDestroy(_) => 11,
        R::Operate(_) => 12,
    }
}

fn control_reply(reply: &C) -> usize {
    match reply {
        C::Error(_) => 0,
        C::Session(_) => 1,
        C::Done => 2,
        C::Alive { .. } => 3,
        C::Locks(_) => 4,
        C::Statuses(_) => 5,
        C::Created(_) => 6,
        C::Object(_) => 7,
        C::Operated(_) => 8,
        C::Removed { .. } => 9,
    }
}

fn request(request: &Q) -> usize {
    match request {
        Q::Wait { .. } => 0,
        Q::Cancel { .. } => 1,
        Q::Release { .. } => 2,
        Q::Wake { .. } => 3,
        Q::Poll { .. } => 4,
        Q::TakeTicket { .. } => 5,
        Q::Abandon { .. } => 6,
        Q::Extend { .. } => 7,
        Q::Steal { .. } => 8,
        Q::Resolve { .. } => 9,
        Q::Ping => 10,
        Q::CountReaders { .. } => 11,
        Q::Confirm { .. } => 12,
        Q::Listen { .. } => 13,
        Q::Downgrade { .. } => 14,
        Q::Keep { .. } => 15,
        Q::Try { .. } => 16,
    }
}

fn reply(reply: &Reply) -> usize {
    match reply {
        Reply::Granted { .. } => 0,
        Reply::Queued { .. } => 1,
        Reply::Denied { .. } => 2,
        Reply::Cancelled { .. } => 3,
        Reply::Done { .. } => 4,
        Reply::Pong { .. } => 5,
        Reply::Contended { .. } => 6,
    }
}

fn word_op(word_op: &WordOp) -> usize {
    match word_op {
        WordOp::Cas { .. } => 0,
        WordOp::Faa { .. } => 1,
        WordOp::Read { .. } => 2,
        WordOp::WriteLedger { .. } => 3,
        WordOp::ReadPair { .. } => 4,
    }
}

fn outcome(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Done(_) => 0,
        Outcome::Unknown => 1,
        Outcome::Refused(_) => 2,
    }
}

#[test]
fn every_variant_of_every_frame_has_a_sample() {
    let mut seen = Seen::new();
    for (number, sample) in samples::frames().iter().enumerate() {
        let head = sample.first_chunk::<HEADER_LEN>().expect("a whole header");
        let header = codec::header(head).unwrap_or_else(|e| panic!("sample {number}: {e:?}"));
        assert_eq!(header.len, sample.len() - HEADER_LEN, "sample {number}");
        match codec::decode(header.kind, &sample[HEADER_LEN..]) {
            Ok(decoded) if head[2] <= dlock_core::wire::control::VERSION => {
                frame(&decoded, &mut seen)
            }
            Ok(Frame::ControlReply(_, C::Error(_))) => {
                seen.insert(("foreign", 0));
            }
            Err(FrameError::Version { .. }) => {
                let reinit = usize::from(sample.len() > 24);
                seen.insert(("foreign", 1 + reinit));
            }
            other => panic!("sample {number} decodes to {other:?}"),
        }
    }
    for (what, variants) in VARIANTS {
        let numbers: Vec<usize> = seen.iter().filter(|s| s.0 == what).map(|s| s.1).collect();
        assert_eq!(numbers, (0..variants).collect::<Vec<_>>(), "{what}");
    }
}
