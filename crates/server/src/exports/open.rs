//! The open doors of shares, according to the properties.

use doors::{Access, Door};
use engine::{Pool, PropertySource};

/// A door of a share that is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenDoor {
    pub door: Door,
    /// Value of the property.
    pub value: String,
    /// Its meaning, or a message if this version does not know it.
    pub access: Result<Access, String>,
}

/// Returns the open doors of a share. A door that an inner share has inherited is omitted where the
/// outer share shows the inner one anyway, as a directory: nobody asked for a second port, and a
/// second name for the same files. NFS clients reach each share as an export.
pub fn doors_of(pool: &Pool, share: &str) -> Vec<OpenDoor> {
    // Above a share are folders, and shares with all of the same inheritable properties.
    let outer = share.rsplit_once('/').map(|(outer, _)| outer);
    let is_within = outer.is_some_and(|outer| pool.volumes().iter().any(|v| v.is_share() && v.name == outer));
    let properties = pool.properties(Some(share)).unwrap_or_default();
    let open = Door::ALL.into_iter().filter_map(|door| {
        let property = properties.iter().find(|property| property.key == door.name())?;
        if is_within && door != Door::Nfs && property.source != PropertySource::Own {
            return None;
        }
        let access = Access::parse(door, &property.value).map_err(|error| error.to_string());
        let is_shut = access.as_ref().is_ok_and(|access| !access.is_open());
        (!is_shut).then(|| OpenDoor { door, value: property.value.clone(), access })
    });
    open.collect()
}
