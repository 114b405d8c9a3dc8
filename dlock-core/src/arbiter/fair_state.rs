// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter remembers of a fair lock's tickets: records, revocations, what was passed
//! over. It decides nothing.

use std::collections::BTreeMap;

use super::super::Caller;
use crate::clock::ServerTime;
use crate::ids::ClientId;
use crate::message::Mode;
use crate::planted::{self, Bug};
use crate::words::{before, FairWord, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RecordStatus {
    Issued,
    Queued,
    Waiting,
    Granted { deadline_s: u32 },
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) client: ClientId,
    pub(super) mode: Mode,
    pub(super) ticket: Ticket,
    pub(super) status: RecordStatus,
    /// When it was first seen at its turn (`Queued`), or taken (`Issued`).
    pub(super) since: Option<ServerTime>,
}

/// A ticket this arbiter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Revoked {
    pub(super) mode: Mode,
    pub(super) ticket: Ticket,
    /// The client's ledger was seen to name it: once it does no more, it can be forgotten.
    pub(super) seen: bool,
}

/// Tickets that one client has given up and that have not been skipped yet. One that takes
/// tickets and drops them must wait for its turns like everybody else.
pub(super) const CANCELLED_MAX: usize = 4_096;
/// Ended tickets of one client that are remembered: one in its ledger, and a few it has dropped
/// while requests that name them may still be on their way.
const REVOKED_MAX: usize = 8;

impl Revoked {
    /// Whether this ticket was taken before that one of the same client.
    pub(super) fn is_before(&self, other: Ticket) -> bool {
        let Ticket { tx, ts } = self.ticket;
        other != self.ticket && !before(other.tx, tx) && !before(other.ts, ts)
    }

    /// Whether no request can name it that would do harm. A shared ticket may still be given up
    /// by a request that comes behind the note, and the count would not show that it was ended.
    pub(super) fn is_settled(&self, word: FairWord) -> bool {
        let done_since = word.ns().wrapping_sub(self.ticket.ts);
        self.mode == Mode::Exclusive
            || (PASSED_OVER_MAX..0x8000).contains(&done_since)
            || planted::is(Bug::FairAbandonTwice)
    }
}

/// Shared tickets that were passed over because nobody claimed them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PassedOver {
    /// The first shared ticket that was not.
    pub(super) before: u16,
    /// Who had claimed an earlier one by then. A claim of an earlier ticket that comes later is
    /// void: its share was taken off already.
    pub(super) claimed: Vec<(ClientId, Ticket)>,
}

/// Shared tickets done after which a passed-over one is forgotten: lanes compare modulo 2^16.
pub(super) const PASSED_OVER_MAX: u16 = 0x4000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::arbiter) struct FairState {
    pub(super) records: Vec<Record>,
    /// What relayed clients have: ticket or hold.
    pub(in crate::arbiter) live: BTreeMap<ClientId, (Mode, Ticket)>,
    /// A later ticket of a client may be ended before an earlier one that it dropped.
    pub(super) revoked: BTreeMap<ClientId, Vec<Revoked>>,
    pub(super) passed_over: Option<PassedOver>,
    /// Since when readers wait for other readers alone, and the next shared ticket then.
    pub(super) crowd: Option<(ServerTime, u16)>,
    /// When the exclusive ticket `head` was first seen at the head of the queue. Two fields, so
    /// that no compiler reads a number that is not there (valgrind would report it).
    pub(super) head_since: Option<ServerTime>,
    pub(super) head: u16,
}

impl FairState {
    pub(in crate::arbiter) fn is_empty(&self) -> bool {
        let nobody = self.records.is_empty() && self.live.is_empty();
        nobody && self.revoked.is_empty() && self.passed_over.is_none()
    }

    /// Whether the client has a ticket or a hold, as far as this arbiter knows.
    pub(in crate::arbiter) fn knows(&self, client: ClientId) -> bool {
        let is_live = |r: &Record| r.client == client && r.status != RecordStatus::Cancelled;
        self.live.contains_key(&client) || self.records.iter().any(is_live)
    }

    /// The deadline of what was granted to the client last, as far as this arbiter remembers it.
    pub(in crate::arbiter) fn granted_until(&self, client: ClientId) -> Option<u32> {
        let own = self.records.iter().filter(|r| r.client == client);
        own.filter_map(|r| match r.status {
            RecordStatus::Granted { deadline_s } => Some(deadline_s),
            _ => None,
        })
        .max()
    }

    /// A chain of a tcp client took a ticket.
    pub(in crate::arbiter) fn issued(
        &mut self,
        client: ClientId,
        mode: Mode,
        ticket: Ticket,
        is_relayed: bool,
    ) {
        self.revoked.remove(&client);
        self.drop_records(client);
        if is_relayed {
            self.has_taken(client, mode, ticket);
        }
        let status = RecordStatus::Issued;
        self.records.push(Record { client, mode, ticket, status, since: None });
    }

    /// A relayed client has taken a ticket; the one it had before is given up.
    pub(super) fn has_taken(&mut self, client: ClientId, mode: Mode, ticket: Ticket) {
        if let Some((mode, ticket)) = self.live.insert(client, (mode, ticket)) {
            self.cancelled(client, mode, ticket);
        }
    }

    /// A relayed client's chain has ended its ticket.
    pub(in crate::arbiter) fn finished(&mut self, client: ClientId) {
        self.live.remove(&client);
        self.drop_records(client);
    }

    pub(super) fn cancelled(&mut self, client: ClientId, mode: Mode, ticket: Ticket) {
        let status = RecordStatus::Cancelled;
        self.records.push(Record { client, mode, ticket, status, since: None });
    }

    /// All records of a client, but those it has given up.
    pub(super) fn drop_records(&mut self, client: ClientId) {
        self.records.retain(|r| r.client != client || r.status == RecordStatus::Cancelled);
    }

    pub(super) fn waits_no_more(&mut self, client: ClientId) {
        for r in &mut self.records {
            if r.client == client && r.status == RecordStatus::Waiting {
                r.status = RecordStatus::Queued;
            }
        }
    }

    pub(super) fn has_given_up_too_many(&self, client: ClientId) -> bool {
        let given_up = |r: &&Record| r.client == client && r.status == RecordStatus::Cancelled;
        self.records.iter().filter(given_up).count() >= CANCELLED_MAX
    }

    pub(super) fn record(
        &mut self,
        client: ClientId,
        mode: Mode,
        ticket: Ticket,
    ) -> Option<&mut Record> {
        self.records.iter_mut().find(|r| {
            r.client == client
                && r.mode == mode
                && r.ticket == ticket
                && r.status != RecordStatus::Cancelled
        })
    }

    /// The record of this ticket; a client has one live ticket at a time.
    pub(super) fn upsert(&mut self, from: Caller, mode: Mode, ticket: Ticket) -> &mut Record {
        let client = from.client;
        if let Some(revoked) = self.revoked.get_mut(&client) {
            // its requests come in order: none names those any more
            revoked.retain(|r| !r.is_before(ticket));
            if revoked.is_empty() {
                self.revoked.remove(&client);
            }
        }
        let same = |r: &Record| r.mode == mode && r.ticket == ticket;
        self.records
            .retain(|r| r.client != client || r.status == RecordStatus::Cancelled || same(r));
        let at = self
            .records
            .iter()
            .position(|r| r.client == client && same(r) && r.status != RecordStatus::Cancelled);
        let at = at.unwrap_or_else(|| {
            let status = RecordStatus::Queued;
            self.records.push(Record { client, mode, ticket, status, since: None });
            self.records.len() - 1
        });
        &mut self.records[at]
    }

    pub(in crate::arbiter) fn is_revoked(
        &self,
        client: ClientId,
        mode: Mode,
        ticket: Ticket,
    ) -> bool {
        let revoked = self.revoked.get(&client);
        revoked.is_some_and(|all| all.iter().any(|r| r.mode == mode && r.ticket == ticket))
            || mode == Mode::Shared && self.is_passed_over(client, ticket)
    }

    pub(super) fn is_passed_over(&self, client: ClientId, ticket: Ticket) -> bool {
        self.passed_over.as_ref().is_some_and(|passed| {
            before(ticket.ts, passed.before)
                && !passed.claimed.contains(&(client, ticket))
                && !planted::is(Bug::PassedOverForgotten)
        })
    }

    pub(super) fn revoke(
        &mut self,
        client: ClientId,
        mode: Mode,
        ticket: Ticket,
        is_relayed: bool,
    ) {
        self.records.retain(|r| {
            !(r.client == client
                && r.mode == mode
                && r.ticket == ticket
                && r.status != RecordStatus::Cancelled)
        });
        if !is_relayed {
            let revoked = self.revoked.entry(client).or_default();
            revoked.retain(|r| (r.mode, r.ticket) != (mode, ticket));
            if revoked.len() >= REVOKED_MAX {
                revoked.remove(0);
            }
            revoked.push(Revoked { mode, ticket, seen: false });
        } else if self.live.get(&client) == Some(&(mode, ticket)) {
            self.live.remove(&client);
        }
    }
}
