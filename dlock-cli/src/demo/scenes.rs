// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scenes of the tour, in order.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use dlock_cli_common::process::{
    client, client_of, exec_once, uninvited, Answer, Primary, Process,
};
use dlock_core::wire::fabric::{Executes, FabricKind};
use dlock_core::wire::status::Status;

use super::{strangers, Tour};
use crate::args::Fabric;
use crate::connect::usable;
use crate::failure::{self, Failure};

/// Clients that contend in the first scenes.
const CLIENTS: usize = 4;
/// Additions of each client under the lock.
const COUNTS: u64 = 1_000;
/// Time after which the tour's primary gives a vanished client's locks to others.
const GRACE: Duration = Duration::from_millis(300);
/// How long a client may be without a primary.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays all scenes.
pub fn play(tour: &mut Tour) -> Result<(), Failure> {
    let mut primary = primary_starts(tour)?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(primary.address, tour.fabric)?);
    }
    counting(tour, &mut clients)?;
    readers_and_writer(tour, &mut clients)?;
    in_order_of_arrival(tour, &mut clients)?;
    killed_holder(tour, &primary, &mut clients)?;
    frozen_holder(tour, &primary, &mut clients)?;
    drop(clients);
    successor(tour, &mut primary)?;
    drop(primary);
    by_itself(tour)?;
    strangers::refused(tour)
}

fn expect(answer: Answer, what: &str) -> Result<Answer, Failure> {
    match answer.status {
        Status::Success => Ok(answer),
        status => Err(Failure::plain(format!("{what}: {status}"))),
    }
}

fn each(clients: &mut [Process], command: &str) -> Result<Vec<Answer>, Failure> {
    for client in clients.iter_mut() {
        client.tell(command)?;
    }
    clients.iter_mut().map(|c| expect(c.answer()?, command)).collect()
}

/// Any port of a loopback address that only this process uses: no other program takes the port
/// before the successor does.
fn own_address() -> SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, a | 0x80, b, c), 0).into()
}

fn primary_starts(tour: &mut Tour) -> Result<Primary, Failure> {
    tour.title("A primary keeps the locks");
    let primary = Primary::start(own_address(), 0, Some(GRACE), tour.fabric)?;
    tour.say(&format!(
        "Process {} is the primary, on {}. It keeps lock words in memory, and\n\
         clients change them with atomic operations: {}.",
        primary.process.id(),
        primary.address,
        how(match tour.fabric {
            Fabric::Auto => usable()[0],
            Fabric::Only(kind) => kind,
        })
    ));
    Ok(primary)
}

/// How clients change the words over this fabric.
fn how(fabric: FabricKind) -> String {
    match fabric.executes() {
        Executes::Client => "here in shared memory, without any message".into(),
        Executes::Device => "here of an RDMA device, without any work for the primary".into(),
        Executes::Primary => format!("here by messages over {fabric}, one round trip each"),
    }
}

fn number_in(file: &str) -> u64 {
    fs::read_to_string(file).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

fn counting(tour: &mut Tour, clients: &mut [Process]) -> Result<(), Failure> {
    tour.title("Mutual exclusion");
    let wanted = COUNTS * clients.len() as u64;
    let file = tour.file("count");
    tour.say(&format!(
        "{} processes add 1 to a number in a file, {COUNTS} times each.",
        clients.len()
    ));
    each(clients, &format!("count {file} {COUNTS}"))?;
    let lost = wanted.saturating_sub(number_in(&file));
    tour.say(&format!("Without a lock: {lost} of {wanted} additions are lost."));

    fs::write(&file, "0").map_err(Failure::plain)?;
    each(clients, "get demo-atomic atomic")?;
    let start = Instant::now();
    each(clients, &format!("count {file} {COUNTS} locked"))?;
    let seconds = start.elapsed().as_secs_f64();
    let found = number_in(&file);
    tour.check(
        &format!("under an atomic lock the sum is {found} of {wanted} ({seconds:.2} s)"),
        found == wanted,
    );
    Ok(())
}

fn readers_and_writer(tour: &mut Tour, clients: &mut [Process]) -> Result<(), Failure> {
    tour.title("Readers and a writer");
    let file = tour.file("pair");
    fs::write(&file, "0 0").map_err(Failure::plain)?;
    tour.say("A writer changes two numbers, one after the other; readers must see them equal.");
    each(clients, "get demo-rw rw")?;

    let together = each(clients, "lock shared 60")?.len();
    tour.check(&format!("{together} readers hold the lock together"), together == clients.len());
    each(clients, "unlock")?;

    let (writer, readers) = clients.split_first_mut().expect("there are several clients");
    writer.tell(&format!("write {file} 300"))?;
    let torn: u64 = each(readers, &format!("read {file} 300"))?.iter().map(|a| a.numbers[0]).sum();
    expect(writer.answer()?, "write")?;
    let reads = 300 * readers.len();
    tour.check(&format!("{torn} of {reads} reads saw a half-made change"), torn == 0);
    Ok(())
}

fn in_order_of_arrival(tour: &mut Tour, clients: &mut [Process]) -> Result<(), Failure> {
    tour.title("In order of arrival");
    tour.say("A fair lock hands out tickets. One client holds it, the others queue.");
    each(clients, "get demo-fair fair")?;
    let (holder, waiters) = clients.split_first_mut().expect("there are several clients");
    expect(holder.ask("try exclusive 60")?, "the first trylock")?;
    let mut queued = true;
    for waiter in waiters.iter_mut() {
        queued &= waiter.ask("try exclusive 60")?.status == Status::Again;
    }
    tour.check("each of the others is told that it is queued", queued);

    for waiter in waiters.iter_mut().rev() {
        // the waiters ask in the reverse of the order of their tickets, to show that only the
        // tickets count
        waiter.tell("lock exclusive 60")?;
    }
    // the clock starts before the unlock: its answer may come after the next client's grant
    let mut released = Instant::now();
    expect(holder.ask("unlock")?, "unlock")?;
    let mut in_order = true;
    for next in 0..waiters.len() {
        let granted = expect(waiters[next].answer()?, "lock")?;
        in_order &= granted.at >= released;
        // no later waiter may get the lock while this one holds it
        in_order &= waiters[next + 1..].iter_mut().all(|w| w.quiet(Duration::from_millis(30)));
        released = Instant::now();
        expect(waiters[next].ask("unlock")?, "unlock")?;
    }
    tour.check("it goes to the waiters by ticket, one at a time", in_order);
    Ok(())
}

fn killed_holder(
    tour: &mut Tour,
    primary: &Primary,
    clients: &mut [Process],
) -> Result<(), Failure> {
    tour.title("A holder dies");
    tour.say(&format!(
        "A client takes a read-write lock, which has no lease, and an atomic lock for an hour.\n\
         Both times it is killed with SIGKILL. The primary notices that the connection broke.\n\
         If it can see that the process is gone (shared memory), it undoes the hold at once;\n\
         otherwise it waits {} ms, in case the client comes back. (This primary was told to let\n\
         leases end with that, by `orphans = \"grace\"`; by default they last.)",
        GRACE.as_millis()
    ));
    for (kind, what) in [("rw", "read-write"), ("atomic", "atomic")] {
        let name = format!("demo-killed-{kind}");
        let mut victim = client(primary.address, tour.fabric)?;
        for process in [&mut victim, &mut clients[0]] {
            expect(process.ask(&format!("get {name} {kind}"))?, "get")?;
        }
        expect(victim.ask("lock exclusive 3600")?, "lock")?;
        clients[0].tell("lock exclusive 60")?;
        let held = clients[0].quiet(Duration::from_millis(100));
        let killed = Instant::now();
        victim.kill();
        let answer = clients[0].answer()?;
        let waited = answer.at.saturating_duration_since(killed).as_millis();
        let good = held && answer.status == Status::Success;
        tour.check(&format!("the {what} lock went to the waiter {waited} ms later"), good);
        clients[0].ask("unlock")?;
    }
    Ok(())
}

/// A store that keeps the largest token with which it was written.
#[derive(Default)]
struct Store(u64);

impl Store {
    /// Whether a write with this token is stored.
    fn writes(&mut self, token: u64) -> bool {
        let is_stored = token >= self.0;
        self.0 = self.0.max(token);
        is_stored
    }
}

/// The fencing token of what the client holds.
fn token(client: &mut Process) -> Result<u64, Failure> {
    let answer = expect(client.ask("token")?, "token")?;
    answer.numbers.first().copied().ok_or_else(|| Failure::plain("a client that holds has a token"))
}

fn frozen_holder(
    tour: &mut Tour,
    primary: &Primary,
    clients: &mut [Process],
) -> Result<(), Failure> {
    tour.title("A holder sleeps past its lease");
    tour.say(
        "A client takes a lock for 1 s and is frozen (SIGSTOP). It is not dead, so only its\n\
         lease counts: when that is over, the next client gets the lock. The sleeper wakes\n\
         up and believes that it still holds it. What it writes then, a store refuses by\n\
         its fencing token: a number that is larger for each holder.",
    );
    let mut sleeper = client(primary.address, tour.fabric)?;
    for process in [&mut sleeper, &mut clients[0]] {
        expect(process.ask("get demo-lease atomic tokens")?, "get")?;
    }
    let taken = Instant::now();
    expect(sleeper.ask("lock exclusive 1")?, "lock")?;
    let old = token(&mut sleeper)?;
    sleeper.freeze(true);
    let answer = clients[0].ask("lock exclusive 60")?;
    let waited = answer.at.saturating_duration_since(taken).as_secs_f64();
    let good = answer.status == Status::Success && waited >= 1.0;
    tour.check(&format!("the lock went to the next client after {waited:.1} s"), good);
    let mut store = Store::default();
    let new = token(&mut clients[0])?;
    let is_written = store.writes(new);
    sleeper.freeze(false);
    tour.check(
        "its write is stored; the sleeper's is refused, since its token is older",
        is_written && !store.writes(old),
    );
    let late = sleeper.ask("unlock")?;
    tour.check(
        &format!("the sleeper's late unlock is refused ({:?})", late.status),
        late.status == Status::Fail,
    );
    let still = clients[0].ask("unlock")?;
    tour.check("and has changed nothing for the new holder", still.status == Status::Success);
    Ok(())
}

fn successor(tour: &mut Tour, primary: &mut Primary) -> Result<(), Failure> {
    tour.title("The primary dies");
    tour.say(
        "A client holds a lock. The primary is killed with SIGKILL, and a successor is started\n\
         at the same address, told to wait for 1 client to come back.",
    );
    let address = primary.address;
    let mut survivor = client(address, tour.fabric)?;
    expect(survivor.ask("get demo-survivor atomic")?, "get")?;
    expect(survivor.ask("lock exclusive 3600")?, "lock")?;
    primary.process.kill();
    let refused = survivor.ask(&format!("reinit {address}"))?;
    tour.check(
        &format!("with no primary there, the client is told so: {:?}", refused.status),
        refused.status == Status::NotReady,
    );
    *primary = Primary::start(address, 1, Some(GRACE), tour.fabric)?;
    let early = uninvited(address, tour.fabric);
    tour.check("the successor takes no new client before the old ones are back", early.is_err());
    let back = survivor.ask(&format!("reinit {address}"))?;
    tour.check("the survivor is let in again", back.status == Status::Success);
    let told = survivor.ask("update")?;
    tour.check("it tells the successor which locks it has", told.status == Status::Success);
    let ready = survivor.ask("reinit-done")?;
    tour.check("and the successor serves", ready.status == Status::Success);

    let mut newcomer = client(address, tour.fabric)?;
    expect(newcomer.ask("get demo-survivor atomic")?, "get")?;
    let excluded = newcomer.ask("try exclusive 60")?;
    let text = format!("a new client finds the lock held ({:?})", excluded.status);
    tour.check(&text, excluded.status == Status::Fail);
    let unlocked = survivor.ask("unlock")?;
    let got = newcomer.ask("lock exclusive 60")?;
    let passed_on = unlocked.status == Status::Success && got.status == Status::Success;
    tour.check("until the survivor unlocks it", passed_on);
    Ok(())
}

fn by_itself(tour: &mut Tour) -> Result<(), Failure> {
    tour.title("A failover that happens by itself");
    let state = tour.file("state");
    let mut primary = Primary::start_kept(own_address(), &state, tour.fabric)?;
    let free = std::net::TcpListener::bind(own_address()).map_err(Failure::plain)?;
    let second = free.local_addr().map_err(Failure::plain)?;
    drop(free);
    let mut standby = Primary::stand_by(primary.address, second, &state, tour.fabric)?;
    tour.say(&format!(
        "A second primary, process {}, stands by on {}. The clients know both addresses\n\
         (DLOCK_PRIMARIES), and nothing else. One holds a fair lock, two wait for it in `lock`,\n\
         and `dlock exec` runs a COMMAND under another lock. Then the primary is killed with\n\
         SIGKILL, and nothing is done about it by hand.",
        standby.process.id(),
        second,
    ));
    let (mut clients, mut wait) = (Vec::new(), true);
    for _ in 0..3 {
        let mut next = client_of([primary.address, second], tour.fabric)?;
        expect(next.ask("get demo-by-itself fair")?, "get")?;
        let is_first = clients.is_empty();
        next.tell("lock exclusive 3600")?;
        if is_first {
            expect(next.answer()?, "lock")?;
        } else {
            // the waiter is in the queue before the next one asks
            wait &= next.quiet(Duration::from_millis(100));
        }
        clients.push(next);
    }
    tour.check("the two wait", wait);
    let both = [primary.address, second];
    let (mut command, pid) = Process::exec(both, tour.fabric)?;
    let killed = Instant::now();
    primary.process.kill();
    let served = standby.serves()?.saturating_duration_since(killed).as_millis();
    let holder = &mut clients[0];
    let kept = loop {
        let answer = holder.ask("extend exclusive 3600")?;
        match answer.status {
            Status::NotReady | Status::BadResponse if killed.elapsed() < PATIENCE => {}
            _ => break answer,
        }
    };
    let back = kept.at.saturating_duration_since(killed).as_millis();
    tour.check(
        &format!(
            "the standby took over after {served} ms; the holder has kept its lock, and was \
                  served again after {back} ms"
        ),
        kept.status == Status::Success,
    );
    let mut in_order = true;
    for n in 1..clients.len() {
        in_order &= clients[n..].iter_mut().all(|c| c.quiet(Duration::from_millis(30)));
        expect(clients[n - 1].ask("unlock")?, "unlock")?;
        in_order &= clients[n].answer()?.status == Status::Success;
    }
    tour.check("the waiters never noticed: each `lock` was granted, in its old order", in_order);
    let word = command.ask("7")?;
    tour.check(
        &format!("COMMAND of `dlock exec`, process {pid}, runs on"),
        word.status == Status::Success && word.numbers == [7, pid],
    );
    let excluded = exec_once(both, tour.fabric)?;
    tour.check(
        "its lock is held at the successor: a second `dlock exec --wait 0` ends with code 75",
        excluded == Some(failure::NOT_GOT.into()),
    );
    let ended = command.end();
    let free = exec_once(both, tour.fabric)?;
    tour.check(
        "COMMAND ends, `dlock exec` with its code, and the lock is free",
        (ended, free) == (Some(0), Some(0)),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_memory_is_said_to_need_no_message() {
        for kind in FabricKind::ALL {
            let silent = how(kind).contains("without any message");
            assert_eq!(silent, kind.executes() == Executes::Client, "{kind}: {}", how(kind));
        }
        assert!(how(FabricKind::Tcp).contains("messages over tcp"));
    }
}
