//! The snapshots of the shares as SMB clients list them, as earlier versions: by their recorded
//! times, regardless of their names.
//!
//! Samba finds earlier versions in a directory, by names that are times. So each share has one,
//! `snapshots/NUMBER/` in the directory of exports, with a link for each snapshot:
//! `@GMT-2026.11.29-07.00.00 -> MOUNT/.shale/snapshots/NAME`. Of two snapshots within one second,
//! the later one is listed.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use doors::{Export, samba};
use engine::Pool;

use super::world::World;

/// Links, by their names.
type Links = BTreeMap<String, PathBuf>;

/// Links of the shares, by the numbers of the exports.
#[derive(Default)]
pub struct Moments(BTreeMap<u16, Links>);

impl Moments {
    /// Brings the links in step with the snapshots of the shares.
    ///
    /// # Errors
    /// A message.
    pub fn follow(&mut self, world: &World, pool: &Pool, exports: &[&Export]) -> std::result::Result<(), String> {
        self.0.retain(|id, _| exports.iter().any(|export| export.id == *id));
        for export in exports {
            // A share that is being destroyed has none.
            let snapshots = pool.snapshots(Some(&export.name)).unwrap_or_default();
            let snapshots = snapshots.iter().map(|snapshot| (snapshot.created_unix_s, &*snapshot.name));
            let wanted = links_of(Path::new(&export.path), snapshots);
            if self.0.get(&export.id) == Some(&wanted) {
                continue;
            }
            let dir = PathBuf::from(samba::snapshots_dir(&world.places("smb"), export.id));
            bring(&dir, &wanted).map_err(|error| format!("smb: earlier versions in {}: {error}", dir.display()))?;
            self.0.insert(export.id, wanted);
        }
        Ok(())
    }
}

/// Returns the links to the snapshots of a mounted share, which are ordered by age.
fn links_of<'a>(mount: &Path, snapshots: impl Iterator<Item = (u64, &'a str)>) -> Links {
    snapshots.map(|(taken, name)| (name_of(taken), mount.join(".shale/snapshots").join(name))).collect()
}

/// Returns the name by which an SMB client requests a moment.
fn name_of(unix_s: u64) -> String {
    let (year, month, day) = policy::civil(unix_s / 86400);
    let (hour, minute, second) = (unix_s % 86400 / 3600, unix_s % 3600 / 60, unix_s % 60);
    format!("@GMT-{year:04}.{month:02}.{day:02}-{hour:02}.{minute:02}.{second:02}")
}

/// Makes, replaces and removes links until a directory has exactly the wanted ones.
fn bring(dir: &Path, wanted: &Links) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let target = name.to_str().and_then(|name| wanted.get(name));
        if target.is_none_or(|target| std::fs::read_link(entry.path()).ok().as_ref() != Some(target)) {
            std::fs::remove_file(entry.path())?;
        }
    }
    let missing = wanted.iter().map(|(name, target)| symlink(target, dir.join(name)));
    missing.filter(|made| !made.as_ref().is_err_and(is_there)).collect()
}

fn is_there(error: &Error) -> bool {
    error.kind() == ErrorKind::AlreadyExists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named_after_the_recorded_times() {
        let dir = testkit::TempDir::new("exports-moments");
        let dir = dir.path().join("1");
        let found = || {
            let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
            let mut links: Vec<_> = entries.map(|path| (path.clone(), std::fs::read_link(path).unwrap())).collect();
            links.sort();
            let word = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            links.iter().map(|(path, target)| format!("{} {}", word(path), word(target))).collect::<Vec<_>>()
        };
        let mount = Path::new("/srv/shares/home");
        // A name that contradicts its time, and two within one second.
        let all = [(0, "auto-2020-01-01T0000Z"), (951_782_399, "monday"), (951_782_400, "a"), (951_782_400, "b")];
        let links = links_of(mount, all.into_iter());
        assert_eq!(links["@GMT-1970.01.01-00.00.00"], mount.join(".shale/snapshots/auto-2020-01-01T0000Z"));
        bring(&dir, &links).unwrap();
        let oldest = "@GMT-1970.01.01-00.00.00 auto-2020-01-01T0000Z";
        assert_eq!(found(), [oldest, "@GMT-2000.02.28-23.59.59 monday", "@GMT-2000.02.29-00.00.00 b"]);
        // One is renamed, others were destroyed.
        let links = links_of(mount, [(951_782_399, "sunday")].into_iter());
        for _ in 0..2 {
            bring(&dir, &links).unwrap();
            assert_eq!(found(), ["@GMT-2000.02.28-23.59.59 sunday"]);
        }
    }
}
