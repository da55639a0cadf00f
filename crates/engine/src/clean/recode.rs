//! Recompresses fragments for the callers that move them: recompression and, for cold data, the
//! cleaner.
//!
//! A fragment is decoded; its live part is compressed as if it were written now, and becomes moves
//! from its old location, if that makes it clearly smaller. So data never becomes larger. Units
//! larger than the property `unit` are divided, if that still makes them smaller; small ones are
//! not joined, because a move has a single source (`upkeep::defrag` does that). They keep their
//! epoch: snapshots see the same data.

use codec::{CodecId, DictionaryNumber};
use format::FragmentRef;
use policy::{Compression, Settings, plan_units, wants_dictionary};
use store::base::scratch;
use surface::Hint;
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BLOCKS, ObjectId};

use crate::clean::Cleaning;
use crate::clean::extent_liveness::Resident;
use crate::clean::survivors::Survivors;
use crate::codecs::chooser;
use crate::codecs::compress::compress_with;
use crate::codecs::dictionaries::Encoders;
use crate::codecs::hints::{compression_of, place_of};
use crate::codecs::regions::RegionKey;
use crate::read::dictionaries::Readers;

/// A fragment is moved only if that gains this share of its size: less is not worth a write and a
/// dead location.
const GAIN_DIVISOR: usize = 32;
/// Marks regions of recompressed data: their statistics are apart from those of new writes, whose
/// codec may be chosen in another mode.
const APART: u64 = 1 << 63;

/// Compresses one fragment after the other.
pub(crate) struct Recoder<'a> {
    cleaning: &'a Cleaning,
    batch: chooser::Batch<'a>,
    /// The volume of the last fragment, and its dictionaries.
    known: Option<(ObjectId, Option<Encoders<'a>>)>,
}

impl<'a> Recoder<'a> {
    pub(crate) fn new(cleaning: &'a Cleaning) -> Self {
        let batch = cleaning.chooser.begin(false, cleaning.vitals.counters.written_bytes.get()).apart();
        Self { cleaning, batch, known: None }
    }

    /// Compresses the blocks `live` of a fragment with a verified payload. Returns their old and
    /// new size in bytes, if the new one is clearly smaller; the new fragments are then among the
    /// survivors. All fragments of a volume are rewritten under the same settings; `hint`: known
    /// facts on the file that it is a part of.
    pub(crate) fn recode(
        &mut self,
        resident: &Resident,
        live: BlockMask,
        payload: &[u8],
        settings: &Settings,
        hint: Hint,
        survivors: &mut Survivors,
    ) -> Option<(usize, usize)> {
        let Resident { object: volume, stored, location, reference } = resident;
        if self.known.as_ref().is_none_or(|(known, _)| *known != volume.id) {
            self.known = Some((volume.id, self.cleaning.reads.encoders(volume, settings)));
        }
        let Self { cleaning, batch, known } = self;
        let mut dictionaries = known.as_mut().and_then(|(_, dictionaries)| dictionaries.as_mut());
        let before = FragmentRef { live, ..*reference }.live_bytes() as usize;
        let raw_len = usize::from(stored.fragment.count) * BLOCK_BYTES;
        let codec = CodecId(stored.fragment.codec);
        // Data that needs an old dictionary is recompressed wherever that costs no space: then the
        // old one can be dropped.
        let newest = dictionaries.as_ref().and_then(|encoders| encoders.number(encoders.count()));
        let is_outdated = codec == CodecId::ZSTD_DICTIONARY
            && DictionaryNumber::split(payload).is_some_and(|(number, _)| Some(number) != newest);
        let least_gain = if is_outdated { 0 } else { before / GAIN_DIVISOR };
        // Try units as large as the property allows; if that gains too little, keep the unit's
        // size.
        let sizes = [settings.unit_blocks.max(1), GROUP_BLOCKS as u32];
        let sizes = if u32::from(stored.fragment.count) > sizes[0] { &sizes[..] } else { &sizes[1..] };
        scratch::with(|scratch| {
            let scratch::Scratch { codecs, unit, spare, .. } = scratch;
            let raw = &mut unit[..raw_len];
            cleaning.reads.decode(Readers::Free, volume, codecs, (codec, payload), raw, raw_len).ok()?;
            let mut target = vec![0; raw_len];
            sizes.iter().find_map(|unit_blocks| {
                let mark = survivors.mark();
                for unit in plan_units(live, *unit_blocks) {
                    let block = BlockIndex(resident.key().group.first_block().0 + u64::from(unit.first));
                    let skip = (block.0 - stored.fragment.first.0) as usize * BLOCK_BYTES;
                    let raw = &raw[skip..skip + unit.count as usize * BLOCK_BYTES];
                    let target = &mut target[..raw.len()];
                    let is_helped = dictionaries.is_some() && wants_dictionary(settings, raw.len());
                    let compression = compression_of(hint, settings, raw, is_helped);
                    let settings = &Settings { compression, ..*settings };
                    let (id, len) = match compression {
                        Compression::Fixed(codec) => compress_with(codecs, codec, raw, target, settings),
                        Compression::Auto => {
                            let object = ObjectId(stored.object.0 | APART);
                            let dictionaries =
                                dictionaries.as_deref_mut().filter(|_| wants_dictionary(settings, raw.len()));
                            let (first, afresh) = (block, is_outdated);
                            let region = RegionKey::at(object, place_of(first, hint));
                            let unit =
                                chooser::Unit { object, first, raw, settings, dictionaries, region, afresh, target };
                            let done = batch.store(unit, codecs, spare);
                            (done.codec, done.stored)
                        }
                    };
                    survivors.push_unit(stored, *location, (block, unit.count as u8), id, &target[..len]);
                }
                let (after, described) = survivors.since(mark);
                let wins = described + least_gain <= before;
                if !wins {
                    survivors.cut_back(mark);
                }
                wins.then_some((before, after))
            })
        })
    }

    /// Adds the time spent to the budget for tests.
    pub(crate) fn finish(self) {
        self.batch.finish();
    }
}
