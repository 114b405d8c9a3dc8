// SPDX-License-Identifier: MIT OR Apache-2.0
//! The properties. Each function is one test; a failed one panics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use dlock_core::ids::Seq;
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::exec::{Executor, Listening, OnAnswer, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::os::wake::{Wake, Watched};

use crate::{Fixture, Layout};

/// A time in which every call ends, even on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The number of threads, for properties that need several.
pub const THREADS: u32 = 8;
/// The word at which the parties of a contended property count that they are ready; at the other
/// one they are told to start.
const READY: u32 = 62;
const START: u32 = 63;

/// The values of a chain that must be executed.
pub fn run(executor: &dyn Executor, chain: Chain) -> Vec<u64> {
    let mut outcomes = [Outcome::Unknown];
    executor.execute(&[chain], &mut outcomes, deadline_in(PATIENCE));
    values(&outcomes[0])
}

fn values(outcome: &Outcome) -> Vec<u64> {
    match outcome {
        Outcome::Done(values) => values.as_slice().to_vec(),
        other => panic!("not executed: {other:?}"),
    }
}

fn faa(addr: WordAddr, add: u64) -> WordOp {
    WordOp::Faa { addr, add }
}

fn cas(addr: WordAddr, expect: u64, swap: u64) -> WordOp {
    WordOp::Cas { addr, expect, swap }
}

fn read(addr: WordAddr) -> WordOp {
    WordOp::Read { addr }
}

fn word(fixture: &dyn Fixture, addr: WordAddr) -> u64 {
    let mut value = 0;
    fixture.memory(&mut |memory| value = memory.read(addr));
    value
}

fn entry(fixture: &dyn Fixture, client: &crate::Client, n: u32) -> u64 {
    let mut value = LedgerEntry::new();
    fixture.memory(&mut |memory| value = memory.ledger(client.id, fixture.handle(n)));
    value.into_bits()
}

fn answered(executor: &dyn Executor, request: &Request) -> Reply {
    let seq = executor.send(request).expect("the session stands");
    let reply = executor.reply(seq, deadline_in(PATIENCE)).expect("the session stands");
    reply.expect("an answer in time")
}

/// Every word operation has the effect and the value of its CPU instruction.
pub fn verbs_do_what_they_say(fixture: &dyn Fixture) {
    let client = fixture.client();
    let (exec, addr) = (&*client.executor, fixture.addr(3));
    assert_eq!(run(exec, Chain::one(read(addr))), [0]);
    assert_eq!(run(exec, Chain::one(cas(addr, 1, 9))), [0]);
    assert_eq!(word(fixture, addr), 0, "a compare that fails swaps nothing");
    assert_eq!(run(exec, Chain::one(cas(addr, 0, 7))), [0]);
    assert_eq!(run(exec, Chain::one(faa(addr, 5))), [7]);
    assert_eq!(run(exec, Chain::one(read(addr))), [12]);
    assert_eq!(word(fixture, addr), 12);
    let note = WordOp::WriteLedger { handle: fixture.handle(2), value: 1 << 60 };
    assert_eq!(run(exec, Chain::one(note)), [0]);
    assert_eq!(entry(fixture, &client, 2), 1 << 60);
    assert_eq!(word(fixture, fixture.addr(4)), 0, "neighbours are untouched");
}

/// A word operation by itself does what a chain does that has only this word operation.
pub fn a_single_verb_is_a_chain_of_one(fixture: &dyn Fixture) {
    let client = fixture.client();
    let (exec, addr) = (&*client.executor, fixture.addr(3));
    let one = |word_op| exec.execute_one(&word_op, deadline_in(PATIENCE));
    assert_eq!(one(cas(addr, 0, 7)), Single::Done(0));
    assert_eq!(one(cas(addr, 0, 8)), Single::Done(7));
    assert_eq!(one(faa(addr, 5)), Single::Done(7));
    assert_eq!(one(read(addr)), Single::Done(12));
    let note = WordOp::WriteLedger { handle: fixture.handle(2), value: 3 };
    assert_eq!(one(note), Single::Done(0));
    assert_eq!(entry(fixture, &client, 2), 3);
    assert!(matches!(one(faa(fixture.outside(), 1)), Single::Refused(_)));
    assert_eq!(word(fixture, addr), 12);
}

/// Addition is modulo 2^64, and values have all 64 bits.
pub fn arithmetic_wraps(fixture: &dyn Fixture) {
    let client = fixture.client();
    let (exec, addr) = (&*client.executor, fixture.addr(0));
    assert_eq!(run(exec, Chain::one(faa(addr, u64::MAX))), [0]);
    assert_eq!(run(exec, Chain::one(faa(addr, 2))), [u64::MAX]);
    assert_eq!(run(exec, Chain::one(cas(addr, 1, 1 << 63 | 1))), [1]);
    assert_eq!(run(exec, Chain::one(faa(addr, 1 << 63))), [1 << 63 | 1]);
    assert_eq!(word(fixture, addr), 1);
}

/// Each word operation of a chain sees the effects of those before it.
pub fn a_chain_is_executed_in_order(fixture: &dyn Fixture) {
    let client = fixture.client();
    let addr = fixture.addr(1);
    let chain = Chain::one(read(addr)).then(faa(addr, 3)).then(cas(addr, 3, 8)).then(read(addr));
    assert_eq!(run(&*client.executor, chain), [0, 0, 3, 8]);
    assert_eq!(run(&*client.executor, chain), [8, 8, 11, 11]);
}

/// The chains of a full batch, 31 of them, are executed one after the other.
pub fn a_full_batch_is_executed_in_order(fixture: &dyn Fixture) {
    let client = fixture.client();
    let addr = fixture.addr(1);
    let chains: Vec<Chain> =
        (0..BATCH_MAX as u64).map(|n| Chain::one(cas(addr, n, n + 1)).then(read(addr))).collect();
    let mut outcomes = [Outcome::Unknown; BATCH_MAX];
    client.executor.execute(&chains, &mut outcomes, deadline_in(PATIENCE));
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(values(outcome), [n as u64, n as u64 + 1]);
    }
}

/// An empty batch has no outcomes, and does no harm.
pub fn an_empty_batch_is_nothing(fixture: &dyn Fixture) {
    let client = fixture.client();
    client.executor.execute(&[], &mut [], deadline_in(PATIENCE));
    assert_eq!(run(&*client.executor, Chain::one(read(fixture.addr(0)))), [0]);
}

/// A ledger write takes effect after the chains that the thread sent before it, and before the
/// chains and messages that it sends after it.
pub fn notes_and_chains_of_one_thread_keep_their_order(fixture: &dyn Fixture) {
    let client = fixture.client();
    let (exec, handle) = (&*client.executor, fixture.handle(5));
    for round in 1..=100u64 {
        let by_chain = WordOp::WriteLedger { handle, value: round << 32 };
        run(exec, Chain::one(faa(fixture.addr(0), 1)).then(by_chain));
        assert_eq!(entry(fixture, &client, 5), round << 32);
        exec.write_ledger(handle, LedgerEntry::from_bits(round));
        exec.write_ledger(fixture.handle(6), LedgerEntry::from_bits(round));
        if round % 2 == 0 {
            run(exec, Chain::one(read(fixture.addr(0))));
        } else {
            answered(exec, &Request::Ping);
        }
        assert_eq!(entry(fixture, &client, 5), round);
        assert_eq!(entry(fixture, &client, 6), round);
    }
}

/// A chain with one wrong address has no effect; the chains around it are executed.
pub fn an_address_outside_is_refused_without_effect(fixture: &dyn Fixture) {
    let client = fixture.client();
    let (exec, addr) = (&*client.executor, fixture.addr(2));
    let good = Chain::one(faa(addr, 1));
    let outside = fixture.outside();
    for wrong in [read(outside), faa(outside, 1), cas(outside, 0, 1)] {
        let mut outcomes = [Outcome::Unknown; 3];
        exec.execute(&[good, good.then(wrong), good], &mut outcomes, deadline_in(PATIENCE));
        assert!(matches!(outcomes[0], Outcome::Done(_)));
        assert!(matches!(outcomes[1], Outcome::Refused(_)), "{:?}", outcomes[1]);
        assert!(matches!(outcomes[2], Outcome::Done(_)));
    }
    assert_eq!(word(fixture, addr), 6);
    let note = WordOp::WriteLedger { handle: dlock_core::ids::Handle(u32::MAX), value: 1 };
    let mut outcomes = [Outcome::Unknown];
    exec.execute(&[good.then(note)], &mut outcomes, deadline_in(PATIENCE));
    assert!(matches!(outcomes[0], Outcome::Refused(_)), "{:?}", outcomes[0]);
    assert_eq!(word(fixture, addr), 6);
}

/// The ledger writes of a client reach only its own ledger.
pub fn notes_reach_only_the_own_ledger(fixture: &dyn Fixture) {
    let clients = [fixture.client(), fixture.client(), fixture.client()];
    for (value, client) in (1..).zip(&clients) {
        client.executor.write_ledger(fixture.handle(7), LedgerEntry::from_bits(value));
        let note = WordOp::WriteLedger { handle: fixture.handle(8), value: value + 10 };
        run(&*client.executor, Chain::one(note));
    }
    for (value, client) in (1..).zip(&clients) {
        assert_eq!(entry(fixture, client, 7), value);
        assert_eq!(entry(fixture, client, 8), value + 10);
        assert_eq!(entry(fixture, client, 9), 0);
    }
}

/// Posted chains are executed in the order of posting; each outcome is told once.
pub fn posted_chains_finish_once_and_in_order(fixture: &dyn Fixture) {
    let client = fixture.client();
    let chain = Chain::one(faa(fixture.addr(0), 1));
    let posted: Vec<Posted> = (0..100).map(|_| client.executor.post(&chain)).collect();
    let started = Instant::now();
    for (n, posted) in posted.into_iter().enumerate().rev() {
        let outcome = loop {
            assert!(started.elapsed() < PATIENCE);
            if let Some(outcome) = client.executor.poll(posted) {
                break outcome;
            }
            std::thread::yield_now();
        };
        assert_eq!(values(&outcome), [n as u64]);
    }
    assert_eq!(word(fixture, fixture.addr(0)), 100);
}

/// The time in a `Pong` is the time the client knows, within its uncertainty.
pub fn a_ping_tells_the_time(fixture: &dyn Fixture) {
    let client = fixture.client();
    for _ in 0..20 {
        let before = client.executor.now();
        let Reply::Pong { at } = answered(&*client.executor, &Request::Ping) else {
            panic!("a ping is answered by a pong");
        };
        let after = client.executor.now();
        let earliest = before.time.0.saturating_sub(before.uncertainty_ns);
        let latest = after.time.0.saturating_add(after.uncertainty_ns);
        assert!((earliest..=latest).contains(&at.0), "{earliest} <= {} <= {latest}", at.0);
        assert!(after.uncertainty_ns < 1_000_000_000);
    }
}

/// A call for a reply that was never asked for, or that was returned already, returns at once.
pub fn an_unexpected_number_is_never_waited_for(fixture: &dyn Fixture) {
    let client = fixture.client();
    let started = Instant::now();
    let seq = client.executor.send(&Request::Ping).unwrap();
    assert!(matches!(
        client.executor.reply(seq, deadline_in(PATIENCE)),
        Ok(Some(Reply::Pong { .. }))
    ));
    assert_eq!(client.executor.reply(seq, deadline_in(PATIENCE)), Ok(None));
    assert_eq!(client.executor.reply(Seq(u64::MAX), deadline_in(PATIENCE)), Ok(None));
    client.executor.forget(Seq(u64::MAX));
    assert!(started.elapsed() < PATIENCE);
}

/// A client that listens is told of an answer for which no thread waits: by an input, or by the
/// call. After that the answer is there. This also holds if a thread waits for another answer
/// meanwhile.
pub fn an_answer_nobody_waits_for_is_heard_of(fixture: &dyn Fixture) {
    let client = fixture.client();
    let exec = &*client.executor;
    let wake = Arc::new(Wake::new());
    let call: OnAnswer = {
        let wake = Arc::clone(&wake);
        Arc::new(move || wake.wake())
    };
    if exec.listen(Some(&call)) == Err(Status::Invalid) {
        return; // this executor cannot tell of answers, and says so
    }
    for _ in 0..100 {
        let seq = exec.send(&Request::Ping).unwrap();
        answered(exec, &Request::Ping); // a second ping, whose answer a thread waits for
        let until = Instant::now() + PATIENCE;
        loop {
            let listening = exec.listen(Some(&call)).unwrap();
            if let Some(reply) = exec.reply(seq, 0).unwrap() {
                assert!(matches!(reply, Reply::Pong { .. }));
                break;
            }
            assert!(Instant::now() < until, "not heard of in time");
            let inputs = exec.inputs().into_iter().flatten().map(|fd| (fd, Watched::Input));
            match listening {
                Listening::Inputs => {
                    drop(wake.sleep(&inputs.collect::<Vec<_>>(), deadline_in(PATIENCE)))
                }
                Listening::Called => drop(wake.sleep(&[], deadline_in(PATIENCE))),
                Listening::Again => std::thread::yield_now(),
            }
        }
    }
    exec.listen(None).unwrap();
}

/// Eight threads of one client wait for eight replies. Each gets its own, and chains of the client
/// are executed meanwhile.
pub fn replies_go_to_those_who_asked(fixture: &dyn Fixture) {
    let client = fixture.client();
    let exec = &*client.executor;
    let unblocked: Vec<AtomicBool> = (0..THREADS).map(|_| AtomicBool::new(false)).collect();
    let (done, finished) = mpsc::channel();
    let all_sent = Barrier::new(THREADS as usize + 1);
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (done, unblocked, all_sent) = (done.clone(), &unblocked, &all_sent);
            scope.spawn(move || {
                let seq = exec.send(&fixture.blocked(n)).unwrap();
                all_sent.wait();
                let reply = exec.reply(seq, deadline_in(PATIENCE));
                assert!(unblocked[n as usize].load(Ordering::SeqCst), "{n} was told too early");
                assert!(matches!(reply, Ok(Some(Reply::Cancelled { .. }))), "{reply:?}");
                done.send(n).unwrap();
            });
        }
        all_sent.wait();
        // the order is neither that of sending nor its reverse
        for n in (0..THREADS).map(|n| (n * 5 + 3) % THREADS) {
            run(exec, Chain::one(faa(fixture.addr(0), 1)));
            unblocked[n as usize].store(true, Ordering::SeqCst);
            answered(exec, &fixture.unblock(n));
            assert_eq!(finished.recv_timeout(PATIENCE), Ok(n));
        }
    });
    assert_eq!(word(fixture, fixture.addr(0)), u64::from(THREADS));
}

/// A reply that comes after its caller has given up does not disturb other calls.
pub fn forgotten_replies_do_no_harm(fixture: &dyn Fixture) {
    let client = fixture.client();
    let exec = &*client.executor;
    for n in 0..THREADS {
        let seq = exec.send(&fixture.blocked(n)).unwrap();
        assert_eq!(exec.reply(seq, 0), Ok(None));
        assert_eq!(exec.reply(seq, deadline_in(Duration::from_millis(1))), Ok(None));
        exec.forget(seq);
        assert!(matches!(answered(exec, &fixture.unblock(n)), Reply::Done { .. }));
        assert_eq!(exec.reply(seq, deadline_in(PATIENCE)), Ok(None));
        run(exec, Chain::one(faa(fixture.addr(0), 1)));
    }
    assert_eq!(word(fixture, fixture.addr(0)), u64::from(THREADS));
}

/// The number of operations of each party: enough that the parties overlap, even if the executor is
/// fast.
fn rounds(executor: &dyn Executor) -> u64 {
    if executor.reads_are_free() {
        50_000
    } else {
        300
    }
}

/// The work of one party, a thread or a separate process, in the contended properties. Begins when
/// all parties are ready.
pub fn contend<L: Layout + ?Sized>(layout: &L, executor: &dyn Executor) {
    run(executor, Chain::one(faa(layout.addr(READY), 1)));
    while run(executor, Chain::one(read(layout.addr(START)))) == [0] {
        std::thread::yield_now();
    }
    for _ in 0..rounds(executor) {
        run(executor, Chain::one(faa(layout.addr(0), 1 << 32 | 1)));
    }
    for _ in 0..rounds(executor) {
        let (counter, mut seen) = (layout.addr(1), 0);
        loop {
            let old = run(executor, Chain::one(cas(counter, seen, seen + 1)))[0];
            if old == seen {
                break;
            }
            seen = old;
        }
    }
}

/// Waits until all parties are ready, and starts them.
pub fn start_together(fixture: &dyn Fixture, parties: u32) {
    let deadline = Instant::now() + PATIENCE;
    while word(fixture, fixture.addr(READY)) < u64::from(parties) {
        assert!(Instant::now() < deadline, "not all parties came");
        std::thread::yield_now();
    }
    fixture.memory(&mut |memory| memory.set(fixture.addr(START), 1));
}

/// Checks that no operation was lost or executed twice, after all parties have run [`contend`].
pub fn contended(fixture: &dyn Fixture, parties: u32) {
    let client = fixture.client();
    let total = u64::from(parties) * rounds(&*client.executor);
    assert_eq!(word(fixture, fixture.addr(0)), total << 32 | total);
    assert_eq!(word(fixture, fixture.addr(1)), total);
}

/// No addition is lost or doubled between clients.
pub fn sums_are_exact_with_a_client_per_thread(fixture: &dyn Fixture) {
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let client = fixture.client();
            scope.spawn(move || contend(fixture, &*client.executor));
        }
        start_together(fixture, THREADS);
    });
    contended(fixture, THREADS);
}

/// No addition is lost or doubled, and no answer given to the wrong thread, within one client.
pub fn sums_are_exact_with_one_client_for_all_threads(fixture: &dyn Fixture) {
    let client = fixture.client();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| contend(fixture, &*client.executor));
        }
        start_together(fixture, THREADS);
    });
    contended(fixture, THREADS);
}

/// Among the batches of several clients, every value of a counter is handed out exactly once.
pub fn increments_by_compare_and_swap_are_exact(fixture: &dyn Fixture) {
    let mut taken: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let client = fixture.client();
                scope.spawn(move || {
                    let addr = fixture.addr(2);
                    let (mut mine, mut seen) = (Vec::new(), 0);
                    while mine.len() < 50 {
                        let chain = Chain::one(cas(addr, seen, seen + 1)).then(read(addr));
                        let old = run(&*client.executor, chain)[0];
                        if old == seen {
                            mine.push(old);
                        }
                        seen = old + u64::from(old == seen);
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    taken.sort_unstable();
    assert_eq!(taken, (0..u64::from(THREADS) * 50).collect::<Vec<_>>());
}
