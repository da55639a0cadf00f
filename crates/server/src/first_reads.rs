//! Records the groups of a volume that its clients read first, in order: the profile of a boot.
//! Owns the single recording; without one a device pays one check.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use surface::{DeviceId, Error, ErrorKind, Result};

/// Size of a group, and of a frame of a blob.
pub const GROUP_BYTES: u64 = codec::UNIT_BYTES_MAX as u64;
/// Maximum number of groups of a recording: 8 GiB of an image, far more than a boot reads.
const GROUPS_MAX: usize = 1 << 16;

/// Records the first reads of one volume.
#[derive(Debug, Default)]
pub struct FirstReads {
    is_on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

#[derive(Debug)]
struct Recording {
    volume: DeviceId,
    seen: HashSet<u64>,
    order: Vec<u64>,
}

impl FirstReads {
    /// Begins a recording of a volume, if there is none; returns the groups after the first `from`
    /// ones.
    ///
    /// # Errors
    /// `InUse` while another volume is recorded.
    pub fn take(&self, volume: DeviceId, from: usize) -> Result<Vec<u64>> {
        let mut recording = self.recording.lock();
        let recording = recording.get_or_insert_with(|| Recording { volume, seen: HashSet::new(), order: Vec::new() });
        self.is_on.store(true, Ordering::Relaxed);
        if recording.volume != volume {
            return Err(Error::new(
                ErrorKind::InUse,
                "the first reads of another volume are being traced: end that \
             trace first",
            ));
        }
        Ok(recording.order.get(from..).unwrap_or_default().to_vec())
    }

    /// Ends the recording.
    pub fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        *self.recording.lock() = None;
    }

    /// Records a client's read.
    pub fn note(&self, volume: DeviceId, offset: u64, len: usize) {
        if !self.is_on.load(Ordering::Relaxed) || len == 0 {
            return;
        }
        let mut recording = self.recording.lock();
        let Some(Recording { seen, order, .. }) = recording.as_mut().filter(|recording| recording.volume == volume)
        else {
            return;
        };
        for group in offset / GROUP_BYTES..=(offset + len as u64 - 1) / GROUP_BYTES {
            if order.len() < GROUPS_MAX && seen.insert(group) {
                order.push(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_noted_once_in_the_order_of_their_first_reads() {
        let (reads, one, other) = (FirstReads::default(), DeviceId(1), DeviceId(2));
        reads.note(one, 0, 4096);
        assert!(reads.take(one, 0).unwrap().is_empty(), "nothing before it begins");
        reads.note(one, 5 * GROUP_BYTES - 1, 2);
        reads.note(other, 0, 1);
        reads.note(one, 9, 1);
        reads.note(one, 4 * GROUP_BYTES, 4096);
        assert_eq!(reads.take(one, 0).unwrap(), [4, 5, 0]);
        assert_eq!(reads.take(one, 2).unwrap(), [0]);
        assert!(reads.take(one, 7).unwrap().is_empty());
        assert_eq!(reads.take(other, 0).map_err(|error| error.kind()), Err(ErrorKind::InUse));
        reads.end();
        reads.note(other, 0, 1);
        assert!(reads.take(other, 0).unwrap().is_empty());
    }
}
