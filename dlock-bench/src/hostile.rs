// SPDX-License-Identifier: MIT OR Apache-2.0
//! An innocent client in TLS beside a hostile one, which may have a certificate. The attack takes
//! turns with quiet, and with the same attack on *another* primary of this host, which costs only
//! the processors of the host. So the ratio is what the attack does through the primary. The row
//! also has the memory and descriptors of the primary before and after.
//!
//! The innocent client asks at intervals, and leaves the CPUs to the attackers in between. When it
//! asks, it and its primary run before all other programs (`SCHED_FIFO`), if the bench is root;
//! otherwise the scheduler has a part in the times, and the row says so. By default the system
//! stops a primary that looks for work all the time for 50 ms of each second; `sysctl
//! kernel.sched_rt_runtime_us=-1` prevents that.
//!
//! A client that floods its channel meets a bound of the primary (`frames_per_second_max`): a low
//! one, or in two cases the default.
//!
//! | load | what it does |
//! |---|---|
//! | chains and ledger writes | random ones, on words, ledgers and handles that are not its own |
//! | requests | random ones to the arbiter |
//! | rubbish | bytes that are no frame, after a handshake |
//! | half-open | 1,000 connections with half a `ClientHello`, made anew when they are closed |
//! | slow reader | asks, and never reads the answers |

use dlock_core::clock::Lease;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use dlock_core::ids::{Handle, Slot};
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::codec::Frame;
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::{Mode, Request, WaitNumber};
use dlock_fabric::os::threads::run_before_all;
use dlock_fabric::tls::Tls;

use crate::loads::Load;
use crate::neighbours::{beside, raise_descriptor_limit, Innocent};
use crate::wire::Peer;
use crate::{Folder, Run, ANY_PORT};
use dlock_cli_common::ca::{load, Ca};
use dlock_cli_common::connect::open_by;
use dlock_cli_common::failure::Failure;
use dlock_cli_common::process::Primary;

/// A part of the names of these cases, which are measured only if `--only` names it.
const GROUP: &str = "hostile";
/// The limit of frames that an operator sets who has such clients.
const FRAMES_MAX: u32 = 10_000;
/// How many connections have half a handshake.
const HALF_OPEN: usize = 1_000;
/// The time between two operations of the innocent client.
const PAUSE: Duration = Duration::from_micros(250);
/// The name of a primary's command thread.
const COMMAND_THREAD: &str = "dlock-command";
/// How many frames are sent before the answers are read.
const FRAMES: usize = 64;
/// The beginning of a handshake record, whose end is never sent.
const HALF_A_HELLO: [u8; 11] = [0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];

/// The work of a hostile client, in turns.
trait Attack: Send {
    /// Called before the first turn.
    fn begins(&mut self) {}
    /// Does a part of the work; returns how many frames, connections or requests that was.
    fn goes_on(&mut self) -> Result<u64, Failure>;
    /// Called after the last turn: ends all connections.
    fn ends(&mut self);
}

/// The same attack on the measured primary, and on another one.
struct InTurns<A> {
    here: A,
    elsewhere: A,
}

impl<A: Attack> InTurns<A> {
    fn on(&mut self, here: bool) -> &mut A {
        if here {
            &mut self.here
        } else {
            &mut self.elsewhere
        }
    }
}

impl<A: Attack> Load for InTurns<A> {
    fn begin(&mut self, heavy: bool) -> Result<(), Failure> {
        self.on(heavy).begins();
        Ok(())
    }

    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure> {
        self.on(heavy).goes_on()
    }

    fn end(&mut self, heavy: bool) -> Result<(), Failure> {
        self.on(heavy).ends();
        Ok(())
    }
}

/// Makes an attack of this kind on each of two primaries.
fn attack(kind: &'static str, [here, elsewhere]: [SocketAddr; 2], tls: &Tls) -> Box<dyn Load> {
    fn both<A: Attack + 'static>(here: A, elsewhere: A) -> Box<dyn Load> {
        Box::new(InTurns { here, elsewhere })
    }
    let tls = || tls.clone();
    let half_open = |at| HalfOpen { at, all: Vec::new() };
    let slow_reader = |at| SlowReader { at, tls: tls(), peer: None };
    let noise = |at| Noise { at, tls: tls(), kind, peer: None, dice: 1 };
    match kind {
        "half-open" => both(half_open(here), half_open(elsewhere)),
        "slow reader" => both(slow_reader(here), slow_reader(elsewhere)),
        _ => both(noise(here), noise(elsewhere)),
    }
}

/// Measures every attack of the table at the top of this file, if `--only` names this group;
/// otherwise nothing.
pub fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    if !run.bench.only.as_ref().is_some_and(|only| only.contains(GROUP)) {
        return Ok(());
    }
    raise_descriptor_limit();
    let folder = Folder::new()?;
    let ca = Ca::make(&folder.file("ca"), Some("primary"), &["innocent", "hostile"])?;
    let (innocent, hostile) = (load(ca.files("innocent"))?, load(ca.files("hostile"))?);
    let bounded = [
        ("chains and notes", Some(FRAMES_MAX)),
        ("requests", Some(FRAMES_MAX)),
        ("rubbish", Some(FRAMES_MAX)),
        ("half-open", Some(FRAMES_MAX)),
        ("slow reader", Some(FRAMES_MAX)),
    ];
    let default = [("chains and notes", None), ("slow reader", None)];
    for (kind, frames_max) in bounded.into_iter().chain(default) {
        let bound = frames_max.map_or("the default bound".into(), |max| format!("{max} frames/s"));
        let case = format!("{GROUP}: {kind}, {bound}");
        if !run.wants(&case, FabricKind::Tcp) {
            continue;
        }
        let tcp = FabricKind::Tcp.into();
        let start = || Primary::start_secured(ANY_PORT, &ca.files("primary"), tcp, frames_max);
        let (primary, other) = (start()?, start()?);
        let instance = open_by(primary.address, tcp, Some(&innocent))
            .map_err(|s| Failure::refused("no session with the bench's primary", s))?;
        let innocent = Innocent { instance: &instance, pause: PAUSE };
        let is_first = run_before_all(0).is_ok() && comes_first(primary.process.id());
        let one = attack(kind, [primary.address, other.address], &hostile);
        let before = Footprint::of(&primary)?;
        let names = (case.as_str(), "beside the same on another primary");
        let mut row = beside(run, &innocent, names, vec![one])?;
        // the primary needs some time to undo the attack, before its memory is measured
        thread::sleep(Duration::from_millis(500));
        let after = Footprint::of(&primary)?;
        row.note += &format!(
            "; primary: {} KiB and {} descriptors before, {} and {} after",
            before.kib, before.descriptors, after.kib, after.descriptors
        );
        if !is_first {
            row.note += "; without priority: the scheduler's times, too";
        }
        run.rows.push(row);
    }
    Ok(())
}

/// Lets the primary's command thread run before all other programs, and before the primary's thread
/// that does handshakes; returns whether that is permitted.
fn comes_first(primary: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{primary}/task")) else { return false };
    let is_command = |path: &Path| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == COMMAND_THREAD)
    };
    let command = threads.filter_map(|t| Some(t.ok()?.path())).find(|path| is_command(path));
    let number = command.and_then(|path| path.file_name()?.to_str()?.parse().ok());
    number.is_some_and(|thread| run_before_all(thread).is_ok())
}

/// The memory and the descriptors of a process.
struct Footprint {
    kib: u64,
    descriptors: usize,
}

impl Footprint {
    fn of(primary: &Primary) -> Result<Self, Failure> {
        let folder = format!("/proc/{}", primary.process.id());
        let status = std::fs::read_to_string(format!("{folder}/status")).map_err(Failure::plain)?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let descriptors = std::fs::read_dir(format!("{folder}/fd")).map_err(Failure::plain)?;
        Ok(Self { kib: kib.unwrap_or_default(), descriptors: descriptors.count() })
    }
}

/// An attack of random chains, ledger writes, requests or bytes.
struct Noise {
    at: SocketAddr,
    tls: Tls,
    kind: &'static str,
    peer: Option<Peer>,
    dice: u64,
}

impl Noise {
    /// The next random number, from the same sequence on every run (splitmix64).
    fn next(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chain(&mut self) -> Chain {
        let word = if self.next() & 1 == 0 { Word::W0 } else { Word::W1 };
        let addr = WordAddr::new(Slot(self.next() as u32 % 60_000), word);
        Chain::one(match self.next() % 3 {
            0 => WordOp::Cas { addr, expect: self.next(), swap: self.next() },
            1 => WordOp::Faa { addr, add: self.next() },
            _ => WordOp::Read { addr },
        })
    }

    fn frame(&mut self, peer: &mut Peer) -> Frame {
        let handle = Handle(self.next() as u32 % 60_000);
        let seq = peer.channel.number();
        if self.kind == "requests" {
            let mode = if self.next() & 1 == 0 { Mode::Exclusive } else { Mode::Shared };
            let wait = WaitNumber(self.next() as u32);
            let lease = Lease(self.next() as u32);
            return Frame::Request(
                seq,
                match self.next() % 5 {
                    0 => Request::Wait { handle, mode, lease, wait, ticket: None },
                    1 => Request::Cancel { handle, wait },
                    2 => Request::Release { handle, mode, ticket: None },
                    3 => Request::Wake { handle },
                    _ => Request::Ping,
                },
            );
        }
        match self.next() % 4 {
            0 => Frame::Note(handle, LedgerEntry::from_bits(self.next())),
            _ => Frame::Batch(seq, (0..BATCH_MAX).map(|_| self.chain()).collect()),
        }
    }

    /// Sends some frames. An error means that the primary has closed the connection.
    fn some(&mut self, peer: &mut Peer) -> Result<u64, Failure> {
        if self.kind == "rubbish" {
            let bytes: Vec<u8> = (0..256).map(|_| self.next() as u8).collect();
            peer.channel.send_bytes(&bytes)?;
            peer.channel.receive()?;
            return Ok(1);
        }
        for _ in 0..FRAMES {
            let frame = self.frame(peer);
            peer.channel.send(&frame)?;
        }
        // when this request is answered, every frame before it has been handled
        let seq = peer.channel.number();
        peer.channel.send(&Frame::Request(seq, Request::Ping))?;
        while !matches!(peer.channel.receive()?, Frame::Reply(answered, _) if answered == seq) {}
        Ok(FRAMES as u64)
    }
}

impl Attack for Noise {
    fn goes_on(&mut self) -> Result<u64, Failure> {
        let mut peer = match self.peer.take() {
            Some(peer) => peer,
            // refused while its address has too many connections: the next turn tries again
            None => match Peer::by(self.at, Some(&self.tls)) {
                Ok(peer) => peer,
                Err(_) => return Ok(0),
            },
        };
        match self.some(&mut peer) {
            Ok(done) => {
                self.peer = Some(peer);
                Ok(done)
            }
            Err(_) => Ok(1),
        }
    }

    fn ends(&mut self) {
        self.peer = None;
    }
}

/// An attack of many connections that send half a handshake.
struct HalfOpen {
    at: SocketAddr,
    all: Vec<TcpStream>,
}

impl HalfOpen {
    fn one(&self) -> Option<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.at, Duration::from_secs(1)).ok()?;
        stream.write_all(&HALF_A_HELLO).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    }
}

impl Attack for HalfOpen {
    fn begins(&mut self) {
        while self.all.len() < HALF_OPEN {
            let one = self.one();
            self.all.extend(one);
        }
    }

    fn goes_on(&mut self) -> Result<u64, Failure> {
        if self.all.is_empty() {
            thread::sleep(Duration::from_millis(1));
            return Ok(0);
        }
        // the oldest connection is closed, to make room for a new one
        drop(self.all.remove(0));
        let one = self.one();
        self.all.extend(one);
        Ok(1)
    }

    fn ends(&mut self) {
        self.all.clear();
    }
}

/// An attack of requests whose replies are never read.
struct SlowReader {
    at: SocketAddr,
    tls: Tls,
    peer: Option<Peer>,
}

impl Attack for SlowReader {
    fn goes_on(&mut self) -> Result<u64, Failure> {
        let Some(peer) = &mut self.peer else {
            let mut peer = Peer::by(self.at, Some(&self.tls)).ok();
            if let Some(peer) = &mut peer {
                peer.channel.write_at_once()?;
            }
            self.peer = peer;
            return Ok(0);
        };
        let seq = peer.channel.number();
        match peer.channel.send(&Frame::Request(seq, Request::Ping)) {
            Ok(()) => Ok(1),
            // the send buffer is full, or the primary has closed the connection
            Err(_) => {
                self.peer = None;
                Ok(1)
            }
        }
    }

    fn ends(&mut self) {
        self.peer = None;
    }
}
