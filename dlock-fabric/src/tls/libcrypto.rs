// SPDX-License-Identifier: MIT OR Apache-2.0
//! OpenSSL's `libcrypto` for programs of the C API: for their `cert_verify_cb`, and for
//! certificates and keys that the rest of this module does not support.
//!
//! ```text
//!   which one?  the callback calls functions of a libcrypto, and must be given its objects
//!   1. the one that the callback's own program or library is linked with (without one: from 2 on)
//!   2. the one that the process finds first        3. one that is loaded: 3, then 1.1
//!   4. one of the system: libcrypto.so.3, then libcrypto.so.1.1       else: Absent
//! ```
//! Functions of one version would misread objects of another. The library is never unloaded.

use std::ffi::{c_char, c_int, c_long, c_uchar, c_ulong, c_void, CStr};
use std::fmt;
use std::ptr::{null, null_mut, NonNull};
use std::sync::OnceLock;

use super::TlsError;

/// The supported ABIs, in order of preference.
const SONAMES: [&CStr; 2] = [c"libcrypto.so.3", c"libcrypto.so.1.1"];

/// A function that every program which verifies certificates itself is linked with.
const PROBE: &CStr = c"X509_verify_cert";

/// Objects of OpenSSL, used only by address.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)] pub struct $name { _opaque: [u8; 0] })*
    };
}

opaque! {
    /// `X509`
    X509;
    /// `X509_CRL`
    X509Crl;
    /// `X509_STORE`
    X509Store;
    /// `X509_STORE_CTX`
    X509StoreCtx;
    /// `X509_VERIFY_PARAM`
    X509VerifyParam;
    /// `OPENSSL_STACK`
    OpensslStack;
    /// `BIO`
    Bio;
    /// `EVP_PKEY`
    EvpPkey;
    /// `EVP_PKEY_CTX`
    EvpPkeyCtx;
    /// `EVP_MD`
    EvpMd;
    /// `EVP_MD_CTX`
    EvpMdCtx;
}

/// `pem_password_cb`: a buffer for the password, its size, whether it is for writing, and user
/// data; returns the length, or a negative number.
pub type PasswordFn = unsafe extern "C" fn(*mut c_char, c_int, c_int, *mut c_void) -> c_int;
/// `X509_STORE_CTX_verify_cb`: whether a certificate of the chain is accepted; the return value
/// decides.
pub type VerifyFn = unsafe extern "C" fn(c_int, *mut X509StoreCtx) -> c_int;

/// Declares the functions that are looked up in a loaded libcrypto.
macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of libcrypto, by their names there. All exist since OpenSSL 1.1.1 with the
        /// same signatures as in 3, and may be called from any thread.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)] // the fields have the names that OpenSSL gives its functions
        pub struct Libcrypto {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Libcrypto {
            /// The functions found in `scope`.
            fn of(scope: *mut c_void) -> Result<Self, TlsError> {
                Ok(Self {
                    $($name: {
                        const NAME: &str = concat!(stringify!($name), "\0");
                        let symbol = symbol(scope, NAME)?;
                        // SAFETY: libcrypto's function of this name has this signature since
                        // 1.1.1: <openssl/x509.h>, <openssl/x509_vfy.h>, <openssl/stack.h>,
                        // <openssl/bio.h>, <openssl/pem.h>, <openssl/evp.h>.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ERR_set_mark: fn() -> c_int;
    ERR_pop_to_mark: fn() -> c_int;
    ERR_peek_last_error: fn() -> c_ulong;
    OPENSSL_sk_new_null: fn() -> *mut OpensslStack;
    OPENSSL_sk_push: fn(*mut OpensslStack, *const c_void) -> c_int;
    OPENSSL_sk_free: fn(*mut OpensslStack);
    d2i_X509: fn(*mut *mut X509, *mut *const c_uchar, c_long) -> *mut X509;
    X509_free: fn(*mut X509);
    d2i_X509_CRL: fn(*mut *mut X509Crl, *mut *const c_uchar, c_long) -> *mut X509Crl;
    X509_CRL_free: fn(*mut X509Crl);
    X509_STORE_new: fn() -> *mut X509Store;
    X509_STORE_free: fn(*mut X509Store);
    X509_STORE_add_cert: fn(*mut X509Store, *mut X509) -> c_int;
    X509_STORE_add_crl: fn(*mut X509Store, *mut X509Crl) -> c_int;
    X509_STORE_set_flags: fn(*mut X509Store, c_ulong) -> c_int;
    X509_STORE_CTX_new: fn() -> *mut X509StoreCtx;
    X509_STORE_CTX_free: fn(*mut X509StoreCtx);
    X509_STORE_CTX_init:
        fn(*mut X509StoreCtx, *mut X509Store, *mut X509, *mut OpensslStack) -> c_int;
    X509_STORE_CTX_set_default: fn(*mut X509StoreCtx, *const c_char) -> c_int;
    X509_STORE_CTX_get0_param: fn(*mut X509StoreCtx) -> *mut X509VerifyParam;
    X509_VERIFY_PARAM_set_auth_level: fn(*mut X509VerifyParam, c_int);
    X509_STORE_CTX_get_error: fn(*mut X509StoreCtx) -> c_int;
    X509_STORE_CTX_get_error_depth: fn(*mut X509StoreCtx) -> c_int;
    X509_verify_cert_error_string: fn(c_long) -> *const c_char;
    X509_VERIFY_PARAM_set_flags: fn(*mut X509VerifyParam, c_ulong) -> c_int;
    X509_STORE_CTX_set_verify_cb: fn(*mut X509StoreCtx, VerifyFn);
    X509_verify_cert: fn(*mut X509StoreCtx) -> c_int;
    BIO_new_mem_buf: fn(*const c_void, c_int) -> *mut Bio;
    BIO_free: fn(*mut Bio) -> c_int;
    PEM_read_bio_PrivateKey:
        fn(*mut Bio, *mut *mut EvpPkey, PasswordFn, *mut c_void) -> *mut EvpPkey;
    EVP_PKEY_free: fn(*mut EvpPkey);
    i2d_PUBKEY: fn(*mut EvpPkey, *mut *mut c_uchar) -> c_int;
    d2i_PUBKEY: fn(*mut *mut EvpPkey, *mut *const c_uchar, c_long) -> *mut EvpPkey;
    EVP_sha256: fn() -> *const EvpMd;
    EVP_sha384: fn() -> *const EvpMd;
    EVP_sha512: fn() -> *const EvpMd;
    EVP_MD_CTX_new: fn() -> *mut EvpMdCtx;
    EVP_MD_CTX_free: fn(*mut EvpMdCtx);
    EVP_PKEY_CTX_ctrl_str: fn(*mut EvpPkeyCtx, *const c_char, *const c_char) -> c_int;
    EVP_DigestSignInit: fn(
        *mut EvpMdCtx, *mut *mut EvpPkeyCtx, *const EvpMd, *mut c_void, *mut EvpPkey
    ) -> c_int;
    EVP_DigestSign:
        fn(*mut EvpMdCtx, *mut c_uchar, *mut usize, *const c_uchar, usize) -> c_int;
    EVP_DigestVerifyInit: fn(
        *mut EvpMdCtx, *mut *mut EvpPkeyCtx, *const EvpMd, *mut c_void, *mut EvpPkey
    ) -> c_int;
    EVP_DigestVerify: fn(*mut EvpMdCtx, *const c_uchar, usize, *const c_uchar, usize) -> c_int;
}

impl fmt::Debug for Libcrypto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Libcrypto")
    }
}

impl Libcrypto {
    /// The library whose objects the function at `callback` accepts.
    ///
    /// # Errors
    /// [`TlsError::Libcrypto`]: there is no library, or it is too old.
    pub fn for_callback(callback: *const c_void) -> Result<Self, TlsError> {
        match linked_with(callback).or_else(found_first) {
            Some(scope) => Self::of(scope),
            None => Self::open(&SONAMES),
        }
    }

    /// The library for uses that need no particular one; it is searched for at the first use.
    ///
    /// # Errors
    /// The reason why no library can be used.
    pub fn found() -> Result<Self, &'static str> {
        static FOUND: OnceLock<Result<Libcrypto, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let found = found_first().map_or_else(|| Self::open(&SONAMES), Self::of);
            found.map_err(|error| match error {
                TlsError::Libcrypto(why) => why,
                other => other.to_string(),
            })
        });
        found.as_ref().copied().map_err(String::as_str)
    }

    /// A certificate; `None`: it cannot be parsed.
    pub fn certificate(&self, der: &[u8]) -> Option<Owned<X509>> {
        let (mut at, len) = (der.as_ptr(), c_long::try_from(der.len()).ok()?);
        // SAFETY: `at` points to `len` bytes; the call moves `at` to their end, and reuses no older
        // certificate.
        let raw = unsafe { (self.d2i_X509)(null_mut(), &mut at, len) };
        Owned::new(raw, self.X509_free)
    }

    /// A revocation list; `None`: it cannot be parsed.
    pub fn list(&self, der: &[u8]) -> Option<Owned<X509Crl>> {
        let (mut at, len) = (der.as_ptr(), c_long::try_from(der.len()).ok()?);
        // SAFETY: as for a certificate.
        let raw = unsafe { (self.d2i_X509_CRL)(null_mut(), &mut at, len) };
        Owned::new(raw, self.X509_CRL_free)
    }

    /// A public key by its SubjectPublicKeyInfo; `None`: it cannot be parsed.
    pub fn public_key(&self, spki: &[u8]) -> Option<Owned<EvpPkey>> {
        let (mut at, len) = (spki.as_ptr(), c_long::try_from(spki.len()).ok()?);
        // SAFETY: as for a certificate.
        let raw = unsafe { (self.d2i_PUBKEY)(null_mut(), &mut at, len) };
        Owned::new(raw, self.EVP_PKEY_free)
    }

    /// The first of these that is loaded already, else the first that can be loaded.
    fn open(sonames: &[&CStr]) -> Result<Self, TlsError> {
        let loaded = sonames.iter().map(|name| open(name, libc::RTLD_NOLOAD));
        if let Some(scope) = loaded.into_iter().find(|scope| !scope.is_null()) {
            return Self::of(scope);
        }
        let mut reasons = Vec::new();
        for name in sonames {
            match open(name, 0) {
                scope if scope.is_null() => reasons.push(dl_error()),
                scope => return Self::of(scope),
            }
        }
        Err(TlsError::Libcrypto(reasons.join("; ")))
    }
}

/// The libcrypto that the program or library with this code is linked with, if any.
fn linked_with(code: *const c_void) -> Option<*mut c_void> {
    let object = object_of(code)?;
    // SAFETY: `object` was opened just now, and the name is a C string.
    let probe = unsafe { libc::dlsym(object, PROBE.as_ptr()) };
    let library = (!probe.is_null()).then(|| object_of(probe)).flatten();
    // SAFETY: opened just now, and not used any more: the program may unload its own libraries.
    unsafe { libc::dlclose(object) };
    library
}

/// The libcrypto that the process finds first; it may be a part of the program itself.
fn found_first() -> Option<*mut c_void> {
    // SAFETY: the loader defines this scope, and the name is a C string.
    let probe = unsafe { libc::dlsym(libc::RTLD_DEFAULT, PROBE.as_ptr()) };
    (!probe.is_null()).then(|| object_of(probe).unwrap_or(libc::RTLD_DEFAULT))
}

/// A handle of the program or library that contains an address.
fn object_of(address: *const c_void) -> Option<*mut c_void> {
    let (dli_fname, dli_sname) = (null(), null());
    let mut info =
        libc::Dl_info { dli_fname, dli_fbase: null_mut(), dli_sname, dli_saddr: null_mut() };
    // SAFETY: the loader only compares the address with the objects that it has loaded; `info` is a
    // valid place for the answer.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null: a C string of the loader, as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let object = open(name, libc::RTLD_NOLOAD);
    (!object.is_null()).then_some(object)
}

fn open(name: &CStr, flags: c_int) -> *mut c_void {
    // SAFETY: a C string; running the constructors of libcrypto is intended.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) }
}

/// The address of a symbol. `name` ends with a NUL.
fn symbol(scope: *mut c_void, name: &'static str) -> Result<*mut c_void, TlsError> {
    // SAFETY: the scope stays valid, and the name ends with a NUL.
    let symbol = unsafe { libc::dlsym(scope, name.as_ptr().cast()) };
    if symbol.is_null() {
        return Err(TlsError::Libcrypto(dl_error()));
    }
    Ok(symbol)
}

fn dl_error() -> String {
    // SAFETY: no arguments; the answer is this thread's own text until its next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gave no reason".into();
    }
    // SAFETY: not null, so a C string, which is copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An OpenSSL object with one reference that is dropped with it.
pub struct Owned<T> {
    raw: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

// SAFETY: certificates and lists may be used by several threads: OpenSSL counts them atomically,
// and has locks for what it computes when it is first asked.
unsafe impl Send for Owned<X509> {}
// SAFETY: OpenSSL locks what several threads use of a certificate at once.
unsafe impl Sync for Owned<X509> {}
// SAFETY: OpenSSL counts the references of a list atomically, and has locks for what it computes
// later.
unsafe impl Send for Owned<X509Crl> {}
// SAFETY: OpenSSL locks what several threads use of a list at once.
unsafe impl Sync for Owned<X509Crl> {}
// SAFETY: a key that is not changed may sign on several threads, each with a context of its own.
unsafe impl Send for Owned<EvpPkey> {}
// SAFETY: a key that is not changed may sign on several threads, each with a context of its own.
unsafe impl Sync for Owned<EvpPkey> {}

impl<T> Owned<T> {
    /// `None` if `raw` is null. `free` drops the reference, and is of the library that made the
    /// object.
    pub fn new(raw: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, free })
    }

    pub fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: this frees the object once, by the function of the library that made it; no
        // borrow of it is left.
        unsafe { (self.free)(self.raw()) }
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owned")
    }
}

/// Keeps the thread's queue of OpenSSL errors, which is the program's: errors that are added while
/// this exists are removed.
pub struct ErrorMark(Libcrypto);

impl ErrorMark {
    pub fn set(libcrypto: Libcrypto) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_library_the_error_says_what_to_install() {
        let names = [c"libdlock-no-such.so.3", c"libdlock-no-such.so.1.1"];
        let error = Libcrypto::open(&names).err().map(|error| error.to_string());
        let text = error.expect("there is no such library");
        for part in ["cert_verify_cb", "no-such.so.3: ", "no-such.so.1.1: ", "libssl3", "NULL"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\n'), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_is_none() {
        let error = Libcrypto::open(&[c"libc.so.6"]).err().map(|error| error.to_string());
        let text = error.expect("it has other functions");
        assert!(text.contains("ERR_set_mark") && text.contains("1.1.1"), "{text}");
    }
}
