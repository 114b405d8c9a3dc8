// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a primary.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use dlock_core::limits;
pub use dlock_core::membership::Orphans;
pub use dlock_core::rights::Rule;
use dlock_core::rights::{RULES_MAX, RULE_ITEMS_MAX};
use dlock_core::wire::fabric::{listed, FabricKind};
use dlock_fabric::tls::Tls;

use crate::error::StartError;
use crate::host::cpuset::CpuSet;
use crate::host::device;

/// How long an absent client keeps what it holds before it is fenced, by default.
pub const ABSENT_GRACE: Duration = Duration::from_secs(30);

/// How long a recovery waits at least for the predecessor's clients, by default.
pub const RECOVERY_DEADLINE: Duration = Duration::from_secs(30);

/// The most frames of one client in a second, by default. It is several times as many as a client
/// sends that waits for each answer.
pub const FRAMES_PER_SECOND_MAX: u32 = 250_000;

/// Whether a primary serves over RDMA verbs, and how.
///
/// One-sided: clients operate on the lock memory through the device, which holds it; shared memory
/// is not offered. Sealed: clients send sealed frames over queue pairs, and the primary executes
/// their chains; the CPU holds the memory. With TLS, verbs are sealed unless one-sided ones are
/// asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerbsUse {
    /// Use verbs on a host with an active RDMA port that has atomics. The environment variable
    /// `DLOCK_FABRIC` overrides this: `verbs` is `On`, `shm` and `tcp` are `Off`.
    #[default]
    Auto,
    /// Use verbs; without such a port the primary does not start.
    On,
    /// As `On`; without TLS it is an error.
    Sealed,
    /// As `On`, one-sided even with TLS. Chains then travel in the clear, and an attacker on the
    /// network can forge them. Clients whose rights the rules limit are offered sealed verbs.
    OneSided,
    /// Do not use verbs.
    Off,
}

/// The configuration of one primary. `Default` serves on this host alone, on the default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address to listen on, exactly this one.
    pub bind: IpAddr,
    /// The TCP port; 0: any free one.
    pub port: u16,
    /// CPUs of the control thread, like `0-3,6`; `None`: any.
    pub ctrl_cpuset: Option<String>,
    /// CPUs of the command thread; `None`: any.
    pub cmd_cpuset: Option<String>,
    /// Whether the command thread sleeps soon when nothing happens, instead of looking for a
    /// millisecond.
    pub sleep_mode: bool,
    /// Clients that must have come back before the primary serves; 0: a fresh start.
    pub recovery_clients: u32,
    /// How long a recovery waits at least for clients that the state file names. It waits longer
    /// for a client with a session horizon, until that has passed; and for one without, until it
    /// comes back, has ended, or an operator gives it up.
    pub recovery_deadline: Duration,
    /// `trans_mode_t` of the C API, 0 or 1; clients must use the same.
    pub tp_mode: u8,
    /// Whether and how to serve over RDMA verbs.
    pub verbs: VerbsUse,
    /// Whether to offer mapped memory to clients on this host, where verbs are not used.
    pub shm: bool,
    /// The user ids whose clients may map the lock memory, beside this process's user and root.
    pub shm_users: Vec<u32>,
    /// Whether to offer command channels over TCP.
    pub tcp: bool,
    /// How long a client whose host has closed its connections keeps what it holds without a
    /// lease; `None`: for ever.
    pub absent_grace: Option<Duration>,
    /// What happens to the leases of such a client.
    pub orphans: Orphans,
    /// The RDMA device to serve on, unless `eid` names a port; `None`: any. A device that cannot be
    /// used is an error, unless verbs are off.
    pub device: Option<String>,
    /// The address (GID) of the RDMA port to serve on; all zero: any. An address that no port has
    /// is an error if this host has usable ports, no device is named, and verbs are not off.
    pub eid: [u8; 16],
    /// The TLS of connections to the port; `None`: they have none. Verbs beside TLS are sealed with
    /// keys of its sessions.
    pub tls: Option<Tls>,
    /// What clients may do, by the names in their certificates; empty: everything. With rules, a
    /// client that no rule names is not let in. Rules need TLS.
    pub rules: Vec<Rule>,
    /// How many frames a second one client may send on its command channel; a hundredth of them,
    /// but at least 64, may come at once. Further frames wait, and so does the client. Operations
    /// on shared memory send no frames.
    pub frames_per_second_max: u32,
    /// The most clients at a time.
    pub clients_max: usize,
    /// The most locks at a time.
    pub locks_max: usize,
    /// The most state objects at a time.
    pub objects_max: usize,
    /// Where to make the admin endpoint's Unix socket; `None`: there is no admin endpoint.
    pub admin_socket: Option<PathBuf>,
    /// Whether the group of this process may use the admin socket, too.
    pub admin_for_group: bool,
    /// The address of the HTTP endpoint with metrics and probes (`docs/metrics.md`); `None`: there
    /// is none. Beyond loopback its connections have the TLS of the port, if that has TLS.
    pub http: Option<SocketAddr>,
    /// The file that keeps the last epoch, so that epochs never go back even if the clock does. A
    /// file beside it, with `.clients` at the end of its name, lists the clients: a primary that
    /// finds clients there recovers what they hold before it serves.
    pub state_file: Option<PathBuf>,
    /// State files that the predecessor may have used instead, because it started with another
    /// environment: if one is later than this primary's own, its clients are recovered, too.
    pub earlier_state_files: Vec<PathBuf>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: limits::PORT_DEFAULT,
            ctrl_cpuset: None,
            cmd_cpuset: None,
            sleep_mode: false,
            recovery_clients: 0,
            recovery_deadline: RECOVERY_DEADLINE,
            tp_mode: 0,
            verbs: VerbsUse::Auto,
            shm: true,
            shm_users: Vec::new(),
            tcp: true,
            absent_grace: Some(ABSENT_GRACE),
            orphans: Orphans::Lease,
            device: None,
            eid: [0; 16],
            tls: None,
            rules: Vec::new(),
            frames_per_second_max: FRAMES_PER_SECOND_MAX,
            clients_max: limits::CLIENTS_MAX,
            locks_max: limits::LOCKS_MAX,
            objects_max: limits::OBJECTS_MAX,
            admin_socket: None,
            admin_for_group: false,
            http: None,
            state_file: None,
            earlier_state_files: Vec::new(),
        }
    }
}

impl ServerConfig {
    /// Checks what can be known before the start: ranges, CPUs, devices.
    ///
    /// # Errors
    /// The error with which [`Server::start`](crate::Server::start) would fail.
    pub fn check(&self) -> Result<(), StartError> {
        if let Some(wrong) = self.out_of_range() {
            return Err(StartError::Config(wrong));
        }
        cpus("control", self.ctrl_cpuset.as_deref())?;
        cpus("command", self.cmd_cpuset.as_deref())?;
        device::check(self)
    }

    /// The first value out of its range, as the end of a sentence.
    fn out_of_range(&self) -> Option<String> {
        let max = |name: &str, value: usize, max: usize| {
            let wrong = value == 0 || value > max;
            wrong.then(|| format!("{name} is {value}: it must be 1 to {max}"))
        };
        max("clients_max", self.clients_max, limits::CLIENTS_MAX)
            .or_else(|| max("locks_max", self.locks_max, limits::LOCKS_MAX))
            .or_else(|| max("objects_max", self.objects_max, limits::OBJECTS_MAX))
            .or_else(|| {
                let (value, max) = (self.recovery_clients, limits::RECOVERY_CLIENTS_MAX);
                (value > max).then(|| format!("recovery_clients is {value}: it must be 0 to {max}"))
            })
            .or_else(|| {
                let mode = self.tp_mode;
                (mode > 1).then(|| format!("tp_mode is {mode}: it must be 0 or 1"))
            })
            .or_else(|| {
                let wrong = self.frames_per_second_max == 0;
                wrong.then(|| "frames_per_second_max is 0: it must be 1 or more".to_string())
            })
            .or_else(|| wrong_rules(&self.rules, self.tls.is_some()))
            .or_else(|| self.no_fabric())
            .or_else(|| {
                let keyless = self.tls.is_none() && self.verbs == VerbsUse::Sealed;
                keyless.then(|| {
                    "verbs are to be sealed without TLS, which their keys come from: configure \
                     TLS, or turn verbs on or off"
                        .to_string()
                })
            })
    }

    /// Whether the configuration allows clients over this fabric, if this host can offer it.
    pub fn allows(&self, kind: FabricKind) -> bool {
        match kind {
            FabricKind::Verbs | FabricKind::Sealed => {
                self.verbs != VerbsUse::Off && self.kinds().any(|one| one == kind)
            }
            FabricKind::Shm => self.shm,
            FabricKind::Tcp => self.tcp,
        }
    }

    /// The fabrics that the configuration can switch: with TLS verbs are sealed, else they are not.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = FabricKind> + '_ {
        FabricKind::ALL.into_iter().filter(|kind| match kind {
            FabricKind::Verbs => self.is_one_sided(),
            FabricKind::Sealed => self.tls.is_some(),
            _ => true,
        })
    }

    /// Whether verbs, if they are used, are one-sided: clients reach the memory through the device.
    pub fn is_one_sided(&self) -> bool {
        self.tls.is_none() || self.verbs == VerbsUse::OneSided
    }

    /// The configuration with this fabric turned off; verbs and sealed have one switch.
    #[must_use]
    pub fn without(mut self, kind: FabricKind) -> Self {
        match kind {
            FabricKind::Verbs | FabricKind::Sealed => self.verbs = VerbsUse::Off,
            FabricKind::Shm => self.shm = false,
            FabricKind::Tcp => self.tcp = false,
        }
        self
    }

    /// The end of a sentence if every fabric is turned off.
    pub fn no_fabric(&self) -> Option<String> {
        let none = !self.kinds().any(|kind| self.allows(kind));
        none.then(|| format!("{} are all off: clients need one", listed(self.kinds(), "and")))
    }
}

/// What is wrong with these rules, as the end of a sentence; `None`: nothing.
pub(crate) fn wrong_rules(rules: &[Rule], has_tls: bool) -> Option<String> {
    let (len, max) = (rules.len(), RULES_MAX);
    if len > 0 && !has_tls {
        return Some(
            "rules are given without TLS: they go by the names in certificates, which nobody shows \
             without: configure TLS, or leave the rules out"
                .to_string(),
        );
    }
    if len > max {
        return Some(format!("there are {len} rules: it must be {max} at most"));
    }
    let items = rules.iter().flat_map(|rule| [rule.names.len(), rule.prefixes.len()]);
    let most = items.max().filter(|&most| most > RULE_ITEMS_MAX)?;
    Some(format!("a rule has {most} names or prefixes: it must be {RULE_ITEMS_MAX} at most"))
}

/// The CPUs of a thread; `None`: any.
pub(crate) fn cpus(thread: &'static str, text: Option<&str>) -> Result<Option<CpuSet>, StartError> {
    let parse = |text: &str| {
        CpuSet::parse(text).map_err(|source| {
            let text = text.to_string();
            StartError::CpuSet { thread, text, source }
        })
    };
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_in_range_and_every_limit_is_checked() {
        let good = ServerConfig::default();
        assert_eq!(good.out_of_range(), None);
        for wrong in [
            ServerConfig { clients_max: 0, ..good.clone() },
            ServerConfig { clients_max: limits::CLIENTS_MAX + 1, ..good.clone() },
            ServerConfig { locks_max: limits::LOCKS_MAX + 1, ..good.clone() },
            ServerConfig { objects_max: usize::MAX, ..good.clone() },
            ServerConfig { recovery_clients: 1_001, ..good.clone() },
            ServerConfig { tp_mode: 2, ..good.clone() },
            ServerConfig { verbs: VerbsUse::Sealed, ..good.clone() },
            FabricKind::ALL.into_iter().fold(good.clone(), ServerConfig::without),
        ] {
            assert!(wrong.out_of_range().is_some(), "{wrong:?}");
        }
    }

    #[test]
    fn each_fabric_has_a_switch_and_one_that_is_on_is_enough() {
        let good = ServerConfig::default();
        assert!(!good.allows(FabricKind::Sealed), "without TLS there are no keys");
        for kind in good.kinds() {
            assert!(good.allows(kind) && !good.clone().without(kind).allows(kind), "{kind}");
            let others = good.kinds().filter(|&other| other != kind);
            let alone = others.fold(good.clone(), ServerConfig::without);
            assert!(alone.allows(kind) && alone.out_of_range().is_none(), "{kind}");
        }
    }
}
