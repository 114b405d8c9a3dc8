// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a primary whose configuration names none.

use std::time::Duration;

use dlock_server::{connect_admin, DefaultFiles};

use crate::file::{FileChoice, Settings};

/// How long to wait for a primary that may have the admin socket.
const ADMIN_WAIT: Duration = Duration::from_millis(100);

/// Chooses the files, and logs which.
///
/// # Errors
/// There is no place for the state file.
pub(crate) fn choose(settings: &mut Settings, files: &DefaultFiles) -> Result<(), String> {
    let server = &mut settings.server;
    match settings.state_file {
        FileChoice::At(_) => {}
        FileChoice::Off => log::warn!(
            "there is no state file (state_file = \"none\"): a primary that is started after this \
             one does not know who holds what, and gives locks that are held to others"
        ),
        // the next primary does not find the clients of this one, because its port may be another
        // one
        FileChoice::Default if server.port == 0 => log::info!(
            "there is no state file: with port 0 the next primary has another port, and other \
             clients; name a state_file if it shall recover what is held"
        ),
        FileChoice::Default => {
            let path = files.state_file(server.port).map_err(|why| {
                format!(
                    "there is no place for the state file, without which a primary that is started \
                     again gives locks that are held to others: {why}; name one with --state-file, \
                     or do without by --state-file none"
                )
            })?;
            log::info!("a primary that is started again recovers what is held from {path:?}");
            server.earlier_state_files = files.other_state_files(server.port, &path);
            server.state_file = Some(path);
        }
    }
    // a primary can do without an admin socket
    if settings.admin_socket == FileChoice::Default && server.port != 0 {
        let name = match settings.standby.of {
            Some(_) => format!("{}-standby", server.port),
            None => server.port.to_string(),
        };
        match files.admin_socket(&name) {
            Ok(path) if connect_admin(&path, ADMIN_WAIT).is_ok() => log::warn!(
                "there is no admin socket, and no `dlock status`: another primary of this user has \
                 {path:?}; name another one with --admin-socket"
            ),
            Ok(path) => server.admin_socket = Some(path),
            Err(why) => log::warn!(
                "there is no admin socket, and no `dlock status`: {why}; name one with \
                 --admin-socket"
            ),
        }
    }
    Ok(())
}
