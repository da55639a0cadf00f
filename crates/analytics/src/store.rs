//! The store: frames under way, the table of the others, and the order of a commit. Owns all of
//! it; one caller at a time.
//!
//! 1. [`Store::record`] adds a second to the frame of seconds under way. A frame that ends is
//!    summed up in the frame of the tier above that is under way, and waits to be written.
//! 2. [`Store::commit`], each 10 s, writes frames that ended and those under way in one
//!    transaction, and removes the oldest frames of a tier that is over its part of the budget.
//! 3. At the first commit the frames under way are read again. Seconds since the last commit before
//!    a crash are lost; nothing else is.
//!
//! A commit that fails changes nothing: its frames are written by a later one. For want of room the
//! database is opened again after a minute. A database that does not open is set aside.

use std::borrow::Cow;
use std::collections::BTreeMap;

use env::FilePlace;
use report::{ANALYTICS_VERSION, AnalyticsState, HeatmapReport, SeriesReport};

use crate::database::{Change, Database, Fault, cost_of};
use crate::dataset::{Dataset, Shape};
use crate::frame::{Frame, Key, cut};
use crate::marks::{Mark, Notes};
use crate::query::{Answer, Query, QueryError};
use crate::tier::Tier;

/// Rows that are appended after the last one while the clock reads earlier; then the clock is
/// believed.
const BEHIND_MAX_S: u64 = 60;
/// Limit on the seconds that one late sample covers.
const LATE_MAX_S: u64 = 10;
/// Limit on frames that wait to be written: ten minutes of seconds, with the coarser tiers.
const UNWRITTEN_MAX: usize = 12;
/// Delay before the database is opened again after it ran out of room.
const RETRY_S: u64 = 60;
/// Free bytes of the file system that the store does not use.
const ROOM_LEFT_BYTES: u64 = 64 << 20;
/// Frames that begin this much later than now came from a wrong clock.
const AHEAD_MAX_S: u64 = 86_400;

/// The value of a series in one second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The series.
    pub key: Key,
    /// Its amount in the second, or its level.
    pub value: u64,
}

/// Faults since the store was created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Frames that were damaged when they were read.
    pub damaged_frames: u64,
    /// Frames that could not be written in time.
    pub dropped_frames: u64,
    /// Databases that could not be opened and were replaced.
    pub set_aside: u64,
    /// Reason for the last replacement.
    pub set_aside_why: Option<String>,
    /// Reason why nothing is stored at the moment.
    pub fault: Option<String>,
}

/// See the module's text.
pub struct Store {
    place: Box<dyn FilePlace>,
    budget_bytes: u64,
    database: Option<Database>,
    /// The database is not opened before this second.
    retry_at: u64,
    under_way: [Option<Frame>; 3],
    /// Whether they differ from the table.
    is_dirty: [bool; 3],
    /// Frames that ended and are newer than the table.
    unwritten: Vec<(Tier, u64, Frame)>,
    /// Estimated bytes on disk of each frame of the table, by tier and first second.
    costs: [BTreeMap<u64, u64>; 3],
    /// The last second that was recorded.
    last: Option<u64>,
    /// Whether this store recorded it, and not one before a restart.
    has_recorded: bool,
    /// Rows since the clock went back.
    rows_behind: u64,
    notes: Notes,
    health: StoreHealth,
}

impl Store {
    /// The store of a place. The file is opened by the first commit.
    pub fn new(place: Box<dyn FilePlace>, budget_bytes: u64) -> Self {
        Self {
            place,
            budget_bytes,
            database: None,
            retry_at: 0,
            under_way: [const { None }; 3],
            is_dirty: [false; 3],
            unwritten: Vec::new(),
            costs: Default::default(),
            last: None,
            has_recorded: false,
            rows_behind: 0,
            notes: Notes::default(),
            health: StoreHealth::default(),
        }
    }

    /// Opens the database at once, if that is possible. `now`: seconds since 1970.
    pub fn open(&mut self, now: u64) {
        self.ensure_open(now);
    }

    /// Records the second `now`; `name_of` returns names of objects. If that second was recorded
    /// before, amounts are added and levels are replaced, so no amount is lost.
    pub fn record(&mut self, now: u64, samples: &[Sample], name_of: &dyn Fn(u64) -> Option<String>) {
        let second = self.second_for(now);
        // A caller that was late by some seconds has samples of all of them.
        let first = match self.last {
            Some(last) if self.has_recorded && second > last && second - last <= LATE_MAX_S => last + 1,
            _ => second,
        };
        for at in first..=second {
            let Some(frame) = self.frame_for(at) else { continue };
            let step = frame.step_of(at);
            if std::mem::replace(&mut frame.covered[step], 1) > 0 {
                frame.clear_levels(step);
            }
            for Sample { key, value } in samples {
                if *value > 0 && (at == second || key.dataset.shape() == Shape::Gauge) {
                    frame.add(at, key, *value);
                    if key.object != 0 && !frame.names.contains_key(&key.object) {
                        let name = name_of(key.object).unwrap_or_default();
                        if !name.is_empty() {
                            frame.names.insert(key.object, cut(&name).into());
                        }
                    }
                }
            }
        }
        self.is_dirty[Tier::Seconds as usize] = true;
        self.last = Some(second);
        self.has_recorded = true;
    }

    /// The second that a row of `now` gets.
    fn second_for(&mut self, now: u64) -> u64 {
        match self.last {
            Some(last) if now < last && last - now < BEHIND_MAX_S && self.rows_behind < BEHIND_MAX_S => {
                self.rows_behind += 1;
                last + 1
            }
            Some(last) if now < last => {
                self.rows_behind = 0;
                self.end_frames();
                self.notes.mark(now, &format!("clock set back by {} s", last - now));
                self.last = None;
                now
            }
            _ => {
                self.rows_behind = 0;
                now
            }
        }
    }

    /// The frame of seconds that holds `second`.
    fn frame_for(&mut self, second: u64) -> Option<&mut Frame> {
        let tier = Tier::Seconds;
        if !self.under_way[0].as_ref().is_some_and(|frame| frame.holds(second)) {
            self.end_frame(tier);
            self.under_way[0] = Some(self.frame_at(tier, tier.start_of(second)));
        }
        self.under_way[0].as_mut()
    }

    /// The frame of a tier that begins at `start`, with the data that is known of it.
    fn frame_at(&mut self, tier: Tier, start: u64) -> Frame {
        if let Some(place) = self.unwritten.iter().rposition(|(of, at, _)| (*of, *at) == (tier, start)) {
            return self.unwritten.remove(place).2;
        }
        match self.stored(tier, start) {
            Some(Ok(frame)) => frame,
            Some(Err(())) => {
                self.health.damaged_frames += 1;
                self.spread(tier, start)
            }
            None => self.spread(tier, start),
        }
    }

    /// A frame that is missing, with the sums of the tier above: those would be replaced by the
    /// steps that are recorded now. Empty if that tier has none.
    fn spread(&self, tier: Tier, start: u64) -> Frame {
        let mut frame = Frame::new(tier, start);
        if let Some(coarse) = self.above(tier, start) {
            frame.spread_from(&coarse);
        }
        frame
    }

    /// The frame of the tier above that a frame is summed up in.
    fn above(&self, tier: Tier, start: u64) -> Option<Cow<'_, Frame>> {
        let above = tier.above()?;
        let start = above.start_of(start);
        let waiting = self.unwritten.iter().map(|(_, _, frame)| frame);
        let mut newer = self.under_way[above as usize].iter().chain(waiting);
        let newer = newer.find(|frame| (frame.tier, frame.start) == (above, start));
        let stored = || self.stored(above, start).and_then(Result::ok).unwrap_or_else(|| self.spread(above, start));
        Some(newer.map_or_else(|| Cow::Owned(stored()), Cow::Borrowed))
    }

    /// A frame of the table; an error if it is damaged.
    fn stored(&self, tier: Tier, start: u64) -> Option<Result<Frame, ()>> {
        if !self.costs[tier as usize].contains_key(&start) {
            return None;
        }
        let bytes = self.database.as_ref()?.read(tier.number(), start);
        let frame =
            bytes.map_err(|_| ()).and_then(|bytes| Frame::decode(&bytes.ok_or(())?, tier, start).map_err(|_| ()));
        Some(frame)
    }

    /// Ends the frame of a tier that is under way: the tier above gets its sums.
    fn end_frame(&mut self, tier: Tier) {
        let Some(frame) = self.under_way[tier as usize].take() else { return };
        if let Some(above) = tier.above() {
            let start = above.start_of(frame.start);
            if self.under_way[above as usize].as_ref().is_none_or(|coarse| coarse.start != start) {
                self.end_frame(above);
                self.under_way[above as usize] = Some(self.frame_at(above, start));
            }
            if let Some(coarse) = &mut self.under_way[above as usize] {
                coarse.replace_with(&frame);
            }
            self.is_dirty[above as usize] = true;
        }
        self.unwritten.push((tier, frame.start, frame));
        self.is_dirty[tier as usize] = false;
        while self.unwritten.len() > UNWRITTEN_MAX {
            self.unwritten.remove(0);
            self.health.dropped_frames += 1;
        }
    }

    fn end_frames(&mut self) {
        Tier::ALL.into_iter().for_each(|tier| self.end_frame(tier));
    }

    /// Makes all that was recorded durable, if there is room.
    pub fn commit(&mut self, now: u64) {
        if !self.ensure_open(now) {
            return;
        }
        self.sum_up_if_behind();
        let mut puts = Vec::new();
        for (tier, start, frame) in &self.unwritten {
            puts.push((*tier, *start, frame.encode()));
        }
        for tier in Tier::ALL {
            if let Some(frame) = self.under_way[tier as usize].as_ref().filter(|_| self.is_dirty[tier as usize]) {
                puts.push((tier, frame.start, frame.encode()));
            }
        }
        let mut costs = self.costs.clone();
        let mut changes = Vec::new();
        for (tier, start, bytes) in puts {
            let Ok(value) = bytes else { continue };
            costs[tier as usize].insert(start, cost_of(value.len()));
            changes.push(Change::Put { kind: tier.number(), at: start, value });
        }
        for (tier, start) in self.surplus(&mut costs, now) {
            changes.push(Change::Remove { kind: tier.number(), at: start });
        }
        changes.extend(self.notes.changes());
        if changes.is_empty() {
            return;
        }
        let Some(database) = &self.database else { return };
        match database.write(&changes) {
            Ok(()) => {
                self.costs = costs;
                self.unwritten.clear();
                self.is_dirty = [false; 3];
                self.notes.committed();
                self.health.fault = None;
            }
            Err(fault) => self.fail(&fault, now),
        }
    }

    /// Takes frames that are too old, or too many, out of the list.
    fn surplus(&self, costs: &mut [BTreeMap<u64, u64>; 3], now: u64) -> Vec<(Tier, u64)> {
        let mut gone = Vec::new();
        let budget = self.budget_bytes.saturating_sub(self.notes.cost_bytes());
        for tier in Tier::ALL {
            let frames = &mut costs[tier as usize];
            let mut sum: u64 = frames.values().sum();
            while frames.len() > 1 {
                let (Some((first, _)), Some((last, _))) = (frames.first_key_value(), frames.last_key_value()) else {
                    break;
                };
                let (first, last) = (*first, *last);
                let is_old = first + tier.frame_s() + tier.kept_s() < now;
                if !is_old && sum <= tier.part_of(budget) {
                    break;
                }
                let victim = if !is_old && last > now.saturating_add(AHEAD_MAX_S) { last } else { first };
                sum -= frames.remove(&victim).unwrap_or(0);
                gone.push((tier, victim));
            }
        }
        gone
    }

    /// Whether the database is open, after an attempt if it is time for one.
    fn ensure_open(&mut self, now: u64) -> bool {
        let room = self.place.room_bytes().unwrap_or(u64::MAX);
        if room < ROOM_LEFT_BYTES {
            let text = format!("its file system has {} free", units::format_size(room));
            self.health.fault = Some(text);
            return false;
        }
        if self.database.is_some() {
            return true;
        }
        // After the clock was set back it is not waited for.
        if now < self.retry_at && self.retry_at - now <= RETRY_S {
            return false;
        }
        let opened = match Database::open(&*self.place) {
            Err(Fault::Broken(text)) => {
                self.health.set_aside += 1;
                self.health.set_aside_why = Some(text);
                self.costs = Default::default();
                self.notes.rewrite();
                self.is_dirty = [true; 3];
                self.place
                    .set_aside()
                    .map_err(|error| Fault::Broken(error.to_string()))
                    .and_then(|()| Database::open(&*self.place))
            }
            opened => opened,
        };
        match opened.and_then(|database| self.load(&database).map(|()| database)) {
            Ok(database) => {
                self.database = Some(database);
                self.health.fault = None;
                self.resume();
                true
            }
            Err(fault) => {
                self.fail(&fault, now);
                false
            }
        }
    }

    /// Reads which frames there are.
    fn load(&mut self, database: &Database) -> Result<(), Fault> {
        let mut costs: [BTreeMap<u64, u64>; 3] = Default::default();
        database.scan(|kind, at, len| {
            if let Some(tier) = Tier::by_number(kind) {
                costs[tier as usize].insert(at, cost_of(len));
            }
        })?;
        self.notes.load(database)?;
        self.costs = costs;
        Ok(())
    }

    /// Goes on with the frames that were under way, unless others are already.
    fn resume(&mut self) {
        let newest = Tier::ALL.map(|tier| self.costs[tier as usize].last_key_value().map(|(start, _)| *start));
        let was_recording = self.last.is_some();
        for (tier, newest) in Tier::ALL.into_iter().zip(newest) {
            match self.under_way[tier as usize].take() {
                Some(frame) => {
                    let joined = self.with_stored(frame);
                    self.under_way[tier as usize] = Some(joined);
                }
                None => self.under_way[tier as usize] = newest.map(|start| self.frame_at(tier, start)),
            }
        }
        let waiting = std::mem::take(&mut self.unwritten);
        self.unwritten =
            waiting.into_iter().map(|(tier, start, frame)| (tier, start, self.with_stored(frame))).collect();
        if was_recording {
            for (tier, newest) in Tier::ALL.into_iter().zip(newest) {
                let frame = self.left_behind(tier, newest);
                self.sum_up_again(tier, frame);
            }
        }
        if let (None, Some(frame)) = (self.last, &self.under_way[0]) {
            let covered = frame.covered.iter().rposition(|covered| *covered > 0);
            self.last = covered.map(|step| frame.start + step as u64);
        }
    }

    /// Sums up the frames of a tier that wait to be written, and `other`. No other place knows of
    /// a frame that a restart would not resume, or that ended while the database was closed.
    fn sum_up_again(&mut self, tier: Tier, other: Option<Frame>) {
        let Some(above) = tier.above() else { return };
        let waiting = self.unwritten.iter().filter(|(of, _, _)| *of == tier).map(|(_, _, frame)| frame.clone());
        let frames: Vec<Frame> = other.into_iter().chain(waiting).collect();
        for frame in frames {
            let start = above.start_of(frame.start);
            if let Some(coarse) = self.under_way[above as usize].as_mut().filter(|coarse| coarse.start == start) {
                coarse.replace_with(&frame);
                self.is_dirty[above as usize] = true;
                continue;
            }
            let mut coarse = self.frame_at(above, start);
            coarse.replace_with(&frame);
            self.unwritten.push((above, start, coarse));
        }
    }

    /// After the clock was set back, the table has newer frames than those under way, and a restart
    /// resumes those. So the ones under way are summed up at each commit, and not only at their end.
    fn sum_up_if_behind(&mut self) {
        let is_behind = |tier: Tier, frame: &Frame| {
            let stored = self.costs[tier as usize].last_key_value().map(|(start, _)| *start);
            let waiting = self.unwritten.iter().filter(|(of, _, _)| *of == tier).map(|(_, start, _)| *start);
            waiting.chain(stored).any(|start| start > frame.start)
        };
        let frames = Tier::ALL.map(|tier| (tier, self.under_way[tier as usize].as_ref()));
        if frames.iter().any(|(tier, frame)| frame.is_some_and(|frame| is_behind(*tier, frame))) {
            for tier in Tier::ALL {
                let frame = self.under_way[tier as usize].clone();
                self.sum_up_again(tier, frame);
            }
        }
    }

    /// The newest frame of the table that is neither under way nor waits to be written.
    fn left_behind(&self, tier: Tier, newest: Option<u64>) -> Option<Frame> {
        let waiting = self.unwritten.iter().map(|(_, _, frame)| frame);
        let mut newer = self.under_way[tier as usize].iter().chain(waiting);
        let start = newest.filter(|start| newer.all(|frame| (frame.tier, frame.start) != (tier, *start)))?;
        self.stored(tier, start)?.ok()
    }

    /// A frame with the steps that only the table has: it may have begun without the database.
    fn with_stored(&self, frame: Frame) -> Frame {
        match self.stored(frame.tier, frame.start) {
            Some(Ok(mut stored)) => {
                stored.replace_with(&frame);
                stored
            }
            _ => frame,
        }
    }

    fn fail(&mut self, fault: &Fault, now: u64) {
        let is_full = matches!(fault, Fault::Full(_)) || self.database.as_ref().is_some_and(Database::is_full);
        self.database = None;
        self.health.fault = Some(fault.to_string());
        self.retry_at = if is_full { now.saturating_add(RETRY_S) } else { 0 };
    }

    /// Notes that something happened.
    pub fn mark(&mut self, now: u64, text: &str) {
        self.notes.mark(now, text);
    }

    /// Marks of a span.
    ///
    /// # Errors
    /// For an empty span, and for one that no clock reaches.
    pub fn marks(&self, from: u64, to: u64) -> Result<Vec<Mark>, QueryError> {
        self.notes.marks(from, to)
    }

    /// Worksheets: names and bodies.
    pub fn worksheets(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.worksheets()
    }

    /// Stores a worksheet, or removes it if there is no `body`. `false`: nothing of that name, no
    /// place for another, or too long.
    pub fn set_worksheet(&mut self, name: &str, body: Option<&str>) -> bool {
        self.notes.set_worksheet(name, body)
    }

    /// Faults of the store.
    pub fn health(&self) -> &StoreHealth {
        &self.health
    }

    /// The state for users.
    pub fn state(&self) -> AnalyticsState {
        let StoreHealth { damaged_frames, dropped_frames, set_aside, fault, .. } = self.health.clone();
        AnalyticsState {
            budget_bytes: self.budget_bytes,
            stored_bytes: self.costs.iter().flat_map(BTreeMap::values).sum::<u64>() + self.notes.cost_bytes(),
            oldest_unix_s: self.first_seconds().to_vec(),
            frames: self.costs.iter().map(|frames| frames.len() as u64).collect(),
            damaged_frames,
            dropped_frames,
            set_aside,
            fault,
        }
    }

    /// Frames of a tier that are newer than the table, by first second: those under way and those
    /// that wait, with sums of the tier below that it does not have yet.
    fn newer(&self, tier: Tier) -> BTreeMap<u64, Frame> {
        let waiting = self.unwritten.iter().filter(|(of, _, _)| *of == tier);
        let mut newer: BTreeMap<_, _> = waiting.map(|(_, start, frame)| (*start, frame.clone())).collect();
        if let Some(frame) = &self.under_way[tier as usize] {
            newer.insert(frame.start, frame.clone());
        }
        if let Some(below) = tier.below() {
            for fine in self.newer(below).into_values() {
                let start = tier.start_of(fine.start);
                let stored = || self.stored(tier, start).and_then(Result::ok);
                newer
                    .entry(start)
                    .or_insert_with(|| stored().unwrap_or_else(|| self.spread(tier, start)))
                    .replace_with(&fine);
            }
        }
        newer
    }

    /// The first second of each tier that was sampled.
    fn first_seconds(&self) -> [Option<u64>; 3] {
        Tier::ALL.map(|tier| {
            let newer = self.newer(tier);
            let first = |frame: &Frame| {
                let step = frame.covered.iter().position(|covered| *covered > 0)?;
                Some(frame.start + step as u64 * tier.step_s())
            };
            let stored = self.costs[tier as usize].keys().find(|start| !newer.contains_key(start));
            let stored = stored.and_then(|start| match self.stored(tier, *start)? {
                Ok(frame) => first(&frame),
                // A damaged frame is a gap, and its tier answers all the same.
                Err(()) => Some(*start),
            });
            newer.values().filter_map(first).chain(stored).min()
        })
    }

    /// Answers a query.
    ///
    /// # Errors
    /// For a breakdown that the dataset does not have, an empty span and too many steps.
    pub fn query(&self, query: &Query) -> Result<SeriesReport, QueryError> {
        query.check()?;
        let tier = query.tier(self.first_seconds());
        let mut answer = Answer::new(query, tier);
        let (from, to) = answer.span();
        let newer = self.newer(tier);
        let mut damaged = 0;
        for start in self.costs[tier as usize].range(tier.start_of(from)..to).map(|(start, _)| *start) {
            match self.stored(tier, start).filter(|_| !newer.contains_key(&start)) {
                Some(Ok(frame)) => answer.add(&frame),
                Some(Err(())) => damaged += 1,
                None => {}
            }
        }
        newer.values().filter(|frame| frame.start < to && frame.end() > from).for_each(|frame| answer.add(frame));
        Ok(answer.finish(damaged))
    }

    /// Operations by duration, of [`Dataset::LATENCY`]. `bucket_ends_ns`: of the histograms.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn heatmap(&self, query: &Query, bucket_ends_ns: Vec<u64>) -> Result<HeatmapReport, QueryError> {
        let by = Some("bucket".to_owned());
        let series = self.query(&Query { dataset: Dataset::LATENCY, by, ..query.clone() })?;
        let mut counts = vec![vec![0; series.covered_s.len()]; bucket_ends_ns.len() + 1];
        for line in series.series {
            let bucket = line.name.parse::<usize>().ok().filter(|bucket| *bucket < counts.len());
            if let Some(bucket) = bucket {
                counts[bucket] = line.values;
            }
        }
        let SeriesReport { from_unix_s, step_s, covered_s, .. } = series;
        Ok(HeatmapReport { version: ANALYTICS_VERSION, from_unix_s, step_s, covered_s, bucket_ends_ns, counts })
    }
}
