// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues, and the channel on which to sleep for them.
//!
//! ```text
//!   busy:      poll, poll, poll, …
//!   sleeping:  arm ─▶ poll once more ─▶ (nothing) Channel::wait ─▶ poll
//! ```
//! Once a queue pair is in error, every one of its work requests can come back as a completion,
//! signalled or not. A queue has room for all of them, so it never overruns.

use std::ffi::{c_int, CStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::context::Context;
use super::error::VerbsError;
use super::ffi::{self, ibv_comp_channel, ibv_cq, ibv_wc};
use super::library::library;
use crate::os::sys;

/// The identity of a work request in its completion: the 64 bits of `wr_id`.
///
/// | bits | field |
/// |---|---|
/// | 63–48 | `owner`: its poster, unique within its queue pair |
/// | 47–32 | `len`: work requests that this completion stands for; 0 for all but a list's last |
/// | 31–0 | `seq`: the owner's count of requests, this one included |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkId {
    /// The number of the poster that has posted the request.
    pub owner: u16,
    /// How many requests the completion stands for.
    pub len: u16,
    /// The owner's count of requests.
    pub seq: u32,
}

impl WorkId {
    pub(super) fn bits(self) -> u64 {
        u64::from(self.owner) << 48 | u64::from(self.len) << 32 | u64::from(self.seq)
    }

    fn from_bits(bits: u64) -> Self {
        Self { owner: (bits >> 48) as u16, len: (bits >> 32) as u16, seq: bits as u32 }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Completion(pub(super) ibv_wc);

impl Completion {
    /// The identity of the request.
    #[inline]
    pub fn work(&self) -> WorkId {
        WorkId::from_bits(self.0.wr_id)
    }

    /// The number of the queue pair.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// Whether the request was executed.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == ffi::IBV_WC_SUCCESS
    }

    /// The status of the work request, a number of `ibv_wc_status`.
    pub fn status(&self) -> u32 {
        self.0.status
    }

    /// The status of the work request in words.
    pub fn status_text(&self) -> String {
        let Ok(lib) = library() else { return format!("status {}", self.0.status) };
        // SAFETY: `ibv_wc_status_str` returns null or a C string that is never freed, for any
        // number.
        let text = unsafe { (lib.wc_status_str)(self.0.status) };
        if text.is_null() {
            return format!("status {}", self.0.status);
        }
        // SAFETY: not null, so it is a C string that is never freed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The immediate value that came with a message.
    pub(super) fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & ffi::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }

    /// How many bytes were received.
    pub(super) fn bytes(&self) -> usize {
        self.0.byte_len as usize
    }
}

/// A queue of completions.
#[derive(Debug)]
pub struct Cq {
    pub(super) raw: NonNull<ibv_cq>,
    entries: u32,
    promised: AtomicU32,
    poll: PollFn,
    notify: NotifyFn,
    channel: Option<Arc<Channel>>,
    context: Arc<Context>,
}

type PollFn = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type NotifyFn = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

// SAFETY: libibverbs permits every thread to use this handle.
unsafe impl Send for Cq {}
// SAFETY: libibverbs permits several threads to use this handle at once.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue for at least this many completions; a thread can sleep for them if it has a channel.
    ///
    /// # Errors
    /// `Call`, for example when the device permits no queue of that size; `Forked`.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<Channel>>,
    ) -> Result<Arc<Self>, VerbsError> {
        let lib = context.here()?;
        let what = "make a completion queue";
        let invalid = || VerbsError::call(what, io::ErrorKind::InvalidInput.into());
        let size = c_int::try_from(entries.max(1)).map_err(|_| invalid())?;
        let on = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let cookie = std::ptr::null_mut();
        // SAFETY: an open context and a channel of it, or none; vector 0 always exists.
        let raw = unsafe { (lib.create_cq)(context.raw.as_ptr(), size, cookie, on, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(what))?;
        // SAFETY: the library's structure; its context has the functions of its provider.
        let (entries, poll, notify) = unsafe {
            let ops = &raw const (*(*raw.as_ptr()).context).ops;
            ((*raw.as_ptr()).cqe, (*ops).poll_cq, (*ops).req_notify_cq)
        };
        let (Some(poll), Some(notify)) = (poll, notify) else {
            // SAFETY: made above, and not used yet.
            unsafe { (lib.destroy_cq)(raw.as_ptr()) };
            return Err(VerbsError::call(what, io::ErrorKind::Unsupported.into()));
        };
        Ok(Arc::new(Self {
            raw,
            entries: u32::try_from(entries).unwrap_or(0),
            promised: AtomicU32::new(0),
            poll,
            notify,
            channel: channel.cloned(),
            context: Arc::clone(context),
        }))
    }

    /// Takes completions that are there into the front of `into`; returns how many.
    ///
    /// # Errors
    /// `Call` if the device has failed: no more completions will come. `Forked`.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        // A forked child has the same queue mapped, and would take completions of its parent.
        self.context.here()?;
        let len = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: a live queue; `Completion` is transparent over `ibv_wc`, and there are `len`.
        let rc = unsafe { (self.poll)(self.raw.as_ptr(), len, into.as_mut_ptr().cast()) };
        usize::try_from(rc).map_err(|_| VerbsError::last("poll a completion queue"))
    }

    /// Asks for one event on the channel: with the next completion or, if `solicited`, with the
    /// next error or the next message whose sender asked for an event. The caller must poll once
    /// more before sleeping.
    ///
    /// # Errors
    /// `Call` if the device has failed.
    pub fn arm(&self, solicited: bool) -> Result<(), VerbsError> {
        self.context.here()?;
        // SAFETY: a live queue.
        let rc = unsafe { (self.notify)(self.raw.as_ptr(), c_int::from(solicited)) };
        VerbsError::check("ask for a completion event", rc)
    }

    /// The channel of the queue.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// How many completions the queue has room for.
    pub(in crate::verbs) fn entries(&self) -> u32 {
        self.entries
    }

    /// Reserves room for the work requests of a queue pair.
    pub(super) fn promise(&self, requests: u32) -> Result<(), VerbsError> {
        let add = |promised: u32| promised.checked_add(requests).filter(|&n| n <= self.entries);
        match self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(()),
            Err(promised) => Err(VerbsError::QueueTooSmall {
                wanted: requests,
                has: self.entries.saturating_sub(promised),
            }),
        }
    }

    pub(super) fn release(&self, requests: u32) {
        self.promised.fetch_sub(requests, Ordering::Relaxed);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if let Ok(lib) = self.context.here() {
            // SAFETY: made by `new`, freed once; queue pairs hold it. All events were
            // acknowledged when they were taken.
            unsafe { (lib.destroy_cq)(self.raw.as_ptr()) };
        }
    }
}

/// A descriptor on which to sleep for completions of one or several queues.
#[derive(Debug)]
pub struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs permits every thread to use this handle.
unsafe impl Send for Channel {}
// SAFETY: libibverbs permits several threads to use this handle at once.
unsafe impl Sync for Channel {}

impl Channel {
    /// A new channel.
    ///
    /// # Errors
    /// `Call`; `Forked`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        let lib = context.here()?;
        let what = "make a completion channel";
        // SAFETY: an open context.
        let raw = unsafe { (lib.create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last(what))?;
        let channel = Self { raw, context: Arc::clone(context) };
        // several threads may wait, and none may block in `get_cq_event`
        fcntl_getfl(channel.as_fd())
            .and_then(|flags| fcntl_setfl(channel.as_fd(), flags | OFlags::NONBLOCK))
            .map_err(|source| VerbsError::call(what, source.into()))?;
        Ok(Arc::new(channel))
    }

    /// Sleeps until an armed queue has an event, and takes the event; `false`: the deadline came
    /// first. An event that has come is taken even if the deadline has passed.
    ///
    /// # Errors
    /// `Call` if the device has failed.
    pub fn wait(&self, until_ns: u64) -> Result<bool, VerbsError> {
        self.context.here()?;
        loop {
            if self.take_event()? {
                return Ok(true);
            }
            let what = "wait for a completion";
            let events = sys::poll_until(self.as_fd(), PollFlags::IN, until_ns)
                .map_err(|source| VerbsError::call(what, source))?;
            if events.is_empty() {
                return Ok(false);
            }
        }
    }

    /// Takes one event if one is there.
    pub(in crate::verbs) fn take_event(&self) -> Result<bool, VerbsError> {
        let lib = self.context.here()?;
        let (mut cq, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is live, and there are two places for the answer.
        let rc = unsafe { (lib.get_cq_event)(self.raw.as_ptr(), &mut cq, &mut cookie) };
        if rc == 0 {
            // SAFETY: the queue the event is of; destroying it waits for this acknowledgement.
            unsafe { (lib.ack_cq_events)(cq, 1) };
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
            _ => Err(VerbsError::call("take a completion event", error)),
        }
    }
}

impl AsFd for Channel {
    /// The descriptor to watch, for example with epoll; it is nonblocking.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library's structure; its descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Ok(lib) = self.context.here() {
            // SAFETY: made by `new`, freed once; the queues on it hold it.
            unsafe { (lib.destroy_comp_channel)(self.raw.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_id_keeps_its_fields() {
        for id in [
            WorkId { owner: 0, len: 0, seq: 0 },
            WorkId { owner: u16::MAX, len: 1, seq: u32::MAX },
            WorkId { owner: 1, len: u16::MAX, seq: 7 },
        ] {
            assert_eq!(WorkId::from_bits(id.bits()), id);
        }
    }
}
