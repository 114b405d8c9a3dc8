// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules that bugs planted by a second reader have shown to be unchecked.

mod common;

use std::thread;
use std::time::Duration;

use common::site::Site;
use common::{config, eventually, fabrics, server};
use dlock_client::{ClientConfig, Instance, Status::*};

/// One of its two primaries has never known it. The other is away for a moment, and its successor
/// would wait for the client.
#[test]
fn a_primary_that_never_knew_a_client_does_not_end_its_departure() {
    for fabric in fabrics() {
        let other = server();
        let mut site = Site::new(&format!("never-knew-{}", fabric.name()));
        let at = site.address();
        let primaries = Some(vec![at.into(), other.local_addr().into()]);
        let silence = Some(Duration::from_millis(200));
        let config = ClientConfig { primaries, silence, ..config(at, fabric) };
        let a = Instance::init_shared(&config, &at.ip().to_string()).unwrap();
        site.stop();
        let leaves = thread::spawn(move || a.deinit());
        thread::sleep(Duration::from_millis(300));
        assert!(!leaves.is_finished(), "no primary that knows it was told");
        site.start();
        assert_eq!(leaves.join().unwrap(), Success);
        eventually(60, "it is forgotten", || site.clients() == 0);
    }
}
