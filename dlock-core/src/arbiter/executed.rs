// SPDX-License-Identifier: MIT OR Apache-2.0
//! Word operations that the primary executes for a client: whether it may, and what follows.
//!
//! ```text
//!   chain ─▶ may ─ yes ─▶ executed ─▶ executed_word_op ─▶ what a proxied client has
//!                                                     └─▶ its ledger says so: no note follows
//! ```
//! What such an operation did is known here at once. So the primary writes to the client's ledger
//! what the client would have to write next, and the client writes nothing
//! ([`NotedBy::Primary`](crate::lock::NotedBy)): of the intent that the same chain has written
//! nothing is left to be published.

use super::{fair, rw, Arbiter, LockRef};
use crate::exec::LockMemory;
use crate::ids::{ClientId, Handle, Slot};
use crate::message::{LockType, Mode};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::word_op::WordOp;
use crate::words::{FairWord, LedgerEntry, LedgerState, RwWord};

impl Arbiter {
    /// Whether a client may have this word operation executed on the word of a read-write or fair
    /// lock, which is `seen` now.
    ///
    /// # Errors
    /// `Invalid`: no client of this kind makes such a change, or not this one now. `Fail`: the
    /// lanes of a fair lock have no room now.
    pub fn may(
        &self,
        slot: Slot,
        lock_type: LockType,
        client: ClientId,
        seen: u64,
        word_op: &WordOp,
    ) -> Result<(), Status> {
        let (state, proxied) = (self.locks.get(&slot), self.proxied.contains(client));
        match (lock_type, *word_op) {
            (LockType::Rw, WordOp::Faa { add, .. }) => {
                let has_share = state.is_some_and(|s| s.rw.knows(client));
                rw::may_add(seen, add, proxied.then_some(has_share))
            }
            (LockType::Fair, WordOp::Faa { add, .. }) => {
                let state = state.map(|s| &s.fair).filter(|_| proxied);
                fair::may_take(state, client, seen, add)
            }
            (LockType::Fair, WordOp::Cas { expect, swap, .. }) => {
                // a frame from before the client went over to another fabric
                if !proxied && state.is_some_and(|s| fair::is_ended(&s.fair, client, expect)) {
                    return Err(Status::Invalid);
                }
                let live = state.and_then(|s| s.fair.live.get(&client).copied());
                fair::may_finish(expect, swap, proxied.then_some(live))
            }
            _ => Err(Status::Invalid),
        }
    }

    /// The primary has executed a word operation on the word of a lock for this client (a tcp
    /// client), and found `old` there: what the client has taken or left is known from now on, and
    /// its ledger says so. `noted`: what the same chain has written to its ledger before.
    pub fn executed_word_op(
        &mut self,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        (client, handle): (ClientId, Handle),
        noted: LedgerEntry,
        word_op: &WordOp,
        old: u64,
    ) {
        let proxied = self.proxied.contains(client);
        let intent = Some(noted).filter(|noted| noted.state() == LedgerState::Intent);
        let note = match (lock.lock_type, *word_op) {
            (LockType::Rw, WordOp::Faa { add, .. }) => {
                if proxied {
                    let state = self.state(lock.slot);
                    match add {
                        1 => _ = state.rw.shares.insert(client),
                        _ => state.rw.gave_back(client),
                    }
                }
                let is_inside = add == 1 && RwWord::from_bits(old).admits_reader();
                let intent = intent.filter(|_| is_inside);
                intent.map(|intent| intent.with_state(LedgerState::HeldShared))
            }
            (LockType::Fair, WordOp::Faa { add, .. }) => {
                let mode = match add {
                    FairWord::TAKE_EXCLUSIVE => Mode::Exclusive,
                    _ => Mode::Shared,
                };
                let (word, anchor_s) = (FairWord::from_bits(old), self.anchor_s);
                let ticket = word.next();
                let fair = &mut self.state(lock.slot).fair;
                if proxied {
                    fair::gives_up_live(mem, fair, client, handle);
                }
                fair.issued(client, (mode, ticket), proxied);
                // a relayed word does not tell whether it is served: the client asks
                let is_served = word.serves_next(mode) && !word.is_relayed();
                intent.map(|intent| {
                    let until_s = is_served.then(|| intent.deadline_s(anchor_s));
                    LedgerEntry::of_taken(mode, ticket, until_s, anchor_s)
                })
            }
            (LockType::Fair, WordOp::Cas { expect, .. }) if old == expect => {
                let is_done =
                    fair::is_done(FairWord::from_bits(expect), mem.ledger(client, handle));
                if proxied {
                    fair::has_no_more(mem, &mut self.state(lock.slot).fair, client, handle);
                }
                is_done.then(LedgerEntry::new)
            }
            _ => None,
        };
        if let Some(note) = note.filter(|_| !planted::is(Bug::PrimaryNotesNothing)) {
            mem.set_ledger(client, handle, note);
            self.noted(mem, lock, (client, handle), note);
        }
        self.drop_if_empty(lock.slot);
    }

    /// A note of a client whose notes this primary executes has taken effect. Of a ticket that the
    /// client has not got it does not.
    pub fn noted(
        &mut self,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        (client, handle): (ClientId, Handle),
        entry: LedgerEntry,
    ) {
        let is_proxied = self.proxied.contains(client);
        let mut state = self.locks.get_mut(&lock.slot);
        if let Some(state) = &mut state {
            self.proxied.tell(state);
        }
        if is_proxied && lock.lock_type == LockType::Fair {
            let noted = fair::as_noted(state.as_deref().map(|s| &s.fair), client, entry);
            if noted != entry {
                mem.set_ledger(client, handle, noted);
            }
        }
        if let Some(state) = state {
            fair::noted(&mut state.fair, client, entry, is_proxied);
        }
    }
}
