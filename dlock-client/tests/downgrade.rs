// SPDX-License-Identifier: MIT OR Apache-2.0
//! An exclusive hold that becomes a share on real fabrics: readers come in, a writer waits on, and
//! no writer comes in between.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{client, fabrics, server, S, X};
use dlock_client::{Error, Lock, LockType};

const AMPLE: Duration = Duration::from_secs(20);
/// Long enough for other threads to have queued, most likely.
const MOMENT: Duration = Duration::from_millis(100);
const KINDS: [LockType; 2] = [LockType::Rw, LockType::Fair];

fn wait(lock: &Lock, mode: dlock_client::Mode) -> dlock_client::Guard<'_> {
    lock.acquire(mode).wait(AMPLE).guard().expect("a grant")
}

#[test]
fn a_reader_that_waits_joins_a_writer_that_downgrades_and_a_writer_waits_on() {
    let server = server();
    for (fabric, lock_type) in fabrics().into_iter().flat_map(|f| KINDS.map(|kind| (f, kind))) {
        let name = format!("joined {fabric:?} {lock_type:?}");
        let clients = [(); 3].map(|()| client(&server, fabric));
        let locks =
            clients.each_ref().map(|client| client.lock_with_tokens(&name, lock_type).unwrap());
        let [a, b, c] = &locks;
        let mut held = wait(a, X);
        let (token, generation) = (held.token().unwrap(), held.generation());
        let has_written = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| wait(b, S));
            thread::sleep(MOMENT);
            let writer = scope.spawn(|| {
                let guard = wait(c, X);
                has_written.store(true, Ordering::Relaxed);
                guard.token().unwrap()
            });
            thread::sleep(MOMENT);
            held.downgrade().unwrap();
            let shared = reader.join().unwrap();
            assert_eq!((held.mode(), held.generation()), (S, generation), "{name}");
            assert!(held.token() > Some(token), "{name}: {:?} {token}", held.token());
            assert_eq!(shared.token(), held.token(), "{name}");
            thread::sleep(MOMENT);
            assert!(!has_written.load(Ordering::Relaxed), "{name}: two readers are inside");
            held.check().unwrap();
            held.downgrade().expect("it is a share already");
            let last = shared.token();
            shared.unlock().unwrap();
            thread::sleep(MOMENT);
            assert!(!has_written.load(Ordering::Relaxed), "{name}: a reader is inside");
            held.unlock().unwrap();
            assert!(Some(writer.join().unwrap()) > last, "{name}");
        });
    }
}

/// After its downgrade, a writer reads the value that it wrote before.
#[test]
fn no_writer_comes_in_between() {
    const ROUNDS: u32 = 40;
    let server = server();
    for (fabric, lock_type) in fabrics().into_iter().flat_map(|f| KINDS.map(|kind| (f, kind))) {
        let name = format!("between {fabric:?} {lock_type:?}");
        let written = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let client = client(&server, fabric);
                    let lock = client.lock_with_tokens(&name, lock_type).unwrap();
                    for _ in 0..ROUNDS {
                        let mut guard = wait(&lock, X);
                        let mine = written.fetch_add(1, Ordering::Relaxed) + 1;
                        guard.downgrade().unwrap();
                        assert_eq!(written.load(Ordering::Relaxed), mine, "{name}");
                        guard.unlock().unwrap();
                    }
                });
            }
        });
        assert_eq!(written.load(Ordering::Relaxed), 3 * ROUNDS, "{name}");
    }
}

#[test]
fn threads_of_the_same_client_share_the_hold_after_a_downgrade() {
    let server = server();
    for (fabric, lock_type) in fabrics().into_iter().flat_map(|f| KINDS.map(|kind| (f, kind))) {
        let name = format!("same {fabric:?} {lock_type:?}");
        let client = client(&server, fabric);
        let lock = client.lock_with_tokens(&name, lock_type).unwrap();
        let mut held = wait(&lock, X);
        thread::scope(|scope| {
            let reader = scope.spawn(|| wait(&lock, S).unlock());
            thread::sleep(MOMENT);
            held.downgrade().unwrap();
            reader.join().unwrap().unwrap();
        });
        held.check().unwrap();
    }
}

#[test]
fn an_atomic_lock_has_no_shares() {
    let server = server();
    let client = client(&server, fabrics()[0]);
    let lock = client.atomic_lock("atomic").unwrap();
    let mut held = wait(&lock, X);
    assert!(matches!(held.downgrade(), Err(Error::Invalid(_))));
    held.check().expect("it is held as before");
}
