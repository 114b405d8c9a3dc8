// SPDX-License-Identifier: MIT OR Apache-2.0
//! The house style as a test. Each function returns the offences it found, one line each, and
//! `tests/tidy.rs` demands that there are none.
//!
//! ```text
//!   tree.rs    what is checked: every file that git tracks or would track
//!   source.rs  rules of one file: licence line, length, columns, `unsafe`, traces of a machine
//!   prose.rs   rules of documents and comments: words, widths, sizes, names
//!   cargo.rs   rules of the workspace: who depends on whom, why, under which licence
//! ```
#![forbid(unsafe_code)]

pub mod cargo;
pub mod prose;
pub mod source;
pub mod tree;
