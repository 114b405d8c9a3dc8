// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a client of the C API: its primary, fabric, devices, and environment
//! variables.

use std::path::Path;
use std::time::Duration;

use dlock_core::limits::PORT_DEFAULT;
use dlock_core::membership::HORIZON_S_MAX;
pub use dlock_core::session::PathChoice as FabricChoice;
use dlock_core::session::SILENCE_NS;
use dlock_core::wire::control::HORIZON_FOREVER;
use dlock_core::wire::fabric::Executes;
use dlock_core::wire::status::Status;
use dlock_fabric::verbs::{NoPort, PortSelection, VerbsError};
use dlock_fabric::FabricError;

use crate::driver::failover::Plan;
use crate::host::{addresses, Address};
use crate::secure::TlsUse;

/// The environment variable with the fabric of clients whose configuration has
/// [`FabricChoice::Auto`].
pub const FABRIC_VARIABLE: &str = "DLOCK_FABRIC";

/// The environment variable with the horizon of sessions whose configuration has none.
pub const HORIZON_VARIABLE: &str = "DLOCK_HORIZON_S";
/// The horizon in seconds of a [`Client`](crate::Client) for which neither the configuration nor
/// the environment has one.
pub const HORIZON_S_DEFAULT: u32 = 10;

/// The environment variable with the primaries of clients whose configuration names none: addresses
/// with commas between them, `host` or `host:port` or `[ip]:port`. A host is an IP address, or a
/// name that the client looks up at each connect.
pub const PRIMARIES_VARIABLE: &str = "DLOCK_PRIMARIES";
/// The environment variable with the milliseconds of silence after which a client that knows
/// several primaries looks for another, from 100 to 60,000; 1,000 if it is not set.
pub const SILENCE_VARIABLE: &str = "DLOCK_SILENCE_MS";
/// The environment variable with the prefixes of the names of locks that clients keep after their
/// release, with commas between them; `*`: all locks.
pub const CACHE_VARIABLE: &str = "DLOCK_CACHE";
/// The bounds of `DLOCK_SILENCE_MS`.
pub(crate) const SILENCE_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// How a [`raw::Instance`](crate::raw::Instance) reaches its primary, with the settings of the C
/// API. Rust programs use [`Config`](crate::Config).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The primary's control port; 0 stands for the default, 21616.
    pub port: u16,
    /// The fabric of the client's data path.
    pub fabric: FabricChoice,
    /// `trans_mode_t` of the C API, 0 or 1; the primary must have the same.
    pub tp_mode: u8,
    /// An RDMA device by name, used if `eid` names no port; `None`: any. A device that does not
    /// exist is an error, unless `fabric` or the environment demands a fabric that needs no device.
    pub device: Option<String>,
    /// An RDMA port by its GID, network order; all zero: any. A GID that no port has is an error if
    /// this host has usable ports and no device is named, unless the demanded fabric needs no
    /// device.
    pub eid: [u8; 16],
    /// The session's horizon in seconds, at most a day; 0: none. If the client has had no answer of
    /// its primary for this long, it neither operates on locks nor believes that it holds any, and
    /// the primary may end its holds without a lease. The library sends the heartbeats. `None`: the
    /// value of the environment variable `DLOCK_HORIZON_S` (a number, or `forever` for none);
    /// without it the primary decides: 30 s if it recovers by itself, none otherwise.
    pub horizon_s: Option<u32>,
    /// Whether views of fair locks have the exact number of readers inside, as those of the C API
    /// do. If readers and writers are queued, the client must ask the primary for it, which takes
    /// another round trip. If false, such a view has the number in the lock word.
    pub exact_views: bool,
    /// Where a client made by [`Instance::init_shared`](crate::raw::Instance::init_shared) looks
    /// for the successor of its primary, besides the address that it is given. `None`: the
    /// addresses in `DLOCK_PRIMARIES`; if that is not set, the client does not look for a
    /// successor.
    pub primaries: Option<Vec<Address>>,
    /// How the connections to a primary's port are secured.
    pub tls: TlsUse,
    /// How long becoming a client by `init_shared` may take in all: every address, every phase, and
    /// the wait for a primary that recovers. `None`: the client does not wait for a recovery, and
    /// each phase has its own limit.
    pub wait: Option<Duration>,
    /// How long the primary may be silent before the client looks for its successor. `None`: the
    /// value of `DLOCK_SILENCE_MS`.
    pub silence: Option<Duration>,
    /// The prefixes of the names of locks that the client keeps after their release, until other
    /// clients want them; an empty prefix stands for all locks. `None`: those in `DLOCK_CACHE`.
    pub cache: Option<Vec<Vec<u8>>>,
    /// What operators see of the client (`dlock clients`): 64 bytes at most, without control
    /// characters. `None`: the value of `DLOCK_LABEL`, or no label.
    pub label: Option<String>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            port: PORT_DEFAULT,
            fabric: FabricChoice::Auto,
            tp_mode: 0,
            device: None,
            eid: [0; 16],
            horizon_s: None,
            exact_views: false,
            primaries: None,
            tls: TlsUse::Environment,
            wait: None,
            silence: None,
            cache: None,
            label: None,
        }
    }
}

/// The directory in which Linux lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

impl ClientConfig {
    /// Checks what can be checked without a primary: `tp_mode`, label, device, `DLOCK_FABRIC` and
    /// the TLS files. [`Instance::init`](crate::raw::Instance::init) does so, too.
    ///
    /// # Errors
    /// `Error`; the cause and its remedy are logged.
    pub fn check(&self) -> Result<(), Status> {
        if self.tp_mode > 1 {
            log::error!("tp_mode {} is neither 0 nor 1", self.tp_mode);
            return Err(Status::Error);
        }
        self.check_label()?;
        self.tls.material()?;
        let fabric = self.effective_fabric()?;
        let names_a_port = self.device.is_some() || self.eid != [0; 16];
        let may_use_a_port = match fabric {
            FabricChoice::Auto => true,
            FabricChoice::Only(kind) => kind.needs_device(),
        };
        if names_a_port && !may_use_a_port {
            log::info!("device and eid are not used: {fabric} is demanded");
            return Ok(());
        }
        if self.eid != [0; 16] {
            return self.check_ports(dlock_fabric::VerbsHost::choose);
        }
        if let Some(name) = &self.device {
            if !device_exists(Path::new(DEVICES), name) {
                let name = name.escape_debug();
                log::error!("there is no RDMA device '{name}' in {DEVICES}: name another, or none");
                return Err(Status::Error);
            }
        }
        Ok(())
    }

    /// Checks that the eid, or else the device, names one of this host's ports. If this host has no
    /// usable port, the eid is ignored.
    fn check_ports(
        &self,
        find: impl Fn(Option<&str>, &[u8; 16]) -> Result<PortSelection, FabricError>,
    ) -> Result<(), Status> {
        match find(self.device.as_deref(), &self.eid) {
            Ok(_) => Ok(()),
            Err(error) if self.device.is_some() || is_wrong_address(&error) => {
                log::error!("no RDMA port to use: {error}");
                Err(Status::Error)
            }
            Err(error) => {
                log::debug!("the eid is not used: {error}");
                Ok(())
            }
        }
    }

    /// The fabric to use: that of the configuration, or for `Auto` that of the environment.
    pub(crate) fn effective_fabric(&self) -> Result<FabricChoice, Status> {
        let variable = dlock_fabric::os::environment::variable(FABRIC_VARIABLE);
        let variable = variable.as_ref().map(|v| v.to_string_lossy());
        choose(self.fabric, variable.as_deref())
    }

    /// How to find the successor of the primary at `first`, by the configuration or the
    /// environment; `None`: the client does not look for one.
    pub(crate) fn plan(&self, first: &Address) -> Result<Option<Plan>, Status> {
        let primaries = match &self.primaries {
            Some(primaries) => primaries.clone(),
            None => match variable(PRIMARIES_VARIABLE) {
                None => return Ok(None),
                Some(text) => self.addresses(&text)?,
            },
        };
        if primaries.is_empty() {
            return Ok(None);
        }
        let silence = match (self.silence, variable(SILENCE_VARIABLE)) {
            (Some(silence), _) => silence,
            (None, None) => Duration::from_nanos(SILENCE_NS),
            (None, Some(text)) => silence(&text)?,
        };
        Ok(Some(Plan { addresses: addresses(first, &primaries), silence }))
    }

    /// Whether the client finds its primary again by itself, over a fabric that a primary has in a
    /// drain, too.
    pub(crate) fn returns(&self) -> bool {
        let has_primaries = match &self.primaries {
            Some(primaries) => !primaries.is_empty(),
            None => variable(PRIMARIES_VARIABLE).is_some_and(|text| !text.trim().is_empty()),
        };
        has_primaries
            && self.effective_fabric().is_ok_and(|fabric| match fabric {
                FabricChoice::Auto => true,
                FabricChoice::Only(kind) => kind.executes() == Executes::Primary,
            })
    }

    /// The addresses of a list.
    fn addresses(&self, text: &str) -> Result<Vec<Address>, Status> {
        Address::parse_list(text, self.effective_port()).map_err(|(item, error)| {
            let item = item.escape_debug();
            log::error!(
                "{PRIMARIES_VARIABLE}: '{item}' is no address: {error}; put commas between several"
            );
            Status::Error
        })
    }

    /// The horizon in the request to a primary, from the configuration or the environment; 0:
    /// neither has one.
    pub(crate) fn effective_horizon_s(&self) -> u32 {
        match self.horizon_s.or_else(horizon_of_environment) {
            None => 0,
            Some(0) => HORIZON_FOREVER,
            Some(horizon_s) => horizon_s,
        }
    }

    /// This configuration with [`HORIZON_S_DEFAULT`] if neither it nor the environment has a
    /// horizon: for Rust programs, whose clients have a horizon by default.
    pub(crate) fn with_default_horizon(&self) -> Self {
        let horizon_s = self.horizon_s.or_else(horizon_of_environment);
        Self { horizon_s: Some(horizon_s.unwrap_or(HORIZON_S_DEFAULT)), ..self.clone() }
    }

    /// The prefixes of the names of locks that are cached.
    pub(crate) fn cache(&self) -> Vec<Vec<u8>> {
        match (&self.cache, variable(CACHE_VARIABLE)) {
            (Some(cache), _) => cache.clone(),
            (None, Some(text)) => prefixes(&text),
            (None, None) => Vec::new(),
        }
    }

    /// The port with the default filled in.
    pub(crate) fn effective_port(&self) -> u16 {
        if self.port == 0 {
            PORT_DEFAULT
        } else {
            self.port
        }
    }
}

/// The prefixes in the text of the environment variable.
fn prefixes(text: &str) -> Vec<Vec<u8>> {
    let prefixes = text.split(',').map(str::trim).filter(|prefix| !prefix.is_empty());
    prefixes.map(|prefix| if prefix == "*" { Vec::new() } else { prefix.into() }).collect()
}

fn variable(name: &str) -> Option<String> {
    let value = dlock_fabric::os::environment::variable(name)?;
    Some(value.to_string_lossy().into_owned())
}

fn silence(text: &str) -> Result<Duration, Status> {
    match text.trim().parse() {
        Ok(ms) if SILENCE_MS.contains(&ms) => Ok(Duration::from_millis(ms)),
        _ => {
            let text = text.escape_debug();
            log::error!("{SILENCE_VARIABLE}={text}: give milliseconds, from 100 to 60000");
            Err(Status::Error)
        }
    }
}

fn choose(configured: FabricChoice, variable: Option<&str>) -> Result<FabricChoice, Status> {
    let from_variable = match variable {
        None => configured,
        Some(name) => name.parse().map_err(|error| {
            log::error!("{FABRIC_VARIABLE}={name}: {error}");
            Status::Error
        })?,
    };
    Ok(if configured == FabricChoice::Auto { from_variable } else { configured })
}

/// Whether the error says that none of this host's usable ports has the eid.
pub(crate) fn is_wrong_address(error: &FabricError) -> bool {
    matches!(error, FabricError::Verbs(VerbsError::NoPort(NoPort::NoSuchAddress { .. })))
}

fn horizon_of_environment() -> Option<u32> {
    horizon(&variable(HORIZON_VARIABLE)?)
}

/// The horizon in the text of the environment variable; 0: none.
fn horizon(text: &str) -> Option<u32> {
    match text.trim() {
        "forever" => Some(0),
        seconds => {
            let seconds = seconds.parse().ok().filter(|&seconds| seconds > 0);
            if seconds.is_none() {
                let text = text.escape_debug();
                log::error!(
                    "{HORIZON_VARIABLE}={text} is ignored: give seconds, from 1 to \
                     {HORIZON_S_MAX}, or the word forever"
                );
            }
            if seconds.is_some_and(|seconds: u32| seconds > HORIZON_S_MAX) {
                log::warn!("{HORIZON_VARIABLE} is taken as {HORIZON_S_MAX} seconds, the most");
            }
            seconds.map(|seconds| seconds.min(HORIZON_S_MAX))
        }
    }
}

fn device_exists(devices: &Path, name: &str) -> bool {
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    is_plain && devices.join(name).exists()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use dlock_core::wire::fabric::FabricKind;
    use dlock_fabric::verbs::Gid;

    use super::*;

    #[test]
    fn the_variable_overrides_auto_only_and_must_be_known() {
        let (auto, shm, tcp) = (FabricChoice::Auto, FabricChoice::Shm, FabricChoice::Tcp);
        assert_eq!(choose(auto, Some("tcp")), Ok(tcp));
        assert_eq!(choose(auto, Some("verbs")), Ok(FabricChoice::Verbs));
        assert_eq!(choose(auto, None), Ok(auto));
        assert_eq!(choose(shm, Some("tcp")), Ok(shm));
        assert_eq!(choose(auto, Some("rdma")), Err(Status::Error));
        assert_eq!(choose(tcp, Some("")), Err(Status::Error));
    }

    #[test]
    fn a_device_that_does_not_exist_does_not_matter_to_fabrics_without_one() {
        for fabric in FabricKind::without_device().map(FabricChoice::from) {
            for eid in [[0; 16], [9; 16]] {
                let device = Some("no-such-device".into());
                let config = ClientConfig { device, eid, fabric, ..Default::default() };
                assert_eq!(config.check(), Ok(()));
            }
        }
    }

    #[test]
    fn an_eid_that_no_port_has_is_an_error_where_there_are_ports() {
        let refusing = |error: NoPort| {
            move |_: Option<&str>, _: &[u8; 16]| Err(VerbsError::NoPort(error.clone()).into())
        };
        let gid = Gid([9; 16]);
        let strange = NoPort::NoSuchAddress { gid, ports: vec!["a0 port 1".into()] };
        let down = NoPort::Unusable { name: "a0".into(), reason: "down".into() };
        let by_eid = ClientConfig { eid: gid.0, ..Default::default() };
        assert_eq!(by_eid.check_ports(refusing(strange)), Err(Status::Error));
        assert_eq!(by_eid.check_ports(refusing(NoPort::NoDevice)), Ok(()));
        assert_eq!(by_eid.check_ports(refusing(down.clone())), Ok(()));
        let both = ClientConfig { device: Some("a0".into()), ..by_eid };
        assert_eq!(both.check_ports(refusing(down)), Err(Status::Error));
    }

    #[test]
    fn primaries_are_addresses_with_or_without_a_port() {
        let config = ClientConfig { port: 7, ..Default::default() };
        let all = config.addresses("10.0.0.1, 10.0.0.2:99,[::1]:5 ,::2,[::3],db1,db2:9,").unwrap();
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            ["10.0.0.1:7", "10.0.0.2:99", "[::1]:5", "[::2]:7", "[::3]:7", "db1:7", "db2:9"]
        );
        for wrong in ["local/host", "10.0.0.1:", "10.0.0.1:99999", "10.0.0.1 10.0.0.2", "[::1"] {
            assert_eq!(config.addresses(wrong), Err(Status::Error), "{wrong}");
        }
        assert_eq!(config.addresses(" "), Ok(Vec::new()));
    }

    #[test]
    fn a_silence_has_bounds() {
        assert_eq!(silence("100"), Ok(Duration::from_millis(100)));
        assert_eq!(silence(" 60000 "), Ok(Duration::from_secs(60)));
        for wrong in ["99", "60001", "", "1s", "-5"] {
            assert_eq!(silence(wrong), Err(Status::Error), "{wrong}");
        }
    }

    #[test]
    fn only_the_word_forever_names_no_horizon() {
        assert_eq!(horizon("forever"), Some(0));
        assert_eq!(horizon(" 7 "), Some(7));
        assert_eq!(horizon("100000"), Some(HORIZON_S_MAX));
        for wrong in ["0", "", "-1", "30s", "never", "Forever"] {
            assert_eq!(horizon(wrong), None, "{wrong}");
        }
        let asks = |horizon_s| ClientConfig { horizon_s, ..<_>::default() }.effective_horizon_s();
        assert_eq!((asks(Some(0)), asks(Some(7))), (HORIZON_FOREVER, 7));
    }

    #[test]
    fn a_client_that_is_told_of_no_primaries_looks_for_none() {
        let [first, second] = [1, 2].map(|n| Address::from(SocketAddr::from(([10, 0, 0, n], 7))));
        let told = ClientConfig { primaries: Some(vec![second.clone()]), ..Default::default() };
        let silent = ClientConfig { silence: Some(Duration::from_secs(3)), ..told };
        let plan = silent.plan(&first).unwrap().unwrap();
        assert_eq!((plan.addresses, plan.silence), (vec![first, second], Duration::from_secs(3)));
    }

    #[test]
    fn a_device_that_does_not_exist_is_an_error() {
        let config = ClientConfig { device: Some("no-such-device".into()), ..Default::default() };
        assert_eq!(config.check(), Err(Status::Error));
        for name in ["", ".", "..", "../net", "a\0b"] {
            assert!(!device_exists(Path::new("/"), name), "{name:?}");
        }
        assert!(device_exists(Path::new("/"), "proc"));
    }
}
