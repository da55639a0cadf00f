//! Signs of life for a service manager that kills a service without any (`WatchdogSec=`).
//!
//! A sign is given only after the pool has said how it fares, which takes the locks that reads and
//! writes take: a server whose locks are stuck is silent, and is started again. A disk that stands
//! still leaves them free, and is no reason for that.

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
                    log::warn!("the service manager gets no sign of life: {error}");
                }
                if !matches!(ended.recv_timeout(every), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("watchdog".to_owned()).spawn(body) {
            Ok(thread) => Some(Self { alive: Some(alive), thread: Some(thread) }),
            Err(error) => {
                log::warn!("the service manager gets no sign of life: {error}");
                None
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.alive = None;
        // If it panicked, that was reported.
        drop(self.thread.take().map(JoinHandle::join));
    }
}
