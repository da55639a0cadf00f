//! Planted bugs: the runs with power losses must detect each, by an assertion of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sim::SimSpace;

use crate::allocate::{clear_set_id, keep_to_the_room};
use crate::crash::{lose_power, refuse_and_go_on};
use crate::ground::Ground;

/// All bugs that can be planted in the state after a power loss.
const CANARIES: [&str; 10] = [
    "size-before-data",
    "discard-before-durable",
    "rename-not-logged",
    "orphan-not-reaped",
    "number-reused",
    "link-not-counted",
    "overlay-not-in-snapshot",
    "content-stays-behind",
    "data-sync-without-flush",
    "data-sync-loses-size",
];

/// Seeds that are spent on each.
const SEEDS: u64 = 2000;

/// The message of the first failed run; `None` if none failed.
fn caught<G: Ground>(seeds: impl Iterator<Item = u64>) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let ran = catch_unwind(AssertUnwindSafe(|| lose_power::<G>(std::iter::once(seed))));
        let payload = ran.err()?;
        let text = payload.downcast_ref::<String>().cloned();
        text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned())).or(Some(String::new()))
    })
}

#[test]
fn each_planted_bug_is_caught() {
    assert_eq!(caught::<Arc<SimSpace>>(0..20), None, "without a bug");
    for name in CANARIES {
        share::canary::plant(Some(name));
        let said = caught::<Arc<SimSpace>>(0..SEEDS);
        share::canary::plant(None);
        let said = said.unwrap_or_else(|| panic!("NOT CAUGHT: {name}"));
        assert!(said.contains("HARNESS:"), "NOT CAUGHT: {name} failed, but not by an assertion of the test: {said}");
        println!("caught: {name}: {said}");
    }
}

/// Plants a bug, and demands that a test fails by an assertion of its own.
fn is_caught(name: &'static str, test: fn()) {
    share::canary::plant(Some(name));
    let ran = catch_unwind(test);
    share::canary::plant(None);
    let Err(said) = ran else { panic!("NOT CAUGHT: {name}") };
    let said = said.downcast_ref::<String>().expect("NOT CAUGHT: not by an assertion of the test");
    assert!(said.contains("HARNESS:"), "NOT CAUGHT: {name} failed otherwise: {said}");
}

#[test]
fn what_a_refused_write_leaves_is_caught() {
    is_caught("refused-write-shows", || {
        refuse_and_go_on::<Arc<SimSpace>>(SEEDS);
    });
    is_caught("unshown-write-shows", crate::basics::a_write_without_its_size_leaves_nothing_that_a_later_growth_shows);
    is_caught("refused-write-unflushed", crate::basics::what_a_refused_write_leaves_is_durable_after_a_sync);
}

#[test]
fn allocations_without_room_and_bits_that_stay_are_caught() {
    is_caught("allocates-without-room", keep_to_the_room);
    is_caught("set-id-stays", clear_set_id);
}

#[test]
fn handles_that_come_again_are_caught() {
    for name in ["number-taken-back", "generation-constant"] {
        share::canary::plant(Some(name));
        let ran = catch_unwind(crate::handles::no_handle_leads_to_another_file);
        share::canary::plant(None);
        let said = ran.expect_err(&format!("NOT CAUGHT: {name}"));
        let said = said.downcast_ref::<String>().expect("NOT CAUGHT: not by an assertion of the test");
        assert!(said.contains("HARNESS:"), "NOT CAUGHT: {name} failed otherwise: {said}");
    }
}
