// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor of a session whose connections have ended. The real executor is closed, because a
//! client that comes back needs its descriptors.

use dlock_core::clock::{ClockEstimate, Now, TrackedClock, DRIFT_PPM};
use dlock_core::ids::{Handle, Seq};
use dlock_core::memory::exec::{Executor, Listening, OnAnswer, Posted};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use crate::os::clock::boot_ns;

/// Answers every call as the closed executor would, and goes on telling the server clock.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    name: &'static str,
    clock: TrackedClock,
}

impl Ended {
    /// An executor that takes the place of `exec`.
    pub fn after(exec: &dyn Executor) -> Self {
        let Now { time, uncertainty_ns, local_ns, discontinuities, .. } = exec.now();
        let offset_ns = time.0.wrapping_sub(local_ns);
        let estimate = ClockEstimate {
            offset_ns,
            half_trip_ns: uncertainty_ns,
            taken_at_ns: local_ns,
            drift_ppm: DRIFT_PPM,
        };
        Self { name: exec.name(), clock: TrackedClock { estimate, discontinuities } }
    }
}

impl Executor for Ended {
    fn execute(&self, _chains: &[Chain], outcomes: &mut [Outcome], _until_ns: u64) {
        outcomes.fill(Outcome::Refused(Status::BadResponse));
    }

    fn post(&self, _chain: &Chain) -> Posted {
        Posted::Ready(Outcome::Refused(Status::BadResponse))
    }

    /// A chain that was posted before the end may have been executed, so its outcome is unknown.
    fn poll(&self, posted: Posted) -> Option<Outcome> {
        Some(match posted {
            Posted::Ready(outcome) => outcome,
            Posted::Pending(_) => Outcome::Unknown,
        })
    }

    fn write_ledger(&self, _handle: Handle, _entry: LedgerEntry) {}

    fn send(&self, _request: &Request) -> Result<Seq, Status> {
        Err(Status::BadResponse)
    }

    fn reply(&self, _seq: Seq, _until_ns: u64) -> Result<Option<Reply>, Status> {
        Err(Status::BadResponse)
    }

    fn listen(&self, _call: Option<&OnAnswer>) -> Result<Listening, Status> {
        Err(Status::BadResponse)
    }

    fn forget(&self, _seq: Seq) {}

    fn is_cut_off(&self) -> bool {
        true
    }

    fn now(&self) -> Now {
        self.clock.at(boot_ns())
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refuse;
    use dlock_core::clock::ServerTime;

    #[derive(Debug)]
    struct Old(Now);

    impl Executor for Old {
        fn execute(&self, _: &[Chain], _: &mut [Outcome], _: u64) {}
        fn post(&self, chain: &Chain) -> Posted {
            Refuse.post(chain)
        }
        fn poll(&self, posted: Posted) -> Option<Outcome> {
            Refuse.poll(posted)
        }
        fn write_ledger(&self, _: Handle, _: LedgerEntry) {}
        fn send(&self, _: &Request) -> Result<Seq, Status> {
            Ok(Seq(1))
        }
        fn reply(&self, _: Seq, _: u64) -> Result<Option<Reply>, Status> {
            Ok(None)
        }
        fn forget(&self, _: Seq) {}
        fn now(&self) -> Now {
            self.0
        }
        fn name(&self) -> &'static str {
            "old"
        }
    }

    #[test]
    fn the_time_goes_on_and_is_known_ever_less() {
        let local_ns = boot_ns() - 1_000_000_000;
        let then = Now {
            local_ns,
            discontinuities: 7,
            ..Now::within(ServerTime(local_ns.wrapping_add(55)), 1_000)
        };
        let ended = Ended::after(&Old(then));
        let now = ended.now();
        assert_eq!(now.time.0.wrapping_sub(now.local_ns), 55);
        assert!(now.uncertainty_ns >= 1_000 + 1_000_000 * DRIFT_PPM / 1_000, "{now:?}");
        assert_eq!((now.discontinuities, ended.name()), (7, "old"));
        assert_eq!(ended.poll(Posted::Pending(Seq(3))), Some(Outcome::Unknown));
        assert_eq!(ended.send(&Request::Ping), Err(Status::BadResponse));
    }
}
