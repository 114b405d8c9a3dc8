// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of `dlock doctor` on RDMA on this host, made from findings.
//!
//! ```text
//!   look() ──▶ Findings ──report(&findings, &options)──▶ Report     only `look` touches the system
//! ```

use std::fmt;
use std::fs;
use std::path::Path;

use super::context::devices;
use super::error::VerbsError;
use super::port_selection::{
    choose, usable, Atomics, DeviceInfo, Gid, GidKind, Link, NoPort, PortSelection, PortState,
};

/// What the doctor has found on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Why the library cannot be used; `None`: it can.
    pub library_absent: Option<String>,
    /// Why the devices could not be listed; `None`: they could.
    pub list_failed: Option<String>,
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// How many bytes this process may lock in memory; `None`: no limit.
    pub memlock_bytes: Option<u64>,
    /// Whether this process is exempt from the limit (`CAP_IPC_LOCK`).
    pub memlock_exempt: bool,
    /// The devices that the kernel has.
    pub kernel_devices: Vec<String>,
    /// The device files of verbs, and whether this process may use each.
    pub device_files: Vec<(String, bool)>,
    /// Whether the kernel's RDMA core is loaded.
    pub kernel_rdma: bool,
    /// Network interfaces on which SoftRoCE could be set up.
    pub interfaces: Vec<String>,
}

/// The options of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortOptions {
    /// The device that `dev_name` of the C API names; `None`: none is named.
    pub device: Option<String>,
    /// The address that `eid` of the C API gives; all zero: none is given.
    pub eid: [u8; 16],
    /// How many bytes will be registered.
    pub register_bytes: u64,
}

/// The meaning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The finding is in order.
    Good,
    /// The finding prevents nothing, but is worth knowing.
    Note,
    /// The finding prevents the use of RDMA.
    Problem,
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether the line reports a problem.
    pub level: Level,
    /// The subject: `library`, `memory`, a device's name, …
    pub subject: String,
    /// The finding, as a sentence.
    pub text: String,
    /// The remedy; every problem has one.
    pub remedy: Option<String>,
}

/// All lines, and the port that would be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In the order in which the subjects depend on each other.
    pub lines: Vec<Line>,
    /// The port that would be used, or why none can be used.
    pub choice: Result<PortSelection, NoPort>,
}

impl Report {
    /// Whether RDMA works with these options.
    pub fn is_ready(&self) -> bool {
        self.choice.is_ok() && self.lines.iter().all(|line| line.level != Level::Problem)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            let mark = match line.level {
                Level::Good => "ok  ",
                Level::Note => "note",
                Level::Problem => "FAIL",
            };
            writeln!(f, "{mark}  {}: {}", line.subject, line.text)?;
            if let Some(remedy) = &line.remedy {
                writeln!(f, "      -> {remedy}")?;
            }
        }
        Ok(())
    }
}

/// The report on these findings.
pub fn report(findings: &Findings, options: &PortOptions) -> Report {
    let mut lines = Vec::new();
    library_lines(findings, &mut lines);
    kernel_lines(findings, &mut lines);
    for device in &findings.devices {
        device_lines(device, &mut lines);
    }
    memory_lines(findings, options, &mut lines);
    let choice = choose(&findings.devices, options.device.as_deref(), &options.eid);
    lines.push(choice_line(&choice, options));
    Report { lines, choice }
}

fn line(level: Level, subject: &str, text: impl Into<String>, remedy: Option<String>) -> Line {
    Line { level, subject: subject.into(), text: text.into(), remedy }
}

fn library_lines(findings: &Findings, lines: &mut Vec<Line>) {
    lines.push(match (&findings.library_absent, &findings.list_failed) {
        (Some(reason), _) => {
            let (text, remedy) = reason.split_once("; ").unwrap_or((reason, "install rdma-core"));
            line(Level::Problem, "library", text, Some(remedy.into()))
        }
        (None, Some(reason)) => {
            let remedy = "load the kernel's RDMA modules: modprobe ib_uverbs".to_string();
            line(Level::Problem, "library", format!("libibverbs: {reason}"), Some(remedy))
        }
        (None, None) => line(Level::Good, "library", "libibverbs.so.1 is loaded", None),
    });
}

fn kernel_lines(findings: &Findings, lines: &mut Vec<Line>) {
    if !findings.kernel_devices.is_empty() {
        for (file, _) in findings.device_files.iter().filter(|(_, may)| !may) {
            let remedy = "run as root, or join the group of the file (often rdma)".to_string();
            let text = format!("{file} may not be used by this user");
            lines.push(line(Level::Problem, "kernel", text, Some(remedy)));
        }
        if findings.device_files.is_empty() {
            let remedy = "load the module: modprobe ib_uverbs".to_string();
            let text = "devices exist, but no /dev/infiniband/uverbs*";
            lines.push(line(Level::Problem, "kernel", text, Some(remedy)));
        } else if findings.devices.is_empty() && findings.library_absent.is_none() {
            let remedy = "install the providers: ibverbs-providers (Debian), libibverbs".into();
            let text =
                format!("no driver of the library for {}", findings.kernel_devices.join(", "));
            lines.push(line(Level::Problem, "kernel", text, Some(remedy)));
        }
        return;
    }
    let interface = findings.interfaces.first().map_or("eth0", String::as_str);
    let link = format!("rdma link add rxe0 type rxe netdev {interface}");
    let (text, remedy) = if findings.kernel_rdma {
        ("no RDMA device", format!("without hardware, use SoftRoCE: {link}"))
    } else {
        let text = "no RDMA device, and the kernel's RDMA modules are not loaded";
        (text, format!("without hardware, use SoftRoCE: modprobe rdma_rxe && {link}"))
    };
    lines.push(line(Level::Problem, "kernel", text, Some(remedy)));
}

fn device_lines(device: &DeviceInfo, lines: &mut Vec<Line>) {
    let name = device.name.as_str();
    if device.unusable.is_none() {
        let atomics = match device.atomics {
            Atomics::None => "no 64-bit atomics",
            Atomics::Device => "atomics of the device alone (IBV_ATOMIC_HCA)",
            Atomics::Global => "atomics shared with the CPU (IBV_ATOMIC_GLOB)",
        };
        let text = format!(
            "{atomics}, queues up to {}, {} reads or atomics at a time",
            device.queue_max,
            device.reads_served_max.min(device.reads_issued_max)
        );
        lines.push(line(Level::Note, name, text, None));
        device.ports.iter().for_each(|port| lines.push(port_line(device, port)));
    }
    lines.push(match usable(device) {
        Ok(choice) => {
            let text = format!("usable: port {}, address {}", choice.port, choice.gid.gid);
            line(Level::Good, name, text, None)
        }
        Err(reason) => {
            let (text, remedy) = reason.split_once("; ").unwrap_or((&reason, "see `rdma link`"));
            line(Level::Note, name, format!("not usable: {text}"), Some(remedy.into()))
        }
    });
}

fn port_line(device: &DeviceInfo, port: &super::port_selection::PortInfo) -> Line {
    let state = match port.state {
        PortState::Active => "active".into(),
        PortState::Down => "down".into(),
        PortState::Initializing => "not configured yet".into(),
        PortState::Other(code) => format!("in state {code}"),
    };
    let link = match port.link {
        Link::Infiniband => "InfiniBand",
        Link::Ethernet => "Ethernet",
        Link::Unknown => "link of unknown kind",
    };
    let gids: Vec<String> = port
        .gids
        .iter()
        .map(|gid| {
            let kind = match gid.kind {
                GidKind::Infiniband => "IB",
                GidKind::RoceV1 => "RoCE v1",
                GidKind::RoceV2 => "RoCE v2",
                GidKind::Unknown => "type unknown",
            };
            format!("{}: {} ({kind})", gid.index, gid.gid)
        })
        .collect();
    let gids = if gids.is_empty() { "no address".into() } else { gids.join(", ") };
    let bytes = 128_u32.checked_shl(port.mtu.into()).unwrap_or(0);
    let text = format!("port {} {state}, {link}, MTU {bytes}; {gids}", port.number);
    line(Level::Note, &device.name, text, None)
}

fn memory_lines(findings: &Findings, options: &PortOptions, lines: &mut Vec<Line>) {
    let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1_024));
    lines.push(match findings.memlock_bytes {
        None => line(Level::Good, "memory", "locked memory is not limited", None),
        Some(limit) if findings.memlock_exempt => {
            let text = format!("locked memory is limited to {}, but not for root", kib(limit));
            line(Level::Good, "memory", text, None)
        }
        Some(limit) if limit < options.register_bytes => {
            let text = format!(
                "{} may be locked in memory, {} are needed",
                kib(limit),
                kib(options.register_bytes)
            );
            let remedy = "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or \
                          `* - memlock unlimited` in /etc/security/limits.conf";
            line(Level::Problem, "memory", text, Some(remedy.into()))
        }
        Some(limit) => {
            line(Level::Good, "memory", format!("{} may be locked in memory", kib(limit)), None)
        }
    });
}

fn choice_line(choice: &Result<PortSelection, NoPort>, options: &PortOptions) -> Line {
    match choice {
        Ok(choice) => {
            let ignored = !Gid(options.eid).is_none() && !choice.by_eid;
            let remedy =
                ignored.then(|| "set eid to an address of a port above, or leave it".into());
            let (level, more) = match ignored {
                true => (Level::Note, "; the eid given is no port's address"),
                false => (Level::Good, ""),
            };
            let PortSelection { device, port, gid, .. } = choice;
            let text = format!("verbs on {device} port {port}, {}{more}", gid.gid);
            line(level, "choice", text, remedy)
        }
        // A named device must be usable; without a name, other fabrics may be used instead.
        Err(reason) if options.device.is_some() => {
            let remedy = "name one of the devices above, or none".to_string();
            line(Level::Problem, "choice", reason.to_string(), Some(remedy))
        }
        Err(reason @ NoPort::NoSuchAddress { .. }) => {
            let remedy = "give one of these addresses as eid, or none".to_string();
            line(Level::Problem, "choice", reason.to_string(), Some(remedy))
        }
        Err(_) => line(Level::Note, "choice", "no RDMA: shared memory or TCP", None),
    }
}

/// Examines this host.
pub fn look() -> Findings {
    let mut findings = Findings {
        kernel_devices: names_in(Path::new("/sys/class/infiniband")),
        kernel_rdma: Path::new("/sys/class/infiniband_verbs").exists()
            || Path::new("/sys/module/ib_core").exists(),
        interfaces: interfaces(),
        memlock_exempt: may_lock(),
        ..Findings::default()
    };
    match devices() {
        Ok(devices) => findings.devices = devices,
        Err(VerbsError::Absent(absent)) => findings.library_absent = Some(absent.to_string()),
        Err(error) => findings.list_failed = Some(error.to_string()),
    }
    let folder = Path::new("/dev/infiniband");
    for name in names_in(folder).into_iter().filter(|name| name.starts_with("uverbs")) {
        let path = folder.join(name);
        let may = fs::OpenOptions::new().read(true).write(true).open(&path).is_ok();
        findings.device_files.push((path.display().to_string(), may));
    }
    findings.memlock_bytes = memlock_bytes();
    findings
}

fn memlock_bytes() -> Option<u64> {
    let bytes = crate::os::threads::limit_of(libc::RLIMIT_MEMLOCK).ok()?.rlim_cur;
    (bytes != libc::RLIM_INFINITY).then_some(bytes)
}

/// How many bytes may be locked in memory, if that is limited for this process.
pub(super) fn memlock_limit() -> Option<u64> {
    memlock_bytes().filter(|_| !may_lock())
}

fn names_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Network interfaces, the loopback last: a host that has no other can use it.
fn interfaces() -> Vec<String> {
    let mut names = names_in(Path::new("/sys/class/net"));
    names.sort_by_key(|name| name == "lo");
    names
}

/// Whether the limit on locked memory does not apply: bit 14 of the effective capabilities.
fn may_lock() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|b| b >> 14 & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::super::port_selection::tests::roce;
    use super::*;

    fn good() -> Findings {
        Findings {
            devices: vec![roce("a0", "10.0.0.1")],
            kernel_devices: vec!["a0".into()],
            device_files: vec![("/dev/infiniband/uverbs0".into(), true)],
            kernel_rdma: true,
            ..Findings::default()
        }
    }

    fn problems(report: &Report) -> Vec<&Line> {
        report.lines.iter().filter(|line| line.level == Level::Problem).collect()
    }

    #[test]
    fn a_host_with_everything_is_ready() {
        let report = report(&good(), &PortOptions::default());
        assert!(report.is_ready(), "{report}");
        let text = report.to_string();
        for word in ["IBV_ATOMIC_HCA", "10.0.0.1", "RoCE v2", "MTU 1024", "verbs on a0 port 1"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn every_problem_has_a_remedy_and_none_is_ready() {
        let options = PortOptions { register_bytes: 1 << 20, ..PortOptions::default() };
        let absent = Findings {
            library_absent: Some("libibverbs.so.1: not found; install libibverbs1".into()),
            ..Findings::default()
        };
        let mut closed = good();
        closed.device_files[0].1 = false;
        let mut no_provider = good();
        no_provider.devices.clear();
        let mut no_files = good();
        no_files.device_files.clear();
        let locked = Findings { memlock_bytes: Some(65_536), ..good() };
        let cases = [
            (absent.clone(), "install libibverbs1"),
            (absent, "rdma link add"),
            (Findings { kernel_rdma: true, ..Findings::default() }, "rdma link add rxe0"),
            (closed, "group"),
            (no_provider, "ibverbs-providers"),
            (no_files, "modprobe ib_uverbs"),
            (Findings { list_failed: Some("ENOSYS".into()), ..Findings::default() }, "modprobe"),
            (locked, "LimitMEMLOCK"),
        ];
        for (findings, remedy) in cases {
            let report = report(&findings, &options);
            assert!(!report.is_ready(), "{report}");
            let problems = problems(&report);
            assert!(problems.iter().all(|line| line.remedy.is_some()), "{report}");
            let found = |l: &&Line| l.remedy.as_ref().is_some_and(|r| r.contains(remedy));
            assert!(problems.iter().any(found), "{remedy}: {report}");
        }
    }

    #[test]
    fn the_softroce_hint_names_an_interface_of_this_host() {
        let findings = Findings { interfaces: vec!["enp1s0".into()], ..Findings::default() };
        let text = report(&findings, &PortOptions::default()).to_string();
        assert!(text.contains("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev enp1s0"));
    }

    #[test]
    fn a_limit_counts_only_where_it_applies() {
        let options = PortOptions { register_bytes: 1 << 20, ..PortOptions::default() };
        let root = Findings { memlock_bytes: Some(1), memlock_exempt: true, ..good() };
        assert!(report(&root, &options).is_ready());
    }

    #[test]
    fn a_named_device_that_is_missing_is_a_problem_and_a_missing_wish_is_not() {
        let named = PortOptions { device: Some("b0".into()), ..PortOptions::default() };
        assert_eq!(problems(&report(&good(), &named)).len(), 1);
        let strange =
            PortOptions { device: Some("a0".into()), eid: [9; 16], ..PortOptions::default() };
        let report = report(&good(), &strange);
        assert!(report.is_ready() && report.to_string().contains("the eid given"), "{report}");
    }

    #[test]
    fn an_eid_that_no_port_has_is_a_problem_that_names_the_ports() {
        let strange = PortOptions { eid: [9; 16], ..PortOptions::default() };
        let report = report(&good(), &strange);
        assert!(!report.is_ready() && report.to_string().contains("a0 port 1"), "{report}");
    }

    #[test]
    fn this_host_can_be_looked_at() {
        let report = report(&look(), &PortOptions::default());
        assert!(!report.lines.is_empty());
    }
}
