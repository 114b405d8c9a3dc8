// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chooses the port of a device: a decision over what was found, without system calls.
//!
//! ```text
//!   eid given           the usable port that has this GID; dev_name does not matter
//!   else dev_name       that device's first active port, or an error
//!   else                eid given: an error if there are usable ports, which then are named
//!                       no eid: the first device with an active port and atomics
//!   GID of a port       Ethernet: RoCE v2 with an IPv4 address, then RoCE v2 with another address,
//!                       then a link-local one, then RoCE v1; InfiniBand: the first
//! ```
//! A device that cannot execute 64-bit atomics, or needs a connection manager (iWARP), is never
//! chosen.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A 16-byte global identifier of a port, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether the identifier is all zero: none.
    pub fn is_none(self) -> bool {
        self.0 == [0; 16]
    }

    /// The IPv4 address of `::ffff:a.b.c.d`.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl From<IpAddr> for Gid {
    /// The GID of a RoCE v2 port with this address.
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => Self(addr.to_ipv6_mapped().octets()),
            IpAddr::V6(addr) => Self(addr.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// The network of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE v1: not routable.
    RoceV1,
    /// RoCE v2: over UDP.
    RoceV2,
    /// Not known: the kernel does not say.
    Unknown,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidInfo {
    /// The index of the entry in the GID table.
    pub index: u8,
    /// The identifier; never zero.
    pub gid: Gid,
    /// The kind of network of the GID.
    pub kind: GidKind,
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The port can be used.
    Active,
    /// The port has no link.
    Down,
    /// A link that is not configured yet (InfiniBand: no subnet manager).
    Initializing,
    /// A state this program does not know.
    Other(u32),
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand.
    Infiniband,
    /// RoCE.
    Ethernet,
    /// Not known: the device does not say.
    Unknown,
}

/// One port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The number of the port, counted from 1.
    pub number: u8,
    /// The state of the port when it was examined.
    pub state: PortState,
    /// The kind of network of the port.
    pub link: Link,
    /// The local identifier; InfiniBand only.
    pub lid: u16,
    /// The path MTU in force, as a code: 1 = 256 bytes … 5 = 4,096.
    pub mtu: u8,
    /// The non-zero entries of its GID table, in order.
    pub gids: Vec<GidInfo>,
}

/// The atomicity of 64-bit operations of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// No atomic operations.
    None,
    /// Atomic with operations of this device only (`IBV_ATOMIC_HCA`).
    Device,
    /// Atomic with operations of the CPU, too (`IBV_ATOMIC_GLOB`); dlock does not rely on it.
    Global,
}

/// A device as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kernel's name, as in `rdma link`.
    pub name: String,
    /// Whether it is an iWARP device, which needs a connection manager.
    pub iwarp: bool,
    /// The atomicity of its operations.
    pub atomics: Atomics,
    /// Whether the device is the kernel's emulation (`rdma_rxe`).
    pub is_softroce: bool,
    /// The most work requests of a queue.
    pub queue_max: u32,
    /// The most completions of a completion queue.
    pub completions_max: u32,
    /// The most reads and atomics that the device executes at a time for one queue pair.
    pub reads_served_max: u8,
    /// The most reads and atomics that one queue pair may have under way.
    pub reads_issued_max: u8,
    /// The ports of the device.
    pub ports: Vec<PortInfo>,
    /// Why the device could not be examined. Then all fields above are empty, except the name.
    pub unusable: Option<String>,
}

/// The chosen port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSelection {
    /// The device.
    pub device: String,
    /// The port of the device.
    pub port: u8,
    /// The GID of the port.
    pub gid: GidInfo,
    /// Whether the `eid` decided the choice.
    pub by_eid: bool,
}

/// Why no port can be used: one line with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPort {
    /// There is no device of the given name.
    #[error("there is no RDMA device {}; {}", name.escape_debug(), devices_text(.devices))]
    NoSuchDevice {
        /// The name that was given.
        name: String,
        /// The devices that exist.
        devices: Vec<String>,
    },
    /// Only an `eid` was given; there are usable ports, but none has it.
    #[error("no usable RDMA port has the address {gid}; this host has: {}", ports.join("; "))]
    NoSuchAddress {
        /// The address (GID) that was given.
        gid: Gid,
        /// The usable ports with their addresses.
        ports: Vec<String>,
    },
    /// The named device, or every device, cannot be used.
    #[error("RDMA device {} cannot be used: {reason}", name.escape_debug())]
    Unusable {
        /// The device.
        name: String,
        /// Why the device cannot be used, and what to do.
        reason: String,
    },
    /// There is no device.
    #[error(
        "there is no RDMA device; SoftRoCE makes one: rdma link add rxe0 type rxe netdev eth0"
    )]
    NoDevice,
}

fn devices_text(devices: &[String]) -> String {
    match devices {
        [] => "this host has none".into(),
        _ => format!("this host has: {}", devices.join(", ")),
    }
}

/// Chooses the RDMA port to use. `device` is a name, if the user gave one; `eid` is an address
/// (GID), all zeros if the user gave none.
///
/// If no usable port has the `eid`, it is ignored where a device was named, and where this host has
/// no usable port: programs also pass the host's IP address as `eid`.
///
/// # Errors
/// The reason why no port can be used. The caller may go on without RDMA if it named no device; but
/// not after `NoSuchAddress`, which says that the user's `eid` is wrong.
pub fn choose(
    devices: &[DeviceInfo],
    device: Option<&str>,
    eid: &[u8; 16],
) -> Result<PortSelection, NoPort> {
    let eid = Gid(*eid);
    let usable_devices = || devices.iter().filter(|device| usable(device).is_ok());
    let named = usable_devices().filter(|other| device == Some(other.name.as_str()));
    // two devices may have the same link-local address
    if let Some(choice) = named.chain(usable_devices()).find_map(|found| by_address(found, eid)) {
        return Ok(choice);
    }
    if let Some(name) = device {
        let Some(device) = devices.iter().find(|d| d.name == name) else {
            let devices = devices.iter().map(|d| d.name.clone()).collect();
            return Err(NoPort::NoSuchDevice { name: name.into(), devices });
        };
        return usable(device).map_err(|reason| NoPort::Unusable { name: name.into(), reason });
    }
    let mut unusable = None;
    for device in devices {
        match usable(device) {
            Ok(_) if !eid.is_none() => {
                let ports = usable_devices().flat_map(ports_text).collect();
                return Err(NoPort::NoSuchAddress { gid: eid, ports });
            }
            Ok(choice) => return Ok(choice),
            Err(reason) => {
                unusable.get_or_insert(NoPort::Unusable { name: device.name.clone(), reason });
            }
        }
    }
    Err(unusable.unwrap_or(NoPort::NoDevice))
}

/// The active ports of a device, each with its addresses.
fn ports_text(device: &DeviceInfo) -> impl Iterator<Item = String> + '_ {
    let active = device.ports.iter().filter(|port| port.state == PortState::Active);
    active.map(|port| {
        let mut gids: Vec<String> = port.gids.iter().map(|gid| gid.gid.to_string()).collect();
        gids.dedup(); // the table may have an address twice, for RoCE v1 and v2
        format!("{} port {} ({})", device.name, port.number, gids.join(", "))
    })
}

/// The device's first active port with its best GID, or the reason why the device cannot be used.
pub fn usable(device: &DeviceInfo) -> Result<PortSelection, String> {
    if let Some(reason) = &device.unusable {
        return Err(reason.clone());
    }
    if device.iwarp {
        return Err("iWARP devices need a connection manager; use RoCE or InfiniBand".into());
    }
    if device.atomics == Atomics::None {
        return Err("it has no 64-bit atomic operations; use another device".into());
    }
    for port in device.ports.iter().filter(|port| port.state == PortState::Active) {
        if let Some(gid) = best_gid(port) {
            return Ok(choice(device, port, gid, false));
        }
    }
    let active = device.ports.iter().any(|port| port.state == PortState::Active);
    Err(match (active, device.ports.first().map(|port| port.state)) {
        (true, _) => "its active port has no address; give its network interface one".into(),
        (false, Some(PortState::Initializing)) => {
            "its port is not configured yet; is a subnet manager running?".into()
        }
        (false, _) => "none of its ports is active; check the cable, or `ip link set … up`".into(),
    })
}

fn by_address(device: &DeviceInfo, eid: Gid) -> Option<PortSelection> {
    if eid.is_none() {
        return None;
    }
    let active = device.ports.iter().filter(|port| port.state == PortState::Active);
    // the table may have an address twice, for RoCE v1 and v2
    let entries = active.flat_map(|port| port.gids.iter().map(move |gid| (port, gid)));
    let (port, gid) =
        entries.filter(|(_, gid)| gid.gid == eid).min_by_key(|(port, gid)| rank(port, gid))?;
    Some(choice(device, port, *gid, true))
}

fn choice(device: &DeviceInfo, port: &PortInfo, gid: GidInfo, by_eid: bool) -> PortSelection {
    PortSelection { device: device.name.clone(), port: port.number, gid, by_eid }
}

fn best_gid(port: &PortInfo) -> Option<GidInfo> {
    port.gids.iter().min_by_key(|gid| rank(port, gid)).copied()
}

/// The rank of a GID; lower is better, and the earlier of two equal ones is chosen.
fn rank(port: &PortInfo, gid: &GidInfo) -> u8 {
    if port.link == Link::Infiniband {
        return 0;
    }
    match gid.kind {
        GidKind::RoceV2 if gid.gid.ipv4().is_some() => 0,
        GidKind::RoceV2 if !gid.gid.is_link_local() => 1,
        GidKind::Unknown if gid.gid.ipv4().is_some() => 2,
        GidKind::RoceV2 => 3,
        GidKind::Unknown => 4,
        GidKind::Infiniband | GidKind::RoceV1 => 5,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn gid(index: u8, address: &str, kind: GidKind) -> GidInfo {
        GidInfo { index, gid: Gid::from(address.parse::<IpAddr>().unwrap()), kind }
    }

    pub(crate) fn roce(name: &str, address: &str) -> DeviceInfo {
        let gids = vec![
            gid(0, "fe80::1", GidKind::RoceV1),
            gid(1, "fe80::1", GidKind::RoceV2),
            gid(2, address, GidKind::RoceV1),
            gid(3, address, GidKind::RoceV2),
        ];
        let state = PortState::Active;
        let port = PortInfo { number: 1, state, link: Link::Ethernet, lid: 0, mtu: 3, gids };
        DeviceInfo {
            name: name.into(),
            iwarp: false,
            atomics: Atomics::Device,
            is_softroce: false,
            queue_max: 1_024,
            completions_max: 1_024,
            reads_served_max: 16,
            reads_issued_max: 16,
            ports: vec![port],
            unusable: None,
        }
    }

    fn eid(address: &str) -> [u8; 16] {
        Gid::from(address.parse::<IpAddr>().unwrap()).0
    }

    const NONE: [u8; 16] = [0; 16];

    #[test]
    fn without_wishes_the_first_usable_device_is_taken_at_its_ipv4_roce_v2_gid() {
        let mut dead = roce("a0", "10.0.0.1");
        dead.ports[0].state = PortState::Down;
        let devices = [dead, roce("b0", "10.0.0.2"), roce("c0", "10.0.0.3")];
        let choice = choose(&devices, None, &NONE).unwrap();
        assert_eq!((choice.device.as_str(), choice.port, choice.gid.index), ("b0", 1, 3));
        assert!(!choice.by_eid);
    }

    #[test]
    fn an_eid_goes_before_a_device_name_which_goes_before_the_first_port() {
        let devices = [roce("a0", "10.0.0.1"), roce("b0", "10.0.0.2"), roce("c0", "10.0.0.3")];
        let chosen = |device, eid: [u8; 16]| {
            choose(&devices, device, &eid).map(|choice| (choice.device, choice.by_eid))
        };
        assert_eq!(chosen(Some("b0"), eid("10.0.0.3")), Ok(("c0".into(), true)));
        assert_eq!(chosen(Some("no_such"), eid("10.0.0.3")), Ok(("c0".into(), true)));
        // every port has this address
        assert_eq!(chosen(Some("b0"), eid("fe80::1")), Ok(("b0".into(), true)));
        assert_eq!(chosen(Some("b0"), eid("10.9.9.9")), Ok(("b0".into(), false)));
        assert_eq!(chosen(Some("b0"), NONE), Ok(("b0".into(), false)));
        assert_eq!(chosen(None, NONE), Ok(("a0".into(), false)));
        assert!(matches!(chosen(Some("no_such"), NONE), Err(NoPort::NoSuchDevice { .. })));
        assert!(matches!(chosen(Some("no_such"), [9; 16]), Err(NoPort::NoSuchDevice { .. })));
    }

    #[test]
    fn an_eid_that_no_usable_port_has_is_an_error_that_names_the_ports() {
        let mut down = roce("c0", "10.0.0.3");
        down.ports[0].state = PortState::Down;
        let devices = [roce("a0", "10.0.0.1"), roce("b0", "10.0.0.2"), down.clone()];
        for address in ["10.9.9.9", "10.0.0.3"] {
            let error = choose(&devices, None, &eid(address)).unwrap_err();
            assert!(matches!(error, NoPort::NoSuchAddress { .. }), "{error}");
            let error = error.to_string();
            for word in [address, "a0 port 1 (fe80::1, ::ffff:10.0.0.1)", "b0 port 1", "10.0.0.2"] {
                assert!(error.contains(word), "{error}");
            }
            assert!(!error.contains("c0"), "{error}");
        }
        // Without a usable port the caller may go on without RDMA.
        let error = choose(&[down], None, &eid("10.0.0.3")).unwrap_err();
        assert!(matches!(error, NoPort::Unusable { .. }), "{error}");
    }

    #[test]
    fn a_named_device_must_exist() {
        let devices = [roce("a0", "10.0.0.1"), roce("b0", "10.0.0.2")];
        let error = choose(&devices, Some("c0"), &NONE).unwrap_err();
        assert!(matches!(error, NoPort::NoSuchDevice { .. }));
        assert!(error.to_string().contains("a0, b0"), "{error}");
        let error = choose(&[], Some("c0"), &NONE).unwrap_err();
        assert!(error.to_string().contains("has none"), "{error}");
    }

    #[test]
    fn an_eid_names_its_device_by_ipv4_or_by_native_gid() {
        let devices = [roce("a0", "10.0.0.1"), roce("b0", "10.0.0.2")];
        let choice = choose(&devices, None, &eid("10.0.0.2")).unwrap();
        assert_eq!((choice.device.as_str(), choice.gid.index, choice.by_eid), ("b0", 3, true));
        let choice = choose(&devices, None, &eid("fe80::1")).unwrap();
        assert_eq!((choice.device.as_str(), choice.gid.index, choice.by_eid), ("a0", 1, true));
    }

    #[test]
    fn a_device_that_cannot_do_the_work_is_refused_with_a_remedy() {
        let good = roce("a0", "10.0.0.1");
        let mut plain = good.clone();
        plain.atomics = Atomics::None;
        let mut iwarp = good.clone();
        iwarp.iwarp = true;
        let mut bare = good.clone();
        bare.ports[0].gids.clear();
        let mut closed = good.clone();
        closed.unusable = Some("permission denied".into());
        let mut waiting = good.clone();
        waiting.ports[0].state = PortState::Initializing;
        for (device, word) in [
            (plain, "atomic"),
            (iwarp, "iWARP"),
            (bare, "address"),
            (closed, "permission"),
            (waiting, "subnet manager"),
        ] {
            for name in [Some("a0"), None] {
                let error = choose(std::slice::from_ref(&device), name, &NONE).unwrap_err();
                assert!(matches!(error, NoPort::Unusable { .. }), "{error}");
                assert!(error.to_string().contains(word), "{error}");
            }
            assert_eq!(choose(&[device, good.clone()], None, &NONE).unwrap().gid.index, 3);
        }
        assert_eq!(choose(&[], None, &NONE), Err(NoPort::NoDevice));
        assert_eq!(choose(&[], None, &[1; 16]), Err(NoPort::NoDevice));
    }

    #[test]
    fn the_second_port_serves_if_the_first_is_down_and_infiniband_takes_its_first_gid() {
        let mut device = roce("a0", "10.0.0.1");
        let mut second = device.ports[0].clone();
        second.number = 2;
        second.link = Link::Infiniband;
        second.gids =
            vec![gid(0, "fe80::7", GidKind::Infiniband), gid(1, "fd00::7", GidKind::Infiniband)];
        device.ports[0].state = PortState::Down;
        device.ports.push(second);
        let choice = choose(&[device], None, &NONE).unwrap();
        assert_eq!((choice.port, choice.gid.index), (2, 0));
    }

    #[test]
    fn without_a_kernel_that_tells_types_the_ipv4_gid_is_taken() {
        let mut device = roce("a0", "10.0.0.1");
        device.ports[0].gids =
            vec![gid(0, "fe80::1", GidKind::Unknown), gid(1, "10.0.0.1", GidKind::Unknown)];
        assert_eq!(choose(&[device], None, &NONE).unwrap().gid.index, 1);
    }
}
