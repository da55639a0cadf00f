//! Mounts that outlive their server: the mount keeper of a pool, from the server's side.
//!
//! A keeper is a process that holds the mounts of a server while there is none. It runs this
//! program with another command, listens on a socket in the pool's directory, and ends when it
//! holds no mounts any more, or when no server has connected within `--wait-for-server`.
//!
//! A server connects before it opens the pool: from then on the mounts wait for it without limit.
//! Mounts that this server does not take over end when it is ready, so that a failed start leaves
//! them to the next one. Only a server that mounts and cannot use a keeper ends them sooner, right
//! before it mounts.

use std::process::{Command, Stdio};
use std::sync::Arc;

use fe_fuse::Keeper;
use surface::{Error, Result};

use crate::cli::{ServeSettings, Switch};
use crate::output::Output;
use operations::Outcome;
use server::pool_dir::{PoolDir, short_socket_path};

/// The command that runs the keeper; servers start it, users never do.
pub const COMMAND: &str = "keep-mounts";

/// A server's connection to its keeper.
#[derive(Default)]
pub struct Keeping {
    /// Holds the mounts of this server, if possible.
    keeper: Option<Arc<Keeper>>,
    /// Holds mounts of an earlier server that this one does not take over.
    unwanted: Option<Keeper>,
}

impl Keeping {
    /// Connects to the keeper with mounts of an earlier server, if there is one: they now wait for
    /// this server without limit.
    pub fn find(dir: &PoolDir, output: &Output) -> Option<Keeper> {
        let path = dir.keeper_path();
        let found = short_socket_path(&path).and_then(|short| Keeper::connect(short.path()));
        found.unwrap_or_else(|error| {
            output.warn(&format!("the keeper of mounts at {}: {error}; mounts end with this server", path.display()));
            None
        })
    }

    /// Uses the keeper that was found, or starts one. `keeps_acknowledged`: acknowledged data
    /// survives the server's death; otherwise the mounts must not, because the kernel would
    /// continue with lost data.
    pub fn begin(
        dir: &PoolDir,
        found: Option<Keeper>,
        args: &ServeSettings,
        keeps_acknowledged: bool,
        output: &Output,
    ) -> Self {
        let has_mounts = args.mount.is_some() || args.shares.is_some();
        if args.keep_mounts == Switch::Off || !has_mounts || !keeps_acknowledged {
            return Self { keeper: None, unwanted: found };
        }
        let keeper = found.map_or_else(|| start(dir), Ok).and_then(|keeper| {
            keeper.set_wait(args.wait_for_server.0).map_err(|error| Error::from_io("the keeper of mounts", error))?;
            Ok(keeper)
        });
        match keeper {
            Ok(keeper) => Self { keeper: Some(Arc::new(keeper)), unwanted: None },
            Err(error) => {
                output.warn(&format!("{error}; mounts end with this server"));
                Self::default()
            }
        }
    }

    /// Starts a keeper for later mounts, if one is requested and there is none yet.
    pub fn follow(&mut self, dir: &PoolDir, args: &ServeSettings, keeps_acknowledged: bool, output: &Output) {
        if self.keeper.is_none() {
            *self = Self::begin(dir, self.unwanted.take(), args, keeps_acknowledged, output);
        }
    }

    /// Sets the time that mounts wait for the next server.
    pub fn set_wait(&self, args: &ServeSettings, output: &Output) {
        if let Some(Err(error)) = self.keeper.as_deref().map(|keeper| keeper.set_wait(args.wait_for_server.0)) {
            output.warn(&format!("the keeper of mounts: {error}"));
        }
    }

    /// Ends the mounts of an earlier server before the first mount, if this one cannot take over
    /// any, and mounts at the same directories.
    pub fn clear_the_way(&self, mounts: bool, output: &Output) {
        if mounts {
            self.end_unwanted(output);
        }
    }

    /// Ends the mounts of an earlier server that this one has not taken over. All mounts of this
    /// server must be complete.
    pub fn end_the_rest(&self, output: &Output) {
        self.end_unwanted(output);
        if let Some(Err(error)) = self.keeper.as_deref().map(Keeper::drop_unclaimed) {
            output.warn(&format!("mounts of an earlier server may wait until `umount -f`: {error}"));
        }
    }

    fn end_unwanted(&self, output: &Output) {
        if let Some(Err(error)) = self.unwanted.as_ref().map(Keeper::drop_unclaimed) {
            output.warn(&format!("mounts of an earlier server may wait until `umount -f`: {error}"));
        }
    }

    /// Returns the process that holds the mounts, if there is one.
    pub fn keeper(&self) -> Option<Arc<Keeper>> {
        self.keeper.clone()
    }
}

/// Starts a keeper.
fn start(dir: &PoolDir) -> Result<Keeper> {
    let path = dir.keeper_path();
    // A working directory could not be unmounted; its messages have no reader.
    let mut program = Command::new("/proc/self/exe");
    program.arg(COMMAND).current_dir("/").stderr(Stdio::null());
    let started = short_socket_path(&path).and_then(|short| Keeper::start(short.path(), &mut program));
    started.map_err(|error| Error::from_io(format!("the keeper of mounts at {}", path.display()), error))
}

/// Main function of the keeper: its standard input is the socket that servers connect to.
///
/// # Errors
/// When that fails.
pub fn run() -> Outcome {
    let listener = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
    let kept = listener.and_then(fe_fuse::run_keeper);
    Ok(kept.map_err(|error| Error::from_io("the keeper of mounts", error))?)
}
