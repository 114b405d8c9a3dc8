// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control frames: a tag, then the fields in the order of their declaration.

use super::wire::{Reader, Writer};
use super::FrameError;
use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::Epoch;
use crate::token::Token;
use crate::wire::about::About;
use crate::wire::control::{
    Act, Claim, ControlReply, ControlRequest, HeldClaim, LockDesc, LockGrant, ObjectGrant, Place,
    Secret, Session, Terms, Told, Whose,
};
use crate::wire::fabric::{Offers, OFFERS_MAX};
use crate::wire::message::LockType;
use crate::wire::status::Status;

type Read<T> = Result<T, FrameError>;

/// The tags of `Init` and `Reinit`, the same in every version.
const INIT: u8 = 0;
const REINIT: u8 = 1;
/// The tag of a refusal, the same in every version.
const ERROR: u8 = 0;

pub(super) fn request(r: &mut Reader<'_>) -> Read<ControlRequest> {
    use ControlRequest as R;
    Ok(match r.u8()? {
        INIT => R::Init {
            version_min: r.u8()?,
            version_max: r.u8()?,
            tp_mode: r.u8()?,
            horizon_s: r.u32()?,
            about: about(r)?,
        },
        REINIT => R::Reinit {
            version_min: r.u8()?,
            version_max: r.u8()?,
            tp_mode: r.u8()?,
            horizon_s: r.u32()?,
            client: r.client()?,
            secret: Secret(r.array()?),
            about: about(r)?,
        },
        2 => R::ReinitDone,
        3 => R::Deinit,
        4 => R::Heartbeat,
        5 => R::GetLocks(list(r, DESC_BYTES_MIN, desc)?),
        6 => R::ReleaseLocks(list(r, 4, Reader::lock)?),
        7 => R::UpdateLocks(list(r, CLAIM_BYTES_MIN, claim)?),
        8 => R::ObjectCreate { name: r.name()?, lease: lease(r)?, init: r.u64()? },
        9 => R::ObjectGet { name: r.name()?, lease: lease(r)? },
        10 => R::ObjectRelease(r.object()?),
        11 => R::ObjectDestroy(r.object()?),
        12 => R::Operate(act(r)?),
        _ => return Err(FrameError::Invalid("control request")),
    })
}

pub(super) fn put_request(w: &mut Writer<'_>, request: &ControlRequest) {
    use ControlRequest as R;
    match request {
        R::Init { version_min, version_max, tp_mode, horizon_s, about } => {
            w.bytes(&[INIT, *version_min, *version_max, *tp_mode]);
            w.u32(*horizon_s);
            put_about(w, about);
        }
        R::Reinit { version_min, version_max, tp_mode, horizon_s, client, secret, about } => {
            w.bytes(&[REINIT, *version_min, *version_max, *tp_mode]);
            w.u32(*horizon_s);
            w.client(*client);
            w.bytes(&secret.0);
            put_about(w, about);
        }
        R::ReinitDone => w.u8(2),
        R::Deinit => w.u8(3),
        R::Heartbeat => w.u8(4),
        R::GetLocks(descs) => {
            w.u8(5);
            w.list(descs, put_desc);
        }
        R::ReleaseLocks(locks) => {
            w.u8(6);
            w.list(locks, |w, lock| w.i32(lock.0));
        }
        R::UpdateLocks(claims) => {
            w.u8(7);
            w.list(claims, put_claim);
        }
        R::ObjectCreate { name, lease, init } => {
            w.u8(8);
            w.name(name);
            w.u32(lease.0);
            w.u64(*init);
        }
        R::ObjectGet { name, lease } => {
            w.u8(9);
            w.name(name);
            w.u32(lease.0);
        }
        R::ObjectRelease(object) => {
            w.u8(10);
            w.i32(object.0);
        }
        R::ObjectDestroy(object) => {
            w.u8(11);
            w.i32(object.0);
        }
        R::Operate(act) => {
            w.u8(12);
            put_act(w, act);
        }
    }
}

/// Reads what a client tells of itself; a client that tells nothing, or of an earlier version, ends
/// the frame before.
fn about(r: &mut Reader<'_>) -> Read<About> {
    if r.end().is_ok() {
        return Ok(About::NOTHING);
    }
    let mut text = || String::from_utf8(r.short_bytes()?).map_err(|_| FrameError::Invalid("about"));
    let [label, host, user] = [text()?, text()?, text()?];
    About::new(&label, &host, &user, r.u32()?).ok_or(FrameError::Invalid("about"))
}

fn put_about(w: &mut Writer<'_>, about: &About) {
    if *about == About::NOTHING {
        return;
    }
    for text in [about.label(), about.host(), about.user()] {
        w.short_bytes(text.as_bytes());
    }
    w.u32(about.pid);
}

/// Reads the part of `Init` and `Reinit` that is the same in every version, and returns the error
/// for the caller. The layout of the rest is not known.
pub(super) fn foreign_request(r: &mut Reader<'_>) -> Read<FrameError> {
    let seq = r.seq()?;
    match r.u8()? {
        INIT | REINIT => Ok(FrameError::Version { seq, min: r.u8()?, max: r.u8()? }),
        _ => Err(FrameError::Invalid("control request of another version")),
    }
}

/// Reads a refusal, which is the only reply with the same layout in every version.
pub(super) fn refusal(r: &mut Reader<'_>) -> Read<ControlReply> {
    match r.u8()? {
        ERROR => r.status().map(ControlReply::Error),
        _ => Err(FrameError::Invalid("control reply of another version")),
    }
}

pub(super) fn reply(r: &mut Reader<'_>) -> Read<ControlReply> {
    use ControlReply as R;
    Ok(match r.u8()? {
        ERROR => R::Error(r.status()?),
        1 => R::Session(session(r)?),
        2 => R::Done,
        3 => R::Alive {
            now: ServerTime(r.u64()?),
            recovering: r.bool("recovering")?,
            until: ServerTime(r.u64()?),
            asked: ServerTime(r.u64()?),
            recovery: Told { told: r.u32()?, of: r.u32()? },
        },
        4 => R::Locks(list(r, 5, lock_result)?),
        5 => R::Statuses(list(r, 4, Reader::status)?),
        6 => R::Created(r.object()?),
        7 => R::Object(ObjectGrant {
            object: r.object()?,
            handle: r.handle()?,
            slot: r.slot()?,
            generation: r.generation()?,
        }),
        8 => R::Operated(r.u32()?),
        9 => R::Removed {
            by: String::from_utf8(r.short_bytes()?).map_err(|_| FrameError::Invalid("operator"))?,
            now: r.bool("now")?,
        },
        _ => return Err(FrameError::Invalid("control reply")),
    })
}

pub(super) fn put_reply(w: &mut Writer<'_>, reply: &ControlReply) {
    use ControlReply as R;
    match reply {
        R::Error(status) => {
            w.u8(ERROR);
            w.status(*status);
        }
        R::Session(session) => {
            w.u8(1);
            put_session(w, session);
        }
        R::Done => w.u8(2),
        R::Alive { now, recovering, until, asked, recovery } => {
            w.u8(3);
            w.u64(now.0);
            w.bool(*recovering);
            w.u64(until.0);
            w.u64(asked.0);
            w.u32(recovery.told);
            w.u32(recovery.of);
        }
        R::Locks(results) => {
            w.u8(4);
            w.list(results, put_lock_result);
        }
        R::Statuses(statuses) => {
            w.u8(5);
            w.list(statuses, |w, status| w.status(*status));
        }
        R::Created(object) => {
            w.u8(6);
            w.i32(object.0);
        }
        R::Object(grant) => {
            w.u8(7);
            w.i32(grant.object.0);
            w.handle(grant.handle);
            w.u32(grant.slot.0);
            w.u64(grant.generation.0);
        }
        R::Operated(clients) => {
            w.u8(8);
            w.u32(*clients);
        }
        R::Removed { by, now } => {
            w.u8(9);
            let fits = (0..=by.len().min(255)).rev().find(|&end| by.is_char_boundary(end));
            w.short_bytes(&by.as_bytes()[..fits.unwrap_or(0)]);
            w.bool(*now);
        }
    }
}

fn act(r: &mut Reader<'_>) -> Read<Act> {
    Ok(match r.u8()? {
        0 => Act::TakeAway { whose: whose(r)?, grace_s: r.u32()?, now: r.bool("now")? },
        1 => Act::Drain { is_on: r.bool("drain")? },
        _ => return Err(FrameError::Invalid("act")),
    })
}

fn put_act(w: &mut Writer<'_>, act: &Act) {
    match act {
        Act::TakeAway { whose, grace_s, now } => {
            w.u8(0);
            put_whose(w, whose);
            w.u32(*grace_s);
            w.bool(*now);
        }
        Act::Drain { is_on } => {
            w.u8(1);
            w.bool(*is_on);
        }
    }
}

fn whose(r: &mut Reader<'_>) -> Read<Whose> {
    Ok(match r.u8()? {
        0 => Whose::Client(r.client()?),
        1 => Whose::Holders { name: r.name()?, client: r.option("holder", Reader::client)? },
        2 => Whose::Departed,
        3 => Whose::All,
        _ => return Err(FrameError::Invalid("whose")),
    })
}

fn put_whose(w: &mut Writer<'_>, whose: &Whose) {
    match whose {
        Whose::Client(client) => {
            w.u8(0);
            w.client(*client);
        }
        Whose::Holders { name, client } => {
            w.u8(1);
            w.name(name);
            w.option(*client, |w, client| w.client(client));
        }
        Whose::Departed => w.u8(2),
        Whose::All => w.u8(3),
    }
}

fn list<'a, T>(
    r: &mut Reader<'a>,
    item_len: usize,
    read: impl FnMut(&mut Reader<'a>) -> Read<T>,
) -> Read<Vec<T>> {
    let mut items = Vec::new();
    r.list(&mut items, item_len, read)?;
    Ok(items)
}

/// The bytes of the shortest descriptor: length, one byte of name, type, lease, tokens.
const DESC_BYTES_MIN: usize = 2 + 1 + 1 + 4 + 1;

fn desc(r: &mut Reader<'_>) -> Read<LockDesc> {
    Ok(LockDesc {
        name: r.name()?,
        lock_type: LockType::from_code(u32::from(r.u8()?))
            .ok_or(FrameError::Invalid("lock type"))?,
        lease_s: r.u32()?,
        tokens: r.bool("tokens")?,
    })
}

fn put_desc(w: &mut Writer<'_>, desc: &LockDesc) {
    w.name(&desc.name);
    w.u8(desc.lock_type as u8);
    w.u32(desc.lease_s);
    w.bool(desc.tokens);
}

/// Reads the lease of an object.
fn lease(r: &mut Reader<'_>) -> Read<Lease> {
    match r.u32()? {
        0 => Err(FrameError::Invalid("lease")),
        ticks => Ok(Lease(ticks)),
    }
}

/// The bytes of the shortest claim: id, descriptor, and whether a hold follows.
const CLAIM_BYTES_MIN: usize = 4 + DESC_BYTES_MIN + 1;

fn claim(r: &mut Reader<'_>) -> Read<Claim> {
    Ok(Claim { lock: r.lock()?, desc: desc(r)?, held: r.option("claim", held_claim)? })
}

fn held_claim(r: &mut Reader<'_>) -> Read<HeldClaim> {
    Ok(HeldClaim {
        mode: r.mode()?,
        is_queued: r.bool("queued")?,
        left_ns: r.u64()?,
        age_ms: r.u32()?,
        epoch: Epoch(r.u64()?),
        deadline: Deadline(r.u32()?),
        fair: r.option("place", place)?,
        token: Token(r.u64()?),
    })
}

fn place(r: &mut Reader<'_>) -> Read<Place> {
    Ok(Place { epoch: Epoch(r.u64()?), ticket: r.ticket()? })
}

fn put_claim(w: &mut Writer<'_>, claim: &Claim) {
    w.i32(claim.lock.0);
    put_desc(w, &claim.desc);
    w.option(claim.held, |w, held| {
        w.mode(held.mode);
        w.bool(held.is_queued);
        w.u64(held.left_ns);
        w.u32(held.age_ms);
        w.u64(held.epoch.0);
        w.u32(held.deadline.0);
        w.option(held.fair, |w, place| {
            w.u64(place.epoch.0);
            w.ticket(place.ticket);
        });
        w.u64(held.token.0);
    });
}

fn lock_result(r: &mut Reader<'_>) -> Read<Result<LockGrant, Status>> {
    if r.bool("lock result")? {
        return r.status().map(Err);
    }
    Ok(Ok(LockGrant {
        lock: r.lock()?,
        handle: r.handle()?,
        slot: r.slot()?,
        word: r.u64()?,
        already: r.bool("already")?,
        tokens: r.bool("tokens")?,
    }))
}

fn put_lock_result(w: &mut Writer<'_>, result: &Result<LockGrant, Status>) {
    w.bool(result.is_err());
    match result {
        Ok(grant) => {
            w.i32(grant.lock.0);
            w.handle(grant.handle);
            w.u32(grant.slot.0);
            w.u64(grant.word);
            w.bool(grant.already);
            w.bool(grant.tokens);
        }
        Err(status) => w.status(*status),
    }
}

fn session(r: &mut Reader<'_>) -> Read<Session> {
    Ok(Session {
        version: r.u8()?,
        client: r.client()?,
        secret: Secret(r.array()?),
        epoch: Epoch(r.u64()?),
        anchor_s: r.u32()?,
        now: ServerTime(r.u64()?),
        recovering: r.bool("recovering")?,
        offers: offers(r)?,
        terms: Terms { horizon_s: r.u32()?, until: ServerTime(r.u64()?), lapses: r.u32()? },
    })
}

/// Reads the number of offers, then the number and place of each, in ascending order; keeps numbers
/// that this library does not know.
fn offers(r: &mut Reader<'_>) -> Read<Offers> {
    let (count, mut offers) = (usize::from(r.u8()?), Offers::none());
    for _ in 0..count {
        let (number, place) = (r.u8()?, r.short_bytes()?);
        let is_next = offers.all().last().is_none_or(|(last, _)| *last < number);
        if count > OFFERS_MAX || !is_next {
            return Err(FrameError::Invalid("offers"));
        }
        offers.push(number, place);
    }
    Ok(offers)
}

fn put_offers(w: &mut Writer<'_>, offers: &Offers) {
    let offers = offers.all();
    assert!(offers.len() <= OFFERS_MAX, "{} offers", offers.len());
    w.u8(offers.len() as u8);
    for (number, place) in offers {
        w.u8(*number);
        w.short_bytes(place);
    }
}

fn put_session(w: &mut Writer<'_>, session: &Session) {
    w.u8(session.version);
    w.client(session.client);
    w.bytes(&session.secret.0);
    w.u64(session.epoch.0);
    w.u32(session.anchor_s);
    w.u64(session.now.0);
    w.bool(session.recovering);
    put_offers(w, &session.offers);
    w.u32(session.terms.horizon_s);
    w.u64(session.terms.until.0);
    w.u32(session.terms.lapses);
}
