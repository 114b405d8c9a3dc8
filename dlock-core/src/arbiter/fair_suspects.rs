// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares that nobody claimed were passed over: clients that may come out with one later.

use super::queue::Claims;
use super::state::{FairState, Record};
use super::Ctx;
use crate::ids::ClientId;
use crate::message::Mode;
use crate::planted::{self, Bug};
use crate::words::{FairWord, LedgerEntry, Ticket};

/// A client that may own a share which was taken off already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Suspect {
    /// Its ledger has said so since.
    Intends(LedgerEntry),
    /// It came out with this one.
    Names(Ticket),
    /// It was away, and what it has was ended, while its ledger said that it may have a share: it
    /// may name that share when it comes back.
    Lapsed,
}

/// Takes unclaimed shares off. A suspect that names a share later does not have it.
pub(super) fn pass_over(
    ctx: &mut Ctx<'_>,
    fair: &mut FairState,
    word: FairWord,
    n: u16,
    suspects: Vec<(ClientId, LedgerEntry)>,
) -> bool {
    if ctx.cas(word.into_bits(), word.shared_done(n).into_bits())
        && !planted::is(Bug::PassedOverForgotten)
    {
        let suspects = suspects.into_iter().map(|(client, i)| (client, Suspect::Intends(i)));
        fair.suspects.extend(suspects);
    }
    true
}

impl Claims {
    /// Whether the client of this intent, which it had some time ago, may have a share under it
    /// that it does not name.
    pub(super) fn may_have_share(&self, client: ClientId, intent: LedgerEntry) -> bool {
        intent.is_intent_of(Mode::Shared) && self.intends(client, intent)
    }
}

impl FairState {
    /// The client was away, and what it has was ended; its ledger said this, which names nothing.
    /// What it intended may be passed over, or is already.
    pub(super) fn suspect_lapsed(
        &mut self,
        client: ClientId,
        entry: LedgerEntry,
        was: Option<Suspect>,
    ) {
        let may_have = was.is_some() || entry.is_intent_of(Mode::Shared);
        if may_have && !planted::is(Bug::LapsedTrusted) {
            self.suspects.insert(client, Suspect::Lapsed);
        }
    }

    /// Whether this client's share may have been taken off already, as one that nobody claimed.
    pub(super) fn is_suspect(&self, client: ClientId, mode: Mode) -> bool {
        let is_known = !planted::is(Bug::SuspectTrusted);
        mode == Mode::Shared && is_known && self.suspects.contains_key(&client)
    }

    /// The client's ledger says this now.
    pub(super) fn suspect_told(
        &mut self,
        client: ClientId,
        entry: LedgerEntry,
        named: Option<(Mode, Ticket)>,
    ) {
        let Some(suspect) = self.suspects.get_mut(&client) else { return };
        match (*suspect, named) {
            (Suspect::Intends(_) | Suspect::Lapsed, Some((Mode::Shared, ticket))) => {
                *suspect = Suspect::Names(ticket);
            }
            (Suspect::Lapsed, None) if entry == LedgerEntry::new() => {} // as it was cleared
            (Suspect::Intends(intent), _) if intent == entry => {}
            (Suspect::Names(its), Some((_, ticket))) if its == ticket => {}
            (its, _) => {
                // what it asked for under that ticket may have been taken off, too
                let is_its = |r: &Record| its == Suspect::Names(r.ticket);
                self.records.retain(|&c, r| c != client || !is_its(r));
                self.suspects.remove(&client);
            }
        }
    }
}
