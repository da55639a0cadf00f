//! The server against a device in memory: a driver of our own, a foreign one (`blkio`), and hostile
//! guests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking"
)]

mod foreign;
mod hostile;
mod image;
mod lives;
mod requests;
mod sockets;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use fe_vhost::{Server, ServerOptions};
use testkit::vhost::Monitor;
use testkit::{Memory, MemorySet, TempDir};

const SIZE: u64 = 64 << 20;

/// A server of devices in memory, and its log.
struct Setup {
    set: Arc<MemorySet>,
    server: Option<Server>,
    log: Arc<Mutex<Vec<String>>>,
    dir: TempDir,
}

impl Setup {
    fn new(devices: &[(&str, &Arc<Memory>)]) -> Self {
        let set = Arc::new(MemorySet::of(devices));
        let mut setup = Self { set, server: None, log: Arc::default(), dir: TempDir::new("vhost") };
        setup.start();
        setup
    }

    fn options(&self) -> ServerOptions {
        let log = Arc::clone(&self.log);
        let log = move |text: &str| log.lock().unwrap().push(text.to_owned());
        // More queues than this machine may have processors.
        ServerOptions { queues: 4, serial_prefix: "pool-".to_owned(), log: Some(Arc::new(log)), ..Default::default() }
    }

    fn start(&mut self) {
        self.server = Some(Server::start(self.set.clone(), self.dir.path(), self.options()).unwrap());
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    fn attach(&self, name: &str, queues: usize) -> Monitor {
        Monitor::attach(&self.socket(name), queues)
    }

    fn has_logged(&self, text: &str) -> bool {
        self.log.lock().unwrap().iter().any(|line| line.contains(text))
    }
}
