//! `shale destroy`: resolves all names, checks every object before the first one is destroyed, and
//! destroys them one after the other; with -n it stops before that.

use serde_json::json;
use surface::{Error, ErrorKind};
use units::did_you_mean;

use super::below;
use super::forced;
use super::list::{folders, volumes};
use crate::cli::DestroyArgs;
use crate::output::Output;
use operations::names;
use operations::{Outcome, Reply, Request, Which};
use report::SnapshotReport;
use server::devices::is_in;
use server::session::Session;

/// An object to destroy.
struct Going {
    title: String,
    /// Its kind in messages.
    kind: &'static str,
}

/// Destroys volumes, shares, folders, snapshots and bookmarks.
pub fn run(args: &DestroyArgs, output: &Output) -> Outcome {
    if args.partial {
        return give_up(args, output);
    }
    let gone = Session::with(&args.pool, &args.access, |session| {
        let going = named(session, args)?;
        look_at_all(session, args, &going)?;
        if args.dry_run {
            return with_contents(session, args, going);
        }
        let titles: Vec<_> = going.iter().map(|thing| thing.title.clone()).collect();
        below::each(&titles, "destroyed", output, |title| {
            let request = request(args, title);
            if args.force {
                forced::tell(session, &request, output)?;
            }
            Ok(session.done(request)?)
        })?;
        Ok(going)
    })?;
    let titles: Vec<_> = gone.iter().map(|thing| &thing.title).collect();
    let document = json!({ "volume": args.volumes.first(), "destroyed": titles, "dry_run": args.dry_run });
    let line = |thing: &Going| match args.dry_run {
        true => format!("{} {} would be destroyed\n", thing.kind, thing.title),
        false => format!("{} {} destroyed\n", thing.kind, thing.title),
    };
    let text = || gone.iter().map(line).collect();
    if args.dry_run {
        output.result(&document, text);
    } else {
        output.done(&document, text);
    }
    Ok(())
}

/// Deletes the received part of a volume or snapshot whose stream was interrupted.
fn give_up(args: &DestroyArgs, output: &Output) -> Outcome {
    Session::with(&args.pool, &args.access, |session| {
        below::each(&args.volumes, "deleted", output, |title| {
            Ok(session.done(Request::GiveUp { title: title.to_owned() })?)
        })
    })?;
    let document = json!({ "volume": args.volumes.first(), "destroyed": args.volumes, "dry_run": false });
    let line = |title: &String| format!("the received part of {title} was deleted\n");
    output.done(&document, || args.volumes.iter().map(line).collect());
    Ok(())
}

fn request(args: &DestroyArgs, title: &str) -> Request {
    // The snapshots of a folder are listed one by one at this point.
    let recursive = args.recursive && !title.contains('@');
    Request::Destroy { object: title.into(), recursive, force: args.force, if_match: None }
}

/// Returns all objects that the names of the command line refer to, each once.
fn named(session: &Session, args: &DestroyArgs) -> Outcome<Vec<Going>> {
    let (volumes, folders) = (volumes(session)?, folders(session)?);
    let mut going: Vec<Going> = Vec::new();
    for name in &args.volumes {
        let found = match name.split_once('@') {
            Some((volume, spec)) if args.recursive || spec.contains([',', '%']) => {
                let titles = snapshots(session, volume, spec, args.recursive)?;
                titles.into_iter().map(|title| Going { title, kind: "snapshot" }).collect()
            }
            _ => {
                let kind = match name {
                    name if name.contains('@') => "snapshot",
                    name if name.contains('#') => "bookmark",
                    name if folders.iter().any(|folder| folder.name == *name) => "folder",
                    name if volumes.iter().any(|volume| volume.name == *name && volume.share) => "share",
                    _ => "volume",
                };
                vec![Going { title: name.clone(), kind }]
            }
        };
        for thing in found {
            if going.iter().all(|known| known.title != thing.title) {
                going.push(thing);
            }
        }
    }
    Ok(going)
}

/// Returns the snapshots named by `A,B%C` of a volume, or with `recursive` of everything in a
/// folder.
fn snapshots(session: &Session, volume: &str, spec: &str, recursive: bool) -> Outcome<Vec<String>> {
    let ranges = names::ranges(spec).map_err(|why| Error::new(ErrorKind::Invalid, why))?;
    let request = Request::Snapshots { object: Some(volume.into()), name: None, below: recursive };
    let all = match session.call(request)? {
        Reply::Snapshots(all) => all,
        other => return Err(other.unexpected().into()),
    };
    let mut owners: Vec<_> = all.iter().map(|snapshot| snapshot.volume.as_str()).collect();
    owners.sort_unstable();
    owners.dedup();
    let mut titles = Vec::new();
    for range in &ranges {
        let mut found = Vec::new();
        for owner in &owners {
            let own: Vec<_> = all.iter().filter(|snapshot| snapshot.volume == **owner).collect();
            match within(&own, *range) {
                Ok(names) => found.extend(names.map(|name| format!("{owner}@{name}"))),
                Err(missing) if !recursive => return Err(no_snapshot(owner, missing, &own).into()),
                Err(_) => {}
            }
        }
        if found.is_empty() {
            let text = match range {
                (Some(name), _) | (None, Some(name)) if recursive => {
                    format!("nothing in '{volume}' has a snapshot '{name}': shale list -r shows them")
                }
                (Some(name), _) | (None, Some(name)) => format!("volume '{volume}' has no snapshot '{name}'"),
                (None, None) => format!("'{volume}' has no snapshots"),
            };
            return Err(Error::new(ErrorKind::NotFound, text).into());
        }
        titles.extend(found);
    }
    Ok(titles)
}

/// Returns the names of a range of snapshots, which are ordered by age, or the name that is
/// missing.
fn within<'a>(
    own: &'a [&'a SnapshotReport],
    (from, to): names::SnapshotRange<'a>,
) -> Result<impl Iterator<Item = &'a str>, &'a str> {
    let place = |name: &'a str| own.iter().position(|snapshot| snapshot.name == name).ok_or(name);
    let first = from.map_or(Ok(0), place)?;
    let end = to.map_or(Ok(own.len()), |name| place(name).map(|at| at + 1))?;
    Ok(own.get(first..end).unwrap_or_default().iter().map(|snapshot| snapshot.name.as_str()))
}

fn no_snapshot(volume: &str, name: &str, own: &[&SnapshotReport]) -> Error {
    let meant = did_you_mean(name, own.iter().map(|snapshot| snapshot.name.as_str()));
    Error::new(ErrorKind::NotFound, format!("volume '{volume}' has no snapshot '{name}'{meant}"))
}

/// Refuses all if one would be refused. An object with earlier ones inside it is not checked: its
/// state is unknown before those are destroyed.
fn look_at_all(session: &Session, args: &DestroyArgs, going: &[Going]) -> Outcome {
    for thing in going {
        let holds_others = going
            .iter()
            .any(|other| other.title.strip_prefix(&thing.title).is_some_and(|rest| rest.starts_with(['@', '#', '/'])));
        if holds_others {
            continue;
        }
        if thing.kind == "bookmark" {
            look_at_bookmark(session, &thing.title)?;
        }
        forced::preview(session, &request(args, &thing.title))?;
    }
    Ok(())
}

fn look_at_bookmark(session: &Session, title: &str) -> Outcome {
    let volume = names::volume_of(title).to_owned();
    match session.call(Request::Bookmarks { object: Some(Which::from(&volume)) })? {
        Reply::Bookmarks(all) if all.iter().any(|line| line.bookmark == title) => Ok(()),
        Reply::Bookmarks(_) => {
            let text =
                format!("there is no bookmark '{title}': shale bookmarks POOL {volume} lists those of '{volume}'");
            Err(Error::new(ErrorKind::NotFound, text).into())
        }
        other => Err(other.unexpected().into()),
    }
}

/// Adds to each object everything in it that a recursive destroy includes.
fn with_contents(session: &Session, args: &DestroyArgs, going: Vec<Going>) -> Outcome<Vec<Going>> {
    if !args.recursive {
        return Ok(going);
    }
    let (volumes, folders) = (volumes(session)?, folders(session)?);
    let snapshots = match session.call(Request::Snapshots { object: None, name: None, below: false })? {
        Reply::Snapshots(snapshots) => snapshots,
        other => return Err(other.unexpected().into()),
    };
    let mut all: Vec<Going> = Vec::new();
    for thing in going {
        let is_below = |name: &str| name == thing.title || is_in(name, &thing.title);
        let mut below: Vec<_> = volumes
            .iter()
            .chain(&folders)
            .filter(|found| found.name != thing.title && is_in(&found.name, &thing.title))
            .map(|found| Going { title: found.name.clone(), kind: found.kind.name() })
            .collect();
        let own = snapshots.iter().filter(|snapshot| is_below(&snapshot.volume));
        let title = |snapshot: &SnapshotReport| format!("{}@{}", snapshot.volume, snapshot.name);
        below.extend(own.map(|snapshot| Going { title: title(snapshot), kind: "snapshot" }));
        below.sort_by(|a, b| a.title.cmp(&b.title));
        for thing in std::iter::once(thing).chain(below) {
            if all.iter().all(|known| known.title != thing.title) {
                all.push(thing);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use report::ObjectKind;

    use super::*;

    fn snapshot(name: &str) -> SnapshotReport {
        SnapshotReport {
            id: 1,
            kind: ObjectKind::Snapshot,
            volume: "v".to_owned(),
            name: name.to_owned(),
            size_bytes: 0,
            created_unix_s: 0,
            scheduled: false,
            unique_bytes: 0,
            shared_bytes: 0,
            data_bytes: 0,
            clients: 0,
            client_names: Vec::new(),
            incomplete: false,
            holds: Vec::new(),
        }
    }

    #[test]
    fn a_range_goes_by_the_order_in_which_snapshots_were_taken() {
        let taken = ["c", "a", "b", "d"].map(snapshot);
        let own: Vec<_> = taken.iter().collect();
        let found = |from, to| within(&own, (from, to)).map(Iterator::collect::<Vec<_>>);
        assert_eq!(found(Some("a"), Some("b")), Ok(vec!["a", "b"]));
        assert_eq!(found(None, Some("a")), Ok(vec!["c", "a"]));
        assert_eq!(found(Some("b"), None), Ok(vec!["b", "d"]));
        assert_eq!(found(None, None).map(|names| names.len()), Ok(4));
        assert_eq!(found(Some("b"), Some("a")), Ok(vec![]), "the wrong way round");
        assert_eq!(found(Some("x"), Some("a")), Err("x"));
        assert_eq!(no_snapshot("v", "bb", &own).kind(), ErrorKind::NotFound);
    }
}
