// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the device itself: one fetch-and-add after the other, as perftest does, without dlock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::completion::{Completion, Cq};
use super::context::{devices, Context};
use super::error::VerbsError;
use super::ffi::{self, ibv_send_wr, ibv_sge};
use super::memory::{Access, Mr, Pages, Pd};
use super::port_selection::choose;
use super::qp::{random_psn, Qp};
use crate::error::FabricError;

/// The limit for one operation.
const WAIT: Duration = Duration::from_secs(5);
/// How often the queue is polled between two readings of the clock.
const LOOKS: u32 = 1_000;

/// A queue pair, connected to another one of the same device, and a word.
#[derive(Debug)]
pub struct BareFaa {
    request: Box<ibv_send_wr>,
    _scatter: Box<ibv_sge>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    _served: Arc<Qp>,
    _word: Mr,
}

impl BareFaa {
    /// Uses the device of this name, or the first usable one.
    ///
    /// # Errors
    /// `Verbs`: there is no device, or it has failed.
    pub fn new(device: Option<&str>) -> Result<Self, FabricError> {
        let choice = choose(&devices()?, device, &[0; 16]).map_err(VerbsError::from)?;
        let pd = Pd::new(&Context::open(&choice)?)?;
        let cq = Cq::new(pd.context(), 4, None)?;
        let (qp, served) = Qp::loopback(&pd, &cq, 1, random_psn())?;
        let word = Mr::register(&pd, Pages::new(8)?, Access::ReadAtomic)?;
        let (pages, lkey) = qp.scratch()?;
        let addr = std::ptr::from_ref(&pages.words()[0]) as u64;
        let mut scatter = Box::new(ibv_sge { addr, length: 8, lkey });
        let mut request = Box::new(ibv_send_wr {
            sg_list: &mut *scatter,
            num_sge: 1,
            opcode: ffi::IBV_WR_ATOMIC_FETCH_AND_ADD,
            send_flags: ffi::IBV_SEND_SIGNALED,
            ..ibv_send_wr::empty()
        });
        let remote = word.remote();
        request.wr.atomic =
            ffi::atomic { remote_addr: remote.base, compare_add: 1, swap: 0, rkey: remote.rkey };
        Ok(Self { request, _scatter: scatter, qp, cq, _served: served, _word: word })
    }

    /// Executes one fetch-and-add.
    ///
    /// # Errors
    /// `Verbs`: the device has failed, or does not answer within 5 s.
    #[inline]
    pub fn once(&mut self) -> Result<(), FabricError> {
        // SAFETY: one request, which the call copies; its scatter entry leads to a scratch word
        // that the queue pair keeps, and only the device uses.
        let posted = unsafe { self.qp.post_send(&mut *self.request) };
        posted.map_err(|failed| failure(&format!("error {}", failed.code)))?;
        let mut one = [Completion::default()];
        for _ in 0..LOOKS {
            if self.cq.poll(&mut one)? > 0 {
                return completed(&one[0]);
            }
        }
        let until = Instant::now() + WAIT;
        while self.cq.poll(&mut one)? == 0 {
            if Instant::now() > until {
                return Err(failure("it does not answer"));
            }
        }
        completed(&one[0])
    }
}

#[inline]
fn completed(completion: &Completion) -> Result<(), FabricError> {
    match completion.is_success() {
        true => Ok(()),
        false => Err(failure(&completion.status_text())),
    }
}

#[cold]
fn failure(why: &str) -> FabricError {
    VerbsError::call("do a bare fetch-and-add", std::io::Error::other(why.to_owned())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_fetch_and_add_adds() {
        let found = devices().unwrap_or_default();
        if choose(&found, None, &[0; 16]).is_err() {
            return; // there is no device
        }
        let mut bare = BareFaa::new(None).unwrap();
        (0..100).for_each(|_| bare.once().unwrap());
        assert_eq!(bare.qp.scratch().unwrap().0.words()[0].load(), 99);
        assert!(BareFaa::new(Some("none such")).is_err());
    }
}
