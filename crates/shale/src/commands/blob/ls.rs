//! `shale blob ls`: the blobs in a bucket or a directory.

use ::blob::{At, Blob, Connection, Error as BlobError, Listed, Prefix, list};
use serde::Serialize;
use units::format_size;

use super::look::utc;
use super::{Context, failure};
use crate::cli::BlobLsArgs;
use operations::Outcome;

#[derive(Debug, Serialize)]
struct BlobLine {
    blob: String,
    version: u64,
    time: u64,
    size_bytes: u64,
    tags: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Listing {
    prefix: String,
    blobs: Vec<BlobLine>,
    directories: Vec<String>,
}

impl Listing {
    /// Adds the blobs and directories directly below a prefix; with `recursive` all blobs below it.
    async fn add(&mut self, connection: &Connection, prefix: &Prefix, recursive: bool) -> Result<(), BlobError> {
        let mut open = vec![prefix.path().clone()];
        while let Some(directory) = open.pop() {
            for listed in list(connection, &directory).await? {
                match listed {
                    Listed::Blob(path, head) => self.blobs.push(BlobLine {
                        blob: prefix.with_key(path).to_string(),
                        version: head.number(&head),
                        time: head.unix_s,
                        size_bytes: head.size,
                        tags: head.tags.iter().map(|(tag, _)| tag.clone()).collect(),
                    }),
                    Listed::Directory(path) if recursive => open.push(path),
                    Listed::Directory(path) => self.directories.push(format!("{}/", prefix.with_key(path))),
                }
            }
        }
        self.blobs.sort_by(|a, b| a.blob.cmp(&b.blob));
        Ok(())
    }

    /// Adds the blob at the prefix itself, if there is one.
    async fn add_itself(&mut self, connection: &Connection, prefix: &Prefix) -> Result<bool, BlobError> {
        if prefix.path().as_ref().is_empty() {
            return Ok(false);
        }
        let blob = match Blob::open(connection, prefix.location().key()).await {
            Err(BlobError::Missing(_)) => return Ok(false),
            opened => opened?,
        };
        let head = blob.version(&At::Newest).await?;
        let tags = head.tags.iter().map(|(tag, _)| tag.clone()).collect();
        let line = BlobLine {
            blob: prefix.to_string(),
            version: head.number(&head),
            time: head.unix_s,
            size_bytes: head.size,
            tags,
        };
        self.blobs.push(line);
        Ok(true)
    }
}

/// Lists the blobs.
pub async fn run(args: BlobLsArgs, context: &Context<'_>) -> Outcome {
    let prefix = &args.prefix;
    let connection = Connection::open(prefix.location()).map_err(failure)?;
    let mut found = Listing { prefix: prefix.to_string(), ..Listing::default() };
    let look = async {
        if !found.add_itself(&connection, prefix).await? {
            found.add(&connection, prefix, args.recursive).await?;
        }
        Ok::<(), BlobError>(())
    };
    context.until_interrupted(look).await?;
    context.output.result(&found, || show(&found));
    Ok(())
}

fn show(found: &Listing) -> String {
    if found.blobs.is_empty() && found.directories.is_empty() {
        return format!("no blobs below {}\n", found.prefix);
    }
    let mut text = format!("{:>8}  {:19}  {:>10}  BLOB\n", "VERSION", "TIME (UTC)", "SIZE");
    for line in &found.blobs {
        let size = format_size(line.size_bytes);
        text.push_str(&format!("{:>8}  {:19}  {size:>10}  {}\n", line.version, utc(line.time), line.blob));
    }
    for directory in &found.directories {
        text.push_str(&format!("{:>8}  {:19}  {:>10}  {directory}\n", "-", "-", "-"));
    }
    text
}
