// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chains that the primary executes for a tcp client: which words they may touch, and how.
//!
//! | word of | allowed |
//! |---|---|
//! | atomic lock | Cas free or expired → me · mine → longer · mine → 0, bit untouched; Read |
//! | read-write lock | Cas 0 → me · me → none, count and bit untouched; Faa ±1 own share; Read |
//! | fair lock | Faa of `w0`: one ticket; Cas of `w1`: its own ticket done; Read |
//! | object | anything |
//! | any other word | Read |
//! | ledger | the entry of a handle of its own; to lengthen a fair hold needs the right to lock |
//!
//! A chain changes at most one read-write or fair lock, and that once. The arbiter knows the shares
//! and tickets of clients that have never operated on the words themselves.

use super::{lock_ref, Locks};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Chain, Values, Word, WordAddr, WordOp};
use crate::memory::words::{AtomicWord, LedgerEntry, RwWord};
use crate::planted::{self, Bug};
use crate::registry::{Client, What};
use crate::token::RW_END;
use crate::wire::message::LockType;
use crate::wire::status::Status;

impl Locks {
    /// Checks whether the primary may execute this chain for this client now. `Ok(true)`: after the
    /// execution, the caller must call [`executed`](Self::executed).
    ///
    /// # Errors
    /// Nothing was executed. `Denied`: no rule allows the chain
    /// ([`chain_was_denied`](Self::chain_was_denied)). `NotReady`: in recovery. `LockNotGet`,
    /// `ObjectNotGet`: a word of a lock or an object that the client has not got. `Invalid`: a
    /// change that no client makes to such a lock, or that this client may not make now. `Fail`: a
    /// fair lock has no room for a ticket.
    pub fn check_chain(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        chain: &Chain,
    ) -> Result<bool, Status> {
        if self.recovering {
            return Err(Status::NotReady);
        }
        let known = self.known(client).ok_or(Status::ClientRemoved)?;
        let mut is_changed = false;
        for word_op in chain.ops() {
            let addr = match *word_op {
                WordOp::WriteLedger { handle, value } => {
                    self.check_note(mem, client, handle, LedgerEntry::from_bits(value))?;
                    continue;
                }
                WordOp::Read { addr } | WordOp::ReadPair { addr } => {
                    // Both words of a pair must be in the slot that the client has got.
                    let is_pair = matches!(word_op, WordOp::ReadPair { .. });
                    valid(!is_pair || addr.next().slot() == addr.slot())?;
                    let what = self.what(known, addr.slot())?;
                    self.may_operate(client, what, word_op)?;
                    continue;
                }
                WordOp::Cas { addr, .. } | WordOp::Faa { addr, .. } => addr,
            };
            self.may_operate(client, self.what(known, addr.slot())?, word_op)?;
            if addr.word() == Word::Fence {
                valid(self.may_count(mem, known, client, addr, word_op))?;
                continue;
            }
            let lock_type = match (self.changeable(known, addr, word_op)?, *word_op) {
                (None, _) => continue, // an object's value
                (Some(LockType::Atomic), WordOp::Cas { expect, swap, .. }) => {
                    valid(atomic_cas(client, now, expect, swap))?;
                    continue;
                }
                (Some(LockType::Rw), WordOp::Cas { expect, swap, .. }) => {
                    valid(rw_cas(client, expect, swap))?;
                    continue;
                }
                (Some(lock_type), _) => lock_type,
            };
            // After the first change the arbiter does not know enough to check a second one.
            valid(!is_changed)?;
            is_changed = true;
            self.arbiter.may(addr.slot(), lock_type, client, mem.read(addr), word_op)?;
        }
        Ok(is_changed)
    }

    /// Checks whether the primary may execute this single ledger write for this client.
    ///
    /// # Errors
    /// As for [`check_chain`](Self::check_chain).
    pub fn check_note(
        &self,
        mem: &mut dyn LockMemory,
        client: ClientId,
        handle: Handle,
        entry: LedgerEntry,
    ) -> Result<(), Status> {
        let known = self.known(client).ok_or(Status::ClientRemoved)?;
        if !matches!(known.handle(handle).map(|entry| entry.what), Some(What::Lock(..))) {
            return Err(Status::LockNotGet);
        }
        match self.missing_for_note(mem, client, handle, entry) {
            Some(_) => Err(Status::Denied),
            None => Ok(()),
        }
    }

    /// Handles that the memory has executed a checked chain, or a single ledger write (a chain of
    /// one).
    pub fn executed(
        &mut self,
        mem: &mut dyn LockMemory,
        client: ClientId,
        chain: &Chain,
        values: &Values,
    ) {
        let mut noted = None;
        for (word_op, &old) in chain.ops().iter().zip(values.as_slice()) {
            match *word_op {
                WordOp::WriteLedger { handle, value } => {
                    let entry = self.known(client).and_then(|known| known.handle(handle));
                    noted = entry.map(|entry| (entry.slot, LedgerEntry::from_bits(value)));
                }
                WordOp::Faa { addr, .. } | WordOp::Cas { addr, .. } => {
                    let Some(known) = self.known(client) else { return };
                    let what = self.what(known, addr.slot());
                    let Some(handle) = known.handle_of(addr.slot()) else { continue };
                    if let Ok(What::Lock(_, LockType::Rw | LockType::Fair)) = what {
                        if let Some(lock) = lock_ref(&self.registry, addr.slot()) {
                            let noted = noted.filter(|noted| noted.0 == lock.slot);
                            let noted = noted.map_or_else(LedgerEntry::new, |noted| noted.1);
                            let whose = (client, handle);
                            self.arbiter.executed_word_op(mem, lock, whose, noted, word_op, old);
                        }
                    }
                }
                WordOp::Read { .. } | WordOp::ReadPair { .. } => {}
            }
        }
    }

    /// The lock or object that the client has got in this slot.
    fn what(&self, client: &Client, slot: Slot) -> Result<What, Status> {
        let handle = client.handle_of(slot).ok_or(Status::LockNotGet)?;
        match client.handle(handle).ok_or(Status::LockNotGet)?.what {
            What::Stale(_) if !planted::is(Bug::ObjectStaleServed) => Err(Status::ObjectNotGet),
            what => Ok(what),
        }
    }

    /// Whether a client may add to a fence word: of an atomic lock 1, which leaves a gap in the
    /// tokens at worst; of a read-write lock `RW_END`, while the client has the exclusive hold that
    /// it is about to end.
    fn may_count(
        &self,
        mem: &mut dyn LockMemory,
        known: &Client,
        client: ClientId,
        addr: WordAddr,
        word_op: &WordOp,
    ) -> bool {
        let owns = |mem: &mut dyn LockMemory| {
            let word = RwWord::from_bits(mem.read(WordAddr::new(addr.slot(), Word::W0)));
            word.client() == client.get() || planted::is(Bug::FenceUnchecked)
        };
        match (self.what(known, addr.slot()), *word_op) {
            (Ok(What::Lock(_, LockType::Atomic)), WordOp::Faa { add: 1, .. }) => true,
            (Ok(What::Lock(_, LockType::Rw)), WordOp::Faa { add: RW_END, .. }) => owns(mem),
            _ => false,
        }
    }

    /// The type of the lock that a word operation changes; `None`: it changes an object's value.
    fn changeable(
        &self,
        client: &Client,
        addr: WordAddr,
        word_op: &WordOp,
    ) -> Result<Option<LockType>, Status> {
        let what = self.what(client, addr.slot())?;
        let word = match (what, word_op) {
            (What::Lock(_, LockType::Fair), WordOp::Cas { .. }) => Word::W1,
            _ => Word::W0,
        };
        valid(addr.word() == word)?;
        match what {
            What::Lock(_, lock_type) => Ok(Some(lock_type)),
            _ => Ok(None),
        }
    }
}

fn atomic_cas(client: ClientId, now: ServerTime, expect: u64, swap: u64) -> bool {
    let (old, new) = (AtomicWord::from_bits(expect), AtomicWord::from_bits(swap));
    let mine = old.client() == client.get();
    if swap == 0 {
        return mine && !old.waiters();
    }
    let free = expect == 0 || (!old.waiters() && now >= old.timeout().expiry());
    // A shorter lease would end without a wake-up of the clients that wait for its end.
    let extends = mine && new.timeout() >= old.timeout() && old.kept() == new.kept();
    let takes = free && !new.kept();
    new.client() == client.get() && old.waiters() == new.waiters() && (extends || takes)
}

fn rw_cas(client: ClientId, expect: u64, swap: u64) -> bool {
    let (old, new) = (RwWord::from_bits(expect), RwWord::from_bits(swap));
    let acquire = expect == 0 && swap == RwWord::new().with_client(client.get()).into_bits();
    let release = old.client() == client.get() && !old.waiters() && new == old.without_owner();
    acquire || release
}

fn valid(may: bool) -> Result<(), Status> {
    may.then_some(()).ok_or(Status::Invalid)
}
