// SPDX-License-Identifier: MIT OR Apache-2.0
//! A newtype for every identifier, so that no identifier can be passed for another.

use std::fmt;

/// The id of a client of one primary: 30 bits, never 0; the primary draws it at random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(u32);

impl ClientId {
    /// The largest client id: the lock words have 30 bits for it.
    pub const MAX: u32 = 0x3fff_ffff;

    /// `None` for 0 and for values of more than 30 bits.
    pub fn new(raw: u32) -> Option<Self> {
        (raw != 0 && raw <= Self::MAX).then_some(Self(raw))
    }

    /// The number as lock words and the C API have it.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// The identity of a client by its certificate. The code that has verified the certificate makes
/// it; it is equal for the same client, and opaque to this crate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 32]);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Identity({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// The id of a lock in the C API: positive, the same for all clients while the lock exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub i32);

/// The id of a state object in the C API: positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub i32);

/// The index of a 32-byte slot of the primary's lock memory: one lock or one object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// The number under which one client knows a lock or object. Handles of locks are dense, and are
/// the indices of the entries in the client's ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// The generation of a slot; it grows whenever the slot's occupant is destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// The incarnation of a primary; it never repeats and never goes back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// The number of a request on one client's command channel; it starts at 1 and grows by one.
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
    fn a_client_id_is_30_bits_and_not_zero() {
        assert!(ClientId::new(0).is_none());
        assert!(ClientId::new(0x4000_0000).is_none());
        assert_eq!(ClientId::new(ClientId::MAX).unwrap().get(), ClientId::MAX);
    }
}
