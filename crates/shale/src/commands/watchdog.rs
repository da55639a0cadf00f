//! Signs of life for a service manager that kills a service without any (`WatchdogSec=`).
//!
//! A sign follows a query of the pool's health, which takes the locks of reads and writes: a server
//! with stuck locks is silent, and is restarted. A disk that does not respond leaves them free, and
//! does not justify a restart.

use std::thread::JoinHandle;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use engine::Pool;

/// Gives the signs until it is dropped.
pub struct Watchdog {
    /// Dropped to end the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to give signs of life, if the service manager wants them.
    pub fn start(pool: &Pool) -> Option<Self> {
        let every = host::watchdog_interval()? / 2;
        let (alive, ended) = bounded(0);
        let pool = pool.clone();
        let body = move || {
            let mut is_told = false;
            loop {
                pool.status();
                if let Err(error) = host::notify_manager("WATCHDOG=1")
                    && !std::mem::replace(&mut is_told, true)
                {
                    log::warn!("cannot send signs of life to the service manager: {error}");
                }
                if !matches!(ended.recv_timeout(every), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("watchdog".to_owned()).spawn(body) {
            Ok(thread) => Some(Self { alive: Some(alive), thread: Some(thread) }),
            Err(error) => {
                log::warn!("cannot send signs of life to the service manager: {error}");
                None
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.alive = None;
        // A panic was already reported.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
