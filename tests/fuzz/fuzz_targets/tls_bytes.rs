// SPDX-License-Identifier: MIT OR Apache-2.0
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| dlock_fuzz_targets::tls_bytes::run(data));
