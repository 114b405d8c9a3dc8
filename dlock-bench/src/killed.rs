// SPDX-License-Identifier: MIT OR Apache-2.0
//! A holder whose process is killed: how long until the client that waits has the lock.

use std::thread;
use std::time::{Duration, Instant};

use dlock_core::wire::fabric::{Executes, FabricKind};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use crate::sample::{Baseline, Samples, Times};
use crate::{lock_of, must, name, Run};
use dlock_cli_common::failure::Failure;
use dlock_cli_common::process;

/// How many holders are killed in a full run: on this host, and over a network.
const KILLS: u32 = 200;
const KILLS_REMOTE: u32 = 20;
/// The lease of a holder whose end the primary sees; and of one over a network, whose lock is free
/// only when its lease ends.
const LEASE_S: u32 = 3_600;
const LEASE_REMOTE_S: u32 = 2;
/// The time until the holder is killed, in which the other client surely begins to wait.
const WAITS: Duration = Duration::from_millis(20);

/// Measures the lock types that have a lease.
pub fn run(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    for (kind, lock_type) in [("atomic", LockType::Atomic), ("fair", LockType::Fair)] {
        let case = format!("{kind}, holder killed to next grant");
        if run.wants(&case, fabric) {
            let row = killed(run, fabric, &case, (kind, lock_type))?;
            run.rows.push(row);
        }
    }
    Ok(())
}

fn killed(
    run: &Run<'_>,
    fabric: FabricKind,
    case: &str,
    (kind, lock_type): (&str, LockType),
) -> Result<Samples, Failure> {
    let is_seen = fabric.executes() == Executes::Client;
    let (kills, lease_s) = if is_seen { (KILLS, LEASE_S) } else { (KILLS_REMOTE, LEASE_REMOTE_S) };
    let mut samples = Samples::new(case, name(fabric), 1);
    let waiter = run.client(fabric)?;
    let lock_name = format!("bench-killed-{kind}");
    let lock = lock_of(&waiter, &lock_name, lock_type)?;
    for _ in 0..run.samples(kills) {
        let mut holder = process::client(run.primary, fabric.into())?;
        must("get a lock", holder.ask(&format!("get {lock_name} {kind}"))?.status)?;
        must("lock", holder.ask(&format!("lock exclusive {lease_s}"))?.status)?;
        let (killed, granted) = thread::scope(|scope| {
            let waits = scope.spawn(|| loop {
                match waiter.lock(lock, Mode::Exclusive, LEASE_S).status {
                    Status::Fail | Status::Again => {}
                    status => return must("lock", status).map(|()| Instant::now()),
                }
            });
            thread::sleep(WAITS);
            let killed = Instant::now();
            holder.kill();
            (killed, waits.join().expect("bench threads do not panic"))
        });
        samples.times.record(granted?.saturating_duration_since(killed).as_nanos() as f64);
        must("unlock", waiter.unlock(lock).status)?;
    }
    if is_seen {
        samples.note = format!(
            "a lease of {LEASE_S} s; at the longest {:.1} ms",
            samples.times.max_ns() / 1e6
        );
    } else {
        let mut lease = Times::new();
        lease.record(f64::from(lease_s) * 1e9);
        samples.baseline = Some(Baseline { name: "the lease", times: lease });
        samples.note = format!(
            "at the longest {:.2} times",
            samples.times.max_ns() / (f64::from(lease_s) * 1e9)
        );
    }
    waiter.deinit();
    Ok(samples.rate_from_mean())
}
