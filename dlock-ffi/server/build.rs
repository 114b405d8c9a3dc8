// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives the library its SONAME.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdlocks.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
