//! Holds: tags that keep a snapshot. A snapshot with a tag is not destroyed: not by a user, not
//! with its volume, not by a schedule, not by a rollback.
//!
//! A tag is a property of the snapshot's descriptor, `hold.TAG`. Its value is the time at which
//! the tag was set. So a tag takes no space, is as durable as a name, and is not sent with the
//! snapshot.

use format::{Entry, ObjectDescriptor};
use store::base::options::Properties;
use store::objects::Object;
use store::objects::names::check_name;
use store::objects::properties::HOLD_PREFIX;
use surface::{Error, ErrorKind, Result};

use crate::history::titles;
use crate::pool::Pool;

/// Upper bound of tags of a snapshot: they go into the log with its descriptor, in one piece, which
/// must fit the smallest extent, 32 KiB.
const HOLDS_MAX: usize = 32;
/// Longest tag, in bytes; with [`HOLDS_MAX`] of them a descriptor takes about 3 KiB more.
const TAG_BYTES_MAX: usize = 64;

/// A tag on a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The volume that the snapshot is listed under.
    pub volume: String,
    /// The part of the snapshot's name after the `@`.
    pub snapshot: String,
    /// The tag.
    pub tag: String,
    /// When it was set, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Returns the tags among a snapshot's properties, and when each was set.
fn tags(own: &Properties) -> impl Iterator<Item = (&str, u64)> {
    own.iter().filter_map(|(key, value)| Some((key.strip_prefix(HOLD_PREFIX)?, value.parse().unwrap_or(0))))
}

fn check_tag(tag: &str) -> Result<()> {
    check_name(tag).map_err(|error| error.context("the tag of a hold"))?;
    if tag.len() <= TAG_BYTES_MAX {
        return Ok(());
    }
    let text = format!("the tag of a hold has {} bytes, at most {TAG_BYTES_MAX} are allowed", tag.len());
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Fails if one of `going` is held; the message names the tags.
pub(crate) fn check_unheld<'a>(going: impl IntoIterator<Item = &'a std::sync::Arc<Object>>) -> Result<()> {
    let is_held = |object: &&std::sync::Arc<Object>| tags(&object.descriptor.read().properties).next().is_some();
    let held: Vec<_> = going.into_iter().filter(is_held).cloned().collect();
    let Some(first) = held.first() else { return Ok(()) };
    let title = first.title();
    let own = first.descriptor.read().properties.clone();
    let named: Vec<_> = tags(&own).map(|(tag, _)| tag).collect();
    let others = if held.len() > 1 { format!(", and so are others of {}", titles(&held)) } else { String::new() };
    let text = format!(
        "'{title}' is held by {}{others}: release it first (shale release POOL {title} {})",
        named.iter().map(|tag| format!("'{tag}'")).collect::<Vec<_>>().join(", "),
        named[0]
    );
    Err(Error::new(ErrorKind::InUse, text))
}

impl Pool {
    /// Puts a tag on a snapshot: the snapshot stays until the tag is removed. Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Exists`] if the snapshot has the tag;
    /// [`ErrorKind::Invalid`] for an invalid tag, and for more than 32 of them.
    pub fn hold(&self, snapshot: &str, tag: &str) -> Result<()> {
        check_tag(tag)?;
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let object = core.objects.snapshot_named(snapshot)?;
        let mut descriptor = object.descriptor.read().clone();
        if tags(&descriptor.properties).count() >= HOLDS_MAX {
            let text = format!("'{snapshot}' has {HOLDS_MAX} holds already: release one of them");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let now = core.vitals.env.clock.unix_s().to_string();
        if descriptor.properties.insert(format!("{HOLD_PREFIX}{tag}"), now).is_some() {
            return Err(Error::new(ErrorKind::Exists, format!("'{snapshot}' is held by '{tag}' already")));
        }
        core.writes.append_durably(vec![Entry::Object(descriptor)])
    }

    /// Removes a tag from a snapshot. Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], also if the snapshot has not got the tag.
    pub fn release(&self, snapshot: &str, tag: &str) -> Result<()> {
        let core = &self.core;
        let _admin = core.objects.admin.lock();
        let object = core.objects.snapshot_named(snapshot)?;
        let mut descriptor: ObjectDescriptor = object.descriptor.read().clone();
        if descriptor.properties.remove(&format!("{HOLD_PREFIX}{tag}")).is_none() {
            let there: Vec<_> = tags(&descriptor.properties).map(|(tag, _)| tag.to_owned()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            return Err(Error::new(ErrorKind::NotFound, format!("'{snapshot}' has no hold '{tag}'; it has {there}")));
        }
        core.writes.append_durably(vec![Entry::Object(descriptor)])
    }

    /// The holds of a snapshot (`VOLUME@SNAPSHOT`), of a volume's or a folder's, or of all, the oldest
    /// snapshots first within each volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn holds(&self, of: Option<&str>) -> Result<Vec<Hold>> {
        let objects = &self.core.objects;
        let snapshots = match of {
            Some(name) if name.contains('@') => vec![objects.snapshot_named(name)?],
            of => objects.volume_or_all(of)?.iter().flat_map(|volume| objects.snapshots_of(volume.id)).collect(),
        };
        let mut holds = Vec::new();
        for object in snapshots {
            let title = object.title();
            let (volume, snapshot) = title.split_once('@').unwrap_or_default();
            let own = object.descriptor.read().properties.clone();
            holds.extend(tags(&own).map(|(tag, created_unix_s)| Hold {
                volume: volume.to_owned(),
                snapshot: snapshot.to_owned(),
                tag: tag.to_owned(),
                created_unix_s,
            }));
        }
        Ok(holds)
    }
}
