// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tcp client that means harm, and two honest ones: the first holds a lock for ever, the second
//! waits for it. No act of the hostile client ends the hold or lets a client in beside the holder.
//! When the holder has released the lock and the hostile client is gone, the second client gets the
//! lock.

use dlock_core::clock::{Deadline, Lease, NS};
use dlock_core::ids::Seq;
use dlock_core::locks::Sent;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, RwWord, TakenWord, Ticket, TurnWord};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

use super::{World, TYPES};
use crate::tape::Tape;

const HOLDER: usize = 0;
const WAITER: usize = 1;
pub(super) const HOSTILE: usize = 2;

/// The hold of the first honest client, and the wait of the second one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    lock_type: LockType,
    mode: Mode,
    /// For a fair lock, the ticket of the holder.
    ticket: Ticket,
    /// The number of the waiter's request.
    waits: Seq,
}

impl World {
    /// Sets up the honest clients if this is a hostile run.
    pub(super) fn take_victim(&mut self, tape: &mut Tape<'_>) {
        let choice = tape.u8();
        if self.wild || choice & 1 == 0 {
            return;
        }
        let lock_type = TYPES[usize::from(choice >> 1) % 3];
        let shared = choice & 0x80 != 0 && lock_type != LockType::Atomic;
        let mode = if shared { Mode::Shared } else { Mode::Exclusive };
        let Some(slot) = self.slot_of(lock_type) else { return };
        let addr = WordAddr::new(slot, Word::W0);
        // not every lane has room for an addition
        self.memory.set(addr, 0);
        if lock_type == LockType::Fair {
            self.memory.set(addr, TakenWord::START.into_bits());
            self.memory.set(WordAddr::new(slot, Word::W1), TurnWord::START.into_bits());
        }
        let me = self.clients[HOLDER].as_ref().map_or(0, |known| known.client.get());
        let ticket = match (lock_type, mode) {
            (LockType::Atomic, _) => {
                let mine = AtomicWord::new().with_client(me).with_timeout(Deadline::NEVER);
                self.honest(HOLDER, WordOp::Cas { addr, expect: 0, swap: mine.into_bits() });
                Ticket::default()
            }
            (LockType::Rw, Mode::Exclusive) => {
                let mine = RwWord::new().with_client(me).into_bits();
                self.honest(HOLDER, WordOp::Cas { addr, expect: 0, swap: mine });
                Ticket::default()
            }
            (LockType::Rw, Mode::Shared) => {
                self.honest(HOLDER, WordOp::Faa { addr, add: 1 });
                Ticket::default()
            }
            (LockType::Fair, mode) => self.take_ticket(HOLDER, addr, mode),
        };
        let waiters =
            (lock_type == LockType::Fair).then(|| self.take_ticket(WAITER, addr, Mode::Exclusive));
        let Some(known) = &mut self.clients[WAITER] else { return };
        known.seq += 1;
        let (waits, Some(grant)) = (Seq(known.seq), known.grants[lock_type as usize]) else {
            return;
        };
        let wait = WaitNumber(9);
        let (handle, mode_wanted, lease) = (grant.handle, Mode::Exclusive, Lease::ENDLESS);
        self.victim = Some(Victim { lock_type, mode, ticket, waits });
        let ticket = waiters;
        self.command(WAITER, Request::Wait { handle, mode: mode_wanted, lease, wait, ticket });
        self.check_victim();
    }

    /// Executes a word operation that the primary must permit; returns the old value.
    fn honest(&mut self, at: usize, word_op: WordOp) -> u64 {
        let client = self.clients[at].as_ref().map(|known| known.client).expect("it is there");
        let chain = Chain::one(word_op);
        let checked = self.primary.check_chain(self.now, &mut self.memory, client, &chain);
        assert!(checked.is_ok(), "an honest client's {word_op:?}: {checked:?}");
        let values = self.memory.execute(client, &chain);
        self.primary.executed(&mut self.memory, client, &chain, &values);
        values[0]
    }

    fn take_ticket(&mut self, at: usize, addr: WordAddr, mode: Mode) -> Ticket {
        let entry = LedgerEntry::claim(mode, 1).with_deadline(Deadline::NEVER);
        let handle = self.handle(at, LockType::Fair as usize);
        self.honest(at, WordOp::WriteLedger { handle, value: entry.into_bits() });
        let old = self.honest(at, WordOp::Faa { addr, add: TakenWord::addend(mode) });
        let lap = self.memory.peek(WordAddr::new(addr.slot(), Word::Fence));
        TakenWord::from_bits(old).next(lap)
    }

    /// Checks that the hold stands, and that the waiter still waits.
    pub(super) fn check_victim(&mut self) {
        let Some(victim) = self.victim else { return };
        let (Some(slot), Some(holder)) = (self.slot_of(victim.lock_type), &self.clients[HOLDER])
        else {
            panic!("the honest clients are gone");
        };
        let (bits, me) = (self.memory.peek(WordAddr::new(slot, Word::W0)), holder.client.get());
        let turn = TurnWord::from_bits(self.memory.peek(WordAddr::new(slot, Word::W1)));
        match (victim.lock_type, victim.mode) {
            (LockType::Atomic, _) => {
                assert_eq!(AtomicWord::from_bits(bits).client(), me, "{victim:?}");
            }
            (LockType::Rw, Mode::Exclusive) => {
                assert_eq!(RwWord::from_bits(bits).client(), me, "{victim:?}");
            }
            (LockType::Rw, Mode::Shared) => {
                let word = RwWord::from_bits(bits);
                assert!(word.rcount() > 0 && word.client() == 0, "{victim:?} {word:?}");
            }
            (LockType::Fair, Mode::Exclusive) => {
                assert_eq!(turn.nx(), victim.ticket.tx, "{victim:?}");
            }
            (LockType::Fair, Mode::Shared) => {
                let [now, first] = [turn, TurnWord::START].map(|turn| (turn.nx(), turn.ns()));
                assert_eq!(now, first, "{victim:?}");
            }
        }
        let waiter = self.clients[WAITER].as_ref().expect("the honest clients stay");
        assert!(waiter.unanswered.contains_key(&victim.waits), "{victim:?}: let in beside it");
    }

    /// Checks an answer to the hostile client while the hold stands.
    pub(super) fn check_granted(&self, sent: &Sent, request: &Request) {
        let Some(victim) = self.victim else { return };
        let Some(known) = &self.clients[HOSTILE] else { return };
        let about = known.grants[victim.lock_type as usize].map(|grant| grant.handle);
        let is_it = sent.client == known.client && request.handle() == about && about.is_some();
        let exclusive = match *request {
            Request::Wait { mode, .. }
            | Request::Poll { mode, .. }
            | Request::TakeTicket { mode, .. }
            | Request::Steal { mode, .. }
            | Request::Try { mode, .. }
            | Request::Keep { mode, .. }
            | Request::Extend { mode, .. } => mode == Mode::Exclusive,
            Request::Downgrade { .. } => false,
            _ => true,
        };
        if is_it && matches!(sent.reply, Reply::Granted { .. }) {
            let beside = exclusive || victim.mode == Mode::Exclusive;
            assert!(!beside, "{victim:?}: {request:?} was granted beside it");
        }
    }

    /// Removes the hostile client and has the holder release. Checks that the waiter then gets the
    /// lock.
    pub(super) fn end_victim(&mut self) {
        let Some(victim) = self.victim.take() else { return };
        self.fence(HOSTILE);
        let handle = self.handle(HOLDER, victim.lock_type as usize);
        let slot = self.slot_of(victim.lock_type).expect("the honest clients stay");
        let addr = WordAddr::new(slot, Word::W0);
        if (victim.lock_type, victim.mode) == (LockType::Rw, Mode::Shared) {
            self.honest(HOLDER, WordOp::Faa { addr, add: u64::MAX });
            self.request_of(HOLDER, Request::Wake { handle });
        } else {
            let ticket = (victim.lock_type == LockType::Fair).then_some(victim.ticket);
            self.request_of(HOLDER, Request::Release { handle, mode: victim.mode, ticket });
        }
        self.now = self.now.plus_ns(NS);
        self.tick();
        let waiter = self.clients[WAITER].as_ref().expect("the honest clients stay");
        assert!(!waiter.unanswered.contains_key(&victim.waits), "{victim:?}: not handed over");
    }

    fn request_of(&mut self, at: usize, request: Request) {
        if let Some(known) = &mut self.clients[at] {
            known.seq += 1;
        }
        self.command(at, request);
    }
}
