// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joining a primary, coming back to it, proving to be alive, and leaving.
//!
//! ```text
//!   init    connect ─Init──▶ session ─attach (verbs, shm or tcp)──▶ executor ──▶ instance
//!   reinit  the same with Reinit, beside the old session; then a heartbeat on the new connection
//!           shows the primary that this client has all answers. Its answer says that the old
//!           session has ended at the primary, and the new one replaces it in the instance:
//!             same incarnation of the primary ─▶ every lock goes on where it is
//!             a recovering successor          ─▶ every lock refuses until it was claimed
//!           (an old session whose connections have ended is closed before: `given_up.rs`)
//!   update_all_locks  claims, 31 at a time ─▶ new places
//! ```

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use dlock_core::clock::Now;
use dlock_core::ids::LockId;
use dlock_core::limits::{BATCH_MAX, HEARTBEAT_S_MAX, LOOK_S};
use dlock_core::lock::LockEntry;
use dlock_core::memory::exec::Executor;
use dlock_core::session::{self, Call, Claims, Verdict};
use dlock_core::wire::control::{ControlReply, ControlRequest, LockGrant};
use dlock_core::wire::message::Request;
use dlock_core::wire::status::Status;
use dlock_fabric::os::{clock::deadline_in, fds, fork};
use dlock_fabric::Refuse;
use log::Level;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::new_session::{init, join, reinit, Joined, To, Unshown};
use super::{done, Instance, SessionState, LEFT, OPEN};
use crate::attach::Wrap;
use crate::config::ClientConfig;
use crate::control::{Patience, CONTROL_WAIT};
use crate::driver::heartbeat::look_after;
use crate::driver::kept::Driven;
use crate::events::Feeds;
use crate::host::{address, Address, Unreached};
use crate::logged_once::LoggedOnce;
use crate::stats::Stats;
use crate::table::{LockSlotIndex, Table, LOCK_SLOT_WAIT};

impl Instance {
    /// Becomes a client of the primary at `ip`: an IPv4 or IPv6 address in digits, or the name of a
    /// host, which the client looks up at each connect.
    ///
    /// # Errors
    /// `Error` (configuration, address, no connection, no data path, other `tp_mode`),
    /// `NotReady` (no process listens there, or the primary is recovering), `ServerNoResource`,
    /// `VersionMismatch`, `BadResponse` (the answer is not a dlock primary's).
    ///
    /// # Latency
    /// Two connections and two round trips; at most 10 s each.
    pub fn init(config: &ClientConfig, ip: &str) -> Result<Instance, Status> {
        Self::init_with(config, ip, None)
    }

    /// [`init`](Self::init) for tests: `wrap` wraps the executor of each session.
    ///
    /// # Errors
    /// As `init`.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn init_wrapped(config: &ClientConfig, ip: &str, wrap: Wrap) -> Result<Instance, Status> {
        Self::init_with(config, ip, Some(wrap))
    }

    fn init_with(config: &ClientConfig, ip: &str, wrap: Option<Wrap>) -> Result<Self, Status> {
        fds::occupy_standard();
        config.check()?;
        let peer = &address(ip, config.effective_port())?;
        let (patience, level, said) = (Patience::OF_CALL, Level::Warn, &LoggedOnce::default());
        Self::init_at(config, To { peer, patience, level, said }, wrap)
    }

    pub(super) fn init_at(
        config: &ClientConfig,
        to: To<'_>,
        wrap: Option<Wrap>,
    ) -> Result<Self, Status> {
        let joined = join(config, to, init(config), None, wrap.as_ref())?;
        joined.link.ask_the_time();
        let instance = Instance {
            id: joined.client,
            process: fork::process().into(),
            config: config.clone(),
            wrap,
            gate: AtomicU8::new(OPEN),
            table: Arc::new(Table::new()),
            link: ArcSwap::from_pointee(joined.link),
            earlier: Mutex::default(),
            line: Mutex::new(Some(joined.control.line())),
            control: Arc::new(Mutex::new(Some(joined.control))),
            lifecycle: RwLock::new(()),
            pending: Mutex::new(None),
            objects: RwLock::default(),
            stats: Stats::default(),
            feeds: Feeds::default(),
            has_told: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
            is_taken_away: AtomicBool::new(false),
            removal: Mutex::default(),
            said: LoggedOnce::default(),
            driven: Driven::default(),
            watch: None,
        };
        look_after(&instance.link.load().pulse, &instance.control);
        Ok(instance)
    }

    /// Comes back to the primary, or to its successor at `ip`, as the same client with the same
    /// locks. At a recovering primary, locks refuse with `NotReady` until
    /// [`update_all_locks`](Self::update_all_locks), and the client drops its object handles.
    ///
    /// # Errors
    /// As [`init`](Self::init); `Invalid` (the client has left, or a forked child calls for its
    /// parent's client), `ClientRemoved` (the primary does not know this client and is not
    /// recovering), `BadResponse` (the primary answers for another client). After an error the old
    /// session is as it was: its data path and its calls go on, or give `BadResponse` if its
    /// connections have ended. (If the last of three answers is lost, and the primary cannot be
    /// asked again, the old session may be over: it gives `BadResponse` until another reinit.)
    ///
    /// # Latency
    /// Two connections and three round trips; at most 10 s each, and 21 s after the first answer.
    pub fn reinit(&self, ip: &str) -> Status {
        if let Err(status) = self.check(Call::Session) {
            return status;
        }
        let came = match address(ip, self.config.effective_port()) {
            Ok(peer) => self.reinit_at(&peer, Patience::OF_CALL, Level::Warn),
            Err(status) => return status,
        };
        came.map_or_else(Status::from, |()| Status::Success)
    }

    /// As [`reinit`](Self::reinit), at a primary given by its address. `patience` limits connecting
    /// and each answer. A failure is logged at `level`.
    pub(crate) fn reinit_at(
        &self,
        peer: &Address,
        patience: Patience,
        level: Level,
    ) -> Result<(), Unreached> {
        let _alone = self.alone()?;
        self.give_up_ended();
        let mut tries = 0;
        loop {
            tries += 1;
            let mut joined = self.join_again(peer, patience, level)?;
            match joined.show(patience.silence) {
                // the client has left meanwhile, and the primary has made this session after that
                Ok(()) if self.present().is_err() => {
                    let _ = joined.leave();
                    return Err(Status::Invalid.into());
                }
                Ok(()) => {
                    joined.link.ask_the_time();
                    self.move_to(joined, false);
                    return Ok(());
                }
                Err(Unshown::Cut) if tries < SHOW_TRIES => {}
                Err(Unshown::Cut) => return Err(Status::Error.into()),
                Err(Unshown::Failed(status)) => return Err(status.into()),
            }
        }
    }

    /// Locks `lifecycle` for a call that replaces the session, so that other life-cycle calls wait.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>, Status> {
        self.check(Call::Session)?;
        let alone = self.lifecycle.try_write_for(LIFECYCLE_WAIT).ok_or(Status::BadResponse)?;
        if !self.is_here() {
            return Err(Status::Invalid);
        }
        // the client may have left meanwhile, and have finished leaving
        match self.line.lock().is_some() {
            true => Ok(alone),
            false => self.check(Call::Session).map(|()| alone),
        }
    }

    /// Becomes a new client of the primary at `peer`, and loses everything that it held.
    /// [`confirm_all`](Self::confirm_all) gets the locks again, without holds.
    pub(crate) fn begin_anew_at(
        &self,
        peer: &Address,
        patience: Patience,
    ) -> Result<(), Unreached> {
        let _alone = self.alone()?;
        self.give_up_ended();
        let to = To { peer, patience, level: Level::Debug, said: &self.said };
        let mut joined = join(&self.config, to, init(&self.config), None, self.wrap.as_ref())?;
        if self.present().is_err() {
            let _ = joined.leave(); // the client has left meanwhile
            return Err(Status::Invalid.into());
        }
        log::error!(
            "client {} is known to no primary any more: what it held is lost. It begins anew, as \
             client {} of the primary at {peer}",
            self.id,
            joined.client
        );
        joined.link.ask_the_time();
        self.move_to(joined, true);
        Ok(())
    }

    /// Makes a session at `peer` for this same client; [`Joined::show`] must follow.
    pub(super) fn join_again(
        &self,
        peer: &Address,
        patience: Patience,
        level: Level,
    ) -> Result<Joined, Unreached> {
        if !self.is_here() {
            return Err(Status::Invalid.into());
        }
        let link = self.link.load();
        let request = reinit(&self.config, link.client, link.secret);
        let to = To { peer, patience, level, said: &self.said };
        let joined = join(&self.config, to, request, Some(link.client), self.wrap.as_ref());
        joined.inspect_err(|unreached| self.learns_of(unreached.removal.as_ref()))
    }

    /// Replaces the old session. `is_anew`: the new one is of a new client, which holds nothing.
    fn move_to(&self, joined: Joined, is_anew: bool) {
        self.forget_async();
        self.said.forget();
        let is_taken_away = self.is_taken_away.swap(false, Ordering::Relaxed);
        self.has_told.store(false, Ordering::Relaxed);
        let link = Arc::new(joined.link);
        let old = self.link.swap(Arc::clone(&link));
        // a heartbeat under way at the old primary may take minutes unless its connection is ended
        if let Some(line) = self.line.lock().replace(joined.control.line()) {
            line.end();
        }
        *self.control.lock() = Some(joined.control);
        if is_anew || !session::objects_survive(old.epoch, link.epoch, link.recovering) {
            self.objects.write().clear();
        }
        let has_lapsed = !is_anew && link.epoch == old.epoch && link.lapses != old.lapses;
        let refuse: Arc<dyn Executor> = Arc::new(Refuse);
        // the old executor may ask its primary for the time, without getting an answer
        let clock = Now { horizon_ns: old.pulse.horizon_ns(), ..old.exec.now() };
        let mut earlier = self.earlier.lock();
        earlier.retain(|(_, pulse)| pulse.strong_count() > 0);
        earlier.push((old.epoch, Arc::downgrade(&old.pulse)));
        if has_lapsed || is_anew {
            // an operation under way on one of these sessions must not report a hold that was ended
            let same = earlier.iter().filter(|(epoch, _)| is_anew || *epoch == link.epoch);
            same.filter_map(|(_, pulse)| pulse.upgrade()).for_each(|pulse| pulse.end());
        }
        drop(earlier);
        if is_anew || link.epoch != old.epoch {
            old.exec.end(); // the old primary may be stopped, and a wait for it last for hours
        }
        for (id, index) in self.table.indices() {
            let lock_slot = self.table.lock_slot(index);
            // an operation on the old session has a limit, and mostly ends with its connection
            let Some(mut guard) = lock_slot.lock_until(|| deadline_in(LIFECYCLE_WAIT)) else {
                log::error!("lock {id} stays with the old session: its operation does not end");
                continue;
            };
            if let Some(held) = guard.as_mut() {
                // an earlier move ended this lock's session, but could not lock its slot to say so
                let has_ended = held.pulse.horizon_ns() == 0;
                if is_anew || has_ended && held.entry.client() != link.client {
                    held.binding.begins_anew(&mut held.entry, is_taken_away);
                } else if has_ended && held.entry.lapse() {
                    log::warn!("lock {id} is lost: it has no lease, and its session had ended");
                }
                match held.binding.moves_to(link.epoch, clock) {
                    true => {
                        held.go_over_to(Arc::clone(&link.exec), Arc::clone(&link.pulse));
                        if has_lapsed && held.entry.lapse() {
                            log::warn!(
                                "lock {id} is lost: it has no lease, and this client was away"
                            );
                        }
                        held.resume();
                    }
                    false => held.refuse(Arc::clone(&refuse)),
                }
            }
        }
        look_after(&link.pulse, &self.control);
        self.stats.clear();
    }

    /// Tells a recovering primary that this client has made all claims.
    ///
    /// # Errors
    /// `ClientNotInit` (the client has left), `Error` (the primary does not wait for this client),
    /// `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn reinit_done(&self) -> Status {
        self.reinit_done_within(Patience::OF_CALL)
    }

    /// [`reinit_done`](Self::reinit_done) with this patience.
    pub(crate) fn reinit_done_within(&self, patience: Patience) -> Status {
        if let Err(status) = self.check(Call::Other) {
            return status;
        }
        let Ok(_lifecycle) = self.lifecycle_until(patience.deadline()) else {
            return Status::BadResponse;
        };
        // a program may recover by hand while the library does the same: either may have come to
        // another primary since this client told everything
        if self.watch().is_some() && !self.has_told() {
            match self.tell_all(patience) {
                Status::Success | Status::Error => {} // `Error`: the primary does not recover
                status => return status,
            }
        }
        let status = done(self.call_with(ControlRequest::ReinitDone, patience));
        if matches!(status, Status::Success | Status::Error) {
            self.has_refused.store(false, Ordering::Relaxed); // `Error`: no recovery is under way
        }
        status
    }

    /// Records whether a hold was lost: its claim was refused, or not made. A call may return the
    /// loss to the program before this client tells the primary that all claims are made.
    fn note_refused(&self, is_lost: bool) {
        if is_lost {
            self.has_refused.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this client has told its primary all locks, or need not: it has none, or the primary
    /// was not recovering when the client came.
    pub(crate) fn has_told(&self) -> bool {
        let has_told = self.has_told.load(Ordering::Relaxed) || self.table.is_empty();
        has_told || !self.link.load().recovering
    }

    /// Tells a recovering primary of all locks and of what this client holds of each, and adopts
    /// the places that it gives them. To tell a lock again changes nothing. A hold is lost if
    /// another client holds the lock by now; the next operation on the lock says so. This client no
    /// longer has a lock that the primary refuses, or has no room for (`LockNotGet`).
    ///
    /// # Errors
    /// `ClientNotInit` (the client has left), `Error` (the primary is not recovering: nothing
    /// changes), `Again` (operations on some locks are under way: call again), `BadResponse`.
    ///
    /// # Latency
    /// One control round trip per 31 locks; 10 s at most each.
    pub fn update_all_locks(&self) -> Status {
        self.update_all_locks_within(Patience::OF_CALL)
    }

    /// [`update_all_locks`](Self::update_all_locks) with this patience for each answer.
    pub(crate) fn update_all_locks_within(&self, patience: Patience) -> Status {
        if let Err(status) = self.check(Call::Other) {
            return status;
        }
        if self.table.is_empty() {
            return Status::Success;
        }
        let Ok(_lifecycle) = self.lifecycle_until(patience.deadline()) else {
            return Status::BadResponse;
        };
        self.tell_all(patience)
    }

    /// As `update_all_locks_within`, for a caller that has the read lock of `lifecycle`.
    fn tell_all(&self, patience: Patience) -> Status {
        let mut result = Status::Success;
        // idle locks come last: a primary that has no room for all locks refuses the last
        let idle = self.idle_locks();
        let mut locks = self.table.indices();
        locks.sort_by_key(|(id, _)| idle.contains(id));
        for locks in locks.chunks(BATCH_MAX) {
            match self.update_locks(locks, patience) {
                Status::Success => {}
                status @ (Status::BadResponse | Status::Error) => return status,
                status => result = status,
            }
        }
        if result == Status::Success {
            self.has_told.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Claims up to 31 locks. If the primary refuses a hold, the hold is lost, but the client keeps
    /// the lock: it claims the lock once more, without the hold.
    fn update_locks(&self, locks: &[(LockId, LockSlotIndex)], patience: Patience) -> Status {
        let mut claims = self.claims(locks);
        while let Some(request) = claims.request() {
            let verdicts = match claims.answered(self.call_with(request, patience)) {
                Ok(verdicts) => verdicts,
                Err(status) => return status,
            };
            for ((id, index), verdict) in verdicts {
                match verdict {
                    Verdict::Place { grant, is_lost } => {
                        if !self.bind((id, index), &grant, is_lost) {
                            claims.not_adopted();
                        }
                    }
                    Verdict::Lost(Status::Fail) => {
                        log::warn!("lock {id} is lost: another client holds it now");
                    }
                    Verdict::Lost(status) => {
                        log::error!("lock {id} is lost: the primary refuses it: {status}");
                    }
                    Verdict::Refused(status) => {
                        if !self.drop_refused((id, index), status) {
                            claims.not_adopted();
                        }
                    }
                }
            }
        }
        claims.result()
    }

    fn claims(&self, locks: &[(LockId, LockSlotIndex)]) -> Claims<(LockId, LockSlotIndex)> {
        let now = self.link.load().exec.now();
        let mut claims = Vec::with_capacity(locks.len());
        let mut is_partial = false;
        for &(id, index) in locks {
            match self.table.lock_slot(index).lock_until(|| deadline_in(LOCK_SLOT_WAIT)) {
                Some(mut guard) => {
                    // a lock that may be released is not claimed: the client gets it anew
                    let is_got = |held: &&mut crate::table::ClientLock| {
                        held.id == id && !held.entry.has_left()
                    };
                    if let Some(held) = guard.as_mut().filter(is_got) {
                        claims.push(((id, index), held.binding.claim(&mut held.entry, now)));
                        self.note_refused(held.entry.is_lost()); // the session is past its horizon
                    }
                }
                None => is_partial = true,
            }
        }
        Claims::new(claims, is_partial)
    }

    /// Adopts the place that the recovering primary gave a lock. `false`: an operation on the lock
    /// does not end.
    fn bind(&self, (id, index): (LockId, LockSlotIndex), grant: &LockGrant, is_lost: bool) -> bool {
        let link = self.link.load();
        let lock_slot = self.table.lock_slot(index);
        let Some(mut guard) = lock_slot.lock_until(|| deadline_in(LOCK_SLOT_WAIT)) else {
            return false;
        };
        let Some(held) = guard.as_mut().filter(|held| held.id == id) else { return true };
        let before = held.entry.lock();
        let (at, now) = ((link.epoch, link.anchor_s), link.exec.now());
        held.binding.bind(&mut held.entry, grant, at, is_lost, now);
        self.note_refused(held.entry.is_lost());
        link.is_primary_of(&mut held.entry);
        held.go_over_to(Arc::clone(&link.exec), Arc::clone(&link.pulse));
        self.table.rename(id, before, Some(grant.lock));
        true
    }

    /// Forgets a lock that the primary refuses to this client; the client has not got it any more.
    /// `false`: an operation on the lock does not end.
    pub(super) fn drop_refused(
        &self,
        (id, index): (LockId, LockSlotIndex),
        status: Status,
    ) -> bool {
        let lock_slot = self.table.lock_slot(index);
        let Some(mut guard) = lock_slot.lock_until(|| deadline_in(LOCK_SLOT_WAIT)) else {
            return false;
        };
        if let Some(held) = guard.as_ref().filter(|held| held.id == id) {
            self.note_refused(held.entry.state().is_held());
            log::error!("lock {id} is not got any more: the primary refuses it: {status}");
            self.table.remove(index, &mut guard);
        }
        drop(guard);
        lock_slot.changed.notify_all();
        true
    }

    /// Asks the primary whether it runs and knows this client.
    ///
    /// # Errors
    /// `Invalid` (0 or more than 300 seconds, or the client has left), `BadResponse` (no answer in
    /// time), `NotReady` (the primary recovers, or its RDMA device does not work just now), `Error`
    /// (the primary does not know this client).
    ///
    /// # Latency
    /// One control round trip; `timeout_s` at most.
    pub fn heartbeat(&self, timeout_s: u32) -> Status {
        if timeout_s == 0 || timeout_s > HEARTBEAT_S_MAX || self.check(Call::Session).is_err() {
            return Status::Invalid;
        }
        let wait = Duration::from_secs(timeout_s.into());
        match self.call_until(ControlRequest::Heartbeat, deadline_in(wait)) {
            Ok(ControlReply::Alive { recovering: false, .. }) => Status::Success,
            Ok(ControlReply::Alive { recovering: true, .. }) => Status::NotReady,
            Ok(_) => Status::BadResponse,
            Err(status) => status,
        }
    }

    /// Leaves: the primary releases what this client holds. The program cannot use the instance
    /// afterwards, also not if the result is an error.
    ///
    /// # Errors
    /// `Error` (the client has left before), `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// If the data path is one-sided, a round trip of it (1 s at most), so that the primary serves
    /// the messages sent before. Then one control round trip. Together 11 s at most, and as long as
    /// calls under way take. A client that finds the successor of its primary by itself looks for
    /// it 5 s more at most, to tell it.
    pub fn deinit(&self) -> Status {
        if self.gate.swap(LEFT, Ordering::Relaxed) == LEFT {
            return Status::Error;
        }
        if let Some(watch) = self.watch() {
            watch.end();
        }
        let _alone = self.lifecycle.try_write_for(LIFECYCLE_WAIT);
        self.forget_async();
        // the data path ends first, so that the primary can undo at once what operations have left
        self.objects.write().clear();
        let link = self.link.load_full();
        let pulse = Arc::clone(&link.pulse);
        self.link.store(Arc::new(SessionState {
            exec: Arc::new(Refuse),
            verbs: None,
            pulse,
            ..*link
        }));
        for (_, index) in self.table.indices() {
            let lock_slot = self.table.lock_slot(index);
            if let Some(mut guard) = lock_slot.lock_until(|| deadline_in(LOCK_SLOT_WAIT)) {
                self.table.remove(index, &mut guard);
            }
            lock_slot.changed.notify_all();
        }
        is_heard(&*link.exec);
        link.exec.end(); // a thread that waits for a grant must not wait on
        drop(link);
        let status = self.leave();
        if let Some(line) = self.line.lock().take() {
            line.end();
        }
        if let Some(mut control) = self.control.try_lock_for(CONTROL_WAIT) {
            *control = None;
        }
        status
    }
}

/// How long a life-cycle call waits for others: each takes a lock slot and a control call at most.
pub(super) const LIFECYCLE_WAIT: Duration = LOCK_SLOT_WAIT.saturating_add(CONTROL_WAIT);

/// How often a reinit is tried if its connection ends at a moment when the primary may have ended
/// the old session. The next try finds out.
const SHOW_TRIES: u32 = 2;

/// Waits until the primary has served the requests that were sent without waiting for a reply: at
/// the end of the data path it drops those that it has not read. If that is the `Wake` of a fair
/// lock, the next sleeper waits until the arbiter looks at the lock by itself, after [`LOOK_S`]. So
/// this function waits that long at most.
fn is_heard(exec: &dyn Executor) {
    if !exec.is_one_sided() {
        return; // the client releases nothing without the primary
    }
    if let Ok(seq) = exec.send(&Request::Ping) {
        let _ = exec.reply(seq, deadline_in(Duration::from_secs(LOOK_S.into())));
        exec.forget(seq);
    }
}

impl SessionState {
    /// Sets what operations of a lock may ask of this primary.
    pub(super) fn is_primary_of(&self, entry: &mut LockEntry) {
        entry.asks_readers(self.asks_readers);
    }

    fn ask_the_time(&self) {
        if let Some(verbs) = &self.verbs {
            verbs.ask_the_time();
        }
    }
}
