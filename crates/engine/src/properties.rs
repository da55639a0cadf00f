//! Properties between users, the policy and the table of objects.

use surface::{Error, ErrorKind, Result};

use crate::options::Properties;
use crate::status::{Property, PropertySource};

/// Fails with what is allowed if a property is unknown or a value makes no sense.
pub(crate) fn check(properties: &Properties) -> Result<()> {
    for (key, value) in properties {
        policy::check_property(key, value).map_err(invalid)?;
    }
    Ok(())
}

/// `properties` with changes made to them; `None` unsets.
pub(crate) fn changed(properties: &Properties, changes: &[(String, Option<String>)]) -> Result<Properties> {
    let mut properties = properties.clone();
    for (key, value) in changes {
        match value {
            Some(value) => {
                policy::check_property(key, value).map_err(invalid)?;
                properties.insert(key.clone(), value.clone());
            }
            None => {
                // Unsetting an unknown property is as wrong as setting it.
                if !policy::KEYS.iter().any(|known| known.name == key) {
                    return Err(invalid(policy::PropertyError::UnknownKey(key.clone())));
                }
                properties.remove(key);
            }
        }
    }
    Ok(properties)
}

/// The properties in force, with their sources.
pub(crate) fn in_force(pool: &Properties, volume: &Properties) -> Result<Vec<Property>> {
    let resolved = policy::resolve(pool, volume).map_err(invalid)?;
    let source = |source| match source {
        policy::Source::Default => PropertySource::Default,
        policy::Source::Pool => PropertySource::Pool,
        policy::Source::Volume => PropertySource::Volume,
    };
    Ok(resolved
        .properties
        .into_iter()
        .map(|p| Property { key: p.key.to_owned(), value: p.value, source: source(p.source) })
        .collect())
}

fn invalid(error: policy::PropertyError) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}
