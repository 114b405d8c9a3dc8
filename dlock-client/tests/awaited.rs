// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients for which a successor waits, and the clients that wait meanwhile.

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{address_of_thread, eventually, fabrics, got, name, server_at, status, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockType, Status, Status::*};
use dlock_server::{Server, ServerConfig};

/// Primaries of one address and one state file, one after the other.
struct Place {
    folder: PathBuf,
    bind: IpAddr,
    port: u16,
    deadline_s: u64,
}

impl Place {
    fn new(of: &str, deadline_s: u64) -> Self {
        let folder =
            std::env::temp_dir().join(format!("dlock-awaited-{of}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, bind: address_of_thread(), port: 0, deadline_s }
    }

    fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    fn primary(&mut self) -> Server {
        let config = ServerConfig {
            bind: self.bind,
            state_file: Some(self.state()),
            recovery_deadline: Duration::from_secs(self.deadline_s),
            ..Default::default()
        };
        let server = server_at(self.port, config);
        self.port = server.local_addr().port();
        server
    }

    fn join(&self, fabric: FabricChoice, horizon_s: u32) -> Result<Instance, Status> {
        self.joins(fabric, Some(horizon_s))
    }

    fn joins(&self, fabric: FabricChoice, horizon_s: Option<u32>) -> Result<Instance, Status> {
        let config = ClientConfig { port: self.port, fabric, horizon_s, ..ClientConfig::default() };
        Instance::init(&config, &self.bind.to_string())
    }

    /// The content of the list of clients, `.clients`, beside the state file.
    fn clients(&self) -> String {
        std::fs::read_to_string(Path::new(&format!("{}.clients", self.state().display()))).unwrap()
    }

    fn reinit(&self, client: &Instance) -> Status {
        client.reinit(&self.bind.to_string())
    }

    fn comes_back(&self, client: &Instance) {
        assert_eq!(self.reinit(client), Success);
        assert_eq!(client.update_all_locks(), Success);
        assert_eq!(client.reinit_done(), Success);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // a file or folder that is left over does no harm
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A program may never have heard that the primary has let it in. Such a client would never come to
/// the successor, and without a horizon there is no deadline for it.
#[test]
fn a_client_that_was_never_given_a_lock_is_not_waited_for_and_may_come_late() {
    for fabric in fabrics() {
        let mut place = Place::new(&format!("idle-{}", name(fabric)), 100_000);
        let first = place.primary();
        let [idle, later] = [(), ()].map(|()| place.join(fabric, 0).unwrap());
        assert!(!place.clients().contains("locks"), "{}", place.clients());
        drop(first);
        let second = place.primary();
        let holder = place.join(fabric, 0).expect("there is nobody to wait for");
        let lock = got(&holder, "l", LockType::Atomic);
        assert_eq!(status(holder.trylock(lock, X, 600)), Success);
        assert_eq!(place.reinit(&idle), Success);
        assert_eq!(idle.heartbeat(5), Success);
        drop(second);

        let third = place.primary();
        assert_eq!(place.join(fabric, 0).err(), Some(NotReady), "the holder is waited for");
        place.comes_back(&holder);
        eventually(60, "the others are not waited for", || holder.heartbeat(5) == Success);
        for client in [&idle, &later] {
            assert_eq!(place.reinit(client), Success, "it may come at any time");
            let lock = got(client, "l", LockType::Atomic);
            assert_eq!(status(client.trylock(lock, X, 600)), Fail, "it is held");
        }
        let all = place.clients();
        let with_locks = all.lines().filter(|line| line.starts_with("locks"));
        assert_eq!(with_locks.collect::<BTreeSet<_>>().len(), 3, "{all}");
        drop(third);
    }
}

/// A client that has come back, and sends requests, keeps its session: its horizon does not end
/// while the successor waits for other clients.
#[test]
fn a_client_that_is_back_keeps_its_holds_however_long_others_are_waited_for() {
    const HORIZON_S: u32 = 2;
    std::thread::scope(|scope| {
        for fabric in fabrics() {
            scope.spawn(move || {
                let mut place = Place::new(&format!("long-{}", name(fabric)), 9);
                let first = place.primary();
                let [back, missing] = [(), ()].map(|()| place.join(fabric, HORIZON_S).unwrap());
                let [lock, _] = [&back, &missing].map(|one| got(one, "l", LockType::Atomic));
                assert_eq!(status(back.trylock(lock, X, u32::MAX)), Success);
                drop(first);
                let second = place.primary();
                place.comes_back(&back);
                let since = Instant::now();
                assert_eq!(back.heartbeat(5), NotReady, "somebody is waited for");
                eventually(60, "the deadline", || back.heartbeat(5) == Success);
                let waited = since.elapsed();
                assert!(waited > Duration::from_secs(5), "it ended after {waited:?} already");
                assert_eq!(place.reinit(&missing), ClientRemoved);
                assert_eq!(status(back.unlock(lock)), Success, "{fabric:?}: it was its all along");
                drop(second);
            });
        }
    });
}

/// Primary and clients run without options, as in README, so no option says how long the successor
/// waits for a client that has died.
#[test]
fn plain_programs_that_end_with_their_primary_are_waited_for_no_longer_than_their_horizon() {
    std::thread::scope(|scope| {
        for fabric in fabrics() {
            scope.spawn(move || {
                let mut place = Place::new(&format!("plain-{}", name(fabric)), 1);
                let first = place.primary();
                let [gone, back] = [(), ()].map(|()| place.joins(fabric, None).unwrap());
                let forever = place.join(fabric, 0).unwrap();
                let [lock, ..] = [&gone, &back, &forever].map(|c| got(c, "l", LockType::Atomic));
                assert_eq!(status(gone.trylock(lock, X, 600)), Success);
                let kept = place.clients();
                let of = |s: &str| kept.lines().filter(|l| l.split(' ').nth(3) == Some(s)).count();
                assert_eq!((of("30"), of("0")), (2, 1), "{kept}");
                drop(first);
                let since = Instant::now();
                let second = place.primary();
                place.comes_back(&back);
                place.comes_back(&forever);
                assert_eq!(back.heartbeat(5), NotReady, "it may live, and rely on its lock");
                eventually(100, "its horizon", || back.heartbeat(5) == Success);
                let waited = since.elapsed();
                assert!(waited > Duration::from_secs(20), "{fabric:?}: {waited:?}");
                assert_eq!(status(back.trylock(lock, X, 600)), Success, "{fabric:?}");
                let extended = status(gone.extend(lock, X, 600));
                assert_eq!(extended, BadResponse, "{fabric:?}: it cannot know");
                assert_eq!(place.reinit(&gone), ClientRemoved, "{fabric:?}");
                drop(second);
            });
        }
    });
}
