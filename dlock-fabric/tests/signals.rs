// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals of the host process neither end a wait nor make it longer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dlock_core::clock::ServerTime;
use dlock_core::ids::{ClientId, Seq};
use dlock_core::memory::exec::Executor;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, Attached, FabricKind, Secret};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::{ClockEstimate, TcpExecutor};

static SIGNALS: AtomicU32 = AtomicU32::new(0);
/// The number of signals that a wait must survive.
const MANY: u32 = 200;

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Sets a handler without a restart of the system calls that the signal interrupts.
fn interrupt_on(signal: libc::c_int) {
    // SAFETY: zero is a valid value of every field; the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as libc::sighandler_t;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

fn frame(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(frame, &mut bytes);
    bytes
}

#[test]
fn a_wait_survives_signals_and_keeps_its_deadline() {
    interrupt_on(libc::SIGUSR1);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let client = ClientId::new(1).unwrap();
    let attach = Attach {
        client,
        secret: Secret([0; 16]),
        fabric: FabricKind::Tcp,
        verbs: None,
        returns: true,
    };
    let clock = ClockEstimate::from_exchange(0, 0, ServerTime(0));
    let waiter = std::thread::spawn(move || {
        let executor = TcpExecutor::attach(addr, &attach, clock).unwrap();
        let seq = executor.send(&Request::Ping).unwrap();
        let started = Instant::now();
        let wait = Duration::from_millis(300);
        assert_eq!(executor.reply(seq, deadline_in(wait)), Ok(None));
        assert!(started.elapsed() >= wait);
        executor.reply(seq, deadline_in(Duration::from_secs(60)))
    });
    let stop = AtomicBool::new(false);
    let thread = waiter.as_pthread_t();
    let (mut stream, _) = listener.accept().unwrap();
    let pong = Reply::Pong { at: ServerTime(1) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                // SAFETY: the thread is joined only after this loop has ended.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        stream.read_exact(&mut frame(&Frame::Attach(attach))).unwrap();
        let status = Status::Success;
        let attached = Attached::bare(status);
        stream.write_all(&frame(&Frame::Attached(attached))).unwrap();
        stream.read_exact(&mut frame(&Frame::Request(Seq(1), Request::Ping))).unwrap();
        while SIGNALS.load(Ordering::SeqCst) < MANY {
            std::thread::yield_now();
        }
        // Half an answer, more signals, and the other half.
        let answer = frame(&Frame::Reply(Seq(1), pong));
        stream.write_all(&answer[..9]).unwrap();
        while SIGNALS.load(Ordering::SeqCst) < 2 * MANY {
            std::thread::yield_now();
        }
        let waited = Instant::now();
        while waited.elapsed() < Duration::from_millis(310) {
            std::thread::yield_now();
        }
        stream.write_all(&answer[9..]).unwrap();
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(waiter.join().unwrap(), Ok(Some(pong)));
}
