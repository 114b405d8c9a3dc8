// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock doctor` on this host, with or without a device. Its report on a device is tested in a
//! virtual machine that has one (tests/rxe/cases/doctor.sh).

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn doctor(arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command.arg("doctor").args(arguments).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().expect("the binary was just built")
}

fn text(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn document(output: &Output) -> Value {
    serde_json::from_str(&text(output)).expect("one document of JSON")
}

fn problems(document: &Value) -> Vec<&Value> {
    let lines = document["lines"].as_array().expect("a list");
    lines.iter().filter(|line| line["level"] == "problem").collect()
}

#[test]
fn the_exit_code_says_whether_rdma_can_be_used_and_every_problem_has_a_remedy() {
    let output = doctor(&["--json"], &[]);
    let document = document(&output);
    let ready = document["ready"].as_bool().expect("yes or no");
    assert_eq!(output.status.code(), Some(if ready { 0 } else { 1 }), "{document:#}");
    assert_eq!(ready, problems(&document).is_empty() && !document["choice"].is_null());
    for problem in problems(&document) {
        assert!(problem["remedy"].as_str().is_some_and(|text| !text.is_empty()), "{problem:#}");
    }
}

#[test]
fn a_host_without_a_device_is_told_how_to_make_one() {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    let output = doctor(&[], &[]);
    let text = text(&output);
    assert_eq!(text.contains("rdma link add rxe0 type rxe netdev"), devices == 0, "{text}");
    if devices == 0 {
        assert_eq!(output.status.code(), Some(1));
        assert!(text.contains("dlock works without it"), "{text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_a_problem() {
    let output = doctor(&["--json", "--device", "no_such0"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let document = document(&output);
    let said = document["no_choice_because"].as_str().expect("a reason");
    assert!(said.contains("no_such0"), "{said}");
    assert!(!problems(&document).is_empty(), "{document:#}");
}

#[test]
fn a_library_that_cannot_be_loaded_is_said_and_is_no_crash() {
    let folder = std::env::temp_dir().join(format!("dlock-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("libibverbs.so.1"), "no library").unwrap();
    let variables = [("LD_LIBRARY_PATH", folder.as_path())];
    let (json, plain) = (doctor(&["--json"], &variables), doctor(&[], &variables));
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((json.status.code(), plain.status.code()), (Some(1), Some(1)));
    let document = document(&json);
    assert_eq!(document["library"], false);
    let library = problems(&document)[0];
    assert_eq!(library["subject"], "library");
    assert!(library["text"].as_str().is_some_and(|text| text.contains("libibverbs")), "{library}");
    assert!(text(&plain).contains(library["remedy"].as_str().expect("a remedy")));
}
