//! Explains how data is stored: per region the chosen codec, its cost and saving, from the map; the
//! memory of the region; and for one region, the result of each candidate on its first unit now,
//! and why the others lose. Reads; changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use codec::{Codec, CodecId, EncodeDictionary, Workspace, ZstdLevel};
use policy::{
    Class, Compression, Entrant, Estimate, Facts, Mode, Settings, SizeClass, decide, dst_limit, ln_cost, probe,
    wants_dictionary,
};
use store::base::status::{CodecUse, Remembered};
use store::map::Piece;
use store::objects::Object;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BLOCKS, GROUP_BYTES, GroupIndex};

use crate::codecs::dictionaries::Encoders;
use crate::codecs::regions::{REGION_BLOCKS, RegionKey};
use crate::pool::Pool;
use crate::upkeep::Upkeep;
use crate::upkeep::explain_map::{CodecMap, Looks, Uses, draw};

/// Bytes of a region.
const REGION_BYTES: u64 = REGION_BLOCKS * BLOCK_BYTES as u64;
/// Time limit of a page of regions, and of a map apart from the first look at each cell.
const MAP_NS_MAX: u64 = 200_000_000;
/// Runs of a candidate: the shortest time is used, since everything else is disturbance.
const ROUNDS: usize = 3;

/// A region of a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionReport {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Bytes of it that hold data.
    pub raw_bytes: u64,
    /// Their stored size, in all copies.
    pub stored_bytes: u64,
    /// By codec, the most data first.
    pub codecs: Vec<CodecUse>,
    /// Statistics of `auto` for it since the pool was opened.
    pub remembered: Option<Remembered>,
}

/// Result of one candidate for a unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The codec.
    pub codec: String,
    /// Bytes; none: it saves less than `min-saving`.
    pub stored_bytes: Option<u64>,
    /// CPU nanoseconds of this run.
    pub cpu_ns: u64,
    /// The expectation: saving as a share, and CPU nanoseconds for a KiB.
    pub expected_saving: f64,
    /// See `expected_saving`.
    pub expected_ns_per_kib: f64,
    /// Its cost, as a multiple of the lowest one; none: it saves nothing.
    pub cost: Option<f64>,
    /// Why it wins or loses, in words.
    pub verdict: String,
}

/// One region in detail.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionDetail {
    /// The region.
    pub region: RegionReport,
    /// The unit that was tried: where it begins in the volume, and its length, in bytes.
    pub unit_offset: u64,
    /// See `unit_offset`.
    pub unit_bytes: u64,
    /// Its collision entropy by the probe.
    pub bits_per_byte: f64,
    /// Its class, in words.
    pub class: String,
    /// The setting of `compression`.
    pub compression: String,
    /// See `compression`.
    pub mode: String,
    /// The codec for such a unit if it were written now.
    pub chosen: String,
    /// Why.
    pub why: String,
    /// Inputs of the choice in the mode `performance`: CPUs that compression can get, and
    /// nanoseconds of the device for a KiB (0: not known).
    pub cpus: f64,
    /// See `cpus`.
    pub device_ns_per_kib: f64,
    /// Power of a busy CPU, and the source of that figure.
    pub power: policy::Power,
    /// Number of the dictionary that helps zstd with this unit, if one does.
    pub dictionary: Option<u32>,
    /// Number of dictionaries to choose from.
    pub dictionaries: u8,
    /// Every candidate.
    pub trials: Vec<Trial>,
}

impl Pool {
    /// Returns the regions of a volume or a snapshot that hold data, from byte `from` on, at most
    /// `count` of them and those of 200 ms; and where to continue, if there are more. Data in the
    /// write buffer is not in them: a caller who may only read must not make the pool write.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and those of the storage.
    pub fn explain(&self, volume: &str, from: u64, count: usize) -> Result<(Vec<RegionReport>, Option<u64>)> {
        let object = self.core.objects.readable(volume)?;
        let mut reports = Vec::new();
        let end_ns = self.core.vitals.env.clock.now_ns().saturating_add(MAP_NS_MAX);
        let mut at = from / REGION_BYTES * REGION_BYTES;
        while at < object.size_bytes() {
            // A caller may have gone, and a server that ends waits for this.
            if reports.len() >= count || self.core.vitals.env.clock.now_ns() >= end_ns {
                return Ok((reports, Some(at)));
            }
            let report = self.core.upkeep.region_report(&object, at)?;
            at += REGION_BYTES;
            if report.raw_bytes > 0 {
                reports.push(report);
            } else {
                // Most of a share is empty, and most of a new volume.
                at = self.core.upkeep.next_region(&object, at)?;
            }
        }
        Ok((reports, None))
    }

    /// A map of a volume, a share or a snapshot by codec, in at most `cells` cells: from the map as
    /// it is, without what only the write buffer has.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and whatever the storage fails with.
    pub fn codec_map(&self, volume: &str, cells: usize) -> Result<CodecMap> {
        let object = self.core.objects.readable(volume)?;
        let end_ns = self.core.vitals.env.clock.now_ns().saturating_add(MAP_NS_MAX);
        let looks = Looks {
            known: &|from, to, most| self.core.reads.known_groups(&object, from, to, most),
            uses: &|group| self.core.upkeep.uses_of(&object, group),
            winner: &|group| {
                let region = self.core.chooser.regions.get(RegionKey::of(object.id, group.first_block()));
                region.winner().map(|(_, winner)| winner.to_string())
            },
            is_over: &|| self.core.vitals.env.clock.now_ns() >= end_ns,
        };
        draw(&looks, object.size_bytes(), object.is_share(), cells)
    }

    /// Bytes of data of a volume that only the write buffer has: no codec was chosen for them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn buffered_bytes(&self, volume: &str) -> Result<u64> {
        Ok(self.core.buffer.data_bytes_of(self.core.objects.readable(volume)?.id) as u64)
    }

    /// The region of a volume that holds byte `offset`, in detail, as it is stored.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] also when the region holds no stored data; [`ErrorKind::Invalid`] for
    /// an offset past the end.
    pub fn explain_region(&self, volume: &str, offset: u64) -> Result<RegionDetail> {
        let object = self.core.objects.readable(volume)?;
        if offset >= object.size_bytes() {
            let text = format!("byte {offset} is past the end of '{volume}', which has {} bytes", object.size_bytes());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let region = self.core.upkeep.region_report(&object, offset / REGION_BYTES * REGION_BYTES)?;
        self.core.upkeep.region_detail(&object, region, offset)
    }
}

impl Upkeep {
    fn groups_with_data(&self, object: &Object, offset: u64) -> Result<Vec<GroupIndex>> {
        let first = BlockIndex::containing(offset).group();
        let to = GroupIndex(first.0 + REGION_BLOCKS / GROUP_BLOCKS as u64);
        Ok(self.reads.known_groups(object, first, to, usize::MAX)?.0)
    }

    fn uses_of(&self, object: &Object, group: GroupIndex) -> Result<Uses> {
        let pieces = self.map.lookup_stored(&object.levels(), group, BlockMask::FULL)?;
        let bytes = |blocks: u32| u64::from(blocks) * BLOCK_BYTES as u64;
        let fragments = pieces.iter().map(|piece| &piece.fragment);
        Ok(fragments.map(|one| (one.codec, bytes(one.live.count()), u64::from(one.live_bytes()))).collect())
    }

    /// Returns the first region from byte `offset` on that is known; the end if there is none. It is
    /// never below `offset`, which is where a region begins.
    fn next_region(&self, object: &Object, offset: u64) -> Result<u64> {
        let from = BlockIndex::containing(offset).group();
        let end = GroupIndex(object.size_bytes().div_ceil(GROUP_BYTES as u64));
        if from >= end {
            return Ok(object.size_bytes());
        }
        let (known, next) = self.reads.known_groups(object, from, end, 1)?;
        let first = known.first().copied().unwrap_or(next);
        Ok(first.first_block().offset_bytes() / REGION_BYTES * REGION_BYTES)
    }

    fn region_report(&self, object: &Object, offset: u64) -> Result<RegionReport> {
        let mut uses: BTreeMap<u8, CodecUse> = BTreeMap::new();
        let mut add = |codec: u8, units: u64, raw_bytes: u64, stored_bytes: u64| {
            let entry = uses.entry(codec).or_insert_with(|| CodecUse {
                codec: CodecId(codec).to_string(),
                units: 0,
                raw_bytes: 0,
                stored_bytes: 0,
            });
            entry.units += units;
            entry.raw_bytes += raw_bytes;
            entry.stored_bytes += stored_bytes;
        };
        for group in self.groups_with_data(object, offset)? {
            for Piece { fragment, .. } in self.map.lookup_stored(&object.levels(), group, BlockMask::FULL)? {
                let raw_bytes = u64::from(fragment.live.count()) * BLOCK_BYTES as u64;
                add(fragment.codec, 1, raw_bytes, fragment.live_bytes().into());
            }
            for (codec, bytes) in self.writes.bytes_of_copies(object, group)? {
                add(codec, 0, 0, bytes);
            }
        }
        let mut codecs: Vec<_> = uses.into_values().collect();
        codecs.sort_by_key(|entry| std::cmp::Reverse(entry.raw_bytes));
        let remembered = self.chooser.regions.get(RegionKey::of(object.id, BlockIndex::containing(offset)));
        Ok(RegionReport {
            offset,
            raw_bytes: codecs.iter().map(|c| c.raw_bytes).sum(),
            stored_bytes: codecs.iter().map(|c| c.stored_bytes).sum(),
            codecs,
            remembered: remembered.winner().map(|(class, winner)| Remembered {
                winner: winner.to_string(),
                class: class.index() as u8,
                saving: remembered.saving(),
                units_since_test: remembered.units_since_test(),
            }),
        })
    }

    /// Returns the first unit with data at or after `offset` in its region, otherwise the first of
    /// the region: its offset, and its bytes.
    fn sample(&self, object: &Object, region: u64, offset: u64, settings: &Settings) -> Result<Option<(u64, Vec<u8>)>> {
        let mut first = None;
        for group in self.groups_with_data(object, region)? {
            let mut data = BlockMask::EMPTY;
            for piece in self.map.lookup_stored(&object.levels(), group, BlockMask::FULL)? {
                data = data.or(piece.fragment.live);
            }
            for unit in policy::plan_units(data, settings.unit_blocks) {
                let at = group.first_block().offset_bytes() + u64::from(unit.first) * BLOCK_BYTES as u64;
                let len = unit.count as usize * BLOCK_BYTES;
                if first.is_none() {
                    first = Some((at, len));
                }
                if at + len as u64 > offset {
                    first = Some((at, len));
                    break;
                }
            }
            if first.is_some_and(|(at, len)| at + len as u64 > offset) {
                break;
            }
        }
        let Some((at, len)) = first else { return Ok(None) };
        let mut bytes = vec![0; len];
        self.reads.read(object, at, &mut bytes)?;
        Ok(Some((at, bytes)))
    }

    fn region_detail(&self, object: &Object, region: RegionReport, offset: u64) -> Result<RegionDetail> {
        let settings = *object.settings.read();
        let Some((unit_offset, raw)) = self.sample(object, region.offset, offset, &settings)? else {
            let first = BlockIndex::containing(region.offset).group();
            let to = GroupIndex(first.0 + REGION_BLOCKS / GROUP_BLOCKS as u64);
            let what = if self.buffer.groups_in(object.id, first, to).is_empty() {
                "holds no data; without --region, the regions with data are listed"
            } else {
                "has data in the write buffer only, which is compressed when it is written: try again after the next \
                 flush, or after 'shale status POOL --sync'"
            };
            let text = format!("the region at byte {} {what}", region.offset);
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let probed = probe(&raw);
        let pressed = self.buffer.bytes() > self.shares.write_buffer / 2;
        let mut dictionaries =
            self.reads.encoders(object, &settings).filter(|_| wants_dictionary(&settings, raw.len()));
        let memory = self.chooser.regions.get(RegionKey::of(object.id, BlockIndex::containing(unit_offset)));
        let count = dictionaries.as_ref().map_or(0, Encoders::count);
        let helper = memory.dictionary().unwrap_or(count).min(count);
        let size = if helper > 0 { SizeClass::WITH_DICTIONARY } else { SizeClass::of(raw.len()) };
        let facts = Facts {
            auto: settings.auto(),
            size,
            price: self.chooser.costs.power().watts(),
            pressure: self.chooser.meter.pressure(pressed),
            table: &self.chooser.costs,
        };
        let (chosen, why) = match settings.compression {
            Compression::Fixed(codec) => (codec.to_string(), policy::Why::Fixed.to_string()),
            Compression::Auto => {
                let plan = facts.plan(probed.class);
                let find = |id| facts.auto.candidates.find(id);
                let decision = decide(facts.auto.mode, &plan, memory, probed.class, false, find);
                (tell(decision.action), decision.why.to_string())
            }
        };
        let dictionary = dictionaries.as_ref().and_then(|encoders| encoders.number(helper));
        let mut helped = |level| dictionaries.as_mut().and_then(|encoders| encoders.at(helper, level).cloned());
        let trials = self.trials(&facts, &settings, probed.class, &raw, &mut helped);
        Ok(RegionDetail {
            region,
            unit_offset,
            unit_bytes: raw.len() as u64,
            bits_per_byte: probed.bits_per_byte(),
            class: probed.class.to_string(),
            compression: match settings.compression {
                Compression::Fixed(codec) => codec.to_string(),
                Compression::Auto => "auto".to_owned(),
            },
            mode: settings.mode.to_string(),
            chosen,
            why,
            cpus: facts.pressure.cpus,
            device_ns_per_kib: facts.pressure.device_ns_per_kib,
            power: self.chooser.costs.power(),
            dictionary: dictionary.map(|number| number.0),
            dictionaries: count,
            trials,
        })
    }

    /// Compresses with every candidate and compares, with the times and savings of this unit.
    fn trials<T: policy::Table>(
        &self,
        facts: &Facts<'_, T>,
        settings: &Settings,
        class: Class,
        raw: &[u8],
        helped: &mut dyn FnMut(ZstdLevel) -> Option<Arc<EncodeDictionary>>,
    ) -> Vec<Trial> {
        let mut codecs = Workspace::new();
        let mut dst = vec![0; raw.len()];
        let limit = dst_limit(raw.len(), settings);
        let mut measure = |codec: Codec| {
            let helped = match codec {
                Codec::Zstd(level) => helped(level),
                _ => None,
            };
            let mut least = u64::MAX;
            let mut stored = None;
            for _ in 0..ROUNDS {
                let began = self.vitals.env.clock.thread_cpu_ns();
                stored = match &helped {
                    Some(helped) => codecs.compress_with(helped, raw, &mut dst[..limit]),
                    None => codecs.compress(codec, raw, &mut dst[..limit]),
                };
                least = least.min(self.vitals.env.clock.thread_cpu_ns().saturating_sub(began));
            }
            (codec, stored, least)
        };
        let runs: Vec<_> = facts.auto.candidates.as_slice().iter().map(|codec| measure(*codec)).collect();
        let kib = raw.len() as f64 / 1024.0;
        let estimate = |(_, stored, ns): &(Codec, Option<usize>, u64)| Estimate {
            ns_per_kib: *ns as f64 / kib,
            saving: stored.map_or(0.0, |stored| 1.0 - stored as f64 / raw.len() as f64),
            samples: 1,
        };
        let entrants = runs.iter().map(|run| Entrant { codec: run.0, estimate: estimate(run) });
        let winner = facts.choose(entrants.clone());
        let cost =
            |estimate: Estimate| ln_cost(facts.auto.mode.weights(), estimate.ns_per_kib, facts.price, estimate.saving);
        let least = entrants.clone().map(|e| cost(e.estimate)).fold(f64::INFINITY, f64::min);
        runs.iter()
            .zip(entrants)
            .map(|((codec, stored, cpu_ns), entrant)| {
                let expected = facts.estimate(*codec, class);
                let relative = (cost(entrant.estimate) - least).exp();
                Trial {
                    codec: codec.to_string(),
                    stored_bytes: stored.map(|stored| stored as u64),
                    cpu_ns: *cpu_ns,
                    expected_saving: expected.saving,
                    expected_ns_per_kib: expected.ns_per_kib,
                    cost: relative.is_finite().then_some(relative),
                    verdict: match facts.auto.mode {
                        Mode::Archive => verdict(entrant, winner),
                        _ if !facts.is_quick_to_read(*codec) => "would make random reads slow".to_owned(),
                        mode if !facts.is_moderate(*codec) => format!("takes too long for the mode {mode}"),
                        _ => verdict(entrant, winner),
                    },
                }
            })
            .collect()
    }
}

fn tell(action: policy::Action) -> String {
    match action {
        policy::Action::Raw => "raw".to_owned(),
        policy::Action::Compress { codec, fallback: None } => codec.to_string(),
        policy::Action::Compress { codec, fallback: Some(fallback) } => {
            format!("{codec}, or {fallback} if that saves too little")
        }
        policy::Action::Test(_) => "the winner of a test".to_owned(),
    }
}

/// Why a candidate wins or loses against the winner.
fn verdict(entrant: Entrant, winner: Option<Entrant>) -> String {
    let saving = 100.0 * entrant.estimate.saving;
    if saving <= 0.0 {
        return "saves less than min-saving".to_owned();
    }
    let Some(winner) = winner else { return "does not pay".to_owned() };
    if winner.codec == entrant.codec {
        return "wins".to_owned();
    }
    let points = saving - 100.0 * winner.estimate.saving;
    let times = entrant.estimate.ns_per_kib / winner.estimate.ns_per_kib.max(1.0);
    let than = winner.codec;
    match (points >= 0.05, times > 1.05) {
        (true, true) => format!("saves {points:.1} points more than {than}, for {times:.1} times the CPU time"),
        (true, false) => format!("saves {points:.1} points more than {than}, but would slow down the writer"),
        (false, true) => format!("saves no more than {than}, and takes {times:.1} times the CPU time"),
        (false, false) => format!("takes {:.2} of the CPU time of {than}, and saves {:.1} points less", times, -points),
    }
}
