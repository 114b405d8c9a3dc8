// SPDX-License-Identifier: MIT OR Apache-2.0
//! A proxy before a primary, whose connections can be ended: both ends of one, or all of them on
//! the side of the primary alone.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Passes all bytes on between [`own_address`](super::own_address), at the primary's port, and the
/// primary.
pub struct Line(Arc<Ways>);

#[derive(Default)]
struct Ways {
    is_cut: AtomicBool,
    is_half: AtomicBool,
    /// The sockets from the client and to the primary. They stay open as long as the `Line` exists.
    connections: Mutex<Vec<[TcpStream; 2]>>,
}

impl Line {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind((super::own_address(), port)).unwrap();
        let line = Self(Arc::default());
        let ways = Arc::clone(&line.0);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let ways = Arc::clone(&ways);
                    std::thread::spawn(move || ways.pass(from, to));
                }
                ways.connections.lock().unwrap().push([near, far]);
            }
        });
        line
    }

    /// Ends the connection that carries the next message, in either direction.
    pub fn cut(&self) {
        self.0.is_cut.store(true, Ordering::SeqCst);
    }

    /// Ends all connections at the primary. The client does not notice, and waits on for its
    /// answers.
    pub fn cut_half(&self) {
        self.0.is_half.store(true, Ordering::SeqCst);
        for [_, far] in &*self.0.connections.lock().unwrap() {
            _ = far.shutdown(Shutdown::Both);
        }
    }
}

impl Ways {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            if self.is_cut.load(Ordering::SeqCst) || to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        if !self.is_half.load(Ordering::SeqCst) {
            _ = to.shutdown(Shutdown::Both);
            _ = from.shutdown(Shutdown::Both);
        }
    }
}
