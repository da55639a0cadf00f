//! Imports of trees into mounted shares. The names go to the tree directly, under the same locks as
//! the requests of the mount, and the journal of names has them before they are acknowledged.
//!
//! The kernel caches names without limit, those that are absent as well. A name that it may have
//! cached must be looked up through the mount before programs find its node. A thread of this
//! process must not wait for that mount: a killed server could then not end before the next one
//! answers. So a separate process looks names up. It also keeps the share mounted, as a program with
//! an open directory does.

use std::cell::RefCell;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use copy::trees::{MountPlace, Named, Others, ShareSink};
use fe_share::DirectChanges;
use operations::{Caller, ImportWish, Who};
use surface::{Error, ErrorKind, Result};

use crate::service::Service;
use crate::share_files::Opened;

/// The command of that process; servers start it, users never do.
pub const LOOK_UP_COMMAND: &str = "look-up-names";
/// Ends each path that the process reads, which cannot contain it.
const PATH_END: u8 = 0;
/// What the process writes when it has opened the share.
const READY: &[u8] = b"+";

/// A mounted share as another user of its tree gets it.
pub(crate) struct DirectShare {
    pub(crate) opened: Opened,
    pub(crate) changes: DirectChanges,
    /// Where it is mounted.
    pub(crate) dir: PathBuf,
}

/// A mounted share that a tree is about to be imported into.
pub(crate) struct TreeImport {
    /// Its tree stays open.
    _opened: Opened,
    changes: Arc<DirectChanges>,
    sink: ShareSink,
}

impl Service {
    /// Opens a mounted share for an import. Only root may: the command decides about owners and
    /// about devices.
    ///
    /// # Errors
    /// `Denied`, `ReadOnly`; `InUse` if the share is not mounted.
    pub(crate) fn tree_import(&self, caller: &Caller, wish: &ImportWish) -> Result<TreeImport> {
        let share = self.share_meant(&wish.object)?;
        let name = share.name();
        if !matches!(caller.who, Who::Process { uid: 0, .. }) {
            let text = format!("only root can import into share '{name}', which is served: import as root");
            return Err(Error::new(ErrorKind::Denied, text));
        }
        if name.contains('@') {
            return Err(Error::new(ErrorKind::ReadOnly, format!("'{name}' is a snapshot, which cannot be changed")));
        }
        if share.is_set_readonly() {
            let text =
                format!("share '{name}' has readonly=on: allow changes with 'shale set POOL {name} readonly=off'");
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        let mounted = self.mounted_shares().and_then(|shares| shares.direct(share.id()));
        let Some(DirectShare { opened, changes, dir }) = mounted else {
            let text = format!("share '{name}' is not mounted: start the server with --shares DIR, and try again");
            return Err(Error::new(ErrorKind::InUse, text));
        };
        let (changes, look_ups) = (Arc::new(changes), RefCell::new(LookUps::start(&dir)?));
        let beside = Beside { changes: changes.clone(), touched: RefCell::default(), look_ups };
        let sink = ShareSink::among(Box::new(beside), opened.tree.clone(), wish.overwrite, wish.sets_root);
        Ok(TreeImport { _opened: opened, changes, sink })
    }
}

impl TreeImport {
    pub(crate) fn sink(&mut self) -> &mut ShareSink {
        &mut self.sink
    }

    /// Returns whether the share is not mounted any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.changes.have_ended()
    }
}

/// The programs that use the mount.
struct Beside {
    changes: Arc<DirectChanges>,
    /// Directories with new names.
    touched: RefCell<Vec<u64>>,
    look_ups: RefCell<LookUps>,
}

impl Others for Beside {
    fn begin_step(&self) -> share::Result<()> {
        self.changes.begin_step()
    }

    fn end_step(&self) {
        self.changes.end_step();
    }

    fn refusal_of_xattr(&self, name: &[u8]) -> Option<i32> {
        self.changes.refusal_of_xattr(name)
    }

    fn named(&self, Named { directory, is_in_new, name, path, replaced }: Named<'_>) {
        let mut touched = self.touched.borrow_mut();
        if touched.last() != Some(&directory) {
            touched.push(directory);
        }
        if self.changes.named((directory, is_in_new), name, replaced) {
            self.look_ups.borrow_mut().add(path);
        }
    }

    fn changed(&self, node: u64) {
        self.changes.changed(node);
    }

    fn lost_name(&self, node: u64) -> share::Result<()> {
        self.changes.lost_name(node)
    }

    fn settle(&self) -> Result<()> {
        // Once more: the kernel may have got the listing of an earlier moment after its
        // notification.
        let mut touched = self.touched.take();
        touched.sort_unstable();
        touched.dedup();
        for directory in touched {
            self.changes.drop_listing(directory);
        }
        self.look_ups.borrow_mut().finish()
    }
}

/// The process that looks names up.
struct LookUps {
    child: Child,
    paths: Option<ChildStdin>,
    fault: Option<io::Error>,
}

fn failed(error: io::Error) -> Error {
    Error::from_io("the process that looks imported names up", error)
}

impl LookUps {
    fn start(dir: &Path) -> Result<Self> {
        let mut program = Command::new("/proc/self/exe");
        program.arg(LOOK_UP_COMMAND).arg("--").arg(dir);
        program.current_dir("/").process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = host::with_usual_signals(&mut program).spawn().map_err(failed)?;
        let (paths, mut said) = (child.stdin.take(), Vec::new());
        let read = child.stdout.take().map_or(Ok(0), |stdout| stdout.take(READY.len() as u64).read_to_end(&mut said));
        let mut look_ups = Self { child, paths, fault: None };
        read.map_err(failed)?;
        if said != READY {
            look_ups.finish()?;
        }
        Ok(look_ups)
    }

    fn add(&mut self, path: &[u8]) {
        if let Some(paths) = &mut self.paths
            && let Err(error) = paths.write_all(&[path, &[PATH_END]].concat())
        {
            self.fault = Some(error);
            self.paths = None;
        }
    }

    /// Waits until all names are looked up.
    fn finish(&mut self) -> Result<()> {
        drop(self.paths.take());
        let status = self.child.wait().map_err(failed)?;
        match self.fault.take() {
            None if status.success() => Ok(()),
            None => Err(failed(io::Error::other(format!("it ended: {status}")))),
            Some(error) => Err(failed(error)),
        }
    }
}

impl Drop for LookUps {
    fn drop(&mut self) {
        drop(self.paths.take());
        // After a failed import, too, programs see the names that are there.
        if let Err(error) = self.child.wait() {
            log::warn!("{}", failed(error));
        }
    }
}

/// Main function of the process: reads paths in the share at `dir` from standard input.
///
/// # Errors
/// When no share is mounted there, and those of the input.
pub fn look_up_from_stdin(dir: &Path) -> Result<()> {
    let place = MountPlace::of_share(dir)?;
    let mut stdout = io::stdout();
    stdout.write_all(READY).and_then(|()| stdout.flush()).map_err(failed)?;
    let mut paths = io::stdin().lock();
    let mut path = Vec::new();
    while paths.read_until(PATH_END, &mut path).map_err(failed)? > 0 {
        // The server was killed while it wrote one that does not end.
        if path.pop() == Some(PATH_END) {
            place.look_up_again(&path);
        }
        path.clear();
    }
    Ok(())
}
