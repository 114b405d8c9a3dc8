// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock` as a person or a script meets it: exit codes and what is printed.

mod common;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use common::{code, dlock, first_line, own_address, text, Primary, DLOCK};
use dlock_core::wire::fabric::{Executes, FabricKind};

/// A `dlock exec` whose command says that it runs, and then waits for its input to end.
fn holder(primary: &Primary, options: &[&str]) -> (Child, ChildStdin) {
    let mut child = Command::new(DLOCK)
        .args(["exec", "--address", &primary.address])
        .args(options)
        .args(["--", "sh", "-c", "echo running; cat >/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(child.stdout.take().unwrap()), "running");
    let input = child.stdin.take().unwrap();
    (child, input)
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let output = dlock(&["--help"]);
    assert_eq!(code(&output), 0);
    let help = text(&output.stdout);
    for word in
        ["demo", "bench", "status", "locks", "clients", "exec", "doctor", "Exit codes", "75"]
    {
        assert!(help.contains(word), "{word} in\n{help}");
    }
    assert!(!help.contains("role"), "the processes of the tour are no command for people");
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    for wrong in
        [&["no-such"][..], &["exec"], &["exec", "x"], &["exec", "x", "--lease=0", "--", "y"]]
    {
        assert_eq!(code(&dlock(wrong)), 2, "{wrong:?}");
    }
    let addresses: Vec<String> = (1..=17).map(|n| format!("127.0.0.1:{n}")).collect();
    let output = dlock(&["exec", "x", "--address", &addresses.join(","), "--", "true"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("name 16 at most"), "the others would not be asked");
    let output = dlock(&["exec", "x", "--mode", "shared", "--", "true"]);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("--type rw"), "the remedy is named");
}

#[test]
fn without_a_primary_it_exits_with_69_and_names_the_remedy() {
    let free = std::net::TcpListener::bind((own_address(), 0)).unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let output = dlock(&["exec", "--address", &address, "x", "--", "true"]);
    assert_eq!(code(&output), 69);
    assert!(text(&output.stderr).contains("remedy: start one"), "{}", text(&output.stderr));
    let output = dlock(&["status", "--socket", "/no/such/socket"]);
    assert_eq!(code(&output), 69);
    assert!(text(&output.stderr).contains("remedy:"), "{}", text(&output.stderr));
}

#[test]
fn exec_passes_the_commands_exit_code_on() {
    let primary = Primary::start("codes");
    for kind in ["atomic", "rw", "fair"] {
        let name = format!("codes-{kind}");
        let run = |command: &str| primary.exec(&[&name, "--type", kind, "--", "sh", "-c", command]);
        let output = run("echo hello; exit 7");
        assert_eq!((code(&output), text(&output.stdout).as_str()), (7, "hello\n"), "{kind}");
        assert_eq!(code(&run("kill -TERM $$")), 128 + 15);
        assert_eq!(code(&run("true")), 0);
    }
    assert_eq!(code(&primary.exec(&["x", "--", "/no/such/command"])), 127);
    assert_eq!(code(&primary.exec(&["x", "--", "/"])), 126);
}

#[test]
fn exec_excludes_others_until_the_command_ends() {
    let primary = Primary::start("excludes");
    for kind in ["atomic", "rw", "fair"] {
        let options = ["the lock", "--type", kind];
        let (mut child, input) = holder(&primary, &options);
        let output = primary.exec(&[&options[..], &["--wait", "0", "--", "true"]].concat());
        assert_eq!(code(&output), 75, "{kind}: {}", text(&output.stderr));
        drop(input);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let output = primary.exec(&[&options[..], &["--wait", "5", "--", "true"]].concat());
        assert_eq!(code(&output), 0, "{kind}: {}", text(&output.stderr));
    }
}

#[test]
fn readers_share_and_a_writer_waits_for_them() {
    let primary = Primary::start("shared");
    let shared = ["shared lock", "--type", "rw", "--mode", "shared"];
    let (mut child, input) = holder(&primary, &shared);
    let output = primary.exec(&[&shared[..], &["--wait", "0", "--", "true"]].concat());
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let writer = ["shared lock", "--type", "rw", "--wait", "0", "--", "true"];
    assert_eq!(code(&primary.exec(&writer)), 75);
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_lock_of_another_type_is_refused_with_the_reason() {
    let primary = Primary::start("type");
    let (mut child, input) = holder(&primary, &["typed", "--type", "rw"]);
    let output = primary.exec(&["typed", "--type", "fair", "--", "true"]);
    assert_eq!(code(&output), 69);
    assert!(text(&output.stderr).contains("another type"), "{}", text(&output.stderr));
    drop(input);
    child.wait().unwrap();
}

#[test]
fn the_command_is_ended_when_its_lock_is_lost() {
    let mut primary = Primary::start("lost");
    let (mut child, input) = holder(&primary, &["lost", "--lease", "6"]);
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    // The input of COMMAND stays open, so COMMAND ends only because it is killed, when the lease is
    // over.
    assert_eq!(child.wait().unwrap().code(), Some(76));
    drop(input);
}

#[test]
fn the_lock_survives_a_primary_that_is_restarted_in_recovery() {
    let own = own_address().to_string();
    let mut primary = Primary::start_with("restarted", &["--listen", &own]);
    let (mut child, input) = holder(&primary, &["survives", "--lease", "60"]);
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    let port = primary.address.rsplit(':').next().unwrap().to_string();
    let options = ["--listen", &own, "--recover", "1", "--port", &port];
    let successor = Primary::start_with("successor", &options);
    let end = Instant::now() + Duration::from_secs(50);
    // Until the holder has returned, the successor serves no other client: 69.
    let code_now = || code(&successor.exec(&["survives", "--wait", "0", "--", "true"]));
    let mut seen = code_now();
    while seen == 69 && Instant::now() < end {
        seen = code_now();
    }
    assert_eq!(seen, 75, "the lock is still held");
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(code_now(), 0, "and then free");
}

#[test]
fn a_running_primary_tells_its_locks_and_clients() {
    let primary = Primary::start("admin");
    let (mut child, mut input) = holder(&primary, &["shown lock"]);
    let ask = |what: &str, json: bool| {
        let socket = primary.socket();
        let mut arguments = vec![what, "--socket", &socket];
        arguments.extend(json.then_some("--json"));
        let output = dlock(&arguments);
        assert_eq!(code(&output), 0, "{what}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(ask("locks", false).contains("shown lock"), "{}", ask("locks", false));
    for what in ["status", "locks", "clients"] {
        assert!(ask(what, false).lines().count() >= 2, "{}", ask(what, false));
        let json = ask(what, true);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(!value.is_null(), "{json}");
    }
    input.write_all(b"x").unwrap();
    drop(input);
    child.wait().unwrap();
}

#[test]
fn a_label_is_shown_where_its_client_is_and_one_that_a_terminal_would_not_show_is_refused() {
    let primary = Primary::start("label");
    let mut child = Command::new(DLOCK)
        .args(["exec", "--address", &primary.address, "mine", "--"])
        .args(["sh", "-c", "echo running; cat >/dev/null"])
        .env("DLOCK_LABEL", "orders ü")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(child.stdout.take().unwrap()), "running");
    let (mut other, input) = holder(&primary, &["another's"]);
    let socket = primary.socket();
    let ask = |words: &[&str]| text(&dlock(&[words, &["--socket", &socket]].concat()).stdout);
    let clients: serde_json::Value = serde_json::from_str(&ask(&["clients", "--json"])).unwrap();
    let clients = clients["clients"].as_array().unwrap();
    let labels: Vec<_> = clients.iter().map(|client| client["label"].as_str()).collect();
    assert!(labels.contains(&Some("orders ü")) && labels.contains(&None), "{labels:?}");
    for client in clients {
        assert!(client["pid"].as_u64() > Some(0) && client["fabric"].is_string(), "{client}");
        assert!(client["host"].is_string() && client["user"].is_string(), "{client}");
    }
    let table = ask(&["clients"]);
    assert!(table.lines().any(|line| line.ends_with("orders ü")), "{table}");
    let mine = ask(&["locks", "mine"]);
    assert!(mine.contains("(orders ü)") && mine.lines().count() == 2, "{mine}");
    assert_eq!(ask(&["locks", "no such"]).lines().count(), 1);
    drop((child.stdin.take(), input));
    child.wait().unwrap();
    other.wait().unwrap();

    let mut refused = Command::new(DLOCK);
    refused.args(["exec", "--address", &primary.address, "mine", "--", "true"]);
    let refused = refused.env("DLOCK_LABEL", "a\u{1b}[2J").output().unwrap();
    assert_ne!(code(&refused), 0);
    assert!(text(&refused.stderr).contains("control characters"), "{}", text(&refused.stderr));
}

#[test]
fn a_list_of_primaries_that_is_not_used_is_told_once() {
    let nothing = format!("{}:9", own_address());
    let both = format!("{nothing},127.0.0.1:9");
    for (address, primaries, times) in
        [(&nothing, &both, 1), (&both, &both, 0), (&nothing, &String::new(), 0)]
    {
        let mut exec = Command::new(DLOCK);
        exec.args(["exec", "x", "--wait", "0", "--", "true"]).stdin(Stdio::null());
        exec.env("DLOCK_ADDRESS", address).env("DLOCK_PRIMARIES", primaries);
        let said = text(&exec.output().unwrap().stderr);
        assert_eq!(said.matches("DLOCK_PRIMARIES is not used").count(), times, "{said}");
        assert!(said.contains("no session") || said.contains("in time"), "{said}");
    }
}

#[test]
fn the_tour_holds_on_every_executor() {
    for fabric in FabricKind::without_device().map(FabricKind::name) {
        let output = dlock(&["demo", "--fast", "--fabric", fabric]);
        let said = text(&output.stdout);
        assert_eq!(code(&output), 0, "{fabric}:\n{said}\n{}", text(&output.stderr));
        assert!(!said.contains("FAILED"), "{said}");
        assert!(said.matches("ok ").count() >= 15, "{said}");
    }
}

#[test]
fn the_benchmark_measures_a_case_and_its_baseline() {
    let arguments = ["bench", "--quick", "--json", "--only", "atomic acquire+release"];
    let output = dlock(&arguments);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = value["results"].as_array().unwrap();
    assert!(results.iter().any(|r| r["fabric"] == "shm" && r["ratio"].as_f64() > Some(1.0)));
    assert!(results.iter().any(|r| r["fabric"] == "tcp" && r["case"] == "atomic acquire"));
    for kind in FabricKind::without_device() {
        let of_it: Vec<_> = results.iter().filter(|r| r["fabric"] == kind.name()).collect();
        let one_by_one = of_it.iter().any(|r| r["case"] == "atomic acquire");
        let by_client = kind.executes() == Executes::Client;
        assert!(!of_it.is_empty() && one_by_one != by_client, "{kind}: {of_it:?}");
    }
    assert!(!value["skipped"].as_array().unwrap().is_empty(), "the C program was not given");
    assert_eq!(code(&dlock(&["bench", "--only", "no such case"])), 2);
}

#[test]
fn help_is_wrapped_between_words_at_80_columns_where_there_is_no_terminal() {
    let commands = [
        "demo", "bench", "status", "recover", "promote", "locks", "clients", "doctor", "exec",
        "certs",
    ];
    for command in commands.iter().map(Some).chain([None]) {
        for option in ["-h", "--help"] {
            let arguments: Vec<&str> = command.into_iter().copied().chain([option]).collect();
            let output = dlock(&arguments);
            assert_eq!(code(&output), 0, "{arguments:?}");
            let help = text(&output.stdout);
            let widest = help.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(80), "{arguments:?}\n{help}");
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains("Speak TLS with a primary of these CAs (PEM); else by"),
                "{help}"
            );
        }
    }
}

#[test]
fn a_client_of_the_tour_looks_for_its_primary_at_every_address_of_the_list() {
    let primary = Primary::start("list");
    let nowhere = std::net::TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap();
    let list = format!("{nowhere},{}", primary.address);
    let mut client = Command::new(DLOCK)
        .args(["role", "client", "--address", &list, "--fabric", "tcp"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(first_line(client.stdout.take().unwrap()).starts_with("client "));
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
}

#[test]
fn output_into_a_closed_pipe_is_no_crash() {
    let mut child = Command::new(DLOCK)
        .arg("--help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert!(!said.contains("panicked"), "{said}");
}

/// A command whose output is lost must fail: a script must not take half a list for the whole.
#[test]
fn output_that_is_lost_is_a_failure_of_every_command() {
    let primary = Primary::start("full");
    let socket = primary.socket();
    let folder = std::env::temp_dir().join(format!("dlock-full-{}", std::process::id()));
    let certs = folder.to_string_lossy().into_owned();
    let at = ["--socket", &socket];
    for command in [
        &["locks", "--json"][..],
        &["locks"],
        &["clients", "--json"],
        &["status"],
        &["recover"],
        &["doctor", "--json"],
        &["certs", "init", "--dir", &certs],
        &["bench", "--json", "--quick", "--only", "get locks"],
        &["demo", "--fast", "--fabric", "tcp"],
        &["--help"],
        &["exec", "--help"],
        &["--version"],
    ] {
        let asks = matches!(command[0], "locks" | "clients" | "status" | "recover");
        let output = Command::new(DLOCK)
            .args(command)
            .args(if asks { &at[..] } else { &[] })
            .stdin(Stdio::null())
            .stdout(std::fs::File::create("/dev/full").unwrap())
            .output()
            .unwrap();
        assert_eq!(code(&output), 1, "{command:?}: {}", text(&output.stderr));
    }
    let output = Command::new(DLOCK)
        .args(["locks", "--socket", &socket])
        .stdout(std::fs::File::create("/dev/full").unwrap())
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("No space left on device") && said.contains("not complete"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The name has terminal commands in 7 and 8 bits, and changes the direction of writing.
#[test]
fn a_name_commands_no_terminal_wherever_it_is_shown() {
    const HOSTILE: &str = "a\x1b[2J\u{9b}2J\u{85}\u{202e}\u{2066}z";
    let is_harmless = |shown: &str| {
        let is_shown =
            |c: char| c == '\n' || (!c.is_control() && !('\u{2000}'..'\u{2070}').contains(&c));
        assert!(shown.chars().all(is_shown), "{shown:?}");
    };
    let primary = Primary::start("hostile");
    let (mut holder, input) = holder(&primary, &[HOSTILE, "--fabric", "tcp"]);
    for options in [&["--json"][..], &[]] {
        let output = dlock(&[&["locks", "--socket", &primary.socket()], options].concat());
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        is_harmless(&shown);
        if !options.is_empty() {
            let value: serde_json::Value = serde_json::from_str(&shown).unwrap();
            assert_eq!(value["locks"][0]["name"], HOSTILE);
        }
    }
    // a held lock; one of another type; the name as that of a program, and of a certificate
    let fair = [HOSTILE, "--type", "fair", "--wait", "0", "--", "true"];
    for output in [
        primary.exec(&[HOSTILE, "--wait", "0", "--", "true"]),
        primary.exec(&[HOSTILE, "--wait", "3", "--", "true"]),
        primary.exec(&fair),
        primary.exec(&["x", "--", HOSTILE]),
        dlock(&["certs", "server", HOSTILE, "--dir", HOSTILE]),
    ] {
        assert_ne!(code(&output), 0);
        let said = text(&output.stderr);
        assert!(said.contains("\\u{202e}"), "it is named: {said:?}");
        is_harmless(&said);
    }
    drop(input);
    holder.wait().unwrap();
}

/// What the environment says is not to be written once more.
#[test]
fn a_usage_error_names_no_option_as_required() {
    for words in [&["exec"][..], &["exec", "name", "--wait", "1"], &["remove"], &["break"]] {
        let mut command = Command::new(DLOCK);
        command.args(words).env("DLOCK_ADDRESS", "127.0.0.1").env("DLOCK_ADMIN_SOCKET", "/none");
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(code(&output), 2);
        let said = text(&output.stderr);
        let usage = said.lines().find(|line| line.starts_with("Usage: ")).expect("a usage");
        assert!(usage.contains("[OPTIONS]") && !usage.contains("--address"), "{said}");
        assert!(!usage.contains("--socket") && !usage.contains("--wait"), "{said}");
    }
}
