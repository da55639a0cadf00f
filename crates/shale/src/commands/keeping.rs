//! Mounts that outlive their server: the keeper of a pool, from the server's side.
//!
//! A keeper is a process that holds the mounts of a server while there is none. It is this program
//! with another command, is reached through a socket in the pool's directory, and ends when it
//! holds nothing any more.

use std::process::{Command, Stdio};
use std::sync::Arc;

use fe_fuse::Keeper;
use surface::{Error, Result};

use crate::cli::Switch;
use crate::output::Output;
use operations::Outcome;
use server::pool_dir::{PoolDir, short_socket_path};

/// The command that is the keeper; servers start it, and no user types it.
pub const COMMAND: &str = "keep-mounts";

/// What a server needs to know of its keeper.
pub struct Keeping {
    keeper: Option<Arc<Keeper>>,
}

impl Keeping {
    /// Finds the keeper that holds mounts of a killed server, or starts one. `keeps_acknowledged`:
    /// acknowledged data survives the server's death; else the mounts must not, for the kernel
    /// would go on with lost data.
    pub fn begin(dir: &PoolDir, wanted: Switch, has_mounts: bool, keeps_acknowledged: bool, output: &Output) -> Self {
        let tried = Self::try_begin(dir, wanted == Switch::On && has_mounts && keeps_acknowledged);
        tried.unwrap_or_else(|error| {
            output.warn(&format!("{error}; mounts end with this server"));
            Self { keeper: None }
        })
    }

    fn try_begin(dir: &PoolDir, keeps: bool) -> Result<Self> {
        let path = dir.keeper_path();
        let failed = |error| Error::from_io(format!("the keeper of mounts at {}", path.display()), error);
        let short = short_socket_path(&path).map_err(failed)?;
        let found = Keeper::connect(short.path()).map_err(failed)?;
        if keeps {
            let keeper = match found {
                Some(keeper) => keeper,
                None => {
                    // A directory of its own would keep that from being unmounted; its messages
                    // have no reader.
                    let mut program = Command::new("/proc/self/exe");
                    program.arg(COMMAND).current_dir("/").stderr(Stdio::null());
                    Keeper::start(short.path(), &mut program).map_err(failed)?
                }
            };
            return Ok(Self { keeper: Some(Arc::new(keeper)) });
        }
        // Mounts that nothing is going to serve again.
        if let Some(keeper) = found {
            for entry in keeper.entries().map_err(failed)? {
                keeper.drop_entry(&entry.name).map_err(failed)?;
            }
        }
        Ok(Self { keeper: None })
    }

    /// Ends the mounts of an earlier server that this one has not taken over. All that this server
    /// mounts must be mounted.
    pub fn end_the_rest(&self, output: &Output) {
        if let Some(Err(error)) = self.keeper.as_deref().map(Keeper::drop_unclaimed) {
            output.warn(&format!("mounts of an earlier server may wait until `umount -f`: {error}"));
        }
    }

    /// What holds mounts, if anything does.
    pub fn keeper(&self) -> Option<Arc<Keeper>> {
        self.keeper.clone()
    }
}

/// The keeper itself: its standard input is the socket that servers connect to.
///
/// # Errors
/// When that fails.
pub fn run() -> Outcome {
    let listener = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
    let kept = listener.and_then(fe_fuse::run_keeper);
    Ok(kept.map_err(|error| Error::from_io("the keeper of mounts", error))?)
}
