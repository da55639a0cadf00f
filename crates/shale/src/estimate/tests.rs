//! Estimates of data whose saving is known because all of it is compressed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use codec::Workspace;
use policy::{dst_limit_permille, is_zero};
use surface::{Allocation, Result, Run};

use super::{Plan, Population, Report, Scanned, run};
use crate::volume_io::VolumeIo;

/// A directory that is removed at the end.
struct Scratch(PathBuf);
impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new("/var/tmp").join(format!("shale-estimate-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    fn file(&self, name: &str, bytes: &[u8]) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Text whose wealth of words, and so its saving, varies from stretch to stretch; or noise.
fn content(seed: u64, len: usize, noisy: bool) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(len + 32);
    let mut words = 50;
    while bytes.len() < len {
        if noisy {
            bytes.extend_from_slice(&next().to_le_bytes());
        } else {
            if next() % 400 == 0 {
                words = 3 << (next() % 14);
            }
            bytes.extend_from_slice(format!("{:x} ", (next() % words).wrapping_mul(0x9e37_79b9)).as_bytes());
        }
    }
    bytes.truncate(len);
    bytes
}

fn plan(wanted: &[(&str, &str)], codecs: &str) -> Plan {
    let wanted: Vec<_> = wanted.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Plan::new(&BTreeMap::new(), &BTreeMap::new(), &wanted, codecs).unwrap()
}

/// What is saved when all of it is compressed.
fn truth(files: &[Vec<u8>], codec: &str, unit_bytes: usize) -> f64 {
    let mut workspace = Workspace::new();
    let (mut raw, mut stored) = (0, 0);
    for file in files {
        let mut file = file.clone();
        file.resize(file.len().next_multiple_of(4096), 0);
        for unit in file.chunks(unit_bytes).filter(|unit| !is_zero(unit)) {
            let mut dst = vec![0; dst_limit_permille(unit.len(), 125)];
            raw += unit.len();
            stored += workspace.compress(codec.parse().unwrap(), unit, &mut dst).unwrap_or(unit.len());
        }
    }
    100.0 * (1.0 - stored as f64 / raw as f64)
}

fn saving(report: &Report, setting: &str) -> (f64, f64) {
    let line = report.settings.iter().find(|line| line.setting == setting).unwrap();
    (line.saving_percent, line.margin_percent.unwrap())
}

#[test]
fn an_estimate_of_a_directory_is_near_the_truth_and_its_margin_says_how_near() {
    let scratch = Scratch::new("near");
    let text: Vec<Vec<u8>> = (1..40).map(|n| content(n, 100_000 + n as usize * 9973, false)).collect();
    let noise: Vec<Vec<u8>> = (1..5).map(|n| content(n, 1 << 20, true)).collect();
    for (index, bytes) in text.iter().enumerate() {
        scratch.file(&format!("texts/{}/{index}.xyz", index % 3), bytes);
    }
    for (index, bytes) in noise.iter().enumerate() {
        scratch.file(&format!("{index}.noise"), bytes);
    }
    let all: Vec<Vec<u8>> = text.iter().chain(&noise).cloned().collect();
    let plan = plan(&[("compression", "zstd-3")], "lz4,zstd-9");
    let mut seen = Scanned::default();
    let (population, scanned) =
        Population::of_paths(std::slice::from_ref(&scratch.0), plan.unit_bytes, &mut |s| seen = s).unwrap();
    assert_eq!((scanned.files, scanned.unreadable, seen), (43, 0, scanned));
    // A seventh of the data.
    let report = run(&population, &plan, 2 << 20, 1, &mut |done, total| assert!(done <= total)).unwrap();
    assert!(report.sampled_bytes < report.data_bytes / 3, "{report:?}");
    assert_eq!(report.types.len(), 2);
    for setting in ["lz4", "zstd-3", "zstd-9"] {
        let ((estimate, margin), truth) = (saving(&report, setting), truth(&all, setting, plan.unit_bytes));
        assert!(margin > 0.0 && margin < 12.0, "{setting}: ±{margin}");
        assert!((estimate - truth).abs() < 2.0 * margin, "{setting}: {estimate} ±{margin}, in truth {truth}");
    }
    let noisy = report.types.iter().find(|part| part.word == "noise").unwrap();
    assert!(noisy.settings.iter().all(|line| line.saving_percent.abs() < 0.01), "{noisy:?}");
    assert!(super::show(&report).contains("zstd-3 (as set)"));
}

#[test]
fn all_of_little_data_is_looked_at_and_the_estimate_is_exact() {
    let scratch = Scratch::new("exact");
    let files = [content(5, 70_000, false), content(6, 5000, false), content(7, 50_000, true)];
    for (index, bytes) in files.iter().enumerate() {
        scratch.file(&format!("{index}.dat"), bytes);
    }
    for (unit, bytes) in [("4K", 4096), ("128K", 131_072)] {
        let plan = plan(&[("unit", unit), ("compression", "gzip-6")], "zstd-19");
        let (population, _) =
            Population::of_paths(std::slice::from_ref(&scratch.0), plan.unit_bytes, &mut |_| ()).unwrap();
        let report = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
        for setting in ["gzip-6", "zstd-19"] {
            let (estimate, margin) = saving(&report, setting);
            assert_eq!(margin, 0.0);
            assert!((estimate - truth(&files, setting, bytes)).abs() < 0.01, "{unit} {setting}");
        }
    }
}

#[test]
fn holes_links_and_files_with_two_names_count_once_or_not_at_all() {
    let scratch = Scratch::new("holes");
    let sparse = std::fs::File::create(scratch.0.join("sparse.img")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &content(9, 300_000, false), 17 << 20).unwrap();
    scratch.file("a.txt", &content(8, 40_000, false));
    std::fs::hard_link(scratch.0.join("a.txt"), scratch.0.join("b.txt")).unwrap();
    std::os::unix::fs::symlink("a.txt", scratch.0.join("c.txt")).unwrap();
    let plan = plan(&[], "none");
    let (population, scanned) =
        Population::of_paths(std::slice::from_ref(&scratch.0), plan.unit_bytes, &mut |_| ()).unwrap();
    assert_eq!(scanned.files, 2);
    let report = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert_eq!(report.size_bytes, (64 << 20) + 40_000);
    let data = 300_000u64.next_multiple_of(4096) + 40_960;
    assert_eq!(report.data_bytes, data);
}

#[test]
fn rules_are_used_for_auto_only() {
    let scratch = Scratch::new("rules");
    scratch.file("a.nc", &content(3, 400_000, false));
    let plan = plan(&[("rule.nc", "off,archive:zstd-9"), ("compression", "zstd-9")], "lz4");
    let (population, _) = Population::of_paths(std::slice::from_ref(&scratch.0), plan.unit_bytes, &mut |_| ()).unwrap();
    let report = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert_eq!(saving(&report, "auto, balanced").0, 0.0);
    assert_eq!(saving(&report, "auto, archive").0, saving(&report, "zstd-9").0);
    assert!(saving(&report, "lz4").0 > 10.0);
}

#[test]
fn a_path_that_is_not_there_is_an_error_with_its_name() {
    let missing = PathBuf::from("/var/tmp/shale-no-such-file");
    let error = Population::of_paths(&[missing], 4096, &mut |_| ()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), surface::ErrorKind::NotFound);
    assert!(error.to_string().contains("shale-no-such-file"));
    let error = Population::of_paths(&[PathBuf::from("/dev/null")], 4096, &mut |_| ()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), surface::ErrorKind::Invalid);
}

/// A thin volume with data in two places.
struct Thin(Vec<u8>);
const AT: [u64; 2] = [1 << 30, 5 << 30];
impl VolumeIo for Thin {
    fn size_bytes(&self) -> Result<u64> {
        Ok(10 << 30)
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        for at in AT {
            let begin = offset.max(at);
            let end = (offset + buf.len() as u64).min(at + self.0.len() as u64);
            if begin < end {
                let own = &self.0[(begin - at) as usize..(end - at) as usize];
                buf[(begin - offset) as usize..(end - offset) as usize].copy_from_slice(own);
            }
        }
        Ok(())
    }
    fn write(&self, _: u64, _: Bytes) -> Result<()> {
        panic!("an estimate writes")
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        panic!("an estimate discards")
    }
    fn allocation(&self, offset: u64, length: u64, runs_max: u32) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        let (mut at, end) = (offset, offset + length);
        while at < end && runs.len() < runs_max.min(2) as usize {
            let inside = AT.iter().find(|a| at >= **a && at < **a + self.0.len() as u64);
            let (allocation, until) = match inside {
                Some(a) => (Allocation::Data, a + self.0.len() as u64),
                None => (Allocation::Hole, AT.iter().copied().filter(|a| *a > at).min().unwrap_or(end)),
            };
            runs.push(Run { length: until.min(end) - at, allocation });
            at = until.min(end);
        }
        Ok(runs)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn of_a_thin_volume_only_the_data_is_read() {
    let data = content(11, 2 << 20, false);
    let plan = plan(&[("compression", "zstd-1")], "none");
    let population = Population::of_volume(Arc::new(Thin(data.clone())), plan.unit_bytes).unwrap();
    let report = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert_eq!((report.size_bytes, report.data_bytes), (10 << 30, 4 << 20));
    let (estimate, margin) = saving(&report, "zstd-1");
    assert_eq!(margin, 0.0);
    assert!((estimate - truth(&[data], "zstd-1", plan.unit_bytes)).abs() < 0.01);
}
