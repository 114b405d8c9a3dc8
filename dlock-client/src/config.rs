// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a client reaches its primary, and which devices it may name.

use std::path::Path;

use dlock_core::limits::PORT_DEFAULT;
use dlock_core::status::Status;

/// Which executor carries the data path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// RDMA verbs if the primary offers them and this host has a port that can be used, else
    /// shared memory if the primary is on this host and permits it, else tcp. The environment
    /// variable `DLOCK_FABRIC` (`auto`, `verbs`, `shm` or `tcp`) overrides it.
    #[default]
    Auto,
    /// Shared memory, or no session.
    Shm,
    /// Frames over TCP, or no session.
    Tcp,
    /// RDMA verbs, or no session.
    Verbs,
}

/// The environment variable that overrides [`FabricChoice::Auto`].
pub const FABRIC_VARIABLE: &str = "DLOCK_FABRIC";

/// How to reach a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The primary's control port; 0 stands for the default, 21616.
    pub port: u16,
    /// The executor wanted.
    pub fabric: FabricChoice,
    /// `trans_mode_t` of the C API, 0 or 1: must be the primary's.
    pub tp_mode: u8,
    /// An RDMA device by name; one that does not exist is an error. `None`: any.
    pub device: Option<String>,
    /// An RDMA port by its GID, network order; all zero: any. One that no port has is ignored.
    pub eid: [u8; 16],
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            port: PORT_DEFAULT,
            fabric: FabricChoice::Auto,
            tp_mode: 0,
            device: None,
            eid: [0; 16],
        }
    }
}

/// Where Linux lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

impl ClientConfig {
    /// Checks what can be checked without a primary: `tp_mode`, device and `DLOCK_FABRIC`.
    /// [`Instance::init`](crate::Instance::init) does so, too.
    ///
    /// # Errors
    /// `Error`; the cause and its remedy are logged.
    pub fn check(&self) -> Result<(), Status> {
        if self.tp_mode > 1 {
            log::error!("tp_mode {} is neither 0 nor 1", self.tp_mode);
            return Err(Status::Error);
        }
        if let Some(name) = &self.device {
            if !device_exists(Path::new(DEVICES), name) {
                let name = name.escape_debug();
                log::error!("there is no RDMA device '{name}' in {DEVICES}: name another, or none");
                return Err(Status::Error);
            }
        }
        self.effective_fabric().map(|_| ())
    }

    /// The executor wanted, with the environment's say.
    pub(crate) fn effective_fabric(&self) -> Result<FabricChoice, Status> {
        let variable = std::env::var_os(FABRIC_VARIABLE);
        let variable = variable.as_ref().map(|v| v.to_string_lossy());
        choose(self.fabric, variable.as_deref())
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

fn choose(configured: FabricChoice, variable: Option<&str>) -> Result<FabricChoice, Status> {
    let from_variable = match variable {
        None => configured,
        Some("auto") => FabricChoice::Auto,
        Some("shm") => FabricChoice::Shm,
        Some("tcp") => FabricChoice::Tcp,
        Some("verbs") => FabricChoice::Verbs,
        Some(other) => {
            log::error!("{FABRIC_VARIABLE}={other}: must be auto, verbs, shm or tcp");
            return Err(Status::Error);
        }
    };
    Ok(if configured == FabricChoice::Auto { from_variable } else { configured })
}

fn device_exists(devices: &Path, name: &str) -> bool {
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    is_plain && devices.join(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_overrides_auto_only_and_must_be_known() {
        use FabricChoice::{Auto, Shm, Tcp};
        assert_eq!(choose(Auto, Some("tcp")), Ok(Tcp));
        assert_eq!(choose(Auto, Some("verbs")), Ok(FabricChoice::Verbs));
        assert_eq!(choose(Auto, None), Ok(Auto));
        assert_eq!(choose(Shm, Some("tcp")), Ok(Shm));
        assert_eq!(choose(Auto, Some("rdma")), Err(Status::Error));
        assert_eq!(choose(Tcp, Some("")), Err(Status::Error));
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
