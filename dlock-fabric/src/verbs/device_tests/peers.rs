// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients as the primary sees them: requests, credits, fences, and hostile clients.

use dlock_core::ids::{ClientId, Handle};
use dlock_core::memory::exec::{Executor, LockMemory};
use dlock_core::memory::word_op::{Chain, Outcome, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::control::VerbsAttach;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use rustix::event::PollFlags;

use super::session::*;
use super::*;
use crate::error::FabricError;

fn done(word: u64) -> Result<Option<Reply>, Status> {
    Ok(Some(Reply::Done { word }))
}

fn wake(handle: u32) -> Request {
    Request::Wake { handle: Handle(handle) }
}

fn resolve(handle: u32) -> Request {
    Request::Resolve { handle: Handle(handle) }
}

#[test]
fn requests_of_many_threads_are_answered_and_the_clock_is_kept_fresh() {
    for shared_qp in [false, true] {
        let Some(mut site) = Site::new(shared_qp) else { return };
        for sleep in [false, true] {
            let options = VerbsOptions { sleep, ..VerbsOptions::default() };
            let Session { exec, mut peer, client, line: _line } = site.join_with(options);
            let stale = |seconds: u64| exec.clock.age(seconds * 1_000_000_000);
            let talk = |thread: u32| {
                for i in 0..60 {
                    let handle = thread * 1_000 + i;
                    exec.write_ledger(Handle(thread), LedgerEntry::from_bits(i.into()));
                    let seq = exec.send(&resolve(handle)).unwrap();
                    assert_eq!(exec.reply(seq, deadline_in(PATIENCE)), done(handle.into()));
                    exec.send(&wake(handle)).unwrap();
                    let forgotten = exec.send(&resolve(handle)).unwrap();
                    exec.forget(forgotten);
                    assert_eq!(exec.reply(forgotten, 0), Ok(None));
                }
            };
            let work = || {
                std::thread::scope(|scope| {
                    (0..3).for_each(|thread| drop(scope.spawn(move || talk(thread))));
                });
                stale(1_000);
                let until = Instant::now() + PATIENCE;
                while exec.now().uncertainty_ns > 100_000_000 {
                    assert!(Instant::now() < until, "nobody told the time");
                }
            };
            let ((), answered) = answering(&site.host, &mut peer, work);
            assert!(answered >= 3 * 60);
            assert!(exec.counters().sends >= 3 * 3 * 60);
            for thread in 0..3 {
                let entry = site.memory.ledger(client, Handle(thread));
                assert_eq!(entry.into_bits(), 59, "a request overtook a note");
            }
        }
    }
}

#[test]
fn a_primary_that_takes_nothing_makes_requests_time_out_and_stops_no_chain() {
    let Some(mut site) = Site::new(false) else { return };
    let Session { exec, mut peer, line: _line, .. } = site.join();
    let mut sent = Vec::new();
    let until_ns = |ms| deadline_in(Duration::from_millis(ms));
    let refused = loop {
        match exec.talk.send(&resolve(sent.len() as u32), until_ns(50)) {
            Ok(seq) => sent.push(seq),
            Err(status) => break status,
        }
        assert!(sent.len() <= usize::from(RING_SLOTS));
    };
    assert_eq!(refused, Status::TimedOut);
    assert_eq!(sent.len(), usize::from(RING_SLOTS) - 1, "the last one is for returned credits");
    let mut outcome = [Outcome::Unknown];
    exec.execute(&[add(0, 1)], &mut outcome, deadline_in(PATIENCE));
    assert_eq!(values(&outcome[0]), [0]);
    // once the client reads again, every request is answered, and there is room for more
    let work = || {
        for (i, seq) in sent.iter().enumerate() {
            assert_eq!(exec.reply(*seq, deadline_in(PATIENCE)), done(i as u64));
        }
        let seq = exec.send(&Request::Ping).unwrap();
        assert!(matches!(exec.reply(seq, deadline_in(PATIENCE)), Ok(Some(Reply::Pong { .. }))));
    };
    answering(&site.host, &mut peer, work);
}

#[test]
fn a_client_that_reads_nothing_fills_its_own_ring_and_nobody_elses() {
    let Some(mut site) = Site::new(false) else { return };
    let mut slow = site.join();
    let mut other = site.join();
    let seq = slow.exec.send(&resolve(1)).unwrap();
    let mut full = 0;
    let until = Instant::now() + PATIENCE;
    while full < usize::from(RING_SLOTS) - 1 {
        assert!(Instant::now() < until);
        match slow.peer.send(&reply(seq, &resolve(1))) {
            Ok(()) => full += 1,
            Err(MessageError::Busy) => panic!("busy after {full}"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(slow.peer.send(&reply(seq, &resolve(1))), Err(MessageError::Busy));
    assert!(!slow.peer.may_send() && !slow.peer.is_broken());
    let exec = &other.exec;
    let work = || {
        let seq = exec.send(&resolve(4)).unwrap();
        assert_eq!(exec.reply(seq, deadline_in(PATIENCE)), done(4));
    };
    answering(&site.host, &mut other.peer, work);
    // a message that is too long for any ring
    let long = vec![0; MESSAGE_BYTES as usize + 1];
    assert!(matches!(other.peer.send(&long), Err(MessageError::TooLong { .. })));
    assert!(!other.peer.is_broken());
}

#[test]
fn nothing_of_a_client_takes_effect_after_its_fence_and_its_number_may_be_used_again() {
    for shared_qp in [false, true] {
        let Some(mut site) = Site::new(shared_qp) else { return };
        let bystander = site.join();
        let Session { exec, mut peer, client, line } = site.join();
        let posted: Vec<_> = (0..200).map(|_| exec.post(&add(0, 1))).collect();
        exec.write_ledger(Handle(0), LedgerEntry::from_bits(1));
        peer.fence().unwrap();
        // from here on the primary may undo the client's holds
        let at_fence = site.memory.read(w0(0));
        site.memory.clear_ledger(client, Handle(0));
        peer.fence().unwrap();
        assert!(peer.is_broken());
        let sent = peer.send(b"x");
        assert!(matches!(sent, Err(MessageError::Broken { .. })), "{sent:?}");
        exec.write_ledger(Handle(0), LedgerEntry::from_bits(2));
        let mut counted = 0;
        for posted in posted {
            let until = Instant::now() + PATIENCE;
            loop {
                match exec.poll(posted) {
                    Some(Outcome::Done(_)) => counted += 1,
                    Some(_) => {}
                    None => {
                        assert!(Instant::now() < until);
                        continue;
                    }
                }
                break;
            }
        }
        assert!(counted <= at_fence, "an effect that was reported, but is not there");
        let mut outcome = [Outcome::Unknown];
        exec.execute(&[add(0, 1)], &mut outcome, deadline_in(PATIENCE));
        assert!(!matches!(outcome[0], Outcome::Done(_)), "{outcome:?}");
        assert!(!exec.is_alive());
        assert_eq!(bystander.old(add(1, 1)), 0);
        assert_eq!(site.memory.read(w0(0)), at_fence, "an effect after the fence");
        assert_eq!(site.memory.ledger(client, Handle(0)), LedgerEntry::new());
        // no completion of the peer is left for a later poll
        let mut arrivals = Vec::new();
        site.host.poll(&mut arrivals).unwrap();
        assert!(arrivals.iter().all(|arrival| !peer.ids().contains(&arrival.peer())));
        site.memory.remove_client(client);
        drop((exec, line));
        let next = site.join();
        assert_eq!(next.old(add(0, 0)), at_fence);
    }
}

/// A client that follows none of the executor's rules.
struct Hostile {
    client: Client,
    peer: VerbsPeer,
    slots: RemoteRegion,
    ledger: RemoteRegion,
}

impl Site {
    fn hostile(&mut self, number: u32) -> Hostile {
        let context = Arc::clone(self.host.context());
        let id = ClientId::new(number).unwrap();
        self.memory.add_client(id).unwrap();
        let mine = spec(&context, 32, RING_SLOTS.into(), false, 3);
        let cq = Arc::clone(&mine.send_cq);
        let chains = Qp::new(&Pd::new(&context).unwrap(), mine).unwrap();
        let messages = spec(&context, 32, RING_SLOTS.into(), false, 3);
        let messages = Qp::new(chains.pd(), messages).unwrap();
        let options = VerbsAttach {
            chains: chains.endpoint().into(),
            messages: (!self.shared_qp).then(|| messages.endpoint().into()),
            ring_slots: RING_SLOTS,
            message_bytes: MESSAGE_BYTES,
        };
        let (peer, verbs) = self.host.admit(id, &options).unwrap();
        chains.connect(&verbs.chains.into()).unwrap();
        let client = Client { cq, poster: Poster::new(&chains, 8).unwrap() };
        Hostile { client, peer, slots: verbs.slots.into(), ledger: verbs.ledger.into() }
    }
}

/// Checks that the first arrival of this peer is the end of its session.
fn is_noticed(site: &Site, peer: &mut VerbsPeer) {
    let (mut arrivals, until) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        site.host.poll(&mut arrivals).unwrap();
        let ids = peer.ids();
        if let Some(arrival) = arrivals.drain(..).find(|arrival| ids.contains(&arrival.peer())) {
            assert!(peer.take(&arrival, &mut Vec::new()).is_err());
            assert!(peer.is_broken());
            return;
        }
        assert!(Instant::now() < until, "the primary does not notice");
        std::thread::yield_now();
    }
}

#[test]
fn a_hostile_client_ends_its_own_session_and_harms_nobody() {
    for shared_qp in [false, true] {
        let Some(mut site) = Site::new(shared_qp) else { return };
        let ground = site.join();
        site.memory.set(w0(0), 11);
        assert!(site.memory.write_ledger(ground.client, Handle(0), LedgerEntry::from_bits(22)));
        let foreign = site.hostile(90);
        type Attack = fn(&Hostile, &Hostile) -> RemoteOp;
        let attacks: [(&str, Attack); 6] = [
            ("a write to a slot", |me, _| RemoteOp::Write {
                word: me.slots.word(0).unwrap(),
                value: 1,
            }),
            ("an atomic on a ledger", |me, _| faa(me.ledger, 0, 1)),
            ("another's key", |_, other| faa(other.slots, 0, 1)),
            ("another's ledger", |_, other| RemoteOp::Write {
                word: other.ledger.word(0).unwrap(),
                value: 1,
            }),
            ("past the slots", |me, _| {
                let addr = me.slots.base + me.slots.bytes;
                faa(RemoteRegion { base: addr, bytes: 8, ..me.slots }, 0, 1)
            }),
            ("a wrong key", |me, _| {
                faa(RemoteRegion { rkey: me.slots.rkey ^ 0x77, ..me.slots }, 0, 1)
            }),
        ];
        for (number, (what, attack)) in (100..).zip(attacks) {
            let mut hostile = site.hostile(number);
            let word_op = attack(&hostile, &foreign);
            let status = hostile.client.fail(&[word_op, faa(hostile.slots, 0, 1)]);
            assert_eq!(status, ffi::IBV_WC_REM_ACCESS_ERR, "{what}");
            is_noticed(&site, &mut hostile.peer);
            hostile.peer.fence().unwrap();
            assert_eq!(ground.old(add(1, 1)), u64::from(number) - 100, "{what}");
        }
        assert_eq!(site.memory.read(w0(0)), 11);
        let entry = site.memory.ledger(ground.client, Handle(0));
        assert_eq!(entry.into_bits(), 22);
        let others = site.memory.ledger(ClientId::new(90).unwrap(), Handle(0));
        assert_eq!(others, LedgerEntry::new());
    }
}

#[test]
fn who_is_unknown_or_wants_other_queue_pairs_is_not_admitted() {
    let Some(mut site) = Site::new(false) else { return };
    let hostile = site.hostile(1);
    let endpoint = hostile.client.poster.qp().endpoint();
    let options = VerbsAttach {
        chains: endpoint.into(),
        messages: None,
        ring_slots: RING_SLOTS,
        message_bytes: MESSAGE_BYTES,
    };
    let known = ClientId::new(1).unwrap();
    let refused = site.host.admit(known, &options).map(drop);
    assert!(matches!(refused, Err(FabricError::Refused(Status::Invalid))), "{refused:?}");
    let options = VerbsAttach { messages: options.chains.into(), ..options };
    let refused = site.host.admit(ClientId::new(2).unwrap(), &options).map(drop);
    assert!(matches!(refused, Err(FabricError::Refused(Status::ClientRemoved))), "{refused:?}");
    let none = dlock_core::wire::control::VerbsEndpoint { gid: [0; 16], lid: 0, ..options.chains };
    let refused = site.host.admit(known, &VerbsAttach { chains: none, ..options }).map(drop);
    assert!(matches!(refused, Err(FabricError::Verbs(VerbsError::Peer(_)))), "{refused:?}");
}

#[test]
fn clients_share_the_completion_queues() {
    let Some(mut site) = Site::new(false) else { return };
    let mut sessions: Vec<_> = (0..60).map(|_| site.join()).collect();
    for (i, session) in sessions.iter_mut().enumerate() {
        let exec = &session.exec;
        let work = || {
            let seq = exec.send(&resolve(7)).unwrap();
            assert_eq!(exec.reply(seq, deadline_in(PATIENCE)), done(7));
        };
        answering(&site.host, &mut session.peer, work);
        assert_eq!(session.old(add(0, 1)), i as u64);
    }
}

#[test]
fn a_sleeping_primary_is_woken_by_a_request() {
    let Some(mut site) = Site::new(false) else { return };
    let mut session = site.join();
    let host = &site.host;
    let mut arrivals = Vec::new();
    host.arm().unwrap();
    assert_eq!(host.poll(&mut arrivals).unwrap(), 0);
    let asleep =
        |ms| sys::poll_until(host.fd(), PollFlags::IN, deadline_in(ms)).unwrap().is_empty();
    assert!(asleep(Duration::ZERO));
    session.exec.send(&resolve(1)).unwrap();
    assert!(!asleep(PATIENCE));
    assert!(host.take_events().unwrap());
    assert!(!host.take_events().unwrap());
    assert_eq!(host.poll(&mut arrivals).unwrap(), 1);
    let mut bytes = Vec::new();
    assert_eq!(session.peer.take(&arrivals[0], &mut bytes), Ok(Event::Message));
    assert!(request(&bytes).is_some());
}

#[test]
fn what_the_primary_executes_for_others_is_one_with_its_clients() {
    let Some(mut site) = Site::new(false) else { return };
    let session = site.join();
    let tcp = ClientId::new(500).unwrap();
    site.memory.add_client(tcp).unwrap();
    let chain = Chain::one(WordOp::WriteLedger { handle: Handle(2), value: 5 })
        .then(WordOp::Faa { addr: w0(3), add: 2 })
        .then(WordOp::Read { addr: w0(3) })
        .then(WordOp::WriteLedger { handle: Handle(2), value: 6 });
    assert_eq!(values(&site.memory.execute_chain(tcp, &chain)), [0, 0, 2, 0]);
    assert_eq!(session.old(add(3, 1)), 2);
    assert_eq!(site.memory.ledger(tcp, Handle(2)).into_bits(), 6);
    let wrong = add(3, 1).then(WordOp::WriteLedger { handle: Handle(ENTRIES), value: 1 });
    assert_eq!(site.memory.execute_chain(tcp, &wrong), Outcome::Refused(Status::Invalid));
    let wrong = add(3, 1).then(WordOp::Read { addr: w0(SLOTS) });
    assert_eq!(site.memory.execute_chain(tcp, &wrong), Outcome::Refused(Status::Invalid));
    let stranger = ClientId::new(501).unwrap();
    assert_eq!(site.memory.execute_chain(stranger, &chain), Outcome::Refused(Status::Invalid));
    assert_eq!(site.memory.read(w0(3)), 3);
    assert_eq!((site.memory.slots(), site.memory.ledger_entries()), (SLOTS, ENTRIES));
}

#[test]
fn a_forked_child_is_refused_and_ends_nothing_of_its_parents() {
    let Some(mut site) = Site::new(false) else { return };
    let Session { exec, mut peer, line, client } = site.join();
    let seq = exec.send(&resolve(3)).unwrap();
    let posted = exec.post(&add(0, 1));
    // SAFETY: the child uses memory and the functions under test only, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut outcome = [Outcome::Unknown];
        exec.execute(&[add(0, 1)], &mut outcome, deadline_in(PATIENCE));
        exec.write_ledger(Handle(0), LedgerEntry::from_bits(9));
        let refused = outcome == [Outcome::Refused(Status::BadResponse)]
            && exec.send(&Request::Ping) == Err(Status::BadResponse)
            && exec.reply(seq, deadline_in(PATIENCE)) == Err(Status::BadResponse)
            && exec.poll(posted) == Some(Outcome::Unknown)
            && !(exec.flush_ledger(deadline_in(PATIENCE)) || exec.is_alive() || exec.probe());
        drop((exec, peer, line, site));
        // SAFETY: ends the child at once, without running anything of the test harness.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    let work = || assert_eq!(exec.reply(seq, deadline_in(PATIENCE)), done(3));
    answering(&site.host, &mut peer, work);
    let until = Instant::now() + PATIENCE;
    while exec.poll(posted).is_none() {
        assert!(Instant::now() < until);
    }
    assert_eq!(site.memory.read(w0(0)), 1);
    assert_eq!(site.memory.ledger(client, Handle(0)), LedgerEntry::new());
    assert!(exec.probe());
}
