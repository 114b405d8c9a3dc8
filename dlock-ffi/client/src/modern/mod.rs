// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modern C API, `include/dlock.h`: a thin layer on [`dlock_client::Client`].
//!
//! ```text
//!   C caller ─▶ failure::run (version, panics, detail) ─▶ handles: number ─▶ client, lock, hold, …
//!                                                    └─▶ waiting: deadline and cancel of the call
//!   abi.rs      types and numbers      clients.rs, locks.rs, holds.rs, objects.rs   functions
//!   queue.rs    requests in flight     waiting.rs   cancel handles, and what waits
//! ```
//! The functions share only the library with those of `dlock_client_api.h`: neither clients nor
//! locks.

mod abi;
mod clients;
mod events;
mod failure;
mod handles;
mod holds;
mod locks;
mod objects;
mod queue;
mod waiting;

use std::sync::atomic::{AtomicU32, Ordering};

use dlock_ffi_abi::{guard, logging};

use abi::{dlock_error, DLOCK_API_VERSION, DLOCK_E_API_VERSION, DLOCK_E_INTERNAL};
use failure::{invalid, run, told, Failure};

/// The version that the program has selected; 0: none yet.
static VERSION: AtomicU32 = AtomicU32::new(0);

/// `dlock_error dlock_select_version(uint32_t version)`
#[no_mangle]
pub extern "C" fn dlock_select_version(version: u32) -> dlock_error {
    const NAME: &str = "dlock_select_version";
    guard::call(NAME, DLOCK_E_INTERNAL, || told(NAME, select(version)))
}

fn select(version: u32) -> Result<(), Failure> {
    let refuse = |detail| Err(Failure::new(DLOCK_E_API_VERSION, detail));
    if !(1..=DLOCK_API_VERSION).contains(&version) {
        return refuse(format!("{version} is not from 1 to {DLOCK_API_VERSION}"));
    }
    logging::init();
    match VERSION.compare_exchange(0, version, Ordering::Relaxed, Ordering::Relaxed) {
        Err(before) if before != version => {
            refuse(format!("version {before} was selected before {version}"))
        }
        _ => Ok(()),
    }
}

/// `uint32_t dlock_max_version(void)`
#[no_mangle]
pub extern "C" fn dlock_max_version() -> u32 {
    DLOCK_API_VERSION
}

/// `dlock_error dlock_set_log_level(int32_t level)`
#[no_mangle]
pub extern "C" fn dlock_set_log_level(level: i32) -> dlock_error {
    run("dlock_set_log_level", || match level {
        0..=7 => {
            logging::set_level(level);
            Ok(())
        }
        _ => Err(invalid(format!("level {level} is not from 0 to 7"))),
    })
}
