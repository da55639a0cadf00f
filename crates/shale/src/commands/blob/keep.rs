//! `shale blob clone`, `cp`, `expire`, `gc`, `optimize` and `rm`: the versions of a blob, and their
//! space.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::blob::{
    At, Blob, BlobKey, BlobRef, CommitOptions, ExpirePlan, ExpireRule, GcOptions, Tally, UploadOptions, check_known,
    clone_blob, copy_message, drop_dead_pins, gc as collect, refuse_nested, remove, sweep_removed,
};
use futures_util::StreamExt;
use object_store::path::Path;
use serde::Serialize;
use surface::{Error, ErrorKind};
use units::format_size;

use super::look::utc;
use super::put::{interruption, left, show};
use super::{Context, encoding, failure, half_written, images, named};
use crate::cli::{BlobCopyArgs, BlobExpireArgs, BlobGcArgs, BlobOptimizeArgs, BlobRmArgs, BlobTwoArgs};
use crate::progress::Progress;
use host::unix_s;
use operations::{Failure, Outcome};

/// Difference of two clocks that causes a warning, in seconds.
const CLOCKS_APART_S: u64 = 300;

#[derive(Debug, Serialize)]
struct Cloned {
    blob: String,
    source: String,
    version: u64,
    size_bytes: u64,
}

fn refuse<T>(why: &str) -> Outcome<T> {
    Err(Error::new(ErrorKind::Invalid, why).into())
}

/// Makes a blob that begins with another one's version and shares its objects.
pub async fn clone(args: BlobTwoArgs, context: &Context<'_>) -> Outcome {
    if !args.from.shares_store(&args.to) {
        return refuse(
            "a clone shares objects, so it must be in the same store; `shale blob cp` copies to another one",
        );
    }
    if *args.to.at() != At::Newest {
        return refuse("the clone has no versions yet: remove `@VERSION` from its URL");
    }
    let (connection, source) = context.open_to_write(&args.from).await?;
    // The pin needs the number of the version, which a later tag could change.
    let wanted = async {
        match args.from.at() {
            At::Newest => source.newest_or_rewritten().await,
            at => source.version(at).await,
        }
    };
    let version = context.until_interrupted(wanted).await?;
    let head = context.until_interrupted(source.version(&At::Newest)).await?;
    context.until_interrupted(refuse_nested(&connection, &args.to.key())).await?;
    let key_of = |key: &BlobKey| key.path().to_string();
    let mut names = Vec::new();
    let mut blobs = Vec::new();
    for origin in &version.origins {
        let key = BlobKey::new(Path::from(origin.location.as_str()));
        blobs.push(context.until_interrupted(Blob::open_incarnation(&connection, key, origin.inc)).await?);
        names.push(origin.location.clone());
    }
    let origins: Vec<BlobRef<'_>> =
        blobs.iter().zip(&names).map(|(blob, location)| BlobRef { committer: blob.committer(), location }).collect();
    let (from, to) = (key_of(&args.from.key()), key_of(&args.to.key()));
    let place = BlobRef { committer: source.committer(), location: &from };
    let backend = connection.backend().clone();
    let options = CommitOptions::default();
    let cloning = clone_blob(place, version.seq, &origins, backend, args.to.key(), &to, options);
    context.until_interrupted_changing(cloning).await?;
    let cloned = Cloned {
        blob: args.to.to_string(),
        source: args.from.to_string(),
        version: version.number(&head),
        size_bytes: version.size,
    };
    context.output.done(&cloned, || {
        let size = format_size(cloned.size_bytes);
        format!("{} is a clone of {} version {} ({size})\n", cloned.blob, cloned.source, cloned.version)
    });
    Ok(())
}

#[derive(Debug, Serialize)]
struct Copied {
    blob: String,
    source: String,
    source_version: u64,
    version: u64,
    bytes: u64,
    stored_bytes: u64,
}

/// Copies a version to another blob, in any store.
pub async fn copy(args: BlobCopyArgs, context: &Context<'_>) -> Outcome {
    if *args.to.at() != At::Newest {
        return refuse("the copy becomes the newest version: remove `@VERSION` from its URL");
    }
    let (_, source) = context.open(&args.from).await?;
    let version = context.until_interrupted(source.version(args.from.at())).await?;
    let number = version.number(&*context.until_interrupted(source.version(&At::Newest)).await?);
    let tally = Arc::new(Tally::default());
    let options = upload_options(args.properties, args.from.name(), &tally)?;
    let connection = context.connect_to_write(&args.to).await?;
    let target = context.until_interrupted(Blob::open_or_create(&connection, args.to.key())).await?;
    let progress = Progress::new(context.output, "cp", Some(version.size));
    let stream = source.chunks(&version, 0, version.size).map(|chunk| chunk.map_err(std::io::Error::other));
    let message = copy_message(&args.from.to_string(), number);
    let committed = tokio::select! {
        done = target.put(stream, &message, &options) => done.map_err(failure)?,
        () = show(&progress, &tally, &connection) => return Err(Failure::Internal("the progress bar ended".to_owned())),
        () = interruption(context, &tally) => return Err(Failure::Interrupted(left(&tally, (0, 0)))),
    };
    progress.finish();
    let copied = Copied {
        blob: args.to.to_string(),
        source: args.from.to_string(),
        source_version: number,
        version: committed.seq,
        bytes: committed.len,
        stored_bytes: tally.encoded.load(Ordering::Relaxed),
    };
    context.output.done(&copied, || {
        let (bytes, stored) = (format_size(copied.bytes), format_size(copied.stored_bytes));
        format!(
            "{} version {}: {bytes} of {} version {}, stored in {stored}\n",
            copied.blob, copied.version, copied.source, copied.source_version
        )
    });
    Ok(())
}

fn upload_options(properties: Vec<(String, String)>, name: &str, tally: &Arc<Tally>) -> Outcome<UploadOptions> {
    let encoding = encoding(&properties.into_iter().collect())?;
    Ok(UploadOptions { encoding, name: name.to_owned(), tally: tally.clone(), ..UploadOptions::default() })
}

#[derive(Debug, Serialize)]
struct Expired {
    blob: String,
    expired: bool,
    given_up: Vec<(u64, u64)>,
    kept: Vec<(u64, u64)>,
    live_versions: u64,
}

impl Expired {
    /// Describes the ranges of versions.
    fn words(&self) -> String {
        let one = |(first, last): &(u64, u64)| {
            if first == last { first.to_string() } else { format!("{first} to {last}") }
        };
        let all = |ranges: &[(u64, u64)]| ranges.iter().map(one).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !self.given_up.is_empty() {
            parts.push(format!("expired: {}; `shale blob gc` frees their space", all(&self.given_up)));
        }
        if !self.kept.is_empty() {
            parts.push(format!("kept, because a tag, a clone or a volume needs them: {}", all(&self.kept)));
        }
        if parts.is_empty() {
            parts.push("nothing to expire".to_owned());
        }
        format!("{}: {}\n", self.blob, parts.join("; "))
    }
}

/// Groups ascending numbers into ranges, each with its first and last number.
fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if last.1 + 1 == number => last.1 = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// Expires versions.
pub async fn expire(args: BlobExpireArgs, context: &Context<'_>) -> Outcome {
    let (_, blob) = context.open_to_write(&args.blob).await?;
    let version = match args.blob.at() {
        At::Newest => None,
        at => Some(blob.version(at).await.map_err(failure)?.seq),
    };
    let before = context.until_interrupted(blob.refresh()).await?;
    if let Some(age) = args.older_than {
        warn_of_clock(&blob, context).await;
        let newest = context.until_interrupted(blob.newest_version()).await?;
        let old = unix_s().saturating_sub(newest.unix_s);
        if old > age.as_secs() {
            context.output.warn(&format!(
                "the newest version is dated {} UTC, {old} s before this machine's clock, so every other version is \
                 older than --older-than {}: if the clock is wrong, versions that you still need have expired \
                 (`shale blob log` lists them until `shale blob gc`)",
                utc(newest.unix_s),
                age_words(age)
            ));
        }
    }
    let rule = ExpireRule { keep_last: args.keep, older_than: args.older_than, version };
    let plan = context.until_interrupted(ExpirePlan::of(blob.committer(), &rule)).await?;
    let pinned = plan.pinned.clone();
    let done = context.until_interrupted_changing(plan.carry_out(blob.committer())).await?;
    let head = blob.refresh().await.map_err(failure)?;
    let live_versions = context.until_interrupted(blob.live_versions(&head)).await?;
    let given_up = ranges(before.live().into_iter().filter(|seq| !head.is_live(*seq)));
    let kept: BTreeSet<u64> = head.expired_but_tagged().into_iter().chain(pinned).collect();
    let kept = ranges(kept.into_iter());
    let expired = Expired { blob: args.blob.to_string(), expired: done.is_some(), given_up, kept, live_versions };
    context.output.done(&expired, || expired.words());
    Ok(())
}

#[derive(Debug, Serialize)]
struct Collected {
    blob: String,
    dry_run: bool,
    full: bool,
    requests: u64,
    packs: u64,
    deleted: u64,
    bytes: u64,
    young: u64,
    versions_in_grace: u64,
    refused: u64,
    buried: u64,
    pins_dropped: u64,
}

/// Reclaims the space that no version needs.
pub async fn gc(args: BlobGcArgs, context: &Context<'_>) -> Outcome {
    if *args.blob.at() != At::Newest {
        return refuse(
            "gc works on the whole blob: remove `@VERSION` from the URL; `shale blob expire` expires one version",
        );
    }
    let connection = context.connect_to_write(&args.blob).await?;
    let backend = connection.backend().clone();
    let same_store =
        |holder: &str| (!holder.contains("://")).then(|| (backend.clone(), BlobKey::new(Path::from(holder))));
    let mut pins_dropped = 0;
    let mut report = ::blob::GcReport::default();
    let mut half_written = half_written::Swept::default();
    let grace = args.grace.unwrap_or(GcOptions::default().grace);
    let upload_max = args.uploads.unwrap_or(GcOptions::default().upload_max);
    let opened = Blob::open(&connection, args.blob.key());
    match opened.await {
        Ok(blob) => {
            warn_of_clock(&blob, context).await;
            if !args.dry_run {
                let dropping = drop_dead_pins(blob.committer(), &same_store);
                pins_dropped = context.until_interrupted_changing(dropping).await?;
            }
            let options =
                GcOptions { upload_max, grace, full: args.full, dry_run: args.dry_run, ..GcOptions::default() };
            report = context.until_interrupted_changing(collect(blob.committer(), &options)).await?;
            if let Some(directory) = args.blob.directory() {
                let fence = context.until_interrupted(blob.refresh()).await?.fence;
                let until_unix_s = unix_s().saturating_sub(upload_max.as_secs());
                let living = half_written::Living { inc: blob.log().inc(), fence, until_unix_s };
                half_written = half_written::sweep(&directory, Some(living), args.dry_run);
            }
        }
        // Objects of removed incarnations may remain.
        Err(::blob::Error::Missing(_)) => {
            let known =
                async { check_known(&backend, &args.blob.key()).await.map_err(|error| named(error, &args.blob)) };
            context.until_interrupted(known).await?;
            if let Some(directory) = args.blob.directory() {
                half_written = half_written::sweep(&directory, None, args.dry_run);
            }
        }
        Err(error) => return Err(failure(error)),
    }
    if !args.dry_run {
        let key = args.blob.key();
        let sweeping = sweep_removed(&backend, &key, &same_store);
        let removed = context.until_interrupted_changing(sweeping).await?;
        report.packs += removed.packs;
        report.deleted += removed.deleted;
        report.bytes += removed.bytes;
    }
    report.packs += half_written.files;
    report.deleted += half_written.files;
    report.bytes += half_written.bytes;
    if let Some(refusal) = &report.refusal {
        context.output.warn(&format!("the store refused to delete {} objects: {refusal}", report.refused));
    }
    let collected = Collected {
        blob: args.blob.to_string(),
        dry_run: args.dry_run,
        full: report.full,
        requests: connection.requests().all(),
        packs: report.packs,
        deleted: report.deleted,
        bytes: report.bytes,
        young: report.young,
        versions_in_grace: report.in_grace,
        refused: report.refused,
        buried: report.buried,
        pins_dropped,
    };
    context.output.done(&collected, || {
        let word = if collected.dry_run { "would be deleted" } else { "were deleted" };
        let size = format_size(collected.bytes);
        let mut text =
            format!("{}: {} of {} objects ({size}) {word}", collected.blob, collected.deleted, collected.packs);
        if collected.young > 0 {
            let age = age_words(upload_max);
            text.push_str(&format!("; {} that no version needs, but younger than --uploads {age}", collected.young));
        }
        if collected.versions_in_grace > 0 {
            let (versions, age) = (collected.versions_in_grace, age_words(grace));
            text.push_str(&format!("; expired versions that are readable for --grace {age}: {versions}"));
        }
        text + "\n"
    });
    if report.refused > 0 {
        return Err(Failure::Reported(ErrorKind::Io));
    }
    Ok(())
}

/// Formats an age in the largest unit that divides it, as the user typed it.
fn age_words(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(unit, _)| seconds > 0 && seconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

/// Warns when the newest record is later than this machine's clock: ages are then too small, and
/// nothing becomes old enough to be deleted.
async fn warn_of_clock(blob: &Blob, context: &Context<'_>) {
    let Ok(head) = blob.version(&At::Newest).await else { return };
    let ahead = head.unix_s.saturating_sub(unix_s());
    if ahead > CLOCKS_APART_S {
        context.output.warn(&format!(
            "the newest record is dated {} UTC, {ahead} s ahead of this machine's clock: this clock, or that of a \
             writer of the log, is wrong; until then no version and no upload becomes old enough to expire or to be \
             deleted",
            utc(head.unix_s)
        ));
    }
}

#[derive(Debug, Serialize)]
struct Optimized {
    blob: String,
    ranges: u64,
    bytes: u64,
    stored_before_bytes: u64,
    stored_after_bytes: u64,
}

/// Merges small and clipped frames.
pub async fn optimize(args: BlobOptimizeArgs, context: &Context<'_>) -> Outcome {
    if *args.blob.at() != At::Newest {
        return refuse("optimize works on the newest version: remove `@VERSION` from the URL");
    }
    let (connection, blob) = context.open_to_write(&args.blob).await?;
    let size = blob.version(&At::Newest).await.map_err(failure)?.size;
    let tally = Arc::new(Tally::default());
    let options = upload_options(args.properties, args.blob.name(), &tally)?;
    if let Some(file) = &args.profile {
        return images::arrange(&args.blob, &blob, file, &options, context).await;
    }
    let progress = Progress::new(context.output, "optimize", Some(size));
    let done = tokio::select! {
        done = blob.optimize(args.all, &options) => done.map_err(failure)?,
        () = show(&progress, &tally, &connection) => return Err(Failure::Internal("the progress bar ended".to_owned())),
        () = context.interruption() => {
            return Err(Failure::Interrupted("interrupted; the content is unchanged, and `shale blob gc` deletes \
             uncommitted objects".to_owned()));
        }
    };
    progress.finish();
    let optimized = Optimized {
        blob: args.blob.to_string(),
        ranges: done.ranges,
        bytes: done.raw,
        stored_before_bytes: done.stored_before,
        stored_after_bytes: done.stored_after,
    };
    context.output.done(&optimized, || {
        let (before, after) = (format_size(optimized.stored_before_bytes), format_size(optimized.stored_after_bytes));
        let bytes = format_size(optimized.bytes);
        format!(
            "{}: {} ranges ({bytes}) rewritten, stored in {before} before and {after} now\n",
            optimized.blob, optimized.ranges
        )
    });
    Ok(())
}

#[derive(Debug, Serialize)]
struct Removed {
    blob: String,
    deleted: u64,
    pinned: u64,
}

/// Removes a blob with all its versions.
pub async fn rm(args: BlobRmArgs, context: &Context<'_>) -> Outcome {
    if *args.blob.at() != At::Newest {
        return refuse("rm removes the whole blob; `shale blob expire` expires one version");
    }
    let (_, blob) = context.open_to_write(&args.blob).await?;
    let done = context.until_interrupted_changing(remove(blob.committer())).await?;
    let half_written =
        args.blob.directory().map(|directory| half_written::sweep(&directory, None, false)).unwrap_or_default();
    let deleted = done.deleted + half_written.files;
    let removed = Removed { blob: args.blob.to_string(), deleted, pinned: done.pinned };
    context.output.done(&removed, || {
        let pinned = if removed.pinned == 0 { String::new() } else { format!(", kept for clones: {}", removed.pinned) };
        format!("{} is removed; objects deleted: {}{pinned}\n", removed.blob, removed.deleted)
    });
    Ok(())
}
