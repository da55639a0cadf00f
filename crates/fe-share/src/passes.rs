//! Passes over directories: programs that read the files of a directory one after another, such as
//! `grep -r`, `tar c` and `cp -a`. Owns the files of recent listings, and the choice of those that
//! are read ahead. Any thread that serves requests calls it; it never waits for a disk.
//!
//! 1. A listing leaves the numbers of its files here.
//! 2. A read of the start of a file is *in order* if the file follows the one that was read last in
//!    its directory, in the order of the listing or of inode numbers, or begins the directory.
//! 3. At the third read in order that memory could not answer, the pass is *believed*, and the next
//!    files of the directory are read ahead, in batches. The next batch is due when the reader
//!    arrives at the last one.
//! 4. While a pass is believed, files of a directory are read ahead as soon as it is listed.
//!
//! A pass is over with a read out of order. It is also over if nothing of a batch was read, or if
//! all of a batch was in memory already.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use share::Beginning;

use crate::served::Served;

/// Reads in order before a pass is believed.
const BELIEF: u32 = 3;
/// Files that a pass may leave out between two: a pattern excludes them, or the kernel has them.
const SKIPPED_MAX: usize = 3;
/// Files of listings that are remembered, up to 24 bytes each, and their directories.
const FILES_MAX: usize = 8192;
const DIRECTORIES_MAX: usize = 64;
/// The first batch of a pass. Each batch that was read doubles the next, up to half of all bytes
/// that may be ahead.
const BATCH_BYTES_MIN: u64 = 64 << 10;
/// Files that are looked at for a batch.
const BATCH_FILES_MAX: usize = 256;
/// Unit of the memory that a file takes.
const BLOCK_BYTES: u64 = 4096;

/// Files that are read ahead together: their positions in the order of their pass.
struct Batch {
    begin: usize,
    end: usize,
    bytes: u64,
}

/// The files of a directory that was listed.
struct Directory {
    node: u64,
    /// In the order of the listing.
    files: Vec<u64>,
    /// By inode number, each with its position in `files`; empty until it is needed.
    by_number: Vec<(u64, u32)>,
    /// The position after the last file that was read, in each of the two orders.
    next: [usize; 2],
    /// The order of its pass: 0 for the listing, 1 for inode numbers.
    order: usize,
    /// The position from which on nothing was read ahead.
    ahead: usize,
    /// Those of which the reader has not read the last file.
    batches: VecDeque<Batch>,
}

impl Directory {
    /// Returns the positions of a file in both orders.
    fn positions(&mut self, node: u64) -> Option<[usize; 2]> {
        if self.by_number.len() != self.files.len() {
            self.by_number = self.files.iter().copied().zip(0..).collect();
            self.by_number.sort_unstable();
        }
        let rank = self.by_number.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some([self.by_number[rank].1 as usize, rank])
    }

    fn file_at(&self, position: usize) -> Option<u64> {
        match self.order {
            0 => self.files.get(position).copied(),
            _ => self.by_number.get(position).map(|(node, _)| *node),
        }
    }
}

#[derive(Default)]
struct State {
    /// The last one listed comes last.
    directories: VecDeque<Directory>,
    /// Their files.
    files: usize,
    /// Reads in order, in each of the two orders.
    in_order: [u32; 2],
    /// The order that was believed last.
    order: usize,
    /// The size of the next batch.
    batch_bytes: u64,
    /// Bytes of all batches.
    ahead_bytes: u64,
}

/// The passes over the directories of a mount.
pub(crate) struct Passes {
    /// Bytes that may be ahead of the readers; 0: nothing is read ahead.
    bytes_max: u64,
    /// Whether a read in order was seen: then reads from memory count too.
    is_begun: AtomicBool,
    state: Mutex<State>,
}

impl Passes {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, is_begun: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Returns whether anything can be read ahead.
    pub(crate) fn is_enabled(&self) -> bool {
        self.bytes_max > 0
    }

    /// Records a part of a listing, the first one or a later one, and returns the files to read
    /// ahead. `look` returns the beginning of a file.
    pub(crate) fn listed(
        &self,
        directory: u64,
        is_first: bool,
        files: &[u64],
        look: impl FnMut(u64) -> Option<Beginning>,
    ) -> Vec<Beginning> {
        let mut state = self.state.lock();
        let is_known = state.add(directory, is_first, files);
        let is_believed = state.in_order[state.order] >= BELIEF;
        match state.directories.len().checked_sub(1) {
            // A later part belongs to the batches that follow.
            Some(last) if is_known && is_first && is_believed => state.batch(last, self.bytes_max, look),
            _ => Vec::new(),
        }
    }

    /// Records a read of the start of a file, and whether memory could not answer it. Returns the
    /// files to read ahead. `look` returns the beginning of a file.
    pub(crate) fn read(
        &self,
        node: u64,
        is_cold: bool,
        look: impl FnMut(u64) -> Option<Beginning>,
    ) -> Vec<Beginning> {
        if !self.is_enabled() || !is_cold && !self.is_begun.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let due = state.read(node, is_cold, self.bytes_max);
        let batch = due.map(|index| state.batch(index, self.bytes_max, look)).unwrap_or_default();
        self.is_begun.store(state.in_order != [0, 0], Ordering::Relaxed);
        batch
    }

    /// All files of a batch were in memory already.
    pub(crate) fn all_were_cached(&self) {
        let state = &mut *self.state.lock();
        (state.in_order, state.ahead_bytes) = ([0, 0], 0);
        for directory in &mut state.directories {
            directory.batches.clear();
            directory.ahead = 0;
        }
    }
}

impl State {
    /// Adds files of a directory, which is the last one then. Returns whether it is known from its
    /// first file on.
    fn add(&mut self, node: u64, is_first: bool, files: &[u64]) -> bool {
        let known = self.directories.iter().position(|directory| directory.node == node);
        let known = known.and_then(|index| self.directories.remove(index));
        let mut directory = match known {
            Some(directory) if !is_first => directory,
            _ if !is_first => return false,
            replaced => {
                replaced.iter().for_each(|directory| self.forget(directory));
                let (files, by_number, batches) = (Vec::new(), Vec::new(), VecDeque::new());
                Directory { node, files, by_number, next: [0; 2], order: self.order, ahead: 0, batches }
            }
        };
        while !self.directories.is_empty()
            && (self.files + files.len() > FILES_MAX || self.directories.len() >= DIRECTORIES_MAX)
        {
            let oldest = self.directories.pop_front();
            oldest.iter().for_each(|directory| self.forget(directory));
        }
        let added = &files[..files.len().min(FILES_MAX.saturating_sub(self.files))];
        directory.files.extend_from_slice(added);
        // Positions by number have changed.
        directory.by_number.clear();
        self.files += added.len();
        self.directories.push_back(directory);
        true
    }

    /// Removes a directory's part of the totals. If nothing of a batch was read, no pass goes on.
    fn forget(&mut self, directory: &Directory) {
        self.files -= directory.files.len();
        for batch in &directory.batches {
            self.ahead_bytes -= batch.bytes;
            if directory.next[directory.order] <= batch.begin {
                self.in_order = [0, 0];
            }
        }
    }

    /// Returns the directory of which a batch is due with a read.
    fn read(&mut self, node: u64, is_cold: bool, bytes_max: u64) -> Option<usize> {
        let found = self.directories.iter_mut().enumerate().rev();
        let (index, at) = found.filter_map(|(index, directory)| Some((index, directory.positions(node)?))).next()?;
        let directory = &mut self.directories[index];
        let next = std::mem::replace(&mut directory.next, at.map(|at| at + 1));
        let follows = [0, 1].map(|order| (next[order]..=next[order] + SKIPPED_MAX).contains(&at[order]));
        let was_ahead = follows[directory.order] && at[directory.order] < directory.ahead;
        while let Some(batch) = directory.batches.front().filter(|batch| at[directory.order] + 1 >= batch.end) {
            self.ahead_bytes -= batch.bytes;
            self.batch_bytes = (2 * self.batch_bytes).min(bytes_max / 2);
            directory.batches.pop_front();
        }
        for (count, follows) in self.in_order.iter_mut().zip(follows) {
            *count = if follows { *count + u32::from(is_cold || was_ahead) } else { 0 };
        }
        let is_believed = |order: &usize| self.in_order[*order] >= BELIEF;
        let order = [directory.order, 1 - directory.order].into_iter().find(is_believed)?;
        if order != directory.order {
            self.ahead_bytes -= directory.batches.drain(..).map(|batch| batch.bytes).sum::<u64>();
            (directory.order, directory.ahead) = (order, 0);
        }
        if self.in_order[order] == BELIEF {
            self.batch_bytes = BATCH_BYTES_MIN.min(bytes_max / 2);
        }
        self.order = order;
        let is_at_last = directory.batches.back().is_none_or(|batch| at[order] >= batch.begin);
        (is_at_last && (is_cold || was_ahead)).then_some(index)
    }

    /// Chooses the next files of a directory.
    fn batch(
        &mut self,
        index: usize,
        bytes_max: u64,
        mut look: impl FnMut(u64) -> Option<Beginning>,
    ) -> Vec<Beginning> {
        let directory = &mut self.directories[index];
        if directory.order != 0 && directory.by_number.is_empty() {
            directory.positions(0);
        }
        let room = bytes_max.saturating_sub(self.ahead_bytes);
        let limit = self.batch_bytes.min(room);
        let begin = directory.ahead.max(directory.next[directory.order]);
        let (mut found, mut bytes, mut end) = (Vec::new(), 0, begin);
        while end < begin + BATCH_FILES_MAX
            && let Some(node) = directory.file_at(end)
        {
            if let Some(beginning) = look(node) {
                let size = beginning.bytes.next_multiple_of(BLOCK_BYTES);
                // A longer file than a batch is a batch.
                let is_too_much = if found.is_empty() { size > room } else { bytes + size > limit };
                if is_too_much {
                    break;
                }
                bytes += size;
                found.push(beginning);
            }
            end += 1;
        }
        directory.ahead = end;
        if !found.is_empty() {
            directory.batches.push_back(Batch { begin, end, bytes });
            self.ahead_bytes += bytes;
        }
        found
    }
}

impl Served {
    /// Records a read of the start of a file, and reads the next files ahead if one is due.
    pub(crate) fn follow_pass(&self, node: u64, is_cold: bool) {
        self.read_ahead(self.passes.read(node, is_cold, |node| self.tree.beginning(node)));
    }

    /// Reads files ahead, on a thread of a lane.
    pub(crate) fn read_ahead(&self, batch: Vec<Beginning>) {
        let Some(served) = self.this.upgrade().filter(|_| !batch.is_empty()) else { return };
        self.waiting.run_ahead(move || {
            if served.tree.read_ahead(&batch) == 0 {
                served.passes.all_were_cached();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const DIRECTORY: u64 = 1;

    /// Files of 4 KiB, whose numbers are those of their content too.
    fn look(node: u64) -> Option<Beginning> {
        Some(Beginning { data: node, bytes: 4000 })
    }

    fn numbers(batch: &[Beginning]) -> Vec<u64> {
        batch.iter().map(|beginning| beginning.data).collect()
    }

    /// Numbers in no order.
    fn shuffled(count: u64) -> Vec<u64> {
        (0..count).map(|index| 1000 + index * 7919 % count).collect()
    }

    /// Reads files in this order; a file that was read ahead is in memory. Returns the reads that
    /// memory could not answer, and the files read ahead.
    fn pass(passes: &Passes, files: &[u64]) -> (usize, Vec<u64>) {
        let (mut cold, mut ahead) = (0, Vec::new());
        for file in files {
            let is_cold = !ahead.contains(file);
            cold += usize::from(is_cold);
            ahead.extend(numbers(&passes.read(*file, is_cold, look)));
            let read = files.iter().position(|read| read == file).unwrap() + 1;
            let unread = ahead.iter().filter(|file| !files[..read].contains(file)).count() as u64;
            assert!(unread * BLOCK_BYTES <= MIB && passes.state.lock().ahead_bytes <= MIB);
        }
        (cold, ahead)
    }

    #[test]
    fn a_pass_in_the_order_of_the_listing_is_read_ahead_after_three_files_and_once() {
        let files = shuffled(3000);
        let passes = Passes::new(MIB);
        let (first, second) = files.split_at(1700);
        assert!(passes.listed(DIRECTORY, true, first, look).is_empty());
        assert!(passes.listed(DIRECTORY, false, second, look).is_empty());
        let (cold, ahead) = pass(&passes, &files);
        assert_eq!((cold, ahead == files[3..]), (3, true));
        assert_eq!(passes.state.lock().ahead_bytes, 0);
    }

    #[test]
    fn a_pass_in_the_order_of_inode_numbers_is_read_ahead_as_well() {
        let mut files = shuffled(3000);
        let passes = Passes::new(MIB);
        passes.listed(DIRECTORY, true, &files, look);
        files.sort_unstable();
        let (cold, ahead) = pass(&passes, &files);
        assert_eq!((cold, ahead == files[3..]), (3, true));
    }

    #[test]
    fn a_pass_may_leave_files_out() {
        let files = shuffled(300);
        let passes = Passes::new(MIB);
        passes.listed(DIRECTORY, true, &files, look);
        let read: Vec<u64> = files.iter().copied().step_by(2).collect();
        assert_eq!(pass(&passes, &read).0, 3);
    }

    #[test]
    fn the_next_directory_is_read_ahead_when_it_is_listed() {
        let passes = Passes::new(MIB);
        let files = shuffled(100);
        for (number, files) in files.chunks(10).enumerate() {
            let listed = numbers(&passes.listed(number as u64, true, files, look));
            assert_eq!(listed, if number == 0 { vec![] } else { files.to_vec() });
            for file in files {
                passes.read(*file, !listed.contains(file), look);
            }
        }
        assert_eq!(passes.state.lock().ahead_bytes, 0);
    }

    /// As `ls -lR` after `grep -r` does.
    #[test]
    fn directories_that_are_only_listed_are_soon_not_read_ahead() {
        let passes = Passes::new(MIB);
        let files = shuffled(20);
        passes.listed(DIRECTORY, true, &files, look);
        pass(&passes, &files);
        let mut ahead = 0;
        for directory in 2..2000 {
            let files: Vec<u64> = (0..10).map(|file| directory * 100_000 + file).collect();
            ahead += passes.listed(directory, true, &files, look).len() as u64;
        }
        assert!(ahead > 0 && ahead * BLOCK_BYTES <= MIB, "{ahead} files");
        assert_eq!(passes.state.lock().ahead_bytes, 0, "they are forgotten");
    }

    #[test]
    fn reads_in_no_order_and_reads_from_memory_begin_no_pass() {
        let files: Vec<u64> = (1000..2000).collect();
        let passes = Passes::new(MIB);
        passes.listed(DIRECTORY, true, &files, look);
        for index in 0..1000 {
            assert!(passes.read(1000 + index * 389 % 1000, true, look).is_empty());
        }
        passes.listed(DIRECTORY, true, &files, look);
        for file in &files {
            assert!(passes.read(*file, false, look).is_empty());
        }
        // Nor do files of unknown directories.
        for file in 5000..6000 {
            assert!(passes.read(file, true, look).is_empty());
        }
    }

    #[test]
    fn a_pass_ends_when_all_was_in_memory() {
        let files = shuffled(300);
        let passes = Passes::new(MIB);
        passes.listed(DIRECTORY, true, &files, look);
        let read = |index: usize, is_cold| passes.read(files[index], is_cold, look).len();
        assert_eq!([read(0, true), read(1, true), read(2, true)], [0, 0, (BATCH_BYTES_MIN / BLOCK_BYTES) as usize]);
        passes.all_were_cached();
        assert!((3..300).all(|index| read(index, false) == 0));
    }

    #[test]
    fn nothing_is_read_ahead_without_memory_and_long_files_one_at_a_time() {
        let files = shuffled(100);
        let none = Passes::new(0);
        none.listed(DIRECTORY, true, &files, look);
        assert!(files.iter().all(|file| none.read(*file, true, look).is_empty()));
        let passes = Passes::new(MIB);
        passes.listed(DIRECTORY, true, &files, look);
        let long = |node| Some(Beginning { data: node, bytes: 128 << 10 });
        let ahead: Vec<usize> = files.iter().map(|file| passes.read(*file, true, long).len()).collect();
        assert_eq!(ahead[..4], [0, 0, 1, 1]);
        assert!(passes.state.lock().ahead_bytes <= MIB && ahead.iter().sum::<usize>() == 97);
    }

    #[test]
    fn no_more_files_are_remembered_than_there_is_room_for() {
        let passes = Passes::new(MIB);
        for directory in 0..100 {
            let files: Vec<u64> = (0..1000).map(|file| directory * 100_000 + file).collect();
            passes.listed(directory, true, &files, look);
            passes.listed(directory, false, &files.iter().map(|file| file + 1000).collect::<Vec<_>>(), look);
        }
        let state = passes.state.lock();
        let held: usize = state.directories.iter().map(|directory| directory.files.len()).sum();
        assert!(held == state.files && held <= FILES_MAX && state.directories.len() > 1);
        drop(state);
        let huge: Vec<u64> = (0..20_000).collect();
        passes.listed(7, true, &huge, look);
        let state = passes.state.lock();
        assert_eq!((state.files, state.directories.len()), (FILES_MAX, 1));
    }
}
