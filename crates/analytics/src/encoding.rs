//! The bytes of a frame, version 1: docs/FORMAT.md has them. Pure.
//!
//! Head of 32 bytes: magic 4, version 1, tier 1, two zeros, first second 8, length of the body 4,
//! length of the compressed body 4, CRC-32C of everything else 4, four zeros. Then the body,
//! compressed with zstd.

use std::fmt;

use crate::columns::{Reader, differences, plain, put_differences, put_plain, put_varint};
use crate::dataset::{Dataset, Shape};
use crate::frame::{Frame, Key, LABEL_BYTES_MAX, OTHER, Point};
use crate::tier::Tier;

const MAGIC: [u8; 4] = *b"SHAF";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 32;
/// The checksum's place in the head.
const CHECKSUM_AT: usize = 24;
/// A body of all series, each second as large as can be, has 10 bytes a value.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Twice the labels that a dataset can have, and room.
const NAME_BYTES_MAX: usize = 4 * (LABEL_BYTES_MAX + 1);
/// A frame under way may be stored with all series that it has.
const SERIES_MAX: usize = 8192;
const ZSTD_LEVEL: i32 = 3;
/// Steps of the peak's logarithm to base 2: a step is 2.4 %, and 255 of them a factor of 360, more
/// than the seconds of the coarsest step.
const PEAK_STEPS: f64 = 30.0;

/// Bytes that are no frame: why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError(pub(crate) &'static str);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for DecodeError {}

/// The peak as a ratio to the mean.
fn peak_code(point: &Point, covered: u32) -> u64 {
    let mean = point.sum as f64 / f64::from(covered.max(1));
    if point.sum == 0 || point.peak as f64 <= mean {
        return 0;
    }
    ((point.peak as f64 / mean).log2() * PEAK_STEPS).round().clamp(0.0, 255.0) as u64
}

fn peak_of(sum: u64, covered: u32, code: u64) -> u64 {
    let mean = sum as f64 / f64::from(covered.max(1));
    ((mean * (code as f64 / PEAK_STEPS).exp2()).round() as u64).min(sum)
}

fn body_of(frame: &Frame) -> Vec<u8> {
    let count = frame.tier.points();
    let mut out = Vec::new();
    put_differences(&mut out, frame.covered.iter().map(|covered| u64::from(*covered)));
    put_varint(&mut out, frame.folded);
    put_varint(&mut out, frame.left_out);
    put_varint(&mut out, frame.names.len() as u64);
    for (object, name) in &frame.names {
        put_varint(&mut out, *object);
        put_varint(&mut out, name.len() as u64);
        out.extend_from_slice(name.as_bytes());
    }
    put_varint(&mut out, frame.series.len() as u64);
    let mut before: &str = "";
    for (key, points) in &frame.series {
        out.push(key.dataset.number());
        // Keys are in order: neighbours share most of their labels.
        let shared = before.bytes().zip(key.labels.bytes()).take_while(|(a, b)| a == b).count();
        put_varint(&mut out, shared as u64);
        put_varint(&mut out, (key.labels.len() - shared) as u64);
        out.extend_from_slice(&key.labels.as_bytes()[shared..]);
        put_varint(&mut out, key.object.wrapping_add(1));
        before = &key.labels;
        let at = |step: usize| points.get(step).copied().unwrap_or_default();
        put_differences(&mut out, (0..count).map(|step| at(step).sum));
        match (frame.tier, key.dataset.shape()) {
            (Tier::Seconds, _) => {}
            (_, Shape::Sum) => put_plain(&mut out, (0..count).map(|step| peak_code(&at(step), frame.covered[step]))),
            (_, Shape::Gauge) => {
                put_differences(&mut out, (0..count).map(|step| at(step).least));
                put_differences(&mut out, (0..count).map(|step| at(step).peak));
            }
        }
    }
    out
}

fn checksum_of(head: &[u8], body: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&head[..CHECKSUM_AT]);
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &head[CHECKSUM_AT + 4..]), body)
}

impl Frame {
    /// The frame as bytes, within the bounds of its tier.
    ///
    /// # Errors
    /// When zstd fails: it has no memory.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut bounded = self.clone();
        bounded.keep_bounds();
        let body = body_of(&bounded);
        let mut packed = vec![0; zstd_safe::compress_bound(body.len())];
        let len = zstd_safe::compress(&mut packed[..], &body, ZSTD_LEVEL)
            .map_err(|_| DecodeError("zstd cannot compress it"))?;
        packed.truncate(len);
        let mut out = Vec::with_capacity(HEAD_BYTES + len);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.tier.number(), 0, 0]);
        out.extend_from_slice(&self.start.to_le_bytes());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let checksum = checksum_of(&out, &packed);
        out[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&packed);
        Ok(out)
    }

    /// The frame of bytes that are stored for `tier` and `start`.
    ///
    /// # Errors
    /// When they are damaged, or are another frame's.
    pub fn decode(bytes: &[u8], tier: Tier, start: u64) -> Result<Self, DecodeError> {
        let (head, packed) = bytes.split_at_checked(HEAD_BYTES).ok_or(DecodeError("it is shorter than a head"))?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let second = head[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if head[..4] != MAGIC || head[4] != VERSION {
            return Err(DecodeError("it has another magic or version"));
        }
        if word(CHECKSUM_AT) != checksum_of(head, packed) {
            return Err(DecodeError("its checksum does not match"));
        }
        let (body_len, packed_len) = (word(16) as usize, word(20) as usize);
        if packed_len != packed.len() || body_len > BODY_BYTES_MAX {
            return Err(DecodeError("its lengths do not match"));
        }
        if (head[5], second) != (tier.number(), start) {
            return Err(DecodeError("it is the frame of another time"));
        }
        let mut body = vec![0; body_len];
        match zstd_safe::decompress(&mut body[..], packed) {
            Ok(len) if len == body_len => of_body(&body, tier, start),
            _ => Err(DecodeError("zstd cannot decompress it")),
        }
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError("a name is not UTF-8"))
}

fn of_body(body: &[u8], tier: Tier, start: u64) -> Result<Frame, DecodeError> {
    let count = tier.points();
    let mut reader = Reader(body);
    let mut frame = Frame::new(tier, start);
    let covered = differences(&mut reader, count)?;
    frame.covered = covered.into_iter().map(|seconds| seconds.min(tier.step_s()) as u32).collect();
    frame.folded = reader.varint()?;
    frame.left_out = reader.varint()?;
    for _ in 0..reader.count(SERIES_MAX)? {
        let object = reader.varint()?;
        let len = reader.count(NAME_BYTES_MAX)?;
        frame.names.insert(object, text_of(reader.take(len)?)?.into());
    }
    let mut before: Vec<u8> = Vec::new();
    for _ in 0..reader.count(SERIES_MAX)? {
        let number = reader.take(1)?[0];
        let dataset = Dataset::by_number(number).ok_or(DecodeError("it has an unknown dataset"))?;
        let shared = reader.count(before.len())?;
        let len = reader.count(NAME_BYTES_MAX)?;
        before.truncate(shared);
        before.extend_from_slice(reader.take(len)?);
        let key = Key { dataset, labels: text_of(&before)?.into(), object: reader.varint()?.wrapping_sub(1) };
        let sums = differences(&mut reader, count)?;
        let points: Vec<Point> = match (tier, dataset.shape()) {
            (Tier::Seconds, _) => sums.into_iter().map(Point::of_second).collect(),
            (_, Shape::Sum) => {
                let codes = plain(&mut reader, count)?;
                let peaks = sums.into_iter().zip(codes).zip(&frame.covered);
                peaks
                    .map(|((sum, code), covered)| Point { sum, peak: peak_of(sum, *covered, code), least: 0 })
                    .collect()
            }
            (_, Shape::Gauge) => {
                let (least, peaks) = (differences(&mut reader, count)?, differences(&mut reader, count)?);
                let levels = sums.into_iter().zip(least).zip(peaks);
                levels.map(|((sum, least), peak)| Point { sum, peak, least }).collect()
            }
        };
        frame.series.insert(key, points);
    }
    if reader.0.is_empty() { Ok(frame) } else { Err(DecodeError("it has bytes past its end")) }
}

const _: () = assert!(OTHER.wrapping_add(1) == 0);
