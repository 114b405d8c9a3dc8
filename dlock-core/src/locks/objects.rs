// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests about objects, on the control connection.

use super::{valid_name, Locks};
use crate::budget::work::Metered;
use crate::clock::{Lease, ServerTime};
use crate::ids::ClientId;
use crate::wire::control::{ControlReply, ControlRequest};
use crate::wire::status::Status;

impl Locks {
    pub(super) fn object(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        request: ControlRequest,
    ) -> ControlReply {
        use ControlRequest as R;
        // The work of searching for the client's reference and for the last lease.
        mem.visited(2 * self.registry.objects.refs_of(&request));
        if let Err(status) = self.may_use_object(client, &request) {
            return ControlReply::Error(status);
        }
        let (mut t, _, objects) = self.registry.split(mem);
        let named = |name: &[u8], lease: Lease| valid_name(name) && !lease.is_none();
        let done = |result: Result<(), Status>| match result {
            Ok(()) => ControlReply::Done,
            Err(status) => ControlReply::Error(status),
        };
        match request {
            R::ObjectCreate { name, lease, init } if named(&name, lease) => {
                match objects.create(&mut t, now, client, &name, lease, init) {
                    Ok(object) => {
                        self.has_created(client, object);
                        ControlReply::Created(object)
                    }
                    Err(status) => ControlReply::Error(status),
                }
            }
            R::ObjectGet { name, lease } if named(&name, lease) => {
                match objects.get(&mut t, now, client, &name, lease) {
                    Ok(grant) => ControlReply::Object(grant),
                    Err(status) => ControlReply::Error(status),
                }
            }
            R::ObjectRelease(object) => done(objects.release(&mut t, now, client, object)),
            R::ObjectDestroy(object) => done(objects.destroy(&mut t, now, client, object)),
            _ => ControlReply::Error(Status::Invalid),
        }
    }
}
