// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::clock::{Lease, NS};
use crate::memory::word_op::Word;
use crate::registry::tests::Memory;
use crate::registry::{Registry, STALE_HANDLES_MAX};

const LEASE_S: u32 = 10;

struct World {
    reg: Registry,
    mem: Memory,
    now: ServerTime,
}

impl World {
    /// Clients 1 to 3.
    fn new(objects_max: usize) -> Self {
        let mut reg = Registry::new(3, 2, objects_max);
        for raw in 1..=3 {
            reg.clients.add(client(raw)).unwrap();
        }
        Self { reg, mem: Memory::default(), now: ServerTime(1_000 * NS) }
    }
    fn with<T>(&mut self, f: impl FnOnce(&mut Tables<'_>, &mut Objects, ServerTime) -> T) -> T {
        let (mut t, _, objects) = self.reg.split(&mut self.mem);
        let result = f(&mut t, objects, self.now);
        self.reg.assert_consistent();
        result
    }
    fn create(&mut self, raw: u32, name: &str, init: u64) -> Result<ObjectId, Status> {
        let name = name.as_bytes();
        self.with(|t, o, now| o.create(t, now, client(raw), name, Lease::secs(LEASE_S), init))
    }
    fn get(&mut self, raw: u32, name: &str) -> Result<ObjectGrant, Status> {
        self.with(|t, o, now| o.get(t, now, client(raw), name.as_bytes(), Lease::secs(LEASE_S)))
    }
    fn release(&mut self, raw: u32, id: ObjectId) -> Result<(), Status> {
        self.with(|t, o, now| o.release(t, now, client(raw), id))
    }
    fn destroy(&mut self, raw: u32, id: ObjectId) -> Result<(), Status> {
        self.with(|t, o, now| o.destroy(t, now, client(raw), id))
    }
    fn drop_client(&mut self, raw: u32) {
        self.with(|t, o, now| o.drop_client(t, now, client(raw)));
    }
    fn pass(&mut self, seconds: u64) {
        self.now = self.now.plus_ns(seconds * NS);
    }
    fn value(&mut self, grant: &ObjectGrant) -> u64 {
        self.mem.word(grant.slot, Word::W0)
    }
    fn is_current(&mut self, grant: &ObjectGrant) -> bool {
        self.mem.word(grant.slot, Word::Gen) == grant.generation.0
    }
}

fn client(raw: u32) -> ClientId {
    ClientId::new(raw).unwrap()
}

#[test]
fn a_creator_owns_the_object_but_has_not_got_it() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 42).unwrap();
    assert_eq!(w.release(1, id), Err(Status::ObjectNotGet));
    let grant = w.get(2, "a").unwrap();
    assert_eq!((grant.object, w.value(&grant)), (id, 42));
    assert_eq!(w.get(2, "a"), Ok(grant));
    assert_eq!(w.create(1, "a", 0), Err(Status::ObjectCreated));
    assert_eq!(w.create(2, "a", 0), Err(Status::ObjectExisted));
    assert_eq!(w.destroy(2, id), Err(Status::ObjectInvalidOwner));
    assert_eq!(w.get(3, "b"), Err(Status::ObjectNotCreate));
    assert_eq!(w.destroy(1, ObjectId(1)), Err(Status::ObjectNotCreate));
}

#[test]
fn a_destroyed_object_works_for_whoever_has_got_it() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 42).unwrap();
    let grant = w.get(2, "a").unwrap();
    assert_eq!(w.destroy(1, id), Ok(()));
    assert!(w.is_current(&grant));
    assert_eq!(w.destroy(1, id), Err(Status::ObjectDestroyed));
    assert_eq!(w.get(2, "a"), Err(Status::ObjectDestroyed));
    assert_eq!(w.create(1, "a", 0), Err(Status::ObjectDestroyed));
    assert_eq!(w.release(2, id), Ok(()));
    assert!(!w.is_current(&grant) && w.reg.objects.is_empty());
    assert_eq!(w.create(2, "a", 0), Ok(id));
}

#[test]
fn a_recycled_object_has_the_new_value_and_shares_nothing_with_the_old_one() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 1).unwrap();
    let old = w.get(2, "a").unwrap();
    w.destroy(1, id).unwrap();
    w.pass(u64::from(LEASE_S));
    assert_eq!(w.create(3, "a", 2), Ok(id));
    let new = w.get(1, "a").unwrap();
    assert_eq!(w.value(&new), 2);
    assert!(new.slot != old.slot && w.is_current(&new) && !w.is_current(&old));
    assert_eq!(w.reg.objects.by_id(id).unwrap().owner(), Some(client(3)));
    let entry = w.reg.clients.get(client(2)).unwrap().handle(old.handle).unwrap();
    assert_eq!((entry.slot, entry.what), (old.slot, What::Stale(id)));
    assert_eq!(w.reg.objects.quarantined(), 1);
    // releasing the stale handle succeeds, and changes nothing but the quarantine
    assert_eq!(w.release(2, id), Ok(()));
    assert_eq!(w.release(2, id), Err(Status::ObjectNotGet));
    assert_eq!(w.reg.objects.quarantined(), 0);
    assert!(w.is_current(&new));
}

#[test]
fn the_lease_lasts_as_long_as_the_longest_of_them() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 0).unwrap();
    w.get(2, "a").unwrap();
    w.pass(u64::from(LEASE_S) - 1);
    w.get(2, "a").unwrap();
    w.pass(1);
    w.destroy(1, id).unwrap();
    assert_eq!(w.create(1, "a", 0), Err(Status::ObjectDestroyed));
    w.pass(u64::from(LEASE_S) - 2);
    assert_eq!(w.create(1, "a", 0), Err(Status::ObjectDestroyed));
    w.pass(1);
    assert_eq!(w.create(1, "a", 0), Ok(id));
}

#[test]
fn after_the_lease_destruction_frees_at_once() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 0).unwrap();
    let grant = w.get(2, "a").unwrap();
    w.pass(u64::from(LEASE_S));
    assert_eq!(w.destroy(1, id), Ok(()));
    assert!(w.reg.objects.is_empty() && !w.is_current(&grant));
    assert_eq!(w.destroy(1, id), Err(Status::ObjectNotCreate));
    assert_eq!(w.reg.objects.quarantined(), 1);
    w.drop_client(2);
    assert_eq!(w.reg.objects.quarantined(), 0);
}

#[test]
fn after_the_lease_one_release_frees_a_destroyed_object_of_others() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 0).unwrap();
    w.get(2, "a").unwrap();
    let grant = w.get(3, "a").unwrap();
    w.destroy(1, id).unwrap();
    w.pass(u64::from(LEASE_S));
    assert_eq!(w.release(2, id), Ok(()));
    assert!(!w.is_current(&grant) && w.reg.objects.is_empty());
    assert_eq!(w.release(3, id), Ok(()));
    assert_eq!(w.release(3, id), Err(Status::ObjectNotGet));
}

#[test]
fn a_dropped_owner_leaves_only_what_others_have_got() {
    let mut w = World::new(4);
    let [a, b, c] = ["a", "b", "c"].map(|name| w.create(1, name, 0).unwrap());
    w.get(1, "b").unwrap();
    w.get(1, "c").unwrap();
    let grant = w.get(2, "c").unwrap();
    w.drop_client(1);
    assert!(w.reg.objects.by_id(a).is_none() && w.reg.objects.by_id(b).is_none());
    assert_eq!(w.reg.objects.by_id(c).unwrap().owner(), None);
    assert!(w.is_current(&grant));
    assert_eq!(w.create(3, "c", 0), Err(Status::ObjectCreated));
    assert_eq!(w.destroy(3, c), Ok(()));
    assert_eq!(w.release(2, c), Ok(()));
    assert!(w.reg.objects.is_empty() && w.reg.clients.remove(client(1)));
}

#[test]
fn a_disowned_object_outlives_its_creator() {
    let mut w = World::new(4);
    let id = w.create(1, "a", 5).unwrap();
    w.reg.objects.disown(client(1));
    w.drop_client(1);
    let grant = w.get(2, "a").unwrap();
    assert_eq!((w.value(&grant), w.destroy(3, id)), (5, Ok(())));
}

#[test]
fn quarantined_slots_count_against_objects_and_never_against_locks() {
    let mut w = World::new(2);
    let id = w.create(1, "a", 0).unwrap();
    w.get(2, "a").unwrap();
    w.pass(u64::from(LEASE_S));
    w.destroy(1, id).unwrap();
    w.create(1, "b", 0).unwrap();
    assert_eq!(w.create(1, "c", 0), Err(Status::ObjectTooMany));
    assert_eq!(w.release(2, id), Ok(()));
    assert!(w.create(1, "c", 0).is_ok());
}

#[test]
fn a_client_that_never_releases_keeps_a_bounded_number_of_slots() {
    let mut w = World::new(9);
    for round in 0..20 {
        let id = w.create(1, "a", round).unwrap();
        w.get(2, "a").unwrap();
        w.pass(u64::from(LEASE_S));
        w.destroy(1, id).unwrap();
        assert!(w.reg.objects.quarantined() <= STALE_HANDLES_MAX);
    }
}
