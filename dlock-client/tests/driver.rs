// SPDX-License-Identifier: MIT OR Apache-2.0
//! The single thread of the library in a client process, and the situations that must not hold it
//! up.

mod common;

use std::fs;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::{eventually, fabrics, got, status, ChildPrimary, X};
use dlock_client::raw::Instance;
use dlock_client::{
    Address, Client, ClientConfig, Config, LockType, Mode::Exclusive, Status, Wait,
};

const LONG: Duration = Duration::from_secs(300);
const BOUND_S: u64 = 60;

/// Held by each test: tests count the threads of the process, so only one may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Not a test by itself: the primary, in a child process.
#[test]
fn serves_as_child() {
    common::serve_as_child();
}

/// The threads of the library, by name.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dlock-")).map(|name| name.trim().to_string()).collect()
}

/// The processor time that these threads have used.
fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let is_ours = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("dlock-"))
    };
    let used = tasks.filter(is_ours).filter_map(|task| {
        let times = fs::read_to_string(task.join("schedstat")).ok()?;
        times.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    });
    used.sum()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl IntoFuture<Output = T>) -> T {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(Duration::from_secs(BOUND_S)),
        }
    }
}

fn by_itself(primary: &ChildPrimary, fabric: dlock_client::FabricChoice) -> Client {
    let address: Address = format!("127.0.0.1:{}", primary.port).parse().unwrap();
    let config = Config::new().port(primary.port).fabric(fabric).primaries([address]);
    Client::with_config(&config, "127.0.0.1").unwrap()
}

#[test]
fn clients_with_heartbeats_failover_and_futures_have_one_thread_and_none_before_the_first_need() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    eventually(BOUND_S, "those of the other test end", || threads().is_empty());
    for fabric in fabrics() {
        let primary = ChildPrimary::start("serves_as_child");
        let without = Config::new().port(primary.port).fabric(fabric).without_horizon();
        let without = Client::with_config(&without, "127.0.0.1").unwrap();
        without.atomic_lock("none").unwrap().acquire(Exclusive).guard().unwrap().unlock().unwrap();
        assert_eq!(threads(), [""; 0], "nothing needs one");
        let clients = [(); 3].map(|()| by_itself(&primary, fabric));
        let held = without.atomic_lock("held").unwrap();
        let guard = held.acquire(Exclusive).lease(LONG).guard().unwrap();
        let locks = clients.each_ref().map(|client| client.atomic_lock("held").unwrap());
        let mut waiting = locks
            .each_ref()
            .map(|lock| Box::pin(lock.acquire(Exclusive).lease(LONG).wait(LONG).into_future()));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        for future in &mut waiting {
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let (before, start) = (cpu_time(), Instant::now());
        thread::sleep(Duration::from_secs(1));
        assert!(cpu_time() - before < start.elapsed() / 4, "it sleeps while they wait");
        let free = clients[0].fair_lock("free").unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            let taken = block_on(free.acquire(Exclusive).lease(LONG)).unwrap();
            assert_eq!(threads(), ["dlock-client"]);
            block_on(taken.unlock_async()).unwrap();
            assert_eq!(threads(), ["dlock-client"]);
        }
        guard.unlock().unwrap();
        for future in waiting {
            block_on(future).unwrap().unlock().unwrap();
        }
        assert_eq!(threads(), ["dlock-client"]);
        drop((locks, free, clients));
        eventually(BOUND_S, "it ends with the last need", || threads().is_empty());
    }
}

/// Clients wait for the stopped primary: for connections, answers and futures. The session of `b`,
/// at the other primary, lives by the library's heartbeats alone.
#[test]
fn a_primary_that_is_stopped_holds_up_no_heartbeat_and_no_future_of_the_clients_of_another() {
    const HORIZON_S: u32 = 2;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for fabric in fabrics() {
        let [stopped, other] = [(); 2].map(|()| ChildPrimary::start("serves_as_child"));
        let a = by_itself(&stopped, fabric);
        let lock = a.atomic_lock("held").unwrap();
        let mut owned = Some(lock.acquire(Exclusive).lease(LONG).owned().unwrap());
        let config = ClientConfig { horizon_s: Some(HORIZON_S), ..other.config(fabric) };
        let b = Instance::init(&config, "127.0.0.1").unwrap();
        let held = got(&b, "held", LockType::Rw);
        assert_eq!(status(b.trylock(held, X, 600)), Status::Success);
        let c = other.client(fabric);
        let free = c.atomic_lock("free").unwrap();
        stopped.freeze();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut release = Box::pin(owned.take().unwrap().unlock_async());
        let _ = release.as_mut().poll(&mut context); // the release may be refused at once
        let start = Instant::now();
        let mut futures = Vec::new();
        while start.elapsed() < Duration::from_secs(4 * u64::from(HORIZON_S)) {
            let mut future = Box::pin(lock.acquire(Exclusive).lease(LONG).into_future());
            let _ = future.as_mut().poll(&mut context);
            futures.push(future);
            let asked = Instant::now();
            let taken = block_on(free.acquire(Exclusive).lease(LONG).wait(Wait::No)).unwrap();
            block_on(taken.unlock_async()).unwrap();
            assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
            thread::sleep(Duration::from_millis(50));
        }
        stopped.thaw();
        drop((futures, release));
        assert_eq!(status(b.unlock(held)), Status::Success, "its session has not ended");
    }
}
