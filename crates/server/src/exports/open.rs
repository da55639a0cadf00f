//! Which doors of which shares are open, by the properties.

use doors::{Access, Door};
use engine::{Pool, PropertySource};

/// A door of a share that is not shut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenDoor {
    /// Which one.
    pub door: Door,
    /// What the property says.
    pub value: String,
    /// What that means; in words, why this version does not know it.
    pub access: Result<Access, String>,
}

/// The open doors of a share. One that a share within another has inherited is not among them where
/// the other share shows it anyway, as a directory: a second port, and a second name for the same
/// files, would have been asked for by none. NFS clients reach each share as an export.
pub fn doors_of(pool: &Pool, share: &str) -> Vec<OpenDoor> {
    // Above a share are folders, and shares with all of the same properties that it inherits.
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
