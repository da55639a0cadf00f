//! Operations on a pool, chosen at random from a generator and the state of the model.

use std::collections::BTreeMap;

use sim::{ContentKind, Model, Rng, TableOp};

use super::Shape;
use super::lens::SHARE_BYTES;

/// One operation. It contains all of its parameters: printing it is enough to repeat it.
#[derive(Debug, Clone)]
pub enum Op {
    Write {
        volume: String,
        offset: u64,
        len: u64,
        kind: ContentKind,
        seed: u64,
        fua: bool,
    },
    Read {
        volume: String,
        offset: u64,
        len: u64,
        /// More than one are under way together.
        pieces: usize,
    },
    ReadCached {
        volume: String,
        offset: u64,
        len: u64,
    },
    Prefetch {
        volume: String,
        offset: u64,
        len: u64,
    },
    Zero {
        volume: String,
        offset: u64,
        len: u64,
        no_hole: bool,
        fua: bool,
    },
    Discard {
        volume: String,
        offset: u64,
        len: u64,
    },
    Flush {
        volume: String,
    },
    FlushPool,
    Checkpoint,
    LightCheckpoint,
    Tick {
        ms: u64,
    },
    DropCaches,
    /// Extents are cleaned on demand.
    Clean {
        all: bool,
    },
    /// Continues or restarts recompression.
    Recompress {
        volume: String,
        mode: Option<&'static str>,
        bytes: u64,
        restart: bool,
    },
    /// Continues or restarts scrubbing.
    Scrub {
        bytes: u64,
        restart: bool,
    },
    /// Continues or restarts sorting.
    Sort {
        bytes: u64,
        restart: bool,
    },
    Allocation {
        volume: String,
        offset: u64,
        len: u64,
    },
    Table(TableOp),
    /// Requests that must be refused and change nothing.
    Refused,
}

/// Properties to set: key and values, in the form in which they are returned.
const PROPERTIES: [(&str, &[&str]); 8] = [
    (
        "compression",
        &[
            "auto",
            "auto",
            "auto",
            "auto",
            "off",
            "zle",
            "lzjb",
            "lz4",
            "lz4hc-9",
            "lzo",
            "gzip-1",
            "gzip-6",
            "bzip2-1",
            "zstd-1",
            "zstd-3",
            "zstd-fast-5",
        ],
    ),
    ("mode", &["performance", "balanced", "energy", "archive"]),
    ("candidates", &["lz4", "lz4,zstd-1", "lzo,zstd-3,zstd-1,gzip-1", "lz4,zstd-1,zstd-3,zstd-6"]),
    ("unit", &["4K", "8K", "16K", "32K", "64K", "128K", "4K-128K", "8K-32K"]),
    ("min-saving", &["0", "12.5", "50"]),
    ("dictionary", &["auto", "auto", "off"]),
    ("cold-mode", &["auto", "off", "balanced", "archive", "energy", "performance"]),
    ("copies", &["1", "1", "1", "2", "3"]),
];

/// Sizes to set, less often: some are less than the stored size, and some are more than any pool
/// has.
const LIMITS: [(&str, &[&str]); 2] = [
    ("quota", &["none", "0", "64K", "300K", "1M", "3M"]),
    ("reservation", &["none", "32K", "200K", "1M", "2M", "4M", "1G"]),
];

/// Largest clone that is written over as a whole.
const WHOLE_BYTES_MAX: u64 = 400 << 10;

/// Folders above a folder.
const FOLDERS_DEEP_MAX: usize = 3;

/// Snapshots of one volume.
const SNAPSHOTS_MAX: usize = 5;

/// Properties at random.
pub fn choose_properties(rng: &mut Rng) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::new();
    for (key, values) in PROPERTIES {
        if rng.percent(40) {
            properties.insert(key.to_owned(), (*rng.pick(values)).to_owned());
        }
    }
    properties
}

/// The same with a quota or a reservation now and then.
fn choose_volume_properties(rng: &mut Rng) -> BTreeMap<String, String> {
    let mut properties = choose_properties(rng);
    for (key, values) in LIMITS {
        if rng.percent(10) {
            properties.insert(key.to_owned(), (*rng.pick(values)).to_owned());
        }
    }
    properties
}

fn choose_changes(rng: &mut Rng) -> Vec<(String, Option<String>)> {
    let mut changes = Vec::new();
    for (key, values) in PROPERTIES {
        if rng.percent(50) {
            let value = rng.percent(80).then(|| (*rng.pick(values)).to_owned());
            changes.push((key.to_owned(), value));
        }
    }
    changes.extend(choose_limits(rng, 20));
    changes
}

/// Changes of quotas and reservations; half of them take them away.
pub fn choose_limits(rng: &mut Rng, percent: u64) -> Vec<(String, Option<String>)> {
    let mut changes = Vec::new();
    for (key, values) in LIMITS {
        if rng.percent(percent) {
            changes.push((key.to_owned(), rng.coin().then(|| (*rng.pick(values)).to_owned())));
        }
    }
    changes
}

/// A size for a volume: whole groups or whole blocks.
pub fn choose_size(rng: &mut Rng, shape: &Shape) -> u64 {
    let bytes = rng.between(1, shape.volume_bytes_max);
    let bytes = if rng.percent(40) {
        bytes.next_multiple_of(128 << 10).min(shape.volume_bytes_max)
    } else if rng.percent(70) {
        bytes.next_multiple_of(4096)
    } else {
        // Images have any size: most often whole sectors.
        if rng.coin() { bytes.next_multiple_of(512) } else { bytes }
    };
    if bytes == SHARE_BYTES { bytes - 4096 } else { bytes }
}

fn choose_range(rng: &mut Rng, size: u64, longest: u64) -> (u64, u64) {
    let blocks = size.div_ceil(4096);
    let (offset, len) = match rng.below(100) {
        0..35 => (rng.below(blocks) * 4096, 4096),
        35..60 => (rng.below(blocks) * 4096, rng.between(1, 8) * 4096),
        60..70 => (rng.below(blocks.div_ceil(32)) * (128 << 10), rng.between(1, 32) * 4096),
        70..90 => (rng.below(size), rng.between(1, 12 << 10)),
        90..97 => (rng.below(size), rng.between(1, 64 << 10)),
        _ => (rng.below(blocks) * 4096 / 2, rng.between(1, longest)),
    };
    let offset = offset.min(size - 1);
    (offset, len.clamp(1, longest).min(size - offset))
}

impl Op {
    /// The same without changes of the property `copies`.
    pub fn with_one_copy(mut self) -> Self {
        match &mut self {
            Self::Table(
                TableOp::Create { properties, .. }
                | TableOp::CreateFolder { properties, .. }
                | TableOp::Clone { properties, .. },
            ) => {
                properties.remove("copies");
            }
            Self::Table(TableOp::Set { changes, .. }) => changes.retain(|(key, _)| key != "copies"),
            _ => {}
        }
        self
    }

    /// Chooses the next operation.
    pub fn choose(rng: &mut Rng, model: &Model, shape: &Shape) -> Self {
        let names = model.names();
        if names.is_empty() {
            return Self::create(rng, model, shape);
        }
        if shape.folders
            && rng.percent(8)
            && let Some(op) = Self::choose_folders(rng, model)
        {
            return op;
        }
        let kind = rng.below(100);
        // Snapshots are read like volumes.
        let volume = match kind {
            40..55 | 89..90 => rng.pick(&model.all_names()).clone(),
            _ => rng.pick(&names).clone(),
        };
        let size = model.size_bytes(&volume);
        let (offset, len) = choose_range(rng, size, shape.request_bytes_max);
        match kind {
            0..40 => {
                let (kind, seed) = (ContentKind::choose(rng), rng.next_u64());
                Self::Write { volume, offset, len, kind, seed, fua: rng.percent(8) }
            }
            40..53 => Self::Read { volume, offset, len, pieces: if rng.coin() { 1 } else { 1 + rng.index(40) } },
            53..55 => Self::ReadCached { volume, offset, len },
            55..56 => Self::Prefetch { volume, offset, len },
            56..61 => Self::Zero { volume, offset, len, no_hole: rng.percent(30), fua: rng.percent(10) },
            61..65 => Self::Discard { volume, offset, len },
            65..67 => {
                // A large part of the volume, as fstrim and mkfs do it: whole extents die.
                let offset = rng.below(size / 4096 + 1) * 4096;
                if offset >= size {
                    return Self::Discard { volume, offset: 0, len: size };
                }
                Self::Discard { volume, offset, len: size - offset }
            }
            67..76 => Self::Flush { volume },
            76..78 => Self::FlushPool,
            78..79 => Self::Checkpoint,
            79..80 => Self::LightCheckpoint,
            80..86 => Self::Tick { ms: *rng.pick(&[0, 10, 1000, 6000, 6000]) },
            86..87 if rng.percent(60) => Self::LightCheckpoint,
            86..87 => Self::DropCaches,
            87..88 if rng.coin() => Self::Clean { all: rng.coin() },
            87..88 => Self::Sort { bytes: 1 + rng.below(4 << 20), restart: rng.coin() },
            88..89 if rng.coin() => {
                let mode = *rng.pick(&[None, Some("archive"), Some("energy"), Some("balanced")]);
                Self::Recompress { volume, mode, bytes: rng.below(1 << 20), restart: rng.coin() }
            }
            88..89 => Self::Scrub { bytes: rng.below(1 << 20), restart: rng.coin() },
            89..90 => Self::Allocation { volume, offset, len },
            90..91 => Self::Refused,
            91..95 if shape.history => Self::choose_history(rng, model, shape, volume),
            _ => match rng.below(10) {
                0..3 => Self::create(rng, model, shape),
                3..4 => Self::Table(TableOp::Destroy { name: volume }),
                // A share has no size.
                4..8 if size == SHARE_BYTES => Self::Flush { volume },
                4..8 => {
                    let size_bytes = choose_size(rng, shape);
                    Self::Table(TableOp::Resize { name: volume, size_bytes })
                }
                8 => Self::Table(TableOp::Set { name: Some(volume), changes: choose_changes(rng) }),
                _ => Self::Table(TableOp::Set { name: None, changes: choose_changes(rng) }),
            },
        }
    }

    /// Something with snapshots and clones, as far as there are any.
    fn choose_history(rng: &mut Rng, model: &Model, shape: &Shape, volume: String) -> Self {
        let names = model.names();
        if rng.percent(25)
            && let Some(op) = Self::choose_orphans(rng, model, &names)
        {
            return op;
        }
        let all = model.all_names();
        let snapshots: Vec<&String> = all.iter().filter(|name| name.contains('@')).collect();
        let is_taken = |own: &String| names.iter().any(|name| name.rsplit('/').next() == Some(own));
        let free_volume = (0..shape.volumes_max).map(|i| format!("v{i}")).find(|own| !is_taken(own));
        let free_snapshot = |volume: &str| {
            (0..SNAPSHOTS_MAX).map(|i| format!("s{i}")).find(|s| !all.contains(&format!("{volume}@{s}")))
        };
        let take = |volume: String| match free_snapshot(&volume) {
            Some(name) => Self::Table(TableOp::Snapshot { volume, name }),
            None => Self::Table(TableOp::Destroy { name: format!("{volume}@s0") }),
        };
        if snapshots.is_empty() {
            return take(volume);
        }
        let snapshot = (*rng.pick(&snapshots)).clone();
        match rng.below(100) {
            0..35 => take(volume),
            35..55 => match free_volume {
                Some(name) => Self::Table(TableOp::Clone { snapshot, name, properties: choose_volume_properties(rng) }),
                None => Self::Table(TableOp::Destroy { name: volume }),
            },
            55..70 if model.can_roll_back(&snapshot) => Self::Table(TableOp::Rollback { snapshot }),
            70..85 => Self::Table(TableOp::Destroy { name: snapshot }),
            85..93 => match names.iter().find(|name| model.promotion(name).is_some()) {
                Some(name) => Self::Table(TableOp::Promote { name: name.clone() }),
                None => take(volume),
            },
            93..97 => match free_volume {
                Some(new) => Self::Table(TableOp::Rename { old: volume, new }),
                None => take(volume),
            },
            97.. => {
                let volume = snapshot.split('@').next().unwrap_or_default().to_owned();
                match free_snapshot(&volume) {
                    Some(name) => Self::Table(TableOp::Rename { old: snapshot, new: format!("{volume}@{name}") }),
                    None => Self::Table(TableOp::Destroy { name: snapshot }),
                }
            }
            _ => take(volume),
        }
    }

    /// Clones are entirely overwritten, and their origin is destroyed: so that less and less of it
    /// is needed.
    fn choose_orphans(rng: &mut Rng, model: &Model, names: &[String]) -> Option<Self> {
        let (clones, others): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|name| model.is_clone(name));
        if clones.is_empty() {
            return None;
        }
        if rng.percent(30) && !others.is_empty() {
            return Some(Self::Table(TableOp::Destroy { name: rng.pick(&others).clone() }));
        }
        let volume = rng.pick(&clones).clone();
        let size = model.size_bytes(&volume);
        if size > WHOLE_BYTES_MAX || rng.percent(20) {
            return Some(Self::Discard { volume, offset: 0, len: size });
        }
        let (kind, seed) = (ContentKind::choose(rng), rng.next_u64());
        Some(Self::Write { volume, offset: 0, len: size, kind, seed, fua: rng.coin() })
    }

    /// Something with folders, if it can be done.
    fn choose_folders(rng: &mut Rng, model: &Model) -> Option<Self> {
        let (folders, names) = (model.folders(), model.names());
        let is_free = |name: &String| !folders.contains(name) && !names.contains(name);
        let below = |rng: &mut Rng, own: &str| match folders.len() as u64 {
            0 => own.to_owned(),
            count => match folders.get(rng.below(count + 1) as usize) {
                Some(folder) => format!("{folder}/{own}"),
                None => own.to_owned(),
            },
        };
        let shares = model.shares();
        let is_apart = |share: &str, old: &str| share != old && !share.starts_with(&format!("{old}/"));
        let snapshot = |folder: String| {
            let inside: Vec<_> = names.iter().filter(|name| !is_apart(name, &folder)).collect();
            let all = model.all_names();
            let is_new = |name: &String| inside.iter().all(|volume| !all.contains(&format!("{volume}@{name}")));
            let name = (0..SNAPSHOTS_MAX).map(|i| format!("s{i}")).find(is_new)?;
            (!inside.is_empty()).then_some(Self::Table(TableOp::SnapshotFolder { folder, name }))
        };
        let choice = rng.below(100);
        if folders.is_empty() || choice < 25 {
            let own = format!("f{}", rng.below(3));
            let name = below(rng, &own);
            let is_fit = is_free(&name) && name.matches('/').count() < FOLDERS_DEEP_MAX;
            let mut properties = choose_properties(rng);
            if rng.percent(20) {
                properties.insert("quota".to_owned(), (*rng.pick(LIMITS[0].1)).to_owned());
            }
            return is_fit.then_some(Self::Table(TableOp::CreateFolder { name, properties }));
        }
        let folder = match rng.index(folders.len() + shares.len()) {
            index if index < folders.len() => folders[index].clone(),
            // A share that may hold others.
            index => {
                let folder = shares[index - folders.len()].clone();
                return match choice {
                    25..60 => snapshot(folder),
                    60..65 => Some(Self::Table(TableOp::Destroy { name: folder })),
                    65..75 => Some(Self::Table(TableOp::Set { name: Some(folder), changes: choose_changes(rng) })),
                    _ => {
                        let new = below(rng, folder.rsplit('/').next().unwrap_or_default());
                        is_free(&new).then_some(Self::Table(TableOp::Rename { old: folder, new }))
                    }
                };
            }
        };
        match choice {
            25..45 => {
                let own = format!("f{}", rng.below(3));
                let new = below(rng, &own);
                let is_fit = is_free(&new) && new != folder && !new.starts_with(&format!("{folder}/"));
                is_fit.then_some(Self::Table(TableOp::Rename { old: folder, new }))
            }
            45..65 => {
                let old = rng.pick(&names).clone();
                let own = old.rsplit('/').next().unwrap_or_default().to_owned();
                // Into a share, if it is one.
                let others: Vec<_> = shares.iter().filter(|share| is_apart(share, &old)).collect();
                let new = match shares.contains(&old) && !others.is_empty() && rng.coin() {
                    true => format!("{}/{own}", rng.pick(&others)),
                    false => below(rng, &own),
                };
                is_free(&new).then_some(Self::Table(TableOp::Rename { old, new }))
            }
            65..70 => Some(Self::Table(TableOp::Destroy { name: folder })),
            70..80 => {
                let mut changes = choose_changes(rng);
                changes.retain(|(key, _)| key != "reservation");
                Some(Self::Table(TableOp::Set { name: Some(folder), changes }))
            }
            _ => snapshot(folder),
        }
    }

    fn create(rng: &mut Rng, model: &Model, shape: &Shape) -> Self {
        let names = model.names();
        let is_taken = |own: &String| names.iter().any(|name| name.rsplit('/').next() == Some(own));
        let free = (0..shape.volumes_max).map(|i| format!("v{i}")).find(|own| !is_taken(own));
        match free {
            Some(own) => {
                let folders = model.folders();
                let is_share = shape.shares && rng.percent(60);
                let shares = model.shares();
                let name = match folders.is_empty() {
                    _ if shape.folders && is_share && !shares.is_empty() && rng.percent(60) => {
                        format!("{}/{own}", rng.pick(&shares))
                    }
                    false if rng.percent(70) => format!("{}/{own}", rng.pick(&folders)),
                    _ => own,
                };
                let size_bytes = if is_share { SHARE_BYTES } else { choose_size(rng, shape) };
                Self::Table(TableOp::Create { name, size_bytes, properties: choose_volume_properties(rng) })
            }
            None => Self::Refused,
        }
    }
}
