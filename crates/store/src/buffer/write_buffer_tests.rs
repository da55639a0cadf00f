use super::*;

const KEY: GroupKey = GroupKey { object: ObjectId(1), group: GroupIndex(0) };

fn run(first: u8, count: u8, fill: u8) -> DirtyRun {
    DirtyRun::of(first, count, Bytes::from(vec![fill; usize::from(count) * BLOCK_BYTES]))
}

fn content(buffer: &WriteBuffer, key: GroupKey) -> Vec<(u8, Option<u8>)> {
    let mut blocks = BTreeMap::new();
    buffer.read(key, BlockMask::FULL, &mut |run| {
        for block in 0..run.count {
            let byte = run.data.as_ref().map(|d| d[usize::from(block) * BLOCK_BYTES]);
            blocks.insert(run.first + block, byte);
        }
    });
    blocks.into_iter().collect()
}

#[test]
fn newer_runs_cover_older_ones_and_bytes_are_counted_once() {
    let buffer = WriteBuffer::new();
    buffer.insert(KEY, run(0, 8, 1)).unwrap();
    buffer.insert(KEY, run(2, 2, 2)).unwrap();
    buffer.insert(KEY, DirtyRun::hole(3, 3)).unwrap();
    let expected = [Some(1), Some(1), Some(2), None, None, None, Some(1), Some(1)];
    assert_eq!(content(&buffer, KEY), expected.into_iter().enumerate().map(|(i, b)| (i as u8, b)).collect::<Vec<_>>());
    assert_eq!(buffer.bytes(), 5 * BLOCK_BYTES + GROUP_OVERHEAD_BYTES);
    assert_eq!((buffer.data_bytes_of(KEY.object), buffer.data_bytes_of(ObjectId(2))), (5 * BLOCK_BYTES, 0));
    assert_eq!(buffer.objects_with_data(), [KEY.object].into());
}

#[test]
fn a_group_in_flight_is_readable_and_not_taken_twice() {
    let buffer = WriteBuffer::new();
    buffer.insert(KEY, run(0, 2, 1)).unwrap();
    let first = buffer.take(usize::MAX, u64::MAX);
    assert_eq!(first.len(), 1);
    buffer.insert(KEY, run(1, 1, 2)).unwrap();
    assert_eq!(content(&buffer, KEY), [(0, Some(1)), (1, Some(2))]);
    assert!(buffer.take(usize::MAX, u64::MAX).is_empty());
    buffer.completed(&first);
    assert_eq!(content(&buffer, KEY), [(1, Some(2))]);
    let second = buffer.take(usize::MAX, u64::MAX);
    assert_eq!(second[0].runs.len(), 1);
    buffer.completed(&second);
    assert_eq!((buffer.bytes(), buffer.groups()), (0, 0));
}

#[test]
fn what_was_put_off_comes_back_in_the_order_of_its_generations() {
    let buffer = WriteBuffer::new();
    let other = GroupKey { group: GroupIndex(1), ..KEY };
    buffer.insert(KEY, run(0, 1, 1)).unwrap();
    let first = buffer.take(usize::MAX, u64::MAX);
    buffer.insert(other, run(0, 1, 1)).unwrap();
    let second = buffer.take(usize::MAX, u64::MAX);
    buffer.insert(KEY, run(0, 1, 2)).unwrap();
    let generation = buffer.begin_flush();
    buffer.insert(other, run(0, 1, 2)).unwrap();
    // Both are in flight; the one that the flush does not wait for is returned last.
    assert!(buffer.take(usize::MAX, u64::MAX).is_empty());
    buffer.completed(&first);
    buffer.completed(&second);
    let taken = buffer.take(usize::MAX, generation);
    assert_eq!(taken.len(), 1, "the flush finds what it waits for");
    buffer.completed(&taken);
    assert!(buffer.is_drained(generation));
}

#[test]
fn a_failed_batch_goes_back_below_newer_writes() {
    let buffer = WriteBuffer::new();
    buffer.insert(KEY, run(0, 4, 1)).unwrap();
    let taken = buffer.take(usize::MAX, u64::MAX);
    buffer.insert(KEY, run(1, 1, 2)).unwrap();
    buffer.failed(&taken);
    assert_eq!(content(&buffer, KEY), [(0, Some(1)), (1, Some(2)), (2, Some(1)), (3, Some(1))]);
    assert_eq!(buffer.data_bytes_of(KEY.object), 4 * BLOCK_BYTES);
    let generation = buffer.begin_flush();
    assert!(!buffer.is_drained(generation));
    while !buffer.is_drained(generation) {
        let again = buffer.take(usize::MAX, generation);
        buffer.completed(&again);
    }
    assert_eq!((buffer.bytes(), buffer.groups()), (0, 0));
    assert_eq!(buffer.data_bytes_of(KEY.object), 0);
}

#[test]
fn a_flush_waits_for_what_came_before_it_only() {
    let buffer = WriteBuffer::new();
    let other = GroupKey { object: ObjectId(2), group: GroupIndex(9) };
    buffer.insert(KEY, run(0, 1, 1)).unwrap();
    let generation = buffer.begin_flush();
    buffer.insert(other, run(0, 1, 2)).unwrap();
    let taken = buffer.take(usize::MAX, generation);
    assert_eq!(taken.len(), 1);
    assert!(!buffer.is_drained(generation));
    buffer.completed(&taken);
    assert!(buffer.is_drained(generation));
}

#[test]
fn read_modify_write_notices_what_came_between() {
    let buffer = WriteBuffer::new();
    let version = buffer.version(KEY);
    buffer.insert(KEY, run(0, 1, 1)).unwrap();
    assert!(!buffer.insert_if(KEY, run(0, 1, 2), version).unwrap());
    let version = buffer.version(KEY);
    assert!(buffer.insert_if(KEY, run(0, 1, 3), version).unwrap());
    assert_eq!(content(&buffer, KEY), [(0, Some(3))]);
}

/// A group that was taken, for tests of its carriers.
pub fn taken() -> Taken {
    Taken { key: KEY, runs: Arc::new(Vec::new()), generation: 0 }
}
