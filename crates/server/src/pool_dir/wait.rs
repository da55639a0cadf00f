//! Waits for a pool that another command has open.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use surface::{Error, Result};

/// How to reach a pool.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Bytes for buffers and caches, if this process opens the pool itself.
    pub memory: u64,
    /// Seconds to wait for another command that has the pool open.
    pub wait: u32,
}

/// Interval between attempts.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// Repeats an attempt until it breaks with its result, as long as `access` permits. It continues
/// while another command has the pool, with the error to return if that lasts too long. The
/// argument of the attempt says whether it is the last one.
///
/// # Errors
/// Those of the attempt, and the last one that it continued with.
pub fn wait_for<T>(access: &Access, mut attempt: impl FnMut(bool) -> Result<ControlFlow<T, Error>>) -> Result<T> {
    let give_up = Instant::now() + Duration::from_secs(u64::from(access.wait));
    loop {
        let is_last = Instant::now() >= give_up;
        match attempt(is_last)? {
            ControlFlow::Break(value) => return Ok(value),
            ControlFlow::Continue(error) if is_last => return Err(error),
            ControlFlow::Continue(_) => std::thread::sleep(RETRY_EVERY),
        }
    }
}
