// SPDX-License-Identifier: MIT OR Apache-2.0
//! A store that checks fencing tokens, and writers that may stand still beyond their lease.
//!
//! ```text
//! dlockd &
//! mkdir values
//! cargo run -p dlock-client --example fenced_store serve store.sock values &
//! cargo run -p dlock-client --example fenced_store write store.sock 127.0.0.1 21616 atomic key 1
//! ```
//! A writer takes the lock `key` for a lease of 1 s, says `holds TOKEN`, and then writes each line
//! of its input. Stop it (Ctrl-Z), write by a second writer, and let the first one go on (`fg`):
//! its line is refused, although it has never asked whether its lease still runs. A lease alone
//! cannot prevent that: no check of a client is the last thing that happens before its write.
//!
//! The store keeps the largest token of each key beside the value, and compares and writes in one
//! step. In an SQL database that is
//! `UPDATE store SET value = $2, token = $1 WHERE key = $3 AND token <= $1`.

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use dlock_client::{Client, Config, LockType, Mode};

/// A request is one line: `KEY TOKEN VALUE`.
const LINE_MAX: u64 = 4_096;
const PATIENCE: Duration = Duration::from_secs(60);

/// Values in files, each with the largest token that has written it.
struct Store {
    folder: PathBuf,
    tokens: Mutex<HashMap<String, u64>>,
}

impl Store {
    fn open(folder: &Path) -> io::Result<Self> {
        let mut tokens = HashMap::new();
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            let Some(key) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let text = fs::read_to_string(&path)?;
            let token = text.split_once('\n').and_then(|(token, _)| token.parse().ok());
            if let Some(token) = token.filter(|_| is_key(key)) {
                tokens.insert(key.into(), token);
            }
        }
        Ok(Self { folder: folder.into(), tokens: Mutex::new(tokens) })
    }

    /// Writes the value unless a larger token has written before; the answer to the writer.
    fn put(&self, key: &str, token: u64, value: &str) -> io::Result<String> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let largest = tokens.get(key).copied().unwrap_or(0);
        if token < largest {
            return Ok(format!("refused: {token} is older than {largest}"));
        }
        // before the write: one that fails in the middle may have replaced the value
        tokens.insert(key.into(), token);
        // no key has a dot in its name, so a file with this name is left over from a crash
        let partial = self.folder.join(format!("{key}.new"));
        let mut file = File::create(&partial)?;
        write!(file, "{token}\n{value}\n")?;
        file.sync_all()?;
        fs::rename(partial, self.folder.join(key))?;
        File::open(&self.folder)?.sync_all()?;
        Ok("stored".into())
    }

    fn answer(&self, line: &str) -> String {
        let mut words = line.splitn(3, ' ');
        let key = words.next().filter(|key| is_key(key));
        let token = words.next().and_then(|token| token.parse().ok()).filter(|&token| token > 0);
        match (key, token, words.next()) {
            (Some(key), Some(token), Some(value)) => {
                self.put(key, token, value).unwrap_or_else(|error| format!("failed: {error}"))
            }
            _ => "failed: a request is KEY TOKEN VALUE; a key has letters, digits and _".into(),
        }
    }

    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.by_ref().take(LINE_MAX).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let Some(line) = line.strip_suffix('\n') else { return Ok(()) };
            writeln!(&mut &*stream, "{}", self.answer(line))?;
        }
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn serve(socket: &str, folder: &str) -> Result<(), Box<dyn Error>> {
    let store = Store::open(Path::new(folder))?;
    let listener = UnixListener::bind(socket)?;
    println!("serves");
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream?;
            let store = &store;
            scope.spawn(move || store.serve(&stream));
        }
        Ok(())
    })
}

/// Holds the lock `key`, and writes the lines of the input under its token.
fn write(
    socket: &str,
    (ip, port): (&str, &str),
    (lock_type, key, lease_s): (&str, &str, &str),
) -> Result<(), Box<dyn Error>> {
    let (lock_type, has_lease) = match lock_type {
        "atomic" => (LockType::Atomic, true),
        "rw" => (LockType::Rw, false),
        "rw_leased" => (LockType::Rw, true),
        "fair" => (LockType::Fair, true),
        _ => return Err("a lock is atomic, rw, rw_leased or fair".into()),
    };
    let (port, at) = (port.parse()?, ip.parse()?);
    let lease = Duration::from_secs(lease_s.parse()?);
    // a client that comes back after its connection broke, and so is told what became of its hold
    let mut config = Config::new().port(port).primaries([SocketAddr::new(at, port)]);
    if !has_lease {
        config = config.horizon(lease); // a lock without a lease ends with its client's horizon
    }
    let client = Client::with_config(&config, ip)?;
    let lock = client.lock_with_tokens(key, lock_type)?;
    let mut acquire = lock.acquire(Mode::Exclusive).wait(PATIENCE);
    if has_lease {
        acquire = acquire.lease(lease);
    }
    let guard = acquire.guard()?;
    let token = guard.token().ok_or("the primary gave no token")?;
    println!("holds {token}");
    let store = UnixStream::connect(socket)?;
    let mut answers = BufReader::new(&store).lines();
    for value in io::stdin().lock().lines() {
        writeln!(&mut &store, "{key} {token} {}", value?)?;
        println!("{}", answers.next().ok_or("the store has ended")??);
    }
    match guard.unlock() {
        Ok(()) => println!("unlocked"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// Runs the store or a writer, by the arguments.
pub fn run(args: &[&str]) -> Result<(), Box<dyn Error>> {
    match args {
        ["serve", socket, folder] => serve(socket, folder),
        ["write", socket, ip, port, lock_type, key, lease_s] => {
            write(socket, (ip, port), (lock_type, key, lease_s))
        }
        _ => Err("usage: fenced_store serve SOCKET FOLDER\n\
                  fenced_store write SOCKET IP PORT atomic|rw|rw_leased|fair KEY LEASE_S"
            .into()),
    }
}

#[allow(dead_code, reason = "its test has a main of its own")]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(&args.iter().map(String::as_str).collect::<Vec<_>>())
}
