//! `shale bookmark`, `bookmarks`: records that outlive a snapshot; `hold`, `release`, `holds`: tags
//! that keep one.

use serde_json::json;
use surface::{Error, ErrorKind};

use crate::cli::{BookmarkArgs, BookmarksArgs, HoldArgs, HoldsArgs, ReleaseArgs};
use crate::output::{Output, table};
use crate::times::show_moment;
use operations::Outcome;
use operations::names;
use operations::{Reply, Request, Which};
use server::session::Session;

/// Makes a bookmark of a snapshot.
pub fn bookmark(args: BookmarkArgs, output: &Output) -> Outcome {
    let BookmarkArgs { pool, snapshot, name, access } = args;
    let volume = names::volume_of(&snapshot);
    let name = match name.split_once('#') {
        Some((other, _)) if !other.is_empty() && other != volume => {
            let text = format!(
                "a bookmark belongs to the volume of its snapshot: '{name}' cannot be a bookmark of '{snapshot}'"
            );
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        Some((_, own)) => own.to_owned(),
        None => name,
    };
    let title = format!("{volume}#{name}");
    let request = Request::Bookmark { object: snapshot.clone().into(), name };
    Session::with(&pool, &access, |session| Ok(session.done(request)?))?;
    let document = json!({ "bookmark": title, "snapshot": snapshot });
    output.done(&document, || format!("bookmark {title} remembers {snapshot}\n"));
    Ok(())
}

/// Lists the bookmarks.
pub fn bookmarks(args: &BookmarksArgs, output: &Output) -> Outcome {
    let bookmarks = Session::with(&args.pool, &args.access, |session| {
        match session.call(Request::Bookmarks { object: args.volume.as_ref().map(Which::from) })? {
            Reply::Bookmarks(bookmarks) => Ok(bookmarks),
            other => Err(other.unexpected().into()),
        }
    })?;
    output.result(&bookmarks, || {
        if bookmarks.is_empty() {
            return "there are no bookmarks\n".to_owned();
        }
        let mut rows = vec![["BOOKMARK", "CREATED"].map(str::to_owned).to_vec()];
        rows.extend(bookmarks.iter().map(|line| vec![line.bookmark.clone(), show_moment(line.created_unix_s)]));
        table(&rows)
    });
    Ok(())
}

/// Holds a snapshot with a tag.
pub fn hold(args: HoldArgs, output: &Output) -> Outcome {
    let HoldArgs { pool, snapshot, tag, access } = args;
    let request = Request::Hold { object: snapshot.clone().into(), tag: tag.clone() };
    Session::with(&pool, &access, |session| Ok(session.done(request)?))?;
    output.done(&json!({ "snapshot": snapshot, "tag": tag }), || format!("{snapshot} is held by {tag}\n"));
    Ok(())
}

/// Releases a hold on a snapshot.
pub fn release(args: ReleaseArgs, output: &Output) -> Outcome {
    let ReleaseArgs { pool, snapshot, tag, access } = args;
    let request = Request::Release { object: snapshot.clone().into(), tag: tag.clone() };
    Session::with(&pool, &access, |session| Ok(session.done(request)?))?;
    output.done(&json!({ "snapshot": snapshot, "tag": tag }), || format!("{snapshot} is no longer held by {tag}\n"));
    Ok(())
}

/// Lists the holds of snapshots.
pub fn holds(args: &HoldsArgs, output: &Output) -> Outcome {
    let holds = Session::with(&args.pool, &args.access, |session| {
        match session.call(Request::Holds { object: args.of.as_ref().map(Which::from) })? {
            Reply::Holds(holds) => Ok(holds),
            other => Err(other.unexpected().into()),
        }
    })?;
    output.result(&holds, || {
        if holds.is_empty() {
            return "there are no holds\n".to_owned();
        }
        let mut rows = vec![["SNAPSHOT", "TAG"].map(str::to_owned).to_vec()];
        rows.extend(holds.iter().map(|hold| vec![hold.snapshot.clone(), hold.tag.clone()]));
        table(&rows)
    });
    Ok(())
}
