//! `shale list`: volumes, with `-r` their snapshots; as a table for people, or as bare columns for
//! scripts.

use std::collections::BTreeMap;

use surface::{Error, ErrorKind, Result};
use units::{did_you_mean, format_size};

use super::status::{status, unserved_words};
use super::{incomplete, streams};
use crate::cli::ListArgs;
use crate::output::{Output, tabbed, table};
use crate::times::show_moment;
use operations::Outcome;
use operations::names::{property_key, volume_of};
use operations::{Reply, Request, Which};
use report::{BookmarkLine, ImageLine, SnapshotReport, VolumeReport, ratio, show_ratio};
use server::devices::is_in;
use server::session::Session;

/// Columns of a volume or a snapshot, in addition to its properties in force.
pub const COLUMNS: [&str; 18] = [
    "name",
    "type",
    "id",
    "size",
    "data",
    "stored",
    "ratio",
    "saved",
    "unique",
    "shared",
    "clients",
    "created",
    "origin",
    "local",
    "incomplete",
    "scheduled",
    "holds",
    "bookmarks",
];
/// Columns without `-o`: both sets fit 80 columns with names of some 20 letters.
const USUAL: [&str; 7] = ["name", "type", "size", "data", "stored", "ratio", "clients"];
const USUAL_RECURSIVE: [&str; 7] = ["name", "type", "created", "data", "stored", "ratio", "unique"];
/// The same for a pool with holds.
const USUAL_HELD: [&str; 8] = ["name", "type", "created", "data", "stored", "ratio", "unique", "holds"];

/// A line of the list.
#[derive(Clone, Copy)]
struct Row<'a> {
    volume: &'a VolumeReport,
    snapshot: Option<&'a SnapshotReport>,
    bookmark: Option<&'a BookmarkLine>,
    /// Image that provides the volume's unwritten groups.
    image: Option<&'a ImageLine>,
    /// Properties in force for the volume, if requested.
    properties: Option<&'a BTreeMap<String, String>>,
}

/// Lists the volumes.
pub fn run(args: ListArgs, output: &Output) -> Outcome {
    let columns = match &args.columns {
        Some(names) => columns(names)?,
        None => USUAL.map(str::to_owned).to_vec(),
    };
    let wants_properties = columns.iter().any(|column| !COLUMNS.contains(&column.as_str()));
    let (volumes, properties, receives, pool) = Session::with(&args.pool, &args.access, |session| {
        if args.sync {
            session.done(Request::Checkpoint)?;
        } else if args.wants_snapshots() {
            // A snapshot newer than the last checkpoint would have far too small figures. A pool
            // that takes no checkpoint is listed as well.
            let _ = session.done(Request::Checkpoint);
        }
        let volumes = wanted(session, &args)?;
        let mut properties = BTreeMap::new();
        for volume in volumes.iter().filter(|_| wants_properties) {
            properties.insert(volume.name.clone(), in_force(session, &volume.name)?);
        }
        Ok((volumes, properties, streams::receives(session)?, status(session)?))
    })?;
    output.result(&volumes, || {
        let mut columns = columns;
        if args.columns.is_none() && args.wants_snapshots() {
            let is_held = volumes.iter().flat_map(|v| v.snapshots.iter().flatten()).any(|s| !s.holds.is_empty());
            let usual: &[&str] = if is_held && !args.bare { &USUAL_HELD } else { &USUAL_RECURSIVE };
            columns = usual.iter().map(|&name| name.to_owned()).collect();
        }
        let rows = rows(&volumes, &properties, &pool.images, &args);
        if args.bare {
            let cells = |row: &Row<'_>| columns.iter().map(|column| row.exact(column)).collect();
            return tabbed(&rows.iter().map(cells).collect::<Vec<_>>());
        }
        let mut lines = vec![columns.iter().map(|column| column.to_uppercase()).collect::<Vec<_>>()];
        lines.extend(rows.iter().map(|row| columns.iter().map(|column| row.shown(column)).collect()));
        let mut text = table(&lines);
        if args.columns.is_some() || args.volume.is_some() {
            return text;
        }
        for r in &receives {
            let (come, expected) = (format_size(r.received_bytes), format_size(r.expected_bytes));
            text += &format!("being received: {}@{}, {come} of {expected}\n", r.volume, r.snapshot);
        }
        for share in &pool.unserved_shares {
            text += &format!("NOT SERVED: {}\n", unserved_words(share));
        }
        for title in pool.incomplete.iter().filter(|title| args.recursive || !title.contains('@')) {
            text += &format!("{}\n", incomplete::words(title, pool.import_into(title)));
        }
        for image in &pool.images {
            text += &format!("image {}\n", image.words());
        }
        let (data, stored) = pool.of_destroyed();
        if data > 0 {
            // Otherwise a clone whose origin was destroyed seems to have no data.
            let (data, stored) = (format_size(data), format_size(stored));
            let received = if receives.is_empty() { "" } else { "being received, or " };
            text += &format!(
                "{received}in destroyed volumes, for clones or not yet reclaimed: {data}, stored in {stored}\n"
            );
        }
        text
    });
    Ok(())
}

/// Returns the requested columns: those of the list, and properties.
fn columns(wanted: &[String]) -> Result<Vec<String>> {
    // Alternative names of properties are columns, too.
    let names: Vec<_> = wanted.iter().map(|name| property_key(name).unwrap_or_else(|_| name.clone())).collect();
    let keys = || policy::KEYS.iter().map(|key| key.name).filter(|key| !COLUMNS.contains(key));
    let known = || COLUMNS.into_iter().chain(keys());
    for name in &names {
        if !known().any(|known| known == name) {
            let meant = match &name[..] {
                "used" | "referenced" => "; 'stored' shows the bytes used",
                "avail" | "available" => "; `shale df` shows the space left",
                "compressratio" | "refcompressratio" => "; 'ratio' shows it",
                _ => "",
            };
            let text = format!(
                "there is no column '{name}'{meant}; the columns are {}{}",
                known().collect::<Vec<_>>().join(", "),
                did_you_mean(name, known())
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    Ok(names)
}

/// Returns the requested volumes, with the requested snapshots.
fn wanted(session: &Session, args: &ListArgs) -> Outcome<Vec<VolumeReport>> {
    let mut volumes = volumes(session)?;
    volumes.extend(folders(session)?);
    // A folder precedes everything in it.
    volumes.sort_by(|a, b| a.name.split('/').cmp(b.name.split('/')));
    let of = args.volume.as_deref().map(volume_of);
    if let Some(name) = of {
        volumes.retain(|volume| volume.name == name || is_in(&volume.name, name));
    }
    if args.wants_snapshots() || volumes.is_empty() && of.is_some() {
        // For a missing volume this request returns the error. A share has none of those in it.
        let of = of.filter(|_| volumes.len() < 2);
        let snapshots =
            match session.call(Request::Snapshots { object: of.map(Which::from), name: None, below: false })? {
                Reply::Snapshots(snapshots) => snapshots,
                other => return Err(other.unexpected().into()),
            };
        for volume in volumes.iter_mut().filter(|volume| !volume.folder) {
            volume.snapshots = Some(snapshots.iter().filter(|s| s.volume == volume.name).cloned().collect());
        }
    }
    if let Some((_, name)) = args.volume.as_deref().and_then(|title| title.split_once('@')) {
        let is_of_folder = volumes.len() > 1 || volumes.iter().any(|volume| volume.folder);
        for volume in &mut volumes {
            let snapshots = volume.snapshots.get_or_insert_default();
            let names: Vec<_> = snapshots.iter().map(|snapshot| snapshot.name.clone()).collect();
            snapshots.retain(|snapshot| snapshot.name == name);
            if snapshots.is_empty() && !is_of_folder {
                let meant = did_you_mean(name, names.iter().map(String::as_str));
                let text = format!("volume '{}' has no snapshot '{name}'{meant}", volume.name);
                return Err(Error::new(ErrorKind::NotFound, text).into());
            }
        }
    }
    volumes.retain(|volume| is_told(volume, args));
    Ok(volumes)
}

fn in_force(session: &Session, volume: &str) -> Outcome<BTreeMap<String, String>> {
    match session.call(Request::Get { object: Some(volume.into()) })? {
        Reply::Properties(report) => Ok(report.properties.into_iter().map(|p| (p.key, p.value)).collect()),
        other => Err(other.unexpected().into()),
    }
}

/// Returns the folders of a pool.
pub fn folders(session: &Session) -> Outcome<Vec<VolumeReport>> {
    match session.call(Request::Folders)? {
        Reply::Volumes(folders) => Ok(folders),
        other => Err(other.unexpected().into()),
    }
}

/// Returns the volumes of a pool.
pub fn volumes(session: &Session) -> Outcome<Vec<VolumeReport>> {
    match session.call(Request::List)? {
        Reply::Volumes(volumes) => Ok(volumes),
        other => Err(other.unexpected().into()),
    }
}

fn rows<'a>(
    volumes: &'a [VolumeReport],
    properties: &'a BTreeMap<String, BTreeMap<String, String>>,
    images: &'a [ImageLine],
    args: &ListArgs,
) -> Vec<Row<'a>> {
    let is_snapshot = args.volume.as_ref().is_some_and(|title| title.contains('@'));
    let mut rows = Vec::new();
    for volume in volumes {
        let properties = properties.get(&volume.name);
        let image = images.iter().find(|image| image.volumes.contains(&volume.name));
        let plain = Row { volume, snapshot: None, bookmark: None, image, properties };
        rows.extend((!is_snapshot).then_some(plain));
        let snapshots = volume.snapshots.iter().flatten();
        rows.extend(snapshots.map(|snapshot| Row { snapshot: Some(snapshot), ..plain }));
        let bookmarks = volume.bookmarks.iter().filter(|_| args.wants_bookmarks() && !is_snapshot);
        rows.extend(bookmarks.map(|bookmark| Row { bookmark: Some(bookmark), ..plain }));
    }
    rows.retain(|row| args.shows(row.kind()));
    rows
}

/// Returns whether a volume is listed at all: for itself, for its snapshots or for its bookmarks.
fn is_told(volume: &VolumeReport, args: &ListArgs) -> bool {
    let has_snapshots = volume.snapshots.as_ref().is_some_and(|snapshots| !snapshots.is_empty());
    args.shows(volume.kind.name())
        || has_snapshots && args.shows("snapshot")
        || !volume.bookmarks.is_empty() && args.shows("bookmark")
}

/// Value of a column, which people and scripts read in different formats.
enum Value {
    None,
    Text(String),
    Bytes(u64),
    /// Estimated between checkpoints.
    AboutBytes(u64),
    Ratio(Option<f64>),
    Percent(Option<f64>),
    Count(u64),
    Moment(u64),
    Flag(bool),
}

/// Joins names in one cell.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    let text = names.collect::<Vec<_>>().join(",");
    if text.is_empty() { Value::None } else { Value::Text(text) }
}

impl Row<'_> {
    fn kind(&self) -> &'static str {
        match (self.bookmark, self.snapshot) {
            (Some(_), _) => "bookmark",
            (_, Some(_)) => "snapshot",
            _ => self.volume.kind.name(),
        }
    }

    fn value(&self, column: &str) -> Value {
        let v = self.volume;
        if column == "type" {
            return Value::Text(self.kind().to_owned());
        }
        if let Some(bookmark) = self.bookmark {
            return match column {
                "name" => Value::Text(bookmark.bookmark.clone()),
                "created" => Value::Moment(bookmark.created_unix_s),
                _ => Value::None,
            };
        }
        let (data, stored) = match self.snapshot {
            Some(s) => (s.data_bytes, s.unique_bytes + s.shared_bytes),
            None => (v.allocated_bytes, v.stored_bytes),
        };
        let held = ratio(data, stored).filter(|_| data > 0);
        match (column, self.snapshot) {
            ("name", Some(s)) => Value::Text(format!("{}@{}", v.name, s.name)),
            ("name", None) => Value::Text(v.name.clone()),
            ("id", None) => Value::Count(v.id),
            ("size", _) if v.share || v.folder => Value::None,
            ("clients", None) if v.folder => Value::None,
            ("size", snapshot) => Value::Bytes(snapshot.map_or(v.size_bytes, |s| s.size_bytes)),
            ("data", _) => Value::AboutBytes(data),
            ("stored", _) => Value::AboutBytes(stored),
            ("ratio", _) => Value::Ratio(held),
            ("saved", _) => Value::Percent(held.map(|ratio| 100.0 * (1.0 - 1.0 / ratio))),
            ("unique", Some(s)) => Value::AboutBytes(s.unique_bytes),
            ("shared", Some(s)) => Value::AboutBytes(s.shared_bytes),
            ("clients", snapshot) => Value::Count(snapshot.map_or(v.clients, |s| s.clients) as u64),
            ("created", snapshot) => Value::Moment(snapshot.map_or(v.created_unix_s, |s| s.created_unix_s)),
            ("origin", None) => {
                let origin = v.origin.clone().or_else(|| Some(self.image?.address()));
                origin.map_or(Value::None, Value::Text)
            }
            ("local", _) => self.image.map_or(Value::None, |image| Value::AboutBytes(image.local_bytes)),
            ("incomplete", snapshot) => Value::Flag(snapshot.map_or(v.incomplete, |s| s.incomplete)),
            ("scheduled", Some(s)) => Value::Flag(s.scheduled),
            ("holds", Some(s)) => listed(s.holds.iter().map(String::as_str)),
            ("bookmarks", None) => {
                let own = |line: &'_ BookmarkLine| line.bookmark.split_once('#').map(|(_, own)| own.to_owned());
                let own: Vec<_> = v.bookmarks.iter().filter_map(own).collect();
                listed(own.iter().map(String::as_str))
            }
            (property, None) => {
                let value = self.properties.and_then(|properties| properties.get(property));
                value.cloned().map_or(Value::None, Value::Text)
            }
            _ => Value::None,
        }
    }

    /// Formats the value for people.
    fn shown(&self, column: &str) -> String {
        let about = if self.volume.exact { "" } else { "~" };
        match self.value(column) {
            Value::None | Value::Ratio(None) | Value::Percent(None) => "-".to_owned(),
            Value::Text(text) => text,
            Value::Bytes(bytes) => format_size(bytes),
            Value::AboutBytes(bytes) => format!("{about}{}", format_size(bytes)),
            Value::Ratio(ratio) => format!("{about}{}", show_ratio(ratio)),
            Value::Percent(Some(percent)) => format!("{about}{percent:.1} %"),
            Value::Count(count) => count.to_string(),
            Value::Moment(unix_s) => show_moment(unix_s),
            Value::Flag(flag) => if flag { "yes" } else { "no" }.to_owned(),
        }
    }

    /// Formats the value for scripts: bytes, seconds since 1970, numbers without units.
    fn exact(&self, column: &str) -> String {
        match self.value(column) {
            Value::None | Value::Ratio(None) | Value::Percent(None) => "-".to_owned(),
            Value::Text(text) => text,
            Value::Bytes(number) | Value::AboutBytes(number) | Value::Count(number) | Value::Moment(number) => {
                number.to_string()
            }
            Value::Ratio(Some(number)) | Value::Percent(Some(number)) => format!("{number:.4}"),
            Value::Flag(flag) => if flag { "yes" } else { "no" }.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use report::ObjectKind;

    use super::*;

    fn volume() -> VolumeReport {
        VolumeReport {
            id: 7,
            kind: ObjectKind::Volume,
            name: "vm".to_owned(),
            share: false,
            folder: false,
            size_bytes: 10 << 30,
            allocated_bytes: 3 << 20,
            stored_bytes: 1 << 20,
            ratio: Some(3.0),
            created_unix_s: 1_795_219_200,
            clients: 1,
            client_names: vec!["a test".to_owned()],
            properties: BTreeMap::new(),
            origin: None,
            incomplete: false,
            exact: false,
            bookmarks: vec![BookmarkLine { bookmark: "vm#b".to_owned(), created_unix_s: 60, identity: String::new() }],
            unserved: None,
            snapshot_stored_bytes: None,
            snapshots: None,
        }
    }

    #[test]
    fn estimates_are_marked_for_people_and_bare_for_scripts() {
        let mut volume = volume();
        fn row(volume: &VolumeReport) -> Row<'_> {
            Row { volume, snapshot: None, bookmark: None, image: None, properties: None }
        }
        assert_eq!(
            USUAL.map(|column| row(&volume).shown(column)),
            ["vm", "volume", "10 GiB", "~3 MiB", "~1 MiB", "~3.00x", "1"]
        );
        let exact = ["vm", "volume", "10737418240", "3145728", "1048576", "3.0000", "1"];
        assert_eq!(USUAL.map(|column| row(&volume).exact(column)), exact);
        volume.exact = true;
        assert!(COLUMNS.iter().all(|column| !row(&volume).shown(column).contains('~')));
        assert_eq!(row(&volume).shown("created"), "2026-11-21 00:00");
        assert_eq!((row(&volume).shown("unique"), row(&volume).exact("origin")), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn a_snapshot_has_its_own_data_and_ratio() {
        let mut volume = volume();
        volume.exact = true;
        let snapshot = SnapshotReport {
            id: 8,
            kind: ObjectKind::Snapshot,
            volume: "vm".to_owned(),
            name: "s".to_owned(),
            size_bytes: 1 << 30,
            created_unix_s: 0,
            scheduled: true,
            unique_bytes: 1 << 20,
            shared_bytes: 3 << 20,
            data_bytes: 8 << 20,
            clients: 0,
            client_names: Vec::new(),
            incomplete: false,
            holds: vec!["audit".to_owned(), "offsite".to_owned()],
        };
        let row = Row { volume: &volume, snapshot: Some(&snapshot), bookmark: None, image: None, properties: None };
        let shown = USUAL_RECURSIVE.map(|column| row.shown(column));
        assert_eq!(shown, ["vm@s", "snapshot", "1970-01-01 00:00", "8 MiB", "4 MiB", "2.00x", "1 MiB"]);
        assert_eq!(
            (row.shown("saved"), row.shown("scheduled"), row.shown("id")),
            ("50.0 %".into(), "yes".into(), "-".into())
        );
        assert_eq!((row.shown("holds"), row.shown("bookmarks")), ("audit,offsite".to_owned(), "-".to_owned()));
        let row = Row { snapshot: None, ..row };
        assert_eq!((row.shown("holds"), row.shown("bookmarks")), ("-".to_owned(), "b".to_owned()));
        let row = Row { bookmark: volume.bookmarks.first(), ..row };
        let shown = USUAL_HELD.map(|column| row.shown(column));
        assert_eq!(shown, ["vm#b", "bookmark", "1970-01-01 00:01", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn a_column_that_there_is_not_is_named_with_those_that_there_are() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(columns(&names(&["name", "compression"])).unwrap().len(), 2);
        let error = columns(&names(&["rati"])).unwrap_err();
        assert!(
            error.to_string().ends_with("did you mean 'ratio'?") && error.to_string().contains("unique"),
            "{error}"
        );
    }
}
