// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manual pages in `docs/man` and the completions in `docs/completions`. They are committed, so
//! that a package needs to run nothing, and tests compare them with what they are made of:
//!
//! ```text
//!   dlock(1), dlockd(8)    clap's command line (what --help says of options), docs/*.md (the rest)
//!   dlockd.toml(5)         dlock-server/dlockd.toml, which a test of dlockd holds against the keys
//!   dlock(3), dlock_*(3)   include/*.h
//!   completions            clap's command line
//! ```
//! `make manuals` writes them.
#![forbid(unsafe_code)]

#[cfg(test)]
mod header;
#[cfg(test)]
mod keys;
mod markdown;
mod messages;
mod program;
mod roff;

use std::path::PathBuf;

pub use messages::Messages;
pub use program::{check_program, Program};

/// With this environment variable the files are written and not compared.
const WRITE: &str = "DLOCK_WRITE_MANUALS";

/// A file of the repository.
///
/// # Panics
/// If the file cannot be read.
pub(crate) fn read(path: &str) -> String {
    let file = root().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The version of the packages.
pub(crate) fn version() -> String {
    let spec = read("umdk.spec");
    let version = spec.lines().find_map(|line| line.strip_prefix("Version:"));
    version.expect("umdk.spec has a version").trim().to_string()
}

/// Compares a generated file with the committed one.
///
/// # Panics
/// If the two differ.
pub fn check(path: &str, made: &str) {
    let file = root().join(path);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, made).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let pairs = found.lines().zip(made.lines()).enumerate();
    if let Some((line, (found, made))) = pairs.into_iter().find(|(_, (a, b))| a != b) {
        panic!(
            "{path}:{}: has {found:?}, but its source says {made:?}; \
             make manuals writes it",
            line + 1
        );
    }
    assert!(found == made, "{path} is not as long as its source says: make manuals writes it");
}

fn root() -> PathBuf {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two levels below the root").to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manuals_of_the_c_interface_are_those_of_the_headers() {
        let headers = ["dlock_client_api.h", "dlock_server_api.h", "dlock_log.h"];
        let texts = headers.map(|name| (name, read(&format!("include/{name}"))));
        check("docs/man/dlock.3", &roff::tidied(&header::page(&texts)));
    }

    #[test]
    fn manuals_of_the_modern_interface_are_those_of_its_header() {
        let pages = header::pages(&read("include/dlock.h"));
        for (name, page) in &pages {
            check(&format!("docs/man/{name}.3"), &roff::tidied(page));
        }
        let mut found: Vec<_> = std::fs::read_dir(root().join("docs/man"))
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("dlock_"))
            .collect();
        found.sort();
        let mut made: Vec<_> = pages.iter().map(|(name, _)| format!("{name}.3")).collect();
        made.sort();
        assert_eq!(found, made, "a page of a part that is no more");
    }

    #[test]
    fn manuals_of_the_configuration_are_those_of_the_example() {
        let page = keys::page(&read("dlock-server/dlockd.toml"));
        check("docs/man/dlockd.toml.5", &roff::tidied(&page));
    }
}
