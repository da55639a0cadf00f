//! Names that came in a stream are read by a process of its own: a page of them that asks for memory
//! ends that process, and is an error here. The process is this program again, with the limit that
//! a shell sets.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use share::{Caller, NamesReader, Options, Time, Tree};
use sim::SimSpace;
use surface::{ObjectSpace, SEAL};
use xxhash_rust::xxh3::xxh3_128;

const OPTIONS: Options = Options { now: || Time { seconds: 9, nanoseconds: 1 }, cache_bytes: 1 << 20 };
const FILES: u64 = 3000;

/// Where the database begins, and where its head has the commit that counts.
const BEGIN: u64 = 128 << 10;
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 128;
/// Where a commit has the number of the first page of the tables, and its own checksum.
const ROOT: usize = 8;
const SUM: usize = 112;
/// The order is in the upper bits of a page number: the page has 4 KiB times 2 to its power.
const ORDER: u32 = 59;

/// Set where this program is the process.
const IS_PROCESS: &str = "SHALE_TEST_READS_NAMES";

/// Ends the process when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> io::Result<NamesReader> {
    let (socket, theirs) = UnixStream::pair()?;
    let mut program = Command::new("sh");
    program.args(["-c", "ulimit -v 524288 && ulimit -c 0 && exec \"$0\" --exact the_process --nocapture"]);
    program.arg(std::env::current_exe()?).env(IS_PROCESS, "1").env("RUST_BACKTRACE", "0");
    program.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    Ok(NamesReader { socket, process: Box::new(Running(program.spawn()?)) })
}

/// Not a test, unless it is started by one.
#[test]
fn the_process() {
    if std::env::var_os(IS_PROCESS).is_some() {
        let socket = io::stdin().as_fd().try_clone_to_owned().unwrap();
        share::read_foreign_names(UnixStream::from(socket)).unwrap();
    }
}

/// A share that came in a stream.
fn received() -> Arc<SimSpace> {
    let space = SimSpace::new();
    let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
    for number in 0..FILES {
        let name = format!("file {number}");
        tree.make(Tree::ROOT, name.as_bytes(), Caller { uid: 0, gid: 0 }, libc::S_IFREG | 0o644, 0, 0).unwrap();
    }
    tree.close().unwrap();
    space.discard(SEAL, 0..u64::MAX).unwrap();
    space
}

/// Gives the first page of the tables a length.
fn forge_order(space: &SimSpace, order: u64) {
    let mut head = vec![0; SLOTS + 2 * SLOT_BYTES];
    space.read(1, BEGIN, &mut head).unwrap();
    let slot = SLOTS + SLOT_BYTES * usize::from(head[9] & 1);
    let slot = &mut head[slot..slot + SLOT_BYTES];
    let page = u64::from_le_bytes(*slot[ROOT..].first_chunk().unwrap()) & !(31 << ORDER) | order << ORDER;
    slot[ROOT..ROOT + 8].copy_from_slice(&page.to_le_bytes());
    let sum = xxh3_128(&slot[..SUM]).to_le_bytes();
    slot[SUM..].copy_from_slice(&sum);
    space.write(1, BEGIN, Bytes::from(head)).unwrap();
}

#[test]
fn a_page_of_names_that_asks_for_gigabytes_is_an_error_of_its_share() {
    share::read_foreign_names_with(start);
    let honest = received();
    // Orders that the process is ended by, and one that it refuses.
    for order in [20, 18, 10] {
        let space = honest.snapshot();
        forge_order(&space, order);
        let survey = Tree::survey(space.clone()).unwrap().unwrap();
        assert!(survey.loses_names && survey.records == 0, "order {order}: {survey:?}");
        assert_eq!(survey.problem.contains("receive the share again"), order > 16, "order {order}: {}", survey.problem);
        assert_eq!(Tree::open(space.clone(), OPTIONS).err().unwrap().errno(), libc::EIO, "order {order}");
        let shared: Arc<dyn ObjectSpace> = space.clone();
        let is_rebuilt = Tree::rebuild(&shared, OPTIONS, [1, 2]).is_ok();
        assert_eq!(is_rebuilt, order <= 16, "a repair of names that another reading may find, order {order}");
    }
    let survey = Tree::survey(honest.clone()).unwrap().unwrap();
    assert!(survey.is_whole && survey.records > 2 * FILES, "{survey:?}");
    let tree = Tree::open(honest, OPTIONS).unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    assert!((0..FILES).all(|number| tree.lookup(Tree::ROOT, format!("file {number}").as_bytes()).is_ok()));
}
