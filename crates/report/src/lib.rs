//! The documents of `--json`, which also cross the control socket: plain types, and the
//! arithmetic on their figures. Owns their field names, which are a promise to scripts: each is
//! documented in the help of its command, and may be added to, but not renamed.

mod affected;
mod analytics;
mod choices;
mod estimates;
mod exports;
mod file_choices;
mod files;
mod image_line;
mod jobs;
mod losses;
mod pool;
mod reload;
mod slices;
mod traffic;

pub use affected::{AffectedLine, ObjectChange};
pub use analytics::{
    ANALYTICS_VERSION, AnalyticsState, DatasetLine, DatasetsReport, HeatmapReport, MarkLine, SeriesLine, SeriesReport,
    WorksheetLine,
};
pub use choices::{
    Calibrated, CodecUse, Detail, ExplainMap, MapCell, RecompressSlice, Region, Remembered, Speed, TraceLine, Trial,
};
pub use estimates::{EstimateLine, EstimateReport, EstimateType, WriteBound};
pub use exports::{CheckLine, ExportLine, ExportsReport};
pub use file_choices::{FileReport, OtherLine, PartLine, Trials, UsageLine, UsageReport};
pub use files::{FileEntry, FileKind, FileVersion, FilesReport, RestoreTotal};
pub use image_line::{ImageLine, PushedLine};
pub use jobs::{HIDDEN_NAME, JobFault, JobKind, JobPace, JobReport, JobResult, JobState, JobWish};
pub use losses::{LossLine, LossOfReport, LossReport};
pub use pool::{
    BookmarkLine, ChangeReport, CheckSummary, DiffReport, HoldLine, ObjectKind, ProblemReport, PropertiesReport,
    PropertyReport, QuotaLine, ReceiveLine, ReservedLine, ScrubLine, SnapshotReport, StatusReport, TransferSummary,
    UnservedLine, VolumeReport, ratio, show_ratio, write_amplification,
};
pub use reload::ReloadReport;
pub use slices::{CleanSlice, CleanTotal, ScrubSlice, ShrinkSlice, SortSlice};
pub use traffic::{
    CodecLine, DoorTraffic, OperationLine, TRAFFIC_VERSION, TrafficReport, VolumeTraffic, bucket_ends_ns,
};
