// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether to serve on an RDMA device, and on which.
//!
//! ```text
//!   verbs off                        none (a device named must exist all the same)
//!   a device named                   that one, or no start
//!   an eid that is a port's GID      that port; one that is no port's is ignored
//!   otherwise                        the first active port; none: shm and tcp, or, with verbs
//!                                    demanded, no start
//! ```
//! `DLOCK_FABRIC` decides where the configuration leaves it open: `verbs` demands them, `shm` and
//! `tcp` turn them off.

use std::path::Path;

use dlock_fabric::verbs::Choice;
use dlock_fabric::FabricError;

use crate::config::{ServerConfig, VerbsUse};
use crate::error::StartError;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// What clients and primaries read to choose their fabric.
const VARIABLE: &str = "DLOCK_FABRIC";

/// Checks what the configuration says of devices, without opening one.
///
/// # Errors
/// `NoDevice` if a device was named that does not exist.
pub(crate) fn check(device: Option<&str>) -> Result<(), StartError> {
    match device {
        Some(name) if !exists(Path::new(DEVICES), name) => {
            Err(StartError::NoDevice(name.to_string()))
        }
        _ => Ok(()),
    }
}

fn exists(devices: &Path, name: &str) -> bool {
    // A name with a slash or of dots alone would leave the folder.
    let is_plain = name.contains(|c: char| c != '.') && !name.contains(['/', '\0']);
    is_plain && devices.join(name).exists()
}

/// Whether a primary that cannot have its device serves without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// It does not start.
    Must,
    /// It serves over shared memory and TCP.
    May,
}

/// The port to serve on, and how badly; `None`: shared memory and TCP.
///
/// # Errors
/// `Verbs` if a device is named, or verbs are demanded, and there is none that can be used.
pub(crate) fn choose(config: &ServerConfig) -> Result<Option<(Choice, Need)>, StartError> {
    let variable = std::env::var_os(VARIABLE);
    let variable = variable.as_ref().map(|value| value.to_string_lossy());
    let using = effective(config.verbs, variable.as_deref());
    choose_with(config, using, dlock_fabric::VerbsHost::choose)
}

/// What the configuration says, or else the environment.
fn effective(configured: VerbsUse, variable: Option<&str>) -> VerbsUse {
    match (configured, variable) {
        (VerbsUse::Auto, Some("verbs")) => VerbsUse::On,
        (VerbsUse::Auto, Some("shm" | "tcp")) => VerbsUse::Off,
        (VerbsUse::Auto, Some(other)) if other != "auto" => {
            log::warn!("{VARIABLE}={other} is none of auto, shm, tcp and verbs: ignored");
            VerbsUse::Auto
        }
        (configured, _) => configured,
    }
}

fn choose_with(
    config: &ServerConfig,
    using: VerbsUse,
    find: impl Fn(Option<&str>, &[u8; 16]) -> Result<Choice, FabricError>,
) -> Result<Option<(Choice, Need)>, StartError> {
    if using == VerbsUse::Off {
        if let Some(name) = &config.device {
            log::warn!("device {name} is not used: verbs are off");
        }
        return Ok(None);
    }
    if let Some(name) = &config.device {
        return match find(Some(name), &config.eid) {
            Ok(choice) => Ok(Some((choice, Need::Must))),
            Err(error) => Err(StartError::Verbs(error)),
        };
    }
    let need = if using == VerbsUse::On { Need::Must } else { Need::May };
    if config.eid != [0; 16] {
        match find(None, &config.eid) {
            Ok(choice) => return Ok(Some((choice, Need::Must))),
            Err(error) => log::info!("the eid is not used: {error}"),
        }
    }
    match (find(None, &[0; 16]), need) {
        (Ok(choice), need) => Ok(Some((choice, need))),
        (Err(error), Need::Must) => Err(StartError::Verbs(error)),
        (Err(error), Need::May) => {
            log::debug!("no verbs: {error}");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_fabric::verbs::choice::{GidInfo, GidKind, NoPort};
    use dlock_fabric::verbs::{Gid, VerbsError};

    const EID: [u8; 16] = [1; 16];

    #[test]
    fn a_device_named_must_exist_and_lie_in_its_folder() {
        // Any folder serves as a list of names.
        let devices = Path::new("/proc/self");
        assert!(exists(devices, "status") && !exists(devices, "no_such_device"));
        for outside in ["", ".", "..", "../self", "fd/0", "a\0b"] {
            assert!(!exists(devices, outside), "{outside:?}");
        }
        assert!(matches!(check(Some("no_such_device")), Err(StartError::NoDevice(_))));
        assert!(check(None).is_ok());
    }

    #[test]
    fn the_environment_decides_what_the_configuration_leaves_open() {
        use VerbsUse::{Auto, Off, On};
        for (configured, variable, wanted) in [
            (Auto, None, Auto),
            (Auto, Some("auto"), Auto),
            (Auto, Some("verbs"), On),
            (Auto, Some("shm"), Off),
            (Auto, Some("tcp"), Off),
            (Auto, Some("rdma"), Auto),
            (Off, Some("verbs"), Off),
            (On, Some("tcp"), On),
        ] {
            assert_eq!(effective(configured, variable), wanted, "{configured:?} {variable:?}");
        }
    }

    fn port(device: &str, by_eid: bool) -> Choice {
        let gid = GidInfo { index: 1, gid: Gid(EID), kind: GidKind::RoceV2 };
        Choice { device: device.into(), port: 1, gid, by_eid }
    }

    /// A host with the device `rxe0`, whose only address is [`EID`].
    fn one_device(device: Option<&str>, eid: &[u8; 16]) -> Result<Choice, FabricError> {
        let refused = |error| Err(FabricError::Verbs(VerbsError::NoPort(error)));
        match device {
            Some("rxe0") | None if *eid == EID => Ok(port("rxe0", true)),
            Some("rxe0") => Ok(port("rxe0", false)),
            None if *eid == [0; 16] => Ok(port("rxe0", false)),
            None => refused(NoPort::NoSuchAddress { gid: Gid(*eid) }),
            Some(name) => refused(NoPort::NoSuchDevice { name: name.into(), devices: vec![] }),
        }
    }

    fn no_device(_: Option<&str>, _: &[u8; 16]) -> Result<Choice, FabricError> {
        Err(FabricError::Verbs(VerbsError::NoPort(NoPort::NoDevice)))
    }

    #[test]
    fn the_first_port_is_used_unless_another_is_named() {
        let plain = ServerConfig::default();
        let by_name = ServerConfig { device: Some("rxe0".into()), ..plain.clone() };
        let by_eid = ServerConfig { eid: EID, ..plain.clone() };
        let stranger = ServerConfig { eid: [2; 16], ..plain.clone() };
        let other = ServerConfig { device: Some("rxe1".into()), ..plain.clone() };
        let (auto, on) = (VerbsUse::Auto, VerbsUse::On);
        let found = |config: &ServerConfig, using| choose_with(config, using, one_device).unwrap();
        assert_eq!(found(&plain, auto), Some((port("rxe0", false), Need::May)));
        assert_eq!(found(&stranger, auto), Some((port("rxe0", false), Need::May)));
        assert_eq!(found(&plain, on), Some((port("rxe0", false), Need::Must)));
        assert_eq!(found(&by_name, auto), Some((port("rxe0", false), Need::Must)));
        assert_eq!(found(&by_eid, auto), Some((port("rxe0", true), Need::Must)));
        assert_eq!(found(&by_name, VerbsUse::Off), None);
        let error = choose_with(&other, auto, one_device).unwrap_err();
        assert!(matches!(error, StartError::Verbs(_)), "{error}");
    }

    #[test]
    fn a_host_without_a_device_serves_without_unless_verbs_are_demanded() {
        let plain = ServerConfig::default();
        let by_eid = ServerConfig { eid: EID, ..plain.clone() };
        assert_eq!(choose_with(&plain, VerbsUse::Auto, no_device).unwrap(), None);
        assert_eq!(choose_with(&by_eid, VerbsUse::Auto, no_device).unwrap(), None);
        assert!(choose_with(&plain, VerbsUse::On, no_device).is_err());
        assert!(choose_with(&by_eid, VerbsUse::On, no_device).is_err());
    }
}
