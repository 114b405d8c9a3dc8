// SPDX-License-Identifier: MIT OR Apache-2.0
//! Primaries at names of hosts. A name that does not exist is one of several that a client knows.

mod common;

use common::site::Site;
use common::{client, config, eventually, fabrics, got, server, status, X};
use dlock_client::raw::Instance;
use dlock_client::{Address, ClientConfig, LockType, Status};
use dlock_server::ServerConfig;

const NOBODY: &str = "no-such-host.invalid";

#[test]
fn a_client_is_one_of_the_primary_at_the_name_of_its_host() {
    let server = server();
    let at = server.local_addr();
    for fabric in fabrics() {
        let by_name = Instance::init(&config(at, fabric), "localhost ").expect("it is found");
        let lock = got(&by_name, "named", LockType::Atomic);
        assert_eq!(status(by_name.trylock(lock, X, 600)), Status::Success);
        assert_eq!(by_name.reinit("localhost"), Status::Success);
        assert_eq!(status(by_name.unlock(lock)), Status::Success);
        assert_eq!(by_name.deinit(), Status::Success);
        assert_eq!(Instance::init(&config(at, fabric), NOBODY).err(), Some(Status::Error));
        drop(client(&server, fabric));
    }
}

#[test]
fn a_name_that_is_not_found_keeps_no_client_from_the_other_primaries() {
    for fabric in fabrics() {
        let mut site = Site::with(&format!("names-{}", fabric.name()), ServerConfig::default());
        let at = site.address();
        let names = [format!("{NOBODY}:{}", at.port()), at.to_string()];
        let primaries = names.map(|name| name.parse::<Address>().expect("an address"));
        let config = ClientConfig { primaries: Some(primaries.to_vec()), ..config(at, fabric) };
        let found = Instance::init_shared(&config, NOBODY).expect("the second one takes it");
        let lock = got(&found, "named", LockType::Atomic);
        assert_eq!(status(found.trylock(lock, X, 600)), Status::Success);
        site.stop();
        site.start();
        eventually(60, "it is back", || status(found.extend(lock, X, 600)) == Status::Success);
        assert_eq!(status(found.unlock(lock)), Status::Success);
        assert_eq!(found.deinit(), Status::Success);
    }
}
