// SPDX-License-Identifier: MIT OR Apache-2.0
//! libdlocks: the server interface of `include/dlock_server_api.h`.
//!
//! ```text
//!   servers.rs   the process's library: primaries by id
//!   config.rs    server_cfg ─▶ dlock_server::ServerConfig, with the checks of the C API
//! ```
//! Functions may be called from any thread at any time. The safety contract of all functions is
//! the header's: a pointer is null or points to what its type and the function's comment say.
#![allow(clippy::missing_safety_doc)]

mod config;
mod servers;

use std::os::raw::{c_int, c_uint};

use dlock_ffi_abi::types::{DebugStats, ServerCfg};
use dlock_ffi_abi::{args, code, guard, logging};

/// `int dserver_lib_init(unsigned int max_server_num)`
#[no_mangle]
pub extern "C" fn dserver_lib_init(max_server_num: c_uint) -> c_int {
    logging::init();
    guard::call("dserver_lib_init", code::ERROR, || match servers::start_library(max_server_num) {
        true => code::SUCCESS,
        false => code::ERROR,
    })
}

/// `void dserver_lib_deinit(void)`
#[no_mangle]
pub extern "C" fn dserver_lib_deinit() {
    guard::call("dserver_lib_deinit", (), servers::stop_library);
    logging::flush();
}

/// `int server_start(const struct server_cfg *cfg, int *server_id)`; references in C++.
#[no_mangle]
pub unsafe extern "C" fn server_start(cfg: *const ServerCfg, server_id: *mut c_int) -> c_int {
    logging::init();
    guard::call("server_start", code::ERROR, || {
        if cfg.is_null() || server_id.is_null() {
            return code::ERROR;
        }
        // SAFETY: not null, so it points to a server_cfg.
        let Some(checked) = (unsafe { config::read(cfg) }) else {
            return code::ERROR;
        };
        let place = match servers::reserve() {
            Ok(place) => place,
            Err(status) => {
                if status == code::SERVER_NO_RESOURCE {
                    // SAFETY: not null, so it points to an int.
                    unsafe { args::store(server_id, -1) };
                }
                return status;
            }
        };
        // SAFETY: `server_id` is not null, so it points to an int.
        unsafe { args::store(server_id, place.id()) };
        match checked.into_config() {
            None => code::ERROR,
            Some(config) => place.start(config),
        }
    })
}

/// `int server_stop(int server_id)`
#[no_mangle]
pub extern "C" fn server_stop(server_id: c_int) -> c_int {
    guard::call("server_stop", code::ERROR, || match servers::remove(server_id) {
        None => code::ERROR,
        Some(server) => {
            servers::stop(server);
            code::SUCCESS
        }
    })
}

/// `int get_server_debug_stats(int server_id, struct debug_stats *stats)`
#[no_mangle]
pub unsafe extern "C" fn get_server_debug_stats(server_id: c_int, stats: *mut DebugStats) -> c_int {
    guard::call("get_server_debug_stats", code::ERROR, || {
        match servers::find(server_id).filter(|_| !stats.is_null()) {
            None => code::ERROR,
            Some(server) => {
                // SAFETY: not null, so it points to a debug_stats.
                unsafe { args::store(stats, DebugStats { stats: server.stats() }) };
                code::SUCCESS
            }
        }
    })
}

/// `int clear_server_debug_stats(int server_id)`
#[no_mangle]
pub extern "C" fn clear_server_debug_stats(server_id: c_int) -> c_int {
    guard::call("clear_server_debug_stats", code::ERROR, || match servers::find(server_id) {
        None => code::ERROR,
        Some(server) => {
            server.clear_stats();
            code::SUCCESS
        }
    })
}
