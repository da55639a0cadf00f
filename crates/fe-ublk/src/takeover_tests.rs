//! The steps of a takeover against a driver that remembers states as the kernel does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::wire::Parameters;

const OWN: &[u8] = b"pool";

/// A driver without devices that run: their servers are dead, or another program's.
#[derive(Default)]
struct Fake {
    devices: Mutex<BTreeMap<u32, Device>>,
}

struct Device {
    info: Info,
    /// Pauses until the driver notices the death of the server.
    notices_in: u32,
    /// A recovery has begun, and no queue is served yet.
    is_prepared: bool,
}

impl Fake {
    fn with(self, number: u32, owner: &[u8], volume: u64, state: State) -> Self {
        let mark = Owner::of(owner).mark(DeviceId(volume)).unwrap();
        let flags = features::USER_RECOVERY | features::USER_RECOVERY_REISSUE;
        let info = Info { queues: 1, depth: 64, state, buffer_bytes: 4096, number, pid: 4711, flags, mark };
        self.devices.lock().insert(number, Device { info, notices_in: u32::MAX, is_prepared: false });
        self
    }

    fn change(&self, number: u32, what: impl FnOnce(&mut Device)) {
        what(self.devices.lock().get_mut(&number).unwrap());
    }
}

fn errno(code: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(code))
}

impl Driver for Fake {
    fn features(&self) -> u64 {
        u64::MAX
    }
    fn list(&self) -> Vec<u32> {
        // 99 vanishes between the list and the question.
        self.devices.lock().keys().copied().chain([99]).collect()
    }
    fn info(&self, number: u32) -> io::Result<Info> {
        let devices = self.devices.lock();
        devices.get(&number).map(|device| device.info).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }
    fn add(&self, info: &Info) -> io::Result<Info> {
        Ok(*info)
    }
    fn set_parameters(&self, _: u32, _: &Parameters) -> io::Result<()> {
        Ok(())
    }
    fn sectors(&self, _: u32) -> io::Result<u64> {
        Ok(0)
    }
    fn start(&self, _: u32) -> io::Result<()> {
        Ok(())
    }
    fn stop(&self, _: u32) -> io::Result<()> {
        Ok(())
    }
    fn delete(&self, _: u32) -> io::Result<()> {
        Ok(())
    }
    /// As `ublk_ctrl_start_recovery`.
    fn start_recovery(&self, number: u32) -> io::Result<()> {
        let mut devices = self.devices.lock();
        let Some(device) = devices.get_mut(&number) else { return errno(libc::ENODEV) };
        if device.info.flags & features::USER_RECOVERY == 0 || device.is_prepared {
            return errno(libc::EINVAL);
        }
        if device.info.state != State::Quiesced {
            return errno(libc::EBUSY);
        }
        device.is_prepared = true;
        Ok(())
    }
    fn end_recovery(&self, _: u32) -> io::Result<()> {
        Ok(())
    }
    fn update_size(&self, _: u32, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn quiesce(&self, _: u32, _: Duration) -> io::Result<()> {
        Ok(())
    }
    fn pause(&self) {
        for device in self.devices.lock().values_mut() {
            device.notices_in -= 1;
            if device.notices_in == 0 {
                device.info.state = State::Quiesced;
            }
        }
    }
}

fn prepared(driver: &Fake, number: u32) -> (Result<()>, Vec<String>) {
    let told = RefCell::new(Vec::new());
    let info = driver.info(number).unwrap();
    let done = prepare(driver, &info, &|text| told.borrow_mut().push(text.to_owned()));
    (done, told.into_inner())
}

#[test]
fn devices_are_found_by_their_mark() {
    let driver = Fake::default().with(0, b"another pool", 5, State::Quiesced).with(3, OWN, 5, State::Quiesced).with(
        4,
        OWN,
        6,
        State::Dead,
    );
    driver
        .devices
        .lock()
        .insert(7, Device { info: Info { number: 7, ..Info::default() }, notices_in: 1, is_prepared: false });
    let left = left_by(&driver, Owner::of(OWN));
    assert_eq!(left.iter().map(|left| (left.volume.0, left.info.number)).collect::<Vec<_>>(), [(5, 3), (6, 4)]);
    let found = |volume| found(&left, DeviceId(volume), true).unwrap();
    assert_eq!(found(5), Some(left[0].info));
    assert_eq!((found(6), found(7)), (None, None), "no use is made of a rest");
}

#[test]
fn a_device_that_waits_wins_over_the_rest_of_another() {
    let driver = Fake::default().with(0, OWN, 5, State::Dead).with(1, OWN, 5, State::Quiesced);
    let left = left_by(&driver, Owner::of(OWN));
    assert_eq!(found(&left, DeviceId(5), true).unwrap(), Some(left[1].info));
}

#[test]
fn a_device_that_cannot_be_taken_over_is_named() {
    let driver = Fake::default().with(3, OWN, 5, State::Quiesced);
    let refusal = |keeps_acknowledged| {
        let error = found(&left_by(&driver, Owner::of(OWN)), DeviceId(5), keeps_acknowledged).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = refusal(false);
    assert!(kind == ErrorKind::Conflict && text.contains("/dev/ublkb3") && text.contains("--standby"), "{text}");
    for (queues, depth, buffer_bytes) in [(0, 64, 4096), (1, 0, 4096), (1, 4097, 4096), (1, 64, 0), (1, 64, 33 << 20)] {
        driver.change(3, |device| device.info = Info { queues, depth, buffer_bytes, ..device.info });
        assert_eq!(refusal(true).0, ErrorKind::Conflict, "{queues} {depth} {buffer_bytes}");
    }
    driver.change(3, |device| device.info.flags = 0);
    assert_eq!(refusal(true).0, ErrorKind::InUse);
}

#[test]
fn the_death_of_a_server_is_waited_for() {
    let driver = Fake::default().with(3, OWN, 5, State::Quiesced).with(4, OWN, 6, State::Live);
    let (done, told) = prepared(&driver, 3);
    done.unwrap();
    assert!(told.is_empty());
    driver.change(4, |device| device.notices_in = PAUSES_TOLD + 2);
    let (done, told) = prepared(&driver, 4);
    done.unwrap();
    assert_eq!(told, ["/dev/ublkb4: waiting until the kernel has noticed the end of process 4711"]);
}

#[test]
fn a_device_of_a_server_that_runs_is_refused() {
    let driver = Fake::default().with(4, OWN, 6, State::Live);
    let (done, _) = prepared(&driver, 4);
    let error = done.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("/dev/ublkb4 is served by process 4711"), "{error}");
}

#[test]
fn a_takeover_that_was_cut_off_is_begun_again() {
    let driver = Fake::default().with(3, OWN, 5, State::Quiesced);
    prepared(&driver, 3).0.unwrap();
    prepared(&driver, 3).0.unwrap();
    // The same refusal of a device that does not wait.
    driver.change(3, |device| (device.info.state, device.info.flags) = (State::Live, 0));
    let error = prepared(&driver, 3).0.unwrap_err();
    assert!(error.to_string().contains("/dev/ublkb3 cannot be taken over"), "{error}");
    // It has gone.
    let info = driver.info(3).unwrap();
    driver.devices.lock().clear();
    assert_eq!(prepare(&driver, &info, &|_| ()).unwrap_err().kind(), ErrorKind::Io);
}
