// SPDX-License-Identifier: MIT OR Apache-2.0
//! The panic guard: no panic leaves a library through a C function.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs `body`; if it panics, logs one line and returns `failure`.
#[inline]
pub fn call<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            report(name, payload);
            failure
        }
    }
}

#[cold]
fn report(name: &str, payload: Box<dyn Any + Send>) {
    let told = catch_unwind(AssertUnwindSafe(|| {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        log::error!("{name}: internal error: {text}; please report it");
    }));
    // What a payload does when it is dropped is unknown: it might panic again.
    std::mem::forget(payload);
    if let Err(second) = told {
        std::mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_panic_becomes_the_failure_code() {
        assert_eq!(call("f", -1, || 5), 5);
        assert_eq!(call("f", -1, || panic!("oh")), -1);
        assert_eq!(call("f", -1, || std::panic::panic_any(Bomb)), -1);
    }
}
