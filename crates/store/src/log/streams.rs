//! The open extents of the log, one for each stream, and the list of extents to open next. Owns the
//! order in which extents were opened, and the passed extents; does not know the batches in flight.
//!
//! Foreground writes and data moved by the cleaner go to different extents (streams), because new
//! data dies soon and moved data has outlived an extent already: mixed, each extent would have to
//! be cleaned because half of it is dead. In all other respects there is one log: sequence numbers
//! are global, and one list of extents serves all streams, so that no room lies idle on a list
//! whose stream has nothing to write.
//!
//! **Position of batch n.** It follows the last batch of its stream, in the extent that the stream
//! has open, or it is at the start of the first extent of the list that no earlier batch has
//! opened. Recovery relies on this; it holds because
//! 1. an extent is opened only by placing a batch at its start ([`Streams::take`]): no extent is
//!    opened and left empty, which would hide the extents opened after it;
//! 2. positions and sequence numbers are assigned together, under the log's lock: extents are
//!    opened in the order of the list and of the numbers of the batches that open them;
//! 3. the batch's header names the stream, so that recovery knows which extent is passed when
//!    another one is opened.
//!
//! **The end.** Recovery stops at the first number that is at none of these positions. Batches of
//! other streams with greater numbers may be whole on the medium: they are lost, as they would be
//! in a log of one stream, and for the same reason were never acknowledged as durable (a sync makes
//! all streams durable, and is complete only once all batches before it are written). The next
//! incarnation reuses their numbers; recovery accepts only batches of the incarnation that the
//! checkpoint names, so they are never taken for a continuation, whether or not they are
//! overwritten (each stream continues at the end of its last valid batch).
//!
//! Each extent is in one of these states, in this order: `listed`; its first `opened` ones hold
//! batches none of which is applied; `applied`: it holds the last applied batch of a stream;
//! `passed`: the next checkpoint may clean and free it.

use std::collections::VecDeque;

use format::{OpenExtent, STREAMS, Stream};
use units::ExtentIndex;

use crate::log::zero_ahead::Prefill;

/// An extent that a stream fills.
#[derive(Debug)]
pub(super) struct Open {
    pub extent: ExtentIndex,
    /// Start of its free part.
    pub offset: u32,
    /// Its space is preallocated.
    pub is_reserved: bool,
    pub prefill: Prefill,
    /// A thread is writing zeroes ahead in it, without the log's lock. Until that ends, no batch is
    /// placed in the extent, and its stream does not leave it.
    pub is_zeroing: bool,
}

/// A place for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub stream: Stream,
    pub extent: ExtentIndex,
    pub offset: u32,
}

#[derive(Debug)]
pub(super) struct Streams {
    /// The extent that each stream fills, as of the last placed batch.
    pub open: [Option<Open>; STREAMS],
    /// The same, as of the last applied batch.
    applied: [Option<OpenExtent>; STREAMS],
    /// Extents without an applied batch, in the order in which they are opened.
    listed: VecDeque<ExtentIndex>,
    /// Number of the first ones that are open, or have been.
    opened: usize,
    /// Number of the first ones whose space is preallocated; at least the opened ones.
    reserved: usize,
    /// Passed extents that no checkpoint has taken over yet.
    passed: Vec<ExtentIndex>,
}

impl Streams {
    pub(super) fn new(open: [Option<OpenExtent>; STREAMS], listed: Vec<ExtentIndex>, passed: Vec<ExtentIndex>) -> Self {
        let filled = |at: OpenExtent| Open {
            extent: at.extent,
            offset: at.offset,
            // It was, when the extent was opened; a crash may have undone that.
            is_reserved: false,
            prefill: Prefill::default(),
            is_zeroing: false,
        };
        let (applied, open) = (open, open.map(|at| at.map(filled)));
        Self { open, applied, listed: listed.into(), opened: 0, reserved: 0, passed }
    }

    /// Extents that no stream has opened yet.
    pub(super) fn ahead(&self) -> usize {
        self.listed.len() - self.opened
    }

    /// The extent that is opened next.
    pub(super) fn next(&self) -> Option<ExtentIndex> {
        self.listed.get(self.opened).copied()
    }

    /// Extents that no stream has opened yet, in order.
    pub(super) fn unopened(&self) -> impl Iterator<Item = ExtentIndex> {
        self.listed.iter().skip(self.opened).copied()
    }

    /// The open extent of a stream.
    pub(super) fn open_of(&mut self, stream: Stream) -> Option<&mut Open> {
        self.open[stream as usize].as_mut()
    }

    /// Returns whether zeroes are being written ahead in some open extent.
    pub(super) fn is_zeroing(&self) -> bool {
        self.open.iter().flatten().any(|open| open.is_zeroing)
    }

    /// Unopened extents with preallocated space.
    pub(super) fn reserved_ahead(&self) -> usize {
        self.reserved - self.opened
    }

    /// Returns the first extent ahead without preallocated space, and how many adjacent ones follow
    /// it, at most `max`.
    pub(super) fn unreserved(&self, max: usize) -> Option<(ExtentIndex, usize)> {
        let first = *self.listed.get(self.reserved)?;
        let beside = |(i, extent): &(usize, &ExtentIndex)| extent.0 == first.0 + *i as u32;
        Some((first, self.listed.iter().skip(self.reserved).take(max).enumerate().take_while(beside).count()))
    }

    /// Notes that space has been preallocated for `count` extents from `first` on, unless the list
    /// has changed since.
    pub(super) fn set_reserved(&mut self, first: ExtentIndex, count: usize) -> bool {
        let is_there = self.listed.get(self.reserved) == Some(&first);
        if is_there {
            // Extents that were adjacent in the list may not be any more, if the list has been cut
            // off.
            let beside = |(i, extent): &(usize, &ExtentIndex)| extent.0 == first.0 + *i as u32;
            let ahead = self.listed.iter().skip(self.reserved).take(count);
            self.reserved += ahead.enumerate().take_while(beside).count();
        }
        is_there
    }

    /// Places a batch of `len` bytes: after the filled part of its stream's extent, or at the start
    /// of [`next`](Self::next), which is open then.
    pub(super) fn take(&mut self, place: Place, len: u32) {
        let slot = &mut self.open[place.stream as usize];
        if place.offset == 0 {
            debug_assert_eq!(self.listed.get(self.opened), Some(&place.extent));
            debug_assert!(self.reserved > self.opened);
            self.opened += 1;
            let prefill = slot.take().map(|open| open.prefill).unwrap_or_default().in_another_extent();
            *slot = Some(Open { extent: place.extent, offset: 0, is_reserved: true, prefill, is_zeroing: false });
        }
        if let Some(open) = slot {
            debug_assert_eq!((open.extent, open.offset), (place.extent, place.offset));
            open.offset += len;
        }
    }

    /// Notes that the batch at `place`, which ends at byte `end`, is applied. Call this in the
    /// order of the log.
    pub(super) fn applied(&mut self, place: Place, end: u32) {
        if place.offset == 0 {
            let front = self.listed.pop_front();
            debug_assert_eq!(front, Some(place.extent));
            self.opened -= 1;
            self.reserved -= 1;
            self.passed.extend(self.applied[place.stream as usize].map(|before| before.extent));
        }
        self.applied[place.stream as usize] = Some(OpenExtent { extent: place.extent, offset: end });
    }

    /// Abandons all open extents, with their unapplied batches: each stream continues in a fresh
    /// extent. No zeroes may be in flight.
    pub(super) fn abandon(&mut self) {
        debug_assert!(!self.is_zeroing());
        self.passed.extend(self.applied.iter_mut().filter_map(Option::take).map(|open| open.extent));
        self.passed.extend(self.listed.drain(..self.opened));
        self.open = Default::default();
        (self.opened, self.reserved) = (0, 0);
    }

    /// Removes from the list the first unopened extent at or after `mark` and all that follow it,
    /// and abandons open extents at or after `mark` without batches in flight. With
    /// `reserved_only`, extents without preallocated space are removed as well. Returns the removed
    /// extents, none of which was ever opened.
    ///
    /// The remaining list is a prefix of the old one. So until a checkpoint without the others is
    /// durable, recovery from the previous one looks for every extent that may be opened; and a
    /// stream may abandon an extent at any time.
    pub(super) fn keep_before(&mut self, mark: ExtentIndex, reserved_only: bool) -> Vec<ExtentIndex> {
        for (open, applied) in self.open.iter_mut().zip(&mut self.applied) {
            let is_still = open.as_ref().map(|o| (o.extent, o.offset)) == applied.map(|a| (a.extent, a.offset));
            let is_zeroing = open.as_ref().is_some_and(|open| open.is_zeroing);
            if is_still && !is_zeroing && applied.is_some_and(|a| a.extent >= mark) {
                *open = None;
                self.passed.extend(applied.take().map(|a| a.extent));
            }
        }
        let ahead = self.listed.iter().skip(self.opened);
        let kept = self.opened + ahead.take_while(|extent| **extent < mark).count();
        self.reserved = self.reserved.min(kept);
        let kept = if reserved_only { self.reserved.max(self.opened) } else { kept };
        self.listed.drain(kept..).collect()
    }

    /// The position of each stream as of the last applied batch, the list from there on, and the
    /// passed extents.
    pub(super) fn position(&self) -> ([Option<OpenExtent>; STREAMS], Vec<ExtentIndex>, Vec<ExtentIndex>) {
        (self.applied, self.listed.iter().copied().collect(), self.passed.clone())
    }

    /// Notes that a checkpoint knows the first `passed` passed extents, and has put others on the
    /// list.
    pub(super) fn extend(&mut self, passed: usize, listed: &[ExtentIndex]) {
        self.passed.drain(..passed);
        self.listed.extend(listed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the hot stream and the cold one; no other is open.
    fn open(hot: Option<OpenExtent>, cold: Option<OpenExtent>) -> [Option<OpenExtent>; STREAMS] {
        [hot, cold, None, None, None]
    }

    fn extents(numbers: &[u32]) -> Vec<ExtentIndex> {
        numbers.iter().copied().map(ExtentIndex).collect()
    }

    fn place(stream: Stream, extent: u32, offset: u32) -> Place {
        Place { stream, extent: ExtentIndex(extent), offset }
    }

    /// Places a batch in `next` or in the open extent, as the log does.
    fn put(streams: &mut Streams, stream: Stream, fresh: bool) -> Place {
        let place = if fresh {
            let next = streams.next().unwrap();
            if streams.reserved_ahead() == 0 {
                assert!(streams.set_reserved(next, 1));
            }
            Place { stream, extent: next, offset: 0 }
        } else {
            let open = streams.open_of(stream).unwrap();
            Place { stream, extent: open.extent, offset: open.offset }
        };
        streams.take(place, 4096);
        place
    }

    #[test]
    fn a_position_has_what_is_applied_and_lists_what_is_only_open() {
        let mut streams = Streams::new(open(None, None), extents(&[5, 6, 9, 10]), vec![]);
        let one = put(&mut streams, Stream::Hot, true);
        let two = put(&mut streams, Stream::Cold, true);
        let three = put(&mut streams, Stream::Hot, false);
        let four = put(&mut streams, Stream::Hot, true);
        assert_eq!([one, two], [place(Stream::Hot, 5, 0), place(Stream::Cold, 6, 0)]);
        assert_eq!([three, four], [place(Stream::Hot, 5, 4096), place(Stream::Hot, 9, 0)]);
        assert_eq!((streams.ahead(), streams.next()), (1, Some(ExtentIndex(10))));
        assert_eq!(streams.position(), (open(None, None), extents(&[5, 6, 9, 10]), vec![]));
        streams.applied(one, 4096);
        let at = |extent, offset| Some(OpenExtent { extent: ExtentIndex(extent), offset });
        assert_eq!(streams.position(), (open(at(5, 4096), None), extents(&[6, 9, 10]), vec![]));
        streams.applied(two, 4096);
        streams.applied(three, 8192);
        assert_eq!(streams.position(), (open(at(5, 8192), at(6, 4096)), extents(&[9, 10]), vec![]));
        streams.applied(four, 4096);
        assert_eq!(streams.position(), (open(at(9, 4096), at(6, 4096)), extents(&[10]), extents(&[5])));
        streams.extend(1, &extents(&[20]));
        assert_eq!(streams.position(), (open(at(9, 4096), at(6, 4096)), extents(&[10, 20]), vec![]));
    }

    #[test]
    fn what_is_abandoned_is_passed_with_all_that_was_never_applied() {
        let mut streams = Streams::new(open(None, None), extents(&[5, 6, 7, 8]), extents(&[2]));
        let one = put(&mut streams, Stream::Cold, true);
        streams.applied(one, 4096);
        put(&mut streams, Stream::Hot, true);
        put(&mut streams, Stream::Cold, true);
        streams.abandon();
        assert_eq!(streams.position(), (open(None, None), extents(&[8]), extents(&[2, 5, 6, 7])));
        assert_eq!((streams.ahead(), streams.reserved_ahead()), (1, 0));
        assert!(streams.open_of(Stream::Cold).is_none());
    }

    #[test]
    fn extents_that_are_to_go_are_left_and_taken_off_the_list() {
        let mut streams = Streams::new(open(None, None), extents(&[50, 5, 51, 6, 60, 7]), vec![]);
        let one = put(&mut streams, Stream::Hot, true);
        let two = put(&mut streams, Stream::Cold, true);
        assert_eq!(
            streams.keep_before(ExtentIndex(40), false),
            extents(&[51, 6, 60, 7]),
            "the order of the list stays"
        );
        assert_eq!(streams.ahead(), 0);
        streams.extend(0, &extents(&[8, 9]));
        streams.applied(one, 4096);
        assert!(streams.keep_before(ExtentIndex(40), false).is_empty());
        let at = |extent, offset| Some(OpenExtent { extent: ExtentIndex(extent), offset });
        assert_eq!(
            streams.position(),
            (open(None, None), extents(&[5, 8, 9]), extents(&[50])),
            "nothing is under way there"
        );
        assert!(streams.open_of(Stream::Hot).is_none());
        streams.applied(two, 4096);
        let three = put(&mut streams, Stream::Hot, true);
        assert_eq!(three, place(Stream::Hot, 8, 0));
        streams.applied(three, 4096);
        streams.keep_before(ExtentIndex(40), false);
        assert_eq!(streams.position(), (open(at(8, 4096), at(5, 4096)), extents(&[9]), extents(&[50])));
        // With a batch in flight it is not abandoned.
        put(&mut streams, Stream::Hot, false);
        streams.keep_before(ExtentIndex(8), false);
        assert!(streams.open_of(Stream::Hot).is_some());
    }

    /// Late zeroes would overwrite the batches written when the extent is opened again.
    #[test]
    fn an_extent_in_which_zeroes_are_on_their_way_is_not_left() {
        let mut streams = Streams::new(open(None, None), extents(&[50, 5]), vec![]);
        let one = put(&mut streams, Stream::Hot, true);
        streams.applied(one, 4096);
        streams.open_of(Stream::Hot).unwrap().is_zeroing = true;
        assert!(streams.is_zeroing());
        assert!(streams.keep_before(ExtentIndex(40), false).is_empty());
        assert_eq!(streams.open_of(Stream::Hot).map(|open| open.extent), Some(ExtentIndex(50)));
        streams.open_of(Stream::Hot).unwrap().is_zeroing = false;
        streams.keep_before(ExtentIndex(40), false);
        assert!(streams.open_of(Stream::Hot).is_none());
        assert_eq!(streams.position(), (open(None, None), extents(&[5]), extents(&[50])));
    }

    #[test]
    fn neighbours_ahead_are_reserved_together() {
        let mut streams = Streams::new(open(None, None), extents(&[5, 6, 7, 9]), vec![]);
        assert_eq!(streams.unreserved(2), Some((ExtentIndex(5), 2)));
        assert_eq!(streams.unreserved(9), Some((ExtentIndex(5), 3)));
        assert!(streams.set_reserved(ExtentIndex(5), 3));
        assert!(!streams.set_reserved(ExtentIndex(5), 3), "the list is further by now");
        assert_eq!((streams.unreserved(9), streams.reserved_ahead()), (Some((ExtentIndex(9), 1)), 3));
        put(&mut streams, Stream::Hot, true);
        assert_eq!(streams.reserved_ahead(), 2);
    }
}
