// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a record of the sealed data path costs, sealed and opened: by `sealing`, and by the
//! buffered connections of rustls over memory, in turns. ADR 0011 has the numbers.
//!
//!     cargo bench -p dlock-fabric --bench records

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use dlock_core::ids::ClientId;
use dlock_fabric::tls::sealing::SealSecrets;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

const ROUNDS: u32 = 20_000;
const TURNS: usize = 21;

fn connected() -> (ClientConnection, ServerConnection) {
    let own = rcgen::generate_simple_self_signed(vec!["primary".into()]).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).expect("a root");
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![own.cert.der().clone()], key).expect("a server");
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "primary".try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::new(client), name).expect("a client");
    let mut server = ServerConnection::new(Arc::new(server)).expect("a server");
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        wire.clear();
        client.write_tls(&mut wire).expect("memory");
        server.read_tls(&mut wire.as_slice()).expect("memory");
        server.process_new_packets().expect("a handshake");
        wire.clear();
        server.write_tls(&mut wire).expect("memory");
        client.read_tls(&mut wire.as_slice()).expect("memory");
        client.process_new_packets().expect("a handshake");
    }
    (client, server)
}

/// Nanoseconds of one record.
fn timed(mut round: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..ROUNDS).for_each(|_| round());
    begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}

fn main() {
    let exporter = |out: &mut [u8], _: &[u8]| {
        out.fill(7);
        Ok::<(), ()>(())
    };
    let client = ClientId::new(5).expect("an id");
    for len in [40_usize, 100, 500, 4_000] {
        let plain = vec![1_u8; len];
        let secrets = || SealSecrets::export(client, exporter).expect("secrets");
        let (mut sealer, _) = secrets().of_client();
        let (_, mut opener) = secrets().of_primary();
        let (mut from, mut to) = connected();
        let (mut record, mut wire, mut read) = (Vec::new(), Vec::new(), vec![0_u8; len]);
        let mut own = || {
            record.clear();
            sealer.seal(&plain, &mut record).expect("sealed");
            black_box(opener.open(&mut record).expect("authentic"));
        };
        let mut theirs = || {
            wire.clear();
            from.writer().write_all(&plain).expect("memory");
            from.write_tls(&mut wire).expect("memory");
            to.read_tls(&mut wire.as_slice()).expect("memory");
            to.process_new_packets().expect("authentic");
            to.reader().read_exact(&mut read).expect("all of it");
            black_box(&read);
        };
        let mut ratios: Vec<(f64, f64)> =
            (0..TURNS).map(|_| (timed(&mut own), timed(&mut theirs))).collect();
        ratios.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let (own_ns, theirs_ns) = ratios[TURNS / 2];
        println!(
            "{len:5} bytes: sealing {own_ns:6.0} ns, rustls {theirs_ns:6.0} ns, {:.2}",
            theirs_ns / own_ns
        );
    }
}
