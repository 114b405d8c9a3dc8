// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long it takes until a holder that listens is told that another client waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::{Client, Config, Event, HoldEvent};
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::Mode;

use crate::crowd::message_echo;
use crate::cycles::round_trip;
use crate::sample::{Baseline, Samples, Times};
use crate::{name, Run};
use dlock_cli_common::failure::Failure;

/// How many waits a full run measures.
const WAITS: u32 = 3_000;
/// How many waits at the beginning are not counted.
const WARM_UP: u32 = 50;
/// How long the holder has the lock before another client asks for it. The holder's thread sleeps
/// in this time, like every thread that listens.
const HOLD: Duration = Duration::from_micros(300);
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures this case on one fabric.
pub fn run(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    let case = "contended, told to the holder";
    if run.wants(case, fabric) {
        let row = contended(run, fabric, case)?;
        run.rows.push(row);
    }
    Ok(())
}

fn failed(error: dlock_client::Error) -> Failure {
    Failure::plain(format!("bench: {error}"))
}

/// A sample is the time from before the call of the client that waits until the holder gets the
/// event. The baseline is a raw round trip of a message on this fabric; both are taken in turns.
fn contended(run: &Run<'_>, fabric: FabricKind, case: &str) -> Result<Samples, Failure> {
    let client = || {
        let config = Config::new().port(run.primary.port()).fabric(fabric.into()).without_tls();
        Client::with_config(&config, &run.primary.ip().to_string()).map_err(failed)
    };
    let (holder, waiter) = (client()?, client()?);
    let [mine, other] =
        [&holder, &waiter].map(|client| client.fair_lock("bench contended").map_err(failed));
    let (mine, other) = (mine?, other?);
    let events = mine.events(16);
    let base = Instant::now();
    // how many rounds the holder has begun; and when the waiter has called, in nanoseconds
    let (begun, called, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let mut echo = message_echo(fabric)?;
    let (mut times, mut baseline) = (Times::new(), Times::new());
    let rounds = run.samples(WAITS);
    let waits = || -> Result<(), Failure> {
        for round in 1.. {
            while begun.load(Ordering::SeqCst) < round {
                if over.load(Ordering::SeqCst) {
                    return Ok(());
                }
                thread::yield_now();
            }
            thread::sleep(HOLD);
            called.store(base.elapsed().as_nanos() as u64, Ordering::SeqCst);
            let guard = other.acquire(Mode::Exclusive).wait(PATIENCE).guard().map_err(failed)?;
            guard.unlock().map_err(failed)?;
        }
        Ok(())
    };
    let mut plays = || -> Result<(), Failure> {
        for round in 0..u64::from(WARM_UP + rounds) {
            let guard = mine.acquire(Mode::Exclusive).wait(PATIENCE).guard().map_err(failed)?;
            begun.store(round + 1, Ordering::SeqCst);
            loop {
                match events.wait_for(PATIENCE) {
                    Some(Event::Hold { what: HoldEvent::Contended { .. }, generation, .. })
                        if generation == guard.generation() =>
                    {
                        break;
                    }
                    Some(_) => {}
                    None => return Err(Failure::plain("bench: no event of a client that waits")),
                }
            }
            let now = base.elapsed().as_nanos() as u64;
            if round >= u64::from(WARM_UP) {
                times.record(now.saturating_sub(called.load(Ordering::SeqCst)) as f64);
                baseline.record(round_trip(&mut echo)?);
            }
            guard.unlock().map_err(failed)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let waits = scope.spawn(waits);
        let played = plays();
        // set also after an error, so that the other client stops
        over.store(true, Ordering::SeqCst);
        played.and(waits.join().expect("bench threads do not panic"))
    })?;
    let mut samples = Samples::new(case, name(fabric), 1);
    let trips = times.quantile_ns(0.99) / baseline.quantile_ns(0.5);
    let trips_slow = times.quantile_ns(0.99) / baseline.quantile_ns(0.99);
    samples.note = format!("the 99 % are {trips:.2} of its median, {trips_slow:.2} of its 99 %");
    samples.times = times;
    samples.baseline = Some(Baseline { name: "raw message round trip", times: baseline });
    Ok(samples.rate_from_mean())
}
