// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of the command channel: chains and outcomes, requests and replies.

use super::wire::{Reader, Writer};
use super::FrameError;
use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::Seq;
use crate::memory::word_op::{
    Chain, Outcome, Values, WordAddr, WordOp, CHAIN_OPS_MAX, CHAIN_VALUES_MAX,
};
use crate::token::Token;
use crate::wire::message::{Reply, Request, WaitNumber};
use crate::wire::status::Status;

type Read<T> = Result<T, FrameError>;

/// The bytes of the shortest chain: its length, and a read.
const CHAIN_BYTES_MIN: usize = 1 + 1 + 4;

pub(super) fn batch(r: &mut Reader<'_>, chains: &mut Vec<Chain>) -> Read<Seq> {
    let seq = r.seq()?;
    r.list(chains, CHAIN_BYTES_MIN, chain)?;
    Ok(seq)
}

pub(super) fn put_chains(w: &mut Writer<'_>, chains: &[Chain]) {
    w.list(chains, |w, chain| {
        w.u8(chain.ops().len() as u8);
        for word_op in chain.ops() {
            put_word_op(w, word_op);
        }
    });
}

/// As [`put_chains`], for chains of one word operation each.
pub(super) fn put_word_ops(w: &mut Writer<'_>, verbs: &[WordOp]) {
    w.list(verbs, |w, word_op| {
        w.u8(1);
        put_word_op(w, word_op);
    });
}

pub(super) fn outcomes(r: &mut Reader<'_>, outcomes: &mut Vec<Outcome>) -> Read<Seq> {
    let seq = r.seq()?;
    r.list(outcomes, 1, outcome)?;
    Ok(seq)
}

pub(super) fn put_outcomes(w: &mut Writer<'_>, outcomes: &[Outcome]) {
    w.list(outcomes, |w, outcome| match outcome {
        Outcome::Done(values) => {
            w.u8(0);
            w.u8(values.as_slice().len() as u8);
            for value in values.as_slice() {
                w.u64(*value);
            }
        }
        Outcome::Unknown => w.u8(1),
        Outcome::Refused(status) => {
            w.u8(2);
            w.status(*status);
        }
    });
}

fn chain(r: &mut Reader<'_>) -> Read<Chain> {
    let len = usize::from(r.u8()?);
    if len == 0 || len > CHAIN_OPS_MAX {
        return Err(FrameError::Invalid("chain"));
    }
    let mut chain = Chain::one(word_op(r)?);
    for _ in 1..len {
        // The value at each index belongs to the operation at that index; only the last operation
        // may have more than one value.
        if chain.values_len() != chain.ops().len() {
            return Err(FrameError::Invalid("chain"));
        }
        chain = chain.then(word_op(r)?);
    }
    match chain.values_len() <= CHAIN_VALUES_MAX {
        true => Ok(chain),
        false => Err(FrameError::Invalid("chain")),
    }
}

fn word_op(r: &mut Reader<'_>) -> Read<WordOp> {
    Ok(match r.u8()? {
        0 => WordOp::Cas { addr: addr(r)?, expect: r.u64()?, swap: r.u64()? },
        1 => WordOp::Faa { addr: addr(r)?, add: r.u64()? },
        2 => WordOp::Read { addr: addr(r)? },
        3 => WordOp::WriteLedger { handle: r.handle()?, value: r.u64()? },
        4 => WordOp::ReadPair { addr: addr(r)? },
        _ => return Err(FrameError::Invalid("word operation")),
    })
}

fn put_word_op(w: &mut Writer<'_>, word_op: &WordOp) {
    match *word_op {
        WordOp::Cas { addr, expect, swap } => {
            // One call for the whole, because each call reserves room.
            let mut bytes = [0; 21];
            bytes[1..5].copy_from_slice(&addr.index().to_le_bytes());
            bytes[5..13].copy_from_slice(&expect.to_le_bytes());
            bytes[13..].copy_from_slice(&swap.to_le_bytes());
            w.bytes(&bytes);
        }
        WordOp::Faa { addr, add } => {
            w.u8(1);
            w.u32(addr.index());
            w.u64(add);
        }
        WordOp::Read { addr } => {
            w.u8(2);
            w.u32(addr.index());
        }
        WordOp::WriteLedger { handle, value } => {
            w.u8(3);
            w.handle(handle);
            w.u64(value);
        }
        WordOp::ReadPair { addr } => {
            w.u8(4);
            w.u32(addr.index());
        }
    }
}

fn addr(r: &mut Reader<'_>) -> Read<WordAddr> {
    r.u32().map(WordAddr::from_index)
}

fn outcome(r: &mut Reader<'_>) -> Read<Outcome> {
    Ok(match r.u8()? {
        0 => {
            let len = usize::from(r.u8()?);
            if len > CHAIN_VALUES_MAX {
                return Err(FrameError::Invalid("values"));
            }
            let mut values = Values::new();
            for _ in 0..len {
                values.push(r.u64()?);
            }
            Outcome::Done(values)
        }
        1 => Outcome::Unknown,
        2 => Outcome::Refused(refusal(r)?),
        _ => return Err(FrameError::Invalid("outcome")),
    })
}

/// Reads the status of a refusal; a status of success is invalid.
fn refusal(r: &mut Reader<'_>) -> Read<Status> {
    match r.status()? {
        Status::Success | Status::Done => Err(FrameError::Invalid("refusal")),
        status => Ok(status),
    }
}

pub(super) fn request(r: &mut Reader<'_>) -> Read<Request> {
    let tag = r.u8()?;
    if tag == 10 {
        return Ok(Request::Ping);
    }
    let handle = r.handle()?;
    Ok(match tag {
        0 => Request::Wait {
            handle,
            mode: r.mode()?,
            lease: Lease(r.u32()?),
            wait: WaitNumber(r.u32()?),
            ticket: r.option("ticket", Reader::ticket)?,
        },
        1 => Request::Cancel { handle, wait: WaitNumber(r.u32()?) },
        2 => Request::Release {
            handle,
            mode: r.mode()?,
            ticket: r.option("ticket", Reader::ticket)?,
        },
        3 => Request::Wake { handle },
        4 => Request::Poll { handle, mode: r.mode()?, ticket: r.ticket()?, lease: Lease(r.u32()?) },
        5 => Request::TakeTicket { handle, mode: r.mode()?, lease: Lease(r.u32()?) },
        6 => Request::Abandon { handle, mode: r.mode()?, ticket: r.ticket()? },
        7 => Request::Extend {
            handle,
            mode: r.mode()?,
            ticket: r.option("ticket", Reader::ticket)?,
            lease: Lease(r.u32()?),
        },
        8 => Request::Steal { handle, mode: r.mode()?, lease: Lease(r.u32()?) },
        9 => Request::Resolve { handle },
        11 => Request::CountReaders {
            handle,
            mode: r.mode()?,
            ticket: r.option("ticket", Reader::ticket)?,
        },
        12 => Request::Confirm { handle, mode: r.mode()? },
        13 => Request::Listen { handle, knows: r.bool("knows")?, until: ServerTime(r.u64()?) },
        14 => Request::Downgrade {
            handle,
            stamp: r.u32()?,
            ticket: r.option("ticket", Reader::ticket)?,
        },
        15 => Request::Keep {
            handle,
            mode: r.mode()?,
            ticket: r.option("ticket", Reader::ticket)?,
            lease: Lease(r.u32()?),
        },
        16 => Request::Try {
            handle,
            mode: r.mode()?,
            lease: Lease(r.u32()?),
            wait: WaitNumber(r.u32()?),
        },
        _ => return Err(FrameError::Invalid("request")),
    })
}

pub(super) fn put_request(w: &mut Writer<'_>, request: &Request) {
    let tag = match request {
        Request::Wait { .. } => 0,
        Request::Cancel { .. } => 1,
        Request::Release { .. } => 2,
        Request::Wake { .. } => 3,
        Request::Poll { .. } => 4,
        Request::TakeTicket { .. } => 5,
        Request::Abandon { .. } => 6,
        Request::Extend { .. } => 7,
        Request::Steal { .. } => 8,
        Request::Resolve { .. } => 9,
        Request::Ping => 10,
        Request::CountReaders { .. } => 11,
        Request::Confirm { .. } => 12,
        Request::Listen { .. } => 13,
        Request::Downgrade { .. } => 14,
        Request::Keep { .. } => 15,
        Request::Try { .. } => 16,
    };
    w.u8(tag);
    if let Some(handle) = request.handle() {
        w.handle(handle);
    }
    match *request {
        Request::Wait { handle: _, mode, lease, wait, ticket } => {
            w.mode(mode);
            w.u32(lease.0);
            w.u32(wait.0);
            w.option(ticket, Writer::ticket);
        }
        Request::Cancel { handle: _, wait } => w.u32(wait.0),
        Request::Release { handle: _, mode, ticket }
        | Request::CountReaders { handle: _, mode, ticket } => {
            w.mode(mode);
            w.option(ticket, Writer::ticket);
        }
        Request::Try { handle: _, mode, lease, wait } => {
            w.mode(mode);
            w.u32(lease.0);
            w.u32(wait.0);
        }
        Request::Poll { handle: _, mode, ticket, lease } => {
            w.mode(mode);
            w.ticket(ticket);
            w.u32(lease.0);
        }
        Request::Extend { handle: _, mode, ticket, lease }
        | Request::Keep { handle: _, mode, ticket, lease } => {
            w.mode(mode);
            w.option(ticket, Writer::ticket);
            w.u32(lease.0);
        }
        Request::TakeTicket { handle: _, mode, lease }
        | Request::Steal { handle: _, mode, lease } => {
            w.mode(mode);
            w.u32(lease.0);
        }
        Request::Abandon { handle: _, mode, ticket } => {
            w.mode(mode);
            w.ticket(ticket);
        }
        Request::Confirm { handle: _, mode } => w.mode(mode),
        Request::Listen { handle: _, knows, until } => {
            w.bool(knows);
            w.u64(until.0);
        }
        Request::Downgrade { handle: _, stamp, ticket } => {
            w.u32(stamp);
            w.option(ticket, Writer::ticket);
        }
        Request::Wake { .. } | Request::Resolve { .. } | Request::Ping => {}
    }
}

pub(super) fn reply(r: &mut Reader<'_>) -> Read<Reply> {
    Ok(match r.u8()? {
        0 => Reply::Granted {
            word: r.u64()?,
            deadline: Deadline(r.u32()?),
            at: ServerTime(r.u64()?),
            ticket: r.option("ticket", Reader::ticket)?,
            token: Token(r.u64()?),
        },
        1 => Reply::Queued { word: r.u64()?, ticket: r.ticket()? },
        2 => Reply::Denied { status: refusal(r)?, word: r.u64()? },
        3 => Reply::Cancelled { word: r.u64()? },
        4 => Reply::Done { word: r.u64()? },
        5 => Reply::Pong { at: ServerTime(r.u64()?) },
        6 => Reply::Contended { waiters: r.u32()?, until: ServerTime(r.u64()?) },
        _ => return Err(FrameError::Invalid("reply")),
    })
}

pub(super) fn put_reply(w: &mut Writer<'_>, reply: &Reply) {
    match *reply {
        Reply::Granted { word, deadline, at, ticket, token } => {
            w.u8(0);
            w.u64(word);
            w.u32(deadline.0);
            w.u64(at.0);
            w.option(ticket, Writer::ticket);
            w.u64(token.0);
        }
        Reply::Queued { word, ticket } => {
            w.u8(1);
            w.u64(word);
            w.ticket(ticket);
        }
        Reply::Denied { status, word } => {
            w.u8(2);
            w.status(status);
            w.u64(word);
        }
        Reply::Cancelled { word } => {
            w.u8(3);
            w.u64(word);
        }
        Reply::Done { word } => {
            w.u8(4);
            w.u64(word);
        }
        Reply::Pong { at } => {
            w.u8(5);
            w.u64(at.0);
        }
        Reply::Contended { waiters, until } => {
            w.u8(6);
            w.u32(waiters);
            w.u64(until.0);
        }
    }
}
