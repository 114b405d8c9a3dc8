// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS: the certificates and keys of this process, and the rules by which peers are judged.
//!
//! ```text
//!   TlsFiles ─▶ files.rs ─▶ material.rs ─▶ Loaded { ServerConfig, ClientConfig } ◀── Tls::reload
//!               bounded     certificates, CRLs     │
//!               reads       key.rs: private key    ▼ one per direction
//!                                          verify.rs: PeerRules ── certificate.rs: key, usage
//!                                                  │
//!   PeerIdentity (identity.rs) ◀── the chain that was verified
//! ```
//! Programs of the C API accept what OpenSSL accepts, or judge peers themselves: store_ctx.rs and
//! openssl_key.rs, with libcrypto.rs.
//!
//! This module does not connect, listen, or move bytes. It makes the configurations for rustls.
//!
//! # The rules
//!
//! * TLS 1.3 with `TLS_AES_256_GCM_SHA384`, and nothing else. No resumption, no tickets, no early
//!   data: every connection is verified anew.
//! * Both sides present a certificate, and both verify: the chain to a CA of the CA file, the
//!   dates of every certificate in it (the CA's too), the signatures, and the usages. An extended
//!   key usage, where there is one, must allow `serverAuth` or `clientAuth`; a key usage must
//!   allow digital signatures.
//! * With a CRL file, every certificate of the chain must be covered by a valid, current CRL of
//!   its issuer. A certificate whose issuer has no CRL there is refused: it cannot be known
//!   whether it was revoked. Without a CRL file, nothing is revoked.
//! * RSA keys have at least [`RSA_BITS_MIN`] bits. A chain has at most
//!   [`CHAIN_CERTIFICATES_MAX`] certificates.
//! * The name of a server is not checked: primaries move between hosts, and the CA is private.
//!   [`Tls::client_expecting`] checks it.
//!
//! # What is wiped from memory
//!
//! Wiped are the bytes of the key file, everything decoded and decrypted from them, and the
//! password. The key in use is not: *ring* does not wipe it.

mod certificate;
mod endings;
mod error;
mod files;
mod identity;
mod key;
mod libcrypto;
mod material;
mod openssl_key;
mod password;
pub mod sealing;
pub mod session;
mod store_ctx;
mod verify;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ServerConfig};

pub use endings::{Ending, NOTICE_DAYS};
pub use error::TlsError;
pub use identity::{PeerIdentity, PeerName};
pub use password::{FilePassword, FixedPassword, KeyPassword, NoPassword};
pub use store_ctx::{CertVerifyCallback, CertVerifyFn, OpensslFault};
pub use verify::{PeerFault, PeerRole};

use endings::Told;
use files::Stamps;
use material::Loaded;

/// The shortest RSA key that is accepted, in a peer's chain or one's own, in bits.
pub const RSA_BITS_MIN: u32 = 2048;
/// The most certificates that a peer may present, or a certificate file may hold: the
/// end-entity's and four intermediates.
pub const CHAIN_CERTIFICATES_MAX: usize = 5;
/// The most certificates of a CA file.
pub const CA_CERTIFICATES_MAX: usize = 64;
/// The most revocation lists of a CRL file.
pub const CRLS_MAX: usize = 64;
/// The most bytes of a CA or certificate file.
pub const CERTIFICATE_FILE_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of a CRL file.
pub const CRL_FILE_BYTES_MAX: u64 = 16 << 20;
/// The most bytes of a key file or a password file.
pub const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// The paths of certificates and keys: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CAs whose certificates are accepted of peers; several are possible.
    pub ca: PathBuf,
    /// Revocation lists of these CAs, and of intermediate ones; several are possible.
    pub crl: Option<PathBuf>,
    /// This process's certificate, followed by the intermediate ones up to its CA.
    pub cert: PathBuf,
    /// The private key of that certificate: PKCS#8 (also encrypted), PKCS#1 or SEC1.
    pub key: PathBuf,
}

/// The certificates that a peer has sent, its own first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChain(pub(crate) Vec<CertificateDer<'static>>);

impl From<Vec<CertificateDer<'static>>> for PeerChain {
    fn from(chain: Vec<CertificateDer<'static>>) -> Self {
        Self(chain)
    }
}

/// The TLS configurations of this process, and where they come from. Clones share them.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

/// Certificates and keys that are accepted beyond the rules of this module.
#[derive(Clone, Debug, Default)]
pub enum Leniency {
    /// No certificate or key is accepted beyond the rules.
    #[default]
    Strict,
    /// For programs of the C API: what OpenSSL accepts by default is accepted, too.
    ///
    /// If the rules of this module refuse a peer's certificate, OpenSSL judges it, unless it is
    /// revoked; with a `callback`, the callback judges instead of both. Of this process's own
    /// certificates this module checks only the encoding, the number and the strength of the keys;
    /// the rest is left to the peer.
    AsOpenssl {
        /// Judges peers instead of the rules and of OpenSSL. Still required are TLS 1.3, the proof
        /// that the peer has its key, the limits on what it presents, and
        /// [`Tls::client_expecting`].
        callback: Option<CertVerifyCallback>,
        /// Whether a key that its password does not open is tried again for each connection
        /// ([`Tls::open_key`]), and is no error.
        key_may_wait: bool,
    },
}

impl Leniency {
    fn allows_openssl(&self) -> bool {
        matches!(self, Self::AsOpenssl { .. })
    }

    fn key_may_wait(&self) -> bool {
        matches!(self, Self::AsOpenssl { key_may_wait: true, .. })
    }
}

struct Shared {
    files: TlsFiles,
    password: Arc<dyn KeyPassword>,
    leniency: Leniency,
    loaded: RwLock<Arc<Loaded>>,
    /// How often files were loaded.
    loads: AtomicU64,
    /// The stamps of the files at the last attempt to load them. Locked while an attempt runs.
    seen: Mutex<Stamps>,
    /// The notices about ends that were logged.
    told: Mutex<Told>,
}

impl Tls {
    /// Loads the files and checks that they fit together.
    ///
    /// # Errors
    ///
    /// A [`TlsError`]; its message names the file, the cause and the remedy.
    pub fn load(files: TlsFiles, password: Arc<dyn KeyPassword>) -> Result<Self, TlsError> {
        Self::load_with(Leniency::Strict, files, password)
    }

    /// As [`Self::load`], with a leniency.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    ///
    /// # Latency
    ///
    /// A callback is called within handshakes, on the thread of the handshake.
    pub fn load_with(
        leniency: Leniency,
        files: TlsFiles,
        password: Arc<dyn KeyPassword>,
    ) -> Result<Self, TlsError> {
        let seen = Stamps::of(&files);
        let loaded = material::load(&files, &*password, &leniency, UnixTime::now())?;
        let (loaded, seen) = (RwLock::new(Arc::new(loaded)), Mutex::new(seen));
        let loads = AtomicU64::new(1);
        let told = Mutex::default();
        let shared = Shared { files, password, leniency, loaded, loads, seen, told };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether the key has not been opened yet ([`Leniency::AsOpenssl`]): until then handshakes
    /// fail.
    pub fn lacks_key(&self) -> bool {
        self.loaded().lacks_key()
    }

    /// Asks for the password of a key that has not been opened yet, and tries to open it.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    ///
    /// # Latency
    ///
    /// As [`Self::reload`].
    pub fn open_key(&self) -> Result<(), TlsError> {
        let mut seen = self.shared.seen.lock();
        match self.lacks_key() {
            true => self.load_again(&mut seen),
            false => Ok(()), // another attempt may have opened the key meanwhile
        }
    }

    /// Loads the files again. Later connections use them; existing ones go on.
    ///
    /// # Errors
    ///
    /// As [`Self::load`]. If the CA or CRL file cannot be used, nothing changes. If the own
    /// certificate or key cannot be used, or is revoked by the new list, the old pair stays, but
    /// peers are judged by the new CA and CRL files, so that a revocation takes effect.
    ///
    /// # Latency
    ///
    /// Reads of files, some signatures and, for an encrypted key, up to seconds of computing: not
    /// for a thread that serves.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.load_again(&mut self.shared.seen.lock())
    }

    fn load_again(&self, seen: &mut Stamps) -> Result<(), TlsError> {
        let shared = &*self.shared;
        *seen = Stamps::of(&shared.files);
        let (now, old) = (UnixTime::now(), self.loaded());
        let (password, leniency) = (&*shared.password, &shared.leniency);
        let (new, result) = material::reload(&shared.files, password, leniency, now, &old)?;
        *shared.loaded.write() = Arc::new(new);
        shared.loads.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Whether a file has changed since the last attempt to load it, successful or not. `false`
    /// while an attempt runs, because it may see the change. Costs one `stat` for each file.
    pub fn changed(&self) -> bool {
        let shared = &*self.shared;
        shared.seen.try_lock().is_some_and(|seen| *seen != Stamps::of(&shared.files))
    }

    /// The configuration for accepting connections.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.loaded().server.clone()
    }

    /// The configuration for connecting to a server with any name.
    pub fn client(&self) -> Arc<ClientConfig> {
        self.loaded().client.clone()
    }

    /// The configuration for connecting to a server whose certificate must be valid for `name`.
    pub fn client_expecting(&self, name: ServerName<'static>) -> Arc<ClientConfig> {
        self.loaded().client_expecting(name)
    }

    /// Judges the chain of a connected peer by the files loaded last: refuses a certificate that
    /// has expired or was revoked since the handshake.
    ///
    /// # Errors
    ///
    /// The error with which a handshake would fail.
    pub fn check(&self, role: PeerRole, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
        self.loaded().check(role, chain)
    }

    /// Whether the revocation lists loaded last name a certificate in the chain of a connected
    /// peer. Certificates and lists that have expired meanwhile do not matter.
    pub fn is_revoked(&self, role: PeerRole, chain: &PeerChain) -> bool {
        self.loaded().is_revoked(role, &chain.0)
    }

    /// The ends of own certificates, CAs and revocation lists.
    pub fn endings(&self) -> Vec<Ending> {
        self.loaded().endings.clone()
    }

    /// Logs which certificates and lists end within [`NOTICE_DAYS`], each notice once.
    pub fn warn_of_endings(&self) {
        let loaded = self.loaded();
        for notice in self.shared.told.lock().due(&loaded.endings, UnixTime::now()) {
            log::warn!("{notice}");
        }
    }

    /// The number of loads so far; peers that were judged at a lower number were judged by older
    /// files.
    pub fn loads(&self) -> u64 {
        self.shared.loads.load(Ordering::SeqCst)
    }

    /// The paths of certificates and keys.
    pub fn files(&self) -> &TlsFiles {
        &self.shared.files
    }

    fn loaded(&self) -> Arc<Loaded> {
        self.shared.loaded.read().clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", self.files()).finish_non_exhaustive()
    }
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        let crl = self.crl.as_deref();
        [Some(&*self.ca), crl, Some(&*self.cert), Some(&*self.key)].into_iter().flatten()
    }
}
