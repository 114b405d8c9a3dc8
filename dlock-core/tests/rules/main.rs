// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of the core, seen from outside: one program, so that it is linked once.

mod common;

mod admission;
mod another_fabric;
mod answers;
mod arbiter;
mod awaited;
mod counting;
mod discontinuity;
mod downgrade;
mod executed;
mod fair;
mod fenced;
mod forgets;
mod golden;
mod handed_over;
mod holds;
mod hostile;
mod kept;
mod laggards;
mod late;
mod leases;
mod listeners;
mod lock_ids;
mod machine;
mod membership;
mod overview;
mod partial;
mod past_claim;
mod primary;
mod readers;
mod recounts;
mod recovery;
mod regranted;
mod reinit;
mod remembered;
mod replies;
mod rights;
mod rw_leases;
mod slices;
mod taken;
mod told;
