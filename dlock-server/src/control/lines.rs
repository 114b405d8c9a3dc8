// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Unix stream socket for operators: one line of JSON in, one line of JSON out, as often as one
//! likes. Its mode (`admin_socket.rs`) says who may: the user of this process, root, and its group
//! if that is wanted.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::ACCEPT_PAUSE;
use crate::log_limit::{limited, Cause};

/// Connections at a time.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Bytes of a request line.
const LINE_MAX: u64 = 4 * 1024;
/// Bytes that are read of a longer one after its answer.
const DISCARDED_MAX: u64 = 64 * 1024;
/// How long a connection may be silent, and a reply unread.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// Whoever answers operators.
pub(crate) trait Answers: Send + Sync + 'static {
    /// The answer to a line.
    fn reply(&self, line: &[u8]) -> impl Future<Output = Value> + Send;
}

/// An answer that says why there is none.
pub(crate) fn failure(why: &str) -> Value {
    json!({ "ok": false, "error": why })
}

/// Serves the socket, without end.
pub(crate) async fn serve(listener: UnixListener, endpoint: Arc<impl Answers>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed, so there is a permit some time.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let endpoint = endpoint.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &*endpoint).await {
                        log::debug!("an admin connection has ended: {error}");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                limited!(
                    Cause::Admin,
                    Level::Warn,
                    "an admin connection cannot be accepted: {error}"
                );
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(mut stream: UnixStream, endpoint: &impl Answers) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut lines).take(LINE_MAX);
        timeout(IDLE_WAIT, bounded.read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n");
        let mut reply = match whole {
            true => endpoint.reply(&line).await.to_string(),
            false => failure("the request is longer than 4096 bytes, or has no end").to_string(),
        };
        reply.push('\n');
        timeout(IDLE_WAIT, write.write_all(reply.as_bytes())).await??;
        if !whole {
            // A close before the end would fail the sender's write, and it reads no answer.
            let mut rest = (&mut lines).take(DISCARDED_MAX);
            line.clear();
            timeout(IDLE_WAIT, rest.read_until(b'\n', &mut line)).await??;
            return Ok(());
        }
    }
}
