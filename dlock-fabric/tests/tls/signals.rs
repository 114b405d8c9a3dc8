// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection that has ended must not kill a program that does not ignore SIGPIPE.

use std::io::{self, IoSlice, Write};

use dlock_fabric::tls::session::TlsSession;

use crate::pki::{good, Ca, Folder};

/// A socket of the standard library, as far as signals matter: `write` is `send` with
/// `MSG_NOSIGNAL`, `write_vectored` is `writev`.
struct Stream(usize);

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        panic!("writev raises SIGPIPE")
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn records_are_sent_without_writev() {
    let root = Ca::root("root");
    let folder = Folder::with(&root, &root.issue(&good("ours")), None);
    let tls = folder.load().expect("all is right");
    let primary = std::net::Ipv4Addr::LOCALHOST.into();
    let (mut session, mut stream) = (TlsSession::connect(&tls, primary).unwrap(), Stream(0));
    session.flush(&mut stream).expect("it takes everything");
    assert!(stream.0 > 0, "the first flight of a client");
}
