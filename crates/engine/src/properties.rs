//! Properties between users, the policy and the table of objects.

use surface::{Error, ErrorKind, Result};

use crate::options::Properties;
use crate::status::{Property, PropertySource};

/// Most bytes of keys and values that are set on a pool or a volume. They go into the log in one piece, which must fit the smallest
/// extent, 32 KiB, beside whatever else a batch holds.
const PROPERTIES_BYTES_MAX: usize = 8 << 10;

/// Whose properties they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Pool,
    Volume,
}

/// Fails with what is allowed if a property is unknown or a value makes no sense.
pub(crate) fn check(owner: Owner, properties: &Properties) -> Result<()> {
    let changes: Vec<_> = properties.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    changed(owner, &Properties::new(), &changes).map(|_| ())
}

/// `properties` with changes made to them; `None` unsets.
pub(crate) fn changed(
    owner: Owner,
    properties: &Properties,
    changes: &[(String, Option<String>)],
) -> Result<Properties> {
    let mut properties = properties.clone();
    for (key, value) in changes {
        match value {
            Some(value) => {
                let check = match owner {
                    Owner::Pool => policy::check_property,
                    Owner::Volume => policy::check_volume_property,
                };
                check(key, value).map_err(invalid)?;
                properties.insert(key.clone(), value.clone());
            }
            None => {
                // Unsetting an unknown property is as wrong as setting it.
                if !policy::is_property(key) {
                    return Err(invalid(policy::PropertyError::UnknownKey(key.clone())));
                }
                properties.remove(key);
            }
        }
    }
    let bytes: usize = properties.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > PROPERTIES_BYTES_MAX {
        let message = format!(
            "the properties take {bytes} bytes, {PROPERTIES_BYTES_MAX} are allowed: set rules for fewer types of file, or shorter ones"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if owner == Owner::Pool {
        policy::check_pool(&properties).map_err(invalid)?;
    }
    Ok(properties)
}

/// What the properties in force mean.
pub(crate) fn resolved(pool: &Properties, volume: &Properties) -> Result<policy::Settings> {
    policy::resolve(pool, volume).map(|resolved| resolved.settings).map_err(invalid)
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
        .map(|p| Property { key: p.key, value: p.value, source: source(p.source) })
        .collect())
}

fn invalid(error: policy::PropertyError) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, value: Option<&str>) -> (String, Option<String>) {
        (key.to_owned(), value.map(str::to_owned))
    }

    #[test]
    fn rules_are_set_and_unset_like_other_properties() {
        let set =
            changed(Owner::Pool, &Properties::new(), &[change("rule.nc", Some("gzip-1")), change("unit", Some("4K"))])
                .unwrap();
        assert_eq!(set.len(), 2);
        assert_eq!(changed(Owner::Pool, &set, &[change("rule.nc", None)]).unwrap().len(), 1);
        for (key, value) in [("rule.nc", Some("x")), ("rules", None), ("rule.n c", Some("lz4"))] {
            assert_eq!(
                changed(Owner::Volume, &set, &[change(key, value)]).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{key}"
            );
        }
    }

    #[test]
    fn properties_that_would_not_fit_an_extent_are_refused() {
        let mut properties = Properties::new();
        let mut refused = None;
        for n in 0..1000 {
            match changed(
                Owner::Pool,
                &properties,
                &[change(&format!("rule.t{n}"), Some("archive:zstd-19,performance:lz4"))],
            ) {
                Ok(more) => properties = more,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        assert!(refused.unwrap().to_string().contains("8192 are allowed"));
        assert!(properties.len() > 100);
        check(Owner::Pool, &properties).unwrap();
    }
}
