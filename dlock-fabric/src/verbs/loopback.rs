// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's own way to the slots: a queue pair of its device, connected to another of it.
//!
//! ```text
//!   NicMemory ──run(verbs)──▶ Poster ──▶ Qp ═══ the device ═══▶ Qp ──▶ slots
//!                  values ◀── Cq, busily polled
//! ```
//! A device's atomics are atomic with each other, not with the CPU's. So whatever the primary does
//! to a word that a client may operate on goes this way.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::completion::{Completion, Cq};
use super::device::Context;
use super::error::VerbsError;
use super::memory::{Access, Mr, Pages, Pd, RemoteRegion};
use super::poster::{Notify, Poster, RemoteVerb};
use super::qp::{Qp, QpSpec};
use super::timing::DEAD_PEER_MAX;

/// Verbs of one list: a chain, and room to spare.
pub(super) const LIST_MAX: usize = 8;
/// How long one list may take: each verb may need all retries, and the machine may be slow.
const WAIT: Duration = DEAD_PEER_MAX.saturating_mul(LIST_MAX as u32);
/// Looks at the completion queue between two looks at the clock.
const LOOKS: u32 = 64;

/// A pair of connected queue pairs of one device.
#[derive(Debug)]
pub(super) struct Loopback {
    poster: Poster,
    cq: Arc<Cq>,
    slots: RemoteRegion,
    /// Dropped after what it serves.
    _served: Arc<Qp>,
    _key: Mr,
}

impl Loopback {
    pub(super) fn new(context: &Arc<Context>, slots: &Arc<Pages>) -> Result<Self, VerbsError> {
        let pd = Pd::new(context)?;
        let key = Mr::register(&pd, slots.clone(), Access::Own)?;
        let cq = Cq::new(context, LIST_MAX as u32 + 3, None)?;
        let end = |send_slots, serves| {
            let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
            Qp::new(
                &pd,
                QpSpec { send_cq, recv_cq, send_slots, recv_slots: 1, serves, psn: random_psn() },
            )
        };
        let (own, served) = (end(LIST_MAX as u32, false)?, end(1, true)?);
        served.connect(&own.endpoint())?;
        own.connect(&served.endpoint())?;
        let poster = Poster::new(&own, LIST_MAX as u32)?;
        Ok(Self { poster, cq, slots: key.remote(), _served: served, _key: key })
    }

    /// The slots as this queue pair names them.
    pub(super) fn slots(&self) -> RemoteRegion {
        self.slots
    }

    /// Executes a list in order with one doorbell, and gives the values of its verbs (for writes
    /// some value).
    ///
    /// # Errors
    /// Why not; a front part of the list may have taken effect.
    #[inline]
    pub(super) fn run(&mut self, verbs: &[RemoteVerb]) -> Result<[u64; LIST_MAX], String> {
        let list = self.poster.post(verbs, Notify::Yes).map_err(|error| error.to_string())?;
        let completion = self.completion()?;
        if !completion.is_success() {
            return Err(completion.status_text());
        }
        let settled = self.poster.settle(&completion);
        debug_assert_eq!(settled.seq(), list.seq);
        let mut values = [0; LIST_MAX];
        for (to, value) in values.iter_mut().zip(settled.values()) {
            *to = value;
        }
        Ok(values)
    }

    #[inline]
    fn completion(&self) -> Result<Completion, String> {
        let mut one = [Completion::default()];
        let mut started = None;
        loop {
            for _ in 0..LOOKS {
                match self.cq.poll(&mut one) {
                    Ok(0) => std::hint::spin_loop(),
                    Ok(_) => return Ok(one[0]),
                    Err(error) => return Err(error.to_string()),
                }
            }
            // What executes it may need this very CPU.
            std::thread::yield_now();
            if started.get_or_insert_with(Instant::now).elapsed() > WAIT {
                return Err("the device does not answer".into());
            }
        }
    }
}

/// The number of a first packet.
pub(super) fn random_psn() -> u32 {
    // The standard library seeds it from the system, and differently each time.
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
