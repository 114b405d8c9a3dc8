// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signal dispositions that this process has inherited.

/// Whether this signal is ignored, as by `nohup` (SIGHUP) or in background jobs of a shell
/// (SIGINT). Programs leave such a signal ignored.
pub fn is_ignored(number: i32) -> bool {
    // SAFETY: zero is a valid value of every field.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `now` is valid for writes.
    let rc = unsafe { libc::sigaction(number, std::ptr::null(), &mut now) };
    rc == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Unblocks this signal in the calling thread, and in the threads that it starts: the program that
/// started this one may have blocked it. Called for a signal for which the program waits, before it
/// does.
pub fn let_through(number: i32) {
    // SAFETY: zero is a valid value of a signal set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a valid place; a number that is no signal's is refused.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_programs_ignore_broken_pipes_and_nothing_else() {
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGUSR2));
        assert!(!is_ignored(-1), "there is no such signal");
    }
}
