//! fio: the load of baselines, transports and peers.

use std::path::Path;

use crate::Outcome;
use crate::command::run;

/// Measurements of fio, over all jobs.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Requests per second.
    pub iops: f64,
    pub bytes_per_second: f64,
}

/// Options that every job has. Data is 60 % compressible and different in each block.
const COMMON: &[&str] = &[
    "--name=bench",
    "--output-format=json",
    "--group_reporting",
    "--randrepeat=0",
    "--norandommap",
    "--refill_buffers",
    "--buffer_compress_percentage=60",
    "--buffer_compress_chunk=4k",
    // btrfs does not compress data written to preallocated space, and a volume would receive a
    // request to allocate zeroes.
    "--fallocate=none",
];

/// Runs one job with further options.
pub fn job(options: &[String]) -> Outcome<Figures> {
    let common = COMMON.iter().map(|o| (*o).to_owned());
    let arguments: Vec<String> = common.chain(options.iter().cloned()).collect();
    let text = run("fio", &arguments)?;
    // Warnings may come before the JSON.
    let start = text.find('{').ok_or("fio printed no JSON")?;
    let json: serde_json::Value = serde_json::from_str(&text[start..])?;
    let job = &json["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(format!("fio {}: error {}", options.join(" "), job["error"]).into());
    }
    let sum = |key: &str| ["read", "write"].iter().filter_map(|side| job[side][key].as_f64()).sum::<f64>();
    Ok(Figures { iops: sum("iops"), bytes_per_second: sum("bw_bytes") })
}

/// Options from words.
pub fn options(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_owned).collect()
}

/// The options for reading a pool's data file directly.
pub fn raw_read_options(
    data: &Path,
    used_bytes: u64,
    kind: &str,
    block: &str,
    depth: usize,
    seconds: f64,
) -> Vec<String> {
    // The first extent holds the superblock; the log follows.
    options(&format!(
        "--filename={} --readonly --direct=1 --ioengine=libaio --rw={kind} --bs={block} --iodepth={depth} --offset=1m \
         --size={} --time_based --runtime={}",
        data.display(),
        used_bytes / (1 << 20) * (1 << 20),
        seconds.ceil()
    ))
}
