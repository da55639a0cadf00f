//! The two front ends, through the real server: small durable writes, and reads from memory.

use std::path::Path;

use crate::bench_pool::recreate;
use crate::load::cores;
use crate::report::{Report, median, ratio_percent};
use crate::server::{self, Shale};
use crate::{Context, Outcome, fio};

/// Bytes that durable writes are scattered over.
const DURABLE_BYTES: u64 = 1 << 30;
/// Bytes that are read from memory: a fraction of the server's budget.
const CACHED_BYTES: u64 = 64 << 20;

/// All figures of the transports.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    if report.begin(context, "transport durable writes") {
        durable_writes(context, report)?;
    }
    if report.begin(context, "transport cached reads") {
        cached_reads(context, report)?;
    }
    Ok(())
}

fn durable_writes(context: &Context, report: &mut Report) -> Outcome<()> {
    let shale = Shale::start(&context.dir.join("shale"), "lz4", "32K", DURABLE_BYTES, None)?;
    let plain = context.dir.join("plain");
    let size = format!("--size={DURABLE_BYTES}");
    // The file has all its blocks: a durable write to it changes no metadata.
    fio::job(&fio::options(&format!(
        "--filename={} {size} --rw=write --bs=1m --end_fsync=1 --ioengine=psync",
        plain.display()
    )))?;
    let seconds = context.scale.seconds.ceil();
    let each = |target: &str, sync: &str| {
        let words =
            format!("{target} {size} --rw=randwrite --bs=4k --iodepth=1 {sync} --time_based --runtime={seconds}");
        fio::job(&fio::options(&words)).map(|f| f.iops)
    };
    let file = |path: &Path| format!("--ioengine=psync --filename={}", path.display());
    let (mut base, mut fuse, mut nbd) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..context.scale.rounds {
        base.push(each(&file(&plain), "--fdatasync=1")?);
        fuse.push(each(&file(&shale.file()), "--fdatasync=1")?);
        nbd.push(each(&format!("--ioengine=nbd --uri={}", shale.uri()), "--fsync=1")?);
        println!("round {round}: ext4 {:.0}/s, FUSE {:.0}/s, NBD {:.0}/s", base[round], fuse[round], nbd[round]);
    }
    for (name, values) in [("FUSE", &fuse), ("NBD", &nbd)] {
        let what = format!(
            "fio, one at a time, each made durable: {:.0}/s; a file on ext4 on the same disk, all blocks allocated: {:.0}/s; \
             `bench transport --only durable`, {} cores, {} rounds, median",
            median(values),
            median(&base),
            cores(),
            context.scale.rounds
        );
        report.at_least(
            &format!("4 KiB write + fdatasync, {name}, of ext4"),
            ratio_percent(values, &base),
            "%",
            60.0,
            &what,
        )?;
    }
    drop(shale);
    std::fs::remove_file(plain)?;
    Ok(())
}

fn cached_reads(context: &Context, report: &mut Report) -> Outcome<()> {
    let shale = Shale::start(&context.dir.join("shale"), "lz4", "32K", CACHED_BYTES, None)?;
    let peer_dir = context.dir.join("nbdkit");
    recreate(&peer_dir)?;
    let socket = peer_dir.join("nbd.sock");
    let words = format!("--foreground --unix {} memory {CACHED_BYTES}", socket.display());
    let peer = server::listen("nbdkit", &fio::options(&words), &socket)?;
    let uris = [shale.uri(), server::uri("", &socket)];
    let job = |uri: &str, words: &str| {
        let words = format!("--ioengine=nbd --uri={uri} --size={CACHED_BYTES} {words}");
        fio::job(&fio::options(&words)).map(|f| f.iops)
    };
    for uri in &uris {
        job(uri, "--rw=write --bs=128k --iodepth=16 --end_fsync=1")?;
        job(uri, "--rw=read --bs=128k --iodepth=16")?;
    }
    let (mut ours, mut base) = (Vec::new(), Vec::new());
    for round in 0..context.scale.rounds {
        let timed =
            format!("--rw=randread --bs=4k --iodepth=32 --time_based --runtime={}", context.scale.seconds.ceil());
        base.push(job(&uris[1], &timed)?);
        ours.push(job(&uris[0], &timed)?);
        println!("round {round}: Shale {:.0}/s, nbdkit memory {:.0}/s", ours[round], base[round]);
    }
    drop(peer);
    let what = format!(
        "fio's nbd engine, Unix socket, depth 32, 64 MiB of compressible data in the cache: {:.0}/s; nbdkit memory: {:.0}/s; \
         `bench transport --only cached`, {} cores, {} rounds, median",
        median(&ours),
        median(&base),
        cores(),
        context.scale.rounds
    );
    report.at_least(
        "4 KiB random read of cached data, NBD, of nbdkit memory",
        ratio_percent(&ours, &base),
        "%",
        80.0,
        &what,
    )
}
