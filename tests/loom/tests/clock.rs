// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words that a client's threads share and rarely replace: the estimate of the server clock.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The same algorithm as `dlock_fabric::memory::published::Published`, with two words.
struct Parts {
    version: AtomicU64,
    parts: [AtomicU64; 2],
    writing: Mutex<()>,
}

impl Parts {
    fn get(&self, order: Ordering) -> [u64; 2] {
        let parts = || [self.parts[0].load(order), self.parts[1].load(order)];
        let version = self.version.load(Ordering::Acquire);
        let seen = parts();
        if version % 2 == 0 && self.version.load(Ordering::Relaxed) == version {
            return seen;
        }
        let _writing = self.writing.lock().unwrap();
        parts()
    }

    fn set(&self, value: u64, order: Ordering) {
        let _writing = self.writing.lock().unwrap();
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        self.parts.iter().for_each(|part| part.store(value, order));
        self.version.store(version + 2, Ordering::Release);
    }
}

fn an_estimate_is_read(load: Ordering, store: Ordering) {
    loom::model(move || {
        let new = || AtomicU64::new(0);
        let shared =
            Arc::new(Parts { version: new(), parts: [new(), new()], writing: Mutex::new(()) });
        let writer = thread::spawn({
            let shared = shared.clone();
            move || shared.set(1, store)
        });
        let seen = [shared.get(load), shared.get(load)];
        assert!(seen.iter().all(|[a, b]| a == b), "torn: {seen:?}");
        assert!(seen[0] <= seen[1], "backwards: {seen:?}");
        writer.join().unwrap();
        assert_eq!(shared.get(load), [1, 1]);
    });
}

/// A reader that sees a part of a write also sees that the version has changed.
#[test]
fn an_estimate_is_read_whole() {
    an_estimate_is_read(Ordering::Acquire, Ordering::Release);
}

#[test]
#[should_panic(expected = "torn")]
fn an_estimate_that_is_written_in_any_order_is_torn() {
    an_estimate_is_read(Ordering::Relaxed, Ordering::Relaxed);
}
