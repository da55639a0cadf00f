//! Commands on blobs: `shale blob ...`.

use std::path::PathBuf;

use ::blob::Location;
use clap::{Args, Subcommand};

use crate::names;

/// Memory that a command on blobs may use for packs under way.
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
  shale blob log file://blobs/disk
  shale blob stat file://blobs/disk
  shale blob verify file://blobs/disk

A blob is a sequence of bytes with versions, in an object store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY,
file:///DIRECTORY (file://DIRECTORY from here) or memory://KEY. It needs no server of ours: many clients on many hosts write and append at the same time, each
write makes one version, and each append learns the place where it landed. Each 128 KiB are compressed or left as they are, by what pays.
Behind the URL, @3 names version 3 and @NAME the version with that tag. KEY is a directory of the store: nothing else may be in it.

Keys and settings come from where the store's own tools look for them. For S3: AWS_ACCESS_KEY_ID and the other AWS_* variables,
AWS_PROFILE (keys or credential_process), web identity, the instance; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for another server."
)]
pub struct BlobArgs {
    /// What to do
    #[command(subcommand)]
    pub command: BlobCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum BlobCommand {
    /// Store a file, or stdin, as the newest version
    Put(BlobPutArgs),
    /// Copy a version, or a range of it, to a file or to stdout
    Get(BlobGetArgs),
    /// Put a file, or stdin, behind the end
    Append(BlobPutArgs),
    /// Put a file, or stdin, over what is at a place
    Write(BlobWriteArgs),
    /// Show the versions
    Log(BlobLogArgs),
    /// Show what a version holds and what that takes
    Stat(BlobAtArgs),
    /// Give a version a name that keeps it, or take the name away
    Tag(BlobTagArgs),
    /// Show which ranges differ between two versions
    Diff(BlobDiffArgs),
    /// Read a version and verify every checksum
    Verify(BlobAtArgs),
}

/// How to upload.
#[derive(Debug, Args)]
pub struct BlobUpload {
    /// Property of what is written: compression, mode, candidates, min-saving or rule.TYPE, as of a pool; may be repeated
    #[arg(short = 'o', value_name = "KEY=VALUE", value_parser = names::key_value)]
    pub properties: Vec<(String, String)>,
    /// What the log is to say
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// Stored bytes of an object: larger ones are fewer requests, smaller ones less memory; 4M to 64M
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = names::small_size)]
    pub pack: u32,
    /// Memory for objects that are under way
    #[arg(long, value_name = "SIZE", default_value = MEMORY_DEFAULT, value_parser = names::size)]
    pub memory: u64,
}

/// See [`BlobCommand::Put`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
JSON: {blob, version, offset (where the bytes are), bytes, stored_bytes, ratio, requests, seconds, bytes_per_second}.

If it is interrupted, nothing is changed; objects that were uploaded already are garbage.")]
pub struct BlobPutArgs {
    /// URL of the blob; it is made if there is none
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// File to read, or - for stdin
    pub file: PathBuf,
    /// How to upload
    #[command(flatten)]
    pub upload: BlobUpload,
}

/// See [`BlobCommand::Write`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
What is behind the end of the blob and not written reads as zeroes.

JSON: as of put.")]
pub struct BlobWriteArgs {
    /// URL of the blob; it is made if there is none
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Byte of the blob where the file's first byte goes
    #[arg(long, value_name = "OFFSET", value_parser = names::size)]
    pub at: u64,
    /// File to read, or - for stdin
    pub file: PathBuf,
    /// How to upload
    #[command(flatten)]
    pub upload: BlobUpload,
}

/// See [`BlobCommand::Get`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
JSON (not when writing to stdout): {blob, version, offset, bytes, requests, fetched_bytes, seconds, bytes_per_second}.")]
pub struct BlobGetArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// File to write, or - for stdout
    pub file: PathBuf,
    /// Only the bytes from A to before B; either may be left out
    #[arg(long, value_name = "A-B", value_parser = range)]
    pub range: Option<(u64, Option<u64>)>,
    /// Overwrite the file that is there
    #[arg(long)]
    pub force: bool,
}

/// See [`BlobCommand::Log`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Numbers grow, but not each is a version: tags, expiries and the marks of garbage collection take numbers too, and are shown with --all.

JSON: {blob, versions: [{version, time, kinds, offset, bytes, size_bytes, written_bytes, stored_bytes, ratio, tags, expired, ops, message}]}, newest
first.")]
pub struct BlobLogArgs {
    /// URL of the blob
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// Show at most this many of the newest numbers
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 100)]
    pub number: u64,
    /// Show also what makes no version
    #[arg(long)]
    pub all: bool,
}

/// See [`BlobCommand::Stat`] and [`BlobCommand::Verify`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
JSON of stat: {blob, incarnation, version, newest, live_versions, size_bytes, hole_bytes, data_bytes, stored_bytes, ratio, raw_frames,
  compressed_frames, extents, codecs, tags, pins}.
JSON of verify: {blob, version, size_bytes, frames, stored_bytes, damaged: [{offset, bytes, what}]}; exit code 6 if anything is damaged.")]
pub struct BlobAtArgs {
    /// URL of the blob, and @VERSION or @TAG
    #[arg(value_name = "URL")]
    pub blob: Location,
}

/// See [`BlobCommand::Tag`].
#[derive(Debug, Args)]
pub struct BlobTagArgs {
    /// URL of the blob, and @VERSION; without one the newest version
    #[arg(value_name = "URL")]
    pub blob: Location,
    /// The name
    #[arg(value_name = "TAG", value_parser = tag)]
    pub tag: String,
    /// Take the name away
    #[arg(long)]
    pub delete: bool,
}

/// See [`BlobCommand::Diff`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Only what the versions do not share is looked at, and no data is read: a range is shown if it was written anew, even by the same bytes.

JSON: {blob, from, to, size_bytes, ranges: [{offset, bytes}], changed_bytes}.")]
pub struct BlobDiffArgs {
    /// URL of the blob, and @VERSION or @TAG: the older version
    #[arg(value_name = "URL")]
    pub from: Location,
    /// The other version: @VERSION or @TAG, or nothing for the newest
    #[arg(value_name = "VERSION")]
    pub to: Option<String>,
}

/// Reads `A-B`, with sizes.
fn range(text: &str) -> Result<(u64, Option<u64>), String> {
    let wrong = || format!("'{text}' is no range; one is A-B, A- or -B, with sizes such as 64K");
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let end = |text: &str| if text.is_empty() { Ok(None) } else { names::size(text).map(Some) };
    let (from, to) = (end(from)?.unwrap_or(0), end(to)?);
    if to.is_some_and(|to| to < from) { Err(wrong()) } else { Ok((from, to)) }
}

/// Reads a tag: one that could be taken for a version's number, or for a part of a key, is none.
fn tag(text: &str) -> Result<String, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || text.contains(['@', '/']) || text.len() > 255 {
        return Err("a tag has 1 to 255 bytes, not only digits, and neither @ nor /".to_owned());
    }
    Ok(text.to_owned())
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
    fn a_tag_is_never_taken_for_a_number() {
        assert!(tag("v1").is_ok() && tag("17").is_err() && tag("").is_err() && tag("a/b").is_err());
    }
}
