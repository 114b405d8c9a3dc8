// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sequences of the calls of the C API, after its pointer checks: two instances on one primary in
//! this process, over shared memory or TCP.
//!
//! No call panics or takes longer than its bound; codes are ones the call may give; and what one
//! instance was told to hold exclusively, the other is not told to hold.

use dlock_core::clock::Lease;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dlock_client::raw::{AsyncOp, Instance, OpResult};
use dlock_client::{
    ClientConfig, FabricChoice, LockDesc, LockId, LockType, Mode, ObjectId, Status,
};
use dlock_server::{Server, ServerConfig};

use crate::tape::Tape;

const STEPS_MAX: usize = 120;
const LOCKS: usize = 4;
/// The most time that a call may take. No call is made that would have to wait for the other
/// instance.
const CALL_MAX: Duration = Duration::from_secs(4);
/// The lease of each hold, which does not end while a sequence runs.
const LEASE_S: u32 = 3_600;

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        // small, because each client over shared memory maps all of it
        let (clients_max, locks_max, objects_max) = (8, 64, 16);
        let config = ServerConfig {
            port: 0,
            clients_max,
            locks_max,
            objects_max,
            sleep_mode: true, // threads that wait sleep, because the machine has other work
            ..Default::default()
        };
        Server::start(config).expect("a primary starts on a free port")
    })
}

/// What one instance knows of one lock from the results of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// The instance may hold the lock or have a ticket, so another client might have to wait.
    Perhaps,
    Held(Mode),
}

struct World {
    instances: [Instance; 2],
    /// A number that makes the names of this run unique.
    run: u64,
    locks: [[Option<LockId>; LOCKS]; 2],
    told: [[Told; LOCKS]; 2],
    objects: [Option<ObjectId>; 2],
    pending: [Option<(usize, AsyncOp)>; 2],
}

/// Makes the calls that these bytes choose.
///
/// # Panics
/// If a call panics, or breaks a rule in the comment at the top of this file.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let Some(mut world) = World::new(tape.u8()) else { return };
    for _ in 0..STEPS_MAX {
        if tape.is_over() {
            break;
        }
        let start = Instant::now();
        world.step(&mut tape);
        let took = start.elapsed();
        assert!(took < CALL_MAX, "a call took {took:?}");
    }
    world.end();
}

impl World {
    /// `None`: the machine has no more sockets at present.
    fn new(choice: u8) -> Option<Self> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let addr = server().local_addr();
        let join = |tcp: bool| {
            let fabric = if tcp { FabricChoice::Tcp } else { FabricChoice::Shm };
            let config = ClientConfig { port: addr.port(), fabric, ..Default::default() };
            Instance::init(&config, &addr.ip().to_string()).ok()
        };
        Some(Self {
            instances: [join(choice & 1 == 1)?, join(choice & 2 == 2)?],
            run: RUNS.fetch_add(1, Ordering::Relaxed),
            locks: [[None; LOCKS]; 2],
            told: [[Told::Nothing; LOCKS]; 2],
            objects: [None; 2],
            pending: [None; 2],
        })
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        let me = tape.below(2);
        let which = tape.below(LOCKS);
        let mode = if tape.flip() { Mode::Shared } else { Mode::Exclusive };
        let lease_s = if tape.u8() == 255 { 0 } else { LEASE_S };
        match tape.below(16) {
            0 | 1 => self.get(me, which),
            2 => self.release(me, which, tape.flip()),
            3 | 4 => {
                let result = self.instances[me].trylock(self.id(me, which), mode, lease_s);
                self.acquired(me, which, mode, lease_s, result);
            }
            5 => self.lock(me, which, mode, lease_s),
            6 | 7 => {
                let result = self.instances[me].unlock(self.id(me, which));
                self.released(me, which, result);
            }
            8 => {
                let result = self.instances[me].extend(self.id(me, which), mode, lease_s);
                if result.status == Status::Fail {
                    self.told[me][which] = Told::Nothing;
                }
            }
            9 => self.start(me, which, mode, lease_s, tape.below(3)),
            10 => self.finish(me),
            11 => self.batch(me, mode, tape),
            12 => self.object(me, tape),
            13 => self.strange(me, tape),
            14 => {
                let _ = self.instances[me].heartbeat(u32::from(tape.u8() % 3));
            }
            _ => {
                let _ = self.instances[me].stats();
                match tape.below(8) {
                    0 => self.leave(me),
                    1 => drop(self.instances[me].reinit_done()),
                    2 => drop(self.instances[me].update_all_locks()),
                    3 => self.instances[me].clear_stats(),
                    _ => {}
                }
            }
        }
    }

    fn id(&self, me: usize, which: usize) -> LockId {
        self.locks[me][which].unwrap_or(LockId(12_345))
    }

    fn desc(&self, which: usize) -> LockDesc {
        let lock_type = [LockType::Atomic, LockType::Rw, LockType::Fair, LockType::Rw][which];
        LockDesc {
            name: format!("{}/{which}", self.run).into_bytes(),
            lock_type,
            lease_s: 0,
            tokens: false,
        }
    }

    fn get(&mut self, me: usize, which: usize) {
        let (status, id) = self.instances[me].get_lock(self.desc(which));
        // with `Error`, the client had got the lock before
        assert!(id.is_none() || matches!(status, Status::Success | Status::Error), "{status}");
        if let Some(id) = id {
            assert!(id.0 > 0);
            self.locks[me][which] = Some(id);
        }
    }

    fn release(&mut self, me: usize, which: usize, batch: bool) {
        let id = self.id(me, which);
        let status = if batch {
            let mut ids = [id.0, 0, -1];
            let status = self.instances[me].batch_release_lock(&mut ids);
            match ids[0] {
                0 => Status::Error, // held, or not got: it stays as it is
                _ => status,
            }
        } else {
            self.instances[me].release_lock(id)
        };
        if status == Status::Success {
            self.told[me][which] = Told::Nothing;
            self.locks[me][which] = None;
        }
    }

    /// Acquires a lock, unless the other instance may hold it, so that the call would have to wait.
    fn lock(&mut self, me: usize, which: usize, mode: Mode, lease_s: u32) {
        if self.told[1 - me][which] == Told::Nothing && self.pending == [None; 2] {
            let result = self.instances[me].lock(self.id(me, which), mode, lease_s);
            assert_ne!(result.status, Status::BadResponse, "nobody else has it");
            self.acquired(me, which, mode, lease_s, result);
        }
    }

    fn acquired(&mut self, me: usize, which: usize, mode: Mode, lease_s: u32, result: OpResult) {
        let told = &mut self.told[me][which];
        match result.status {
            // a call without a lease only asks about the lock
            Status::Success if lease_s == 0 => return,
            Status::Success | Status::AlreadyLocked => *told = Told::Held(mode),
            Status::Again | Status::Ticket | Status::BadResponse => *told = Told::Perhaps,
            Status::Fail if matches!(told, Told::Held(_)) => *told = Told::Nothing,
            _ => return,
        }
        let both = (self.told[0][which], self.told[1][which]);
        let (Told::Held(a), Told::Held(b)) = both else { return };
        let shared = a == Mode::Shared && b == Mode::Shared;
        assert!(shared, "lock {which}: both were told to hold it: {both:?}");
    }

    fn released(&mut self, me: usize, which: usize, result: OpResult) {
        if matches!(result.status, Status::Success | Status::Fail) {
            self.told[me][which] = Told::Nothing;
        }
    }

    fn start(&mut self, me: usize, which: usize, mode: Mode, expire_s: u32, op: usize) {
        let op = match op {
            0 => AsyncOp::TryLock { mode, expire_s },
            1 => AsyncOp::Unlock,
            _ => AsyncOp::Extend { mode, expire_s },
        };
        let status = self.instances[me].request_async(self.id(me, which), op);
        if status == Status::Success {
            self.told[me][which] = Told::Perhaps;
            self.pending[me] = Some((which, op));
        }
    }

    fn finish(&mut self, me: usize) {
        let result = self.instances[me].result_check();
        let Some((which, op)) = self.pending[me] else { return };
        if result.status == Status::AsyncAgain {
            return;
        }
        self.pending[me] = None;
        if let AsyncOp::TryLock { mode, expire_s } = op {
            self.acquired(me, which, mode, expire_s, result);
        }
    }

    fn batch(&mut self, me: usize, mode: Mode, tape: &mut Tape<'_>) {
        let len = tape.below(34);
        let ids: Vec<LockId> = (0..len).map(|i| self.id(me, i % LOCKS)).collect();
        let mut results = vec![OpResult::of(Status::Error); len];
        let what = tape.below(4);
        if what == 3 {
            let descs = (0..len).map(|i| self.desc(i % LOCKS)).collect();
            if let Ok(list) = self.instances[me].batch_get_lock(descs) {
                assert_eq!(list.len(), len);
            }
            return;
        }
        let items: Vec<_> = ids.iter().map(|&id| (id, mode, LEASE_S)).collect();
        match what {
            0 => drop(self.instances[me].batch_trylock(&items, &mut results)),
            1 => drop(self.instances[me].batch_unlock(&ids, &mut results)),
            _ => drop(self.instances[me].batch_extend(&items, &mut results)),
        }
        // one lock may be in the list several times, so afterwards little is known of its state
        for told in &mut self.told[me] {
            *told = Told::Perhaps;
        }
    }

    fn object(&mut self, me: usize, tape: &mut Tape<'_>) {
        let name = format!("object {}", self.run).into_bytes();
        let object = self.objects[me].unwrap_or(ObjectId(4_711));
        let i = &self.instances[me];
        match tape.below(8) {
            0 => drop(i.object_create(&name, Lease::secs(LEASE_S), 1)),
            1 => {
                if let Ok(id) = i.object_get(&name, Lease::secs(LEASE_S)) {
                    self.objects[me] = Some(id);
                }
            }
            2 => drop(i.object_release(object)),
            3 => drop(i.object_destroy(object)),
            4 => drop(i.faa(object, tape.u64())),
            5 => drop(i.cas(object, u64::from(tape.u8()), tape.u64())),
            6 => drop(i.snapshot(object)),
            _ => drop(i.object_create(&name[..tape.below(3)], Lease(tape.u8().into()), 1)),
        }
    }

    /// Makes a call with arguments that are invalid.
    fn strange(&self, me: usize, tape: &mut Tape<'_>) {
        let i = &self.instances[me];
        let id = LockId(i32::from_le_bytes(tape.u32().to_le_bytes()));
        let known = self.locks.iter().flatten().flatten().any(|known| *known == id);
        if known {
            return;
        }
        let refused = |status: Status| assert_ne!(status, Status::Success);
        match tape.below(6) {
            0 => refused(i.trylock(id, Mode::Exclusive, 1).status),
            1 => refused(i.unlock(id).status),
            2 => refused(i.extend(id, Mode::Shared, u32::MAX).status),
            3 => refused(i.release_lock(id)),
            4 => refused(i.request_async(id, AsyncOp::Unlock)),
            _ => {
                let name = vec![0; [0, 512, 513][tape.below(3)]];
                let desc = LockDesc {
                    name,
                    lock_type: LockType::Fair,
                    lease_s: tape.u32(),
                    tokens: false,
                };
                let (status, lock) = i.get_lock(desc);
                if let (Status::Success, Some(lock)) = (status, lock) {
                    assert_eq!(i.release_lock(lock), Status::Success);
                }
            }
        }
    }

    fn leave(&mut self, me: usize) {
        let _ = self.instances[me].deinit();
        self.locks[me] = [None; LOCKS];
        self.told[me] = [Told::Nothing; LOCKS];
        self.pending[me] = None;
    }

    fn end(mut self) {
        self.leave(0);
        self.leave(1);
        for instance in &self.instances {
            let status = instance.trylock(LockId(1), Mode::Exclusive, 1).status;
            assert_eq!(status, Status::ClientNotInit, "it has left");
        }
    }
}
