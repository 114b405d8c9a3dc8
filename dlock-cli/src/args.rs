// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use dlock_bench::Bench;
pub use dlock_cli_common::place::{drop_empty_variables, fabric_name, Fabric, Where};
use dlock_core::wire::message::{LockType, Mode};

use crate::help::*;
use crate::out;

/// Distributed locks: a guided tour, measurements, and a look into a running primary.
#[derive(Debug, Parser)]
#[command(name = "dlock", version = dlock_server::VERSION, term_width = out::width())]
#[command(after_help = EXAMPLES, after_long_help = concat_help())]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Say more on standard error; twice and three times: still more.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// The files of TLS.
    #[command(flatten)]
    pub tls: TlsFlags,
}

/// The files of TLS; without these options the environment names them.
#[derive(Clone, Debug, clap::Args)]
pub struct TlsFlags {
    /// Speak TLS with a primary of these CAs (PEM); else by DLOCK_TLS_CA, as the others
    #[arg(long, global = true, value_name = "FILE", help_heading = "TLS")]
    tls_ca: Option<PathBuf>,
    /// This client's certificate and its chain (PEM); DLOCK_TLS_CERT
    #[arg(long, global = true, value_name = "FILE", help_heading = "TLS")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM); DLOCK_TLS_KEY
    #[arg(long, global = true, value_name = "FILE", help_heading = "TLS")]
    tls_key: Option<PathBuf>,
    /// The revocation lists of the CAs (PEM); DLOCK_TLS_CRL
    #[arg(long, global = true, value_name = "FILE", help_heading = "TLS")]
    tls_crl: Option<PathBuf>,
    /// The file with the password of the key; DLOCK_TLS_KEY_PASSWORD_FILE
    #[arg(long, global = true, value_name = "FILE", help_heading = "TLS")]
    tls_key_password_file: Option<PathBuf>,
}

impl TlsFlags {
    /// Puts the paths into the environment: for this process, which still has one thread, and for
    /// those that it starts.
    pub fn to_environment(&self) {
        for (name, path) in [
            (dlock_client::TLS_CA_VARIABLE, &self.tls_ca),
            (dlock_client::TLS_CERT_VARIABLE, &self.tls_cert),
            (dlock_client::TLS_KEY_VARIABLE, &self.tls_key),
            (dlock_client::TLS_CRL_VARIABLE, &self.tls_crl),
            (dlock_client::TLS_PASSWORD_VARIABLE, &self.tls_key_password_file),
        ] {
            if let Some(path) = path {
                std::env::set_var(name, path);
            }
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A guided tour of about 20 seconds: starts a primary and clients as processes of their
    /// own, and checks everything it claims. Needs no configuration and no privileges.
    Demo(Demo),
    /// Measures lock cycles, batches, hand-over and objects, beside the raw baseline.
    Bench(Bench),
    /// Says how a running primary is.
    Status(Admin),
    /// Says how far a primary is that recovers what its predecessor's clients hold.
    #[command(after_help = RECOVER_HELP)]
    Recover(Recover),
    /// Has a primary in waiting take the place of the one that it waits for.
    #[command(after_help = PROMOTE_HELP)]
    Promote(Admin),
    /// Lists the locks of a running primary.
    Locks(Locks),
    /// Lists the clients of a running primary.
    Clients(Admin),
    /// Removes a client: it is asked to leave, then fenced.
    #[command(after_help = REMOVE_HELP, override_usage = "dlock remove [OPTIONS] <CLIENT>")]
    Remove(Remove),
    /// Breaks a lock: removes the clients that hold it.
    #[command(after_help = REMOVE_HELP, override_usage = "dlock break [OPTIONS] <NAME>")]
    Break(Break),
    /// Removes all clients, or all clients whose connections have ended.
    #[command(after_help = REMOVE_HELP)]
    Reset(Reset),
    /// Has a primary give no lock any more, and stop when none is held.
    #[command(after_help = DRAIN_HELP)]
    Drain(Drain),
    /// Says whether this host can use RDMA, what `auto` chooses, and what to do about problems.
    #[command(after_help = DOCTOR_HELP)]
    Doctor(Doctor),
    /// Runs a command while holding a lock, and ends with the command's exit code.
    #[command(after_help = EXEC_HELP, override_usage = EXEC_USAGE)]
    Exec(Exec),
    /// Holds a lock in the background, until dlock release; prints the id of the hold.
    #[command(after_help = HOLD_HELP)]
    Hold(HoldArgs),
    /// Gives a lock back that dlock hold has got, and says how long it was held.
    #[command(after_help = HOLD_HELP)]
    Release(ReleaseArgs),
    /// Makes a private CA, certificates for primaries and clients, and the list of revoked ones.
    #[command(after_help = CERTS_HELP)]
    Certs(Certs),
    /// A process of the tour or of the benchmark.
    #[command(hide = true)]
    Role(Role),
}

/// [`LockType`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Type {
    /// One holder, with a lease.
    Atomic,
    /// One writer or many readers, without a lease.
    Rw,
    /// One writer or many readers, with a lease, in order of arrival.
    Fair,
}

impl From<Type> for LockType {
    fn from(kind: Type) -> Self {
        match kind {
            Type::Atomic => LockType::Atomic,
            Type::Rw => LockType::Rw,
            Type::Fair => LockType::Fair,
        }
    }
}

/// [`Mode`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hold {
    /// Alone.
    Exclusive,
    /// With other readers (rw and fair locks).
    Shared,
}

impl From<Hold> for Mode {
    fn from(hold: Hold) -> Self {
        match hold {
            Hold::Exclusive => Mode::Exclusive,
            Hold::Shared => Mode::Shared,
        }
    }
}

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Without the pauses that let a person read along.
    #[arg(long)]
    pub fast: bool,
    /// How lock operations travel in the tour.
    #[arg(long, value_parser = fabric_name(), default_value = "auto")]
    pub fabric: Fabric,
}

/// Arguments of the commands that ask a running primary.
#[derive(Debug, clap::Args)]
pub struct Admin {
    /// The admin socket of dlockd (`admin_socket` in its configuration) [default: that of the one
    /// primary of this user or of the service]
    #[arg(long, env = "DLOCK_ADMIN_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Print JSON, one document, instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `locks`.
#[derive(Debug, clap::Args)]
pub struct Locks {
    /// This lock alone
    pub name: Option<OsString>,
    #[command(flatten)]
    pub admin: Admin,
}

/// Arguments of the commands that change something at a running primary.
#[derive(Debug, clap::Args)]
pub struct Operator {
    #[command(flatten)]
    pub admin: Admin,
    /// Not at an admin socket, but over TLS at this primary: IP, IP:PORT or HOST:PORT. Needs a
    /// certificate to which a rule of the primary gives the right admin.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "socket")]
    pub address: Option<dlock_client::Address>,
}

/// How clients are removed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Mercy {
    /// Seconds in which they may leave, or give the lock back, before they are fenced.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub grace: u32,
    /// End their leases at once, too.
    #[arg(long)]
    pub now: bool,
}

/// Arguments of `remove`.
#[derive(Debug, clap::Args)]
pub struct Remove {
    /// The client's id, as dlock clients and dlock locks have it.
    pub client: u32,
    #[command(flatten)]
    pub mercy: Mercy,
    #[command(flatten)]
    pub operator: Operator,
}

/// Arguments of `break`.
#[derive(Debug, clap::Args)]
pub struct Break {
    /// The name of the lock.
    pub name: OsString,
    /// Only if this client holds it.
    #[arg(long, value_name = "ID")]
    pub client: Option<u32>,
    #[command(flatten)]
    pub mercy: Mercy,
    #[command(flatten)]
    pub operator: Operator,
}

/// Which clients `reset` removes.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// Clients without a session: what they hold is kept for their return.
    #[arg(long)]
    pub departed: bool,
    /// All clients.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `reset`.
#[derive(Debug, clap::Args)]
pub struct Reset {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub mercy: Mercy,
    #[command(flatten)]
    pub operator: Operator,
}

/// Arguments of `drain`.
#[derive(Debug, clap::Args)]
pub struct Drain {
    /// End the drain: clients get locks again.
    #[arg(long)]
    pub undo: bool,
    #[command(flatten)]
    pub operator: Operator,
}

/// Arguments of `recover`.
#[derive(Debug, clap::Args)]
pub struct Recover {
    #[command(flatten)]
    pub admin: Admin,
    /// Wait no longer for the clients that are missing.
    #[arg(long)]
    pub now: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Whether this RDMA device can be used (a name as in `rdma link`).
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Print one JSON document instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// Fixed, because clap would name as required what the environment says.
const EXEC_USAGE: &str = "dlock exec [OPTIONS] <NAME> -- <COMMAND>...";

/// Arguments of `exec`.
#[derive(Debug, clap::Args)]
pub struct Exec {
    /// Name of the lock: 1 to 512 bytes, the same for all that exclude each other.
    pub name: OsString,
    /// Kind of lock. All users of a name must say the same.
    #[arg(long = "type", value_enum, default_value = "atomic")]
    pub kind: Type,
    /// Alone, or together with other readers.
    #[arg(long, value_enum, default_value = "exclusive")]
    pub mode: Hold,
    /// Seconds, at least 4, after which others may take the lock if this host does not answer;
    /// COMMAND is dead by then.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(2..=86_400))]
    pub lease: u32,
    /// Seconds to wait for the lock; 0: try once. Without it: as long as it takes.
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u32>,
    /// When the lock is lost: `kill` ends COMMAND; `warn` says so and lets it run; any other text
    /// ends it, and then runs that as a command of the shell, with DLOCK_NAME, DLOCK_TOKEN and
    /// DLOCK_REASON.
    #[arg(long, default_value = "kill", value_name = "kill|warn|CMD")]
    pub on_lost: OnLost,
    /// Of dlock hold: run without a terminal, and write here how it ended.
    #[arg(long, hide = true, value_name = "FILE")]
    pub outcome: Option<PathBuf>,
    /// Where the primary is.
    #[command(flatten)]
    pub place: Where,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `hold`.
#[derive(Debug, clap::Args)]
pub struct HoldArgs {
    /// Name of the lock: 1 to 512 bytes, the same for all that exclude each other.
    #[arg(required_unless_present = "list")]
    pub name: Option<OsString>,
    /// List the holds of this user.
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
    /// With --list: print JSON.
    #[arg(long, requires = "list")]
    pub json: bool,
    /// Kind of lock. All users of a name must say the same.
    #[arg(long = "type", value_enum, default_value = "atomic")]
    pub kind: Type,
    /// Alone, or together with other readers.
    #[arg(long, value_enum, default_value = "exclusive")]
    pub mode: Hold,
    /// Seconds, at least 4, after which others may take the lock if this host does not answer.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(4..=86_400))]
    pub lease: u32,
    /// Seconds to wait for the lock; 0: try once. Without it: as long as it takes.
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u32>,
    /// Where the primary is.
    #[command(flatten)]
    pub place: Where,
}

/// Arguments of `release`.
#[derive(Debug, clap::Args)]
pub struct ReleaseArgs {
    /// What dlock hold has printed.
    pub hold: String,
}

/// Arguments of the hidden `role held`.
#[derive(Debug, clap::Args)]
pub struct Held {
    /// The socket on which it can be asked to end.
    #[arg(long)]
    pub socket: PathBuf,
}

/// Arguments of `certs`.
#[derive(Debug, clap::Args)]
pub struct Certs {
    /// What to make.
    #[command(subcommand)]
    pub what: CertsWhat,
}

/// What `certs` makes.
#[derive(Debug, Subcommand)]
pub enum CertsWhat {
    /// Makes a CA (ca.crt, ca.key) and its empty list of revoked certificates (ca.crl).
    Init(CertsInit),
    /// Makes certificate and key of a primary: NAME.crt and NAME.key.
    Server(CertsServer),
    /// Makes certificate and key of a client: NAME.crt and NAME.key.
    Client(CertsClient),
    /// Puts certificates on the list of revoked ones, and issues the list anew.
    Revoke(CertsRevoke),
    /// Lists the CA, its list and all certificates: until when they are valid, what is revoked.
    List(CertsDir),
}

/// Where the files of `certs` are.
#[derive(Debug, clap::Args)]
pub struct CertsDir {
    /// The folder of the CA.
    #[arg(long, default_value = "certs", value_name = "FOLDER")]
    pub dir: PathBuf,
}

/// Arguments of `certs init`.
#[derive(Debug, clap::Args)]
pub struct CertsInit {
    #[command(flatten)]
    pub place: CertsDir,
    /// The name of the CA; no two CAs of a cluster may have the same. Without it: a new one.
    #[arg(long)]
    pub name: Option<String>,
    /// Days for which the CA is valid.
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// Days for which the list of revoked certificates is valid.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub crl_days: u32,
    /// Replace a CA that is there: all its certificates become worthless.
    #[arg(long)]
    pub force: bool,
}

/// What `certs server` and `certs client` have in common.
#[derive(Debug, clap::Args)]
pub struct CertsNode {
    /// Name of the holder (the common name of the certificate), and of the files.
    pub name: String,
    #[command(flatten)]
    pub place: CertsDir,
    /// Days for which the certificate is valid; never longer than the CA.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// Replace the files if they are there: renew the certificate, with a new key.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `certs server`.
#[derive(Debug, clap::Args)]
pub struct CertsServer {
    #[command(flatten)]
    pub node: CertsNode,
    /// A host name or address of the primary, for clients that check names; several are possible.
    #[arg(long = "host", value_name = "HOST")]
    pub hosts: Vec<String>,
}

/// Arguments of `certs client`.
#[derive(Debug, clap::Args)]
pub struct CertsClient {
    #[command(flatten)]
    pub node: CertsNode,
}

/// Arguments of `certs revoke`.
#[derive(Debug, clap::Args)]
pub struct CertsRevoke {
    /// Names (NAME.crt in the folder) or certificate files. Without any, the list stays as it is
    /// and is valid anew.
    pub names: Vec<String>,
    #[command(flatten)]
    pub place: CertsDir,
    /// Days for which the list is valid.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub crl_days: u32,
}

/// What happens to the command of `exec` when its lock is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// End it: SIGTERM, then SIGKILL, before the lease is over.
    Kill,
    /// Say so and let it run; the exit code is 76 if it succeeds.
    Warn,
    /// End it, then run this command of the shell.
    Run(String),
}

impl OnLost {
    /// Whether the command is ended.
    pub fn stops(&self) -> bool {
        *self != Self::Warn
    }
}

impl std::str::FromStr for OnLost {
    type Err = std::convert::Infallible;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(match word {
            "kill" => Self::Kill,
            "warn" => Self::Warn,
            command => Self::Run(command.to_string()),
        })
    }
}

/// Arguments of the hidden `role`.
#[derive(Debug, clap::Args)]
pub struct Role {
    /// The role.
    #[command(subcommand)]
    pub part: Part,
}

/// Arguments of the hidden `role keeper`: those of `exec`, and who started it.
#[derive(Debug, clap::Args)]
pub struct Keeper {
    /// The process id of `dlock exec`.
    #[arg(long)]
    pub supervisor: i32,
    /// The arguments of `dlock exec`.
    #[command(flatten)]
    pub exec: Exec,
}

/// Arguments of the hidden `role start`.
#[derive(Debug, clap::Args)]
pub struct Start {
    /// The process id of `dlock exec`.
    #[arg(long)]
    pub parent: i32,
    /// CLOCK_BOOTTIME in nanoseconds from which on it is too late to start.
    #[arg(long)]
    pub before: u64,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What a process of the tour or of the benchmark does.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Serves until its standard input ends.
    Primary(PrimaryRole),
    /// Holds the lock of `dlock exec`.
    Keeper(Keeper),
    /// Becomes the COMMAND of `dlock exec`.
    Start(Start),
    /// Is the COMMAND of `dlock hold`.
    Held(Held),
    /// Obeys commands on its standard input.
    Client {
        /// Where the primary is.
        #[command(flatten)]
        place: Where,
        /// Addresses of other primaries, where the client finds the successor of its own by itself.
        #[arg(long, value_delimiter = ',')]
        primaries: Vec<std::net::SocketAddr>,
    },
}

/// A primary of the tour, or of a test.
#[derive(Debug, clap::Args)]
pub struct PrimaryRole {
    /// The address to listen on.
    #[arg(long, default_value_t = std::net::Ipv4Addr::LOCALHOST.into())]
    pub listen: std::net::IpAddr,
    /// The TCP port; 0: any free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Start in recovery, for this many clients.
    #[arg(long, default_value_t = 0)]
    pub recover: u32,
    /// Milliseconds after which a vanished client's locks are recovered.
    #[arg(long)]
    pub grace_ms: Option<u64>,
    /// Where to offer the admin endpoint.
    #[arg(long)]
    pub admin_socket: Option<PathBuf>,
    /// The file that keeps epoch and clients.
    #[arg(long)]
    pub state_file: Option<PathBuf>,
    /// How many seconds to wait for clients that the state file names.
    #[arg(long, default_value_t = 30)]
    pub deadline: u64,
    /// The primary whose place it takes.
    #[arg(long)]
    pub standby_of: Option<std::net::SocketAddr>,
    /// The command that makes sure that the primary at `standby_of` serves no client any more.
    #[arg(long)]
    pub fence: Option<String>,
    /// The most frames of one client in a second.
    #[arg(long, default_value_t = dlock_server::FRAMES_PER_SECOND_MAX)]
    pub frames_per_second_max: u32,
    /// The most locks at a time.
    #[arg(long, default_value_t = dlock_core::limits::LOCKS_MAX)]
    pub locks_max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn manuals_and_completions_are_those_of_the_command_line() {
        let program =
            dlock_manuals::Program { name: "dlock", section: 1, document: "docs/dlock.md" };
        dlock_manuals::check_program(program, Args::command());
    }

    /// These texts are printed without wrapping.
    #[test]
    fn what_follows_the_options_in_a_help_fits_a_terminal_of_80_columns() {
        let all = [
            EXAMPLES,
            EXIT_CODES,
            RECOVER_HELP,
            REMOVE_HELP,
            DRAIN_HELP,
            PROMOTE_HELP,
            DOCTOR_HELP,
            EXEC_HELP,
            HOLD_HELP,
            CERTS_HELP,
        ];
        for line in all.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn a_command_without_dashes_is_refused() {
        let parse = |line: &str| Args::try_parse_from(line.split(' '));
        assert!(parse("dlock exec name --wait 0 -- true x").is_ok());
        assert!(parse("dlock exec name true").is_err());
        assert!(parse("dlock exec name --lease 0 -- true").is_err());
    }
}
