// SPDX-License-Identifier: MIT OR Apache-2.0
//! One primary after the other, and clients that find the next one by themselves.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice};
use dlock_server::{Server, ServerConfig};

use super::{config, own_address, server_at};

/// One primary after the other, at the same address and with the same state file.
pub struct Site {
    pub folder: PathBuf,
    pub port: u16,
    pub config: ServerConfig,
    server: Option<Server>,
}

impl Site {
    pub fn new(name: &str) -> Self {
        Self::with(name, ServerConfig::default())
    }

    pub fn with(name: &str, config: ServerConfig) -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-at-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut site = Self { folder, port: 0, config, server: None };
        site.start();
        site
    }

    pub fn start(&mut self) {
        let state_file = Some(self.folder.join("state"));
        let admin_socket = Some(self.folder.join("admin"));
        let config =
            ServerConfig { bind: own_address(), state_file, admin_socket, ..self.config.clone() };
        let server = server_at(self.port, config);
        self.port = server.local_addr().port();
        self.server = Some(server);
    }

    /// Stops the primary, whether or not it has clients.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// How many clients the primary knows.
    pub fn clients(&self) -> usize {
        self.operate("{\"cmd\":\"clients\"}").matches("\"client\":").count()
    }

    /// The primary's answer to this line at its admin socket.
    pub fn operate(&self, line: &str) -> String {
        let mut admin = UnixStream::connect(self.folder.join("admin")).unwrap();
        admin.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(admin).read_line(&mut answer).unwrap();
        answer
    }

    pub fn address(&self) -> SocketAddr {
        (own_address(), self.port).into()
    }

    pub fn client(&self, fabric: FabricChoice) -> Arc<Instance> {
        by_itself(self.address(), fabric)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // a file or folder that is left over does no harm
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn by_itself(at: SocketAddr, fabric: FabricChoice) -> Arc<Instance> {
    let primaries = Some(vec![at.into()]);
    let silence = Some(Duration::from_millis(200));
    let config = ClientConfig { primaries, silence, ..config(at, fabric) };
    Instance::init_shared(&config, &at.ip().to_string()).expect("the primary admits a client")
}
