//! Properties of a pool and its volumes: read, changed, and checked against what others reserve.

use format::Entry;
use policy::Owner;
use surface::Result;

use crate::base::options::Properties;
use crate::base::status::Property;
use crate::objects::Object;
use crate::objects::properties;
use crate::pool::Pool;
use crate::volume::devices::Meant;

impl Pool {
    /// The properties of the pool, or those in force for a volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn properties(&self, volume: Option<&str>) -> Result<Vec<Property>> {
        let (owner, own) = match volume {
            Some(name) => (Owner::Volume, self.core.objects.named(name)?.descriptor.read().properties.clone()),
            None => (Owner::Pool, Properties::new()),
        };
        let mut all = properties::in_force(&self.core.objects.pool_properties(), &own)?;
        let is_of_others = |key: &policy::PropertyKey| key.only_of.is_some_and(|only| only != owner);
        all.retain(|p| !policy::KEYS.iter().any(|key| is_of_others(key) && key.name == p.key));
        Ok(all)
    }

    /// The volumes and snapshots that have not got all of the data that an import was to bring, by
    /// name.
    pub fn incomplete(&self) -> Vec<String> {
        let is_meant =
            |object: &Object| object.is_readable() && policy::is_incomplete(&object.descriptor.read().properties);
        let objects = self.core.objects.all();
        let mut names: Vec<_> = objects.iter().filter(|object| is_meant(object)).map(|object| object.title()).collect();
        names.sort_unstable();
        names
    }

    /// Sets properties (`None`: unsets them), all or none. They hold for writes from now on.
    /// Durable on return.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Invalid`] which lists the allowed values.
    pub fn set_properties(&self, volume: Option<&str>, changes: &[(String, Option<String>)]) -> Result<()> {
        self.set_properties_of(volume.map(Meant::Name), changes)
    }

    /// As [`set_properties`](Self::set_properties).
    ///
    /// # Errors
    /// The same.
    pub fn set_properties_of(&self, volume: Option<Meant<'_>>, changes: &[(String, Option<String>)]) -> Result<()> {
        let _admin = self.core.admin.lock();
        let entry = match volume {
            Some(meant) => {
                let mut descriptor = self.core.objects.meant_volume(meant)?.descriptor.read().clone();
                let own = properties::changed(Owner::Volume, &descriptor.properties, changes)?;
                let before = std::mem::replace(&mut descriptor.properties, own);
                let pool = self.core.objects.pool_properties();
                let after =
                    properties::resolved_after(&descriptor.name, (&pool, &before), (&pool, &descriptor.properties))?;
                let reserved = after.reservation_bytes;
                self.core.check_reservation(descriptor.id, reserved)?;
                Entry::Object(descriptor)
            }
            None => {
                let pool = properties::changed(Owner::Pool, &self.core.objects.pool_properties(), changes)?;
                self.core.check_inherited(&pool)?;
                Entry::PoolProperties(pool)
            }
        };
        self.core.append_durably(vec![entry])?;
        self.core.count_reservations();
        Ok(())
    }
}
