// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process tells its primary of itself, so that operators see whose client it is.

use dlock_core::wire::about::{shown, About, HOST_LEN_MAX, LABEL_LEN_MAX, USER_LEN_MAX};
use dlock_core::wire::status::Status;
use dlock_fabric::os::{environment, users};

use crate::config::ClientConfig;

/// The environment variable with the label of clients whose configuration has none.
pub const LABEL_VARIABLE: &str = "DLOCK_LABEL";

/// The file with the name of the host, as this process's namespace has it.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Why a label is refused.
pub(crate) const LABEL_RULE: &str = "a label has 64 bytes at most, and no control characters";
const _: () = assert!(LABEL_LEN_MAX == 64);

/// Whether this is a label.
pub(crate) fn is_label(text: &str) -> bool {
    About::new(text, "", "", 0).is_some()
}

impl ClientConfig {
    /// The label of the configuration, or else of the environment; empty: none.
    fn effective_label(&self) -> String {
        let of_environment =
            || environment::variable(LABEL_VARIABLE).map(|label| label.to_string_lossy().into());
        self.label.clone().or_else(of_environment).unwrap_or_default()
    }

    /// Checks the label.
    ///
    /// # Errors
    /// `Error`: it is logged why.
    pub(crate) fn check_label(&self) -> Result<(), Status> {
        let label = self.effective_label();
        if is_label(&label) {
            return Ok(());
        }
        log::error!("the label \"{}\" cannot be used: {LABEL_RULE}", label.escape_debug());
        Err(Status::Error)
    }

    /// What the client tells of itself. A label that cannot be used was refused before.
    pub(crate) fn about(&self) -> About {
        let host = std::fs::read_to_string(HOSTNAME).unwrap_or_default();
        let (host, user) = (shown(host.trim_end(), HOST_LEN_MAX), users::own());
        let (user, pid) = (shown(&user, USER_LEN_MAX), std::process::id());
        About::new(&self.effective_label(), &host, &user, pid).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_tells_its_label_its_process_its_user_and_its_host() {
        let config = ClientConfig { label: Some("orders".into()), ..ClientConfig::default() };
        let about = config.about();
        assert_eq!((about.label(), about.pid), ("orders", std::process::id()));
        assert!(!about.host().is_empty() && !about.user().is_empty(), "{about:?}");
        assert_eq!(config.check_label(), Ok(()));
        for wrong in ["a\nb", &"x".repeat(65)] {
            let config = ClientConfig { label: Some(wrong.into()), ..ClientConfig::default() };
            assert_eq!(config.check_label(), Err(Status::Error), "{wrong:?}");
            assert_eq!(config.about(), About::NOTHING, "{wrong:?}");
        }
    }
}
