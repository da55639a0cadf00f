//! Files in traces of writes to shares: the file of a unit, and its position there.
//!
//! In the first MiB of a file, an address determines the file's number. Beyond that the tables of
//! the share's own files and of recently met files are read, then the tables of all large files are
//! scanned; a path is found by a scan of all names, which learns those of other files as well. Such
//! scans take a tenth of the time at most: a pause follows each. A file without a path by then is
//! reported by its number, and a unit of the share's own by its content.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use engine::Files;
use surface::DeviceId;

use super::Service;
use crate::documents;
use crate::share_check::FILES_OWN;
use crate::share_files::Opened;
use operations::Reply;
use report::TraceLine;

/// Maximum number of remembered paths, and of places of large files, per share.
const KNOWN_MAX: usize = 1 << 16;
/// Ratio of a pause to the scan before it.
const PAUSE_TIMES: u32 = 9;
/// Number of remembered files whose beginnings were written last: the rest of a large one soon
/// follows.
const RECENT_MAX: usize = 64;
/// Placeholder for a path, where a unit belongs to no file: share names contain no blanks.
const OF_NAMES: &str = " (names)";
const OF_TABLES: &str = " (tables)";
const OF_UNKNOWN: &str = " (not known)";

/// Known names of a traced share.
#[derive(Default)]
struct Known {
    paths: HashMap<u64, String>,
    /// Places of files beyond their first MiB: the first address maps to the end address, the file,
    /// and the position in the file.
    rest: BTreeMap<u64, (u64, u64, u64)>,
    recent: VecDeque<u64>,
    rests_until: Option<Instant>,
}

impl Known {
    /// Runs a scan, unless the last one was too recent.
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

    /// Returns the file of an address, and the position in it. `is_fresh`: the tables of likely
    /// files were already read for this answer.
    fn locate(&mut self, files: &Files, address: u64, is_fresh: &mut bool) -> Option<(u64, u64)> {
        if let Some(file) = Files::in_beginning(address) {
            self.meet(file);
            return files.locate(address).ok()?;
        }
        if Files::in_tables(address) {
            return None;
        }
        if let Some(found) = self.in_rest(address) {
            return Some(found);
        }
        if !std::mem::replace(is_fresh, true) {
            for file in (0..FILES_OWN).chain(self.recent.clone()) {
                self.learn_places(files, file);
            }
            if let Some(found) = self.in_rest(address) {
                return Some(found);
            }
        }
        self.look(|known| {
            let found = files.locate(address).ok()??;
            known.learn_places(files, found.0);
            Some(found)
        })
    }

    /// Remembers a file whose beginning was written.
    fn meet(&mut self, file: u64) {
        if !self.recent.contains(&file) {
            self.recent.truncate(RECENT_MAX - 1);
            self.recent.push_front(file);
        }
    }

    /// Looks an address up in the known places.
    fn in_rest(&self, address: u64) -> Option<(u64, u64)> {
        let (first, (end, file, byte)) = self.rest.range(..=address).next_back()?;
        (address < *end).then(|| (*file, byte + (address - first)))
    }

    /// Learns the places of a file beyond its first MiB.
    fn learn_places(&mut self, files: &Files, file: u64) {
        let Ok(places) = files.places(file) else { return };
        if self.rest.len() >= KNOWN_MAX {
            self.rest.clear();
        }
        for (addresses, byte) in places.into_iter().skip(1) {
            self.rest.insert(addresses.start, (addresses.end, file, byte));
        }
    }

    /// Learns the paths of these files.
    fn learn(&mut self, opened: &Opened, mut unknown: BTreeSet<u64>) {
        unknown.retain(|file| !self.paths.contains_key(file));
        if unknown.is_empty() {
            return;
        }
        self.look(|known| {
            if known.paths.len() + unknown.len() > KNOWN_MAX {
                known.paths.clear();
            }
            // Other files may be written next, and this scan finds them at no extra cost.
            let others = KNOWN_MAX.saturating_sub(known.paths.len() + unknown.len());
            let found = opened.tree.paths_of_files(&unknown, others).ok()?;
            let in_words = |(file, path): (u64, Vec<u8>)| (file, share::in_words(&path));
            known.paths.extend(found.into_iter().map(in_words));
            Some(())
        });
    }
}

/// Known names of all traced shares.
#[derive(Default)]
pub(super) struct Traced(BTreeMap<u64, Known>);

impl Traced {
    /// Names the files of a share's units.
    fn name(&mut self, share: (u64, &str), opened: &Opened, lines: &mut [TraceLine]) {
        let known = self.0.entry(share.0).or_default();
        let (mut located, mut is_fresh) = (Vec::new(), false);
        for (index, line) in lines.iter_mut().enumerate().filter(|(_, line)| line.object == share.0) {
            if let Some(found) = known.locate(&opened.files, line.offset, &mut is_fresh) {
                located.push((index, found));
            } else {
                let what = if Files::in_tables(line.offset) { OF_TABLES } else { OF_UNKNOWN };
                line.path = Some(format!("{}{what}", share.1));
            }
        }
        let files = located.iter().map(|(_, (file, _))| *file);
        known.learn(opened, files.filter(|file| *file >= FILES_OWN).collect());
        for (index, (file, byte)) in located {
            let path = match known.paths.get(&file) {
                Some(path) => path.clone(),
                None if file < FILES_OWN => OF_NAMES.to_owned(),
                None => format!("/#{file}"),
            };
            (lines[index].path, lines[index].file_offset) = (Some(format!("{}{path}", share.1)), Some(byte));
        }
    }
}

impl Service {
    /// Returns records of the trace, which begins if none is running; those of mounted shares name
    /// their files.
    pub(super) fn traced(&self, count: usize) -> Vec<TraceLine> {
        let mut lines: Vec<TraceLine> = self.pool.take_trace(count).into_iter().map(documents::trace_line).collect();
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

    /// A file whose beginning is written again becomes the newest.
    #[test]
    fn the_files_that_were_met_last_are_remembered() {
        let mut known = Known::default();
        for file in (0..3 * RECENT_MAX as u64).chain([0, 3 * RECENT_MAX as u64 - 1]) {
            known.meet(file);
        }
        assert_eq!((known.recent.len(), known.recent[0]), (RECENT_MAX, 0));
        assert_eq!(known.recent.iter().filter(|file| **file == 3 * RECENT_MAX as u64 - 1).count(), 1);
    }

    #[test]
    fn places_behind_the_beginning_tell_their_file_and_its_byte() {
        let mut known = Known::default();
        known.rest.insert(1000, (1100, 7, 1 << 20));
        for (address, found) in
            [(999, None), (1000, Some((7, 1 << 20))), (1099, Some((7, (1 << 20) + 99))), (1100, None)]
        {
            assert_eq!(known.in_rest(address), found, "{address}");
        }
    }
}
