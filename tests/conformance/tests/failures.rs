// SPDX-License-Identifier: MIT OR Apache-2.0
//! What executors owe their users when the primary fails them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use dlock_conformance::primary::{
    attach, exact_clock, socket_pair, TestPrimary, CLOCK_OFFSET_NS, SECRET,
};
use dlock_conformance::suite::{run, PATIENCE, THREADS};
use dlock_conformance::Fixture;
use dlock_core::ids::{ClientId, Handle, Seq, Slot};
use dlock_core::limits::FRAME_LEN_MAX;
use dlock_core::memory::exec::{Executor, LockMemory, Posted};
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::codec::{self, Frame, HEADER_LEN};
use dlock_core::wire::control::{Attached, FabricKind, Secret, UNLIMITED};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::{stream::handshake, CpuMemory, FabricError, ShmExecutor, TcpExecutor};

/// The fabrics for which a test can play the primary.
fn kinds() -> impl Iterator<Item = FabricKind> {
    FabricKind::without_device()
}

/// A time much shorter than [`PATIENCE`], which a call would take if it were not ended.
const PROMPTLY: Duration = Duration::from_secs(20);

fn me() -> ClientId {
    ClientId::new(7).expect("a client id")
}

fn addr() -> WordAddr {
    WordAddr::new(Slot(0), Word::W0)
}

fn faa() -> Chain {
    Chain::one(WordOp::Faa { addr: addr(), add: 1 })
}

/// An executor, and the raw stream of the primary's end after a proper handshake.
fn with_rogue(kind: FabricKind) -> (Box<dyn Executor>, std::fs::File) {
    with_rogue_on(kind, socket_pair(kind).expect("sockets"))
}

fn with_rogue_on(
    kind: FabricKind,
    (near, far): (OwnedFd, OwnedFd),
) -> (Box<dyn Executor>, std::fs::File) {
    let primary = std::thread::spawn(move || rogue_handshake(kind, far));
    let executor: Box<dyn Executor> = match kind {
        FabricKind::Shm => {
            let attached = ShmExecutor::attach_on(near, &attach(me()), exact_clock());
            Box::new(attached.expect("shm"))
        }
        _ => {
            let attached = TcpExecutor::attach_over(kind, near, &attach(me()), exact_clock());
            Box::new(attached.expect("frames over a stream"))
        }
    };
    (executor, primary.join().expect("a handshake"))
}

fn rogue_handshake(kind: FabricKind, far: OwnedFd) -> std::fs::File {
    let mut stream = std::fs::File::from(far);
    let mut request = Vec::new();
    codec::encode(&Frame::Attach(attach(me())), &mut request);
    stream.read_exact(&mut request).expect("an attach");
    let attached = Attached {
        status: Status::Success,
        slots: 4,
        ledger_entries: 4,
        clock_offset_ns: CLOCK_OFFSET_NS,
        verbs: None,
        until: UNLIMITED,
    };
    let deadline = deadline_in(PATIENCE);
    // The client's mappings keep the memory when `memory` is dropped. That closes the client's
    // gate, on which no message depends.
    let mut memory = CpuMemory::create(4, 4).expect("memory");
    let shared = (kind == FabricKind::Shm).then(|| memory.share(me()).expect("a ledger"));
    handshake::answer(stream.as_fd(), &attached, shared.as_ref(), deadline).expect("an answer");
    stream
}

#[test]
fn a_lost_connection_ends_every_wait_at_once() {
    for kind in kinds() {
        let (executor, stream) = with_rogue(kind);
        let executor = &*executor;
        let started = Instant::now();
        let ready = Barrier::new(THREADS as usize + 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS / 2 {
                scope.spawn(|| {
                    let seq = executor.send(&Request::Ping).expect("not closed yet");
                    ready.wait();
                    assert_eq!(
                        executor.reply(seq, deadline_in(PATIENCE)),
                        Err(Status::BadResponse)
                    );
                });
                scope.spawn(|| {
                    ready.wait();
                    let mut outcomes = [Outcome::Unknown; 2];
                    executor.execute(&[faa(), faa()], &mut outcomes, deadline_in(PATIENCE));
                    for outcome in outcomes {
                        // the chain was lost after it was sent, or the executor found the
                        // connection closed before
                        let lost = matches!(outcome, Outcome::Unknown | Outcome::Refused(_));
                        assert!(lost, "{outcome:?}");
                    }
                });
            }
            ready.wait();
            drop(stream);
        });
        assert!(started.elapsed() < PROMPTLY);
        assert_eq!(executor.send(&Request::Ping), Err(Status::BadResponse));
        let mut outcomes = [Outcome::Unknown];
        executor.execute(&[faa()], &mut outcomes, deadline_in(PATIENCE));
        assert_eq!(outcomes, [Outcome::Refused(Status::BadResponse)]);
        executor.write_ledger(Handle(0), LedgerEntry::new());
    }
}

#[test]
fn a_posted_chain_of_a_lost_connection_is_unknown() {
    let (executor, stream) = with_rogue(FabricKind::Tcp);
    let posted = executor.post(&faa());
    assert!(matches!(posted, Posted::Pending(_)));
    assert_eq!(executor.poll(posted), None);
    drop(stream);
    let started = Instant::now();
    let outcome = loop {
        if let Some(outcome) = executor.poll(posted) {
            break outcome;
        }
        assert!(started.elapsed() < PROMPTLY);
    };
    assert_eq!(outcome, Outcome::Unknown);
}

fn frame(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(frame, &mut bytes);
    bytes
}

/// Bytes that no primary sends to a client whose only request has number 1.
fn garbage() -> Vec<Vec<u8>> {
    let pong = Reply::Pong { at: dlock_core::clock::ServerTime(1) };
    let good = frame(&Frame::Reply(Seq(1), pong));
    let mut all = vec![
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0; 64],
        vec![0xff; 64],
        frame(&Frame::Reply(Seq(2), pong)),
        frame(&Frame::Reply(Seq(u64::MAX), pong)),
        frame(&Frame::Outcomes(Seq(1), vec![Outcome::Done(Values::new())])),
        frame(&Frame::Batch(Seq(1), vec![faa()])),
        frame(&Frame::Request(Seq(1), Request::Ping)),
        frame(&Frame::Note(Handle(1), LedgerEntry::new())),
        frame(&Frame::Attach(attach(me()))),
    ];
    // a header with a length that is too large, and a frame whose payload is too short
    let mut long = good.clone();
    long[4..8].copy_from_slice(&(FRAME_LEN_MAX as u32).to_le_bytes());
    all.push(long);
    let mut short = good[..good.len() - 1].to_vec();
    short[4..8].copy_from_slice(&((good.len() - 1 - HEADER_LEN) as u32).to_le_bytes());
    all.push(short);
    // each byte of the header is changed once
    for index in 0..4 {
        let mut changed = good.clone();
        changed[index] ^= 0x55;
        all.push(changed);
    }
    all
}

#[test]
fn garbage_breaks_the_session_and_nothing_else() {
    for kind in kinds() {
        for bytes in garbage() {
            let (executor, mut stream) = with_rogue(kind);
            let started = Instant::now();
            let seq = executor.send(&Request::Ping).expect("the session stands");
            stream.write_all(&bytes).expect("the session stands");
            let reply = executor.reply(seq, deadline_in(PATIENCE));
            assert_eq!(reply, Err(Status::BadResponse), "{bytes:02x?}");
            assert_eq!(executor.send(&Request::Ping), Err(Status::BadResponse));
            // the primary's end sees that the connection was closed after the request
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert!(started.elapsed() < PROMPTLY);
        }
    }
}

#[test]
fn the_wrong_number_of_outcomes_breaks_the_session() {
    for count in [0, 1, 3] {
        let (executor, mut stream) = with_rogue(FabricKind::Tcp);
        let mut values = Values::new();
        values.push(0);
        let answer = frame(&Frame::Outcomes(Seq(1), vec![Outcome::Done(values); count]));
        stream.write_all(&answer).expect("the session stands");
        let mut outcomes = [Outcome::Done(values); 2];
        executor.execute(&[faa(), faa()], &mut outcomes, deadline_in(PATIENCE));
        assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Done(_))));
        assert_eq!(executor.send(&Request::Ping), Err(Status::BadResponse));
    }
}

#[test]
fn an_answer_in_pieces_and_answers_in_heaps_are_understood() {
    for kind in kinds() {
        let (executor, mut stream) = with_rogue(kind);
        let pong = Reply::Pong { at: dlock_core::clock::ServerTime(5) };
        let seqs: Vec<Seq> = (0..100).map(|_| executor.send(&Request::Ping).unwrap()).collect();
        let mut all = Vec::new();
        for seq in seqs.iter().rev() {
            codec::encode(&Frame::Reply(*seq, pong), &mut all);
            // the second copy of the answer must be ignored
            codec::encode(&Frame::Reply(*seq, pong), &mut all);
        }
        let writer = std::thread::spawn(move || {
            let (slow, quick) = all.split_at(200);
            for byte in slow {
                stream.write_all(std::slice::from_ref(byte)).unwrap();
            }
            stream.write_all(quick).unwrap();
            stream
        });
        for seq in seqs {
            assert_eq!(executor.reply(seq, deadline_in(PATIENCE)), Ok(Some(pong)));
        }
        drop(writer.join().unwrap());
    }
}

#[test]
fn whoever_reads_for_all_hands_over_when_it_leaves() {
    for kind in kinds() {
        let (executor, mut stream) = with_rogue(kind);
        let executor = &*executor;
        let pong = Reply::Pong { at: dlock_core::clock::ServerTime(5) };
        // the scheduler decides whether the patient thread waits behind another one from the start,
        // so there are several rounds
        for _ in 0..5 {
            let patient = executor.send(&Request::Ping).unwrap();
            let ready = Barrier::new(THREADS as usize);
            std::thread::scope(|scope| {
                let waits = (1..u64::from(THREADS)).map(|n| Duration::from_millis(20 * n));
                let hasty: Vec<_> = waits
                    .map(|wait| {
                        let (seq, ready) = (executor.send(&Request::Ping).unwrap(), &ready);
                        scope.spawn(move || {
                            ready.wait();
                            assert_eq!(executor.reply(seq, deadline_in(wait)), Ok(None));
                            executor.forget(seq);
                        })
                    })
                    .collect();
                let patient_one = scope.spawn(|| {
                    ready.wait();
                    std::thread::yield_now();
                    let started = Instant::now();
                    assert_eq!(executor.reply(patient, deadline_in(PATIENCE)), Ok(Some(pong)));
                    assert!(started.elapsed() < PROMPTLY);
                });
                for thread in hasty {
                    thread.join().unwrap();
                }
                stream.write_all(&frame(&Frame::Reply(patient, pong))).unwrap();
                patient_one.join().unwrap();
            });
        }
    }
}

#[test]
fn a_primary_that_does_not_read_holds_nobody_up_and_loses_nothing() {
    let (executor, stream) = with_rogue(FabricKind::Tcp);
    let executor = &*executor;
    // four threads send until the buffers are full
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| send_unread(executor, usize::MAX));
        }
    });
    let reader = std::thread::spawn(|| read_to_ping(stream));
    let seq = executor.send(&Request::Ping).expect("there is room again");
    assert!(matches!(executor.reply(seq, deadline_in(PATIENCE)), Ok(Some(Reply::Pong { .. }))));
    assert_eq!(reader.join().expect("the reader") + 1, seq.0);
}

#[test]
fn what_could_not_be_sent_at_once_is_sent_while_its_answer_is_waited_for() {
    // Unix sockets always have buffers of the same size
    let connected = || socket_pair(FabricKind::Shm).expect("sockets");
    let (executor, unread) = with_rogue_on(FabricKind::Tcp, connected());
    let batches = send_unread(&*executor, usize::MAX);
    drop((executor, unread));
    // after that many batches, or a few less, the executor has room for a request, and the socket
    // has none
    let (executor, stream) = with_rogue_on(FabricKind::Tcp, connected());
    send_unread(&*executor, batches - 50);
    let seq = executor.send(&Request::Ping).expect("there is room");
    let reader = std::thread::spawn(|| read_to_ping(stream));
    assert!(matches!(executor.reply(seq, deadline_in(PATIENCE)), Ok(Some(Reply::Pong { .. }))));
    assert_eq!(reader.join().expect("the reader") + 1, seq.0);
}

/// Sends so many batches to a primary that does not read, or fewer if the buffers are full. Returns
/// how many were sent.
fn send_unread(executor: &dyn Executor, count_max: usize) -> usize {
    let chains = [faa().then(WordOp::WriteLedger { handle: Handle(1), value: u64::MAX }); 31];
    for count in 0..count_max {
        let mut outcomes = [Outcome::Unknown; 31];
        let started = Instant::now();
        executor.execute(&chains, &mut outcomes, 0);
        assert!(started.elapsed() < PROMPTLY);
        match outcomes[0] {
            Outcome::Unknown => {}
            Outcome::Refused(Status::TimedOut) => return count,
            other => panic!("{other:?}"),
        }
    }
    count_max
}

/// Reads frames up to a ping, checks that their numbers follow one another, and answers the ping.
/// Returns the last number before it.
fn read_to_ping(mut stream: std::fs::File) -> u64 {
    let pong = Reply::Pong { at: dlock_core::clock::ServerTime(5) };
    let (mut buffer, mut last) = (FrameBuffer::new(), 0);
    loop {
        let len = stream.read(buffer.space()).expect("whole frames");
        assert!(len > 0, "closed before the ping");
        buffer.filled(len);
        while let Some((kind, payload)) = buffer.next().expect("whole frames") {
            match codec::decode(kind, payload).expect("whole frames") {
                Frame::Batch(seq, chains) => {
                    assert_eq!((seq.0, chains.len()), (last + 1, 31));
                    last = seq.0;
                }
                Frame::Request(seq, Request::Ping) => {
                    assert_eq!(seq.0, last + 1);
                    stream.write_all(&frame(&Frame::Reply(seq, pong))).expect("open");
                    return last;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_wrong_secret_is_refused_with_the_primarys_status() {
    let primary = TestPrimary::start(FabricKind::Shm);
    let mut attach = attach(me());
    attach.secret = Secret([0; 16]);
    assert_ne!(attach.secret, SECRET);
    let shm = ShmExecutor::attach(primary.name(), &attach, exact_clock()).map(drop);
    assert!(matches!(shm, Err(FabricError::Refused(Status::ClientRemoved))), "{shm:?}");
    let tcp = TcpExecutor::attach(primary.addr(), &attach, exact_clock()).map(drop);
    assert!(matches!(tcp, Err(FabricError::Refused(Status::ClientRemoved))), "{tcp:?}");
}

#[test]
fn an_evicted_client_is_refused_at_once_and_its_notes_are_not_written() {
    let primary = TestPrimary::start(FabricKind::Shm);
    let id = primary.new_client_id();
    let evicted = primary.attach_shm(id);
    let other = primary.client();
    assert_eq!(run(&evicted, faa()), [0]);
    evicted.write_ledger(Handle(3), LedgerEntry::from_bits(3));
    assert!(evicted.is_alive() && evicted.probe());
    primary.cpu_memory().revoke(id, Status::ClientRemoved);
    assert!(!evicted.is_alive());
    let mut outcomes = [Outcome::Unknown];
    evicted.execute(&[faa()], &mut outcomes, deadline_in(PATIENCE));
    assert_eq!(outcomes, [Outcome::Refused(Status::ClientRemoved)]);
    assert_eq!(evicted.post(&faa()), Posted::Ready(outcomes[0]));
    evicted.write_ledger(Handle(3), LedgerEntry::from_bits(4));
    assert_eq!(primary.cpu_memory().ledger(id, Handle(3)).into_bits(), 3);
    assert_eq!(run(&*other.executor, faa()), [1], "nobody else is concerned");
}

#[test]
fn a_closed_gate_refuses_chains_of_all_and_takes_notes() {
    let primary = TestPrimary::start(FabricKind::Shm);
    let id = primary.new_client_id();
    let client = primary.attach_shm(id);
    primary.cpu_memory().set_gate(Some(Status::NotReady));
    let mut outcomes = [Outcome::Unknown];
    client.execute(&[faa()], &mut outcomes, deadline_in(PATIENCE));
    assert_eq!(outcomes, [Outcome::Refused(Status::NotReady)]);
    client.write_ledger(Handle(0), LedgerEntry::from_bits(9));
    assert_eq!(primary.cpu_memory().ledger(id, Handle(0)).into_bits(), 9);
    primary.cpu_memory().set_gate(None);
    assert_eq!(run(&client, faa()), [0]);
}

#[test]
fn a_client_that_leaves_in_order_is_known_to_be_detached() {
    let primary = TestPrimary::start(FabricKind::Shm);
    let id = primary.new_client_id();
    let first = primary.attach_shm(id);
    let second = primary.attach_shm(id);
    assert!(!primary.cpu_memory().detached(id));
    drop(first);
    assert!(!primary.cpu_memory().detached(id), "its second executor may still act");
    drop(second);
    assert!(primary.cpu_memory().detached(id));
    let third = primary.attach_shm(id);
    assert!(!primary.cpu_memory().detached(id));
    assert_eq!(run(&third, faa()), [0]);
}

#[test]
fn a_primary_that_stops_refuses_the_chains_of_those_it_leaves() {
    let primary = TestPrimary::start(FabricKind::Shm);
    let client = primary.client();
    assert_eq!(run(&*client.executor, faa()), [0]);
    drop(primary);
    let mut outcomes = [Outcome::Unknown];
    client.executor.execute(&[faa()], &mut outcomes, deadline_in(PATIENCE));
    assert_eq!(outcomes, [Outcome::Refused(Status::BadResponse)]);
}

#[test]
fn a_closed_socket_is_noticed_by_looking() {
    let primary = TestPrimary::start(FabricKind::Shm);
    let shm = primary.attach_shm(primary.new_client_id());
    let tcp = primary.attach_tcp(primary.new_client_id());
    assert!(shm.probe() && tcp.probe());
    primary.disconnect_all();
    let started = Instant::now();
    while shm.probe() || tcp.probe() {
        assert!(started.elapsed() < PROMPTLY);
    }
    assert!(!shm.is_alive() && !tcp.is_alive());
}
