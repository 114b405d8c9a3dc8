// SPDX-License-Identifier: MIT OR Apache-2.0
//! The failover of a client that finds the successor of its primary by itself.
//! `dlock_core::session::Failover` decides when which step comes.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::ids::{LockId, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::lock::{EntryState, LockEntry, OpResult};
use dlock_core::operation::Bounds;
use dlock_core::session::{Arrival, Heard, Step, ASK_NS_MIN, PAUSE_NS};
use dlock_core::wire::control::{ControlReply, ControlRequest};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in, left_until};
use dlock_fabric::os::fds;
use dlock_fabric::os::threads::uncancelled;

use super::new_session::To;
use super::{done, Instance};
use crate::ask::ask;
use crate::attach::Wrap;
use crate::config::ClientConfig;
use crate::control::{Control, Patience, ShutdownHandle};
use crate::driver::failover::{look_after, Ended, Watch, FAILOVER_WAIT};
use crate::execute::{settle, DATA_WAIT};
use crate::host::{address, Address, Unreached};
use crate::logged_once::LoggedOnce;
use crate::table::{Busy, ClientLock, LockSlot, LockSlotGuard};

/// How long a leaving client looks for a primary to tell it.
const DEPARTURE_WAIT: Duration = Duration::from_secs(5);
/// The pause between two rounds of looking. It grows as that of a client that looks for a primary
/// to stay with.
const DEPARTURE_PAUSE: Duration = Duration::from_nanos(PAUSE_NS.0);
const DEPARTURE_PAUSE_MAX: Duration = Duration::from_nanos(PAUSE_NS.1);

/// The reason why no primary has accepted this client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmet {
    pub(crate) status: Status,
    /// Whether one of the primaries runs, but is recovering.
    pub(crate) recovers: bool,
}

impl From<Status> for Unmet {
    fn from(status: Status) -> Self {
        Self { status, recovers: false }
    }
}

impl Instance {
    /// As [`init`](Self::init). The configuration or the environment variable `DLOCK_PRIMARIES` may
    /// name primaries. Then this becomes a client of the first that accepts it, beginning with the
    /// one at `ip`, and from then on finds the successor of its primary by itself: it notices that
    /// its primary is gone, comes back as the same client, claims its locks, and goes on. Meanwhile
    /// [`lock`](Self::lock) waits; other calls are refused with `NotReady`, or with `BadResponse`
    /// if they were under way. The log says what was kept.
    ///
    /// # Errors
    /// As `init` of the primary at `ip`.
    ///
    /// # Latency
    /// As `init`, for each of the primaries; [`ClientConfig::wait`] at most, if it is set.
    pub fn init_shared(config: &ClientConfig, ip: &str) -> Result<Arc<Self>, Status> {
        Self::meet(config, ip, None).map_err(|unmet| unmet.status)
    }

    /// [`init_shared`](Self::init_shared) for tests, as [`init_wrapped`](Self::init_wrapped).
    ///
    /// # Errors
    /// As `init_shared`.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn init_shared_wrapped(
        config: &ClientConfig,
        ip: &str,
        wrap: Wrap,
    ) -> Result<Arc<Self>, Status> {
        Self::meet(config, ip, Some(&wrap)).map_err(|unmet| unmet.status)
    }

    /// [`init_shared`](Self::init_shared), with an error that says whether a primary recovers.
    pub(crate) fn meet(
        config: &ClientConfig,
        ip: &str,
        wrap: Option<&Wrap>,
    ) -> Result<Arc<Self>, Unmet> {
        fds::occupy_standard();
        config.check()?;
        let first = address(ip, config.effective_port())?;
        let Some(mut plan) = config.plan(&first)? else {
            let (instance, _) = Self::arrive(config, (&[first], None), wrap)?;
            let instance = Arc::new(instance);
            instance.may_keep();
            return Ok(instance);
        };
        // a primary that is stopped does not keep the client from the others
        let silence = (plan.addresses.len() > 1).then_some(plan.silence);
        let (mut instance, at) = Self::arrive(config, (&plan.addresses, silence), wrap)?;
        plan.addresses.rotate_left(at);
        let watch = Arc::new(Watch::new(plan));
        instance.watch = Some(Arc::clone(&watch));
        let instance = Arc::new(instance);
        instance.may_keep();
        look_after(&instance, &watch);
        Ok(instance)
    }

    /// Becomes a client of the primary at one of these addresses, and returns the address's index.
    fn arrive(
        config: &ClientConfig,
        (addresses, silence): (&[Address], Option<Duration>),
        wrap: Option<&Wrap>,
    ) -> Result<(Self, usize), Unmet> {
        let end_ns = config.wait.map(deadline_in);
        let mut arrival = Arrival::new(boot_ns(), addresses.len(), end_ns);
        let (mut level, said) = (log::Level::Warn, LoggedOnce::default());
        loop {
            match arrival.next(boot_ns()) {
                Step::Wait { until_ns } => {
                    level = log::Level::Debug; // later failures repeat the first ones
                    std::thread::sleep(left_until(until_ns));
                }
                Step::Over { status, recovers } => return Err(Unmet { status, recovers }),
                Step::Try { address } => {
                    let peer = &addresses[address];
                    let patience = Patience::of_arrival(silence, end_ns.unwrap_or(u64::MAX));
                    let to = To { peer, patience, level, said: &said };
                    let failed = match Self::init_at(config, to, wrap.cloned()) {
                        Ok(instance) => return Ok((instance, address)),
                        Err(status) => status,
                    };
                    let heard = match (failed, config.tls.material()) {
                        (Status::NotReady, Ok(tls)) => {
                            ask(peer, left_until(patience.deadline()), tls.as_ref())
                                .unwrap_or(Heard::Nothing)
                        }
                        _ => Heard::Nothing,
                    };
                    arrival.failed(boot_ns(), failed, heard);
                }
            }
        }
    }

    /// The watch that finds the successor of a primary that is gone; a forked child has none.
    pub(super) fn watch(&self) -> Option<&Arc<Watch>> {
        self.watch.as_ref().filter(|watch| watch.is_here())
    }

    /// Makes a call that may wait. If the primary is gone, makes it again at the successor.
    pub(super) fn across_failover(&self, mut call: impl FnMut() -> OpResult) -> OpResult {
        let Some(watch) = self.watch() else { return call() };
        let until_ns = deadline_in(FAILOVER_WAIT);
        loop {
            let moves = watch.moves();
            let result = call();
            if !result.status.is_without_primary()
                || !uncancelled(|| watch.has_moved(moves, until_ns))
            {
                return result;
            }
        }
    }

    /// Handles a release that failed because there is no primary. If this client finds the
    /// successor by itself, the hold ends all the same.
    #[cold]
    pub(super) fn release_unheard(
        &self,
        lock_slot: &LockSlot,
        guard: LockSlotGuard<'_>,
        refused: OpResult,
    ) -> OpResult {
        match self.watch().is_some() {
            true => self.released_unheard(lock_slot, guard, refused),
            false => refused,
        }
    }

    /// Ends the hold even if this client does not find the successor by itself; the result is then
    /// `refused`.
    pub(super) fn released_unheard(
        &self,
        lock_slot: &LockSlot,
        mut guard: LockSlotGuard<'_>,
        refused: OpResult,
    ) -> OpResult {
        let result = guard.as_mut().map_or(refused, |held| self.unheard(held, refused));
        drop(guard);
        lock_slot.changed.notify_all();
        result
    }

    /// As [`release_unheard`](Self::release_unheard), for a lock whose slot the caller has locked.
    pub(super) fn unheard(&self, held: &mut ClientLock, refused: OpResult) -> OpResult {
        let told = held.entry.loss_told();
        let released = told.or_else(|| held.release_unheard(refused.status));
        let Some(watch) = self.watch() else { return refused };
        watch.leaves_in_doubt();
        released.unwrap_or(refused)
    }

    /// Sets the function that the client calls if a successor has refused claims of holds, before
    /// it tells that successor to go on.
    pub(crate) fn before_refused(&self, act: Arc<dyn Fn() + Send + Sync>) {
        if let Some(watch) = self.watch() {
            watch.before_refused(act);
        }
    }

    /// Whether a hold is lost that the program may still rely on. A loss that a call has returned
    /// since the claims were answered counts, too; so does a lock that is in use.
    pub(crate) fn may_have_lost(&self) -> bool {
        if self.has_refused.load(Ordering::Relaxed) {
            return true;
        }
        let is_lost = |entry: &LockEntry| entry.state().is_held() && entry.is_lost();
        let (lost, has_seen_all) = self.of_all(|held| is_lost(&held.entry).then_some(()));
        !lost.is_empty() || !has_seen_all
    }

    /// Tells the primary that this client leaves. If the primary is gone, tells its successor,
    /// which would otherwise wait for this client.
    pub(super) fn leave(&self) -> Status {
        let until_ns = deadline_in(DEPARTURE_WAIT);
        let mut status = done(self.call(ControlRequest::Deinit));
        let Some(watch) = self.watch() else { return status };
        while status == Status::NotReady && boot_ns() < until_ns {
            // the primary knows that this client leaves, and is not ready
            std::thread::sleep(DEPARTURE_PAUSE);
            status = done(self.call(ControlRequest::Deinit));
        }
        if status != Status::BadResponse {
            return status;
        }
        self.close_ended_control(); // frees its file descriptor for another connection
        let mut pause = DEPARTURE_PAUSE;
        let mut is_told = false; // a recovering primary has been told that this client leaves
        while boot_ns() < until_ns {
            let mut unknown = 0;
            for peer in &watch.plan().addresses {
                match self.leave_at(peer, until_ns) {
                    Status::BadResponse => {}
                    Status::ClientRemoved if is_told => return Status::Success,
                    Status::ClientRemoved => unknown += 1,
                    Status::NotReady if boot_ns() < until_ns => is_told = true,
                    status => return status,
                }
            }
            if unknown == watch.plan().addresses.len() {
                return Status::Success; // the first request arrived, and its answer was lost
            }
            std::thread::sleep(pause.min(left_until(until_ns)));
            pause = (2 * pause).min(DEPARTURE_PAUSE_MAX);
        }
        log::error!(
            "client {} leaves, and no primary knows of it: a successor waits for it until the end \
             of its horizon, or until `dlock recover --now`",
            self.id
        );
        status
    }

    pub(super) fn leave_at(&self, peer: &Address, until_ns: u64) -> Status {
        let wait = left_until(until_ns).max(DEPARTURE_PAUSE);
        let patience = Patience { wait, connect: wait, ..Patience::OF_CALL };
        match self.join_again(peer, patience, log::Level::Debug) {
            Ok(mut joined) => match joined.show(None) {
                Ok(()) => joined.leave(),
                Err(_) => Status::BadResponse,
            },
            Err(Unreached { status: Status::ClientRemoved, .. }) => Status::ClientRemoved,
            Err(_) => Status::BadResponse,
        }
    }

    /// Whether there is a primary at this address. Connecting and the answer may take `wait` each.
    ///
    /// # Errors
    /// Why no primary was heard, in a few words.
    pub(crate) fn asks(&self, peer: &Address, wait: Duration) -> Result<Heard, String> {
        let tls = self.config.tls.material();
        ask(peer, wait, tls.map_err(|_| "its TLS files cannot be used")?.as_ref())
    }

    /// Sends a heartbeat unless `sent` is under way, and looks for its answer without waiting.
    /// Returns the number of the heartbeat under way, and what the client has heard.
    pub(crate) fn beats(&self, sent: Option<Seq>) -> (Option<Seq>, Result<Option<Heard>, Ended>) {
        if self.link.load().exec.is_cut_off() {
            return (None, Err(Ended)); // the control connection alone is of no use
        }
        let Some(mut control) = self.control.try_lock() else { return (sent, Ok(None)) };
        let Some(control) = control.as_mut() else { return (None, Err(Ended)) };
        let sent = sent.or_else(|| control.beat());
        control.take_beats();
        let heard = control.heard.filter(|(seq, _)| sent.is_some_and(|sent| *seq >= sent));
        let heard = heard.map(|(_, heard)| heard);
        match control.is_broken() && heard.is_none() {
            true => (None, Err(Ended)),
            false => (sent, Ok(heard)),
        }
    }

    /// The primary's answer to a heartbeat, with this patience; `None`: a connection has ended.
    /// `is_silent`: the primary has been silent for as long as it may be.
    pub(crate) fn hears(&self, patience: Patience, is_silent: bool) -> Option<Heard> {
        if self.link.load().exec.is_cut_off() {
            return None; // the control connection alone is of no use
        }
        if is_silent {
            let silence = patience.silence.unwrap_or(patience.wait);
            let peer = match self.control.try_lock_for(silence) {
                Some(control) => control.as_ref()?.peer(),
                None => return Some(Heard::Nothing),
            };
            let wait = silence.max(Duration::from_nanos(ASK_NS_MIN));
            if self.asks(&peer.into(), wait).is_err() {
                return Some(Heard::Nothing);
            }
        }
        let reply = self.call_with(ControlRequest::Heartbeat, patience);
        match Heard::of(&reply.unwrap_or_else(ControlReply::Error)) {
            heard @ (Heard::Serves | Heard::Recovers) => Some(heard),
            Heard::Nothing => {
                let control = self.control.try_lock();
                let is_broken =
                    control.is_some_and(|control| control.as_ref().is_none_or(Control::is_broken));
                (!is_broken).then_some(Heard::Nothing)
            }
        }
    }

    /// A handle that closes the control connection; `None`: there is no connection, or it is just
    /// being replaced.
    pub(crate) fn line(&self) -> Option<ShutdownHandle> {
        self.line.try_lock()?.clone()
    }

    /// Whether the primary was recovering when this client came to it.
    pub(crate) fn is_at_recovering(&self) -> bool {
        self.link.load().recovering
    }

    /// How many locks this client believes to hold.
    pub(crate) fn held(&self) -> usize {
        let holds = |entry: &LockEntry| entry.state().is_held() && !entry.is_lost();
        self.of_all(|held| holds(&held.entry).then_some(())).0.len()
    }

    /// Gets the locks again that are not at this primary; holds of them are lost. Asks the primary
    /// about holds that were claimed, and has it undo what is in doubt, so that a release that the
    /// failover cut off does not keep other clients waiting. `false`: the primary has not answered
    /// all of it, within `silence` for each request.
    pub(crate) fn confirm_all(&self, silence: Duration) -> bool {
        let epoch = self.link.load().epoch;
        let (away, has_seen_all) = self.of_all(|held| {
            let is_away = !held.binding.is_at(epoch) && !held.entry.has_left();
            is_away.then(|| (held.id, held.entry.desc().clone()))
        });
        let mut is_all = has_seen_all;
        for some in away.chunks(BATCH_MAX) {
            let descs = some.iter().map(|(_, desc)| desc.clone()).collect();
            let Ok(got) = self.get_locks(descs, deadline_in(silence)) else { return false };
            log::warn!("{} locks are got again: holds of them are lost", some.len());
            for ((id, _), got) in some.iter().zip(got) {
                let (Err(status), Some(index)) = (got, self.table.find(*id)) else { continue };
                if !self.drop_refused((*id, index), status) {
                    return false;
                }
            }
        }
        let (open, has_seen_all) = self.of_all(|held| held.entry.in_doubt().then_some(held.id));
        is_all &= has_seen_all; // the thread that has a lock in use may leave it in doubt
        for locks in open.chunks(BATCH_MAX) {
            let Some(is_settled) = self.confirm(locks, silence) else { return false };
            is_all &= is_settled;
        }
        is_all
    }

    /// Asks the primary to confirm these claimed holds, all in one round, and has it undo the
    /// operations in doubt, one lock after the other. Skips locks in use. Returns whether no lock
    /// was skipped; `None`: the primary did not answer, and each further request would have to wait
    /// as long.
    fn confirm(&self, locks: &[LockId], silence: Duration) -> Option<bool> {
        let (mut claimed, mut doubted, mut is_all) = (Vec::new(), Vec::new(), true);
        for &lock in locks {
            let Some((lock_slot, guard)) = self.unused(lock) else {
                is_all = false;
                continue;
            };
            let Some(entry) = guard.as_ref().map(|held| &held.entry) else { continue };
            match entry.is_to_be_confirmed() {
                true => claimed.push((lock, lock_slot, guard)),
                false => doubted.push(lock),
            }
        }
        let until_ns = deadline_in(silence.min(DATA_WAIT));
        let bounds = Bounds { grant_until_ns: until_ns, until_ns };
        let statuses = self.confirm_together(claimed, bounds);
        let mut is_answered = true;
        for (lock, status) in statuses {
            is_answered &= !status.is_without_primary();
            if status == Status::Fail {
                log::warn!("lock {lock} is lost: another client holds it now");
            }
        }
        // The round ends at the first lock without an answer, so each round begins at another lock.
        let first = boot_ns() as usize % doubted.len().max(1);
        doubted.rotate_left(first);
        for lock in doubted {
            let Some((lock_slot, mut guard)) = self.unused(lock) else {
                is_all = false;
                continue;
            };
            let settled = settle(lock_slot, &mut guard, deadline_in(silence));
            drop(guard);
            lock_slot.changed.notify_all();
            if settled.is_err_and(Status::is_without_primary) {
                return None;
            }
        }
        is_answered.then_some(is_all)
    }

    /// The slot of a lock that no operation is under way on.
    fn unused(&self, lock: LockId) -> Option<(&LockSlot, LockSlotGuard<'_>)> {
        let lock_slot = self.table.lock_slot(self.table.find(lock)?);
        let guard = lock_slot.try_lock()?;
        let is_free = |held: &ClientLock| held.id == lock && held.busy == Busy::No;
        guard.as_ref().is_some_and(is_free).then_some((lock_slot, guard))
    }

    /// The locks that this client neither holds nor waits for, and that no thread has in use.
    pub(super) fn idle_locks(&self) -> HashSet<LockId> {
        let is_idle = |state| matches!(state, EntryState::Initialized | EntryState::Unlocked);
        let (idle, _) = self.of_all(|held| is_idle(held.entry.state()).then_some(held.id));
        idle.into_iter().collect()
    }

    /// The values of `of` for all locks whose slots are free; and whether those were all locks.
    fn of_all<T>(&self, mut of: impl FnMut(&ClientLock) -> Option<T>) -> (Vec<T>, bool) {
        let (mut found, mut has_seen_all) = (Vec::new(), true);
        for (id, index) in self.table.indices() {
            match self.table.lock_slot(index).try_lock() {
                Some(guard) => {
                    let held = guard.as_ref().filter(|held| held.id == id);
                    found.extend(held.and_then(&mut of));
                }
                None => has_seen_all = false,
            }
        }
        (found, has_seen_all)
    }
}
