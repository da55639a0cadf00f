//! Replies that are handed over, on the kernel's own device. Needs root and /dev/fuse.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use std::fs::{self, File};
use std::sync::Arc;

use fe_share::{MountOptions, mount};
use fuse::HandoverCounts;
use share::{Options, Time, Tree};
use sim::SimSpace;
use testkit::{MountDir, require_fuse};

const OPTIONS: Options = Options { now: || Time { seconds: 1_800_000_000, nanoseconds: 1 }, cache_bytes: 4 << 20 };

/// Files to make at least. Replies are handed over from the third or so on, until a busy machine
/// makes it pause.
const FILES_MIN: usize = 1000;

#[test]
fn a_lone_caller_gets_right_answers_that_are_handed_over() {
    require_fuse();
    if let Some(reason) = fuse::why_no_handover() {
        return eprintln!("skipped: nothing is handed over: {reason}");
    }
    let (dir, space, counts) = (MountDir::new("handover"), SimSpace::new(), Arc::new(HandoverCounts::default()));
    let tree = Arc::new(Tree::create(space.clone(), 7, OPTIONS).unwrap());
    let options = MountOptions { handover: Some(counts.clone()), ..MountOptions::default() };
    let share = mount(tree, dir.path(), &options).unwrap();
    let mut made = 0;
    while made < FILES_MIN || counts.figures().handoffs == 0 {
        let (path, content) = (dir.join(format!("f{made}")), made.to_string());
        fs::write(&path, &content).unwrap();
        rustix::fs::statvfs(dir.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), content.len() as u64);
        assert_eq!(fs::read(&path).unwrap(), content.as_bytes());
        match made % 100 {
            98 => File::open(&path).unwrap().sync_all().unwrap(),
            99 => fs::remove_file(&path).unwrap(),
            _ => {}
        }
        made += 1;
    }
    share.unmount().unwrap();
    let tree = Tree::open(space, OPTIONS).unwrap();
    assert_eq!(tree.check().unwrap(), Vec::<String>::new());
    let listed = (0..made).filter(|number| tree.lookup(Tree::ROOT, format!("f{number}").as_bytes()).is_ok()).count();
    assert_eq!(listed, made - made / 100);
}
