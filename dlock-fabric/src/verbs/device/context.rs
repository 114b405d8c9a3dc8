// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices that the library finds, and an open device.

use std::ffi::{c_int, CStr};
use std::fs;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::VerbsError;
use super::ffi::{self, ibv_context, ibv_device, ibv_device_attr, ibv_gid, ibv_port_attr};
use super::library::{library, Library};
use super::port_selection::{
    Atomics, DeviceInfo, Gid, GidInfo, GidKind, Link, NoPort, PortInfo, PortSelection, PortState,
};
use crate::os::fork::Owner;

/// The most entries of a GID table that a queue pair can use.
const GIDS_MAX: c_int = 256;

/// The vendor id of `rdma_rxe`.
const SOFTROCE_VENDOR: u32 = 0xff_ffff;

/// Every device of this host with its ports. A device that cannot be opened has the reason.
///
/// # Errors
/// `Absent` without a library; `Call` if the devices cannot be listed. A host without devices has
/// an empty list.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let lib = library().map_err(Clone::clone)?;
    let list = DeviceList::new(lib)?;
    Ok(list.entries().iter().map(|&device| look_into(lib, device)).collect())
}

/// An open device, and its chosen port.
#[derive(Debug)]
pub struct Context {
    pub(super) raw: NonNull<ibv_context>,
    pub(super) lib: &'static Library,
    pub(super) owner: Owner,
    info: DeviceInfo,
    port: PortInfo,
    gid: GidInfo,
}

// SAFETY: libibverbs permits every thread to use a context.
unsafe impl Send for Context {}
// SAFETY: libibverbs permits several threads to use a context at once.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the chosen device.
    ///
    /// # Errors
    /// `Absent`; `NoPort` if the device or the port has been removed since; `Call`.
    pub fn open(choice: &PortSelection) -> Result<Arc<Self>, VerbsError> {
        let lib = library().map_err(Clone::clone)?;
        let list = DeviceList::new(lib)?;
        let gone = |reason: &str| {
            let reason = reason.to_string();
            VerbsError::NoPort(NoPort::Unusable { name: choice.device.clone(), reason })
        };
        let device = list.entries().iter().copied().find(|&d| name_of(d) == choice.device);
        let raw = open(lib, device.ok_or_else(|| gone("it has been removed; see `rdma link`"))?)?;
        let owner = Owner::current();
        let info = match describe(lib, raw, choice.device.clone()) {
            Ok(info) => info,
            Err(error) => {
                // SAFETY: opened above, with no other user.
                unsafe { (lib.close_device)(raw.as_ptr()) };
                return Err(error);
            }
        };
        let port = info.ports.iter().find(|port| port.number == choice.port).cloned();
        let gid = port
            .as_ref()
            .and_then(|port| port.gids.iter().find(|gid| gid.index == choice.gid.index).copied());
        let empty = PortInfo {
            number: 0,
            state: PortState::Down,
            link: Link::Unknown,
            lid: 0,
            mtu: 0,
            gids: Vec::new(),
        };
        let context = Self {
            raw,
            lib,
            owner,
            info,
            port: port.unwrap_or(empty),
            gid: gid.unwrap_or(choice.gid),
        };
        if gid.map(|gid| gid.gid) != Some(choice.gid.gid) {
            return Err(gone("its addresses have changed; choose again"));
        }
        Ok(Arc::new(context))
    }

    /// The properties of the device when it was opened.
    pub fn device(&self) -> &DeviceInfo {
        &self.info
    }

    /// The chosen port as it was when the device was opened.
    pub fn port(&self) -> &PortInfo {
        &self.port
    }

    /// The GID that was chosen for connections of this context.
    pub fn gid(&self) -> GidInfo {
        self.gid
    }

    /// The state of the port now.
    ///
    /// # Errors
    /// `Call` if the device has been removed.
    pub fn port_state(&self) -> Result<PortState, VerbsError> {
        Ok(state_of(query_port(self.lib, self.raw, self.port.number)?.state))
    }

    /// The library's functions; an error in a forked child of the process that opened the device.
    pub(super) fn here(&self) -> Result<&'static Library, VerbsError> {
        if self.owner.is_here() {
            Ok(self.lib)
        } else {
            Err(VerbsError::Forked)
        }
    }
}

impl Drop for Context {
    /// Closes the device. Every object that was made from the context keeps it alive, so none is
    /// left.
    fn drop(&mut self) {
        // a forked child shares the kernel's object with its parent, which still uses it
        if self.owner.is_here() {
            // SAFETY: opened by `open`, closed once.
            unsafe { (self.lib.close_device)(self.raw.as_ptr()) };
        }
    }
}

/// The library's list of devices, freed on drop. An opened device stays valid.
struct DeviceList {
    lib: &'static Library,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    fn new(lib: &'static Library) -> Result<Self, VerbsError> {
        let mut len = 0;
        // SAFETY: `len` is a valid place for the number.
        let list = unsafe { (lib.get_device_list)(&mut len) };
        let list = NonNull::new(list).ok_or_else(|| VerbsError::last("list RDMA devices"))?;
        Ok(Self { lib, list, len: usize::try_from(len).unwrap_or(0) })
    }

    fn entries(&self) -> &[*mut ibv_device] {
        // SAFETY: the library made the list with this length, and it lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by `get_device_list`, freed once.
        unsafe { (self.lib.free_device_list)(self.list.as_ptr()) };
    }
}

fn name_of(device: *mut ibv_device) -> String {
    // SAFETY: a device of a list that is still held; its name is a C string in an array.
    unsafe { CStr::from_ptr((&raw const (*device).name).cast()) }.to_string_lossy().into_owned()
}

fn open(lib: &Library, device: *mut ibv_device) -> Result<NonNull<ibv_context>, VerbsError> {
    // SAFETY: a device of a list that is still held.
    let raw = unsafe { (lib.open_device)(device) };
    NonNull::new(raw).ok_or_else(|| VerbsError::last("open an RDMA device"))
}

fn look_into(lib: &Library, device: *mut ibv_device) -> DeviceInfo {
    let name = name_of(device);
    let info = open(lib, device).and_then(|raw| {
        let info = describe(lib, raw, name.clone());
        // SAFETY: opened a moment ago, with no other user.
        unsafe { (lib.close_device)(raw.as_ptr()) };
        info
    });
    info.unwrap_or_else(|error| DeviceInfo {
        name,
        iwarp: false,
        atomics: Atomics::None,
        is_softroce: false,
        queue_max: 0,
        completions_max: 0,
        reads_served_max: 0,
        reads_issued_max: 0,
        ports: Vec::new(),
        unusable: Some(error.to_string()),
    })
}

fn describe(
    lib: &Library,
    raw: NonNull<ibv_context>,
    name: String,
) -> Result<DeviceInfo, VerbsError> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, and a place for the answer of the size that the ABI has.
    let rc = unsafe { (lib.query_device)(raw.as_ptr(), &mut attr) };
    VerbsError::check("query an RDMA device", rc)?;
    // SAFETY: an open context points to its device as long as it is open.
    let transport = unsafe { (*(*raw.as_ptr()).device).transport_type };
    let ports = (1..=attr.phys_port_cnt).map(|n| describe_port(lib, raw, &name, n));
    let byte = |n: c_int| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
    Ok(DeviceInfo {
        iwarp: transport == ffi::IBV_TRANSPORT_IWARP,
        atomics: match attr.atomic_cap {
            ffi::IBV_ATOMIC_HCA => Atomics::Device,
            ffi::IBV_ATOMIC_GLOB => Atomics::Global,
            _ => Atomics::None,
        },
        is_softroce: attr.vendor_id == SOFTROCE_VENDOR,
        queue_max: u32::try_from(attr.max_qp_wr).unwrap_or(0),
        completions_max: u32::try_from(attr.max_cqe).unwrap_or(0),
        reads_served_max: byte(attr.max_qp_rd_atom),
        reads_issued_max: byte(attr.max_qp_init_rd_atom),
        ports: ports.collect::<Result<_, _>>()?,
        unusable: None,
        name,
    })
}

fn query_port(
    lib: &Library,
    raw: NonNull<ibv_context>,
    port: u8,
) -> Result<ibv_port_attr, VerbsError> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: an open context; the call writes no more than the front of the structure.
    let rc = unsafe { (lib.query_port)(raw.as_ptr(), port, &mut attr) };
    VerbsError::check("query a port", rc)?;
    Ok(attr)
}

fn state_of(state: u32) -> PortState {
    match state {
        ffi::IBV_PORT_ACTIVE | ffi::IBV_PORT_ACTIVE_DEFER => PortState::Active,
        ffi::IBV_PORT_NOP | ffi::IBV_PORT_DOWN => PortState::Down,
        ffi::IBV_PORT_INIT | ffi::IBV_PORT_ARMED => PortState::Initializing,
        other => PortState::Other(other),
    }
}

fn describe_port(
    lib: &Library,
    raw: NonNull<ibv_context>,
    device: &str,
    number: u8,
) -> Result<PortInfo, VerbsError> {
    let attr = query_port(lib, raw, number)?;
    let link = match attr.link_layer {
        ffi::IBV_LINK_LAYER_INFINIBAND => Link::Infiniband,
        ffi::IBV_LINK_LAYER_ETHERNET => Link::Ethernet,
        // devices from before RDMA over Ethernet
        _ => Link::Unknown,
    };
    let gids = (0..attr.gid_tbl_len.clamp(0, GIDS_MAX))
        .filter_map(|index| gid_at(lib, raw, device, number, index))
        .collect();
    Ok(PortInfo {
        number,
        state: state_of(attr.state),
        link,
        lid: attr.lid,
        mtu: u8::try_from(attr.active_mtu).unwrap_or(0),
        gids,
    })
}

/// The GID at an index; `None`: the entry is empty.
fn gid_at(
    lib: &Library,
    raw: NonNull<ibv_context>,
    device: &str,
    port: u8,
    index: c_int,
) -> Option<GidInfo> {
    let number = u8::try_from(index).ok()?;
    let info = |gid, kind| (!Gid::is_none(gid)).then_some(GidInfo { index: number, gid, kind });
    if let Some(query) = lib.query_gid_ex {
        let mut entry = ffi::ibv_gid_entry::default();
        let bytes = size_of::<ffi::ibv_gid_entry>();
        // SAFETY: an open context, and a place for the answer with its size.
        let rc =
            unsafe { query(raw.as_ptr(), port.into(), u32::from(number), &mut entry, 0, bytes) };
        let kind = match entry.gid_type {
            ffi::IBV_GID_TYPE_IB => GidKind::Infiniband,
            ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        };
        return if rc == 0 { info(Gid(entry.gid.raw), kind) } else { None };
    }
    let mut gid = ibv_gid::default();
    // SAFETY: an open context, and a place for the answer.
    let rc = unsafe { (lib.query_gid)(raw.as_ptr(), port, index, &mut gid) };
    if rc != 0 {
        return None;
    }
    info(Gid(gid.raw), kind_by_sysfs(Path::new("/sys/class/infiniband"), device, port, number))
}

/// The kind of a GID as the kernel's file says it, if the library cannot tell it.
fn kind_by_sysfs(root: &Path, device: &str, port: u8, index: u8) -> GidKind {
    let path = root.join(format!("{device}/ports/{port}/gid_attrs/types/{index}"));
    match fs::read_to_string(path).unwrap_or_default().trim() {
        // The kernel uses the name "IB/RoCE v1" for both InfiniBand and RoCE v1.
        "IB/RoCE v1" => GidKind::RoceV1,
        "RoCE v2" => GidKind::RoceV2,
        _ => GidKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_library_or_devices_has_an_answer() {
        match devices() {
            Ok(found) => assert!(found.iter().all(|device| !device.name.is_empty())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn the_type_of_a_gid_is_read_from_the_kernels_file() {
        let root = std::env::temp_dir().join(format!("dlock-gid-{}", std::process::id()));
        let types = root.join("a0/ports/1/gid_attrs/types");
        fs::create_dir_all(&types).unwrap();
        fs::write(types.join("0"), "IB/RoCE v1\n").unwrap();
        fs::write(types.join("1"), "RoCE v2\n").unwrap();
        let kinds = [0, 1, 2].map(|index| kind_by_sysfs(&root, "a0", 1, index));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(kinds, [GidKind::RoceV1, GidKind::RoceV2, GidKind::Unknown]);
    }
}
