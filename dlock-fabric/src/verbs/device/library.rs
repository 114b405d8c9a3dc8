// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libibverbs.so.1`, loaded at the first use.
//!
//! ```text
//!   library() ── first call: dlopen, dlvsym ──▶ Ok(&Library)   kept for the life of the process
//!                                           └─▶ Err(&Absent)   why not; a state, not a crash
//! ```
//! The library is never unloaded: its providers start no thread, but register handlers.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::fmt;
use std::sync::OnceLock;

use libc::size_t;

use super::ffi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

/// The library's name: the ABI of every rdma-core since 2005.
const SONAME: &CStr = c"libibverbs.so.1";

/// Why there is no usable library: one line with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent(String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}

/// The library, or why it cannot be used. The first call decides for the whole process.
///
/// # Errors
/// `Absent` if there is no such library, or it lacks a function.
pub fn library() -> Result<&'static Library, &'static Absent> {
    static LIBRARY: OnceLock<Result<Library, Absent>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::open(SONAME)).as_ref()
}

/// The functions of a loaded library, with their symbol versions.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident @ $version:literal :
        fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs. All may be called from any thread.
        #[derive(Clone, Copy)]
        pub struct Library {
            $($(#[$doc])* pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            /// `ibv_query_gid_ex`, which exists since rdma-core 32; `None`: the library is older.
            pub(super) query_gid_ex: Option<QueryGidEx>,
        }

        impl Library {
            fn load(handle: &Handle) -> Result<Self, Absent> {
                Ok(Self {
                    $($name: {
                        let symbol = handle.symbol(
                            c_text(concat!("ibv_", stringify!($name), "\0")),
                            c_text(concat!($version, "\0")),
                        )?;
                        // SAFETY: the symbol of this name and version has this signature, by the
                        // ABI that `tests/verbs-abi` compares with the header.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*
                    query_gid_ex: handle
                        .symbol(c"_ibv_query_gid_ex", c"IBVERBS_1.11")
                        .ok()
                        // SAFETY: the symbol of this name and version has this signature, by the
                        // ABI that `tests/verbs-abi` compares with the header.
                        .map(|symbol| unsafe {
                            std::mem::transmute::<*mut c_void, QueryGidEx>(symbol)
                        }),
                })
            }
        }
    };
}

type QueryGidEx =
    unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, size_t) -> c_int;

functions! {
    get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list @ "IBVERBS_1.1": fn(*mut *mut ibv_device);
    open_device @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    close_device @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// Writes the first `COMPAT_PORT_ATTR_BYTES` only.
    query_port @ "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid @ "IBVERBS_1.1": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    create_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
    create_cq @ "IBVERBS_1.1":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
    get_cq_event @ "IBVERBS_1.1":
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint);
    create_qp @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    query_qp @ "IBVERBS_1.1":
        fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    destroy_qp @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
    wc_status_str @ "IBVERBS_1.1": fn(c_uint) -> *const c_char;
}

impl Library {
    /// Loads the library of this name, and never unloads it.
    pub(super) fn open(soname: &CStr) -> Result<Self, Absent> {
        // SAFETY: a C string; running the constructors of libibverbs is intended.
        let raw = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if raw.is_null() {
            return Err(Absent(format!(
                "{}; install rdma-core's user-space libraries (Debian: libibverbs1 and \
                 ibverbs-providers, openEuler and Fedora: libibverbs)",
                dl_error()
            )));
        }
        Self::load(&Handle { raw, soname: soname.to_string_lossy().into_owned() })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library(libibverbs.so.1)")
    }
}

struct Handle {
    raw: *mut c_void,
    soname: String,
}

impl Handle {
    fn symbol(&self, name: &CStr, version: &CStr) -> Result<*mut c_void, Absent> {
        // SAFETY: a handle that `dlopen` gave and that is never closed, and two C strings.
        let symbol = unsafe { dlvsym(self.raw, name.as_ptr(), version.as_ptr()) };
        if symbol.is_null() {
            return Err(Absent(format!(
                "{} has no {} of version {}; install rdma-core 17 or later",
                self.soname,
                name.to_string_lossy(),
                version.to_string_lossy()
            )));
        }
        Ok(symbol)
    }
}

/// Looks up a versioned symbol: a function of glibc. Other C libraries have no symbol versions.
#[cfg(target_env = "gnu")]
unsafe fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise is that of the function called.
    unsafe { libc::dlvsym(handle, name, version) }
}

/// The same look-up for other C libraries, which ignores the version.
#[cfg(not(target_env = "gnu"))]
unsafe fn dlvsym(handle: *mut c_void, name: *const c_char, _: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise is that of the function called.
    unsafe { libc::dlsym(handle, name) }
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

/// A text as a C string; its last byte is its only NUL.
fn c_text(text: &'static str) -> &'static CStr {
    // all callers write the NUL at the end themselves
    CStr::from_bytes_with_nul(text.as_bytes()).expect("one NUL, at the end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_a_state_with_a_remedy() {
        let absent = Library::open(c"libdlock-no-such.so.1").unwrap_err().to_string();
        assert!(absent.contains("libdlock-no-such.so.1"), "{absent}");
        assert!(absent.contains("install"), "{absent}");
        assert!(!absent.contains('\n'), "{absent}");
    }

    #[test]
    fn a_library_without_verbs_is_absent_too() {
        let absent = Library::open(c"libc.so.6").unwrap_err().to_string();
        assert!(absent.contains("ibv_"), "{absent}");
    }

    #[test]
    fn the_answer_does_not_change() {
        assert_eq!(library().is_ok(), library().is_ok());
    }
}
