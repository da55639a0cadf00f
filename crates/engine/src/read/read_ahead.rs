//! Read-ahead: a client that reads one range after another, with few requests in flight, finds the
//! next units decoded already, or on their way.

use std::ops::Range;

use store::base::ranked::Mutex;
use store::base::ranks;

/// Streams watched at the same time.
const STREAMS: usize = 8;
/// Consecutive requests before a stream is recognised.
const BELIEF: u32 = 3;
/// Maximum distance of read-ahead. At most twice this is in memory for each stream.
const WINDOW_BYTES: u64 = 2 << 20;
/// Minimum and maximum distance that a stream is read ahead. Between the two it is half of the
/// bytes that the stream has read: most files end soon, and reading beyond their end wastes device
/// and processor time.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// With more requests in flight than this the reader keeps device and cores busy by itself.
const REQUESTS_MAX: u32 = 2;
/// Concurrent requests of one stream come in any order: up to this many request lengths apart they
/// still belong to that stream.
const DISORDER: u64 = 4;

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Where it began.
    start: u64,
    next: u64,
    hits: u32,
    /// Nothing has been read or requested from here on.
    ahead: u64,
    /// Read-ahead has been requested up to here; 0 if it never was.
    asked: u64,
    used: u64,
}

impl Stream {
    fn continues(&self, offset: u64, length: u64) -> bool {
        self.used > 0 && self.next.abs_diff(offset) <= DISORDER * length && offset != self.next.wrapping_sub(length)
    }
}

#[derive(Debug, Default)]
struct State {
    streams: [Stream; STREAMS],
    active: u32,
    time: u64,
}

impl State {
    /// The next request of a stream, if it is one.
    fn advise(&mut self, offset: u64, length: u64) -> Option<Advice> {
        self.time += 1;
        let end = offset + length;
        let stream = self.streams.iter_mut().find(|s| s.continues(offset, length))?;
        // Data that other requests of the stream are about to read is not on its way to the cache.
        let expected = end <= stream.asked;
        stream.next = stream.next.max(end);
        stream.hits += 1;
        stream.used = self.time;
        stream.ahead = stream.ahead.max(end);
        let window = (end.saturating_sub(stream.start) / 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES);
        if self.active > REQUESTS_MAX || stream.hits < BELIEF || stream.ahead - end > window / 2 {
            return Some(Advice { expected, ahead: None });
        }
        let range = stream.ahead..end + window;
        (stream.ahead, stream.asked) = (range.end, range.end);
        Some(Advice { expected, ahead: Some(range) })
    }
}

/// The state in which a read begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Advice {
    /// Whether all of the request has been read ahead, or is being read.
    pub expected: bool,
    /// The range to read ahead now.
    pub ahead: Option<Range<u64>>,
}

/// The streams of one volume.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    state: Mutex<State, ranks::ReadAhead>,
}

impl ReadAhead {
    /// A read begins.
    pub(crate) fn begin(&self, offset: u64, length: u64) -> Advice {
        let mut state = self.state.lock();
        state.active += 1;
        state.advise(offset, length).unwrap_or_else(|| {
            let time = state.time;
            // The stream that was idle longest is replaced.
            if let Some(oldest) = state.streams.iter_mut().min_by_key(|s| s.used) {
                let end = offset + length;
                *oldest = Stream { start: offset, next: end, hits: 0, ahead: end, asked: 0, used: time };
            }
            Advice::default()
        })
    }

    /// A read was answered from memory: the stream continues, but none begins. Returns the range to
    /// read ahead now.
    pub(crate) fn passed(&self, offset: u64, length: u64) -> Option<Range<u64>> {
        self.state.lock().advise(offset, length)?.ahead
    }

    /// A read ended.
    pub(crate) fn end(&self) {
        self.state.lock().active -= 1;
    }

    /// Returns whether a stream has passed a range, so that reading it ahead is of no use any more.
    pub(crate) fn has_passed(&self, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        state.streams.iter().any(|s| s.used > 0 && s.next >= range.end && s.next - range.end <= WINDOW_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ahead: &ReadAhead, offset: u64, length: u64) -> Advice {
        let advice = ahead.begin(offset, length);
        ahead.end();
        advice
    }

    #[test]
    fn a_stream_is_believed_after_a_few_requests_and_read_ahead_once() {
        let ahead = ReadAhead::default();
        let (mut asked, mut expected) = (Vec::new(), 0);
        for i in 0..64 {
            let advice = read(&ahead, i << 17, 1 << 17);
            asked.extend(advice.ahead);
            expected += u32::from(advice.expected);
        }
        assert!(asked[0].start >= 3 << 17);
        for pair in asked.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "no byte twice, none left out");
        }
        assert!(expected >= 59, "{expected} of 64 requests were known to be on their way");
    }

    /// A file of 1 MiB ends when its stream has just been recognised.
    #[test]
    fn a_short_stream_is_read_ahead_by_less_than_it_is_long() {
        let ahead = ReadAhead::default();
        let mut asked = 0;
        for length in (1..=64u64).map(|requests| requests << 17) {
            let begin = length << 20;
            for at in (begin..begin + length).step_by(1 << 17) {
                asked = read(&ahead, at, 1 << 17).ahead.map_or(asked, |range| range.end);
            }
            let beyond = asked.saturating_sub(begin + length);
            assert!(beyond <= (length / 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES), "{beyond} beyond {length}");
            assert!(length < 5 << 17 || asked > begin, "{length}: read ahead");
        }
    }

    #[test]
    fn what_is_answered_from_memory_keeps_the_stream_going_but_begins_none() {
        let ahead = ReadAhead::default();
        for i in 0..64u64 {
            assert_eq!(ahead.passed(i << 17, 1 << 17), None);
        }
        let mut asked: Vec<_> = (64..68u64).filter_map(|i| read(&ahead, i << 17, 1 << 17).ahead).collect();
        asked.extend((68..128u64).filter_map(|i| ahead.passed(i << 17, 1 << 17)));
        for pair in asked.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "no byte twice, none left out");
        }
        assert!(asked.last().unwrap().end >= 128 << 17);
    }

    #[test]
    fn requests_of_a_stream_may_overtake_each_other() {
        let ahead = ReadAhead::default();
        let mut asked = Vec::new();
        for i in [0u64, 1, 2, 4, 3, 5, 7, 6, 8, 9, 11, 10, 12, 13, 14, 15, 16, 18, 17, 19, 20] {
            asked.extend(read(&ahead, i << 17, 1 << 17).ahead);
        }
        assert!(asked.len() >= 2);
        for pair in asked.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "no byte twice, none left out");
        }
        assert!(ahead.has_passed(&(20 << 17..21 << 17)) && !ahead.has_passed(&(21 << 17..22 << 17)));
    }

    #[test]
    fn random_reads_and_parallel_reads_are_left_alone() {
        let ahead = ReadAhead::default();
        for i in 0..100u64 {
            assert_eq!(read(&ahead, (i * 7919 % 1000) << 20, 4096), Advice::default());
        }
        let ahead = ReadAhead::default();
        for i in 0..REQUESTS_MAX {
            ahead.begin(u64::from(i + 1) << 40, 4096);
        }
        for i in [0u64, 1, 3, 2, 5, 4, 7, 6, 8, 11, 10, 9, 12, 13, 15, 14] {
            assert_eq!(read(&ahead, i << 17, 1 << 17), Advice::default());
        }
    }

    #[test]
    fn reading_the_same_range_again_is_no_stream() {
        let ahead = ReadAhead::default();
        for _ in 0..20 {
            assert_eq!(read(&ahead, 1 << 30, 4096), Advice::default());
        }
    }
}
