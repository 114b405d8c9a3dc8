// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens on real fabrics: exclusive ones strictly increase, readers have equal ones, and a
//! resource that keeps the largest refuses who writes after its lease.

mod common;

use std::fs;
use std::thread;
use std::time::Duration;

use common::{client, fabrics, server, server_with, S, X};
use dlock_client::{Client, LockType, Token, Wait};
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
                // each has given the lock back before the next one gets it: it is made anew
                let whose = if round % 2 == 0 { &a } else { &b };
                let token = token_of(whose, &name, lock_type);
                assert!(token > last, "{name}: {token} after {last}");
                last = token;
            }
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
                thread::sleep(Duration::from_millis(100)); // they are queued, most likely
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
    // got once more with tokens by the same client: they are one lock
    let with = user.lock_with_tokens("plain", LockType::Atomic).unwrap();
    let held = lock.acquire(X).guard().unwrap();
    assert!(held.token().is_some());
    drop((held, with));
}

/// A client that stood still for longer than its lease, and goes on writing.
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

/// The clock of the second primary is an hour behind: by its clock alone it would give numbers that
/// the first one has given.
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
        // as a primary would have left it whose clock was an hour ahead
        let list = state_file.with_extension("clients");
        let text = fs::read_to_string(&list).unwrap();
        let kept = text.lines().rev().find_map(|line| line.strip_prefix("tokens ")).unwrap();
        let below: u64 = kept.parse().unwrap();
        assert!(below > last.0);
        last = Token(below + (3_600 << 30));
        fs::write(&list, format!("{text}tokens {}\n", last.0)).unwrap();
    }
    fs::remove_dir_all(&folder).unwrap();
}
