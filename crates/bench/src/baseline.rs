//! The codec alone: the same units, in memory, on all cores.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use codec::{Codec, CodecId, Workspace};
use policy::{Settings, dst_limit};

use crate::Outcome;
use crate::corpus::Corpus;
use crate::load::{cores, drive};

/// Result of compressing.
#[derive(Debug, Clone, Copy)]
pub struct Bare {
    /// Raw bytes per second, all cores together.
    pub bytes_per_second: f64,
    /// Stored bytes: the compressed units, and those that save too little as they are.
    pub stored_bytes: u64,
}

fn settings(codec: Codec) -> Settings {
    Settings { compression: policy::Compression::Fixed(codec), ..Settings::default() }
}

/// Compresses the first `bytes` of the endless corpus in units of `unit_bytes`.
pub fn compress(corpus: &Corpus, codec: Codec, unit_bytes: usize, bytes: u64) -> Outcome<Bare> {
    let units = units_of_a_group(unit_bytes);
    let limit = dst_limit(unit_bytes, &settings(codec));
    let stored = AtomicU64::new(0);
    let step = (unit_bytes * units) as u64;
    let state = || (Workspace::new(), vec![0u8; unit_bytes]);
    let done = drive(cores(), bytes / step, f64::INFINITY, state, |(workspace, dst), index| {
        let group = corpus.slice(index * step, step as usize);
        let mut sum = 0;
        for unit in group.chunks(unit_bytes) {
            sum += workspace.compress(codec, unit, &mut dst[..limit]).unwrap_or(unit.len()) as u64;
        }
        stored.fetch_add(sum, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(Bare { bytes_per_second: bytes as f64 / done.seconds, stored_bytes: stored.into_inner() })
}

/// Raw bytes per second of decompressing the corpus in units of `unit_bytes`.
pub fn decompress(corpus: &Corpus, codec: Codec, unit_bytes: usize, rounds: u64) -> Outcome<f64> {
    let stored = compressed_units(corpus, codec, unit_bytes);
    let count = stored.len() as u64;
    let state = || (Workspace::new(), vec![0u8; unit_bytes]);
    let done = drive(cores(), count * rounds, f64::INFINITY, state, |(workspace, dst), index| {
        let (id, bytes) = &stored[(index % count) as usize];
        workspace.decompress(*id, bytes, dst)?;
        Ok(())
    })?;
    Ok((count * rounds) as f64 * unit_bytes as f64 / done.seconds)
}

/// Nanoseconds on one core of verifying the checksum, and of decoding, of one unit: means over the
/// corpus.
pub fn unit_costs_ns(corpus: &Corpus, codec: Codec, unit_bytes: usize) -> Outcome<(f64, f64)> {
    let stored = compressed_units(corpus, codec, unit_bytes);
    let began = std::time::Instant::now();
    let mut sum = 0u32;
    for (_, bytes) in &stored {
        sum ^= crc32c::crc32c(bytes);
    }
    let checksum = began.elapsed();
    std::hint::black_box(sum);
    let mut workspace = Workspace::new();
    let mut dst = vec![0u8; unit_bytes];
    let began = std::time::Instant::now();
    for (id, bytes) in &stored {
        workspace.decompress(*id, bytes, &mut dst)?;
    }
    let decode = began.elapsed();
    let count = stored.len() as f64;
    Ok((checksum.as_nanos() as f64 / count, decode.as_nanos() as f64 / count))
}

fn compressed_units(corpus: &Corpus, codec: Codec, unit_bytes: usize) -> Vec<(CodecId, Bytes)> {
    let mut workspace = Workspace::new();
    let limit = dst_limit(unit_bytes, &settings(codec));
    let mut dst = vec![0u8; limit];
    let units = corpus.data.chunks(unit_bytes).enumerate();
    let compressed = units.map(|(index, unit)| match workspace.compress(codec, unit, &mut dst) {
        Some(len) => (codec.id(), Bytes::copy_from_slice(&dst[..len])),
        None => (CodecId::RAW, corpus.data.slice(index * unit_bytes..index * unit_bytes + unit.len())),
    });
    compressed.collect()
}

/// Units processed together, so that fetching the next piece of work costs nothing.
fn units_of_a_group(unit_bytes: usize) -> usize {
    (units::GROUP_BYTES / unit_bytes).max(1)
}
