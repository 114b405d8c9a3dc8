// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on the first usable device of this host. Without a device each test prints so, and passes.
//!
//! Everything runs over the device, even if both ends are this process. SoftRoCE serves where one
//! host is enough: `rdma link add rxe0 type rxe netdev eth0`.

mod executor;
mod messages;
mod pair;
mod peers;
mod sealed;
mod session;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::ffi;
use super::device::port_selection::{usable, PortState};
use super::*;
use crate::memory::atomic::SharedWord;
use crate::os::clock::{boot_ns, deadline_in};
use crate::os::sys;

/// More time than any expected event takes on a slow emulated machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The device; `None`, after a line with the reason: there is none.
fn device() -> Option<Arc<Context>> {
    let found = devices().and_then(|found| {
        let choice = choose(&found, None, &[0; 16])?;
        Context::open(&choice)
    });
    match found {
        Ok(context) => Some(context),
        Err(error) => {
            // The test harness would hold back the output of `eprintln`.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

/// The primary's side of one client: its own protection domain, and memory in it.
struct Served {
    qp: Arc<Qp>,
    slots: RemoteRegion,
    ledger: RemoteRegion,
    _keys: Vec<Mr>,
}

/// A primary with memory for clients.
struct Primary {
    context: Arc<Context>,
    slots: Arc<Pages>,
    ledger: Arc<Pages>,
}

/// The client's side.
struct Client {
    cq: Arc<Cq>,
    poster: Poster,
}

impl Primary {
    fn new(context: &Arc<Context>) -> Self {
        let (slots, ledger) = (Pages::new(4_096).unwrap(), Pages::new(4_096).unwrap());
        Self { context: Arc::clone(context), slots, ledger }
    }

    fn word(&self, index: usize) -> &SharedWord {
        &self.slots.words()[index]
    }

    /// A connected client whose poster has a share of this many requests.
    fn client(&self, share: u32) -> (Client, Served) {
        self.client_on(&self.context, share)
    }

    /// As [`client`](Self::client), for a client that uses another device.
    fn client_on(&self, device: &Arc<Context>, share: u32) -> (Client, Served) {
        let pd = Pd::new(&self.context).unwrap();
        let slots = Mr::register(&pd, self.slots.clone(), Access::ReadAtomic).unwrap();
        let ledger = Mr::register(&pd, self.ledger.clone(), Access::ReadWrite).unwrap();
        let qp = Qp::new(&pd, spec(&self.context, 1, 1, true, 0x1234)).unwrap();
        let own = Pd::new(device).unwrap();
        let spec = spec(device, share, 1, false, 0xff_fff0);
        let cq = Arc::clone(&spec.send_cq);
        let mine = Qp::new(&own, spec).unwrap();
        mine.connect(&qp.endpoint()).unwrap();
        qp.connect(&mine.endpoint()).unwrap();
        let poster = Poster::new(&mine, share).unwrap();
        let (slots_at, ledger_at) = (slots.remote(), ledger.remote());
        let keys = vec![slots, ledger];
        let served = Served { qp, slots: slots_at, ledger: ledger_at, _keys: keys };
        (Client { cq, poster }, served)
    }
}

fn spec(context: &Arc<Context>, send: u32, recv: u32, serves: bool, psn: u32) -> QpSpec {
    let recv_cq = Cq::new(context, send + recv, None).unwrap();
    let (send_cq, send_slots, recv_slots) = (Arc::clone(&recv_cq), send, recv);
    QpSpec { send_cq, recv_cq, send_slots, recv_slots, inline_bytes: 8, serves, psn }
}

/// Waits for the next completion.
fn next(cq: &Cq) -> Completion {
    let until = Instant::now() + PATIENCE;
    let mut one = [Completion::default()];
    while cq.poll(&mut one).unwrap() == 0 {
        assert!(Instant::now() < until, "no completion came");
        std::thread::yield_now();
    }
    one[0]
}

impl Client {
    /// Posts one chain, waits, and returns its values.
    fn run(&mut self, chain: &[RemoteOp]) -> Vec<u64> {
        let list = self.poster.post(chain, Notify::Yes).unwrap();
        let completion = next(&self.cq);
        assert!(completion.is_success(), "{}", completion.status_text());
        let settled = self.poster.settle(&completion);
        assert_eq!((settled.seq(), settled.success()), (list.seq, true));
        settled.values().collect()
    }

    /// Posts a chain that must fail; returns the status of its first completion.
    fn fail(&mut self, chain: &[RemoteOp]) -> u32 {
        self.poster.post(chain, Notify::Yes).unwrap();
        let completion = next(&self.cq);
        assert!(!completion.is_success());
        assert_eq!(completion.qp_num(), self.poster.qp().qp_num());
        assert!(!completion.status_text().is_empty());
        assert_eq!(self.poster.settle(&completion).values().len(), 0);
        completion.status()
    }
}

fn faa(region: RemoteRegion, index: u64, add: u64) -> RemoteOp {
    RemoteOp::Faa { word: region.word(index).unwrap(), add }
}

#[test]
fn a_chain_gives_exact_values_in_order() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(16);
    let (w0, note) = (served.slots.word(4).unwrap(), served.ledger.word(9).unwrap());
    let values = client.run(&[
        RemoteOp::Write { word: note, value: 1 },
        RemoteOp::Faa { word: w0, add: 5 },
        RemoteOp::Cas { word: w0, expect: 5, swap: u64::MAX },
        RemoteOp::Read { word: w0 },
        RemoteOp::Cas { word: w0, expect: 5, swap: 6 },
        RemoteOp::Faa { word: w0, add: 3 },
        RemoteOp::Read { word: note },
        RemoteOp::Write { word: note, value: 2 },
        RemoteOp::Read { word: w0 },
    ]);
    assert_eq!(values[1..7], [0, 5, u64::MAX, u64::MAX, u64::MAX, 1]);
    assert_eq!(values[8], 2, "an addition wraps");
    assert_eq!(primary.word(4).load(), 2);
    assert_eq!(primary.ledger.words()[9].load(), 2);
    let untouched = primary.slots.words().iter().enumerate().filter(|(i, _)| *i != 4);
    assert!(untouched.into_iter().all(|(_, word)| word.load() == 0));
}

#[test]
fn a_batch_of_chains_is_one_completion() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(128);
    for round in 0..20 {
        let mut batch = client.poster.batch();
        for chain in 0..31 {
            let word = served.slots.word(chain).unwrap();
            batch.push(&faa(served.slots, chain, 1)).unwrap();
            batch.push(&RemoteOp::Read { word }).unwrap();
            batch.push(&faa(served.slots, chain, 1)).unwrap();
            batch.push(&RemoteOp::Read { word }).unwrap();
            batch.next_chain();
        }
        assert_eq!(batch.verbs(), 124);
        batch.ring(Notify::Yes).unwrap();
        let completion = next(&client.cq);
        let settled = client.poster.settle(&completion);
        let values: Vec<u64> = settled.values().collect();
        let before = 2 * round;
        assert_eq!(values.len(), 124);
        for chain in values.chunks(4) {
            assert_eq!(chain, [before, before + 1, before + 1, before + 2]);
        }
        assert_eq!(client.cq.poll(&mut [Completion::default()]).unwrap(), 0);
    }
}

#[test]
fn lists_without_notice_take_effect_in_order_and_never_fill_the_queue() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(8);
    let note = served.ledger.word(0).unwrap();
    let mut completions = 0;
    for value in 1..=500 {
        let chain = [faa(served.slots, 0, 1), RemoteOp::Write { word: note, value }];
        while client.poster.post(&chain, Notify::No) == Err(PostError::Full) {
            let completion = next(&client.cq);
            assert!(client.poster.settle(&completion).success());
            completions += 1;
        }
    }
    let last = client.poster.post(&[faa(served.slots, 0, 0)], Notify::Yes);
    let seq = match last {
        Ok(list) => list.seq,
        Err(PostError::Full) => {
            let completion = next(&client.cq);
            client.poster.settle(&completion);
            client.poster.post(&[faa(served.slots, 0, 0)], Notify::Yes).unwrap().seq
        }
        Err(error) => panic!("{error}"),
    };
    loop {
        let completion = next(&client.cq);
        let settled = client.poster.settle(&completion);
        completions += 1;
        if settled.seq() == seq {
            assert_eq!(settled.values().collect::<Vec<_>>(), [500]);
            break;
        }
    }
    assert_eq!(client.poster.free(), 8);
    assert_eq!(primary.ledger.words()[0].load(), 500);
    assert!(completions < 400, "{completions} completions for 1,001 requests");
}

#[test]
fn counts_of_a_poster_may_wrap() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(8);
    client.poster.start_at(u32::MAX - 9);
    for round in 0..10 {
        let chain = [faa(served.slots, 0, 1), faa(served.slots, 1, 2), faa(served.slots, 0, 1)];
        assert_eq!(client.run(&chain), [2 * round, 2 * round, 2 * round + 1]);
    }
}

#[test]
fn additions_of_four_queue_pairs_are_exact() {
    const EACH: u64 = 2_000;
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let clients: Vec<_> = (0..4).map(|_| primary.client(4)).collect();
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .map(|(mut client, served)| {
                scope.spawn(move || -> Vec<u64> {
                    // The closure takes all of `served`, because the primary's end must live as
                    // long as the client.
                    let served = served;
                    (0..EACH).map(|_| client.run(&[faa(served.slots, 3, 1)])[0]).collect()
                })
            })
            .collect();
        for thread in threads {
            seen.extend(thread.join().unwrap());
        }
    });
    assert_eq!(primary.word(3).load(), 4 * EACH);
    assert_eq!(seen.len() as u64, 4 * EACH, "an old value came twice");
}

#[test]
fn what_a_client_may_not_do_ends_its_queue_pair_and_harms_nobody() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut bystander, ground) = primary.client(4);
    let (_, stranger) = primary.client(4);
    let past =
        |region: RemoteRegion| RemoteWord { addr: region.base + region.bytes, rkey: region.rkey };
    type Attack<'a> = (&'static str, Box<dyn Fn(&Served) -> RemoteOp + 'a>);
    let word = |region: RemoteRegion| region.word(0).unwrap();
    let attacks: [Attack<'_>; 8] = [
        (
            "a wrong key",
            Box::new(|s| {
                let RemoteWord { addr, rkey } = word(s.slots);
                RemoteOp::Faa { word: RemoteWord { addr, rkey: rkey ^ 0x55 }, add: 1 }
            }),
        ),
        ("another client's key", Box::new(|_| faa(stranger.slots, 0, 1))),
        (
            "another client's ledger",
            Box::new(|_| RemoteOp::Write { word: word(stranger.ledger), value: 1 }),
        ),
        ("past the end", Box::new(|s| RemoteOp::Faa { word: past(s.slots), add: 1 })),
        (
            "before the beginning",
            Box::new(|s| {
                let RemoteWord { addr, rkey } = word(s.slots);
                RemoteOp::Read { word: RemoteWord { addr: addr - 8, rkey } }
            }),
        ),
        ("a write to a slot", Box::new(|s| RemoteOp::Write { word: word(s.slots), value: 1 })),
        ("an atomic on a ledger", Box::new(|s| faa(s.ledger, 0, 1))),
        ("a read past the ledger", Box::new(|s| RemoteOp::Read { word: past(s.ledger) })),
    ];
    for (what, attack) in attacks {
        let (mut client, served) = primary.client(4);
        // the requests behind the refused one must not be executed
        let status = client.fail(&[attack(&served), faa(served.slots, 1, 1)]);
        assert_eq!(status, ffi::IBV_WC_REM_ACCESS_ERR, "{what}");
        let flushed = next(&client.cq);
        assert_eq!(flushed.status(), ffi::IBV_WC_WR_FLUSH_ERR, "{what}");
        client.poster.settle(&flushed);
        assert!(!client.poster.qp().is_connected().unwrap(), "{what}");
        let again = client.poster.post(&[faa(served.slots, 0, 1)], Notify::Yes);
        assert!(matches!(again, Err(PostError::Broken { .. })), "{what}");
        bystander.run(&[faa(ground.slots, 2, 1)]);
    }
    assert_eq!([0, 1, 2].map(|i| primary.word(i).load()), [0, 0, 8]);
    assert!(primary.ledger.words().iter().all(|word| word.load() == 0));
}

#[test]
fn a_misaligned_word_is_refused_before_anything_is_posted() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(4);
    let RemoteWord { addr, rkey } = served.slots.word(0).unwrap();
    let odd = RemoteOp::Faa { word: RemoteWord { addr: addr + 4, rkey }, add: 1 };
    let refused = client.poster.post(&[faa(served.slots, 0, 1), odd], Notify::Yes);
    assert_eq!(refused, Err(PostError::Misaligned));
    assert_eq!(client.run(&[faa(served.slots, 0, 1)]), [0]);
    let long = [faa(served.slots, 0, 1); 5];
    assert_eq!(client.poster.post(&long, Notify::Yes), Err(PostError::Full));
    assert_eq!(client.run(&long[..4]), [1, 2, 3, 4]);
    let empty = client.poster.post(&[], Notify::Yes).unwrap();
    assert!(!empty.signalled);
}

#[test]
fn a_peer_that_is_gone_is_noticed_within_the_bound() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(4);
    client.run(&[faa(served.slots, 0, 1)]);
    let slots = served.slots;
    drop(served.qp);
    let start = Instant::now();
    let status = client.fail(&[faa(slots, 0, 1), faa(slots, 0, 1)]);
    let took = start.elapsed();
    assert_eq!(status, ffi::IBV_WC_RETRY_EXC_ERR);
    // The emulated machine may pause for a while.
    assert!(took < timing::DEAD_PEER_MAX + Duration::from_secs(5), "{took:?}");
    assert_eq!(next(&client.cq).status(), ffi::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(primary.word(0).load(), 1);
}

#[test]
fn nothing_of_a_fenced_client_takes_effect_and_others_go_on() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut fenced, served) = primary.client(128);
    let (mut other, ground) = primary.client(4);
    // some of these operations are under way when the fence begins
    for _ in 0..64 {
        fenced.poster.post(&[faa(served.slots, 0, 1)], Notify::No).unwrap();
    }
    served.qp.to_error().unwrap();
    let at_fence = primary.word(0).load();
    assert!(!served.qp.is_connected().unwrap());
    fenced.poster.post(&[faa(served.slots, 0, 1)], Notify::Yes).unwrap();
    loop {
        let completion = next(&fenced.cq);
        if !fenced.poster.settle(&completion).success() {
            break;
        }
    }
    other.run(&[faa(ground.slots, 1, 1)]);
    assert_eq!(primary.word(0).load(), at_fence, "an effect after the fence");
}

#[test]
fn an_own_queue_pair_that_is_stopped_flushes_everything() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(8);
    client.poster.qp().to_error().unwrap();
    for _ in 0..8 {
        client.poster.post(&[faa(served.slots, 0, 1)], Notify::No).unwrap();
    }
    for _ in 0..8 {
        let completion = next(&client.cq);
        assert_eq!(completion.status(), ffi::IBV_WC_WR_FLUSH_ERR);
        assert!(!client.poster.settle(&completion).success());
    }
    assert_eq!(primary.word(0).load(), 0);
}

#[test]
fn a_loopback_pair_and_a_client_are_atomic_with_each_other() {
    const EACH: u64 = 2_000;
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(4);
    let (mut own, loopback) = primary.client(4);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..EACH).for_each(|_| drop(client.run(&[faa(served.slots, 0, 1)]))));
        // The primary increments by compare and swap, as the arbiter does.
        let word = loopback.slots.word(0).unwrap();
        let mut seen = 0;
        let mut done = 0;
        while done < EACH / 4 {
            let cas = RemoteOp::Cas { word, expect: seen, swap: seen + 1 };
            let old = own.run(&[cas])[0];
            if old == seen {
                done += 1;
                seen += 1;
            } else {
                seen = old;
            }
        }
    });
    assert_eq!(primary.word(0).load(), EACH + EACH / 4);
}

#[test]
fn clients_on_two_devices_are_atomic_with_each_other() {
    const EACH: u64 = 1_000;
    let Some(context) = device() else { return };
    let found = devices().unwrap();
    let others = found.iter().filter(|other| other.name != context.device().name);
    let Some(choice) = others.filter_map(|other| usable(other).ok()).next() else {
        let _ = writeln!(std::io::stderr(), "skipped: there is no second RDMA device");
        return;
    };
    let second = Context::open(&choice).unwrap();
    let primary = Primary::new(&context);
    let clients = [primary.client(4), primary.client_on(&second, 4)];
    std::thread::scope(|scope| {
        for (mut client, served) in clients {
            scope.spawn(move || {
                let served = served;
                (0..EACH).for_each(|_| drop(client.run(&[faa(served.slots, 0, 1)])));
            });
        }
    });
    assert_eq!(primary.word(0).load(), 2 * EACH);
}

#[test]
fn one_addition_takes_about_as_long_as_the_device_needs() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(4);
    let mut took: Vec<Duration> = (0..2_000)
        .map(|_| {
            let start = Instant::now();
            client.poster.post(&[faa(served.slots, 0, 1)], Notify::Yes).unwrap();
            let completion = next(&client.cq);
            client.poster.settle(&completion);
            start.elapsed()
        })
        .collect();
    took.sort();
    // Compare with `ib_atomic_lat` on the same device. There is no limit, since the machine may be
    // shared.
    let _ = writeln!(std::io::stderr(), "addition: median {:?}", took[took.len() / 2]);
    assert_eq!(primary.word(0).load(), 2_000);
}

#[test]
fn a_queue_pair_can_be_connected_to_itself() {
    let Some(context) = device() else { return };
    let pd = Pd::new(&context).unwrap();
    let slots = Pages::new(8).unwrap();
    let mr = Mr::register(&pd, slots.clone(), Access::ReadAtomic).unwrap();
    let spec = spec(&context, 4, 1, true, 7);
    let cq = Arc::clone(&spec.send_cq);
    let qp = Qp::new(&pd, spec).unwrap();
    qp.connect(&qp.endpoint()).unwrap();
    let mut client = Client { cq, poster: Poster::new(&qp, 4).unwrap() };
    assert_eq!(client.run(&[faa(mr.remote(), 0, 4), faa(mr.remote(), 0, 4)]), [0, 4]);
    assert_eq!(slots.words()[0].load(), 8);
}

#[test]
fn an_endpoint_that_is_nonsense_is_refused() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (client, _served) = primary.client(4);
    let good = client.poster.qp().endpoint();
    for bad in [
        Endpoint { mtu: 0, ..good },
        Endpoint { mtu: 6, ..good },
        Endpoint { qp_num: 1 << 24, ..good },
        Endpoint { psn: u32::MAX, ..good },
        Endpoint { reads: 0, ..good },
        Endpoint { gid: Gid::default(), lid: 0, ..good },
    ] {
        let qp = Qp::new(&Pd::new(&context).unwrap(), spec(&context, 1, 1, false, 1)).unwrap();
        assert!(matches!(qp.connect(&bad), Err(VerbsError::Peer(_))), "{bad:?}");
    }
}

#[test]
fn shares_and_completion_queues_cannot_be_overdrawn() {
    let Some(context) = device() else { return };
    let pd = Pd::new(&context).unwrap();
    let cq = Cq::new(&context, 8, None).unwrap();
    let wide = |send_slots| QpSpec {
        send_cq: Arc::clone(&cq),
        recv_cq: Arc::clone(&cq),
        send_slots,
        recv_slots: 1,
        inline_bytes: 8,
        serves: false,
        psn: 1,
    };
    // A device may round up, but not without limit.
    let error = Qp::new(&pd, wide(1 << 20)).unwrap_err();
    assert!(matches!(error, VerbsError::QueueTooSmall { .. }), "{error}");
    let qp = Qp::new(&pd, wide(4)).unwrap();
    let _first = Poster::new(&qp, 3).unwrap();
    let error = Poster::new(&qp, 2).unwrap_err();
    assert!(matches!(error, VerbsError::QueueTooSmall { wanted: 2, has: 0 }), "{error}");
}

#[test]
fn a_forked_child_can_neither_use_nor_destroy_what_is_its_parents() {
    let Some(context) = device() else { return };
    let primary = Primary::new(&context);
    let (mut client, served) = primary.client(4);
    // SAFETY: the child uses memory and the functions under test only, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let polled = client.cq.poll(&mut [Completion::default()]);
        let posted = client.poster.post(&[faa(served.slots, 0, 1)], Notify::Yes);
        let refused = matches!(polled, Err(VerbsError::Forked))
            && matches!(posted, Err(PostError::Broken { .. }))
            && Pd::new(&context).is_err();
        drop((client, served));
        // SAFETY: ends the child at once, without running anything of the test harness.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    assert_eq!(client.run(&[faa(served.slots, 0, 1)]), [0]);
}

#[test]
fn a_port_is_found_by_name_and_by_address() {
    let Some(context) = device() else { return };
    let found = devices().unwrap();
    let name = context.device().name.clone();
    assert_eq!(context.port_state().unwrap(), PortState::Active);
    let by_name = choose(&found, Some(&name), &[0; 16]).unwrap();
    assert_eq!(by_name.device, name);
    let by_eid = choose(&found, None, &by_name.gid.gid.0).unwrap();
    assert_eq!((by_eid.by_eid, by_eid.gid), (true, by_name.gid));
    if let Ok(address) = std::env::var("RXE_VM_IP") {
        // The program that runs these tests gives the address of the device.
        let gid = Gid::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(usable(&found[0]).unwrap().gid.gid, gid);
    }
    let mut stale = by_name.clone();
    stale.gid.gid = Gid([9; 16]);
    assert!(matches!(Context::open(&stale), Err(VerbsError::NoPort(_))));
    stale.device = "no-such-device".into();
    assert!(matches!(Context::open(&stale), Err(VerbsError::NoPort(_))));
}

#[test]
fn the_doctor_finds_the_device_usable() {
    if device().is_none() {
        return;
    }
    let report = doctor::report(&doctor::look(), &doctor::PortOptions::default());
    let _ = writeln!(std::io::stderr(), "{report}");
    assert!(report.is_ready(), "{report}");
}

#[test]
fn softroce_is_known_from_hardware() {
    let Some(context) = device() else { return };
    // The program that runs these tests has made its device, and named it so.
    if std::env::var("RXE_VM_DEV").is_ok_and(|name| name == context.device().name) {
        assert!(context.device().is_softroce);
    }
}
