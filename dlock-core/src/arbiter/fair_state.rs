// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter remembers of a fair lock's tickets. It decides nothing.
//!
//! | what | of whom | until |
//! |---|---|---|
//! | record | a client's ticket or hold, as requests and grants tell | it is done, or the next |
//! | live | a proxied client's ticket or hold | it is done or given up |
//! | given up | tickets that are skipped at their turn | then |
//! | turn | a share that had its turn when the lanes were near their end | it is done |
//! | gap | numbers that were left out | the queue comes there |
//! | revoked | tickets that the arbiter ended | its client's ledger drops them, or `noted` |
//! | settled | the ticket of a client's last `Abandon` | its ledger drops it |
//! | suspect | a client that may have a share that was passed over | its ledger drops it |

use std::collections::{BTreeMap, BTreeSet};

use super::super::Caller;
use super::{is_given_up, named, Intents};
use crate::clock::ServerTime;
use crate::ids::ClientId;
use crate::lane;
use crate::message::Mode;
use crate::words::{FairWord, LedgerEntry, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RecordStatus {
    /// A chain that this primary executed took it, and has noted nothing of it.
    Issued,
    Queued,
    Waiting,
    Granted {
        deadline_s: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) mode: Mode,
    pub(super) ticket: Ticket,
    pub(super) status: RecordStatus,
    /// When it was first seen at its turn.
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
pub(super) const GIVEN_UP_MAX: u16 = 4_096;
/// Ended tickets of one client that are remembered: the one in its ledger, and one that it was
/// given and has not written there yet.
const REVOKED_MAX: usize = 2;

/// Shared tickets, by the exclusive number that they wait for.
type Shares = BTreeMap<u16, BTreeSet<(u16, ClientId)>>;

/// Readers wait for other readers alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Crowd {
    pub(super) since: ServerTime,
    /// Shares that nobody claimed then.
    pub(super) unclaimed: u16,
    /// Who claimed one then.
    pub(super) known: BTreeSet<(ClientId, Ticket)>,
    /// Clients that were between intent and publication then.
    pub(super) intents: Intents,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::arbiter) struct FairState {
    pub(super) records: BTreeMap<ClientId, Record>,
    /// What proxied clients have: ticket or hold.
    pub(in crate::arbiter) live: BTreeMap<ClientId, (Mode, Ticket)>,
    /// Exclusive tickets that were given up, by number.
    pub(super) given_up: BTreeMap<u16, ClientId>,
    /// Shared tickets that were given up.
    pub(super) shares_given_up: Shares,
    given_up_by: BTreeMap<ClientId, u16>,
    /// Shares that had their turn: the exclusive numbers may come to theirs once more.
    turns: BTreeSet<(ClientId, Ticket)>,
    /// Exclusive numbers that were left out: the first of them, and the one behind the last.
    pub(super) gaps: BTreeMap<u16, u16>,
    pub(super) revoked: BTreeMap<ClientId, Vec<Revoked>>,
    /// Whose `Abandon` of this ticket was served: nothing on its way names it any more.
    pub(super) settled: BTreeMap<ClientId, Ticket>,
    /// Clients that may own a share that was passed over: it may have been taken off already.
    pub(super) suspects: BTreeMap<ClientId, super::suspects::Suspect>,
    pub(super) crowd: Option<Crowd>,
    /// When the exclusive ticket `head` was first seen at the head of the queue. Two fields, so
    /// that no compiler reads a number that is not there (valgrind would report it).
    pub(super) head_since: Option<ServerTime>,
    pub(super) head: u16,
    /// Clients that were between intent and publication then, and still are.
    pub(super) head_intents: Intents,
}

impl FairState {
    pub(in crate::arbiter) fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.live.is_empty()
            && self.given_up.is_empty()
            && self.shares_given_up.is_empty()
            && self.turns.is_empty()
            && self.gaps.is_empty()
            && self.revoked.is_empty()
            && self.settled.is_empty()
            && self.suspects.is_empty()
    }

    /// Whether the client has a ticket or a hold, as far as this arbiter knows.
    pub(in crate::arbiter) fn knows(&self, client: ClientId) -> bool {
        self.live.contains_key(&client) || self.records.contains_key(&client)
    }

    /// The deadline of what was granted to the client last, by this arbiter as far as it remembers.
    /// `named`: the ticket that its ledger names, if it does; a record of another is an older one.
    pub(in crate::arbiter) fn granted_until(
        &self,
        client: ClientId,
        named: Option<(Mode, Ticket)>,
    ) -> Option<u32> {
        let record = self.records.get(&client)?;
        if named.is_some_and(|named| named != (record.mode, record.ticket)) {
            return None;
        }
        match record.status {
            RecordStatus::Granted { deadline_s } => Some(deadline_s),
            RecordStatus::Issued | RecordStatus::Queued | RecordStatus::Waiting => None,
        }
    }

    /// The deadline of an exclusive ticket that was granted to the client and is open.
    pub(in crate::arbiter) fn turn_until(&self, client: ClientId, word: FairWord) -> Option<u32> {
        let record = self.records.get(&client)?;
        let is_turn = record.mode == Mode::Exclusive && word.is_open(record.ticket.tx);
        self.granted_until(client, None).filter(|_| is_turn)
    }

    /// A chain of a tcp client took a ticket.
    pub(in crate::arbiter) fn issued(
        &mut self,
        client: ClientId,
        (mode, ticket): (Mode, Ticket),
        is_proxied: bool,
    ) {
        self.has_taken(client, (mode, ticket), is_proxied);
        let status = RecordStatus::Issued;
        self.records.insert(client, Record { mode, ticket, status, since: None });
    }

    /// This primary has given the client this ticket: one like it that was ended was of an earlier
    /// lap. A proxied client, which asks for one ticket after the other on one channel, believes in
    /// none that it had before.
    pub(super) fn has_taken(
        &mut self,
        client: ClientId,
        (mode, ticket): (Mode, Ticket),
        is_proxied: bool,
    ) {
        if is_proxied {
            self.revoked.remove(&client);
            self.live.insert(client, (mode, ticket));
        } else if let Some(revoked) = self.revoked.get_mut(&client) {
            revoked.retain(|r| (r.mode, r.ticket) != (mode, ticket));
        }
    }

    /// Whether an exclusive ticket of this number was the client's, and was ended.
    pub(in crate::arbiter) fn has_ended(&self, client: ClientId, tx: u16) -> bool {
        let is_it = |r: &Revoked| r.mode == Mode::Exclusive && r.ticket.tx == tx;
        self.revoked.get(&client).is_some_and(|all| all.iter().any(is_it))
    }

    /// The client's own ledger tells from now on. It names no ticket that was ended, but the client
    /// may name one once more: what it was not told of is remembered.
    pub(in crate::arbiter) fn unproxy(&mut self, client: ClientId) {
        self.live.remove(&client);
    }

    /// A note of a proxied client: an ended ticket that it does not name, or names as given up, is
    /// forgotten.
    pub(super) fn noted(&mut self, client: ClientId, entry: LedgerEntry) {
        let believed = named(entry).filter(|_| !is_given_up(entry));
        if let Some(revoked) = self.revoked.get_mut(&client) {
            revoked.retain(|r| believed == Some((r.mode, r.ticket)));
            if revoked.is_empty() {
                self.revoked.remove(&client);
            }
        }
    }

    /// What a proxied client has it has no more. Nothing of that is remembered.
    pub(super) fn has_no_more(&mut self, client: ClientId) -> Option<(Mode, Ticket)> {
        self.records.remove(&client);
        self.live.remove(&client)
    }

    /// This ticket is skipped at its turn.
    pub(super) fn give_up(&mut self, client: ClientId, mode: Mode, ticket: Ticket) {
        let is_new = match mode {
            Mode::Exclusive => self.given_up.insert(ticket.tx, client).is_none(),
            Mode::Shared => {
                self.shares_given_up.entry(ticket.tx).or_default().insert((ticket.ts, client))
            }
        };
        if is_new {
            *self.given_up_by.entry(client).or_default() += 1;
        }
    }

    /// A ticket that this client gave up is skipped.
    pub(super) fn skipped(&mut self, client: ClientId) {
        if let Some(n) = self.given_up_by.get_mut(&client) {
            *n -= 1;
            if *n == 0 {
                self.given_up_by.remove(&client);
            }
        }
    }

    pub(super) fn has_given_up_too_many(&self, client: ClientId) -> bool {
        self.given_up_by.get(&client).is_some_and(|&n| n >= GIVEN_UP_MAX)
    }

    pub(super) fn waits_no_more(&mut self, client: ClientId) {
        if let Some(r) = self.records.get_mut(&client) {
            if r.status == RecordStatus::Waiting {
                r.status = RecordStatus::Queued;
            }
        }
    }

    pub(super) fn record(
        &mut self,
        client: ClientId,
        mode: Mode,
        ticket: Ticket,
    ) -> Option<&mut Record> {
        self.records.get_mut(&client).filter(|r| (r.mode, r.ticket) == (mode, ticket))
    }

    /// The record of this ticket; a client has one live ticket at a time.
    pub(super) fn upsert(&mut self, from: Caller, mode: Mode, ticket: Ticket) -> &mut Record {
        let new = Record { mode, ticket, status: RecordStatus::Queued, since: None };
        let record = self.records.entry(from.client).or_insert(new);
        if (record.mode, record.ticket) != (mode, ticket) {
            *record = new;
        }
        record
    }

    pub(in crate::arbiter) fn is_revoked(
        &self,
        client: ClientId,
        mode: Mode,
        ticket: Ticket,
    ) -> bool {
        let revoked = self.revoked.get(&client);
        revoked.is_some_and(|all| all.iter().any(|r| (r.mode, r.ticket) == (mode, ticket)))
    }

    /// The ticket that a client's ledger names, if it counts: it is not given up, not done, and was
    /// not ended.
    pub(in crate::arbiter) fn counts(
        &self,
        client: ClientId,
        entry: LedgerEntry,
        word: FairWord,
    ) -> Option<(Mode, Ticket)> {
        named(entry)
            .filter(|_| !is_given_up(entry))
            .filter(|&(mode, t)| mode == Mode::Shared || word.is_open(t.tx))
            .filter(|&(mode, t)| !self.is_revoked(client, mode, t))
    }

    /// Whether a record still tells something, beside a ledger entry that names `ledger` (as it
    /// [counts](Self::counts)). What that names is newer than a record of another ticket. A share
    /// that was granted, and that the ledger has dropped, is released; so is one that a chain took
    /// which noted nothing.
    pub(super) fn is_current(
        &self,
        client: ClientId,
        record: &Record,
        ledger: Option<(Mode, Ticket)>,
    ) -> bool {
        let its = (record.mode, record.ticket);
        let is_passed = match record.status {
            RecordStatus::Granted { .. } | RecordStatus::Issued => true,
            RecordStatus::Queued | RecordStatus::Waiting => false,
        };
        match ledger {
            Some(named) => named == its,
            None => {
                record.mode == Mode::Exclusive || !is_passed || self.live.get(&client) == Some(&its)
            }
        }
    }

    /// This ticket, which was ended, is remembered.
    pub(super) fn revoke(&mut self, client: ClientId, mode: Mode, ticket: Ticket) {
        if self.record(client, mode, ticket).is_some() {
            self.records.remove(&client);
        }
        let revoked = self.revoked.entry(client).or_default();
        revoked.retain(|r| (r.mode, r.ticket) != (mode, ticket));
        if revoked.len() >= REVOKED_MAX {
            revoked.remove(0);
        }
        revoked.push(Revoked { mode, ticket, seen: false });
    }

    /// Whether there are tickets that are skipped at their turn.
    pub(super) fn has_to_skip(&self) -> bool {
        !self.given_up.is_empty() || !self.shares_given_up.is_empty() || !self.gaps.is_empty()
    }

    /// Nothing is remembered of this client but what it has given up.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.records.remove(&client);
        self.revoked.remove(&client);
        self.settled.remove(&client);
        self.suspects.remove(&client);
    }

    /// What the client's ledger says now tells which of what is remembered of it can be dropped.
    pub(super) fn told(&mut self, client: ClientId, entry: LedgerEntry) {
        let ledger = named(entry);
        // one that it gave up may be followed by one that it has not written there yet
        let may_be_older = ledger.is_none() || is_given_up(entry);
        if let Some(revoked) = self.revoked.get_mut(&client) {
            revoked.retain_mut(|r| {
                let is_named = ledger == Some((r.mode, r.ticket));
                r.seen |= is_named;
                is_named || !r.seen && may_be_older
            });
            if revoked.is_empty() {
                self.revoked.remove(&client);
            }
        }
        if self.settled.get(&client).is_some_and(|t| ledger.map(|l| l.1) != Some(*t)) {
            self.settled.remove(&client);
        }
        self.suspect_told(client, entry, ledger);
    }

    /// Forgets what the word says is done. Everything kept here is open or younger than a lap.
    pub(super) fn drop_done(&mut self, word: FairWord) {
        let is_done = |mode: Mode, t: Ticket| mode == Mode::Exclusive && !word.is_open(t.tx);
        self.records.retain(|_, r| !is_done(r.mode, r.ticket));
        self.live.retain(|_, &mut (mode, ticket)| !is_done(mode, ticket));
        if word.mx() < lane::divert() && word.nx() <= word.mx() {
            self.turns.clear();
        }
        if self.head_since.is_some() && (self.head != word.nx() || word.open_exclusive() == 0) {
            self.head_since = None;
            self.head_intents.clear();
        }
    }

    /// What is next in the exclusive lane and is nobody's: the number behind it, unless there is
    /// none. At most `max` tickets.
    pub(super) fn next_after_skipped(&self, word: FairWord, max: usize) -> Option<u16> {
        let mut nx = word.nx();
        for _ in 0..max {
            if nx == word.mx() {
                break;
            }
            nx = match self.gaps.get(&nx) {
                Some(&end) => end,
                None if self.given_up.contains_key(&nx) => lane::plus(nx, 1),
                None => break,
            };
        }
        (nx != word.nx()).then_some(nx)
    }

    /// The exclusive tickets before `nx` are skipped, from `word` on.
    pub(super) fn has_skipped(&mut self, word: FairWord, nx: u16) {
        let mut at = word.nx();
        while at != nx {
            at = match self.gaps.remove(&at) {
                Some(end) => end,
                None => {
                    if let Some(client) = self.given_up.remove(&at) {
                        self.skipped(client);
                    }
                    lane::plus(at, 1)
                }
            };
        }
    }

    /// Whether this share is inside, or has its turn.
    pub(super) fn is_served(&self, word: FairWord, client: ClientId, ticket: Ticket) -> bool {
        word.is_served(ticket.tx) || self.turns.contains(&(client, ticket))
    }

    /// These shares, and no others but those that are given up, have had their turn.
    pub(super) fn have_their_turn(&mut self, served: impl Iterator<Item = (ClientId, Ticket)>) {
        self.turns.retain(|&(client, ticket)| has_share(&self.shares_given_up, client, ticket));
        self.turns.extend(served);
    }

    /// Shared tickets that were given up and have their turn: at most `max`.
    pub(super) fn served_given_up(&self, word: FairWord, max: usize) -> Vec<(Ticket, ClientId)> {
        // those that wait lie between nx and mx
        let (nx, mx) = (word.nx(), word.mx());
        let all = &self.shares_given_up;
        let served: [_; 2] = match nx <= mx {
            true => [all.range(..=nx), all.range(mx.saturating_add(1)..)],
            false => [all.range(mx.saturating_add(1)..=nx), all.range(nx..nx)],
        };
        let tickets = served.into_iter().flatten().flat_map(|(&tx, shares)| {
            shares.iter().map(move |&(ts, client)| (Ticket { tx, ts }, client))
        });
        let turns = self.turns.iter().map(|&(client, ticket)| (ticket, client));
        let passed = turns.filter(|&(t, c)| !word.is_served(t.tx) && has_share(all, c, t));
        tickets.filter(|(t, _)| word.is_served(t.tx)).chain(passed).take(max).collect()
    }

    /// These shares, which were given up, are taken off.
    pub(super) fn have_been_skipped(&mut self, shares: &[(Ticket, ClientId)]) {
        for &(ticket, client) in shares {
            if let Some(same) = self.shares_given_up.get_mut(&ticket.tx) {
                same.remove(&(ticket.ts, client));
                if same.is_empty() {
                    self.shares_given_up.remove(&ticket.tx);
                }
            }
            self.skipped(client);
        }
    }
}

fn has_share(shares: &Shares, client: ClientId, ticket: Ticket) -> bool {
    shares.get(&ticket.tx).is_some_and(|same| same.contains(&(ticket.ts, client)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::LedgerState;

    #[test]
    fn what_was_ended_of_a_proxied_client_is_not_believed_when_its_ledger_counts() {
        let client = ClientId::new(7).unwrap();
        let ticket = Ticket { tx: 0, ts: 1 };
        let held = LedgerEntry::of_ticket(LedgerState::HeldShared, ticket);
        let ended = || {
            let mut fair = FairState::default();
            fair.has_taken(client, (Mode::Shared, ticket), true);
            assert_eq!(fair.has_no_more(client), Some((Mode::Shared, ticket)));
            fair.revoke(client, Mode::Shared, ticket);
            fair
        };
        let mut fair = ended();
        fair.unproxy(client); // the note that drops the ticket was lost with its channel
        fair.told(client, held);
        assert!(fair.is_revoked(client, Mode::Shared, ticket));
        fair.told(client, LedgerEntry::new());
        assert!(fair.is_empty(), "its ledger has dropped it");
        let mut fair = ended();
        fair.noted(client, held);
        assert!(fair.is_revoked(client, Mode::Shared, ticket), "named still");
        fair.noted(client, held.with_state(LedgerState::GivenUpShared));
        assert!(fair.is_empty(), "it knows");
        let mut fair = ended();
        fair.noted(client, LedgerEntry::new());
        assert!(fair.is_empty());
        let mut fair = ended();
        fair.issued(client, (Mode::Shared, Ticket { tx: 0, ts: 2 }), true);
        assert!(!fair.is_revoked(client, Mode::Shared, ticket), "it asks for one at a time");
    }

    /// As by a lapse, which ends what a client has and what is recorded of it.
    #[test]
    fn a_ticket_that_is_ended_twice_leaves_room_for_the_one_before() {
        let client = ClientId::new(7).unwrap();
        let [first, second] = [0, 1].map(|ts| Ticket { tx: 0, ts });
        let mut fair = FairState::default();
        for ticket in [first, second, second] {
            fair.revoke(client, Mode::Shared, ticket);
        }
        assert!([first, second].iter().all(|&t| fair.is_revoked(client, Mode::Shared, t)));
    }

    #[test]
    fn what_was_seen_at_the_head_does_not_count_for_a_later_ticket_of_its_number() {
        let since = Some(ServerTime(9));
        let mut fair = FairState { head_since: since, head: 5, ..FairState::default() };
        let word = FairWord::new().with_nx(5).with_mx(6);
        fair.drop_done(word);
        assert_eq!(fair.head_since, since);
        fair.drop_done(word.with_mx(5));
        assert_eq!(fair.head_since, None);
    }

    /// It has noted nothing since.
    #[test]
    fn a_ticket_is_not_taken_for_one_of_an_earlier_lap_that_was_ended() {
        let client = ClientId::new(7).unwrap();
        let ticket = Ticket { tx: 0, ts: 1 };
        for is_proxied in [false, true] {
            let mut fair = FairState::default();
            fair.revoke(client, Mode::Shared, ticket);
            fair.has_taken(client, (Mode::Shared, ticket), is_proxied);
            assert!(!fair.is_revoked(client, Mode::Shared, ticket));
        }
    }

    #[test]
    fn a_ticket_that_is_skipped_makes_room_for_one_that_is_given_up_and_no_more() {
        let client = ClientId::new(7).unwrap();
        let mut fair = FairState::default();
        for tx in 0..=GIVEN_UP_MAX {
            fair.give_up(client, Mode::Exclusive, Ticket { tx, ts: 0 });
        }
        fair.skipped(client);
        assert!(fair.has_given_up_too_many(client));
        fair.skipped(client);
        assert!(!fair.has_given_up_too_many(client));
    }
}
