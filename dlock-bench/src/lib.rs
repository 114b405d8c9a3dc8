// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock bench`: what locks cost on this machine, beside what the machine itself costs.
//!
//! ```text
//!   this process: client threads ──▶ primary: a process of its own (`dlock role`)
//!   sample.rs   samples and their baseline, taken in turns     report.rs  the table, the JSON
//!   cycles.rs   one client: cycles, batches, objects        c_api.rs   the same through C
//!   crowd.rs    several clients: contention, hand-over
//!   told.rs, killed.rs  until a holder hears of waiters; until the lock of a killed one is free
//!   failover.rs  until clients are served again after the primary was killed
//!   stopped.rs  verbs while the primary does not run
//!   secured.rs  what TLS costs: sealed, tcp in TLS, handshakes
//!   neighbours.rs, loads.rs, wire.rs  an innocent client beside heavy ones
//!   hostile.rs  the same in TLS beside hostile ones
//! ```
//! Closed loop: the next operation starts when the last one has ended, so the percentiles say
//! how long an operation takes, not how long a queue of them grows.

#![forbid(unsafe_code)]

mod c_api;
mod crowd;
mod cycles;
mod failover;
mod hostile;
mod killed;
mod loads;
mod neighbours;
mod report;
mod sample;
mod secured;
mod stopped;
mod told;
mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use dlock_client::raw::Instance;
use dlock_core::ids::LockId;
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;

use dlock_cli_common::connect::{open, usable};
use dlock_cli_common::failure::{self, Failure};
use dlock_cli_common::logging;
use dlock_cli_common::out;
use dlock_cli_common::place::{fabric_name, Fabric};
use dlock_cli_common::process::Primary;

use sample::Samples;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// Short runs: seconds instead of a minute, and coarser percentiles.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// A program built from benches/c/cycle.c, to measure the C API with (make bench does it).
    #[arg(long, value_name = "PATH")]
    pub c_program: Option<PathBuf>,
    /// Which executors to measure.
    #[arg(long, value_parser = fabric_name(), default_value = "auto")]
    pub fabric: Fabric,
}

/// The address of a primary of the bench: any free port.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The temporary folder of this run, removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("dlock-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(Failure::plain)?;
        Ok(Self(path))
    }

    /// The path of a file in the folder.
    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a temporary folder that stays does no harm
    }
}

/// The state that the measurements share.
struct Run<'a> {
    bench: &'a Bench,
    primary: SocketAddr,
    rows: Vec<Samples>,
    skipped: Vec<(String, String)>,
}

/// Runs the benchmark; returns the exit code.
pub fn run(bench: &Bench) -> Result<u8, Failure> {
    let fabrics = match bench.fabric {
        Fabric::Auto => usable(),
        Fabric::Only(kind) => vec![kind],
    };
    // Fabrics without a device share a primary. With a device the primary has its memory there.
    let mut primary = Primary::start(ANY_PORT, 0, None, fabrics[0].into())?;
    let mut run = Run { bench, primary: primary.address, rows: Vec::new(), skipped: Vec::new() };
    for (i, &fabric) in fabrics.iter().enumerate() {
        if i > 0 && fabrics[i - 1].needs_device() != fabric.needs_device() {
            primary = Primary::start(ANY_PORT, 0, None, fabric.into())?;
            run.primary = primary.address;
        }
        cycles::run(&mut run, fabric)?;
        c_api::run(&mut run, fabric)?;
        crowd::run(&mut run, fabric)?;
        told::run(&mut run, fabric)?;
        killed::run(&mut run, fabric)?;
        failover::run(&mut run, fabric)?;
        if fabric == FabricKind::Verbs {
            stopped::run(&mut run, &primary)?;
        }
    }
    if run.wants("get locks", fabrics[0]) {
        let fresh = Primary::start(ANY_PORT, 0, None, fabrics[0].into())?;
        run.rows.push(cycles::get_all_locks(fresh.address, fabrics[0])?);
    }
    secured::run(&mut run)?;
    neighbours::run(&mut run)?;
    hostile::run(&mut run)?;
    if run.rows.is_empty() {
        let cause = "no case has this name";
        return Err(Failure::new(
            failure::USAGE,
            cause,
            "run it once without --only for the names",
        ));
    }
    match bench.json {
        true => out::json(&report::json(&run.rows, &run.skipped)),
        false => out::print(&report::table(&run.rows, &run.skipped)),
    }
    Ok(failure::OK)
}

impl Run<'_> {
    /// Whether the case is to be measured; prints its name, because it takes a while.
    fn wants(&self, case: &str, fabric: FabricKind) -> bool {
        let wanted = self.bench.only.as_ref().is_none_or(|text| case.contains(text.as_str()));
        if wanted {
            logging::say(format_args!("measuring {case} on {}", name(fabric)));
        }
        wanted
    }

    /// Samples of a case: fewer in a quick run.
    fn samples(&self, full: u32) -> u32 {
        if self.bench.quick {
            full / 10
        } else {
            full
        }
    }

    fn client(&self, fabric: FabricKind) -> Result<Instance, Failure> {
        client(self.primary, fabric)
    }
}

fn client(primary: SocketAddr, fabric: FabricKind) -> Result<Instance, Failure> {
    open(primary, fabric.into())
        .map_err(|s| Failure::refused("no session with the bench's primary", s))
}

fn name(fabric: FabricKind) -> &'static str {
    fabric.name()
}

fn lock_of(instance: &Instance, name: &str, lock_type: LockType) -> Result<LockId, Failure> {
    let desc = LockDesc { name: name.into(), lock_type, lease_s: 0, tokens: false };
    match instance.get_lock(desc) {
        (Status::Success, Some(lock)) => Ok(lock),
        (status, _) => Err(Failure::refused("getting a lock", status)),
    }
}

/// Fails unless the status is success, because a measurement of failed calls is worthless. Inlined,
/// because it is a part of what is measured.
#[inline(always)]
fn must(what: &str, status: Status) -> Result<(), Failure> {
    match status {
        Status::Success => Ok(()),
        status => Err(failed(what, status)),
    }
}

#[cold]
#[inline(never)]
fn failed(what: &str, status: Status) -> Failure {
    Failure::plain(format!("bench: {what}: {status}"))
}
