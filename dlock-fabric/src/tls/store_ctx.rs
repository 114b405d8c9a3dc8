// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program's own judgement of peers: `cert_verify_cb` of the C API, with OpenSSL's objects.
//!
//! ```text
//!   files ─▶ X509, X509_CRL, parsed once ─┐ per handshake
//!                                         ▼
//!   peer's chain ─▶ X509_STORE_CTX { store, leaf, untrusted, purpose } ─▶ cert_verify_cb(ctx, crl)
//!                                                   < 0: refused, whatever else ◀─┘ >= 0: accepted
//! ```
//! The callback decides instead of the rules of `verify.rs`; that the peer has the key of the leaf
//! is proved to rustls. Each handshake has a store of its own, because a callback may add
//! certificates to the store and set flags on it.

use std::ffi::{c_char, c_int, c_long, c_ulong, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::{fmt, mem};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::{CertificateError, Error, OtherError};
use thiserror::Error as ThisError;

use super::libcrypto::{Libcrypto, OpensslStack, X509Crl, X509Store, X509StoreCtx, X509};
use super::{PeerRole, TlsError};

/// `X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL` (<openssl/x509_vfy.h>): of every
/// certificate in the chain a list must say that it is not revoked.
const CRL_CHECK: c_ulong = 0x4 | 0x8;
/// `X509_V_OK`
const OK: c_int = 0;
/// The security level of OpenSSL at which RSA keys have 2048 bits, as in the rest of this module,
/// and nothing is signed with SHA-1.
const AUTH_LEVEL: c_int = 2;

/// `tls_cert_verify_callback_func_t`: an `X509_STORE_CTX` and the path of the revocation lists;
/// accepted with 0 or more. It may unwind, so that a panic or an exception in it is not undefined.
pub type CertVerifyFn = unsafe extern "C-unwind" fn(*mut c_void, *const c_char) -> c_int;

/// Why a `cert_verify_cb` did not accept a peer. It is inside of [`CertificateError::Other`].
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum CallbackFault {
    /// Its answer, and OpenSSL's error if there is one: number, depth in the chain, and text.
    #[error("cert_verify_cb refuses it ({answer}){}", openssl_error(.found))]
    Refused {
        /// Below 0.
        answer: i32,
        /// What the `X509_STORE_CTX` has as error afterwards.
        found: Option<(i32, i32, String)>,
    },
    /// It did not return.
    #[error("cert_verify_cb panicked instead of answering")]
    Panicked,
    /// OpenSSL had no memory, or refused what it was given.
    #[error("{0} of libcrypto failed, so that cert_verify_cb could not be asked")]
    Libcrypto(&'static str),
}

fn openssl_error(found: &Option<(i32, i32, String)>) -> String {
    match found {
        Some((error, depth, text)) => format!(": error {error} at depth {depth}, {text}"),
        None => String::new(),
    }
}

impl From<CallbackFault> for Error {
    fn from(fault: CallbackFault) -> Self {
        CertificateError::Other(OtherError(Arc::new(fault))).into()
    }
}

/// A program's function that judges peers in place of the library.
#[derive(Clone)]
pub struct CertVerifyCallback {
    function: CertVerifyFn,
    crl_path: Arc<CStr>,
    libcrypto: Libcrypto,
}

impl CertVerifyCallback {
    /// Loads libcrypto for it. `crl` is what it is told: `""` for none.
    ///
    /// # Errors
    /// [`TlsError::Libcrypto`]: there is no libcrypto that can be used.
    ///
    /// # Safety
    /// The function may be called while this, a clone or a [`Tls`](super::Tls) with it exists: on
    /// any thread, on several at a time. It leaves to the caller what it is given.
    pub unsafe fn new(function: CertVerifyFn, crl: Option<&Path>) -> Result<Self, TlsError> {
        let libcrypto = Libcrypto::for_callback(function as *const c_void)?;
        let path = crl.map_or(&[][..], |path| path.as_os_str().as_bytes());
        // A path with a NUL names no file: the lists could not be loaded.
        let crl_path = CString::new(path).unwrap_or_default().into();
        Ok(Self { function, crl_path, libcrypto })
    }

    /// What peers are judged with: these CAs, and lists if there is a file of them.
    pub(super) fn trusting(
        &self,
        cas: &[CertificateDer<'_>],
        crls: Option<&[CertificateRevocationListDer<'_>]>,
    ) -> Result<CallbackJudge, TlsError> {
        let failed = |function| TlsError::Config(CallbackFault::Libcrypto(function).into());
        let mark = ErrorMark::set(self.libcrypto);
        let cas: Option<Vec<_>> = cas.iter().map(|der| self.certificate(der)).collect();
        let list = |der: &CertificateRevocationListDer<'_>| self.list(der);
        let crls = crls.map(|crls| crls.iter().map(list).collect::<Option<Vec<_>>>());
        drop(mark);
        Ok(CallbackJudge {
            callback: self.clone(),
            cas: cas.ok_or(failed("d2i_X509"))?,
            crls: crls.map(|crls| crls.ok_or(failed("d2i_X509_CRL"))).transpose()?,
        })
    }

    fn certificate(&self, der: &[u8]) -> Option<Owned<X509>> {
        let (mut at, len) = (der.as_ptr(), c_long::try_from(der.len()).ok()?);
        // SAFETY: so many bytes to read, and places for the end and for no older certificate.
        let raw = unsafe { (self.libcrypto.d2i_X509)(null_mut(), &mut at, len) };
        Owned::new(raw, self.libcrypto.X509_free)
    }

    fn list(&self, der: &[u8]) -> Option<Owned<X509Crl>> {
        let (mut at, len) = (der.as_ptr(), c_long::try_from(der.len()).ok()?);
        // SAFETY: as for a certificate.
        let raw = unsafe { (self.libcrypto.d2i_X509_CRL)(null_mut(), &mut at, len) };
        Owned::new(raw, self.libcrypto.X509_CRL_free)
    }
}

impl fmt::Debug for CertVerifyCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertVerifyCallback")
            .field("crl_path", &self.crl_path)
            .finish_non_exhaustive()
    }
}

/// A callback, with what is trusted by the files.
#[derive(Debug)]
pub struct CallbackJudge {
    callback: CertVerifyCallback,
    cas: Vec<Owned<X509>>,
    /// `None`: no CRL file.
    crls: Option<Vec<Owned<X509Crl>>>,
}

impl CallbackJudge {
    /// Asks the callback about a chain.
    pub fn judge(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        let libcrypto = &self.callback.libcrypto;
        // What is dropped last is declared first: the context borrows everything.
        let _mark = ErrorMark::set(*libcrypto);
        let store = self.store()?;
        let chain = [end_entity].into_iter().chain(intermediates);
        let chain: Option<Vec<_>> = chain.map(|der| self.callback.certificate(der)).collect();
        let chain = chain.ok_or(CertificateError::BadEncoding)?;
        let leaf = chain.first().ok_or(CertificateError::BadEncoding)?;
        let untrusted = self.untrusted(&chain)?;
        let ctx = self.context(role, &store, leaf, &untrusted)?;
        let (function, path) = (self.callback.function, &self.callback.crl_path);
        // SAFETY: the program's function, by the promise of `CertVerifyCallback::new`, with a
        // context and a C string that outlive the call.
        let asked = || unsafe { function(ctx.raw().cast(), path.as_ptr()) };
        let answer = catch_unwind(AssertUnwindSafe(asked)).map_err(|payload| {
            mem::forget(payload); // dropping it might panic again
            CallbackFault::Panicked
        })?;
        let found = self.error_in(&ctx);
        if answer < 0 {
            return Err(CallbackFault::Refused { answer, found }.into());
        }
        if let Some(found) = found {
            warn_of_acceptance(answer, found);
        }
        Ok(())
    }

    /// A store with the CAs and lists. They are shared by all stores, and counted by OpenSSL.
    fn store(&self) -> Result<Owned<X509Store>, CallbackFault> {
        let libcrypto = &self.callback.libcrypto;
        // SAFETY: no arguments.
        let raw = unsafe { (libcrypto.X509_STORE_new)() };
        let store = Owned::new(raw, libcrypto.X509_STORE_free);
        let store = store.ok_or(CallbackFault::Libcrypto("X509_STORE_new"))?;
        let mut added = 1;
        for ca in &self.cas {
            // SAFETY: two objects of this library, which the store counts as its own.
            added &= unsafe { (libcrypto.X509_STORE_add_cert)(store.raw(), ca.raw()) };
        }
        for crl in self.crls.iter().flatten() {
            // SAFETY: as for a certificate.
            added &= unsafe { (libcrypto.X509_STORE_add_crl)(store.raw(), crl.raw()) };
        }
        if self.crls.is_some() {
            // SAFETY: a store of this library.
            added &= unsafe { (libcrypto.X509_STORE_set_flags)(store.raw(), CRL_CHECK) };
        }
        (added == 1).then_some(store).ok_or(CallbackFault::Libcrypto("X509_STORE"))
    }

    /// The whole chain, the leaf included, as libssl gives it. The stack does not own it.
    fn untrusted(&self, chain: &[Owned<X509>]) -> Result<Owned<OpensslStack>, CallbackFault> {
        let libcrypto = &self.callback.libcrypto;
        // SAFETY: no arguments.
        let raw = unsafe { (libcrypto.OPENSSL_sk_new_null)() };
        let stack = Owned::new(raw, libcrypto.OPENSSL_sk_free);
        let stack = stack.ok_or(CallbackFault::Libcrypto("OPENSSL_sk_new_null"))?;
        for certificate in chain {
            let item = certificate.raw().cast_const().cast();
            // SAFETY: a stack of this library, and what it is to hold.
            if unsafe { (libcrypto.OPENSSL_sk_push)(stack.raw(), item) } <= 0 {
                return Err(CallbackFault::Libcrypto("OPENSSL_sk_push"));
            }
        }
        Ok(stack)
    }

    /// As libssl sets it up: with the purpose of the peer's side, and a security level.
    fn context(
        &self,
        role: PeerRole,
        store: &Owned<X509Store>,
        leaf: &Owned<X509>,
        untrusted: &Owned<OpensslStack>,
    ) -> Result<Owned<X509StoreCtx>, CallbackFault> {
        let libcrypto = &self.callback.libcrypto;
        let purpose = match role {
            PeerRole::Client => c"ssl_client",
            PeerRole::Server => c"ssl_server",
        };
        let failed = CallbackFault::Libcrypto;
        // SAFETY: no arguments.
        let raw = unsafe { (libcrypto.X509_STORE_CTX_new)() };
        let ctx = Owned::new(raw, libcrypto.X509_STORE_CTX_free);
        let ctx = ctx.ok_or(failed("X509_STORE_CTX_new"))?;
        let (store, leaf, untrusted) = (store.raw(), leaf.raw(), untrusted.raw());
        // SAFETY: objects of this library, all of which outlive the context in `judge`.
        if unsafe { (libcrypto.X509_STORE_CTX_init)(ctx.raw(), store, leaf, untrusted) } != 1 {
            return Err(failed("X509_STORE_CTX_init"));
        }
        // SAFETY: an initialised context, and a C string.
        if unsafe { (libcrypto.X509_STORE_CTX_set_default)(ctx.raw(), purpose.as_ptr()) } != 1 {
            return Err(failed("X509_STORE_CTX_set_default"));
        }
        // SAFETY: an initialised context has parameters, which are its own.
        unsafe {
            let param = (libcrypto.X509_STORE_CTX_get0_param)(ctx.raw());
            (libcrypto.X509_VERIFY_PARAM_set_auth_level)(param, AUTH_LEVEL);
        }
        Ok(ctx)
    }

    /// Number, depth and text of the error in a context.
    fn error_in(&self, ctx: &Owned<X509StoreCtx>) -> Option<(i32, i32, String)> {
        let libcrypto = &self.callback.libcrypto;
        // SAFETY: an initialised context, twice.
        let (error, depth) = unsafe {
            let error = (libcrypto.X509_STORE_CTX_get_error)(ctx.raw());
            (error, (libcrypto.X509_STORE_CTX_get_error_depth)(ctx.raw()))
        };
        if error == OK {
            return None;
        }
        // SAFETY: any number has a text, which is a constant of the library.
        let text = unsafe { (libcrypto.X509_verify_cert_error_string)(c_long::from(error)) };
        if text.is_null() {
            return Some((error, depth, "unknown".into()));
        }
        // SAFETY: not null: a C string that stays.
        let text = unsafe { CStr::from_ptr(text) };
        Some((error, depth, text.to_string_lossy().into_owned()))
    }
}

/// Said once: a callback may have its reasons, or have returned what `X509_verify_cert` did.
fn warn_of_acceptance(answer: i32, found: (i32, i32, String)) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        let found = openssl_error(&Some(found));
        log::warn!(
            "cert_verify_cb accepts a peer ({answer}) that OpenSSL refuses{found}; if that is not \
             meant, return a negative value to refuse: 0 accepts, also the 0 of X509_verify_cert"
        );
    }
}

/// An object of OpenSSL with one count of ours.
struct Owned<T> {
    raw: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

// SAFETY: certificates and lists may be used by several threads: OpenSSL counts them atomically,
// and has locks for what it computes when it is first asked.
unsafe impl Send for Owned<X509> {}
// SAFETY: as above.
unsafe impl Sync for Owned<X509> {}
// SAFETY: as above.
unsafe impl Send for Owned<X509Crl> {}
// SAFETY: as above.
unsafe impl Sync for Owned<X509Crl> {}

impl<T> Owned<T> {
    fn new(raw: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, free })
    }

    fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the function of the library that made it, once; what borrows it is gone.
        unsafe { (self.free)(self.raw()) }
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owned")
    }
}

/// The thread's queue of OpenSSL's errors is the program's: what is added is taken out again.
struct ErrorMark(Libcrypto);

impl ErrorMark {
    fn set(libcrypto: Libcrypto) -> Self {
        // SAFETY: no arguments.
        unsafe { (libcrypto.ERR_set_mark)() };
        Self(libcrypto)
    }
}

impl Drop for ErrorMark {
    fn drop(&mut self) {
        // SAFETY: no arguments.
        unsafe { (self.0.ERR_pop_to_mark)() };
    }
}
