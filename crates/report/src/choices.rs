//! What commands report of choices of codecs: the documents behind `--json` of `explain` and
//! `trace`, which also cross the control socket. Field names are a promise to scripts, as in
//! the crate says.

use serde::{Deserialize, Serialize};

/// How much is stored with one codec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CodecUse {
    /// The codec; `raw`: as it came.
    pub codec: String,
    /// Fragments.
    pub units: u64,
    /// Bytes of live data.
    pub raw_bytes: u64,
    /// What they take.
    pub stored_bytes: u64,
}

/// The memory of a region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    /// Codec that won the last test; `raw`: none paid.
    pub winner: String,
    /// Class of data that was tested, 0 (nearly constant) to 7 (looks random).
    pub class: u8,
    /// Average saving since.
    pub saving_percent: f64,
    /// Units since the test, up to 127.
    pub units_since_test: u32,
}

/// A region of a volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Bytes that hold data.
    pub raw_bytes: u64,
    /// What they take.
    pub stored_bytes: u64,
    /// By codec, the most data first.
    pub codecs: Vec<CodecUse>,
    /// What `auto` remembers of it since the pool was opened.
    pub remembered: Option<Remembered>,
}

/// What one candidate makes of a unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The codec.
    pub codec: String,
    /// Bytes; none: it saves less than `min-saving`.
    pub stored_bytes: Option<u64>,
    /// CPU time that it took now.
    pub cpu_us: f64,
    /// The expected saving.
    pub expected_saving_percent: f64,
    /// The expected time, for a unit of this length.
    pub expected_cpu_us: f64,
    /// Its cost as a multiple of the least one; none: it saves nothing.
    pub cost: Option<f64>,
    /// Energy for that CPU time.
    pub energy_uj: f64,
    /// Why it wins or loses.
    pub verdict: String,
}

/// A region in detail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// The region.
    #[serde(flatten)]
    pub region: Region,
    /// Where the unit that was tried begins, in bytes.
    pub unit_offset: u64,
    /// Its length.
    pub unit_bytes: u64,
    /// Its entropy by the probe.
    pub bits_per_byte: f64,
    /// Its class of data, in words.
    pub class: String,
    /// The property.
    pub compression: String,
    /// The property.
    pub mode: String,
    /// What would be done with it if it were written now.
    pub chosen: String,
    /// Why.
    pub why: String,
    /// CPUs that compression can get.
    pub cpus: f64,
    /// Speed of the device while it is busy; none: not measured yet.
    pub device_bytes_per_s: Option<f64>,
    /// Watts that a busy CPU takes.
    pub cpu_watts: f64,
    /// Whose figure that is: `rapl` (counted by the processor at the last calibration) or
    /// `cpu-time` (CPU time at a nominal power).
    pub energy_source: String,
    /// Number of the dictionary that helps zstd with this unit; none: none does.
    pub dictionary: Option<u32>,
    /// Dictionaries that the region chooses among.
    pub dictionaries: u8,
    /// Every candidate, tried on the unit.
    pub trials: Vec<Trial>,
}

/// A record of the trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceLine {
    /// Consecutive, unless records were lost because they were not read in time.
    pub number: u64,
    /// Wall-clock second.
    pub unix_s: u64,
    /// Number of the object in the pool.
    pub object: u64,
    /// Where the unit begins in it.
    pub offset: u64,
    /// Bytes before.
    pub raw_bytes: u32,
    /// Bytes stored.
    pub stored_bytes: u32,
    /// Codec; `raw` when stored as it came.
    pub codec: String,
    /// Class of data, 0 to 7.
    pub class: u8,
    /// Short name of the reason.
    pub why: String,
    /// CPU time of all attempts.
    pub cpu_ns: u64,
    /// The part of it that tests cost.
    pub test_ns: u64,
    /// CPUs that compression can get.
    pub cpus: f64,
    /// Time of the device for a KiB; 0: not known.
    pub device_ns_per_kib: f64,
    /// Whether writers wait, or nearly.
    pub pressed: bool,
    /// Energy for the CPU time of all attempts, in microjoules.
    pub energy_uj: f64,
    /// Watts that a busy CPU takes.
    pub power: f64,
    /// Whose figure that is: `rapl` or `cpu-time`.
    pub energy_source: String,
    /// Of a share that is mounted: its name and the path of the file, or `#` and the file's number
    /// where it has no path yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where the unit begins in that file.
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

/// How fast one candidate is on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The codec.
    pub codec: String,
    /// Length of the units.
    pub unit_bytes: u64,
    /// CPU nanoseconds for a KiB.
    pub ns_per_kib: f64,
    /// Of one CPU.
    pub mb_per_second: f64,
    /// Energy to compress a gigabyte.
    pub joules_per_gb: f64,
}

/// What a calibration found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    /// Whose figure the power is: `rapl` or `cpu-time`.
    pub energy_source: String,
    /// Watts that a busy CPU takes.
    pub cpu_watts: f64,
    /// CPU time that it took.
    pub cpu_seconds: f64,
    /// By length of units and codec.
    pub speeds: Vec<Speed>,
}

/// How far a recompression is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecompressSlice {
    /// All extents have been gone through.
    pub finished: bool,
    /// When it began, in seconds since 1970; 0: never.
    pub started_unix_s: u64,
    /// The mode that was asked for.
    pub mode: Option<String>,
    /// Extents that are done.
    pub extents_done: u64,
    /// All there are.
    pub extents_total: u64,
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Bytes of data in the extents that are done, as stored.
    pub bytes_done: u64,
    /// The same of all.
    pub bytes_total: u64,
    /// Fragments looked at.
    pub fragments: u64,
    /// Fragments rewritten.
    pub rewritten: u64,
    /// What they took before.
    pub before_bytes: u64,
    /// What they take now.
    pub after_bytes: u64,
    /// Fragments that cannot be read, and stay as they are.
    pub damaged_fragments: u64,
    /// Bytes that users have read and written, and that were sent and received for them.
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
