//! Read-ahead: who reads one range after another, and has only one request under way, finds the next units decoded already.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::Core;
use crate::objects::Object;

/// Streams watched at the same time.
const STREAMS: usize = 8;
/// Requests in a row before a stream is believed.
const BELIEF: u32 = 3;
/// How far ahead a stream is read. Twice this is in memory at most per stream.
const WINDOW_BYTES: u64 = 2 << 20;
/// Bytes of one job, so that the workers share a window.
const JOB_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    next: u64,
    hits: u32,
    /// Up to here read-ahead has been asked for.
    ahead: u64,
    used: u64,
}

#[derive(Debug, Default)]
struct State {
    streams: [Stream; STREAMS],
    active: u32,
    time: u64,
}

/// The streams of one volume.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    state: Mutex<State>,
}

impl ReadAhead {
    /// A read begins; returns what should be read ahead.
    pub(crate) fn begin(&self, offset: u64, length: u64) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        state.active += 1;
        state.time += 1;
        let (alone, time) = (state.active == 1, state.time);
        let end = offset + length;
        let Some(stream) = state.streams.iter_mut().find(|s| s.next == offset && s.used > 0) else {
            // The stream that was idle longest makes room.
            if let Some(oldest) = state.streams.iter_mut().min_by_key(|s| s.used) {
                *oldest = Stream { next: end, hits: 0, ahead: end, used: time };
            }
            return None;
        };
        stream.next = end;
        stream.hits += 1;
        stream.used = time;
        stream.ahead = stream.ahead.max(end);
        // With several requests under way the reader keeps all cores busy by itself.
        if !alone || stream.hits < BELIEF || stream.ahead - end > WINDOW_BYTES / 2 {
            return None;
        }
        let range = stream.ahead..end + WINDOW_BYTES;
        stream.ahead = range.end;
        Some(range)
    }

    /// A read ended.
    pub(crate) fn end(&self) {
        self.state.lock().active -= 1;
    }
}

impl Core {
    /// Has the workers read a range ahead.
    pub(crate) fn read_ahead(&self, object: &Arc<Object>, range: Range<u64>) {
        let end = range.end.min(object.size_bytes());
        let mut at = range.start;
        while at < end {
            let len = JOB_BYTES.min(end - at);
            let object = object.clone();
            self.workers.submit(Box::new(move |core| {
                // Whoever reads the range meets the same error, and reports it.
                let _ = core.prefetch(&object, at, len);
            }));
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ahead: &ReadAhead, offset: u64, length: u64) -> Option<Range<u64>> {
        let range = ahead.begin(offset, length);
        ahead.end();
        range
    }

    #[test]
    fn a_stream_is_believed_after_a_few_requests_and_read_ahead_once() {
        let ahead = ReadAhead::default();
        let mut asked = Vec::new();
        for i in 0..64 {
            asked.extend(read(&ahead, i << 17, 1 << 17));
        }
        assert!(asked[0].start >= 3 << 17);
        for pair in asked.windows(2) {
            assert_eq!(pair[0].end, pair[1].start, "no byte twice, none left out");
        }
    }

    #[test]
    fn random_reads_and_parallel_reads_are_left_alone() {
        let ahead = ReadAhead::default();
        for i in 0..100u64 {
            assert_eq!(read(&ahead, (i * 7919 % 1000) << 20, 4096), None);
        }
        let ahead = ReadAhead::default();
        ahead.begin(1 << 40, 4096);
        for i in 0..64 {
            assert_eq!(read(&ahead, i << 17, 1 << 17), None);
        }
    }
}
