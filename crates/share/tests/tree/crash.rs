//! Random operations, with a power loss at any change or flush.

use std::sync::Arc;

use share::{Caller, Failure, Tree};
use sim::{Rng, SimSpace};

use crate::ground::{Ground, OnPool};
use crate::run::{OPTIONS, Run};

type InMemory = Run<Arc<SimSpace>>;

/// Runs and operations of each in `make test`; `SHALE_TREE_RUNS` asks for more.
fn runs(default: u64) -> u64 {
    std::env::var("SHALE_TREE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn agree_with_the_model<G: Ground>(seeds: u64) {
    for seed in 0..seeds {
        let mut run = Run::<G>::new(seed);
        for _ in 0..300 {
            assert!(run.step());
        }
        run.compare();
        // Nodes without a name are removed when the kernel forgets them; nothing is left of them.
        let nodes: Vec<u64> = run.model.nodes.keys().copied().collect();
        for node in nodes {
            run.tree.forget(node).unwrap();
            run.model.forget(node);
        }
        assert_eq!(run.tree.check().unwrap(), Vec::<String>::new(), "seed {seed}");
        run.compare();
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    agree_with_the_model::<Arc<SimSpace>>(runs(60));
}

#[test]
fn random_operations_on_a_pool_agree_with_the_model() {
    agree_with_the_model::<OnPool>(runs(12));
}

/// A space that fills up, and has space again: refused calls have no effect, and everything else
/// works as usual.
pub fn refuse_and_go_on<G: Ground>(seeds: u64) -> u64 {
    let mut refused = 0;
    for seed in 0..seeds {
        let mut run = Run::<G>::new(seed);
        for _ in 0..6 {
            run.be_tight();
            for _ in 0..60 {
                assert!(run.step());
            }
            refused += u64::from(run.tree.commit().is_err());
            run.compare();
            run.space.lift_limit();
            run.tree.commit().unwrap();
            assert_eq!(run.tree.sync(), Ok(()), "seed {seed}");
            let nodes = run.model.nodes.keys().copied().filter(|&node| run.model.links(node) == 0);
            for node in nodes.collect::<Vec<u64>>() {
                run.tree.forget(node).unwrap();
                run.model.forget(node);
            }
            run.tree.commit().unwrap();
            assert_eq!(run.tree.check().unwrap(), Vec::<String>::new(), "seed {seed}");
        }
        run.compare();
        // All of it is durable.
        let model = run.model.clone();
        run.committed();
        run.recover();
        run.model = model.reopened();
        run.compare();
    }
    refused
}

#[test]
fn a_full_space_refuses_and_goes_on() {
    assert!(refuse_and_go_on::<Arc<SimSpace>>(runs(100)) > 0, "no commit was ever refused");
}

#[test]
fn a_full_pool_refuses_and_goes_on() {
    refuse_and_go_on::<OnPool>(runs(20));
}

/// Runs of one half of the seeds: two tests, so that two cores have something to do. Returns the
/// losses of power in the middle of an operation.
pub fn lose_power<G: Ground>(seeds: impl Iterator<Item = u64>) -> u64 {
    let mut losses = 0;
    for seed in seeds {
        let mut run = Run::<G>::new(seed);
        // It continues after each loss, and can lose power again.
        for _ in 0..4 {
            let calls = run.rng.below(60);
            run.space.fail_after(calls, &mut run.rng);
            // In every third run there is little space, and less than reported.
            if seed % 3 == 0 {
                run.be_tight();
            }
            let _went = (0..120).take_while(|_| run.step()).count();
            // Otherwise the power fails between two operations.
            losses += u64::from(run.space.is_off());
            run.recover();
        }
    }
    losses
}

/// Seeds of each half: with four losses each, played out five times, at least 10,000 points in all.
const SEEDS: u64 = 300;

#[test]
fn a_loss_of_power_leaves_what_was_synced_even() {
    let losses = lose_power::<Arc<SimSpace>>((0..runs(SEEDS)).map(|seed| 2 * seed));
    assert!(losses > runs(SEEDS), "{losses} losses in the middle of an operation");
}

#[test]
fn a_loss_of_power_leaves_what_was_synced_odd() {
    let losses = lose_power::<Arc<SimSpace>>((0..runs(SEEDS)).map(|seed| 2 * seed + 1));
    assert!(losses > runs(SEEDS), "{losses} losses in the middle of an operation");
}

/// Seeds of each half on a pool, with four losses each.
const SEEDS_ON_POOL: u64 = 150;

#[test]
fn a_loss_of_power_of_a_pool_leaves_what_was_synced_even() {
    let losses = lose_power::<OnPool>((0..runs(SEEDS_ON_POOL)).map(|seed| 2 * seed));
    println!("{losses} losses in the middle of an operation");
    assert!(losses > runs(SEEDS_ON_POOL), "{losses} losses in the middle of an operation");
}

#[test]
fn a_loss_of_power_of_a_pool_leaves_what_was_synced_odd() {
    let losses = lose_power::<OnPool>((0..runs(SEEDS_ON_POOL)).map(|seed| 2 * seed + 1));
    println!("{losses} losses in the middle of an operation");
    assert!(losses > runs(SEEDS_ON_POOL), "{losses} losses in the middle of an operation");
}

#[test]
fn a_loss_of_power_while_it_is_opened_again_loses_nothing() {
    for seed in 0..runs(150) {
        let mut run = InMemory::new(seed);
        for _ in 0..60 {
            run.step();
        }
        run.tree.sync().unwrap();
        let state = run.model.reopened();
        let mut space = run.space.after_power_loss(&mut run.rng);
        for calls in 0..8 {
            SimSpace::fail_after(&space, calls);
            let opened = Tree::open(space.clone(), OPTIONS);
            assert_eq!(opened.is_err(), space.is_off());
            space = space.after_power_loss(&mut run.rng);
        }
        run.tree = Tree::open(space.clone(), OPTIONS).unwrap();
        assert_eq!(run.tree.check().unwrap(), Vec::<String>::new(), "seed {seed}");
        run.model = state;
        run.compare();
    }
}

/// A commit finds no space, nor does the following `fsync`, which cannot even open the database.
/// The `fsync` that finds space again has all names, whether others were added in between or not.
#[test]
fn a_sync_behind_a_refused_one_has_the_names_of_both() {
    for makes_more in [false, true] {
        let space = SimSpace::new();
        let tree = Tree::create(space.clone(), 7, OPTIONS).unwrap();
        let make = |directory, name| {
            tree.make(directory, name, Caller { uid: 1000, gid: 100 }, libc::S_IFDIR | 0o755, 0, 0).unwrap().0
        };
        let node = make(Tree::ROOT, b"a");
        SimSpace::limit(&space, 0, 0, 0);
        assert_eq!(tree.commit(), Err(Failure::new(libc::ENOSPC)));
        SimSpace::limit(&space, 0, 0, 0);
        assert_eq!(tree.sync(), Err(Failure::new(libc::ENOSPC)));
        SimSpace::lift_limit(&space);
        if makes_more {
            make(node, b"b");
        }
        assert_eq!(tree.sync(), Ok(()));
        let tree = Tree::open(space.after_power_loss(&mut Rng::new(7)), OPTIONS).unwrap();
        assert_eq!(tree.check().unwrap(), Vec::<String>::new());
        assert_eq!(tree.lookup(Tree::ROOT, b"a").map(|(found, _)| found), Ok(node), "makes more: {makes_more}");
        assert_eq!(tree.lookup(node, b"b").is_ok(), makes_more);
    }
}
