// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's own access to the slots, through a loopback: two connected queue pairs of the
//! primary's device.
//!
//! ```text
//!   NicMemory ──run(verbs)──▶ Poster ──▶ Qp ═══ the device ═══▶ Qp ──▶ slots
//!                  values ◀── Cq, busily polled
//! ```
//! A device's atomics are atomic with each other, but not with the CPU's. So the primary executes
//! all its operations on words of clients through the device.
//!
//! *When the pair fails*, as on SoftRoCE while the network interface is down, the primary makes a
//! new pair as soon as possible, and executes the list with it. That is correct if no operation of
//! the list was executed before. The device shows whether one was: the serving end expects the
//! packet after the last one that it has executed. If an atomic was executed and its value is lost,
//! the state of the word is unknown: the memory has failed. The memory has also failed if the
//! device does not work again in time. Until then the calling thread is blocked; other threads see
//! that by [`Health`].

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::health::{Health, SLOW};
use crate::verbs::device::completion::{Completion, Cq};
use crate::verbs::device::context::Context;
use crate::verbs::device::error::VerbsError;
use crate::verbs::device::memory::{Access, Mr, Pages, Pd, RemoteRegion, RemoteWord};
use crate::verbs::device::poster::{Notify, Poster, RemoteOp};
use crate::verbs::device::qp::{random_psn, Qp, PSN_MASK};
use crate::verbs::device::timing::DEAD_PEER_MAX;

/// The most verbs of one list: a chain, and room to spare.
pub(super) const LIST_MAX: usize = 8;
/// How long a device may take to work again, 15 s: as long as a working device may take for a list
/// if each word operation needs all retries. By then every client that had a word operation under
/// way over the same link has seen it fail.
const REPAIR_MAX: Duration = DEAD_PEER_MAX.saturating_mul(LIST_MAX as u32);
/// The pause between two attempts to repair.
const REPAIR_PAUSE: Duration = Duration::from_millis(20);
/// How often the queue is polled between two readings of the clock.
const LOOKS: u32 = 64;

/// The loopback pair, and the parts for making a new pair.
#[derive(Debug)]
pub(super) struct Loopback {
    pair: Pair,
    health: Arc<Health>,
    key: Mr,
    pd: Arc<Pd>,
}

/// Two connected queue pairs of one device.
#[derive(Debug)]
struct Pair {
    poster: Poster,
    cq: Arc<Cq>,
    served: Arc<Qp>,
    /// The sequence number of the next packet; each word operation is one packet.
    next_psn: u32,
    /// Whether the device reports how far it has executed.
    tells: bool,
}

/// Why a list has no values, and how much of it was executed.
#[derive(Debug)]
struct Failed {
    reason: String,
    /// The number of executed operations; `None`: not known.
    executed: Option<usize>,
}

impl Loopback {
    pub(super) fn new(context: &Arc<Context>, slots: &Arc<Pages>) -> Result<Self, VerbsError> {
        let pd = Pd::new(context)?;
        let key = Mr::register(&pd, slots.clone(), Access::Own)?;
        let health = Arc::default();
        Ok(Self { pair: Pair::new(&pd, key.remote(), &health)?, health, key, pd })
    }

    pub(super) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The slots as this queue pair addresses them.
    #[inline]
    pub(super) fn slots(&self) -> RemoteRegion {
        self.key.remote()
    }

    /// Executes a list in order, with one doorbell. Returns the values of its verbs; that of a
    /// write is arbitrary.
    ///
    /// # Errors
    /// Why it failed; a first part of the list may have taken effect.
    ///
    /// # Latency
    /// One round trip within the device. If the device fails and cannot be used: about 20 s, 35 s
    /// for a list of eight.
    #[inline]
    pub(super) fn run(&mut self, verbs: &[RemoteOp]) -> Result<[u64; LIST_MAX], String> {
        match self.pair.run(verbs, &self.health) {
            Ok(values) => Ok(values),
            Err(failed) => self.run_again(verbs, failed),
        }
    }

    #[cold]
    fn run_again(
        &mut self,
        verbs: &[RemoteOp],
        mut failed: Failed,
    ) -> Result<[u64; LIST_MAX], String> {
        self.health.fails();
        let until = Instant::now() + REPAIR_MAX;
        loop {
            let is_lost =
                |word_op: &RemoteOp| matches!(word_op, RemoteOp::Cas { .. } | RemoteOp::Faa { .. });
            let executed = failed.executed.unwrap_or(verbs.len()).min(verbs.len());
            if verbs[..executed].iter().any(is_lost) {
                return Err(failed.reason);
            }
            self.repair(until).map_err(|error| format!("{}; {error}", failed.reason))?;
            match self.pair.run(verbs, &self.health) {
                Ok(values) => {
                    self.health.works();
                    return Ok(values);
                }
                Err(_) if self.is_over(until) => return Err(failed.reason),
                Err(again) => failed = again,
            }
        }
    }

    /// Whether to stop waiting for a device that does not work.
    fn is_over(&self, until: Instant) -> bool {
        Instant::now() >= until || self.health.is_given_up()
    }

    /// Replaces the pair by a new one.
    fn repair(&mut self, until: Instant) -> Result<(), VerbsError> {
        loop {
            match Pair::new(&self.pd, self.key.remote(), &self.health) {
                Ok(pair) => {
                    self.pair = pair;
                    return Ok(());
                }
                Err(error) if self.is_over(until) => return Err(error),
                // No event reports when an attempt can succeed.
                Err(_) => std::thread::sleep(REPAIR_PAUSE),
            }
        }
    }
}

impl Pair {
    /// Makes a pair, and checks that it works.
    fn new(pd: &Arc<Pd>, slots: RemoteRegion, health: &Health) -> Result<Self, VerbsError> {
        let cq = Cq::new(pd.context(), LIST_MAX as u32 + 3, None)?;
        let psn = random_psn() & PSN_MASK;
        let (own, served) = Qp::loopback(pd, &cq, LIST_MAX as u32, psn)?;
        let poster = Poster::new(&own, LIST_MAX as u32)?;
        let mut pair = Self { poster, cq, served, next_psn: psn, tells: false };
        // The memory has at least one page.
        let first = RemoteWord { addr: slots.base, rkey: slots.rkey };
        pair.run(&[RemoteOp::Read { word: first }], health).map_err(|failed| {
            VerbsError::call("use a loopback queue pair", io::Error::other(failed.reason))
        })?;
        pair.tells = pair.served.expected_psn()? == pair.next_psn;
        Ok(pair)
    }

    #[inline]
    fn run(&mut self, verbs: &[RemoteOp], health: &Health) -> Result<[u64; LIST_MAX], Failed> {
        let posted = self.poster.post(verbs, Notify::Yes).map_err(|error| error.to_string());
        let completion =
            posted.and_then(|_| self.completion(verbs.len(), health)).and_then(|completion| {
                match completion.is_success() {
                    true => Ok(completion),
                    false => Err(completion.status_text()),
                }
            });
        let completion = completion.map_err(|reason| self.failed(reason))?;
        self.next_psn = self.next_psn.wrapping_add(verbs.len() as u32) & PSN_MASK;
        let settled = self.poster.settle(&completion);
        if settled.values().len() != verbs.len() {
            let reason = "the device lost a value".into();
            return Err(Failed { reason, executed: None });
        }
        let mut values = [0; LIST_MAX];
        for (to, value) in values.iter_mut().zip(settled.values()) {
            *to = value;
        }
        Ok(values)
    }

    #[inline]
    fn completion(&self, verbs: usize, health: &Health) -> Result<Completion, String> {
        let wait = DEAD_PEER_MAX.saturating_mul(verbs as u32);
        let mut one = [Completion::default()];
        let (mut started, mut is_slow) = (None, false);
        loop {
            for _ in 0..LOOKS {
                match self.cq.poll(&mut one) {
                    Ok(0) => std::hint::spin_loop(),
                    Ok(_) => {
                        // The caller handles a completion that has failed.
                        if is_slow && one[0].is_success() {
                            health.works();
                        }
                        return Ok(one[0]);
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
            // the thread that executes the list may need this CPU
            std::thread::yield_now();
            let waited = started.get_or_insert_with(Instant::now).elapsed();
            if waited > wait || (is_slow && health.is_given_up()) {
                return Err("the device does not answer".into());
            }
            if waited > SLOW && !is_slow {
                is_slow = true;
                health.fails();
            }
        }
    }

    /// Stops the pair, and asks the device how far it has executed.
    #[cold]
    fn failed(&mut self, reason: String) -> Failed {
        let stopped = self.served.to_error().and_then(|()| self.served.expected_psn());
        let executed = stopped.ok().and_then(|psn| {
            let executed = psn.wrapping_sub(self.next_psn) & PSN_MASK;
            usize::try_from(executed).ok().filter(|&n| n <= LIST_MAX)
        });
        Failed { reason, executed: executed.filter(|_| self.tells) }
    }
}
