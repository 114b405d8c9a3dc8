// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lock memory in the NIC domain (skeleton).
#![allow(unused_variables, missing_docs, clippy::all, unused)]
use crate::FabricError;
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Handle};
use dlock_core::verb::{Chain, Outcome, WordAddr};
use dlock_core::words::LedgerEntry;
#[derive(Debug)]
pub struct DeviceLost {
    pub(super) reason: String,
}
impl std::fmt::Display for DeviceLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}
#[derive(Debug)]
pub struct NicMemory {}
impl NicMemory {
    pub fn slots(&self) -> u32 {
        unimplemented!()
    }
    pub fn ledger_entries(&self) -> u32 {
        unimplemented!()
    }
    pub fn add_client(&mut self, client: ClientId) -> Result<(), FabricError> {
        unimplemented!()
    }
    pub fn remove_client(&mut self, client: ClientId) {
        unimplemented!()
    }
    pub fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        unimplemented!()
    }
    pub fn note(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) -> bool {
        unimplemented!()
    }
}
impl LockMemory for NicMemory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        unimplemented!()
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        unimplemented!()
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        unimplemented!()
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        unimplemented!()
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        unimplemented!()
    }
    fn clear_ledger(&mut self, client: ClientId, handle: Handle) {
        unimplemented!()
    }
}
