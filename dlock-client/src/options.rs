// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration with which a Rust program reaches its primary.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::about::{is_label, LABEL_RULE};
use crate::config::{ClientConfig, FabricChoice, SILENCE_MS};
use crate::error::Error;
use crate::host::Address;
use crate::secure::TlsUse;
use dlock_fabric::tls::Tls;

/// The longest horizon of a session.
pub const HORIZON_MAX: Duration = Duration::from_secs(86_400);

/// The queue pairs of a client over RDMA. Client and primary must be configured alike: the primary
/// refuses a client with the other choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePairs {
    /// One queue pair for lock words and one for messages.
    #[default]
    Separate,
    /// One queue pair for both.
    Shared,
}

/// The configuration of a client: made by [`Config::new`], changed by its methods.
///
/// ```
/// use std::time::Duration;
///
/// use dlock_client::{Config, FabricChoice};
///
/// let config = Config::new()
///     .port(30_000)
///     .fabric(FabricChoice::Tcp)
///     .horizon(Duration::from_secs(30));
/// assert_ne!(config, Config::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    port: Option<u16>,
    fabric: FabricChoice,
    queue_pairs: QueuePairs,
    device: Option<String>,
    gid: Option<Ipv6Addr>,
    horizon: Horizon,
    primaries: Option<Vec<Address>>,
    wait: Option<Duration>,
    silence: Option<Duration>,
    tls: TlsUse,
    cache: Option<Vec<Vec<u8>>>,
    label: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Horizon {
    /// The value of the environment variable, or else the default.
    #[default]
    Default,
    None,
    After(Duration),
}

impl Config {
    /// The defaults: port 21616, the best fabric there is, a horizon of 10 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// The primary's control port, not 0.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self { port: Some(port), ..self }
    }

    /// The fabric of the client's data path.
    #[must_use]
    pub fn fabric(self, fabric: FabricChoice) -> Self {
        Self { fabric, ..self }
    }

    /// The queue pairs the primary is configured for.
    #[must_use]
    pub fn queue_pairs(self, queue_pairs: QueuePairs) -> Self {
        Self { queue_pairs, ..self }
    }

    /// The RDMA device by its name, as `rdma link` prints it. Not used over tcp or shared memory.
    #[must_use]
    pub fn device(self, name: impl Into<String>) -> Self {
        Self { device: Some(name.into()), ..self }
    }

    /// The RDMA port by its GID, which has the form of an IPv6 address (`::ffff:a.b.c.d` for a RoCE
    /// port with an IPv4 address). Not used over tcp or shared memory.
    #[must_use]
    pub fn gid(self, gid: Ipv6Addr) -> Self {
        Self { gid: Some(gid), ..self }
    }

    /// The session's horizon, in whole seconds rounded up, from 1 s to [`HORIZON_MAX`].
    ///
    /// If the client has had no answer of its primary for this long, it neither operates on locks
    /// nor believes that it holds any, and the primary may end its holds without a lease. The
    /// library sends the heartbeats. If no horizon is set, the environment variable
    /// `DLOCK_HORIZON_S` decides; otherwise the horizon is 10 s.
    #[must_use]
    pub fn horizon(self, horizon: Duration) -> Self {
        Self { horizon: Horizon::After(horizon), ..self }
    }

    /// No horizon: the client relies on its locks for as long as its connection stands.
    #[must_use]
    pub fn without_horizon(self) -> Self {
        Self { horizon: Horizon::None, ..self }
    }

    /// The addresses at which the client looks for the successor of the primary, besides the
    /// address that it connects to.
    ///
    /// With this, or with the environment variable `DLOCK_PRIMARIES`, a client finds its primary
    /// again by itself: it notices that the primary is gone, comes back to it or to the first of
    /// these addresses at which a primary runs, claims its locks, and goes on. Meanwhile acquires
    /// that may wait do so; all other calls fail with [`NotReady`](crate::Error::NotReady). If the
    /// primary is always restarted at its own address, that one address is enough. With an empty
    /// list the program itself must bring the client back (`Instance::reinit`); the environment
    /// variable is then ignored.
    #[must_use]
    pub fn primaries(self, primaries: impl IntoIterator<Item = impl Into<Address>>) -> Self {
        Self { primaries: Some(primaries.into_iter().map(Into::into).collect()), ..self }
    }

    /// How long becoming a client may take in all.
    ///
    /// Within this time the client waits for a primary that recovers. If it knows several
    /// [`primaries`](Self::primaries), it also waits until one of them has started, for a minute at
    /// most. If this is not set, the client waits for no primary, and connecting, registering
    /// and attaching may take 10 s each at each address.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// How long the primary may be silent before a client that knows [`primaries`](Self::primaries)
    /// looks for another, from 100 ms to a minute. 1 s if neither this nor the environment variable
    /// `DLOCK_SILENCE_MS` is set.
    #[must_use]
    pub fn silence(self, silence: Duration) -> Self {
        Self { silence: Some(silence), ..self }
    }

    /// What operators see of the client, as in `dlock clients` and `dlock locks`: 64 bytes at most,
    /// without control characters. If this is not set, the environment variable `DLOCK_LABEL`
    /// decides.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(label.into()), ..self }
    }

    /// The client uses TLS with the primary. If this is not set, the environment decides
    /// (`DLOCK_TLS_CA`, `DLOCK_TLS_CERT`, `DLOCK_TLS_KEY`, `DLOCK_TLS_CRL`,
    /// `DLOCK_TLS_KEY_PASSWORD_FILE`). At each connection the client reads the files again if they
    /// have changed.
    #[must_use]
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls: TlsUse::With(tls), ..self }
    }

    /// No TLS; the environment is ignored.
    #[must_use]
    pub fn without_tls(self) -> Self {
        Self { tls: TlsUse::Off, ..self }
    }

    /// The client keeps locks whose names begin with one of these prefixes after their release, as
    /// [`Lock::cache`](crate::Lock::cache) says; an empty prefix stands for all locks. If this is
    /// not set, the environment variable `DLOCK_CACHE` decides (prefixes with commas between them,
    /// `*` for all locks).
    #[must_use]
    pub fn cache(self, prefixes: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        Self { cache: Some(prefixes.into_iter().map(Into::into).collect()), ..self }
    }

    /// Converts this to the configuration of the calls of the C API.
    ///
    /// # Errors
    /// `Invalid`: a value is out of its range.
    pub(crate) fn checked(&self) -> Result<ClientConfig, Error> {
        let port = match self.port {
            Some(0) => return Err(Error::Invalid("port 0 cannot be connected to")),
            Some(port) => port,
            None => ClientConfig::default().port,
        };
        let eid = match self.gid {
            Some(Ipv6Addr::UNSPECIFIED) => return Err(Error::Invalid("GID :: is no port's")),
            Some(gid) => gid.octets(),
            None => [0; 16],
        };
        let horizon_s = match self.horizon {
            Horizon::Default => None,
            Horizon::None => Some(0),
            Horizon::After(horizon) if horizon.is_zero() || horizon > HORIZON_MAX => {
                return Err(Error::Invalid("a horizon lasts longer than nothing, a day at most"));
            }
            Horizon::After(horizon) => {
                let up = u64::from(horizon.subsec_nanos() > 0);
                u32::try_from(horizon.as_secs() + up).ok()
            }
        };
        let (primaries, silence) = (self.primaries.clone(), self.silence);
        let is_borne = |s: Duration| {
            let ms = u64::try_from(s.as_millis()).unwrap_or(u64::MAX);
            SILENCE_MS.contains(&ms)
        };
        if silence.is_some_and(|silence| !is_borne(silence)) {
            return Err(Error::Invalid("a silence lasts 100 ms to a minute"));
        }
        if self.label.as_deref().is_some_and(|label| !is_label(label)) {
            return Err(Error::Invalid(LABEL_RULE));
        }
        let tp_mode = match self.queue_pairs {
            QueuePairs::Separate => 0,
            QueuePairs::Shared => 1,
        };
        let device = self.device.clone();
        let fabric = self.fabric;
        let config = ClientConfig {
            port,
            fabric,
            tp_mode,
            device,
            eid,
            horizon_s,
            exact_views: false,
            primaries,
            tls: self.tls.clone(),
            wait: self.wait,
            silence,
            cache: self.cache.clone(),
            label: self.label.clone(),
        };
        Ok(config.with_default_horizon())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HORIZON_S_DEFAULT;
    use std::net::SocketAddr;

    #[test]
    fn what_is_not_named_has_its_default() {
        let config = Config::new().checked().unwrap();
        assert_eq!(config, ClientConfig::default().with_default_horizon());
        if dlock_fabric::os::environment::variable(crate::config::HORIZON_VARIABLE).is_none() {
            assert_eq!(config.horizon_s, Some(HORIZON_S_DEFAULT));
        }
    }

    #[test]
    fn every_field_reaches_the_session() {
        let gid = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, 1);
        let other = SocketAddr::from(([10, 0, 0, 2], 21_616));
        let config = Config::new()
            .port(7)
            .fabric(FabricChoice::Verbs)
            .queue_pairs(QueuePairs::Shared)
            .device("mlx5_0")
            .gid(gid)
            .horizon(Duration::from_millis(2_001))
            .primaries([other])
            .wait(Duration::from_secs(7))
            .silence(Duration::from_millis(300))
            .cache(["page "])
            .label("orders")
            .without_tls();
        let expected = ClientConfig {
            port: 7,
            fabric: FabricChoice::Verbs,
            tp_mode: 1,
            device: Some("mlx5_0".into()),
            eid: gid.octets(),
            horizon_s: Some(3),
            tls: TlsUse::Off,
            exact_views: false,
            primaries: Some(vec![other.into()]),
            wait: Some(Duration::from_secs(7)),
            silence: Some(Duration::from_millis(300)),
            cache: Some(vec![b"page ".to_vec()]),
            label: Some("orders".into()),
        };
        assert_eq!(config.checked(), Ok(expected));
        assert_eq!(Config::new().without_horizon().checked().unwrap().horizon_s, Some(0));
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_and_not_replaced() {
        let is_refused = |config: Config| matches!(config.checked(), Err(Error::Invalid(_)));
        assert!(is_refused(Config::new().port(0)));
        assert!(is_refused(Config::new().gid(Ipv6Addr::UNSPECIFIED)));
        assert!(is_refused(Config::new().horizon(Duration::ZERO)));
        assert!(is_refused(Config::new().silence(Duration::from_millis(99))));
        assert!(is_refused(Config::new().label("a\u{1b}[2J")));
        assert!(is_refused(Config::new().label("x".repeat(65))));
        assert!(is_refused(Config::new().silence(Duration::from_millis(60_001))));
        assert!(is_refused(Config::new().horizon(HORIZON_MAX + Duration::from_nanos(1))));
        assert_eq!(Config::new().horizon(HORIZON_MAX).checked().unwrap().horizon_s, Some(86_400));
    }
}
