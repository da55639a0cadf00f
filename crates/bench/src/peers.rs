//! Peers on the same disk under the same jobs: btrfs with compression against ext4 on a Shale
//! volume, and NBD servers that compress or thin-provision against Shale's.

use std::path::{Path, PathBuf};

use crate::bench_pool::{back_memory, drop_page_cache, recreate};
use crate::command::run as sh;
use crate::report::{Report, median};
use crate::server::{self, Shale};
use crate::{Context, Outcome, fio};

/// Bytes of a device: the jobs use a part of it.
const DEVICE_BYTES: u64 = 16 << 30;

/// Unit of the volumes: the default.
const UNIT: &str = "32K";

/// Memory for Shale: its cache of decoded data, where a kernel's file system has the page cache,
/// which gets all the rest.
const MEMORY: &str = "4G";

/// Read-ahead of the loop device below ext4, in sectors of 512 bytes: 256 KiB, as recommended in
/// `docs/OPERATIONS.md`. ext4 puts its read-ahead into folios of up to this size: with 4 MiB, the
/// default of btrfs, they come from memory that was not used recently.
const READ_AHEAD_SECTORS: &str = "512";

/// Whether mounts get their requests over io_uring: `make peers` sees to it where the kernel can,
/// as OPERATIONS.md advises.
const FUSE_RINGS: &str = "/sys/module/fuse/parameters/enable_uring";

/// Memory that is in use just before each job, so that none of them encounters memory reclaimed by
/// the hypervisor.
const BACKED_BYTES: u64 = 3 << 30;

/// Space ratios closer than this are equal: journals and reserved blocks of the file systems differ
/// by as much.
const RATIO_EQUAL: f64 = 0.99;

/// A job: its name, fio's options for a file on a file system, and for an NBD export.
struct Job {
    name: &'static str,
    on_file: &'static str,
    on_nbd: &'static str,
    /// Whether the figure is bytes per second, not requests.
    throughput: bool,
    /// Share of the size that it writes or reads.
    share: f64,
    /// It is run twice, and only the second run is reported, whose data is in memory as far as it
    /// fits.
    again: bool,
}

const RANDOM_READ_ON_FILE: &str = "--ioengine=psync --direct=1 --thread --numjobs=32 --rw=randread --bs=4k";
const RANDOM_READ_ON_NBD: &str = "--rw=randread --bs=4k --iodepth=32";

/// File systems compress only data that goes through the page cache, so writes use it, and are
/// synced at the end within the measured time.
const JOBS: [Job; 6] = [
    Job {
        name: "sequential write",
        on_file: "--ioengine=psync --rw=write --bs=128k --end_fsync=1",
        on_nbd: "--rw=write --bs=128k --iodepth=16 --end_fsync=1",
        throughput: true,
        share: 1.0,
        again: false,
    },
    Job {
        name: "sequential read",
        on_file: "--ioengine=psync --rw=read --bs=128k",
        on_nbd: "--rw=read --bs=128k --iodepth=16",
        throughput: true,
        share: 1.0,
        again: false,
    },
    Job {
        name: "4 KiB random read",
        on_file: RANDOM_READ_ON_FILE,
        on_nbd: RANDOM_READ_ON_NBD,
        throughput: false,
        share: 0.25,
        again: false,
    },
    Job {
        name: "4 KiB random read, once more",
        on_file: RANDOM_READ_ON_FILE,
        on_nbd: RANDOM_READ_ON_NBD,
        throughput: false,
        share: 0.25,
        again: true,
    },
    Job {
        name: "4 KiB random write",
        on_file: "--ioengine=psync --rw=randwrite --bs=4k --end_fsync=1",
        on_nbd: "--rw=randwrite --bs=4k --iodepth=32 --end_fsync=1",
        throughput: false,
        share: 0.25,
        again: false,
    },
    Job {
        name: "4 KiB random write, fsync every 32",
        on_file: "--ioengine=psync --rw=randwrite --bs=4k --fsync=32",
        on_nbd: "--rw=randwrite --bs=4k --iodepth=32 --fsync=32",
        throughput: false,
        share: 0.0625,
        again: false,
    },
];

/// How many times as fast as btrfs, job by job.
const BARS: [f64; JOBS.len()] = [1.0, 1.0, 1.2, 1.2, 4.0, 3.0];

/// Results of one contestant: medians for each job, and logical over stored bytes if known.
struct Result {
    name: &'static str,
    jobs: [f64; JOBS.len()],
    ratio: Option<f64>,
}

/// All comparisons.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    if report.begin(context, "peers file systems") {
        file_systems(context, report)?;
    }
    if report.begin(context, "peers NBD") {
        nbd_servers(context, report)?;
    }
    Ok(())
}

fn file_systems(context: &Context, report: &mut Report) -> Outcome<()> {
    let pairs = [
        ("zstd-1", "ext4 on Shale zstd-1", "zstd:1", "btrfs zstd:1"),
        ("lz4", "ext4 on Shale lz4", "lzo", "btrfs lzo"),
    ];
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for (codec, our_name, option, their_name) in pairs {
        // Each pair in succession: they share the disk and the quarter of an hour.
        theirs.push(btrfs(context, option, their_name)?);
        ours.push(ext4_on_shale(context, codec, our_name)?);
    }
    for result in ours.iter().chain(&theirs) {
        note(context, report, result)?;
    }
    for (our, their) in ours.iter().zip(&theirs) {
        compare(context, report, our, &[their], BARS)?;
        if let (Some(our_ratio), Some(their_ratio)) = (our.ratio, their.ratio) {
            let what = format!(
                "{our_ratio:.3} and {their_ratio:.3}: logical over stored bytes (of extents and map; of btrfs the used bytes of df) after the first sequential write; \
                 {RATIO_EQUAL} counts as equal, for journals and reserved blocks of the file systems differ by as much"
            );
            report.at_least(
                &format!("{} over {}: ratio", our.name, their.name),
                our_ratio / their_ratio,
                "x",
                RATIO_EQUAL,
                &what,
            )?;
        }
    }
    Ok(())
}

fn nbd_servers(context: &Context, report: &mut Report) -> Outcome<()> {
    let mut theirs = Vec::new();
    let dir = context.dir.join("peer");
    recreate(&dir)?;
    let socket = dir.join("nbd.sock");
    {
        let words = format!("--foreground --unix {} memory {DEVICE_BYTES} allocator=zstd", socket.display());
        let _running = server::listen("nbdkit", &fio::options(&words), &socket)?;
        theirs.push(measure(context, "nbdkit zstd memory", &mut Peer { uri: server::uri("", &socket), dir: None })?);
    }
    recreate(&dir)?;
    {
        let image = dir.join("image.qcow2");
        let path = image.to_string_lossy().into_owned();
        sh("qemu-img", &["create", "-q", "-f", "qcow2", &path, &DEVICE_BYTES.to_string()])?;
        let words = format!(
            "--format=qcow2 --persistent --shared=8 --cache=none --aio=native --socket={} {path}",
            socket.display()
        );
        let _running = server::listen("qemu-nbd", &fio::options(&words), &socket)?;
        theirs.push(measure(context, "qemu-nbd qcow2", &mut Peer { uri: server::uri("", &socket), dir: Some(&dir) })?);
    }
    recreate(&dir)?;
    // Alternating with its rival, as above.
    let rival = btrfs(context, "zstd:1", "btrfs zstd:1")?;
    let mut shale = Shale::start(&context.dir.join("shale"), "zstd-1", UNIT, DEVICE_BYTES, Some(MEMORY))?;
    let our = measure(context, "Shale NBD zstd-1", &mut shale)?;
    note(context, report, &our)?;
    for result in &theirs {
        note(context, report, result)?;
    }
    // The only peer that compresses sets the bar, and only for reads, when our data is in memory,
    // too: its data always is.
    let bars = [0.0, 0.0, 0.0, 1.2, 0.0, 0.0];
    compare(context, report, &our, &[&theirs[0]], bars)?;
    // A volume without a file system on it against a file: the bars are those of a file on it.
    compare(context, report, &our, &[&rival], BARS)
}

/// Target of the jobs.
trait Contestant {
    /// fio's options for a job on it.
    fn options(&self, job: &Job) -> String;
    /// Drops its caches.
    fn make_cold(&mut self) -> Outcome<()>;
    /// Bytes in use, if known.
    fn used_bytes(&self) -> Outcome<Option<u64>>;
}

/// An NBD server whose memory is the page cache, or its disk.
struct Peer<'a> {
    uri: String,
    dir: Option<&'a Path>,
}

impl Contestant for Peer<'_> {
    fn options(&self, job: &Job) -> String {
        format!("{} --ioengine=nbd --uri={}", job.on_nbd, self.uri)
    }
    fn make_cold(&mut self) -> Outcome<()> {
        Ok(())
    }
    fn used_bytes(&self) -> Outcome<Option<u64>> {
        Ok(self.dir.map(disk_usage))
    }
}

impl Contestant for Shale {
    fn options(&self, job: &Job) -> String {
        format!("{} --ioengine=nbd --uri={}", job.on_nbd, self.uri())
    }
    fn make_cold(&mut self) -> Outcome<()> {
        self.restart()
    }
    fn used_bytes(&self) -> Outcome<Option<u64>> {
        Self::used_bytes(self).map(Some)
    }
}

/// A file system on a loop device on a file: btrfs's image, or a volume that Shale shows.
struct OnLoop {
    shale: Option<Shale>,
    file: PathBuf,
    at: PathBuf,
    mount_options: [String; 2],
    device: Option<String>,
}

impl OnLoop {
    fn new(shale: Option<Shale>, file: PathBuf, dir: &Path, mkfs: &[&str], mount: [&str; 2]) -> Outcome<Self> {
        let at = dir.join("mount");
        std::fs::create_dir_all(&at)?;
        let mut it = Self { shale, file, at, mount_options: mount.map(str::to_owned), device: None };
        let device = it.attach()?;
        let [program, arguments @ ..] = mkfs else { return Err("no mkfs".into()) };
        sh(program, &[arguments, &[device.as_str()]].concat())?;
        it.mount(&device)?;
        Ok(it)
    }

    fn attach(&mut self) -> Outcome<String> {
        let path = self.file.to_string_lossy().into_owned();
        let device = sh("losetup", &["--find", "--show", "--direct-io=on", &path])?.trim().to_owned();
        self.device = Some(device.clone());
        if self.shale.is_some() {
            sh("blockdev", &["--setra", READ_AHEAD_SECTORS, &device])?;
        }
        Ok(device)
    }

    fn mount(&self, device: &str) -> Outcome<()> {
        let [kind, options] = &self.mount_options;
        let at = self.at.to_string_lossy();
        sh("mount", &["-t", kind.as_str(), "-o", options, device, &at])?;
        Ok(())
    }

    fn unmount(&mut self) -> Outcome<()> {
        sh("umount", &[&*self.at.to_string_lossy()])?;
        if let Some(device) = self.device.take() {
            sh("losetup", &["--detach", &device])?;
        }
        Ok(())
    }
}

impl Drop for OnLoop {
    fn drop(&mut self) {
        let _ = self.unmount();
        if let Some(device) = self.device.take() {
            let _ = sh("losetup", &["--detach", &device]);
        }
    }
}

impl Contestant for OnLoop {
    fn options(&self, job: &Job) -> String {
        format!("{} --filename={}", job.on_file, self.at.join("file").display())
    }
    fn make_cold(&mut self) -> Outcome<()> {
        self.unmount()?;
        if let Some(shale) = &mut self.shale {
            shale.restart()?;
        }
        let device = self.attach()?;
        self.mount(&device)
    }
    fn used_bytes(&self) -> Outcome<Option<u64>> {
        if let Some(shale) = &self.shale {
            return shale.used_bytes().map(Some);
        }
        let text = sh("df", &["--output=used", "--block-size=1", &self.at.to_string_lossy()])?;
        Ok(text.lines().last().and_then(|l| l.trim().parse().ok()))
    }
}

fn btrfs(context: &Context, option: &str, name: &'static str) -> Outcome<Result> {
    let dir = context.dir.join("peer");
    recreate(&dir)?;
    let image = dir.join("image");
    std::fs::File::create(&image)?.set_len(DEVICE_BYTES)?;
    let options = format!("compress={option},noatime");
    let mkfs = ["mkfs.btrfs", "--quiet", "--force"];
    measure(context, name, &mut OnLoop::new(None, image, &dir, &mkfs, ["btrfs", &options])?)
}

fn ext4_on_shale(context: &Context, codec: &str, name: &'static str) -> Outcome<Result> {
    let shale = Shale::start(&context.dir.join("shale"), codec, UNIT, DEVICE_BYTES, Some(MEMORY))?;
    let dir = context.dir.join("peer");
    recreate(&dir)?;
    let file = shale.file();
    let mkfs = ["mkfs.ext4", "-q", "-F"];
    measure(context, name, &mut OnLoop::new(Some(shale), file, &dir, &mkfs, ["ext4", "noatime"])?)
}

fn measure(context: &Context, name: &'static str, contestant: &mut dyn Contestant) -> Outcome<Result> {
    let size = context.scale.sequential_bytes;
    let before = contestant.used_bytes()?;
    let mut jobs = [0.0; JOBS.len()];
    let mut ratio = None;
    for (job, value) in JOBS.iter().zip(&mut jobs) {
        let mut values = Vec::new();
        for _ in 0..context.scale.rounds {
            contestant.make_cold()?;
            drop_page_cache()?;
            back_memory(BACKED_BYTES)?;
            let words = contestant.options(job);
            let each = if words.contains("numjobs=32") { 32.0 } else { 1.0 };
            let bytes = (size as f64 * job.share / each) as u64 / (1 << 20) * (1 << 20);
            let words = format!("{words} --size={size} --io_size={}", bytes.max(1 << 20));
            if job.again {
                fio::job(&fio::options(&words))?;
            }
            let figures = fio::job(&fio::options(&words))?;
            values.push(if job.throughput { figures.bytes_per_second / 1e6 } else { figures.iops });
            if ratio.is_none() {
                drop_page_cache()?;
                let used = contestant.used_bytes()?;
                ratio = used.zip(before).map(|(now, before)| size as f64 / now.saturating_sub(before).max(1) as f64);
            }
        }
        *value = median(&values);
        println!("{name}: {}: {:.0} {}", job.name, *value, if job.throughput { "MB/s" } else { "/s" });
    }
    Ok(Result { name, jobs, ratio })
}

fn note(context: &Context, report: &mut Report, result: &Result) -> Outcome<()> {
    for (job, value) in JOBS.iter().zip(result.jobs) {
        let unit = if job.throughput { "MB/s" } else { "/s" };
        report.info(&format!("{}: {}", result.name, job.name), value, unit, &job_note(context, job))?;
    }
    match result.ratio {
        Some(ratio) => report.info(
            &format!("{}: ratio", result.name),
            ratio,
            "",
            "logical over stored bytes (of extents and map; of btrfs the used bytes of df) after the first sequential write",
        ),
        None => Ok(()),
    }
}

fn job_note(context: &Context, job: &Job) -> String {
    let size = units::format_size(context.scale.sequential_bytes);
    let rings = std::fs::read_to_string(FUSE_RINGS).is_ok_and(|text| text.trim() == "Y");
    let way = if rings { "over" } else { "without" };
    format!(
        "{size}; file: `{}`; NBD: `{}`; FUSE {way} io_uring; see \"Peers\" for the set-up; `bench peers`",
        job.on_file, job.on_nbd
    )
}

/// Compares with the best of `peers`, job by job; 0 means no bar.
fn compare(
    context: &Context,
    report: &mut Report,
    our: &Result,
    peers: &[&Result],
    bars: [f64; JOBS.len()],
) -> Outcome<()> {
    for (index, (job, bar)) in JOBS.iter().zip(bars).enumerate() {
        let Some(best) = peers.iter().max_by(|a, b| a.jobs[index].total_cmp(&b.jobs[index])) else { continue };
        let name = format!("{} over {}: {}", our.name, best.name, job.name);
        let value = our.jobs[index] / best.jobs[index];
        let unit = if job.throughput { "MB/s" } else { "/s" };
        let how = format!("{:.0} and {:.0} {unit}; {}", our.jobs[index], best.jobs[index], job_note(context, job));
        if bar > 0.0 { report.at_least(&name, value, "x", bar, &how)? } else { report.info(&name, value, "x", &how)? }
    }
    Ok(())
}

/// Bytes on disk of the files below.
fn disk_usage(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_usage(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}
