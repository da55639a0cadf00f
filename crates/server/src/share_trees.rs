//! The trees of shares on the engine: opens them for reading or for changes. Owns the time that an
//! opening waits for other users of a tree.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use copy::trees::ShareSink;
use engine::{Files, Pool, Properties, TreeClaim, TreeUse, Volume};
use fe_share::{Mount, Snapshots, Visibility, XattrSupport};
use policy::SnapDir;
use share::{Failure, Options, Scratch, Time, Tree};
use surface::{BlockDevice, DeviceId, Error, ErrorKind, NamedClient, ObjectSpace, Result};

use crate::devices::{Devices, is_in};
use crate::service::Service;
use crate::share_files::Opened;

/// Memory for the namespace of a share that a command reads.
const CACHE_BYTES_BRIEF: usize = 16 << 20;
/// Memory for the namespace of a share that a command fills.
const CACHE_BYTES_IMPORT: usize = 64 << 20;
/// Memory for the namespace of a snapshot; each mount may have several open.
const CACHE_BYTES_MOMENT: usize = 4 << 20;
/// Time that a command waits for other users of a tree.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a mount, which is retried a little later.
pub(crate) const MOUNT_PATIENCE: Duration = Duration::from_secs(1);

/// Fails for a share, which cannot be read or written as a volume.
///
/// # Errors
/// [`ErrorKind::Unsupported`].
pub fn refuse(volume: &Volume) -> Result<()> {
    if !volume.is_share() {
        return Ok(());
    }
    let text = format!("'{}' is a share, not a volume: mount it with shale serve --shares DIR", volume.name());
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Returns the wall clock's time for a tree.
pub(crate) fn now() -> Time {
    let (seconds, nanoseconds) = env::wall_time();
    Time { seconds, nanoseconds }
}

/// Returns whether a share is one of those named, or in one of them.
pub(crate) fn is_meant(share: &str, names: &[&str]) -> bool {
    names.iter().any(|name| share == *name || is_in(share, name))
}

/// Claims the trees of a share and of those in it, or of those in a folder: nothing has them open
/// while they are rolled back, renamed or destroyed.
///
/// # Errors
/// `InUse`.
pub(crate) fn claim_all(pool: &Pool, names: &[&str]) -> Result<Vec<TreeClaim>> {
    let meant = pool.volumes().into_iter().filter(|volume| volume.is_share() && is_meant(&volume.name, names));
    meant.map(|volume| claimed(pool, volume.id, &volume.name)).collect()
}

/// Claims the tree of a share alone; `None` for a volume.
///
/// # Errors
/// `InUse`, `NotFound`.
pub(crate) fn claim(pool: &Pool, name: &str) -> Result<Option<TreeClaim>> {
    let volume = pool.volume(name)?;
    volume.is_share().then(|| claimed(pool, volume.id(), name)).transpose()
}

fn claimed(pool: &Pool, share: DeviceId, name: &str) -> Result<TreeClaim> {
    let claim = pool.claim_tree(share, TreeUse::Change, PATIENCE);
    claim.map_err(|error| error.context(format_args!("share '{name}'")))
}

/// Returns the options for a share's tree that a command reads.
pub fn brief_options() -> Options {
    Options { now, cache_bytes: CACHE_BYTES_BRIEF }
}

/// Message for a tree that cannot be opened.
pub(crate) const NOT_OPENED: &str = "its tree cannot be opened ('shale check POOL' reports the damage)";

/// Error for a tree that cannot be opened to be changed, which takes some space.
pub(crate) fn not_opened(name: &str, failure: Failure) -> Error {
    let doing = if failure.errno() == libc::ENOSPC { "there is no space to open its tree" } else { NOT_OPENED };
    error_of(name, doing, failure)
}

/// Converts an error of a tree to one of the pool.
pub fn error_of(name: &str, doing: &str, failure: Failure) -> Error {
    let source = io::Error::from_raw_os_error(failure.errno());
    let kind = if failure.errno() == libc::ENOSPC { ErrorKind::Full } else { ErrorKind::Io };
    Error::with_source(kind, format!("share '{name}': {doing}"), source)
}

/// Properties that are read when a share is mounted: whether reads update access times, and which
/// extended attributes files have.
pub(crate) const OF_MOUNTS: [&str; 3] = ["atime", policy::XATTR, policy::ACL];

/// Returns whether a property of a share has a value.
fn is_set_to(pool: &Pool, share: &str, key: &str, value: &str) -> Result<bool> {
    let properties = pool.properties(Some(share))?;
    Ok(properties.iter().any(|property| property.key == key && property.value == value))
}

/// Returns whether reads update access times in a share that is about to be mounted.
pub(crate) fn has_access_times(pool: &Pool, share: &str) -> Result<bool> {
    is_set_to(pool, share, "atime", "relatime")
}

/// Which extended attributes a share that is about to be mounted has.
pub(crate) fn xattrs(pool: &Pool, share: &str) -> Result<XattrSupport> {
    Ok(if is_set_to(pool, share, policy::XATTR, "off")? {
        XattrSupport::None
    } else if is_set_to(pool, share, policy::ACL, "off")? {
        XattrSupport::WithoutAcls
    } else {
        XattrSupport::All
    })
}

/// Which extended attributes files of a share do not have, by its properties, and the consequences;
/// `None`: they have all.
pub(crate) fn absent_xattrs(pool: &Pool, share: &str) -> Result<Option<String>> {
    let text = match xattrs(pool, share)? {
        XattrSupport::All => return Ok(None),
        XattrSupport::WithoutAcls => "no ACLs (acl=off): a file that has one already is open to its owner alone",
        XattrSupport::None => {
            "none (xattr=off): no capabilities, no ACLs, no user.shale.* settings, and SMB does not serve the share; a file \
             that has an ACL already is open to its owner alone"
        }
    };
    Ok(Some(text.to_owned()))
}

/// Reserves the directories at a tree's root for the shares in it: nothing else can have their
/// names, mounted or not. Frees the name of its snapshots.
pub(crate) fn keep_for_inner(pool: &Pool, name: &str, tree: &Tree) -> Result<()> {
    let prefix = format!("{name}/");
    let shares = pool.volumes().into_iter().filter(|volume| volume.is_share());
    let inner = shares.filter_map(|share| share.name.strip_prefix(&prefix).map(|inner| inner.as_bytes().to_vec()));
    let kept = tree.keep_for_mounts(inner.filter(|inner| !inner.contains(&b'/')));
    let kept_name = String::from_utf8_lossy(share::KEPT_NAME);
    match tree.free_kept_name() {
        Ok(None) => {}
        Ok(Some(new)) => {
            let new = String::from_utf8_lossy(&new);
            log::warn!("share '{name}': {kept_name} at its root, which its snapshots would hide, was renamed to {new}");
        }
        // In a full or damaged share: the mount is useful without it.
        Err(failure) => {
            let error = error_of(name, "cannot find out or change whether its snapshots hide a file", failure);
            log::warn!("{error}: {kept_name} at its root");
        }
    }
    kept.map_err(|failure| error_of(name, "its directories for inner shares cannot be looked up", failure))
}

/// Creates a share with an empty tree, both or neither, and returns the share's number.
///
/// # Errors
/// Those of the pool.
pub fn create(pool: &Pool, name: &str, properties: &Properties) -> Result<DeviceId> {
    let tree = Tree::empty(secret()?, brief_options());
    let content = tree.map_err(|failure| error_of(name, "its tree cannot be made", failure))?;
    pool.create_share_with(name, properties, &content)
}

/// Returns a random number.
fn secret() -> Result<u64> {
    let mut secret = [0; 8];
    env::Entropy::fill(&env::SystemEntropy, &mut secret)
        .map_err(|error| Error::from_io("reading random bytes for a share", error))?;
    Ok(u64::from_le_bytes(secret))
}

/// Makes a mounted share refuse or accept changes, according to its current properties.
pub(crate) fn follow(pool: &Pool, share: u64, mount: &Mount) {
    if let Ok(volume) = pool.volume_of(DeviceId(share)) {
        mount.set_read_only(volume.is_set_readonly());
    }
}

/// Opens the tree of a share of a pool that this process has open alone.
///
/// # Errors
/// Those of the pool.
pub fn open_tree(service: &Service, name: &str) -> Result<Arc<Tree>> {
    let volume = service.pool().volume(name)?;
    check_writable(&volume)?;
    open_writable(service, volume).map(|opened| opened.tree)
}

/// Fails for a share with `readonly=on`. Its mount refuses changes itself; everything else that
/// changes files asks here, before each change: the property may be set meanwhile.
///
/// # Errors
/// `ReadOnly`.
pub(crate) fn check_writable(share: &Volume) -> Result<()> {
    if !share.is_set_readonly() {
        return Ok(());
    }
    let name = share.name();
    let text = format!("share '{name}' is readonly: `shale set POOL {name} readonly=off` allows changes");
    Err(Error::new(ErrorKind::ReadOnly, text))
}

/// The same, with the storage of its files.
///
/// # Errors
/// As [`open_tree`].
pub(crate) fn open_writable(service: &Service, volume: Arc<Volume>) -> Result<Opened> {
    let (pool, name) = (service.pool(), volume.name());
    service.journals().bring_back_of(pool, volume.id())?;
    let (tree, files) = open(volume.clone(), volume, CACHE_BYTES_IMPORT, PATIENCE)?;
    keep_for_inner(pool, &name, &tree)?;
    Ok(Opened::new(Arc::new(tree), files))
}

/// Returns a sink for a tree that no mount uses. It refuses the changes and the extended attributes
/// that a mount would refuse.
///
/// # Errors
/// Those of the pool.
pub fn sink(service: &Service, name: &str, tree: Arc<Tree>, overwrite: bool, sets_root: bool) -> Result<ShareSink> {
    let (support, share) = (xattrs(service.pool(), name)?, service.pool().volume(name)?);
    let sink = ShareSink::new(tree, overwrite, sets_root).with_xattrs(move |name| support.has(name));
    Ok(sink.while_writable(move || check_writable(&share)))
}

/// Opens the tree of a share for exclusive changes by this caller; creates it if missing. `device`:
/// see [`Files::new`].
pub(crate) fn open(
    volume: Arc<Volume>,
    device: Arc<dyn BlockDevice>,
    cache_bytes: usize,
    patience: Duration,
) -> Result<(Tree, Arc<Files>)> {
    let name = volume.name();
    let space = Arc::new(Files::claimed(volume, device, TreeUse::Change, patience)?);
    let options = Options { now, cache_bytes };
    let tree = match Tree::open_to_serve(space.clone(), options) {
        Err(failure) if failure.errno() == libc::ENOENT => Tree::create(space.clone(), secret()?, options),
        opened => opened,
    }
    .map_err(|failure| not_opened(&name, failure))?;
    tree.follow(space.clone());
    Ok((tree, space))
}

/// A share at one moment.
pub struct Moment {
    /// Its tree, with changes that stay in memory.
    pub tree: Tree,
    /// Storage of its files.
    pub files: Arc<Files>,
    /// The changes in memory.
    pub scratch: Arc<Scratch>,
}

/// Opens a snapshot of a share, or a share without a writer.
///
/// # Errors
/// [`ErrorKind::NotFound`] if it had no tree yet; [`ErrorKind::InUse`] if it has a writer; when it
/// cannot be read.
pub fn open_moment(volume: Arc<Volume>, device: Arc<dyn BlockDevice>) -> Result<Moment> {
    moment_of(volume, device, NOT_OPENED)
}

/// The same for the check itself, whose errors must not advise running a check.
///
/// # Errors
/// As [`open_moment`].
pub(crate) fn open_to_check(volume: Arc<Volume>) -> Result<Moment> {
    moment_of(volume.clone(), volume, "its tree cannot be opened")
}

fn moment_of(volume: Arc<Volume>, device: Arc<dyn BlockDevice>, not_opened: &str) -> Result<Moment> {
    let name = volume.name();
    let files = Arc::new(Files::claimed(volume, device, TreeUse::Look, PATIENCE)?);
    let space: Arc<dyn ObjectSpace> = files.clone();
    let scratch = Arc::new(Scratch::over(space));
    let options = Options { now, cache_bytes: CACHE_BYTES_MOMENT };
    match Tree::open_to_serve(scratch.clone(), options) {
        Ok(tree) => {
            tree.follow(files.clone());
            Ok(Moment { tree, files, scratch })
        }
        Err(failure) if failure.errno() == libc::ENOENT => {
            let text = format!("share '{name}' had no tree yet at that moment");
            Err(Error::new(ErrorKind::NotFound, text))
        }
        Err(failure) => Err(error_of(&name, not_opened, failure)),
    }
}

/// Snapshots of a mounted share.
pub(crate) struct ShareMoments {
    pub(crate) pool: Pool,
    pub(crate) devices: Devices,
    pub(crate) share: DeviceId,
}

impl Snapshots for ShareMoments {
    fn visibility(&self) -> Visibility {
        match self.pool.volume_of(self.share).map(|share| share.snapdir()) {
            Ok(SnapDir::Visible) => Visibility::Listed,
            Ok(SnapDir::Hidden) => Visibility::Hidden,
            Ok(SnapDir::Off) => Visibility::Off,
            Ok(SnapDir::Root) | Err(_) => Visibility::Root,
        }
    }

    fn list(&self) -> Vec<fe_share::ShareSnapshot> {
        // By its current name: a share that is renamed is mounted again.
        let found = self.pool.volume_of(self.share).and_then(|share| self.pool.snapshots(Some(&share.name())));
        let moment = |status: engine::SnapshotStatus| fe_share::ShareSnapshot {
            id: status.id.0,
            name: status.name,
            taken_unix_s: status.created_unix_s,
        };
        found.unwrap_or_default().into_iter().map(moment).collect()
    }

    fn open(&self, id: u64) -> Result<Arc<Tree>> {
        let volume = self.pool.volume_of(DeviceId(id))?;
        let client = NamedClient::shared("the mount of its share (.shale/snapshots)");
        let device = self.devices.open_volume(volume.clone(), &client)?;
        open_moment(volume, device).map(|moment| Arc::new(moment.tree))
    }
}
