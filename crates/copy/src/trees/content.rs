//! Copies the content of a file: in large pieces, and in ever smaller ones around damage, so that
//! only unreadable data is lost. Owns the handling of damaged files.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;

use super::{Got, Item, PIECE_BYTES, Sink, Source, Stop, Tally};
use operations::{Failure, stop_if};

/// Bytes of the smallest piece that is tried: a block of a share, and a page of any file system.
const SMALLEST_BYTES: u64 = 4 << 10;

/// A file that is read.
struct Reading<'a> {
    path: &'a [u8],
    source: &'a mut dyn Source,
    interrupted: &'a AtomicBool,
    tally: &'a mut Tally,
    /// The last part that could not be read, and why: more may join it.
    lost: Option<(Range<u64>, String)>,
    /// Why the content ends early.
    end: Option<String>,
}

/// Copies the content of an item that was created. Unreadable ranges become zeroes: the sink may
/// already rely on the announced size.
///
/// # Errors
/// Those that end the copy.
pub(super) fn copy(
    item: &Item,
    source: &mut dyn Source,
    sink: &mut dyn Sink,
    interrupted: &AtomicBool,
    tally: &mut Tally,
    report: &mut dyn FnMut(&Tally, u64),
) -> Result<(), Failure> {
    let mut reading = Reading { path: &item.path, source, interrupted, tally, lost: None, end: None };
    let done = reading.copy(item, sink, report);
    reading.record_loss();
    done
}

impl Reading<'_> {
    fn copy(&mut self, item: &Item, sink: &mut dyn Sink, report: &mut dyn FnMut(&Tally, u64)) -> Result<(), Failure> {
        for range in &item.data {
            let mut at = range.start;
            while at < range.end {
                let length = usize::try_from(range.end - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
                let mut piece = vec![0; length];
                self.fill(at, &mut piece)?;
                let written = sink.write(at, Bytes::from(piece));
                if self.tally.bear(written)?.is_none() {
                    return Ok(());
                }
                at += length as u64;
                self.tally.bytes += length as u64;
                report(self.tally, self.source.position().unwrap_or(self.tally.bytes));
            }
        }
        Ok(())
    }

    /// Fills a piece: with zeroes where it cannot be read.
    fn fill(&mut self, at: u64, piece: &mut [u8]) -> Result<(), Failure> {
        stop_if(self.interrupted)?;
        if let Some(why) = self.end.clone() {
            self.lose(at, piece, why);
            return Ok(());
        }
        let (why, is_end) = match self.source.read(at, piece) {
            Ok(Got::All) => return Ok(()),
            Ok(Got::Damaged(why)) | Err(Stop::Skip(why)) => (why, false),
            Ok(Got::End(why)) => (why, true),
            Err(Stop::Fatal(failure)) => return Err(failure),
        };
        if let Some(middle) = middle_of(at, piece.len()) {
            let (first, second) = piece.split_at_mut(middle);
            self.fill(at, first)?;
            return self.fill(at + middle as u64, second);
        }
        self.end = is_end.then(|| why.clone());
        self.lose(at, piece, why);
        Ok(())
    }

    fn lose(&mut self, at: u64, piece: &mut [u8], why: String) {
        piece.fill(0);
        let end = at + piece.len() as u64;
        match &mut self.lost {
            Some((lost, _)) if lost.end == at => lost.end = end,
            _ => {
                self.record_loss();
                self.lost = Some((at..end, why));
            }
        }
    }

    fn record_loss(&mut self) {
        if let Some((range, why)) = self.lost.take() {
            self.tally.note_zeroed(self.path, range, &why);
        }
    }
}

/// Where to split a piece, on a boundary of the smallest size; none, if it has no such boundary
/// inside.
fn middle_of(at: u64, length: usize) -> Option<usize> {
    let end = at + length as u64;
    let border = (at + length as u64 / 2) / SMALLEST_BYTES * SMALLEST_BYTES;
    let border = if border > at { border } else { border + SMALLEST_BYTES };
    (border > at && border < end).then(|| usize::try_from(border - at).unwrap_or(length))
}

#[cfg(test)]
mod tests {
    use super::super::{Added, Step};
    use super::*;

    /// A file with damaged bytes, which counts how often it is read.
    struct Damaged {
        content: Vec<u8>,
        damaged: Vec<Range<u64>>,
        reads: usize,
        fails_at: Option<u64>,
    }

    impl Source for Damaged {
        fn next(&mut self) -> Step<Option<Item>> {
            Ok(None)
        }
        fn read(&mut self, offset: u64, out: &mut [u8]) -> Step<Got> {
            self.reads += 1;
            let end = offset + out.len() as u64;
            out.fill(0xee);
            if self.fails_at.is_some_and(|at| (offset..end).contains(&at)) {
                return Err(Stop::Fatal(Failure::Internal("gone".to_owned())));
            }
            if self.damaged.iter().any(|bad| bad.start < end && offset < bad.end) {
                return Ok(Got::Damaged("bad".to_owned()));
            }
            let from = usize::try_from(offset).unwrap();
            let Some(found) = self.content.get(from..from + out.len()) else { return Ok(Got::End("short".to_owned())) };
            out.copy_from_slice(found);
            Ok(Got::All)
        }
    }

    struct Recorder(Vec<u8>);

    impl Sink for Recorder {
        fn add(&mut self, _: &Item) -> Step<Added> {
            Ok(Added::New)
        }
        fn write(&mut self, offset: u64, data: Bytes) -> Step {
            let from = usize::try_from(offset).unwrap();
            self.0.resize(self.0.len().max(from + data.len()), 0);
            self.0[from..from + data.len()].copy_from_slice(&data);
            Ok(())
        }
        fn end(&mut self, _: &Item) -> Step {
            Ok(())
        }
        fn finish(&mut self) -> Step<Vec<String>> {
            Ok(Vec::new())
        }
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| u8::try_from(at % 251).unwrap() + 1).collect()
    }

    #[allow(clippy::single_range_in_vec_init, reason = "the one range of data that the file has")]
    fn copied(source: &mut Damaged, size: u64) -> (Vec<u8>, Tally, bool) {
        let item = Item { path: b"f".to_vec(), mode: libc::S_IFREG, size, data: vec![0..size], ..Item::default() };
        let (mut sink, mut tally) = (Recorder(Vec::new()), Tally::default());
        let done = copy(&item, source, &mut sink, &AtomicBool::new(false), &mut tally, &mut |_, _| {});
        (sink.0, tally, done.is_ok())
    }

    fn places(tally: &Tally) -> Vec<(u64, u64)> {
        tally.zeroed.iter().map(|zeroed| (zeroed.offset, zeroed.length)).collect()
    }

    #[test]
    fn only_what_is_damaged_becomes_zeroes() {
        let length = 3 * PIECE_BYTES + 777;
        let all = content(length);
        // In the middle; over the border of two pieces; in the last, short block.
        let piece = PIECE_BYTES as u64;
        let damaged = vec![300_000..300_001, piece * 2 - 1..piece * 2 + 1, length as u64 - 1..length as u64];
        let mut source = Damaged { content: all.clone(), damaged, reads: 0, fails_at: None };
        let (found, tally, is_done) = copied(&mut source, length as u64);
        assert!(is_done);
        assert_eq!(places(&tally), [(299_008, 4096), (piece * 2 - 4096, 8192), (piece * 3, 777)]);
        assert_eq!((tally.problems, tally.zeroed_bytes), (3, 4096 + 8192 + 777), "{:?}", tally.lines);
        assert!(tally.lines[0].contains("4096 bytes from byte 299008 on"), "{}", tally.lines[0]);
        let mut wanted = all;
        for (offset, length) in places(&tally) {
            let from = usize::try_from(offset).unwrap();
            wanted[from..from + usize::try_from(length).unwrap()].fill(0);
        }
        assert!(found == wanted, "other bytes than the damaged ones have changed");
        assert!(source.reads < 100, "{} reads", source.reads);
    }

    #[test]
    fn a_file_that_has_become_shorter_is_not_read_on() {
        let size = 64 * PIECE_BYTES as u64;
        let mut source = Damaged { content: content(10_000), damaged: vec![], reads: 0, fails_at: None };
        let (found, tally, is_done) = copied(&mut source, size);
        assert!(is_done && found[..8192] == content(8192) && found[8192..].iter().all(|&byte| byte == 0));
        assert_eq!(places(&tally), [(8192, size - 8192)]);
        assert!(source.reads < 30, "{} reads", source.reads);
    }

    #[test]
    fn zeroes_are_named_even_if_the_copy_fails_later() {
        let damaged = Range { start: 5000, end: 5001 };
        let damaged = vec![damaged];
        let mut source = Damaged { content: content(1 << 21), damaged, reads: 0, fails_at: Some(3 << 19) };
        let (_, tally, is_done) = copied(&mut source, 1 << 21);
        assert!(!is_done);
        assert_eq!(places(&tally), [(4096, 4096)]);
    }
}
