//! The end of a process while the store of an image hangs. Requests that wait for the store fail
//! soon, and failed changes are reported at the end: their caller got the error, but a file system
//! above a volume may have acknowledged them before, from its cache.

use std::ops::Range;

use store::objects::Object;
use surface::{Error, ErrorKind};

use crate::read::images::Images;

/// Changes of a volume that failed while the process was about to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwritten {
    /// Name of the volume.
    pub volume: String,
    /// Writes, discards and similar requests.
    pub changes: u64,
    /// The bytes from the first one of them to the last one.
    pub range: Range<u64>,
    /// Why the last one failed.
    pub why: String,
}

impl Images {
    /// Notes that a change of a volume failed, if the process is about to end.
    pub(crate) fn note_unwritten(&self, object: &Object, range: Range<u64>, error: &Error) {
        // Other errors are the caller's fault, or unrelated to the end.
        let is_failure = matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt);
        if !is_failure || self.ending_since().is_none() {
            return;
        }
        let (volume, why) = (object.title(), error.to_string());
        let mut state = self.state.lock();
        let before = state.unwritten.remove(&object.id);
        let (changes, range) = match before {
            Some(Unwritten { changes, range: known, .. }) => {
                (changes + 1, known.start.min(range.start)..known.end.max(range.end))
            }
            None => (1, range),
        };
        state.unwritten.insert(object.id, Unwritten { volume, changes, range, why });
    }
}
