// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of a fair lock: one pass decides one thing and starts anew, until nothing is due.
//!
//! ```text
//!   word (read first) ─▶ claims (ledgers + records) ─▶ one change, Cas from that very word
//! ```
//! The word is read before the ledgers, and changed only from that value: whoever released or
//! took a ticket in between has changed it, and the pass is repeated.
//!
//! Shared tickets are served once every exclusive ticket before them is done; the exclusive
//! ticket `nx` is served once every shared ticket before it is done (`ns` is its `ts`).
//!
//! A pass looks once at each client of the lock, and at what was given up only as far as it skips
//! it; a call makes [`PASSES_MAX`] passes and goes on at the next tick. See [`WORK_MAX`].

use super::super::{Ctx, LockState, Waiter};
use super::suspects::pass_over;
use super::{
    gives_up_by_ledger, is_given_up, relay, revoke, told, Crowd, FairState, Intents, RecordStatus,
};
use crate::clock::{ServerTime, NS};
use crate::ids::{ClientId, Handle};
use crate::lane;
use crate::limits::{CLIENTS_MAX, FAIR_GRACE_S, FAIR_READERS_MAX};
use crate::message::{Mode, WaitNumber};
use crate::planted::{self, Bug};
use crate::words::{FairWord, LedgerEntry, LedgerState, Ticket};

/// Passes of one call: every pass but the last ends tickets or grants some.
const PASSES_MAX: usize = 4;
/// Tickets that were given up and are skipped in one pass.
const SKIPPED_MAX: usize = 512;
/// What one call may take, in units: a ledger entry or a record that is looked at, a ticket that is
/// skipped. A request looks at its own client's entries besides, and at all once more where the
/// lane nears its end.
pub const WORK_MAX: u64 = ((PASSES_MAX + 2) * (4 * CLIENTS_MAX + 2 * SKIPPED_MAX)) as u64;
const GRACE_NS: u64 = FAIR_GRACE_S as u64 * NS;
/// Time between two looks at clients that may come out with a ticket at the head, nanoseconds.
const INTENTS_EVERY_NS: u64 = 1_000_000;
/// The same once they had a grace.
const INTENTS_LATE_EVERY_NS: u64 = 10_000_000;
/// A ticket that this primary handed to a tcp client itself, and whose note does not come.
const ISSUED_GRACE_NS: u64 = 10 * NS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Issued,
    Queued,
    Waiting,
    Held {
        deadline_s: u32,
    },
    /// Released or not.
    Leaving {
        deadline_s: u32,
    },
    /// At its turn: its owner holds it as soon as it has seen that, until the deadline at most.
    Claimed {
        deadline_s: u32,
    },
    /// Not held, and perhaps passed over already.
    Doubtful,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    client: ClientId,
    handle: Handle,
    mode: Mode,
    ticket: Ticket,
    kind: Kind,
    /// Of a share: it is inside, or has its turn.
    is_served: bool,
}

/// What ledgers and records say together, at a word that was read before.
pub(super) struct Claims {
    word: FairWord,
    /// At most one of each client.
    all: Vec<Claim>,
    /// Clients that may have a ticket which they do not name yet, and what their ledgers say.
    intents: Intents,
}

impl Claims {
    /// Shares that are inside, or have their turn: the count of the word has each of them.
    fn served(&self) -> impl Iterator<Item = &Claim> {
        self.all.iter().filter(|c| c.mode == Mode::Shared && c.is_served)
    }

    /// Whether the client's ledger still says what it said then.
    pub(super) fn intends(&self, client: ClientId, intent: LedgerEntry) -> bool {
        self.intents.get(&client) == Some(&intent)
    }

    fn is_wanted(&self) -> bool {
        self.all.iter().any(|c| c.kind == Kind::Waiting)
    }

    /// The claim on the exclusive ticket at the head. Of two claims, which no correct client
    /// makes, the one that holds it longest: neither ends the other's hold.
    fn head(&self) -> Option<Claim> {
        let rank = |kind: Kind| match kind {
            Kind::Held { deadline_s }
            | Kind::Leaving { deadline_s }
            | Kind::Claimed { deadline_s } => (2, deadline_s),
            Kind::Waiting => (1, 1),
            Kind::Issued | Kind::Queued | Kind::Doubtful => (1, 0),
        };
        let heads = self.all.iter().filter(|c| c.mode == Mode::Exclusive);
        heads.filter(|c| c.ticket.tx == self.word.nx()).max_by_key(|c| rank(c.kind)).copied()
    }
}

pub(in super::super) fn advance(ctx: &mut Ctx<'_>, state: &mut LockState) {
    wants_to_be_told(ctx, state);
    for _ in 0..PASSES_MAX {
        let is_changed = pass(ctx, state);
        // what was to be skipped when the word was looked at may have become one since
        let is_new = wants_to_be_told(ctx, state) && !planted::is(Bug::SkippedUnseen);
        if !is_new && !is_changed {
            return rests(ctx, state);
        }
    }
    let soon = ctx.now.plus_ns(1);
    ctx.wake_at(soon);
}

/// Whether a release by a client itself is to be told here: then there is somebody to be woken, or
/// something to be skipped.
fn is_to_be_told(state: &LockState) -> bool {
    let sleeps = |waiter: &Waiter| waiter.wait != WaitNumber(0);
    (state.queue.iter().any(sleeps) || state.fair.has_to_skip())
        && !planted::is(Bug::SleepersUntold)
}

/// The companion word tells whoever releases the lock by itself: it is set *before* the word is
/// looked at, and read or changed after it was changed. Whether it was not set yet.
fn wants_to_be_told(ctx: &mut Ctx<'_>, state: &mut LockState) -> bool {
    let is_new = ctx.told.is_none() && is_to_be_told(state);
    if is_new {
        relay::tell(ctx);
    }
    is_new
}

/// Nothing is due now.
fn rests(ctx: &mut Ctx<'_>, state: &mut LockState) {
    if !is_to_be_told(state) {
        relay::tell_no_more(ctx);
    }
    if !state.queue.is_empty() {
        ctx.looks_again();
    }
}

/// Readers that are inside: those that were granted, or have found by themselves that they are
/// served, and have not released. One whose turn has come, and who has not asked, is not. A share
/// that no ledger names counts as inside if some client's intent claims a share.
pub(super) fn readers_inside(ctx: &mut Ctx<'_>, state: &mut LockState) -> u64 {
    let word = FairWord::from_bits(ctx.read());
    let claims = claims(ctx, state, word);
    let is_inside = |c: &&Claim| matches!(c.kind, Kind::Issued | Kind::Held { .. });
    let shares = claims.all.iter().filter(|c| c.mode == Mode::Shared).count();
    let unnamed = usize::from(word.open_shared()).saturating_sub(shares);
    let intends = |intent: &&LedgerEntry| intent.claims_by_intent() == Some(Mode::Shared);
    let by_intent = claims.intents.values().filter(intends).count();
    (claims.served().filter(is_inside).count() + unnamed.min(by_intent)) as u64
}

/// One pass; true if the word was changed, or was found changed, so that there may be more to do.
fn pass(ctx: &mut Ctx<'_>, state: &mut LockState) -> bool {
    let word = FairWord::from_bits(ctx.read());
    let claims = claims(ctx, state, word);
    if skip_given_up(ctx, state, word) {
        return true;
    }
    serve_shared(ctx, state, &claims);
    if word.open_exclusive() == 0 {
        return crowd(ctx, state, &claims);
    }
    state.fair.crowd = None;
    let since = head_since(ctx, &mut state.fair, &claims);
    let Some(head) = claims.head() else {
        return unclaimed_head(ctx, state, &claims, since);
    };
    // a turn ends when somebody asks for the next one: a slow client has it until then
    let wanted = claims.is_wanted();
    if lane::distance(word.ns(), head.ticket.ts) == 0 {
        return served_head(ctx, state, word, head, wanted);
    }
    wanted && blocked_head(ctx, state, &claims, head.ticket.ts, since)
}

/// Every live ticket of the lock, as ledgers and records together tell it.
fn claims(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord) -> Claims {
    let fair = &mut state.fair;
    ctx.worked(fair.records.len() + fair.live.len());
    fair.drop_done(word);
    let refs = ctx.lock.refs;
    let mut claims = Claims { word, all: Vec::with_capacity(refs.len()), intents: Intents::new() };
    for &(client, handle) in refs {
        let entry = told(ctx, fair, client, handle);
        fair.told(client, entry);
        if entry.state() == LedgerState::Intent {
            claims.intents.insert(client, entry);
        }
        if is_given_up(entry) && !ctx.is_proxied(client) {
            gives_up_by_ledger(ctx, fair, client, entry);
        }
        let ledger = fair.counts(client, entry, word);
        let record = fair.records.get(&client).copied();
        let record = record.filter(|r| fair.is_current(client, r, ledger));
        if record.is_none() {
            fair.records.remove(&client);
        }
        let live = fair.live.get(&client).copied();
        let Some((mode, ticket)) = ledger.or(record.map(|r| (r.mode, r.ticket))).or(live) else {
            continue;
        };
        let deadline_s = entry.deadline_s(ctx.anchor_s);
        let is_suspect = fair.is_suspect(client, mode);
        let is_proxied = ctx.is_proxied(client);
        let by_record = match record.map(|r| r.status) {
            Some(RecordStatus::Issued) => Kind::Issued,
            Some(RecordStatus::Waiting) => Kind::Waiting,
            Some(RecordStatus::Granted { deadline_s }) => Kind::Held { deadline_s },
            Some(RecordStatus::Queued) | None => Kind::Queued,
        };
        let kind = match (by_record, ledger.map(|_| entry.state())) {
            // it asks for what was noted as held, and whose answer it has not had
            (Kind::Waiting, Some(LedgerState::HeldExclusive)) => Kind::Waiting,
            (Kind::Waiting, Some(LedgerState::HeldShared)) if !is_suspect => Kind::Waiting,
            (Kind::Held { deadline_s: a }, Some(LedgerState::HeldExclusive)) => {
                Kind::Held { deadline_s: a.max(deadline_s) }
            }
            (_, Some(LedgerState::HeldExclusive)) => Kind::Held { deadline_s },
            (_, Some(LedgerState::Leaving)) => Kind::Leaving { deadline_s },
            (_, Some(LedgerState::HeldShared)) if is_suspect => Kind::Leaving { deadline_s },
            (Kind::Held { deadline_s: a }, Some(LedgerState::HeldShared)) => {
                Kind::Held { deadline_s: a.max(deadline_s) }
            }
            (_, Some(LedgerState::HeldShared)) => Kind::Held { deadline_s },
            (Kind::Queued, Some(_)) if is_claimed_turn(entry, word) && !is_proxied => {
                Kind::Claimed { deadline_s }
            }
            (_, Some(LedgerState::TicketShared)) if is_suspect => Kind::Doubtful,
            (kind, _) => kind,
        };
        let is_held = matches!(kind, Kind::Held { .. } | Kind::Leaving { .. });
        if !is_held && record.is_none() {
            let caller = super::Caller { client, handle, seq: crate::ids::Seq(0) };
            fair.upsert(caller, mode, ticket);
        }
        let is_served = mode == Mode::Shared && fair.is_served(word, client, ticket);
        claims.all.push(Claim { client, handle, mode, ticket, kind, is_served });
    }
    // taken before the head: it has its turn, wherever the exclusive numbers are by now
    if let Some(head) = claims.head() {
        for claim in claims.all.iter_mut().filter(|c| c.mode == Mode::Shared) {
            claim.is_served |= lane::is_before(claim.ticket.ts, head.ticket.ts);
        }
    }
    // where a number may soon be another's: what was taken after the word was read does not count
    if word.nx().max(word.mx()) >= lane::divert() && ctx.read() == word.into_bits() {
        let served = claims.served().map(|c| (c.client, c.ticket));
        state.fair.have_their_turn(served);
    }
    claims
}

/// Whether the ticket is claimed and has its turn, so that its owner may hold it. Of a proxied
/// client it is known what it has.
fn is_claimed_turn(entry: LedgerEntry, word: FairWord) -> bool {
    entry.is_claim() && word.is_turn_of(entry.ticket())
}

/// Skips what was given up and is next; true if the word was not as it was, or is not.
fn skip_given_up(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord) -> bool {
    let fair = &mut state.fair;
    let shares = fair.served_given_up(word, SKIPPED_MAX);
    let nx = fair.next_after_skipped(word, SKIPPED_MAX);
    if shares.is_empty() && nx.is_none() {
        return false;
    }
    ctx.worked(shares.len() + SKIPPED_MAX);
    let new = word.shared_done(shares.len() as u16).serving(nx.unwrap_or(word.nx()));
    if ctx.cas(word.into_bits(), new.into_bits()) {
        fair.have_been_skipped(&shares);
        fair.has_skipped(word, new.nx());
    }
    true
}

/// Grants to waiting readers whose turn it is, as long as there is room for readers. One whose
/// lease is over takes none up, although its share is still counted.
fn serve_shared(ctx: &mut Ctx<'_>, state: &mut LockState, claims: &Claims) {
    let mut waiting: Vec<Claim> =
        claims.served().filter(|c| c.kind == Kind::Waiting).copied().collect();
    if waiting.is_empty() {
        return;
    }
    let now = ctx.now;
    let is_outside = |c: &&Claim| match c.kind {
        Kind::Held { deadline_s } | Kind::Leaving { deadline_s } => {
            now >= ServerTime::expiry_of(deadline_s)
        }
        Kind::Waiting | Kind::Queued | Kind::Claimed { .. } | Kind::Doubtful => true,
        Kind::Issued => planted::is(Bug::IssuedNotInside),
    };
    let outside = claims.served().filter(is_outside).count() as u16;
    let mut inside = claims.word.open_shared().saturating_sub(outside);
    let ns = claims.word.ns();
    waiting.sort_by_key(|c| lane::distance(ns, c.ticket.ts));
    for claim in waiting {
        if inside >= FAIR_READERS_MAX {
            return;
        }
        inside += u16::from(grant(ctx, state, claims.word, claim));
    }
}

/// Ends these tickets, which have their turn, from this very word; their clients may not know.
/// Always worth another pass.
fn end(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord, over: &[Claim]) -> bool {
    let word = match planted::is(Bug::EndedFromLater) {
        true => FairWord::from_bits(ctx.read()),
        false => word,
    };
    let exclusive = over.iter().any(|c| c.mode == Mode::Exclusive);
    let shared = over.iter().filter(|c| c.mode == Mode::Shared).count() as u16;
    let new = match exclusive {
        true => word.exclusive_done(),
        false => word.shared_done(shared),
    };
    if ctx.cas(word.into_bits(), new.into_bits()) {
        for claim in over {
            revoke(ctx, &mut state.fair, (claim.client, claim.handle), (claim.mode, claim.ticket));
        }
    }
    true
}

/// Answers the wait of a client at its turn; false if it is not queued.
fn grant(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord, claim: Claim) -> bool {
    let at = state.queue.iter().position(|w| w.caller.client == claim.client);
    let waiter = at.and_then(|at| state.queue.remove(at));
    let Some(record) = state.fair.record(claim.client, claim.mode, claim.ticket) else {
        return false;
    };
    let Some(waiter) = waiter else {
        record.status = RecordStatus::Queued;
        return false;
    };
    let deadline_s = ctx.now.deadline(waiter.expire_s);
    record.status = RecordStatus::Granted { deadline_s };
    ctx.granted(waiter.caller, word.into_bits(), deadline_s, Some(claim.ticket));
    true
}

/// Whether a time has come; if not, this lock wants to be looked at again then.
fn reached(ctx: &mut Ctx<'_>, at: ServerTime) -> bool {
    let reached = ctx.now >= at;
    if !reached {
        ctx.wake_at(at);
    }
    reached
}

/// A ticket at its turn whose client does nothing keeps the turn for a grace.
fn outstayed(ctx: &mut Ctx<'_>, state: &mut LockState, claim: Claim) -> bool {
    let now = ctx.now;
    let Some(record) = state.fair.record(claim.client, claim.mode, claim.ticket) else {
        return false;
    };
    let grace = match record.status {
        RecordStatus::Issued => ISSUED_GRACE_NS,
        _ => GRACE_NS,
    };
    let since = *record.since.get_or_insert(now);
    reached(ctx, since.plus_ns(grace))
}

/// Since when this ticket is at the head of the queue. Clients that were between intent and
/// publication then may have taken it, or a share before it, and no others may: each intent has a
/// stamp of its own.
fn head_since(ctx: &mut Ctx<'_>, fair: &mut FairState, claims: &Claims) -> ServerTime {
    match fair.head_since {
        Some(_) => fair.head_intents.retain(|&client, intent| claims.intends(client, *intent)),
        None => fair.head_intents.clone_from(&claims.intents),
    }
    fair.head = claims.word.nx();
    *fair.head_since.get_or_insert(ctx.now)
}

/// Whether the unclaimed tickets of this mode have no owner: no client is between its intent and
/// its publication any more, or those that are had a grace, and hold nothing by their intents.
fn is_nobodys(ctx: &mut Ctx<'_>, fair: &FairState, mode: Mode, since: ServerTime) -> bool {
    if fair.head_intents.is_empty() || planted::is(Bug::FairNoGrace) {
        return true;
    }
    let had_grace = reached(ctx, since.plus_ns(GRACE_NS));
    let all = fair.head_intents.iter();
    let running = all.filter_map(|(_, &intent)| claimed_until(ctx, intent, mode)).max();
    if had_grace && running.is_none() {
        return true;
    }
    let every_ns = if had_grace { INTENTS_LATE_EVERY_NS } else { INTENTS_EVERY_NS };
    let again = ctx.now.plus_ns(every_ns);
    ctx.wake_at(running.map_or(again, |until| until.min(again)));
    false
}

/// Until when the client of this ledger entry may hold the lock in this mode by its intent alone;
/// `None`: it does not, or not any more.
fn claimed_until(ctx: &Ctx<'_>, intent: LedgerEntry, mode: Mode) -> Option<ServerTime> {
    if intent.claims_by_intent() != Some(mode) || planted::is(Bug::IntentIgnored) {
        return None;
    }
    let until = ServerTime::expiry_of(intent.deadline_s(ctx.anchor_s));
    (ctx.now < until).then_some(until)
}

fn unclaimed_head(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    claims: &Claims,
    since: ServerTime,
) -> bool {
    let word = claims.word;
    let is_behind = |c: &Claim| c.mode == Mode::Shared && !c.is_served;
    let behind = word.open_exclusive() > 1 || claims.all.iter().any(is_behind);
    // a number of the ring that was given out is known: this one is nobody's, whatever the intents,
    // and where the ring is full of those no other is given out
    let is_of_the_ring = word.nx() >= lane::ring();
    let is_wanted = claims.is_wanted() && behind;
    let is_over =
        is_of_the_ring || is_wanted && is_nobodys(ctx, &state.fair, Mode::Exclusive, since);
    if !is_over {
        return false;
    }
    if ctx.cas(word.into_bits(), word.exclusive_done().into_bits()) {
        state.fair.head_since = None;
    }
    true
}

/// Every ticket before the exclusive head is done.
fn served_head(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    head: Claim,
    wanted: bool,
) -> bool {
    let behind = word.open_exclusive() > 1 || word.ms() != head.ticket.ts;
    match head.kind {
        Kind::Waiting => grant(ctx, state, word, head),
        _ if !behind => false,
        Kind::Held { deadline_s } | Kind::Leaving { deadline_s } => {
            let early = u32::from(planted::is(Bug::FairTakeoverEarly));
            let expiry = ServerTime::expiry_of(deadline_s - early);
            reached(ctx, expiry) && wanted && end(ctx, state, word, &[head])
        }
        Kind::Claimed { deadline_s } => {
            let has_outstayed = outstayed(ctx, state, head); // from the first look at it on
            let is_over = reached(ctx, ServerTime::expiry_of(deadline_s));
            has_outstayed
                && (is_over || planted::is(Bug::ClaimNotHeld))
                && wanted
                && end(ctx, state, word, &[head])
        }
        Kind::Queued | Kind::Issued | Kind::Doubtful => {
            outstayed(ctx, state, head) && wanted && end(ctx, state, word, &[head])
        }
    }
}

/// Shared tickets before the exclusive head (its `ts`) are not done.
fn blocked_head(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    claims: &Claims,
    ts: u16,
    since: ServerTime,
) -> bool {
    let word = claims.word;
    let need = lane::distance(word.ns(), ts);
    if need > word.open_shared() {
        // more shared tickets done than taken before the head: a client forged the word
        return ctx.cas(word.into_bits(), word.with_ns(ts).into_bits());
    }
    let shares: Vec<Claim> = claims.served().copied().collect();
    let (mut over, mut unsure) = (Vec::new(), Vec::new());
    for &claim in &shares {
        match claim.kind {
            Kind::Held { deadline_s } if reached(ctx, ServerTime::expiry_of(deadline_s)) => {
                over.push(claim);
            }
            // released or not: the count of the known ones tells
            Kind::Leaving { deadline_s } if reached(ctx, ServerTime::expiry_of(deadline_s)) => {
                unsure.push(claim);
            }
            Kind::Queued | Kind::Issued if outstayed(ctx, state, claim) => over.push(claim),
            Kind::Doubtful if outstayed(ctx, state, claim) => unsure.push(claim),
            _ => {}
        }
    }
    for claim in &unsure {
        revoke(ctx, &mut state.fair, (claim.client, claim.handle), (claim.mode, claim.ticket));
    }
    if !over.is_empty() {
        over.truncate(need.into());
        return end(ctx, state, word, &over);
    }
    if !unsure.is_empty() {
        return true;
    }
    let unclaimed = need.saturating_sub(shares.len() as u16);
    if unclaimed > 0 && is_nobodys(ctx, &state.fair, Mode::Shared, since) {
        let intents = state.fair.head_intents.iter().map(|(&client, &intent)| (client, intent));
        let suspects = intents.filter(|&(c, i)| claims.may_have_share(c, i)).collect();
        return pass_over(ctx, &mut state.fair, claims.word, unclaimed, suspects);
    }
    let again = ctx.now.plus_ns(GRACE_NS);
    ctx.wake_at(again);
    false
}

/// Readers beyond the limit wait for other readers alone. Shares that nobody claims end after a
/// grace; those of clients whose lease is over do not count, and are not ended: only an exclusive
/// ticket behind them does, so that a release of theirs that comes late finds another word.
fn crowd(ctx: &mut Ctx<'_>, state: &mut LockState, claims: &Claims) -> bool {
    if !state.queue.iter().any(|w| w.mode == Mode::Shared) {
        state.fair.crowd = None;
        return false;
    }
    for claim in claims.served() {
        if let Kind::Held { deadline_s } = claim.kind {
            let expiry = ServerTime::expiry_of(deadline_s);
            if expiry > ctx.now {
                ctx.wake_at(expiry); // then there is room for one more
            }
        }
    }
    let known = || claims.served().map(|c| (c.client, c.ticket));
    let crowd = state.fair.crowd.get_or_insert_with(|| Crowd {
        since: ctx.now,
        unclaimed: claims.word.open_shared().saturating_sub(known().count() as u16),
        known: known().collect(),
        intents: claims.intents.clone(),
    });
    crowd.intents.retain(|_, intent| intent.is_intent_of(Mode::Shared));
    let (since, unclaimed) = (crowd.since, crowd.unclaimed);
    // whoever has claimed one since may have claimed one of those
    let claimed = known().filter(|one| !crowd.known.contains(one)).count();
    // so may one that has released it already, and one that holds it by its intent
    let is_suspect = |&(client, intent): &(ClientId, LedgerEntry)| {
        claims.may_have_share(client, intent) && claimed_until(ctx, intent, Mode::Shared).is_none()
    };
    let intents = crowd.intents.iter().map(|(&client, &intent)| (client, intent));
    let suspects: Vec<_> = intents.filter(is_suspect).collect();
    let claimed = (claimed + crowd.intents.len() - suspects.len()) as u16;
    if !reached(ctx, since.plus_ns(GRACE_NS)) {
        return false;
    }
    state.fair.crowd = None;
    match unclaimed.saturating_sub(claimed).min(claims.word.open_shared()) {
        0 => {
            let again = ctx.now.plus_ns(GRACE_NS);
            ctx.wake_at(again);
            false
        }
        n => pass_over(ctx, &mut state.fair, claims.word, n, suspects),
    }
}
