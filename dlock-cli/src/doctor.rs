// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock doctor`: whether this host can use RDMA, and what to do if it cannot.
//!
//! ```text
//!   dlock-fabric: look() ─▶ Findings ─▶ report() ─▶ Report ─┬─▶ lines for a person
//!                                                          └─▶ one JSON document
//! ```
//! `dlock_fabric::verbs::doctor` decides everything; this module prints it.

use dlock_core::limits::{HANDLES_MAX, SLOTS_MAX};
use dlock_core::wire::fabric::{listed, FabricKind};
use dlock_fabric::verbs::doctor::{look, report, Findings, Level, PortOptions, Report};
use dlock_fabric::verbs::port_selection::{
    usable, Atomics, DeviceInfo, GidKind, Link, PortInfo, PortState,
};
use dlock_fabric::verbs::NoPort;
use serde_json::{json, Value};

use crate::args::Doctor;
use crate::failure::{self, Failure};
use crate::out;

/// Bytes of a slot, and of an entry of a ledger.
const SLOT_BYTES: usize = 32;
const ENTRY_BYTES: usize = 8;
/// Bytes that a primary registers for each client: all slots, and a ledger with an entry for
/// each.
const REGISTER_BYTES: u64 = (SLOTS_MAX * SLOT_BYTES + HANDLES_MAX * ENTRY_BYTES) as u64;

/// Looks and prints; returns the exit code: 0 if RDMA can be used as asked for.
pub fn run(doctor: &Doctor) -> Result<u8, Failure> {
    let options = PortOptions {
        device: doctor.device.clone(),
        register_bytes: REGISTER_BYTES,
        ..PortOptions::default()
    };
    let findings = look();
    let report = report(&findings, &options);
    match doctor.json {
        true => out::json(&document(&findings, &report)),
        false => out::print(&format!("{report}\n{}\n", verdict(&report, doctor.device.is_some()))),
    }
    Ok(if report.is_ready() { failure::OK } else { failure::FAILED })
}

/// The last line: what the report means for the user.
fn verdict(report: &Report, named: bool) -> String {
    match &report.choice {
        Ok(choice) if report.is_ready() => {
            let in_tls = listed(beside_tls(true), "or");
            format!(
                "RDMA can be used: `auto` takes verbs on {}, and in TLS {in_tls}: frames sealed \
                 over its queue pairs, unless the primary says verbs = \"one-sided\"",
                choice.device
            )
        }
        Ok(choice) => format!("`auto` would try verbs on {}; see FAIL above", choice.device),
        Err(NoPort::NoSuchDevice { name, .. } | NoPort::Unusable { name, .. }) if named => {
            format!("RDMA cannot be used on {name}")
        }
        Err(_) => {
            "RDMA cannot be used here. dlock works without it: `auto` takes shared memory on \
                   the primary's own host, TCP between hosts"
                .into()
        }
    }
}

/// The fabrics that `auto` tries in a session with TLS, in this order.
fn beside_tls(has_device: bool) -> impl Iterator<Item = FabricKind> {
    let kinds = FabricKind::ALL.into_iter().filter(|&kind| kind != FabricKind::Verbs);
    kinds.filter(move |kind| has_device || !kind.needs_device())
}

fn document(findings: &Findings, report: &Report) -> Value {
    let lines: Vec<Value> = report
        .lines
        .iter()
        .map(|line| {
            let level = match line.level {
                Level::Good => "ok",
                Level::Note => "note",
                Level::Problem => "problem",
            };
            let (subject, text, remedy) = (&line.subject, &line.text, &line.remedy);
            json!({ "level": level, "subject": subject, "text": text, "remedy": remedy })
        })
        .collect();
    let choice = report.choice.as_ref().ok().map(|choice| {
        json!({
            "device": choice.device,
            "port": choice.port,
            "gid": choice.gid.gid.to_string(),
            "gid_index": choice.gid.index,
        })
    });
    json!({
        "ready": report.is_ready(),
        "auto": match choice {
            Some(_) => FabricKind::Verbs.name().to_string(),
            None => listed(FabricKind::without_device(), "or"),
        },
        "auto_in_tls": listed(beside_tls(choice.is_some()), "or"),
        "choice": choice,
        "no_choice_because": report.choice.as_ref().err().map(ToString::to_string),
        "library": findings.library_absent.is_none(),
        "devices": findings.devices.iter().map(device).collect::<Vec<_>>(),
        "memlock_bytes": findings.memlock_bytes,
        "memlock_exempt": findings.memlock_exempt,
        "register_bytes_per_client": REGISTER_BYTES,
        "lines": lines,
    })
}

fn device(device: &DeviceInfo) -> Value {
    let atomics = match device.atomics {
        Atomics::None => "none",
        Atomics::Device => "device",
        Atomics::Global => "global",
    };
    json!({
        "name": device.name,
        "not_usable_because": usable(device).err(),
        "atomics": atomics,
        "queue_max": device.queue_max,
        "reads_or_atomics_max": device.reads_served_max.min(device.reads_issued_max),
        "ports": device.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn port(port: &PortInfo) -> Value {
    let state = match port.state {
        PortState::Active => "active".to_string(),
        PortState::Down => "down".into(),
        PortState::Initializing => "initializing".into(),
        PortState::Other(code) => code.to_string(),
    };
    let link = match port.link {
        Link::Infiniband => "infiniband",
        Link::Ethernet => "ethernet",
        Link::Unknown => "unknown",
    };
    let gids: Vec<Value> = port
        .gids
        .iter()
        .map(|gid| {
            let kind = match gid.kind {
                GidKind::Infiniband => "ib",
                GidKind::RoceV1 => "roce v1",
                GidKind::RoceV2 => "roce v2",
                GidKind::Unknown => "unknown",
            };
            json!({ "index": gid.index, "gid": gid.gid.to_string(), "type": kind })
        })
        .collect();
    json!({ "number": port.number, "state": state, "link": link, "gids": gids })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Findings {
        let absent = "libibverbs.so.1: not found; install libibverbs1";
        Findings { library_absent: Some(absent.into()), ..Findings::default() }
    }

    #[test]
    fn without_rdma_the_verdict_says_what_is_used_instead() {
        let report = report(&nothing(), &PortOptions::default());
        assert!(verdict(&report, false).contains("shared memory"), "{}", verdict(&report, false));
        let document = document(&nothing(), &report);
        assert_eq!((&document["ready"], &document["library"]), (&json!(false), &json!(false)));
        assert_eq!(document["choice"], Value::Null);
        assert_eq!(document["auto"], listed(FabricKind::without_device(), "or"));
        assert_eq!(document["auto_in_tls"], "shm or tcp");
    }

    #[test]
    fn a_device_is_described_and_chosen() {
        use dlock_fabric::verbs::port_selection::{Gid, GidInfo};
        let address: std::net::IpAddr = "10.0.0.1".parse().expect("an address");
        let gids = vec![GidInfo { index: 1, gid: Gid::from(address), kind: GidKind::RoceV2 }];
        let (state, link) = (PortState::Active, Link::Ethernet);
        let port = PortInfo { number: 1, state, link, lid: 0, mtu: 3, gids };
        let device = DeviceInfo {
            name: "a0".into(),
            iwarp: false,
            is_softroce: true,
            atomics: Atomics::Device,
            queue_max: 1_024,
            completions_max: 1_024,
            reads_served_max: 16,
            reads_issued_max: 8,
            ports: vec![port],
            unusable: None,
        };
        let findings = Findings {
            devices: vec![device],
            kernel_devices: vec!["a0".into()],
            device_files: vec![("/dev/infiniband/uverbs0".into(), true)],
            kernel_rdma: true,
            ..Findings::default()
        };
        let ready = report(&findings, &PortOptions::default());
        let said = verdict(&ready, false);
        assert!(
            said.contains("verbs on a0") && said.contains("in TLS shm, sealed or tcp"),
            "{said}"
        );
        let document = document(&findings, &ready);
        assert_eq!(document["choice"]["gid"], "::ffff:10.0.0.1");
        assert_eq!(document["auto_in_tls"], "shm, sealed or tcp");
        assert_eq!(document["devices"][0]["reads_or_atomics_max"], 8);
        assert_eq!(document["devices"][0]["ports"][0]["gids"][0]["type"], "roce v2");

        let limited = Findings { memlock_bytes: Some(4_096), ..findings };
        let options = PortOptions { register_bytes: REGISTER_BYTES, ..PortOptions::default() };
        let tight = report(&limited, &options);
        assert!(
            !tight.is_ready() && verdict(&tight, false).contains("FAIL"),
            "{}",
            verdict(&tight, false)
        );
    }
}
