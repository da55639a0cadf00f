//! Peers on the same disk under the same jobs: btrfs with compression against ext4 on a Shale volume, and NBD servers that
//! compress or thin-provision against Shale's.

use std::path::{Path, PathBuf};

use crate::command::{Finally, run as sh};
use crate::report::{Report, median};
use crate::server::{self, Shale};
use crate::world::{drop_page_cache, recreate};
use crate::{Context, Outcome, fio};

/// Bytes of a device: the jobs use a part of it.
const DEVICE_BYTES: u64 = 16 << 30;

/// Unit of the volume below ext4: what btrfs compresses together, as ratios are compared.
const UNIT: &str = "128K";

/// Ratios closer than this are equal: journals and reserved blocks of the file systems differ by as much.
const RATIO_EQUAL: f64 = 0.99;

/// A job: its name, fio's options for a file on a file system, and for an NBD export.
struct Job {
    name: &'static str,
    on_file: &'static str,
    on_nbd: &'static str,
    /// Whether bytes per second are what counts, not requests.
    throughput: bool,
    /// Share of the size that it writes or reads.
    share: f64,
}

/// File systems compress what goes through the page cache only, so writes do, and are synced at the end within the time.
const JOBS: [Job; 5] = [
    Job {
        name: "sequential write",
        on_file: "--ioengine=psync --rw=write --bs=128k --end_fsync=1",
        on_nbd: "--rw=write --bs=128k --iodepth=16 --end_fsync=1",
        throughput: true,
        share: 1.0,
    },
    Job {
        name: "sequential read",
        on_file: "--ioengine=psync --rw=read --bs=128k",
        on_nbd: "--rw=read --bs=128k --iodepth=16",
        throughput: true,
        share: 1.0,
    },
    Job {
        name: "4 KiB random read",
        on_file: "--ioengine=psync --direct=1 --thread --numjobs=32 --rw=randread --bs=4k",
        on_nbd: "--rw=randread --bs=4k --iodepth=32",
        throughput: false,
        share: 0.25,
    },
    Job {
        name: "4 KiB random write",
        on_file: "--ioengine=psync --rw=randwrite --bs=4k --end_fsync=1",
        on_nbd: "--rw=randwrite --bs=4k --iodepth=32 --end_fsync=1",
        throughput: false,
        share: 0.25,
    },
    Job {
        name: "4 KiB random write, fsync every 32",
        on_file: "--ioengine=psync --rw=randwrite --bs=4k --fsync=32",
        on_nbd: "--rw=randwrite --bs=4k --iodepth=32 --fsync=32",
        throughput: false,
        share: 0.0625,
    },
];

/// What a peer is reached through.
enum Target {
    File(PathBuf),
    Nbd(String),
}

/// All that one contestant achieved: medians for each job, and logical over stored bytes if that can be told.
struct Result {
    name: &'static str,
    jobs: [f64; JOBS.len()],
    ratio: Option<f64>,
}

/// All comparisons.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    if context.wants("peers file systems") {
        file_systems(context, report)?;
    }
    if context.wants("peers NBD") {
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
        // One after the other for each pair: what they share is the disk, and the half hour.
        theirs.push(btrfs(context, option, their_name)?);
        ours.push(ext4_on_shale(context, codec, our_name)?);
    }
    for result in ours.iter().chain(&theirs) {
        note(context, report, result)?;
    }
    for (our, their) in ours.iter().zip(&theirs) {
        compare(context, report, our, &[their], [1.0, 1.0, 1.2, 4.0, 3.0])?;
        if let (Some(our_ratio), Some(their_ratio)) = (our.ratio, their.ratio) {
            let what =
                format!("{our_ratio:.3} and {their_ratio:.3}: logical over stored bytes after the sequential write");
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
        theirs.push(measure(context, "nbdkit zstd memory", &Target::Nbd(server::uri("", &socket)), &|| Ok(None))?);
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
        let used = || Ok(Some(disk_usage(&dir)));
        theirs.push(measure(context, "qemu-nbd qcow2", &Target::Nbd(server::uri("", &socket)), &used)?);
    }
    recreate(&dir)?;
    let shale = Shale::start(&context.dir.join("shale"), "zstd-1", "32K", DEVICE_BYTES)?;
    let used = || Ok(Some(disk_usage(&shale.pool)));
    let our = measure(context, "Shale NBD zstd-1", &Target::Nbd(shale.uri()), &used)?;
    note(context, report, &our)?;
    for result in &theirs {
        note(context, report, result)?;
    }
    // The only peer that compresses sets the bar, and only for reads: it never writes to a disk.
    let bars = [0.0, 0.0, 1.2, 0.0, 0.0];
    compare(context, report, &our, &[&theirs[0]], bars)
}

fn btrfs(context: &Context, option: &str, name: &'static str) -> Outcome<Result> {
    let dir = context.dir.join("peer");
    recreate(&dir)?;
    let image = dir.join("image");
    std::fs::File::create(&image)?.set_len(DEVICE_BYTES)?;
    let (device, _detach) = attach(&image)?;
    sh("mkfs.btrfs", &["--quiet", "--force", &device])?;
    let (at, _unmount) = mount(&dir, &["-t", "btrfs", "-o", &format!("compress={option},noatime"), &device])?;
    let path = at.to_string_lossy().into_owned();
    let used = || {
        let text = sh("df", &["--output=used", "--block-size=1", &path])?;
        Ok(text.lines().last().and_then(|l| l.trim().parse().ok()))
    };
    measure(context, name, &Target::File(at.join("file")), &used)
}

fn ext4_on_shale(context: &Context, codec: &str, name: &'static str) -> Outcome<Result> {
    let shale = Shale::start(&context.dir.join("shale"), codec, UNIT, DEVICE_BYTES)?;
    let dir = context.dir.join("peer");
    recreate(&dir)?;
    let (device, _detach) = attach(&shale.file())?;
    sh("mkfs.ext4", &["-q", "-F", &device])?;
    let (at, _unmount) = mount(&dir, &["-t", "ext4", "-o", "noatime", &device])?;
    let used = || Ok(Some(disk_usage(&shale.pool)));
    measure(context, name, &Target::File(at.join("file")), &used)
}

fn attach(file: &Path) -> Outcome<(String, Finally<impl FnMut() + use<>>)> {
    let path = file.to_string_lossy().into_owned();
    let device = sh("losetup", &["--find", "--show", "--direct-io=on", &path])?.trim().to_owned();
    let name = device.clone();
    let detach = Finally(move || {
        let _ = sh("losetup", &["--detach", &name]);
    });
    Ok((device, detach))
}

fn mount(dir: &Path, arguments: &[&str]) -> Outcome<(PathBuf, Finally<impl FnMut() + use<>>)> {
    let at = dir.join("mount");
    std::fs::create_dir_all(&at)?;
    let path = at.to_string_lossy().into_owned();
    let mut all = arguments.to_vec();
    all.push(&path);
    sh("mount", &all)?;
    let unmount = Finally(move || {
        let _ = sh("umount", &[&path]);
    });
    Ok((at, unmount))
}

fn measure(
    context: &Context,
    name: &'static str,
    target: &Target,
    used: &dyn Fn() -> Outcome<Option<u64>>,
) -> Outcome<Result> {
    let size = context.scale.sequential_bytes;
    let before = used()?;
    let mut jobs = [0.0; JOBS.len()];
    let mut ratio = None;
    for (job, value) in JOBS.iter().zip(&mut jobs) {
        let mut values = Vec::new();
        // Writes change the contestant, and the first one fills it.
        let rounds = if job.on_file.contains("write") { 1 } else { context.scale.rounds };
        for _ in 0..rounds {
            drop_page_cache()?;
            let words = match target {
                Target::File(path) => format!("{} --filename={}", job.on_file, path.display()),
                Target::Nbd(uri) => format!("{} --ioengine=nbd --uri={uri}", job.on_nbd),
            };
            let each = if words.contains("numjobs=32") { 32.0 } else { 1.0 };
            let bytes = (size as f64 * job.share / each) as u64 / (1 << 20) * (1 << 20);
            let words = format!("{words} --size={size} --io_size={}", bytes.max(1 << 20));
            let figures = fio::job(&fio::options(&words))?;
            values.push(if job.throughput { figures.bytes_per_second / 1e6 } else { figures.iops });
        }
        *value = median(&values);
        println!("{name}: {}: {:.0} {}", job.name, *value, if job.throughput { "MB/s" } else { "/s" });
        if ratio.is_none() {
            drop_page_cache()?;
            ratio = used()?.zip(before).map(|(now, before)| size as f64 / now.saturating_sub(before).max(1) as f64);
        }
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
            "logical over stored bytes after the sequential write",
        ),
        None => Ok(()),
    }
}

fn job_note(context: &Context, job: &Job) -> String {
    let size = units::format_size(context.scale.sequential_bytes);
    format!(
        "fio, data 60 % compressible, {size}; file: `{}`; NBD: `{}`; page cache dropped before",
        job.on_file, job.on_nbd
    )
}

/// Compares with the best of `peers`, job by job; a bar of 0 is none.
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
        let how = job_note(context, job);
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
