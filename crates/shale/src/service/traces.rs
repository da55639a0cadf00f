//! Traces of writes to shares tell files: the one that a unit is of, and which byte of it.
//!
//! An address tells the file's number at once in the first MiB of a file, else by a look through
//! the tables of large files; a path is found by a look through the tree. Such looks take a tenth
//! of the time at most: behind each a pause follows. A file without a path by then is told by its
//! number.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use engine::Files;
use surface::DeviceId;

use super::Service;
use crate::choices::TraceLine;
use crate::control::Reply;
use crate::share_check::{FILES_OWN, walk};
use crate::share_files::Opened;

/// Paths, and places of large files, that are remembered of a share.
const KNOWN_MAX: usize = 1 << 16;
/// How many times as long as a look the pause behind it is.
const PAUSE_TIMES: u32 = 9;

/// Names of a share while it is traced.
#[derive(Default)]
struct Known {
    paths: HashMap<u64, String>,
    /// Of files behind their first MiB: by the first address the address behind the last, the
    /// file, and its byte at the first.
    rest: BTreeMap<u64, (u64, u64, u64)>,
    rests_until: Option<Instant>,
}

impl Known {
    /// Does something that takes long, unless it is too soon.
    fn look<T>(&mut self, what: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let began = Instant::now();
        if self.rests_until.is_some_and(|until| began < until) {
            return None;
        }
        let found = what(self);
        let took = began.elapsed();
        self.rests_until = began.checked_add(took.saturating_mul(1 + PAUSE_TIMES));
        found
    }

    /// The file of an address, and its byte there.
    fn locate(&mut self, files: &Files, address: u64) -> Option<(u64, u64)> {
        if Files::in_beginning(address).is_some() {
            return files.locate(address).ok()?;
        }
        if let Some((first, (end, file, byte))) = self.rest.range(..=address).next_back()
            && address < *end
        {
            return Some((*file, byte + (address - first)));
        }
        self.look(|known| {
            let found = files.locate(address).ok()??;
            if known.rest.len() >= KNOWN_MAX {
                known.rest.clear();
            }
            for (addresses, byte) in files.places(found.0).ok()?.into_iter().skip(1) {
                known.rest.insert(addresses.start, (addresses.end, found.0, byte));
            }
            Some(found)
        })
    }

    /// Adds what the tree knows of these files.
    fn learn(&mut self, opened: &Opened, wanted: &[u64]) {
        let unknown: Vec<u64> = wanted.iter().copied().filter(|file| !self.paths.contains_key(file)).collect();
        if unknown.is_empty() {
            return;
        }
        self.look(|known| {
            if known.paths.len() + unknown.len() > KNOWN_MAX {
                known.paths.clear();
            }
            let visit = |path: &[u8], inode: &share::Inode| {
                if inode.data_file() != 0 && unknown.binary_search(&inode.data_file()).is_ok() {
                    known.paths.insert(inode.data_file(), String::from_utf8_lossy(path).into_owned());
                }
            };
            walk(&opened.tree, visit).ok()
        });
    }
}

/// Names of all shares that are traced.
#[derive(Default)]
pub(super) struct Traced(BTreeMap<u64, Known>);

impl Traced {
    /// Names the files that units of a share belong to.
    fn name(&mut self, share: (u64, &str), opened: &Opened, lines: &mut [TraceLine]) {
        let known = self.0.entry(share.0).or_default();
        let mut located = Vec::new();
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.object == share.0) {
            located.extend(known.locate(&opened.files, line.offset).map(|found| (index, found)));
        }
        let mut wanted: Vec<u64> =
            located.iter().map(|(_, (file, _))| *file).filter(|file| *file >= FILES_OWN).collect();
        wanted.sort_unstable();
        wanted.dedup();
        known.learn(opened, &wanted);
        for (index, (file, byte)) in located {
            let path = match known.paths.get(&file) {
                Some(path) => path.clone(),
                // The share's own names.
                None if file < FILES_OWN => String::new(),
                None => format!("/#{file}"),
            };
            (lines[index].path, lines[index].file_offset) = (Some(format!("{}{path}", share.1)), Some(byte));
        }
    }
}

impl Service {
    /// Records of the trace, which begins if none runs; those of shares that are mounted name their
    /// files.
    pub(super) fn traced(&self, count: usize) -> Vec<TraceLine> {
        let mut lines: Vec<TraceLine> = self.pool.take_trace(count).into_iter().map(Into::into).collect();
        if lines.is_empty() {
            return lines;
        }
        let mounted = self.shares.lock().clone();
        let mut traced = self.traced.lock();
        for volume in self.pool.volumes().into_iter().filter(engine::VolumeStatus::is_share) {
            let is_there = lines.iter().any(|line| line.object == volume.id.0);
            let opened = mounted.as_ref().filter(|_| is_there).and_then(|shares| shares.opened(DeviceId(volume.id.0)));
            if let Some(opened) = opened {
                traced.name((volume.id.0, &volume.name), &opened, &mut lines);
            }
        }
        lines
    }

    /// Ends the trace.
    pub(super) fn end_trace(&self) -> Reply {
        self.pool.set_trace(false);
        *self.traced.lock() = Traced::default();
        Reply::Done
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn behind_a_look_comes_a_pause() {
        let mut known = Known::default();
        assert_eq!(known.look(|_| Some(1)), Some(1));
        assert!(known.rests_until.is_some());
        known.rests_until = Instant::now().checked_add(Duration::from_secs(3600));
        assert_eq!(known.look(|_| Some(2)), None);
    }
}
