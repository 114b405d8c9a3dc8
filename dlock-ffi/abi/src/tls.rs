// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ssl_cfg`: files, and the callbacks for the password of the key.
//!
//! ```text
//!   dclient_lib_init, server_start   read: paths resolved, callbacks kept
//!   client_init, server_start        load: key file ─ encrypted? ─▶ prkey_pwd_cb ─▶ copy
//!                                                                   erase_prkey_cb ◀─┘
//! ```
//! The library calls the two password callbacks each time that it loads an encrypted key: at first,
//! and when a file has changed. If they do not open the key of a primary, it calls them for each
//! connection until they do. (The original calls them for every connection.) `cert_verify_cb`
//! judges the peer in every handshake, as in the original; libcrypto is loaded when the struct is
//! read. Without `cert_verify_cb`, peers and keys that OpenSSL accepts are accepted; libcrypto is
//! loaded when the first of them is met.

use std::fs::canonicalize;
use std::os::raw::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use dlock_fabric::tls::{
    CertVerifyCallback, CertVerifyFn, KeyPassword, Leniency, Tls, TlsError, TlsFiles,
};
use zeroize::Zeroizing;

use crate::args;
use crate::types::SslCfg;

/// The most bytes of a password (C API).
const PASSWORD_LEN_MAX: usize = 64;

/// `tls_prkey_pwd_callback_func_t` of the header: gives the password of the private key.
type Ask = unsafe extern "C" fn(*mut *mut c_char, *mut c_int);
/// `tls_erase_prkey_callback_func_t` of the header: erases the password.
type Erase = unsafe extern "C" fn(*mut c_void, c_int);

/// The TLS configuration of a program.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    files: TlsFiles,
    password: Arc<Callbacks>,
    /// The program's callback that judges peers; `None`: the library judges them.
    cert_verify: Option<CertVerifyCallback>,
}

impl TlsSettings {
    /// Copies a complete `ssl_cfg`. `None`: it cannot be used; the log says why.
    ///
    /// # Safety
    /// `cfg` points to an `ssl_cfg` for which [`Ssl::read`](args::Ssl::read) has returned
    /// `Enabled`. Its callbacks may be called for as long as this lives, on any thread.
    pub unsafe fn read(cfg: *const SslCfg) -> Option<Self> {
        // SAFETY: the caller vouches for the struct; any bits are valid pointers to look at.
        let ssl = unsafe { cfg.read() };
        // SAFETY: paths are null or terminated strings.
        let files = unsafe {
            TlsFiles {
                ca: resolved("ca_path", ssl.ca_path)?,
                crl: match ssl.crl_path.is_null() {
                    true => None,
                    false => Some(resolved("crl_path", ssl.crl_path)?),
                },
                cert: resolved("cert_path", ssl.cert_path)?,
                key: resolved("prkey_path", ssl.prkey_path)?,
            }
        };
        // SAFETY: not null in a complete ssl_cfg, and so functions of these types.
        let password = unsafe {
            Callbacks {
                ask: std::mem::transmute::<*const c_void, Ask>(ssl.prkey_pwd_cb),
                erase: std::mem::transmute::<*const c_void, Erase>(ssl.erase_prkey_cb),
            }
        };
        // SAFETY: null, or a callback of the program as the caller vouches.
        let cert_verify = unsafe { cert_verify(ssl.cert_verify_cb, &files) }?;
        Some(Self { files, password: Arc::new(password), cert_verify })
    }

    /// Loads the files. `None`: they cannot be used; the log says why. `key_may_wait`: it is no
    /// failure if the password does not open the key; each connection asks for it again.
    pub fn load(&self, key_may_wait: bool) -> Option<Tls> {
        let password = Arc::clone(&self.password) as Arc<dyn KeyPassword>;
        let leniency = Leniency::AsOpenssl { callback: self.cert_verify.clone(), key_may_wait };
        match Tls::load_with(leniency, self.files.clone(), password) {
            Ok(tls) => Some(tls),
            Err(error) => {
                log::error!("TLS: {error}");
                None
            }
        }
    }
}

/// The callback that judges peers. `None`: it cannot be used; the log says why.
///
/// # Safety
/// `callback` is null or a `tls_cert_verify_callback_func_t`, which may be called for as long as
/// the result lives, on any thread.
unsafe fn cert_verify(
    callback: *const c_void,
    files: &TlsFiles,
) -> Option<Option<CertVerifyCallback>> {
    if callback.is_null() {
        return Some(None);
    }
    // SAFETY: not null, and so a function of this type, which the caller allows to be called.
    let made = unsafe {
        let function = std::mem::transmute::<*const c_void, CertVerifyFn>(callback);
        CertVerifyCallback::new(function, files.crl.as_deref())
    };
    match made {
        Ok(callback) => Some(Some(callback)),
        Err(error) => {
            log::error!("TLS: {error}");
            None
        }
    }
}

/// The path as it is now, without symbolic links.
///
/// # Safety
/// `path` is null or a terminated string.
unsafe fn resolved(name: &str, path: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller vouches for the string.
    let Some(text) = (unsafe { args::text(path) }) else {
        log::error!("{name} has {} bytes or more: give a shorter one", args::TEXT_LEN_MAX);
        return None;
    };
    match canonicalize(&text) {
        Ok(path) => Some(path),
        Err(error) => {
            log::error!("{name} '{}': {error}; check the path", text.escape_debug());
            None
        }
    }
}

#[derive(Debug)]
struct Callbacks {
    ask: Ask,
    erase: Erase,
}

impl KeyPassword for Callbacks {
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
        let (mut password, mut len) = (std::ptr::null_mut::<c_char>(), 0);
        // SAFETY: a callback of the program, with places for its results.
        unsafe { (self.ask)(&mut password, &mut len) };
        let failed = |what: &str| Err(TlsError::Password(format!("prkey_pwd_cb {what}")));
        if password.is_null() {
            return failed("gave none");
        }
        // Copied only when its length is known, because the copy must not move.
        // SAFETY: a terminated string, of which no byte behind the first 0 is read.
        let is_end = |at: &usize| unsafe { password.add(*at).read() } == 0;
        let Some(found) = (0..=PASSWORD_LEN_MAX).find(is_end) else {
            return failed("gave a password of more than 64 bytes");
        };
        if usize::try_from(len) != Ok(found) {
            return failed("gave a length that is not the password's");
        }
        // SAFETY: `found` bytes were read just now.
        let bytes = unsafe { std::slice::from_raw_parts(password.cast::<u8>(), found) };
        let copy = Zeroizing::new(bytes.to_vec());
        // SAFETY: a callback of the program, with the result of its other one.
        unsafe { (self.erase)(password.cast(), len) };
        Ok(Some(copy))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static ERASED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn erase(_: *mut c_void, len: c_int) {
        ERASED.fetch_add(len as usize, Ordering::SeqCst);
    }

    /// The result of a callback that gives this text and length.
    macro_rules! given {
        ($text:expr, $len:expr) => {{
            unsafe extern "C" fn ask(password: *mut *mut c_char, len: *mut c_int) {
                let text: *const c_char = $text;
                // SAFETY: places for both.
                unsafe { (password.write(text.cast_mut()), len.write($len)) };
            }
            let before = ERASED.load(Ordering::SeqCst);
            let password = Callbacks { ask, erase }.password();
            let erased = ERASED.load(Ordering::SeqCst) - before;
            (password.map(|p| p.map(|p| p.to_vec())).map_err(|e| e.to_string()), erased)
        }};
    }

    #[test]
    fn a_password_is_copied_and_erased_and_a_wrong_one_is_refused_without_erasing() {
        let right = given!(c"secret".as_ptr(), 6);
        assert_eq!(right, (Ok(Some(b"secret".to_vec())), 6));
        assert_eq!(given!(c"".as_ptr(), 0), (Ok(Some(Vec::new())), 0));
        const LONG: &std::ffi::CStr =
            c"0123456789012345678901234567890123456789012345678901234567890123";
        assert_eq!(given!(LONG.as_ptr(), 64).1, 64);
        for (wrong, erased) in [
            given!(std::ptr::null(), 0),
            given!(c"secret".as_ptr(), 5),
            given!(c"secret".as_ptr(), -1),
            given!(
                c"01234567890123456789012345678901234567890123456789012345678901234".as_ptr(),
                65
            ),
        ] {
            assert!(wrong.is_err_and(|why| why.contains("prkey_pwd_cb")));
            assert_eq!(erased, 0);
        }
    }
}
