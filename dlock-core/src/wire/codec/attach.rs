// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two frames that make a connection a command channel: the client's request, and the primary's
//! answer. Fields in the order in which they travel:
//!
//! ```text
//!   Attach    client, secret, fabric [, chains, messages?, ring], returns
//!   Attached  status, slots, ledger entries, clock offset, verbs?, until
//!
//!   [ ]    only if the fabric needs a device (verbs, sealed): queue pairs, and the receive ring
//!   x?     optional: a flag comes first
//!   until  when the primary may first act on this client's silence (`Terms::until`)
//! ```

use super::wire::{Reader, Writer};
use super::FrameError;
use crate::clock::ServerTime;
use crate::limits::{
    VERBS_MESSAGE_BYTES_MAX, VERBS_MESSAGE_BYTES_MIN, VERBS_RING_SLOTS_MAX, VERBS_RING_SLOTS_MIN,
};
use crate::wire::control::{
    Attach, Attached, FabricKind, Secret, VerbsAttach, VerbsAttached, VerbsEndpoint, VerbsRegion,
};

type Read<T> = Result<T, FrameError>;

/// The largest value of a 24-bit number (queue pairs and packets).
const BITS_24: u32 = 0xff_ffff;
/// The largest path MTU code.
const MTU_MAX: u8 = 5;

pub(super) fn attach(r: &mut Reader<'_>) -> Read<Attach> {
    let (client, secret) = (r.client()?, Secret(r.array()?));
    let fabric = FabricKind::numbered(r.u8()?).ok_or(FrameError::Invalid("fabric"))?;
    let verbs = match fabric.needs_device() {
        true => Some(verbs_attach(r)?),
        false => None,
    };
    Ok(Attach { client, secret, fabric, verbs, returns: r.bool("returns")? })
}

pub(super) fn put_attach(w: &mut Writer<'_>, attach: &Attach) {
    let needs_device = attach.fabric.needs_device();
    assert_eq!(
        needs_device,
        attach.verbs.is_some(),
        "queue pairs are for a device, which needs them"
    );
    w.client(attach.client);
    w.bytes(&attach.secret.0);
    w.u8(attach.fabric as u8);
    if let Some(verbs) = &attach.verbs {
        put_endpoint(w, &verbs.chains);
        w.option(verbs.messages, |w, endpoint| put_endpoint(w, &endpoint));
        put_ring(w, verbs.ring_slots, verbs.message_bytes);
    }
    w.bool(attach.returns);
}

fn verbs_attach(r: &mut Reader<'_>) -> Read<VerbsAttach> {
    let (chains, messages) = (endpoint(r)?, r.option("queue pair", endpoint)?);
    let (ring_slots, message_bytes) = ring(r)?;
    Ok(VerbsAttach { chains, messages, ring_slots, message_bytes })
}

pub(super) fn attached(r: &mut Reader<'_>) -> Read<Attached> {
    Ok(Attached {
        status: r.status()?,
        slots: r.u32()?,
        ledger_entries: r.u32()?,
        clock_offset_ns: r.u64()?,
        verbs: r.option("verbs", verbs_attached)?,
        until: ServerTime(r.u64()?),
    })
}

pub(super) fn put_attached(w: &mut Writer<'_>, attached: &Attached) {
    w.status(attached.status);
    w.u32(attached.slots);
    w.u32(attached.ledger_entries);
    w.u64(attached.clock_offset_ns);
    w.option(attached.verbs, |w, verbs| {
        put_endpoint(w, &verbs.chains);
        w.option(verbs.messages, |w, endpoint| put_endpoint(w, &endpoint));
        put_region(w, verbs.slots);
        put_region(w, verbs.ledger);
        put_ring(w, verbs.ring_slots, verbs.message_bytes);
    });
    w.u64(attached.until.0);
}

fn verbs_attached(r: &mut Reader<'_>) -> Read<VerbsAttached> {
    let (chains, messages) = (endpoint(r)?, r.option("queue pair", endpoint)?);
    let (slots, ledger) = (region(r)?, region(r)?);
    let (ring_slots, message_bytes) = ring(r)?;
    Ok(VerbsAttached { chains, messages, slots, ledger, ring_slots, message_bytes })
}

fn endpoint(r: &mut Reader<'_>) -> Read<VerbsEndpoint> {
    let endpoint = VerbsEndpoint {
        qp_num: r.u32()?,
        psn: r.u32()?,
        gid: r.array()?,
        lid: r.u16()?,
        mtu: r.u8()?,
        reads: r.u8()?,
    };
    let fits = endpoint.qp_num <= BITS_24 && endpoint.psn <= BITS_24;
    match fits && (1..=MTU_MAX).contains(&endpoint.mtu) && endpoint.reads > 0 {
        true => Ok(endpoint),
        false => Err(FrameError::Invalid("queue pair")),
    }
}

fn put_endpoint(w: &mut Writer<'_>, endpoint: &VerbsEndpoint) {
    w.u32(endpoint.qp_num);
    w.u32(endpoint.psn);
    w.bytes(&endpoint.gid);
    w.u16(endpoint.lid);
    w.u8(endpoint.mtu);
    w.u8(endpoint.reads);
}

/// Reads a region, and checks that its end is a valid address.
fn region(r: &mut Reader<'_>) -> Read<VerbsRegion> {
    let region = VerbsRegion { base: r.u64()?, bytes: r.u64()?, rkey: r.u32()? };
    match region.base.checked_add(region.bytes) {
        Some(_) => Ok(region),
        None => Err(FrameError::Invalid("region")),
    }
}

fn put_region(w: &mut Writer<'_>, region: VerbsRegion) {
    w.u64(region.base);
    w.u64(region.bytes);
    w.u32(region.rkey);
}

fn ring(r: &mut Reader<'_>) -> Read<(u16, u32)> {
    let (slots, bytes) = (r.u16()?, r.u32()?);
    let fits = (VERBS_RING_SLOTS_MIN..=VERBS_RING_SLOTS_MAX).contains(&slots)
        && (VERBS_MESSAGE_BYTES_MIN..=VERBS_MESSAGE_BYTES_MAX).contains(&bytes);
    match fits {
        true => Ok((slots, bytes)),
        false => Err(FrameError::Invalid("receive ring")),
    }
}

fn put_ring(w: &mut Writer<'_>, slots: u16, bytes: u32) {
    w.u16(slots);
    w.u32(bytes);
}
