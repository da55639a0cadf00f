//! Numbers of exports. NFS clients keep them in their handles, with the device number of the mount.
//!
//! A share keeps its number, under any name, for as long as it keeps its device number. Then it
//! gets another one: the old device number may belong to another share by then, and old handles
//! would lead there. No number is reused before all others were used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use surface::{Error, Result};

/// File in the pool's directory.
const FILE: &str = "export-ids";

/// Prefix of the line with the number assigned last.
const LAST: &str = "last";

/// The numbers of exports.
pub struct Ids {
    file: PathBuf,
    /// The number of the export and the device of the mount, by the share's number.
    given: BTreeMap<u64, (u16, u64)>,
    last: u16,
}

impl Ids {
    /// Reads the assigned numbers.
    ///
    /// # Errors
    /// If they cannot be read: none may be assigned twice.
    pub fn open(pool_dir: &Path) -> Result<Self> {
        let file = pool_dir.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| Error::from_io(format!("numbers of exports in {}", file.display()), error))?,
        };
        let line = |line: &str| {
            let mut words = line.split(' ');
            let share = words.next()?.parse().ok()?;
            Some((share, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
        };
        let last = text.lines().find_map(|line| line.strip_prefix(LAST)?.trim().parse().ok()).unwrap_or(0);
        Ok(Self { file, given: text.lines().filter_map(line).collect(), last })
    }

    /// Returns the number of a share that is mounted with that device number; assigns one if it has
    /// none for that device.
    ///
    /// # Errors
    /// A message, if it cannot be stored.
    pub fn of(&mut self, share: u64, device: u64) -> std::result::Result<u16, String> {
        if let Some((id, _)) = self.given.get(&share).filter(|(_, of)| *of == device) {
            return Ok(*id);
        }
        let taken: BTreeSet<u16> = self.given.values().map(|(id, _)| *id).collect();
        let behind = (self.last..u16::MAX).chain(0..self.last).map(|before| before + 1);
        let id = behind.into_iter().find(|id| !taken.contains(id)).ok_or("all 65535 numbers of exports are in use")?;
        let (last, before) = (std::mem::replace(&mut self.last, id), self.given.insert(share, (id, device)));
        let lines = self.given.iter().map(|(share, (id, device))| format!("{share} {id} {device}\n"));
        let text: String = lines.chain([format!("{LAST} {id}\n")]).collect();
        host::replace_file(&self.file, text.as_bytes(), 0o666).map_err(|error| {
            self.last = last;
            match before {
                Some(before) => self.given.insert(share, before),
                None => self.given.remove(&share),
            };
            format!("{} cannot be written: {error}", self.file.display())
        })?;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_keeps_its_number_with_its_device() {
        let dir = testkit::TempDir::new("export-ids");
        let mut ids = Ids::open(dir.path()).unwrap();
        assert_eq!((ids.of(70_000, 50), ids.of(3, 51), ids.of(70_000, 50)), (Ok(1), Ok(2), Ok(1)));
        let mut again = Ids::open(dir.path()).unwrap();
        assert_eq!((again.of(9, 52), again.of(3, 51), again.of(70_000, 50)), (Ok(3), Ok(2), Ok(1)));
        // After a restart of the machine they were mounted in another order.
        assert_eq!((again.of(3, 50), again.of(70_000, 51), again.of(9, 52)), (Ok(4), Ok(5), Ok(3)));
        let mut last = Ids::open(dir.path()).unwrap();
        // The first device number again: a third share may have used it since.
        assert_eq!((last.of(3, 51), last.of(70_000, 51)), (Ok(6), Ok(5)));
    }

    #[test]
    fn numbers_that_no_share_has_come_again_when_all_were_handed_out() {
        let dir = testkit::TempDir::new("export-ids-used-up");
        std::fs::write(dir.path().join(FILE), "1 1 50\n2 65535 51\nlast 65535\n").unwrap();
        let mut ids = Ids::open(dir.path()).unwrap();
        assert_eq!((ids.of(3, 52), ids.of(1, 50), ids.of(2, 53)), (Ok(2), Ok(1), Ok(3)));
        let all: String = (1..=65_535).map(|id| format!("{} {id} 50\n", id + 10)).collect();
        std::fs::write(dir.path().join(FILE), all).unwrap();
        assert!(Ids::open(dir.path()).unwrap().of(2, 50).is_err());
    }
}
