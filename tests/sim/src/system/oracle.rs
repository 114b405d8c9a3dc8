// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checker (a): which client may rely on which lock when, in true time.
//!
//! ```text
//!   granted ──────────── service interval ────────────┐ the first of: the call of the release,
//!                                                     │ its own lease end, the news of its loss,
//!                                                     │ the session's horizon, if it has no lease,
//!                                                     ┘ or none that a primary knows
//! ```
//! The checker knows nothing of words, ledgers or queues: only what clients were told, and when.

use dlock_core::clock::COARSE_NS_MAX;
use dlock_core::wire::control::Place;
use dlock_core::wire::message::Mode;

use super::object_oracle::Objects;
use super::token_oracle::{Tokens, Told as ToldToken};

/// One client's reliance on one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The client.
    pub who: u64,
    /// The mode in which the client holds the lock.
    pub mode: Mode,
    /// When the client got the lock.
    pub from: u64,
    /// The end of the lease as the client computes it; excluded.
    pub until: u64,
    /// Whether this may be a hold without a lease, which ends with the session's horizon as well.
    pub may_be_endless: bool,
    /// Whether the primary that granted this hold has ended, and no successor has confirmed the
    /// hold. Then the hold ends with the horizon as well.
    pub is_unclaimed: bool,
    /// Whether it is exclusive or shared: the answer to a downgrade is still to come.
    pub is_either: bool,
}

/// A lease that its holder knows: no other client is granted the lock before its end.
#[derive(Clone, Copy, Debug)]
struct Lease {
    who: u64,
    mode: Mode,
    /// The end of the lease on the server clock, in true time; excluded.
    end: u64,
    /// Whether the present primary has granted the lease.
    is_of_now: bool,
    /// Whether the holder's process has ended, and the primary has no proof of that.
    is_orphaned: bool,
}

/// A hold as its program knows it. It lasts until the program learns that the lock is released or
/// lost.
#[derive(Clone, Copy, Debug)]
struct Told {
    who: u64,
    mode: Mode,
    /// Another client that has learned since then that it has the lock.
    taken_by: Option<u64>,
    /// Whether the primary that knew of `taken_by` has ended. Then it counts as long as the other
    /// client relies on the lock in a mode that excludes this one.
    is_forgotten: bool,
    /// Whether this may have become a hold without a lease.
    may_be_endless: bool,
    /// When the call under way began: the client that had taken the lock, and the end of the lease
    /// in true time.
    at_call: (Option<u64>, u64),
}

/// The services of one lock, and the order in which its tickets are served.
#[derive(Clone, Debug, Default)]
struct Lock {
    services: Vec<Service>,
    leases: Vec<Lease>,
    told: Vec<Told>,
    /// The leases that clients have claimed at a successor, and their ends in true time; dropped
    /// when the client asks for another lease.
    claimed: Vec<(u64, u64)>,
    /// The horizons, in true time, of the sessions that carry the clients' operations on this lock.
    horizons: Vec<(u64, u64)>,
    /// The occupant of the slot (epoch and generation) to which the tickets belong.
    occupant: (u32, u64),
    last_exclusive: Option<(u64, u32)>,
    /// The last exclusive ticket of an earlier incarnation, and the incarnation that served it.
    last_place: Option<(u32, Place)>,
    tokens: Tokens,
}

/// The checker of locks. Most functions record what their description says has happened, and some
/// return an error if it violates a property.
#[derive(Clone, Debug)]
pub struct Oracle {
    locks: Vec<Lock>,
    /// The number of grants.
    pub grants: u64,
    /// The checker of state objects.
    pub objects: Objects,
}

impl Oracle {
    /// A checker for this many locks.
    pub fn new(locks: usize) -> Self {
        Self { locks: vec![Lock::default(); locks], grants: 0, objects: Objects::default() }
    }

    /// When the client's own clock reaches the horizon of its session.
    pub fn horizon_of(&self, lock: usize, who: u64) -> u64 {
        let horizons = &self.locks[lock].horizons;
        horizons.iter().find(|h| h.0 == who).map_or(u64::MAX, |h| h.1)
    }

    /// A client learns that it holds the lock, or that its hold goes on, until `until`. `is_known`:
    /// the present primary knows of it.
    ///
    /// # Errors
    /// Another client relies on the lock now, and one of the two exclusively.
    pub fn granted(
        &mut self,
        lock: usize,
        who: u64,
        mode: Mode,
        now: u64,
        until: u64,
        is_known: bool,
    ) -> Result<(), String> {
        self.grants += 1;
        let services = &mut self.locks[lock].services;
        services.retain(|s| s.until > now && s.who != who);
        if until <= now {
            return Ok(());
        }
        let may_be_endless = until == u64::MAX;
        let is_unclaimed = !is_known;
        let is_either = false;
        services.push(Service {
            who,
            mode,
            from: now,
            until,
            may_be_endless,
            is_unclaimed,
            is_either,
        });
        self.check(lock, who, now)?;
        if self.relies(lock, who, now) {
            self.takes(lock, who, mode, is_known);
        }
        Ok(())
    }

    /// A client has asked for a hold without a lease. Its present hold may have become one, and
    /// then lasts at most to the horizon that the client knows.
    pub fn asked_for_ever(&mut self, lock: usize, who: u64) {
        for service in self.locks[lock].services.iter_mut().filter(|s| s.who == who) {
            service.may_be_endless = true;
        }
        for told in self.locks[lock].told.iter_mut().filter(|told| told.who == who) {
            told.may_be_endless = true;
        }
        let horizon = self.horizon_of(lock, who);
        for lease in self.locks[lock].leases.iter_mut().filter(|lease| lease.who == who) {
            lease.end = lease.end.min(horizon);
        }
    }

    /// The primary has ended: its successor learns of its leases only from their holders. So a
    /// lease that was over, and taken by another client that has released it since, may go on at
    /// the successor.
    pub fn primary_ended(&mut self) {
        for lock in &mut self.locks {
            lock.services.iter_mut().for_each(|service| service.is_unclaimed = true);
            lock.leases.iter_mut().for_each(|lease| lease.is_of_now = false);
            lock.told.iter_mut().for_each(|told| told.is_forgotten = true);
            lock.leases.retain(|lease| !lease.is_orphaned);
        }
    }

    /// A client has claimed, at a successor, a hold whose lease ends at `end` in true time. An
    /// earlier claim counts.
    pub fn claimed(&mut self, lock: usize, who: u64, end: u64) {
        let claimed = &mut self.locks[lock].claimed;
        if !claimed.iter().any(|one| one.0 == who) {
            claimed.push((who, end));
        }
    }

    /// A client has asked for a lease: its earlier claim counts no longer.
    pub fn asked_anew(&mut self, lock: usize, who: u64) {
        self.locks[lock].claimed.retain(|one| one.0 != who);
    }

    /// A client learns that it holds the lock, and has asked for no lease since its claim.
    ///
    /// # Errors
    /// The claimed lease is over. `margin`: the drift of the clocks since the claim.
    pub fn not_revived(
        &self,
        lock: usize,
        who: u64,
        (now, margin): (u64, u64),
    ) -> Result<(), String> {
        let mut claimed = self.locks[lock].claimed.iter();
        match claimed.find(|one| one.0 == who && one.1.saturating_add(margin) < now) {
            None => Ok(()),
            Some((_, end)) => Err(format!(
                "revived: lock {lock}: client {who:#x} is told at {now} that it holds it, and the \
                 lease that it has claimed ended at {end}"
            )),
        }
    }

    /// A successor has confirmed this client's hold.
    pub fn confirmed(&mut self, lock: usize, who: u64) {
        for service in self.locks[lock].services.iter_mut().filter(|s| s.who == who) {
            (service.is_unclaimed, service.is_either) = (false, false);
        }
    }

    /// A client learns of a lease that ends at `end` on the server clock. The client's own clock
    /// does not matter.
    ///
    /// # Errors
    /// A lease of another client has not ended, and one of the two is exclusive; unless its holder
    /// has given it up, is gone, or is beyond its horizon. Or the lease is shorter than the one
    /// that the same primary granted this client before.
    pub fn leased(
        &mut self,
        lock: usize,
        who: u64,
        mode: Mode,
        now: u64,
        end: u64,
    ) -> Result<(), String> {
        let leases = &mut self.locks[lock].leases;
        let mut told = leases.iter().filter(|lease| lease.who == who && lease.is_of_now);
        if let Some(told) = told.find(|told| told.end > end.max(now)) {
            return Err(format!(
                "lease: lock {lock}: client {who:#x} is told at {now} that its lease ends at \
                 {end}, and was told {} before",
                told.end
            ));
        }
        leases.retain(|lease| lease.end > now && lease.who != who);
        if self.horizon_of(lock, who) <= now {
            return Ok(());
        }
        let leases = &mut self.locks[lock].leases;
        leases.push(Lease { who, mode, end, is_of_now: true, is_orphaned: false });
        let excludes = |l: &&Lease| l.mode == Mode::Exclusive || mode == Mode::Exclusive;
        let leases = self.locks[lock].leases.iter().filter(|lease| lease.who != who);
        let mut others = leases.filter(excludes);
        let lasts = |l: &&Lease| l.is_orphaned || self.horizon_of(lock, l.who) > now;
        match others.find(lasts) {
            None => Ok(()),
            Some(other) => Err(format!(
                "lease: lock {lock}: client {who:#x} is told at {now} that it holds it ({mode:?}), \
                 and the lease of client {:#x} ({:?}) ends at {}",
                other.who, other.mode, other.end
            )),
        }
    }

    /// The client's session was answered or replaced; it carries the client's operations on the
    /// lock. By its own clock the client relies on its hold until `until`.
    ///
    /// # Errors
    /// As [`granted`](Self::granted).
    pub fn horizon(&mut self, lock: usize, who: u64, now: u64, until: u64) -> Result<(), String> {
        let horizons = &mut self.locks[lock].horizons;
        match horizons.iter_mut().find(|h| h.0 == who) {
            Some(known) => known.1 = until,
            None => horizons.push((who, until)),
        }
        self.check(lock, who, now)
    }

    /// Whether the client relies on this service: a lease counts until its end, even beyond the
    /// session's horizon, as long as the primary that granted it lives; a hold without a lease,
    /// until the horizon.
    fn is_live(&self, lock: usize, s: &Service, now: u64) -> bool {
        let ends_with_horizon = s.may_be_endless || s.is_unclaimed;
        s.until > now && (!ends_with_horizon || self.horizon_of(lock, s.who) > now)
    }

    /// Checks that this client's reliance excludes no other client's reliance.
    fn check(&self, lock: usize, who: u64, now: u64) -> Result<(), String> {
        let services = &self.locks[lock].services;
        let live = |s: &&Service| self.is_live(lock, s, now);
        let Some(mine) = services.iter().filter(live).find(|s| s.who == who) else {
            return Ok(());
        };
        let mut others = services.iter().filter(live).filter(|s| s.who != who);
        let excludes = |s: &Service| s.mode == Mode::Exclusive || mine.mode == Mode::Exclusive;
        match others.find(|s| excludes(s)) {
            None => Ok(()),
            Some(other) => Err(format!(
                "exclusion: lock {lock}: client {who:#x} relies on it ({:?}) since {} until {}, \
                 and so does client {:#x} ({:?}) since {} until {}",
                mine.mode, mine.from, mine.until, other.who, other.mode, other.from, other.until
            )),
        }
    }

    /// Whether this client relies on the lock now.
    pub fn relies(&self, lock: usize, who: u64, now: u64) -> bool {
        let mut mine = self.locks[lock].services.iter().filter(|s| s.who == who);
        mine.any(|s| self.is_live(lock, s, now))
    }

    /// The number of readers that rely on the lock now and that the present primary has confirmed.
    pub fn readers(&self, lock: usize, now: u64) -> u64 {
        let known = self.locks[lock].services.iter();
        let known = known.filter(|s| !s.is_unclaimed && !s.is_either);
        let readers = known.filter(|s| s.mode == Mode::Shared && self.is_live(lock, s, now));
        readers.count() as u64
    }

    /// Whether this client has learned that it has the lock, and not that it has lost it since.
    pub fn was_told(&self, lock: usize, who: u64) -> bool {
        self.locks[lock].services.iter().any(|s| s.who == who)
    }

    /// A client calls an operation. If the operation is a release, the client stops relying on the
    /// lock.
    pub fn called(&mut self, lock: usize, who: u64, now: u64, is_release: bool) {
        let taken_by = self.taken_by(lock, who, now);
        let Lock { leases, told, .. } = &mut self.locks[lock];
        if let Some(told) = told.iter_mut().find(|told| told.who == who) {
            let lease = leases.iter().find(|lease| lease.who == who);
            told.at_call = (taken_by, lease.map_or(u64::MAX, |lease| lease.end));
        }
        if is_release {
            self.ended(lock, who);
        }
    }

    /// A client asks for a downgrade: from now on others may share the lock with it.
    pub fn shares(&mut self, lock: usize, who: u64) {
        let Lock { services, leases, told, tokens, .. } = &mut self.locks[lock];
        services.iter_mut().filter(|s| s.who == who).for_each(|s| s.is_either = true);
        let of_services = services.iter_mut().filter(|s| s.who == who).map(|s| &mut s.mode);
        let of_leases = leases.iter_mut().filter(|s| s.who == who).map(|s| &mut s.mode);
        let of_told = told.iter_mut().filter(|s| s.who == who).map(|s| &mut s.mode);
        of_services.chain(of_leases).chain(of_told).for_each(|mode| *mode = Mode::Shared);
        tokens.ended(who);
    }

    /// A call (a release, an extend, a query, a re-entry) tells a client that it had the lock all
    /// the time.
    ///
    /// # Errors
    /// Another client had learned that it has the lock before the call began.
    pub fn had_it(&self, lock: usize, who: u64) -> Result<(), String> {
        match self.told(lock, who).and_then(|told| told.at_call.0) {
            None => Ok(()),
            Some(other) => Err(format!(
                "loss: lock {lock}: client {who:#x} is not told that it has lost it to {other:#x}"
            )),
        }
    }

    /// A release tells a client that it had lost the lock.
    ///
    /// # Errors
    /// No other client has learned that it has the lock, and the lease runs beyond `until`.
    pub fn has_lost_it(&self, lock: usize, who: u64, until: u64) -> Result<(), String> {
        let kept = self.told(lock, who).filter(|told| {
            let (taken_by, end) = told.at_call;
            taken_by.is_none() && told.taken_by.is_none() && end > until && end < u64::MAX
        });
        match kept {
            None => Ok(()),
            Some(_) => Err(format!(
                "loss: lock {lock}: client {who:#x} is told that it has lost it, and had its lease"
            )),
        }
    }

    /// Whether the client's hold had a lease for sure when its call began.
    pub fn had_a_lease(&self, lock: usize, who: u64) -> bool {
        let told = self.told(lock, who);
        told.is_some_and(|told| told.at_call.1 < u64::MAX && !told.may_be_endless)
    }

    /// A release that was not answered returns success. `horizon`: of the client, in true time, as
    /// far as it can know.
    ///
    /// # Errors
    /// Another client has learned that it has the lock, and the lease or the horizon of this client
    /// is over.
    pub fn released_unheard(
        &self,
        lock: usize,
        who: u64,
        (now, horizon): (u64, u64),
    ) -> Result<(), String> {
        let Some(told) = self.told(lock, who) else { return Ok(()) };
        // a hold that may have no lease ends with the horizon, which heartbeats have moved since
        let lease_end = if told.may_be_endless { u64::MAX } else { told.at_call.1 };
        let is_over = lease_end.min(horizon) <= now;
        match told.taken_by.filter(|_| is_over) {
            None => self.had_it(lock, who),
            Some(other) => Err(format!(
                "loss: lock {lock}: client {who:#x} is told at {now} that it has released it, was \
                 not answered, and {other:#x} has it"
            )),
        }
    }

    /// A release by one word operation returns success.
    ///
    /// # Errors
    /// Another client has learned that it has the lock, and the horizon of this one was over when
    /// it read its clock, however coarsely.
    pub fn released_at_once(&self, lock: usize, who: u64, now: u64) -> Result<(), String> {
        let is_over = self.horizon_of(lock, who).saturating_add(COARSE_NS_MAX) <= now;
        let taken_by = self.told(lock, who).and_then(|told| told.taken_by);
        match taken_by.filter(|_| is_over) {
            None => Ok(()),
            Some(other) => Err(format!(
                "loss: lock {lock}: client {who:#x} is told at {now} that it has released it, is \
                 past its horizon, and {other:#x} has it"
            )),
        }
    }

    /// The client that has taken the lock from this one, as far as a primary can know.
    fn taken_by(&self, lock: usize, who: u64, now: u64) -> Option<u64> {
        let told = self.told(lock, who)?;
        let excludes = |s: &&Service| s.mode == Mode::Exclusive || told.mode == Mode::Exclusive;
        let has_it = |by: u64| {
            let mut others = self.locks[lock].services.iter().filter(|s| s.who == by);
            others.any(|s| excludes(&s) && self.is_live(lock, s, now))
        };
        told.taken_by.filter(|&by| !told.is_forgotten || has_it(by))
    }

    fn told(&self, lock: usize, who: u64) -> Option<&Told> {
        self.locks[lock].told.iter().find(|told| told.who == who)
    }

    /// A client that has learned that it has the lock relies on it: earlier holders that it
    /// excludes have lost it.
    fn takes(&mut self, lock: usize, who: u64, mode: Mode, is_known: bool) {
        let told = &mut self.locks[lock].told;
        told.retain(|told| told.who != who);
        let excludes = |t: &&mut Told| t.mode == Mode::Exclusive || mode == Mode::Exclusive;
        for told in told.iter_mut().filter(excludes) {
            (told.taken_by, told.is_forgotten) = (Some(who), !is_known);
        }
        let at_call = (None, u64::MAX);
        let (taken_by, is_forgotten, may_be_endless) = (None, false, false);
        told.push(Told { who, mode, taken_by, is_forgotten, may_be_endless, at_call });
    }

    /// The client's program no longer believes that it has the lock.
    pub fn untold(&mut self, lock: usize, who: u64) {
        self.ended(lock, who);
        self.locks[lock].told.retain(|told| told.who != who);
    }

    /// A client that no longer relies on its hold by its own clock gives up the rest of its lease.
    pub fn gives_up(&mut self, lock: usize, who: u64, now: u64) {
        if !self.relies(lock, who, now) {
            self.locks[lock].leases.retain(|lease| lease.who != who);
        }
    }

    /// A client no longer relies on the lock.
    pub fn ended(&mut self, lock: usize, who: u64) {
        self.locks[lock].services.retain(|s| s.who != who);
        self.locks[lock].leases.retain(|lease| lease.who != who);
        self.locks[lock].claimed.retain(|one| one.0 != who);
        self.locks[lock].tokens.ended(who);
    }

    /// The client loses the token of its hold; the successor will give it another one.
    pub fn token_gone(&mut self, lock: usize, who: u64) {
        self.locks[lock].tokens.ended(who);
    }

    /// A client that relies on the lock gets this token of its hold. `begins`: the hold is new.
    ///
    /// # Errors
    /// A resource that keeps the largest token would judge this one wrongly.
    pub fn token(
        &mut self,
        lock: usize,
        told: ToldToken,
        now: u64,
        begins: bool,
    ) -> Result<(), String> {
        let mut tokens = std::mem::take(&mut self.locks[lock].tokens);
        let judged = tokens.told(told, |who| self.relies(lock, who, now), begins);
        self.locks[lock].tokens = tokens;
        judged.map_err(|why| format!("token: lock {lock} at {now}: {why}"))
    }

    /// The process of a client has ended, and its primary cannot know that: the primary keeps the
    /// client's leases until they end.
    pub fn orphaned(&mut self, who: u64) {
        let of_lock = |lock: &Lock| {
            let mut services = lock.services.iter();
            let may_be_endless = services.any(|s| s.who == who && s.may_be_endless);
            let mut its = lock.leases.iter().filter(|lease| lease.who == who);
            its.find(|l| l.is_of_now && l.end < u64::MAX && !may_be_endless).copied()
        };
        let leases: Vec<_> = self.locks.iter().map(of_lock).collect();
        self.gone(who);
        for (lock, lease) in self.locks.iter_mut().zip(leases) {
            lock.leases.extend(lease.map(|lease| Lease { is_orphaned: true, ..lease }));
        }
    }

    /// A client relies on nothing any longer.
    pub fn gone(&mut self, who: u64) {
        for lock in &mut self.locks {
            lock.horizons.retain(|h| h.0 != who);
            lock.services.retain(|s| s.who != who);
            lock.leases.retain(|lease| lease.who != who);
            lock.told.retain(|told| told.who != who);
            lock.claimed.retain(|one| one.0 != who);
        }
    }

    /// A ticket of a fair lock is served for the first time; tickets are served in order.
    /// `exclusive`: the ticket's number on the exclusive lane; a shared ticket has the number of
    /// the first exclusive one after it.
    ///
    /// # Errors
    /// A later ticket was served before.
    pub fn served(
        &mut self,
        lock: usize,
        occupant: (u32, u64),
        mode: Mode,
        exclusive: (u64, u32),
    ) -> Result<(), String> {
        let lock_state = &mut self.locks[lock];
        if lock_state.occupant != occupant {
            (lock_state.occupant, lock_state.last_exclusive) = (occupant, None);
        }
        if let Some(last) = lock_state.last_exclusive {
            // a shared ticket has the number of the first exclusive one after it
            if exclusive <= last {
                return Err(format!(
                    "order: lock {lock}: {mode:?} ticket {exclusive:x?} is served after the \
                     exclusive ticket {last:x?}"
                ));
            }
        }
        if mode == Mode::Exclusive {
            lock_state.last_exclusive = Some(exclusive);
        }
        Ok(())
    }

    /// A ticket of an earlier incarnation is served for the first time, at this one. Tickets that
    /// were taken at the same incarnation are served in the order in which they were taken.
    ///
    /// # Errors
    /// A later ticket was served before.
    pub fn served_late(&mut self, lock: usize, now: u32, place: Place) -> Result<(), String> {
        let last = &mut self.locks[lock].last_place;
        let before = last.replace((now, place)).filter(|last| last.0 == now);
        match before {
            Some((_, last)) if last.epoch > place.epoch => {}
            Some((_, last)) if last.epoch < place.epoch => return Ok(()),
            Some((_, last)) if place.ticket <= last.ticket => {}
            _ => return Ok(()),
        }
        Err(format!("order: lock {lock}: {place:?} is served at {now} after {before:?}"))
    }

    /// The next moment after `now` at which a client's reliance on the lock ends by itself.
    pub fn next_end(&self, lock: usize, now: u64) -> Option<u64> {
        let ends = self.locks[lock].services.iter().map(|s| s.until);
        ends.filter(|&end| end > now && end != u64::MAX).min()
    }
}
