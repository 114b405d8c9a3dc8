// SPDX-License-Identifier: MIT OR Apache-2.0
//! The neighbours of [`crate::neighbours`]: each kind of load, heavy and well-behaved.
//!
//! | kind | heavy | well-behaved |
//! |---|---|---|
//! | batches | one client with 32 batches of 31 under way | 4 clients with one each |
//! | leaver | a client with all locks leaves | locks are released 31 at a time |
//! | waiters | 990 clients queue for one lock | each takes a lock of its own |
//! | control | 3 clients get and release 31 locks each | the same, one lock at a time |
//! | connections | 16 clients come and go at once | one after the other |

use dlock_core::clock::Lease;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::limits::{BATCH_MAX, LOCKS_MAX};
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::memory::words::AtomicWord;
use dlock_core::wire::codec::Frame;
use dlock_core::wire::control::{ControlReply, ControlRequest, LockGrant};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

use crate::wire::{self, Peer, Wire};
use dlock_cli_common::failure::Failure;

/// How many batches a pipelining client has under way.
const DEPTH: usize = 32;
/// How many well-behaved clients there are; each has one batch under way.
const WELL_BEHAVED: usize = 4;
/// How many clients connect at once.
const BURST: usize = 16;
/// How many clients use the control channel.
const CONTROLS: usize = 3;
/// The lease of every acquire: no deadline passes during a measurement.
const LEASE_S: u32 = 3_600;

/// Work for a primary.
pub trait Load: Send {
    /// Called before the first turn of a phase.
    fn begin(&mut self, heavy: bool) -> Result<(), Failure>;
    /// Does a part of the work; returns how many operations that was.
    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure>;
    /// Called after the last turn: leaves nothing under way.
    fn end(&mut self, heavy: bool) -> Result<(), Failure>;
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix} {i}")).collect()
}

fn unexpected(what: impl std::fmt::Debug) -> Failure {
    Failure::plain(format!("bench: {what:?} was not expected"))
}

/// A client that alternately acquires and releases 31 locks.
struct Batcher {
    peer: Peer,
    grants: Vec<LockGrant>,
    under_way: usize,
    releases: bool,
}

impl Batcher {
    fn new(primary: SocketAddr, prefix: &str) -> Result<Self, Failure> {
        let mut peer = Peer::new(primary)?;
        let grants = peer.get(&names(prefix, BATCH_MAX), LockType::Atomic)?;
        Ok(Self { peer, grants, under_way: 0, releases: false })
    }

    fn send(&mut self) -> Result<(), Failure> {
        let session = &self.peer.session;
        let held = AtomicWord::new()
            .with_client(session.client.get())
            .with_timeout(session.now.deadline(Lease::secs(LEASE_S)))
            .into_bits();
        let (expect, swap) = if self.releases { (held, 0) } else { (0, held) };
        let addr = |grant: &LockGrant| WordAddr::new(grant.slot, Word::W0);
        let cas = |grant| Chain::one(WordOp::Cas { addr: addr(grant), expect, swap });
        self.releases = !self.releases;
        self.under_way += 1;
        let chains = self.grants.iter().map(cas).collect();
        self.peer.batch(chains)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        self.under_way -= 1;
        match self.peer.channel.receive()? {
            Frame::Outcomes(_, outcomes) if outcomes.len() == BATCH_MAX => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

/// The load of clients with batches of 31 operations under way.
pub struct Batches {
    heavy: Batcher,
    well_behaved: Vec<Batcher>,
}

impl Batches {
    pub fn new(primary: SocketAddr, number: usize) -> Result<Self, Failure> {
        let one = |i| Batcher::new(primary, &format!("bench batches {number} {i}"));
        let well_behaved = (1..=WELL_BEHAVED).map(one).collect::<Result<_, _>>()?;
        Ok(Self { heavy: one(0)?, well_behaved })
    }
}

impl Load for Batches {
    fn begin(&mut self, heavy: bool) -> Result<(), Failure> {
        match heavy {
            true => (0..DEPTH).try_for_each(|_| self.heavy.send()),
            false => self.well_behaved.iter_mut().try_for_each(Batcher::send),
        }
    }
    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure> {
        if heavy {
            self.heavy.receive()?;
            self.heavy.send()?;
            return Ok(BATCH_MAX as u64);
        }
        for one in &mut self.well_behaved {
            one.receive()?;
            one.send()?;
        }
        Ok((WELL_BEHAVED * BATCH_MAX) as u64)
    }
    fn end(&mut self, _: bool) -> Result<(), Failure> {
        for one in self.well_behaved.iter_mut().chain([&mut self.heavy]) {
            while one.under_way > 0 {
                one.receive()?;
            }
        }
        Ok(())
    }
}

/// The load of a client that leaves while it has all locks.
pub struct Leaver {
    primary: SocketAddr,
    names: Vec<String>,
    leaving: Option<Peer>,
    releasing: Peer,
    released: Vec<LockId>,
}

impl Leaver {
    pub fn new(primary: SocketAddr) -> Result<Self, Failure> {
        let names = names("bench leaver", LOCKS_MAX);
        let releasing = Peer::new(primary)?;
        Ok(Self { primary, names, leaving: None, releasing, released: Vec::new() })
    }
}

impl Load for Leaver {
    fn begin(&mut self, heavy: bool) -> Result<(), Failure> {
        if heavy {
            let mut peer = Peer::new(self.primary)?;
            peer.get(&self.names, LockType::Atomic)?;
            self.leaving = Some(peer);
        } else {
            let got = self.releasing.get(&self.names, LockType::Atomic)?;
            self.released = got.iter().map(|grant| grant.lock).collect();
        }
        Ok(())
    }
    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure> {
        let done = match (heavy, self.leaving.take()) {
            (true, Some(mut peer)) => {
                let left = peer.control.call(ControlRequest::Deinit)?;
                (left == ControlReply::Done).then_some(LOCKS_MAX as u64).ok_or(unexpected(left))?
            }
            _ => 0,
        };
        let rest = self.released.len().saturating_sub(BATCH_MAX);
        let some = self.released.split_off(rest);
        if some.is_empty() {
            thread::sleep(Duration::from_micros(200));
        } else {
            self.releasing.control.call(wire::release(&some))?;
        }
        Ok(done + some.len() as u64)
    }
    fn end(&mut self, _: bool) -> Result<(), Failure> {
        for some in std::mem::take(&mut self.released).chunks(BATCH_MAX) {
            self.releasing.control.call(wire::release(some))?;
        }
        if let Some(mut peer) = self.leaving.take() {
            peer.control.call(ControlRequest::Deinit)?;
        }
        Ok(())
    }
}

/// The load of many clients that wait for one lock.
pub struct Waiters {
    peers: Vec<(Peer, LockGrant, LockGrant)>,
    /// The client that holds the lock; the next holders follow in order.
    holder: usize,
    turn: usize,
    queued: bool,
    waits: u32,
}

impl Waiters {
    pub fn new(primary: SocketAddr, count: usize) -> Result<Self, Failure> {
        let one = |i| {
            let mut peer = Peer::new(primary)?;
            let wanted = ["bench crowd".to_string(), format!("bench own {i}")];
            match peer.get(&wanted, LockType::Atomic)?[..] {
                [shared, own] => Ok((peer, shared, own)),
                _ => Err(Failure::plain("bench: there is no room for the locks of the waiters")),
            }
        };
        let peers = (0..count).map(one).collect::<Result<_, Failure>>()?;
        Ok(Self { peers, holder: 0, turn: 0, queued: false, waits: 0 })
    }

    fn wait(&mut self, i: usize, is_own: bool) -> Result<(), Failure> {
        self.waits += 1;
        let (peer, shared, own) = &mut self.peers[i];
        let handle = if is_own { own.handle } else { shared.handle };
        let (mode, lease, wait) = (Mode::Exclusive, Lease::secs(LEASE_S), WaitNumber(self.waits));
        peer.request(Request::Wait { handle, mode, lease, wait, ticket: None })
    }

    fn is_granted(&mut self, i: usize) -> Result<(), Failure> {
        match self.peers[i].0.channel.receive()? {
            Frame::Reply(_, Reply::Granted { .. }) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn release(&mut self, i: usize, is_own: bool) -> Result<(), Failure> {
        let (peer, shared, own) = &mut self.peers[i];
        let handle = if is_own { own.handle } else { shared.handle };
        peer.request(Request::Release { handle, mode: Mode::Exclusive, ticket: None })?;
        match peer.channel.receive()? {
            Frame::Reply(_, Reply::Done { .. }) => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

impl Load for Waiters {
    fn begin(&mut self, heavy: bool) -> Result<(), Failure> {
        if heavy && !self.queued {
            self.queued = true;
            for i in 0..self.peers.len() {
                self.wait(i, false)?;
                if i == 0 {
                    self.is_granted(0)?;
                }
            }
        }
        Ok(())
    }
    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure> {
        if heavy {
            let (old, next) = (self.holder, (self.holder + 1) % self.peers.len());
            self.release(old, false)?;
            self.is_granted(next)?;
            self.wait(old, false)?;
            self.holder = next;
        } else {
            let i = self.turn;
            self.wait(i, true)?;
            self.is_granted(i)?;
            self.release(i, true)?;
            self.turn = (i + 1) % self.peers.len();
        }
        Ok(1)
    }
    fn end(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
}

/// The load of clients that get and release locks on their control connections.
pub struct Control {
    peers: Vec<Peer>,
    names: Vec<Vec<String>>,
}

impl Control {
    pub fn new(primary: SocketAddr) -> Result<Self, Failure> {
        let peers = (0..CONTROLS).map(|_| Peer::new(primary)).collect::<Result<_, _>>()?;
        let mine = |i| names(&format!("bench control {i}"), BATCH_MAX);
        Ok(Self { peers, names: (0..CONTROLS).map(mine).collect() })
    }
}

impl Load for Control {
    fn begin(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure> {
        let count = if heavy { BATCH_MAX } else { 1 };
        for (peer, names) in self.peers.iter_mut().zip(&self.names) {
            peer.control.ask(wire::get(&names[..count], LockType::Atomic))?;
        }
        for peer in &mut self.peers {
            let ControlReply::Locks(got) = peer.control.answer()? else {
                return Err(Failure::plain("bench: locks were not got"));
            };
            let locks: Vec<LockId> = got.iter().flatten().map(|grant| grant.lock).collect();
            peer.control.ask(wire::release(&locks))?;
        }
        for peer in &mut self.peers {
            peer.control.answer()?;
        }
        Ok((2 * count * CONTROLS) as u64)
    }
    fn end(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
}

/// The load of clients that join and leave.
pub struct Connections {
    primary: SocketAddr,
}

impl Connections {
    pub fn new(primary: SocketAddr) -> Self {
        Self { primary }
    }

    fn come_and_go(&self, count: usize) -> Result<u64, Failure> {
        let connect = |_| Wire::connect(self.primary);
        let mut controls = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
        controls.iter_mut().try_for_each(|control| control.ask(wire::INIT))?;
        let sessions: Vec<_> = controls.iter_mut().map(wire::session).collect::<Result<_, _>>()?;
        let mut channels = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
        for (channel, session) in channels.iter_mut().zip(&sessions) {
            channel.send(&wire::attach(session))?;
        }
        channels.iter_mut().try_for_each(wire::attached)?;
        controls.iter_mut().try_for_each(|control| control.ask(ControlRequest::Deinit))?;
        controls.iter_mut().try_for_each(|control| control.answer().map(drop))?;
        Ok(count as u64)
    }
}

impl Load for Connections {
    fn begin(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
    fn go_on(&mut self, heavy: bool) -> Result<u64, Failure> {
        self.come_and_go(if heavy { BURST } else { 1 })
    }
    fn end(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
}
