//! Objects that a killed client had half written to a directory: files beside an object's place,
//! under its name and `#` and a number, which no list of the store shows. Owns which of them no
//! client writes any more.
//!
//! Only those of packs are looked at, because a pack's name belongs to one session alone. A session
//! that is fenced can commit nothing, and neither can one of an incarnation that is gone; should
//! its client still write, it gets an error and no more.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ::blob::Inc;

/// Files that were found, and taken away unless the run was dry.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Which files of the living incarnation are of no use any more.
#[derive(Debug, Clone, Copy)]
pub struct Living {
    /// The incarnation.
    pub inc: Inc,
    /// Sessions born before this record can commit nothing.
    pub fence: u64,
    /// Files that were written last at this second or before belong to a client that has gone.
    pub until_unix_s: u64,
}

/// Takes half-written packs away below a blob's directory: all of incarnations other than the
/// living one, and of that one those of fenced sessions and old ones. A clock does no harm here: a
/// client that is only slow gets an error and writes its pack again. `living`: none when the blob
/// is gone.
pub fn sweep(blob: &Path, living: Option<Living>, dry_run: bool) -> Swept {
    let mut swept = Swept::default();
    for (inc, incarnation) in entries(blob) {
        if inc.len() != 32 || !inc.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let living = living.filter(|living| living.inc.to_string() == inc);
        for (session, directory) in entries(&incarnation.join("p")) {
            let born = session.split_once('-').and_then(|(born, _)| born.parse::<u64>().ok());
            let Some(born) = born else { continue };
            let is_over =
                |path: &Path| living.is_none_or(|living| born < living.fence || written_s(path) <= living.until_unix_s);
            for (name, path) in entries(&directory) {
                if !is_half_written(&name) || !is_over(&path) {
                    continue;
                }
                let bytes = path.metadata().map_or(0, |about| about.len());
                if dry_run || std::fs::remove_file(&path).is_ok() {
                    log::debug!("half-written {name} of session {session}: {bytes} bytes");
                    swept.files += 1;
                    swept.bytes += bytes;
                }
            }
            if !dry_run {
                // Only an empty one goes.
                let _ = std::fs::remove_dir(&directory);
            }
        }
    }
    swept
}

/// Returns the second in which a file was written last; one that cannot be told is new.
fn written_s(path: &Path) -> u64 {
    path.metadata().map_or(u64::MAX, |about| u64::try_from(about.mtime()).unwrap_or(u64::MAX))
}

/// Returns names and paths of a directory's entries; none if it cannot be read.
fn entries(directory: &Path) -> Vec<(String, std::path::PathBuf)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let named = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, entry.path()))
    });
    named.collect()
}

fn is_half_written(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('#').is_some_and(|(pack, number)| pack.len() == 8 && is_number(pack) && is_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_half_written_packs_of_fenced_sessions_go() {
        let dir = testkit::TempDir::new("half-written");
        let root = dir.path();
        let (living, gone) = (Inc(7), Inc(8));
        let file = |inc: Inc, born: u64, name: &str| {
            let path = root.join(inc.to_string()).join("p").join(format!("{born:020}-{:032x}", 5)).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "12345").unwrap();
            path
        };
        let fenced = [file(living, 3, "00000000#1"), file(gone, 9, "00000002#12")];
        let kept = [
            file(living, 4, "00000000#1"),
            file(living, 3, "00000000"),
            file(living, 3, "notes#1"),
            file(living, 3, "00000000#x"),
            file(gone, 9, "00000002"),
        ];
        let of = |until_unix_s| Some(Living { inc: living, fence: 4, until_unix_s });
        let dry = sweep(root, of(0), true);
        assert_eq!(dry, Swept { files: 2, bytes: 10 });
        assert!(fenced.iter().all(|path| path.exists()));
        assert_eq!(sweep(root, of(0), false), dry);
        assert!(fenced.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
        // The one that is not fenced goes when it is old.
        let written = kept[0].metadata().unwrap().mtime() as u64;
        assert_eq!(sweep(root, of(written - 1), false), Swept::default());
        assert_eq!(sweep(root, of(written), false), Swept { files: 1, bytes: 5 });
        assert!(!kept[0].exists() && kept[1..].iter().all(|path| path.exists()));
    }
}
