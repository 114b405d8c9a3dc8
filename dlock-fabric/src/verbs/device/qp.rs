// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reliable-connected queue pairs.
//!
//! ```text
//!   Qp::new ──▶ INIT ──connect(peer's Endpoint)──▶ RTR ──▶ RTS ──to_error, or any failure──▶ ERR
//!                 └── receive buffers may be posted from here on        drop: destroyed ◀──┘
//! ```
//! A queue pair never leaves ERR: a new session makes a new one. Its send queue is divided into
//! fixed shares, one per [`Poster`](crate::verbs::Poster) or
//! [`Messages`](crate::verbs::Messages), each with its own account, so that no two threads count
//! together, and a queue never overruns.

use std::collections::hash_map::RandomState;
use std::ffi::{c_int, c_uint};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::completion::{Cq, WorkId};
use super::error::VerbsError;
use super::ffi::{
    self, ibv_ah_attr, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_recv_wr, ibv_send_wr,
};
use super::memory::{Access, Mr, Pages, Pd};
use super::port_selection::{Gid, Link};
use super::timing;
use crate::os::clock::boot_ns;

/// How often the move to RTR is tried: the neighbour's address may have to be resolved, and each
/// attempt blocks up to 1 s.
const RTR_ATTEMPTS_MAX: u32 = 3;
/// How many routers a packet may pass.
const HOP_LIMIT: u8 = 64;
/// How many reads and atomics may be under way per queue pair, if both devices permit that many.
const READS_MAX: u8 = 16;
/// How many bytes a work request for a word has inline: the value of a write.
pub(in crate::verbs) const WORD_OP_BYTES: u32 = 8;
/// Packet sequence numbers have 24 bits.
pub(in crate::verbs) const PSN_MASK: u32 = 0xff_ffff;

/// The owner of the receive that [`Qp::post_canary`] posts; no share has that number, since shares
/// are counted from 0 and have at least two slots.
pub(in crate::verbs) const CANARY: u16 = u16::MAX;

/// The parameters of a queue pair.
#[derive(Clone, Debug)]
pub struct QpSpec {
    /// The queue for completions of work requests.
    pub send_cq: Arc<Cq>,
    /// The queue for completions of receives; may be the same as `send_cq`.
    pub recv_cq: Arc<Cq>,
    /// How many work requests may be under way: the sum of the shares that will be taken.
    pub send_slots: u32,
    /// The number of receive buffers.
    pub recv_slots: u32,
    /// How many bytes are copied into a work request instead of being fetched; a device with less
    /// room gives less. Every slot of the send queue has that room.
    pub inline_bytes: u32,
    /// Whether the peer may operate on this side's registrations: the primary's side.
    pub serves: bool,
    /// The first packet sequence number: random, so that packets of an earlier connection are
    /// refused.
    pub psn: u32,
}

/// A part of a send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// The number of the owner of the part.
    pub(super) owner: u16,
    /// The first slot of the part.
    pub(super) first: u32,
}

/// One end of a connection, as the other end needs it. It comes from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair number: 24 bits.
    pub qp_num: u32,
    /// The first packet sequence number: 24 bits.
    pub psn: u32,
    /// The GID of the end's port.
    pub gid: Gid,
    /// The local identifier of the end's port; InfiniBand only.
    pub lid: u16,
    /// The path MTU, 1 = 256 bytes … 5 = 4,096.
    pub mtu: u8,
    /// The number of reads and atomics that the end executes at a time.
    pub reads: u8,
}

/// A reliable-connected queue pair.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<ibv_qp>,
    post_send: PostSend,
    post_recv: PostRecv,
    spec: QpSpec,
    inline_bytes: u32,
    send_taken: AtomicU32,
    owners: AtomicU32,
    destroyed: bool,
    /// Registrations that the device may access until the queue pair is destroyed.
    kept: Mutex<Vec<Arc<Mr>>>,
    /// Words for each slot of the send queue, for posters; made with the first poster.
    scratch: Mutex<Option<(Arc<Pages>, u32)>>,
    pd: Arc<Pd>,
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

// SAFETY: libibverbs permits every thread to use this handle.
unsafe impl Send for Qp {}
// SAFETY: libibverbs permits several threads to use this handle at once.
unsafe impl Sync for Qp {}

/// A list was not accepted, or only its first part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PostFailed {
    pub(super) code: c_int,
    /// Whether a first part was accepted.
    pub(super) part: bool,
}

impl Qp {
    /// A new queue pair in state INIT.
    ///
    /// # Errors
    /// `QueueTooSmall` if a completion queue has no room for its requests; `Call`; `Forked`.
    pub fn new(pd: &Arc<Pd>, spec: QpSpec) -> Result<Arc<Self>, VerbsError> {
        pd.context().here()?;
        spec.send_cq.promise(spec.send_slots)?;
        if let Err(error) = spec.recv_cq.promise(spec.recv_slots) {
            spec.send_cq.release(spec.send_slots);
            return Err(error);
        }
        let qp = match Self::create(pd, &spec) {
            Ok((raw, inline_bytes)) => Self::adopt(pd, raw, spec, inline_bytes),
            Err(error) => {
                spec.send_cq.release(spec.send_slots);
                spec.recv_cq.release(spec.recv_slots);
                return Err(error);
            }
        };
        qp.to_init()?;
        Ok(Arc::new(qp))
    }

    /// Two connected queue pairs of one device: the first operates on registrations of the second.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`connect`](Self::connect).
    pub(in crate::verbs) fn loopback(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        send_slots: u32,
        psn: u32,
    ) -> Result<(Arc<Self>, Arc<Self>), VerbsError> {
        let end = |send_slots, serves| {
            let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
            let (recv_slots, inline_bytes) = (1, WORD_OP_BYTES);
            let spec =
                QpSpec { send_cq, recv_cq, send_slots, recv_slots, inline_bytes, serves, psn };
            Self::new(pd, spec)
        };
        let (own, served) = (end(send_slots, false)?, end(1, true)?);
        served.connect(&own.endpoint())?;
        own.connect(&served.endpoint())?;
        Ok((own, served))
    }

    fn create(pd: &Arc<Pd>, spec: &QpSpec) -> Result<(NonNull<ibv_qp>, u32), VerbsError> {
        let lib = pd.context().here()?;
        let mut inline = spec.inline_bytes;
        loop {
            let mut attr = ibv_qp_init_attr {
                qp_context: std::ptr::null_mut(),
                send_cq: spec.send_cq.raw.as_ptr(),
                recv_cq: spec.recv_cq.raw.as_ptr(),
                srq: std::ptr::null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: spec.send_slots.max(1),
                    max_recv_wr: spec.recv_slots.max(1),
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: ffi::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: a live protection domain and two live queues of the same device; `attr` is
            // complete, and the call writes the actual limits to it.
            let raw = unsafe { (lib.create_qp)(pd.raw.as_ptr(), &mut attr) };
            match NonNull::new(raw) {
                Some(raw) => return Ok((raw, attr.cap.max_inline_data)),
                None => {
                    let error = io::Error::last_os_error();
                    if inline == 0 || error.raw_os_error() != Some(libc::EINVAL) {
                        return Err(VerbsError::call("make a queue pair", error));
                    }
                    inline /= 2;
                }
            }
        }
    }

    fn adopt(pd: &Arc<Pd>, raw: NonNull<ibv_qp>, spec: QpSpec, inline_bytes: u32) -> Self {
        // SAFETY: the library's structure; its context has the functions of its provider.
        let (send, recv) = unsafe {
            let ops = &raw const (*(*raw.as_ptr()).context).ops;
            ((*ops).post_send, (*ops).post_recv)
        };
        Self {
            raw,
            post_send: send.unwrap_or(no_send),
            post_recv: recv.unwrap_or(no_recv),
            spec,
            inline_bytes,
            send_taken: AtomicU32::new(0),
            owners: AtomicU32::new(0),
            destroyed: false,
            kept: Mutex::default(),
            scratch: Mutex::default(),
            pd: Arc::clone(pd),
        }
    }

    fn to_init(&self) -> Result<(), VerbsError> {
        let serves = ffi::IBV_ACCESS_REMOTE_READ
            | ffi::IBV_ACCESS_REMOTE_WRITE
            | ffi::IBV_ACCESS_REMOTE_ATOMIC;
        let mut attr = ibv_qp_attr {
            qp_state: ffi::IBV_QPS_INIT,
            port_num: self.pd.context().port().number,
            qp_access_flags: if self.spec.serves { serves as c_uint } else { 0 },
            ..ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_PKEY_INDEX
            | ffi::IBV_QP_PORT
            | ffi::IBV_QP_ACCESS_FLAGS;
        self.modify("initialise a queue pair", &mut attr, mask)
    }

    /// The description of this end, for the other end.
    pub fn endpoint(&self) -> Endpoint {
        let context = self.pd.context();
        Endpoint {
            qp_num: self.qp_num(),
            psn: self.spec.psn & PSN_MASK,
            gid: context.gid().gid,
            lid: context.port().lid,
            mtu: context.port().mtu,
            reads: context.device().reads_served_max.min(READS_MAX),
        }
    }

    /// The number, unique on its device.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the library's structure, constant while it lives.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Connects to the other end, from INIT to RTS. May block for seconds while the neighbour's
    /// address is resolved: not for an event loop.
    ///
    /// # Errors
    /// `Peer` if the other end is not valid; `Call`. Then the queue pair cannot be used.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), VerbsError> {
        self.connect_until(peer, None)
    }

    /// As [`connect`](Self::connect), but begins no further attempt to resolve the address after
    /// `until_ns`; one attempt takes up to 1 s.
    pub(in crate::verbs) fn connect_until(
        &self,
        peer: &Endpoint,
        until_ns: Option<u64>,
    ) -> Result<(), VerbsError> {
        let attr = self.path_to(peer)?;
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER;
        let mut attempt = 1;
        while let Err(error) = self.modify("connect a queue pair", &mut attr.clone(), mask) {
            let again = matches!(&error, VerbsError::Call { source, .. }
                if source.raw_os_error() == Some(libc::ETIMEDOUT));
            let is_late = until_ns.is_some_and(|until_ns| boot_ns() >= until_ns);
            if !again || is_late || attempt == RTR_ATTEMPTS_MAX {
                return Err(error);
            }
            attempt += 1;
        }
        let reads = self.pd.context().device().reads_issued_max.min(peer.reads).min(READS_MAX);
        let mut attr = ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTS,
            sq_psn: self.spec.psn & PSN_MASK,
            timeout: timing::TIMEOUT,
            retry_cnt: timing::RETRY_CNT,
            rnr_retry: timing::RNR_RETRY,
            max_rd_atomic: reads,
            ..ibv_qp_attr::default()
        };
        let mask = ffi::IBV_QP_STATE
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("start a queue pair", &mut attr, mask)
    }

    fn path_to(&self, peer: &Endpoint) -> Result<ibv_qp_attr, VerbsError> {
        let context = self.pd.context();
        let mtus = ffi::IBV_MTU_256 as u8..=ffi::IBV_MTU_4096 as u8;
        if !mtus.contains(&peer.mtu) {
            return Err(VerbsError::Peer("its path MTU is none"));
        }
        if peer.qp_num > PSN_MASK || peer.psn > PSN_MASK {
            return Err(VerbsError::Peer("its numbers have more than 24 bits"));
        }
        if peer.reads == 0 {
            return Err(VerbsError::Peer("it executes no atomics"));
        }
        let by_lid = context.port().link == Link::Infiniband && peer.lid != 0;
        if !by_lid && peer.gid.is_none() {
            return Err(VerbsError::Peer("it has no address"));
        }
        Ok(ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTR,
            path_mtu: c_uint::from(peer.mtu.min(context.port().mtu)),
            dest_qp_num: peer.qp_num,
            rq_psn: peer.psn,
            max_dest_rd_atomic: context.device().reads_served_max.min(READS_MAX),
            min_rnr_timer: timing::MIN_RNR_TIMER,
            ah_attr: ibv_ah_attr {
                grh: ibv_global_route {
                    dgid: ffi::ibv_gid { raw: peer.gid.0 },
                    sgid_index: context.gid().index,
                    hop_limit: HOP_LIMIT,
                    ..ibv_global_route::default()
                },
                dlid: peer.lid,
                is_global: u8::from(!by_lid),
                port_num: context.port().number,
                ..ibv_ah_attr::default()
            },
            ..ibv_qp_attr::default()
        })
    }

    /// Ends the connection. When this returns, no operation that the peer posts takes effect on
    /// this side any more, and all requests of this side that are under way come back flushed.
    ///
    /// # Errors
    /// `Call` if the device has failed.
    ///
    /// # Latency
    /// 0.2 ms on SoftRoCE.
    pub fn to_error(&self) -> Result<(), VerbsError> {
        let mut attr = ibv_qp_attr { qp_state: ffi::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        self.modify("stop a queue pair", &mut attr, ffi::IBV_QP_STATE)
    }

    /// Destroys the queue pair. On success it acts on neither memory any more.
    ///
    /// # Errors
    /// `Call` if the device has failed; `Forked`.
    pub(in crate::verbs) fn destroy(&mut self) -> Result<(), VerbsError> {
        let lib = self.pd.context().here()?;
        if self.destroyed {
            return Ok(());
        }
        // SAFETY: made by `create`, and not destroyed; `&mut self` is its only user, and the
        // receiver of one uses it no more.
        VerbsError::check("destroy a queue pair", unsafe { (lib.destroy_qp)(self.raw.as_ptr()) })?;
        self.destroyed = true;
        self.spec.send_cq.release(self.spec.send_slots);
        self.spec.recv_cq.release(self.spec.recv_slots);
        Ok(())
    }

    /// Posts a receive without a buffer. Its completion shows that the queue pair has failed, or
    /// that the peer sends messages where none are allowed.
    pub(in crate::verbs) fn post_canary(&self) -> Result<(), VerbsError> {
        let mut request = ibv_recv_wr {
            wr_id: WorkId { owner: CANARY, len: 1, seq: 0 }.bits(),
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        // SAFETY: one request without entries, on the stack until the call returns.
        let posted = unsafe { self.post_recv(&mut request) };
        posted.map_err(|failed| {
            let source = io::Error::from_raw_os_error(failed.code);
            VerbsError::call("post a receive", source)
        })
    }

    /// Whether the queue pair still works, as its device says.
    ///
    /// # Errors
    /// `Call` if the device has failed.
    pub fn is_connected(&self) -> Result<bool, VerbsError> {
        Ok(self.query(ffi::IBV_QP_STATE)?.qp_state == ffi::IBV_QPS_RTS)
    }

    /// The number of the next packet that the queue pair executes for the peer, as the device says.
    pub(in crate::verbs) fn expected_psn(&self) -> Result<u32, VerbsError> {
        Ok(self.query(ffi::IBV_QP_RQ_PSN)?.rq_psn & PSN_MASK)
    }

    fn query(&self, mask: c_int) -> Result<ibv_qp_attr, VerbsError> {
        let lib = self.pd.context().here()?;
        let mut attr = ibv_qp_attr::default();
        // SAFETY: all fields are integers or pointers, for which zero is valid.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: a live queue pair and two places for the answer.
        let rc = unsafe { (lib.query_qp)(self.raw.as_ptr(), &mut attr, mask, &mut init) };
        VerbsError::check("query a queue pair", rc)?;
        Ok(attr)
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The queue for completions of the queue pair's requests.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.spec.send_cq
    }

    /// The queue for completions of the queue pair's receives.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.spec.recv_cq
    }

    pub(super) fn inline_bytes(&self) -> usize {
        self.inline_bytes as usize
    }

    pub(super) fn recv_slots(&self) -> u32 {
        self.spec.recv_slots
    }

    /// Takes a share of the send queue.
    pub(super) fn take_share(&self, slots: u32) -> Result<Share, VerbsError> {
        let limit = self.spec.send_slots;
        let add = |taken: u32| taken.checked_add(slots).filter(|&n| n <= limit);
        let taken = self.send_taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let small = |has| VerbsError::QueueTooSmall { wanted: slots, has };
        let first = taken.map_err(|taken| small(limit - taken))?;
        // shares are never given back, so the number of slots limits their number
        let owner = u16::try_from(self.owners.fetch_add(1, Ordering::Relaxed));
        Ok(Share { owner: owner.map_err(|_| small(0))?, first })
    }

    /// Two words for each slot of the send queue, and their local key. They have one registration,
    /// because each registration costs pages and kernel memory.
    pub(super) fn scratch(&self) -> Result<(Arc<Pages>, u32), VerbsError> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((pages, lkey)) = &*scratch {
            return Ok((Arc::clone(pages), *lkey));
        }
        let pages = Pages::new(self.spec.send_slots.max(1) as usize * 16)?;
        let mr = Mr::register(&self.pd, pages.clone(), Access::Local)?;
        let made = (pages, mr.lkey());
        self.keep(Arc::new(mr));
        *scratch = Some(made.clone());
        Ok(made)
    }

    /// Keeps a registration until the queue pair is destroyed.
    pub(super) fn keep(&self, mr: Arc<Mr>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(mr);
    }

    /// Posts a list of requests with one doorbell.
    ///
    /// # Safety
    /// `first` begins a list that ends with null; its requests and their scatter entries are
    /// valid until this returns, and the memory they name is of registrations that this queue
    /// pair keeps. The list fits into the poster's share.
    #[inline]
    pub(super) unsafe fn post_send(&self, first: *mut ibv_send_wr) -> Result<(), PostFailed> {
        if !self.pd.context().owner.is_here() {
            return Err(PostFailed { code: libc::EPERM, part: false });
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, and a list as the caller promises.
        let code = unsafe { (self.post_send)(self.raw.as_ptr(), first, &mut bad) };
        match code {
            0 => Ok(()),
            code => Err(PostFailed { code, part: bad != first && !bad.is_null() }),
        }
    }

    /// Posts one receive buffer.
    ///
    /// # Safety
    /// `request` and its scatter entry are valid until this returns; the memory is of a
    /// registration that this queue pair keeps, and is not accessed until it completes.
    pub(super) unsafe fn post_recv(&self, request: *mut ibv_recv_wr) -> Result<(), PostFailed> {
        if !self.pd.context().owner.is_here() {
            return Err(PostFailed { code: libc::EPERM, part: false });
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, and a request as the caller promises.
        let code = unsafe { (self.post_recv)(self.raw.as_ptr(), request, &mut bad) };
        if code == 0 {
            Ok(())
        } else {
            Err(PostFailed { code, part: false })
        }
    }

    fn modify(
        &self,
        what: &'static str,
        attr: &mut ibv_qp_attr,
        mask: c_int,
    ) -> Result<(), VerbsError> {
        let lib = self.pd.context().here()?;
        // SAFETY: a live queue pair; the fields that `mask` names are set.
        VerbsError::check(what, unsafe { (lib.modify_qp)(self.raw.as_ptr(), attr, mask) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // in a forked child nothing is destroyed, because the parent's device still uses it
        if self.destroy().is_err() && self.pd.context().owner.is_here() {
            // the device may still write to these registrations
            let kept = self.kept.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(kept));
        }
    }
}

/// Stands for a provider without a function that posts requests, because a null pointer must not be
/// called.
unsafe extern "C" fn no_send(
    _: *mut ibv_qp,
    _: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    libc::ENOSYS
}

/// Stands for a provider without a function that posts receives, because a null pointer must not be
/// called.
unsafe extern "C" fn no_recv(
    _: *mut ibv_qp,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    libc::ENOSYS
}

/// A random first packet sequence number.
pub(in crate::verbs) fn random_psn() -> u32 {
    // the standard library seeds the hasher from the system, differently each time
    RandomState::new().build_hasher().finish() as u32
}
