// SPDX-License-Identifier: MIT OR Apache-2.0
//! A set-user-id program does not obey the environment of its caller: a copy of this test belongs
//! to one user and is run by another. Needs root; skipped with the reason elsewhere.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, Status};
use dlock_fabric::os::environment::is_of_a_stranger;

/// These variables tell the copy that it is the copy, and where it connects to. The libraries do
/// not read them.
const PORT: &str = "TEST_OF_THE_ENVIRONMENT_PORT";
const IP: &str = "TEST_OF_THE_ENVIRONMENT_IP";
/// Two users without any rights.
const OWNER: u32 = 60_001;
const CALLER: u32 = 60_002;

/// Each value is invalid: a program that obeys it cannot even try to connect.
const VARIABLES: [(&str, &str); 4] = [
    ("DLOCK_FABRIC", "smoke signals"),
    ("DLOCK_PRIMARIES", "no address"),
    ("DLOCK_TLS_CA", "/no/such/ca"),
    ("DLOCK_TLS_KEY", "/no/such/key"),
];

/// Run as the copy: tries to connect, and prints whether the environment was obeyed.
#[test]
fn copy() {
    let Ok(port) = std::env::var(PORT) else { return };
    let config = ClientConfig { port: port.parse().expect("a port"), ..ClientConfig::default() };
    let said = match Instance::init_shared(&config, &std::env::var(IP).expect("an address")) {
        Ok(_) => "connected",
        Err(Status::NotReady) => "ignored",
        Err(_) => "obeyed",
    };
    println!("stranger={} environment={said}", is_of_a_stranger());
}

/// A folder that all users may enter.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a file or folder that is left over does no harm
    }
}

fn run(program: &Path, as_user: Option<u32>, variable: Option<(&str, &str)>) -> String {
    // at a loopback address that only this process uses, no other process takes the port meanwhile
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, a | 0x80, b, c);
    let listener = TcpListener::bind((ip, 0)).expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    drop(listener);
    let mut command = Command::new(program);
    command.args(["--exact", "copy", "--nocapture"]).env_clear();
    command.env(PORT, port.to_string()).env(IP, ip.to_string());
    command.envs(variable).current_dir("/");
    if let Some(user) = as_user {
        command.uid(user).gid(user);
    }
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.find("stranger=").map(|at| line[at..].to_owned()));
    line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_set_user_id_program_does_not_obey_its_callers_environment() {
    let own = std::env::current_exe().expect("it runs");
    assert_eq!(run(&own, None, None), "stranger=false environment=ignored");
    for variable in VARIABLES {
        let obeyed = run(&own, None, Some(variable));
        assert_eq!(obeyed, "stranger=false environment=obeyed", "{variable:?}");
        // an empty variable counts as one that is not set
        let empty = run(&own, None, Some((variable.0, "")));
        assert_eq!(empty, "stranger=false environment=ignored", "{variable:?}");
    }
    let folder = std::env::temp_dir().join(format!("dlock-set-user-id-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let folder = Folder(folder);
    let program = folder.0.join("copy");
    std::fs::copy(&own, &program).expect("a copy");
    if let Err(error) = chown(&program, Some(OWNER), Some(OWNER)) {
        println!("SKIPPED: a program cannot be given to another user ({error}): run it as root");
        return;
    }
    for (path, mode) in [(&folder.0, 0o755), (&program, 0o4755)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("its owner's");
    }
    if run(&program, Some(CALLER), None) != "stranger=true environment=ignored" {
        println!("SKIPPED: {} takes no set-user-id programs (nosuid)", folder.0.display());
        return;
    }
    for variable in VARIABLES {
        let ignored = run(&program, Some(CALLER), Some(variable));
        assert_eq!(ignored, "stranger=true environment=ignored", "{variable:?}");
    }
}
