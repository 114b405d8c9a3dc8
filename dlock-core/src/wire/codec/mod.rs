// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames: the encoding of all messages, on every channel. All integers are little-endian.
//!
//! ```text
//!   0      2        3     4            8
//!   | 'DL' | version | kind | payload len | payload … |
//!
//!   client → primary               primary → client
//!   0x01 Control  seq, request     0x81 ControlReply  seq, reply
//!   0x02 Attach                    0x82 Attached
//!   0x03 Batch    seq, chains      0x83 Outcomes      seq, outcomes
//!   0x04 Note     handle, entry
//!   0x05 Request  seq, request     0x85 Reply         seq, reply
//! ```
//! Every value has exactly one encoding. The version in the header is that of the frame's layout.
//! The payloads of `Init`, `Reinit`, `Session`, `Alive`, `Attach` and `Attached` may have fields of
//! a later version at their ends, which the reader skips. Of all other payloads the reader must
//! consume every byte.
//!
//! Two layouts are the same in all versions for ever, so that peers without a common version can
//! still end with a clear answer: the beginning of `Init` and `Reinit` (`seq:u64, tag:u8 = 0 | 1,
//! version_min:u8, version_max:u8`) and the whole refusal (`seq:u64, tag:u8 = 0, status:i32`).

mod attach;
mod control;
mod data;
mod statuses;
mod wire;

#[cfg(test)]
mod tests;

use crate::ids::{Handle, Seq};
use crate::limits::FRAME_LEN_MAX;
use crate::memory::word_op::{Chain, Outcome, WordOp};
use crate::memory::words::LedgerEntry;
use crate::wire::control::{Attach, Attached, ControlReply, ControlRequest};
use crate::wire::message::{Reply, Request};
use wire::{Reader, Writer};

pub use statuses::{status_from_wire, status_to_wire};

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 8;

/// The first two bytes of every frame.
pub const MAGIC: [u8; 2] = *b"DL";

/// The version of the layout of frames, in the third byte of their headers.
const LAYOUT: u8 = 1;

/// The content of a frame, and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A control request, client to primary.
    Control = 0x01,
    /// The first frame of a command channel, client to primary.
    Attach = 0x02,
    /// Chains to execute, client to primary.
    Batch = 0x03,
    /// A ledger entry, client to primary.
    Note = 0x04,
    /// A request to the arbiter, client to primary.
    Request = 0x05,
    /// A control reply, primary to client.
    ControlReply = 0x81,
    /// The answer to `Attach`, primary to client.
    Attached = 0x82,
    /// The outcomes of the chains of a batch, primary to client.
    Outcomes = 0x83,
    /// A reply of the arbiter, primary to client.
    Reply = 0x85,
    /// A `Control` frame whose header has another version; exists only after decoding. It decodes
    /// to [`FrameError::Version`] if it is an `Init` or a `Reinit`.
    ForeignControl = 0x7f,
    /// A `ControlReply` frame whose header has another version; exists only after decoding. Only a
    /// refusal can be decoded.
    ForeignControlReply = 0xff,
}

impl Kind {
    /// The kind with this number; `None`: no such frame exists.
    fn from_wire(raw: u8) -> Option<Self> {
        Some(match raw {
            0x01 => Self::Control,
            0x02 => Self::Attach,
            0x03 => Self::Batch,
            0x04 => Self::Note,
            0x05 => Self::Request,
            0x81 => Self::ControlReply,
            0x82 => Self::Attached,
            0x83 => Self::Outcomes,
            0x85 => Self::Reply,
            _ => return None,
        })
    }

    /// Whether clients send frames of this kind; otherwise primaries do.
    pub fn is_from_client(self) -> bool {
        self as u8 & 0x80 == 0
    }
}

/// The checked header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the payload.
    pub kind: Kind,
    /// Bytes of the payload, at most [`FRAME_LEN_MAX`] − [`HEADER_LEN`].
    pub len: usize,
}

/// Why bytes are not a valid frame. After this, their connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame does not begin with [`MAGIC`].
    #[error("the bytes are no dlock frame")]
    Magic,
    /// The frame has another version, and is of a kind whose layout may differ in that version.
    #[error("a frame of version {0} outside of the version negotiation")]
    ForeignVersion(u8),
    /// An `Init` or `Reinit` of another version: answer it with `Error(VersionMismatch)`.
    #[error("the client speaks versions {min} to {max}")]
    Version {
        /// The request number that the answer must carry.
        seq: Seq,
        /// The oldest version that the client speaks.
        min: u8,
        /// The newest version that the client speaks.
        max: u8,
    },
    /// Frames of this kind do not exist.
    #[error("unknown frame kind {0:#04x}")]
    Kind(u8),
    /// The length in the header is above the limit.
    #[error("a frame of {0} payload bytes is too long")]
    TooLong(u32),
    /// The payload ends before all its fields have been read.
    #[error("the frame is truncated")]
    Truncated,
    /// The payload goes on after its last field.
    #[error("the frame has bytes after its end")]
    Trailing,
    /// A field has a value that it cannot have.
    #[error("the frame has an invalid {0}")]
    Invalid(&'static str),
}

/// One frame of any channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A control request.
    Control(Seq, ControlRequest),
    /// The reply to the control request of the same number.
    ControlReply(Seq, ControlReply),
    /// The first frame of a command channel.
    Attach(Attach),
    /// The answer to `Attach`.
    Attached(Attached),
    /// Chains to execute in order.
    Batch(Seq, Vec<Chain>),
    /// The outcomes of the chains of the batch with this number.
    Outcomes(Seq, Vec<Outcome>),
    /// An entry of the sender's ledger.
    Note(Handle, LedgerEntry),
    /// A request to the arbiter.
    Request(Seq, Request),
    /// The reply to the request of the same number.
    Reply(Seq, Reply),
}

/// The beginning of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A whole frame.
    Whole(Header),
    /// A part of a frame, and the number of bytes that the whole frame has with its header, as far
    /// as is known.
    Part(usize),
}

/// Checks the first frame of the bytes; its payload follows the [`HEADER_LEN`] bytes of its header.
///
/// # Errors
/// As [`header`].
pub fn cut(bytes: &[u8]) -> Result<Cut, FrameError> {
    let Some(head) = bytes.first_chunk() else { return Ok(Cut::Part(HEADER_LEN)) };
    let header = header(head)?;
    Ok(match HEADER_LEN + header.len {
        len if bytes.len() < len => Cut::Part(len),
        _ => Cut::Whole(header),
    })
}

/// Checks a frame's header.
///
/// # Errors
/// `Magic`, `Kind`, `TooLong`, `ForeignVersion`: close the connection.
pub fn header(bytes: &[u8; HEADER_LEN]) -> Result<Header, FrameError> {
    let [m0, m1, version, raw_kind, len @ ..] = *bytes;
    if [m0, m1] != MAGIC {
        return Err(FrameError::Magic);
    }
    let kind = Kind::from_wire(raw_kind).ok_or(FrameError::Kind(raw_kind))?;
    let kind = match kind {
        kind if version == LAYOUT => kind,
        Kind::Control => Kind::ForeignControl,
        Kind::ControlReply => Kind::ForeignControlReply,
        _ => return Err(FrameError::ForeignVersion(version)),
    };
    let len = u32::from_le_bytes(len);
    if len as usize > FRAME_LEN_MAX - HEADER_LEN {
        return Err(FrameError::TooLong(len));
    }
    Ok(Header { kind, len: len as usize })
}

/// Parses the payload of a frame of this kind.
///
/// # Errors
/// The payload is not exactly one valid value of this kind. After `Version` the caller can still
/// answer the peer; otherwise it closes the connection.
pub fn decode(kind: Kind, payload: &[u8]) -> Result<Frame, FrameError> {
    let mut r = Reader::new(payload);
    let frame = match kind {
        Kind::Control => Frame::Control(r.seq()?, control::request(&mut r)?),
        Kind::ControlReply => Frame::ControlReply(r.seq()?, control::reply(&mut r)?),
        Kind::Attach => Frame::Attach(attach::attach(&mut r)?),
        Kind::Attached => Frame::Attached(attach::attached(&mut r)?),
        Kind::Batch => {
            let mut chains = Vec::new();
            Frame::Batch(data::batch(&mut r, &mut chains)?, chains)
        }
        Kind::Outcomes => {
            let mut outcomes = Vec::new();
            Frame::Outcomes(data::outcomes(&mut r, &mut outcomes)?, outcomes)
        }
        Kind::Note => Frame::Note(r.handle()?, LedgerEntry::from_bits(r.u64()?)),
        Kind::Request => Frame::Request(r.seq()?, data::request(&mut r)?),
        Kind::Reply => Frame::Reply(r.seq()?, data::reply(&mut r)?),
        Kind::ForeignControl => return Err(control::foreign_request(&mut r)?),
        Kind::ForeignControlReply => Frame::ControlReply(r.seq()?, control::refusal(&mut r)?),
    };
    if !may_grow(&frame) {
        r.end()?;
    }
    Ok(frame)
}

/// Whether a later version may add fields to the frame.
fn may_grow(frame: &Frame) -> bool {
    use ControlReply as A;
    use ControlRequest as R;
    match frame {
        Frame::Control(_, request) => matches!(request, R::Init { .. } | R::Reinit { .. }),
        Frame::ControlReply(_, reply) => matches!(reply, A::Session(_) | A::Alive { .. }),
        frame => matches!(frame, Frame::Attach(_) | Frame::Attached(_)),
    }
}

/// As [`decode`] for a `Batch`, into a list that the caller reuses.
///
/// # Errors
/// As [`decode`]; `chains` has no meaning then.
pub fn decode_batch(payload: &[u8], chains: &mut Vec<Chain>) -> Result<Seq, FrameError> {
    let mut r = Reader::new(payload);
    chains.clear();
    let seq = data::batch(&mut r, chains)?;
    r.end()?;
    Ok(seq)
}

/// As [`decode`] for `Outcomes`, into a list that the caller reuses.
///
/// # Errors
/// As [`decode`]; `outcomes` has no meaning then.
pub fn decode_outcomes(payload: &[u8], outcomes: &mut Vec<Outcome>) -> Result<Seq, FrameError> {
    let mut r = Reader::new(payload);
    outcomes.clear();
    let seq = data::outcomes(&mut r, outcomes)?;
    r.end()?;
    Ok(seq)
}

/// Appends a frame, header included.
///
/// # Panics
/// If the frame breaks a limit of [`limits`](crate::limits) (a list of more than `BATCH_MAX` items,
/// a name of more than `DESC_LEN_MAX` bytes, queue pairs for a fabric without a device): the code
/// that builds frames has checked that.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
    match frame {
        Frame::Control(seq, request) => framed(Kind::Control, out, |w| {
            w.seq(*seq);
            control::put_request(w, request);
        }),
        Frame::ControlReply(seq, reply) => framed(Kind::ControlReply, out, |w| {
            w.seq(*seq);
            control::put_reply(w, reply);
        }),
        Frame::Attach(attach) => framed(Kind::Attach, out, |w| attach::put_attach(w, attach)),
        Frame::Attached(attached) => {
            framed(Kind::Attached, out, |w| attach::put_attached(w, attached));
        }
        Frame::Batch(seq, chains) => encode_batch(*seq, chains, out),
        Frame::Outcomes(seq, outcomes) => encode_outcomes(*seq, outcomes, out),
        Frame::Note(handle, entry) => framed(Kind::Note, out, |w| {
            w.handle(*handle);
            w.u64(entry.into_bits());
        }),
        Frame::Request(seq, request) => framed(Kind::Request, out, |w| {
            w.seq(*seq);
            data::put_request(w, request);
        }),
        Frame::Reply(seq, reply) => framed(Kind::Reply, out, |w| {
            w.seq(*seq);
            data::put_reply(w, reply);
        }),
    }
}

/// Appends a `Batch` frame.
///
/// # Panics
/// If there are more than `BATCH_MAX` chains.
pub fn encode_batch(seq: Seq, chains: &[Chain], out: &mut Vec<u8>) {
    framed(Kind::Batch, out, |w| {
        w.seq(seq);
        data::put_chains(w, chains);
    });
}

/// Appends a `Batch` frame of chains of one word operation each.
///
/// # Panics
/// If there are more than `BATCH_MAX` operations.
pub fn encode_word_ops(seq: Seq, verbs: &[WordOp], out: &mut Vec<u8>) {
    framed(Kind::Batch, out, |w| {
        w.seq(seq);
        data::put_word_ops(w, verbs);
    });
}

/// Appends an `Outcomes` frame.
///
/// # Panics
/// If there are more than `BATCH_MAX` outcomes.
pub fn encode_outcomes(seq: Seq, outcomes: &[Outcome], out: &mut Vec<u8>) {
    framed(Kind::Outcomes, out, |w| {
        w.seq(seq);
        data::put_outcomes(w, outcomes);
    });
}

/// Appends a header and a payload, and sets the payload's length in the header.
fn framed(kind: Kind, out: &mut Vec<u8>, payload: impl FnOnce(&mut Writer<'_>)) {
    let start = out.len();
    out.extend_from_slice(&[MAGIC[0], MAGIC[1], LAYOUT, kind as u8, 0, 0, 0, 0]);
    payload(&mut Writer::new(out));
    let len = out.len() - start - HEADER_LEN;
    assert!(len <= FRAME_LEN_MAX - HEADER_LEN, "a frame of {len} bytes");
    out[start + 4..start + HEADER_LEN].copy_from_slice(&(len as u32).to_le_bytes());
}
