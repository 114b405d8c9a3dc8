// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's executor (skeleton).
#![allow(unused_variables, missing_docs, clippy::all, unused)]
use crate::{ClockEstimate, FabricError};
use dlock_core::clock::Now;
use dlock_core::control::Attach;
use dlock_core::exec::{Executor, Posted};
use dlock_core::ids::{Handle, Seq};
use dlock_core::message::{Reply, Request};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Outcome};
use dlock_core::words::LedgerEntry;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsWish {
    pub device: Option<String>,
    pub eid: [u8; 16],
    pub shared_qp: bool,
    pub sleep: bool,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbCounts {
    pub atomics: u64,
    pub reads: u64,
    pub notes: u64,
    pub doorbells: u64,
    pub sends: u64,
}
#[derive(Debug)]
pub struct VerbsExecutor {}
impl VerbsExecutor {
    pub fn attach(
        wish: &VerbsWish,
        addr: SocketAddr,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        unimplemented!()
    }
    pub fn attach_on(
        wish: &VerbsWish,
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        unimplemented!()
    }
    pub fn is_alive(&self) -> bool {
        unimplemented!()
    }
    pub fn probe(&self) -> bool {
        unimplemented!()
    }
    pub fn refresh(&self, candidate: ClockEstimate) {
        unimplemented!()
    }
    pub fn counters(&self) -> VerbCounts {
        unimplemented!()
    }
}
impl Executor for VerbsExecutor {
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], wait: Duration) {
        unimplemented!()
    }
    fn post(&self, chain: &Chain) -> Posted {
        unimplemented!()
    }
    fn poll(&self, posted: Posted) -> Option<Outcome> {
        unimplemented!()
    }
    fn note(&self, handle: Handle, entry: LedgerEntry) {
        unimplemented!()
    }
    fn publish(&self, wait: Duration) -> bool {
        unimplemented!()
    }
    fn send(&self, request: &Request) -> Result<Seq, Status> {
        unimplemented!()
    }
    fn reply(&self, seq: Seq, wait: Duration) -> Result<Option<Reply>, Status> {
        unimplemented!()
    }
    fn forget(&self, seq: Seq) {
        unimplemented!()
    }
    fn now(&self) -> Now {
        unimplemented!()
    }
    fn name(&self) -> &'static str {
        "verbs"
    }
}
