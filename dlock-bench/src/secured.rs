// SPDX-License-Identifier: MIT OR Apache-2.0
//! What TLS costs: operations on tcp and on queue pairs, secured and in the clear in turns; a
//! handshake; a thousand clients that register.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dlock_client::raw::{Instance, OpResult};
use dlock_core::ids::LockId;
use dlock_core::limits::{BATCH_MAX, CLIENTS_MAX};
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_fabric::tls::session::{Shake, TlsSession};
use dlock_fabric::tls::Tls;

use crate::sample::{in_turns, Samples};
use crate::{lock_of, must, name, Folder, Run, ANY_PORT};
use dlock_cli_common::ca::{load, Ca};
use dlock_cli_common::connect::{has_device, open_by};
use dlock_cli_common::failure::Failure;
use dlock_cli_common::process::Primary;

const LEASE_S: u32 = 3_600;
const SAMPLES: u32 = 10_000;
const HANDSHAKES: u32 = 1_000;
/// How many locks a client gets in one call.
const LOCKS: usize = BATCH_MAX;

/// Measures all cases.
pub fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    let has_device = has_device();
    let mut pairs = vec![(FabricKind::Tcp, FabricKind::Tcp, "tcp in the clear")];
    match has_device {
        true => {
            pairs.push((FabricKind::Sealed, FabricKind::Verbs, "one-sided, in the clear"));
            pairs.push((FabricKind::Sealed, FabricKind::Tcp, "tcp in the clear"));
        }
        false => run.skipped.push(("tls: sealed".into(), "this host has no RDMA device".into())),
    }
    let folder = Folder::new()?;
    let mut materials = None;
    for (secured, clear, what) in pairs {
        let case = format!("tls: beside {what}");
        if run.wants(&case, secured) {
            let (primary, client) = ready(&folder, &mut materials)?;
            beside(run, (secured, clear, what), primary, client)?;
        }
    }
    if run.wants("tls: handshake", FabricKind::Tcp) {
        let (primary, client) = ready(&folder, &mut materials)?;
        let row = handshakes(run.samples(HANDSHAKES), &load(primary.files("primary"))?, client)?;
        run.rows.push(row);
    }
    let case = format!("tls: {CLIENTS_MAX} clients register");
    if run.wants(&case, FabricKind::Tcp) {
        let (primary, client) = ready(&folder, &mut materials)?;
        let row = register(&case, primary, client)?;
        run.rows.push(row);
    }
    Ok(())
}

/// The CA, and the TLS material of a client; made at the first call.
fn ready<'a>(
    folder: &Folder,
    materials: &'a mut Option<(Ca, Tls)>,
) -> Result<(&'a Ca, &'a Tls), Failure> {
    if materials.is_none() {
        let ca = Ca::make(&folder.file("ca"), Some("primary"), &["client"])?;
        let tls = load(ca.files("client"))?;
        *materials = Some((ca, tls));
    }
    let (ca, tls) = materials.as_ref().expect("they were made");
    Ok((ca, tls))
}

/// A client, and its locks.
struct User {
    instance: Instance,
    locks: Vec<LockId>,
    results: Vec<OpResult>,
}

impl User {
    fn join(primary: &Primary, fabric: FabricKind, tls: Option<&Tls>) -> Result<Self, Failure> {
        let instance = open_by(primary.address, fabric.into(), tls)
            .map_err(|s| Failure::refused("no session with the bench's primary", s))?;
        let lock = |i| lock_of(&instance, &format!("bench {i}"), LockType::Atomic);
        let locks = (0..LOCKS).map(lock).collect::<Result<_, _>>()?;
        Ok(Self { instance, locks, results: vec![OpResult::of(Status::Success); LOCKS] })
    }

    /// Acquires one lock and releases it; returns the nanoseconds of the acquire.
    fn one(&mut self) -> Result<f64, Failure> {
        let start = Instant::now();
        must("trylock", self.instance.trylock(self.locks[0], Mode::Exclusive, LEASE_S).status)?;
        let took = start.elapsed().as_nanos() as f64;
        must("unlock", self.instance.unlock(self.locks[0]).status)?;
        Ok(took)
    }

    /// As [`one`](Self::one), with 31 locks.
    fn batch(&mut self) -> Result<f64, Failure> {
        let wanted: Vec<_> =
            self.locks.iter().map(|lock| (*lock, Mode::Exclusive, LEASE_S)).collect();
        let start = Instant::now();
        must("batch_trylock", self.instance.batch_trylock(&wanted, &mut self.results))?;
        let took = start.elapsed().as_nanos() as f64;
        self.results.iter().try_for_each(|one| must("batch_trylock", one.status))?;
        must("batch_unlock", self.instance.batch_unlock(&self.locks, &mut self.results))?;
        self.results.iter().try_for_each(|one| must("batch_unlock", one.status))?;
        Ok(took)
    }
}

/// Measures operations of a client in TLS, beside those of one in the clear.
fn beside(
    run: &mut Run<'_>,
    (secured, clear, what): (FabricKind, FabricKind, &'static str),
    ca: &Ca,
    tls: &Tls,
) -> Result<(), Failure> {
    let primary = Primary::start_secured(ANY_PORT, &ca.files("primary"), secured.into(), None)?;
    let other = Primary::start(ANY_PORT, 0, None, clear.into())?;
    let mut safe = User::join(&primary, secured, Some(tls))?;
    let mut open = User::join(&other, clear, None)?;
    for case in ["atomic acquire", "batch of 31 acquire"] {
        let of = |user: &mut User| match case == "atomic acquire" {
            true => user.one(),
            false => user.batch(),
        };
        let mut samples = Samples::new(&format!("tls: {case}"), name(secured), 1);
        let count = run.samples(SAMPLES);
        in_turns(&mut samples, count, what, &mut || of(&mut safe), &mut || of(&mut open))?;
        run.rows.push(samples.rate_from_mean());
    }
    must("deinit", safe.instance.deinit())?;
    must("deinit", open.instance.deinit())
}

/// The stream of one end of a handshake in memory.
#[derive(Default)]
struct Ends {
    arrived: VecDeque<u8>,
    sent: VecDeque<u8>,
}

impl Read for Ends {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.arrived.is_empty() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => self.arrived.read(into),
        }
    }
}

impl Write for Ends {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does handshakes in memory, on one processor. A sample is the time that the primary's end takes.
fn handshakes(count: u32, primary: &Tls, client: &Tls) -> Result<Samples, Failure> {
    let mut samples = Samples::new("tls: handshake", name(FabricKind::Tcp), 1);
    let mut both = Duration::ZERO;
    for _ in 0..count {
        let start = Instant::now();
        let its = shake(primary, client)?;
        both += start.elapsed();
        samples.times.record(its.as_nanos() as f64);
    }
    let a_second = f64::from(count) / both.as_secs_f64();
    samples.note = format!("the primary's end alone; {a_second:.0} a second of both ends");
    Ok(samples.rate_from_mean())
}

/// Does one handshake; returns the time that the primary's end takes.
fn shake(primary: &Tls, client: &Tls) -> Result<Duration, Failure> {
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut a = TlsSession::connect(client, localhost).map_err(Failure::plain)?;
    let start = Instant::now();
    let mut b = TlsSession::accept(primary).map_err(Failure::plain)?;
    let mut took = start.elapsed();
    let (mut at_a, mut at_b) = (Ends::default(), Ends::default());
    loop {
        let of_a = a.shake(&mut at_a).map_err(Failure::plain)?;
        at_b.arrived.append(&mut at_a.sent);
        let start = Instant::now();
        let of_b = b.shake(&mut at_b).map_err(Failure::plain)?;
        took += start.elapsed();
        at_a.arrived.append(&mut at_b.sent);
        if (of_a, of_b) == (Shake::Done, Shake::Done) {
            return Ok(took);
        }
    }
}

/// Registers as many clients as a primary lets in, one after the other, with two handshakes each.
fn register(case: &str, ca: &Ca, tls: &Tls) -> Result<Samples, Failure> {
    let kind = FabricKind::Tcp;
    let primary = Primary::start_secured(ANY_PORT, &ca.files("primary"), kind.into(), None)?;
    let mut samples = Samples::new(case, name(kind), 1);
    let mut clients = Vec::with_capacity(CLIENTS_MAX);
    let start = Instant::now();
    for _ in 0..CLIENTS_MAX {
        let begun = Instant::now();
        let client = open_by(primary.address, kind.into(), Some(tls))
            .map_err(|s| Failure::refused("no session with the bench's primary", s))?;
        samples.times.record(begun.elapsed().as_nanos() as f64);
        clients.push(client);
    }
    samples.note = format!("all after {:.3?}; two handshakes each", start.elapsed());
    for client in &clients {
        must("deinit", client.deinit())?;
    }
    Ok(samples.rate_from_mean())
}
