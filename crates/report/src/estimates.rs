//! Estimates of stored sizes with other settings: the document of `shale estimate --json`, which the
//! service keeps for each object.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{HIDDEN_NAME, JobFault, JobState};

/// The bottleneck of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBound {
    /// The device.
    Disk,
    /// The processors.
    Cpu,
}

/// An estimate of the space and CPU time that data would take with each setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateReport {
    /// Permanent number of the volume, share or snapshot; null: data outside of a pool.
    pub object: Option<u64>,
    /// Directory or file of a share; null: all of it.
    pub path: Option<String>,
    /// Properties that were assumed instead of those in force.
    pub assumed: BTreeMap<String, String>,
    /// Number of the job that makes it; null: data outside of a pool.
    pub job: Option<u64>,
    /// State of that job. The figures of one that ended early are those that it had by then.
    pub state: JobState,
    /// Reason why it failed or was cancelled; null otherwise.
    pub error: Option<JobFault>,
    /// Time of the figures, in seconds since 1970; 0 before the first ones.
    pub at_unix_s: u64,
    /// Number of files; of a volume 1.
    pub files: u64,
    /// Size.
    pub size_bytes: u64,
    /// Bytes that hold data.
    pub data_bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Files that a share keeps in the records of their inodes.
    pub small_files: u64,
    /// Bytes of those.
    pub small_bytes: u64,
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Bytes that were read and compressed; 0 before the first figures.
    pub sampled_bytes: u64,
    /// Samples that could not be read.
    pub unreadable_samples: u64,
    /// Confidence level of the margins.
    pub confidence: f64,
    /// Watts of a busy CPU.
    pub cpu_watts: f64,
    /// `rapl`: counted by the processor; `cpu-time`: CPU time at a nominal power.
    pub energy_source: String,
    /// CPUs that compression can get; null: not known.
    pub cpus: Option<f64>,
    /// Speed of the pool's device, measured on its writes since it was opened; null: not known yet.
    pub device_bytes_per_s: Option<u64>,
    /// The settings; empty before the first figures.
    pub settings: Vec<EstimateLine>,
    /// The types of files, the most data first.
    pub types: Vec<EstimateType>,
}

impl EstimateReport {
    /// Of a job that has begun: no figures yet.
    pub const fn begun(object: u64, path: Option<String>, assumed: BTreeMap<String, String>, job: u64) -> Self {
        Self {
            object: Some(object),
            path,
            assumed,
            job: Some(job),
            state: JobState::Running,
            error: None,
            at_unix_s: 0,
            files: 0,
            size_bytes: 0,
            data_bytes: 0,
            hole_bytes: 0,
            small_files: 0,
            small_bytes: 0,
            unit_bytes: 0,
            sampled_bytes: 0,
            unreadable_samples: 0,
            confidence: 0.95,
            cpu_watts: 0.0,
            energy_source: String::new(),
            cpus: None,
            device_bytes_per_s: None,
            settings: Vec::new(),
            types: Vec::new(),
        }
    }

    /// Hides the names of files, for a reader who may not see them.
    pub fn hide_file_names(&mut self) {
        self.path = self.path.take().map(|_| HIDDEN_NAME.to_owned());
        if let Some(fault) = &mut self.error {
            fault.hide();
        }
    }
}

/// The estimate for one setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateLine {
    /// The setting: a codec, `off`, or `auto, MODE`.
    pub setting: String,
    /// Whether it is the one of the properties.
    pub configured: bool,
    /// Saving, in percent of the data.
    pub saving_percent: f64,
    /// Half the width of the confidence interval of the saving; null where one sample stands for
    /// several windows.
    pub margin_percent: Option<f64>,
    /// Data over stored bytes; null when nothing is stored.
    pub ratio: Option<f64>,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// CPU seconds to compress all of it.
    pub cpu_seconds: f64,
    /// Speed of one core; null where nothing is compressed.
    pub mb_per_second: Option<f64>,
    /// Energy of the CPU time.
    pub joules: f64,
    /// Speed of writes, a model: the lesser of the processors' and the device's, as far as either
    /// is known; null where neither is.
    pub write_mb_per_second: Option<f64>,
    /// Which of them is the lesser; null where neither is known.
    pub write_bound: Option<WriteBound>,
    /// Speed of sequential reads over that with the configured setting, by the same model; null
    /// where it is not known.
    pub read_factor: Option<f64>,
    /// Seconds to rewrite all data without other load, a model; null where it is not known.
    pub rewrite_seconds: Option<f64>,
}

/// The estimate for one type of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateType {
    /// The type, as `shale usage` names it.
    #[serde(rename = "type")]
    pub word: String,
    /// Number of files.
    pub files: u64,
    /// Their size.
    pub size_bytes: u64,
    /// Bytes that hold data.
    pub data_bytes: u64,
    /// Samples.
    pub samples: u64,
    /// The settings.
    pub settings: Vec<EstimateLine>,
}
