// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration file: TOML, every key known, every error with its file, line and column.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock_core::limits;
use dlock_fabric::os::users;
use dlock_server::{CpuSet, Orphans, ServerConfig, StandbyConfig, VerbsUse};
use log::LevelFilter;
use serde::Deserialize;
use toml::Spanned;

use crate::format::Format;
use crate::rules::RuleKeys;
use crate::tls::TlsPaths;

/// The settings of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) server: ServerConfig,
    pub(crate) standby: Standby,
    pub(crate) state_file: FileChoice,
    pub(crate) admin_socket: FileChoice,
    /// The files for TLS; they are loaded after the command line was read.
    pub(crate) tls: TlsPaths,
    /// Whether to listen where strangers can connect even without TLS.
    pub(crate) insecure: bool,
    pub(crate) log_level: LevelFilter,
    pub(crate) log_format: Format,
}

/// The settings of a standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standby {
    /// The address of the primary whose place this standby takes; `None`: this process is no
    /// standby.
    pub(crate) of: Option<SocketAddr>,
    pub(crate) silence: Duration,
    pub(crate) fence: Option<String>,
}

/// Where the primary keeps its state file, or makes its admin socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileChoice {
    /// The path that [`dlock_server::DefaultFiles`] chooses.
    #[default]
    Default,
    /// The primary has no such file.
    Off,
    /// This path.
    At(PathBuf),
}

impl From<PathBuf> for FileChoice {
    fn from(path: PathBuf) -> Self {
        match path == Path::new("none") {
            true => Self::Off,
            false => Self::At(path),
        }
    }
}

impl Settings {
    /// The configuration of the standby; `None`: this primary is not one.
    pub(crate) fn standby(&self) -> Option<StandbyConfig> {
        let Standby { of, silence, fence } = self.standby.clone();
        of.map(|of| StandbyConfig { of, silence, fence })
    }
}

impl Default for Settings {
    fn default() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let StandbyConfig { silence, fence, .. } = StandbyConfig::of(nowhere);
        let standby = Standby { of: None, silence, fence };
        let (server, tls) = (ServerConfig::default(), TlsPaths::default());
        let (log_level, log_format) = (LevelFilter::Info, Format::default());
        let (state_file, admin_socket) = (FileChoice::Default, FileChoice::Default);
        let insecure = false;
        Self { server, standby, state_file, admin_socket, tls, insecure, log_level, log_format }
    }
}

/// The keys; `dlockd.toml` explains them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    listen: Option<Spanned<String>>,
    port: Option<Spanned<u16>>,
    ctrl_cpuset: Option<Spanned<String>>,
    cmd_cpuset: Option<Spanned<String>>,
    sleep_mode: Option<bool>,
    recovery_clients: Option<Spanned<u64>>,
    recovery_deadline_s: Option<u64>,
    tp_mode: Option<Spanned<u64>>,
    verbs: Option<Spanned<String>>,
    shm: Option<Spanned<bool>>,
    shm_users: Option<Spanned<Vec<String>>>,
    tcp: Option<Spanned<bool>>,
    absent_grace_s: Option<Spanned<Grace>>,
    orphans: Option<Spanned<String>>,
    device: Option<Spanned<String>>,
    clients_max: Option<Spanned<u64>>,
    locks_max: Option<Spanned<u64>>,
    objects_max: Option<Spanned<u64>>,
    frames_per_second_max: Option<Spanned<u64>>,
    admin_socket: Option<PathBuf>,
    admin_for_group: Option<bool>,
    http: Option<Spanned<String>>,
    state_file: Option<PathBuf>,
    standby_of: Option<Spanned<String>>,
    standby_silence_ms: Option<u64>,
    fence_command: Option<Spanned<String>>,
    log_level: Option<Spanned<String>>,
    log_format: Option<Spanned<String>>,
    insecure: Option<bool>,
    tls: Option<TlsPaths>,
    rules: Option<Vec<RuleKeys>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a number of seconds, or \"forever\"")]
enum Grace {
    Seconds(u64),
    Word(String),
}

/// A mistake in the configuration file: the range of its bytes there, and a message.
type Mistake = (Option<Range<usize>>, String);

/// Reads a configuration file.
///
/// # Errors
/// One line: the file, line and column, and what is wrong there.
pub(crate) fn read(path: &Path) -> Result<Settings, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{name}: cannot be read: {error}; check --config"))?;
    parse(&text).map_err(|(place, what)| match place {
        Some(place) => {
            let (line, column) = position(&text, place.start);
            format!("{name}:{line}:{column}: {}", one_line(&what))
        }
        None => format!("{name}: {}", one_line(&what)),
    })
}

/// The text with its control characters escaped, since a quoted text may have some.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_debug()),
            false => line.push(c),
        }
    }
    line
}

fn parse(text: &str) -> Result<Settings, Mistake> {
    let keys: Keys = toml::from_str(text).map_err(|error| {
        let what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        (error.span(), what)
    })?;
    let mut settings = Settings::default();
    let server = &mut settings.server;
    let cpus = |text: String| CpuSet::parse(&text).map(|_| Some(text));
    set(&mut server.bind, keys.listen, |text| {
        text.parse::<IpAddr>().map_err(|_| "this is no IPv4 or IPv6 address: give one in digits")
    })?;
    set(&mut server.port, keys.port, usable_port)?;
    set(&mut server.ctrl_cpuset, keys.ctrl_cpuset, cpus)?;
    set(&mut server.cmd_cpuset, keys.cmd_cpuset, cpus)?;
    server.sleep_mode = keys.sleep_mode.unwrap_or(server.sleep_mode);
    set(&mut server.recovery_clients, keys.recovery_clients, |count| {
        within(count, 0, limits::RECOVERY_CLIENTS_MAX as usize).map(|count| count as u32)
    })?;
    if let Some(seconds) = keys.recovery_deadline_s {
        server.recovery_deadline = Duration::from_secs(seconds);
    }
    set(&mut server.tp_mode, keys.tp_mode, |mode| within(mode, 0, 1).map(|mode| mode as u8))?;
    set(&mut server.verbs, keys.verbs, |word| verbs_use(&word))?;
    let mut last = None;
    for (switch, key) in [(&mut server.shm, keys.shm), (&mut server.tcp, keys.tcp)] {
        last = key.as_ref().map(Spanned::span).or(last);
        *switch = key.map_or(*switch, Spanned::into_inner);
    }
    if let Some(what) = server.no_fabric() {
        return Err((last, what));
    }
    set(&mut server.shm_users, keys.shm_users, |names| users::uids_of(&names))?;
    set(&mut server.absent_grace, keys.absent_grace_s, |grace| match grace {
        Grace::Seconds(seconds) => Ok(Some(Duration::from_secs(seconds))),
        Grace::Word(word) if word == "forever" => Ok(None),
        Grace::Word(_) => Err("this is neither a number of seconds nor \"forever\""),
    })?;
    set(&mut server.orphans, keys.orphans, |orphans| match orphans.as_str() {
        "lease" => Ok(Orphans::Lease),
        "grace" => Ok(Orphans::Grace),
        _ => Err("this is neither \"lease\" nor \"grace\""),
    })?;
    let verbs = server.verbs;
    set(&mut server.device, keys.device, |device| {
        let named = ServerConfig { device: Some(device), verbs, ..ServerConfig::default() };
        named.check().map(|()| named.device)
    })?;
    let limit = |max: usize| move |count| within(count, 1, max);
    set(&mut server.clients_max, keys.clients_max, limit(limits::CLIENTS_MAX))?;
    set(&mut server.locks_max, keys.locks_max, limit(limits::LOCKS_MAX))?;
    set(&mut server.objects_max, keys.objects_max, limit(limits::OBJECTS_MAX))?;
    let choice = |path: Option<PathBuf>| path.map_or(FileChoice::Default, FileChoice::from);
    settings.admin_socket = choice(keys.admin_socket);
    server.admin_for_group = keys.admin_for_group.unwrap_or(server.admin_for_group);
    settings.state_file = choice(keys.state_file);
    set(&mut server.http, keys.http, |text| socket_address(&text).map(Some))?;
    let standby = &mut settings.standby;
    set(&mut standby.of, keys.standby_of, |text| socket_address(&text).map(Some))?;
    if let Some(ms) = keys.standby_silence_ms {
        standby.silence = Duration::from_millis(ms);
    }
    let is_alone = standby.of.is_none();
    set(&mut standby.fence, keys.fence_command, |command| match (is_alone, command.trim()) {
        (true, _) => Err("only a standby runs it: set standby_of, too"),
        (false, "") => Err("it is empty: leave it out"),
        (false, _) => Ok(Some(command)),
    })?;
    set(&mut settings.server.frames_per_second_max, keys.frames_per_second_max, |frames| {
        within(frames, 1, u32::MAX as usize).map(|frames| frames as u32)
    })?;
    set(&mut settings.log_level, keys.log_level, |level| log_level(&level))?;
    set(&mut settings.log_format, keys.log_format, |format| format.parse())?;
    settings.insecure = keys.insecure.unwrap_or_default();
    settings.tls = keys.tls.unwrap_or_default();
    let rules = keys.rules.unwrap_or_default().into_iter().map(RuleKeys::rule);
    let rules: Result<_, _> = rules.collect();
    settings.server.rules = rules.map_err(|(place, what)| (Some(place), what))?;
    Ok(settings)
}

/// Sets a setting, if the file has it.
fn set<T, U, E: Display>(
    setting: &mut U,
    found: Option<Spanned<T>>,
    convert: impl FnOnce(T) -> Result<U, E>,
) -> Result<(), Mistake> {
    if let Some(found) = found {
        let place = found.span();
        *setting = convert(found.into_inner()).map_err(|e| (Some(place), e.to_string()))?;
    }
    Ok(())
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "this is no IPv4:PORT or [IPv6]:PORT: give it in digits")
}

/// A port that clients of the C API can be configured with, or 0 for any free one.
pub(crate) fn usable_port(port: u16) -> Result<u16, String> {
    match port {
        0 | limits::PORT_MIN.. => Ok(port),
        _ => Err(format!(
            "port {port} cannot be used by C clients, whose ports are {} to 65535: choose one of \
             these, or 0 for any free one",
            limits::PORT_MIN
        )),
    }
}

/// The value of the key `verbs` that this word names.
pub(crate) fn verbs_use(word: &str) -> Result<VerbsUse, &'static str> {
    match word {
        "auto" => Ok(VerbsUse::Auto),
        "on" => Ok(VerbsUse::On),
        "off" => Ok(VerbsUse::Off),
        "sealed" => Ok(VerbsUse::Sealed),
        "one-sided" => Ok(VerbsUse::OneSided),
        _ => Err("this is none of auto, on, sealed, one-sided, off"),
    }
}

/// The log level with this name.
pub(crate) fn log_level(word: &str) -> Result<LevelFilter, &'static str> {
    word.parse().map_err(|_| "this is none of off, error, warn, info, debug, trace")
}

fn within(value: u64, min: usize, max: usize) -> Result<usize, String> {
    match usize::try_from(value) {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("{value} is out of range: it must be {min} to {max}")),
    }
}

/// Line and column of a byte, both counted from 1, columns in characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::wire::fabric::FabricKind;

    const EXAMPLE: &str = include_str!("../../../dlockd.toml");

    #[test]
    fn the_example_is_valid_and_shows_the_defaults() {
        assert_eq!(parse(EXAMPLE).unwrap(), Settings::default());
    }

    #[test]
    fn the_example_shows_every_key_and_they_are_valid() {
        let shown = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line != "#";
        let uncomment = |line: &str| match shown(line) && !line.starts_with("#device") {
            true => line[1..].to_string(),
            false => line.to_string(),
        };
        // this machine may lack CPU 0 or CPU 1
        let all: Vec<String> =
            EXAMPLE.lines().map(uncomment).map(|l| l.replace("\"0-1\"", "\"0\"")).collect();
        let settings = parse(&all.join("\n")).unwrap();
        assert_eq!(settings.server.ctrl_cpuset.as_deref(), Some("0"));
        let state_file = FileChoice::At("/var/lib/dlock/epoch".into());
        assert_eq!(settings.state_file, state_file);
        assert!(matches!(settings.admin_socket, FileChoice::At(_)));
        // The message about an unknown key lists all keys.
        for (text, keys_min) in [
            ("no_such_key = 1", 10),
            ("[tls]\nno_such_key = 1", 4),
            ("[[rules]]\nno_such_key = 1", 6),
        ] {
            let (_, message) = parse(text).unwrap_err();
            let keys: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
            assert!(keys.len() > keys_min, "{message}");
            for key in keys {
                let [value, table] = [format!("{key} ="), format!("[{key}]")];
                let tables = format!("[{table}]");
                let given = |line: &str| {
                    let line = line.trim_start_matches('#');
                    line.starts_with(&value) || line == table || line == tables
                };
                assert!(EXAMPLE.lines().any(given), "{key} is missing in dlockd.toml");
            }
        }
    }

    #[test]
    fn every_mistake_is_found_at_its_line_and_column() {
        for (text, place, what) in [
            ("port = 21616\nno_such_key = 1\n", (2, 1), "no_such_key"),
            ("port = 70000\n", (1, 8), "70000"),
            ("port = \"x\"\n", (1, 8), "string"),
            ("port = 80\n", (1, 8), "C clients"),
            ("port = 1023\n", (1, 8), "C clients"),
            ("# c\n\nlisten = \"localhost\"\n", (3, 10), "address"),
            ("cmd_cpuset = \"-1\"\n", (1, 14), "-1"),
            ("ctrl_cpuset = \"\"\n", (1, 15), "no CPU"),
            ("clients_max = 1001\n", (1, 15), "1 to 1000"),
            ("clients_max = 0\n", (1, 15), "1 to 1000"),
            ("shm_users = [\"no such user\"]\n", (1, 13), "no user"),
            ("shm_users = [\"\"]\n", (1, 13), "no user"),
            ("shm_users = [\"root,daemon\"]\n", (1, 13), "no user"),
            ("tp_mode = 2\n", (1, 11), "0 to 1"),
            ("verbs = true\n", (1, 9), "string"),
            ("verbs = \"yes\"\n", (1, 9), "none of auto"),
            ("absent_grace_s = \"never\"\n", (1, 18), "forever"),
            ("absent_grace_s = -1\n", (1, 18), "forever"),
            ("orphans = \"never\"\n", (1, 11), "neither"),
            ("device = \"no_such_device\"\n", (1, 10), "no_such_device"),
            ("log_level = \"loud\"\n", (1, 13), "off, error"),
            ("log_format = \"xml\"\n", (1, 14), "none of auto"),
            ("sleep_mode = maybe\n", (1, 14), ""),
            ("port = 1\nport = 2\n", (2, 1), "duplicate"),
            ("[section]\n", (1, 2), "section"),
            ("[[rules]]\nnames = [\"DNS:a\", \"b\"]\n", (2, 19), "begins with"),
            ("port = \n", (1, 8), ""),
        ] {
            let (found, message) = parse(text).unwrap_err();
            let found = found.map(|found| position(text, found.start));
            assert_eq!(found, Some(place), "{text:?}: {message}");
            assert!(message.contains(what), "{text:?}: {message}");
            assert!(!message.contains('\n'), "{text:?}: {message}");
        }
    }

    #[test]
    fn a_file_that_turns_every_fabric_off_is_refused_at_the_last() {
        let lines = FabricKind::without_device().map(|kind| format!("{kind} = false\n"));
        let text = lines.fold("verbs = \"off\"\n".to_string(), |text, line| text + &line);
        let (found, message) = parse(&text).unwrap_err();
        let (_, column) = position(&text, text.rfind("false").unwrap());
        let place = (FabricKind::without_device().count() + 1, column);
        assert_eq!(found.map(|found| position(&text, found.start)), Some(place), "{message}");
        assert!(message.contains("all off"), "{message}");
        let on = text.replacen("false", "true", 1);
        assert!(parse(&on).is_ok(), "{on}");
    }

    #[test]
    fn values_arrive() {
        let text = "listen = \"::1\"\nport = 0\nabsent_grace_s = \"forever\"\nlocks_max = 7\n\
                    orphans = \"grace\"\n\
                    shm = false\nlog_level = \"debug\"\nrecovery_clients = 3\n";
        let settings = parse(text).unwrap();
        assert_eq!(settings.server.bind, "::1".parse::<IpAddr>().unwrap());
        assert_eq!(settings.server.absent_grace, None);
        assert_eq!(settings.server.orphans, Orphans::Grace);
        assert_eq!((settings.server.port, settings.server.locks_max), (0, 7));
        assert!(!settings.server.shm && settings.server.tcp);
        assert_eq!(settings.server.recovery_clients, 3);
        assert_eq!(settings.log_level, LevelFilter::Debug);
    }
}
