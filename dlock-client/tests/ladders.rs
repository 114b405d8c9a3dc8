// SPDX-License-Identifier: MIT OR Apache-2.0
//! The codes of the C API, call by call, on every executor.

mod common;

use common::{desc, fabrics, got, join, server, status, S, X};
use dlock_client::raw::{AsyncOp, Instance, OpResult, TimeOut, View};
use dlock_client::{LockDesc, LockId, LockType, ObjectId, Status};
use dlock_core::clock::Lease;
use dlock_core::limits::DESC_LEN_MAX;
use Status::*;

const NOTHING: OpResult = OpResult { status: Done, view: None };

#[test]
fn a_lock_has_one_id_for_all_clients_and_one_reference_per_client() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let id = got(&a, "lock desc 1", LockType::Atomic);
        assert_eq!(id, LockId(1_252_963_582), "the hash of its name");
        assert_eq!(got(&b, "lock desc 1", LockType::Atomic), id);
        assert_eq!(a.get_lock(desc("lock desc 1", LockType::Atomic)), (Error, Some(id)));
        assert_eq!(b.get_lock(desc("lock desc 1", LockType::Rw)), (Error, None));
        let long = LockDesc { name: vec![1; DESC_LEN_MAX + 1], ..desc("", LockType::Rw) };
        assert_eq!(a.get_lock(long), (Invalid, None));
        assert_eq!(a.get_lock(desc("", LockType::Rw)), (Invalid, None));
        assert_eq!(a.release_lock(id), Success);
        assert_eq!(a.release_lock(id), Error);
        assert_eq!(status(a.trylock(id, X, 5)), LockNotGet);
        assert_eq!(b.release_lock(id), Success);
        assert_eq!((a.deinit(), b.deinit()), (Success, Success));
        assert_eq!(a.deinit(), Error);
    }
}

#[test]
fn locks_are_got_and_released_in_batches() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        got(&b, "other type", LockType::Fair);
        let known = got(&a, "known", LockType::Rw);
        let descs = vec![
            desc("new", LockType::Atomic),
            desc("known", LockType::Rw),
            desc("other type", LockType::Atomic),
        ];
        let ids = a.batch_get_lock(descs).unwrap();
        let new = ids[0].unwrap();
        assert_eq!(ids[1..], [Ok(known), Err(Error)]);
        assert_eq!(a.batch_get_lock(vec![]), Err(Invalid));
        assert_eq!(a.batch_get_lock(vec![desc("x", LockType::Rw); 32]), Err(Invalid));
        assert_eq!(a.batch_get_lock(vec![desc("", LockType::Rw)]), Err(Invalid));

        assert_eq!(status(a.trylock(known, X, 5)), Success);
        let mut ids = [new.0, known.0, 12, new.0];
        assert_eq!(a.batch_release_lock(&mut ids), Success);
        assert_eq!(ids, [new.0, 0, 0, 0], "held, not got, named twice");
        assert_eq!(a.batch_release_lock(&mut [known.0]), Error, "none can be released");
        assert_eq!(a.batch_release_lock(&mut []), Invalid);
        assert_eq!(status(a.unlock(known)), Success);
        assert_eq!(a.batch_release_lock(&mut [known.0]), Success);
        let many: Vec<LockDesc> =
            (0..31).map(|i| desc(&format!("many {i}"), LockType::Atomic)).collect();
        let ids = a.batch_get_lock(many).unwrap();
        let mut ids: Vec<i32> = ids.into_iter().map(|id| id.unwrap().0).collect();
        assert_eq!(a.batch_release_lock(&mut ids), Success);
        assert!(ids.iter().all(|&id| id > 0));
        assert_eq!(b.deinit(), Success);
    }
}

#[test]
fn an_atomic_lock_walks_its_table() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let id = got(&a, "atomic", LockType::Atomic);
        got(&b, "atomic", LockType::Atomic);
        assert_eq!(status(a.trylock(id, S, 5)), Invalid);
        assert_eq!(status(a.unlock(id)), AlreadyUnlocked);
        assert_eq!(status(a.extend(id, X, 5)), Invalid);
        let free = View::Atomic { client_id: 0, time_out: TimeOut::NONE };
        assert_eq!(a.trylock(id, X, 0), OpResult { status: Success, view: Some(free) });

        let taken = a.trylock(id, X, 10);
        let Some(View::Atomic { client_id, time_out }) = taken.view else { panic!("{taken:?}") };
        assert_eq!((taken.status, client_id), (Success, a.id().get()));
        assert_eq!(b.trylock(id, X, 10), OpResult { status: Fail, view: None });
        let again = a.trylock(id, X, 60);
        let Some(View::Atomic { time_out: later, .. }) = again.view else { panic!("{again:?}") };
        assert_eq!(again.status, AlreadyLocked);
        assert!(later.seconds() >= time_out.seconds() + 49, "a re-entry extends the lease");
        assert_eq!(a.lock(id, X, 60).status, AlreadyLocked, "at once");
        assert_eq!(status(a.extend(id, X, 0)), Success);
        assert_eq!(status(a.extend(id, S, 5)), Invalid);
        assert_eq!(a.release_lock(id), Error);
        let partial = a.unlock(id);
        assert_eq!(partial, OpResult { status: AlreadyLocked, view: None });
        assert_eq!(status(a.unlock(id)), AlreadyLocked);
        assert_eq!(a.unlock(id), OpResult { status: Success, view: Some(free) });
        assert_eq!(status(a.unlock(id)), AlreadyUnlocked);
        assert_eq!(status(b.trylock(id, X, 10)), Success);
        assert_eq!(status(b.unlock(id)), Success);
    }
}

#[test]
fn a_read_write_lock_walks_its_table() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let id = got(&a, "rw", LockType::Rw);
        got(&b, "rw", LockType::Rw);
        assert_eq!(status(a.trylock(id, S, 5)), Success);
        assert_eq!(status(a.trylock(id, S, 5)), AlreadyLocked);
        assert_eq!(status(a.trylock(id, X, 5)), Invalid);
        let shared = b.trylock(id, S, 5);
        let Some(View::Rw { rcount, client_id, .. }) = shared.view else { panic!("{shared:?}") };
        assert_eq!((shared.status, rcount, client_id), (Success, 2, 0));
        assert_eq!(status(a.extend(id, S, 5)), Invalid, "there is no lease");
        assert_eq!(status(a.unlock(id)), AlreadyLocked);
        assert_eq!(status(a.unlock(id)), Success);
        assert_eq!(status(a.trylock(id, X, 5)), Fail, "a reader is left");
        assert_eq!(status(b.unlock(id)), Success);
        let taken = a.trylock(id, X, 5);
        let Some(View::Rw { rcount, client_id, .. }) = taken.view else { panic!("{taken:?}") };
        assert_eq!((taken.status, rcount, client_id), (Success, 0, a.id().get()));
        assert_eq!(status(a.trylock(id, X, 5)), AlreadyLocked);
        assert_eq!(status(a.trylock(id, S, 5)), Invalid);
        assert_eq!(status(b.trylock(id, S, 5)), Fail);
        assert_eq!(status(b.trylock(id, X, 5)), Fail);
        assert_eq!([status(a.unlock(id)), status(a.unlock(id))], [AlreadyLocked, Success]);
        assert_eq!(status(b.trylock(id, S, 5)), Success);
        assert_eq!(status(b.unlock(id)), Success);
    }
}

#[test]
fn a_fair_lock_gives_tickets_and_serves_them_in_order() {
    let server = server();
    for fabric in fabrics() {
        let clients: Vec<Instance> = (0..3).map(|_| join(&server, fabric)).collect();
        let [a, b, c] = &clients[..] else { unreachable!() };
        let id = got(a, "fair", LockType::Fair);
        got(b, "fair", LockType::Fair);
        got(c, "fair", LockType::Fair);
        assert_eq!(status(a.trylock(id, X, 30)), Success);
        assert_eq!(status(a.trylock(id, X, 30)), AlreadyLocked);
        assert_eq!(status(a.extend(id, X, 30)), Success);
        assert_eq!([status(a.extend(id, S, 30)), status(a.trylock(id, S, 30))], [Invalid; 2]);
        assert_eq!(status(b.trylock(id, X, 30)), Again);
        assert_eq!(status(b.trylock(id, X, 30)), Again);
        assert_eq!(status(b.trylock(id, S, 30)), Ticket);
        assert_eq!(status(b.extend(id, X, 30)), Invalid);
        assert_eq!(b.release_lock(id), TicketToUnlock);
        assert_eq!(status(c.trylock(id, S, 30)), Again);
        assert_eq!([status(a.unlock(id)), status(a.unlock(id))], [AlreadyLocked, Success]);
        assert_eq!(status(c.trylock(id, S, 30)), Again, "it is not its turn");
        assert_eq!(status(b.trylock(id, X, 30)), Success);
        assert_eq!(status(b.unlock(id)), Success);
        assert_eq!(status(c.trylock(id, S, 30)), Success);
        assert_eq!(status(c.unlock(id)), Success);
        assert_eq!(status(c.unlock(id)), AlreadyUnlocked);
    }
}

#[test]
fn a_ticket_that_is_given_up_holds_nobody_up() {
    let server = server();
    for fabric in fabrics() {
        let clients: Vec<Instance> = (0..3).map(|_| join(&server, fabric)).collect();
        let [a, b, c] = &clients[..] else { unreachable!() };
        let id = got(a, "abandoned", LockType::Fair);
        got(b, "abandoned", LockType::Fair);
        got(c, "abandoned", LockType::Fair);
        assert_eq!(status(a.trylock(id, X, 30)), Success);
        assert_eq!(status(b.trylock(id, X, 30)), Again);
        assert_eq!(status(c.trylock(id, X, 30)), Again);
        assert_eq!(status(b.unlock(id)), Success, "local: the ticket is given up");
        assert_eq!(status(b.unlock(id)), AlreadyUnlocked);
        assert_eq!(status(a.unlock(id)), Success);
        assert_eq!(status(c.lock(id, X, 30)), Success);
        assert_eq!(status(c.unlock(id)), Success);
    }
}

#[test]
fn batches_do_what_single_calls_do() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let atomic = got(&a, "batch atomic", LockType::Atomic);
        let rw = got(&a, "batch rw", LockType::Rw);
        let fair = got(&a, "batch fair", LockType::Fair);
        for (name, lock_type) in [
            ("batch atomic", LockType::Atomic),
            ("batch rw", LockType::Rw),
            ("batch fair", LockType::Fair),
        ] {
            got(&b, name, lock_type);
        }
        let mut out = [NOTHING; 4];
        let items = [(atomic, X, 30), (rw, S, 30), (fair, X, 30), (LockId(3), X, 30)];
        assert_eq!(a.batch_trylock(&items, &mut out), Success);
        assert_eq!(out.map(status), [Success, Success, Success, LockNotGet]);
        assert_eq!(b.batch_trylock(&items, &mut out), Success);
        assert_eq!(out.map(status), [Fail, Success, Again, LockNotGet]);
        let items = [(atomic, X, 0), (rw, S, 0), (fair, X, 9), (fair, S, 9)];
        assert_eq!(a.batch_extend(&items, &mut out), Success);
        assert_eq!(out.map(status), [Success, Invalid, Success, Invalid]);
        assert_eq!(a.batch_trylock(&[(atomic, X, 30), (rw, S, 30)], &mut out), Success);
        assert_eq!(out[..2].iter().map(|r| r.status).collect::<Vec<_>>(), [AlreadyLocked; 2]);
        let unlocks = [atomic, rw, fair, fair];
        assert_eq!(a.batch_unlock(&unlocks, &mut out), Success);
        assert_eq!(out.map(status), [AlreadyLocked, AlreadyLocked, Success, AlreadyUnlocked]);
        assert_eq!(a.batch_unlock(&[atomic, rw], &mut out), Success);
        assert_eq!(out[..2].iter().map(|r| r.status).collect::<Vec<_>>(), [Success; 2]);
        assert_eq!(status(b.trylock(fair, X, 30)), Success, "its ticket is served");
        assert_eq!(b.batch_unlock(&[rw, fair], &mut out), Success);
        assert_eq!(out[..2].iter().map(|r| r.status).collect::<Vec<_>>(), [Success; 2]);
        assert_eq!(a.batch_trylock(&[], &mut out), Invalid);
    }
}

#[test]
fn duplicates_in_a_batch_leave_nothing_behind() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        for (i, (lock_type, mode, second)) in [
            (LockType::Atomic, X, Fail),
            (LockType::Rw, X, Fail),
            (LockType::Rw, S, Success),
            (LockType::Fair, X, Success),
            (LockType::Fair, S, Success),
        ]
        .into_iter()
        .enumerate()
        {
            let id = got(&a, &format!("double {i}"), lock_type);
            got(&b, &format!("double {i}"), lock_type);
            let mut out = [NOTHING; 2];
            assert_eq!(a.batch_trylock(&[(id, mode, 30); 2], &mut out), Success);
            assert_eq!(out.map(status), [Success, second], "{lock_type:?} {mode:?}");
            let last = if second == Success { Success } else { AlreadyUnlocked };
            let first = if second == Success { AlreadyLocked } else { Success };
            assert_eq!(a.batch_unlock(&[id; 2], &mut out), Success);
            assert_eq!(out.map(status), [first, last], "{lock_type:?} {mode:?}");
            assert_eq!(status(b.trylock(id, X, 30)), Success, "{lock_type:?} {mode:?}");
            assert_eq!(status(b.unlock(id)), Success);
        }
    }
}

fn finished(instance: &Instance) -> OpResult {
    let mut result = NOTHING;
    common::eventually(60, "the asynchronous operation ends", || {
        result = instance.result_check();
        result.status != AsyncAgain
    });
    result
}

#[test]
fn asynchronous_operations_do_what_single_calls_do() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let take = AsyncOp::TryLock { mode: X, expire_s: 30 };
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let name = format!("async {lock_type:?}");
            let id = got(&a, &name, lock_type);
            got(&b, &name, lock_type);
            assert_eq!(a.request_async(id, take), Success);
            assert_eq!(status(a.trylock(id, X, 30)), Async);
            assert_eq!(a.request_async(id, take), Async);
            assert_eq!(a.release_lock(id), Async);
            assert_eq!(finished(&a).status, Success);
            assert_eq!(status(a.result_check()), NoAsync);
            assert_eq!(b.request_async(id, take), Success);
            let refused = if lock_type == LockType::Fair { Again } else { Fail };
            assert_eq!(finished(&b).status, refused);
            if lock_type == LockType::Fair {
                assert_eq!(b.request_async(id, AsyncOp::Unlock), Success);
                assert_eq!(status(b.result_check()), NoAsync, "the ticket was given up at once");
            }
            if lock_type == LockType::Rw {
                assert_eq!(a.request_async(id, take), AlreadyLocked);
                assert_eq!(a.request_async(id, AsyncOp::Unlock), AlreadyLocked);
            } else {
                assert_eq!(a.request_async(id, AsyncOp::Extend { mode: X, expire_s: 0 }), Success);
                assert_eq!(finished(&a).status, Success);
                assert_eq!(a.request_async(id, take), Success);
                assert_eq!(finished(&a).status, AlreadyLocked);
                assert_eq!(a.request_async(id, AsyncOp::Unlock), AlreadyLocked);
            }
            assert_eq!(a.request_async(id, AsyncOp::Unlock), Success);
            assert_eq!(finished(&a).status, Success);
            assert_eq!(a.request_async(id, AsyncOp::Unlock), AlreadyUnlocked);
        }
    }
}

#[test]
fn objects_walk_their_ladder() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        assert_eq!(a.object_create(b"", Lease::secs(60), 0), Err(Invalid));
        assert_eq!(a.object_create(b"o", Lease::NONE, 0), Err(Invalid));
        assert_eq!(a.object_get(b"o", Lease::secs(60)), Err(ObjectNotCreate));
        let id = a.object_create(b"o", Lease::secs(60), 41).unwrap();
        assert_eq!(a.object_create(b"o", Lease::secs(60), 0), Err(ObjectCreated));
        assert_eq!(b.object_create(b"o", Lease::secs(60), 0), Err(ObjectExisted));
        assert_eq!(a.faa(id, 1), Err(ObjectNotGet), "creating is not getting");
        assert_eq!(a.object_get(b"o", Lease::secs(60)), Ok(id));
        assert_eq!(b.object_get(b"o", Lease::secs(60)), Ok(id));
        assert_eq!(b.object_get(b"o", Lease::secs(60)), Ok(id));
        assert_eq!(a.faa(id, 1), Ok(41));
        assert_eq!(b.snapshot(id), Ok(42));
        assert_eq!(b.cas(id, 42, u64::MAX), Success);
        assert_eq!(b.cas(id, 42, 7), ObjectCasFailed);
        assert_eq!(a.faa(id, 2), Ok(u64::MAX));
        assert_eq!(a.snapshot(id), Ok(1), "it wraps");
        assert_eq!(b.object_destroy(id), ObjectInvalidOwner);
        assert_eq!(a.object_destroy(id), Success);
        assert_eq!(a.object_destroy(id), ObjectDestroyed);
        assert_eq!(b.faa(id, 1), Ok(1), "handles outlive it while its lease lasts");
        assert_eq!(b.object_release(id), Success);
        assert_eq!(b.object_release(id), ObjectNotGet);
        assert_eq!(b.faa(id, 1), Err(ObjectNotGet));
        assert_eq!(a.object_release(id), Success);
        assert_eq!(a.snapshot(id), Err(ObjectNotGet));
        assert_eq!(a.snapshot(ObjectId(77)), Err(ObjectNotGet));
        assert_eq!(a.object_destroy(ObjectId(77)), ObjectNotCreate);
        let id = b.object_create(b"o", Lease::secs(60), 5).unwrap();
        assert_eq!(b.object_get(b"o", Lease::secs(60)), Ok(id));
        assert_eq!(b.snapshot(id), Ok(5), "a new object has its own first value");
        assert_eq!(b.object_destroy(id), Success);
        assert_eq!(b.object_release(id), Success);
    }
}

#[test]
fn counters_count_and_are_cleared() {
    let server = server();
    for fabric in fabrics() {
        let a = join(&server, fabric);
        let id = got(&a, "counted", LockType::Rw);
        a.trylock(LockId(5), X, 1);
        a.trylock(id, S, 1);
        a.trylock(id, S, 1);
        a.unlock(id);
        a.unlock(id);
        a.unlock(id);
        a.trylock(id, X, 0);
        let stats = a.stats();
        assert_eq!((stats[11], stats[12], stats[13]), (1, 2, 1));
        a.clear_stats();
        assert_eq!(a.stats().iter().sum::<u64>(), 0);
        assert_eq!(a.deinit(), Success);
    }
}
