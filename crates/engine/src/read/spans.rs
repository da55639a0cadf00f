//! Divides the fragments that are to be read into *spans*, each one read of the data file, and
//! keeps the reads of many spans in flight. Owns those reads ([`SpanReads`]), which belong to the
//! thread that began them; it owns neither the fragments nor their claims.
//!
//! Data that was written together is stored together in the log, so neighbours are read in one go,
//! small gaps between them included.

use std::collections::VecDeque;
use std::ops::Range;

use env::{AlignedBuf, Disk, EndedRead, ReadRing};
use format::FragmentRef;
use store::base::scratch::READ_BYTES_MAX;
use store::objects::Object;
use surface::{Error, ErrorKind, Result};

use crate::read::Reads;
use crate::read::reader::{Wanted, at};

/// Gap between two fragments that is read rather than skipped: a second read costs more.
const GAP_BYTES_MAX: u64 = 8 << 10;
/// Longest read of which many are in flight: see `env::FileDisk`.
const IN_FLIGHT_BYTES_MAX: u64 = 128 << 10;

/// Divides fragments, sorted by location, into those that are read in one go.
pub(crate) fn neighbours(wanted: &[Wanted]) -> impl Iterator<Item = Range<usize>> {
    divide(wanted, |wanted| wanted, READ_BYTES_MAX as u64)
}

/// Divides fragments, sorted by location, into reads of at most `bytes_max` bytes, if none of them
/// is larger.
fn divide<T>(fragments: &[T], of: impl Fn(&T) -> &Wanted, bytes_max: u64) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let mut rest = fragments[next..].iter().map(|fragment| &of(fragment).piece.fragment);
        let first = rest.next()?;
        let mut end = end_of(first);
        let more = rest.take_while(|fragment| {
            let is_near = fragment.location <= end + GAP_BYTES_MAX && end_of(fragment) - first.location <= bytes_max;
            end = end.max(end_of(fragment));
            is_near
        });
        let start = next;
        next += 1 + more.count();
        Some(start..next)
    })
}

/// The payload of a fragment in the bytes read from byte `start` of the data file on.
pub(crate) fn payload_of<'b>(wanted: &Wanted, bytes: &'b [u8], start: u64) -> &'b [u8] {
    let fragment = &wanted.piece.fragment;
    let from = (fragment.location - start) as usize;
    &bytes[from..from + fragment.stored as usize]
}

/// End of a fragment in the data file.
fn end_of(fragment: &FragmentRef) -> u64 {
    fragment.location + u64::from(fragment.stored)
}

/// Returns whether the second of two fragments, which follows the first, is read with it.
pub(crate) fn is_adjacent(first: &FragmentRef, second: &FragmentRef) -> bool {
    second.location <= end_of(first) + GAP_BYTES_MAX
}

/// A read of the data file.
pub(crate) struct Span {
    /// The indices of its fragments.
    pub fragments: Range<usize>,
    /// First byte, and length: whole sectors.
    pub start: u64,
    pub len: usize,
}

impl Reads {
    /// Divides fragments, sorted by location, into spans for [`SpanReads`].
    ///
    /// # Errors
    /// For each span that of [`place_of`](Self::place_of).
    pub(crate) fn spans<T>(
        &self,
        object: &Object,
        fragments: &[T],
        of: impl Fn(&T) -> &Wanted + Copy,
    ) -> impl Iterator<Item = Result<Span>> {
        divide(fragments, of, IN_FLIGHT_BYTES_MAX).map(move |indices| {
            let (start, len) = self.place_of(object, fragments[indices.clone()].iter().map(of))?;
            Ok(Span { fragments: indices, start, len })
        })
    }

    /// Returns the start and the length of a read of some fragments, in whole sectors; the first
    /// one has the lowest location.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if one of them cannot be there.
    pub(crate) fn place_of<'w>(
        &self,
        object: &Object,
        fragments: impl Iterator<Item = &'w Wanted>,
    ) -> Result<(u64, usize)> {
        let (mut start, mut end) = (u64::MAX, 0);
        for Wanted { group, piece } in fragments {
            let fragment = &piece.fragment;
            if !self.geometry.holds(fragment.location, fragment.stored) {
                let text = format!(
                    "the map points at {} bytes at byte {} of the data file, where no data can be",
                    fragment.stored, fragment.location
                );
                return Err(at(Error::new(ErrorKind::Corrupt, text), object, *group, fragment.live));
            }
            start = start.min(fragment.location);
            end = end.max(end_of(fragment));
        }
        let align = self.vitals.env.disk.read_alignment() as u64;
        let start = start / align * align;
        Ok((start, (end.next_multiple_of(align) - start) as usize))
    }
}

/// The reads in flight of one thread.
pub(crate) struct SpanReads<'a> {
    reads: &'a Reads,
    ring: Box<dyn ReadRing + 'a>,
    /// The owner and the span of each read in flight, by its tag, and unused tags.
    under_way: Vec<Option<(usize, Span)>>,
    free: Vec<usize>,
    bytes: usize,
}

/// A span that was read.
pub(crate) struct EndedSpan {
    /// The caller's name for the request.
    pub owner: usize,
    pub span: Span,
    /// Whether it was read completely; see [`EndedRead`].
    pub is_whole: bool,
    /// Begins with the bytes of the span; return it to the pool's buffers.
    pub buf: AlignedBuf,
}

impl<'a> SpanReads<'a> {
    /// Reads through the disk's ring: `None` if it has none.
    pub(crate) fn in_ring(reads: &'a Reads) -> Option<Self> {
        Some(Self::with(reads, reads.vitals.env.disk.read_ring()?))
    }

    /// Reads one span after the other.
    pub(crate) fn one_by_one(reads: &'a Reads) -> Self {
        Self::with(reads, Box::new(OneByOne { disk: &*reads.vitals.env.disk, begun: VecDeque::new() }))
    }

    const fn with(reads: &'a Reads, ring: Box<dyn ReadRing + 'a>) -> Self {
        Self { reads, ring, under_way: Vec::new(), free: Vec::new(), bytes: 0 }
    }

    /// Returns the bytes that are in flight.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins a read for the request `owner`.
    pub(crate) fn begin(&mut self, owner: usize, span: Span) {
        let Span { start, len, .. } = span;
        let buf = self.reads.buffers.get_for_reading(len);
        self.bytes += len;
        self.reads.vitals.counters.read_disk_bytes.add(len as u64);
        let tag = self.free.pop().unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() - 1
        });
        self.under_way[tag] = Some((owner, span));
        self.ring.begin(tag, start, buf, len);
    }

    /// Waits until any one of the reads ends: `None` if none is in flight.
    pub(crate) fn wait(&mut self) -> Option<EndedSpan> {
        let EndedRead { tag, buf, whole: is_whole } = self.ring.wait()?;
        let (owner, span) = self.under_way[tag].take()?;
        self.free.push(tag);
        self.bytes -= span.len;
        Some(EndedSpan { owner, span, is_whole, buf })
    }
}

/// A ring that does each read when it is waited for, in their order.
struct OneByOne<'a> {
    disk: &'a dyn Disk,
    begun: VecDeque<(usize, u64, AlignedBuf, usize)>,
}

impl ReadRing for OneByOne<'_> {
    fn begin(&mut self, tag: usize, offset: u64, buf: AlignedBuf, len: usize) {
        self.begun.push_back((tag, offset, buf, len));
    }

    fn wait(&mut self) -> Option<EndedRead> {
        let (tag, offset, mut buf, len) = self.begun.pop_front()?;
        let whole = self.disk.read_at(offset, &mut buf, len).is_ok();
        Some(EndedRead { tag, buf, whole })
    }
}

#[cfg(test)]
mod tests {
    use store::map::Piece;
    use units::{BlockMask, Epoch, GroupIndex, ObjectId};

    use super::*;

    fn of(location: u64, stored: u32) -> Wanted {
        let fragment =
            FragmentRef { live: BlockMask::FULL, first: 0, count: 32, codec: 0, stored, checksum: 0, location };
        Wanted { group: GroupIndex(0), piece: Piece { object: ObjectId(1), epoch: Epoch(1), fragment } }
    }

    /// The number of fragments of each read.
    fn divided(fragments: &[Wanted], bytes_max: u64) -> Vec<usize> {
        let spans: Vec<_> = divide(fragments, |wanted| wanted, bytes_max).collect();
        assert!(spans.iter().flat_map(Range::clone).eq(0..fragments.len()), "in order, each once");
        spans.iter().map(ExactSizeIterator::len).collect()
    }

    #[test]
    fn neighbours_are_read_together_up_to_a_gap_and_a_length() {
        let near = [of(0, 100), of(100, 100), of(200 + GAP_BYTES_MAX, 100)];
        let end = 300 + GAP_BYTES_MAX;
        assert_eq!([end, end - 1].map(|bytes_max| divided(&near, bytes_max)), [vec![3], vec![2, 1]]);
        let far = [of(0, 100), of(101 + GAP_BYTES_MAX, 100), of(201 + GAP_BYTES_MAX, 100)];
        assert_eq!(divided(&far, 1 << 20), [1, 2]);
        // A short fragment within a long one does not end the read early.
        let within = [of(0, 5000), of(100, 100), of(5000 + GAP_BYTES_MAX, 100)];
        assert_eq!(divided(&within, 1 << 20), [3]);
        // One that is too long is read all the same.
        assert_eq!(divided(&within, 4096), [2, 1]);
        assert_eq!(neighbours(&[]).count(), 0);
    }
}
