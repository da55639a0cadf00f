//! Estimates of data whose saving is known because all of it is compressed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use codec::Workspace;
use policy::{dst_limit_permille, is_zero};
use report::WriteBound;
use surface::{Allocation, Error, ErrorKind, Result, Run};
use testkit::TempDir;

use super::{
    EstimateReport, Machine, Plan, Population, Scanned, ShareFile, ShareFiles, ShareScan, Step, in_rounds, run,
};
use copy::volume_io::VolumeIo;

/// Writes a file below a directory.
fn write(dir: &TempDir, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Text whose vocabulary, and so its saving, varies from section to section; or noise.
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

/// The actual saving when all data is compressed.
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

fn saving(report: &EstimateReport, setting: &str) -> (f64, f64) {
    let line = report.settings.iter().find(|line| line.setting == setting).unwrap();
    (line.saving_percent, line.margin_percent.unwrap())
}

#[test]
fn an_estimate_of_a_directory_is_near_the_truth_and_its_margin_says_how_near() {
    let scratch = TempDir::new("estimate-near");
    let text: Vec<Vec<u8>> = (1..40).map(|n| content(n, 100_000 + n as usize * 9973, false)).collect();
    let noise: Vec<Vec<u8>> = (1..5).map(|n| content(n, 1 << 20, true)).collect();
    for (index, bytes) in text.iter().enumerate() {
        write(&scratch, &format!("texts/{}/{index}.xyz", index % 3), bytes);
    }
    for (index, bytes) in noise.iter().enumerate() {
        write(&scratch, &format!("{index}.noise"), bytes);
    }
    let all: Vec<Vec<u8>> = text.iter().chain(&noise).cloned().collect();
    let plan = plan(&[("compression", "zstd-3")], "lz4,zstd-9");
    let mut seen = Scanned::default();
    let (population, scanned) = Population::of_paths(&[scratch.path().to_owned()], &plan, &mut |s| seen = s).unwrap();
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
    assert!(report.settings.iter().any(|line| line.setting == "zstd-3" && line.configured), "{report:?}");
}

/// A share has no block for them; a file that is named may be an image, which has.
#[test]
fn small_files_of_a_tree_are_no_blocks() {
    let scratch = TempDir::new("estimate-small");
    for n in 0..50 {
        write(&scratch, &format!("{n}.txt"), &content(n, 100, false));
    }
    write(&scratch, "empty.txt", b"");
    write(&scratch, "large.txt", &content(1, 513, false));
    let plan = plan(&[("compression", "zstd-3")], "none");
    let of = |path: PathBuf| {
        let (population, _) = Population::of_paths(&[path], &plan, &mut |_| ()).unwrap();
        run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap()
    };
    let tree = of(scratch.path().to_owned());
    assert_eq!((tree.files, tree.size_bytes, tree.data_bytes, tree.hole_bytes), (52, 5513, 4096, 0), "{tree:?}");
    assert_eq!((tree.small_files, tree.small_bytes), (50, 5000));
    let named = of(scratch.join("1.txt"));
    assert_eq!((named.small_files, named.data_bytes), (0, 4096));
}

#[test]
fn all_of_little_data_is_looked_at_and_the_estimate_is_exact() {
    let scratch = TempDir::new("estimate-exact");
    let files = [content(5, 70_000, false), content(6, 5000, false), content(7, 50_000, true)];
    for (index, bytes) in files.iter().enumerate() {
        write(&scratch, &format!("{index}.dat"), bytes);
    }
    for (unit, bytes) in [("4K", 4096), ("128K", 131_072)] {
        let plan = plan(&[("unit", unit), ("compression", "gzip-6")], "zstd-19");
        let (population, _) = Population::of_paths(&[scratch.path().to_owned()], &plan, &mut |_| ()).unwrap();
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
    let scratch = TempDir::new("estimate-holes");
    let sparse = std::fs::File::create(scratch.join("sparse.img")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &content(9, 300_000, false), 17 << 20).unwrap();
    write(&scratch, "a.txt", &content(8, 40_000, false));
    std::fs::hard_link(scratch.join("a.txt"), scratch.join("b.txt")).unwrap();
    std::os::unix::fs::symlink("a.txt", scratch.join("c.txt")).unwrap();
    let plan = plan(&[], "none");
    let (population, scanned) = Population::of_paths(&[scratch.path().to_owned()], &plan, &mut |_| ()).unwrap();
    assert_eq!(scanned.files, 2);
    let report = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert_eq!(report.size_bytes, (64 << 20) + 40_000);
    let data = 300_000u64.next_multiple_of(4096) + 40_960;
    assert_eq!(report.data_bytes, data);
}

#[test]
fn rules_are_used_for_auto_only() {
    let scratch = TempDir::new("estimate-rules");
    write(&scratch, "a.nc", &content(3, 400_000, false));
    let plan = plan(&[("rule.nc", "off,archive:zstd-9"), ("compression", "zstd-9")], "lz4");
    let (population, _) = Population::of_paths(&[scratch.path().to_owned()], &plan, &mut |_| ()).unwrap();
    let report = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert_eq!(saving(&report, "auto, balanced").0, 0.0);
    assert_eq!(saving(&report, "auto, archive").0, saving(&report, "zstd-9").0);
    assert!(saving(&report, "lz4").0 > 10.0);
}

#[test]
fn a_path_that_is_not_there_is_an_error_with_its_name() {
    let missing = PathBuf::from("/var/tmp/shale-no-such-file");
    let plan = plan(&[], "none");
    let error = Population::of_paths(&[missing], &plan, &mut |_| ()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), surface::ErrorKind::NotFound);
    assert!(error.to_string().contains("shale-no-such-file"));
    let error = Population::of_paths(&[PathBuf::from("/dev/null")], &plan, &mut |_| ()).map(|_| ()).unwrap_err();
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

/// Records that share their words: little that repeats within 4 KiB, much among them.
fn records(seed: u64, len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = |salt: u64| {
        state = (state ^ salt).wrapping_mul(0xd134_2543_de82_ef95).rotate_left(23).wrapping_add(0x9e37_79b9);
        state
    };
    let words: Vec<u64> = (0..150).map(|_| next(0)).collect();
    let mut bytes = Vec::with_capacity(len + 32);
    while bytes.len() < len {
        let word = words[next(seed) as usize % words.len()];
        bytes.extend_from_slice(format!("{word:x}={:06x}\n", next(seed) & 0xff_ffff).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn small_units_are_estimated_with_the_dictionary_that_they_would_get() {
    let scratch = TempDir::new("estimate-dictionaries");
    let data = records(3, 8 << 20);
    write(&scratch, "records.xyz", &data);
    let estimate = |pairs: &[(&str, &str)]| {
        let mut wanted = vec![("candidates", "zstd-3")];
        wanted.extend(pairs);
        let plan = plan(&wanted, "zstd-3");
        let (population, _) = Population::of_paths(&[scratch.path().to_owned()], &plan, &mut |_| ()).unwrap();
        let report = run(&population, &plan, 2 << 20, 1, &mut |_, _| ()).unwrap();
        (saving(&report, "auto, balanced").0, saving(&report, "zstd-3").0)
    };
    // In truth: trained with other records of the kind, and tried on these.
    let other = records(4, 4 << 20);
    let level = codec::ZstdLevel::new(3).unwrap();
    let dictionary = codec::train(&other.chunks(4096).collect::<Vec<_>>(), 64 << 10).unwrap();
    let units: Vec<&[u8]> = data.chunks(4096).collect();
    let truth = codec::evaluate(&dictionary, level, &units, |len| dst_limit_permille(len, 125)).unwrap();
    let share = |stored: u64| 100.0 * (1.0 - stored as f64 / truth.raw_bytes as f64);
    assert!(truth.gain_permille() > 50, "{truth:?}");

    let (with, fixed) = estimate(&[("unit", "4K")]);
    assert!((with - share(truth.stored_with)).abs() < 2.0, "{with}, in truth {}", share(truth.stored_with));
    assert!((fixed - share(truth.stored_without)).abs() < 2.0, "{fixed}, in truth {}", share(truth.stored_without));
    let (off, _) = estimate(&[("unit", "4K"), ("dictionary", "off")]);
    assert!((off - fixed).abs() < 1.0, "{off}, {fixed} with the codec alone");
    let (large, fixed) = estimate(&[("unit", "32K")]);
    assert!((large - fixed).abs() < 1.0, "large units have none: {large}, {fixed}");
}

/// Four bytes of signature were trusted, whatever followed them.
#[test]
fn a_signature_in_front_of_text_is_not_believed_and_one_in_front_of_noise_is() {
    let scratch = TempDir::new("estimate-signature");
    let with_signature = |seed, noisy| {
        let mut bytes = content(seed, 300_000, noisy);
        bytes[..4].copy_from_slice(b"\xff\xd8\xff\xe0");
        bytes
    };
    write(&scratch, "a.jpg", &with_signature(3, false));
    let plan = plan(&[], "zstd-1");
    let of = |scratch: &TempDir| {
        let paths = &[scratch.path().to_owned()];
        let (population, _) = Population::of_paths(paths, &plan, &mut |_| ()).unwrap();
        run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap()
    };
    let report = of(&scratch);
    let ((found, margin), (zstd, _)) = (saving(&report, "auto, balanced"), saving(&report, "zstd-1"));
    assert!(zstd > 10.0 && found > zstd - 3.0, "{found} of {zstd}");
    // All of it was examined, and the choice may differ in a pool.
    assert!((0.5..2.0).contains(&margin), "{margin}");
    let noise = TempDir::new("estimate-signature-noise");
    write(&noise, "a.jpg", &with_signature(4, true));
    // Except for the zeroes after its end.
    let (found, margin) = saving(&of(&noise), "auto, balanced");
    assert!(found < 1.5 && margin < 1.5, "{found} ±{margin}");
}

/// Files in memory, as a share has them.
struct InMemory(BTreeMap<u64, Vec<u8>>);

impl ShareFiles for InMemory {
    fn read(&self, file: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(content) = self.0.get(&file) else { return Err(Error::new(ErrorKind::NotFound, "gone")) };
        let rest = content.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(buf.len());
        buf[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
    fn data(&self, file: u64) -> Result<Vec<(u64, u64)>> {
        // The second half of large files is a hole.
        Ok(vec![(0, self.0[&file].len() as u64 / 2)])
    }
}

fn share_of(files: &[(&str, &str, &[u8])], plan: &Plan, gone: &[u64]) -> Population {
    let mut content: BTreeMap<u64, Vec<u8>> = (1..).zip(files.iter().map(|(.., bytes)| bytes.to_vec())).collect();
    gone.iter().for_each(|file| drop(content.remove(file)));
    let mut scan = ShareScan::new(Arc::new(InMemory(content)), plan.unit_bytes);
    for (file, (name, word, bytes)) in (1..).zip(files) {
        scan.add(ShareFile { file, name, word, size_bytes: bytes.len() as u64 });
    }
    scan.population()
}

/// The figures of a share's files are those of the same files in a directory.
#[test]
fn files_of_a_share_are_estimated_as_those_of_a_directory() {
    let (text, other) = (content(3, 600_000, false), content(9, 300_000, false));
    let files: [(&str, &str, &[u8]); 3] =
        [("a.txt", "txt", &text), ("b.log", "log", &other), ("c.txt", "txt", b"tiny")];
    let plan = plan(&[("compression", "zstd-3"), ("rule.log", "off")], "lz4,off");
    let of_share = run(&share_of(&files, &plan, &[]), &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    let scratch = TempDir::new("estimate-share");
    files.iter().for_each(|(name, _, bytes)| write(&scratch, name, bytes));
    let (population, _) = Population::of_paths(&[scratch.path().to_owned()], &plan, &mut |_| ()).unwrap();
    let of_tree = run(&population, &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    let facts = |report: &EstimateReport| {
        let types: Vec<_> = report.types.iter().map(|part| (part.word.clone(), part.files, part.data_bytes)).collect();
        (report.files, report.size_bytes, report.data_bytes, report.small_files, report.small_bytes, types)
    };
    assert_eq!(facts(&of_share), facts(&of_tree));
    for setting in ["zstd-3", "lz4", "off"] {
        assert_eq!(saving(&of_share, setting), saving(&of_tree, setting), "{setting}");
    }
    let log = of_share.types.iter().find(|part| part.word == "log").unwrap();
    let auto = log.settings.iter().find(|line| line.setting == "auto, balanced").unwrap();
    assert_eq!(auto.saving_percent, 0.0, "the rule knows the name of the file");
    let off = of_share.settings.iter().find(|line| line.setting == "off").unwrap();
    assert_eq!((off.cpu_seconds, off.mb_per_second, off.stored_bytes), (0.0, None, of_share.data_bytes));

    let without = run(&share_of(&files, &plan, &[2]), &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert!(without.unreadable_samples > 0 && without.data_bytes < of_share.data_bytes, "{without:?}");
    let sparse = content(4, 3 << 20, false);
    let half = run(&share_of(&[("d", "", &sparse)], &plan, &[]), &plan, 1 << 30, 1, &mut |_, _| ()).unwrap();
    assert_eq!((half.data_bytes, half.types[0].word.as_str()), (3 << 19, "other"));
}

/// Each round reads more, and its margins are narrower; small ones end the work.
#[test]
fn rounds_narrow_the_margins_until_they_are_small() {
    let data = content(21, 5 << 20, false);
    let machine = Machine { power: None, cpus: Some(2.0), device_bytes_per_s: Some(100e6) };
    let plan = plan(&[("compression", "lz4")], "off");
    let estimate = |data: &[u8]| {
        let population = Population::of_volume(Arc::new(Thin(data.to_vec())), plan.unit_bytes).unwrap();
        let (mut rounds, mut last) = (Vec::new(), (0, 0));
        let mut on = |step: Step<'_>| {
            match step {
                Step::Batch(batch) => {
                    assert!(batch.done > last.0 && batch.done <= batch.total, "{batch:?}");
                    last = (batch.done, batch.total);
                }
                Step::Round(found) => rounds.push((found.sampled_bytes, saving(found, "lz4").1)),
            }
            Ok(())
        };
        let found = in_rounds(&population, &plan, None, 1, &machine, &mut on).unwrap();
        (found, rounds)
    };
    let (found, rounds) = estimate(&data);
    let narrows = rounds.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1);
    assert!(rounds.len() == 3 && narrows, "{rounds:?}");
    assert_eq!((saving(&found, "lz4").1, found.data_bytes), (0.0, 10 << 20), "the last one reads all");
    let line = |setting: &str| found.settings.iter().find(|line| line.setting == setting).unwrap();
    assert_eq!((line("off").write_mb_per_second, line("off").write_bound), (Some(100.0), Some(WriteBound::Disk)));
    assert_eq!((line("lz4").read_factor, line("off").read_factor.is_some()), (Some(1.0), true));
    assert!(line("lz4").rewrite_seconds.is_some_and(|seconds| seconds >= 1.0));
    // Two windows with data: all of it is read in the first round.
    assert_eq!(estimate(&data[..4096]).1.len(), 1);

    let population = Population::of_volume(Arc::new(Thin(data)), plan.unit_bytes).unwrap();
    let mut on = |_: Step<'_>| Err(Error::new(ErrorKind::InUse, "cancelled"));
    let error = in_rounds(&population, &plan, None, 1, &machine, &mut on).unwrap_err();
    assert_eq!(error.to_string(), "cancelled");
}
