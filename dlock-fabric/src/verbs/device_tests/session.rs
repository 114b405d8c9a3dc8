// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary's device, its memory and its clients, in one process, for the tests in this folder.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use dlock_core::clock::ServerTime;
use dlock_core::ids::{ClientId, Seq, Slot};
use dlock_core::memory::exec::Executor;
use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
use dlock_core::wire::codec::{self, Frame, HEADER_LEN};
use dlock_core::wire::control::{Attach, Attached, FabricKind, Secret, UNLIMITED};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use super::*;
use crate::os::clock::ClockEstimate;
use crate::os::sys;
use crate::stream::handshake;

pub(super) const SLOTS: u32 = 64;
pub(super) const ENTRIES: u32 = 32;

/// A primary without a command thread; the test does the work of that thread.
pub(super) struct Site {
    pub(super) host: Arc<VerbsHost>,
    pub(super) memory: NicMemory,
    pub(super) shared_qp: bool,
    clients: u32,
}

/// A client's two ends.
pub(super) struct Session {
    pub(super) exec: VerbsExecutor,
    pub(super) peer: VerbsPeer,
    /// The primary's end of the liveness connection.
    pub(super) line: UnixStream,
    pub(super) client: ClientId,
}

impl Site {
    pub(super) fn new(shared_qp: bool) -> Option<Self> {
        device()?;
        let choice = VerbsHost::choose(None, &[0; 16]).unwrap();
        let (host, memory) = VerbsHost::open(&choice, SLOTS, ENTRIES, shared_qp).unwrap();
        Some(Self { host, memory, shared_qp, clients: 0 })
    }

    pub(super) fn join(&mut self) -> Session {
        self.join_with(VerbsOptions::default())
    }

    pub(super) fn join_with(&mut self, options: VerbsOptions) -> Session {
        self.clients += 1;
        let client = ClientId::new(self.clients).unwrap();
        self.memory.add_client(client).unwrap();
        let options = VerbsOptions { shared_qp: self.shared_qp, ..options };
        let (near, line) = UnixStream::pair().unwrap();
        let fabric = FabricKind::Tcp; // the executor corrects it
        let attach =
            Attach { client, secret: Secret([7; 16]), fabric, verbs: None, returns: false };
        std::thread::scope(|scope| {
            let exec = scope.spawn(move || {
                VerbsExecutor::attach_on(&options, near.into(), &attach, exact_clock()).unwrap()
            });
            let peer = self.admit(client, &line);
            Session { exec: exec.join().unwrap(), peer, line, client }
        })
    }

    /// The primary's side of the attach exchange.
    fn admit(&self, client: ClientId, line: &UnixStream) -> VerbsPeer {
        let until_ns = deadline_in(PATIENCE);
        let mut head = [0; HEADER_LEN];
        sys::receive_all(line.as_fd(), &mut head, until_ns).unwrap();
        let header = codec::header(&head).unwrap();
        let mut payload = vec![0; header.len];
        sys::receive_all(line.as_fd(), &mut payload, until_ns).unwrap();
        let Ok(Frame::Attach(attach)) = codec::decode(header.kind, &payload) else {
            panic!("not an attach");
        };
        assert_eq!((attach.client, attach.fabric), (client, FabricKind::Verbs));
        let (peer, verbs) = self.host.admit(client, &attach.verbs.unwrap()).unwrap();
        let attached = Attached {
            status: Status::Success,
            slots: SLOTS,
            ledger_entries: ENTRIES,
            clock_offset_ns: 0,
            verbs: Some(verbs),
            until: UNLIMITED,
        };
        handshake::answer(line.as_fd(), &attached, None, until_ns).unwrap();
        peer
    }
}

/// A clock estimate without error: the test's own clock is the server clock.
pub(super) fn exact_clock() -> ClockEstimate {
    let now = boot_ns();
    ClockEstimate::from_exchange(now, now, ServerTime(now))
}

pub(super) fn w0(slot: u32) -> WordAddr {
    WordAddr::new(Slot(slot), Word::W0)
}

pub(super) fn add(slot: u32, add: u64) -> Chain {
    Chain::one(WordOp::Faa { addr: w0(slot), add })
}

pub(super) fn values(outcome: &Outcome) -> Vec<u64> {
    match outcome {
        Outcome::Done(values) => values.as_slice().to_vec(),
        other => panic!("{other:?}"),
    }
}

impl Session {
    pub(super) fn run(&self, chain: Chain) -> Outcome {
        let mut outcome = [Outcome::Unknown];
        self.exec.execute(&[chain], &mut outcome, deadline_in(PATIENCE));
        outcome[0]
    }

    pub(super) fn old(&self, chain: Chain) -> u64 {
        values(&self.run(chain))[0]
    }
}

/// Answers requests of one client while `work` runs in a thread of its own; returns their number.
pub(super) fn answering<T: Send>(
    host: &VerbsHost,
    peer: &mut VerbsPeer,
    work: impl FnOnce() -> T + Send,
) -> (T, u64) {
    let (mut answered, mut waiting) = (0, Vec::new());
    let (mut arrivals, mut bytes) = (Vec::new(), Vec::new());
    let result = std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            host.poll(&mut arrivals).unwrap();
            for arrival in arrivals.drain(..) {
                if !peer.ids().contains(&arrival.peer()) {
                    continue;
                }
                bytes.clear();
                if peer.take(&arrival, &mut bytes).unwrap() == Event::Message {
                    waiting.extend(request(&bytes));
                }
            }
            while let Some(&(seq, request)) = waiting.first().filter(|_| peer.may_send()) {
                peer.send(&reply(seq, &request)).unwrap();
                waiting.remove(0);
                answered += 1;
            }
            std::thread::yield_now();
        }
        worker.join().unwrap()
    });
    (result, answered)
}

/// The request in a frame, if it is to be answered.
pub(super) fn request(frame: &[u8]) -> Option<(Seq, Request)> {
    let (head, payload) = frame.split_first_chunk::<HEADER_LEN>().unwrap();
    let header = codec::header(head).unwrap();
    match codec::decode(header.kind, payload).unwrap() {
        Frame::Request(seq, request) => request.has_reply().then_some((seq, request)),
        other => panic!("{other:?}"),
    }
}

/// The reply to a request: to a `Ping` the time, to any other the number of the lock.
pub(super) fn reply(seq: Seq, request: &Request) -> Vec<u8> {
    let reply = match request.handle() {
        None => Reply::Pong { at: ServerTime(boot_ns()) },
        Some(handle) => Reply::Done { word: handle.0.into() },
    };
    let mut bytes = Vec::new();
    codec::encode(&Frame::Reply(seq, reply), &mut bytes);
    bytes
}
