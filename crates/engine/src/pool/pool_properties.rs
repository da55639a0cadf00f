//! Properties of a pool and its volumes: read, changed, and checked against the reservations of
//! others.

use format::Entry;
use policy::Owner;
use store::base::status::{Property, PropertySource};
use store::objects::Object;
use store::objects::folders::OF_FOLDER_ITSELF;
use store::objects::properties;
use store::objects::volume_ref::VolumeRef;
use surface::Result;

use crate::pool::Pool;

impl Pool {
    /// The properties of the pool, or those in force for a volume or a folder.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn properties(&self, name: Option<&str>) -> Result<Vec<Property>> {
        let objects = &self.core.objects;
        let (owner, object) = match name.map(|name| (name, objects.folder(name))) {
            Some((_, Some(folder))) => (Owner::Folder, Some(folder)),
            Some((name, None)) => (Owner::Volume, Some(objects.named(name)?)),
            None => (Owner::Pool, None),
        };
        let descriptor = object.map(|object| object.descriptor.read().clone());
        let own = descriptor.as_ref().map(|descriptor| descriptor.properties.clone()).unwrap_or_default();
        let mut inherited = descriptor.as_ref().map_or_else(|| objects.pool_properties(), |d| objects.inherited(d));
        if owner == Owner::Folder {
            inherited.retain(|key, _| !OF_FOLDER_ITSELF.contains(&key.as_str()));
        }
        let mut all = properties::in_force(&inherited, &own)?;
        all.retain(|p| policy::may_have(owner, &p.key));
        for property in all.iter_mut().filter(|property| property.source == PropertySource::Pool) {
            let folder = descriptor.as_ref().and_then(|d| objects.folder_that_set(d, &property.key));
            property.source = folder.map_or(PropertySource::Pool, PropertySource::Folder);
        }
        Ok(all)
    }

    /// Returns the volumes and snapshots with an incomplete import, by name.
    pub fn incomplete(&self) -> Vec<String> {
        let is_meant =
            |object: &Object| object.is_readable() && policy::is_incomplete(&object.descriptor.read().properties);
        let objects = self.core.objects.all();
        let mut names: Vec<_> = objects.iter().filter(|object| is_meant(object)).map(|object| object.title()).collect();
        names.sort_unstable();
        names
    }

    /// Sets properties (`None`: unsets them) of a volume, a folder or the pool, all or none. They
    /// apply to writes from now on. Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] which lists the allowed values.
    pub fn set_properties(&self, volume: Option<&str>, changes: &[(String, Option<String>)]) -> Result<()> {
        self.set_properties_of(volume.map(VolumeRef::Name), changes)
    }

    /// As [`set_properties`](Self::set_properties).
    ///
    /// # Errors
    /// The same.
    pub fn set_properties_of(&self, volume: Option<VolumeRef<'_>>, changes: &[(String, Option<String>)]) -> Result<()> {
        let _admin = self.core.objects.admin.lock();
        let objects = &self.core.objects;
        let folder = match volume {
            Some(VolumeRef::Name(name)) => objects.folder(name),
            _ => None,
        };
        let entry = match (folder, volume) {
            (Some(folder), _) => Entry::Object(self.folder_with(&folder, changes)?),
            (None, Some(target)) => {
                let volume = objects.resolve_volume(target)?;
                let mut descriptor = volume.descriptor.read().clone();
                let own = properties::changed(Owner::Volume, &descriptor.properties, changes)?;
                let before = std::mem::replace(&mut descriptor.properties, own);
                let inherited = objects.inherited(&descriptor);
                let (before, own) = ((&inherited, &before), (&inherited, &descriptor.properties));
                let after = properties::resolved_after(&volume.title(), before, own)?;
                let reserved = after.reservation_bytes;
                self.core.writes.check_reservation(descriptor.id, reserved)?;
                self.check_below(&descriptor)?;
                Entry::Object(descriptor)
            }
            (None, None) => {
                let pool = properties::changed(Owner::Pool, &self.core.objects.pool_properties(), changes)?;
                self.core.writes.check_inherited(&pool)?;
                Entry::PoolProperties(pool)
            }
        };
        self.core.writes.append_durably(vec![entry])?;
        self.core.space.count_reservations();
        Ok(())
    }
}
