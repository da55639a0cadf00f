//! Partial receives: snapshots between the first chunk of their stream and the last one.
//!
//! The received data is in the target volume, in an epoch that the volume has not reached, so that
//! no reader sees it; a *partial* object looks from there, so that it is kept. For a volume that
//! does not exist yet there is a hidden one. It becomes visible in one batch (see `receive`), and
//! is removed in one batch (`history`): the partial object is destroyed, and the volume steps over
//! the epoch with a cut, as in a rollback.

use std::sync::Arc;

use format::ResumeToken;
use store::objects::Object;
use surface::{Error, ErrorKind, Result};

use crate::pool::Pool;

/// A partially received snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveStatus {
    /// The target volume.
    pub volume: String,
    /// Its name: the part after the `@`.
    pub snapshot: String,
    /// Whether the volume will exist only with the snapshot.
    pub is_new: bool,
    /// Bytes of payload received.
    pub received_bytes: u64,
    /// Bytes of payload that the sender expected to send; 0 if unknown.
    pub expected_bytes: u64,
    /// The sender's token for continuing where it stopped.
    pub token: String,
}

impl Pool {
    /// The snapshots that are being received, or whose stream broke off.
    pub fn receives(&self) -> Vec<ReceiveStatus> {
        let objects = &self.core.objects;
        let status = |partial: Arc<Object>| {
            // A copy: a thread that applies a descriptor holds the table first.
            let descriptor = partial.descriptor.read().clone();
            let volume = objects.get(descriptor.parent?)?;
            let (receive, to) = (descriptor.receive.as_ref()?, descriptor.identity?);
            let is_thin = receive.from.is_none() && self.is_thin(&volume);
            let token = ResumeToken { to, from: receive.from, next: receive.next, is_thin };
            Some(ReceiveStatus {
                volume: volume.title(),
                snapshot: descriptor.name.clone(),
                is_new: !volume.is_live(),
                received_bytes: receive.payload_bytes,
                expected_bytes: receive.expected_bytes,
                token: token.to_string(),
            })
        };
        objects.partials().into_iter().filter_map(status).collect()
    }

    /// Returns whether a volume, or a snapshot (`VOLUME@SNAPSHOT`), of that name is being received.
    pub fn is_being_received(&self, name: &str) -> bool {
        self.core.objects.partial_named(name).is_some()
    }

    /// Destroys the received part of a volume or of a snapshot (`VOLUME@SNAPSHOT`), and never a
    /// complete one.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if it is complete by now, [`ErrorKind::NotFound`] if nothing has come.
    pub fn give_up_received(&self, title: &str) -> Result<()> {
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let Some(partial) = core.objects.partial_named(title) else {
            let is_there = core.objects.readable(title).is_ok();
            let (kind, text) = if is_there {
                (ErrorKind::Exists, format!("'{title}' is complete: it has no partial data to destroy"))
            } else {
                (ErrorKind::NotFound, format!("'{title}' has no received data to destroy"))
            };
            return Err(Error::new(kind, text));
        };
        self.give_up_receive(&partial)?;
        core.signals.wake_keeper();
        Ok(())
    }
}
