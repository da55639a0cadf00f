//! Finds the objects of requests by number or by name, describes, lists and versions them. Owns
//! nothing; the lock of names belongs to the service.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use engine::{FolderStatus, PropertySource, VolumeRef, VolumeStatus};
use operations::{AnyObject, ListWish, ObjectOrder, ObjectPage, ObjectReport, Request, Which};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use report::{ObjectKind, PropertiesReport, UnservedLine, VolumeReport};
use serde::{Deserialize, Serialize};
use surface::{BlockDevice, DeviceId, Error, ErrorKind, Result};

use super::Service;
use super::mounts::is_of_shares;
use crate::devices::is_in;
use crate::documents;

/// Maximum number of objects on a page.
const PAGE_MAX: u32 = 1000;

/// Keeps names assigned to their objects: exclusive while a request assigns one, or checks the
/// version of an object and then changes it; shared while a request uses one that it found by
/// number.
type NamesGuard<'a> = (Option<RwLockWriteGuard<'a, ()>>, Option<RwLockReadGuard<'a, ()>>);

/// Returns whether a request assigns a name to an object.
const fn names_something(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::CreateShare { .. }
            | Request::ImportTree(_)
            | Request::CreateFolder { .. }
            | Request::Clone { .. }
            | Request::Rename { .. }
    )
}

/// Sort key of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
enum Key {
    Number(u64),
    Text(String),
}

/// An object of a list.
enum Listed {
    Object(VolumeStatus),
    Folder(FolderStatus),
}

impl Listed {
    fn name(&self) -> &str {
        match self {
            Self::Object(status) => &status.name,
            Self::Folder(status) => &status.name,
        }
    }

    fn kind(&self) -> ObjectKind {
        match self {
            Self::Object(status) if status.is_share() => ObjectKind::Share,
            Self::Object(_) => ObjectKind::Volume,
            Self::Folder(_) => ObjectKind::Folder,
        }
    }

    fn key(&self, order: ObjectOrder) -> (Key, u64) {
        let (id, allocated, stored) = match self {
            Self::Object(status) => (status.id.0, status.allocated_bytes, status.stored_bytes),
            Self::Folder(status) => (status.id.0, status.allocated_bytes, status.stored_bytes),
        };
        let key = match order {
            ObjectOrder::Name => Key::Text(self.name().to_owned()),
            ObjectOrder::Id => Key::Number(id),
            ObjectOrder::Stored => Key::Number(stored),
            ObjectOrder::Allocated => Key::Number(allocated),
            // A millionth exceeds the displayed precision.
            ObjectOrder::Ratio => {
                let millionths = u128::from(allocated) * 1_000_000 / u128::from(stored.max(1));
                Key::Number(if stored == 0 { 0 } else { u64::try_from(millionths).unwrap_or(u64::MAX) })
            }
        };
        (key, id)
    }
}

impl Service {
    /// Takes the lock of names in the mode that the request needs.
    pub(super) fn guard_names(&self, request: &Request) -> NamesGuard<'_> {
        if names_something(request) || request.if_match().is_some() {
            return (Some(self.names.write()), None);
        }
        let has_number = request.objects().any(|which| which.id().is_some());
        (None, has_number.then(|| self.names.read()))
    }

    /// Checks the version of a request's object, if the request has one.
    pub(super) fn check_version(&self, request: &Request) -> Result<()> {
        let Some(seen) = request.if_match() else { return Ok(()) };
        let which = request.objects().next();
        let name = which.map(|which| self.name_of(which)).transpose()?;
        let now = self.etag(name.as_deref())?;
        if now == seen {
            return Ok(());
        }
        let what = which.map_or_else(|| "the pool".to_owned(), ToString::to_string);
        let text = format!("{what} has changed since it was read (ETag {seen}, now {now}): read it again");
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// Returns the current name of an object.
    pub(super) fn name_of(&self, which: &Which) -> Result<String> {
        let id = match which {
            Which::Name(name) => return Ok(name.clone()),
            Which::Id(id) | Which::Known { id, .. } => *id,
        };
        if let Ok(volume) = self.pool.volume_of(DeviceId(id)) {
            return Ok(volume.name());
        }
        let folder = self.pool.folders().into_iter().find(|folder| folder.id.0 == id);
        folder
            .map(|folder| folder.name)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{which} is gone: it was destroyed")))
    }

    /// Returns the current name of an object, if there is one.
    pub(super) fn name_if(&self, which: Option<&Which>) -> Result<Option<String>> {
        which.map(|which| self.name_of(which)).transpose()
    }

    /// Creates the missing folders of a name, if the request asks for it.
    pub(super) fn make_folders_of(&self, name: &str, parents: bool) -> Result<()> {
        for (at, _) in name.match_indices('/').filter(|_| parents) {
            match self.pool.create_folder(&name[..at], &BTreeMap::new()) {
                // If it is not a folder, the creation in it fails with that error.
                Err(error) if error.kind() == ErrorKind::Exists => {}
                created => drop(created?),
            }
        }
        Ok(())
    }

    /// Returns the current names of objects.
    pub(super) fn names_of(&self, objects: &[Which]) -> Result<Vec<String>> {
        objects.iter().map(|which| self.name_of(which)).collect()
    }

    /// Returns an object's reference for the engine: by its number, if the request has that of a
    /// volume or a snapshot.
    pub(super) fn meant<'a>(&self, which: &Which, name: &'a str) -> VolumeRef<'a> {
        let id = which.id().map(DeviceId).filter(|id| self.pool.volume_of(*id).is_ok());
        id.map_or(VolumeRef::Name(name), VolumeRef::Number)
    }

    /// Returns the version of the modifiable state of an object or the pool: name, size and
    /// properties set on it.
    fn etag(&self, name: Option<&str>) -> Result<String> {
        let mut hasher = DefaultHasher::new();
        let mut id = 0;
        let own = if name.is_some() { PropertySource::Own } else { PropertySource::Pool };
        if let Some(name) = name {
            name.hash(&mut hasher);
            if let Ok(volume) = self.pool.volume(name) {
                id = volume.id().0;
                volume.size_bytes().hash(&mut hasher);
            } else {
                id = self.pool.folders().into_iter().find(|folder| folder.name == name).map_or(0, |folder| folder.id.0);
            }
        }
        if name.is_none_or(|name| !name.contains('@')) {
            for property in self.pool.properties(name)?.iter().filter(|property| property.source == own) {
                (&property.key, &property.value).hash(&mut hasher);
            }
        }
        Ok(format!("{id}-{:x}", hasher.finish()))
    }

    /// Returns the properties in force, with notes on a change of them.
    pub(super) fn properties(&self, name: Option<&str>, notes: Vec<String>) -> Result<PropertiesReport> {
        let mut properties = self.pool.properties(name)?;
        let is_folder = |name: &str| self.pool.is_folder(name);
        let is_share = |name: &str| self.pool.volume(name).is_ok_and(|found| found.is_share());
        let own = match name {
            Some(name) if is_folder(name) => "folder",
            Some(name) if is_share(name) => "share",
            _ => "volume",
        };
        if own == "volume" && name.is_some() {
            properties.retain(|property| !is_of_shares(&property.key));
        }
        let reports = properties.into_iter().map(|p| documents::property_report(p, own, is_folder));
        Ok(PropertiesReport { etag: self.etag(name)?, properties: reports.collect(), notes })
    }

    /// Describes an object; with `usage`, including the space that only its snapshots hold.
    pub(super) fn object(&self, which: &Which, usage: bool) -> Result<ObjectReport> {
        let name = self.name_of(which)?;
        let etag = self.etag(Some(&name))?;
        let object = if let Some((volume, own)) = name.split_once('@') {
            let id = self.pool.volume(&name)?.id().0;
            let found = self.snapshots(Some(volume), Some(own), false)?.into_iter().find(|snapshot| snapshot.id == id);
            AnyObject::Snapshot(found.ok_or_else(|| missing(&name))?)
        } else {
            let mut listed = self.listed();
            listed.retain(|listed| listed.name() == name);
            let mut report = self.reports(listed).pop().ok_or_else(|| missing(&name))?;
            if usage && !report.folder {
                report.snapshot_stored_bytes = Some(self.pool.snapshot_only_bytes(&name)?);
            }
            AnyObject::Volume(report)
        };
        Ok(ObjectReport { etag, object })
    }

    fn listed(&self) -> Vec<Listed> {
        let objects = self.pool.volumes().into_iter().map(Listed::Object);
        objects.chain(self.pool.folders().into_iter().map(Listed::Folder)).collect()
    }

    /// Lists a page of the objects.
    pub(super) fn list_objects(&self, wish: &ListWish) -> Result<ObjectPage> {
        let parent = wish.parent.as_ref().map(|which| self.name_of(which)).transpose()?;
        if let Some(parent) = parent.as_deref().filter(|parent| !self.pool.is_folder(parent)) {
            self.pool.volume(parent)?;
        }
        let is_wanted = |listed: &Listed| {
            let name = listed.name();
            let inner = match &parent {
                None => Some(name),
                Some(parent) if is_in(name, parent) => name.get(parent.len() + 1..),
                Some(_) => None,
            };
            inner.is_some_and(|inner| wish.recursive || !inner.contains('/'))
                && wish.kind.is_none_or(|kind| kind == listed.kind())
                && wish.name.as_deref().is_none_or(|wanted| name == wanted)
                && wish.matching.as_deref().is_none_or(|text| name.contains(text))
        };
        let mut keyed: Vec<_> =
            self.listed().into_iter().filter(is_wanted).map(|listed| (listed.key(wish.sort), listed)).collect();
        keyed.sort_by(|(a, _), (b, _)| if wish.descending { b.cmp(a) } else { a.cmp(b) });
        let total = keyed.len() as u64;
        if let Some(cursor) = &wish.cursor {
            let last: (Key, u64) = serde_json::from_str(cursor).map_err(|error| {
                let text = "the cursor is not from a page of objects: use 'next' of the previous page";
                Error::with_source(ErrorKind::Invalid, text, error)
            })?;
            keyed.retain(|(key, _)| if wish.descending { *key < last } else { *key > last });
        }
        let limit = wish.limit.clamp(1, PAGE_MAX) as usize;
        let has_more = keyed.len() > limit;
        keyed.truncate(limit);
        let next = keyed.last().filter(|_| has_more).map(|(key, _)| serde_json::to_string(key)).transpose();
        let next = next.map_err(|error| Error::with_source(ErrorKind::Invalid, "a cursor cannot be encoded", error))?;
        let objects = self.reports(keyed.into_iter().map(|(_, listed)| listed).collect());
        Ok(ObjectPage { objects, next, total })
    }

    /// Lists volumes and shares by name.
    pub(super) fn list(&self) -> Vec<VolumeReport> {
        let mut volumes = self.reports(self.pool.volumes().into_iter().map(Listed::Object).collect());
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        volumes
    }

    /// Describes objects in their order.
    fn reports(&self, listed: Vec<Listed>) -> Vec<VolumeReport> {
        let unserved = self.mounted_shares().map(|shares| shares.unserved()).unwrap_or_default();
        let mut reports: Vec<_> = listed.into_iter().map(|listed| self.report(listed, &unserved)).collect();
        let places: BTreeMap<String, usize> =
            reports.iter().enumerate().map(|(at, report)| (report.name.clone(), at)).collect();
        for bookmark in self.pool.bookmarks(None).unwrap_or_default() {
            if let Some(at) = places.get(&bookmark.volume) {
                reports[*at].bookmarks.push(documents::bookmark_line(bookmark));
            }
        }
        reports
    }

    fn report(&self, listed: Listed, unserved: &[UnservedLine]) -> VolumeReport {
        match listed {
            Listed::Folder(status) => documents::folder_report(status),
            Listed::Object(status) => {
                let clients = self.devices.named_clients(&status.name);
                let why = unserved.iter().find(|share| share.share == status.name).map(|share| share.why.clone());
                VolumeReport { unserved: why, ..documents::volume_report(status, clients) }
            }
        }
    }
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("'{name}' does not exist: it was destroyed or renamed"))
}
