// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structs of `include/dlock_types.h`, field by field.
//!
//! These structs have `u8` for `bool` fields and integers for enum fields, because callers leave
//! some of them unset. Sizes, alignments and offsets are asserted at compile time, and in
//! `tests/c/abi_layout`.

use std::mem::{align_of, offset_of, size_of};
use std::os::raw::{c_char, c_int, c_void};

/// The number of counters of a client or a primary.
pub const STATS_MAX: usize = 45;

/// `debug_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DebugStats {
    /// Indexed by `debug_stats_code`.
    pub stats: [u64; STATS_MAX],
}

/// `lock_desc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockDesc {
    /// The name, `len` bytes.
    pub p_desc: *const c_char,
    /// The length of the name, 1 to 512.
    pub len: u32,
    /// `dlock_type`.
    pub lock_type: u32,
    /// The lease in seconds; kept, never enforced.
    pub lease_time: u32,
}

/// `lock_request`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockRequest {
    /// The lock.
    pub lock_id: i32,
    /// `lock_ops`.
    pub lock_op: i32,
    /// The lease in seconds.
    pub expire_time: u32,
}

/// `atomic_state`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AtomicState {
    /// The owner's client id, or 0.
    pub client_id: i32,
    /// The end of the lease, seconds since 1970.
    pub time_out: u32,
}

/// `rw_state`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RwState {
    /// The end of the lease, seconds since 1970.
    pub time_out: u32,
    /// The exclusive owner's client id, or 0.
    pub client_id: i32,
    /// The number of readers.
    pub rcount: u32,
    /// Never written.
    pub rsvd: u32,
}

/// `fairlock_state`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FairState {
    /// The exclusive ticket that the lock serves now.
    pub n_exclusive: u16,
    /// The shared ticket that the lock serves now.
    pub n_shared: u16,
    /// The next exclusive ticket; while the client is queued, its own.
    pub m_exclusive: u16,
    /// The next shared ticket; while the client is queued, its own.
    pub m_shared: u16,
    /// The end of the lease, seconds since 1970.
    pub time_out: u32,
    /// rms:16, rflag:1, rsvd:9, rcnt:6, from the low bits up.
    pub t_value: u32,
}

/// `lock_state`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union LockState {
    /// The state of an atomic lock.
    pub atomic: AtomicState,
    /// The state of a read-write lock.
    pub rw: RwState,
    /// The state of a fair lock.
    pub fl: FairState,
    /// The first 8 bytes.
    pub base: u64,
}

/// The state part of `lock_op_res`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union OpState {
    /// The state of an atomic lock.
    pub atomic: AtomicState,
    /// The state of a read-write lock.
    pub rw: RwState,
    /// The state of a fair lock.
    pub fl: FairState,
}

/// `lock_op_res`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockOpRes {
    /// The lock's state.
    pub state: OpState,
    /// The item's status.
    pub op_ret: i32,
}

/// `lock_context`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockContext {
    /// `dlock_type`.
    pub lock_type: u32,
    /// The lock.
    pub lock_id: i32,
    /// The lease in seconds.
    pub lease_time: u32,
    /// How many holds of the lock are counted (re-entries).
    pub ref_count: u32,
    /// The state.
    pub ls: LockState,
}

/// `ssl_cfg`; only `ssl_enable` may be read while that is 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SslCfg {
    /// TLS is enabled if this field is not 0.
    pub ssl_enable: u8,
    /// CA certificate file.
    pub ca_path: *const c_char,
    /// Revocation list file or null.
    pub crl_path: *const c_char,
    /// Certificate file.
    pub cert_path: *const c_char,
    /// Private key file.
    pub prkey_path: *const c_char,
    /// `tls_cert_verify_callback_func_t` or null.
    pub cert_verify_cb: *const c_void,
    /// `tls_prkey_pwd_callback_func_t`.
    pub prkey_pwd_cb: *const c_void,
    /// `tls_erase_prkey_callback_func_t`.
    pub erase_prkey_cb: *const c_void,
}

/// `dlock_eid_t`: 16 bytes, aligned to 8.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Eid {
    /// The address in network byte order.
    pub raw: [u8; 16],
}

/// `client_cfg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ClientCfg {
    /// The name of an RDMA device, or null.
    pub dev_name: *const c_char,
    /// The GID of an RDMA port, or zeros.
    pub eid: Eid,
    /// The log level, 0 to 7.
    pub log_level: c_int,
    /// The primary's port; 0 or less: the last port that was configured.
    pub primary_port: c_int,
    /// TLS.
    pub ssl: SslCfg,
    /// `trans_mode_t`.
    pub tp_mode: u32,
    /// Not used.
    pub ub_token_disable: u8,
}

/// `primary_cfg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PrimaryCfg {
    /// Must be 0.
    pub num_of_replica: u32,
    /// How many clients a recovery waits for.
    pub recovery_client_num: u32,
    /// CPUs of the control thread or null.
    pub ctrl_cpuset: *const c_char,
    /// CPUs of the command thread or null.
    pub cmd_cpuset: *const c_char,
    /// The address to listen on.
    pub server_ip_str: *const c_char,
    /// The port to listen on; 0 or less: the default.
    pub server_port: c_int,
    /// Not read while `replica_enable` is 0.
    pub replica_port: c_int,
    /// Must be 0: there are no replicas.
    pub replica_enable: u8,
}

/// `replica_cfg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ReplicaCfg {
    /// The primary.
    pub primary_ip_str: *const c_char,
    /// The port of the primary.
    pub primary_port: c_int,
}

/// The role part of `server_cfg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union RoleCfg {
    /// Valid if `server_type` is `SERVER_PRIMARY`.
    pub primary: PrimaryCfg,
    /// Valid if `server_type` is `SERVER_REPLICA`.
    pub replica: ReplicaCfg,
}

/// `server_cfg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ServerCfg {
    /// `server_type`.
    pub server_type: u32,
    /// The name of an RDMA device, or null.
    pub dev_name: *const c_char,
    /// The GID of an RDMA port, or zeros.
    pub eid: Eid,
    /// The log level, 0 to 7.
    pub log_level: c_int,
    /// Not 0: the command thread sleeps while it is idle.
    pub sleep_mode_enable: u8,
    /// The configuration of the role.
    pub role: RoleCfg,
    /// TLS.
    pub ssl: SslCfg,
    /// `trans_mode_t`.
    pub tp_mode: u32,
    /// Not used.
    pub ub_token_disable: u8,
}

/// `umo_atomic64_desc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ObjectDesc {
    /// The name, `len` bytes.
    pub p_desc: *const c_char,
    /// The length of the name, 1 to 512.
    pub len: u32,
    /// The lease in seconds, not 0.
    pub lease_time: u32,
}

/// `layout!(Type, size, align, field @ offset, …)`
macro_rules! layout {
    ($t:ty, $size:expr, $align:expr $(, $field:ident @ $offset:expr)*) => {
        const _: () = {
            assert!(size_of::<$t>() == $size);
            assert!(align_of::<$t>() == $align);
            $(assert!(offset_of!($t, $field) == $offset);)*
        };
    };
}

layout!(DebugStats, 360, 8, stats @ 0);
layout!(LockDesc, 24, 8, p_desc @ 0, len @ 8, lock_type @ 12, lease_time @ 16);
layout!(LockRequest, 12, 4, lock_id @ 0, lock_op @ 4, expire_time @ 8);
layout!(AtomicState, 8, 4, client_id @ 0, time_out @ 4);
layout!(RwState, 16, 4, time_out @ 0, client_id @ 4, rcount @ 8, rsvd @ 12);
layout!(FairState, 16, 4, n_exclusive @ 0, n_shared @ 2, m_exclusive @ 4, m_shared @ 6,
    time_out @ 8, t_value @ 12);
layout!(LockState, 16, 8, atomic @ 0, rw @ 0, fl @ 0, base @ 0);
layout!(OpState, 16, 4, atomic @ 0, rw @ 0, fl @ 0);
layout!(LockOpRes, 20, 4, state @ 0, op_ret @ 16);
layout!(LockContext, 32, 8, lock_type @ 0, lock_id @ 4, lease_time @ 8, ref_count @ 12, ls @ 16);
layout!(SslCfg, 64, 8, ssl_enable @ 0, ca_path @ 8, crl_path @ 16, cert_path @ 24,
    prkey_path @ 32, cert_verify_cb @ 40, prkey_pwd_cb @ 48, erase_prkey_cb @ 56);
layout!(Eid, 16, 8, raw @ 0);
layout!(ClientCfg, 104, 8, dev_name @ 0, eid @ 8, log_level @ 24, primary_port @ 28, ssl @ 32,
    tp_mode @ 96, ub_token_disable @ 100);
layout!(PrimaryCfg, 48, 8, num_of_replica @ 0, recovery_client_num @ 4, ctrl_cpuset @ 8,
    cmd_cpuset @ 16, server_ip_str @ 24, server_port @ 32, replica_port @ 36,
    replica_enable @ 40);
layout!(ReplicaCfg, 16, 8, primary_ip_str @ 0, primary_port @ 8);
layout!(ServerCfg, 160, 8, server_type @ 0, dev_name @ 8, eid @ 16, log_level @ 32,
    sleep_mode_enable @ 36, role @ 40, ssl @ 88, tp_mode @ 152, ub_token_disable @ 156);
layout!(ObjectDesc, 16, 8, p_desc @ 0, len @ 8, lease_time @ 12);
