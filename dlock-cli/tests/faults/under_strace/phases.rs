// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlockd`: calls are refused during one phase of the primary. After the phase the primary serves,
//! or has ended and said why.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::denied::calls_of_a_primary;
use super::refusal::{cells_of, cells_of_resources, Cell, Refusal};
use super::scene::{dlockd, serves, serves_within, start, Program, Scene, SERVE};
use super::{calls_of_each_thread, ends, has_strace, run, visit, visit_is_sound, Calls, HANG};
use crate::common::{own_address, DLOCK};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Start,
    Serving,
    Handshake,
    Failover,
    Reload,
    Exit,
}

/// How long a reload may take; the signal of one may have been denied.
const RELOAD: Duration = Duration::from_secs(3);
/// A standby that is refused things for longer would cost the holder its lock.
const TAKES_OVER: Duration = Duration::from_secs(3);
/// Longer than the lease of each visit, which may be what is left of an earlier one.
const AFTER: [&str; 4] = ["--wait", "15", "--fabric", "tcp"];

/// Two primaries: the second one, at a known address, waits for the end of the first one.
pub struct Pair {
    pub first: Program,
    pub first_address: String,
    pub second_address: String,
    pub second: Command,
}

impl Pair {
    /// The first one serves; the command of the second one is given, and not yet run.
    pub fn new(scene: &Scene) -> Self {
        let ip = own_address().to_string();
        let port = std::net::TcpListener::bind((ip.as_str(), 0)).unwrap().local_addr().unwrap();
        let second_address = port.to_string();
        for left in ["state", "state.clients", "state.clients.lock"] {
            let _ = std::fs::remove_file(scene.at(left)); // it may not be there
        }
        let options = |command: &mut Command, port: &str, socket: &str| {
            command.args([format!("--listen={ip}"), format!("--port={port}")]);
            command.arg(format!("--state-file={}", scene.file("state")));
            command.arg(format!("--admin-socket={}", scene.file(socket)));
        };
        let (mut dlockd, mut second) = (Command::new(dlockd()), Command::new(dlockd()));
        options(&mut dlockd, "0", "first.sock");
        let (first, address) = start(&mut dlockd, &scene.at("first"));
        let first_address = address.unwrap_or_else(|| panic!("it serves: {}", first.said()));
        options(&mut second, &port.port().to_string(), "second.sock");
        second.arg(format!("--standby-of={first_address}"));
        Self { first, first_address, second_address, second }
    }

    pub fn both(&self) -> String {
        format!("{},{}", self.first_address, self.second_address)
    }

    /// The second one, which waits.
    pub fn stand_by(&self, scene: &Scene) -> Program {
        let mut second = Command::new(self.second.get_program());
        second.args(self.second.get_args()).stdout(std::process::Stdio::piped());
        let second = Program::spawn(&mut second, &scene.at("second"));
        is_standby(&second);
        second
    }
}

fn is_standby(second: &Program) {
    let line = second.line(HANG).unwrap_or_default();
    assert!(line.starts_with("dlockd standby"), "{line}: {}", second.said());
}

/// `dlock exec` that holds the lock until its standard input ends.
pub fn holder(scene: &Scene, address: &str) -> Command {
    let mut dlock = Command::new(DLOCK);
    dlock.args(["exec", "--address", address, "--lease", "10", "--wait", "20", "fault", "--"]);
    dlock.args(["flock", "-n", "-E", "99"]).arg(scene.at("alone"));
    dlock.args(["sh", "-c", "echo held; read line; exit 0"]);
    dlock
}

pub fn holds(holder: &Program) {
    let line = holder.line(HANG);
    assert_eq!(line.as_deref(), Some("held"), "{}", holder.said());
}

fn one(scene: &Scene, phase: Phase, cell: Option<&Cell>, before: &Calls) -> Result<(), String> {
    let mut refusal = Refusal::new(cell, scene, before);
    let mut command = Command::new(dlockd());
    let mut pair = None;
    let is_tls = matches!(phase, Phase::Handshake | Phase::Reload);
    if phase == Phase::Failover {
        let pair = pair.insert(Pair::new(scene));
        command.args(pair.second.get_args());
    } else {
        command.args(SERVE);
    }
    if is_tls {
        command.args(scene.tls("node"));
    }
    let said = scene.at("said");
    let mut program = match phase {
        Phase::Start => refusal.spawn_refused(&command, &said),
        _ => refusal.spawn(&command, &said),
    };
    let client = if is_tls { scene.tls("app") } else { Vec::new() };
    let options = |of: &[&'static str]| -> Vec<String> {
        of.iter().map(|&option| option.to_string()).chain(client.clone()).collect()
    };
    let sound = |address: &str, of: &[&'static str]| {
        let options = options(of);
        visit_is_sound(scene, address, &options.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut address = match phase {
        Phase::Failover => None,
        _ => serves(&program),
    };
    let mut holder = None;
    if let Some(pair) = &pair {
        is_standby(&program);
        let held = Program::spawn_piped(&mut self::holder(scene, &pair.both()), &scene.at("held"));
        holds(&held);
        holder = Some(held);
    }
    if phase != Phase::Start {
        refusal.begin(&[program.child.id()]);
    }
    match (phase, &address) {
        (Phase::Start | Phase::Serving, Some(address)) => {
            for fabric in ["tcp", "shm"] {
                sound(address, &["--wait", "2", "--fabric", fabric])?;
            }
        }
        (Phase::Handshake, Some(address)) => drop(sound(address, &["--wait", "2"])?),
        (Phase::Failover, _) => {
            let pair = pair.as_mut().expect("of a failover");
            pair.first.signal(Signal::KILL);
            address = serves_within(&program, TAKES_OVER);
            if let Some(address) = &address {
                sound(address, &["--wait", "1", "--fabric", "tcp"])?;
            }
        }
        (Phase::Reload, Some(address)) => {
            program.signal(Signal::HUP);
            let until = Instant::now() + RELOAD;
            while refusal.has_stderr()
                && !program.said().contains("loaded again")
                && program.is_there()
                && Instant::now() < until
            {
                thread::sleep(Duration::from_millis(5));
            }
            sound(address, &["--wait", "2"])?;
        }
        (Phase::Exit, _) => {
            let result = ended(&mut program, &refusal);
            drop(program);
            refusal.ended();
            return result;
        }
        (_, None) => {} // its end is judged
    }
    if phase != Phase::Start {
        refusal.end();
    }
    if address.is_none() && phase == Phase::Failover {
        address = serves(&program); // it tries again
        if address.is_none() && program.is_there() {
            return Err(format!("it does not take over: {}", program.said()));
        }
    }
    if let Some(holder) = holder {
        let is_there = program.is_there();
        let mut holder = holder;
        let was_there = holder.is_there();
        holder.close_input();
        let code = holder.ended(HANG).ok_or("the holder hangs")?.code();
        if is_there && (!was_there || code != Some(0)) {
            return Err(format!("the holder has lost its lock: {code:?}: {}", holder.said()));
        }
    }
    match address {
        Some(address) if program.is_there() => {
            let options: Vec<String> = options(&AFTER);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let code = visit(scene, &address, &options)?;
            if code != 0 && program.is_there() {
                let visitor = std::fs::read_to_string(scene.at("visit")).unwrap_or_default();
                let said = program.said();
                return Err(format!("it does not serve any more: {code}: {visitor}; {said}",));
            }
        }
        _ => {}
    }
    ended(&mut program, &refusal)
}

/// Its end, judged; whose words are lost cannot have said why.
fn ended(program: &mut Program, refusal: &Refusal<'_>) -> Result<(), String> {
    let result = ends(program, refusal.call());
    let is_mute = result.as_ref().is_err_and(|why| why.contains("without a word"));
    if is_mute && !refusal.has_stderr() {
        Ok(())
    } else {
        result
    }
}

fn phase(phase: Phase) {
    if !has_strace() {
        return;
    }
    let name = format!("dlockd, {phase:?}").to_lowercase();
    let before = Calls::new();
    let mut cells = cells_of_resources(phase as usize);
    let scene = Scene::new(&name.replace(", ", "-"));
    let before = match phase {
        Phase::Start => calls_of_a_primary(&scene),
        // Its calls are denied by denied.rs.
        Phase::Serving => before,
        _ => {
            one(&scene, phase, None, &before).expect("nothing is refused");
            cells.extend(cells_of(&name, &calls_of_each_thread(&scene.at("trace"))));
            before
        }
    };
    run(&name, &cells, |scene, cell| one(scene, phase, Some(cell), &before));
}

#[test]
fn a_primary_that_starts_is_refused_things() {
    phase(Phase::Start);
}

#[test]
fn a_primary_that_serves_is_refused_things() {
    phase(Phase::Serving);
}

#[test]
fn a_primary_in_a_handshake_is_refused_things() {
    phase(Phase::Handshake);
}

#[test]
fn a_standby_that_takes_over_is_refused_things() {
    phase(Phase::Failover);
}

#[test]
fn a_primary_that_reloads_its_files_is_refused_things() {
    phase(Phase::Reload);
}

#[test]
fn a_primary_that_ends_is_refused_things() {
    phase(Phase::Exit);
}
