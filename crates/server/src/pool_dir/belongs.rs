//! Protects the parts of a pool, open or not, from being overwritten: recognises the files of its
//! directory by name, and its data, wherever that lies, by the superblock.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, SuperblockError};
use surface::{Error, ErrorKind, Result};

use super::PoolDir;

/// Other entries of a pool's directory, in addition to `map` and the remains of `init` and
/// `salvage`.
const NAMES: [&str; 8] =
    ["pool.json", "pool.json.new", "lock", "control.sock", "serve.log", "map", "reserve", "salvage.tmp"];

/// Refuses to overwrite `path` if it belongs to a pool.
///
/// # Errors
/// `InUse`, with its role in the pool.
pub fn refuse_part_of_pool(path: &Path) -> Result<()> {
    let in_use = |what: String| Err(Error::new(ErrorKind::InUse, format!("{} {what}", path.display())));
    // A missing path is reported by the caller that opens it.
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    for (root, name) in real.ancestors().skip(1).zip(real.ancestors().filter_map(Path::file_name)) {
        if NAMES.iter().any(|known| name == *known) && holds_pool(&PoolDir::new(root)) {
            return in_use(format!("belongs to the pool in {}; choose another file", root.display()));
        }
    }
    if carries_superblock(&real) {
        return in_use(
            "holds the data of a Shale pool; choose another file (if that pool is gone for good: remove the file, \
             or overwrite the first MiB of the device with zeroes)"
                .to_owned(),
        );
    }
    Ok(())
}

/// Refuses a data file with a name that the pool itself uses in its directory.
///
/// # Errors
/// `Invalid`.
pub(super) fn refuse_own_name(root: &Path, data: &Path) -> Result<()> {
    let real = |path: &Path| path.canonicalize().ok();
    let is_beside = data.parent().and_then(real).is_some_and(|parent| Some(parent) == real(root));
    match data.file_name() {
        Some(name) if is_beside && NAMES.iter().any(|own| name == *own) => {
            let message =
                format!("{}: the pool itself has a file of that name; choose another one for its data", data.display());
            Err(Error::new(ErrorKind::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// True even if its description is lost or damaged.
fn holds_pool(dir: &PoolDir) -> bool {
    dir.config().is_ok() || dir.map_path().is_dir() && dir.lock_path().exists()
}

fn carries_superblock(path: &Path) -> bool {
    // A fifo, which may have taken the place of a file since, must not make this wait for a writer.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let Ok(file) = File::options().read(true).custom_flags(flags).open(path) else { return false };
    SUPERBLOCK_OFFSETS.iter().any(|offset| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let read = file.read_exact_at(&mut bytes, *offset);
        read.is_ok() && matches!(Superblock::decode(&bytes), Ok(_) | Err(SuperblockError::Unsupported(_)))
    })
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;
    use crate::pool_dir::{Config, State};

    /// The export of a share to a fifo waited for a writer, because it opened the fifo for reading.
    #[test]
    fn a_fifo_is_not_waited_for() {
        let temporary = TempDir::new("belongs-fifo");
        let path = temporary.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let looks = std::thread::spawn(move || refuse_part_of_pool(&path).is_ok());
        testkit::until("the fifo is looked at", || looks.is_finished());
        assert!(looks.join().unwrap());
    }

    #[test]
    fn what_belongs_to_a_pool_is_known_by_where_it_lies() {
        let temporary = TempDir::new("belongs");
        let root = temporary.path();
        let (map, file) = (root.join("map/keyspaces/1"), root.join("image"));
        std::fs::create_dir_all(&map).unwrap();
        let paths = [root.join("pool.json"), root.join("lock"), map.join("table"), file.clone()];
        for path in &paths {
            std::fs::write(path, b"x").unwrap();
        }
        let refused = || paths.iter().map(|path| refuse_part_of_pool(path).is_err()).collect::<Vec<_>>();
        // The pool's description is damaged; the user's own file may be overwritten.
        assert_eq!(refused(), [true, true, true, false]);
        Config { state: State::Ready, data: "data".into(), created_unix_s: 1 }.write(&paths[0]).unwrap();
        assert_eq!(refused(), [true, true, true, false]);
        let error = refuse_part_of_pool(&paths[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse);
        // A map of some other program.
        std::fs::remove_file(&paths[0]).unwrap();
        std::fs::remove_file(&paths[1]).unwrap();
        assert!(refuse_part_of_pool(&paths[2]).is_ok());
    }
}
