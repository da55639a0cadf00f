//! Reading many ranges of a version with few requests, for columns of a table or chunks of an
//! array. Owns which ranges are read together. Any task may call it.

use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;

use crate::blob::Blob;
use crate::data::extent::FRAME_BYTES;
use crate::error::Error;
use crate::protocol::record::Record;

/// Largest gap between two ranges that are read together: one frame, of which the reader below
/// drops all but 32 KiB anyway.
const GAP_BYTES: u64 = FRAME_BYTES as u64;
/// Bytes of ranges read together: about one request.
const TOGETHER_BYTES_MAX: u64 = 8 << 20;
/// Groups of ranges read at once: with a frame each, 4 MiB in flight.
const GROUPS_AT_ONCE: usize = 32;

impl Blob {
    /// Returns the bytes of each range, in the order of the ranges, clipped to the end of the blob.
    /// A failing range does not affect the others.
    pub async fn read_ranges(&self, version: &Record, ranges: &[Range<u64>]) -> Vec<Result<Bytes, Error>> {
        let mut answers: Vec<Result<Bytes, Error>> = ranges.iter().map(|_| Ok(Bytes::new())).collect();
        let groups = group(ranges, version.size);
        let reads = groups.into_iter().map(|(span, members)| async move {
            let read = if span.end - span.start <= TOGETHER_BYTES_MAX {
                self.read(version, span.start, span.end).await
            } else {
                self.read_long(version, &span).await
            };
            (span, members, read)
        });
        let mut reads = futures_util::stream::iter(reads).buffer_unordered(GROUPS_AT_ONCE);
        while let Some((span, members, read)) = reads.next().await {
            let shared = members.len() > 1;
            match read {
                Ok(bytes) => {
                    for index in members {
                        let range = cut(&ranges[index], version.size);
                        let part = (range.start - span.start) as usize..(range.end - span.start) as usize;
                        answers[index] = Ok(bytes.slice(part));
                    }
                }
                Err(error) if !shared => answers[members[0]] = Err(error),
                // One bad frame must fail only the ranges that need it.
                Err(_) => {
                    for index in members {
                        let range = cut(&ranges[index], version.size);
                        answers[index] = self.read_long(version, &range).await;
                    }
                }
            }
        }
        answers
    }

    /// Returns a range of any length.
    async fn read_long(&self, version: &Record, range: &Range<u64>) -> Result<Bytes, Error> {
        let len = range.end - range.start;
        let mut all = Vec::new();
        all.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))
            .map_err(|_full| Error::Refused(format!("{len} bytes do not fit in memory at once: read them in parts")))?;
        let mut parts = std::pin::pin!(self.stream(version, range.start, range.end));
        while let Some(part) = parts.next().await {
            all.extend_from_slice(&part?);
        }
        Ok(all.into())
    }
}

fn cut(range: &Range<u64>, size: u64) -> Range<u64> {
    let start = range.start.min(size);
    start..range.end.clamp(start, size)
}

/// Groups ranges that are read together: the bytes of each group, and its ranges.
fn group(ranges: &[Range<u64>], size: u64) -> Vec<(Range<u64>, Vec<usize>)> {
    let mut order: Vec<(Range<u64>, usize)> =
        ranges.iter().enumerate().map(|(index, range)| (cut(range, size), index)).collect();
    order.retain(|(range, _)| range.start < range.end);
    order.sort_by_key(|(range, _)| (range.start, range.end));
    let mut groups: Vec<(Range<u64>, Vec<usize>)> = Vec::new();
    for (range, index) in order {
        if let Some((span, members)) = groups.last_mut() {
            let end = span.end.max(range.end);
            if range.start <= span.end + GAP_BYTES && end - span.start <= TOGETHER_BYTES_MAX {
                span.end = end;
                members.push(index);
                continue;
            }
        }
        groups.push((range, vec![index]));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "the list has one range")]
    fn ranges_are_grouped_in_order_and_cut() {
        let mib = 1 << 20;
        let ranges = [5 * mib..5 * mib + 10, 0..100, 50..200, 9 * mib..20 * mib, 0..0, 30 * mib..31 * mib];
        let groups = group(&ranges, 10 * mib);
        assert_eq!(groups, [(0..200, vec![1, 2]), (5 * mib..5 * mib + 10, vec![0]), (9 * mib..10 * mib, vec![3])]);
        assert!(group(&[3..7], 3).is_empty());
    }
}
