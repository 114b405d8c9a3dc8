// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tool `dlock` and its measurements share.
//!
//! ```text
//!   place.rs    where the primary is, on the command line   connect.rs  from there to a session
//!   process.rs  primaries and clients as processes           ca.rs       certificates for them
//!   failure.rs  exit codes and their text                    logging.rs  standard error
//!   out.rs      standard output    table.rs  tables          text.rs     what a terminal may show
//! ```
#![forbid(unsafe_code)]

pub mod ca;
pub mod connect;
pub mod failure;
pub mod logging;
pub mod out;
pub mod place;
pub mod process;
pub mod table;
pub mod text;
