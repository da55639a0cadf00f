//! `shale set`, `inherit` and `get`.

use std::path::Path;

use surface::{Error, ErrorKind, Result};

use crate::cli::{Access, GetArgs, InheritArgs, SetArgs};
use crate::output::{Output, tabbed, table};
use operations::Outcome;
use operations::names::{Changes, key_value, of_zfs, property_key, set_words};
use operations::{Reply, Request, Which};
use report::PropertyReport;
use server::session::Session;

/// Sets properties, and shows the values in force then.
pub fn set(args: SetArgs, output: &Output) -> Outcome {
    if args.pool.to_str().is_some_and(|word| key_value(word).is_ok()) && !args.pool.exists() {
        let text = format!(
            "'{}' is in the place of the pool, which comes first: shale set POOL [NAME] KEY=VALUE",
            args.pool.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let (volume, changes) = set_words(&args.words)?;
    change(&args.pool, &args.access, volume, changes, output)
}

/// Removes a property's own value, and shows the value in force then.
pub fn inherit(args: InheritArgs, output: &Output) -> Outcome {
    let is_property = |word: &str| policy::KEYS.iter().any(|key| key.name == word);
    // `inherit VOLUME PROPERTY`, the order of `get` and `set`.
    let (key, name) = match args.name {
        Some(last) if is_property(&last) && !is_property(&args.key) => (last, Some(args.key)),
        name => (args.key, name),
    };
    change(&args.pool, &args.access, name, [(key, None)].into(), output)
}

fn change(pool: &Path, access: &Access, volume: Option<String>, changes: Changes, output: &Output) -> Outcome {
    let keys: Vec<String> = changes.keys().cloned().collect();
    let object = volume.map(Which::from);
    let report = Session::with(pool, access, |session| {
        match session.call(Request::Set { object, changes, if_match: None })? {
            Reply::Properties(report) => Ok(report),
            other => Err(other.unexpected().into()),
        }
    })?;
    report.notes.iter().for_each(|text| output.note(&format!("note: {text}")));
    let changed: Vec<_> = report.properties.into_iter().filter(|property| keys.contains(&property.key)).collect();
    output.done(&changed, || table(&with_header(&USUAL, "", &changed)));
    Ok(())
}

/// Shows properties.
pub fn get(args: GetArgs, output: &Output) -> Outcome {
    let words: Vec<_> = args.words.iter().map(|word| property_key(word).unwrap_or_else(|_| word.clone())).collect();
    let (owner, properties) =
        Session::with(&args.pool, &args.access, |session| Ok(wanted(session, &args.pool, &words)?))?;
    output.result(&properties, || {
        let columns = args.columns.unwrap_or_else(|| USUAL.map(str::to_owned).to_vec());
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let rows = with_header(&columns, owner.as_deref().unwrap_or("-"), &properties);
        if args.bare { tabbed(&rows[1..]) } else { table(&rows) }
    });
    Ok(())
}

/// All properties, as in other file systems.
const ALL: &str = "all";

/// Parses words: the first is a volume or a folder if there is one of that name; otherwise all are
/// properties of the pool. Returns also the name of the volume or folder.
fn wanted(session: &Session, pool: &Path, words: &[String]) -> Result<(Option<String>, Vec<PropertyReport>)> {
    let Some((first, rest)) = words.split_first() else { return Ok((None, in_force(session, None)?)) };
    match in_force(session, Some(first.clone())) {
        Ok(properties) => Ok((Some(first.clone()), select(properties, rest, &format!("'{first}'"))?)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let properties = in_force(session, None)?;
            let is_property = |word: &String| word == ALL || properties.iter().any(|property| property.key == *word);
            // `get PROPERTY VOLUME`, as in zfs.
            if let ([key], Some(last)) = (&words[..words.len() - 1], words.last())
                && is_property(key)
                && !is_property(last)
                && let Ok(properties) = in_force(session, Some(last.clone()))
            {
                return Ok((Some(last.clone()), select(properties, std::slice::from_ref(key), last)?));
            }
            if is_property(first) || of_zfs(first).is_some() {
                Ok((None, select(properties, words, "the pool")?))
            } else {
                let known: Vec<_> = properties.iter().map(|property| property.key.as_str()).collect();
                let message = format!(
                    "'{first}' is neither a volume or a folder of {} nor a property; properties are {}",
                    pool.display(),
                    known.join(", ")
                );
                Err(Error::new(ErrorKind::NotFound, message))
            }
        }
        Err(error) => Err(error),
    }
}

/// Returns the properties of `keys`, in their order; all if there are none, or if `all` is the only
/// one.
fn select(properties: Vec<PropertyReport>, keys: &[String], owner: &str) -> Result<Vec<PropertyReport>> {
    if keys.is_empty() || keys == [ALL] {
        return Ok(properties);
    }
    let find = |key: &String| {
        properties.iter().find(|property| property.key == *key).cloned().ok_or_else(|| {
            let known: Vec<_> = properties.iter().map(|property| property.key.as_str()).collect();
            let message = match of_zfs(key) {
                Some(answer) => format!("there is no property '{key}': {answer}"),
                None => format!("{owner} has no property '{key}'; it has {}", known.join(", ")),
            };
            Error::new(ErrorKind::Invalid, message)
        })
    };
    keys.iter().map(find).collect()
}

fn in_force(session: &Session, volume: Option<String>) -> Result<Vec<PropertyReport>> {
    match session.call(Request::Get { object: volume.map(Which::from) })? {
        Reply::Properties(report) => Ok(report.properties),
        other => Err(other.unexpected()),
    }
}

/// Columns without -o.
const USUAL: [&str; 3] = ["property", "value", "source"];

/// Returns a header, and a row for each property of `owner`.
fn with_header(columns: &[&str], owner: &str, properties: &[PropertyReport]) -> Vec<Vec<String>> {
    let cell = |column: &str, p: &PropertyReport| match (column, &p.folder) {
        ("name", _) => owner.to_owned(),
        ("property", _) => p.key.clone(),
        ("value", _) => p.value.clone(),
        (_, Some(folder)) => format!("{} {folder}", p.source),
        (_, None) => p.source.clone(),
    };
    let mut rows = vec![columns.iter().map(|column| column.to_uppercase()).collect::<Vec<_>>()];
    rows.extend(properties.iter().map(|p| columns.iter().map(|column| cell(column, p)).collect()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn property(key: &str, value: &str) -> PropertyReport {
        PropertyReport {
            key: key.to_owned(),
            value: value.to_owned(),
            source: "default".to_owned(),
            folder: None,
            values: Vec::new(),
            allowed: String::new(),
            description: String::new(),
            rules: Default::default(),
        }
    }

    #[test]
    fn selected_properties_come_in_the_order_asked_for() {
        let all = || vec![property("compression", "lz4"), property("unit", "32K")];
        let keys = |list: &[&str]| list.iter().map(|k| (*k).to_owned()).collect::<Vec<_>>();
        assert_eq!(select(all(), &[], "it").unwrap(), all());
        assert_eq!(select(all(), &keys(&["all"]), "it").unwrap(), all());
        let some = select(all(), &keys(&["unit", "compression"]), "it").unwrap();
        assert_eq!(some, [property("unit", "32K"), property("compression", "lz4")]);
        let error = select(all(), &keys(&["colour"]), "volume 'x'").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("compression, unit"), "{error}");
    }
}
