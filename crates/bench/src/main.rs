//! Benchmarks: the engine in this process, the transports and peers as other programs. Prints a
//! table and writes the figures as JSON. Owns the selection of measurements and their methods;
//! nothing that is shipped depends on it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod adaptive;
mod baseline;
mod bench_pool;
mod codecs;
mod command;
mod corpus;
mod energy;
mod engine;
mod estimate;
mod fio;
mod load;
mod peers;
mod reads;
mod report;
mod server;
mod space;
mod transport;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::corpus::Corpus;
use crate::report::{Report, Run};

#[global_allocator]
static ALLOCATOR: env::Allocator = env::Allocator;

/// Result of a fallible step: a benchmark reports the error and stops.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures Shale against the limits of its parts, and against peers.
#[derive(Debug, Parser)]
#[command(
    after_long_help = "Needs root (page cache, loop devices), fio, nbdkit, qemu-nbd, btrfs-progs, and a quiet machine."
)]
struct Options {
    #[command(subcommand)]
    what: What,
    /// Directory with data: one directory per kind, files in them.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp/corpus")]
    corpus: PathBuf,
    /// Directory for pools, on the disk to be measured. Its content is removed.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp/shale-bench")]
    dir: PathBuf,
    /// A tree of many small files, for `adaptive`: such as `tools/public-data kernel DIR` makes.
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp/corpus/source")]
    tree: PathBuf,
    /// File in which `adaptive` stores its measurements of each unit, and from which it reads them
    /// if it exists: to compare versions of the policy on the same measurements.
    #[arg(long, global = true, value_name = "DIR")]
    measurements: Option<PathBuf>,
    /// Where the figures go; figures of the same name are replaced.
    #[arg(long, global = true, value_name = "FILE", default_value = "bench/results/latest.json")]
    out: PathBuf,
    /// Smaller amounts and fewer rounds.
    #[arg(long, global = true)]
    quick: bool,
    /// Size of the pools that `space`, `soak` and `engine memory` fill (such as 2G), instead of the
    /// usual one; with `--dir` on a memory file system, figures of write amplification take a
    /// minute.
    #[arg(long, global = true, value_name = "SIZE", value_parser = units::parse_size)]
    pool_bytes: Option<u64>,
    /// Note on every figure: other work on the machine, the file system below.
    #[arg(long, global = true, value_name = "TEXT")]
    note: Option<String>,
    /// Only figures whose group's name contains this.
    #[arg(long, global = true, value_name = "TEXT", default_value = "")]
    only: String,
}

impl Options {
    /// Those that a figure depends on, as they are written.
    fn arguments(&self) -> Vec<String> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
        let mut arguments = Vec::new();
        if self.quick {
            arguments.push("--quick".to_owned());
        }
        arguments.extend(self.pool_bytes.map(|bytes| format!("--pool-bytes {bytes}")));
        arguments.extend(self.note.as_deref().map(|note| format!("--note {}", quoted(note))));
        arguments
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
enum What {
    /// The engine, in this process.
    Engine,
    /// NBD and FUSE, through the real server.
    Transport,
    /// Uses that many bytes of memory, and ends: run before measurements.
    #[command(hide = true)]
    UseMemory {
        /// How many.
        bytes: usize,
    },
    /// btrfs, nbdkit and qcow2 on the same disk.
    Peers,
    /// `compression=auto`: against fixed codecs and the oracle.
    Adaptive,
    /// Every codec on every kind of data: saving, cost, dictionaries; writes codecs.json next to
    /// the other figures.
    Codecs {
        /// Replace the tables of this page.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// `shale estimate` against the truth, for each kind of data.
    Estimate,
    /// A full and old log: cleaning, snapshots, clones.
    Space,
    /// The fragmentation soak: a pool that is 90 % full, overwritten 20 times over and checked. No
    /// figures.
    Soak,
    /// Everything but the codecs.
    All,
    /// A child: random writes on a large volume, then its memory.
    #[command(hide = true)]
    ChildMemory,
    /// A child: random writes into a full log, then its memory.
    #[command(hide = true)]
    ChildMemoryFull,
    /// A child: random writes until it is killed.
    #[command(hide = true)]
    ChildRecovery,
}

/// How much is done.
#[derive(Debug, Clone, Copy)]
struct Scale {
    /// Rounds of each side of a ratio; the median counts.
    rounds: usize,
    /// Bytes of a sequential write.
    sequential_bytes: u64,
    /// Bytes of random writes.
    random_bytes: u64,
    /// Bytes of random writes before and around a crash.
    recovery_bytes: u64,
    /// Seconds of a timed load.
    seconds: f64,
}

impl Scale {
    const QUICK: Self =
        Self { rounds: 3, sequential_bytes: 1 << 30, random_bytes: 1 << 30, recovery_bytes: 2 << 30, seconds: 3.0 };
    const FULL: Self =
        Self { rounds: 5, sequential_bytes: 4 << 30, random_bytes: 8 << 30, recovery_bytes: 10 << 30, seconds: 8.0 };
}

/// Input of every measurement.
struct Context {
    corpus: Corpus,
    corpus_dir: PathBuf,
    tree: PathBuf,
    measurements: Option<PathBuf>,
    quick: bool,
    dir: PathBuf,
    out: PathBuf,
    scale: Scale,
    only: String,
    pool_bytes: Option<u64>,
}

impl Context {
    /// Whether a group of figures is wanted.
    fn wants(&self, group: &str) -> bool {
        let wanted = group.contains(&self.only);
        if wanted {
            println!("\n== {group}");
        }
        wanted
    }
}

fn main() -> Outcome<()> {
    env::tune_allocator();
    let options = Options::parse();
    let scale = if options.quick { Scale::QUICK } else { Scale::FULL };
    if let What::Codecs { page } = &options.what {
        let out = options.out.with_file_name("codecs.json");
        let page = page.as_deref();
        return codecs::run(&codecs::Request { corpus: &options.corpus, out: &out, page, quick: options.quick });
    }
    if let What::UseMemory { bytes } = options.what {
        std::hint::black_box(vec![1u8; bytes]);
        return Ok(());
    }
    let corpus = Corpus::load(&options.corpus)?;
    let context = Context {
        corpus,
        corpus_dir: options.corpus.clone(),
        tree: options.tree.clone(),
        measurements: options.measurements.clone(),
        quick: options.quick,
        dir: options.dir.clone(),
        out: options.out.clone(),
        scale,
        only: options.only.clone(),
        pool_bytes: options.pool_bytes,
    };
    match options.what {
        What::ChildMemory => return engine::memory::child(&context),
        What::ChildMemoryFull => return engine::memory::child_full(&context),
        What::ChildRecovery => return engine::recovery::child(&context),
        _ => {}
    }
    bench_pool::recreate(&options.dir)?;
    println!("data: {} of {}", units::format_size(context.corpus.data.len() as u64), options.corpus.display());
    if options.what == What::Soak {
        space::soak::run(&context)?;
        std::fs::remove_dir_all(&options.dir)?;
        return Ok(());
    }
    let mut report = Report::open(&options.out, Run::of(options.arguments(), options.note.clone()));
    if matches!(options.what, What::Engine | What::All) {
        engine::run(&context, &mut report)?;
    }
    if matches!(options.what, What::Adaptive | What::All) {
        adaptive::run(&context, &mut report)?;
    }
    if matches!(options.what, What::Estimate | What::All) {
        estimate::measure(&context, &mut report)?;
    }
    if matches!(options.what, What::Transport | What::All) {
        transport::run(&context, &mut report)?;
    }
    if matches!(options.what, What::Peers | What::All) {
        peers::run(&context, &mut report)?;
    }
    if matches!(options.what, What::Space | What::All) {
        space::run(&context, &mut report)?;
    }
    std::fs::remove_dir_all(&options.dir)?;
    report.finish()
}
