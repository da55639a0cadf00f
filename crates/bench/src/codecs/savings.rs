//! Whole kinds compared with gzip on the files, as in the paper on ZBD of 2010: `gzip -r` (each
//! file separately), gzip of a tar, zlib and lzo on blocks of 4 KiB; then Shale.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use codec::{Codec, Workspace};
use policy::{Settings, dst_limit};
use serde::Serialize;

use super::kinds::Kind;
use crate::Outcome;

/// Columns of blocks and units: title, codec, bytes.
pub const COLUMNS: &[(&str, &str, usize)] = &[
    ("zlib 4K", "gzip-6", 4 << 10),
    ("lzo 4K", "lzo", 4 << 10),
    ("lz4 4K", "lz4", 4 << 10),
    ("lz4 32K", "lz4", 32 << 10),
    ("lz4 128K", "lz4", 128 << 10),
    ("zstd-3 4K", "zstd-3", 4 << 10),
    ("zstd-3 32K", "zstd-3", 32 << 10),
    ("zstd-3 128K", "zstd-3", 128 << 10),
    ("zstd-9 128K", "zstd-9", 128 << 10),
];
/// Bytes of a kind that are compressed for each column.
const BYTES_MAX: usize = 8 << 20;

/// One kind.
#[derive(Debug, Clone, Serialize)]
pub struct Saving {
    pub kind: String,
    pub files: usize,
    pub bytes: u64,
    /// Percent saved by `gzip -r`, of the files' bytes.
    pub gzip_files: f64,
    /// Percent saved by gzip of a tar, of the files' bytes.
    pub gzip_tar: f64,
    /// Percent saved, of the blocks' bytes without holes, for each of [`COLUMNS`].
    pub columns: Vec<f64>,
}

/// All kinds.
pub fn measure(kinds: &[Kind]) -> Outcome<Vec<Saving>> {
    kinds.iter().map(one).collect()
}

fn one(kind: &Kind) -> Outcome<Saving> {
    let columns =
        COLUMNS.iter().map(|(_, codec, unit)| Ok(saved(kind, codec.parse()?, *unit))).collect::<Outcome<_>>()?;
    Ok(Saving {
        kind: kind.name.clone(),
        files: kind.count,
        bytes: kind.bytes,
        gzip_files: piped(kind, "xargs -0 gzip -c | wc -c")?,
        gzip_tar: piped(kind, "tar -cP --null -T - | gzip -c | wc -c")?,
        columns,
    })
}

/// Percentage saved by a pipe that receives the files' names and prints the number of bytes
/// produced.
fn piped(kind: &Kind, script: &str) -> Outcome<f64> {
    let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut names = Vec::new();
    for path in &kind.paths {
        names.extend_from_slice(path.as_os_str().as_bytes());
        names.push(0);
    }
    // Dropped at the end of the statement, which is the end of the list.
    child.stdin.take().ok_or("a pipe without input")?.write_all(&names)?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let bytes: u64 = text.parse().map_err(|_| format!("{script} of {}: {text}", kind.name))?;
    Ok(100.0 * (1.0 - bytes as f64 / kind.bytes.max(1) as f64))
}

fn saved(kind: &Kind, codec: Codec, unit_bytes: usize) -> f64 {
    let mut workspace = Workspace::new();
    let settings = Settings::default();
    let mut dst = vec![0u8; unit_bytes];
    let (mut raw, mut stored) = (0, 0);
    for unit in kind.sample(unit_bytes, BYTES_MAX) {
        raw += unit.len();
        let limit = dst_limit(unit.len(), &settings);
        stored += workspace.compress(codec, unit, &mut dst[..limit]).unwrap_or(unit.len());
    }
    100.0 * (1.0 - stored as f64 / raw.max(1) as f64)
}
