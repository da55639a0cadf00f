//! Commands on blobs: `shale blob ...`.

use std::path::PathBuf;
use std::time::Duration;

use ::blob::{Location, OpId, Prefix};
use clap::{Args, Subcommand};

use operations::names;

/// Memory of a command on blobs for packs that are being uploaded.
const MEMORY_DEFAULT: &str = "128M";

/// See [`super::Command::Blob`].
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_long_help = "\
Examples:
  shale blob put file://blobs/disk disk.img -o mode=archive -m 'as installed'
  shale blob get file://blobs/disk@1 - --range 1M-2M > part
  echo more | shale blob append file://blobs/log -
  shale blob write file://blobs/disk --at 4K small
  shale blob tag file://blobs/disk@1 installed
  shale blob diff file://blobs/disk@installed
  shale blob ls file://blobs
  shale blob log file://blobs/disk
  shale blob stat file://blobs/disk
  shale blob verify file://blobs/disk
  shale blob explain file://blobs/disk
  shale blob estimate file://blobs/disk -o mode=archive
  shale blob clone file://blobs/disk@installed file://blobs/copy
  shale blob cp file://blobs/disk@installed file://elsewhere/disk -o mode=archive
  shale blob optimize file://blobs/log
  shale blob expire file://blobs/log --keep 1
  shale blob gc file://blobs/log
  shale blob rm file://blobs/copy

A blob is a sequence of bytes with versions, in an object store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY,
file:///DIRECTORY (file://DIRECTORY from here) or memory://KEY. It needs no server besides the store: many clients on many hosts
write and append at the same time, each write makes one version, and each append returns its offset. Each 128 KiB are compressed
if that pays. After the URL, @3 is version 3 and @NAME the version with that tag. KEY is a directory of the store: nothing else
may be in it.

Keys and settings are read from the same places as by the store's own tools. For S3: AWS_ACCESS_KEY_ID and the other AWS_*
variables, AWS_PROFILE (keys or credential_process), web identity, the instance; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for
another server."
)]
pub struct BlobArgs {
    /// Action
    #[command(subcommand)]
    pub command: BlobCommand,
}

/// Help of `append` where it differs from that of `put`.
const APPEND_HELP: &str = "\
Examples:
  echo 'one line more' | shale blob append file:///srv/blobs/books -
  shale blob append s3://bucket/log today.log -m 'the 26th'

Concurrent appends are atomic: each returns its own offset, and none overwrites another. An interrupted append changes nothing.
The same command on the same file resumes the upload (not from stdin); uploads that are never resumed are garbage, and gc
removes them.

JSON: as of put; offset is that of the file's first byte.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum BlobCommand {
    /// Store a file, or stdin, as the newest version
    Put(BlobPutArgs),
    /// Copy a version, or a range of it, to a file or to stdout
    Get(BlobGetArgs),
    /// Write a version, or a range of it, to stdout
    Cat(BlobCatArgs),
    /// Append a file, or stdin, to the blob
    #[command(after_long_help = APPEND_HELP)]
    Append(BlobPutArgs),
    /// Overwrite the blob with a file, or stdin, from an offset on
    Write(BlobWriteArgs),
    /// List the blobs in a bucket or a directory
    Ls(BlobLsArgs),
    /// Show the versions
    Log(BlobLogArgs),
    /// Show the size and the stored size of a version
    Stat(BlobAtArgs),
    /// Give a version a name that keeps it, or remove the name
    Tag(BlobTagArgs),
    /// Show which ranges differ between two versions
    Diff(BlobDiffArgs),
    /// Read a version and verify every checksum
    Verify(BlobVerifyArgs),
    /// Show how each region is stored, and why
    Explain(BlobExplainArgs),
    /// Estimate the stored size of a version with other properties
    Estimate(BlobEstimateArgs),
    /// Create a blob that begins with a version of another one, in the same store and without
    /// copying
    Clone(BlobTwoArgs),
    /// Copy a version to another blob, in any store
    Cp(BlobCopyArgs),
    /// Expire old versions
    Expire(BlobExpireArgs),
    /// Delete objects that no version needs
    Gc(BlobGcArgs),
    /// Combine small and clipped pieces, or those that a boot reads first
    Optimize(BlobOptimizeArgs),
    /// Release a version held by a volume whose pool is gone
    Unpin(BlobUnpinArgs),
    /// Delete a blob with all its versions
    Rm(BlobRmArgs),
}

/// Upload options.
#[derive(Debug, Args)]
pub struct BlobUpload {
    /// Property of the written data: compression, mode, candidates, min-saving or rule.TYPE, as for
    /// a pool; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Message for the log: at most 1024 bytes; newlines and tabs are allowed, other control
    /// characters are not
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// Size of a stored object: larger ones need fewer requests, smaller ones less memory; 4M to
    /// 64M
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = names::small_size)]
    pub pack: u32,
    /// Memory for objects that are being uploaded
    #[arg(long, value_name = "SIZE", default_value = MEMORY_DEFAULT, value_parser = names::size)]
    pub memory: u64,
}

/// See [`BlobCommand::Put`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob put file:///srv/blobs/books books.tar -m 'first edition'
  shale blob put s3://bucket/model data.nc -o rule.nc=gzip-9
  echo 'one line more' | shale blob append file:///srv/blobs/books -

If it is interrupted, nothing is changed. The same command on the same file resumes the upload (not from stdin); uploads that
are never resumed are garbage, and gc removes them.

JSON: {blob, version, offset (where the bytes are), bytes, stored_bytes, ratio, resumed_bytes,
  uploaded_objects, requests, seconds, bytes_per_second}.")]
pub struct BlobPutArgs {
    /// URL of the blob, which is created if it does not exist
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// File to read, or - for stdin
    pub file: PathBuf,
    /// Upload options
    #[command(flatten)]
    pub upload: BlobUpload,
}

/// See [`BlobCommand::Write`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob write file:///srv/blobs/disk --at 4K sector.img

A gap between the end of the blob and OFFSET reads as zeroes.

JSON: as of put.")]
pub struct BlobWriteArgs {
    /// URL of the blob, which is created if it does not exist
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Offset in the blob of the file's first byte
    #[arg(long, value_name = "OFFSET", value_parser = names::size, allow_hyphen_values = true)]
    pub at: u64,
    /// File to read, or - for stdin
    pub file: PathBuf,
    /// Upload options
    #[command(flatten)]
    pub upload: BlobUpload,
}

/// See [`BlobCommand::Get`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob get file:///srv/blobs/books books.tar
  shale blob get file:///srv/blobs/books@1 copy.tar --force
  shale blob get file:///srv/blobs/books - --range 1M-2M > part

JSON (not when writing to stdout): {blob, version, offset, bytes, requests, fetched_bytes, seconds,
  bytes_per_second}.")]
pub struct BlobGetArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// File to write, or - for stdout
    pub file: PathBuf,
    /// Only the bytes from A to before B; either may be omitted: -100 is the first 100 bytes, 100-
    /// everything from byte 100 on
    #[arg(long, value_name = "A-B", value_parser = range, allow_hyphen_values = true)]
    pub range: Option<(u64, Option<u64>)>,
    /// Replace an existing file, once the copy is complete
    #[arg(long)]
    pub force: bool,
}

/// See [`BlobCommand::Cat`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob cat file:///srv/blobs/books | tar t
  shale blob cat file:///srv/blobs/books@1 --range 1M-2M

The same as `shale blob get URL -`.")]
pub struct BlobCatArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Only the bytes from A to before B; either may be omitted
    #[arg(long, value_name = "A-B", value_parser = range, allow_hyphen_values = true)]
    pub range: Option<(u64, Option<u64>)>,
}

impl From<BlobCatArgs> for BlobGetArgs {
    fn from(args: BlobCatArgs) -> Self {
        Self { blob: args.blob, file: PathBuf::from("-"), range: args.range, force: false }
    }
}

/// See [`BlobCommand::Ls`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob ls file:///srv/blobs
  shale blob ls s3://bucket
  shale blob ls s3://bucket/images -r --json | jq -r '.blobs[].blob'

Lists blobs and directories with blobs directly below, each blob with its newest version. Other objects in the bucket are not
listed. Each name costs some requests. The URL of a blob lists that blob.

JSON: {prefix, blobs: [{blob, version, time (seconds since 1970), size_bytes, tags}], directories}.")]
pub struct BlobLsArgs {
    /// URL of the bucket or the directory
    #[arg(value_name = "URL")]
    pub prefix: Prefix,
    /// List directories below too, at any depth
    #[arg(long, short = 'r')]
    pub recursive: bool,
}

/// See [`BlobCommand::Log`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob log file:///srv/blobs/books
  shale blob log file:///srv/blobs/books --all
  shale blob log file:///srv/blobs/books --json | jq '.versions[0].stored_bytes'

Numbers grow, but not each is a version: tags, expiries and the marks of garbage collection have numbers too, and are shown with
--all. A command without a version may show such a number: its content is that of the version before it.

JSON: {blob, versions: [{version, is_version, time (seconds since 1970), kinds, offset, bytes,
  size_bytes, written_bytes, stored_bytes, ratio, tags, expired, ops, message}]}, newest first.")]
pub struct BlobLogArgs {
    /// URL of the blob
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Show at most this many of the newest numbers
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 100)]
    pub number: u64,
    /// Also show records that are not versions
    #[arg(long)]
    pub all: bool,
    /// Show only the record of this operation; exit code 3 if there is none
    #[arg(long, value_name = "OPERATION", value_parser = operation)]
    pub op: Option<OpId>,
}

/// See [`BlobCommand::Stat`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob stat file:///srv/blobs/books
  shale blob stat file:///srv/blobs/books@1 --json | jq .ratio

JSON: {blob, incarnation, version, newest, live_versions, size_bytes, hole_bytes, data_bytes,
  stored_bytes, ratio, raw_frames, compressed_frames, extents, codecs, tags, pins, store_probed (when
  the store was found to create objects atomically)}.")]
pub struct BlobAtArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
}

/// See [`BlobCommand::Verify`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob verify file:///srv/blobs/books
  shale blob verify file:///srv/blobs/books --all
  shale blob verify file:///srv/blobs/books@1 --json | jq '.damaged[].offset'

Without --all, the result is about one version. Objects of blobs that this one was cloned from are read as far as the version
needs them; `shale blob verify --all` there reads all of theirs.

JSON: {blob, version, size_bytes, frames, stored_bytes, damaged: [{offset, bytes, what}], all: null or
  {records, live_versions, objects, object_bytes, wrong: [{object, what}]}}; exit code 6 if anything is
  damaged.")]
pub struct BlobVerifyArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Also read every record of the log, and every object that a live version needs
    #[arg(long)]
    pub all: bool,
}

/// See [`BlobCommand::Tag`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob tag file:///srv/blobs/books@1 first
  shale blob get file:///srv/blobs/books@first copy.tar
  shale blob tag file:///srv/blobs/books first --delete

expire keeps a version with a tag. log and stat show the tags. A tag of another version moves to this one, and the answer names
the other version.

JSON: {blob, tag, version, was (the version that had the tag before, or null)}.")]
pub struct BlobTagArgs {
    /// URL of the blob, and @VERSION; without one the newest version
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// The name: not only digits, at most 255 bytes, without @, / and control characters
    #[arg(value_name = "TAG")]
    pub tag: String,
    /// Remove the name
    #[arg(long)]
    pub delete: bool,
}

/// See [`BlobCommand::Diff`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob diff file:///srv/blobs/books@1          version 1 and the newest
  shale blob diff file:///srv/blobs/books@1 2
  shale blob diff file:///srv/blobs/books@first @second

Each line is a range: offset, and length in bytes. Only objects that the versions do not share are compared, and no data is
read: a range is shown if it was rewritten, even with the same bytes.

JSON: {blob, from, to, size_bytes, ranges: [{offset, bytes}], changed_bytes}.")]
pub struct BlobDiffArgs {
    /// URL of the blob, and @VERSION or @TAG: the older version
    #[arg(value_name = "URL")]
    pub from: Location,
    /// The other version: @VERSION or @TAG [default: the newest]
    #[arg(value_name = "VERSION")]
    pub to: Option<String>,
}

/// See [`BlobCommand::Explain`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob explain file:///srv/blobs/books
  shale blob explain file:///srv/blobs/books --region 4M -o mode=archive

JSON: [{offset, raw_bytes, stored_bytes, codecs: [{codec, units, raw_bytes, stored_bytes}]}], a region
  of 4 MiB each; with --region {region: one of these, frame_offset, frame_bytes, bits_per_byte, class,
  chosen, trials: [{codec, stored_bytes, cpu_us}]}.")]
pub struct BlobExplainArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Show details of the region with this byte: probe it, and try every candidate on it
    #[arg(long, value_name = "OFFSET", value_parser = names::size)]
    pub region: Option<u64>,
    /// Property to assume for the codec that would be chosen now, as for put; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
}

/// See [`BlobCommand::Estimate`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob estimate file:///srv/blobs/books -o mode=archive
  shale blob estimate file:///srv/blobs/books@1 --codecs lz4,zstd-19

Like `shale estimate`, which estimates the size of a file before it is stored; this reads a sample of a version.

JSON: as of shale estimate.")]
pub struct BlobEstimateArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Property to assume, as for put; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// Codecs to compare: a list, all or none
    #[arg(long, value_name = "LIST", default_value = estimate::CODECS_DEFAULT)]
    pub codecs: String,
    /// Amount of data to read and try
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = names::size)]
    pub sample: u64,
    /// Draw other samples
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub seed: u64,
}

/// See [`BlobCommand::Clone`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob clone file:///srv/blobs/books@1 file:///srv/blobs/second

The version is pinned in the original blob, so it does not expire while the clone exists. The log of the clone begins with a
line of the kind restore.

JSON: {blob, source, version, size_bytes}.")]
pub struct BlobTwoArgs {
    /// URL of the existing blob, and @VERSION or @TAG
    #[arg(value_name = "FROM")]
    pub from: Location,
    /// URL of the new blob
    #[arg(value_name = "TO")]
    pub to: Location,
}

/// See [`BlobCommand::Cp`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob cp file:///srv/blobs/books@1 s3://bucket/books
  shale blob cp file:///srv/blobs/books file:///srv/blobs/packed -o mode=archive

The copy is the newest version of the target, which is created if it does not exist. It is recompressed with the properties
given here.

JSON: {blob, source, source_version, version, bytes, stored_bytes}.")]
pub struct BlobCopyArgs {
    /// URL of the existing blob, and @VERSION or @TAG
    #[arg(value_name = "FROM")]
    pub from: Location,
    /// URL of the other blob
    #[arg(value_name = "TO")]
    pub to: Location,
    /// Property of the written data, as for put; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
}

/// See [`BlobCommand::Expire`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob expire file:///srv/blobs/books --keep 10
  shale blob expire file:///srv/blobs/books --older-than 30d
  shale blob expire file:///srv/blobs/books@1

One of --keep, --older-than and @VERSION is required; a version expires if it meets all given conditions. The newest version,
and those with a tag or a pin, are always kept. Expired versions cannot be opened any more; the next gc frees their space.

JSON: {blob, expired (whether any version expired), given_up: [[first, last]],
  kept: [[first, last]] (selected, but needed by tags, clones or volumes), live_versions}.
--older-than warns when the newest version is older than the age, too: then this machine's clock may be
wrong.")]
pub struct BlobExpireArgs {
    /// URL of the blob; with @VERSION only that version
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Keep this many of the newest versions
    #[arg(long, value_name = "NUMBER")]
    pub keep: Option<u64>,
    /// Expire only older versions, such as 30d or 12h
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub older_than: Option<Duration>,
}

/// See [`BlobCommand::Gc`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob gc file:///srv/blobs/books
  shale blob gc file:///srv/blobs/books --dry-run
  shale blob gc file:///srv/blobs/books --grace 0s --uploads 0s      now, if no one uses the blob

Objects that no version needs are deleted. Uploads that began longer ago than --uploads are fenced first: they fail when they
commit, and begin again. So no object in use is ever deleted, even if the clocks of writers are wrong.

Objects of versions that expired, or were uploaded, less than a day ago are not deleted yet, unless --grace and --uploads are
shorter.

A run lists the sessions that are new since the last one, and those of versions that have expired since; each 16th run lists
all.

Exit code 7 if the store refuses to delete objects, 3 if there never was a blob.

JSON: {blob, dry_run, full, requests, packs (looked at), deleted, bytes, young (objects that no version
  names, younger than --uploads), versions_in_grace, refused, buried, pins_dropped}.")]
pub struct BlobGcArgs {
    /// URL of the blob
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Only list what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Time for which expired versions can still be read [default: 1d]
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub grace: Option<Duration>,
    /// Check every object, not only those that are new or lost a version since the last run
    #[arg(long)]
    pub full: bool,
    /// Maximum duration of an upload [default: 1d]
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub uploads: Option<Duration>,
}

/// See [`BlobCommand::Optimize`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob optimize file:///srv/blobs/log
  shale blob optimize file:///srv/blobs/books --all -o mode=archive
  shale blob optimize file:///srv/blobs/disk --profile boot.json

The content is unchanged, and other writers can continue: ranges that they change are skipped. Older versions keep the old
objects until they expire.

With --profile, the groups that `shale trace POOL VOLUME --reads` has listed are put into one object, in their stored form and
in the order of their first reads: a machine that boots from this version fetches them with a few long requests. The profile
stays with the blob: a volume that is hydrated gets these groups first.

JSON: {blob, ranges, bytes, stored_before_bytes, stored_after_bytes}; with --profile {blob, version,
  groups, moved, stored_bytes}.")]
pub struct BlobOptimizeArgs {
    /// URL of the blob
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Rewrite everything, for other properties
    #[arg(long)]
    pub all: bool,
    /// Put the groups named in this file into one object, in this order
    #[arg(long, value_name = "FILE", conflicts_with = "all")]
    pub profile: Option<PathBuf>,
    /// Property of the written data, as for put; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
}

/// See [`BlobCommand::Unpin`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob stat file:///srv/blobs/disk --json | jq .pins
  shale blob unpin file:///srv/blobs/disk 4f2a8c9e-0000-0000-0000-000000000000/vm7

A volume that was cloned from a version pins it, so that expire and gc keep it: the holder is the pool's id, a /, and the
volume's name, as `shale blob stat` shows it. A pool removes its pins when it does not need them. This command is for pools that
are gone: an existing volume loses all unfetched data once gc has run. The id alone selects all volumes of that pool.

JSON: {blob, holder, unpinned (how many versions)}.")]
pub struct BlobUnpinArgs {
    /// URL of the blob
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Holder: POOL-ID/VOLUME, or POOL-ID for all of its volumes
    pub holder: String,
}

/// See [`BlobCommand::Rm`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale blob rm file:///srv/blobs/books

This cannot be undone. Objects that a clone needs stay until it is removed too; then `shale blob gc` on this URL deletes them.
Some small objects that record the removal stay in the store.

JSON: {blob, deleted, pinned}.")]
pub struct BlobRmArgs {
    /// URL of the blob
    #[arg(value_name = "URL")]
    pub blob: Location,
}

/// Parses `30d`, `12h`, `4w`, `90m` or `10s`.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid age '{text}': use a number and a unit (s, m, h, d, w), such as 30d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// Parses the name of an operation, as an error and the log show it.
fn operation(text: &str) -> Result<OpId, String> {
    let wrong = || format!("invalid operation '{text}': use 32 hexadecimal digits");
    let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_one).map(OpId).ok_or_else(wrong)
}

/// Parses `A-B`, with sizes.
fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let wrong = || format!("invalid range '{text}': use A-B, A- or -B, with sizes such as 64K");
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let end = |text: &str| if text.is_empty() { Ok(None) } else { names::size(text).map(Some) };
    let (from, to) = (end(from)?.unwrap_or(0), end(to)?);
    if to.is_some_and(|to| to < from) { Err(wrong()) } else { Ok((from, to)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_sizes_and_may_be_open() {
        assert_eq!(range("1M-2M"), Ok((1 << 20, Some(2 << 20))));
        assert_eq!(range("7-"), Ok((7, None)));
        assert_eq!(range("-4K"), Ok((0, Some(4096))));
        assert!(range("5").is_err() && range("9-3").is_err() && range("a-b").is_err());
    }

    #[test]
    fn ages_have_units() {
        assert_eq!(age("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(age("0s"), Ok(Duration::ZERO));
        assert!(["5", "d", "", "99999999999999999w", "1é"].into_iter().all(|text| age(text).is_err()));
    }
}
