//! `shale clone URL POOL VOLUME` and `shale push`: volumes that begin as images in an object store,
//! and snapshots that are pushed there as versions.

use std::collections::BTreeMap;

use ::blob::{Image, Location};
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::interruption::Interruption;
use super::volume::noted;
use super::{blob, watch};
use crate::cli::{CloneArgs, PushArgs};
use crate::output::Output;
use operations::names;
use operations::{Failure, Outcome};
use operations::{ImageAddress, PushWish, Request};
use report::{JobResult, PushedLine};
use server::session::Session;

/// Size of units of a volume that begins as an image: the size of a blob's frames.
const UNIT: &str = "128K";

#[derive(Debug, Serialize)]
struct Cloned {
    volume: String,
    image: String,
    version: u64,
    size_bytes: u64,
}

/// Clones an image to a volume.
pub fn clone(args: CloneArgs, url: &str, output: &Output) -> Outcome {
    let location: Location = url.parse().map_err(invalid)?;
    let pool = std::path::PathBuf::from(&args.snapshot);
    let image = blob::with_context(output, async |context| {
        let connection = context.connect_to_write(&location).await?;
        let open = Image::open(&connection, location.key(), location.at());
        let image = context.until_interrupted(open).await?;
        let (version, size_bytes) = (image.version().seq, image.version().size);
        let incarnation = image.blob().log().inc().to_string();
        Ok(ImageAddress { location: location.to_string(), incarnation, version, size_bytes })
    })?;
    let cloned = Cloned {
        volume: args.volume.clone(),
        image: image.location.clone(),
        version: image.version,
        size_bytes: image.size_bytes,
    };
    if let Some(size) = args.size.filter(|size| *size < image.size_bytes) {
        let (size, least) = (format_size(size), format_size(image.size_bytes));
        let why = format!(
            "--size {size} is less than the size of the version ({least}): make the clone, and use \
         shale resize"
        );
        return Err(invalid(why).into());
    }
    let mut properties: BTreeMap<String, String> = args.properties.into_iter().collect();
    // Overwritten groups are single units, as in the image, and are pushed as they are stored.
    properties.entry("unit".to_owned()).or_insert_with(|| UNIT.to_owned());
    let request = Request::CloneImage { image, volume: args.volume, size_bytes: args.size, properties };
    Session::with(&pool, &args.access, |session| session.created(request).map_err(|error| of_whom(session, error)))
        .map(|created| noted(created, output))?;
    output.done(&cloned, || {
        let size = format_size(cloned.size_bytes);
        format!("{} is a clone of {} version {} ({size})\n", cloned.volume, cloned.image, cloned.version)
    });
    Ok(())
}

/// Names the process that lacks credentials: this command has found its own by then, and the pool's
/// server is accessing the store.
fn of_whom(session: &Session, error: Error) -> Failure {
    if !(session.is_served() && error.to_string().contains(::blob::NO_CREDENTIALS)) {
        return error.into();
    }
    let process = super::status::status(session).map(|report| format!(" (process {})", report.pid)).unwrap_or_default();
    let text = format!(
        "the pool's server{process} has no credentials for the store, and cannot use those of this command: restart \
         it with the same variables (in a unit of systemd with EnvironmentFile=)"
    );
    Error::new(error.kind(), text).into()
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, error.to_string())
}

/// Pushes a snapshot as the next version of an image.
pub fn push(args: PushArgs, output: &Output) -> Outcome {
    for location in [Some(&args.url), args.to.as_ref()].into_iter().flatten() {
        if *location.at() != ::blob::At::Newest {
            let why = format!("a push makes the next version of {location}: remove `@VERSION` from the URL");
            return Err(invalid(why).into());
        }
    }
    let target = args.to.clone().unwrap_or_else(|| args.url.clone());
    let wish = PushWish {
        snapshot: args.snapshot.clone(),
        url: args.url.to_string(),
        to: args.to.as_ref().map(ToString::to_string),
        replace: args.replace,
        background: false,
        message: args.message,
        properties: args.properties.into_iter().collect(),
    };
    let flag = blob::with_context(output, async |context| {
        context.connect_to_write(&target).await?;
        Ok(context.flag())
    })?;
    let interruption = Interruption::of(flag);
    let done = Session::with(&args.pool, &args.access, |session| {
        let started = watch::start_by(session, Request::Push(wish), false, &interruption, output);
        started.map_err(|failure| match failure {
            Failure::Error(error) => of_whom(session, error),
            other => other,
        })
    })?;
    match done {
        Some((JobResult::Pushed(pushed), _)) => tell(&pushed, &args.snapshot, output),
        Some((other, _)) => return Err(other.unexpected().into()),
        None => {}
    }
    Ok(())
}

/// Reports the outcome of a push.
pub(super) fn tell(pushed: &PushedLine, snapshot: &str, output: &Output) {
    output.done(pushed, || {
        let (bytes, stored) = (format_size(pushed.bytes), format_size(pushed.stored_bytes));
        let volume = names::volume_of(snapshot);
        if pushed.earlier {
            return format!("{} was pushed before: {} version {}\n", snapshot, pushed.blob, pushed.version);
        }
        if pushed.version == pushed.base_version {
            return format!("{} has no changes since {} version {}\n", snapshot, pushed.blob, pushed.version);
        }
        format!(
            "{} version {}: {bytes} changed in {volume} since version {}, stored in {stored} ({} of {} groups of \
             data as stored in the pool)\n",
            pushed.blob,
            pushed.version,
            pushed.base_version,
            pushed.as_stored,
            pushed.groups.saturating_sub(pushed.holes)
        )
    });
}
