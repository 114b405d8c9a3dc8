// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our layout against the header's, and against `ibverbs-sys`.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use verbs_abi::{agrees, c_program, constants, ours, parse, Fact};

/// What the C compiler makes of the installed header.
fn by_header() -> Vec<Fact> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, c_program()).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    // Headers of another place, as in CFLAGS=-I/opt/rdma/include.
    let flags = env::var("CFLAGS").unwrap_or_default();
    let compiled = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
        .args(flags.split_whitespace())
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "is libibverbs-dev (rdma-core-devel) installed?\n{errors}");
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    parse(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn sizes_offsets_and_constants_are_those_of_the_header() {
    let mut expected = ours();
    expected.extend(constants());
    let header = by_header();
    assert_eq!(header.len(), expected.len());
    assert!(expected.len() > 250, "the table has lost something");
    let wrong: Vec<_> = expected.iter().zip(&header).filter(|(our, c)| !agrees(our, c)).collect();
    assert!(wrong.is_empty(), "ours, then the header's: {wrong:#?}");
}

#[test]
fn the_part_of_port_attr_that_old_functions_know_ends_before_its_last_field() {
    let last = ours().into_iter().find(|(name, _)| name == "ibv_port_attr.port_cap_flags2");
    assert_eq!(last.unwrap().1, verbs_abi::COMPAT_PORT_ATTR_BYTES as i64);
}

#[cfg(feature = "ibverbs-sys")]
#[test]
fn sizes_and_offsets_are_those_of_ibverbs_sys() {
    let (ours, theirs) = (ours(), verbs_abi::theirs());
    for fact in &theirs {
        assert!(ours.iter().any(|our| agrees(our, fact)), "{fact:?} is not ours");
    }
    assert!(theirs.len() > 200);
}
