// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP endpoint: metrics, and probes for service managers and load balancers. It is off unless
//! it is configured, and read-only.
//!
//! ```text
//!   peer ── TCP, and TLS beyond loopback ──▶ thread "dlock-http" (tokio, hyper: HTTP/1.1)
//!             GET /metrics /livez /readyz /primary /standby
//!                    └▶ Role ─▶ last snapshots (snapshot.rs): no other thread is asked
//! ```
//! One request for each connection, and [`CONNECTION_WAIT`] for all of it: the handshake, the
//! request and the answer. With [`CONNECTIONS_MAX`] connections a further one takes that of the
//! oldest. So a peer that is silent, slow or floods costs a bounded number of sockets and buffers,
//! and a scrape, which takes milliseconds, finds a place.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use dlock_fabric::os::named;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::Tls;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, ALLOW, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use log::Level;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::log_limit::{limited, Cause};
use super::metrics;
use super::roles::{self, Role, Verdict, View};
use crate::config::ServerConfig;
use crate::control::ACCEPT_PAUSE;
use crate::error::StartError;
use crate::host::threads::{join, spawn};
use crate::server::listen;
use crate::transport::tls::shake_hands;
use crate::transport::Conn;

/// Connections at a time.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last.
const CONNECTION_WAIT: Duration = Duration::from_secs(10);
/// How long a peer may take for the head of its request.
const HEAD_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a request's head; hyper allows no smaller number.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Fields in the head of a request.
const FIELDS_MAX: usize = 64;

const PLAIN: &str = "text/plain; charset=utf-8";
const INDEX: &str = "dlockd: /metrics /livez /readyz /primary /standby\n";

/// The endpoint; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Http {
    address: SocketAddr,
    role: Arc<ArcSwap<Role>>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// The data that all connections share.
struct Shared {
    role: Arc<ArcSwap<Role>>,
    /// The TLS of the primary, whose ends are shown.
    tls: Option<Tls>,
    /// Whether the connections of this endpoint have TLS, too.
    is_tls: bool,
}

impl Http {
    /// The configured endpoint; `None`: there is none.
    ///
    /// # Errors
    /// The address cannot be used, or there is no thread.
    pub(crate) fn of(config: &ServerConfig) -> Result<Option<Arc<Self>>, StartError> {
        let Some(address) = config.http else { return Ok(None) };
        let listener = listen(address)?;
        let failed = |source| StartError::listen(address, "getsockname", source);
        let address = listener.local_addr().map_err(failed)?;
        let role = Arc::new(ArcSwap::from_pointee(Role::Starting));
        let stop = Arc::new(Notify::new());
        let is_tls = config.tls.is_some() && !address.ip().to_canonical().is_loopback();
        let shared = Shared { role: role.clone(), tls: config.tls.clone(), is_tls };
        let stopped = stop.clone();
        let (thread, ()) = spawn("http", None, move || {
            let runtime = crate::runtime(|builder| builder)?;
            let listener = {
                let _guard = runtime.enter();
                TcpListener::from_std(listener).map_err(|error| named("epoll_ctl", error))?
            };
            let work = move |()| {
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, Arc::new(shared)) => {}
                        () = stopped.notified() => {}
                    }
                });
                // dropping the runtime closes every connection
            };
            Ok(((), work))
        })?;
        let scheme = if is_tls { "https" } else { "http" };
        log::info!("metrics and probes are at {scheme}://{address}/");
        Ok(Some(Arc::new(Self { address, role, stop, thread: Some(thread) })))
    }

    /// The address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows this role from now on.
    pub(crate) fn shows(&self, role: Role) {
        self.role.store(Arc::new(role));
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.notify_one();
        self.thread.take().into_iter().for_each(join);
    }
}

/// Serves without end.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut open: Vec<AbortHandle> = Vec::with_capacity(CONNECTIONS_MAX + 1);
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let task = tokio::spawn(serve(stream, from, shared.clone()));
                open.retain(|task| !task.is_finished());
                open.push(task.abort_handle());
                if open.len() > CONNECTIONS_MAX {
                    open.remove(0).abort();
                    tokio::task::yield_now().await; // its socket is closed
                }
            }
            Err(error) => {
                let what = "an HTTP connection cannot be accepted";
                limited!(Cause::Http, Level::Warn, "{what}: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, from: SocketAddr, shared: Arc<Shared>) {
    match timeout(CONNECTION_WAIT, converse(stream, from, &shared)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::debug!("the HTTP connection of {from} has ended: {error}"),
        Err(_) => log::debug!("the HTTP connection of {from} took more than {CONNECTION_WAIT:?}"),
    }
}

async fn converse(stream: TcpStream, from: SocketAddr, shared: &Arc<Shared>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let connection: Box<dyn Conn> = match shared.tls.as_ref().filter(|_| shared.is_tls) {
        None => Box::new(stream),
        Some(tls) => {
            let by = tls.loads(); // before the session takes the loaded files
            let session = TlsSession::accept(tls).map_err(io::Error::other)?;
            match shake_hands(&stream, session, by).await {
                Ok(shaken) => Box::new(shaken.on(stream)),
                Err(error) => {
                    let why = crate::control::secure::reason(&error);
                    limited!(Cause::Http, Level::Warn, "no HTTPS connection with {from}: {why}");
                    return Err(error);
                }
            }
        }
    };
    let answers = service_fn(|request| {
        let answer = answer(&request, shared);
        async { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(connection), answers)
        .await
        .map_err(io::Error::other)
}

/// The answer to a request; its body is not read.
fn answer(request: &Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let role = shared.role.load_full();
    match request.uri().path() {
        "/metrics" => {
            let text = metrics::text(View::of(&role, shared.tls.as_ref()));
            response(StatusCode::OK, metrics::CONTENT_TYPE, text)
        }
        "/livez" => verdict(roles::is_alive(&role)),
        "/readyz" => verdict(roles::is_ready(&role)),
        "/primary" => verdict(roles::is_primary(&role)),
        "/standby" => verdict(roles::is_standby(&role)),
        "/" => plain(StatusCode::OK, INDEX.into()),
        _ => plain(StatusCode::NOT_FOUND, INDEX.into()),
    }
}

fn verdict(verdict: Verdict) -> Response<Full<Bytes>> {
    match verdict {
        Ok(text) => plain(StatusCode::OK, text + "\n"),
        Err(text) => plain(StatusCode::SERVICE_UNAVAILABLE, text + "\n"),
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    response(status, PLAIN, text)
}

fn response(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
