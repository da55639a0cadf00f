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

#[test]
fn a_loss_of_power_leaves_what_some_commit_left() {
    let mut losses = 0;
    for seed in 0..runs(250) {
        let mut run = Run::new(seed);
        // It goes on after each loss, and can lose power again.
        for _ in 0..4 {
            let calls = run.rng.below(60);
            run.space.fail_after(calls);
            for _ in 0..120 {
                if !run.step() {
                    break;
                }
            }
            if run.space.is_off() {
                losses += 1;
                run.recover();
            } else {
                // Power goes between two operations.
                run.recover();
            }
        }
    }
    assert!(losses > runs(250), "{losses} losses in the middle of an operation");
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
