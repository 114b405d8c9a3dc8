// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of the tour and of the benchmark. Each ends when its standard input does, so
//! that none outlives the process that started it.
//!
//! A *primary* prints `listening ADDRESS` and serves; a standby prints `standby of ADDRESS` first.
//! A *client* reads one command per line and answers each with one line, `STATUS` or `STATUS
//! number…`, where STATUS is the protocol's number of the status in hexadecimal:
//!
//! ```text
//!   get NAME TYPE [tokens]   try|lock|extend MODE LEASE_S        unlock        token
//!   count FILE TIMES [locked]   adds 1 to the number in FILE, TIMES times
//!   write FILE TIMES / read FILE TIMES                       pairs of numbers, see pairs()
//!   reinit ADDRESS       update       reinit-done
//! ```

use std::fs;
use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlock_client::raw::Instance;
use dlock_client::{Address, TlsUse};
use dlock_core::ids::LockId;
use dlock_core::wire::codec::status_to_wire;
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_server::{stand_by, Orphans, Server, ServerConfig, StandbyConfig};
use tokio::sync::oneshot;

use crate::args::{Part, Role, Where};
use crate::connect;
use crate::exec;
use crate::failure::{self, Failure};
use crate::hold;
use crate::out;

/// The lease of the loops, which the tour does not let run out.
const LOOP_LEASE_S: u32 = 60;

/// Plays a role.
pub fn run(role: &Role) -> Result<u8, Failure> {
    match &role.part {
        Part::Primary(role) => {
            let tls = TlsUse::Environment.material();
            let tls = tls.map_err(|_| Failure::plain("the files of TLS cannot be used"))?;
            let config = ServerConfig {
                tls,
                bind: role.listen,
                port: role.port,
                recovery_clients: role.recover,
                recovery_deadline: Duration::from_secs(role.deadline),
                absent_grace: role.grace_ms.map(Duration::from_millis),
                orphans: if role.grace_ms.is_some() { Orphans::Grace } else { Orphans::Lease },
                admin_socket: role.admin_socket.clone(),
                state_file: role.state_file.clone(),
                frames_per_second_max: role.frames_per_second_max,
                locks_max: role.locks_max,
                ..ServerConfig::default()
            };
            let fence = role.fence.clone();
            let standby =
                role.standby_of.map(|of| StandbyConfig { fence, ..StandbyConfig::of(of) });
            primary(config, standby)
        }
        Part::Client { place, primaries } => client(place, primaries),
        Part::Keeper(keeper) => exec::keeper(keeper),
        Part::Start(start) => exec::start(start),
        Part::Held(held) => hold::held(held),
    }
}

/// Serves until its input ends; a standby first waits to take the place of its primary.
fn primary(config: ServerConfig, standby: Option<StandbyConfig>) -> Result<u8, Failure> {
    dlock_fabric::os::threads::free_memory_as_it_goes();
    let (ends, mut ended) = oneshot::channel();
    let listen = move || {
        io::stdin().lock().lines().for_each(drop);
        let _ = ends.send(()); // if the role is ending already, the message has no receiver
    };
    thread::Builder::new().name("input".into()).spawn(listen).map_err(Failure::plain)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::plain)?;
    let server = match standby {
        None => Server::start(config),
        Some(standby) => {
            out::line(&format!("standby of {}", standby.of));
            let started = async {
                tokio::select! {
                    started = stand_by(config, standby) => Some(started),
                    _ = &mut ended => None,
                }
            };
            match runtime.block_on(started) {
                Some(started) => started,
                None => return Ok(failure::OK),
            }
        }
    };
    let server = server.map_err(Failure::plain)?;
    out::line(&format!("listening {}", server.local_addr()));
    let is_over = runtime.block_on(async {
        tokio::select! {
            _ = ended => false,
            () = server.ended() => true,
        }
    });
    server.stop();
    match is_over {
        true => Err(Failure::plain("the primary has ended by itself: see the log")),
        false => Ok(failure::OK),
    }
}

fn client(place: &Where, others: &[SocketAddr]) -> Result<u8, Failure> {
    let mut addresses = place.addresses()?;
    addresses.extend(others.iter().map(|&other| Address::from(other)));
    let instance = connect::open_with(&addresses[0], &addresses[1..], place.fabric)
        .map_err(|status| Failure::refused("no session with the primary", status))?;
    let mut player = Player { instance, lock: None };
    out::line(&format!("client {}", player.instance.id()));
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        out::line(&match player.obey(&words) {
            Ok(numbers) => answer(Status::Success, &numbers),
            Err(status) => answer(status, &[]),
        });
    }
    player.instance.deinit();
    Ok(failure::OK)
}

fn answer(status: Status, numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("{:x} {}", status_to_wire(status), numbers.join(" "))
}

struct Player {
    instance: Arc<Instance>,
    lock: Option<LockId>,
}

/// The result of a command: its numbers, or why it failed.
type Played = Result<Vec<u64>, Status>;

fn done(status: Status) -> Played {
    match status {
        Status::Success => Ok(vec![]),
        status => Err(status),
    }
}

impl Player {
    fn obey(&mut self, words: &[&str]) -> Played {
        match words {
            ["get", name, kind] => self.get(name, kind, false),
            ["get", name, kind, "tokens"] => self.get(name, kind, true),
            ["try", mode, lease] => {
                let lock = self.lock()?;
                done(self.instance.trylock(lock, mode_of(mode)?, number(lease)?).status)
            }
            ["lock", mode, lease] => {
                let lock = self.lock()?;
                done(self.instance.lock(lock, mode_of(mode)?, number(lease)?).status)
            }
            ["extend", mode, lease] => {
                let lock = self.lock()?;
                done(self.instance.extend(lock, mode_of(mode)?, number(lease)?).status)
            }
            ["token"] => match self.instance.token(self.lock()?) {
                Some(token) => Ok(vec![token.0]),
                None => Err(Status::AlreadyUnlocked),
            },
            ["unlock"] => done(self.instance.unlock(self.lock()?).status),
            ["count", file, times] => self.count(file, number(times)?, false),
            ["count", file, times, "locked"] => self.count(file, number(times)?, true),
            ["write", file, times] => self.write(file, number(times)?),
            ["read", file, times] => self.read(file, number(times)?),
            ["reinit", address] => {
                let address: SocketAddr = address.parse().map_err(|_| Status::Invalid)?;
                done(self.instance.reinit(&address.ip().to_string()))
            }
            ["update"] => done(self.instance.update_all_locks()),
            ["reinit-done"] => done(self.instance.reinit_done()),
            _ => Err(Status::Invalid),
        }
    }

    fn lock(&self) -> Result<LockId, Status> {
        self.lock.ok_or(Status::LockNotGet)
    }

    fn get(&mut self, name: &str, kind: &str, tokens: bool) -> Played {
        let lock_type = match kind {
            "atomic" => LockType::Atomic,
            "rw" => LockType::Rw,
            "fair" => LockType::Fair,
            _ => return Err(Status::Invalid),
        };
        let desc = LockDesc { name: name.into(), lock_type, lease_s: LOOP_LEASE_S, tokens };
        let (status, lock) = self.instance.get_lock(desc);
        self.lock = lock;
        done(status)
    }

    /// Reads the number in the file, adds one, writes it back: wrong without mutual exclusion.
    fn count(&self, file: &str, times: u32, locked: bool) -> Played {
        for _ in 0..times {
            if locked {
                self.enter(Mode::Exclusive)?;
            }
            let value: u64 = read_numbers(file).first().copied().unwrap_or(0);
            fs::write(file, (value + 1).to_string()).map_err(|_| Status::Error)?;
            if locked {
                self.leave()?;
            }
        }
        Ok(vec![])
    }

    /// Writes pairs of equal numbers; the second number comes with a second write.
    fn write(&self, file: &str, times: u32) -> Played {
        for i in 0..times {
            self.enter(Mode::Exclusive)?;
            for text in [format!("{i}"), format!("{i} {i}")] {
                fs::write(file, text).map_err(|_| Status::Error)?;
            }
            self.leave()?;
        }
        Ok(vec![])
    }

    /// Reads pairs; returns the number of torn ones.
    fn read(&self, file: &str, times: u32) -> Played {
        let mut torn = 0;
        for _ in 0..times {
            self.enter(Mode::Shared)?;
            let pair = read_numbers(file);
            torn += u64::from(pair.len() != 2 || pair[0] != pair[1]);
            self.leave()?;
        }
        Ok(vec![torn])
    }

    fn enter(&self, mode: Mode) -> Result<(), Status> {
        loop {
            match self.instance.lock(self.lock()?, mode, LOOP_LEASE_S).status {
                Status::Success => return Ok(()),
                Status::Fail | Status::Again => {} // the lock was not free within 5 s: wait again
                status => return Err(status),
            }
        }
    }

    fn leave(&self) -> Result<(), Status> {
        done(self.instance.unlock(self.lock()?).status).map(|_| ())
    }
}

fn read_numbers(file: &str) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|w| w.parse().ok()).collect()
}

fn mode_of(word: &str) -> Result<Mode, Status> {
    match word {
        "exclusive" => Ok(Mode::Exclusive),
        "shared" => Ok(Mode::Shared),
        _ => Err(Status::Invalid),
    }
}

fn number(word: &str) -> Result<u32, Status> {
    word.parse().map_err(|_| Status::Invalid)
}
