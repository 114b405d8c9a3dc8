// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor against a primary's memory on the device.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

use dlock_core::ids::{ClientId, Handle};
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::exec::{Executor, LockMemory, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::control::{Attach, FabricKind, Secret};
use dlock_core::wire::message::Request;
use dlock_core::wire::status::Status;

use super::session::*;
use super::*;
use crate::error::FabricError;

const REFUSED: Outcome = Outcome::Refused(Status::BadResponse);

#[test]
fn every_verb_is_executed_with_either_kind_of_queue_pairs() {
    for shared_qp in [false, true] {
        let Some(mut site) = Site::new(shared_qp) else { return };
        let session = site.join();
        let chain = Chain::one(WordOp::WriteLedger { handle: Handle(3), value: 9 })
            .then(WordOp::Faa { addr: w0(5), add: 7 })
            .then(WordOp::Cas { addr: w0(5), expect: 7, swap: 8 })
            .then(WordOp::Read { addr: w0(5) });
        assert_eq!(values(&session.run(chain)), [0, 0, 7, 8]);
        assert_eq!(site.memory.read(w0(5)), 8);
        let entry = site.memory.ledger(session.client, Handle(3));
        assert_eq!(entry.into_bits(), 9);
        let miss = WordOp::Cas { addr: w0(5), expect: 1, swap: 2 };
        assert_eq!(session.exec.execute_one(&miss, deadline_in(PATIENCE)), Single::Done(8));
        assert_eq!(site.memory.cas(w0(5), 8, 1), 8);
        assert_eq!(site.memory.faa(w0(5), u64::MAX), 1);
        site.memory.set(w0(5), 77);
        assert_eq!(session.old(add(5, 0)), 77);
        // More words than fit into one list of the loopback.
        let words: Vec<(WordAddr, u64)> = (10..30).map(|slot| (w0(slot), slot.into())).collect();
        site.memory.set_all(&words);
        assert!(words.iter().all(|&(addr, value)| site.memory.read(addr) == value));
        let counts = session.exec.counters();
        assert_eq!((counts.atomics, counts.reads, counts.notes), (4, 1, 1));
        assert_eq!((counts.doorbells, counts.sends), (3, 0));
    }
}

#[test]
fn a_batch_is_one_doorbell_and_a_wrong_address_in_it_harms_only_its_chain() {
    let Some(mut site) = Site::new(false) else { return };
    let session = site.join();
    let mut chains = [add(0, 1); BATCH_MAX];
    for (slot, chain) in (0..).zip(&mut chains) {
        *chain = add(slot, 1)
            .then(WordOp::Read { addr: w0(slot) })
            .then(WordOp::Faa { addr: w0(slot), add: 1 });
        *chain =
            chain.then(WordOp::WriteLedger { handle: Handle(slot), value: u64::from(slot) + 1 });
    }
    chains[7] = add(0, 1).then(WordOp::Read { addr: WordAddr::from_index(SLOTS * 4) });
    chains[9] = add(0, 1).then(WordOp::WriteLedger { handle: Handle(ENTRIES), value: 1 });
    let mut outcomes = [Outcome::Unknown; BATCH_MAX + 1];
    let mut more = chains.to_vec();
    more.push(add(0, 1));
    session.exec.execute(&more, &mut outcomes, deadline_in(PATIENCE));
    for (i, outcome) in outcomes.iter().enumerate() {
        match i {
            7 | 9 | BATCH_MAX => assert_eq!(*outcome, Outcome::Refused(Status::Invalid)),
            _ => assert_eq!(values(outcome), [0, 1, 1, 0], "{i}"),
        }
    }
    assert_eq!(session.exec.counters().doorbells, 1);
    assert_eq!(site.memory.read(w0(0)), 2);
    assert_eq!(site.memory.ledger(session.client, Handle(30)).into_bits(), 31);
    assert_eq!(site.memory.ledger(session.client, Handle(9)), LedgerEntry::new());
}

#[test]
fn eight_threads_on_one_executor_get_exact_values() {
    const EACH: u64 = 150;
    let Some(mut site) = Site::new(false) else { return };
    let session = site.join();
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let session = &session;
                scope.spawn(move || -> Vec<u64> {
                    let own = u32::try_from(thread).unwrap() + 10;
                    let run = |i: u64| {
                        let note = LedgerEntry::from_bits(i);
                        session.exec.write_ledger(Handle(own), note);
                        let chain = add(1, 1).then(WordOp::Faa { addr: w0(own), add: 1 });
                        let values = values(&session.run(chain));
                        assert_eq!(values[1], i, "another thread's value");
                        values[0]
                    };
                    (0..EACH).map(run).collect()
                })
            })
            .collect();
        for thread in threads {
            seen.extend(thread.join().unwrap());
        }
    });
    assert_eq!(seen.len() as u64, 8 * EACH, "an old value came twice");
    assert_eq!(site.memory.read(w0(1)), 8 * EACH);
    assert!(session.exec.flush_ledger(deadline_in(PATIENCE)));
    assert!(session.exec.flush_ledger(0), "asked again, without waiting");
    for own in 10..18 {
        let entry = site.memory.ledger(session.client, Handle(own));
        assert_eq!(entry.into_bits(), EACH - 1);
    }
}

/// Two clients add to a word with their device while the primary adds, too; returns the number of
/// lost updates.
fn lost_updates(site: &mut Site, sessions: &[Session], adds: fn(&mut NicMemory)) -> u64 {
    const EACH: u64 = 1_000;
    let before = site.memory.read(w0(2));
    let memory = &mut site.memory;
    let own = std::thread::scope(|scope| {
        let clients: Vec<_> = sessions
            .iter()
            .map(|session| {
                scope.spawn(|| (0..EACH).for_each(|_| assert!(session.old(add(2, 1)) < u64::MAX)))
            })
            .collect();
        let mut own = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            adds(memory);
            own += 1;
        }
        own
    });
    assert!(own > 0);
    (before + 2 * EACH + own).wrapping_sub(site.memory.read(w0(2)))
}

#[test]
fn what_the_primary_does_by_its_loopback_is_atomic_with_its_clients_and_by_its_cpu_is_not() {
    // An update is lost only if an emulated processor is interrupted at the right moment.
    const TRIED_FOR: Duration = Duration::from_secs(150);
    let Some(mut site) = Site::new(false) else { return };
    let by_loopback = |memory: &mut NicMemory| {
        memory.faa(w0(2), 1);
    };
    let sessions: Vec<_> = (0..2).map(|_| site.join()).collect();
    assert_eq!(lost_updates(&mut site, &sessions, by_loopback), 0);
    if site.host.context().device().atomics == crate::verbs::port_selection::Atomics::Global {
        let _ = writeln!(std::io::stderr(), "skipped: this device is atomic with the CPU");
        return;
    }
    // Here the primary breaks the rule, and adds by the CPU. If no device ever lost an update, the
    // test of the rule would show nothing.
    let by_cpu = |memory: &mut NicMemory| {
        for _ in 0..100 {
            memory.cpu_word(w0(2)).faa(1);
        }
        // the hundred additions must count as one, as they do in `lost_updates`
        memory.cpu_word(w0(2)).faa(1u64.wrapping_sub(100));
    };
    let begin = Instant::now();
    let mut attempts = (1..).take_while(|_| begin.elapsed() < TRIED_FOR);
    let lost = attempts.find_map(|attempt| {
        let lost = lost_updates(&mut site, &sessions, by_cpu);
        (lost != 0).then_some((attempt, lost))
    });
    let _ = writeln!(std::io::stderr(), "CPU atomics lose updates: (attempt, lost) {lost:?}");
    assert!(lost.is_some(), "CPU atomics went unnoticed");
}

#[test]
fn a_client_whose_primary_is_gone_knows_nothing_and_then_refuses() {
    for shared_qp in [false, true] {
        let Some(mut site) = Site::new(shared_qp) else { return };
        let Session { exec, peer, line, .. } = site.join();
        let mut outcome = [Outcome::Unknown; 2];
        exec.execute(&[add(0, 1)], &mut outcome[..1], deadline_in(PATIENCE));
        assert_eq!(values(&outcome[0]), [0]);
        assert!(exec.is_alive() && exec.probe());
        let posted = exec.post(&add(0, 1));
        while exec.poll(posted).is_none() {}
        // the process of the client has died, so it closes nothing
        drop(peer);
        let start = Instant::now();
        exec.execute(&[add(0, 1), add(1, 1)], &mut outcome, deadline_in(PATIENCE));
        assert_eq!(outcome, [Outcome::Unknown; 2]);
        assert!(start.elapsed() < timing::DEAD_PEER_MAX + Duration::from_secs(5));
        assert!(!exec.is_alive());
        exec.execute(&[add(0, 1)], &mut outcome[..1], deadline_in(PATIENCE));
        assert_eq!(outcome[0], REFUSED);
        assert_eq!(exec.post(&add(0, 1)), Posted::Ready(REFUSED));
        assert_eq!(exec.send(&Request::Ping), Err(Status::BadResponse));
        assert!(!exec.flush_ledger(deadline_in(PATIENCE)));
        exec.write_ledger(Handle(0), LedgerEntry::new());
        assert_eq!(site.memory.read(w0(0)), 2);
        // the end of the liveness connection tells the primary
        let mut one = [0];
        assert_eq!(std::io::Read::read(&mut &line, &mut one).unwrap(), 0);
    }
}

#[test]
fn the_end_of_the_life_line_is_the_end_of_the_session_even_for_a_sleeper() {
    let Some(mut site) = Site::new(false) else { return };
    let Session { exec, peer: _peer, line, .. } = site.join();
    let seq = exec.send(&Request::Ping).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| exec.reply(seq, deadline_in(PATIENCE)));
        let other = scope.spawn(|| exec.reply(seq, deadline_in(PATIENCE)));
        assert_eq!(exec.reply(seq, 0), Ok(None));
        drop(line);
        assert_eq!(waiter.join().unwrap(), Err(Status::BadResponse));
        assert_eq!(other.join().unwrap(), Err(Status::BadResponse));
    });
    assert!(!exec.is_alive() && !exec.probe());
    let mut outcome = [Outcome::Unknown];
    exec.execute(&[add(0, 1)], &mut outcome, deadline_in(PATIENCE));
    assert_eq!(outcome[0], REFUSED);
}

#[test]
fn a_chain_that_is_not_waited_for_long_enough_is_unknown_and_its_slots_are_not_used_again() {
    let Some(mut site) = Site::new(false) else { return };
    let session = site.join();
    let mut unknown = 0;
    for i in 0..400 {
        let mut outcome = [Outcome::Unknown];
        if i % 2 == 0 {
            session.exec.execute(&[add(0, 1)], &mut outcome, 0);
        } else {
            outcome = [session.exec.execute_one(&WordOp::Faa { addr: w0(0), add: 1 }, i).into()];
        }
        match outcome[0] {
            Outcome::Unknown => unknown += 1,
            // the operations under way may use up all slots of the poster
            Outcome::Refused(Status::TimedOut) => {
                assert_eq!(values(&session.run(add(3, 0))).len(), 1);
                site.memory.faa(w0(0), 1);
            }
            other => panic!("{other:?} in no time"),
        }
        let chain = add(1, 1).then(WordOp::Faa { addr: w0(2), add: 5 });
        assert_eq!(values(&session.run(chain)), [i, 5 * i]);
    }
    assert!(unknown > 0 && session.exec.is_alive());
    assert_eq!(session.old(add(0, 0)), 400);
}

#[test]
fn posted_chains_are_many_at_once_and_asked_for_in_any_order() {
    const DEPTH: usize = 128;
    let Some(mut site) = Site::new(false) else { return };
    let session = site.join();
    let wait = |posted| {
        let until = Instant::now() + PATIENCE;
        loop {
            match session.exec.poll(posted) {
                Some(outcome) => return values(&outcome)[0],
                None => assert!(Instant::now() < until, "{posted:?} does not complete"),
            }
        }
    };
    for round in 0..4 {
        let posted: Vec<_> = (0..DEPTH).map(|_| session.exec.post(&add(4, 1))).collect();
        let base = round * DEPTH as u64;
        // Waits for the oldest and the newest in turn.
        for i in 0..DEPTH / 2 {
            assert_eq!(wait(posted[i]), base + i as u64);
            assert_eq!(wait(posted[DEPTH - 1 - i]), base + (DEPTH - 1 - i) as u64);
        }
        assert_eq!(session.exec.poll(posted[0]), Some(Outcome::Unknown), "only once");
    }
    // outcomes that are never fetched must not hold up other operations
    let left: Vec<_> = (0..1_000).map(|_| session.exec.post(&add(5, 1))).collect();
    let chain = add(6, 3).then(WordOp::WriteLedger { handle: Handle(1), value: 4 });
    let last = session.exec.post(&chain.then(WordOp::Read { addr: w0(6) }));
    assert_eq!(wait(left[999]), 999);
    assert_eq!(wait(left[0]), 0);
    assert_eq!(wait(last), 0);
    assert_eq!(site.memory.ledger(session.client, Handle(1)).into_bits(), 4);
    assert_eq!(session.exec.post(&add(SLOTS, 1)), Posted::Ready(Outcome::Refused(Status::Invalid)));
}

#[test]
fn a_sleepy_client_gets_what_a_busy_one_gets() {
    let Some(mut site) = Site::new(false) else { return };
    let options = VerbsOptions { sleep: true, ..VerbsOptions::default() };
    let session = site.join_with(options);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| assert!(session.old(add(0, 1)) < 800)));
        }
    });
    assert_eq!(site.memory.read(w0(0)), 800);
    session.exec.write_ledger(Handle(0), LedgerEntry::from_bits(5));
    assert!(session.exec.flush_ledger(deadline_in(PATIENCE)));
    assert_eq!(site.memory.ledger(session.client, Handle(0)).into_bits(), 5);
}

#[test]
fn a_primary_that_does_nothing_stops_nobody() {
    let Some(mut site) = Site::new(false) else { return };
    let session = site.join();
    // the test does not poll the primary's side, as if the primary's process were stopped
    let start = Instant::now();
    for i in 0..2_000 {
        let now = session.exec.now();
        assert!(now.uncertainty_ns < 1_000_000_000);
        assert_eq!(session.old(add(0, 1)), i);
        session.exec.write_ledger(Handle(0), LedgerEntry::from_bits(i));
        if i % 100 == 0 {
            // makes the estimate of the server clock stale
            session.exec.clock.age(2_000_000_000);
        }
    }
    assert!(session.exec.flush_ledger(deadline_in(PATIENCE)));
    assert!(start.elapsed() < PATIENCE);
    assert!(session.exec.counters().sends <= 1, "one question is enough");
    assert_eq!(site.memory.ledger(session.client, Handle(0)).into_bits(), 1_999);
}

#[test]
fn an_attach_that_nobody_answers_ends_when_it_is_to() {
    if device().is_none() {
        return;
    }
    let began = Instant::now();
    let options = VerbsOptions {
        until_ns: Some(deadline_in(Duration::from_millis(500))),
        ..Default::default()
    };
    let (near, _silent) = UnixStream::pair().unwrap();
    let (client, secret) = (ClientId::new(1).unwrap(), Secret([7; 16]));
    let attach = Attach { client, secret, fabric: FabricKind::Tcp, verbs: None, returns: false };
    let attached = VerbsExecutor::attach_on(&options, near.into(), &attach, exact_clock());
    assert!(matches!(attached, Err(FabricError::TimedOut)), "{attached:?}");
    assert!(began.elapsed() < crate::os::net::CONNECT_WAIT, "it took as long as without that");
}
