//! Random operations, with a loss of power at any change or flush.

use crate::run::Run;

/// Runs and operations of each in `make test`; `SHALE_TREE_RUNS` asks for more.
fn runs(default: u64) -> u64 {
    std::env::var("SHALE_TREE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..runs(60) {
        let mut run = Run::new(seed);
        for _ in 0..300 {
            assert!(run.step());
        }
        run.compare();
        // Nodes without a name go when the kernel forgets them; nothing is left of them.
        let nodes: Vec<u64> = run.model.nodes.keys().copied().collect();
        for node in nodes {
            run.tree.forget(node).unwrap();
            run.model.forget(node);
        }
        assert_eq!(run.tree.check().unwrap(), Vec::<String>::new(), "seed {seed}");
        run.compare();
    }
}

/// Runs of one half of the seeds: two tests, so that two cores have something to do. Returns the losses of power in
/// the middle of an operation.
pub fn lose_power(seeds: impl Iterator<Item = u64>) -> u64 {
    let mut losses = 0;
    for seed in seeds {
        let mut run = Run::new(seed);
        // It goes on after each loss, and can lose power again.
        for _ in 0..4 {
            let calls = run.rng.below(60);
            run.space.fail_after(calls);
            let _went = (0..120).take_while(|_| run.step()).count();
            // Else power goes between two operations.
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
    let losses = lose_power((0..runs(SEEDS)).map(|seed| 2 * seed));
    assert!(losses > runs(SEEDS), "{losses} losses in the middle of an operation");
}

#[test]
fn a_loss_of_power_leaves_what_was_synced_odd() {
    let losses = lose_power((0..runs(SEEDS)).map(|seed| 2 * seed + 1));
    assert!(losses > runs(SEEDS), "{losses} losses in the middle of an operation");
}

#[test]
fn a_loss_of_power_while_it_is_opened_again_loses_nothing() {
    for seed in 0..runs(150) {
        let mut run = Run::new(seed);
        for _ in 0..60 {
            run.step();
        }
        run.tree.sync().unwrap();
        let state = run.model.reopened();
        let mut space = run.space.after_power_loss(&mut run.rng);
        for calls in 0..8 {
            space.fail_after(calls);
            let opened = share::Tree::open(space.clone(), crate::run::OPTIONS);
            assert_eq!(opened.is_err(), space.is_off());
            space = space.after_power_loss(&mut run.rng);
        }
        run.tree = share::Tree::open(space.clone(), crate::run::OPTIONS).unwrap();
        assert_eq!(run.tree.check().unwrap(), Vec::<String>::new(), "seed {seed}");
        run.model = state;
        run.compare();
    }
}
