//! The extents: which are free, which the log fills next, how many live bytes each holds.
//!
//! Live bytes of an extent are the sum of [`format::FragmentRef::live_bytes`] over the fragments
//! that records refer to: of a unit partly overwritten, only the share that is still read. They
//! change only when a checkpoint merges the map, so they are exact as of the last checkpoint. An
//! extent goes through these states: *free*, then *listed* (named by a durable checkpoint as one
//! that the log fills next; it is written in this state), then *used* (the log has passed it, as of
//! a durable checkpoint), and *free* again once a checkpoint that no longer refers to it is durable
//! and no reader is left in it.

use std::collections::{BTreeMap, BTreeSet};

use format::USAGE_PAGE_EXTENTS;
use units::ExtentIndex;

use crate::base::status::CleanMark;
use crate::log::geometry::Geometry;
use crate::space::rule::Rule;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Listed,
    Used,
}

pub struct Extents {
    live: Vec<u32>,
    state: Vec<State>,
    /// When each was last passed, in extents that the log has passed since the pool was opened: the
    /// minimum age of its data.
    passed_at: Vec<u32>,
    /// Extents passed so far.
    now: u32,
    /// Number of the last checkpoint.
    number: u64,
    free: u64,
    live_bytes: u64,
    /// Extents from this one on are not handed out.
    mark: usize,
    /// Kept without live data, as of the last checkpoint: see `catalogue`.
    pinned: BTreeSet<ExtentIndex>,
    /// Where the search for free extents continues, so that the log moves through the file in long
    /// runs.
    cursor: usize,
}

/// An extent to be cleaned, and its live bytes as of the last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    pub extent: ExtentIndex,
    pub live: u32,
}

/// Changes of live bytes that a checkpoint makes, by extent.
pub type UsageChanges = BTreeMap<ExtentIndex, i64>;

/// Changes to extents that a checkpoint decided; they take effect when it is durable.
#[derive(Debug, Default)]
pub struct ExtentPlan {
    pub usage: UsageChanges,
    /// Appended to the list that the log fills.
    pub listed: Vec<ExtentIndex>,
    /// The log has passed them.
    pub passed: Vec<ExtentIndex>,
    /// They have no live data left.
    pub freed: Vec<ExtentIndex>,
    /// They have no live data either, but must be kept.
    pub idle: Vec<ExtentIndex>,
    /// All extents that must be kept.
    pub pinned: BTreeSet<ExtentIndex>,
}

impl Extents {
    pub fn new(geometry: &Geometry, live: BTreeMap<u32, [u32; USAGE_PAGE_EXTENTS]>, number: u64) -> Self {
        let count = geometry.extents() as usize;
        let mut all = vec![0; count];
        for (page, values) in live {
            for (slot, value) in all.iter_mut().skip(page as usize).zip(values) {
                *slot = value;
            }
        }
        let live_bytes = all.iter().map(|b| u64::from(*b)).sum();
        let mut state: Vec<_> = all.iter().map(|b| if *b > 0 { State::Used } else { State::Free }).collect();
        // Extent 0 holds the superblock.
        if let Some(first) = state.first_mut() {
            *first = State::Used;
        }
        let free = state.iter().filter(|s| **s == State::Free).count() as u64;
        Self {
            live: all,
            state,
            passed_at: vec![0; count],
            now: 0,
            number,
            free,
            live_bytes,
            mark: usize::MAX,
            pinned: BTreeSet::new(),
            cursor: 1,
        }
    }

    /// Notes that the pool has grown to `count` extents: the new ones are free.
    pub fn grow(&mut self, count: usize) {
        let more = count.saturating_sub(self.state.len());
        self.live.resize(self.live.len() + more, 0);
        self.passed_at.resize(self.passed_at.len() + more, 0);
        self.state.resize(self.state.len() + more, State::Free);
        self.free = self.count_free();
    }

    /// Stops handing out extents from `mark` on; without a mark, all can be.
    pub fn set_mark(&mut self, mark: Option<usize>) {
        self.mark = mark.unwrap_or(usize::MAX);
        self.free = self.count_free();
    }

    /// Empty extents before `end`, including those on the log's list and those that it has open.
    pub fn idle_before(&self, end: usize) -> u64 {
        self.state.iter().take(end).filter(|state| **state != State::Used).count() as u64
    }

    /// Extents from `end` on that are not free, and the live bytes in them.
    pub fn used_from(&self, end: usize) -> (u64, u64) {
        let beyond = self.state.iter().zip(&self.live).skip(end);
        let used = beyond.filter(|(state, _)| **state != State::Free);
        used.fold((0, 0), |(count, bytes), (_, live)| (count + 1, bytes + u64::from(*live)))
    }

    /// Notes that the pool has only `count` extents from now on; all others are free.
    pub fn shrink(&mut self, count: usize) {
        debug_assert!(self.state.iter().skip(count).all(|state| *state == State::Free));
        self.live.truncate(count);
        self.passed_at.truncate(count);
        self.state.truncate(count);
        self.cursor = self.cursor.min(count.saturating_sub(1)).max(1);
        self.set_mark(None);
    }

    fn count_free(&self) -> u64 {
        self.state.iter().take(self.mark).filter(|state| **state == State::Free).count() as u64
    }

    /// Number of the checkpoint for which live bytes are exact.
    pub fn checkpoint(&self) -> u64 {
        self.number
    }

    /// Free extents, not counting listed ones.
    #[inline]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Bytes of live payload.
    #[inline]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// All extents, the first of which holds no data.
    #[inline]
    pub fn count(&self) -> u32 {
        self.live.len() as u32
    }

    /// Live bytes of one extent.
    #[inline]
    pub fn live_of(&self, extent: ExtentIndex) -> u32 {
        self.live.get(extent.0 as usize).copied().unwrap_or(0)
    }

    /// Returns whether the extent may be given to the log.
    #[inline]
    pub fn is_free(&self, extent: ExtentIndex) -> bool {
        self.state.get(extent.0 as usize) == Some(&State::Free)
    }

    /// Returns whether the log has it, or will get it next: data in it may not be counted by a
    /// checkpoint.
    #[inline]
    pub fn is_listed(&self, extent: ExtentIndex) -> bool {
        self.state.get(extent.0 as usize) == Some(&State::Listed)
    }

    fn set(&mut self, extent: ExtentIndex, state: State) {
        let Some(slot) = self.state.get_mut(extent.0 as usize) else { return };
        if (extent.0 as usize) < self.mark {
            self.free = self.free - u64::from(*slot == State::Free) + u64::from(state == State::Free);
        }
        *slot = state;
    }

    /// Sets the recounted live bytes of `extent`. If there are none, the extent is free after the
    /// next opening: readers may still be in it now.
    pub fn recount(&mut self, extent: ExtentIndex, live: u32) {
        let Some(slot) = self.live.get_mut(extent.0 as usize) else { return };
        self.live_bytes = self.live_bytes - u64::from(*slot) + u64::from(live);
        *slot = live;
        if live > 0 && self.is_free(extent) {
            self.set(extent, State::Used);
        }
    }

    /// Enters the extents that a loaded checkpoint keeps.
    pub fn pin(&mut self, extents: BTreeSet<ExtentIndex>) {
        for extent in &extents {
            self.set(*extent, State::Used);
        }
        self.pinned = extents;
    }

    /// Returns whether the extent is kept without live data.
    #[inline]
    pub fn is_idle(&self, extent: ExtentIndex) -> bool {
        self.live_of(extent) == 0 && self.state.get(extent.0 as usize) == Some(&State::Used)
    }

    /// Enters the list of a loaded checkpoint.
    pub fn list(&mut self, extents: impl Iterator<Item = ExtentIndex>) {
        for extent in extents {
            self.set(extent, State::Listed);
        }
    }

    /// Decides the changes of a checkpoint. `usage` has the changes by its merge, `passed` the
    /// extents that leave the log's list, `dropped` those removed from it unused, `kept` those that
    /// stay on it, `pinned` those that are not freed, and `wanted` the target length of the list,
    /// which extents it prefers, and whether neighbours in it should be far apart.
    pub fn plan(
        &mut self,
        usage: UsageChanges,
        passed: Vec<ExtentIndex>,
        dropped: &[ExtentIndex],
        kept: &[ExtentIndex],
        pinned: BTreeSet<ExtentIndex>,
        (wanted, comes_first, apart): (usize, Option<&dyn Fn(ExtentIndex) -> bool>, bool),
    ) -> ExtentPlan {
        let live_after = |extent: ExtentIndex| {
            let change = usage.get(&extent).copied().unwrap_or(0);
            i64::from(self.live.get(extent.0 as usize).copied().unwrap_or(0)) + change
        };
        let mut freed: Vec<_> = usage
            .keys()
            .chain(&self.pinned)
            .copied()
            .filter(|e| self.state.get(e.0 as usize) == Some(&State::Used) && live_after(*e) == 0)
            .collect();
        freed.extend(passed.iter().chain(dropped).copied().filter(|e| live_after(*e) == 0));
        freed.sort_unstable();
        freed.dedup();
        let (idle, freed): (Vec<_>, Vec<_>) = freed.into_iter().partition(|extent| pinned.contains(extent));
        let count = self.state.len();
        let room = wanted.saturating_sub(kept.len());
        let all = (0..count).map(|step| (self.cursor + step) % count).filter(|at| *at < self.mark);
        let all = all.map(|at| ExtentIndex(at as u32));
        let free = all.filter(|extent| self.is_free(*extent) || freed.binary_search(extent).is_ok());
        let mut listed = Vec::new();
        match comes_first {
            Some(comes_first) => {
                listed.extend(free.clone().filter(|extent| comes_first(*extent)).take(room));
                listed.extend(free.filter(|extent| !comes_first(*extent)).take(room - listed.len()));
            }
            // Neighbours in the list are opened at about the same time, by data and its copies.
            None if apart => {
                let half = self.mark.min(count) / 2;
                let is_far = |extent: &ExtentIndex| (extent.0 as usize + count - self.cursor) % count >= half;
                let (mut near, mut far) = (free.clone().filter(|e| !is_far(e)), free.filter(is_far));
                while listed.len() < room {
                    let pair = [near.next(), far.next()];
                    if pair == [None; 2] {
                        break;
                    }
                    listed.extend(pair.into_iter().flatten().take(room - listed.len()));
                }
            }
            // In a large pool, only as many are examined as needed.
            None => listed.extend(free.take(room)),
        }
        let last = if apart { listed.iter().rev().nth(1).or(listed.last()) } else { listed.last() };
        if let Some(last) = last {
            self.cursor = last.0 as usize + 1;
        }
        ExtentPlan { usage, listed, passed, freed, idle, pinned }
    }

    /// Returns the extents with content once a plan takes effect, without those that the log has
    /// open.
    pub fn used_after(&self, plan: &ExtentPlan) -> Vec<ExtentIndex> {
        let passed: BTreeSet<_> = plan.passed.iter().copied().collect();
        let gone: BTreeSet<_> = plan.freed.iter().chain(&plan.listed).copied().collect();
        let all = self.state.iter().enumerate().skip(1).map(|(index, state)| (ExtentIndex(index as u32), *state));
        let used = all.filter(|(extent, state)| *state == State::Used || passed.contains(extent));
        used.map(|(extent, _)| extent).filter(|extent| !gone.contains(extent)).collect()
    }

    /// Live bytes of one extent once `usage` takes effect.
    fn live_after(&self, extent: ExtentIndex, usage: &UsageChanges) -> u32 {
        let change = usage.get(&extent).copied().unwrap_or(0);
        let live = i64::from(self.live_of(extent)) + change;
        debug_assert!((0..=i64::from(u32::MAX)).contains(&live), "extent {} has {live} live bytes", extent.0);
        live.clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Bytes of live payload once `usage` takes effect: the sum over all pages then.
    pub fn live_bytes_after(&self, usage: &UsageChanges) -> u64 {
        let known = usage.keys().filter(|extent| (extent.0 as usize) < self.live.len());
        known.fold(self.live_bytes, |sum, extent| {
            sum - u64::from(self.live_of(*extent)) + u64::from(self.live_after(*extent, usage))
        })
    }

    /// Returns the page of usage with `extent`, as of the moment when `usage` takes effect.
    pub fn page_after(&self, extent: ExtentIndex, usage: &UsageChanges) -> [u32; USAGE_PAGE_EXTENTS] {
        let first = extent.0 - extent.0 % USAGE_PAGE_EXTENTS as u32;
        let mut page = [0; USAGE_PAGE_EXTENTS];
        for (slot, index) in page.iter_mut().zip(first..) {
            *slot = self.live_after(ExtentIndex(index), usage);
        }
        page
    }

    /// Returns the extents worth cleaning, the best first, at most `max`: those that the log has
    /// passed, with live bytes but no more than `live_max`, that `skip` does not exclude.
    ///
    /// Chooses victims. Of an extent with the live share u, cleaning writes u / (1 - u) bytes for
    /// each that it gains. That falls while we wait, since live data dies at some rate r: by r u /
    /// (1 - u)^2 a second. The sum over all extents is least if those are cleaned for which waiting
    /// gains least (Lomet and Luo, *Efficiently Reclaiming Space in a Log Structured Store*, ICDE
    /// 2021, section 4). The rate is taken to be 1 / age: data that has lived for long is likely to
    /// live as long again. Against benefit over cost (Rosenblum and Ousterhout 1992), (1 - u) age /
    /// (1 + u), a model of a log that is 80 % full writes as much at uniform overwrites and at a
    /// sharp 80/20 skew, and 5 % less if the skew is self-similar; against the least live bytes
    /// first, 13 to 16 % less when skewed. With `greedy`, the extents with the least live bytes
    /// come first.
    pub fn victims(
        &self,
        extent_bytes: u32,
        rule: Rule,
        max: usize,
        skip: impl Fn(ExtentIndex, u32) -> bool,
    ) -> Vec<Victim> {
        let mut found: Vec<(f64, Victim)> = Vec::new();
        for (index, (state, live)) in self.state.iter().zip(&self.live).enumerate().skip(1) {
            let extent = ExtentIndex(index as u32);
            let is_elsewhere = extent < rule.within.0 || extent >= rule.within.1;
            let is_elsewhere = is_elsewhere || self.passed_at[index] > rule.filled_by.0;
            if *state != State::Used || *live == 0 || *live > rule.live_max || is_elsewhere || skip(extent, *live) {
                continue;
            }
            let u = (f64::from(*live) / f64::from(extent_bytes)).min(1.0);
            let age = if rule.greedy { 1.0 } else { f64::from(self.now - self.passed_at[index]) + 1.0 };
            found.push(((1.0 - u) * (1.0 - u) / u * age, Victim { extent, live: *live }));
        }
        let order = |a: &(f64, Victim), b: &(f64, Victim)| b.0.total_cmp(&a.0).then(a.1.extent.cmp(&b.1.extent));
        if found.len() > max {
            found.select_nth_unstable_by(max, order);
            found.truncate(max);
        }
        found.sort_unstable_by(order);
        found.into_iter().map(|(_, victim)| victim).collect()
    }

    /// The current moment: see [`CleanMark`].
    pub fn mark(&self) -> CleanMark {
        CleanMark(self.now)
    }

    /// Notes that the checkpoint is durable: live bytes and states become those of `plan`. Freed
    /// extents become free only with [`release`](Self::release), when no reader is left in them.
    pub fn apply(&mut self, plan: &ExtentPlan) {
        for (extent, change) in &plan.usage {
            if let Some(live) = self.live.get_mut(extent.0 as usize) {
                let after = (i64::from(*live) + change).clamp(0, i64::from(u32::MAX)) as u32;
                self.live_bytes = self.live_bytes - u64::from(*live) + u64::from(after);
                *live = after;
            }
        }
        self.pinned.clone_from(&plan.pinned);
        for extent in &plan.passed {
            self.set(*extent, State::Used);
            self.now = self.now.saturating_add(1);
            if let Some(at) = self.passed_at.get_mut(extent.0 as usize) {
                *at = self.now;
            }
        }
        for extent in &plan.listed {
            self.set(*extent, State::Listed);
        }
    }

    /// Ends the checkpoint: makes the plan's freed extents free, except those that it listed again;
    /// returns them. Only now is it the last one: until the changes have thawed, a look at the map
    /// may see the state before it.
    pub fn release(&mut self, plan: &ExtentPlan) -> Vec<ExtentIndex> {
        self.number += 1;
        let mut listed = plan.listed.clone();
        listed.sort_unstable();
        let free: Vec<_> = plan.freed.iter().copied().filter(|e| listed.binary_search(e).is_err()).collect();
        for extent in &free {
            self.set(*extent, State::Free);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(count: u32) -> Extents {
        Extents::new(&Geometry::new(1 << 20, u64::from(count) << 20), BTreeMap::new(), 0)
    }

    #[test]
    fn a_freed_extent_is_free_only_after_release() {
        let mut extents = extents(4);
        assert_eq!(extents.free(), 3);
        let plan = extents.plan(UsageChanges::new(), vec![], &[], &[], BTreeSet::new(), (1, None, false));
        assert_eq!(plan.listed, [ExtentIndex(1)]);
        extents.apply(&plan);
        assert_eq!(extents.free(), 2);
        let plan = extents.plan(
            [(ExtentIndex(1), 100)].into(),
            vec![ExtentIndex(1)],
            &[],
            &[],
            BTreeSet::new(),
            (1, None, false),
        );
        assert!(plan.freed.is_empty());
        extents.apply(&plan);
        assert_eq!((extents.free(), extents.live_bytes()), (1, 100));
        let plan =
            extents.plan([(ExtentIndex(1), -100)].into(), vec![], &[], &plan.listed, BTreeSet::new(), (1, None, false));
        assert_eq!(plan.freed, [ExtentIndex(1)]);
        extents.apply(&plan);
        assert_eq!((extents.free(), extents.live_bytes(), extents.checkpoint()), (1, 0, 0));
        assert_eq!(extents.release(&plan), [ExtentIndex(1)]);
        assert_eq!((extents.free(), extents.checkpoint()), (2, 1));
    }

    #[test]
    fn a_pinned_extent_is_kept_until_a_checkpoint_lets_go_of_it() {
        let mut extents = extents(4);
        let pinned = BTreeSet::from([ExtentIndex(1)]);
        let mut plan = |passed, pinned| {
            let plan = extents.plan(UsageChanges::new(), passed, &[], &[], pinned, (0, None, false));
            extents.apply(&plan);
            extents.release(&plan);
            (plan.freed, plan.idle, extents.free())
        };
        let one = vec![ExtentIndex(1)];
        assert_eq!(plan(one.clone(), pinned.clone()), (vec![], one.clone(), 2));
        assert_eq!(plan(vec![], pinned), (vec![], one.clone(), 2), "it is idle still");
        assert_eq!(plan(vec![], BTreeSet::new()), (one, vec![], 3));
    }

    #[test]
    fn old_extents_are_cleaned_before_younger_ones_that_are_a_little_emptier() {
        let mut extents = extents(8);
        let mut pass = |extent: u32, live: i64| {
            let mut plan = ExtentPlan { passed: vec![ExtentIndex(extent)], ..ExtentPlan::default() };
            plan.usage.insert(ExtentIndex(extent), live);
            extents.apply(&plan);
        };
        pass(1, 800 << 10);
        for extent in 2..5 {
            pass(extent, 700 << 10);
        }
        pass(5, 1000 << 10);
        let choose = |greedy, max, skip: &dyn Fn(ExtentIndex, u32) -> bool| -> Vec<u32> {
            let within = (ExtentIndex(0), ExtentIndex(8));
            let rule = Rule {
                live_max: 900 << 10,
                greedy,
                within,
                filled_by: CleanMark::NEVER,
                away: false,
                despite_damage: false,
                recodes: false,
            };
            extents.victims(1 << 20, rule, max, skip).iter().map(|v| v.extent.0).collect()
        };
        assert_eq!(choose(false, 9, &|_, _| false), [2, 3, 1, 4], "age outweighs a tenth of an extent");
        assert_eq!(choose(true, 9, &|_, _| false), [2, 3, 4, 1]);
        assert_eq!(choose(true, 2, &|e, _| e.0 == 3), [2, 4]);
    }

    #[test]
    fn an_extent_freed_by_a_checkpoint_may_be_listed_by_it() {
        let mut extents = extents(2);
        let plan = extents.plan(UsageChanges::new(), vec![], &[], &[], BTreeSet::new(), (8, None, false));
        extents.apply(&plan);
        assert_eq!((plan.listed.len(), extents.free()), (1, 0));
        // The log passed extent 1 and left nothing live in it.
        let plan = extents.plan(UsageChanges::new(), vec![ExtentIndex(1)], &[], &[], BTreeSet::new(), (8, None, false));
        assert_eq!(plan.listed, [ExtentIndex(1)]);
        extents.apply(&plan);
        assert!(extents.release(&plan).is_empty());
        assert_eq!(extents.free(), 0);
    }
}
