// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary that is away, and its successor: how a program acts that drives the recovery itself.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use dlock_client::raw::Instance;
use dlock_client::Status;

use super::super::job::Failover;
use super::{Client, DISMISSED};

impl Client<'_> {
    /// Checks at random, while a lock is held, whether the primary answers.
    pub(super) fn looks(&mut self, instance: &Instance) {
        self.is_away |= self.rng.chance(100) && instance.heartbeat(1) != Status::Success;
        if self.is_away {
            self.comes_back(instance);
        }
    }

    /// Tries once to come back, with all locks that are held or waited for. Returns whether that
    /// succeeded.
    pub(super) fn comes_back(&mut self, instance: &Instance) -> bool {
        thread::sleep(Duration::from_millis(self.rng.below(50)));
        if instance.reinit("127.0.0.1") != Status::Success {
            return false;
        }
        let told = loop {
            match instance.update_all_locks() {
                Status::Again => thread::sleep(Duration::from_millis(5)),
                status => break status,
            }
        };
        // `Error`: the primary is not recovering, and knows all locks
        if !matches!(told, Status::Success | Status::Error) {
            return false;
        }
        let done = instance.reinit_done();
        self.is_away = done != Status::Success;
        !self.is_away
    }

    /// Leaves, but only a primary that notices it; otherwise a successor would wait for this client
    /// until its process ends. With [`Failover::ByItself`] the library finds that primary.
    pub(super) fn leave(&self, instance: &Instance) {
        let is_by_hand = self.job.failover == Failover::ByHand;
        let is_alone = || instance.heartbeat(1) == Status::BadResponse;
        while is_by_hand && !DISMISSED.load(SeqCst) && is_alone() {
            instance.reinit("127.0.0.1");
            thread::sleep(Duration::from_millis(20));
        }
        instance.deinit();
    }
}
