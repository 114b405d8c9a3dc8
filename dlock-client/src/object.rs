// SPDX-License-Identifier: MIT OR Apache-2.0
//! State objects for Rust programs.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::ids::ObjectId;
use dlock_core::wire::status::Status;

use crate::client::{ticks, Client};
use crate::error::Error;
use crate::reference::{Key, Reference};

/// A 64-bit value at the primary. Clones are the same object. When the program drops the last
/// clone, the client gives the object back.
#[derive(Clone, Debug)]
pub struct Object {
    reference: Arc<Reference>,
    id: ObjectId,
}

impl Client {
    /// The object of this name, which some client has created.
    ///
    /// # Errors
    /// `NoObject`, `Destroyed`, `Invalid` (the name is empty or longer than 512 bytes, or the
    /// lease is 0), `NotReady`, `Disconnected`, `Left`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most, and another 10 s while other threads give the same
    /// object back.
    pub fn object(&self, name: impl AsRef<[u8]>, lease: Duration) -> Result<Object, Error> {
        let ticks = ticks(lease)?;
        let reference = self.references().obtain(|instance| {
            instance.object_get(name.as_ref(), ticks).map(Key::Object).map_err(error_of)
        })?;
        let Key::Object(id) = reference.key() else { return Err(Error::Other(Status::Error)) };
        Ok(Object { reference, id })
    }

    /// The object of this name, created with the value `init` if there is none.
    ///
    /// # Errors
    /// As [`object`](Self::object); `NoResource`.
    ///
    /// # Latency
    /// Two control round trips; 10 s at most each.
    pub fn create_object(
        &self,
        name: impl AsRef<[u8]>,
        lease: Duration,
        init: u64,
    ) -> Result<Object, Error> {
        match self.instance().object_create(name.as_ref(), ticks(lease)?, init) {
            Ok(_) | Err(Status::ObjectCreated | Status::ObjectExisted) => self.object(name, lease),
            Err(status) => Err(error_of(status)),
        }
    }
}

fn error_of(status: Status) -> Error {
    match status {
        Status::Invalid => Error::Invalid("an object's name has 1 to 512 bytes"),
        Status::Fail => Error::Other(Status::Fail),
        status => Error::of(status),
    }
}

impl Object {
    /// The object's id, the same for all clients while it exists.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Adds modulo 2^64; returns the value before.
    ///
    /// # Errors
    /// `NoObject` (the object's lease ended and it was destroyed), `NotReady`, `Disconnected` (the
    /// value may or may not have changed), `Left`.
    ///
    /// # Latency
    /// One round trip, one word operation; 5 s at most.
    pub fn fetch_add(&self, add: u64) -> Result<u64, Error> {
        self.reference.instance().faa(self.id, add).map_err(error_of)
    }

    /// Sets the value to `new` if it is `current`.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add); `Changed` if the object has another value.
    ///
    /// # Latency
    /// As `fetch_add`.
    pub fn compare_exchange(&self, current: u64, new: u64) -> Result<(), Error> {
        match self.reference.instance().cas(self.id, current, new) {
            Status::Success => Ok(()),
            status => Err(error_of(status)),
        }
    }

    /// Reads the value.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add).
    ///
    /// # Latency
    /// As `fetch_add`.
    pub fn load(&self) -> Result<u64, Error> {
        self.reference.instance().snapshot(self.id).map_err(error_of)
    }

    /// Destroys the object. A client that has got it can go on using it while its lease lasts.
    ///
    /// # Errors
    /// `NotOwner`, `Destroyed` (it was destroyed before), `NotReady`, `Disconnected`, `Left`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn destroy(&self) -> Result<(), Error> {
        Error::check(self.reference.instance().object_destroy(self.id))
    }
}
