// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks of one program that share a fair lock with other programs, and give up waiting.
//!
//! ```text
//! dlockd & cargo run -p dlock-client --example tasks [IP [PORT]]
//! ```

use std::time::Duration;

use dlock_client::{Client, Config, Error, Lock, Mode};

const LEASE: Duration = Duration::from_secs(30);
const TASKS: u32 = 8;

/// Waits for the lock, but no longer than for something else that may come first: a future that is
/// dropped leaves the queue.
async fn work(lock: Lock, task: u32) -> Result<(), Error> {
    tokio::select! {
        guard = lock.acquire(Mode::Exclusive).lease(LEASE).wait(Duration::from_secs(60)) => {
            let guard = guard?;
            println!("task {task}: nobody else writes");
            tokio::time::sleep(Duration::from_millis(20)).await;
            guard.unlock_async().await
        }
        () = tokio::time::sleep(Duration::from_secs(10)) => {
            println!("task {task}: gave up, and left the queue");
            Ok(())
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let ip = args.next().unwrap_or_else(|| "127.0.0.1".into());
    let mut config = Config::new();
    if let Some(port) = args.next() {
        config = config.port(port.parse()?);
    }
    let client = Client::with_config(&config, &ip)?;
    let lock = client.fair_lock("example: tasks")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(work(lock.clone(), task))).collect();
        for task in tasks {
            task.await??;
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    drop(lock);
    client.leave()?;
    Ok(())
}
