// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens on real fabrics. Those of exclusive holds strictly increase, and readers have
//! equal ones. A resource that keeps the largest token refuses a writer whose lease is over.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::site::Site;
use common::{client, eventually, fabrics, join, server, server_with, status, S, X};
use dlock_client::{Client, Config, FabricChoice, Lock, LockDesc, LockType, Status, Token, Wait};
use dlock_server::ServerConfig;

/// A resource that refuses a writer whose token is smaller than one that it has seen.
#[derive(Default)]
struct Storage(Token);

impl Storage {
    fn accepts(&mut self, token: Token) -> bool {
        let accepts = token >= self.0;
        self.0 = self.0.max(token);
        accepts
    }
}

fn token_of(client: &Client, name: &str, lock_type: LockType) -> Token {
    let lock = client.lock_with_tokens(name, lock_type).unwrap();
    let guard = lock.acquire(X).wait(Duration::from_secs(20)).guard().unwrap();
    guard.token().expect("a token")
}

#[test]
fn exclusive_tokens_strictly_increase_among_clients_and_over_the_end_of_the_lock() {
    let server = server();
    for fabric in fabrics() {
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let name = format!("{fabric:?} {lock_type:?}");
            let [a, b] = [0, 1].map(|_| client(&server, fabric));
            let mut last = Token::NONE;
            for round in 0..10 {
                // each client gives the lock back before the next one gets it, so the lock is made
                // anew each time
                let whose = if round % 2 == 0 { &a } else { &b };
                let token = token_of(whose, &name, lock_type);
                assert!(token > last, "{name}: {token} after {last}");
                last = token;
            }
        }
    }
}

#[test]
fn a_hold_that_is_known_to_be_over_tells_no_token() {
    const LEASE: Duration = Duration::from_millis(500);
    let server = server();
    for fabric in fabrics() {
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let client = client(&server, fabric);
            let lock = client.lock_with_tokens(format!("over {lock_type:?}"), lock_type).unwrap();
            let guard = lock.acquire(X).lease(LEASE).guard().unwrap();
            assert!(guard.token().is_some());
            eventually(20, "the lease ends", || guard.is_known_lost());
            assert_eq!(guard.token(), None, "{fabric:?} {lock_type:?}");
        }
        for lock_type in [LockType::Atomic, LockType::Fair] {
            let instance = join(&server, fabric);
            let name = format!("by id {fabric:?} {lock_type:?}");
            let desc = LockDesc { tokens: true, lease_s: 0, name: name.into(), lock_type };
            let lock = instance.get_lock(desc).1.unwrap();
            assert_eq!(status(instance.trylock(lock, X, 1)), Status::Success);
            assert!(instance.token(lock).is_some());
            eventually(20, "its token ends with the lease", || instance.token(lock).is_none());
        }
    }
}

#[test]
fn tokens_increase_where_the_lock_is_handed_over_to_a_client_that_waits() {
    let server = server();
    for fabric in fabrics() {
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let name = format!("handed {fabric:?} {lock_type:?}");
            let first = client(&server, fabric);
            let lock = first.lock_with_tokens(&name, lock_type).unwrap();
            let held = lock.acquire(X).guard().unwrap();
            let mut tokens = vec![held.token().unwrap()];
            let others: Vec<_> = (0..3).map(|_| client(&server, fabric)).collect();
            thread::scope(|scope| {
                let waits: Vec<_> = others
                    .iter()
                    .map(|other| scope.spawn(|| token_of(other, &name, lock_type)))
                    .collect();
                // the waiters are queued by then, most likely
                thread::sleep(Duration::from_millis(100));
                held.unlock().unwrap();
                tokens.extend(waits.into_iter().map(|wait| wait.join().unwrap()));
            });
            let mut sorted = tokens.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), tokens.len(), "{name}: {tokens:?}");
            assert_eq!(sorted[0], tokens[0], "the first holder's");
        }
    }
}

#[test]
fn clients_that_share_the_lock_have_the_same_token_between_those_of_the_writers() {
    let server = server();
    for fabric in fabrics() {
        for lock_type in [LockType::Rw, LockType::Fair] {
            let name = format!("shared {fabric:?} {lock_type:?}");
            let users = [0, 1].map(|_| client(&server, fabric));
            let locks = users.each_ref().map(|c| c.lock_with_tokens(&name, lock_type).unwrap());
            let before = token_of(&users[0], &name, lock_type);
            let guards = locks.each_ref().map(|lock| lock.acquire(S).guard().unwrap());
            let shared = guards.each_ref().map(|guard| guard.token().unwrap());
            assert_eq!(shared[0], shared[1], "{name}");
            drop(guards);
            let after = token_of(&users[1], &name, lock_type);
            assert!(before < shared[0] && shared[0] < after, "{before} {shared:?} {after}");
        }
    }
}

#[test]
fn a_lock_that_was_got_without_tokens_has_none_and_costs_no_word_operation_more() {
    let server = server();
    let user = client(&server, fabrics()[0]);
    let lock = user.atomic_lock("plain").unwrap();
    let held = lock.acquire(X).guard().unwrap();
    assert_eq!(held.token(), None);
    drop(held);
    // the same client gets the lock once more, with tokens: both are one lock, which then has
    // tokens
    let with = user.lock_with_tokens("plain", LockType::Atomic).unwrap();
    let held = lock.acquire(X).guard().unwrap();
    assert!(held.token().is_some());
    drop((held, with));
}

/// A client goes on writing after its lease is over.
#[test]
fn a_writer_whose_lease_is_over_is_refused_by_its_token() {
    let server = server();
    for fabric in fabrics() {
        for lock_type in [LockType::Atomic, LockType::Fair] {
            let name = format!("late {fabric:?} {lock_type:?}");
            let [late, next] = [0, 1].map(|_| client(&server, fabric));
            let mut storage = Storage::default();
            let lock = late.lock_with_tokens(&name, lock_type).unwrap();
            let lease = Duration::from_secs(1);
            let held = lock.acquire(X).lease(lease).wait(Wait::No).guard().unwrap();
            let old = held.token().unwrap();
            assert!(storage.accepts(old));
            assert!(storage.accepts(token_of(&next, &name, lock_type)), "{name}: the next holder");
            assert!(!storage.accepts(old), "{name}: the late write");
            assert!(held.unlock().is_err(), "{name}: its client is told");
        }
    }
}

/// The number of tokens that a primary reserves by its clock in an hour.
const HOUR: u64 = 3_600 << 30;

/// Changes the list of clients as if the clock of its primary had been an hour ahead. Returns the
/// bound of the tokens before the change.
fn clock_is_set_back(state_file: &Path) -> Token {
    let list = state_file.with_extension("clients");
    let text = fs::read_to_string(&list).unwrap();
    let kept = text.lines().rev().find_map(|line| line.strip_prefix("tokens ")).unwrap();
    let below: u64 = kept.parse().unwrap();
    fs::write(&list, format!("{text}tokens {}\n", below + HOUR)).unwrap();
    Token(below)
}

/// The clock of the second primary is an hour behind: by its clock alone, it would give tokens that
/// the first primary has given before.
#[test]
fn tokens_increase_over_a_restart_of_the_primary_though_its_clock_was_set_back() {
    let folder = std::env::temp_dir().join(format!("dlock-tokens-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let state_file = folder.join("epoch");
    let mut last = Token::NONE;
    for round in 0..3 {
        let config = ServerConfig { state_file: Some(state_file.clone()), ..Default::default() };
        let server = server_with(config);
        let user = client(&server, fabrics()[0]);
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let token = token_of(&user, &format!("{lock_type:?}"), lock_type);
            assert!(token > last, "{round}: {token} after {last}");
        }
        user.leave().unwrap();
        drop(server);
        let below = clock_is_set_back(&state_file);
        assert!(below > last);
        last = Token(below.0 + HOUR);
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A client that finds the successor of its primary by itself.
fn stays(site: &Site, fabric: FabricChoice) -> Client {
    let config = Config::new().port(site.port).fabric(fabric).primaries([site.address()]);
    let config = config.silence(Duration::from_millis(200)).without_horizon();
    Client::with_config(&config, &site.address().ip().to_string()).unwrap()
}

/// Primaries die and are started again, some of them as if the clock had been set back by an hour.
/// A holder keeps its token, readers that hold together have equal tokens, and each exclusive token
/// of a name is larger than those before, also after all clients had given the lock back.
/// `DLOCK_SOAK=1`: 300 failovers on each fabric.
#[test]
fn tokens_increase_over_many_failovers() {
    let is_soak = std::env::var_os("DLOCK_SOAK").is_some();
    let rounds = if is_soak { 60 } else { 3 }; // each round has five failovers
    let wait = Duration::from_secs(30);
    for fabric in fabrics() {
        let mut site = Site::new(&format!("tokens-{}", fabric.name()));
        let [a, b] = [0, 1].map(|_| stays(&site, fabric));
        let mut last: BTreeMap<String, Token> = BTreeMap::new();
        let mut grows = |name: &str, token: Token| {
            let before = last.insert(name.into(), token).unwrap_or(Token::NONE);
            assert!(token > before, "{fabric:?} {name}: {token} after {before}");
        };
        for round in 0..rounds {
            for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
                let (kept, anew) = (format!("{lock_type:?} kept"), format!("{lock_type:?} anew"));
                let locks = [&a, &b].map(|c| c.lock_with_tokens(&kept, lock_type).unwrap());
                let acquire = |lock: &Lock, mode| lock.acquire(mode).wait(wait).owned().unwrap();
                // all clients have given this lock back, so it is made anew
                grows(&anew, token_of(&a, &anew, lock_type));
                let held = acquire(&locks[0], X);
                let before = held.token().unwrap();
                grows(&kept, before);
                site.stop();
                if round % 3 == 1 {
                    clock_is_set_back(&site.folder.join("state"));
                }
                site.start();
                eventually(60, "it is served", || {
                    locks[0].acquire(X).wait(Wait::No).guard().is_err()
                });
                assert_eq!(held.token(), Some(before), "{kept}: a holder keeps its token");
                held.unlock().unwrap();
                let next = acquire(&locks[1], X);
                grows(&kept, next.token().unwrap());
                drop(next);
                grows(&anew, token_of(&b, &anew, lock_type));
                if lock_type == LockType::Atomic {
                    continue;
                }
                // one reader holds the lock over a failover, another one acquires it afterwards
                let stays = acquire(&locks[0], S);
                let shared = stays.token().unwrap();
                grows(&kept, shared);
                site.stop();
                site.start();
                let comes = acquire(&locks[1], S);
                assert_eq!((stays.token(), comes.token()), (Some(shared), Some(shared)), "{kept}");
                drop((stays, comes));
            }
        }
        a.leave().unwrap();
        b.leave().unwrap();
    }
}
