//! The one definition of commands and flags, from which help, completions and man pages are made.
//! Owns no behaviour.

mod access;
mod blob;
mod config;
mod exports;
pub mod habits;
pub mod help;
mod history;
mod iostat;
mod jobs;
mod kept;
pub mod named_pool;
mod policy;
mod pool;
mod salvage;
mod serve;
mod stats;
mod streams;
mod transfer;
mod volume;

pub use access::{
    HistoryArgs, PasswdArgs, RoleWord, TokenArgs, TokenCommand, TokenCreateArgs, TokenListArgs, TokenRevokeArgs,
};
pub use blob::{
    BlobArgs, BlobAtArgs, BlobCatArgs, BlobCommand, BlobCopyArgs, BlobDiffArgs, BlobEstimateArgs, BlobExpireArgs,
    BlobExplainArgs, BlobGcArgs, BlobGetArgs, BlobLogArgs, BlobLsArgs, BlobOptimizeArgs, BlobPutArgs, BlobRmArgs,
    BlobTagArgs, BlobTwoArgs, BlobUnpinArgs, BlobUpload, BlobVerifyArgs, BlobWriteArgs,
};
pub use config::{ConfigArgs, ConfigCommand, ReloadArgs};
pub use exports::ExportsArgs;
pub use history::{CloneArgs, DiffArgs, PromoteArgs, PushArgs, RenameArgs, RollbackArgs, SnapshotArgs};
pub use iostat::IostatArgs;
pub use jobs::JobsArgs;
pub use kept::{BookmarkArgs, BookmarksArgs, HoldArgs, HoldsArgs, ReleaseArgs};
pub use policy::{CalibrateArgs, ExplainArgs, RecompressArgs, TraceArgs, TraceFormat, UsageArgs};
pub use pool::{CheckArgs, CleanArgs, DfArgs, GrowArgs, InitArgs, ScrubArgs, ShrinkArgs, StatusArgs};
pub use salvage::SalvageArgs;
pub use serve::{Metrics, NbdClient, NbdTls, ServeArgs, ServeSettings, Switch};
pub use stats::{StatsArgs, TopArgs};
pub use streams::{ReceiveArgs, SendArgs};
pub use transfer::{EstimateArgs, ExportArgs, ImportArgs};
pub use volume::{CreateArgs, DestroyArgs, GetArgs, InheritArgs, ListArgs, ResizeArgs, SetArgs};

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use operations::EXIT_CODES_HELP;
use operations::names;
use report::JobPace;

/// Default memory of a pool: enough for the group cache of about 100 GiB of hot data and a write
/// buffer that keeps both cores of a small machine busy.
const MEMORY_DEFAULT: &str = "512M";

/// Position of the options of every command in the help: after its own, before `--help` (999).
const LAST: usize = 900;

/// The version, with the commit that it was built from if known.
pub const VERSION: &str = env!("SHALE_VERSION");

/// Returns the definition of the commands, with help for the current terminal.
pub fn command() -> clap::Command {
    help::fitted(<Cli as clap::CommandFactory>::command(), help::columns())
}

/// A storage pool with transparent compression
///
/// A pool is a directory. It holds volumes: thin block devices whose data is compressed when it is
/// written. One process at a time has a pool open: commands use its server if there is one, and
/// otherwise open the pool themselves.
#[derive(Debug, Parser)]
#[command(name = "shale", version = VERSION, arg_required_else_help = true, after_long_help = format!("\
Examples:
  shale init /srv/pool --capacity 100G
  shale create /srv/pool vm --size 20G -o compression=zstd-3
  shale serve /srv/pool --nbd 127.0.0.1:10809
  shale import /srv/pool disk disk.img
  shale snapshot /srv/pool vm@monday
  shale status /srv/pool

Environment: SHALE_POOL names the pool of a command line without one. The first word after the command is the pool if it is a
directory with a pool in it, or a path that begins with / or '.'; otherwise the pool of SHALE_POOL is used, and the words are
those after the pool. Not for init and estimate. With it, `shale snapshot vm@monday` is a complete command.

{EXIT_CODES_HELP}"))]
pub struct Cli {
    /// Print results and errors as JSON
    #[arg(long, global = true, display_order = LAST)]
    pub json: bool,
    /// Omit notes, the progress bar, and messages about completed actions; the output of a command
    /// is still shown
    #[arg(long, short, global = true, display_order = LAST)]
    pub quiet: bool,
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a pool
    Init(InitArgs),
    /// Create a volume or a share
    Create(CreateArgs),
    /// Set properties of the pool or of a volume
    Set(SetArgs),
    /// Show properties and where their values come from
    Get(GetArgs),
    /// Remove a property's own value, so that it is inherited again
    Inherit(InheritArgs),
    /// List volumes, shares, folders and snapshots
    List(ListArgs),
    /// Show capacity, compression, health and activity of a pool
    Status(StatusArgs),
    /// Show size, use and free space of a pool in one line
    Df(DfArgs),
    /// Show the operations of clients, and their durations
    Iostat(IostatArgs),
    /// Show the history of a pool's figures
    Stats(StatsArgs),
    /// Show the current activity of a pool, continuously
    Top(TopArgs),
    /// Serve the volumes over NBD and as files below a directory, and mount the shares
    Serve(ServeArgs),
    /// Check, or begin, the settings file of a server
    Config(ConfigArgs),
    /// Make a server reload its settings file
    Reload(ReloadArgs),
    /// Show the network exports of shares, and their addresses
    Exports(ExportsArgs),
    /// Copy a file, a block device or stdin into a volume, or a tree into a share
    Import(ImportArgs),
    /// Copy a volume to a file, a block device or stdout, or a share to a directory or archive
    Export(ExportArgs),
    /// Estimate from samples the space that data would take
    Estimate(EstimateArgs),
    /// Change the size of a volume
    Resize(ResizeArgs),
    /// Destroy volumes with all their data, or snapshots
    Destroy(DestroyArgs),
    /// Keep the state of volumes as snapshots
    Snapshot(SnapshotArgs),
    /// Create a volume from a snapshot, or from a version of a blob
    Clone(CloneArgs),
    /// Push a snapshot as the next version of a blob
    Push(PushArgs),
    /// Roll a volume back to a snapshot
    Rollback(RollbackArgs),
    /// Rename a volume or a snapshot
    Rename(RenameArgs),
    /// Make a clone independent of its origin
    Promote(PromoteArgs),
    /// Remember a snapshot, without space, as the base of later differences
    Bookmark(BookmarkArgs),
    /// List the bookmarks
    Bookmarks(BookmarksArgs),
    /// Keep a snapshot from being destroyed
    Hold(HoldArgs),
    /// Release a hold on a snapshot
    Release(ReleaseArgs),
    /// List the holds of snapshots
    Holds(HoldsArgs),
    /// Show the changes since a snapshot
    Diff(DiffArgs),
    /// Send a snapshot, or the changes since another one, to a file or to another pool
    Send(SendArgs),
    /// Receive a stream from `send`
    Receive(ReceiveArgs),
    /// Read and verify everything in a pool that is not served
    Check(CheckArgs),
    /// Rebuild a pool whose map is lost from its log, in a new pool
    Salvage(SalvageArgs),
    /// Enlarge a pool
    Grow(GrowArgs),
    /// Shrink a pool
    Shrink(ShrinkArgs),
    /// Empty extents that are partly dead, to free space now
    Clean(CleanArgs),
    /// Verify all data of a pool while it is in use
    Scrub(ScrubArgs),
    /// Rewrite data that was stored under other settings, where that makes it smaller
    Recompress(RecompressArgs),
    /// List, watch, pause, resume and cancel the long work of a server
    Jobs(JobsArgs),
    /// Show how a volume or a file of a share is stored, with its codecs and the reasons
    Explain(ExplainArgs),
    /// Show the space of the directories and file types of a share
    Usage(UsageArgs),
    /// Measure the speed of codecs on this machine, and the power of a busy CPU
    Calibrate(CalibrateArgs),
    /// Follow the choices of compression=auto, unit by unit
    Trace(TraceArgs),
    /// Work with versioned, compressed files in an object store
    Blob(BlobArgs),
    /// Set the password of a user of the page, or remove or list users
    Passwd(PasswdArgs),
    /// Make, list and revoke tokens for programs that use the API
    Token(TokenArgs),
    /// Show the changes of a pool, with user, origin and time
    History(HistoryArgs),
    /// Print a completion script for a shell
    #[command(after_long_help = "\
Examples:
  shale completions bash >shale.bash
  shale completions zsh >_shale
  shale completions fish >shale.fish

`make install` puts them where the shells look: bash-completion/completions/shale, zsh/site-functions/_shale and
fish/vendor_completions.d/shale.fish below PREFIX/share.")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Keep mounts while their server is down; servers start it
    #[command(hide = true)]
    KeepMounts,
    /// Speak HTTP for a server; servers start it
    #[command(hide = true, name = server::front_ends::HTTP_COMMAND)]
    ServeHttp,
    /// Read the names of a share from elsewhere; programs that have a pool open start it
    #[command(hide = true, name = server::names_reader::READ_NAMES_COMMAND)]
    ReadNames,
    /// Write restored files to a mounted share; servers start it
    #[command(hide = true, name = server::jobs::RESTORE_COMMAND)]
    RestoreFiles {
        /// Where the share is mounted
        dir: PathBuf,
        /// Name of the directory for files that are not complete
        stage: std::ffi::OsString,
        /// Path to restore to
        target: std::ffi::OsString,
        /// Replace files that exist
        #[arg(long)]
        replace: bool,
    },
    /// Write the manual pages to a directory
    #[command(after_long_help = "\
Examples:
  shale man man1")]
    Man {
        /// Directory for them, created if it is missing
        dir: PathBuf,
    },
}

/// How to reach a pool.
#[derive(Debug, Clone, Args)]
pub struct Access {
    /// Memory for buffers and caches, if this command opens the pool itself
    #[arg(long, value_name = "SIZE", default_value = MEMORY_DEFAULT, value_parser = names::size)]
    pub memory: u64,
    /// Seconds to wait for another command that has the pool open
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    pub wait: u32,
}

impl From<&Access> for server::pool_dir::Access {
    fn from(access: &Access) -> Self {
        Self { memory: access.memory, wait: access.wait }
    }
}

impl Pacing {
    /// Returns the pace for the jobs of a pool.
    pub const fn of_job(&self) -> JobPace {
        JobPace { rate: self.rate, restart: self.restart }
    }
}

/// Pace of work that covers a whole pool, where it starts, and its report.
#[derive(Debug, Clone, Args)]
pub struct Pacing {
    /// Maximum bytes per second, or 'max' [default: a tenth of the time while others use the pool]
    #[arg(long, value_name = "SIZE|max", value_parser = names::rate)]
    pub rate: Option<u64>,
    /// Start from the beginning
    #[arg(long)]
    pub restart: bool,
    /// Only report the progress of the last run
    #[arg(long, conflicts_with_all = ["restart", "rate"])]
    pub report: bool,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("shale {} ", command.get_name());
            assert!(help.contains("Examples:") && help.contains(&example), "{} has no examples", command.get_name());
            // An example that is broken into two lines cannot be copied.
            let examples = help.lines().skip(1).take_while(|line| line.starts_with("  "));
            let too_long = examples.into_iter().find(|line| line.chars().count() > 99);
            assert_eq!(too_long, None, "{}: longer than a line of help", command.get_name());
        }
    }

    #[test]
    fn every_command_is_of_the_catalogue_or_local() {
        let command = Cli::command();
        let all: BTreeSet<_> = command.get_subcommands().map(|c| c.get_name()).collect();
        let of_catalogue: BTreeSet<_> =
            operations::CATALOGUE.iter().flat_map(|about| about.commands).copied().collect();
        let local: BTreeSet<_> = operations::LOCAL.iter().map(|(name, _)| *name).collect();
        assert_eq!(of_catalogue.intersection(&local).collect::<Vec<_>>(), [&""; 0], "both");
        assert_eq!(of_catalogue.union(&local).copied().collect::<BTreeSet<_>>(), all);
    }

    /// A longer text was broken without regard to the columns.
    #[test]
    fn properties_stand_in_columns() {
        let mut set = Cli::command();
        let set = set.find_subcommand_mut("set").unwrap();
        let help = set.render_long_help().to_string();
        let (_, properties) = help.split_once("from now on:\n").unwrap();
        assert!(properties.lines().count() > 20, "{properties}");
        let is_in_place =
            |line: &&str| line.starts_with("  ") && (!line.starts_with("   ") || line.starts_with(&" ".repeat(16)));
        assert_eq!(properties.lines().find(|line| !is_in_place(line)), None);
        for key in ::policy::KEYS {
            assert!(
                properties.contains(&format!("\n  {:<12}  ", key.name)) || properties.starts_with("  compression"),
                "{}",
                key.name
            );
        }
    }

    #[test]
    fn commands_of_the_manual_parse() {
        for line in [
            "shale init p --data /dev/sdx --capacity 20G --extent 1M",
            "shale create p v --size 10G -o compression=zstd-3 -o unit=32K",
            "shale set p v compression=lz4",
            "shale set p unit=64K min-saving=",
            "shale get p v compression",
            "shale get p",
            "shale list p --json",
            "shale --json status p",
            "shale serve p --nbd unix:/run/x --nbd 127.0.0.1:10809 --mount /mnt --volume a --volume b --memory 1G",
            "shale serve p --shares /srv/shares --exports /etc/shale/exports",
            "shale serve --config /etc/shale/tank.toml --detach --log l",
            "shale config check /etc/shale/tank.toml --json",
            "shale config example",
            "shale reload p",
            "shale reload --config /etc/shale/tank.toml --json",
            "shale exports p --check --json",
            "shale import p v -",
            "shale export p v - --force",
            "shale estimate /home disk.img --sample 64M",
            "shale estimate p v -o mode=archive --codecs lz4,zstd-3 --seed 7 --json",
            "shale resize p v 20G",
            "shale destroy p v --force",
            "shale destroy -r p v",
            "shale destroy p v@s",
            "shale destroy p v@a,b w@a%b x#y",
            "shale destroy p -n v",
            "shale destroy p --dry-run v",
            "shale snapshot p v@s w@s",
            "shale inherit p unit v",
            "shale inherit p recordsize",
            "shale get p v -H -o value unit",
            "shale list p -t all",
            "shale df p",
            "shale blob cat file:///b/k --range 0-1",
            "shale snapshot p v@s",
            "shale clone p v@s w -o unit=8K",
            "shale clone s3://b/k@3 p w --size 20G",
            "shale push p v@s s3://b/k --to s3://b/l --replace -m why -o mode=archive",
            "shale trace p v --reads f --idle 3",
            "shale rollback -r p v@s --force",
            "shale rename p v@s v@t",
            "shale promote p w",
            "shale bookmark p v@s s",
            "shale bookmarks p v --json",
            "shale destroy p v#s",
            "shale send p v@s --from #r -o file",
            "shale hold p v@s backup",
            "shale release p v@s backup",
            "shale holds p",
            "shale passwd p anna --role operate",
            "shale passwd p --list",
            "shale passwd p anna --remove",
            "shale token create p --name prometheus --role read --expires 90d",
            "shale token list p --json",
            "shale token revoke p prometheus",
            "shale history p -n 10 --json",
            "shale serve p --http :8080 --http unix:/run/x --http-tls on --http-name nas --metrics token",
            "shale serve p --http :8080 --http-cert c.pem --http-key k.pem",
            "shale serve p --nbd :1 --nbd-certificates d --nbd-tls on --nbd-client hv1=vm --nbd-client a=b=*",
            "shale serve p --nbd-tls off",
            "shale serve p --ublk vm --ublk f/db@s,depth=1024,queues=64",
            "shale holds p v@s --json",
            "shale list -r p",
            "shale list p v@s -H -o name,stored,compression",
            "shale status p --acknowledge",
            "shale diff p v@s v@t --json",
            "shale diff p v@s",
            "shale send p v@s --from r -o file --force",
            "shale send p v@s --from w@r",
            "shale send p v@s --thin -o file",
            "shale send p --resume shale1-00",
            "shale receive p v -i file -o unit=8K --force",
            "shale send p v@s -I r",
            "shale send p -R vm*@s --all-from #b --resume shale1-00",
            "shale receive p -R --prefix x-",
            "shale check p --repair",
            "shale shrink p 10G",
            "shale salvage p --into q --capacity 10G -o mode=archive --json",
            "shale clean p --all",
            "shale clean p --sort --rate 50M --restart",
            "shale clean p --sort --report --json",
            "shale scrub p --rate 50M --restart",
            "shale scrub p --rate max",
            "shale scrub p --report",
            "shale scrub p --background",
            "shale clean p --sort --background",
            "shale calibrate p --background",
            "shale recompress p v --mode archive --rate 20M",
            "shale recompress p v --background",
            "shale iostat p",
            "shale iostat p v --every 5 --count 3 --json",
            "shale iostat p v@s --histogram",
            "shale stats p",
            "shale stats p codec.stored --by codec --only object=vm --last 1d --csv",
            "shale stats p cpu --by who --from 2026-11-25T08:00 --to 2026-11-25T12:00 --step 1m --json",
            "shale stats p --marks --last 1w",
            "shale top p --once --every 5 --json",
            "shale jobs p",
            "shale jobs p 3 --json",
            "shale jobs p 3 --pause",
            "shale jobs p 3 --resume",
            "shale jobs p 3 --cancel",
            "shale recompress p v --report --json",
            "shale explain p v --region 1G --json",
            "shale explain p home meier/notes.txt --json",
            "shale usage p home meier --json",
            "shale calibrate p --json",
            "shale trace p --limit 10 --idle 2 --format jsonl",
            "shale completions bash",
            "shale man out",
        ] {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
        for line in [
            "shale create p ../v --size 1G",
            "shale resize p v 1X",
            "shale frobnicate p",
            "shale snapshot p v",
            "shale iostat p --count 2",
            "shale iostat p --every 0",
            "shale stats p --csv",
            "shale stats p ops --last 1h --from 0",
            "shale stats p ops --marks",
            "shale serve p --analytics 1M",
            "shale serve",
            "shale serve p --config f",
            "shale serve --config f --memory 1G",
            "shale serve p --ublk vm,queues=65",
            "shale serve p --ublk vm,depth=0",
            "shale serve p --ublk vm,size=1",
            "shale serve p --ublk vm,",
            "shale serve p --ublk @s",
            "shale reload",
            "shale reload p --config f",
            "shale jobs p --pause",
            "shale jobs p 3 --pause --cancel",
            "shale recompress p v --report --background",
            "shale send p",
            "shale send p v",
            "shale receive p v@s",
            "shale receive p",
            "shale receive p v -R",
            "shale send p v@s --from a --all-from b",
            "shale resize p v@s 1G",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
