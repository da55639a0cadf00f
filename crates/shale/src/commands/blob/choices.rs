//! `shale blob explain` and `estimate`: how a version is stored and why, and its size with other
//! settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::blob::{Blob, Encoder, Encoding, FRAME_BYTES, Record};
use bytes::Bytes;
use codec::{CodecId, Workspace};
use env::{Clock, SystemClock};
use serde::Serialize;
use surface::{Allocation, Error, ErrorKind, Run};
use units::format_size;

use super::{Context, failure};
use crate::cli::{BlobEstimateArgs, BlobExplainArgs};
use crate::commands::explain::{region_facts, show, trial_cells};
use crate::narrow::columns;
use crate::output::{facts, table};
use crate::progress::Progress;
use copy::volume_io::VolumeIo;
use estimate::{self, Plan, Population};
use operations::{Failure, Outcome};
use report::{CodecUse, Region};

/// Bytes of a region, as in a pool.
const REGION_BYTES: u64 = 4 << 20;
/// Bytes whose frames are requested at once: some MiB of answer when every frame stands alone.
const WINDOW_BYTES: u64 = 4 << 30;

#[derive(Debug, Serialize)]
struct Trial {
    codec: String,
    /// Stored bytes; `None` if it saves less than `min-saving`.
    stored_bytes: Option<u64>,
    cpu_us: f64,
}

#[derive(Debug, Serialize)]
struct Detail {
    region: Region,
    frame_offset: u64,
    frame_bytes: u64,
    bits_per_byte: f64,
    class: String,
    chosen: String,
    trials: Vec<Trial>,
}

/// Shows how a version is stored.
pub async fn explain(args: BlobExplainArgs, context: &Context<'_>) -> Outcome {
    let (_, blob) = context.open(&args.blob).await?;
    let version = context.until_interrupted(blob.version(args.blob.at())).await?;
    let Some(at) = args.region else {
        let mut all = Vec::new();
        let mut from = 0;
        while from < version.size {
            let to = version.size.min(from + WINDOW_BYTES);
            all.extend(context.until_interrupted(regions(&blob, &version, from, to)).await?);
            from = to;
        }
        context.output.result(&all, || show(&all, columns()));
        return Ok(());
    };
    let begin = at / REGION_BYTES * REGION_BYTES;
    let found = context.until_interrupted(regions(&blob, &version, begin, begin + REGION_BYTES)).await?;
    let frames = context.until_interrupted(blob.frames(&version, begin, begin + REGION_BYTES)).await?;
    let frame = frames.iter().filter(|(_, _, frame)| !frame.is_zero()).find(|(from, len, _)| from + len > at);
    let (Some(region), Some((from, len, _))) = (found.into_iter().next(), frame) else {
        return Err(Error::new(ErrorKind::NotFound, format!("the region at byte {at} has no data")).into());
    };
    let data = context.until_interrupted(blob.read(&version, *from, from + len)).await?;
    let properties: BTreeMap<String, String> = args.properties.into_iter().collect();
    let encoding = super::encoding(&properties)?;
    let (name, offset) = (args.blob.name().to_owned(), *from);
    let tried = tokio::task::spawn_blocking(move || detail(region, offset, data, &encoding, &name)).await;
    let detail = tried.map_err(|_| Failure::Internal("the trial was abandoned".to_owned()))?;
    context.output.result(&detail, || show_detail(&detail));
    Ok(())
}

/// Collects the visible storage of a range by regions.
async fn regions(blob: &Blob, version: &Record, from: u64, to: u64) -> Result<Vec<Region>, ::blob::Error> {
    let mut all: BTreeMap<u64, BTreeMap<CodecId, CodecUse>> = BTreeMap::new();
    for (at, len, frame) in blob.frames(version, from, to).await? {
        if frame.is_zero() {
            continue;
        }
        let codecs = all.entry(at / REGION_BYTES * REGION_BYTES).or_default();
        let name = || CodecUse { codec: frame.codec.to_string(), units: 0, raw_bytes: 0, stored_bytes: 0 };
        let used = codecs.entry(frame.codec).or_insert_with(name);
        used.units += 1;
        used.raw_bytes += len;
        used.stored_bytes += u64::from(frame.stored);
    }
    let region = |(offset, codecs): (u64, BTreeMap<CodecId, CodecUse>)| {
        let mut codecs: Vec<CodecUse> = codecs.into_values().collect();
        codecs.sort_by_key(|used| std::cmp::Reverse(used.raw_bytes));
        Region {
            offset,
            raw_bytes: codecs.iter().map(|used| used.raw_bytes).sum(),
            stored_bytes: codecs.iter().map(|used| used.stored_bytes).sum(),
            codecs,
            remembered: None,
        }
    };
    Ok(all.into_iter().map(region).collect())
}

/// Probes a frame's data, and tries every candidate on it.
fn detail(region: Region, frame_offset: u64, data: Bytes, encoding: &Encoding, name: &str) -> Detail {
    let clock = Arc::new(SystemClock::default());
    let probed = policy::probe(&data);
    let choice = encoding.choose(name, &data[..data.len().min(policy::HEAD_BYTES)]);
    let encoder = Encoder::new(choice, encoding.min_saving_permille(), clock.clone());
    let chosen = encoder.encode(vec![data.clone()]).first().map_or(CodecId::RAW, |encoded| encoded.frame.codec);
    let limit = policy::dst_limit_permille(data.len(), encoding.min_saving_permille()).min(data.len() - 1);
    let (mut workspace, mut out) = (Workspace::new(), vec![0; FRAME_BYTES as usize]);
    let trials = encoding.candidates().into_iter().map(|codec| {
        // A first call to warm up: it builds tables.
        workspace.compress(codec, &data, &mut out[..limit]);
        let began = clock.thread_cpu_ns();
        let stored = workspace.compress(codec, &data, &mut out[..limit]);
        let cpu_us = (clock.thread_cpu_ns() - began) as f64 / 1e3;
        Trial { codec: codec.to_string(), stored_bytes: stored.map(|len| len as u64), cpu_us }
    });
    Detail {
        trials: trials.collect(),
        region,
        frame_offset,
        frame_bytes: data.len() as u64,
        bits_per_byte: probed.bits_per_byte(),
        class: probed.class.to_string(),
        chosen: chosen.to_string(),
    }
}

fn show_detail(d: &Detail) -> String {
    let mut lines = region_facts(&d.region);
    lines.extend([
        ("frame tried", format!("{} at {}", format_size(d.frame_bytes), format_size(d.frame_offset))),
        ("probe", format!("{:.2} bits per byte: class '{}'", d.bits_per_byte, d.class)),
        ("chosen now", d.chosen.clone()),
    ]);
    let mut rows = vec![["CODEC", "STORED", "SAVED", "CPU TIME"].map(str::to_owned).to_vec()];
    for trial in &d.trials {
        let mut row = trial_cells(&trial.codec, d.frame_bytes, trial.stored_bytes);
        row.push(format!("{:.0} us", trial.cpu_us));
        rows.push(row);
    }
    format!("{}\n{}", facts(&lines), table(&rows))
}

/// Estimates the size of a version.
pub async fn estimate(args: BlobEstimateArgs, context: &Context<'_>) -> Outcome {
    let (_, blob) = context.open(&args.blob).await?;
    let version = context.until_interrupted(blob.version(args.blob.at())).await?;
    let mut properties = args.properties;
    // A frame is a unit of the largest size.
    properties.push(("unit".to_owned(), "128K".to_owned()));
    let none = BTreeMap::new();
    let plan = Plan::new(&none, &none, &properties, &args.codecs)?;
    let frames = context.until_interrupted(blob.frames(&version, 0, version.size)).await?;
    let handle = tokio::runtime::Handle::current();
    let reader = Arc::new(VersionIo { blob, version, frames, handle });
    let work = tokio::task::spawn_blocking(move || {
        let population = Population::of_volume(reader, plan.unit_bytes)?;
        estimate::run(&population, &plan, args.sample, args.seed, &mut |_, _| {})
    });
    let progress = Progress::new(context.output, "try", None);
    let report = tokio::select! {
        report = work => report.map_err(|_| Failure::Internal("the estimate was abandoned".to_owned()))??,
        () = context.interruption() => return Err(Failure::Interrupted("interrupted".to_owned())),
    };
    progress.finish();
    context.output.result(&report, || crate::commands::estimate_tables::show(&report));
    Ok(())
}

/// A version, with the interface of a volume's reader.
struct VersionIo {
    blob: Blob,
    version: Arc<Record>,
    frames: Vec<(u64, u64, ::blob::Frame)>,
    handle: tokio::runtime::Handle,
}

fn unchanging<T>() -> surface::Result<T> {
    Err(Error::new(ErrorKind::ReadOnly, "a version never changes"))
}

impl VolumeIo for VersionIo {
    fn size_bytes(&self) -> surface::Result<u64> {
        Ok(self.version.size)
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> surface::Result<()> {
        let to = offset + buf.len() as u64;
        let read = self.handle.block_on(self.blob.read(&self.version, offset, to));
        let read = read.map_err(|error| match failure(error) {
            Failure::Error(error) => error,
            other => Error::new(ErrorKind::Io, other.to_string()),
        })?;
        buf[..read.len()].copy_from_slice(&read);
        buf[read.len()..].fill(0);
        Ok(())
    }
    fn write(&self, _: u64, _: Bytes) -> surface::Result<()> {
        unchanging()
    }
    fn discard(&self, _: u64, _: u64) -> surface::Result<()> {
        unchanging()
    }
    fn allocation(&self, offset: u64, length: u64, _: u32) -> surface::Result<Vec<Run>> {
        let (mut runs, mut at, end) = (Vec::new(), offset, offset + length);
        for (from, len, frame) in self.frames.iter().filter(|(from, len, _)| from + len > offset && *from < end) {
            if *from > at {
                runs.push(Run { length: from - at, allocation: Allocation::Hole });
            }
            let (begin, next) = ((*from).max(at), end.min(from + len));
            let allocation = if frame.is_zero() { Allocation::Hole } else { Allocation::Data };
            runs.push(Run { length: next - begin, allocation });
            at = next;
        }
        if at < end {
            runs.push(Run { length: end - at, allocation: Allocation::Hole });
        }
        Ok(runs)
    }
    fn flush(&self) -> surface::Result<()> {
        Ok(())
    }
}
