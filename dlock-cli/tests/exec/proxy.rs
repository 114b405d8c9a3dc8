// SPDX-License-Identifier: MIT OR Apache-2.0
//! A TCP proxy that stops passing bytes, as a failing network does; it closes nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// The place of the stop: the n-th chunk to arrive, counted over all connections and directions.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub chunk: usize,
    /// Whether half of the chunk is passed.
    pub half: bool,
    /// Whether the other direction, and other connections, go on.
    pub one_way: bool,
}

#[derive(Default)]
struct State {
    chunks: usize,
    stall: Option<Stall>,
    is_stalled: bool,
    is_lifted: bool,
    is_over: bool,
    streams: Vec<TcpStream>,
    /// The address to which new connections are passed on.
    primary: String,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy that passes everything on to `primary` until it stalls.
    pub fn start(primary: &str, stall: Option<Stall>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().stall = stall;
        shared.state.lock().unwrap().primary = primary.to_string();
        let ours = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ours.state.lock().unwrap().is_over {
                    return;
                }
                let primary = ours.state.lock().unwrap().primary.clone();
                let Ok(other) = TcpStream::connect(&primary) else { continue };
                for stream in [&stream, &other] {
                    stream.set_nodelay(true).unwrap();
                    ours.state.lock().unwrap().streams.push(stream.try_clone().unwrap());
                }
                let both = [(&stream, &other), (&other, &stream)];
                for (from, to) in both.map(|(a, b)| (a.try_clone(), b.try_clone())) {
                    let (shared, from, to) = (Arc::clone(&ours), from.unwrap(), to.unwrap());
                    thread::spawn(move || shared.pump(from, to));
                }
            }
        });
        Self { address, shared }
    }

    /// The number of chunks that have arrived.
    pub fn chunks(&self) -> usize {
        self.shared.state.lock().unwrap().chunks
    }

    /// Sets a stall; its chunks are counted from now on.
    pub fn arm(&self, stall: Stall) {
        let mut state = self.shared.state.lock().unwrap();
        state.stall = Some(Stall { chunk: state.chunks + stall.chunk, ..stall });
    }

    /// Closes every connection at both ends; later connections stall.
    pub fn reset(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.stall = Some(Stall { chunk: 0, half: false, one_way: false });
        state.is_stalled = true;
        for stream in &state.streams {
            let _ = stream.shutdown(Shutdown::Both); // a stream that is closed already is fine
        }
    }

    /// Passes new connections on to this primary.
    pub fn lead_to(&self, primary: &str) {
        self.shared.state.lock().unwrap().primary = primary.to_string();
    }

    /// Waits until the proxy has stalled; `false`: it has not within this time.
    pub fn has_stalled(&self, wait: Duration) -> bool {
        let state = self.shared.state.lock().unwrap();
        let waited = self.shared.changed.wait_timeout_while(state, wait, |s| !s.is_stalled);
        waited.unwrap().0.is_stalled
    }

    /// Passes on all bytes held up, and everything that comes later.
    pub fn lift(&self) {
        self.shared.state.lock().unwrap().is_lifted = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.lift();
        let mut state = self.shared.state.lock().unwrap();
        state.is_over = true;
        for stream in &state.streams {
            let _ = stream.shutdown(Shutdown::Both); // a stream that is closed already is fine
        }
        drop(state);
        let _ = TcpStream::connect(self.address); // wakes the listener
    }
}

impl Shared {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4_096];
        while let Ok(count) = from.read(&mut bytes) {
            let passed = self.pass_now(count);
            if to.write_all(&bytes[..passed]).is_err() {
                break;
            }
            self.wait(passed < count);
            if to.write_all(&bytes[passed..count]).is_err() || count == 0 {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write); // a stream that is closed already is fine
    }

    /// The bytes of a chunk that are passed without waiting.
    fn pass_now(&self, count: usize) -> usize {
        let mut state = self.state.lock().unwrap();
        let number = state.chunks;
        state.chunks += 1;
        match state.stall {
            Some(stall) if !state.is_stalled && number >= stall.chunk => {
                state.is_stalled = true;
                self.changed.notify_all();
                if stall.half {
                    count / 2
                } else {
                    0
                }
            }
            Some(stall) if state.is_stalled && !state.is_lifted && !stall.one_way => 0,
            _ => count,
        }
    }

    fn wait(&self, is_held_up: bool) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| is_held_up && !state.is_lifted).unwrap());
    }
}
