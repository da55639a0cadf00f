//! Partial objects that a killed client left in a directory: files next to an object's place, named
//! after it with `#` and a number, which no list of the store shows. Owns the choice of those that
//! no client writes any more.
//!
//! A fenced session cannot commit, and neither can one of a removed incarnation. All other partial
//! files are left until they are old. If a client is still writing to a file that is removed, it
//! gets an error and writes the object again: names of partial objects that are created once are
//! never reused, so it cannot publish a file of another client.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ::blob::Inc;

/// Files that were found, and removed unless the run was dry.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Files.
    pub files: u64,
    /// Total bytes of the files.
    pub bytes: u64,
    dry_run: bool,
}

/// Criteria for useless files of the live incarnation.
#[derive(Debug, Clone, Copy)]
pub struct Living {
    /// The incarnation.
    pub inc: Inc,
    /// Sessions that began before this record cannot commit.
    pub fence: u64,
    /// Files that were last written at this second or before belong to a client that is gone.
    pub until_unix_s: u64,
}

/// Removes partial objects below a blob's directory: all of incarnations other than the live one;
/// of that one, old ones, and packs of fenced sessions. A wrong clock does no harm here: a client
/// that is only slow gets an error and writes its object again. `living`: `None` when the blob is
/// gone.
pub fn sweep(blob: &Path, living: Option<Living>, dry_run: bool) -> Swept {
    let mut swept = Swept { dry_run, ..Swept::default() };
    let is_old = |path: &Path| living.is_none_or(|living| written_s(path) <= living.until_unix_s);
    swept.files_in(blob, |name| name == "hint", is_old);
    swept.files_in(&blob.join("life"), is_number, is_old);
    for (inc, incarnation) in entries(blob) {
        if inc.len() != 32 || !inc.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let living = living.filter(|living| living.inc.to_string() == inc);
        let is_old = |path: &Path| living.is_none_or(|living| written_s(path) <= living.until_unix_s);
        swept.files_in(&incarnation, |name| name == "swept" || name == "boot", is_old);
        for (_, directory) in entries(&incarnation).into_iter().filter(|(name, _)| name != "p") {
            swept.files_in(&directory, is_named_by_shale, is_old);
        }
        // A pin is below its version and its holder.
        for (_, version) in entries(&incarnation.join("pin")) {
            for (_, holder) in entries(&version) {
                swept.files_in(&holder, is_named_by_shale, is_old);
            }
        }
        for (session, directory) in entries(&incarnation.join("p")) {
            let born = session.split_once('-').and_then(|(born, _)| born.parse::<u64>().ok());
            let Some(born) = born else { continue };
            let is_over = |path: &Path| living.is_some_and(|living| born < living.fence) || is_old(path);
            swept.files_in(&directory, |name| name.len() == 8 && is_number(name), is_over);
            if !dry_run {
                // Fails unless it is empty.
                let _ = std::fs::remove_dir(&directory);
            }
        }
    }
    swept
}

impl Swept {
    /// Removes the partial files of objects in a directory.
    fn files_in(&mut self, directory: &Path, is_object: impl Fn(&str) -> bool, is_over: impl Fn(&Path) -> bool) {
        for (name, path) in entries(directory) {
            let is_half_written = name.split_once('#').is_some_and(|(object, n)| is_object(object) && is_number(n));
            if !is_half_written || !is_over(&path) {
                continue;
            }
            let bytes = path.metadata().map_or(0, |about| about.len());
            if self.dry_run || std::fs::remove_file(&path).is_ok() {
                log::debug!("half-written {}: {bytes} bytes", path.display());
                self.files += 1;
                self.bytes += bytes;
            }
        }
    }
}

/// Returns the second in which a file was last written; if unknown, the file counts as new.
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

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether an object has a name of numbers and random bits, as records and offers have.
fn is_named_by_shale(name: &str) -> bool {
    name.len() >= 20 && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
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
        let found = |files: u64| Swept { files, bytes: 5 * files, dry_run: false };
        let dry = Swept { dry_run: false, ..sweep(root, of(0), true) };
        assert_eq!(dry, found(2));
        assert!(fenced.iter().all(|path| path.exists()));
        assert_eq!(sweep(root, of(0), false), dry);
        assert!(fenced.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
        // The file that is not fenced is removed when it is old.
        let written = kept[0].metadata().unwrap().mtime() as u64;
        assert_eq!(sweep(root, of(written - 1), false), Swept::default());
        assert_eq!(sweep(root, of(written), false), found(1));
        assert!(!kept[0].exists() && kept[1..].iter().all(|path| path.exists()));
    }

    #[test]
    fn half_written_objects_of_every_kind_go_when_they_are_old() {
        let dir = testkit::TempDir::new("half-written-kinds");
        let (living, gone) = (Inc(7), Inc(8));
        let file = |place: String| {
            let path = dir.join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "12345").unwrap();
            path
        };
        let (number, op) = ("00000000000000000003", "0123456789abcdef0123456789abcdef");
        let below = |inc: Inc| {
            [
                format!("log/{number}#1"),
                format!("q/{number}-{op}#18446744073709551615"),
                format!("pin/{number}/{op}/{op}#4"),
                "swept#1".into(),
                "boot#2".into(),
            ]
            .map(|name| file(format!("{inc}/{name}")))
        };
        let (of_living, of_gone) = (below(living), below(gone));
        let of_key = [file("hint#1".into()), file(format!("life/{number}#7"))];
        let kept = [
            file("notes#1".into()),
            file("life/notes#1".into()),
            file(format!("{living}/log/{number}")),
            file(format!("{living}/log/notes#1")),
            file(format!("{living}/log/{number}#x")),
            file(format!("{living}/pin/{number}/{op}/{op}")),
            file("hint".into()),
        ];
        let of = |until_unix_s| Some(Living { inc: living, fence: 4, until_unix_s });
        assert_eq!(sweep(dir.path(), of(0), false).files, 5, "those of the incarnation that is gone");
        assert!(of_gone.iter().all(|path| !path.exists()));
        assert!(of_living.iter().chain(&of_key).all(|path| path.exists()));
        assert_eq!(sweep(dir.path(), of(u64::MAX - 1), false).files, 7);
        assert!(of_living.iter().chain(&of_key).all(|path| !path.exists()));
        file("hint#9".into());
        assert_eq!(sweep(dir.path(), None, false).files, 1);
        assert!(kept.iter().all(|path| path.exists()));
    }
}
