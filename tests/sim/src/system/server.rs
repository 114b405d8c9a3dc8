// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of the primary: what `dlock-server` does around `Primary`. Its effects are executed
//! in [`members`](super::members).
//! ```text
//!   inbox ─▶ Serve ─▶ Event ─▶ Primary ─▶ Effect
//! ```

use dlock_core::clock::NS;
use dlock_core::ids::{ClientId, Epoch, Seq, Slot};
use dlock_core::limits::{FAIR_GRACE, LOOK_S};
use dlock_core::lock::LockEntry;
use dlock_core::membership::{Ending, Exit, Orphans, Rules, State};
use dlock_core::memory::word_op::{Chain, Values, WordOp};
use dlock_core::memory::words::{AtomicWord, RwWord, TurnWord};
use dlock_core::primary::{Effect, Event, Primary, PrimaryConfig, Sent};
use dlock_core::roster::{self, known, Change, Clients};
use dlock_core::token::TokenFloor;
use dlock_core::wire::fabric::FabricSet;
use dlock_core::wire::message::{LockType, Mode};

use super::control::Answer;
use super::kept::Kept;
use super::state::{Arrived, Ask, Client, Doing, Ev, Frame, Life, Session, Sys, Thread, Unit};
use super::turns::{work_of, Turns};
use super::twin::Twin;

/// The connection number for all connections of a process that has ended.
pub(crate) const EXITED: u32 = u32::MAX - 1;

/// The primary, if there is one, and the rest of the world.
pub(crate) struct World {
    pub sys: Sys,
    pub primary: Option<Primary>,
    /// A second primary, which gets the same events.
    pub(super) twin: Option<Twin>,
    /// The prepared sessions.
    pub prepared: Vec<Session>,
    pub out: Vec<Sent>,
    /// The roster: the clients that the primaries keep for their successors.
    pub(super) kept_clients: Clients,
    /// A bound above all tokens given so far, as the primaries keep it for their successors.
    pub(super) kept_tokens: u64,
    /// The clients of the roster that this primary found at its start and awaits.
    pub(super) awaited: Clients,
    /// The number of secrets that were drawn.
    pub(super) secrets: u128,
    /// Arrivals still to be served before membership learns which clients were heard.
    pub unheard: usize,
    /// Locks that are free while their waiters sleep: since when, and the word.
    asleep: Vec<Option<(u64, u64)>>,
    /// Fair locks whose next owner sleeps at its turn: since when, and the word.
    untold: Vec<Option<(u64, u64)>>,
    pub(super) turns: Turns,
    /// The standbys, and the lock file of their list of clients.
    pub(super) watches: Vec<super::standby::Watch>,
    pub(super) place: super::standby::Place,
    pub(super) kept: Vec<Kept>,
}

/// A free fair lock whose waiters sleep is passed on within this time: the grace of a ticket that
/// no client claims, and a margin.
const FAIR_SLEEP_NS_MAX: u64 = FAIR_GRACE.ns() + NS / 2;

/// A client that sleeps at its turn gets its wake-up from the client that has handed the lock on,
/// not from the arbiter's next look.
const TURN_SLEEP_NS_MAX: u64 = LOOK_S as u64 * NS / 2;

/// As [`FAIR_SLEEP_NS_MAX`], for a lock of readers and writers whose wake-up was lost with the
/// session or channel of its sender.
const RW_SLEEP_NS_MAX: u64 = LOOK_S as u64 * NS + NS / 10;

/// Of a thousand recoveries without horizons, those in which the successor has the roster.
const KNOWN: u32 = 500;

/// The rules of a primary for this plan.
fn rules(sys: &Sys) -> Rules {
    Rules {
        tp_mode: 0,
        grace_ns: Some(sys.plan.grace_ns),
        orphans: Orphans::Lease,
        offered: FabricSet::all(),
        channels_max: u64::MAX,
        files_max: u64::MAX,
        recovers_by_itself: false, // plans set the horizons
        device_refuses: true,
        undone_at_once: 0, // the schedule itself decides how much is undone at once
    }
}

impl World {
    pub fn new(sys: Sys, is_twice: bool) -> Self {
        let (prepared, out) = (Vec::new(), Vec::new());
        let none = vec![None; sys.plan.locks.len()];
        let (primary, unheard, asleep, untold) = (None, 0, none.clone(), none);
        let kept = vec![None; sys.plan.locks.len()];
        let (kept_clients, awaited) = (Clients::new(), Clients::new());
        let mut world = Self {
            sys,
            primary,
            twin: None,
            prepared,
            out,
            kept_clients,
            kept_tokens: 0,
            awaited,
            secrets: 0,
            unheard,
            asleep,
            untold,
            turns: Turns::new(),
            watches: Vec::new(),
            place: super::standby::Place::new(),
            kept,
        };
        world.sys.first_rules();
        world.twin = is_twice.then(|| Twin::of(world.fresh_primary(0)));
        world.begins(0);
        world.stand_by();
        world
    }

    /// Starts an empty primary.
    fn begins(&mut self, recovery_clients: u32) {
        self.primary = Some(self.fresh_primary(recovery_clients));
        self.twin = self.twin.is_some().then(|| Twin::of(self.fresh_primary(recovery_clients)));
        self.tells(Event::Rules(self.sys.rules_of_now()));
    }

    fn fresh_primary(&self, recovery_clients: u32) -> Primary {
        let sys = &self.sys;
        let config = PrimaryConfig {
            epoch: Epoch(sys.epoch.into()),
            tp_mode: 0,
            recovery_clients,
            clients_max: sys.plan.clients_max,
            locks_max: sys.plan.locks_max,
            objects_max: sys.plan.objects_max,
            absent_grace_ns: Some(sys.plan.grace_ns),
            tokens: TokenFloor::new(sys.server_now(), sys.server_now().0 / NS, self.kept_tokens),
        };
        Primary::new(config, rules(sys))
    }

    /// Ends the primary, with its memory and all its connections.
    pub fn crash_primary(&mut self) {
        let sys = &mut self.sys;
        self.primary = None;
        sys.alive = false;
        sys.unfenced.clear();
        sys.oracle.primary_ended();
        sys.inbox.clear();
        sys.missing.clear();
        sys.sessions.clear();
        self.has_nothing(None);
        let sys = &mut self.sys;
        let memory = std::mem::take(&mut sys.memory);
        sys.dead.push((sys.epoch, memory));
        for c in 0..sys.clients.len() {
            if sys.clients[c].life == Life::Leaving {
                sys.exit(c); // the successor does not wait for this client
                continue;
            }
            let ns = sys.takes(20_000);
            let (inc, gen) = (sys.clients[c].inc, sys.clients[c].gen);
            sys.after(ns, Ev::Reset(c as u8, inc, gen));
        }
        sys.log(|| "the primary is gone".to_string());
        if !self.primary_is_watched() {
            let ns = self.sys.rng.below(3_000_000_000);
            self.sys.after(ns, Ev::Successor);
        }
    }

    /// Starts a successor; it waits for all clients that were let in and are alive.
    pub fn successor(&mut self) {
        let sys = &mut self.sys;
        sys.dead_offsets.push((sys.epoch, sys.offset));
        sys.oracle.primary_ended(); // leases that clients know were granted by the old primary

        // the clock may have been set back, but the epoch grows
        let epoch = roster::epoch::next(0, Some(sys.epoch.into()), None);
        sys.epoch = epoch.map_or(sys.epoch, |epoch| epoch.0 as _);
        sys.alive = true;
        sys.memory = super::memory::Memory::new(sys.plan.locks_max + sys.plan.objects_max);
        if sys.plan.drift {
            sys.offset += sys.rng.below(20_000_000_000) as i64 - 10_000_000_000;
        }
        let stays = |life| matches!(life, Life::Up | Life::Broken);
        let expected = sys.clients.iter().filter(|c| c.id.is_some() && stays(c.life));
        let expected: Vec<ClientId> = expected.filter_map(|c| c.id).collect();
        let is_known = sys.plan.horizon_s > 0 || sys.rng.chance(KNOWN);
        let counted = if is_known { 0 } else { expected.len() as u32 };
        let deadline_s = sys.rng.pick(&[0, 1, 5, 30]);
        self.begins(counted);
        // a client without a horizon is awaited without end, so it must come
        let horizon_s = self.sys.plan.horizon_s;
        let sys = &self.sys;
        let comes = |client: &ClientId| horizon_s > 0 || expected.contains(client);
        self.kept_clients.retain(|client, kept| {
            !kept.is_dead(|process| sys.has_ended(process)) && (!kept.has_locks || comes(client))
        });
        self.awaited = if is_known { self.kept_clients.clone() } else { Clients::new() };
        Change::Started.apply(&mut self.kept_clients);
        self.tells(Event::Awaits { known: known(&self.awaited), deadline_s });
        let progress = self.primary.as_ref().and_then(|primary| primary.locks().progress());
        self.sys.recovering = progress.is_some();
        self.sys.log(|| format!("a successor: {progress:?}"));
        self.prepared.clear();
        self.unheard = 0;
        self.turns = Turns::new();
        self.schedule_tick();
    }

    /// Handles one thing that has arrived.
    pub fn serve(&mut self) {
        let mut rests_until = 0;
        self.sys.serve_pending = false;
        if self.primary.is_some() {
            match self.next_to_serve() {
                Ok(i) => self.serve_one(i),
                Err(until) => rests_until = until,
            }
        }
        self.sys.serve_pending = !self.sys.inbox.is_empty();
        if self.sys.serve_pending {
            let ns = self.sys.takes(200);
            let at = (self.sys.now + ns).max(self.sys.frozen_until).max(rests_until);
            self.sys.at(at, Ev::Serve);
        }
        self.schedule_tick();
    }

    fn serve_one(&mut self, i: usize) {
        let Some(arrived) = self.sys.inbox.remove(i) else { return };
        // arrivals before membership's question are served before its answer
        self.sys.serve_pending = true;
        let (before, is_of_these) = (self.unheard, i < self.unheard);
        let work = work_of(&arrived);
        self.is_served(&arrived);
        self.arrived(arrived);
        self.was_served(work);
        if before == 1 && is_of_these {
            self.tells(Event::Listened);
        }
        if is_of_these {
            self.unheard = before - 1;
        }
        self.finish_turn();
    }

    fn arrived(&mut self, arrived: Arrived) {
        match arrived {
            Arrived::Unit { client, inc, gen, unit } => {
                self.unit_arrived(client.into(), inc, gen, unit);
            }
            Arrived::Control { client, inc, conn, number, ask, .. } => {
                let c = usize::from(client);
                if let Some(answer) = self.control(c, (inc, conn), ask) {
                    answer_control(&mut self.sys, c, (inc, conn, number), answer);
                }
            }
            Arrived::Lost { client, inc, conn, why } => self.lost(client.into(), inc, conn, why),
        }
    }

    /// Ends a turn of the primary: executes effects, checks, and delivers replies.
    pub(super) fn finish_turn(&mut self) {
        self.settle_members();
        self.nothing_stays_prepared();
        if let Some(primary) = &self.primary {
            self.sys.recovering = primary.locks().is_recovering();
            // a client that is being ended is judged by its horizon when that begins
            let ends = |id| matches!(self.state(id), Some(State::Ending(_)));
            match primary.locks().progress().map(|progress| progress.missing.into_iter()) {
                Some(all) => self.sys.missing = all.filter(|m| !ends(m.0)).collect(),
                None => self.nobody_is_given_up_unheard(),
            }
        }
        self.sys.deliver(&mut self.out);
        let members = self.primary.as_ref().map(Primary::members);
        if let Some(Err(why)) = members.map(|members| members.assert_consistent()) {
            self.sys.fail(why);
        }
        self.words_and_acts();
    }

    /// Drops a channel whose client has not read for too long.
    pub fn stalled(&mut self, c: u8, inc: u16, gen: u32) {
        let sys = &mut self.sys;
        let until = sys.clients[usize::from(c)].blocked_down;
        let mut sessions = sys.sessions.iter_mut();
        let session = sessions.find(|s| (s.client, s.inc, s.gen) == (c, inc, gen) && gen != 0);
        let Some(s) = session.filter(|_| until > sys.now) else { return };
        let (id, channel) = (s.id, s.channel);
        if self.primary.is_some() {
            self.close_channel(id, Event::ChannelEnded { client: id, channel, unfenced: false });
            self.finish_turn();
            self.schedule_tick();
        }
    }

    pub(super) fn schedule_tick(&mut self) {
        let Some(primary) = &self.primary else { return };
        let now = self.sys.server_now();
        // quarantined clients raise no event, so they are looked at from time to time
        let again = primary.members().has_quarantined().then(|| now.plus_ns(NS));
        let has_slices = primary.locks().next_wakeup().is_some_and(|at| at <= now);
        if let Some(at) = primary.next_wakeup().into_iter().chain(again).min() {
            let mut at = self.sys.true_time(at).max(self.sys.now).max(self.sys.frozen_until);
            if has_slices {
                // other events are served between two slices, now and then many
                at += match self.sys.rng.below(16) {
                    0 => self.sys.takes(200_000_000),
                    1..=4 => self.sys.takes(2_000_000),
                    _ => self.sys.takes(2_000),
                };
            }
            if self.sys.tick_at.is_none_or(|known| known > at) {
                // a slice that comes late is not the primary's fault
                if has_slices && at > self.sys.now + NS {
                    self.sys.put_off_until = self.sys.put_off_until.max(at);
                }
                self.sys.tick_at = Some(at);
                self.sys.at(at, Ev::Tick(at));
            }
        }
    }

    /// Handles a tick: everything whose deadline has passed.
    pub fn tick(&mut self, at: u64) {
        if self.sys.tick_at != Some(at) {
            return;
        }
        self.sys.tick_at = None;
        if self.primary.is_none() {
            return;
        }
        self.sys.mix(0x71c ^ self.sys.server_now().0);
        self.step();
        self.tells(Event::Retry);
        let before = self.states();
        self.tells(Event::Tick);
        self.nobody_is_ended_unheard(&before);
        self.finish_turn();
        self.schedule_tick();
    }

    /// Checks that no client is ended for silence whose request had come before its horizon.
    fn nobody_is_ended_unheard(&mut self, before: &[(ClientId, State)]) {
        let is_silent = |state| state == State::Ending(Ending::Lapse(Exit::Horizon));
        for &(id, state) in before {
            let ends = self.state(id).is_some_and(is_silent) && !is_silent(state);
            let Some(s) = self.sys.session(id).filter(|_| ends).copied() else { continue };
            let until = self.primary.as_ref().and_then(|primary| primary.members().until(id));
            let is_in_time = |arrived: &Arrived| match arrived {
                Arrived::Control { at, client, inc, conn, .. } => {
                    let is_of = (*client, *inc, *conn) == (s.client, s.inc, s.conn);
                    is_of && until.is_some_and(|until| *at < until) // later requests may be ignored
                }
                _ => false,
            };
            if self.sys.inbox.iter().any(is_in_time) {
                let c = s.client;
                self.sys.fail(format!("session: client {c} is ended, and its request has come"));
            }
        }
    }

    /// Checks, when the recovery is over, that no missing client had sent its request in time.
    fn nobody_is_given_up_unheard(&mut self) {
        for (id, until) in std::mem::take(&mut self.sys.missing) {
            let is_in_time = |arrived: &Arrived| match arrived {
                Arrived::Control { at, client, inc, ask: Ask::Join { reinit, .. }, .. } => {
                    let lives = self.sys.clients[usize::from(*client)].inc == *inc;
                    let is_of = reinit.is_some_and(|(client, _)| client == id);
                    lives && is_of && until.is_none_or(|until| *at < until)
                }
                _ => false,
            };
            if self.sys.inbox.iter().any(is_in_time) {
                self.sys.fail(format!("recovery: {id:?} is given up, and its request has come"));
            }
        }
    }

    /// Does a slice of the primary's own work; a small one, so that other events come between.
    pub(super) fn step(&mut self) {
        if self.primary.is_none() {
            return;
        }
        let budget = match self.sys.rng.below(2) {
            0 => 1,
            _ => 1 + self.sys.rng.below(30) as u32,
        };
        self.tells(Event::Upkeep { budget });
    }

    /// The state of a member of the primary.
    pub(super) fn state(&self, client: ClientId) -> Option<State> {
        self.primary.as_ref().and_then(|primary| primary.members().state(client))
    }

    /// All members of the primary.
    pub(super) fn states(&self) -> Vec<(ClientId, State)> {
        self.primary.iter().flat_map(|primary| primary.members().iter()).collect()
    }

    fn unit_arrived(&mut self, c: usize, inc: u16, gen: u32, unit: Unit) {
        let sys = &mut self.sys;
        let open = sys.sessions_of(c, inc).find(|s| s.gen == gen && gen != 0);
        let Some((id, channel)) = open.map(|s| (s.id, s.channel)) else { return };
        match unit {
            Unit::Batch { lock, tok, chain, .. } => {
                let outcome = self.handle(Event::Chain { client: id, chain });
                if let Some(Effect::Outcome(outcome)) = outcome {
                    self.sys.send_down(c, inc, gen, Frame::Outcome { lock, tok, outcome });
                }
            }
            Unit::Note { handle, entry, .. } => {
                self.tells(Event::Note { client: id, handle, entry });
            }
            Unit::End => {
                self.tells(Event::ChannelEnded { client: id, channel, unfenced: false });
                if let Some(s) = self.sys.session(id) {
                    s.gen = 0;
                }
            }
            Unit::Request { seq, request } => {
                sys.log(|| format!("primary: {} {seq} {request:?}", id.get()));
                let seq = Seq(u64::from(gen) << 32 | seq.0); // channels share no request number
                let before = self.before(c, Some(0));
                self.handle(Event::Command { client: id, seq, request });
                let mut answers =
                    self.out.iter().filter(|sent| (sent.client, sent.seq) == (id, seq));
                let refused = answers.find_map(|sent| super::rules::refusal(&sent.reply));
                if let Some(before) = before {
                    self.was_lawful(c, &request, before, refused);
                }
            }
        }
    }

    /// Checks that no waiter sleeps before a free lock while nothing under way could wake it.
    pub fn nobody_sleeps_before_a_free_lock(&mut self) {
        self.sys.notes_losses();
        let Some(primary) = &self.primary else { return };
        let sys = &self.sys;
        if !sys.inbox.is_empty()
            || sys.serve_pending
            || sys.clients.iter().any(|c| !c.up.is_empty())
        {
            return;
        }
        for l in (0..sys.plan.locks.len()).filter(|&l| sys.plan.locks[l] != LockType::Atomic) {
            let threads = || sys.clients.iter().map(|c| &c.threads[l]);
            let Some(slot) = sys.slot_of(l, primary) else { continue };
            let word = sys.lock_word(slot, sys.plan.locks[l]);
            let free = RwWord::from_bits(word).with_waiters(false) == RwWord::new();
            let asleep = |t: &Thread| match t.doing {
                // a client that doubts its release sends its wake-up with its next operation
                Doing::Idle | Doing::Nothing => !t.entry.as_ref().is_some_and(|e| e.in_doubt()),
                Doing::Reply { is_wait } => is_wait && t.answer.is_none(),
                _ => false,
            };
            // a client with a ticket that does not wait, or with a hold, makes others wait
            let has_nothing = |t: &Thread| match (&t.doing, &t.entry) {
                (Doing::Idle, Some(entry)) => entry.ticket().is_none(),
                (Doing::Nothing | Doing::Reply { .. }, _) | (Doing::Idle, None) => true,
                _ => false,
            };
            let free = match sys.plan.locks[l] {
                LockType::Fair => {
                    threads().all(has_nothing) && sys.clients.iter().all(|c| c.down.is_empty())
                }
                _ => free,
            };
            let sleeps = free && primary.locks().waiters(slot) > 0 && threads().all(asleep);
            let since = match self.asleep[l].filter(|since| sleeps && since.1 == word) {
                Some((since, _)) => since,
                None => sys.now,
            };
            self.asleep[l] = sleeps.then_some((since, word));
            // the client whose turn it is sleeps, and no other client does anything
            let turn = TurnWord::from_bits(word);
            let has_its_turn = |t: &Thread| {
                let ticket = t.entry.as_ref().filter(|_| asleep(t)).and_then(|e| e.ticket());
                let waits = matches!(t.doing, Doing::Reply { is_wait: true });
                waits && ticket.is_some_and(|ticket| turn.serves(Mode::Exclusive, ticket))
            };
            let is_untold = sys.plan.locks[l] == LockType::Fair
                && threads().any(has_its_turn)
                && threads().all(asleep)
                && sys.clients.iter().all(|c| c.down.is_empty());
            let since_turn = self.untold[l].filter(|since| is_untold && since.1 == word);
            let since_turn = since_turn.map_or(sys.now, |since| since.0);
            self.untold[l] = is_untold.then_some((since_turn, word));
            let is_lost = sys.losses.may_be_lost(l, since_turn);
            let max_ns = if is_lost { RW_SLEEP_NS_MAX } else { TURN_SLEEP_NS_MAX };
            if is_untold && sys.now - since_turn > max_ns {
                return self.sys.fail(format!("liveness: lock {l} is not told to its owner"));
            }
            let max_ns = match sys.plan.locks[l] {
                LockType::Fair => FAIR_SLEEP_NS_MAX,
                _ if sys.losses.may_be_lost(l, since) => RW_SLEEP_NS_MAX,
                _ => 0,
            };
            if sleeps && (max_ns == 0 || sys.now - since > max_ns) {
                self.sys.fail(format!("liveness: lock {l} is free, and its waiters are asleep"));
                return;
            }
        }
    }

    /// Checks that the reader count of each word is at least the number of relying readers.
    pub(super) fn readers_are_counted(&mut self) {
        let Some(primary) =
            self.primary.as_ref().filter(|primary| !primary.locks().is_recovering())
        else {
            return;
        };
        for l in 0..self.sys.plan.locks.len() {
            let Some(slot) = self.sys.slot_of(l, primary) else { continue };
            let word = self.sys.lock_word(slot, self.sys.plan.locks[l]);
            let counted = match self.sys.plan.locks[l] {
                LockType::Atomic => continue,
                LockType::Rw => u64::from(RwWord::from_bits(word).rcount()),
                LockType::Fair => {
                    let (taken, turn) = self.sys.fair_words(slot);
                    u64::from(taken.ms().saturating_sub(turn.ns()))
                }
            };
            let readers = self.sys.oracle.readers(l, self.sys.now);
            if readers > counted {
                self.sys.fail(format!("count: {readers} readers rely on lock {l}: {word:#x}"));
                return;
            }
        }
    }

    /// Checks the waiters bits: set if a client is queued; on an atomic word, only then.
    pub(super) fn waiters_bits(&mut self) {
        let Some(primary) = &self.primary else { return };
        for l in 0..self.sys.plan.locks.len() {
            let Some(slot) = self.sys.slot_of(l, primary) else { continue };
            let word = *self.sys.memory.word(Sys::w0(slot));
            let queued = primary.locks().waiters(slot);
            let bit = match self.sys.plan.locks[l] {
                LockType::Atomic => AtomicWord::from_bits(word).waiters(),
                LockType::Rw => RwWord::from_bits(word).waiters() || queued == 0,
                LockType::Fair => continue,
            };
            let atomic = self.sys.plan.locks[l] == LockType::Atomic;
            if queued > 0 && !bit || atomic && bit && queued == 0 {
                self.sys.fail(format!("queue: {queued} are queued for lock {l}: {word:#x}"));
            }
        }
    }
}

impl Sys {
    /// The slot of the lock, by a client that has its handle and that the primary knows and is not
    /// about to forget. Another client may remember a slot that another lock or an object has by
    /// now, because its lock was destroyed.
    pub(super) fn slot_of(&self, l: usize, primary: &Primary) -> Option<Slot> {
        let stays = |s: &Session| !s.left && !primary.locks().is_leaving(s.id);
        let knows = |c: &&Client| self.sessions.iter().any(|s| Some(s.id) == c.id && stays(s));
        let threads = self.clients.iter().filter(knows).map(|c| &c.threads[l]);
        let bound = |t: &&Thread| t.epoch == self.epoch && t.doing != Doing::Control;
        let entries = threads.filter(bound).filter_map(|t| t.entry.as_ref());
        { entries }.find(|entry| !entry.has_left()).map(LockEntry::slot)
    }
}

/// Executes a chain on the primary's processor; other clients' word operations come in between.
pub(super) fn execute(sys: &mut Sys, id: ClientId, chain: &Chain) -> Values {
    let mut values = Values::new();
    for word_op in chain.ops() {
        sys.others();
        let value = match *word_op {
            WordOp::Cas { addr, expect, swap } if sys.bugs.split_cas => {
                dlock_core::memory::exec::LockMemory::cas(sys, addr, expect, swap)
            }
            _ => sys.word_op(sys.epoch, id, word_op),
        };
        values.push(value);
        if let WordOp::ReadPair { addr } = *word_op {
            values.push(sys.word_op(sys.epoch, id, &WordOp::Read { addr: addr.next() }));
        }
    }
    values
}

fn answer_control(sys: &mut Sys, c: usize, to: (u16, u32, u32), answer: Answer) {
    let ns = sys.takes(10_000);
    let client = &mut sys.clients[c];
    let at = (sys.now + ns).max(client.control_down_last + 1).max(client.blocked_down);
    client.control_down_last = at;
    client.control_down.push_back((to.0, to.1, to.2, answer));
    sys.at(at, Ev::ControlDown(c as u8));
}
