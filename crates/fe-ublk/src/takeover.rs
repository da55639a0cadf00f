//! Devices that an earlier server of the pool has left: which there are, and how each becomes this
//! server's. Decides; the steps that need the kernel's queues are in [`device`](crate::device).
//!
//! | state | cause | action of this server |
//! | --- | --- | --- |
//! | waiting | the server died, or left it for the next one | takes it over |
//! | live | the server just died, or another program serves it | waits for the kernel; refuses |
//! | dead | the server died between two steps of a start or a stop | removes it |

use std::io;

use surface::{DeviceId, Error, ErrorKind, Result};

use crate::control::Driver;
use crate::mark::Owner;
use crate::wire::{DEPTH_MAX, Info, QUEUES_MAX, State, features};

/// Smallest buffer for a request: the smallest page.
const BUFFER_BYTES_MIN: u32 = 4096;
/// Largest buffer for a request: the driver's limit.
const BUFFER_BYTES_MAX: u32 = 32 << 20;
/// Pauses until a device that stays live is another program's: 60 s. A kernel before 6.16 notices
/// the death of a server whose tags were all in use only when a request times out, after 30 s.
pub const PAUSES_MAX: u32 = 1200;
/// Pauses after which the wait is reported.
const PAUSES_TOLD: u32 = 40;

/// A device that an earlier server has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Its volume.
    pub volume: DeviceId,
    /// The device.
    pub info: Info,
}

/// Returns the devices with the mark of this pool.
pub fn left_by(driver: &dyn Driver, owner: Owner) -> Vec<Left> {
    // One that vanishes during this belongs to another program.
    let infos = driver.list().into_iter().filter_map(|number| driver.info(number).ok());
    infos.filter_map(|info| Some(Left { volume: owner.volume(info.mark)?, info })).collect()
}

/// Returns the device that a server takes over for a volume; `None`: it makes a new one.
/// `keeps_acknowledged`: acknowledged data survives the death of this server.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when a device cannot be taken over.
pub fn found(left: &[Left], volume: DeviceId, keeps_acknowledged: bool) -> Result<Option<Info>> {
    let of_volume = |left: &&Left| left.volume == volume && left.info.state != State::Dead;
    let Some(Left { info, .. }) = left.iter().find(of_volume) else { return Ok(None) };
    let path = path(info.number);
    if info.flags & features::USER_RECOVERY == 0 {
        let text = format!("{path} was made to end with its server (process {}), and it has not: try again", info.pid);
        return Err(Error::new(ErrorKind::InUse, text));
    }
    if !keeps_acknowledged {
        let text = format!(
            "{path} waits for a server that keeps acknowledged writes: serve without --standby off, then stop that \
             server in order, which removes the device"
        );
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    check_shape(info)?;
    Ok(Some(*info))
}

/// Checks the numbers of a device as the driver reports it.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) for numbers that no device of this program has.
pub fn check_shape(info: &Info) -> Result<()> {
    let is_sane = (1..=QUEUES_MAX).contains(&info.queues)
        && (1..=DEPTH_MAX).contains(&info.depth)
        && (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&info.buffer_bytes);
    if is_sane {
        return Ok(());
    }
    let text = format!(
        "{} has {} queues of {} requests of {} bytes: this program did not make it",
        path(info.number),
        info.queues,
        info.depth,
        info.buffer_bytes
    );
    Err(Error::new(ErrorKind::Conflict, text))
}

/// Prepares a device for this server, once the kernel has noticed that its server is gone.
///
/// # Errors
/// [`InUse`](ErrorKind::InUse) when another program serves it.
pub fn prepare(driver: &dyn Driver, info: &Info, tell: &dyn Fn(&str)) -> Result<()> {
    let path = path(info.number);
    for pauses in 0..PAUSES_MAX {
        let error = match driver.start_recovery(info.number) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EBUSY) => {}
            // An earlier server died after this step, and before it served the first queue: the
            // driver has forgotten that one already.
            Some(libc::EINVAL) if is_waiting(driver, info.number) => return Ok(()),
            _ => return Err(failed(&path, "be taken over", error)),
        }
        if pauses == PAUSES_TOLD {
            tell(&format!("{path}: waiting until the kernel has noticed the end of process {}", info.pid));
        }
        driver.pause();
    }
    let pid = driver.info(info.number).map_or(info.pid, |info| info.pid);
    Err(Error::new(ErrorKind::InUse, format!("{path} is served by process {pid}: stop it first")))
}

fn is_waiting(driver: &dyn Driver, number: u32) -> bool {
    driver.info(number).is_ok_and(|info| info.state == State::Quiesced)
}

/// The block device of that number.
pub fn path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// The error of a device with which something failed.
pub fn failed(path: &str, what: &str, error: io::Error) -> Error {
    let kind = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ErrorKind::Denied,
        Some(libc::EBUSY | libc::EEXIST) => ErrorKind::InUse,
        _ => ErrorKind::Io,
    };
    let help = if kind == ErrorKind::Denied { "; --ublk needs root (CAP_SYS_ADMIN)" } else { "" };
    Error::with_source(kind, format!("{path} cannot {what}: {error}{help}"), error)
}

#[cfg(test)]
#[path = "takeover_tests.rs"]
mod tests;
