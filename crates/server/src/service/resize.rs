//! Changes of a volume's size.

use std::sync::Arc;

use engine::Volume;
use operations::Reply;
use surface::{Error, ErrorKind, Result};

use super::Service;

impl Service {
    /// Resizes a volume; makes it smaller only with `shrink`.
    ///
    /// # Errors
    /// `Invalid` for a smaller size without `shrink`, and those of the pool.
    pub(super) fn resize(&self, volume: Arc<Volume>, size_bytes: u64, shrink: bool, force: bool) -> Result<Reply> {
        let id = volume.id();
        match self.pool.enlarge_volume(id, size_bytes) {
            // The client that has it open does not know its new end.
            Err(error) if error.kind() == ErrorKind::Conflict && shrink => {
                self.devices.alone_with(volume, force, || self.pool.resize_volume(id, size_bytes))
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(Error::new(ErrorKind::Invalid, format!("{error}; use --shrink if that is intended")))
            }
            enlarged => enlarged,
        }
        .map(|()| Reply::Done)
    }
}
