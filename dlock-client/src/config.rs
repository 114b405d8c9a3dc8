// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a client reaches its primary, and which devices it may name.

use std::path::Path;
use std::sync::Once;

use dlock_core::limits::PORT_DEFAULT;
use dlock_core::status::Status;

/// Which executor carries the data path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// Shared memory if the primary is on this host and permits it, else tcp. The environment
    /// variable `DLOCK_FABRIC` (`auto`, `shm` or `tcp`) overrides it.
    #[default]
    Auto,
    /// Shared memory, or no session.
    Shm,
    /// Frames over TCP, or no session.
    Tcp,
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
    /// An RDMA device by name; one that does not exist is an error.
    pub device: Option<String>,
    /// An RDMA port by its GID, network order; all zero: none. One that no port has is ignored.
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
                log::error!("there is no RDMA device '{name}' in {DEVICES}: name another, or none");
                return Err(Status::Error);
            }
        }
        self.say_what_is_ignored();
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

    /// RDMA is not carried by this build; who names a port is told so, once per process.
    fn say_what_is_ignored(&self) {
        static ONCE: Once = Once::new();
        let named = self.device.is_some();
        if named || self.eid != [0; 16] {
            ONCE.call_once(|| {
                let what = match (named, gid_exists(Path::new(DEVICES), &self.eid)) {
                    (true, _) => "an RDMA device was named, but RDMA is not built in",
                    (_, true) => "the eid is an RDMA port's, but RDMA is not built in",
                    (_, false) => "the eid is no RDMA port's",
                };
                log::info!("{what}: using shared memory or TCP");
            });
        }
    }
}

fn choose(configured: FabricChoice, variable: Option<&str>) -> Result<FabricChoice, Status> {
    let from_variable = match variable {
        None => configured,
        Some("auto") => FabricChoice::Auto,
        Some("shm") => FabricChoice::Shm,
        Some("tcp") => FabricChoice::Tcp,
        Some(other) => {
            log::error!("{FABRIC_VARIABLE}={other}: must be auto, shm or tcp");
            return Err(Status::Error);
        }
    };
    Ok(if configured == FabricChoice::Auto { from_variable } else { configured })
}

fn device_exists(devices: &Path, name: &str) -> bool {
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    is_plain && devices.join(name).exists()
}

/// Whether any port of any device has this GID.
fn gid_exists(devices: &Path, gid: &[u8; 16]) -> bool {
    let folders = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let wanted: Vec<String> = gid.chunks(2).map(|c| format!("{:02x}{:02x}", c[0], c[1])).collect();
    let wanted = wanted.join(":");
    folders(devices)
        .iter()
        .flat_map(|device| folders(&device.join("ports")))
        .flat_map(|port| folders(&port.join("gids")))
        .any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.trim() == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_overrides_auto_only_and_must_be_known() {
        use FabricChoice::{Auto, Shm, Tcp};
        assert_eq!(choose(Auto, Some("tcp")), Ok(Tcp));
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

    #[test]
    fn an_eid_is_compared_with_the_gids_of_all_ports() {
        let root = std::env::temp_dir().join(format!("dlock-gid-{}", std::process::id()));
        let gids = root.join("dev0/ports/1/gids");
        std::fs::create_dir_all(&gids).unwrap();
        std::fs::write(gids.join("0"), "0000:0000:0000:0000:0000:ffff:0a01:0203\n").unwrap();
        let mut eid = [0; 16];
        eid[10..].copy_from_slice(&[0xff, 0xff, 10, 1, 2, 3]);
        assert!(gid_exists(&root, &eid));
        eid[15] = 4;
        assert!(!gid_exists(&root, &eid));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
