//! Properties between users, the policy and the table of objects.

use policy::Owner;
use surface::{Error, ErrorKind, Result};
use units::format_size;

use crate::base::options::Properties;
use crate::base::status::{Property, PropertySource};
use crate::objects::names::TITLE_BYTES_MAX;

/// Prefix of a tag's key among a snapshot's properties.
pub const HOLD_PREFIX: &str = "hold.";
/// The key, among a snapshot's properties, of the version that it was pushed as.
pub const PUSHED: &str = "pushed";
/// Upper bound for keys and values set on a pool or a volume. They go into the log in one piece,
/// which must fit the smallest extent, 32 KiB, together with the rest of a batch.
const PROPERTIES_BYTES_MAX: usize = 8 << 10;

/// Fails, naming the allowed values, if a property is unknown or a value is invalid.
pub fn check(owner: Owner, properties: &Properties) -> Result<()> {
    let changes: Vec<_> = properties.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    changed(owner, &Properties::new(), &changes).map(|_| ())
}

/// `properties` with changes made to them; `None` unsets.
pub fn changed(owner: Owner, properties: &Properties, changes: &[(String, Option<String>)]) -> Result<Properties> {
    let mut properties = properties.clone();
    for (key, value) in changes {
        match value {
            Some(value) => {
                policy::check_property_of(owner, key, value).map_err(invalid)?;
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
            "the properties take {bytes} bytes, {PROPERTIES_BYTES_MAX} are allowed: set rules for fewer file \
             types, or shorter ones"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if owner == Owner::Pool {
        policy::check_pool(&properties).map_err(invalid)?;
    }
    Ok(properties)
}

/// Returns the properties that belong to a volume's data at a moment: whether an import is
/// incomplete. A snapshot keeps those; all others belong to the volume, whatever its data.
pub fn of_moment(own: &Properties) -> Properties {
    if policy::is_incomplete(own) {
        [(policy::INCOMPLETE.to_owned(), "yes".to_owned())].into()
    } else {
        Properties::new()
    }
}

/// Returns the properties of a volume whose data is that of a moment with the properties `moment`.
pub fn with_moment(mut own: Properties, moment: &Properties) -> Properties {
    own.remove(policy::INCOMPLETE);
    own.extend(of_moment(moment));
    own
}

/// Resolves the properties in force into settings.
pub fn resolved(pool: &Properties, volume: &Properties) -> Result<policy::Settings> {
    policy::resolve(pool, volume).map(|resolved| resolved.settings).map_err(invalid)
}

/// Settings that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Conflict {
    /// More is reserved than the quota allows.
    Quota,
    /// Scheduled snapshots would have no valid names.
    Name,
}

/// Resolves the properties for a volume of that name, if they do not conflict: the reservation must
/// fit the quota, and the names of scheduled snapshots must be valid.
pub fn resolved_for(name: &str, pool: &Properties, volume: &Properties) -> Result<policy::Settings> {
    let settings = resolved(pool, volume)?;
    conflicts(name, &settings, pool, volume)?.into_iter().next().map_or(Ok(settings), |(_, error)| Err(error))
}

/// Returns the conflicts for a volume of that name with these settings.
fn conflicts(
    name: &str,
    settings: &policy::Settings,
    pool: &Properties,
    volume: &Properties,
) -> Result<Vec<(Conflict, Error)>> {
    let mut conflicts = Vec::new();
    if let Some(quota) = settings.quota_bytes.filter(|quota| *quota < settings.reservation_bytes) {
        let (reserved, quota) = (format_size(settings.reservation_bytes), format_size(quota));
        let text = format!(
            "'{name}' would have a reservation of {reserved} and a quota of {quota}: it could never use \
             all of its reservation"
        );
        conflicts.push((Conflict::Quota, Error::new(ErrorKind::Invalid, text)));
    }
    let takes = in_force(pool, volume)?.into_iter().any(|p| p.key == "snapshots" && p.value != "off");
    let longest = TITLE_BYTES_MAX - 1 - policy::scheduled_name(0).len();
    if takes && name.len() > longest {
        let text = format!(
            "the name of volume '{name}' is too long for scheduled snapshots, VOLUME@auto-DATE: at most \
             {longest} bytes; give it a shorter name, or set snapshots=off for it"
        );
        conflicts.push((Conflict::Name, Error::new(ErrorKind::Invalid, text)));
    }
    Ok(conflicts)
}

/// The same when properties change: settings that were in conflict before block no change.
pub fn resolved_after(
    name: &str,
    before: (&Properties, &Properties),
    (pool, volume): (&Properties, &Properties),
) -> Result<policy::Settings> {
    let settings = resolved(pool, volume)?;
    let known = match resolved(before.0, before.1) {
        Ok(was) => conflicts(name, &was, before.0, before.1)?,
        // Properties that this version does not understand.
        Err(_) => return Ok(settings),
    };
    refuse_new(&known, conflicts(name, &settings, pool, volume)?).map(|()| settings)
}

/// Fails if a renamed or moved volume would get no more scheduled snapshots. Each name comes with
/// the properties inherited under it. Settings that this version does not understand, and older
/// conflicts, block no change.
pub fn check_rename(
    (old, before): (&str, &Properties),
    (new, after): (&str, &Properties),
    volume: &Properties,
) -> Result<()> {
    let (Ok(was), Ok(is)) = (resolved(before, volume), resolved(after, volume)) else { return Ok(()) };
    refuse_new(&conflicts(old, &was, before, volume)?, conflicts(new, &is, after, volume)?)
}

/// Fails with the first conflict of a kind that was not known.
fn refuse_new(known: &[(Conflict, Error)], now: Vec<(Conflict, Error)>) -> Result<()> {
    let is_new = |(kind, _): &(Conflict, Error)| known.iter().all(|(old, _)| old != kind);
    now.into_iter().find(is_new).map_or(Ok(()), |(_, error)| Err(error))
}

/// Returns the properties in force, with their sources; `pool`: those inherited.
pub fn in_force(pool: &Properties, volume: &Properties) -> Result<Vec<Property>> {
    let resolved = policy::resolve(pool, volume).map_err(invalid)?;
    let source = |source| match source {
        policy::Source::Default => PropertySource::Default,
        policy::Source::Pool => PropertySource::Pool,
        policy::Source::Volume => PropertySource::Own,
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
    fn what_did_not_hold_together_before_lets_nothing_else_in() {
        let own = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (none, long) = (Properties::new(), "v".repeat(250));
        let named: Properties = own(&[("snapshots", "hourly")]);
        let lower: Properties = own(&[("snapshots", "hourly"), ("quota", "1M"), ("reservation", "2M")]);
        let other: Properties = own(&[("snapshots", "hourly"), ("quota", "1M")]);
        assert!(resolved_for(&long, &none, &named).is_err());
        assert!(resolved_after(&long, (&none, &named), (&none, &other)).is_ok());
        let refused = resolved_after(&long, (&none, &named), (&none, &lower)).unwrap_err();
        assert!(refused.to_string().contains("quota"), "{refused}");
        assert!(resolved_after(&long, (&none, &none), (&none, &named)).is_err());
        assert!(resolved_after("v", (&none, &lower), (&none, &lower)).is_ok());
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
