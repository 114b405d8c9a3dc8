// SPDX-License-Identifier: MIT OR Apache-2.0
//! A newtype for every identifier, so that none can be passed for another.

use std::fmt;

/// A client of one primary: 31-bit, never 0, drawn at random by the primary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(u32);

impl ClientId {
    /// The largest client id: the lock words have 31 bits for it.
    pub const MAX: u32 = 0x7fff_ffff;

    /// `None` for 0 and for values of more than 31 bits.
    pub fn new(raw: u32) -> Option<Self> {
        (raw != 0 && raw <= Self::MAX).then_some(Self(raw))
    }

    /// The number as it stands in lock words and in the C API.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// Who a client is by its certificate, made by the part that has verified it: equal for the same
/// client, and opaque here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 32]);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Identity({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// A lock as the C API names it: positive, the same for all clients while the lock exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub i32);

/// A state object as the C API names it: positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub i32);

/// A 32-byte slot of the primary's lock memory: one lock or one object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// The number of one lock or object of one client: a lock's is dense, and the index of its entry
/// in the client's ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// The generation of a slot: grows whenever the slot's occupant is destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// The incarnation of a primary. Never repeats and never goes back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// The number of a request on one client's command channel; starts at 1, grows by one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub u64);

macro_rules! plain_debug {
    ($($t:ident),*) => {$(
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}
plain_debug!(ClientId, LockId, ObjectId, Slot, Handle, Generation, Epoch, Seq);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_31_bits_and_not_zero() {
        assert!(ClientId::new(0).is_none());
        assert!(ClientId::new(0x8000_0000).is_none());
        assert_eq!(ClientId::new(ClientId::MAX).unwrap().get(), ClientId::MAX);
    }
}
