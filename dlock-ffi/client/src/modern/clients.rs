// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of `dlock.h`.

use std::os::raw::c_char;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::dlock_client::{
    Address, Client, Config, FabricChoice, FilePassword, KeyPassword, NoPassword,
};
use ::dlock_client::{QueuePairs, Tls, TlsFiles};
use dlock_core::limits::{CONTROL_WAIT_S, PORT_DEFAULT};
use dlock_ffi_abi::args;

use super::abi::*;
use super::failure::{invalid, run, Failure};
use super::handles;
use super::waiting::{deliver, in_any_case, in_time, Until};

/// The wait for a primary of a client that is opened without a time limit.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);
/// The client's own wait ends this long after the call's time, so that the call ends first.
const LATE: Duration = Duration::from_secs(1);
/// The longest time of a control call, with the wait for its turn.
pub(crate) const CONTROL_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);

/// The text of a field or an argument; `None`: null.
///
/// # Safety
/// `at` is null or points to a terminated string.
unsafe fn text(at: *const c_char, name: &str) -> Result<Option<String>, Failure> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for the string.
    let text = unsafe { args::text(at) };
    text.map(Some)
        .ok_or_else(|| invalid(format!("{name} does not end within {} bytes", args::TEXT_LEN_MAX)))
}

/// The configuration for these options.
///
/// # Safety
/// The strings of the options are null or terminated.
unsafe fn config(options: &dlock_client_options) -> Result<Config, Failure> {
    known_flags(options.flags, DLOCK_NO_TLS | DLOCK_SHARED_QUEUE_PAIR, "options")?;
    let mut config = Config::new();
    let port = match u16::try_from(options.port) {
        Ok(0) => PORT_DEFAULT,
        Ok(port) => port,
        Err(_) => return Err(invalid("options->port is above 65535")),
    };
    config = config.port(port).fabric(match options.fabric {
        DLOCK_FABRIC_AUTO => FabricChoice::default(),
        DLOCK_FABRIC_VERBS => FabricChoice::Verbs,
        DLOCK_FABRIC_SHM => FabricChoice::Shm,
        DLOCK_FABRIC_TCP => FabricChoice::Tcp,
        other => return Err(invalid(format!("options->fabric: {other} is none"))),
    });
    config = match options.horizon_ms {
        0 => config,
        DLOCK_FOREVER => config.without_horizon(),
        ms => config.horizon(Duration::from_millis(ms)),
    };
    if options.silence_ms != 0 {
        config = config.silence(Duration::from_millis(options.silence_ms));
    }
    if options.flags & DLOCK_SHARED_QUEUE_PAIR != 0 {
        config = config.queue_pairs(QueuePairs::Shared);
    }
    // SAFETY: as the caller vouches, here and below.
    if let Some(list) = unsafe { text(options.primaries, "options->primaries") }? {
        let primaries = Address::parse_list(&list, port)
            .map_err(|(item, error)| invalid(format!("options->primaries: {item:?}: {error}")))?;
        config = config.primaries(primaries);
    }
    // SAFETY: as above.
    if let Some(device) = unsafe { text(options.device, "options->device") }? {
        config = config.device(device);
    }
    // SAFETY: as above.
    if let Some(label) = unsafe { text(options.label, "options->label") }? {
        config = config.label(label);
    }
    if options.flags & DLOCK_NO_TLS != 0 {
        return Ok(config.without_tls());
    }
    // SAFETY: as above.
    Ok(match unsafe { tls(options) }? {
        Some(tls) => config.tls(tls),
        None => config,
    })
}

/// The TLS configuration of the options; `None`: the environment decides.
///
/// # Safety
/// As [`config`].
unsafe fn tls(options: &dlock_client_options) -> Result<Option<Tls>, Failure> {
    let file = |at, name| {
        // SAFETY: as the caller vouches.
        unsafe { text(at, name) }.map(|path| path.map(PathBuf::from))
    };
    let ca = file(options.tls_ca, "options->tls_ca")?;
    let cert = file(options.tls_cert, "options->tls_cert")?;
    let key = file(options.tls_key, "options->tls_key")?;
    let crl = file(options.tls_crl, "options->tls_crl")?;
    let password = file(options.tls_key_password_file, "options->tls_key_password_file")?;
    let is_unset = crl.is_none() && password.is_none();
    let (ca, cert, key) = match (ca, cert, key) {
        (Some(ca), Some(cert), Some(key)) => (ca, cert, key),
        (None, None, None) if is_unset => return Ok(None),
        _ => return Err(invalid("options: tls_ca, tls_cert and tls_key belong together")),
    };
    let password: Arc<dyn KeyPassword> = match password {
        Some(path) => Arc::new(FilePassword::new(path)),
        None => Arc::new(NoPassword),
    };
    let tls = Tls::load(TlsFiles { ca, crl, cert, key }, password);
    tls.map(Some).map_err(|error| invalid(format!("options: {error}")))
}

/// `dlock_error dlock_client_open(const char *host, const dlock_client_options *options,
/// uint64_t timeout_ns, dlock_cancel cancel, dlock_client *client)`
#[no_mangle]
pub unsafe extern "C" fn dlock_client_open(
    host: *const c_char,
    options: *const dlock_client_options,
    timeout_ns: u64,
    cancel: dlock_cancel,
    client: *mut dlock_client,
) -> dlock_error {
    run("dlock_client_open", || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            deliver(client, "client", || {
                let until = Until::new(timeout_ns, cancel)?;
                let host = text(host, "host")?.ok_or_else(|| invalid("host is NULL"))?;
                let given = Address::parse(&host, 0)
                    .map_err(|error| invalid(format!("host {host:?}: {error}")))?;
                let mut options = super::abi::options(options, "options")?;
                match (given.port().into(), options.port) {
                    (0, _) => {}
                    (port, 0) => options.port = port,
                    (port, other) if port == other => {}
                    (port, other) => {
                        let what = format!("host says port {port}, and options->port {other}");
                        return Err(invalid(what));
                    }
                }
                let config = config(&options)?;
                let client = open(given.host(), config, &until)?;
                Ok(dlock_client { id: handles::insert(client) })
            })
        }
    })
}

fn open(host: String, config: Config, until: &Until) -> Result<Client, Failure> {
    until.goes_on()?;
    // without a wait the client looks for no primary that recovers; `until` ends the call before
    // this wait ends
    let config = config.wait(until.left().map_or(FOREVER, |left| left.saturating_add(LATE)));
    let work = move || Client::with_config(&config, &host).map_err(Failure::from);
    let leave = |client: Client| {
        if let Err(error) = client.leave() {
            log::warn!("a client that was opened too late has not left: {error}");
        }
    };
    in_time(until, Duration::MAX, work, leave)
}

/// `dlock_error dlock_client_get_info(dlock_client client, dlock_client_info *info)`
#[no_mangle]
pub unsafe extern "C" fn dlock_client_get_info(
    client: dlock_client,
    info: *mut dlock_client_info,
) -> dlock_error {
    run("dlock_client_get_info", || {
        // SAFETY: the pointer is the caller's.
        let size = unsafe { size_of_caller(info, "info") }?;
        let client = handles::find::<Client>(client.id)?;
        let left = client.horizon_left();
        let found = dlock_client_info {
            client_id: client.id().get(),
            epoch: client.instance().epoch(),
            horizon_left_ns: left.map_or(DLOCK_FOREVER, |left| {
                u64::try_from(left.as_nanos()).unwrap_or(DLOCK_FOREVER)
            }),
            fabric: match client.instance().fabric() {
                "shm" => DLOCK_FABRIC_SHM,
                "tcp" => DLOCK_FABRIC_TCP,
                "verbs" | "sealed" => DLOCK_FABRIC_VERBS,
                _ => DLOCK_FABRIC_AUTO,
            },
            ..Plain::zeroed()
        };
        // SAFETY: a struct of this size.
        unsafe { write(info, size, &found) };
        Ok(())
    })
}

/// `dlock_error dlock_client_ping(dlock_client client, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_client_ping(
    client: dlock_client,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_client_ping", || {
        let until = Until::new(timeout_ns, cancel)?;
        let client = handles::find::<Client>(client.id)?;
        let work = move || client.heartbeat(CONTROL_WAIT).map_err(Failure::from);
        in_time(&until, CONTROL_WAIT, work, drop)
    })
}

/// `dlock_error dlock_client_leave(dlock_client client, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_client_leave(
    client: dlock_client,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_client_leave", || {
        let until = Until::new(timeout_ns, cancel)?;
        let client = handles::remove::<Client>(client.id)?;
        in_any_case(&until, CONTROL_WAIT, move || client.leave().map_err(Failure::from), drop)
    })
}

/// `dlock_error dlock_client_close(dlock_client client)`
#[no_mangle]
pub extern "C" fn dlock_client_close(client: dlock_client) -> dlock_error {
    run("dlock_client_close", || handles::remove::<Client>(client.id).map(drop))
}
