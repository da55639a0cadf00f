//! Reports the data that a repair will drop before it drops it, and records the loss durably.
//!
//! 1. Recovery finds the log damaged, or the data cut off, where something may have been flushed.
//!    It examines everything after the damage ([`Dropped`]), and reports which volumes revert to an
//!    older state and how much `salvage` would keep ([`Loss`]).
//! 2. Nothing is dropped unless the caller accepts it
//!    ([`PoolOptions::accept_loss`](crate::PoolOptions::accept_loss)).
//! 3. A note of the loss is durable in the map store ([`remember`]) before the repair changes
//!    the evidence of the damage: the length of the data, and the checkpoint. After a crash in
//!    between, the next opening finds the damage again, or the note, as a rule both.
//! 4. `status` shows the loss until it is acknowledged.
//!
//! Batches carry no time, so the distance is reported in batches and bytes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use env::{Disk, MapBatch, MapStore};
use format::{
    Batch, BatchHeader, Entry, KEY_LOSSES, LOSS_TEXT_BYTES_MAX, LossNote, ObjectDescriptor, ObjectState, Record,
    Superblock, decode_losses, encode_losses, parse_record_key,
};
use store::base::canary::Canary;
use store::base::loss::{Loss, LossOf};
use store::base::options::{PoolEnv, PoolOptions};
use store::base::status::Problem;
use store::base::store_error::store_error;
use store::log::superblock_io::{self, WithoutEnd};
use store::objects::Objects;
use surface::{Error, ErrorKind, Result};
use units::{BLOCK_BYTES, ObjectId, Seq, format_size};

/// Upper bound of volumes and snapshots that are named one by one: more fit no report.
const NAMED_MAX: usize = 1000;

/// Batches found after the damage.
#[derive(Default)]
pub(crate) struct Dropped {
    pub batches: u64,
    whole: u64,
    newest: Option<Seq>,
    durable_before: Option<Seq>,
    objects: BTreeMap<ObjectId, LossOf>,
    descriptors: BTreeMap<ObjectId, (Seq, ObjectDescriptor)>,
}

impl Dropped {
    /// Counts a batch with that header; `is_whole`: all of its payloads match.
    pub(crate) fn add(&mut self, batch: &Batch, is_whole: bool) {
        let BatchHeader { seq, durable_before, .. } = batch.header;
        self.batches += 1;
        self.whole += u64::from(is_whole);
        self.newest = self.newest.max(Some(seq));
        self.durable_before = self.durable_before.max(Some(durable_before));
        let mut said = BTreeMap::new();
        for entry in &batch.entries {
            match entry {
                Entry::Fragments { object, fragments, .. } => {
                    let originals = fragments.iter().filter(|fragment| fragment.first.copy() == 0);
                    let blocks: u64 = originals.map(|fragment| u64::from(fragment.count)).sum();
                    said.entry(*object).or_insert((0, 0)).0 += blocks * BLOCK_BYTES as u64;
                }
                Entry::Holes { object, ranges, .. } => {
                    let originals = ranges.iter().filter(|(first, _)| first.copy() == 0);
                    let blocks: u64 = originals.map(|(_, count)| u64::from(*count)).sum();
                    said.entry(*object).or_insert((0, 0)).1 += blocks * BLOCK_BYTES as u64;
                }
                Entry::Object(descriptor) => {
                    let known = self.descriptors.entry(descriptor.id).or_insert_with(|| (seq, descriptor.clone()));
                    if known.0 <= seq {
                        *known = (seq, descriptor.clone());
                    }
                    said.entry(descriptor.id).or_default();
                }
                // Moved data is still in its old location.
                Entry::Moves { .. } | Entry::PoolProperties(_) | Entry::Catalogue(_) => {}
            }
        }
        for (object, (written, discarded)) in said {
            let of = self.objects.entry(object).or_default();
            of.batches += 1;
            of.written_bytes += written;
            of.discarded_bytes += discarded;
        }
    }

    /// Returns the loss, if the log ends before batch `next` and the objects are as there.
    pub(crate) fn loss(self, what: String, next: Seq, objects: &Objects) -> Loss {
        let flushed_before = self.durable_before.unwrap_or(next).max(next);
        // The range counted: from the first one on to the newest that exists, or existed.
        let behind = self.newest.map_or(next, |newest| Seq(newest.0 + 1)).max(flushed_before);
        let name = |id: ObjectId| -> String {
            let own = |id| self.descriptors.get(&id).map(|(_, descriptor)| descriptor);
            match (objects.get(id), own(id)) {
                (Some(object), _) => object.title(),
                (None, Some(ObjectDescriptor { name, parent: Some(parent), state, .. })) if !state.has_records() => {
                    let volume = objects.get(*parent).map(|parent| parent.title());
                    let volume = volume.or_else(|| own(*parent).map(|parent| parent.name.clone()));
                    format!("{}@{name}", volume.unwrap_or_default())
                }
                (None, Some(descriptor)) => descriptor.name.clone(),
                (None, None) => format!("a volume without a name ({})", id.0),
            }
        };
        let is_dictionary = |id: &ObjectId| {
            let own = self.descriptors.get(id).is_some_and(|(_, d)| d.state == ObjectState::Dictionary);
            own || objects.get(*id).is_some_and(|object| object.is_dictionary())
        };
        let describe = |(id, of): (&ObjectId, &LossOf)| {
            let changes = self.descriptors.get(id).map_or_else(Vec::new, |(_, after)| changes(objects, after));
            LossOf { name: name(*id), changes, ..of.clone() }
        };
        let mut volumes: Vec<_> = self.objects.iter().filter(|(id, _)| !is_dictionary(id)).map(describe).collect();
        volumes.retain(|of| of.written_bytes + of.discarded_bytes > 0 || !of.changes.is_empty());
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        let volumes_total = volumes.len() as u64;
        volumes.truncate(NAMED_MAX);
        Loss {
            what,
            first_batch: next.0,
            flushed_before: flushed_before.0,
            batches: self.batches,
            batches_whole: self.whole,
            batches_unknown: (behind.0 - next.0).saturating_sub(self.batches),
            volumes,
            volumes_total,
        }
    }
}

/// Lists the changes that a descriptor after the damage made and that are lost.
fn changes(objects: &Objects, after: &ObjectDescriptor) -> Vec<String> {
    let is_gone = after.state == ObjectState::Deleting;
    let Some(before) = objects.get(after.id) else {
        let text = "is gone: it was created after the damage";
        return if is_gone { Vec::new() } else { vec![text.to_owned()] };
    };
    let before = before.descriptor.read();
    let mut changes = Vec::new();
    if is_gone && before.state != ObjectState::Deleting {
        changes.push("exists again: it had been destroyed".to_owned());
    }
    if after.name != before.name {
        changes.push(format!("is no longer named '{}'", after.name));
    }
    if after.parent != before.parent && after.state == ObjectState::Volume {
        changes.push("is no longer in the same folder".to_owned());
    }
    if after.size_bytes != before.size_bytes {
        let (now, was) = (format_size(before.size_bytes), format_size(after.size_bytes));
        changes.push(format!("has {now} again, instead of {was}"));
    }
    if after.epoch != before.epoch && !is_gone {
        changes.push("reverts to before a snapshot or a rollback".to_owned());
    }
    if after.properties != before.properties {
        changes.push("has its previous properties".to_owned());
    }
    changes
}

/// Returns the stored bytes of each object from byte `cut_at` of the data file on, as of the last
/// checkpoint, by name.
///
/// # Errors
/// Those of the store.
pub(crate) fn cut_off(store: &dyn MapStore, cut_at: u64, objects: &Objects) -> Result<Vec<LossOf>> {
    let mut bytes: BTreeMap<ObjectId, u64> = BTreeMap::new();
    let mut look = |key: &[u8], value: &[u8]| {
        if let (Some(key), Ok(record)) = (parse_record_key(key), Record::decode(value)) {
            let is_gone = |f: &&format::FragmentRef| f.location + u64::from(f.stored) > cut_at;
            let gone: u64 = record.fragments.iter().filter(is_gone).map(|f| u64::from(f.live_bytes())).sum();
            if gone > 0 {
                *bytes.entry(key.object).or_default() += gone;
            }
        }
        ControlFlow::Continue(())
    };
    store.scan(b"R", b"S", &mut look).map_err(store_error)?;
    let name = |id: ObjectId| objects.get(id).map_or_else(|| format!("object {}", id.0), |object| object.title());
    Ok(bytes
        .into_iter()
        .map(|(id, cut_off_bytes)| LossOf { name: name(id), cut_off_bytes, ..LossOf::default() })
        .collect())
}

/// Losses of an open pool, and how its log ended.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// All remembered losses, oldest first.
    pub known: Vec<LossNote>,
    /// The loss that this opening accepted.
    pub accepted: Option<Loss>,
    /// Description of the log's end, unless it was orderly.
    pub end: Option<String>,
    /// Whether a batch is torn there.
    pub is_torn: bool,
}

/// Where the data was cut off, if it was.
pub(crate) struct Cut {
    what: Option<String>,
    /// Bytes that are left.
    pub at: Option<u64>,
    /// The data, in which lost ranges read as zeroes until the loss is accepted.
    pub disk: Arc<dyn Disk>,
}

impl Cut {
    /// `what`: description of the cut, if there is one.
    ///
    /// # Errors
    /// When the size of the data cannot be determined.
    pub(crate) fn of(env: &PoolEnv, what: Option<String>) -> Result<Self> {
        if what.is_none() {
            return Ok(Self { what, at: None, disk: env.disk.clone() });
        }
        let at = env.disk.size_bytes().map_err(|e| Error::from_io("the size of the data cannot be determined", e))?;
        Ok(Self { what, at: Some(at), disk: Arc::new(WithoutEnd(env.disk.clone())) })
    }

    /// Extends the data file to its former length. Returns the report on it, unless the loss
    /// includes it.
    ///
    /// # Errors
    /// Those of the storage.
    pub(crate) fn lengthen(self, env: &PoolEnv, superblock: &Superblock, losses: &Losses) -> Result<Option<Problem>> {
        let Some(what) = self.what else { return Ok(None) };
        superblock_io::lengthen(&*env.disk, superblock)?;
        Ok(losses.accepted.is_none().then(|| Problem::cut_off(what)))
    }
}

impl Losses {
    /// Steps 2 and 3: combines the losses from the damaged log and from the cut, and accepts them
    /// if the options allow it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] with the [`Loss`] as its source if they do not; and those of the
    /// store.
    pub(crate) fn accept(
        env: &PoolEnv,
        options: &PoolOptions,
        of_log: Option<Loss>,
        cut: &Cut,
        objects: &Objects,
    ) -> Result<Self> {
        let mut losses = Self { known: remembered(&*env.store)?, ..Self::default() };
        let mut loss = of_log;
        if let (Some(what), Some(at)) = (&cut.what, cut.at) {
            let gone = cut_off(&*env.store, at, objects)?;
            if !gone.is_empty() || loss.is_some() {
                let mut all = loss.unwrap_or_default();
                all.what = if all.what.is_empty() { what.clone() } else { format!("{what}; {}", all.what) };
                all.volumes_total += gone.len() as u64;
                all.volumes.extend(gone);
                all.volumes.truncate(NAMED_MAX);
                loss = Some(all);
            }
        }
        let Some(loss) = loss else { return Ok(losses) };
        if !options.accept_loss {
            return Err(Error::with_source(ErrorKind::Corrupt, "repairing the pool would lose data", loss));
        }
        let note = LossNote::new(env.clock.unix_s(), loss.summary());
        losses.known.push(note);
        remember(&*env.store, &losses.known)?;
        losses.accepted = Some(loss);
        Ok(losses)
    }

    /// Records a loss durably. An opening that died in between may have recorded it already.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn add(&mut self, env: &PoolEnv, text: &str) -> Result<()> {
        let text = &text[..text.floor_char_boundary(LOSS_TEXT_BYTES_MAX)];
        if self.known.iter().any(|loss| !loss.is_acknowledged && loss.text == text) {
            return Ok(());
        }
        let mut known = self.known.clone();
        known.push(LossNote::new(env.clock.unix_s(), text.to_owned()));
        remember(&*env.store, &known)?;
        self.known = known;
        Ok(())
    }

    /// Records the state of the log's end, found before batch `next`.
    pub(crate) fn note_end(&mut self, torn: Option<String>, next: Seq, is_orderly: bool) {
        self.is_torn = torn.is_some();
        self.end = torn.or_else(|| {
            let last = next.0.saturating_sub(1);
            let text = format!(
                "the pool was not closed properly: its log ends with batch {last}, and there is no trace of a \
                 later one"
            );
            (!is_orderly && self.accepted.is_none()).then_some(text)
        });
    }
}

/// Returns the remembered losses. A damaged note still shows that there was one.
///
/// # Errors
/// Those of the store.
pub(crate) fn remembered(store: &dyn MapStore) -> Result<Vec<LossNote>> {
    let Some(bytes) = store.get(KEY_LOSSES).map_err(store_error)? else { return Ok(Vec::new()) };
    Ok(decode_losses(&bytes).unwrap_or_else(|error| {
        let text = format!("a loss is recorded, but its description is lost: the {error}");
        vec![LossNote::new(0, text)]
    }))
}

/// Step 3.
///
/// # Errors
/// Those of the store.
pub(crate) fn remember(store: &dyn MapStore, known: &[LossNote]) -> Result<()> {
    if Canary::LossNotRemembered.is_planted() {
        return Ok(());
    }
    let mut batch = MapBatch::default();
    batch.put(KEY_LOSSES, encode_losses(known));
    store.commit(batch).and_then(|()| store.persist()).map_err(store_error)
}
