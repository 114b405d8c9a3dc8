// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary in this process, and clients on each executor.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use dlock_client::{
    Client, ClientConfig, FabricChoice, Instance, LockDesc, LockId, LockType, Mode,
};
use dlock_client::{OpResult, Status};
use dlock_server::{Server, ServerConfig};

pub const X: Mode = Mode::Exclusive;
pub const S: Mode = Mode::Shared;
pub const FABRICS: [FabricChoice; 2] = [FabricChoice::Shm, FabricChoice::Tcp];

pub fn server() -> Server {
    server_with(ServerConfig::default())
}

/// On a free port of the loopback interface.
pub fn server_with(config: ServerConfig) -> Server {
    Server::start(ServerConfig { port: 0, ..config }).expect("the primary starts")
}

/// A loopback address of this process's own, for who comes back to a port that was free for a
/// moment: nobody else takes one there.
pub fn own_address() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 0x80, b, c).into()
}

pub fn config(addr: SocketAddr, fabric: FabricChoice) -> ClientConfig {
    ClientConfig { port: addr.port(), fabric, ..Default::default() }
}

pub fn join(server: &Server, fabric: FabricChoice) -> Instance {
    let addr = server.local_addr();
    let instance = Instance::init(&config(addr, fabric), &addr.ip().to_string());
    let instance = instance.expect("the primary admits a client");
    let name = if fabric == FabricChoice::Shm { "shm" } else { "tcp" };
    assert_eq!(instance.fabric(), name);
    instance
}

pub fn client(server: &Server, fabric: FabricChoice) -> Client {
    let addr = server.local_addr();
    Client::with_config(&config(addr, fabric), &addr.ip().to_string()).expect("a client")
}

pub fn desc(name: &str, lock_type: LockType) -> LockDesc {
    LockDesc { name: name.into(), lock_type, lease_s: 0 }
}

pub fn got(instance: &Instance, name: &str, lock_type: LockType) -> LockId {
    let (status, id) = instance.get_lock(desc(name, lock_type));
    assert_eq!(status, Status::Success, "{name}");
    id.expect("a success has an id")
}

pub fn status(result: OpResult) -> Status {
    result.status
}

/// Repeats a question until its answer is yes, for at most `seconds`.
pub fn eventually(seconds: u64, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(1)); // leaves the CPU to whom it waits for
    }
}
