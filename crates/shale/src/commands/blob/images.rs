//! `shale blob unpin`, and `optimize --profile`: blobs as images of volumes.

use std::collections::BTreeSet;
use std::path::Path;

use ::blob::{At, Blob, Holders, Location, UploadOptions};
use serde::{Deserialize, Serialize};
use surface::{Error, ErrorKind};
use units::format_size;

use super::Context;
use crate::cli::BlobUnpinArgs;
use operations::{Outcome, path_error};
use server::first_reads::GROUP_BYTES;

/// The relevant part of a trace.
#[derive(Debug, Deserialize)]
struct BootProfile {
    group_bytes: u64,
    groups: Vec<u64>,
}

#[derive(Debug, Serialize)]
struct Arranged {
    blob: String,
    version: u64,
    groups: u64,
    moved: u64,
    stored_bytes: u64,
}

fn read_profile(file: &Path) -> Outcome<Vec<u64>> {
    let text = std::fs::read_to_string(file).map_err(|error| path_error("cannot read", file, error))?;
    let wrong = |what: &str| {
        let text =
            format!("{} is not a profile: {what}; `shale trace POOL VOLUME --reads FILE` writes one", file.display());
        Error::new(ErrorKind::Invalid, text)
    };
    let profile: BootProfile = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
    if profile.group_bytes != GROUP_BYTES {
        return Err(wrong(&format!("its groups have {} bytes, not {GROUP_BYTES}", profile.group_bytes)).into());
    }
    Ok(profile.groups)
}

/// Puts the groups of a profile into one object.
pub async fn arrange(
    location: &Location,
    blob: &Blob,
    file: &Path,
    options: &UploadOptions,
    context: &Context<'_>,
) -> Outcome {
    let groups = read_profile(file)?;
    let done = context.until_interrupted_changing(blob.arrange(&groups, options)).await?;
    let arranged = Arranged {
        blob: location.to_string(),
        version: context.until_interrupted(blob.refresh()).await?.seq,
        groups: done.groups,
        moved: done.moved,
        stored_bytes: done.stored,
    };
    context.output.done(&arranged, || {
        let size = format_size(arranged.stored_bytes);
        let (blob, groups, moved) = (&arranged.blob, arranged.groups, arranged.moved);
        format!("{blob}: {moved} of {groups} groups ({size}) rearranged in the order of the profile\n")
    });
    Ok(())
}

#[derive(Debug, Serialize)]
struct Unpinned {
    blob: String,
    holder: String,
    unpinned: u64,
}

/// Removes pins of volumes whose pool is gone.
pub async fn unpin(args: BlobUnpinArgs, context: &Context<'_>) -> Outcome {
    if *args.blob.at() != At::Newest {
        let why = "unpin applies to all versions: remove `@VERSION` from the URL";
        return Err(Error::new(ErrorKind::Invalid, why).into());
    }
    let (_, blob) = context.open_to_write(&args.blob).await?;
    let is_meant = |holder: &str| {
        holder == args.holder || holder.strip_prefix(&args.holder).is_some_and(|rest| rest.starts_with('/'))
    };
    let kept = BTreeSet::new();
    let holders = Holders::Accepted { is_meant: &is_meant, kept: &kept };
    let unpinned = context.until_interrupted_changing(blob.unpin(holders)).await?;
    if unpinned == 0 {
        let why = format!("no volume '{}' holds a version; `shale blob stat` lists the holders", args.holder);
        return Err(Error::new(ErrorKind::NotFound, why).into());
    }
    let unpinned = Unpinned { blob: args.blob.to_string(), holder: args.holder, unpinned };
    context.output.done(&unpinned, || format!("{}: {} unpinned\n", unpinned.blob, unpinned.holder));
    Ok(())
}
