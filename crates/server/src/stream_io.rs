//! Access of `send` and `receive` to a pool, in this process or through a server: reads or writes
//! the chunks of a stream.

use std::sync::Arc;

use engine::{ReceiveReport, Receiver, Sender};
use env::RemoteImage;
use format::{STREAM_HEAD_BYTES, SnapshotIdentity, StreamHead};
use operations::{Place, ReceiveWish, Received, SendWish, Sending};
use surface::{BlockDevice, Client, Error, ErrorKind, Result};

use crate::service::Service;
use crate::share_trees;

/// Makes a [`Received`] from the engine's report.
pub fn received(report: ReceiveReport) -> Received {
    Received {
        volume: report.volume,
        snapshot: report.snapshot,
        is_new: report.is_new,
        image: None,
        size_bytes: report.size_bytes,
        stream_bytes: report.stream_bytes,
        payload_bytes: report.payload_bytes,
        fragments: report.fragments,
        hole_bytes: report.hole_bytes,
    }
}

/// Looks up the state of the volume and the snapshot that a stream is for.
pub fn place(service: &Service, volume: &str, to: [u8; 16], from: Option<[u8; 16]>) -> Place {
    let pool = service.pool();
    let find = |identity| pool.snapshot_with_identity(SnapshotIdentity(identity), Some(volume));
    let is_own = |title: &String| title.split('@').next() == Some(volume);
    Place {
        has_it: find(to).as_ref().is_some_and(is_own),
        exists: pool.volume(volume).is_ok() || pool.is_being_received(volume),
        base: from.and_then(find),
    }
}

/// A stream read from a pool.
pub trait StreamSource {
    /// Returns the description of the stream.
    fn about(&self) -> &Sending;
    /// Returns the next chunk; `None` after the last one. Stops waiting for it once `is_over`
    /// returns true.
    ///
    /// # Errors
    /// Those of the pool.
    fn next_chunk(&mut self, is_over: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>>;
}

/// A pool that receives a stream.
pub trait StreamSink {
    /// Writes a whole chunk; returns the report with the last one.
    ///
    /// # Errors
    /// Those of the pool.
    fn put(&mut self, chunk: &[u8]) -> Result<Option<Received>>;
}

/// Returns the display name of an image.
fn image_text(image: &RemoteImage) -> String {
    format!("{}@{}", image.location, image.version)
}

/// Reads from a pool that this process has open.
pub struct LocalSource {
    sender: Sender,
    about: Sending,
    /// The snapshot and its base, kept open: destroying one of them meanwhile fails with "in use".
    _sent: Vec<Arc<dyn BlockDevice>>,
}

impl LocalSource {
    /// Begins a stream.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`.
    pub fn new(service: &Service, wish: &SendWish, client: &Arc<dyn Client>) -> Result<Self> {
        let sender = match (&wish.resume, &wish.snapshot) {
            (Some(token), _) => service.pool().send_resumed(token)?,
            (None, Some(_)) if wish.thin && wish.from.is_some() => {
                let text = "a difference from a snapshot cannot refer to an image: omit --thin";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            (None, Some(snapshot)) if wish.thin => service.pool().send_thin(snapshot)?,
            (None, Some(snapshot)) => service.pool().send(snapshot, wish.from.as_deref())?,
            (None, None) => {
                return Err(Error::new(ErrorKind::Invalid, "specify a snapshot to send, or a resume token"));
            }
        };
        let begin = sender.begin();
        let about = Sending {
            volume: begin.volume.clone(),
            snapshot: begin.snapshot.clone(),
            from: begin.from.map(|_| begin.parent.clone()),
            image: sender.image().map(|image| image_text(&image)),
            expected_bytes: begin.expected_bytes,
            start_offset: begin.start.first_block().offset_bytes(),
        };
        let title = format!("{}@{}", about.volume, about.snapshot);
        if let Some(named) = wish.snapshot.as_ref().filter(|named| **named != title) {
            let text = format!("the resume token is for '{title}', not for '{named}'");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        // A bookmark holds no data that could be in use.
        let from = begin.from.map(|_| begin.parent.as_str()).filter(|parent| !parent.contains('#'));
        let names = [Some(title.as_str()), from].into_iter().flatten();
        let sent = names.map(|name| service.devices().open(name, client)).collect::<Result<_>>()?;
        Ok(Self { sender, about, _sent: sent })
    }
}

impl StreamSource for LocalSource {
    fn about(&self) -> &Sending {
        &self.about
    }
    fn next_chunk(&mut self, is_over: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>> {
        self.sender.next_chunk_unless(is_over)
    }
}

/// Writes into a pool that this process has open. A volume does not change while clients have it
/// open: that is checked when the stream begins, and when it ends, no client may open the volume
/// while the new snapshot takes effect. The image of a thin stream is pinned before the volume is
/// made.
pub struct LocalSink {
    service: Arc<Service>,
    receiver: Receiver,
    wish: ReceiveWish,
    /// The image of the volume is pinned.
    is_held: bool,
}

impl LocalSink {
    /// Begins to receive.
    pub fn new(service: Arc<Service>, wish: ReceiveWish) -> Self {
        let receiver = service.pool().receive(&wish.volume, &wish.properties);
        Self { service, receiver, wish, is_held: false }
    }
}

/// Fails for a share that this server mounts: its mount changes it, so no difference fits.
fn refuse_mounted(service: &Service, share: &str) -> Result<()> {
    let mounted = service.mounted_shares().map(|shares| shares.mounted()).unwrap_or_default();
    let Some((_, _, at)) = mounted.into_iter().find(|(_, name, _)| name == share) else { return Ok(()) };
    let (pool, at) = (service.facts().pool.display(), at.display());
    let text = format!(
        "share '{share}' is mounted at {at}, and a mount changes it: stop the server, 'shale rollback {pool} \
         {share}@SNAPSHOT' to the snapshot that both pools have, and receive again; meanwhile `shale serve --volume` \
         can serve others"
    );
    Err(Error::new(ErrorKind::InUse, text))
}

impl StreamSink for LocalSink {
    fn put(&mut self, chunk: &[u8]) -> Result<Option<Received>> {
        let Some((head, body)) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>() else {
            return Err(Error::new(ErrorKind::Corrupt, "a chunk of a stream is truncated"));
        };
        let is_border = StreamHead::decode(head).is_ok_and(|head| head.is_begin() || head.is_end());
        let Self { service, receiver, wish, is_held } = self;
        let exists = service.pool().volume(&wish.volume).is_ok();
        let image = receiver.image();
        let report = match &image {
            _ if is_border && exists => {
                refuse_mounted(service, &wish.volume)?;
                let _claim = share_trees::claim(service.pool(), &wish.volume)?;
                service.devices().alone(&wish.volume, wish.force, || receiver.take(head, body))?
            }
            Some(image) if !*is_held => {
                let report = service.holding(image, &wish.volume, || receiver.take(head, body))?;
                *is_held = true;
                report
            }
            _ => receiver.take(head, body)?,
        };
        if report.is_some() {
            // A new share is available for the next command.
            service.look_at_shares();
        }
        let image = image.map(|image| image_text(&image));
        Ok(report.map(|report| Received { image, ..received(report) }))
    }
}
