// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tour of this crate, each part in a function: tokens, events, renewal, leases, downgrade, a
//! mutex of threads, many locks at once, objects; and locks that are taken away, or held by
//! commands of a shell.
//!
//! ```text
//! dlockd --port 21616 --admin-socket admin.sock &
//! cargo run -p dlock-client --example tour 21616
//! cargo run -p dlock-client --example tour 21616 target/debug/dlock admin.sock
//! ```

use std::error::Error as AnyError;
use std::process::Command;
use std::thread;
use std::time::Duration;

use dlock_client::{
    Client, Config, Error, Event, Events, HoldEvent, LockType, Loss, Mode, Renew, Wait,
};
use Mode::{Exclusive, Shared};

type Done = Result<(), Box<dyn AnyError>>;

const PATIENCE: Duration = Duration::from_secs(60);
const LOCKS: usize = 100;

/// A client that comes back to the primary by itself, and so is told what became of its holds.
fn open(port: u16) -> Result<Client, Error> {
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    Client::with_config(&Config::new().port(port).primaries([at]), "127.0.0.1")
}

fn next(events: &Events) -> HoldEvent {
    match events.wait_for(PATIENCE) {
        Some(Event::Hold { what, .. }) => what,
        other => panic!("{other:?} is not about a hold"),
    }
}

/// Writers have increasing tokens; readers that hold together have equal ones.
fn tokens(one: &Client, two: &Client) -> Done {
    let [mine, other] =
        [one, two].map(|client| client.lock_with_tokens("tour: tokens", LockType::Rw));
    let (mine, other) = (mine?, other?);
    let writer = mine.acquire(Exclusive).guard()?.token();
    let (reader, reader_too) = (mine.acquire(Shared).guard()?, other.acquire(Shared).guard()?);
    let readers = (reader.token(), reader_too.token());
    drop((reader, reader_too));
    let next = other.acquire(Exclusive).guard()?.token();
    assert!(writer.is_some() && readers.0 > writer && next > readers.0);
    assert_eq!(readers.0, readers.1);
    Ok(())
}

/// A holder is told that another client waits, and gives the lock back to it.
fn events(one: &Client, two: &Client) -> Done {
    let (mine, other) = (one.fair_lock("tour: events")?, two.fair_lock("tour: events")?);
    let events = mine.events(10);
    let held = mine.acquire(Exclusive).guard()?;
    assert_eq!(next(&events), HoldEvent::Granted);
    thread::scope(|threads| -> Done {
        let its = threads.spawn(|| other.acquire(Exclusive).wait(PATIENCE).guard()?.unlock());
        assert_eq!(next(&events), HoldEvent::Contended { waiters: 1, until: None });
        held.unlock()?;
        Ok(its.join().expect("it does not panic")?)
    })
}

/// A lease that the library renews lasts as long as its guard, and no longer.
fn renewal(one: &Client, two: &Client) -> Done {
    let (mine, other) = (one.atomic_lock("tour: renewal")?, two.atomic_lock("tour: renewal")?);
    let lease = Duration::from_secs(2);
    let mut held = mine.acquire(Exclusive).lease(lease).renew(Renew::new()).guard()?;
    thread::sleep(2 * lease);
    assert_eq!(other.acquire(Exclusive).wait(Wait::No).guard().err(), Some(Error::Held));
    held.check()?;
    held.unlock()?;
    other.acquire(Exclusive).wait(PATIENCE).guard()?.unlock()?;
    Ok(())
}

/// A read-write lock has a lease if one is asked for; when it ends, the next client has the lock.
fn leases(one: &Client, two: &Client) -> Done {
    let (mine, other) = (one.rw_lock("tour: leases")?, two.rw_lock("tour: leases")?);
    let held = mine.acquire(Shared).lease(Duration::from_millis(500)).guard()?;
    let its = other.acquire(Exclusive).wait(PATIENCE).guard()?;
    assert_eq!(held.unlock().err(), Some(Error::Lost));
    its.unlock()?;
    Ok(())
}

/// A writer becomes a reader: others may read what it wrote, and no writer comes in between.
fn downgrade(one: &Client, two: &Client) -> Done {
    let [mine, other] =
        [one, two].map(|client| client.lock_with_tokens("tour: downgrade", LockType::Rw));
    let (mine, other) = (mine?, other?);
    let mut held = mine.acquire(Exclusive).guard()?;
    let writer = held.token();
    assert_eq!(other.acquire(Shared).wait(Wait::No).guard().err(), Some(Error::Held));
    held.downgrade()?;
    assert_eq!(other.acquire(Exclusive).wait(Wait::No).guard().err(), Some(Error::Held));
    let its = other.acquire(Shared).wait(Wait::No).guard()?;
    assert!(held.token() == its.token() && its.token() > writer);
    held.unlock()?;
    its.unlock()?;
    Ok(())
}

/// Re-entrant within a thread, exclusive among threads and programs.
fn mutex(one: &Client, two: &Client) -> Done {
    let (mine, other) = (one.mutex("tour: mutex")?, two.mutex("tour: mutex")?);
    let outer = mine.lock()?;
    let inner = mine.lock()?;
    assert_eq!(outer.token(), inner.token());
    thread::scope(|threads| {
        threads.spawn(|| assert_eq!(mine.try_lock().err(), Some(Error::Held)));
    });
    drop(outer);
    assert_eq!(other.try_lock().err(), Some(Error::Held));
    inner.unlock()?;
    other.lock_for(PATIENCE)?.unlock()?;
    Ok(())
}

/// One thread waits for many locks at the same time, each with a future.
fn many(one: &Client) -> Done {
    let lock = |n| one.lock_with_tokens(format!("tour: many {n}"), LockType::Fair);
    let locks = (0..LOCKS).map(lock).collect::<Result<Vec<_>, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let mut acquires = tokio::task::JoinSet::new();
        for lock in locks {
            acquires.spawn(async move { lock.acquire(Exclusive).wait(PATIENCE).await });
        }
        let mut held = Vec::new();
        while let Some(guard) = acquires.join_next().await {
            held.push(guard??);
        }
        assert!(held.len() == LOCKS && held.iter().all(|guard| guard.token().is_some()));
        for guard in held {
            guard.unlock_async().await?;
        }
        Ok(())
    })
}

/// A counter that two clients share.
fn objects(one: &Client, two: &Client) -> Done {
    let lease = Duration::from_secs(30);
    let (mine, other) = (one.create_object("tour", lease, 40)?, two.object("tour", lease)?);
    assert_eq!(mine.fetch_add(2)?, 40);
    assert_eq!(other.load()?, 42);
    assert!(other.compare_exchange(40, 0).is_err());
    mine.destroy()?;
    Ok(())
}

/// An operator takes the lock away: its holder is told, and the next has it with a larger token.
fn taken_away(port: u16, two: &Client, dlock: &str, socket: &str) -> Done {
    let (name, one) = ("tour: taken", open(port)?);
    let mine = one.lock_with_tokens(name, LockType::Fair)?;
    let events = mine.events(10);
    let held = mine.acquire(Exclusive).guard()?;
    let token = held.token();
    assert_eq!(next(&events), HoldEvent::Granted);
    run(dlock, &["break", name, "--now", "--socket", socket])?;
    assert_eq!(next(&events), HoldEvent::Lost(Loss::TakenAway));
    assert_eq!(held.unlock(), Err(Error::Lost));
    let other = two.lock_with_tokens(name, LockType::Fair)?;
    let next = other.acquire(Exclusive).wait(PATIENCE).guard()?;
    assert!(next.token() > token);
    next.unlock()?;
    Ok(())
}

/// Runs the program `dlock`; the line that it prints.
fn run(dlock: &str, args: &[&str]) -> Result<String, Box<dyn AnyError>> {
    let output = Command::new(dlock).args(args).output()?;
    assert!(output.status.success(), "dlock {args:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?.trim_end().to_string())
}

/// Commands of a shell that hold the lock, one after the other.
fn commands(port: u16, two: &Client, dlock: &str) -> Done {
    let (name, at) = ("tour: commands", format!("127.0.0.1:{port}"));
    let lock = two.lock_with_tokens(name, LockType::Fair)?;
    let before = lock.acquire(Exclusive).guard()?.token().expect("a token").0;
    let shows = "echo $DLOCK_TOKEN of $DLOCK_NAME";
    let where_ = ["--address", &at, "--type", "fair", name];
    let said = run(dlock, &[&["exec"], &where_[..], &["--", "sh", "-c", shows]].concat())?;
    let (token, of) = said.split_once(" of ").ok_or("no line of the command")?;
    assert_eq!(of, name);
    let hold = run(dlock, &[&["hold"], &where_[..]].concat())?;
    assert_eq!(lock.acquire(Exclusive).wait(Wait::No).guard().err(), Some(Error::Held));
    run(dlock, &["release", &hold])?;
    let after = lock.acquire(Exclusive).wait(Wait::No).guard()?.token().expect("a token").0;
    let token: u64 = token.parse()?;
    assert!(before < token && token < after, "{before} {token} {after}");
    Ok(())
}

fn main() -> Done {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (port, programs) = match args.as_slice() {
        [port] => (port.parse()?, None),
        [port, dlock, socket] => (port.parse()?, Some((dlock, socket))),
        _ => return Err("usage: tour PORT [DLOCK SOCKET]".into()),
    };
    let (one, two) = (open(port)?, open(port)?);
    tokens(&one, &two)?;
    events(&one, &two)?;
    renewal(&one, &two)?;
    leases(&one, &two)?;
    downgrade(&one, &two)?;
    mutex(&one, &two)?;
    many(&one)?;
    objects(&one, &two)?;
    if let Some((dlock, socket)) = programs {
        taken_away(port, &two, dlock, socket)?;
        commands(port, &two, dlock)?;
    }
    one.leave()?;
    two.leave()?;
    println!("tour: all as expected");
    Ok(())
}
