//! The protocol as a model, searched breadth-first by Stateright: each promise holds in every
//! state, and each planted bug is caught by the property that it should break.
//!
//! `SHALE_MODEL_STATES` sets how many states each configuration may take (the soak gives more).
#![allow(clippy::panic)]

#[path = "protocol/clones.rs"]
mod clones;
#[path = "protocol/log.rs"]
mod log;

use std::collections::BTreeSet;

use clones::CloneModel;
use log::{LogModel, Op, swept};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// States of each configuration in the gate: all of it takes about a minute on two cores.
const STATES: usize = 150_000;
/// States until a planted bug must be found: the deepest takes a tenth of it.
const CANARY_STATES: usize = 6_000_000;

fn states() -> usize {
    std::env::var("SHALE_MODEL_STATES").ok().and_then(|states| states.parse().ok()).unwrap_or(STATES)
}

fn model(scripts: &[&[Op]], gcs: usize, records_max: usize) -> LogModel {
    LogModel {
        scripts: scripts.iter().map(|script| script.to_vec()).collect(),
        gcs,
        kills: false,
        offers: false,
        records_max,
        gc_may_miss: false,
        passes_tombstones: false,
        canary: "",
    }
}

/// Searches a configuration up to its limit. Asserts that every promise holds, and that the events
/// which the configuration is about do occur.
fn holds(what: &str, model: LogModel) {
    let promises: Vec<&str> = model
        .properties()
        .iter()
        .filter(|property| property.expectation == stateright::Expectation::Always)
        .map(|property| property.name)
        .collect();
    let checker = model.checker().threads(2).target_state_count(states()).spawn_bfs().join();
    for promise in promises {
        if let Some(path) = checker.discovery(promise) {
            panic!("HARNESS: {what}: not so: {promise}\n{:#?}", path.into_actions());
        }
    }
    println!(
        "{what}: {} states, depth {}, done: {}",
        checker.unique_state_count(),
        checker.max_depth(),
        checker.is_done()
    );
}

fn caught(canary: &'static str, promise: &'static str, mut model: LogModel) {
    model.canary = canary;
    let checker = model
        .checker()
        .threads(2)
        .target_state_count(CANARY_STATES)
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([promise])))
        .spawn_bfs()
        .join();
    let found = checker.discovery(promise);
    let found =
        found.unwrap_or_else(|| panic!("HARNESS: {canary} is not caught in {} states", checker.unique_state_count()));
    println!("{canary}: caught in {} steps, {} states", found.into_actions().len(), checker.unique_state_count());
}

use Op::{Append, Expire, Fold, Over, Restore, Rewrite, Staged, Tag};

const HOLE: &str = "no live version names a pack that is not there";
const TWICE: &str = "no operation is in two records";
const WRONG: &str = "every version is the previous one with its operations applied";
const REUSED: &str = "a number never has two bodies";

#[test]
fn appends_race() {
    holds("appends", LogModel { kills: true, ..model(&[&[Append, Append], &[Append, Over]], 0, 4) });
    holds("three writers", model(&[&[Append], &[Over], &[Append]], 0, 3));
    holds("folds", model(&[&[Append, Fold], &[Over]], 0, 3));
    holds("rewrites", model(&[&[Over, Over], &[Rewrite]], 0, 3));
}

#[test]
fn offers_are_carried_once() {
    let offers = |scripts: &[&[Op]], gcs, records| LogModel { offers: true, ..model(scripts, gcs, records) };
    holds("offers", LogModel { kills: true, ..offers(&[&[Append, Append], &[Append]], 0, 4) });
    holds("offers of three", offers(&[&[Append], &[Append], &[Over]], 0, 3));
    holds("GC and offers", offers(&[&[Over, Over, Expire], &[Append]], 1, 5));
    holds("GC and offers of two", offers(&[&[Over, Expire], &[Append], &[Append]], 1, 5));
}

#[test]
fn canaries_of_offers() {
    let offers = |scripts: &[&[Op]], gcs, records| LogModel { offers: true, ..model(scripts, gcs, records) };
    caught("offer-not-looked-up", TWICE, offers(&[&[Append], &[Append]], 0, 3));
    caught("resume-gallops", TWICE, offers(&[&[Append], &[Append]], 0, 3));
    caught("offer-fence-not-checked", HOLE, offers(&[&[Over, Over], &[Append]], 1, 3));
}

#[test]
fn gc_leaves_what_is_live() {
    for op in [Append, Staged, Restore, Tag, Rewrite, Fold] {
        holds(
            &format!("GC and {op:?}"),
            LogModel { gc_may_miss: op == Append, ..model(&[&[Over, Over, Expire], &[op]], 1, 5) },
        );
    }
    holds("GC and a killed writer", LogModel { kills: true, ..model(&[&[Over, Expire], &[Over]], 1, 5) });
    holds("two GCs", model(&[&[Over, Over, Expire], &[Append]], 2, 6));
    // A collector gives up there because the other one does its work; no promise depends on it.
    let passing = |op| LogModel { passes_tombstones: true, ..model(&[&[Over, Over, Expire], &[op]], 2, 6) };
    holds("two GCs that pass tombstones", passing(Append));
    holds("two GCs that pass tombstones, and a restore", passing(Restore));
}

#[test]
fn gc_sweeps() {
    // A check of the test itself: if GC never deletes anything, nothing was tested.
    #[derive(Clone)]
    struct Sweeps(LogModel);
    impl Model for Sweeps {
        type State = <LogModel as Model>::State;
        type Action = <LogModel as Model>::Action;
        fn init_states(&self) -> Vec<Self::State> {
            self.0.init_states()
        }
        fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
            self.0.actions(state, actions);
        }
        fn next_state(&self, state: &Self::State, action: Self::Action) -> Option<Self::State> {
            self.0.next_state(state, action)
        }
        fn properties(&self) -> Vec<Property<Self>> {
            vec![Property::sometimes("packs are deleted and records buried", |_, state| swept(state))]
        }
    }
    let checker = Sweeps(model(&[&[Over, Over, Expire]], 1, 5)).checker().spawn_bfs().join();
    checker.assert_any_discovery("packs are deleted and records buried");
}

#[test]
fn canaries_of_commits() {
    let race = || model(&[&[Append], &[Append]], 0, 3);
    caught("commit-before-ack", HOLE, race());
    caught("412-taken-as-loss", TWICE, race());
    caught("409-taken-as-loss", TWICE, race());
    caught("new-nonce-forgets-old", TWICE, race());
    caught("offset-kept-over-rebase", WRONG, race());
    caught("resume-gallops", TWICE, LogModel { kills: true, ..race() });
    caught("rewrite-over-newer-write", WRONG, model(&[&[Over, Over], &[Rewrite]], 0, 4));
    caught("fold-kept-over-loss", WRONG, model(&[&[Over, Over], &[Fold]], 0, 4));
}

#[test]
fn canaries_of_gc() {
    let sweep = |op| model(&[&[Over, Over, Expire], &[op]], 1, 5);
    caught("record-deleted-by-expiry", REUSED, model(&[&[Over, Over, Expire], &[Append]], 0, 5));
    caught("gc-without-fence", HOLE, sweep(Append));
    caught("gc-without-second-look", HOLE, sweep(Append));
    caught("stale-404-believed", HOLE, sweep(Append));
    caught("fence-not-checked", HOLE, sweep(Append));
    caught("fence-not-inherited", HOLE, sweep(Append));
    caught("staged-checks-one-session", HOLE, sweep(Staged));
    caught("expired-version-named", HOLE, sweep(Restore));
    caught("expired-not-inherited", HOLE, sweep(Append));
    caught("tombstone-without-ops", TWICE, model(&[&[Over], &[Over, Expire]], 1, 5));
}

const LOST: &str = "no blob that lives names a pack that is not there";

#[test]
fn clones_keep_their_packs() {
    let happens: [(bool, &[&str]); 2] = [
        (true, &["a clone's clone outlives both", "a removed blob's packs are deleted"]),
        (
            false,
            &["a pin keeps a version that expired after the pins were listed", "a removed blob's packs are deleted"],
        ),
    ];
    for (deep, happens) in happens {
        let model = CloneModel { canary: "", deep };
        let checker = model.checker().threads(2).target_state_count(4 * states()).spawn_bfs().join();
        println!("clones, deep: {deep}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
        checker.assert_no_discovery(LOST);
        for what in happens {
            checker.assert_any_discovery(what);
        }
    }
}

#[test]
fn canaries_of_clones() {
    for (canary, deep) in [
        ("pin-after-birth", true),
        ("life-number-reused", true),
        ("only-the-nearest-is-pinned", true),
        ("pin-dropped-without-claim", true),
        ("pin-not-looked-behind", false),
        ("gc-lists-pins-first", false),
        ("rm-ignores-pins", true),
        ("rm-lists-pins-once", false),
    ] {
        let checker = CloneModel { canary, deep }
            .checker()
            .threads(2)
            .target_state_count(CANARY_STATES)
            .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([LOST])))
            .spawn_bfs()
            .join();
        let found = checker.discovery(LOST);
        let found = found
            .unwrap_or_else(|| panic!("HARNESS: {canary} is not caught in {} states", checker.unique_state_count()));
        println!("{canary}: caught in {} steps, {} states", found.into_actions().len(), checker.unique_state_count());
    }
}
