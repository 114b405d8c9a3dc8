// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor of a lock whose slot is not known: after a reinit at a recovering primary, until
//! the lock is claimed there. It refuses everything, because the old slot must not be used.

use dlock_core::clock::{Now, ServerTime};
use dlock_core::ids::{Handle, Seq};
use dlock_core::memory::exec::{Executor, Posted};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use crate::os::clock::boot_ns;

/// Refuses everything with `NotReady`.
#[derive(Debug, Default)]
pub struct Refuse;

impl Executor for Refuse {
    fn execute(&self, _chains: &[Chain], outcomes: &mut [Outcome], _until_ns: u64) {
        outcomes.fill(Outcome::Refused(Status::NotReady));
    }

    fn post(&self, _chain: &Chain) -> Posted {
        Posted::Ready(Outcome::Refused(Status::NotReady))
    }

    fn poll(&self, _posted: Posted) -> Option<Outcome> {
        Some(Outcome::Refused(Status::NotReady))
    }

    fn write_ledger(&self, _handle: Handle, _entry: LedgerEntry) {}

    fn send(&self, _request: &Request) -> Result<Seq, Status> {
        Ok(Seq(0))
    }

    fn reply(&self, _seq: Seq, _until_ns: u64) -> Result<Option<Reply>, Status> {
        Ok(Some(Reply::Denied { status: Status::NotReady, word: 0 }))
    }

    fn forget(&self, _seq: Seq) {}

    fn refusal(&self) -> Option<Status> {
        Some(Status::NotReady)
    }

    /// No server clock: nothing is executed, so nothing is decided by it.
    fn now(&self) -> Now {
        Now { local_ns: boot_ns(), ..Now::within(ServerTime(0), u64::MAX) }
    }

    fn name(&self) -> &'static str {
        "none"
    }
}
