// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's side of all its clients (skeleton).
#![allow(unused_variables, missing_docs, clippy::all, unused)]
use super::choice::Choice;
use super::messages::{Event, MessageError};
use super::nic_memory::NicMemory;
use super::VerbsError;
use crate::FabricError;
use dlock_core::control::{VerbsAttach, VerbsAttached};
use dlock_core::ids::ClientId;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(u32);
#[derive(Debug)]
pub struct Arrival {}
impl Arrival {
    pub fn peer(&self) -> PeerId {
        unimplemented!()
    }
}
#[derive(Debug)]
pub struct VerbsHost {}
impl VerbsHost {
    pub fn choose(device: Option<&str>, eid: &[u8; 16]) -> Result<Choice, FabricError> {
        unimplemented!()
    }
    pub fn open(
        choice: &Choice,
        slots: u32,
        ledger_entries: u32,
        shared_qp: bool,
    ) -> Result<(Arc<VerbsHost>, NicMemory), FabricError> {
        unimplemented!()
    }
    pub fn admit(
        &self,
        client: ClientId,
        attach: &VerbsAttach,
    ) -> Result<(VerbsPeer, VerbsAttached), FabricError> {
        unimplemented!()
    }
    pub fn poll(&self, arrivals: &mut Vec<Arrival>) -> Result<usize, VerbsError> {
        unimplemented!()
    }
    pub fn fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
    pub fn arm(&self) -> Result<(), VerbsError> {
        unimplemented!()
    }
    pub fn take_events(&self) -> Result<bool, VerbsError> {
        unimplemented!()
    }
}
#[derive(Debug)]
pub struct VerbsPeer {}
impl VerbsPeer {
    pub fn client(&self) -> ClientId {
        unimplemented!()
    }
    pub fn ids(&self) -> [PeerId; 2] {
        unimplemented!()
    }
    pub fn take(&mut self, arrival: &Arrival, into: &mut Vec<u8>) -> Result<Event, MessageError> {
        unimplemented!()
    }
    pub fn may_send(&self) -> bool {
        unimplemented!()
    }
    pub fn send(&mut self, frame: &[u8]) -> Result<(), MessageError> {
        unimplemented!()
    }
    pub fn is_broken(&self) -> bool {
        unimplemented!()
    }
    pub fn fence(&mut self) -> Result<(), VerbsError> {
        unimplemented!()
    }
}
