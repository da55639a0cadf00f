//! Places of suspected damage, noted by any reader of the data: a client, the cleaner, `send`,
//! recompression, `check`. Owns them until `repair::damages` takes them and looks again. Any thread
//! may call it; its lock is never held while anything else is waited for.

use std::collections::BTreeSet;

use format::ScrubDamage;
use store::base::ranked::Mutex;
use store::base::ranks;
use store::log::geometry::Geometry;
use surface::{Error, ErrorKind};
use units::ExtentIndex;

/// Upper bound of suspected extents, and of damages that have none: as many as the list of known
/// damage can have.
pub(crate) const SUSPECTS_MAX: usize = 1000;

/// Suspected damage.
#[derive(Debug, Default)]
pub(crate) struct Suspected {
    pub extents: BTreeSet<ExtentIndex>,
    /// Damage that has no extent.
    pub met: Vec<ScrubDamage>,
    /// There was not enough room for all of them.
    pub has_overflowed: bool,
}

/// See the module.
pub(crate) struct Suspects {
    geometry: Geometry,
    noted: Mutex<Suspected, ranks::Suspicion>,
}

impl Suspects {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, noted: Mutex::default() }
    }

    /// Records that bytes at `location` of the data file do not match their checksum, or cannot be
    /// read.
    pub(crate) fn note(&self, location: u64) {
        self.note_extent(self.geometry.extent_at(location));
    }

    pub(crate) fn note_extent(&self, extent: ExtentIndex) {
        if extent.0 == 0 || extent.0 >= self.geometry.extents() {
            return;
        }
        let mut noted = self.noted.lock();
        if noted.extents.len() < SUSPECTS_MAX || noted.extents.contains(&extent) {
            noted.extents.insert(extent);
        } else {
            noted.has_overflowed = true;
        }
    }

    /// Records that the map's entry for a byte of an object does not decode.
    pub(crate) fn note_record(&self, volume: String, offset: u64, error: &Error) {
        if error.kind() != ErrorKind::Corrupt {
            return;
        }
        let mut noted = self.noted.lock();
        if noted.met.iter().any(|met| met.volume == volume && met.offset == offset) {
            return;
        }
        if noted.met.len() < SUSPECTS_MAX {
            noted.met.push(ScrubDamage { volume, offset, detail: error.to_string(), ..ScrubDamage::default() });
        } else {
            noted.has_overflowed = true;
        }
    }

    /// Returns whether a suspected place was not verified yet.
    pub(crate) fn is_waiting(&self) -> bool {
        let noted = self.noted.lock();
        !noted.extents.is_empty() || !noted.met.is_empty() || noted.has_overflowed
    }

    /// Takes at most `max` suspected extents, and all damage that has none.
    pub(crate) fn take(&self, max: usize) -> Suspected {
        let mut noted = self.noted.lock();
        Suspected {
            extents: std::iter::from_fn(|| noted.extents.pop_first()).take(max).collect(),
            met: std::mem::take(&mut noted.met),
            has_overflowed: std::mem::take(&mut noted.has_overflowed),
        }
    }

    /// Puts back what was taken and could not be verified.
    pub(crate) fn put_back(&self, suspected: Suspected) {
        let mut noted = self.noted.lock();
        noted.extents.extend(suspected.extents);
        noted.met.extend(suspected.met);
        noted.has_overflowed |= suspected.has_overflowed;
    }

    /// Calls `look` with all suspected places.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&Suspected) -> R) -> R {
        look(&self.noted.lock())
    }
}
