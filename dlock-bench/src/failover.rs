// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long clients are without a primary: if one with a standby is killed, and if one is started
//! again for a thousand clients, or for one client that holds everything.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_client::Address;
use dlock_core::ids::LockId;
use dlock_core::limits::{BATCH_MAX, CLIENTS_MAX, LOCKS_MAX};
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use crate::sample::Samples;
use crate::{lock_of, must, name, Folder, Run, ANY_PORT};
use dlock_cli_common::connect::open_with;
use dlock_cli_common::failure::Failure;
use dlock_cli_common::process::Primary;

/// How many failovers a full run measures.
const FAILOVERS: u32 = 100;
/// A lease longer than any measurement.
const LEASE_S: u32 = 3_600;
/// How long it may take until all clients are back.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);

/// Measures all cases on this fabric.
pub fn run(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    if run.wants("failover, kill to first grant, standby", fabric) {
        with_standby(run, fabric)?;
    }
    // on other fabrics a client also maps memory or has queue pairs, whose time is not measured
    // here
    if fabric != FabricKind::Tcp {
        return Ok(());
    }
    for clients in [1, CLIENTS_MAX] {
        let case = format!("failover, {clients} clients with {LOCKS_MAX} locks");
        if run.wants(&case, fabric) {
            let samples = with_many(&case, clients, fabric)?;
            run.rows.push(samples);
        }
    }
    Ok(())
}

fn free_address() -> Result<SocketAddr, Failure> {
    TcpListener::bind(ANY_PORT).and_then(|listener| listener.local_addr()).map_err(Failure::plain)
}

/// One client holds a lock, and acquires another one that is free. Of two primaries, each in turn
/// is killed, and the other takes its place.
fn with_standby(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    let folder = Folder::new()?;
    let (state, kind) = (folder.file("state"), fabric.into());
    let mut primary = Primary::start_kept(ANY_PORT, &state, kind)?;
    let mut standby = Primary::stand_by(primary.address, free_address()?, &state, kind)?;
    let addresses = [primary.address, standby.address].map(Address::from);
    let client = open_with(&addresses[0], &addresses[1..], kind)
        .map_err(|s| Failure::refused("no session with the bench's primary", s))?;
    let held = lock_of(&client, "bench held", LockType::Fair)?;
    let free = lock_of(&client, "bench free", LockType::Atomic)?;
    must("lock", client.lock(held, Mode::Exclusive, LEASE_S).status)?;
    let case = |what: &str| Samples::new(&format!("failover, {what}, standby"), name(fabric), 1);
    let mut parts = [case("kill to takeover"), case("takeover to first grant")];
    let mut all = case("kill to first grant");
    for _ in 0..run.samples(FAILOVERS) {
        let killed = Instant::now();
        primary.process.kill();
        let got = client.lock(free, Mode::Exclusive, LEASE_S).status;
        let granted = Instant::now();
        must("lock across a failover", got)?;
        let took_over = standby.serves()?;
        must("the lock that was held", client.extend(held, Mode::Exclusive, LEASE_S).status)?;
        must("unlock", client.unlock(free).status)?;
        let nanos =
            |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as f64;
        parts[0].times.record(nanos(killed, took_over));
        parts[1].times.record(nanos(took_over, granted));
        all.times.record(nanos(killed, granted));
        let next = Primary::stand_by(standby.address, primary.address, &state, kind)?;
        primary = std::mem::replace(&mut standby, next);
        // by then the standby has begun to watch the primary
        thread::sleep(Duration::from_millis(50));
    }
    all.note = "a client finds the standby by itself; its lock is kept".to_string();
    client.deinit();
    run.rows.extend(parts.map(Samples::rate_from_mean));
    run.rows.push(all.rate_from_mean());
    Ok(())
}

/// Clients hold almost all locks that a primary can have; the primary is killed and started again.
fn with_many(case: &str, count: usize, fabric: FabricKind) -> Result<Samples, Failure> {
    let folder = Folder::new()?;
    let (state, kind) = (folder.file("state"), fabric.into());
    let mut primary = Primary::start_kept(ANY_PORT, &state, kind)?;
    let address = primary.address;
    let mut clients: Vec<(Arc<Instance>, Vec<LockId>)> = Vec::new();
    for n in 0..count {
        let at = Address::from(address);
        let client = open_with(&at, std::slice::from_ref(&at), kind)
            .map_err(|s| Failure::refused("no session with the bench's primary", s))?;
        // the remainder of the division is left out, so that every client has the same number of
        // locks
        let locks = held_by(&client, n, LOCKS_MAX / count)?;
        clients.push((client, locks));
    }
    let locks: usize = clients.iter().map(|(_, locks)| locks.len()).sum();
    primary.process.kill();
    let started = Instant::now();
    let _primary = Primary::start_kept(address, &state, kind)?;
    let up = started.elapsed();
    let first = &clients[0];
    await_hold(&first.0, first.1[0])?;
    let serves = started.elapsed();
    for (client, locks) in &clients {
        await_hold(client, locks[0])?;
    }
    let all = started.elapsed();
    for (client, locks) in &clients {
        for &lock in locks.iter().skip(1).step_by(17) {
            must("a lock that was held", client.extend(lock, Mode::Exclusive, LEASE_S).status)?;
        }
    }
    let mut samples = Samples::new(case, name(fabric), 1);
    samples.times.record(all.as_nanos() as f64);
    samples.note = format!(
        "{locks} locks; the process up after {up:.3?}, the first client served after \
         {serves:.3?}, all after {all:.3?}"
    );
    for (client, _) in &clients {
        must("deinit", client.deinit())?;
    }
    Ok(samples.rate_from_mean())
}

/// Gets `count` locks for a client, and acquires them.
fn held_by(client: &Instance, n: usize, count: usize) -> Result<Vec<LockId>, Failure> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let some = BATCH_MAX.min(count - all.len());
        let desc = |i| LockDesc {
            name: format!("bench {n} {i}").into_bytes(),
            lock_type: [LockType::Atomic, LockType::Fair][i % 2],
            lease_s: 0,
            tokens: false,
        };
        let descs = (all.len()..all.len() + some).map(desc).collect();
        let got = client.batch_get_lock(descs).map_err(|s| Failure::refused("get locks", s))?;
        for lock in got {
            let lock = lock.map_err(|s| Failure::refused("get locks", s))?;
            must("trylock", client.trylock(lock, Mode::Exclusive, LEASE_S).status)?;
            all.push(lock);
        }
    }
    Ok(all)
}

/// Waits until the primary confirms that the lock is held.
fn await_hold(client: &Instance, lock: LockId) -> Result<(), Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.extend(lock, Mode::Exclusive, LEASE_S).status {
            Status::NotReady | Status::BadResponse if Instant::now() < until => {
                thread::sleep(PAUSE)
            }
            status => return must("a lock that was held", status),
        }
    }
}
