// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary leaves no files, threads or maps behind in its process. The only test of its program,
//! since it counts those of the process.

mod common;

use std::net::{Ipv4Addr, TcpListener};

use common::{eventually, Peer};
use dlock_server::{Server, ServerConfig};

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn starting_failing_and_stopping_leave_no_descriptor_thread_or_mapping() {
    let any_port = || ServerConfig { port: 0, ..ServerConfig::default() };
    let outer = std::env::temp_dir().join(format!("dlock-leaks-{}", std::process::id()));
    // used as a state file below, which leaves a lock file beside this folder
    let folder = outer.join("folder");
    std::fs::create_dir_all(&folder).unwrap();
    let with_admin = || ServerConfig { admin_socket: Some(folder.join("admin")), ..any_port() };
    // A first primary makes what a process makes only once, which does not count.
    drop(Server::start(with_admin()).unwrap());
    let (fds, threads) = (count("/proc/self/fd"), count("/proc/self/task"));

    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    for _ in 0..20 {
        for wrong in [
            ServerConfig { port, ..ServerConfig::default() },
            ServerConfig { cmd_cpuset: Some("x".into()), ..any_port() },
            ServerConfig { device: Some("none".into()), ..any_port() },
            ServerConfig { admin_socket: Some(folder.join("no/such/folder")), ..any_port() },
            ServerConfig { state_file: Some(folder.clone()), ..with_admin() },
            ServerConfig { clients_max: 0, ..any_port() },
        ] {
            assert!(Server::start(wrong).is_err());
        }
    }
    drop(taken);
    for _ in 0..5 {
        let server = Server::start(with_admin()).unwrap();
        let peers: Vec<_> = (0..20).map(|_| Peer::init(server.local_addr())).collect();
        let channels: Vec<_> =
            peers.iter().map(|(_, session)| Peer::channel(server.local_addr(), session)).collect();
        server.stop();
        drop((peers, channels));
    }
    assert_eq!(count(folder.to_str().unwrap()), 0, "the admin socket is removed");
    std::fs::remove_dir_all(&outer).unwrap();
    assert_eq!(count("/proc/self/fd"), fds);
    // A joined thread may still be listed for a moment.
    eventually("the threads are gone", || count("/proc/self/task") == threads);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("dlock-slots") && !maps.contains("dlock-ledger"));
}
