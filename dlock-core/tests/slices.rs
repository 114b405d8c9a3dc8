// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leaving, expiry and hand-over happen in steps of bounded work, counted and not timed.

mod common;

use common::Memory;
use dlock_core::clock::{ServerTime, NS};
use dlock_core::control::{ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Epoch, Seq};
use dlock_core::limits::{BATCH_MAX, CLIENTS_MAX, LOCKS_MAX};
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::primary::{Primary, PrimaryConfig, Sent, Step};
use dlock_core::status::Status;
use dlock_core::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::words::{AtomicWord, RwWord};
use dlock_core::work::{GRANTS_PER_LOOK, ITEM_WORK_MAX, QUANTUM};

const NOW: ServerTime = ServerTime(5_000 * NS);
const LEASE_S: u32 = 60;

struct World {
    primary: Primary,
    memory: Memory,
    seq: u64,
    out: Vec<Sent>,
}

impl World {
    fn new(clients_max: usize) -> Self {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            anchor_s: 5_000,
            tp_mode: 0,
            recovery_clients: 0,
            clients_max,
            locks_max: LOCKS_MAX,
            objects_max: 1_000,
            absent_grace_ns: None,
        };
        let (primary, memory) = (Primary::new(config), Memory::default());
        Self { primary, memory, seq: 0, out: Vec::new() }
    }

    fn admit(&mut self, id: u32) -> Result<ClientId, Status> {
        let client = ClientId::new(id).unwrap();
        self.primary.add_client(client).map(|()| client)
    }

    /// A client of a fabric whose verbs the primary does not see.
    fn client(&mut self, id: u32, fabric: FabricKind) -> ClientId {
        let client = self.admit(id).unwrap();
        self.primary.attached(NOW, &mut self.memory, client, fabric, &mut self.out);
        client
    }

    fn control(&mut self, client: ClientId, request: ControlRequest) -> ControlReply {
        self.primary.control(NOW, &mut self.memory, client, request, &mut self.out)
    }

    fn get(&mut self, client: ClientId, names: &[String], lock_type: LockType) -> Vec<LockGrant> {
        let desc = |name: &String| LockDesc { name: name.clone().into(), lock_type, lease_s: 0 };
        let mut grants = Vec::new();
        for batch in names.chunks(BATCH_MAX) {
            let descs = batch.iter().map(desc).collect();
            match self.control(client, ControlRequest::GetLocks(descs)) {
                ControlReply::Locks(locks) => grants.extend(locks.into_iter().map(Result::unwrap)),
                other => panic!("{other:?}"),
            }
        }
        grants
    }

    /// Takes a free lock by hand.
    fn take(&mut self, client: ClientId, grant: &LockGrant, lock_type: LockType) {
        let swap = match lock_type {
            LockType::Atomic => AtomicWord::new()
                .with_client(client.get())
                .with_timeout(NOW.seconds() + LEASE_S)
                .into_bits(),
            _ => RwWord::new().with_client(client.get()).into_bits(),
        };
        assert_eq!(self.memory.cas(w0(grant), 0, swap), 0);
    }

    fn wait(&mut self, client: ClientId, grant: &LockGrant, mode: Mode) -> Seq {
        self.seq += 1;
        let (seq, wait) = (Seq(self.seq), WaitNumber(1));
        let request =
            Request::Wait { handle: grant.handle, mode, expire_s: LEASE_S, wait, ticket: None };
        let before = self.out.len();
        self.primary.command(NOW, &mut self.memory, client, seq, request, &mut self.out);
        assert_eq!(self.out.len(), before, "it has to wait");
        seq
    }

    fn step(&mut self, now: ServerTime, budget: u32) -> Step {
        let step = self.primary.step(now, &mut self.memory, budget, &mut self.out);
        assert!(step.work <= budget + ITEM_WORK_MAX, "{step:?} of {budget}");
        step
    }

    fn granted(&self, seq: Seq) -> bool {
        let is = |sent: &&Sent| sent.seq == seq && matches!(sent.reply, Reply::Granted { .. });
        self.out.iter().any(|sent| is(&sent))
    }
}

fn w0(grant: &LockGrant) -> WordAddr {
    WordAddr::new(grant.slot, Word::W0)
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("lock {i}")).collect()
}

#[test]
fn a_client_with_all_locks_leaves_in_short_steps_and_others_are_served_between() {
    let mut w = World::new(10);
    let leaver = w.client(5, FabricKind::Shm);
    let grants = w.get(leaver, &names(LOCKS_MAX), LockType::Atomic);
    grants.iter().for_each(|grant| w.take(leaver, grant, LockType::Atomic));
    let other = w.client(6, FabricKind::Tcp);
    let mine = w.get(other, &names(1), LockType::Atomic)[0];
    let last = w.get(other, &names(LOCKS_MAX)[LOCKS_MAX - 1..], LockType::Atomic)[0];
    let first_wait = w.wait(other, &mine, Mode::Exclusive);
    let last_wait = w.wait(other, &last, Mode::Exclusive);

    assert!(!w.primary.fenced(leaver), "it has something to undo");
    let (mut steps, mut worst, mut first_granted_at) = (0, 0, None);
    loop {
        let step = w.step(NOW, QUANTUM);
        steps += 1;
        worst = worst.max(step.work);
        if first_granted_at.is_none() && w.granted(first_wait) {
            first_granted_at = Some(steps);
        }
        assert_eq!(step.more, step.gone.is_none());
        if step.gone.is_some() {
            assert_eq!(step.gone, Some(leaver));
            break;
        }
        assert!(w.primary.next_wakeup().is_some_and(|at| at <= NOW), "it is to go on at once");
        // a chain of another client comes between, and finds its lock
        let chain = Chain::one(WordOp::Read { addr: w0(&mine) });
        assert!(w.primary.check_chain(NOW, &mut w.memory, other, &chain).is_ok());
    }
    assert_eq!(first_granted_at, Some(1), "when the turn of its lock came, not in the end");
    assert!(w.granted(last_wait));
    // private locks are small items: a step is hardly longer than its budget
    assert!(worst <= QUANTUM + 16, "{worst}");
    assert!(steps >= LOCKS_MAX / QUANTUM as usize, "{steps}");
    assert_eq!(w.primary.totals(), (1, 2, 0));
    assert_eq!(w.primary.assert_consistent(), Ok(()));
}

#[test]
fn a_leaving_client_is_unknown_but_its_id_and_its_place_are_nobody_elses() {
    let mut w = World::new(2);
    let leaver = w.client(5, FabricKind::Tcp);
    let grants = w.get(leaver, &names(100), LockType::Rw);
    w.take(leaver, &grants[99], LockType::Rw);
    let other = w.client(6, FabricKind::Tcp);
    w.primary.fenced(leaver);
    assert!(!w.primary.fenced(leaver), "the second fencing changes nothing");

    let chain = Chain::one(WordOp::Read { addr: w0(&grants[0]) });
    while w.primary.is_leaving(leaver) {
        assert_eq!(w.admit(5), Err(Status::Error), "nor is its id");
        assert_eq!(w.admit(7), Err(Status::ServerNoResource), "its place is not free");
        let reply = w.control(leaver, ControlRequest::Heartbeat);
        assert_eq!(reply, ControlReply::Error(Status::Error));
        let checked = w.primary.check_chain(NOW, &mut w.memory, leaver, &chain);
        assert_eq!(checked, Err(Status::ClientRemoved));
        w.step(NOW, 1);
    }
    assert_eq!(w.admit(5), Ok(leaver), "a new client may have the id now");
    assert_eq!(w.primary.assert_consistent(), Ok(()));
    w.primary.fenced(other);
    assert!(!w.primary.is_leaving(other), "it had nothing: it is gone at once");
}

#[test]
fn an_id_is_not_drawn_while_what_its_client_had_is_undone() {
    let mut w = World::new(10);
    let leaver = w.client(5, FabricKind::Tcp);
    w.get(leaver, &names(100), LockType::Atomic);
    w.primary.fenced(leaver);
    w.step(NOW, 1);
    assert_eq!(w.admit(5), Err(Status::Error), "the only number drawn is in use");
}

#[test]
fn several_clients_that_leave_at_once_are_undone_in_turns() {
    let mut w = World::new(10);
    let heavy = w.client(5, FabricKind::Tcp);
    w.get(heavy, &names(5_000), LockType::Atomic);
    let light = w.client(6, FabricKind::Tcp);
    let one = w.get(light, &["light".to_string()], LockType::Atomic)[0];
    w.take(light, &one, LockType::Atomic);
    w.primary.fenced(heavy);
    w.primary.fenced(light);
    let mut gone = Vec::new();
    let mut steps = 0;
    while w.primary.is_undoing() {
        gone.extend(w.step(NOW, QUANTUM).gone);
        steps += 1;
        if steps == 2 {
            assert_eq!(gone, [light], "who has little is not behind who has much");
        }
    }
    assert_eq!(gone, [light, heavy]);
}

/// Everybody has got one lock, and all but the holder wait for it.
fn crowd(lock_type: LockType, mode: Mode, fabric: FabricKind) -> (World, ClientId) {
    let mut w = World::new(CLIENTS_MAX);
    let holder = w.client(1, fabric);
    let grant = w.get(holder, &names(1), lock_type)[0];
    w.take(holder, &grant, lock_type);
    for id in 2..=CLIENTS_MAX as u32 {
        let client = w.client(id, fabric);
        let grant = w.get(client, &names(1), lock_type)[0];
        w.wait(client, &grant, mode);
    }
    (w, holder)
}

#[test]
fn a_step_on_a_lock_with_a_thousand_waiters_has_bounded_work() {
    let kinds = [
        (LockType::Atomic, Mode::Exclusive),
        (LockType::Rw, Mode::Exclusive),
        (LockType::Rw, Mode::Shared),
    ];
    for (lock_type, mode) in kinds {
        for fabric in [FabricKind::Tcp, FabricKind::Shm] {
            let (mut w, holder) = crowd(lock_type, mode, fabric);
            w.primary.fenced(holder);
            let mut worst = 0;
            while w.primary.next_wakeup().is_some_and(|at| at <= NOW) {
                let before = w.out.len();
                worst = worst.max(w.step(NOW, 1).work);
                // one look, and one undoing that ends in a look
                assert!(w.out.len() - before <= 2 * GRANTS_PER_LOOK);
            }
            assert!(worst > CLIENTS_MAX as u32, "the crowd was visited: {worst}");
            let granted = w.out.iter().filter(|s| matches!(s.reply, Reply::Granted { .. }));
            let wanted = if mode == Mode::Shared { CLIENTS_MAX - 1 } else { 1 };
            assert_eq!(granted.count(), wanted, "{lock_type:?} {mode:?} {fabric:?}");
        }
    }
}

#[test]
fn locks_that_expire_in_the_same_second_are_handed_over_in_short_steps() {
    let mut w = World::new(10);
    let holder = w.client(1, FabricKind::Shm);
    let waiter = w.client(2, FabricKind::Shm);
    let names = names(3_000);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    for grant in w.get(waiter, &names, LockType::Atomic) {
        w.wait(waiter, &grant, Mode::Exclusive);
    }
    let later = NOW.plus_ns(u64::from(LEASE_S + 1) * NS);
    let mut steps = 0;
    while w.primary.next_wakeup().is_some_and(|at| at <= later) {
        let step = w.step(later, QUANTUM);
        assert!(step.work <= QUANTUM + 16, "{step:?}");
        steps += 1;
    }
    assert!(steps > 100, "{steps}");
    let granted = w.out.iter().filter(|s| matches!(s.reply, Reply::Granted { .. }));
    assert_eq!(granted.count(), names.len());
}

#[test]
fn objects_of_a_client_that_leaves_or_is_fenced_are_undone_in_steps() {
    for leaves in [true, false] {
        let mut w = World::new(10);
        let (owner, other) = (w.client(1, FabricKind::Tcp), w.client(2, FabricKind::Tcp));
        for i in 0..500 {
            let name = format!("object {i}").into_bytes();
            let create = ControlRequest::ObjectCreate { name: name.clone(), lease_s: 9, init: 1 };
            assert!(matches!(w.control(owner, create), ControlReply::Created(_)));
            let get = ControlRequest::ObjectGet { name, lease_s: 9 };
            assert!(matches!(w.control(owner, get), ControlReply::Object(_)));
        }
        let mine = ControlRequest::ObjectGet { name: b"object 7".to_vec(), lease_s: 9 };
        let ControlReply::Object(mine) = w.control(other, mine) else { panic!("not got") };
        if leaves {
            assert_eq!(w.control(owner, ControlRequest::Deinit), ControlReply::Done);
        }
        let destroyed = w.control(other, ControlRequest::ObjectDestroy(mine.object));
        let wanted = match leaves {
            true => ControlReply::Done,
            false => ControlReply::Error(Status::ObjectInvalidOwner),
        };
        assert_eq!(destroyed, wanted, "what a client leaves behind is everybody's at once");
        w.primary.fenced(owner);
        let mut steps = 0;
        while w.primary.is_undoing() {
            let step = w.step(NOW, QUANTUM);
            assert!(step.work <= QUANTUM + 16, "{step:?}");
            steps += 1;
        }
        assert!(steps > 500 / QUANTUM, "{steps}");
        let objects = if leaves { 500 } else { 1 };
        assert_eq!(w.primary.totals(), (1, 0, objects), "leaves: {leaves}");
        assert_eq!(w.primary.assert_consistent(), Ok(()));
    }
}

#[test]
fn the_waits_of_an_ended_channel_are_dropped_in_steps_and_before_new_requests() {
    let mut w = World::new(10);
    let holder = w.client(1, FabricKind::Shm);
    let waiter = w.client(2, FabricKind::Tcp);
    let names = names(2_000);
    let grants = w.get(holder, &names, LockType::Atomic);
    grants.iter().for_each(|grant| w.take(holder, grant, LockType::Atomic));
    let mine = w.get(waiter, &names, LockType::Atomic);
    mine.iter().for_each(|grant| _ = w.wait(waiter, grant, Mode::Exclusive));
    w.primary.detached(NOW, &mut w.memory, waiter, &mut w.out);
    assert_eq!(w.primary.assert_consistent(), Ok(()));
    let left = |w: &World| mine.iter().filter(|grant| w.primary.waiters(grant.slot) > 0).count();
    assert!(left(&w) > 1_900, "the most of it is left to steps");

    // on its new channel it waits for the last of these locks again: that wait stays
    w.primary.attached(NOW, &mut w.memory, waiter, FabricKind::Tcp, &mut w.out);
    let last = mine.iter().max_by_key(|grant| grant.slot).unwrap();
    let again = w.wait(waiter, last, Mode::Exclusive);
    let (mut steps, mut work) = (0, 0);
    while w.primary.next_wakeup().is_some_and(|at| at <= NOW) {
        let step = w.step(NOW, QUANTUM);
        assert!(step.work <= QUANTUM + 16, "{step:?}");
        steps += 1;
        work += step.work;
    }
    assert!(work >= 4 * 1_900, "each wait, its queue, and two words: {work}");
    assert!(steps > 50, "{steps}");
    assert_eq!((left(&w), w.primary.waiters(last.slot)), (1, 1));
    assert_eq!(w.primary.assert_consistent(), Ok(()));
    w.primary.fenced(holder);
    while w.step(NOW, QUANTUM).gone != Some(holder) {}
    assert!(w.granted(again), "and is granted");
    assert_eq!(w.out.len(), 1, "nothing else was answered: {:?}", w.out);
}

#[test]
fn a_client_with_many_locks_maps_the_memory_and_they_are_told_in_short_steps() {
    const MANY: usize = 5_000;
    for leaves_at_once in [false, true] {
        let mut w = World::new(10);
        let reader = w.client(5, FabricKind::Tcp);
        let grants = w.get(reader, &names(MANY), LockType::Rw);
        let last = grants[MANY - 1];
        let request = Request::Wait {
            handle: last.handle,
            mode: Mode::Shared,
            expire_s: LEASE_S,
            wait: WaitNumber(1),
            ticket: None,
        };
        w.primary.command(NOW, &mut w.memory, reader, Seq(1), request, &mut w.out);
        assert!(w.granted(Seq(1)), "the primary itself gives it the share");

        w.primary.attached(NOW, &mut w.memory, reader, FabricKind::Shm, &mut w.out);
        let more = |w: &World| w.primary.next_wakeup().is_some_and(|at| at <= NOW);
        assert!(more(&w), "most locks are told later");
        let writer = w.client(6, FabricKind::Shm);
        let its = w.get(writer, &names(MANY)[MANY - 1..], LockType::Rw)[0];
        w.seq = 1;
        let wait = w.wait(writer, &its, Mode::Exclusive); // the share counts, told or not
        let mut steps = 0;
        while !leaves_at_once && more(&w) {
            w.step(NOW, QUANTUM);
            steps += 1;
        }
        assert!(leaves_at_once || steps >= MANY / QUANTUM as usize, "{steps}");
        assert!(!w.granted(wait));
        w.primary.fenced(reader);
        while w.primary.is_leaving(reader) {
            w.step(NOW, QUANTUM);
        }
        assert!(w.granted(wait), "the share went with its client");
        assert_eq!(w.primary.assert_consistent(), Ok(()));
    }
}
