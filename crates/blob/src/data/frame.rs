//! From data to frames: the codec of each frame, and its stored bytes. Owns the policy's memory
//! across the frames of an upload. A frame that does not compress keeps the caller's bytes, which
//! are not copied.
//!
//! An upload has several *lanes*, one for each compressing thread. Each lane has its own copy of
//! the policy's memory of a region and its own table of results: neighbouring frames are usually
//! alike, and a lock per frame would cost more than it saves.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use codec::{Codec, CodecId, UNIT_BYTES_MAX, Workspace};
use env::Clock;
use format::{FragmentIdentity, fragment_checksum};
use parking_lot::Mutex;
use policy::{
    Attempt, Attempts, Auto, Compression, PlainTable, Planner, Pressure, PropertyError, Region, RuleChoice, Rules,
    Settings, TEST_CREDIT_NS, dst_limit_permille, is_zero, test_credit_earned,
};
use units::{BLOCK_BYTES, BlockIndex, Epoch, ObjectId};

use crate::data::extent::{FRAME_BYTES, Frame};

/// Returns the checksum of a frame's stored bytes as those of object 0, epoch 0, block 0, so that a
/// pool can change the identity without another pass over the bytes. `raw_len` is the length of the
/// frame's data.
pub fn frame_checksum(codec: CodecId, raw_len: u32, stored: &[u8]) -> u32 {
    let count = raw_len.div_ceil(BLOCK_BYTES as u32) as u8;
    let identity =
        FragmentIdentity { object: ObjectId(0), epoch: Epoch(0), first: BlockIndex(0), count, codec: codec.0 };
    fragment_checksum(&identity, stored)
}

/// How data is stored: the properties of a pool that make sense for a blob.
#[derive(Debug, Clone, Default)]
pub struct Encoding {
    settings: Settings,
    rules: Rules,
}

/// The choice of codecs for the frames of one upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// One codec for all frames.
    Fixed(Codec),
    /// Chosen for each frame.
    Auto(Auto),
}

/// Properties of an upload, for messages. In addition there is `rule.TYPE`.
pub const ENCODING_KEYS: [&str; 4] = ["compression", "mode", "candidates", "min-saving"];

impl Encoding {
    /// Reads properties: `compression`, `mode`, `candidates`, `min-saving` and `rule.TYPE`, with a
    /// pool's values and defaults.
    ///
    /// # Errors
    /// When a name is none of these, or a value is not allowed.
    pub fn parse(properties: &BTreeMap<String, String>) -> Result<Self, PropertyError> {
        let known = |key: &str| ENCODING_KEYS.contains(&key) || key.starts_with(policy::RULE_PREFIX);
        if let Some(key) = properties.keys().find(|key| !known(key)) {
            return Err(PropertyError::UnknownKey(key.clone()));
        }
        let resolved = policy::resolve(&BTreeMap::new(), properties)?;
        Ok(Self { settings: resolved.settings, rules: resolved.rules })
    }

    /// Decides for an upload, by the file's name and its first bytes as far as the rules use them.
    pub fn choose(&self, name: &str, head: &[u8]) -> Choice {
        let by_rule = || match self.rules.find(name, head, self.settings.mode)?.choice {
            RuleChoice::Codec(codec) => Some(codec),
            RuleChoice::Auto => None,
        };
        match self.settings.compression {
            Compression::Fixed(codec) => Choice::Fixed(codec),
            Compression::Auto => by_rule().map_or(Choice::Auto(self.settings.auto()), Choice::Fixed),
        }
    }

    /// Returns the codecs that `auto` chooses among, cheapest first.
    pub fn candidates(&self) -> Vec<Codec> {
        self.settings.auto().candidates.as_slice().to_vec()
    }

    /// Returns the smallest saving for which a frame is compressed, in thousandths.
    pub const fn min_saving_permille(&self) -> u32 {
        self.settings.min_saving_permille
    }
}

/// An encoded frame and its bytes.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// Its entry in an extent.
    pub frame: Frame,
    /// Bytes of data, at most [`FRAME_BYTES`].
    pub raw_len: u32,
    /// The stored bytes; the caller's own if the frame is raw.
    pub stored: Bytes,
}

/// Compresses the frames of one upload. Any thread may call it, and each call uses a lane of its
/// own.
pub struct Encoder {
    choice: Choice,
    min_saving_permille: u32,
    clock: Arc<dyn Clock>,
    idle: Mutex<Vec<Lane>>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("choice", &self.choice).finish_non_exhaustive()
    }
}

/// The state of one thread.
struct Lane {
    workspace: Workspace,
    table: PlainTable,
    region: Region,
    credit_ns: i64,
    kept: Vec<u8>,
    tried: Vec<u8>,
}

impl Lane {
    fn new() -> Self {
        Self {
            workspace: Workspace::new(),
            table: PlainTable::default(),
            region: Region::default(),
            credit_ns: TEST_CREDIT_NS,
            kept: vec![0; UNIT_BYTES_MAX],
            tried: vec![0; UNIT_BYTES_MAX],
        }
    }
}

impl Encoder {
    /// Creates an encoder for one upload.
    pub fn new(choice: Choice, min_saving_permille: u32, clock: Arc<dyn Clock>) -> Self {
        Self { choice, min_saving_permille, clock, idle: Mutex::default() }
    }

    /// Encodes frames in order. Takes CPU time: 0.3 to 50 ms a frame, by codec.
    pub fn encode(&self, frames: Vec<Bytes>) -> Vec<Encoded> {
        // The guard must be dropped here: other threads take their lanes at the same time.
        let idle = self.idle.lock().pop();
        let mut lane = idle.unwrap_or_else(Lane::new);
        let encoded = frames.into_iter().map(|raw| self.encode_one(&mut lane, raw)).collect();
        self.idle.lock().push(lane);
        encoded
    }

    fn encode_one(&self, lane: &mut Lane, raw: Bytes) -> Encoded {
        debug_assert!(!raw.is_empty() && raw.len() <= FRAME_BYTES as usize);
        let raw_len = raw.len() as u32;
        if is_zero(&raw) {
            return Encoded { frame: Frame::ZERO, raw_len, stored: Bytes::new() };
        }
        let limit = dst_limit_permille(raw.len(), self.min_saving_permille).min(raw.len() - 1);
        let packed = match self.choice {
            Choice::Fixed(codec) => {
                let len = lane.workspace.compress(codec, &raw, &mut lane.kept[..limit]);
                len.map(|len| (codec.id(), len))
            }
            Choice::Auto(auto) => self.decide(lane, auto, &raw, limit),
        };
        let (codec, stored) = match packed {
            Some((codec, len)) => (codec, Bytes::copy_from_slice(&lane.kept[..len])),
            None => (CodecId::RAW, raw),
        };
        let crc = frame_checksum(codec, raw_len, &stored);
        Encoded { frame: Frame { stored: stored.len() as u32, codec, crc }, raw_len, stored }
    }

    fn decide(&self, lane: &mut Lane, auto: Auto, raw: &[u8], limit: usize) -> Option<(CodecId, usize)> {
        let Lane { workspace, table, region, credit_ns, kept, tried } = lane;
        let mut attempts = LaneAttempts { workspace, clock: &*self.clock, raw, limit, tried, kept };
        let mut planner = Planner::new(auto, 1.0, Pressure::default(), table);
        let stored = planner.store(raw, *region, *credit_ns, false, &mut attempts);
        *region = stored.region;
        *credit_ns -= stored.test_ns as i64;
        *credit_ns += test_credit_earned(*credit_ns, stored.cpu_ns.saturating_sub(stored.test_ns));
        (stored.codec != CodecId::RAW).then_some((stored.codec, stored.bytes))
    }
}

/// Compresses one frame for the policy.
struct LaneAttempts<'a> {
    workspace: &'a mut Workspace,
    clock: &'a dyn Clock,
    raw: &'a [u8],
    limit: usize,
    tried: &'a mut Vec<u8>,
    kept: &'a mut Vec<u8>,
}

impl Attempts for LaneAttempts<'_> {
    fn attempt(&mut self, codec: Codec, timed: bool) -> Attempt {
        let began = if timed { self.clock.thread_cpu_ns() } else { 0 };
        let stored = self.workspace.compress(codec, self.raw, &mut self.tried[..self.limit]);
        Attempt { stored, cpu_ns: timed.then(|| self.clock.thread_cpu_ns() - began) }
    }
    fn keep(&mut self) {
        std::mem::swap(self.tried, self.kept);
    }
}

/// Cuts a stream of bytes into frames, counted from its start. Whole frames within one piece are
/// slices of it; only frames that cross pieces are copied.
#[derive(Debug, Default)]
pub struct Framer {
    pending: Vec<u8>,
}

impl Framer {
    /// Adds the next piece and appends the frames that are complete to `full`.
    pub fn push(&mut self, mut piece: Bytes, full: &mut Vec<Bytes>) {
        let frame = FRAME_BYTES as usize;
        if !self.pending.is_empty() {
            let wanted = (frame - self.pending.len()).min(piece.len());
            self.pending.extend_from_slice(&piece.split_to(wanted));
            if self.pending.len() == frame {
                full.push(std::mem::take(&mut self.pending).into());
            }
        }
        while piece.len() >= frame {
            full.push(piece.split_to(frame));
        }
        if !piece.is_empty() {
            self.pending.reserve_exact(frame);
            self.pending.extend_from_slice(&piece);
        }
    }

    /// Adds zeroes and appends the frame that they complete to `full`; returns the number of whole
    /// frames of zeroes after it.
    pub fn push_zeroes(&mut self, mut len: u64, full: &mut Vec<Bytes>) -> u64 {
        let frame = FRAME_BYTES as usize;
        if !self.pending.is_empty() {
            let wanted = ((frame - self.pending.len()) as u64).min(len) as usize;
            self.pending.resize(self.pending.len() + wanted, 0);
            len -= wanted as u64;
            if self.pending.len() == frame {
                full.push(std::mem::take(&mut self.pending).into());
            }
        }
        if self.pending.is_empty() && len > 0 {
            self.pending.resize((len % u64::from(FRAME_BYTES)) as usize, 0);
        }
        len / u64::from(FRAME_BYTES)
    }

    /// Returns the last frame, which may be shorter; `None` if the stream ended with a full one.
    pub fn finish(&mut self) -> Option<Bytes> {
        (!self.pending.is_empty()).then(|| std::mem::take(&mut self.pending).into())
    }
}

#[cfg(test)]
mod tests {
    use env::SystemClock;

    use super::*;

    fn encoder(pairs: &[(&str, &str)]) -> Encoder {
        let properties = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let encoding = Encoding::parse(&properties).unwrap();
        Encoder::new(encoding.choose("", &[]), encoding.min_saving_permille(), Arc::new(SystemClock::default()))
    }

    fn random(len: usize) -> Bytes {
        testkit::noise(1, len).into()
    }

    fn text(len: usize) -> Bytes {
        let mut all = Vec::new();
        for line in 0.. {
            all.extend_from_slice(
                format!("line {line} of a text that repeats itself, {}\n", line * 7919 % 1013).as_bytes(),
            );
            if all.len() >= len {
                break;
            }
        }
        all.truncate(len);
        all.into()
    }

    #[test]
    fn random_frames_are_the_callers_own_bytes_and_text_shrinks() {
        for pairs in [&[][..], &[("mode", "archive")], &[("compression", "lzo")], &[("compression", "bzip2-9")]] {
            let encoder = encoder(pairs);
            let (noise, words) = (random(FRAME_BYTES as usize), text(FRAME_BYTES as usize));
            let encoded = encoder.encode(vec![noise.clone(), words.clone(), Bytes::from(vec![0; 9])]);
            assert_eq!(encoded[0].frame.codec, CodecId::RAW, "{pairs:?}");
            assert_eq!(encoded[0].stored.as_ptr(), noise.as_ptr(), "not copied: {pairs:?}");
            assert!(encoded[1].stored.len() < words.len() / 2, "{pairs:?}");
            let mut back = vec![0; words.len()];
            Workspace::new().decompress(encoded[1].frame.codec, &encoded[1].stored, &mut back).unwrap();
            assert_eq!(back, words, "{pairs:?}");
            assert_eq!(frame_checksum(encoded[1].frame.codec, FRAME_BYTES, &encoded[1].stored), encoded[1].frame.crc);
            assert!(encoded[2].frame.is_zero());
        }
    }

    #[test]
    fn rules_go_by_name_and_only_what_fits_a_blob_is_known() {
        let parse = |key: &str, value: &str| Encoding::parse(&[(key.to_owned(), value.to_owned())].into());
        let encoding = parse("rule.nc", "gzip-1").unwrap();
        assert_eq!(encoding.choose("data.nc", &[]), Choice::Fixed("gzip-1".parse().unwrap()));
        assert!(matches!(encoding.choose("data.unknown", &[]), Choice::Auto(_)));
        assert!(parse("quota", "1G").is_err() && parse("mode", "slow").is_err());
    }

    #[test]
    fn frames_are_cut_from_the_start_wherever_the_pieces_end() {
        let all = random(3 * FRAME_BYTES as usize + 77);
        for step in [1000, FRAME_BYTES as usize, 300_001] {
            let (mut framer, mut frames) = (Framer::default(), Vec::new());
            for piece in all.chunks(step) {
                framer.push(Bytes::copy_from_slice(piece), &mut frames);
            }
            frames.extend(framer.finish());
            assert_eq!(frames.iter().map(Bytes::len).collect::<Vec<_>>(), [131_072, 131_072, 131_072, 77], "{step}");
            assert_eq!(frames.concat(), all, "{step}");
        }
    }

    #[test]
    fn zeroes_fill_a_frame_and_are_counted_behind_it() {
        let frame = u64::from(FRAME_BYTES);
        for (before, zeroes, frames_before, whole, left) in [
            (5, 3, 0, 0, 8),
            (5, frame - 5, 1, 0, 0),
            (5, 2 * frame, 1, 1, 5),
            (0, 3 * frame + 9, 0, 3, 9),
            (frame, frame, 1, 1, 0),
        ] {
            let (mut framer, mut frames) = (Framer::default(), Vec::new());
            framer.push(random(before as usize), &mut frames);
            assert_eq!(framer.push_zeroes(zeroes, &mut frames), whole, "{zeroes} behind {before}");
            assert_eq!(frames.len(), frames_before, "{zeroes} behind {before}");
            let mut all = frames.concat();
            all.resize(all.len() + (whole * frame) as usize, 0);
            all.extend(framer.finish().into_iter().inspect(|last| assert_eq!(last.len(), left)).flatten());
            let mut expected = random(before as usize).to_vec();
            expected.resize((before + zeroes) as usize, 0);
            assert!(all == expected, "{zeroes} behind {before}");
        }
    }
}
