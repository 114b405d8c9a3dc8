// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases that the library renews, under load, while the primary is killed again and again: no
//! hold is lost, no other client gets a lock that is held, and no hold outlives its release.
//!
//! ```text
//!   holder   acquire, renewed ─ looks, asks by check() ─ unlock ─ its rival gets the lock in time
//!   rival    tries the holder's lock all along, and must be refused
//!   load     clients that lock and unlock all the time
//!   primary  SIGKILL ─ a moment ─ a successor at the same address, with the same state file
//! ```
//! The process of the clients is never stopped. What this machine withholds from it is measured:
//! a loss counts as wrong only if no thread was kept waiting for a part of the lease.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use dlock_chaos::rng::Rng;
use dlock_client::{Client, Config, Error, FabricChoice, Lock, LockType, Mode, Renew, Wait};
use parking_lot::Mutex;

use super::{Folder, Primary};

/// The kinds of hold that can be renewed; several holders have each of them.
const KINDS: [(LockType, Mode); 3] = [
    (LockType::Atomic, Mode::Exclusive),
    (LockType::Fair, Mode::Exclusive),
    (LockType::Fair, Mode::Shared),
];
const HOLDERS: usize = 6;
const LOADS: usize = 4;
/// The lease of every hold; its renewal is due after a third of it.
const LEASE: Duration = Duration::from_secs(9);
/// A thread that did not run for this long may be the reason why a lease ended.
const GAP_MAX: Duration = Duration::from_secs(2);
/// How long a hold lasts, milliseconds: most holds outlast a primary, or several.
const HELD_MS: (u64, u64) = (500, 45_000);
/// For how long there is no primary after a kill, milliseconds.
const AWAY_MS: (u64, u64) = (0, 1_000);
/// The time between two checks by a holder.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The time within which a lock must be free after its release. It contains the lease, because a
/// release that reaches no primary leaves the hold until its lease ends; and time for a recovery on
/// a busy machine.
const FREE_MAX: Duration = Duration::from_secs(40);
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The broken rules.
    pub wrong: Vec<String>,
    pub kills: u64,
    pub holds: u64,
    /// How many holds lasted longer than their first lease.
    pub renewed: u64,
    /// How many holds outlasted a primary.
    pub outlasted: u64,
    /// How often the load has locked and unlocked.
    pub load: u64,
    /// How many attempts of rivals were refused.
    pub refused: u64,
    /// How many holds were lost while a thread of this process did not get to run, which excuses
    /// the loss.
    pub excused: u64,
    /// The longest time for which a thread did not get to run.
    pub gap: Duration,
    /// The longest time from a release until the rival had the lock.
    pub freed: Duration,
}

struct Run {
    port: u16,
    fabric: FabricChoice,
    is_over: AtomicBool,
    kills: AtomicU64,
    /// The last time at which a thread had not run for [`GAP_MAX`], milliseconds after `begun`.
    gap_at_ms: AtomicU64,
    begun: Instant,
    outcome: Mutex<Outcome>,
}

/// Runs for `time`, and kills the primary each time when `every` has passed.
pub fn renewed(fabric: FabricChoice, seed: u64, time: Duration, every: Duration) -> Outcome {
    let folder = Folder::new(&format!("renewed-{fabric:?}"));
    let state_file = folder.0.join("state");
    let mut primary = Primary::with_state(0, &state_file);
    let run = Run {
        port: primary.port,
        fabric,
        is_over: AtomicBool::new(false),
        kills: AtomicU64::new(0),
        gap_at_ms: AtomicU64::new(0),
        begun: Instant::now(),
        outcome: Mutex::default(),
    };
    thread::scope(|scope| {
        let run = &run;
        scope.spawn(move || run.watches_itself());
        for n in 0..LOADS {
            scope.spawn(move || run.loads(n));
        }
        for n in 0..HOLDERS {
            scope.spawn(move || run.holds(n, Rng::new(seed ^ n as u64)));
        }
        run.kills(&mut primary, &state_file, time, every, Rng::new(seed));
    });
    folder.remove();
    let mut outcome = run.outcome.into_inner();
    outcome.kills = run.kills.into_inner();
    outcome
}

impl Run {
    fn client(&self) -> Client {
        let at = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, self.port));
        let config = Config::new().port(self.port).fabric(self.fabric).primaries([at]);
        let config = config.silence(Duration::from_millis(200)).horizon(PATIENCE);
        Client::with_config(&config, "127.0.0.1").expect("the primary admits a client")
    }

    fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    fn kills(
        &self,
        primary: &mut Primary,
        state_file: &Path,
        time: Duration,
        every: Duration,
        mut rng: Rng,
    ) {
        while self.begun.elapsed() + every < time {
            thread::sleep(every);
            primary.kill();
            thread::sleep(Duration::from_millis(rng.range(AWAY_MS.0, AWAY_MS.1)));
            *primary = Primary::with_state(self.port, state_file);
            let kills = self.kills.fetch_add(1, SeqCst) + 1;
            if std::env::var_os("DLOCK_PROGRESS").is_some() {
                println!("progress: {kills} kills");
            }
        }
        thread::sleep(time.saturating_sub(self.begun.elapsed()));
        self.is_over.store(true, SeqCst);
    }

    /// Measures for how long a thread of this process does not get to run.
    fn watches_itself(&self) {
        while !self.is_over() {
            let before = Instant::now();
            thread::sleep(Duration::from_millis(10));
            let gap = before.elapsed();
            let mut outcome = self.outcome.lock();
            outcome.gap = outcome.gap.max(gap);
            if gap > GAP_MAX {
                self.gap_at_ms.store(self.now_ms(), SeqCst);
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_wrong(&self, what: String) {
        self.outcome.lock().wrong.push(format!("after {:.1?}: {what}", self.begun.elapsed()));
    }

    fn is_lost(&self, who: &str, how: &str) {
        let gap_at = self.gap_at_ms.load(SeqCst);
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        match gap_at > 0 && self.now_ms() < gap_at + lease_ms {
            true => self.outcome.lock().excused += 1,
            false => self.is_wrong(format!("{who}: lost, says {how}")),
        }
    }

    /// Locks and unlocks two locks again and again: one of this thread alone, and one that another
    /// thread uses as well.
    fn loads(&self, n: usize) {
        let client = self.client();
        let locks = [format!("load {n}"), format!("load of {}", n / 2)];
        let locks =
            locks.map(|name| client.lock_with_tokens(name, LockType::Fair).expect("a lock"));
        let mut count = 0;
        while !self.is_over() {
            for lock in &locks {
                // this fails while there is no primary
                if let Ok(guard) = lock.acquire(Mode::Exclusive).wait(PATIENCE).guard() {
                    count += u64::from(guard.unlock().is_ok());
                }
            }
        }
        self.outcome.lock().load += count;
    }

    /// Holds one lock again and again, until the run is over.
    fn holds(&self, n: usize, mut rng: Rng) {
        let (lock_type, mode) = KINDS[n % KINDS.len()];
        let who = format!("{lock_type:?} {mode:?} {n}");
        let [mine, rival] = [0, 1].map(|_| self.client());
        let [mine, rival] = [&mine, &rival]
            .map(|client| client.lock_with_tokens(&who, lock_type).expect("a lock of this name"));
        while !self.is_over() {
            self.holds_once(&who, mode, (&mine, &rival), rng.range(HELD_MS.0, HELD_MS.1));
        }
    }

    fn holds_once(&self, who: &str, mode: Mode, (mine, rival): (&Lock, &Lock), held_ms: u64) {
        let acquire = mine.acquire(mode).lease(LEASE).renew(Renew::new()).wait(PATIENCE);
        // the acquire fails while there is no primary
        let Ok(mut guard) = acquire.guard() else { return };
        let (begun, kills) = (Instant::now(), self.kills.load(SeqCst));
        let mut looks = 0_u32;
        while begun.elapsed() < Duration::from_millis(held_ms) && !self.is_over() {
            thread::sleep(LOOK_EVERY);
            if guard.is_known_lost() {
                return self.is_lost(who, "the client");
            }
            looks += 1;
            // most of the time the program makes no call, so only the library keeps the hold
            if looks % 100 == 0 {
                if let Err(error @ (Error::Lost | Error::Removed)) = guard.check() {
                    return self.is_lost(who, &format!("check(): {error}"));
                }
            }
            if looks % 10 == 0 {
                self.is_refused(who, rival);
            }
        }
        let length = begun.elapsed();
        let result = guard.unlock();
        if let Err(error @ (Error::Lost | Error::Removed)) = result {
            return self.is_lost(who, &format!("unlock(): {error}"));
        }
        let freed = self.is_free(who, rival, result);
        let mut outcome = self.outcome.lock();
        outcome.holds += 1;
        outcome.renewed += u64::from(length > LEASE);
        outcome.outlasted += u64::from(self.kills.load(SeqCst) > kills);
        outcome.freed = outcome.freed.max(freed);
    }

    /// While the lock is held, checks that no other client gets it.
    fn is_refused(&self, who: &str, rival: &Lock) {
        match rival.acquire(Mode::Exclusive).wait(Wait::No).guard() {
            Ok(_) => self.is_wrong(format!("{who}: it is held, and another client has got it")),
            Err(Error::Held) => self.outcome.lock().refused += 1,
            Err(_) => {} // the acquire fails while there is no primary
        }
    }

    /// After a release, checks that another client gets the lock; returns how long that took.
    fn is_free(&self, who: &str, rival: &Lock, released: Result<(), Error>) -> Duration {
        let begun = Instant::now();
        loop {
            match rival.acquire(Mode::Exclusive).wait(Wait::No).guard() {
                Ok(_) => return begun.elapsed(),
                Err(_) if begun.elapsed() < FREE_MAX => thread::sleep(LOOK_EVERY),
                Err(error) => {
                    self.is_wrong(format!(
                        "{who}: not free {FREE_MAX:?} after unlock(), {released:?}: {error}"
                    ));
                    return begun.elapsed();
                }
            }
        }
    }
}
