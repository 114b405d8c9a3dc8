// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares dlock's binding of libibverbs with `<infiniband/verbs.h>`, and with `ibverbs-sys`.
//!
//! ```text
//!   verbs/device/ffi.rs ──▶ [`ours`] ──┬── a C program, made from the same table and compiled
//!   of dlock-fabric                    │   against the installed header
//!                                      └── `ibverbs-sys` (feature of that name)
//! ```
//! A table names every structure and every field; a field that is missing on one side does not
//! compile.
#![forbid(unsafe_code)]

use std::fmt::Write;

#[path = "../../../dlock-fabric/src/verbs/device/ffi.rs"]
mod ffi;

/// A size (`ibv_qp`) or an offset (`ibv_qp.qp_num`) in bytes, or the value of a constant.
pub type Fact = (String, i64);

/// Every structure with the fields that are public, and called the same, on all sides.
macro_rules! table {
    ($use:ident) => {
        $use! {
            ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
            ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
            ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
            ibv_context {
                device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
            }
            ibv_device_attr {
                fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
                vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
                max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
                max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
                max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
                max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
                max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
            }
            ibv_port_attr {
                state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
                qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
                init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
                port_cap_flags2
            }
            ibv_pd { context, handle }
            ibv_mr { context, pd, addr, length, handle, lkey, rkey }
            ibv_comp_channel { context, fd, refcnt }
            ibv_cq {
                context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
                async_events_completed
            }
            ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
            ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
            ibv_qp {
                context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
                mutex, cond, events_completed
            }
            ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
            ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
            ibv_qp_attr {
                qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
                dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
                alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
                max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
                alt_port_num, alt_timeout, rate_limit
            }
            ibv_sge { addr, length, lkey }
            ibv_send_wr {
                wr_id, next, sg_list, num_sge, opcode, send_flags, wr, wr.rdma.remote_addr,
                wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap,
                wr.atomic.rkey
            }
            ibv_recv_wr { wr_id, next, sg_list, num_sge }
            ibv_wc { qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        }
    };
}

macro_rules! facts_of_ours {
    ($($name:ident { $($($field:ident).+),* $(,)? })*) => {{
        let mut facts = vec![];
        $(
            facts.push((stringify!($name).to_string(), size_of::<ffi::$name>() as i64));
            $(
                let offset = std::mem::offset_of!(ffi::$name, $($field).+);
                facts.push((path(stringify!($name), stringify!($($field).+)), offset as i64));
            )*
        )*
        facts
    }};
}

/// Sizes and offsets of dlock's binding.
pub fn ours() -> Vec<Fact> {
    let mut facts = table!(facts_of_ours);
    // A union in C, of which Rust's macro cannot say the alignment as a field.
    facts.push(("ibv_gid".into(), size_of::<ffi::ibv_gid>() as i64));
    facts.push(("alignof ibv_gid".into(), align_of::<ffi::ibv_gid>() as i64));
    // Members of anonymous unions, which every binding names in its own way.
    // And members that `ibverbs-sys` hides behind functions.
    macro_rules! more {
        ($($name:ident $field:ident: $theirs:literal,)*) => {
            $(
                let offset = std::mem::offset_of!(ffi::$name, $field) as i64;
                facts.push((format!(concat!("{}.", $theirs), stringify!($name)), offset));
            )*
        };
    }
    more! {
        ibv_send_wr imm_data: "imm_data",
        ibv_send_wr remote_srqn: "qp_type.xrc.remote_srqn",
        ibv_send_wr rest: "bind_mw",
        ibv_wc wr_id: "wr_id",
        ibv_wc status: "status",
        ibv_wc opcode: "opcode",
        ibv_wc vendor_err: "vendor_err",
        ibv_wc byte_len: "byte_len",
        ibv_wc imm_data: "imm_data",
    }
    facts
}

/// Constants of dlock's binding.
pub fn constants() -> Vec<Fact> {
    ffi::CONSTANTS.iter().map(|(name, value)| ((*name).to_string(), *value)).collect()
}

/// Bytes of `ibv_port_attr` that the exported `ibv_query_port` writes, as the binding has it.
pub const COMPAT_PORT_ATTR_BYTES: usize = ffi::COMPAT_PORT_ATTR_BYTES;

/// Structures that newer headers extend at their end, and of which the functions that are called
/// write no more than the old part (rdma-core 55 made `ibv_port_attr` 56 bytes long).
const GROWING: [&str; 1] = ["ibv_port_attr"];

/// Whether a fact of another binding permits ours.
pub fn agrees(ours: &Fact, theirs: &Fact) -> bool {
    let grown = GROWING.contains(&ours.0.as_str()) && theirs.1 >= ours.1;
    ours.0 == theirs.0 && (ours.1 == theirs.1 || grown)
}

fn path(name: &str, field: &str) -> String {
    format!("{name}.{}", field.replace(' ', ""))
}

/// A C program that prints the same facts, in the same order, from the header.
pub fn c_program() -> String {
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         int main(void)\n{\n",
    );
    let mut print = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "    printf(\"{name} %lld\\n\", (long long)({value}));");
    };
    for (name, _) in ours() {
        match (name.strip_prefix("alignof "), name.split_once('.')) {
            (Some(_), _) => print(&name, "_Alignof(union ibv_gid)"),
            (_, Some((of, field))) => print(&name, &format!("offsetof(struct {of}, {field})")),
            _ if name == "ibv_gid" => print(&name, "sizeof(union ibv_gid)"),
            _ => print(&name, &format!("sizeof(struct {name})")),
        }
    }
    for (name, _) in constants() {
        print(&name, &name);
    }
    text.push_str("    return 0;\n}\n");
    text
}

/// The facts that such a program printed.
pub fn parse(output: &str) -> Vec<Fact> {
    let fact = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    };
    output.lines().filter_map(fact).collect()
}

#[cfg(feature = "ibverbs-sys")]
macro_rules! facts_of_theirs {
    ($($name:ident { $($($field:ident).+),* $(,)? })*) => {{
        let mut facts = vec![];
        $(
            facts.push((stringify!($name).to_string(), size_of::<ibverbs_sys::$name>() as i64));
            $(
                let offset = std::mem::offset_of!(ibverbs_sys::$name, $($field).+);
                facts.push((path(stringify!($name), stringify!($($field).+)), offset as i64));
            )*
        )*
        facts
    }};
}

/// Sizes and offsets of `ibverbs-sys`; without the members of anonymous unions.
#[cfg(feature = "ibverbs-sys")]
pub fn theirs() -> Vec<Fact> {
    let mut facts = table!(facts_of_theirs);
    facts.push(("ibv_gid".into(), size_of::<ibverbs_sys::ibv_gid>() as i64));
    facts.push(("alignof ibv_gid".into(), align_of::<ibverbs_sys::ibv_gid>() as i64));
    facts
}
