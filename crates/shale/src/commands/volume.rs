//! `shale create` and `resize`.

use std::collections::BTreeMap;

use serde_json::json;
use surface::{Error, ErrorKind};
use units::format_size;

use super::forced::{self, Change, Forced};
use super::list::{folders, volumes};
use super::rounding::report_rounding;
use crate::cli::{CreateArgs, ResizeArgs};
use crate::output::Output;
use operations::Request;
use operations::names::round_up_to_block;
use operations::{Failure, Outcome};
use server::session::Session;

/// Creates a volume, a share or a folder.
pub fn create(args: CreateArgs, output: &Output) -> Outcome {
    let CreateArgs { pool, volume: name, size, share, folder, parents, quota, properties, access } = args;
    let mut properties: BTreeMap<_, _> = properties.into_iter().collect();
    properties.extend(quota.map(|quota| ("quota".to_owned(), quota)));
    let wants_properties = !properties.is_empty();
    if size.is_none() && !share && !folder {
        let text = format!(
            "what '{name}' is to be is not said: a volume (--size SIZE), a share (--share) or a folder (--folder)"
        );
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let size_bytes = round_up_to_block(size.unwrap_or(0))?;
    report_rounding(output, size.unwrap_or(0), size_bytes);
    let request = match (share, folder) {
        (_, true) => Request::CreateFolder { folder: name.clone(), properties },
        (true, _) => Request::CreateShare { share: name.clone(), properties },
        _ => Request::Create { volume: name.clone(), size_bytes, properties },
    };
    let was_there = Session::with(&pool, &access, |session| {
        if parents {
            make_folders_of(session, &name)?;
        }
        match session.created(request) {
            // As of mkdir -p.
            Err(error) if error.kind() == ErrorKind::Exists && folder && parents => {
                if !is_folder(session, &name)? {
                    Err(error.into())
                } else if wants_properties {
                    let way = format!(", and keeps its properties: change them with shale set POOL {name} KEY=VALUE");
                    Err(Failure::from(error).with(&way))
                } else {
                    Ok(true)
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound && name.contains('/') && !parents => {
                Err(Failure::from(error).with(", or say -p, which makes the folders that are missing"))
            }
            created => Ok(created.map(|_| false)?),
        }
    })?;
    match (share, folder) {
        _ if was_there => output.done(&json!({ "folder": name }), || format!("folder {name} is there already\n")),
        (_, true) => output.done(&json!({ "folder": name }), || format!("folder {name} created\n")),
        (true, _) => output.done(&json!({ "share": name }), || format!("share {name} created\n")),
        _ => say_size(output, "created", &name, size_bytes),
    }
    Ok(())
}

/// Whether a name is a folder's.
pub fn is_folder(session: &Session, name: &str) -> Outcome<bool> {
    Ok(folders(session)?.iter().any(|folder| folder.name == name))
}

/// What messages call that which a name is: a folder, a share or a volume.
pub fn kind_of(session: &Session, name: &str) -> Outcome<&'static str> {
    if is_folder(session, name)? {
        return Ok("folder");
    }
    let is_share = volumes(session)?.iter().any(|volume| volume.name == name && volume.share);
    Ok(if is_share { "share" } else { "volume" })
}

/// Makes the folders that a name lies in, as far as they are missing.
pub fn make_folders_of(session: &Session, name: &str) -> Outcome {
    for (at, _) in name.match_indices('/') {
        let request = Request::CreateFolder { folder: name[..at].to_owned(), properties: BTreeMap::new() };
        match session.created(request) {
            // If that is no folder, the creation in it says so.
            Err(error) if error.kind() == ErrorKind::Exists => {}
            created => drop(created?),
        }
    }
    Ok(())
}

/// Changes the size of a volume.
pub fn resize(args: ResizeArgs, output: &Output) -> Outcome {
    let size_bytes = args.size;
    let request =
        Request::Resize { volume: args.volume.clone(), id: None, size_bytes, shrink: args.shrink, force: args.force };
    Session::with(&args.pool, &args.access, |session| {
        // Without --shrink it is refused if it would take anything.
        if args.force && args.shrink {
            let forced = Forced { title: &args.volume, change: Change::Shrunk, recursive: false };
            forced::tell(session, &forced, output)?;
        }
        Ok(session.done(request)?)
    })?;
    say_size(output, "resized", &args.volume, size_bytes);
    Ok(())
}

fn say_size(output: &Output, what: &str, volume: &str, size_bytes: u64) {
    let document = json!({ "volume": volume, "size_bytes": size_bytes });
    output.done(&document, || format!("volume {volume} {what}: {}\n", exact_size(size_bytes)));
}

/// A size as people read it, with the bytes where that is rounded.
fn exact_size(size_bytes: u64) -> String {
    match format_size(size_bytes) {
        text if text.contains('.') => format!("{text} ({size_bytes} bytes)"),
        text => text,
    }
}
