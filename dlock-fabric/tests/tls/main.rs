// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrong certificates, keys, lists and peers, on both sides. Each is refused with its own error,
//! and no byte of the application arrives.
//!
//! ```text
//!   pki.rs      makes CAs, certificates and lists, right ones and wrong ones (rcgen)
//!   drive.rs    a client and a server over memory, until both are done or one refuses
//!   hostile.rs  a peer that presents anything and checks nothing
//!   peers.rs    the table of wrong peers × both sides
//!   loading.rs  the table of wrong files; all formats of keys
//!   reload.rs   renewed certificates, new lists, broken files, identities
//!   callback.rs a callback judges peers with OpenSSL's objects
//!   kinds.rs    kinds of certificates and keys, with OpenSSL's verdict on each
//!   signals.rs  what is sent raises no SIGPIPE
//!   openssl.rs  the same rules against the programs of OpenSSL
//! ```

mod callback;
mod drive;
mod hostile;
mod kinds;
mod loading;
mod openssl;
mod peers;
mod pki;
mod reload;
mod signals;
