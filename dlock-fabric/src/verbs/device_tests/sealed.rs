// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a client and a primary that are joined by sealed verbs: bytes arrive unchanged in both
//! directions at once, and a side that stops reading holds up only what is sent to it.

use std::convert::Infallible;
use std::io::ErrorKind;

use dlock_core::ids::ClientId;

use super::*;
use crate::tls::sealing::SealSecrets;
use crate::verbs::client::sealed::{open, wanted, SealedEnd};

/// More bytes than an end keeps waiting and can have under way together.
const WAITING_MAX: usize = 200 * 1024;

fn secrets(client: ClientId) -> SealSecrets {
    let exporter = |into: &mut [u8], context: &[u8]| -> Result<(), Infallible> {
        into.fill(context.iter().fold(7, |sum, byte| sum ^ byte));
        Ok(())
    };
    let Ok(secrets) = SealSecrets::export(client, exporter);
    secrets
}

struct Path {
    host: Arc<VerbsHost>,
    client: SealedEnd,
    primary: SealedPeer,
}

impl Path {
    fn new() -> Option<Self> {
        device()?;
        let choice = VerbsHost::choose(None, &[0; 16]).unwrap();
        let host = VerbsHost::open_for_frames(&choice).unwrap();
        let qp = open(&VerbsOptions::default()).unwrap();
        let id = ClientId::new(9).unwrap();
        let (primary, attached) = host.admit_sealed(id, &wanted(&qp), secrets(id)).unwrap();
        let client = SealedEnd::connect(&qp, &attached, secrets(id), None).unwrap();
        Some(Self { host, client, primary })
    }

    /// Does the work of a command thread for its device.
    fn arrive(&mut self) {
        let mut arrivals = Vec::new();
        self.host.poll(&mut arrivals).unwrap();
        arrivals.iter().for_each(|arrival| self.primary.take(arrival).unwrap());
    }

    fn client_writes(&mut self, bytes: &[u8]) -> usize {
        done(self.client.write(bytes))
    }

    fn primary_writes(&mut self, bytes: &[u8]) -> usize {
        done(self.primary.write(bytes).map_err(Into::into))
    }

    fn client_reads(&mut self, into: &mut Vec<u8>) -> usize {
        let mut some = [0; 3_000];
        let len = done(self.client.read(&mut some));
        into.extend_from_slice(&some[..len]);
        len
    }

    fn primary_reads(&mut self, into: &mut Vec<u8>) -> usize {
        let mut some = [0; 3_000];
        let len = self.primary.read(&mut some).unwrap();
        into.extend_from_slice(&some[..len]);
        len
    }
}

/// The number of bytes read or written; 0: none was possible now.
fn done(result: std::io::Result<usize>) -> usize {
    match result {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Lets both ends work until `is_done` holds, which must be soon.
fn until(path: &mut Path, what: &str, mut is_done: impl FnMut(&mut Path) -> bool) {
    let until_ns = deadline_in(PATIENCE);
    while !is_done(path) {
        assert!(boot_ns() < until_ns, "{what}");
        path.arrive();
    }
}

#[test]
fn bytes_come_out_as_they_went_in_both_ways_at_once() {
    let Some(mut path) = Path::new() else { return };
    let sent = bytes(400_000);
    let (mut up, mut down) = (0, 0);
    let (mut came_up, mut came_down) = (Vec::new(), Vec::new());
    until(&mut path, "all bytes", |path| {
        up += path.client_writes(&sent[up..sent.len().min(up + 1 + up % 5_000)]);
        down += path.primary_writes(&sent[down..sent.len().min(down + 1 + down % 900)]);
        path.primary_reads(&mut came_up);
        path.client_reads(&mut came_down);
        came_up.len() == sent.len() && came_down.len() == sent.len()
    });
    assert!(came_up == sent && came_down == sent);
}

/// If an end does not read, the other end's writing stops at a limit, and the other direction goes
/// on.
#[test]
fn a_primary_that_does_not_read_gets_a_bounded_part_and_can_still_write() {
    let Some(mut path) = Path::new() else { return };
    let sent = bytes(1_000_000);
    let (mut up, mut idle, mut came) = (0, 0, Vec::new());
    until(&mut path, "the client has no credit", |path| {
        let len = path.client_writes(&sent[up..]);
        up += len;
        idle = if len == 0 { idle + 1 } else { 0 };
        idle == 2_000
    });
    assert!(up < WAITING_MAX, "{up} bytes wait");
    let (mut down, mut came_down) = (0, Vec::new());
    until(&mut path, "the other direction", |path| {
        down += path.primary_writes(&sent[down..100_000]);
        path.client_reads(&mut came_down);
        came_down.len() == 100_000
    });
    until(&mut path, "it reads at last", |path| {
        up += path.client_writes(&sent[up..]);
        path.primary_reads(&mut came);
        came.len() == sent.len()
    });
    assert!(came == sent && came_down == sent[..100_000]);
}

#[test]
fn a_client_that_does_not_read_gets_a_bounded_part_and_can_still_write() {
    let Some(mut path) = Path::new() else { return };
    let sent = bytes(1_000_000);
    let (mut down, mut idle, mut up) = (0, 0, 0);
    let mut came_up = Vec::new();
    until(&mut path, "the primary has no credit", |path| {
        let len = path.primary_writes(&sent[down..]);
        down += len;
        idle = if len == 0 { idle + 1 } else { 0 };
        // `client_writes` also takes what has come for the client
        up += path.client_writes(&sent[up..sent.len().min(up + 10)]);
        path.primary_reads(&mut came_up);
        idle == 2_000
    });
    assert!(down < WAITING_MAX, "{down} bytes wait");
    let mut came = Vec::new();
    until(&mut path, "it reads at last", |path| {
        down += path.primary_writes(&sent[down..]);
        path.client_reads(&mut came);
        path.primary_reads(&mut came_up);
        came.len() == sent.len() && came_up.len() == up
    });
    assert!(came == sent && came_up == sent[..up]);
}
