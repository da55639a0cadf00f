//! The layout of a pool's image, so that a test can damage one structure and know which.

use std::collections::BTreeMap;

use format::{Batch, Checkpoint, FragmentRef, ObjectDescriptor, Record};
use sim::Machine;
use units::{ObjectId, Seq};

use super::World;

/// A batch found in the log.
#[derive(Debug, Clone)]
pub struct BatchPart {
    pub offset: u64,
    pub batch: Batch,
    /// After the checkpoint: recovery replays it.
    pub tail: bool,
    /// A later batch of the tail says that this one was durable.
    pub vouched: bool,
}

/// A fragment that the map refers to.
#[derive(Debug, Clone)]
pub struct FragmentPart {
    pub volume: String,
    /// First byte of the group in the volume.
    pub group_offset: u64,
    pub fragment: FragmentRef,
}

/// The parts of a pool.
#[derive(Debug, Clone)]
pub struct Anatomy {
    pub checkpoint: Checkpoint,
    /// All keys of the store.
    pub keys: Vec<Vec<u8>>,
    pub volumes: BTreeMap<ObjectId, String>,
    pub fragments: Vec<FragmentPart>,
    pub batches: Vec<BatchPart>,
}

impl Anatomy {
    /// Takes a closed pool apart.
    pub fn of(world: &World) -> Self {
        let dump = world.machine.store.dump();
        let checkpoint = dump.iter().find(|(key, _)| key == format::KEY_CHECKPOINT).expect("a checkpoint");
        let checkpoint = Checkpoint::decode(&checkpoint.1).expect("a whole checkpoint");
        let mut volumes = BTreeMap::new();
        for (key, value) in &dump {
            if let Some(id) = format::parse_object_key(key) {
                let descriptor = ObjectDescriptor::decode(value).expect("a whole descriptor");
                if descriptor.state == format::ObjectState::Volume {
                    volumes.insert(id, descriptor.name);
                }
            }
        }
        let mut records: BTreeMap<_, Record> = BTreeMap::new();
        for (key, value) in &dump {
            if let Some(key) = format::parse_record_key(key) {
                records.insert(key, Record::decode(value).expect("a whole record"));
            }
        }
        for (_, value) in dump.iter().filter(|(key, _)| format::parse_delta_key(key).is_some()) {
            for (key, change) in format::decode_delta(value).expect("a whole delta") {
                records.entry(key).or_default().absorb(&change, &mut |_| ());
            }
        }
        let mut fragments = Vec::new();
        for (key, record) in records {
            let Some(volume) = volumes.get(&key.object) else { continue };
            for fragment in record.fragments {
                let group_offset = key.group.first_block().offset_bytes();
                fragments.push(FragmentPart { volume: volume.clone(), group_offset, fragment });
            }
        }
        let batches = batches(&world.machine, &checkpoint, world.shape.extent_bytes, world.shape.capacity_bytes);
        Self { checkpoint, keys: dump.into_iter().map(|(key, _)| key).collect(), volumes, fragments, batches }
    }

    /// The batches that recovery replays, in order.
    pub fn tail(&self) -> Vec<&BatchPart> {
        let mut tail: Vec<_> = self.batches.iter().filter(|part| part.tail).collect();
        tail.sort_by_key(|part| part.batch.header.seq);
        tail
    }
}

fn batches(machine: &Machine, checkpoint: &Checkpoint, extent_bytes: u32, capacity_bytes: u64) -> Vec<BatchPart> {
    let pool = u64::from_le_bytes(checkpoint.pool[..8].try_into().unwrap());
    let extent_bytes = extent_bytes as usize;
    let mut found = Vec::new();
    let mut bytes = vec![0; extent_bytes];
    for extent in 1..capacity_bytes / extent_bytes as u64 {
        let start = extent * extent_bytes as u64;
        machine.disk.peek(start, &mut bytes);
        let mut at = 0;
        while at < extent_bytes {
            let Ok(batch) = format::decode_batch(&bytes[at..]) else {
                at += format::BATCH_ALIGN;
                continue;
            };
            let (header, len) = (&batch.header, batch.batch_bytes);
            if header.pool == pool && u64::from(header.extent.0) == extent {
                let tail = header.incarnation == checkpoint.incarnation && header.seq >= checkpoint.next_seq;
                found.push(BatchPart { offset: start + at as u64, batch, tail, vouched: false });
            }
            at += len;
        }
    }
    // Only batches linked to the checkpoint without a gap form the tail.
    let mut seqs: Vec<Seq> = found.iter().filter(|part| part.tail).map(|part| part.batch.header.seq).collect();
    seqs.sort();
    let linked =
        seqs.iter().enumerate().take_while(|(i, seq)| seq.0 == checkpoint.next_seq.0 + *i as u64).count() as u64;
    let end = Seq(checkpoint.next_seq.0 + linked);
    for part in &mut found {
        part.tail &= part.batch.header.seq < end;
    }
    let vouched = found.iter().filter(|part| part.tail).map(|part| part.batch.header.durable_before).max();
    for part in &mut found {
        part.vouched = part.tail && Some(part.batch.header.seq) < vouched;
    }
    found
}
