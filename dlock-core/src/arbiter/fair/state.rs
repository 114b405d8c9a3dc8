// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter remembers of a fair lock, and what it reads of it. This module decides nothing.
//!
//! | what | of which client | until |
//! |---|---|---|
//! | record | one whose ticket is known | the ticket is past, or its ledger entry is another one |
//! | head | intents that may own the exclusive number at the head | another number is there |
//! | passed | shares counted as done, and clients that may have one still | the lap ends |
//! | held back | one that asked for a ticket while the counters are high | it has an answer |
//! | in the way | one whose entry is over, and keeps the next lap from beginning | it is none |

use std::collections::{BTreeMap, BTreeSet};

use super::super::hindrance::HINDRANCE_NS;
use super::super::{Caller, Ctx};
use crate::clock::{Deadline, ServerTime};
use crate::ids::ClientId;
use crate::limits::FAIR_GRACE;
use crate::memory::word_op::{Word, WordAddr};
use crate::memory::words::{LedgerEntry, TakenWord, Ticket, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::Mode;

/// How long a ticket keeps its turn if its client does not ask for it.
const GRACE_NS: u64 = FAIR_GRACE.ns();
/// The times between two looks by the timer, nanoseconds. The timer runs while a client waits, or
/// after something was undone.
const LOOK_AFTER_NS: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// What the arbiter knows of a client's ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    /// A chain that this primary has executed took the ticket; the client's ledger says how long it
    /// counts.
    Issued,
    /// The client has asked once, or asks no more: the ticket is kept until its turn, and then for
    /// a grace.
    Kept,
    /// The client sleeps at the arbiter.
    Waiting,
    /// The arbiter has granted or extended the hold.
    Granted { deadline: Deadline },
    /// The client has released the hold, or given the ticket up.
    Over,
}

/// The ticket of one client; it belongs to the ledger entry with this stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) mode: Mode,
    pub(super) ticket: Ticket,
    pub(super) stamp: u32,
    pub(super) status: Status,
    /// When the ticket was first seen at its turn while others wanted it, or its client's channel
    /// ended.
    pub(super) since: Option<ServerTime>,
}

impl Record {
    /// Whether the client may rely on the ticket, or come to do so without asking for another one.
    fn is_live(&self, now: ServerTime, entry: Entry) -> bool {
        match self.status {
            Status::Waiting => true,
            Status::Kept => self.grace_end().is_none_or(|end| now < end) || entry.runs,
            Status::Issued => entry.runs,
            Status::Granted { deadline } => now < deadline.expiry() || entry.runs,
            Status::Over => false,
        }
    }

    /// When the turn of a kept ticket is over; `None`: its grace has not begun.
    pub(super) fn grace_end(&self) -> Option<ServerTime> {
        self.since.map(|since| since.plus_ns(GRACE_NS))
    }
}

/// The exclusive number at the head, and the clients that may own it, with the stamps that their
/// entries had when the number was first seen there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Head {
    pub(super) nx: u32,
    pub(super) may_own: BTreeMap<ClientId, u32>,
}

/// Shares below this number are done, except those of these clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Passed {
    pub(super) below: u32,
    pub(super) live: BTreeSet<ClientId>,
}

/// A client that has asked for a ticket while the ticket counters are high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::arbiter) struct HeldBack {
    pub(in crate::arbiter) from: Caller,
    pub(super) mode: Mode,
    pub(super) since: ServerTime,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::arbiter) struct FairState {
    pub(super) records: BTreeMap<ClientId, Record>,
    pub(super) head: Option<Head>,
    pub(super) passed: Option<Passed>,
    pub(in crate::arbiter) held_back: BTreeMap<ClientId, HeldBack>,
    /// Clients that stand in the way of the next lap: since when, when the arbiter last saw that,
    /// and the stamp of the entry.
    pub(super) in_the_way: BTreeMap<ClientId, (ServerTime, ServerTime, u32)>,
    /// Whether something was undone, and the lock has not been idle since.
    pub(super) unsettled: bool,
    /// Whether a new lap is beginning: only `w0` still has to be set to 0.
    pub(super) restarts: bool,
    /// How many looks by the timer in a row have found no change.
    pub(super) looks: u8,
}

impl FairState {
    pub(in crate::arbiter) fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.held_back.is_empty()
            && self.passed.is_none()
            && !self.unsettled
            && !self.restarts
    }

    pub(in crate::arbiter) fn holds_back(&self, client: ClientId) -> bool {
        self.held_back.contains_key(&client)
    }

    /// Whether the client has a ticket whose turn has not come.
    pub(in crate::arbiter) fn is_before_its_turn(&self, client: ClientId, turn: TurnWord) -> bool {
        let record = self.records.get(&client);
        record.is_some_and(|r| !turn.is_past(r.ticket) && !turn.serves(r.mode, r.ticket))
    }

    /// When to look again, because clients change what they have without a message.
    pub(super) fn next_look(&self, now: ServerTime) -> Option<ServerTime> {
        let after_ns = LOOK_AFTER_NS[usize::from(self.looks).min(LOOK_AFTER_NS.len() - 1)];
        (!planted::is(Bug::NoTimer)).then(|| now.plus_ns(after_ns))
    }

    /// A client whose entry has stood in the way for too long at the last look.
    pub(in crate::arbiter) fn hinderer(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        let is_over =
            |&(since, seen, _): &(ServerTime, ServerTime, u32)| seen >= since.plus_ns(HINDRANCE_NS);
        let mut over = self.in_the_way.iter().filter(|(_, times)| is_over(times));
        over.find(|(&client, _)| !skip(client)).map(|(&client, _)| client)
    }

    pub(in crate::arbiter) fn is_hindered(&self) -> bool {
        !self.in_the_way.is_empty()
    }

    /// Gives a client that stands in the way as much time as if it had just begun.
    pub(in crate::arbiter) fn goes_on(&mut self, now: ServerTime, client: ClientId) {
        if let Some(times) = self.in_the_way.get_mut(&client) {
            (times.0, times.1) = (now, now);
        }
    }

    /// Records the clients that stand in the way; returns when the first of them is to be fenced.
    pub(super) fn are_in_the_way(
        &mut self,
        now: ServerTime,
        clients: impl Iterator<Item = (ClientId, u32)>,
    ) -> Option<ServerTime> {
        let before = std::mem::take(&mut self.in_the_way);
        let since = |client, stamp| match before.get(&client) {
            Some(&(since, _, of)) if of == stamp => since,
            _ => now,
        };
        let times = |(client, stamp)| (client, (since(client, stamp), now, stamp));
        self.in_the_way = clients.map(times).collect();
        let ends = self.in_the_way.values().map(|(since, ..)| since.plus_ns(HINDRANCE_NS));
        ends.filter(|&end| end > now).min()
    }

    /// The record of a client, if it is of this ticket.
    pub(super) fn record(&self, client: ClientId, mode: Mode, ticket: Ticket) -> Option<&Record> {
        self.records.get(&client).filter(|r| (r.mode, r.ticket) == (mode, ticket))
    }

    /// Records the ticket of a client.
    pub(super) fn knows(
        &mut self,
        client: ClientId,
        (mode, ticket): (Mode, Ticket),
        stamp: u32,
        status: Status,
    ) {
        let before = self.record(client, mode, ticket).filter(|_| status != Status::Waiting);
        let since = before.and_then(|r| r.since);
        self.records.insert(client, Record { mode, ticket, stamp, status, since });
    }

    /// The deadline last granted to the client, as far as this arbiter remembers.
    pub(in crate::arbiter) fn granted_until(
        &self,
        client: ClientId,
        stamp: u32,
    ) -> Option<Deadline> {
        let record = self.records.get(&client).filter(|r| r.stamp == stamp)?;
        match record.status {
            Status::Granted { deadline } => Some(deadline),
            _ => None,
        }
    }

    /// Records that the client's wait has ended; its ticket stays.
    pub(in crate::arbiter) fn waits_no_more(&mut self, client: ClientId) {
        if let Some(record) = self.records.get_mut(&client) {
            if record.status == Status::Waiting {
                record.status = Status::Kept;
            }
        }
    }

    /// Begins the grace of a ticket that is kept.
    pub(in crate::arbiter) fn begins_grace(&mut self, client: ClientId, now: ServerTime) {
        let kept = self.records.get_mut(&client).filter(|r| r.status == Status::Kept);
        if let Some(record) = kept {
            record.since.get_or_insert(now);
        }
    }

    /// Forgets this client.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.records.remove(&client);
        self.held_back.remove(&client);
        self.in_the_way.remove(&client);
        if let Some(passed) = &mut self.passed {
            passed.live.remove(&client);
        }
    }

    /// Whether this client, with this entry, may not know that its share was counted as done.
    pub(super) fn may_release_once_more(&self, client: ClientId, entry: Entry) -> bool {
        let is_over = entry.entry.claims() == Some(Mode::Shared) && !entry.runs;
        let may = self.passed.as_ref().is_some_and(|p| is_over && !p.live.contains(&client));
        may && !entry.is_proxied && !planted::is(Bug::CountedUntold)
    }

    /// Whether a share of this client was counted as done.
    pub(super) fn is_passed(&self, client: ClientId, ticket: Ticket) -> bool {
        let passed = self.passed.as_ref();
        passed.is_some_and(|p| ticket.ts < p.below && !p.live.contains(&client))
            && !planted::is(Bug::PassedCounts)
    }
}

/// A ledger entry, and how it counts now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) entry: LedgerEntry,
    /// Whether the claim is not over.
    pub(super) runs: bool,
    /// When the claim is over.
    pub(super) until: ServerTime,
    /// Whether this primary executes the client's chains.
    pub(super) is_proxied: bool,
}

/// What one client has, by its ledger entry and its record together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Nothing,
    /// A ticket that the arbiter knows.
    Known {
        mode: Mode,
        ticket: Ticket,
        live: bool,
    },
    /// A claim that runs, of a ticket that the arbiter does not know.
    Unknown(Mode),
}

/// The lock as one look has read it: `w0`, then `w1` and the lap, then the ledgers.
pub(super) struct View {
    pub(super) now: ServerTime,
    pub(super) taken: TakenWord,
    pub(super) turn: TurnWord,
    pub(super) lap: u64,
    pub(super) clients: BTreeMap<ClientId, Entry>,
}

pub(super) fn addr_of(ctx: &Ctx<'_>, word: Word) -> WordAddr {
    WordAddr::new(ctx.lock.slot, word)
}

pub(super) fn turn(ctx: &mut Ctx<'_>) -> TurnWord {
    let addr = addr_of(ctx, Word::W1);
    TurnWord::from_bits(ctx.mem.read(addr))
}

pub(super) fn lap(ctx: &mut Ctx<'_>) -> u64 {
    let addr = addr_of(ctx, Word::Fence);
    ctx.mem.read(addr)
}

impl View {
    pub(super) fn read(ctx: &mut Ctx<'_>) -> Self {
        let (w0, refs) = (addr_of(ctx, Word::W0), ctx.lock.refs);
        let taken = TakenWord::from_bits(ctx.mem.read(w0));
        let (turn, lap) = (turn(ctx), lap(ctx));
        let entry = |ctx: &mut Ctx<'_>, &(client, handle)| {
            let entry = ctx.ledger(client, handle);
            (client, Entry::of(entry, ctx.now, ctx.is_proxied(client)))
        };
        let clients = refs.iter().map(|who| entry(ctx, who)).collect();
        Self { now: ctx.now, taken, turn, lap, clients }
    }

    /// Whether every ticket is done.
    pub(super) fn is_idle(&self, turn: TurnWord) -> bool {
        (self.taken.mx(), self.taken.ms()) == (turn.nx(), turn.ns())
    }

    /// Forgets records that are over by the words or the ledgers.
    pub(super) fn drop_over(&self, fair: &mut FairState) {
        let is_of = |client: ClientId, r: &Record| {
            let entry = self.clients.get(&client).map(|seen| seen.entry);
            entry.is_some_and(|e| e.stamp() == r.stamp && e.claims() == Some(r.mode))
        };
        fair.records.retain(|&client, r| {
            r.ticket.lap == self.lap && !self.turn.is_past(r.ticket) && is_of(client, r)
        });
    }

    /// What this client has, by its entry and its record.
    pub(super) fn has(&self, fair: &FairState, client: ClientId, entry: Entry) -> Has {
        match fair.records.get(&client) {
            Some(Record { status: Status::Over, .. }) => Has::Nothing,
            Some(record) => {
                let live = record.is_live(self.now, entry);
                Has::Known { mode: record.mode, ticket: record.ticket, live }
            }
            // what a client has whose chains this primary executes is known, or is nothing
            None if entry.is_proxied || fair.held_back.contains_key(&client) => Has::Nothing,
            None => match entry.entry.claims().filter(|_| entry.runs) {
                Some(mode) => Has::Unknown(mode),
                None => Has::Nothing,
            },
        }
    }
}

impl Entry {
    pub(super) fn of(entry: LedgerEntry, now: ServerTime, is_proxied: bool) -> Self {
        let until = match entry.claims() {
            Some(_) => entry.deadline().expiry(),
            None => ServerTime(0),
        };
        Self { entry, runs: now < until, until, is_proxied }
    }
}
