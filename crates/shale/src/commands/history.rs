//! `shale snapshot`, `clone`, `rollback`, `rename`, `promote` and `diff`.

use serde_json::json;
use surface::{Error, ErrorKind};

use super::below;
use super::forced;
use super::image;
use super::incomplete;
use super::list::volumes;
use super::volume::{is_folder, kind_of, noted};
use crate::cli::{Access, CloneArgs, DiffArgs, PromoteArgs, RenameArgs, RollbackArgs, SnapshotArgs};
use crate::output::Output;
use operations::Outcome;
use operations::names;
use operations::{Reply, Request, Which};
use report::{ChangeReport, DiffReport};
use server::session::Session;
use server::stream_plan::fits;

fn done(pool: &std::path::Path, access: &Access, request: Request) -> Outcome {
    Session::with(pool, access, |session| Ok(session.done(request)?))
}

/// Takes a snapshot.
pub fn snapshot(args: SnapshotArgs, output: &Output) -> Outcome {
    let [snapshot, others @ ..] = &args.snapshots[..] else { return Ok(()) };
    let (volume, name) = snapshot.split_once('@').unwrap_or_default();
    if args.snapshots.iter().any(|title| title.contains(['*', '?'])) {
        if !args.recursive || !others.is_empty() {
            let why = format!("'*' selects several volumes: use shale snapshot POOL -r '{snapshot}', alone");
            return Err(Error::new(ErrorKind::Invalid, why).into());
        }
        return snapshot_matching(&args, volume, name, output);
    }
    if args.recursive {
        if !others.is_empty() {
            let why = "-r takes one snapshot: FOLDER@SNAPSHOT";
            return Err(Error::new(ErrorKind::Invalid, why).into());
        }
        return snapshot_folder(&args, volume, name, output);
    }
    if !others.is_empty() {
        let request = Request::SnapshotTogether { snapshots: args.snapshots.clone() };
        let taken = Session::with(&args.pool, &args.access, |session| take_together(session, request, output))?;
        say_taken(&taken, output);
        return Ok(());
    }
    let request = Request::Snapshot { object: volume.into(), name: name.to_owned() };
    Session::with(&args.pool, &args.access, |session| {
        session.done(request)?;
        incomplete::warn_of(snapshot, session, output);
        Ok(())
    })?;
    output.done(&json!({ "snapshot": snapshot }), || format!("snapshot {snapshot} taken\n"));
    Ok(())
}

/// Makes several snapshots at one moment; returns their names.
fn take_together(session: &Session, request: Request, output: &Output) -> Outcome<Vec<String>> {
    let taken = match session.call(request)? {
        Reply::Taken(taken) => taken,
        other => return Err(other.unexpected().into()),
    };
    taken.iter().for_each(|snapshot| incomplete::warn_of(snapshot, session, output));
    Ok(taken)
}

fn say_taken(snapshots: &[String], output: &Output) {
    let text = || snapshots.iter().map(|snapshot| format!("snapshot {snapshot} taken\n")).collect::<String>();
    output.done(&json!({ "snapshots": snapshots }), text);
}

/// Makes a snapshot of everything in a folder, or of a share and those in it; for a volume, which
/// contains nothing else, of the volume.
fn snapshot_folder(args: &SnapshotArgs, folder: &str, name: &str, output: &Output) -> Outcome {
    let snapshots = Session::with(&args.pool, &args.access, |session| {
        if volumes(session)?.iter().any(|volume| volume.name == folder && !volume.share) {
            session.done(Request::Snapshot { object: folder.into(), name: name.to_owned() })?;
            return Ok(args.snapshots.clone());
        }
        let request = Request::SnapshotFolder { folder: folder.into(), name: name.to_owned() };
        take_together(session, request, output)
    })?;
    say_taken(&snapshots, output);
    Ok(())
}

/// Makes a snapshot of all volumes and shares whose names match a pattern.
fn snapshot_matching(args: &SnapshotArgs, pattern: &str, name: &str, output: &Output) -> Outcome {
    let taken = Session::with(&args.pool, &args.access, |session| {
        let found = volumes(session)?.into_iter().filter(|volume| fits(pattern, &volume.name));
        let snapshots: Vec<_> = found.map(|volume| format!("{}@{name}", volume.name)).collect();
        if snapshots.is_empty() {
            let why = format!("no volume or share of the pool matches '{pattern}': `shale list` shows them");
            return Err(Error::new(ErrorKind::NotFound, why).into());
        }
        take_together(session, Request::SnapshotTogether { snapshots }, output)
    })?;
    say_taken(&taken, output);
    Ok(())
}

/// Makes a volume from a snapshot.
pub fn clone(args: CloneArgs, output: &Output) -> Outcome {
    if let Some(url) = args.pool.to_str().filter(|word| word.contains("://")).map(str::to_owned) {
        return image::clone(args, &url, output);
    }
    if args.size.is_some() {
        let why = "--size is for clones of images: a clone of a snapshot is resized later";
        return Err(Error::new(ErrorKind::Invalid, why).into());
    }
    names::any_name(&args.snapshot).map_err(|why| Error::new(ErrorKind::Invalid, why))?;
    let properties = args.properties.into_iter().collect();
    let request = Request::Clone { object: args.snapshot.clone().into(), volume: args.volume.clone(), properties };
    noted(Session::with(&args.pool, &args.access, |session| Ok(session.created(request)?))?, output);
    let document = json!({ "volume": args.volume, "origin": args.snapshot });
    output.done(&document, || format!("{} cloned from {}\n", args.volume, args.snapshot));
    Ok(())
}

/// Rolls a volume back to a snapshot, or everything in a folder to those of one name.
pub fn rollback(args: RollbackArgs, output: &Output) -> Outcome {
    let (volume, name) = args.snapshot.split_once('@').unwrap_or_default();
    let (titles, is_folder) = Session::with(&args.pool, &args.access, |session| {
        let is_folder = is_folder(session, volume)?;
        let titles = if is_folder { below::snapshots(session, volume, name)? } else { vec![args.snapshot.clone()] };
        let request = Request::Rollback {
            snapshots: titles.iter().map(Which::from).collect(),
            recursive: args.recursive,
            force: args.force,
        };
        if args.force {
            forced::tell(session, &request, output)?;
        }
        session.done(request)?;
        Ok((titles, is_folder))
    })?;
    let mut document = json!({ "volume": volume, "snapshot": args.snapshot });
    if is_folder {
        document["snapshots"] = json!(titles);
    }
    let line = |title: &String| format!("{} was rolled back to {title}\n", names::volume_of(title));
    output.done(&document, || titles.iter().map(line).collect());
    Ok(())
}

/// Renames a volume or a snapshot.
pub fn rename(args: RenameArgs, output: &Output) -> Outcome {
    done(
        &args.pool,
        &args.access,
        Request::Rename { object: args.old.clone().into(), name: args.new.clone(), if_match: None },
    )?;
    output.done(&json!({ "old": args.old, "new": args.new }), || format!("{} is now {}\n", args.old, args.new));
    Ok(())
}

/// Makes a clone independent of its origin.
pub fn promote(args: PromoteArgs, output: &Output) -> Outcome {
    let kind = Session::with(&args.pool, &args.access, |session| {
        session.done(Request::Promote { object: args.volume.clone().into() })?;
        kind_of(session, &args.volume)
    })?;
    let text = || format!("{kind} {} now owns the snapshots up to its origin\n", args.volume);
    output.done(&json!({ "volume": args.volume }), text);
    Ok(())
}

/// Shows the changes since a snapshot, page by page.
pub fn diff(args: DiffArgs, output: &Output) -> Outcome {
    let volume = names::volume_of(&args.from);
    let to = args.to.clone().unwrap_or_else(|| volume.to_owned());
    Session::with(&args.pool, &args.access, |session| {
        let (mut start, mut is_first) = (Some(0), true);
        // The last change of a page may continue in the next one.
        let mut held: Option<ChangeReport> = None;
        while let Some(at) = start {
            let request = Request::Diff { object: to.clone().into(), from: args.from.clone().into(), start: at };
            let page = match session.call(request)? {
                Reply::Diff(page) => page,
                other => return Err(other.unexpected().into()),
            };
            if is_first {
                begin(output, &args.from, &to, &page);
                is_first = false;
            }
            for change in page.changes {
                match &mut held {
                    Some(last) if last.now == change.now && last.offset + last.length == change.offset => {
                        last.length += change.length;
                    }
                    _ => {
                        if let Some(last) = held.replace(change) {
                            tell(output, &last);
                        }
                    }
                }
            }
            start = page.next;
        }
        if let Some(last) = held {
            tell(output, &last);
        }
        Ok(())
    })
}

fn begin(output: &Output, from: &str, to: &str, page: &DiffReport) {
    if output.is_json() {
        output.json(&json!({ "from": from, "to": to, "from_bytes": page.from_bytes, "to_bytes": page.to_bytes }));
    }
}

/// Reports a change as soon as it is known: there may be more than fit in memory.
fn tell(output: &Output, change: &ChangeReport) {
    output.result(change, || format!("{:>16} {:>12} {}\n", change.offset, change.length, change.now));
}
