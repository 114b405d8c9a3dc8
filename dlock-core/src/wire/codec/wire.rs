// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primitives of the wire format: checked reading, plain writing.

use super::{status_from_wire, status_to_wire, FrameError};
use crate::ids::{ClientId, Generation, Handle, LockId, ObjectId, Seq, Slot};
use crate::limits::{BATCH_MAX, DESC_LEN_MAX};
use crate::memory::words::Ticket;
use crate::wire::message::Mode;
use crate::wire::status::Status;

/// The unread part of a payload.
#[derive(Clone)]
pub(super) struct Reader<'a>(&'a [u8]);

type Read<T> = Result<T, FrameError>;

impl<'a> Reader<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    pub fn end(&self) -> Read<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Trailing)
        }
    }

    pub fn bytes(&mut self, len: usize) -> Read<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(FrameError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(FrameError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Read<u8> {
        self.array::<1>().map(|[b]| b)
    }
    pub fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub fn i32(&mut self) -> Read<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn bool(&mut self, field: &'static str) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Invalid(field)),
        }
    }

    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<Option<T>> {
        if self.bool(field)? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Appends up to [`BATCH_MAX`] items to `list`. Each item takes at least `item_len` bytes, so
    /// the list reserves no more room than the payload can fill.
    pub fn list<T>(
        &mut self,
        list: &mut Vec<T>,
        item_len: usize,
        mut read: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<()> {
        let count = usize::from(self.u8()?);
        if count > BATCH_MAX {
            return Err(FrameError::Invalid("count"));
        }
        if count * item_len > self.0.len() {
            return Err(FrameError::Truncated);
        }
        list.reserve(count);
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(())
    }

    /// Reads the name of a lock or object.
    pub fn name(&mut self) -> Read<Vec<u8>> {
        let len = usize::from(self.u16()?);
        if len == 0 || len > DESC_LEN_MAX {
            return Err(FrameError::Invalid("name"));
        }
        self.bytes(len).map(<[u8]>::to_vec)
    }

    /// Reads up to 255 bytes, or none.
    pub fn short_bytes(&mut self) -> Read<Vec<u8>> {
        let len = usize::from(self.u8()?);
        self.bytes(len).map(<[u8]>::to_vec)
    }

    pub fn status(&mut self) -> Read<Status> {
        status_from_wire(self.i32()?).ok_or(FrameError::Invalid("status"))
    }
    pub fn mode(&mut self) -> Read<Mode> {
        match self.u8()? {
            0 => Ok(Mode::Exclusive),
            1 => Ok(Mode::Shared),
            _ => Err(FrameError::Invalid("mode")),
        }
    }
    pub fn ticket(&mut self) -> Read<Ticket> {
        Ok(Ticket { lap: self.u64()?, tx: self.u32()?, ts: self.u32()? })
    }
    pub fn client(&mut self) -> Read<ClientId> {
        ClientId::new(self.u32()?).ok_or(FrameError::Invalid("client id"))
    }
    pub fn seq(&mut self) -> Read<Seq> {
        self.u64().map(Seq)
    }
    pub fn handle(&mut self) -> Read<Handle> {
        self.u32().map(Handle)
    }
    pub fn slot(&mut self) -> Read<Slot> {
        self.u32().map(Slot)
    }
    pub fn generation(&mut self) -> Read<Generation> {
        self.u64().map(Generation)
    }
    pub fn lock(&mut self) -> Read<LockId> {
        self.i32().map(LockId)
    }
    pub fn object(&mut self) -> Read<ObjectId> {
        self.i32().map(ObjectId)
    }
}

/// Appends values to a frame.
pub(super) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub fn u16(&mut self, v: u16) {
        self.bytes(&v.to_le_bytes());
    }
    pub fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }
    pub fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }
    pub fn i32(&mut self, v: i32) {
        self.bytes(&v.to_le_bytes());
    }
    pub fn bool(&mut self, v: bool) {
        self.u8(u8::from(v));
    }

    pub fn option<T>(&mut self, v: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.bool(v.is_some());
        if let Some(v) = v {
            put(self, v);
        }
    }

    pub fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) {
        assert!(items.len() <= BATCH_MAX, "a list of {} items", items.len());
        self.u8(items.len() as u8);
        for item in items {
            put(self, item);
        }
    }

    pub fn name(&mut self, name: &[u8]) {
        assert!((1..=DESC_LEN_MAX).contains(&name.len()), "a name of {} bytes", name.len());
        self.u16(name.len() as u16);
        self.bytes(name);
    }

    pub fn short_bytes(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= 255, "a place of {} bytes", bytes.len());
        self.u8(bytes.len() as u8);
        self.bytes(bytes);
    }

    pub fn status(&mut self, status: Status) {
        self.i32(status_to_wire(status));
    }
    pub fn mode(&mut self, mode: Mode) {
        self.u8(mode as u8);
    }
    pub fn ticket(&mut self, ticket: Ticket) {
        self.u64(ticket.lap);
        self.u32(ticket.tx);
        self.u32(ticket.ts);
    }
    pub fn client(&mut self, client: ClientId) {
        self.u32(client.get());
    }
    pub fn seq(&mut self, seq: Seq) {
        self.u64(seq.0);
    }
    pub fn handle(&mut self, handle: Handle) {
        self.u32(handle.0);
    }
}
