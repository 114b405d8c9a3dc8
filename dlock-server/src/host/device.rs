// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses whether to serve on an RDMA device, and on which.
//!
//! ```text
//!   verbs off                    none; device and eid do not matter
//!   an eid that is a port's GID  that port
//!   a device named               that one, or no start
//!   an eid that is no port's     no start, if this host has a port that can be used
//!   otherwise                    the first active port; none: the fabrics that need no device,
//!                                or, with verbs demanded, no start
//! ```
//! `DLOCK_FABRIC` decides if the configuration leaves it open: `verbs` and `sealed` demand verbs, a
//! fabric that needs no device turns them off.

use std::path::Path;
use std::sync::Arc;

use dlock_core::limits::HANDLES_MAX;
use dlock_core::session::PathChoice;
use dlock_fabric::verbs::port_selection::NoPort;
use dlock_fabric::verbs::{PortSelection, VerbsError};
use dlock_fabric::{CpuMemory, FabricError, VerbsHost};

use crate::config::{ServerConfig, VerbsUse};
use crate::error::StartError;
use crate::host::memory::Memory;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// The environment variable by which clients and primaries choose their fabric.
const VARIABLE: &str = "DLOCK_FABRIC";
/// `trans_mode_t` of the C API: one queue pair for chains and messages.
const UNI_CONN: u8 = 1;

/// Checks what the configuration says of devices, without opening one.
///
/// # Errors
/// `NoDevice`: verbs are not off, and the named device does not exist. With an eid, [`choose`]
/// checks instead.
pub(crate) fn check(config: &ServerConfig) -> Result<(), StartError> {
    if effective_of(config) == VerbsUse::Off || config.eid != [0; 16] {
        return Ok(());
    }
    match &config.device {
        Some(name) if !exists(Path::new(DEVICES), name) => Err(StartError::NoDevice(name.clone())),
        _ => Ok(()),
    }
}

fn exists(devices: &Path, name: &str) -> bool {
    // A name with a slash, or of dots alone, would lead out of the folder.
    let is_plain = name.contains(|c: char| c != '.') && !name.contains(['/', '\0']);
    is_plain && devices.join(name).exists()
}

/// Whether a primary serves if it cannot have its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The primary does not start without the device.
    Must,
    /// Without the device the primary serves over the fabrics that need none.
    May,
}

/// The port to serve on, and whether it is needed; `None`: serve over the fabrics that need no
/// device.
///
/// # Errors
/// `Verbs`: a device is named, or verbs are demanded, and none can be used; or only an eid is
/// given, and it is not the address of any usable port.
pub(crate) fn choose(config: &ServerConfig) -> Result<Option<(PortSelection, Need)>, StartError> {
    choose_with(config, effective_of(config), VerbsHost::choose)
}

fn effective_of(config: &ServerConfig) -> VerbsUse {
    let variable = dlock_fabric::os::environment::variable(VARIABLE);
    let variable = variable.as_ref().map(|value| value.to_string_lossy());
    effective(config.verbs, variable.as_deref())
}

/// When to use verbs: the configuration decides, or else the environment.
fn effective(configured: VerbsUse, variable: Option<&str>) -> VerbsUse {
    let (VerbsUse::Auto, Some(variable)) = (configured, variable) else { return configured };
    match variable.parse() {
        Ok(PathChoice::Auto) => VerbsUse::Auto,
        Ok(PathChoice::Only(kind)) if kind.needs_device() => VerbsUse::On,
        Ok(PathChoice::Only(_)) => VerbsUse::Off,
        Err(error) => {
            log::warn!("{VARIABLE}={variable}: {error}; ignored");
            VerbsUse::Auto
        }
    }
}

fn choose_with(
    config: &ServerConfig,
    using: VerbsUse,
    find: impl Fn(Option<&str>, &[u8; 16]) -> Result<PortSelection, FabricError>,
) -> Result<Option<(PortSelection, Need)>, StartError> {
    if using == VerbsUse::Off {
        if let Some(name) = &config.device {
            log::warn!("device {name} is not used: verbs are off");
        }
        return Ok(None);
    }
    let is_demanded = matches!(using, VerbsUse::On | VerbsUse::Sealed | VerbsUse::OneSided);
    let need = match is_demanded || config.device.is_some() {
        true => Need::Must,
        false => Need::May,
    };
    match find(config.device.as_deref(), &config.eid) {
        Ok(choice) if choice.by_eid => Ok(Some((choice, Need::Must))),
        Ok(choice) => Ok(Some((choice, need))),
        Err(error) if need == Need::Must || is_wrong_address(&error) => {
            Err(StartError::Verbs(error))
        }
        Err(error) => {
            log::debug!("no verbs: {error}");
            Ok(None)
        }
    }
}

/// The device that is served on, and its name.
pub(crate) type Device = (Arc<VerbsHost>, String);

/// Makes the lock memory, on the device or on the CPU, and opens the device.
///
/// # Errors
/// As [`choose`]; or the device that is needed cannot be opened, or there is no memory.
pub(crate) fn memory(config: &ServerConfig) -> Result<(Memory, Option<Device>), StartError> {
    let slots = (config.locks_max + config.objects_max) as u32;
    if let Some((choice, need)) = choose(config)? {
        let (name, port, gid) = (choice.device.clone(), choice.port, choice.gid.gid);
        let shared_qp = config.tp_mode == UNI_CONN;
        // The handles of a client's locks are small numbers in sequence, so it has at most this
        // many.
        let entries = config.locks_max as u32;
        let opened = match config.is_one_sided() {
            true => VerbsHost::open(&choice, slots, entries, shared_qp)
                .map(|(host, memory)| (host, Memory::Nic(memory))),
            // only sealed frames use the device: the CPU's atomics are faster, and shm is possible
            // beside it
            false => VerbsHost::open_for_frames(&choice)
                .and_then(|host| Ok((host, Memory::Cpu(cpu_memory(slots)?)))),
        };
        match opened {
            Ok((host, memory)) => {
                let what = match &memory {
                    Memory::Nic(_) => "lock memory belongs to",
                    Memory::Cpu(_) => "sealed frames go over",
                };
                log::info!("{what} RDMA device {name}, port {port}, GID {gid}");
                return Ok((memory, Some((host, name))));
            }
            Err(error) if need == Need::Must => return Err(StartError::Verbs(error)),
            Err(error) => log::warn!("RDMA device {name} is not used: {error}"),
        }
    }
    Ok((Memory::Cpu(cpu_memory(slots)?), None))
}

fn cpu_memory(slots: u32) -> Result<CpuMemory, FabricError> {
    CpuMemory::create(slots, HANDLES_MAX as u32)
}

/// Whether the eid is not the address of any usable port.
fn is_wrong_address(error: &FabricError) -> bool {
    matches!(error, FabricError::Verbs(VerbsError::NoPort(NoPort::NoSuchAddress { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::wire::fabric::FabricKind;
    use dlock_fabric::verbs::port_selection::{GidInfo, GidKind};
    use dlock_fabric::verbs::Gid;

    const EID: [u8; 16] = [1; 16];

    #[test]
    fn a_device_named_must_exist_and_lie_in_its_folder() {
        // A folder of the kernel's with fixed names stands for the list of devices.
        let devices = Path::new("/proc/self");
        assert!(exists(devices, "status") && !exists(devices, "no_such_device"));
        for outside in ["", ".", "..", "../self", "fd/0", "a\0b"] {
            assert!(!exists(devices, outside), "{outside:?}");
        }
        let plain = ServerConfig::default();
        let named = ServerConfig { device: Some("no_such_device".into()), ..plain.clone() };
        assert!(matches!(check(&named), Err(StartError::NoDevice(_))));
        assert!(check(&plain).is_ok());
    }

    #[test]
    fn without_verbs_a_device_that_does_not_exist_is_no_mistake() {
        let device = Some("no_such_device".into());
        let config = ServerConfig { device, verbs: VerbsUse::Off, ..ServerConfig::default() };
        assert!(check(&config).is_ok());
        assert_eq!(choose_with(&config, VerbsUse::Off, no_device).unwrap(), None);
    }

    #[test]
    fn the_environment_decides_what_the_configuration_leaves_open() {
        use VerbsUse::{Auto, Off, On};
        for (configured, variable, wanted) in [
            (Auto, None, Auto),
            (Auto, Some("auto"), Auto),
            (Auto, Some("verbs"), On),
            (Auto, Some("sealed"), On),
            (Auto, Some("shm"), Off),
            (Auto, Some("tcp"), Off),
            (Auto, Some("rdma"), Auto),
            (Off, Some("verbs"), Off),
            (On, Some("tcp"), On),
        ] {
            assert_eq!(effective(configured, variable), wanted, "{configured:?} {variable:?}");
        }
        for kind in FabricKind::ALL {
            let wanted = if kind.needs_device() { On } else { Off };
            assert_eq!(effective(Auto, Some(kind.name())), wanted, "{kind}");
        }
    }

    fn port(device: &str, by_eid: bool) -> PortSelection {
        let gid = GidInfo { index: 1, gid: Gid(EID), kind: GidKind::RoceV2 };
        PortSelection { device: device.into(), port: 1, gid, by_eid }
    }

    /// A host with the device `rxe0`, whose only address is [`EID`].
    fn one_device(device: Option<&str>, eid: &[u8; 16]) -> Result<PortSelection, FabricError> {
        let refused = |error| Err(FabricError::Verbs(VerbsError::NoPort(error)));
        match device {
            Some("rxe0") | None if *eid == EID => Ok(port("rxe0", true)),
            Some("rxe0") => Ok(port("rxe0", false)),
            None if *eid == [0; 16] => Ok(port("rxe0", false)),
            None => refused(NoPort::NoSuchAddress { gid: Gid(*eid), ports: vec![] }),
            Some(name) => refused(NoPort::NoSuchDevice { name: name.into(), devices: vec![] }),
        }
    }

    fn no_device(_: Option<&str>, _: &[u8; 16]) -> Result<PortSelection, FabricError> {
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
        for demanded in [on, VerbsUse::Sealed, VerbsUse::OneSided] {
            assert_eq!(found(&plain, demanded), Some((port("rxe0", false), Need::Must)));
        }
        assert_eq!(found(&by_name, auto), Some((port("rxe0", false), Need::Must)));
        assert_eq!(found(&by_eid, auto), Some((port("rxe0", true), Need::Must)));
        assert_eq!(found(&by_name, VerbsUse::Off), None);
        assert_eq!(found(&stranger, VerbsUse::Off), None);
        for refused in [&other, &stranger] {
            let error = choose_with(refused, auto, one_device).unwrap_err();
            assert!(matches!(error, StartError::Verbs(_)), "{error}");
        }
        let both = ServerConfig { eid: [2; 16], ..by_name };
        assert_eq!(found(&both, auto), Some((port("rxe0", false), Need::Must)));
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
