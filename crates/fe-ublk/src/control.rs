//! Commands to the kernel's driver, one at a time. Owns `/dev/ublk-control` and a ring for it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;
use std::{io, thread};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use surface::{Error, ErrorKind, Result};

use crate::wire::{self, COMMAND_BYTES, ControlCommand, INFO_BYTES, Info, PARAMETERS_BYTES, Parameters, features};

const CONTROL: &str = "/dev/ublk-control";
/// Directory with an entry `ublkcN` for each device.
const DEVICES: &str = "/sys/class/ublk-char";
const ENTRY: &str = "ublkc";
/// `ENOTSUPP`, a number of the kernel's own: before Linux 6.13 the answer to an unknown command.
const NOT_SUPPORTED: i32 = 524;
/// Time for programs to close a block device that has gone: longer than udev takes for a look.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// The message for a driver that lacks something.
const NEEDED: &str = "Shale needs the ublk driver of Linux 6.5 or later";

/// The used part of the driver's interface. Errors are those of the kernel.
pub trait Driver: Send + Sync {
    /// Features of the driver.
    fn features(&self) -> u64;
    /// Numbers of all devices.
    fn list(&self) -> Vec<u32>;
    /// A device.
    fn info(&self, number: u32) -> io::Result<Info>;
    /// Adds a device, and returns it as the driver has made it.
    fn add(&self, info: &Info) -> io::Result<Info>;
    /// Sets the parameters of a device that has not started.
    fn set_parameters(&self, number: u32, parameters: &Parameters) -> io::Result<()>;
    /// Sectors of a device.
    fn sectors(&self, number: u32) -> io::Result<u64>;
    /// Makes the block device, once all queues are served.
    fn start(&self, number: u32) -> io::Result<()>;
    /// Removes the block device, once its requests are answered.
    fn stop(&self, number: u32) -> io::Result<()>;
    /// Removes the rest of a device that no server has open. The last program that has its block
    /// device open frees its number.
    fn delete(&self, number: u32) -> io::Result<()>;
    /// Prepares a device whose server is gone for the next one.
    fn start_recovery(&self, number: u32) -> io::Result<()>;
    /// Lets its requests in, once all queues are served.
    fn end_recovery(&self, number: u32) -> io::Result<()>;
    /// Changes the size.
    fn update_size(&self, number: u32, sectors: u64) -> io::Result<()>;
    /// Keeps new requests back. Waits so long for each queue to have a tag without a request.
    fn quiesce(&self, number: u32, patience: Duration) -> io::Result<()>;
    /// Waits a moment before a command is tried again.
    fn pause(&self);
}

/// The driver of this machine's kernel.
pub struct Kernel {
    control: OwnedFd,
    ring: Mutex<IoUring<squeue::Entry128, cqueue::Entry>>,
    features: u64,
}

impl Kernel {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without the driver, or with one that is too old, and
    /// [`Denied`](ErrorKind::Denied).
    pub fn open() -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open(CONTROL, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT | Errno::NXIO | Errno::NODEV => unsupported(format!(
                "there is no {CONTROL}: load the kernel's ublk driver with `modprobe ublk_drv`; it needs Linux 6.5 or \
                 later, with CONFIG_BLK_DEV_UBLK"
            )),
            Errno::ACCESS | Errno::PERM => denied(format!("{CONTROL}: permission denied")),
            error => Error::from_io(format!("cannot serve block devices (ublk): {CONTROL}"), error.into()),
        })?;
        let ring = IoUring::builder().build(1).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS) => unsupported(format!(
                "io_uring, which ublk uses, is not available ({error}): see `sysctl kernel.io_uring_disabled`"
            )),
            _ => Error::from_io("cannot serve block devices (ublk): io_uring", error),
        })?;
        let mut kernel = Self { control, ring: Mutex::new(ring), features: 0 };
        let mut word = [0; 8];
        let command = ControlCommand { device: u32::MAX, ..ControlCommand::default() };
        kernel.call(wire::control::GET_FEATURES, command, Some(&mut word)).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => denied(error.to_string()),
                _ => unsupported(format!("the driver does not tell its features ({error}): {NEEDED}")),
            }
        })?;
        kernel.features = u64::from_ne_bytes(word);
        let needed = features::USER_RECOVERY | features::USER_RECOVERY_REISSUE | features::IOCTL_ENCODE;
        if kernel.features & needed != needed {
            let found = kernel.features;
            return Err(unsupported(format!(
                "the driver cannot keep a device for the next server ({found:#x}): {NEEDED}"
            )));
        }
        Ok(kernel)
    }

    /// Sends a command, and waits for its end. `buffer` is read, written, or both.
    fn call(&self, code: u32, command: ControlCommand, buffer: Option<&mut [u8]>) -> io::Result<()> {
        let (address, length) = buffer.map_or((0, 0), |buffer| (buffer.as_mut_ptr() as u64, buffer.len()));
        let length = u16::try_from(length).map_err(io::Error::other)?;
        let body: [u8; COMMAND_BYTES] = ControlCommand { address, length, ..command }.encode();
        let fd = types::Fd(self.control.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, code).cmd(body).build();
        let mut ring = self.ring.lock();
        // SAFETY: the descriptor is open, and the buffer is borrowed until the command has ended:
        // this returns only with its completion.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                // The kernel did not take the entry, which the next call would send as well.
                Err(error) => {
                    *ring = IoUring::builder().build(1)?;
                    return Err(error);
                }
            }
            let ended = ring.completion().next();
            match ended.map(|ended| ended.result()) {
                None => {}
                Some(result) if result < 0 => return Err(io::Error::from_raw_os_error(-result)),
                Some(_) => return Ok(()),
            }
        }
    }

    fn of(&self, code: u32, device: u32, data: u64) -> io::Result<()> {
        self.call(code, ControlCommand { device, data, ..ControlCommand::default() }, None)
    }

    fn with(&self, code: u32, device: u32, buffer: &mut [u8]) -> io::Result<()> {
        self.call(code, ControlCommand { device, ..ControlCommand::default() }, Some(buffer))
    }
}

/// Whether the driver does not know a command.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | NOT_SUPPORTED))
}

/// Removes the rest of a device by the only command before Linux 6.9, which waits until no program
/// has its block device open: with a ring of its own, in a thread that is left to wait.
fn delete_and_wait(number: u32) -> io::Result<()> {
    let (send, done) = mpsc::channel();
    let delete = move || {
        let kernel = Kernel::open().map_err(io::Error::other);
        // The receiver may have gone on.
        let _ = send.send(kernel.and_then(|kernel| kernel.of(wire::control::DELETE, number, 0)));
    };
    thread::Builder::new().name("ublk-delete".to_owned()).spawn(delete)?;
    done.recv_timeout(CLOSE_PATIENCE).unwrap_or(Ok(()))
}

fn unsupported(why: String) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot serve block devices (ublk): {why}"))
}

fn denied(why: String) -> Error {
    let text = format!("cannot serve block devices (ublk): {why}; --ublk needs root (CAP_SYS_ADMIN)");
    Error::new(ErrorKind::Denied, text)
}

impl Driver for Kernel {
    fn features(&self) -> u64 {
        self.features
    }

    fn list(&self) -> Vec<u32> {
        // Without the directory there are no devices.
        let entries = std::fs::read_dir(DEVICES).into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(ENTRY)?.parse().ok();
        let mut numbers: Vec<_> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn info(&self, number: u32) -> io::Result<Info> {
        let mut bytes = [0; INFO_BYTES];
        self.with(wire::control::GET_INFO, number, &mut bytes)?;
        Ok(Info::decode(&bytes))
    }

    fn add(&self, info: &Info) -> io::Result<Info> {
        let mut bytes = info.encode();
        self.with(wire::control::ADD, info.number, &mut bytes)?;
        Ok(Info::decode(&bytes))
    }

    fn set_parameters(&self, number: u32, parameters: &Parameters) -> io::Result<()> {
        self.with(wire::control::SET_PARAMETERS, number, &mut parameters.encode())
    }

    fn sectors(&self, number: u32) -> io::Result<u64> {
        let mut bytes: [u8; PARAMETERS_BYTES] = wire::empty_parameters();
        self.with(wire::control::GET_PARAMETERS, number, &mut bytes)?;
        Ok(wire::sectors_of(&bytes))
    }

    fn start(&self, number: u32) -> io::Result<()> {
        self.of(wire::control::START, number, std::process::id().into())
    }

    fn stop(&self, number: u32) -> io::Result<()> {
        self.of(wire::control::STOP, number, 0)
    }

    fn delete(&self, number: u32) -> io::Result<()> {
        match self.of(wire::control::DELETE_ASYNC, number, 0) {
            Err(error) if is_unknown(&error) => delete_and_wait(number),
            deleted => deleted,
        }
    }

    fn start_recovery(&self, number: u32) -> io::Result<()> {
        self.of(wire::control::START_RECOVERY, number, 0)
    }

    fn end_recovery(&self, number: u32) -> io::Result<()> {
        self.of(wire::control::END_RECOVERY, number, std::process::id().into())
    }

    fn update_size(&self, number: u32, sectors: u64) -> io::Result<()> {
        self.of(wire::control::UPDATE_SIZE, number, sectors)
    }

    fn quiesce(&self, number: u32, patience: Duration) -> io::Result<()> {
        self.of(wire::control::QUIESCE, number, u64::try_from(patience.as_millis()).unwrap_or(u64::MAX))
    }

    fn pause(&self) {
        let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // The pause is over on every result.
        let _ = rustix::event::poll(&mut [], Some(&moment));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_a_driver_does_not_know_are_told_apart_from_those_that_fail() {
        let is_unknown = |code| is_unknown(&io::Error::from_raw_os_error(code));
        assert_eq!([libc::EOPNOTSUPP, 524, libc::EINVAL, libc::ENODEV].map(is_unknown), [true, true, false, false]);
    }
}
