//! Numbers of exports. NFS clients keep them in their handles: a share has the same one for ever,
//! whatever it is called, and no other share gets it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use surface::{Error, Result};

/// The file in the pool's directory.
const FILE: &str = "export-ids";

/// The numbers that were given, by those of the shares.
pub struct Ids {
    file: PathBuf,
    given: BTreeMap<u64, u16>,
}

impl Ids {
    /// Reads them.
    ///
    /// # Errors
    /// If they cannot be read: none may be given twice.
    pub fn open(pool_dir: &Path) -> Result<Self> {
        let file = pool_dir.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| Error::from_io(format!("numbers of exports in {}", file.display()), error))?,
        };
        let pair = |line: &str| {
            let (share, id) = line.split_once(' ')?;
            Some((share.parse().ok()?, id.parse().ok()?))
        };
        Ok(Self { file, given: text.lines().filter_map(pair).collect() })
    }

    /// The number of a share, which gets one if it has none.
    ///
    /// # Errors
    /// In words, if it cannot be kept.
    pub fn of(&mut self, share: u64) -> std::result::Result<u16, String> {
        if let Some(id) = self.given.get(&share) {
            return Ok(*id);
        }
        let last = self.given.values().max().copied().unwrap_or(0);
        let id = last.checked_add(1).ok_or("all 65535 numbers of exports were given out")?;
        self.given.insert(share, id);
        let text: String = self.given.iter().map(|(share, id)| format!("{share} {id}\n")).collect();
        self.keep(&text).map_err(|error| {
            self.given.remove(&share);
            format!("{} cannot be written: {error}", self.file.display())
        })?;
        Ok(id)
    }

    fn keep(&self, text: &str) -> std::io::Result<()> {
        let beside = self.file.with_extension("writing");
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.file)?;
        std::fs::File::open(self.file.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_keeps_its_number() {
        let dir = testkit::TempDir::new("export-ids");
        let mut ids = Ids::open(dir.path()).unwrap();
        assert_eq!((ids.of(70_000), ids.of(3), ids.of(70_000)), (Ok(1), Ok(2), Ok(1)));
        let mut again = Ids::open(dir.path()).unwrap();
        assert_eq!((again.of(9), again.of(3), again.of(70_000)), (Ok(3), Ok(2), Ok(1)));
        std::fs::write(dir.path().join(FILE), "1 65535\n").unwrap();
        assert!(Ids::open(dir.path()).unwrap().of(2).is_err());
    }
}
