// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which RDMA device was meant. This build finds devices, but does not serve on them.

use std::path::Path;

use crate::error::StartError;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Checks what the configuration says of devices.
///
/// A device named must exist; it is not used yet, which is said in one line. An address that is
/// no RDMA port's, without a name, is what programs pass that have only this host's own address:
/// they are served without RDMA.
///
/// # Errors
/// `NoDevice` if a device was named that does not exist.
pub(crate) fn check(device: Option<&str>, eid: [u8; 16]) -> Result<(), StartError> {
    check_in(Path::new(DEVICES), device, eid)
}

fn check_in(devices: &Path, device: Option<&str>, eid: [u8; 16]) -> Result<(), StartError> {
    if let Some(name) = device {
        // A name with a slash or of dots alone would leave the folder.
        let plain = name.contains(|c: char| c != '.') && !name.contains('/');
        if plain && devices.join(name).exists() {
            log::warn!("device {name} is not used yet: served over shared memory and TCP");
            return Ok(());
        }
        return Err(StartError::NoDevice(name.to_string()));
    }
    if eid != [0; 16] {
        log::info!("the eid given is not used: this build serves over shared memory and TCP");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_named_must_exist_and_an_address_need_not() {
        // Any folder serves as a list of names.
        let devices = Path::new("/proc/self");
        let check = |device, eid| check_in(devices, device, eid);
        assert!(matches!(check(Some("no_such_device"), [0; 16]), Err(StartError::NoDevice(_))));
        assert!(matches!(check(Some("no_such_device"), [1; 16]), Err(StartError::NoDevice(_))));
        assert!(check(Some("status"), [0; 16]).is_ok());
        for outside in ["", ".", "..", "../self", "fd/0"] {
            assert!(matches!(check(Some(outside), [0; 16]), Err(StartError::NoDevice(_))));
        }
        assert!(check(None, [1; 16]).is_ok());
        assert!(check(None, [0; 16]).is_ok());
    }
}
