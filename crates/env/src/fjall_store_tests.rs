//! Tests of [`FjallStore`]: the contract, reopening, kill -9 in the middle of commits, damage.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use super::*;
use testkit::{TempDir, starting};

use crate::testing::map_store_contract;

const SMALL: FjallOptions = FjallOptions { memory_bytes: FjallOptions::MEMORY_BYTES_MIN };

fn batch_of(pairs: &[(&str, &str)]) -> MapBatch {
    let mut batch = MapBatch::default();
    for (key, value) in pairs {
        batch.put(*key, *value);
    }
    batch
}

/// A new store, and where it is, in which it is durable that `a` is 1.
fn durable_store(dir: &TempDir) -> (PathBuf, FjallStore) {
    let map = dir.path().join("map");
    let store = FjallStore::create(&map, SMALL).unwrap();
    store.commit(batch_of(&[("a", "1")])).unwrap();
    store.persist().unwrap();
    (map, store)
}

/// Runs a command to its end.
fn ended(command: &mut Command) -> std::process::ExitStatus {
    let _alone = starting();
    command.status().unwrap()
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

#[test]
fn it_keeps_the_contract() {
    let dir = TempDir::new("fjall-contract");
    map_store_contract(&FjallStore::create(&dir.path().join("map"), SMALL).unwrap());
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    let dir = TempDir::new("fjall-reopen");
    let map = dir.path().join("map");
    let store = FjallStore::create(&map, SMALL).unwrap();
    store.commit(batch_of(&[("a", "1"), ("b", "2")])).unwrap();
    store.persist().unwrap();
    store.commit(batch_of(&[("a", "3")])).unwrap();
    store.persist().unwrap();
    drop(store);
    for _ in 0..3 {
        let store = FjallStore::open(&map, SMALL).unwrap();
        assert_eq!(store.get(b"a").unwrap().unwrap(), b"3");
        assert_eq!(store.get(b"b").unwrap().unwrap(), b"2");
        assert!(store.occupied_bytes() > 0);
        store.verify().unwrap();
    }
}

#[test]
fn create_and_open_tell_a_store_from_none() {
    let dir = TempDir::new("fjall-none");
    let map = dir.path().join("map");
    let error = FjallStore::open(&map, SMALL).unwrap_err();
    assert!(error.corrupt && error.message.contains("holds no map store"), "{error}");
    drop(FjallStore::create(&map, SMALL).unwrap());
    let error = FjallStore::create(&map, SMALL).unwrap_err();
    assert!(error.message.contains("already"), "{error}");
    let held = FjallStore::open(&map, SMALL).unwrap();
    let error = FjallStore::open(&map, SMALL).unwrap_err();
    assert!(!error.corrupt && error.message.contains("in use"), "{error}");
    drop(held);
    std::fs::remove_dir_all(map.join(LSM_DIR)).unwrap();
    let error = FjallStore::open(&map, SMALL).unwrap_err();
    assert!(error.corrupt, "an empty store in place of a lost one: {error}");
}

#[test]
fn the_counter_is_hidden() {
    let dir = TempDir::new("fjall-counter");
    let store = FjallStore::create(&dir.path().join("map"), SMALL).unwrap();
    let mut batch = batch_of(&[("a", "1")]);
    batch.put(COUNTER_KEY, vec![9; 8]);
    store.commit(batch).unwrap();
    assert_eq!(store.get(COUNTER_KEY).unwrap(), None);
    let mut seen = 0;
    let mut visit = |_: &[u8], _: &[u8]| {
        seen += 1;
        ControlFlow::Continue(())
    };
    store.scan(&[], &[0xff; 64], &mut visit).unwrap();
    assert_eq!(seen, 1);
    assert_eq!(read_counter(&store.keyspace).unwrap(), 1);
}

/// Operation continued as if the store existed, and the data was lost when it was closed.
#[test]
fn a_store_that_was_deleted_below_is_not_durable_and_can_be_closed() {
    for is_large in [false, true] {
        let dir = TempDir::new("fjall-deleted");
        let (map, store) = durable_store(&dir);
        std::fs::remove_dir_all(&map).unwrap();
        let error = store.persist().unwrap_err();
        assert!(error.corrupt && error.message.contains("was deleted"), "{error}");
        // Also with tables to be written, whose directory no longer exists.
        for number in 0..if is_large { 100 } else { 1 } {
            let mut batch = MapBatch::default();
            (0..1000u64).for_each(|key| batch.put((key * 1_000_003 + number).to_be_bytes(), vec![7; 300]));
            if store.commit(batch).is_err() {
                break;
            }
        }
        store.persist().unwrap_err();
        drop(store);
        assert!(FjallStore::open(&map, SMALL).is_err());
    }
}

/// Adds enough keys to a batch that it is written as a table.
fn enlarge(batch: &mut MapBatch, value: &[u8]) {
    (0..TABLE_CHANGES_MIN as u64).for_each(|key| batch.put((key + (1 << 32)).to_be_bytes(), value));
}

/// The key of a batch's own table.
const ENLARGED_KEY: [u8; 8] = ((1 << 32) + 5u64).to_be_bytes();

/// One batch in this many of the kill test is a large one.
const LARGE_EVERY: u64 = 16;

/// Batch `number` of the kill test: every key gets the batch's number, so that a mix of batches is
/// seen.
fn numbered(number: u64) -> MapBatch {
    let mut batch = MapBatch::default();
    if number.is_multiple_of(LARGE_EVERY) {
        enlarge(&mut batch, &number.to_le_bytes());
    }
    for key in 0..50u64 {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(64 + (number % 7) as usize * 300, number as u8);
        batch.put(key.to_be_bytes(), value);
    }
    batch
}

/// Runs in a child process of the test below: commits numbered batches endlessly, and reports which
/// one is durable.
#[test]
#[ignore = "the child of a_killed_process_leaves_whole_batches"]
fn commit_until_killed() {
    let Some(map) = std::env::var_os("SHALE_TEST_MAP") else { return };
    let store = FjallStore::open(Path::new(&map), SMALL).unwrap();
    let mut number = store.writer.lock().commits;
    loop {
        number += 1;
        store.commit(numbered(number)).unwrap();
        if number.is_multiple_of(10) {
            store.persist().unwrap();
            println!("durable {number}");
            std::io::stdout().flush().unwrap();
        }
    }
}

#[test]
fn a_killed_process_leaves_whole_batches() {
    let dir = TempDir::new("fjall-kill");
    let map = dir.path().join("map");
    drop(FjallStore::create(&map, SMALL).unwrap());
    for round in 0..8u64 {
        let alone = starting();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "fjall_store::tests::commit_until_killed"])
            .env("SHALE_TEST_MAP", &map)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut durable = 0;
        let wanted = 3 + 40 * round;
        let mut alone = Some(alone);
        for (count, line) in lines.map_while(Result::ok).filter(|l| l.contains("durable ")).enumerate() {
            // It is its own program now.
            drop(alone.take());
            durable = line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
            if count as u64 == wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(durable > 0, "the child never got going");
        let store = FjallStore::open(&map, SMALL).unwrap();
        let commits = store.writer.lock().commits;
        assert!(commits >= durable, "{durable} were durable, {commits} are left");
        for (key, value) in numbered(commits).changes {
            assert_eq!(store.get(&key).unwrap(), value, "batch {commits} is there as a whole, and nothing newer");
        }
        let large = commits / LARGE_EVERY * LARGE_EVERY;
        let expected = (large > 0).then(|| large.to_le_bytes().to_vec());
        for key in [1 << 32, (1 << 32) + TABLE_CHANGES_MIN as u64 - 1] {
            assert_eq!(store.get(&key.to_be_bytes()).unwrap(), expected, "the last large batch, of {commits}");
        }
    }
}

/// A store with several tables, one of them in the last level with its index and filter in parts,
/// and a journal; all its records are known.
fn filled(map: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let store = FjallStore::create(map, SMALL).unwrap();
    for number in 0..4u64 {
        let mut batch = MapBatch::default();
        for key in 0..300u64 {
            let value = (key * 1_000_003 + number).to_le_bytes().repeat(20);
            batch.put((key * 4 + number).to_be_bytes(), value);
        }
        store.commit(batch).unwrap();
        if number < 3 {
            store.keyspace.rotate_memtable_and_wait().unwrap();
        }
        if number == 1 {
            store.keyspace.major_compact().unwrap();
        }
    }
    store.persist().unwrap();
    let mut records = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.scan(&[], &[0xff; 32], &mut visit).unwrap();
    assert_eq!(records.len(), 1200);
    records
}

/// Effect of damage on a store: found at open, by verify, by reads; or irrelevant because all
/// records are right.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    AtOpen,
    AtVerify,
    Harmless,
}

fn outcome(map: &Path, records: &[(Vec<u8>, Vec<u8>)], what: &str) -> Outcome {
    let store = match FjallStore::open(map, SMALL) {
        Ok(store) => store,
        Err(error) => {
            assert!(error.corrupt, "{what}: {error}");
            return Outcome::AtOpen;
        }
    };
    let mut wrong = 0;
    let mut errors = 0;
    for (key, value) in records {
        match store.get(key) {
            Ok(Some(found)) if found == *value => {}
            Ok(_) => wrong += 1,
            Err(error) => {
                assert!(error.corrupt, "{what}: {error}");
                errors += 1;
            }
        }
    }
    assert_eq!(wrong, 0, "{what}: wrong values");
    match store.verify() {
        Ok(()) => {
            assert_eq!(errors, 0, "{what}: verify must see what reads see");
            Outcome::Harmless
        }
        Err(error) => {
            assert!(error.corrupt, "{what}: {error}");
            Outcome::AtVerify
        }
    }
}

#[test]
fn a_damaged_byte_is_never_a_wrong_value() {
    const TAIL_BYTES: usize = 4096;
    let dir = TempDir::new("fjall-damage");
    let map = dir.path().join("map");
    let records = filled(&map);
    let mut files = Vec::new();
    files_below(&map, &mut files);
    let mut seen = std::collections::BTreeMap::new();
    for path in files.iter().filter(|p| p.metadata().unwrap().len() > 0) {
        let whole = std::fs::read(path).unwrap();
        // The journal is padded with zeroes; its data is at the front.
        let used = whole.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        let step = (used / 11).max(1);
        // Indexes and filters of a table lie at its end.
        let tail = used.saturating_sub(TAIL_BYTES)..used;
        let tail = if used > 4 * TAIL_BYTES { tail } else { 0..0 };
        for at in (0..used).step_by(step).chain(tail.step_by(TAIL_BYTES / 16)) {
            let copy = dir.path().join("copy");
            let mut command = Command::new("cp");
            command.args(["-r", "--sparse=always"]).arg(&map).arg(&copy);
            assert!(ended(&mut command).success());
            let hurt = copy.join(path.strip_prefix(&map).unwrap());
            let file = std::fs::OpenOptions::new().write(true).open(&hurt).unwrap();
            file.write_all_at(&[whole[at] ^ 0x10], at as u64).unwrap();
            let what = format!("byte {at} of {}", path.strip_prefix(&map).unwrap().display());
            *seen.entry(outcome(&copy, &records, &what)).or_insert(0) += 1;
            std::fs::remove_dir_all(&copy).unwrap();
        }
    }
    println!("{seen:?}");
    assert!(seen[&Outcome::AtOpen] > 0 && seen[&Outcome::AtVerify] > 0, "{seen:?}");
}

/// The journal left by a power loss: the last batch has its end, but a page in the middle of a
/// value was never written.
#[test]
fn a_batch_with_a_hole_is_dropped_if_it_was_not_durable() {
    for durable in [false, true] {
        let dir = TempDir::new("fjall-hole");
        let (map, store) = durable_store(&dir);
        let mut batch = batch_of(&[("a", "2")]);
        batch.put(*b"large", vec![7; 20_000]);
        store.commit(batch).unwrap();
        if durable {
            store.persist().unwrap();
        } else {
            // As the kernel would on its own.
            store.database.persist(PersistMode::Buffer).unwrap();
        }
        drop(store);
        let journal = Journal::all(&map.join(LSM_DIR)).unwrap().pop().unwrap().path().to_owned();
        let file = std::fs::OpenOptions::new().write(true).open(&journal).unwrap();
        file.write_all_at(&[0; 4096], 8192).unwrap();
        let before = std::fs::read(&journal).unwrap();
        match FjallStore::open(&map, SMALL) {
            Ok(store) => {
                assert!(!durable, "lost what was durable");
                assert_eq!(store.get(b"a").unwrap().unwrap(), b"1");
                assert_eq!(store.get(b"large").unwrap(), None);
                store.commit(batch_of(&[("a", "3")])).unwrap();
                store.persist().unwrap();
                drop(store);
                assert_eq!(FjallStore::open(&map, SMALL).unwrap().get(b"a").unwrap().unwrap(), b"3");
            }
            Err(error) => {
                assert!(durable && error.corrupt, "{error}");
                assert!(std::fs::read(&journal).unwrap() == before, "the evidence stays");
            }
        }
    }
}

/// A journal left by a power loss, in a store that was created and never reopened, so that it has
/// its full length: after the durable part, a batch of `bytes` with a hole.
fn torn_journal(map: &Path, bytes: usize) -> PathBuf {
    let store = FjallStore::create(map, SMALL).unwrap();
    store.commit(batch_of(&[("a", "1")])).unwrap();
    store.persist().unwrap();
    let mut batch = batch_of(&[("a", "2")]);
    batch.put(*b"large", vec![7; bytes]);
    store.commit(batch).unwrap();
    store.database.persist(PersistMode::Buffer).unwrap();
    drop(store);
    let journal = Journal::all(&map.join(LSM_DIR)).unwrap().pop().unwrap().path().to_owned();
    let file = std::fs::OpenOptions::new().write(true).open(&journal).unwrap();
    file.write_all_at(&[0; 4096], 8192).unwrap();
    journal
}

/// The padding, 64 MiB of zeroes, was copied with the tail: on a full disk, the store could never
/// be opened again.
#[test]
fn a_torn_tail_takes_no_room() {
    let dir = TempDir::new("fjall-torn-full");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(dir.path()).stderr(Stdio::null());
    if !ended(&mut mount).success() {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    }
    let map = dir.path().join("map");
    // Two of them do not fit.
    let journal = torn_journal(&map, 14 << 20);
    let opened = FjallStore::open(&map, SMALL).and_then(|store| {
        let found = store.get(b"a")?;
        store.commit(batch_of(&[("a", "3")]))?;
        store.persist()?;
        Ok(found)
    });
    let kept = journal.with_extension("torn").exists();
    assert!(ended(Command::new("umount").arg(dir.path())).success());
    assert_eq!(opened.unwrap().unwrap(), b"1");
    assert!(!kept);
}

/// The tail was only in a file that the opening did not examine.
#[test]
fn what_a_crash_interrupts_while_a_tail_is_cut_or_put_back_is_made_good() {
    let dir = TempDir::new("fjall-cut-crash");
    let map = dir.path().join("map");
    let journal = torn_journal(&map, 3 << 20);
    let (lsm, kept) = (map.join(LSM_DIR), journal.with_extension("torn"));
    std::fs::OpenOptions::new().write(true).open(&journal).unwrap().set_len(4 << 20).unwrap();
    let whole = std::fs::read(&journal).unwrap();
    let cut = || {
        let found = Journal::all(&lsm).unwrap().pop().unwrap();
        assert!(found.has_tail());
        drop(found.cut().unwrap());
        assert!(std::fs::metadata(&journal).unwrap().len() < 4096);
        (std::fs::read(&journal).unwrap(), std::fs::read(&kept).unwrap())
    };
    let is_made_good = |what: &str| {
        CutTail::restore_all(&lsm).unwrap();
        assert!(std::fs::read(&journal).unwrap() == whole, "{what}");
        assert!(!kept.exists(), "{what}");
    };
    let (journal_cut, tail) = cut();
    is_made_good("behind the cut");
    let (at, end) = (journal_cut.len(), journal_cut.len() + tail.len() - 24);
    for moved in [0, 4000, 1 << 20, (1 << 20) + 5000, 2 << 20] {
        // This much has been moved from the old place to the new one, and the piece after it is in
        // both.
        let mut left = whole.clone();
        left[at..at + moved].fill(0);
        std::fs::write(&journal, &left).unwrap();
        std::fs::write(&kept, &tail[..24 + (moved + (1 << 20)).min(tail.len() - 24)]).unwrap();
        is_made_good(&format!("{moved} bytes cut"));
        // On the way back from the end.
        let mut left = whole.clone();
        left[at..end - moved].fill(0);
        std::fs::write(&journal, &left).unwrap();
        std::fs::write(&kept, &tail).unwrap();
        is_made_good(&format!("{moved} bytes put back"));
    }
    for head in [0, 10, 24] {
        // A file that does not name its source has cut nothing.
        std::fs::write(&kept, vec![0; head]).unwrap();
        is_made_good("a crash before the cut");
    }
    // The journal continued: the part cut off is void.
    cut();
    std::fs::OpenOptions::new().append(true).open(&journal).unwrap().write_all(&[1]).unwrap();
    CutTail::restore_all(&lsm).unwrap();
    assert_eq!(std::fs::metadata(&journal).unwrap().len(), at as u64 + 1);
    assert!(!kept.exists());
}

/// This was mistaken for damage of an older journal: the library starts another one although a
/// commit failed.
#[test]
fn a_torn_tail_is_cut_before_journals_in_which_nothing_is() {
    let dir = TempDir::new("fjall-torn-rotated");
    let map = dir.path().join("map");
    let journal = torn_journal(&map, 20_000);
    let number: u64 = journal.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    for next in 1..3 {
        let path = journal.with_file_name(format!("{}.jnl", number + next));
        std::fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
    }
    for expected in ["1", "3"] {
        let store = FjallStore::open(&map, SMALL).unwrap();
        assert_eq!(store.get(b"a").unwrap().unwrap(), expected.as_bytes());
        assert_eq!(store.get(b"large").unwrap(), None);
        store.commit(batch_of(&[("a", "3")])).unwrap();
        store.persist().unwrap();
    }
}

/// A commit waited endlessly for the library to merge tables that it had no reason to merge.
#[test]
fn a_commit_goes_on_when_nobody_merges() {
    let dir = TempDir::new("fjall-unmerged");
    let map = dir.path().join("map");
    let lsm = map.join(LSM_DIR);
    std::fs::create_dir_all(&map).unwrap();
    let database = Database::builder(&lsm).open().unwrap();
    let lazily = || keyspace_options().compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(200)));
    let keyspace = database.keyspace(KEYSPACE, lazily).unwrap();
    while keyspace.tree.l0_run_count() < L0_RUNS_MAX {
        keyspace.insert(b"a", b"1").unwrap();
        keyspace.rotate_memtable_and_wait().unwrap();
    }
    drop((keyspace, database));
    drop(DurableMark::create(&map.join(MARK_FILE)).unwrap());
    let store = FjallStore::open(&map, SMALL).unwrap();
    assert!(store.keyspace.tree.l0_run_count() >= L0_RUNS_MAX);
    store.commit(batch_of(&[("a", "3")])).unwrap();
    store.persist().unwrap();
    assert_eq!(store.get(b"a").unwrap().unwrap(), b"3");
}

#[test]
fn memory_stays_within_its_budget_under_load() {
    let dir = TempDir::new("fjall-load");
    let store = FjallStore::create(&dir.path().join("map"), SMALL).unwrap();
    let mut state = 1u64;
    for _ in 0..120 {
        let mut batch = MapBatch::default();
        for _ in 0..2500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            batch.put(state.to_be_bytes(), state.to_le_bytes().repeat(25));
        }
        store.commit(batch).unwrap();
        assert!(store.keyspace.sealed_memtable_count() <= SEALED_MAX);
        assert!(store.keyspace.tree.active_memtable().size() <= SMALL.memtable_bytes());
    }
    assert!(store.keyspace.table_count() > 0, "nothing was ever written as a table");
    store.verify().unwrap();
}

/// Opening after a crash had to replay the whole journal.
#[test]
fn what_a_large_batch_has_filled_becomes_a_table_once_it_is_durable() {
    let dir = TempDir::new("fjall-large");
    let map = dir.path().join("map");
    let store = FjallStore::create(&map, SMALL).unwrap();
    let filled = || store.keyspace.tree.active_memtable().size();
    let value = |key: u64| key.to_le_bytes().repeat(100);
    let count = SMALL.memtable_bytes() / 800 + 1;
    let mut large = MapBatch::default();
    (0..count).for_each(|key| large.put(key.to_be_bytes(), value(key)));
    store.commit(large).unwrap();
    assert!(filled() > SMALL.memtable_bytes());
    store.persist().unwrap();
    assert_eq!(filled(), 0);
    let mut small = MapBatch::default();
    small.put(count.to_be_bytes(), value(count));
    store.commit(small).unwrap();
    store.persist().unwrap();
    assert!(filled() > 0, "small batches gather");
    drop(store);
    let store = FjallStore::open(&map, SMALL).unwrap();
    for key in 0..=count {
        assert_eq!(store.get(&key.to_be_bytes()).unwrap(), Some(value(key)));
    }
}

/// Older values of a key in the journal must not override a table that was written later.
#[test]
fn a_table_of_its_own_stands_where_it_was_committed() {
    for (is_persisted, is_merged) in [(false, false), (true, false), (true, true)] {
        let dir = TempDir::new("fjall-table");
        let (map, store) = durable_store(&dir);
        store.commit(batch_of(&[("a", "2"), ("b", "2"), ("c", "2"), ("gone", "2")])).unwrap();
        if is_persisted {
            store.persist().unwrap();
        }
        let tables_before = store.keyspace.table_count();
        let mut large = batch_of(&[("b", "3"), ("c", "3"), ("twice", "2"), ("twice", "3")]);
        large.delete(*b"gone");
        enlarge(&mut large, b"3");
        store.commit(large).unwrap();
        assert!(store.keyspace.table_count() > tables_before, "no table was written");
        assert_eq!(store.keyspace.tree.active_memtable().size(), 0, "it went the other way as well");
        store.commit(batch_of(&[("c", "4")])).unwrap();
        if is_persisted {
            store.persist().unwrap();
        }
        if is_merged {
            store.keyspace.major_compact().unwrap();
        }
        let expected = [("a", Some("2")), ("b", Some("3")), ("c", Some("4")), ("twice", Some("3")), ("gone", None)];
        let found = |store: &FjallStore| {
            for (key, value) in expected {
                let value = value.map(|value| value.as_bytes().to_vec());
                assert_eq!(store.get(key.as_bytes()).unwrap(), value, "{key}, {is_persisted} {is_merged}");
            }
            assert_eq!(store.get(&ENLARGED_KEY).unwrap().unwrap(), b"3");
            let mut count = 0;
            let mut visit = |_: &[u8], _: &[u8]| {
                count += 1;
                ControlFlow::Continue(())
            };
            store.scan(&[], &[0xff; 64], &mut visit).unwrap();
            assert_eq!(count, TABLE_CHANGES_MIN + 4);
            store.verify().unwrap();
        };
        found(&store);
        drop(store);
        for _ in 0..2 {
            let store = FjallStore::open(&map, SMALL).unwrap();
            assert_eq!(store.writer.lock().commits, 4);
            found(&store);
        }
    }
}

/// Durable as soon as it is committed, and so is everything before it: all of it survives if the
/// machine stops immediately afterwards.
#[test]
fn what_comes_before_a_table_of_its_own_is_durable_with_it() {
    let dir = TempDir::new("fjall-table-order");
    let (map, store) = durable_store(&dir);
    for number in 0..20 {
        store.commit(batch_of(&[("a", &number.to_string())])).unwrap();
    }
    let mut large = MapBatch::default();
    enlarge(&mut large, b"1");
    store.commit(large).unwrap();
    // Data left in the library's buffer would be lost.
    std::mem::forget(store);
    let copy = dir.path().join("copy");
    assert!(ended(Command::new("cp").args(["-r", "--sparse=always"]).args([&map, &copy])).success());
    let store = FjallStore::open(&copy, SMALL).unwrap();
    assert_eq!(store.get(b"a").unwrap().unwrap(), b"19");
    assert_eq!(store.get(&ENLARGED_KEY).unwrap().unwrap(), b"1");
}

/// Light batches between large ones leave journals, which were never removed.
#[test]
fn journals_do_not_grow_beside_tables() {
    let dir = TempDir::new("fjall-journals");
    let (map, store) = durable_store(&dir);
    for round in 0..20u64 {
        let mut batch = MapBatch::default();
        (0..10_000u64).for_each(|key| batch.put(key.to_be_bytes(), vec![round as u8; 600]));
        store.commit(batch).unwrap();
        let mut large = MapBatch::default();
        enlarge(&mut large, &round.to_le_bytes());
        store.commit(large).unwrap();
        store.persist().unwrap();
    }
    store.wait_for_tables(0).unwrap();
    let mut files = Vec::new();
    files_below(&map, &mut files);
    let journals = files.iter().filter(|path| path.extension().is_some_and(|e| e == "jnl")).count();
    assert!(journals <= 3, "{journals} journals of some 64 MB");
}

#[test]
fn a_full_disk_is_an_error_and_reopening_goes_on() {
    for changes in [500, TABLE_CHANGES_MIN as u64] {
        fill_and_reopen(changes);
    }
}

/// Batches of so many changes until the disk is full.
fn fill_and_reopen(changes: u64) {
    let dir = TempDir::new("fjall-full");
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        ended(command.args(["-t", "tmpfs", "-o", options, "none"]).arg(dir.path()).stderr(Stdio::null())).success()
    };
    if !mount("size=24m") {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    }
    let map = dir.path().join("map");
    let store = FjallStore::create(&map, SMALL).unwrap();
    let mut durable = 0;
    let mut number = 0;
    let error = loop {
        number += 1;
        let mut batch = MapBatch::default();
        for key in 0..changes {
            batch.put((key * 1_000_003 + number * 7919).to_be_bytes(), vec![number as u8; 300]);
        }
        batch.put(*b"number", number.to_le_bytes());
        match store.commit(batch).and_then(|()| store.persist()) {
            Ok(()) => durable = number,
            Err(error) => break error,
        }
        assert!(number < 10_000, "the disk never got full");
    };
    let again = store.commit(batch_of(&[("a", "1")]));
    let persist_again = store.persist();
    drop(store);
    let remounted = mount("remount,size=96m");
    let reopened = FjallStore::open(&map, SMALL).and_then(|store| {
        let found = store.get(b"number")?;
        store.commit(batch_of(&[("a", "1")]))?;
        store.persist()?;
        store.verify()?;
        Ok(found)
    });
    let unmounted = ended(Command::new("umount").arg(dir.path()));
    assert!(unmounted.success(), "a closed store keeps files open");
    assert!(!error.corrupt, "{error}");
    assert!(again.is_err() && persist_again.is_err(), "it must not go on as if nothing had happened");
    assert!(remounted);
    let found = u64::from_le_bytes(reopened.unwrap().unwrap().try_into().unwrap());
    assert!(found >= durable, "{durable} was durable, {found} is left");
}

/// The library would remove the tables, and the store would appear to have lost data that it still
/// has.
#[test]
fn a_store_without_the_list_of_its_tables_is_not_touched_and_the_list_is_found_again() {
    let dir = TempDir::new("fjall-lists");
    let map = dir.path().join("map");
    let records = filled(&map);
    // Opening removes the lists of states that are over.
    drop(FjallStore::open(&map, SMALL).unwrap());
    let copy = dir.path().join("copy");
    for keyspace in ["0", "1"] {
        drop(std::fs::remove_dir_all(&copy));
        assert!(ended(Command::new("cp").arg("-a").arg(&map).arg(&copy)).success());
        let keyspace = copy.join(LSM_DIR).join("keyspaces").join(keyspace);
        let (current, mut before, mut after) = (keyspace.join("current"), Vec::new(), Vec::new());
        let said = std::fs::read(&current).unwrap();
        std::fs::remove_file(&current).unwrap();
        files_below(&copy, &mut before);
        // However often it is tried.
        for _ in 0..2 {
            let error = FjallStore::open(&copy, SMALL).unwrap_err();
            assert!(error.corrupt && error.message.contains("current is missing"), "{error}");
            assert!(!error.message.contains("has lost durable data"), "{error}");
        }
        files_below(&copy, &mut after);
        before.sort();
        after.sort();
        assert_eq!(before, after);
        let (store, made) = FjallStore::open_for_repair(&copy, SMALL).unwrap();
        assert_eq!((made, std::fs::read(&current).unwrap()), (vec![current.clone()], said));
        for (key, value) in &records {
            assert_eq!(store.get(key).unwrap().as_ref(), Some(value));
        }
        drop(store);
        // Of two lists it is not known which one counts.
        std::fs::remove_file(&current).unwrap();
        std::fs::write(keyspace.join("v99999"), b"another").unwrap();
        let error = FjallStore::open_for_repair(&copy, SMALL).unwrap_err();
        assert!(error.corrupt && error.message.contains("current is missing"), "{error}");
    }
}
