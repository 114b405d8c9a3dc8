// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `--json` prints has the fields and types of the table in docs/dlock.md, and no others.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{code, dlock, text, Primary};
use serde_json::{Map, Value};

/// The fields of a command's row, and the types that they may have.
struct Schema(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Schema {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dlock.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, section) = text.split_once("\n## JSON\n").expect("the section");
        let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
        let mut commands: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        for line in section.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [command, fields, types, _] = cells[..] else { panic!("{line}") };
            for field in fields.split(", ") {
                let types = types.split(" or ").map(str::to_string).collect();
                commands.entry(command.into()).or_default().insert(field.into(), types);
            }
        }
        Self(commands)
    }

    fn holds(&self, command: &str, object: &Map<String, Value>) {
        let schema = &self.0[command];
        let (found, wanted): (Vec<_>, Vec<_>) = (object.keys().collect(), schema.keys().collect());
        assert_eq!(found, wanted, "{command}");
        for (field, value) in object {
            let types = &schema[field];
            let kind = kind(value);
            assert!(types.iter().any(|t| t == kind), "{command}: {field} is a {kind}: {types:?}");
        }
        small(command, &Value::Object(object.clone()));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Checks that all numbers are small enough for every program to keep them exactly.
fn small(command: &str, value: &Value) {
    match value {
        Value::Number(n) => {
            assert!(n.as_i64().is_some_and(|n| n.abs() < 1 << 53), "{command}: {n}");
        }
        Value::Array(items) => items.iter().for_each(|item| small(command, item)),
        Value::Object(fields) => fields.values().for_each(|value| small(command, value)),
        _ => {}
    }
}

fn json(words: &[&str], socket: &str) -> Value {
    let output = dlock(&[words, &["--json", "--socket", socket]].concat());
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn json_has_the_fields_and_types_of_the_manual() {
    let schema = Schema::read();
    let object = |command: &str, value: &Value| {
        schema.holds(command, value.as_object().unwrap_or_else(|| panic!("{command}: {value}")));
    };
    let state = std::env::temp_dir().join(format!("dlock-json-{}", std::process::id()));
    std::fs::create_dir_all(&state).unwrap();
    let state_file = state.join("state").to_string_lossy().into_owned();
    let options = ["--recover=3", "--state-file", &state_file];
    let recovering = Primary::start_with("json-recovery", &options);
    let recovery = json(&["recover"], &recovering.socket());
    object("recover", &recovery["recovery"]);
    object("status", &json(&["status"], &recovering.socket()));
    let of = &recovering.address;
    object("recover --now", &json(&["recover", "--now"], &recovering.socket()));

    let primary = Primary::start("json");
    let status = json(&["status"], &primary.socket());
    object("status", &status);
    let stats = status["stats"].as_object().unwrap();
    assert_eq!(stats.len(), dlock_core::counters::COUNTERS);
    assert!(stats.values().all(|count| count.as_str().is_some_and(|n| n.parse::<u64>().is_ok())));
    assert!(status["epoch"].as_str().is_some_and(|n| n.parse::<u64>().is_ok()));
    let socket = primary.socket();
    for kind in ["atomic", "rw", "fair"] {
        let listing = ["exec", "--address", &primary.address, kind, "--type", kind, "--"];
        let locks = [common::DLOCK, "locks", "--json", "--socket", &socket];
        let output = dlock(&[&listing[..], &locks[..]].concat());
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        let locks: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lock = locks["locks"].as_array().unwrap().iter().find(|lock| lock["type"] == kind);
        let lock = lock.expect("the lock of COMMAND is listed");
        object("locks", lock);
        let word = lock["word"].as_str().and_then(|word| word.parse::<u64>().ok());
        assert!(word > Some(0), "{lock}");

        let clients = [common::DLOCK, "clients", "--json", "--socket", &socket];
        let output = dlock(&[&listing[..], &clients[..]].concat());
        let clients: Value = serde_json::from_slice(&output.stdout).unwrap();
        object("clients", &clients["clients"][0]);
    }

    let standby = std::process::Command::new(common::DLOCK)
        .args(["role", "primary", "--standby-of", of, "--state-file", &state_file])
        .args(["--admin-socket", &state.join("admin").to_string_lossy()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut standby = standby.unwrap();
    let line = common::first_line(standby.stdout.take().unwrap());
    assert!(line.starts_with("standby of"), "{line}");
    let admin = state.join("admin");
    while !admin.exists() {
        std::thread::yield_now(); // the socket comes soon, or the test hangs and is ended
    }
    object("status of a standby", &json(&["status"], &admin.to_string_lossy()));
    drop(standby.stdin.take());
    standby.wait().unwrap();
    std::fs::remove_dir_all(&state).unwrap();
}
