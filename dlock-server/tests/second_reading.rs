// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules that bugs planted by a second reader have shown to be unchecked.

mod common;

use std::os::unix::net::{UnixListener, UnixStream};

use common::server;
use dlock_server::ServerConfig;

/// The first primary was stopped for so long that another has taken its place.
#[test]
fn an_admin_socket_that_another_has_put_there_outlives_the_primary() {
    let path = std::env::temp_dir().join(format!("dlock-replaced-{}", std::process::id()));
    let config =
        ServerConfig { port: 0, admin_socket: Some(path.clone()), ..ServerConfig::default() };
    let first = server(config);
    std::fs::remove_file(&path).unwrap();
    let another = UnixListener::bind(&path).unwrap();
    first.stop();
    let connected = UnixStream::connect(&path);
    drop(another);
    let _ = std::fs::remove_file(&path); // a left-over harms no other test
    assert!(connected.is_ok(), "{connected:?}");
}
