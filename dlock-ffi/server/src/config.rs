// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a [`ServerConfig`] of a `server_cfg`, with the checks of the C API in its order.

use std::net::IpAddr;
use std::os::raw::c_int;

use dlock_core::limits::{PORT_DEFAULT, RECOVERY_CLIENTS_MAX};
use dlock_ffi_abi::args::{self, Ssl};
use dlock_ffi_abi::logging;
use dlock_ffi_abi::tls::TlsSettings;
use dlock_ffi_abi::types::{PrimaryCfg, ServerCfg};
use dlock_server::ServerConfig;

/// `SERVER_PRIMARY` of the header.
const SERVER_PRIMARY: u32 = 0;

/// A copy of a program's configuration, after all checks that do not depend on this host.
pub(crate) struct Checked {
    port: u16,
    recovery_clients: u32,
    tp_mode: u8,
    sleep_mode: bool,
    /// The TLS configuration, if TLS is enabled; `Some(None)`: TLS is enabled, and the
    /// configuration cannot be used.
    tls: Option<Option<TlsSettings>>,
    ip: Option<String>,
    ctrl_cpuset: Option<String>,
    cmd_cpuset: Option<String>,
    device: Option<String>,
    eid: [u8; 16],
}

/// Copies and checks a configuration. `None`: it is invalid; the log says why.
///
/// # Safety
/// `cfg` points to a `server_cfg`.
pub(crate) unsafe fn read(cfg: *const ServerCfg) -> Option<Checked> {
    // SAFETY: the caller vouches for the struct; enums are read as integers.
    let (server_type, level, tp_mode) =
        unsafe { ((*cfg).server_type, (*cfg).log_level, (*cfg).tp_mode) };
    logging::set_level(level);
    if server_type != SERVER_PRIMARY {
        return refused("type is not SERVER_PRIMARY: only primaries can be started");
    }
    // SAFETY: a primary's configuration is in the union; bools are read as integers.
    let primary: PrimaryCfg = unsafe { (*cfg).role.primary };
    let port = checked_port(primary.server_port, "server_port")?;
    check_role(&primary)?;
    // SAFETY: the struct lies within `cfg`.
    let is_enabled = match unsafe { Ssl::read(std::ptr::addr_of!((*cfg).ssl)) } {
        Ssl::Disabled => false,
        Ssl::Enabled => true,
        Ssl::Incomplete => {
            return refused("ssl needs ca_path, cert_path, prkey_path and both key callbacks");
        }
    };
    let Some(tp_mode) = u8::try_from(tp_mode).ok().filter(|&m| m <= 1) else {
        return refused("tp_mode is neither SEPERATE_CONN nor UNI_CONN");
    };
    // SAFETY: within `cfg`, and enabled.
    let tls = is_enabled.then(|| unsafe { TlsSettings::read(std::ptr::addr_of!((*cfg).ssl)) });
    // SAFETY: strings of a configuration are null or terminated; bools are integers.
    unsafe {
        Some(Checked {
            port,
            recovery_clients: primary.recovery_client_num,
            tp_mode,
            sleep_mode: (*cfg).sleep_mode_enable != 0,
            tls,
            ip: args::text(primary.server_ip_str),
            ctrl_cpuset: args::text(primary.ctrl_cpuset),
            cmd_cpuset: args::text(primary.cmd_cpuset),
            device: args::text((*cfg).dev_name).filter(|name| !name.is_empty()),
            eid: (*cfg).eid.raw,
        })
    }
}

fn check_role(primary: &PrimaryCfg) -> Option<()> {
    if primary.replica_enable != 0 {
        checked_port(primary.replica_port, "replica_port")?;
        return refused("replica_enable is set: replicas are not supported");
    }
    if primary.recovery_client_num > RECOVERY_CLIENTS_MAX {
        return refused("recovery_client_num is more than 1000");
    }
    if primary.num_of_replica != 0 {
        return refused("num_of_replica is not 0: replicas are not supported");
    }
    Some(())
}

fn checked_port(given: c_int, name: &str) -> Option<u16> {
    let port = args::port(given, PORT_DEFAULT);
    if port.is_none() {
        log::error!("{name} {given} is not in 1024..65535: choose one that is, or 0");
    }
    port
}

fn refused<T>(why: &str) -> Option<T> {
    log::error!("{why}");
    None
}

impl Checked {
    /// The configuration of the primary; `None` if it is invalid. [`dlock_server::Server::start`]
    /// checks the device and the CPUs.
    pub(crate) fn into_config(self) -> Option<ServerConfig> {
        let tls = match self.tls {
            Some(settings) => Some(settings?.load(true)?),
            None => None,
        };
        let ip = self.ip.unwrap_or_default();
        let Ok(bind) = ip.parse::<IpAddr>() else {
            log::error!("server_ip_str '{ip}' is no IP address: write it in digits");
            return None;
        };
        Some(ServerConfig {
            bind,
            port: self.port,
            ctrl_cpuset: self.ctrl_cpuset,
            cmd_cpuset: self.cmd_cpuset,
            sleep_mode: self.sleep_mode,
            recovery_clients: self.recovery_clients,
            tp_mode: self.tp_mode,
            device: self.device,
            eid: self.eid,
            tls,
            ..ServerConfig::default()
        })
    }
}
