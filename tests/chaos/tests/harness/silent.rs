// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that are silent, and clients that are dead: what they hold is kept as long as it was
//! promised, and no longer.
//!
//! ```text
//!   silent   holders take leases of 1.5 times the silence ─ SIGSTOP ─ SIGCONT ─ release: a success
//!            strangers come and go, as many as there is room for; another client tries all along
//!   dead     a holder takes locks without end ─ SIGKILL, waited for ─ another client gets them
//! ```

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockDesc, LockId, LockType, Mode, Status};

use super::{Folder, Primary, Process};

/// The number of strangers at a time. With the holders and the client that tries their locks, this
/// is as many clients as a primary admits.
const STRANGERS: usize = 999;
const STRANGER_THREADS: usize = 8;
/// The time between two strangers of one thread.
const STRANGER_EVERY: Duration = Duration::from_millis(20);
/// The time between two attempts to take the holders' locks.
const TRY_EVERY: Duration = Duration::from_millis(100);
/// The time within which a dead client's locks must be free, however busy the machine is.
const FREE_MAX: Duration = Duration::from_secs(30);
/// The horizons of the holders' sessions, seconds (0: none).
const HORIZONS_S: [u32; 2] = [0, 3];

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The broken rules.
    pub wrong: Vec<String>,
    /// How many attempts were made to take the locks of silent holders; in `strangers`, how many
    /// strangers were admitted.
    pub trials: u64,
    pub strangers: u64,
    /// For each dead client, how long its locks stayed held after its end.
    pub freed: Vec<Duration>,
}

fn config(port: u16, fabric: FabricChoice, horizon_s: u32) -> ClientConfig {
    ClientConfig { port, fabric, horizon_s: Some(horizon_s), ..Default::default() }
}

fn get(instance: &Instance, lock_type: LockType, number: u32) -> Option<LockId> {
    let name = format!("{lock_type:?} {number}").into();
    instance.get_lock(LockDesc { name, lock_type, lease_s: 0, tokens: false }).1
}

/// The job of a holder: `PORT FABRIC HORIZON_S LEASE_S (0: without end) REPORT`.
pub fn hold(job: &str) {
    let fields: Vec<&str> = job.splitn(5, ' ').collect();
    let number = |n: usize| fields[n].parse::<u32>().expect("a number");
    let fabric = super::job::fabric(number(1) as usize);
    let port = u16::try_from(number(0)).expect("a port");
    let (horizon_s, lease_s) = (number(2), number(3));
    let instance = Instance::init(&config(port, fabric, horizon_s), "127.0.0.1").expect("a client");
    let all = match lease_s {
        0 => vec![LockType::Atomic, LockType::Fair, LockType::Rw],
        _ => vec![LockType::Atomic, LockType::Fair],
    };
    let locks: Vec<LockId> = { all.into_iter() }
        .map(|lock_type| {
            let lock = get(&instance, lock_type, horizon_s).expect("a lock");
            let expire_s = if lease_s == 0 { u32::MAX } else { lease_s };
            assert_eq!(instance.lock(lock, Mode::Exclusive, expire_s).status, Status::Success);
            lock
        })
        .collect();
    println!("\nholds");
    let _ = std::io::stdin().read(&mut [0]);
    let mut said = String::new();
    for lock in locks {
        let mut status = instance.unlock(lock).status;
        if status == Status::BadResponse {
            // the session has ended while this process was stopped, but not the lease
            instance.reinit("127.0.0.1");
            status = instance.unlock(lock).status;
        }
        said += &format!("{status:?} ");
    }
    std::fs::write(fields[4], said.trim_end()).expect("the report can be written");
    instance.deinit();
}

fn holder(primary: &Primary, fabric: FabricChoice, terms: (u32, u32), report: &Path) -> Process {
    let fabric = super::job::number_of(fabric);
    let (horizon_s, lease_s) = terms;
    let report = report.display();
    let job = format!("hold {} {fabric} {horizon_s} {lease_s} {report}", primary.port);
    Process::start(&job, "holds").0
}

/// Joins strangers until `stop` is set, and counts those that were admitted.
fn strangers(port: u16, fabric: FabricChoice, stop: &AtomicBool, count: &AtomicU64) {
    let mut here = VecDeque::new();
    while !stop.load(SeqCst) {
        if here.len() >= STRANGERS.div_ceil(STRANGER_THREADS) {
            here.pop_front();
        }
        // a refusal is no fault, because the primary may be full
        if let Ok(stranger) = Instance::init(&config(port, fabric, 0), "127.0.0.1") {
            count.fetch_add(1, SeqCst);
            here.push_back(stranger);
        }
        thread::sleep(STRANGER_EVERY);
    }
}

/// A run with holders that are silent for this time within their leases.
pub fn silent(fabric: FabricChoice, time: Duration) -> Outcome {
    let (primary, folder) = (Primary::here(), Folder::new("silent"));
    let lease_s = u32::try_from(time.as_secs() * 3 / 2).expect("a lease") + 10;
    let reports = HORIZONS_S.map(|horizon_s| folder.0.join(horizon_s.to_string()));
    let mut holders: Vec<Process> = { HORIZONS_S.iter().zip(&reports) }
        .map(|(&horizon_s, report)| holder(&primary, fabric, (horizon_s, lease_s), report))
        .collect();
    let other = Instance::init(&config(primary.port, fabric, 0), "127.0.0.1").expect("a client");
    let types = [LockType::Atomic, LockType::Fair];
    let locks: Vec<LockId> = { HORIZONS_S.iter() }
        .flat_map(|&horizon_s| types.map(|lock_type| (lock_type, horizon_s)))
        .map(|(lock_type, number)| get(&other, lock_type, number).expect("a lock"))
        .collect();
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut outcome = Outcome::default();
    thread::scope(|scope| {
        for _ in 0..STRANGER_THREADS {
            scope.spawn(|| strangers(primary.port, fabric, &stop, &count));
        }
        holders.iter().for_each(Process::stop);
        let end = Instant::now() + time;
        while Instant::now() < end {
            for &lock in &locks {
                outcome.trials += 1;
                let status = other.trylock(lock, Mode::Exclusive, 5).status;
                if status == Status::Success {
                    outcome.wrong.push(format!("{lock:?} was given away"));
                    other.unlock(lock);
                }
            }
            thread::sleep(TRY_EVERY);
        }
        for &lock in &locks {
            other.unlock(lock); // gives back the ticket that an attempt on a fair lock leaves
        }
        holders.iter().for_each(Process::resume);
        stop.store(true, SeqCst);
    });
    outcome.strangers = count.load(SeqCst);
    for (holder, report) in holders.iter_mut().zip(&reports) {
        holder.dismiss();
        holder.left();
        let said = std::fs::read_to_string(report).unwrap_or_else(|e| e.to_string());
        if said != "Success Success" {
            outcome.wrong.push(format!("a holder that came back released: {said}"));
        }
    }
    folder.remove();
    outcome
}

/// A run with clients that die while they hold locks without an end.
pub fn dead(fabric: FabricChoice, deaths: u64) -> Outcome {
    let (primary, folder) = (Primary::here(), Folder::new("dead"));
    let other = Instance::init(&config(primary.port, fabric, 0), "127.0.0.1").expect("a client");
    let types = [LockType::Atomic, LockType::Fair, LockType::Rw];
    let locks = types.map(|lock_type| get(&other, lock_type, 0).expect("a lock"));
    let mut outcome = Outcome::default();
    for _ in 0..deaths {
        let holder = holder(&primary, fabric, (0, 0), &folder.0.join("report"));
        holder.kill();
        let died = Instant::now();
        for lock in locks {
            while other.trylock(lock, Mode::Exclusive, 60).status != Status::Success {
                if died.elapsed() > FREE_MAX {
                    outcome.wrong.push(format!("{lock:?} is held by a dead client"));
                    break;
                }
                thread::yield_now();
            }
        }
        outcome.freed.push(died.elapsed());
        for lock in locks {
            other.unlock(lock);
        }
    }
    folder.remove();
    outcome
}
