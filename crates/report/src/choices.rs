//! Choices of codecs: the documents that `explain` and `trace` print with `--json`, and that cross
//! the control socket. Field names are a promise to scripts, as the crate's head says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Data stored with one codec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodecUse {
    /// Name of the codec; `raw` if the data is not compressed.
    pub codec: String,
    /// Fragments.
    pub units: u64,
    /// Bytes of live data.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
}

/// Result of the last test of codecs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Remembered {
    /// Codec that won the last test; `raw` if none saved enough.
    pub winner: String,
    /// Class of the tested data, from 0 (nearly constant) to 7 (looks random).
    pub class: u8,
    /// Average saving since then.
    pub saving_percent: f64,
    /// Units since the test, at most 127.
    pub units_since_test: u32,
}

/// A region of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Region {
    /// Byte offset in the volume.
    pub offset: u64,
    /// Bytes that hold data.
    pub raw_bytes: u64,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// Data by codec, the largest amount first.
    pub codecs: Vec<CodecUse>,
    /// Result of the last test since the pool was opened; null if there was none.
    pub remembered: Option<Remembered>,
}

/// A part of an object, with the results of sampling it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MapCell {
    /// Byte offset at which its data begins, for `explain`.
    pub offset: u64,
    /// Codec of most of its data.
    pub codec: String,
    /// Bytes of data that were looked at.
    pub raw_bytes: u64,
    /// Their stored bytes.
    pub stored_bytes: u64,
    /// Codec that won the last test there since the pool was opened; null if there was none.
    pub winner: Option<String>,
}

/// A volume, a share or a snapshot by codec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainMap {
    /// Size of the object; of a share, of the groups of blocks that hold data.
    pub size_bytes: u64,
    /// Bytes of each cell.
    pub cell_bytes: u64,
    /// Percentage of the stored data that was looked at.
    pub looked_at_percent: f64,
    /// Cells by address; null: no data was found there.
    pub cells: Vec<Option<MapCell>>,
}

/// Result of one candidate on a unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// Name of the codec.
    pub codec: String,
    /// Stored bytes; null if it saves less than `min-saving`.
    pub stored_bytes: Option<u64>,
    /// Measured CPU time, in microseconds.
    pub cpu_us: f64,
    /// Expected saving.
    pub expected_saving_percent: f64,
    /// Expected CPU time for a unit of this length, in microseconds.
    pub expected_cpu_us: f64,
    /// Cost as a multiple of the lowest one; null if it saves nothing.
    pub cost: Option<f64>,
    /// Energy of that CPU time, in microjoules.
    pub energy_uj: f64,
    /// Reason why it wins or loses.
    pub verdict: String,
}

/// A region in detail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Detail {
    /// The region.
    #[serde(flatten)]
    pub region: Region,
    /// Byte offset of the tested unit.
    pub unit_offset: u64,
    /// Length of the unit.
    pub unit_bytes: u64,
    /// Entropy measured by the probe, in bits for a byte.
    pub bits_per_byte: f64,
    /// Class of data, in words.
    pub class: String,
    /// Property `compression`.
    pub compression: String,
    /// Property `mode`.
    pub mode: String,
    /// Codec that would be chosen now.
    pub chosen: String,
    /// Reason for it.
    pub why: String,
    /// CPUs available for compression.
    pub cpus: f64,
    /// Speed of the device under load; null if it was not measured yet.
    pub device_bytes_per_s: Option<f64>,
    /// Power of a busy CPU, in watts.
    pub cpu_watts: f64,
    /// Source of `cpu_watts`: `rapl` (measured at the last calibration) or `cpu-time` (nominal).
    pub energy_source: String,
    /// Number of the dictionary that zstd uses for this unit; null if none helps.
    pub dictionary: Option<u32>,
    /// Number of dictionaries that the region chooses among.
    pub dictionaries: u8,
    /// Results of all candidates on the unit.
    pub trials: Vec<Trial>,
}

/// A choice of a codec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceLine {
    /// Consecutive number; gaps are records that were not read in time.
    pub number: u64,
    /// Time, in seconds since 1970.
    pub unix_s: u64,
    /// Permanent number of the object.
    pub object: u64,
    /// Byte offset of the unit.
    pub offset: u64,
    /// Bytes before compression.
    pub raw_bytes: u32,
    /// Stored bytes.
    pub stored_bytes: u32,
    /// Codec; `raw` if it is not compressed.
    pub codec: String,
    /// Class of data, from 0 to 7.
    pub class: u8,
    /// Short name of the reason.
    pub why: String,
    /// CPU time of all attempts, in nanoseconds.
    pub cpu_ns: u64,
    /// Part of it spent on tests, in nanoseconds.
    pub test_ns: u64,
    /// CPUs available for compression.
    pub cpus: f64,
    /// Device time for a KiB, in nanoseconds; 0 if it is not known.
    pub device_ns_per_kib: f64,
    /// Whether writers wait, or are about to.
    pub pressed: bool,
    /// Energy of the CPU time, in microjoules.
    pub energy_uj: f64,
    /// Power of a busy CPU, in watts.
    pub power: f64,
    /// Source of `power`: `rapl` or `cpu-time`.
    pub energy_source: String,
    /// Share and path of the file, with `#` and the file's number while it has no path; absent
    /// unless the share is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Byte offset of the unit in that file; absent without `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_offset: Option<u64>,
}

/// A field of CSV: in quotes if it must be.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

impl TraceLine {
    /// Names of the columns, in the order of [`csv`](Self::csv).
    pub const CSV_HEADER: &str = "number,unix_s,object,offset,raw_bytes,stored_bytes,codec,class,why,cpu_ns,test_ns,cpus,device_ns_per_kib,pressed,energy_uj,power,energy_source,path,file_offset";

    /// As a line of CSV. No field but the path can hold a comma or a quote.
    pub fn csv(&self) -> String {
        let Self {
            number,
            unix_s,
            object,
            offset,
            raw_bytes,
            stored_bytes,
            codec,
            class,
            why,
            cpu_ns,
            test_ns,
            cpus,
            ..
        } = self;
        let (device, pressed) = (self.device_ns_per_kib, self.pressed);
        let (energy, power, source) = (self.energy_uj, self.power, &self.energy_source);
        let path = csv_field(self.path.as_deref().unwrap_or_default());
        let at = self.file_offset.map(|at| at.to_string()).unwrap_or_default();
        format!(
            "{number},{unix_s},{object},{offset},{raw_bytes},{stored_bytes},{codec},{class},{why},{cpu_ns},{test_ns},{cpus:.3},{device:.1},{pressed},{energy:.1},{power:.1},{source},{path},{at}"
        )
    }
}

/// Speed of a codec on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Speed {
    /// Name of the codec.
    pub codec: String,
    /// Length of the units.
    pub unit_bytes: u64,
    /// CPU time for a KiB, in nanoseconds.
    pub ns_per_kib: f64,
    /// Megabytes in a second of one CPU.
    pub mb_per_second: f64,
    /// Energy for a gigabyte, in joules.
    pub joules_per_gb: f64,
}

/// Result of a calibration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibrated {
    /// Source of `cpu_watts`: `rapl` or `cpu-time`.
    pub energy_source: String,
    /// Power of a busy CPU, in watts.
    pub cpu_watts: f64,
    /// CPU time of the calibration.
    pub cpu_seconds: f64,
    /// Speeds by unit length and codec.
    pub speeds: Vec<Speed>,
}

/// Progress of a recompression.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecompressSlice {
    /// Whether all extents were visited.
    pub finished: bool,
    /// Start, in seconds since 1970; 0 if none was started.
    pub started_unix_s: u64,
    /// Mode that was asked for; null for that of the properties.
    pub mode: Option<String>,
    /// Extents visited.
    pub extents_done: u64,
    /// All extents.
    pub extents_total: u64,
    /// Size of an extent.
    pub extent_bytes: u64,
    /// Stored bytes visited.
    pub bytes_done: u64,
    /// Stored bytes of all data.
    pub bytes_total: u64,
    /// Fragments examined.
    pub fragments: u64,
    /// Fragments rewritten.
    pub rewritten: u64,
    /// Stored bytes of these before.
    pub before_bytes: u64,
    /// Stored bytes of these now.
    pub after_bytes: u64,
    /// Fragments that cannot be read and stay in place.
    pub damaged_fragments: u64,
    /// Bytes of client traffic during the pass.
    pub foreground_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_quoted_in_csv_where_they_must_be() {
        for (name, field) in [
            ("home/a b.c", "home/a b.c"),
            ("home/a,b", "\"home/a,b\""),
            ("home/\"a\"", "\"home/\"\"a\"\"\""),
            ("home/a\nb", "\"home/a\nb\""),
            ("", ""),
        ] {
            assert_eq!(csv_field(name), field);
        }
    }
}
