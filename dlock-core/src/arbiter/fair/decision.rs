// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one look at a fair lock decides: which turns it passes, which shares it counts as done, and
//! which clients it grants the lock.
//!
//! ```text
//!   view ─▶ shares that no client may have are done ─▶ clients at their turn are granted the lock
//!             ▲                                                  │
//!             └───── the number at the head is unowned: passed ◀─┘
//! ```
//! A decision counts once one compare-and-swap, from the word that was read, has changed the word.
//!
//! * An exclusive number at the head that no client is known to have can only belong to a claim
//!   that was in a ledger when the number was first seen at the head, because a client writes the
//!   claim before it takes the ticket. The number is passed when all those claims are over, gone,
//!   or known to have another ticket, and no client may rely on a share before the number.
//! * A share does not tell whose it is. Let `end` be the first share behind the head, and L the
//!   clients that may rely on a share at the head. If more shares are open before `end` than L has
//!   clients, those beyond count as done. A client that is not in L, and names one of them later,
//!   is refused.
//! * Turns are passed, and shares counted as done, only while clients wait, or after something was
//!   undone. Until then a client keeps the lock even after its lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::Waiter;
use super::state::{FairState, Has, Head, Passed, Status, View};
use crate::clock::{Deadline, ServerTime};
use crate::ids::ClientId;
use crate::memory::words::{diverts_from, Ticket, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, WaitNumber};

/// The most numbers, or ranges of numbers, that one look passes.
pub(super) const STEPS_MAX: usize = 8;

/// The decision of one look.
pub(super) struct Decision<'a> {
    view: &'a View,
    pub(super) turn: TurnWord,
    pub(super) fair: FairState,
    pub(super) queue: VecDeque<Waiter>,
    /// Waiters that get an answer: the end of their lease and their ticket, or `None`: refused.
    pub(super) answers: Vec<(Waiter, Option<(Deadline, Ticket)>)>,
    /// Whether there is more to pass.
    pub(super) is_unfinished: bool,
    /// When the arbiter looks at the lock again.
    pub(super) next: Option<ServerTime>,
}

impl<'a> Decision<'a> {
    pub(super) fn of(
        view: &'a View,
        mut fair: FairState,
        queue: VecDeque<Waiter>,
        is_kept: bool,
    ) -> Self {
        view.drop_over(&mut fair);
        let (turn, answers) = (view.turn, Vec::new());
        let mut d = Self { view, turn, fair, queue, answers, is_unfinished: true, next: None };
        let head = d.fair.head.clone();
        d.refuse();
        for _ in 0..STEPS_MAX {
            if !d.advance() {
                d.is_unfinished = false;
                break;
            }
        }
        d.refuse();
        d.turn.set_told(d.is_arbiters() || is_kept);
        if d.turn != view.turn {
            d.turn.set_parked(false); // clients that sleep on the word look again
        }
        if view.is_idle(d.turn) {
            d.fair.unsettled = false;
        }
        let is_granted = d.answers.iter().any(|(_, grant)| grant.is_some());
        if is_granted || d.fair.head != head {
            d.fair.looks = 0;
        }
        d.schedule();
        d
    }

    /// Whether only the arbiter may change the word from now on: a client sleeps, or the share of a
    /// client was counted as done without its knowledge, because its clock stood still. (The
    /// arbiter also says so of a kept lock, so that clients that want it ask.)
    fn is_arbiters(&self) -> bool {
        let sleeps = |w: &Waiter| w.wait != WaitNumber(0);
        let sleeps = self.queue.iter().any(sleeps) && !planted::is(Bug::SleepersUntold);
        let mut clients = self.view.clients.iter();
        sleeps || clients.any(|(&client, &entry)| self.fair.may_release_once_more(client, entry))
    }

    /// Whether others wait for what clients have, so that a hold ends when its lease is over.
    fn is_wanted(&self) -> bool {
        !self.queue.is_empty() || self.fair.unsettled || !self.fair.held_back.is_empty()
    }

    /// Refuses waiters whose places are gone.
    fn refuse(&mut self) {
        let (fair, turn) = (&self.fair, self.turn);
        let has_place = |w: &Waiter| {
            let record = fair.records.get(&w.caller.client);
            record.is_some_and(|r| {
                let is_passed = r.mode == Mode::Shared && fair.is_passed(w.caller.client, r.ticket);
                !turn.is_past(r.ticket) && !is_passed
            })
        };
        let (queue, refused) = std::mem::take(&mut self.queue).into_iter().partition(has_place);
        self.queue = queue;
        let refused: VecDeque<Waiter> = refused;
        self.answers.extend(refused.into_iter().map(|waiter| (waiter, None)));
    }

    fn all(&self) -> impl Iterator<Item = (ClientId, u32, Has)> + '_ {
        let clients = self.view.clients.iter();
        clients.map(|(&client, &entry)| {
            (client, entry.entry.stamp(), self.view.has(&self.fair, client, entry))
        })
    }

    /// One step of the decision; returns whether it has brought a new number to the head.
    fn advance(&mut self) -> bool {
        let nx = self.turn.nx();
        self.begin_graces(nx);
        let may_share = |has: Has| match has {
            Has::Known { mode, ticket, live } => live && mode == Mode::Shared && ticket.tx == nx,
            Has::Unknown(mode) => mode == Mode::Shared && !planted::is(Bug::LiveSharesPassed),
            Has::Nothing => false,
        };
        let live: BTreeSet<ClientId> =
            self.all().filter(|&(.., has)| may_share(has)).map(|(client, ..)| client).collect();
        let head = self.all().find_map(|(.., has)| match has {
            Has::Known { mode: Mode::Exclusive, ticket, live } if ticket.tx == nx => {
                Some((ticket, live))
            }
            _ => None,
        });
        let is_open = self.view.taken.mx() > nx;
        self.count_shares(head.map(|(ticket, _)| ticket), is_open, &live);
        self.grant(nx);
        if !is_open {
            self.fair.head = None;
            return false;
        }
        self.may_own(nx, head.is_some());
        if !self.is_wanted() || head.is_some_and(|(_, live)| live) {
            return false;
        }
        let is_claimed = self.fair.head.as_ref().is_some_and(|h| !h.may_own.is_empty())
            && !planted::is(Bug::HeadClaimIgnored);
        let has_shares_before = match head {
            Some((ticket, _)) => self.turn.ns() != ticket.ts,
            None => !live.is_empty(),
        };
        if is_claimed || has_shares_before && !planted::is(Bug::HeadBeforeShares) {
            return false;
        }
        self.turn.set_nx(self.after_head(nx, live.is_empty()));
        self.fair.head = None;
        true
    }

    /// Begins the grace of each kept ticket that has its turn and that others want.
    fn begin_graces(&mut self, nx: u32) {
        if !self.is_wanted() {
            return;
        }
        let (turn, now) = (self.turn, self.view.now);
        for record in self.fair.records.values_mut() {
            let is_turn = record.ticket.tx == nx && turn.serves(record.mode, record.ticket);
            if record.status == Status::Kept && is_turn {
                record.since.get_or_insert(now);
            }
        }
    }

    /// Counts shares before the head as done if no client can rely on them.
    fn count_shares(&mut self, head: Option<Ticket>, is_open: bool, live: &BTreeSet<ClientId>) {
        let end = match head {
            Some(ticket) => ticket.ts,
            None if is_open => return,
            None => self.view.taken.ms(),
        };
        let (ns, may) = (self.turn.ns(), live.len() as u32);
        // clients may have taken and released shares since `w0` was read; only if the ticket at the
        // head is known, more shares done than taken means that a client forged the word
        if ns > end {
            if head.is_some() {
                self.turn.set_ns(end);
            }
        } else if self.is_wanted() && end - ns > may {
            self.turn.set_ns(end - may);
            self.fair.passed = Some(Passed { below: end, live: live.clone() });
        }
    }

    /// Grants the lock to the waiters at their turn.
    fn grant(&mut self, nx: u32) {
        for waiter in std::mem::take(&mut self.queue) {
            let client = waiter.caller.client;
            let record = self.fair.records.get(&client).copied();
            let Some(mut record) = record.filter(|r| {
                let is_passed = r.mode == Mode::Shared && self.fair.is_passed(client, r.ticket);
                r.ticket.tx == nx && self.turn.serves(r.mode, r.ticket) && !is_passed
            }) else {
                self.queue.push_back(waiter);
                continue;
            };
            let deadline = self.view.now.deadline(waiter.lease);
            record.status = Status::Granted { deadline };
            self.answers.push((waiter, Some((deadline, record.ticket))));
            self.fair.records.insert(client, record);
        }
    }

    /// Notes which claims may own the number at the head: those that were in a ledger when the
    /// number was first seen there, and still are.
    fn may_own(&mut self, nx: u32, is_known: bool) {
        let is_given_out = nx >= diverts_from();
        let intents: BTreeMap<ClientId, u32> = match is_known || is_given_out {
            // the arbiter knows the client to which it gave this number
            true => BTreeMap::new(),
            false => {
                let is_intent = |has: &Has| *has == Has::Unknown(Mode::Exclusive);
                let all = self.all().filter(|(.., has)| is_intent(has));
                all.map(|(client, stamp, _)| (client, stamp)).collect()
            }
        };
        match &mut self.fair.head {
            Some(head) if head.nx == nx => {
                head.may_own.retain(|client, stamp| intents.get(client) == Some(stamp));
            }
            head => *head = Some(Head { nx, may_own: intents }),
        }
    }

    /// The number that is next when the one at the head is passed. Numbers after it that no client
    /// can own are passed with it.
    fn after_head(&self, nx: u32, has_no_shares: bool) -> u32 {
        let has_intents = self.all().any(|(.., has)| matches!(has, Has::Unknown(_)));
        if has_intents || !has_no_shares {
            return nx + 1;
        }
        let known = self.fair.records.values().map(|r| r.ticket.tx).filter(|&tx| tx > nx);
        known.min().unwrap_or(u32::MAX).min(self.view.taken.mx())
    }

    /// Sets when to look again: when a claim or a grace ends that keeps others waiting, and now and
    /// then, because clients change what they have without a message.
    fn schedule(&mut self) {
        if !self.is_wanted() || self.view.is_idle(self.turn) {
            return;
        }
        let now = self.view.now;
        let ends_of_claims = self.view.clients.iter().filter_map(|(&client, &entry)| {
            let has = self.view.has(&self.fair, client, entry);
            matches!(has, Has::Known { live: true, .. } | Has::Unknown(_)).then_some(entry.until)
        });
        let ends = self.fair.records.values().filter_map(|record| match record.status {
            Status::Granted { deadline } => Some(deadline.expiry()),
            _ => record.grace_end(),
        });
        let times = ends_of_claims.chain(ends).chain(self.fair.next_look(now));
        self.next = times.filter(|&time| time > now && time.0 != u64::MAX).min();
    }
}
