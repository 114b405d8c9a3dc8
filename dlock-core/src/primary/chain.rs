// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chains that the primary executes for a tcp client: what they may touch, and how.
//!
//! | word of | allowed |
//! |---|---|
//! | atomic lock | Cas free or expired → me · mine → mine · mine → 0, bit untouched; Read |
//! | read-write lock | Cas 0 → me · me → none, count and bit untouched; Faa ±1; Read |
//! | fair lock | Faa one ticket; Cas one ticket done; Read |
//! | object | anything |
//! | any other word | Read |
//! | ledger | the entry of a handle of its own |

use super::{lock_ref, Primary};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle, Slot};
use crate::message::LockType;
use crate::registry::{Client, What};
use crate::status::Status;
use crate::verb::{Chain, Values, Verb, Word, WordAddr};
use crate::words::{AtomicWord, FairWord, RwWord};

impl Primary {
    /// Whether this client may have this chain executed. Nothing was executed if not.
    ///
    /// # Errors
    /// `NotReady` in recovery; `LockNotGet`, `ObjectNotGet` for words it has not got; `Invalid`
    /// for changes that no client of this kind of lock makes.
    pub fn check_chain(
        &self,
        now: ServerTime,
        client: ClientId,
        chain: &Chain,
    ) -> Result<(), Status> {
        if self.recovering {
            return Err(Status::NotReady);
        }
        let known = self.registry.clients.get(client).ok_or(Status::ClientRemoved)?;
        chain.verbs().iter().try_for_each(|verb| match *verb {
            Verb::Note { handle, .. } => check_note(known, handle),
            Verb::Read { addr } => self.what(known, addr.slot()).map(|_| ()),
            Verb::Cas { addr, expect, swap } => {
                let may = match self.changeable(known, addr)? {
                    None => true,
                    Some(LockType::Atomic) => atomic_cas(client, now, expect, swap),
                    Some(LockType::Rw) => rw_cas(client, expect, swap),
                    Some(LockType::Fair) => fair_cas(expect, swap),
                };
                may.then_some(()).ok_or(Status::Invalid)
            }
            Verb::Faa { addr, add } => {
                let may = match self.changeable(known, addr)? {
                    None => true,
                    Some(LockType::Atomic) => false,
                    Some(LockType::Rw) => add == 1 || add == u64::MAX,
                    Some(LockType::Fair) => {
                        add == FairWord::TAKE_EXCLUSIVE || add == FairWord::TAKE_SHARED
                    }
                };
                may.then_some(()).ok_or(Status::Invalid)
            }
        })
    }

    /// Whether this client may have this note executed on its own.
    ///
    /// # Errors
    /// As [`check_chain`](Self::check_chain).
    pub fn check_note(&self, client: ClientId, handle: Handle) -> Result<(), Status> {
        let known = self.registry.clients.get(client).ok_or(Status::ClientRemoved)?;
        check_note(known, handle)
    }

    /// The driver has executed a chain that was checked. (A note that came on its own is a chain
    /// of one.)
    pub fn executed(&mut self, client: ClientId, chain: &Chain, values: &Values) {
        let tells = |verb: &Verb| matches!(verb, Verb::Note { .. } | Verb::Faa { .. });
        if !chain.verbs().iter().any(tells) {
            return;
        }
        let Some(known) = self.registry.clients.get(client) else { return };
        for verb in chain.verbs() {
            match *verb {
                Verb::Note { handle, .. } => {
                    if let Some(entry) = known.handle(handle) {
                        self.arbiter.noted(entry.slot, client);
                    }
                }
                Verb::Faa { addr, .. } => {
                    if let Some(lock) = lock_ref(&self.registry, addr.slot()) {
                        self.arbiter.executed(lock, client, chain, values);
                    }
                }
                _ => {}
            }
        }
    }

    /// What the client has got in this slot.
    fn what(&self, client: &Client, slot: Slot) -> Result<What, Status> {
        let handle = client.handle_of(slot).ok_or(Status::LockNotGet)?;
        match client.handle(handle).ok_or(Status::LockNotGet)?.what {
            What::Stale(_) => Err(Status::ObjectNotGet),
            what => Ok(what),
        }
    }

    /// The kind of lock a changing verb goes to; `None`: an object's value.
    fn changeable(&self, client: &Client, addr: WordAddr) -> Result<Option<LockType>, Status> {
        let what = self.what(client, addr.slot())?;
        if addr.word() != Word::W0 {
            return Err(Status::Invalid);
        }
        match what {
            What::Lock(_, lock_type) => Ok(Some(lock_type)),
            _ => Ok(None),
        }
    }
}

fn check_note(client: &Client, handle: Handle) -> Result<(), Status> {
    match client.handle(handle).map(|entry| entry.what) {
        Some(What::Lock(..)) => Ok(()),
        _ => Err(Status::LockNotGet),
    }
}

fn atomic_cas(client: ClientId, now: ServerTime, expect: u64, swap: u64) -> bool {
    let (old, new) = (AtomicWord::from_bits(expect), AtomicWord::from_bits(swap));
    let mine = old.client() == client.get();
    if swap == 0 {
        return mine && !old.waiters();
    }
    let free = expect == 0 || (!old.waiters() && now >= ServerTime::expiry_of(old.timeout()));
    new.client() == client.get() && old.waiters() == new.waiters() && (mine || free)
}

fn rw_cas(client: ClientId, expect: u64, swap: u64) -> bool {
    let (old, new) = (RwWord::from_bits(expect), RwWord::from_bits(swap));
    let acquire = expect == 0 && swap == RwWord::new().with_client(client.get()).into_bits();
    let release = old.client() == client.get() && !old.waiters() && new == old.with_client(0);
    acquire || release
}

fn fair_cas(expect: u64, swap: u64) -> bool {
    let (old, new) = (FairWord::from_bits(expect), FairWord::from_bits(swap));
    let exclusive_done = old.nx() != old.mx() && new == old.with_nx(old.nx().wrapping_add(1));
    let shared_done = old.ns() != old.ms() && new == old.with_ns(old.ns().wrapping_add(1));
    exclusive_done || shared_done
}
