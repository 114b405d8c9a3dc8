// SPDX-License-Identifier: MIT OR Apache-2.0
//! libdlockc: the client interface of `include/dlock_client_api.h`, and that of `include/dlock.h`.
//!
//! ```text
//!   library.rs   the process's library: configuration, clients by id, finding a client fast
//!   clients.rs   dclient_lib_*, client_*, update_all_locks, counters
//!   locks.rs     get, release, trylock, lock, unlock, extend, asynchronous operations
//!   batches.rs   the same for up to 31 locks
//!   objects.rs   umo_atomic64_*
//!   modern/      dlock_* of `dlock.h`, which share no client and no lock with the above
//! ```
//! Each function checks its arguments, then the library, then the client, in the order of the
//! header, and leaves the rest to [`dlock_client::raw::Instance`]. Any thread may call any function
//! at any time. If a client is ended during a call, it lives until that call returns.
//!
//! The safety contract of all functions is the header's: a pointer is null or points to what
//! its type and the function's comment say.
#![allow(clippy::missing_safety_doc)]

mod batches;
mod clients;
mod library;
mod locks;
mod modern;
mod objects;
