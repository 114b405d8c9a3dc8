// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hostile client can choose names whose ids are all those to which the counter comes next. Other
//! clients still get the next free ids. A test in `registry/ids.rs` counts that no walk over the
//! taken ids is needed.

use crate::common::Memory;
use dlock_core::clock::{ServerTime, NS};
use dlock_core::ids::{ClientId, Epoch};
use dlock_core::limits::{BATCH_MAX, LOCKS_MAX};
use dlock_core::locks::{Locks, PrimaryConfig, Sent};
use dlock_core::token::TokenFloor;
use dlock_core::wire::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::wire::message::LockType;

const NOW: ServerTime = ServerTime(5_000 * NS);

/// A name whose djb2 hash is `id`: its bytes are the digits of `id`, minus the seed, in base 33.
fn name_of(id: u32) -> Vec<u8> {
    let start = (0..7).fold(5_381u32, |h, _| h.wrapping_mul(33));
    let mut left = u64::from(id.wrapping_sub(start));
    let mut name = vec![0u8; 7];
    for digit in name.iter_mut().rev() {
        *digit = (left % 33) as u8;
        left /= 33;
    }
    name
}

fn get(p: &mut Locks, m: &mut Memory, client: ClientId, names: &[Vec<u8>]) -> Vec<LockGrant> {
    let mut out: Vec<Sent> = Vec::new();
    let mut grants = Vec::new();
    for batch in names.chunks(BATCH_MAX) {
        let desc = |name: &Vec<u8>| LockDesc {
            name: name.clone(),
            lock_type: LockType::Atomic,
            lease_s: 0,
            tokens: false,
        };
        let request = ControlRequest::GetLocks(batch.iter().map(desc).collect());
        match p.control(NOW, m, client, request, &mut out) {
            ControlReply::Locks(l) => grants.extend(l.into_iter().map(Result::unwrap)),
            other => panic!("{other:?}"),
        }
    }
    grants
}

#[test]
fn names_that_take_all_ids_in_a_row_leave_others_the_next_one() {
    let config = PrimaryConfig {
        epoch: Epoch(1),
        tp_mode: 0,
        recovery_clients: 0,
        clients_max: 10,
        locks_max: LOCKS_MAX,
        objects_max: 1_000,
        absent_grace_ns: None,
        tokens: TokenFloor::default(),
    };
    let (mut p, mut m) = (Locks::new(config), Memory::default());
    let mut out = Vec::new();
    let mut client = |p: &mut Locks, m: &mut Memory, id| {
        let client = ClientId::new(id).unwrap();
        p.add_client(client).unwrap();
        p.attached(NOW, m, client, FabricKind::Shm, &mut out);
        client
    };
    let hostile = client(&mut p, &mut m, 5);
    let innocent = client(&mut p, &mut m, 6);
    let many = LOCKS_MAX as u32 - 40;
    let names: Vec<_> = (2..2 + many).map(name_of).collect();
    let grants = get(&mut p, &mut m, hostile, &names);
    assert!(grants.iter().zip(2..).all(|(g, id)| g.lock.0 == id), "the names make the ids");
    // names whose hash is negative, and so no id, get the next free number
    let negative = |n: u32| name_of((1 << 31) + n);
    let two = get(&mut p, &mut m, innocent, &[0, 1].map(negative));
    let next = 2 + many as i32;
    assert_eq!([two[0].lock.0, two[1].lock.0], [next, next + 1]);
    // an id that is given back behind the counter: only a name with that hash gets it
    let given_back = ControlRequest::ReleaseLocks(vec![grants[5].lock]);
    assert!(matches!(
        p.control(NOW, &mut m, hostile, given_back, &mut out),
        ControlReply::Statuses(_)
    ));
    let more = get(&mut p, &mut m, innocent, &[negative(2), names[5].clone()]);
    assert_eq!([more[0].lock.0, more[1].lock.0], [next + 2, grants[5].lock.0]);
    assert_eq!(p.assert_consistent(), Ok(()));
}
