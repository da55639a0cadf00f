//! Explains how the files of a share are stored: parts of a file with one codec each, from the map,
//! and the statistics of a kind of content. Owns nothing and changes nothing; threads of clients
//! call it, and wait for the map store.

use std::collections::BTreeMap;
use std::ops::Range;

use codec::CodecId;
use store::base::status::{CodecUse, Remembered};
use surface::Result;
use units::{BLOCK_BYTES, BlockIndex, BlockMask, GROUP_BYTES, GroupIndex};

use crate::codecs::regions::RegionKey;
use crate::volume::files::Files;

/// Groups that are requested at once.
const GROUPS_MAX: usize = 256;

/// Consecutive data of a file that is stored with one codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// Where it begins, in bytes of the file.
    pub offset: u64,
    /// Fragments.
    pub units: u64,
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// Their stored size.
    pub stored_bytes: u64,
    /// The codec; `raw`: uncompressed.
    pub codec: String,
}

/// Storage of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileStored {
    /// Bytes of data, in whole blocks.
    pub raw_bytes: u64,
    /// Their stored size, in all copies.
    pub stored_bytes: u64,
    /// By codec, the most data first.
    pub codecs: Vec<CodecUse>,
    /// The first parts.
    pub parts: Vec<FilePart>,
    /// Later parts.
    pub parts_left_out: u64,
}

/// A fragment's live data in a file.
struct Stored {
    offset: u64,
    codec: u8,
    raw_bytes: u64,
    stored_bytes: u64,
}

impl Files {
    /// Brings all data written so far into the map.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn settle(&self) -> Result<()> {
        self.volume().volumes.writes.drain_all()
    }

    /// Returns how a file is stored, as of the map (see [`settle`](Self::settle)), with its first
    /// `parts_max` parts.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn stored(&self, file: u64, parts_max: usize) -> Result<FileStored> {
        let mut found = FileStored::default();
        let mut uses: BTreeMap<u8, CodecUse> = BTreeMap::new();
        let mut open: Option<(u8, FilePart)> = None;
        for (addresses, begin) in self.places(file)? {
            self.each_fragment(&addresses, begin, |stored| {
                let codec = || CodecId(stored.codec).to_string();
                let entry = uses.entry(stored.codec).or_insert_with(|| CodecUse {
                    codec: codec(),
                    units: 0,
                    raw_bytes: 0,
                    stored_bytes: 0,
                });
                entry.units += 1;
                entry.raw_bytes += stored.raw_bytes;
                entry.stored_bytes += stored.stored_bytes;
                match &mut open {
                    Some((number, part)) if *number == stored.codec => {
                        part.units += 1;
                        part.raw_bytes += stored.raw_bytes;
                        part.stored_bytes += stored.stored_bytes;
                    }
                    _ => {
                        let part = FilePart {
                            offset: stored.offset,
                            units: 1,
                            raw_bytes: stored.raw_bytes,
                            stored_bytes: stored.stored_bytes,
                            codec: codec(),
                        };
                        found.keep(open.replace((stored.codec, part)), parts_max);
                    }
                }
            })?;
        }
        found.keep(open, parts_max);
        found.codecs = uses.into_values().collect();
        found.codecs.sort_by_key(|entry| std::cmp::Reverse(entry.raw_bytes));
        found.raw_bytes = found.codecs.iter().map(|entry| entry.raw_bytes).sum();
        found.stored_bytes = found.codecs.iter().map(|entry| entry.stored_bytes).sum();
        Ok(found)
    }

    /// Returns the statistics of the kind of content that small files share.
    pub fn remembered(&self, kind: u16) -> Option<Remembered> {
        let volume = self.volume();
        let region = volume.volumes.chooser.regions.get(RegionKey::of_kind(volume.object.id, kind));
        region.winner().map(|(class, winner)| Remembered {
            winner: winner.to_string(),
            class: class.index() as u8,
            saving: region.saving(),
            units_since_test: region.units_since_test(),
        })
    }

    /// Passes all fragments in a range of addresses to `visit`, in order. `begin`: the byte of the
    /// file at the first address.
    fn each_fragment(&self, addresses: &Range<u64>, begin: u64, mut visit: impl FnMut(Stored)) -> Result<()> {
        let (volumes, object) = (&self.volume().volumes, &self.volume().object);
        let mut from = BlockIndex::containing(addresses.start).group();
        let to = GroupIndex(addresses.end.div_ceil(GROUP_BYTES as u64));
        while from < to {
            let (groups, next) = volumes.reads.known_groups(object, from, to, GROUPS_MAX)?;
            for group in groups {
                let mut pieces = volumes.map.lookup_stored(&object.levels(), group, BlockMask::FULL)?;
                pieces.sort_unstable_by_key(|piece| piece.fragment.live.first_run());
                // The copies of a group count with its first unit.
                let copies = volumes.writes.bytes_of_copies(object, group)?;
                let mut copied_bytes: u64 = copies.iter().map(|(_, bytes)| bytes).sum();
                for fragment in pieces.iter().map(|piece| &piece.fragment) {
                    let Some((first, _)) = fragment.live.first_run() else { continue };
                    let address = group.first_block().offset_bytes() + u64::from(first) * BLOCK_BYTES as u64;
                    visit(Stored {
                        offset: begin + (address - addresses.start),
                        codec: fragment.codec,
                        raw_bytes: u64::from(fragment.live.count()) * BLOCK_BYTES as u64,
                        stored_bytes: u64::from(fragment.live_bytes()) + std::mem::take(&mut copied_bytes),
                    });
                }
            }
            // The search returns where it was cut off.
            from = GroupIndex(next.0.max(from.0 + 1));
        }
        Ok(())
    }
}

impl FileStored {
    fn keep(&mut self, part: Option<(u8, FilePart)>, parts_max: usize) {
        match part {
            Some((_, part)) if self.parts.len() < parts_max => self.parts.push(part),
            Some(_) => self.parts_left_out += 1,
            None => {}
        }
    }
}
