// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of `<infiniband/verbs.h>` that is used here, by its ABI since rdma-core 17.
//!
//! The end of this file checks what the compiler can check, for 64-bit machines. The crate
//! `tests/verbs-abi` checks every size, offset and constant against the C header and against
//! `ibverbs-sys`. Enumerations are integers, because an unknown value must not be undefined
//! behaviour.
//!
//! Structures that the library allocates (`ibv_context`, `ibv_qp`, `ibv_cq`, …) are only read,
//! through raw pointers. Hot calls go through the table of functions in `ibv_context`.

#![allow(non_camel_case_types)] // The names are those of the C header.
#![allow(missing_docs)] // The C header documents them.
#![allow(dead_code)] // `tests/verbs-abi` compares unused items, too.

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, size_t};

/// A 16-byte global identifier: a union with two big-endian 64-bit halves in C.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C)]
pub struct ibv_device {
    _dummy1: *mut c_void,
    _dummy2: *mut c_void,
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// An entry of the table that only old programs used.
pub type Unused = *mut c_void;

#[repr(C)]
pub struct ibv_context_ops {
    _compat_query_device: Unused,
    _compat_query_port: Unused,
    _compat_alloc_pd: Unused,
    _compat_dealloc_pd: Unused,
    _compat_reg_mr: Unused,
    _compat_rereg_mr: Unused,
    _compat_dereg_mr: Unused,
    alloc_mw: Unused,
    bind_mw: Unused,
    dealloc_mw: Unused,
    _compat_create_cq: Unused,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _compat_cq_event: Unused,
    _compat_resize_cq: Unused,
    _compat_destroy_cq: Unused,
    _compat_create_srq: Unused,
    _compat_modify_srq: Unused,
    _compat_query_srq: Unused,
    _compat_destroy_srq: Unused,
    post_srq_recv: Unused,
    _compat_create_qp: Unused,
    _compat_query_qp: Unused,
    _compat_modify_qp: Unused,
    _compat_destroy_qp: Unused,
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _compat_create_ah: Unused,
    _compat_destroy_ah: Unused,
    _compat_attach_mcast: Unused,
    _compat_detach_mcast: Unused,
    _compat_async_event: Unused,
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The whole structure. The exported `ibv_query_port` writes only the part up to `flags`
/// ([`COMPAT_PORT_ATTR_BYTES`]), so the rest must be zero before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// Bytes of `ibv_port_attr` that the exported `ibv_query_port` writes.
pub const COMPAT_PORT_ATTR_BYTES: usize = 48;

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: size_t,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union wr {
    pub rdma: rdma,
    pub atomic: atomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub wr: wr,
    /// `qp_type.xrc.remote_srqn` in C.
    pub remote_srqn: u32,
    /// The union of `bind_mw` and `tso`, which are not used here.
    pub rest: [u64; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

impl std::fmt::Debug for ibv_send_wr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Which half of the union is valid depends on the opcode; the number identifies the
        // request.
        f.debug_struct("ibv_send_wr").field("wr_id", &self.wr_id).finish_non_exhaustive()
    }
}

impl ibv_send_wr {
    /// A request with all fields zero.
    pub fn empty() -> Self {
        let atomic = atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 };
        Self {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            wr: wr { atomic },
            remote_srqn: 0,
            rest: [0; 6],
        }
    }
}

/// Constants of the header, by their names there.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*
        /// All constants, for comparison with the header.
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

constants! {
    IBV_TRANSPORT_IB: c_int = 0;
    IBV_TRANSPORT_IWARP: c_int = 1;
    IBV_ATOMIC_NONE: c_uint = 0;
    IBV_ATOMIC_HCA: c_uint = 1;
    IBV_ATOMIC_GLOB: c_uint = 2;
    IBV_PORT_NOP: c_uint = 0;
    IBV_PORT_DOWN: c_uint = 1;
    IBV_PORT_INIT: c_uint = 2;
    IBV_PORT_ARMED: c_uint = 3;
    IBV_PORT_ACTIVE: c_uint = 4;
    IBV_PORT_ACTIVE_DEFER: c_uint = 5;
    IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
    IBV_LINK_LAYER_INFINIBAND: u8 = 1;
    IBV_LINK_LAYER_ETHERNET: u8 = 2;
    IBV_GID_TYPE_IB: u32 = 0;
    IBV_GID_TYPE_ROCE_V1: u32 = 1;
    IBV_GID_TYPE_ROCE_V2: u32 = 2;
    IBV_MTU_256: c_uint = 1;
    IBV_MTU_1024: c_uint = 3;
    IBV_MTU_4096: c_uint = 5;
    IBV_QPT_RC: c_uint = 2;
    IBV_QPS_RESET: c_uint = 0;
    IBV_QPS_INIT: c_uint = 1;
    IBV_QPS_RTR: c_uint = 2;
    IBV_QPS_RTS: c_uint = 3;
    IBV_QPS_SQD: c_uint = 4;
    IBV_QPS_SQE: c_uint = 5;
    IBV_QPS_ERR: c_uint = 6;
    IBV_QP_STATE: c_int = 1;
    IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
    IBV_QP_PKEY_INDEX: c_int = 1 << 4;
    IBV_QP_PORT: c_int = 1 << 5;
    IBV_QP_AV: c_int = 1 << 7;
    IBV_QP_PATH_MTU: c_int = 1 << 8;
    IBV_QP_TIMEOUT: c_int = 1 << 9;
    IBV_QP_RETRY_CNT: c_int = 1 << 10;
    IBV_QP_RNR_RETRY: c_int = 1 << 11;
    IBV_QP_RQ_PSN: c_int = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
    IBV_QP_SQ_PSN: c_int = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    IBV_QP_DEST_QPN: c_int = 1 << 20;
    IBV_ACCESS_LOCAL_WRITE: c_int = 1;
    IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
    IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;
    IBV_WR_RDMA_WRITE: c_uint = 0;
    IBV_WR_SEND: c_uint = 2;
    IBV_WR_SEND_WITH_IMM: c_uint = 3;
    IBV_WR_RDMA_READ: c_uint = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
    IBV_SEND_FENCE: c_uint = 1;
    IBV_SEND_SIGNALED: c_uint = 1 << 1;
    IBV_SEND_SOLICITED: c_uint = 1 << 2;
    IBV_SEND_INLINE: c_uint = 1 << 3;
    IBV_WC_SUCCESS: c_uint = 0;
    IBV_WC_LOC_LEN_ERR: c_uint = 1;
    IBV_WC_LOC_QP_OP_ERR: c_uint = 2;
    IBV_WC_LOC_PROT_ERR: c_uint = 4;
    IBV_WC_WR_FLUSH_ERR: c_uint = 5;
    IBV_WC_BAD_RESP_ERR: c_uint = 7;
    IBV_WC_LOC_ACCESS_ERR: c_uint = 8;
    IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
    IBV_WC_REM_ACCESS_ERR: c_uint = 10;
    IBV_WC_REM_OP_ERR: c_uint = 11;
    IBV_WC_RETRY_EXC_ERR: c_uint = 12;
    IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
    IBV_WC_FATAL_ERR: c_uint = 19;
    IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
    IBV_WC_GENERAL_ERR: c_uint = 21;
    IBV_WC_RECV: c_uint = 1 << 7;
    IBV_WC_WITH_IMM: c_uint = 1 << 1;
}

/// Sizes and offsets known from rdma-core 44, the same on every 64-bit machine.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{align_of, offset_of};
    assert!(size_of::<ibv_gid>() == 16 && align_of::<ibv_gid>() == 8);
    assert!(size_of::<ibv_gid_entry>() == 32);
    assert!(size_of::<ibv_device>() == 664 && offset_of!(ibv_device, name) == 24);
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 88);
    assert!(offset_of!(ibv_context_ops, req_notify_cq) == 96);
    assert!(offset_of!(ibv_context_ops, post_send) == 200);
    assert!(offset_of!(ibv_context_ops, post_recv) == 208);
    assert!(offset_of!(ibv_context, ops) == 8 && offset_of!(ibv_context, cmd_fd) == 264);
    assert!(size_of::<ibv_device_attr>() == 232 && offset_of!(ibv_device_attr, atomic_cap) == 164);
    assert!(size_of::<ibv_port_attr>() == 52 && offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(offset_of!(ibv_port_attr, port_cap_flags2) == COMPAT_PORT_ATTR_BYTES);
    assert!(size_of::<ibv_pd>() == 16 && size_of::<ibv_mr>() == 48);
    assert!(offset_of!(ibv_mr, lkey) == 36 && offset_of!(ibv_mr, rkey) == 40);
    assert!(size_of::<ibv_comp_channel>() == 16);
    assert!(offset_of!(ibv_cq, cqe) == 28 && offset_of!(ibv_cq, mutex) == 32);
    assert!(size_of::<ibv_qp_cap>() == 20 && size_of::<ibv_qp_init_attr>() == 64);
    assert!(offset_of!(ibv_qp, qp_num) == 52 && offset_of!(ibv_qp, mutex) == 64);
    assert!(size_of::<ibv_global_route>() == 24 && size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(size_of::<ibv_sge>() == 16 && size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, wr) == 40);
    assert!(offset_of!(ibv_send_wr, remote_srqn) == 72);
    assert!(size_of::<ibv_wc>() == 48 && offset_of!(ibv_wc, qp_num) == 28);
};
