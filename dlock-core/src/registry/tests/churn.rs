// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long random sequences of operations, compared with models that are simple enough to be right.

use std::collections::{BTreeMap, BTreeSet};

use super::{Dice, Memory};
use crate::clock::{Lease, ServerTime, NS};
use crate::ids::{ClientId, LockId, ObjectId, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::registry::{name_hash, Registry, What};
use crate::wire::control::{LockDesc, LockGrant, ObjectGrant};
use crate::wire::message::LockType;
use crate::wire::status::Status;

const CLIENTS: u32 = 5;
const LOCKS_MAX: usize = 7;
const OBJECTS_MAX: usize = 6;
const STEPS: usize = 4_000;

fn client(raw: u32) -> ClientId {
    ClientId::new(raw).unwrap()
}

/// Names with positive and with negative hashes, and two with the same hash.
fn names() -> Vec<Vec<u8>> {
    let names = ["alpha", "account", "journal 1", "page", "index", "buffer", "latch", "zbcdefg"];
    let names = names.iter().chain(&["bB", "c!"]);
    let names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
    assert_eq!(name_hash(b"bB"), name_hash(b"c!"));
    let negative = names.iter().filter(|n| (name_hash(n) as i32) < 0).count();
    assert!(0 < negative && negative < names.len());
    names
}

fn registry() -> Registry {
    let mut reg = Registry::new(CLIENTS as usize, LOCKS_MAX, OBJECTS_MAX);
    for raw in 1..=CLIENTS {
        reg.clients.add(client(raw)).unwrap();
    }
    reg
}

/// Removes a client and admits it again, as the primary does.
fn replace(reg: &mut Registry, mem: &mut Memory, now: ServerTime, who: ClientId) {
    let (mut t, locks, objects) = reg.split(mem);
    for released in locks.drop_client(&mut t, who) {
        if released.destroyed {
            t.slots.free(released.slot);
        }
    }
    objects.drop_client(&mut t, now, who);
    assert!(reg.clients.remove(who));
    reg.clients.add(who).unwrap();
}

/// The id that the rule of the C API gives.
fn expected_id(name: &[u8], counter: &mut i32, used: &BTreeSet<i32>) -> i32 {
    let hash = name_hash(name) as i32;
    if hash > 0 && !used.contains(&hash) {
        return hash;
    }
    while used.contains(counter) {
        *counter += 1;
    }
    *counter += 1;
    *counter - 1
}

// ------------------------------------------------------------------------------------ locks

struct ModelLock {
    id: i32,
    lock_type: LockType,
    grants: BTreeMap<ClientId, LockGrant>,
}

#[derive(Default)]
struct LockModel {
    locks: BTreeMap<Vec<u8>, ModelLock>,
    counter: i32,
}

impl LockModel {
    fn expected(&mut self, who: ClientId, desc: &LockDesc) -> Result<(i32, bool), Status> {
        if let Some(lock) = self.locks.get(&desc.name) {
            return match lock.lock_type == desc.lock_type {
                true => Ok((lock.id, lock.grants.contains_key(&who))),
                false => Err(Status::Error),
            };
        }
        if self.locks.len() == LOCKS_MAX {
            return Err(Status::ServerNoResource);
        }
        let used = self.locks.values().map(|l| l.id).collect();
        let id = expected_id(&desc.name, &mut self.counter, &used);
        let lock = ModelLock { id, lock_type: desc.lock_type, grants: BTreeMap::new() };
        self.locks.insert(desc.name.clone(), lock);
        Ok((id, false))
    }

    fn drop_client(&mut self, who: ClientId) {
        for lock in self.locks.values_mut() {
            lock.grants.remove(&who);
        }
        self.locks.retain(|_, lock| !lock.grants.is_empty());
    }

    fn get(&mut self, reg: &mut Registry, mem: &mut Memory, who: ClientId, desc: &LockDesc) {
        let expected = self.expected(who, desc);
        let (mut t, locks, _) = reg.split(mem);
        let result = locks.get(&mut t, who, desc);
        assert_eq!(result.map(|g| (g.lock.0, g.already)), expected);
        let Ok(grant) = result else { return };
        let lock = self.locks.get_mut(&desc.name).unwrap();
        if let Some(before) = lock.grants.insert(who, LockGrant { already: false, ..grant }) {
            assert_eq!(LockGrant { already: true, ..before }, grant);
        }
        assert!(lock.grants.values().all(|g| (g.lock, g.slot) == (grant.lock, grant.slot)));
    }

    fn release(&mut self, reg: &mut Registry, mem: &mut Memory, who: ClientId, name: &[u8]) {
        let id = self.locks.get(name).map_or(1, |l| l.id);
        let (mut t, locks, _) = reg.split(mem);
        let result = locks.release(&mut t, who, LockId(id));
        let held = self.locks.get_mut(name).and_then(|l| l.grants.remove(&who));
        let Some(grant) = held else { return assert_eq!(result, Err(Status::Error)) };
        let released = result.unwrap();
        assert_eq!((released.slot, released.handle), (grant.slot, grant.handle));
        let is_last = self.locks[name].grants.is_empty();
        assert_eq!(released.destroyed, is_last);
        if is_last {
            self.locks.remove(name);
            t.slots.free(grant.slot);
        }
    }
}

#[test]
fn locks_agree_with_the_model_after_any_operations() {
    let (mut dice, names) = (Dice(1), names());
    let (mut reg, mut mem) = (registry(), Memory::default());
    let mut model = LockModel { counter: 2, ..LockModel::default() };
    for _ in 0..STEPS {
        let who = client(1 + dice.below(CLIENTS as usize) as u32);
        let name = names[dice.below(names.len())].clone();
        match dice.below(20) {
            0..=10 => {
                let rare = dice.below(8) == 0;
                let lock_type = if rare { LockType::Fair } else { LockType::Rw };
                model.get(
                    &mut reg,
                    &mut mem,
                    who,
                    &LockDesc { name, lock_type, lease_s: 1, tokens: false },
                );
            }
            11..=18 => model.release(&mut reg, &mut mem, who, &name),
            _ => {
                replace(&mut reg, &mut mem, ServerTime(0), who);
                model.drop_client(who);
            }
        }
        reg.assert_consistent();
        assert_eq!(reg.locks.len(), model.locks.len());
        let slots: BTreeSet<Slot> = reg.locks.iter().map(|l| l.slot()).collect();
        assert_eq!(slots.len(), model.locks.len());
    }
}

// ---------------------------------------------------------------------------------- objects

/// A state object as the C API describes it.
struct ModelObject {
    id: i32,
    owner: Option<ClientId>,
    destroyed: bool,
    lease_end: u64,
    leases: BTreeMap<ClientId, u64>,
    value: u64,
}

impl ModelObject {
    fn is_freeable(&self, now: u64) -> bool {
        let over = self.lease_end <= now && self.leases.values().all(|&end| end <= now);
        self.leases.is_empty() || over
    }
}

struct ObjectWorld {
    reg: Registry,
    mem: Memory,
    now: u64,
    objects: BTreeMap<Vec<u8>, ModelObject>,
    counter: i32,
    /// The grants that clients believe to have. The object of a grant may be gone.
    grants: BTreeMap<(ClientId, ObjectId), ObjectGrant>,
}

impl ObjectWorld {
    fn new() -> Self {
        let (reg, mem) = (registry(), Memory::default());
        let (objects, grants) = (BTreeMap::new(), BTreeMap::new());
        Self { reg, mem, now: 0, objects, counter: 2, grants }
    }

    fn time(&self) -> ServerTime {
        ServerTime(self.now * NS)
    }

    fn expected_create(
        &mut self,
        who: ClientId,
        name: &[u8],
        lease: u64,
        init: u64,
    ) -> Result<i32, Status> {
        let (now, full) = (self.now, self.is_full());
        let used = self.objects.values().map(|o| o.id).collect();
        let fresh = |id| ModelObject {
            id,
            owner: Some(who),
            destroyed: false,
            lease_end: now + lease,
            leases: BTreeMap::new(),
            value: init,
        };
        let Some(object) = self.objects.get_mut(name) else {
            if full {
                return Err(Status::ObjectTooMany);
            }
            let id = expected_id(name, &mut self.counter, &used);
            self.objects.insert(name.to_vec(), fresh(id));
            return Ok(id);
        };
        if !object.destroyed {
            if object.owner.is_some_and(|o| o != who) {
                return Err(Status::ObjectExisted);
            }
            object.lease_end = object.lease_end.max(now + lease);
            return Err(Status::ObjectCreated);
        }
        if !object.is_freeable(now) {
            return Err(Status::ObjectDestroyed);
        }
        if full {
            return Err(Status::ObjectTooMany);
        }
        *object = fresh(object.id);
        Ok(object.id)
    }

    /// Whether there is no room. This is all that the model asks of the tables, because quarantined
    /// slots exist only there.
    fn is_full(&self) -> bool {
        self.objects.len() + self.reg.objects.quarantined() == OBJECTS_MAX
    }

    fn create(&mut self, who: ClientId, name: &[u8], lease: u64, init: u64) {
        let expected = self.expected_create(who, name, lease, init);
        let now = self.time();
        let (mut t, _, objects) = self.reg.split(&mut self.mem);
        let result = objects.create(&mut t, now, who, name, Lease::secs(lease as u32), init);
        assert_eq!(result.map(|o| o.0), expected);
    }

    fn get(&mut self, who: ClientId, name: &[u8], lease: u64) {
        let expected = match self.objects.get_mut(name) {
            None => Err(Status::ObjectNotCreate),
            Some(object) if object.destroyed => Err(Status::ObjectDestroyed),
            Some(object) => {
                let end = object.leases.entry(who).or_insert(0);
                *end = (*end).max(self.now + lease);
                Ok(object.id)
            }
        };
        let now = self.time();
        let (mut t, _, objects) = self.reg.split(&mut self.mem);
        let result = objects.get(&mut t, now, who, name, Lease::secs(lease as u32));
        assert_eq!(result.map(|g| g.object.0), expected);
        if let Ok(grant) = result {
            self.grants.insert((who, grant.object), grant);
        }
    }

    fn release(&mut self, who: ClientId, id: ObjectId) {
        let before = self.reg.clients.get(who).unwrap();
        let had_stale = before.handles().any(|(_, entry)| entry.what == What::Stale(id));
        let found = self.objects.iter_mut().find(|(_, o)| o.id == id.0);
        let expected = match found {
            Some((name, object)) if object.leases.contains_key(&who) => {
                object.leases.remove(&who);
                if object.destroyed && object.is_freeable(self.now) {
                    let name = name.clone();
                    self.objects.remove(&name);
                }
                Ok(())
            }
            _ if had_stale => Ok(()),
            _ => Err(Status::ObjectNotGet),
        };
        let now = self.time();
        let (mut t, _, objects) = self.reg.split(&mut self.mem);
        assert_eq!(objects.release(&mut t, now, who, id), expected);
        self.grants.remove(&(who, id));
        let client = self.reg.clients.get(who).unwrap();
        let is_left = |what| matches!(what, What::Object(o, _) | What::Stale(o) if o == id);
        assert!(client.handles().all(|(_, e)| !is_left(e.what)), "a handle outlives its release");
    }

    fn destroy(&mut self, who: ClientId, id: ObjectId) {
        let found = self.objects.iter_mut().find(|(_, o)| o.id == id.0);
        let expected = match found {
            None => Err(Status::ObjectNotCreate),
            Some((_, o)) if o.owner.is_some_and(|o| o != who) => Err(Status::ObjectInvalidOwner),
            Some((_, o)) if o.destroyed => Err(Status::ObjectDestroyed),
            Some((name, object)) => {
                object.destroyed = true;
                if object.is_freeable(self.now) {
                    let name = name.clone();
                    self.objects.remove(&name);
                }
                Ok(())
            }
        };
        let now = self.time();
        let (mut t, _, objects) = self.reg.split(&mut self.mem);
        assert_eq!(objects.destroy(&mut t, now, who, id), expected);
    }

    fn leave(&mut self, who: ClientId) {
        let (now, time) = (self.now, self.time());
        replace(&mut self.reg, &mut self.mem, time, who);
        self.grants.retain(|&(client, _), _| client != who);
        self.objects.retain(|_, object| {
            let had_got = object.leases.remove(&who).is_some();
            let was_owner = object.owner == Some(who);
            object.owner = object.owner.filter(|&owner| owner != who);
            let is_unwanted = was_owner && object.leases.is_empty();
            let is_over = object.destroyed && object.is_freeable(now);
            !(is_unwanted || (had_got || was_owner) && is_over)
        });
    }

    /// Every client adds to each object that it believes to have, as the data path would.
    fn use_all(&mut self) {
        for (&(who, id), &grant) in &self.grants {
            let object = self.objects.values_mut().find(|o| o.id == id.0);
            let alive = object.filter(|o| o.leases.contains_key(&who));
            let addr = WordAddr::new(grant.slot, Word::W0);
            let entry = self.reg.clients.get(who).unwrap().handle(grant.handle).unwrap();
            assert_eq!(entry.slot, grant.slot, "a slot was reused under a handle");
            let is_current = self.mem.word(grant.slot, Word::Gen) == grant.generation.0;
            match alive {
                Some(object) => {
                    assert!(is_current && entry.what == What::Object(id, grant.generation));
                    assert_eq!(self.mem.faa(addr, 3), object.value);
                    object.value = object.value.wrapping_add(3);
                }
                None => {
                    // an RDMA client notices only afterwards that the object is gone: the addition
                    // must change no other object
                    assert!(!is_current && entry.what == What::Stale(id));
                    self.mem.faa(addr, 1_000_000);
                }
            }
        }
    }

    fn check(&mut self) {
        self.reg.assert_consistent();
        assert_eq!(self.reg.objects.len(), self.objects.len());
        for (name, object) in &self.objects {
            let record = self.reg.objects.by_id(ObjectId(object.id)).unwrap();
            assert_eq!((record.name(), record.owner()), (&name[..], object.owner));
            assert_eq!(record.is_destroyed(), object.destroyed);
            assert_eq!(self.mem.word(record.slot(), Word::W0), object.value);
        }
    }
}

#[test]
fn objects_agree_with_the_facts_after_any_operations() {
    let (mut dice, names) = (Dice(2), names());
    let mut world = ObjectWorld::new();
    let mut quarantined_max = 0;
    for _ in 0..STEPS {
        let who = client(1 + dice.below(CLIENTS as usize) as u32);
        let name = names[dice.below(names.len())].clone();
        let lease = 1 + dice.below(6) as u64;
        let known = world.objects.get(&name).map_or(1, |o| o.id);
        let got: Vec<_> = world.grants.keys().filter(|(c, _)| *c == who).collect();
        let got = if got.is_empty() { ObjectId(known) } else { got[dice.below(got.len())].1 };
        match dice.below(40) {
            0..=9 => world.create(who, &name, lease, dice.next()),
            10..=21 => world.get(who, &name, lease),
            22..=26 => world.release(who, got),
            27 => world.release(who, ObjectId(known)),
            28..=34 => world.destroy(who, ObjectId(known)),
            35..=37 => world.now += 1,
            38 => world.use_all(),
            _ => world.leave(who),
        }
        world.check();
        quarantined_max = quarantined_max.max(world.reg.objects.quarantined());
    }
    assert!(quarantined_max >= 3, "the test is too tame");
}
