//! The required content of volumes, byte for byte: for each 4 KiB block the content that a read
//! must return now, and every content that a crash may leave (that of the last acknowledged flush,
//! and of all writes since). Independent of the engine: the harness reports requests and their
//! results, and asks whether the data read is right.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use units::{BLOCK_BYTES, SHARE_BYTES};

use crate::block::{Content, digest, is_zero, push_new};
use crate::history::{History, is_in};
use crate::table::{Observed, TableOp, apply_properties};

/// How a write or a zeroing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged: a read sees it, a crash may lose it.
    Done,
    /// Acknowledged as durable.
    Durable,
    /// An error, or a crash in the middle: each of its blocks may or may not have been written.
    Failed,
}

#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The contents that a read may give now: one, unless a write failed or the block was not read
    /// since a crash.
    pub visible: Vec<Content>,
    /// Contents that a crash may leave.
    pub possible: Vec<Content>,
}

impl Block {
    fn new() -> Self {
        Self { visible: vec![Content::zeroes(0)], possible: vec![Content::zeroes(0)] }
    }

    /// Gives every candidate another content.
    fn map(&mut self, change: impl Fn(&Content) -> Content) {
        for content in self.visible.iter_mut().chain(&mut self.possible) {
            *content = change(content);
        }
    }
}

/// A volume, or a snapshot: its key is `VOLUME@SNAPSHOT` then.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub size_bytes: u64,
    pub properties: BTreeMap<String, String>,
    pub blocks: BTreeMap<u64, Block>,
    /// Blocks for which a crash has a choice.
    pub unsettled: BTreeSet<u64>,
    pub history: History,
}

/// Content that should not have been read.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// Volume.
    pub volume: String,
    /// Block within it.
    pub block: u64,
    /// The acceptable contents.
    pub expected: Vec<Content>,
    /// Digest of the actual content.
    pub got: u64,
    /// Another place where that content was seen, if any.
    pub known_as: Option<String>,
    /// First byte that differs from the newest expected content, with both values.
    pub first_difference: Option<(usize, u8, u8)>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "volume {} block {}: expected one of {:?}, got {:016x}",
            self.volume, self.block, self.expected, self.got
        )?;
        match &self.known_as {
            Some(known) => write!(f, ", which is {known}")?,
            None => write!(f, ", which nobody ever wrote")?,
        }
        if let Some((at, want, got)) = self.first_difference {
            write!(f, "; first difference from the newest at byte {at}: {want:#04x} became {got:#04x}")?;
        }
        Ok(())
    }
}

/// The reference for all volumes of a pool.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub(crate) volumes: BTreeMap<String, Volume>,
    /// Properties of folders, by their names.
    pub(crate) folders: BTreeMap<String, BTreeMap<String, String>>,
    pool_properties: BTreeMap<String, String>,
    in_doubt: Option<TableOp>,
    /// Content of volumes when a snapshot of them was interrupted.
    doubtful: BTreeMap<String, Volume>,
    /// Timelines and snapshots so far.
    pub(crate) serial: u64,
    op: u64,
    /// Every content ever written, by digest, and where: for messages, and for
    /// [`is_known`](Self::is_known).
    seen: HashMap<u64, Vec<Place>>,
}

/// Volume, block, and the operation that wrote to it.
type Place = (String, u64, u64);

impl Model {
    /// A pool without volumes.
    pub fn new(pool_properties: BTreeMap<String, String>) -> Self {
        Self { pool_properties, ..Self::default() }
    }

    /// Sets the number of the next operation, for messages.
    pub const fn begin_op(&mut self, op: u64) {
        self.op = op;
    }

    /// Names of the volumes.
    pub fn names(&self) -> Vec<String> {
        self.volumes.keys().filter(|name| !name.contains('@')).cloned().collect()
    }

    /// Names of the volumes and of the snapshots.
    pub fn all_names(&self) -> Vec<String> {
        self.volumes.keys().cloned().collect()
    }

    /// Size of a volume.
    pub fn size_bytes(&self, name: &str) -> u64 {
        self.volumes[name].size_bytes
    }

    /// Names of the folders.
    pub fn folders(&self) -> Vec<String> {
        self.folders.keys().cloned().collect()
    }

    /// Names of the shares.
    pub fn shares(&self) -> Vec<String> {
        let is_share = |(name, volume): &(&String, &Volume)| !name.contains('@') && volume.size_bytes == SHARE_BYTES;
        self.volumes.iter().filter(is_share).map(|(name, _)| name.clone()).collect()
    }

    /// The folders and shares that contain something of that name, innermost first, with their
    /// properties.
    pub fn folders_above(&self, name: &str) -> Vec<(&str, &BTreeMap<String, String>)> {
        let folders = self.folders.iter().map(|(folder, properties)| (folder.as_str(), properties));
        let volumes = self.volumes.iter().map(|(volume, held)| (volume.as_str(), &held.properties));
        let mut above: Vec<_> = folders.chain(volumes).filter(|(holder, _)| is_in(name, holder)).collect();
        above.sort_by_key(|b| std::cmp::Reverse(b.0.len()));
        above
    }

    /// The value of a property in force for a volume: its own, else that of a folder or a share
    /// that contains it, else the pool's. Quota and reservation are not inherited.
    pub fn property(&self, name: &str, key: &str) -> Option<&str> {
        let above = self.folders_above(name);
        let is_passed_on = !["quota", "reservation"].contains(&key);
        let of_folders = || above.iter().filter(|_| is_passed_on).find_map(|(_, properties)| properties.get(key));
        let own = self.volumes[name].properties.get(key);
        own.or_else(of_folders).or_else(|| self.pool_properties.get(key)).map(String::as_str)
    }

    /// Bytes of the blocks that are not all zeroes.
    pub fn nonzero_bytes(&self, name: &str) -> u64 {
        let holds_data = |block: &&Block| block.visible.iter().all(|content| content.bytes.is_some());
        self.volumes[name].blocks.values().filter(holds_data).count() as u64 * BLOCK_BYTES as u64
    }

    /// Data was written.
    pub fn write(&mut self, name: &str, offset: u64, data: &[u8], outcome: Outcome) {
        let op = self.op;
        let volume = self.volumes.get_mut(name).expect("a volume of the model");
        for (index, at, range) in pieces(offset, data.len()) {
            let part = &data[range];
            let block = volume.blocks.entry(index).or_insert_with(Block::new);
            let mut new: Vec<Content> = Vec::with_capacity(1);
            if part.len() == BLOCK_BYTES {
                new.push(Content::new(part, op));
            } else {
                let overlaid = block.visible.iter().map(|old| old.overlaid(at, part, op));
                overlaid.for_each(|content| push_new(&mut new, content));
            }
            note_seen(&mut self.seen, name, index, op, &new);
            match outcome {
                Outcome::Durable => {
                    block.possible.clone_from(&new);
                    block.visible = new;
                    // A read-modify-write of a block in doubt leaves doubt.
                    if block.possible.len() > 1 {
                        volume.unsettled.insert(index);
                    } else {
                        volume.unsettled.remove(&index);
                    }
                }
                Outcome::Done => {
                    new.iter().for_each(|content| push_new(&mut block.possible, content.clone()));
                    block.visible = new;
                    volume.unsettled.insert(index);
                }
                Outcome::Failed => {
                    for content in new {
                        push_new(&mut block.possible, content.clone());
                        push_new(&mut block.visible, content);
                    }
                    volume.unsettled.insert(index);
                }
            }
        }
    }

    /// A range was zeroed or discarded. Takes time in proportion to the range's content, not its
    /// length.
    pub fn zero(&mut self, name: &str, offset: u64, len: u64, outcome: Outcome) {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let end = offset + len;
        let (from, to) = (offset.div_ceil(BLOCK), end / BLOCK);
        if from > to {
            return self.write(name, offset, &vec![0; len as usize], outcome);
        }
        self.write(name, offset, &vec![0; (from * BLOCK - offset) as usize], outcome);
        self.write(name, to * BLOCK, &vec![0; (end - to * BLOCK) as usize], outcome);
        // Blocks that are not in the table are zeroes already.
        let there: Vec<u64> = self.volumes[name].blocks.range(from..to).map(|(index, _)| *index).collect();
        for index in there {
            self.write(name, index * BLOCK, &[0; BLOCK_BYTES], outcome);
        }
    }

    /// A flush of a volume was acknowledged.
    pub fn flushed(&mut self, name: &str) {
        let volume = self.volumes.get_mut(name).expect("a volume of the model");
        for index in std::mem::take(&mut volume.unsettled) {
            let block = volume.blocks.get_mut(&index).expect("unsettled blocks are in the table");
            block.possible.clone_from(&block.visible);
            if block.possible.len() > 1 {
                volume.unsettled.insert(index);
            } else if block.possible[0].bytes.is_none() {
                // Blocks that are not in the table are zeroes: large holes cost nothing.
                volume.blocks.remove(&index);
            }
        }
    }

    /// A flush of the pool was acknowledged.
    pub fn flushed_all(&mut self) {
        self.names().iter().for_each(|name| self.flushed(name));
    }

    /// The power was lost, or the program died: of each block any possible content may be visible
    /// now.
    pub fn crashed(&mut self) {
        for volume in self.volumes.values_mut() {
            for index in &volume.unsettled {
                let block = volume.blocks.get_mut(index).expect("unsettled blocks are in the table");
                block.visible.clone_from(&block.possible);
            }
        }
    }

    /// After a power loss everything has been read once: the content seen is the content of the
    /// medium.
    pub fn settled(&mut self) {
        self.flushed_all();
    }

    /// Checks the content that a read returned, which then becomes the only visible content.
    ///
    /// # Errors
    /// The first block that is wrong.
    pub fn check_read(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), Box<Mismatch>> {
        let volume = self.volumes.get_mut(name).expect("a volume of the model");
        for (index, at, range) in pieces(offset, data.len()) {
            let part = &data[range];
            let Some(block) = volume.blocks.get_mut(&index) else {
                if is_zero(part) {
                    continue;
                }
                return Err(mismatch(&self.seen, name, index, &[Content::zeroes(0)], at, part));
            };
            if !block.visible.iter().any(|content| content.matches(at, part)) {
                return Err(mismatch(&self.seen, name, index, &block.visible, at, part));
            }
            if block.visible.len() > 1 {
                block.visible.retain(|content| content.matches(at, part));
            }
        }
        Ok(())
    }

    /// Checks that a range of whole blocks may read as zeroes, which then become its only visible
    /// content. Takes time in proportion to the range's content, not its length.
    ///
    /// # Errors
    /// The first block that must hold something else.
    pub fn check_zeroes(&mut self, name: &str, offset: u64, len: u64) -> Result<(), Box<Mismatch>> {
        let volume = self.volumes.get_mut(name).expect("a volume of the model");
        let (from, to) = (offset / BLOCK_BYTES as u64, (offset + len).div_ceil(BLOCK_BYTES as u64));
        for (index, block) in volume.blocks.range_mut(from..to) {
            if !block.visible.iter().any(|content| content.bytes.is_none()) {
                return Err(mismatch(&self.seen, name, *index, &block.visible, 0, &[0; BLOCK_BYTES]));
            }
            block.visible.retain(|content| content.bytes.is_none());
        }
        Ok(())
    }

    /// Whether `data` was written to that block of any volume at any time (the remaining check when
    /// the medium itself reported a loss of data). Any volume, because clones and names move.
    pub fn is_known(&self, block: u64, data: &[u8]) -> bool {
        is_zero(data)
            || self.seen.get(&digest(data)).is_some_and(|places| places.iter().any(|(_, index, _)| *index == block))
    }

    /// A change of the table returned.
    pub fn table_done(&mut self, op: &TableOp) {
        match op {
            TableOp::Create { name, size_bytes, properties } => {
                let volume = Volume {
                    size_bytes: *size_bytes,
                    properties: properties.clone(),
                    blocks: BTreeMap::new(),
                    unsettled: BTreeSet::new(),
                    history: self.new_timeline(),
                };
                self.volumes.insert(name.clone(), volume);
            }
            TableOp::CreateFolder { name, properties } => {
                self.folders.insert(name.clone(), properties.clone());
            }
            TableOp::Destroy { name } => self.destroyed(name),
            TableOp::SnapshotFolder { folder, name } => self.folder_snapshot_taken(folder, name),
            TableOp::Snapshot { volume, name } => self.snapshot_taken(volume, name),
            TableOp::Clone { snapshot, name, properties } => self.cloned(snapshot, name, properties),
            TableOp::Rollback { snapshot } => self.rolled_back(snapshot),
            TableOp::Rename { old, new } => self.renamed(old, new),
            TableOp::Promote { name } => self.promoted(name),
            TableOp::Resize { name, size_bytes } => {
                let volume = self.volumes.get_mut(name).expect("a volume of the model");
                volume.resize(*size_bytes, self.op);
                // The rest of the block that the end lies in was zeroed.
                let last = size_bytes / BLOCK_BYTES as u64;
                if let Some(block) = volume.blocks.get(&last) {
                    note_seen(&mut self.seen, name, last, self.op, block.visible.iter().chain(&block.possible));
                }
            }
            TableOp::Set { name, changes } => {
                let properties = match name {
                    Some(name) if self.folders.contains_key(name) => {
                        self.folders.get_mut(name).expect("a folder of the model")
                    }
                    Some(name) => &mut self.volumes.get_mut(name).expect("a volume of the model").properties,
                    None => &mut self.pool_properties,
                };
                apply_properties(properties, changes);
            }
        }
    }

    /// A change of the table failed or was interrupted: the next start decides.
    pub fn table_in_doubt(&mut self, op: TableOp) {
        let is_meant = |name: &String| match &op {
            TableOp::Snapshot { volume, .. } => name == volume,
            TableOp::SnapshotFolder { folder, .. } => !name.contains('@') && (name == folder || is_in(name, folder)),
            _ => false,
        };
        let meant = self.volumes.iter().filter(|(name, _)| is_meant(name));
        self.doubtful = meant.map(|(name, volume)| (name.clone(), volume.clone())).collect();
        self.in_doubt = Some(op);
    }

    /// Whether a change is in doubt.
    pub const fn is_in_doubt(&self) -> bool {
        self.in_doubt.is_some()
    }

    /// Compares the table with the result of a start; a change in doubt has happened completely or
    /// not at all.
    ///
    /// # Errors
    /// The difference.
    pub fn resolve(
        &mut self,
        volumes: &BTreeMap<String, Observed>,
        pool_properties: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let doubt = self.in_doubt.take();
        let doubtful = std::mem::take(&mut self.doubtful);
        let Err(without) = self.compare(volumes, pool_properties) else { return Ok(()) };
        let Some(doubt) = doubt else { return Err(without) };
        let before = self.clone();
        // If one was taken, everything written by then is present, in the volume and in the
        // snapshot.
        self.volumes.extend(doubtful);
        self.table_done(&doubt);
        let Err(with) = self.compare(volumes, pool_properties) else { return Ok(()) };
        *self = before.clone();
        if let TableOp::Rollback { snapshot } = &doubt {
            // Newer snapshots go first, in a step of their own.
            self.newer_destroyed(snapshot);
            if self.compare(volumes, pool_properties).is_ok() {
                return Ok(());
            }
            *self = before.clone();
        }
        if let TableOp::Destroy { name } = &doubt
            && !name.contains('@')
        {
            // The contents of a folder or a share go first, in steps of their own.
            self.volumes.retain(|other, _| !is_in(other, name) || volumes.contains_key(other));
            self.folders.retain(|other, _| !is_in(other, name) || volumes.contains_key(other));
            let is_lost = |inner: &String| !inner.contains('@') && !self.has_folder_of(inner);
            let is_torn = self.volumes.keys().chain(self.folders.keys()).any(is_lost);
            if !is_torn && self.compare(volumes, pool_properties).is_ok() {
                return Ok(());
            }
            *self = before;
        }
        Err(format!("neither without {doubt:?} ({without}) nor with it ({with})"))
    }

    /// Whether the folder or the share that contains a name exists.
    fn has_folder_of(&self, name: &str) -> bool {
        let is_there = |holder: &str| self.folders.contains_key(holder) || self.volumes.contains_key(holder);
        name.rsplit_once('/').is_none_or(|(holder, _)| is_there(holder))
    }

    fn compare(
        &self,
        volumes: &BTreeMap<String, Observed>,
        pool_properties: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let mut expected: BTreeMap<_, _> = self
            .volumes
            .iter()
            .map(|(name, v)| {
                let (size_bytes, properties) = (v.size_bytes, v.properties.clone());
                (
                    name.clone(),
                    Observed { size_bytes, properties, is_snapshot: name.contains('@'), epoch: v.history.epoch },
                )
            })
            .collect();
        let folder = |(name, properties): (&String, &BTreeMap<String, String>)| {
            let properties = properties.clone();
            (name.clone(), Observed { size_bytes: 0, properties, is_snapshot: false, epoch: 0 })
        };
        expected.extend(self.folders.iter().map(folder));
        if expected != *volumes {
            return Err(format!("volumes: expected {expected:?}, found {volumes:?}"));
        }
        if self.pool_properties != *pool_properties {
            return Err(format!("pool properties: expected {:?}, found {pool_properties:?}", self.pool_properties));
        }
        Ok(())
    }
}

impl Volume {
    fn resize(&mut self, size_bytes: u64, op: u64) {
        if size_bytes < self.size_bytes {
            let kept = size_bytes.div_ceil(BLOCK_BYTES as u64);
            self.blocks.retain(|index, _| *index < kept);
            self.unsettled.retain(|index| *index < kept);
            let tail = (size_bytes % BLOCK_BYTES as u64) as usize;
            if tail > 0
                && let Some(block) = self.blocks.get_mut(&(kept - 1))
            {
                let zeroes = vec![0; BLOCK_BYTES - tail];
                block.map(|content| content.overlaid(tail, &zeroes, op));
            }
        }
        self.size_bytes = size_bytes;
    }
}

/// Notes that a block of a volume may have these contents from an operation on.
fn note_seen<'a>(
    seen: &mut HashMap<u64, Vec<Place>>,
    name: &str,
    index: u64,
    op: u64,
    contents: impl IntoIterator<Item = &'a Content>,
) {
    for content in contents {
        let places = seen.entry(content.digest).or_default();
        if !places.iter().any(|(volume, block, _)| volume == name && *block == index) {
            places.push((name.to_owned(), index, op));
        }
    }
}

fn mismatch(
    seen: &HashMap<u64, Vec<Place>>,
    name: &str,
    block: u64,
    expected: &[Content],
    at: usize,
    got: &[u8],
) -> Box<Mismatch> {
    let known_as = if is_zero(got) {
        Some("zeroes".to_owned())
    } else {
        // Its origin: the same block earlier, if it was ever there, else any other.
        seen.get(&digest(got)).and_then(|places| {
            let here = places.iter().find(|(volume, index, _)| volume == name && *index == block);
            here.or(places.last()).map(|(volume, block, op)| format!("what op {op} wrote to {volume} block {block}"))
        })
    };
    let newest = expected.last().map(|content| match &content.bytes {
        Some(bytes) => bytes[at..at + got.len()].to_vec(),
        None => vec![0; got.len()],
    });
    let first_difference =
        newest.and_then(|want| want.iter().zip(got).position(|(a, b)| a != b).map(|i| (at + i, want[i], got[i])));
    Box::new(Mismatch {
        volume: name.to_owned(),
        block,
        expected: expected.to_vec(),
        got: digest(got),
        known_as,
        first_difference,
    })
}

/// Cuts a range of bytes at block boundaries: block, first byte within it, range within the
/// caller's buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let (block, within) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
        let take = (BLOCK_BYTES - within).min(len - done);
        let range = done..done + take;
        done += take;
        Some((block, within, range))
    })
}
