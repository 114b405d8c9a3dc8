// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library, its clients, and their counters.

use std::os::raw::{c_char, c_int, c_uint};
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, TlsUse};
use dlock_core::limits::HEARTBEAT_S_MAX;
use dlock_ffi_abi::args::{self, Ssl};
use dlock_ffi_abi::tls::TlsSettings;
use dlock_ffi_abi::types::{ClientCfg, DebugStats};
use dlock_ffi_abi::{code, guard, logging};
use parking_lot::Mutex;

use crate::library::{self, Entered};

/// How often a client registers before it gives up: two primaries may give out the same id.
const ID_TRIES_MAX: usize = 6;
/// The most calls about counters in one second, for all clients together (C API).
const STATS_CALLS_MAX: u32 = 10_000;

/// `int dclient_lib_init(const struct client_cfg *cfg)`
#[no_mangle]
pub unsafe extern "C" fn dclient_lib_init(cfg: *const ClientCfg) -> c_int {
    logging::init();
    guard::call("dclient_lib_init", code::ERROR, || {
        if cfg.is_null() {
            return code::EINVAL;
        }
        // SAFETY: not null, so it points to a client_cfg; its fields are integers and pointers.
        let (level, port, ssl) = unsafe {
            ((*cfg).log_level, (*cfg).primary_port, Ssl::read(std::ptr::addr_of!((*cfg).ssl)))
        };
        logging::set_level(level);
        let Some(port) = args::port(port, library::last_port()) else {
            log::error!("primary_port {port} is not in 1024..65535: choose one that is, or 0");
            return code::EINVAL;
        };
        if matches!(ssl, Ssl::Incomplete) {
            log::error!("ssl needs ca_path, cert_path, prkey_path and both key callbacks");
            return code::EINVAL;
        }
        // SAFETY: as above.
        match library::start(|| unsafe { configuration(cfg, port, &ssl) }) {
            Ok(()) => code::SUCCESS,
            Err(code) => code,
        }
    })
}

/// # Safety
/// `cfg` points to a `client_cfg`.
unsafe fn configuration(
    cfg: *const ClientCfg,
    port: u16,
    ssl: &Ssl,
) -> Result<(ClientConfig, Option<TlsSettings>), c_int> {
    // SAFETY: the caller vouches for the struct; all its fields are integers and pointers.
    let (tp_mode, dev_name, eid) = unsafe { ((*cfg).tp_mode, (*cfg).dev_name, (*cfg).eid.raw) };
    // SAFETY: a device name is null or a terminated string.
    let device = unsafe { args::text(dev_name) }.filter(|name| !name.is_empty());
    let config = ClientConfig {
        port,
        tp_mode: u8::try_from(tp_mode).unwrap_or(u8::MAX),
        device,
        eid,
        exact_views: true,
        // the program's TLS configuration, or else that of the environment
        tls: if matches!(ssl, Ssl::Enabled) { TlsUse::Off } else { TlsUse::Environment },
        ..ClientConfig::default()
    };
    config.check().map_err(code::of)?;
    let tls = match ssl {
        // SAFETY: within the struct, and enabled.
        Ssl::Enabled => unsafe { TlsSettings::read(std::ptr::addr_of!((*cfg).ssl)) },
        _ => return Ok((config, None)),
    };
    Ok((config, Some(tls.ok_or(code::ERROR)?)))
}

/// `void dclient_lib_deinit(void)`
#[no_mangle]
pub extern "C" fn dclient_lib_deinit() {
    guard::call("dclient_lib_deinit", (), library::stop);
    logging::flush();
}

/// `int client_init(int *client_id, const char *ip)`
#[no_mangle]
pub unsafe extern "C" fn client_init(client_id: *mut c_int, ip: *const c_char) -> c_int {
    guard::call("client_init", code::ERROR, || {
        if client_id.is_null() || ip.is_null() {
            return code::EINVAL;
        }
        // SAFETY: not null, so it is a terminated string.
        let ip = unsafe { args::text(ip) };
        match new_client(ip) {
            Ok(id) => {
                // SAFETY: not null, so it points to an int.
                unsafe { args::store(client_id, id) };
                code::SUCCESS
            }
            Err(code) => code,
        }
    })
}

fn new_client(ip: Option<String>) -> Result<c_int, c_int> {
    let library_context = library::library_context().ok_or(code::ERROR)?;
    let ip = ip.ok_or(code::ERROR)?;
    let config = library_context.config().ok_or(code::ERROR)?;
    for _ in 0..ID_TRIES_MAX {
        let instance = Instance::init_shared(&config, &ip).map_err(code::of)?;
        match library::enter(&library_context, instance) {
            Entered::As(id) => return Ok(id),
            Entered::Gone => break,
            Entered::Taken(instance) => {
                log::info!("the primary's id {} is in use in this process", instance.id());
                instance.deinit();
            }
        }
    }
    Err(code::ERROR)
}

/// `int client_reinit(int client_id, const char *ip)`
#[no_mangle]
pub unsafe extern "C" fn client_reinit(client_id: c_int, ip: *const c_char) -> c_int {
    guard::call("client_reinit", code::ERROR, || {
        if ip.is_null() {
            return code::EINVAL;
        }
        match library::find(client_id) {
            Err(missing) => missing.or(code::ERROR, code::EINVAL),
            // SAFETY: not null, so it is a terminated string.
            Ok(client) => match unsafe { args::text(ip) } {
                None => code::ERROR,
                Some(ip) => code::of(client.reinit(&ip)),
            },
        }
    })
}

/// `int client_reinit_done(int client_id)`
#[no_mangle]
pub extern "C" fn client_reinit_done(client_id: c_int) -> c_int {
    guard::call("client_reinit_done", code::ERROR, || match library::find(client_id) {
        Err(missing) => missing.or(code::ERROR, code::CLIENT_NOT_INIT),
        Ok(client) => code::of(client.reinit_done()),
    })
}

/// `int update_all_locks(int client_id)`
#[no_mangle]
pub extern "C" fn update_all_locks(client_id: c_int) -> c_int {
    guard::call("update_all_locks", code::ERROR, || match library::find(client_id) {
        Err(missing) => missing.or(code::ERROR, code::CLIENT_NOT_INIT),
        Ok(client) => code::of(client.update_all_locks()),
    })
}

/// `int client_deinit(int client_id)`
#[no_mangle]
pub extern "C" fn client_deinit(client_id: c_int) -> c_int {
    guard::call("client_deinit", code::ERROR, || match library::remove(client_id) {
        Err(_) => code::ERROR,
        Ok(client) => code::of(client.deinit()),
    })
}

/// `int client_heartbeat(int client_id, unsigned int timeout_s)`
#[no_mangle]
pub extern "C" fn client_heartbeat(client_id: c_int, timeout_s: c_uint) -> c_int {
    guard::call("client_heartbeat", code::ERROR, || {
        if !library::is_started() {
            return code::ERROR;
        }
        if timeout_s == 0 || timeout_s > HEARTBEAT_S_MAX {
            return code::EINVAL;
        }
        match library::find(client_id) {
            Err(missing) => missing.or(code::ERROR, code::EINVAL),
            Ok(client) => code::of(client.heartbeat(timeout_s)),
        }
    })
}

/// `int get_client_debug_stats(int client_id, struct debug_stats *stats)`
#[no_mangle]
pub unsafe extern "C" fn get_client_debug_stats(client_id: c_int, stats: *mut DebugStats) -> c_int {
    guard::call("get_client_debug_stats", code::ERROR, || {
        if stats.is_null() {
            return code::EINVAL;
        }
        about_counters(client_id, |client| {
            // SAFETY: not null, so it points to a debug_stats.
            unsafe { args::store(stats, DebugStats { stats: client.stats() }) };
        })
    })
}

/// `int clear_client_debug_stats(int client_id)`
#[no_mangle]
pub extern "C" fn clear_client_debug_stats(client_id: c_int) -> c_int {
    guard::call("clear_client_debug_stats", code::ERROR, || {
        about_counters(client_id, |client| client.clear_stats())
    })
}

fn about_counters(client_id: c_int, act: impl FnOnce(&Instance)) -> c_int {
    if !library::is_started() {
        return code::CLIENTMGR_NOT_INIT;
    }
    if !may_ask() {
        return code::EAGAIN;
    }
    match library::find(client_id) {
        Err(missing) => missing.code(),
        Ok(client) => {
            act(&client);
            code::SUCCESS
        }
    }
}

/// Counts a call; returns `false` if there were too many calls in this second.
fn may_ask() -> bool {
    static WINDOW: Mutex<Option<(Instant, u32)>> = Mutex::new(None);
    let now = Instant::now();
    let mut window = WINDOW.lock();
    let (start, calls) = match *window {
        Some((start, calls)) if now.duration_since(start) < Duration::from_secs(1) => {
            (start, calls)
        }
        _ => (now, 0),
    };
    *window = Some((start, calls.saturating_add(1)));
    calls < STATS_CALLS_MAX
}
