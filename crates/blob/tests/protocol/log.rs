//! The model of one log: writers, expiry, tags, restores, rewrites, staged commits, kill and
//! resume, and GC, over a store that loses, repeats and delays requests.
//!
//! A request to create a record stays in the network permanently once it is sent: it may never
//! arrive, arrive late, and arrive again. An answer other than "done" has no information for a
//! writer, so timeouts, 409, 412 and 500 are one step: the writer reads the number. A read that
//! wrongly finds nothing makes the writer send the same body again, which is already in the
//! network, so it changes nothing. The same holds for readers and hints, which only choose where a
//! client begins to search; the model lets every client begin at any record. An offer is never
//! deleted, and any writer may carry it, even when its own writer has been killed. A late list
//! misses packs, and then GC does not delete them: `gc_may_miss` models it.
//!
//! Content is a list of cells, each with the operation that wrote it and the pack that holds it.

use std::collections::BTreeSet;

use stateright::{Model, Property};

pub type Seq = u8;
pub type OpName = u8;
pub type PackNo = u8;

/// The task of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// A cell at the end.
    Append,
    /// A cell at the end from two sessions, the first of which began earlier: a staged commit.
    Staged,
    /// The first cell, written again.
    Over,
    /// The first cell in another pack.
    Rewrite,
    /// A cell at the end, together with a node for the cells before.
    Fold,
    /// The oldest live version becomes the newest again.
    Restore,
    /// A tag for the oldest live version.
    Tag,
    /// All older versions expire.
    Expire,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rec {
    nonce: u8,
    op: Option<OpName>,
    /// An offer of another writer that it carries.
    carried: Option<OpName>,
    cells: Vec<(OpName, PackNo)>,
    nodes: BTreeSet<PackNo>,
    restores: Option<Seq>,
    fence: Seq,
    expired: Seq,
    tags: BTreeSet<Seq>,
    tombstone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pack {
    Sent,
    There,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Uploading,
    Waiting { seq: Seq },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writer {
    view: Seq,
    op: usize,
    phase: Phase,
    /// `born` and the packs of the operation.
    packs: Vec<(Seq, PackNo)>,
    /// Record that a restore, a tag, a rewrite or a fold was made from.
    from: Seq,
    /// Cells as they were at `from`.
    base: Vec<(OpName, PackNo)>,
    /// The nonces that the writer of the operation remembers.
    nonce: u8,
    /// The offset of an append at its first attempt, for the canary that reuses it.
    offset: Option<usize>,
    uploads: u8,
    killed: bool,
    /// A process that resumes, or has left an offer, reads every record after this one.
    resumes: Option<Seq>,
    offered: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum GcPhase {
    Idle,
    Marked,
    Waiting { seq: Seq },
    Fenced { seq: Seq },
    Sweeping,
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Gc {
    phase: GcPhase,
    view: Seq,
    marked_at: Seq,
    candidates: BTreeSet<PackNo>,
}

/// An operation that any writer may carry: it is in no record up to the number, and has these
/// packs.
type Offer = (OpName, Seq, Vec<(Seq, PackNo)>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// Record n is at n - 1; `None` only where the canary deleted it.
    log: Vec<Option<Rec>>,
    network: BTreeSet<(Seq, Rec)>,
    packs: Vec<(Seq, Pack)>,
    writers: Vec<Writer>,
    gcs: Vec<Gc>,
    acknowledged: BTreeSet<(OpName, Seq)>,
    /// Never removed.
    offers: BTreeSet<Offer>,
    /// Whether a record was reused, for the property that a tombstone hides.
    reused: bool,
    lost_races: u8,
    deletions: u8,
    tombstones: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Look(usize),
    Begin(usize),
    Stage(usize),
    PackLands(PackNo),
    Send(usize),
    Offer(usize),
    SendWith(usize, OpName, Seq, Vec<(Seq, PackNo)>),
    Lands(Seq, Rec, bool),
    Read(usize, bool),
    /// The answer is "exists" or "conflict", and a canary believes it.
    Believe(usize),
    /// A canary sends a new body although the old one is undecided.
    SendAnew(usize),
    Kill(usize),
    Mark(usize, bool),
    Fence(usize),
    FenceRead(usize),
    LookAgain(usize),
    Delete(usize, PackNo),
    Bury(usize, Seq),
    EndSweep(usize),
    /// A canary lets expiry delete a record.
    Vanish(Seq),
}

/// A configuration.
#[derive(Debug, Clone)]
pub struct LogModel {
    pub scripts: Vec<Vec<Op>>,
    pub gcs: usize,
    pub kills: bool,
    pub offers: bool,
    pub records_max: usize,
    pub gc_may_miss: bool,
    /// A collector continues when its second check meets a tombstone.
    pub passes_tombstones: bool,
    pub canary: &'static str,
}

impl LogModel {
    fn has(&self, canary: &str) -> bool {
        self.canary == canary
    }

    fn name(&self, writer: usize, op: usize) -> OpName {
        (writer * 8 + op) as OpName
    }
}

impl World {
    fn record(&self, seq: Seq) -> Rec {
        let none = Rec {
            nonce: 0,
            op: None,
            carried: None,
            cells: Vec::new(),
            nodes: BTreeSet::new(),
            restores: None,
            fence: 0,
            expired: 0,
            tags: BTreeSet::new(),
            tombstone: false,
        };
        match seq {
            0 => none,
            _ => self.log.get(usize::from(seq) - 1).cloned().flatten().unwrap_or(none),
        }
    }

    fn len(&self) -> Seq {
        self.log.len() as Seq
    }

    fn takes(&self, seq: Seq) -> bool {
        usize::from(seq) == self.log.len() + 1 || self.log.get(usize::from(seq) - 1).is_some_and(Option::is_none)
    }
}

impl Rec {
    fn is_live(&self, head: Seq, seq: Seq) -> bool {
        seq == head || seq > self.expired || self.tags.contains(&seq)
    }

    fn has(&self, op: OpName) -> bool {
        self.op == Some(op) || self.carried == Some(op)
    }

    fn names(&self) -> BTreeSet<PackNo> {
        self.cells.iter().map(|cell| cell.1).chain(self.nodes.iter().copied()).collect()
    }
}

impl LogModel {
    /// The body that a writer would send on top of its view, or `None` if it may not.
    fn body(&self, world: &World, index: usize) -> Option<Rec> {
        let writer = &world.writers[index];
        let base = world.record(writer.view);
        let op = self.scripts[index][writer.op];
        let name = self.name(index, writer.op);
        let born = match op {
            Op::Staged if self.has("staged-checks-one-session") => writer.packs.last(),
            _ => writer.packs.iter().min(),
        };
        if born.is_some_and(|(born, _)| *born < base.fence) && !self.has("fence-not-checked") {
            return None;
        }
        let mut next = Rec { nonce: writer.nonce, op: Some(name), carried: None, restores: None, ..base.clone() };
        if self.has("fence-not-inherited") {
            next.fence = 0;
        }
        if self.has("expired-not-inherited") {
            next.expired = 0;
        }
        let live = |seq| base.is_live(writer.view, seq) || self.has("expired-version-named");
        match op {
            Op::Append | Op::Staged => {
                for (_, pack) in &writer.packs {
                    next.cells.push((name, *pack));
                }
                if let Some(offset) = writer.offset.filter(|_| self.has("offset-kept-over-rebase")) {
                    let cell = next.cells.pop()?;
                    next.cells.truncate(offset);
                    next.cells.push(cell);
                }
            }
            Op::Fold => {
                // A fold is left out when the base has other cells than the node.
                if base.cells == writer.base {
                    next.nodes.insert(writer.packs[0].1);
                } else if self.has("fold-kept-over-loss") {
                    next.cells.clone_from(&writer.base);
                    next.nodes.insert(writer.packs[0].1);
                }
                next.cells.push((name, writer.packs[0].1));
            }
            Op::Over => {
                let cell = (name, writer.packs[0].1);
                match next.cells.first_mut() {
                    Some(first) => *first = cell,
                    None => next.cells.push(cell),
                }
            }
            Op::Rewrite => {
                let before = *writer.base.first()?;
                let first = next.cells.first_mut()?;
                if *first == before || self.has("rewrite-over-newer-write") {
                    *first = (before.0, writer.packs[0].1);
                }
            }
            Op::Restore => {
                if !live(writer.from) {
                    return None;
                }
                next.cells.clone_from(&writer.base);
                next.restores = Some(writer.from);
                next.nodes.clear();
                next.nodes.extend(world.record(writer.from).nodes);
            }
            Op::Tag => {
                if !live(writer.from) {
                    return None;
                }
                next.tags.insert(writer.from);
            }
            Op::Expire => next.expired = next.expired.max(writer.view),
        }
        Some(next)
    }

    /// A tombstone keeps the operation, so that a writer can still learn its outcome.
    fn finds(&self, record: &Rec, world: &World, index: usize) -> bool {
        let writer = &world.writers[index];
        if self.has("new-nonce-forgets-old") {
            return record.nonce == writer.nonce && !record.tombstone;
        }
        if record.tombstone && self.has("tombstone-without-ops") {
            return false;
        }
        record.has(self.name(index, writer.op))
    }

    /// The body of a writer that carries another's offer, too, or `None` if it may not.
    fn body_with(
        &self,
        world: &World,
        index: usize,
        offer: OpName,
        since: Seq,
        packs: &[(Seq, PackNo)],
    ) -> Option<Rec> {
        let view = world.writers[index].view;
        let known = since <= view && (since + 1..=view).all(|seq| !world.record(seq).has(offer));
        if !known && !self.has("offer-not-looked-up") {
            return None;
        }
        let fenced = packs.iter().any(|(born, _)| *born < world.record(view).fence);
        if fenced && !self.has("offer-fence-not-checked") {
            return None;
        }
        let mut next = self.body(world, index)?;
        next.carried = Some(offer);
        next.cells.extend(packs.iter().map(|(_, pack)| (offer, *pack)));
        Some(next)
    }

    fn next_op(&self, world: &mut World, index: usize, seq: Option<Seq>) {
        let name = self.name(index, world.writers[index].op);
        if let Some(seq) = seq {
            world.acknowledged.insert((name, seq));
        }
        let writer = &mut world.writers[index];
        writer.op += 1;
        writer.phase = Phase::Idle;
        (writer.packs, writer.base, writer.offset, writer.resumes) = (Vec::new(), Vec::new(), None, None);
        writer.offered = false;
        (writer.uploads, writer.from) = (0, 0);
    }

    /// The operation that a resuming process finds by reading every record after the one at which
    /// its predecessor began.
    fn resumed(&self, world: &World, index: usize) -> Option<Seq> {
        let writer = &world.writers[index];
        let name = self.name(index, writer.op);
        let after = writer.resumes.filter(|_| !self.has("resume-gallops"))?;
        (after + 1..=writer.view).find(|seq| {
            let record = world.record(*seq);
            record.has(name) && !(record.tombstone && self.has("tombstone-without-ops"))
        })
    }

    fn begin(&self, world: &mut World, index: usize) {
        let op = self.scripts[index][world.writers[index].op];
        let writer = &world.writers[index];
        let view = writer.view;
        let head = world.record(view);
        let from = match op {
            Op::Restore | Op::Tag => (1..=view).find(|seq| head.is_live(view, *seq)),
            _ => Some(view),
        };
        let Some(from) = from else { return };
        let base = world.record(from).cells;
        if op == Op::Rewrite && base.is_empty() {
            return;
        }
        if !matches!(op, Op::Restore | Op::Tag | Op::Expire) {
            world.packs.push((view, Pack::Sent));
            let pack = (world.packs.len() - 1) as PackNo;
            world.writers[index].packs.push((view, pack));
        }
        let writer = &mut world.writers[index];
        (writer.from, writer.base) = (from, base);
        writer.offset = Some(head.cells.len());
        writer.phase = Phase::Uploading;
        writer.uploads += 1;
    }

    fn mark(&self, world: &mut World, index: usize, miss: bool) {
        let view = world.len();
        let head = world.record(view);
        let live: BTreeSet<PackNo> =
            (1..=view).filter(|seq| head.is_live(view, *seq)).flat_map(|seq| world.record(seq).names()).collect();
        // The youngest fence possible: a clock that is completely wrong chooses no worse one.
        let mut candidates: BTreeSet<PackNo> = (0..world.packs.len() as PackNo)
            .filter(|pack| {
                let (born, state) = world.packs[usize::from(*pack)];
                born < view && state == Pack::There && !live.contains(pack)
            })
            .collect();
        if miss {
            candidates.pop_first();
        }
        let gc = &mut world.gcs[index];
        (gc.view, gc.marked_at, gc.candidates) = (view, view, candidates);
        gc.phase = if self.has("gc-without-fence") { GcPhase::Sweeping } else { GcPhase::Marked };
    }

    fn look_again(&self, world: &mut World, index: usize, fence: Seq) {
        let mut phase = GcPhase::Sweeping;
        let mut candidates = world.gcs[index].candidates.clone();
        if !self.has("gc-without-second-look") {
            let missed = usize::from(self.has("stale-404-believed"));
            for seq in (world.gcs[index].marked_at + 1..=fence).skip(missed) {
                let record = world.record(seq);
                if record.tombstone {
                    phase = if self.passes_tombstones { phase } else { GcPhase::Done };
                }
                candidates.retain(|pack| !record.names().contains(pack));
            }
        }
        let gc = &mut world.gcs[index];
        (gc.phase, gc.candidates) = (phase, candidates);
    }
}

impl Model for LogModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let writer = Writer {
            view: 0,
            op: 0,
            phase: Phase::Idle,
            packs: Vec::new(),
            from: 0,
            base: Vec::new(),
            nonce: 0,
            offset: None,
            uploads: 0,
            killed: false,
            resumes: None,
            offered: false,
        };
        let gc = Gc { phase: GcPhase::Idle, view: 0, marked_at: 0, candidates: BTreeSet::new() };
        vec![World {
            log: Vec::new(),
            network: BTreeSet::new(),
            packs: Vec::new(),
            writers: vec![writer; self.scripts.len()],
            gcs: vec![gc; self.gcs],
            acknowledged: BTreeSet::new(),
            offers: BTreeSet::new(),
            reused: false,
            lost_races: 0,
            deletions: 0,
            tombstones: 0,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for (index, writer) in world.writers.iter().enumerate() {
            let Some(op) = self.scripts[index].get(writer.op) else { continue };
            let behind = writer.view < world.len();
            match writer.phase {
                Phase::Idle => {
                    if behind {
                        steps.push(Step::Look(index));
                    }
                    if writer.uploads < 2 {
                        steps.push(Step::Begin(index));
                    }
                }
                Phase::Uploading => {
                    if behind {
                        steps.push(Step::Look(index));
                    }
                    if *op == Op::Staged && writer.packs.len() == 1 {
                        steps.push(Step::Stage(index));
                    }
                    let there = |(_, pack): &(Seq, PackNo)| world.packs[usize::from(*pack)].1 != Pack::Sent;
                    let staged = *op != Op::Staged || writer.packs.len() == 2;
                    if staged && (writer.packs.iter().all(there) || self.has("commit-before-ack")) {
                        steps.push(Step::Send(index));
                        if self.offers && *op == Op::Append && !writer.offered {
                            steps.push(Step::Offer(index));
                        }
                        for (offer, since, packs) in &world.offers {
                            if usize::from(*offer) / 8 != index {
                                steps.push(Step::SendWith(index, *offer, *since, packs.clone()));
                            }
                        }
                    }
                }
                Phase::Waiting { seq } => {
                    steps.push(Step::Read(index, false));
                    if world.len() > seq {
                        steps.push(Step::Read(index, true));
                    }
                    if self.has("412-taken-as-loss") && world.len() >= seq || self.has("409-taken-as-loss") {
                        steps.push(Step::Believe(index));
                    }
                    if self.has("new-nonce-forgets-old") && writer.nonce < 64 {
                        steps.push(Step::SendAnew(index));
                    }
                    if self.kills && !writer.killed {
                        steps.push(Step::Kill(index));
                    }
                }
            }
        }
        for (pack, state) in world.packs.iter().enumerate() {
            if state.1 == Pack::Sent {
                steps.push(Step::PackLands(pack as PackNo));
            }
        }
        for (seq, record) in &world.network {
            if world.takes(*seq) {
                steps.push(Step::Lands(*seq, record.clone(), true));
                steps.push(Step::Lands(*seq, record.clone(), false));
            }
        }
        for (index, gc) in world.gcs.iter().enumerate() {
            match gc.phase {
                GcPhase::Idle => {
                    steps.push(Step::Mark(index, false));
                    if self.gc_may_miss {
                        steps.push(Step::Mark(index, true));
                    }
                }
                GcPhase::Marked => steps.push(Step::Fence(index)),
                GcPhase::Waiting { .. } => steps.push(Step::FenceRead(index)),
                GcPhase::Fenced { .. } => steps.push(Step::LookAgain(index)),
                GcPhase::Sweeping => {
                    steps.extend(gc.candidates.iter().map(|pack| Step::Delete(index, *pack)));
                    if gc.candidates.is_empty() {
                        let (at, head) = (gc.marked_at, world.record(gc.marked_at));
                        steps.extend(
                            (1..at)
                                .filter(|seq| !head.is_live(at, *seq) && !world.record(*seq).tombstone)
                                .map(|seq| Step::Bury(index, seq)),
                        );
                        steps.push(Step::EndSweep(index));
                    }
                }
                GcPhase::Done => {}
            }
        }
        if self.has("record-deleted-by-expiry") {
            let (at, head) = (world.len(), world.record(world.len()));
            steps.extend(
                (1..at)
                    .filter(|seq| !head.is_live(at, *seq) && world.log[usize::from(*seq) - 1].is_some())
                    .map(Step::Vanish),
            );
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        let len = world.len();
        match step {
            Step::Look(index) => world.writers[index].view = len,
            Step::Begin(index) => self.begin(&mut world, index),
            Step::Stage(index) => {
                let view = world.writers[index].view;
                world.packs.push((view, Pack::Sent));
                let pack = (world.packs.len() - 1) as PackNo;
                world.writers[index].packs.push((view, pack));
            }
            Step::PackLands(pack) => world.packs[usize::from(pack)].1 = Pack::There,
            Step::Send(index) if self.resumed(last, index).is_some() => {
                let seq = self.resumed(last, index);
                self.next_op(&mut world, index, seq);
            }
            Step::Offer(index) => {
                if let Some(seq) = self.resumed(last, index) {
                    self.next_op(&mut world, index, Some(seq));
                    return Some(world);
                }
                let name = self.name(index, world.writers[index].op);
                let writer = &mut world.writers[index];
                // The operation is in no record up to the writer's view.
                let since = writer.view;
                (writer.offered, writer.resumes) = (true, Some(since));
                world.offers.insert((name, since, writer.packs.clone()));
            }
            Step::SendWith(index, offer, since, packs) => {
                if self.resumed(last, index).is_some() {
                    return None;
                }
                world.writers[index].nonce = (index as u8) << 3 | world.writers[index].op as u8;
                let body = self.body_with(&world, index, offer, since, &packs)?;
                let seq = world.writers[index].view + 1;
                world.writers[index].phase = Phase::Waiting { seq };
                world.network.insert((seq, body));
            }
            Step::Send(index) => {
                world.writers[index].nonce = (index as u8) << 3 | world.writers[index].op as u8;
                match self.body(&world, index) {
                    Some(body) => {
                        let seq = world.writers[index].view + 1;
                        world.writers[index].phase = Phase::Waiting { seq };
                        world.network.insert((seq, body));
                    }
                    // Fenced, or its version expired: upload again in a new session, or give up.
                    None if matches!(self.scripts[index][last.writers[index].op], Op::Restore | Op::Tag) => {
                        self.next_op(&mut world, index, None);
                    }
                    None => {
                        let writer = &mut world.writers[index];
                        (writer.phase, writer.packs) = (Phase::Idle, Vec::new());
                        writer.view = len;
                    }
                }
            }
            Step::Lands(seq, record, answered) => {
                let reaches = |nonce: u8| usize::from(nonce & 63) >> 3;
                let fence = record.op.is_none();
                if usize::from(seq) <= world.log.len() {
                    world.reused = true;
                    world.log[usize::from(seq) - 1] = Some(record.clone());
                } else {
                    world.log.push(Some(record.clone()));
                }
                if answered {
                    if fence {
                        let gc = &mut world.gcs[usize::from(record.nonce) - 128];
                        if gc.phase == (GcPhase::Waiting { seq }) {
                            gc.phase = GcPhase::Fenced { seq };
                        }
                    } else {
                        let index = reaches(record.nonce);
                        let writer = &world.writers[index];
                        if writer.phase == (Phase::Waiting { seq }) && record.op == Some(self.name(index, writer.op)) {
                            world.writers[index].view = seq;
                            self.next_op(&mut world, index, Some(seq));
                        }
                    }
                }
            }
            Step::Read(index, far) => {
                let Phase::Waiting { seq } = world.writers[index].phase else { return None };
                if world.takes(seq) {
                    // Absent: send the same body again, which the network already has.
                    return None;
                }
                let record = world.record(seq);
                let found = self.finds(&record, &world, index);
                world.writers[index].view = if far { len } else { seq };
                if found {
                    self.next_op(&mut world, index, Some(seq));
                } else {
                    world.lost_races = (world.lost_races + 1).min(1);
                    world.writers[index].phase = Phase::Uploading;
                    if record.tombstone {
                        world.writers[index].view = len;
                    }
                }
            }
            Step::Believe(index) => {
                let Phase::Waiting { seq } = world.writers[index].phase else { return None };
                let writer = &mut world.writers[index];
                // "Conflict" read as "exists": the writer continues as if the number were
                // another's.
                writer.view = len.max(seq);
                writer.phase = Phase::Uploading;
            }
            Step::SendAnew(index) => {
                let Phase::Waiting { seq } = world.writers[index].phase else { return None };
                world.writers[index].nonce |= 64;
                let view = world.writers[index].view;
                world.writers[index].view = seq - 1;
                let body = self.body(&world, index)?;
                world.writers[index].view = view;
                world.network.insert((seq, body));
            }
            Step::Kill(index) => {
                let writer = &mut world.writers[index];
                // Content of a session's file: the packs, the names of operations, and where it
                // began.
                let born = writer.packs.iter().map(|pack| pack.0).min().unwrap_or(writer.from);
                (writer.killed, writer.resumes) = (true, Some(born));
                (writer.phase, writer.packs, writer.uploads) = (Phase::Idle, Vec::new(), 0);
                writer.view = len;
            }
            Step::Mark(index, miss) => self.mark(&mut world, index, miss),
            Step::Fence(index) => {
                let view = world.gcs[index].view;
                let base = world.record(view);
                let fence = base.fence.max(world.gcs[index].marked_at);
                let body = Rec { nonce: 128 + index as u8, op: None, carried: None, fence, restores: None, ..base };
                world.network.insert((view + 1, body));
                world.gcs[index].phase = GcPhase::Waiting { seq: view + 1 };
            }
            Step::FenceRead(index) => {
                let GcPhase::Waiting { seq } = world.gcs[index].phase else { return None };
                if world.takes(seq) {
                    return None;
                }
                let record = world.record(seq);
                let mine = record.op.is_none() && record.nonce == 128 + index as u8;
                let gc = &mut world.gcs[index];
                if mine {
                    gc.phase = GcPhase::Fenced { seq };
                } else {
                    gc.phase = GcPhase::Marked;
                    gc.view = if record.tombstone { len } else { seq };
                }
            }
            Step::LookAgain(index) => {
                let GcPhase::Fenced { seq } = world.gcs[index].phase else { return None };
                self.look_again(&mut world, index, seq);
            }
            Step::Delete(index, pack) => {
                world.packs[usize::from(pack)].1 = Pack::Deleted;
                world.gcs[index].candidates.remove(&pack);
                world.deletions = 1;
            }
            Step::Bury(_, seq) => {
                if let Some(record) = &mut world.log[usize::from(seq) - 1] {
                    record.tombstone = true;
                    record.cells.clear();
                    record.nodes.clear();
                }
                world.tombstones = 1;
            }
            Step::EndSweep(index) => world.gcs[index].phase = GcPhase::Done,
            Step::Vanish(seq) => world.log[usize::from(seq) - 1] = None,
        }
        Some(world)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.log.len() <= self.records_max
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no live version names a pack that is not there", |_, world: &World| {
                let (len, head) = (world.len(), world.record(world.len()));
                (1..=len).filter(|seq| head.is_live(len, *seq)).all(|seq| {
                    world.record(seq).names().iter().all(|pack| world.packs[usize::from(*pack)].1 == Pack::There)
                })
            }),
            Property::always("the head is no tombstone", |_, world: &World| !world.record(world.len()).tombstone),
            Property::always("an acknowledged operation stays in its record", |_, world: &World| {
                world.acknowledged.iter().all(|(op, seq)| world.record(*seq).has(*op))
            }),
            Property::always("no operation is in two records", |_, world: &World| {
                let mut seen = BTreeSet::new();
                world
                    .log
                    .iter()
                    .flatten()
                    .flat_map(|record| [record.op, record.carried])
                    .flatten()
                    .all(|op| seen.insert(op))
            }),
            Property::always("a number never has two bodies", |_, world: &World| !world.reused),
            Property::always("every version is the previous one with its operations applied", replays),
            Property::always("the fence never falls", |_, world: &World| {
                let fences: Vec<Seq> = world.log.iter().flatten().map(|record| record.fence).collect();
                fences.is_sorted()
            }),
            Property::sometimes("a race is lost", |_, world: &World| world.lost_races > 0),
            Property::sometimes("all is acknowledged", |model: &Self, world: &World| {
                world.writers.iter().zip(&model.scripts).all(|(writer, script)| writer.op == script.len())
            }),
        ]
    }
}

/// Returns whether each record's cells result from applying its operation to those of the record
/// before.
fn replays(model: &LogModel, world: &World) -> bool {
    (1..=world.len()).all(|seq| {
        let (before, record) = (world.record(seq - 1), world.record(seq));
        let restored = record.restores.is_some_and(|version| world.record(version).tombstone);
        if record.tombstone || before.tombstone || restored || world.log[usize::from(seq) - 1].is_none() {
            return true;
        }
        let contents = |record: &Rec| record.cells.iter().map(|cell| cell.0).collect::<Vec<_>>();
        let mut expected = contents(&before);
        if let Some(name) = record.op {
            match model.scripts[usize::from(name) / 8][usize::from(name) % 8] {
                Op::Append | Op::Fold => expected.push(name),
                Op::Staged => expected.extend([name, name]),
                Op::Over => match expected.first_mut() {
                    Some(first) => *first = name,
                    None => expected.push(name),
                },
                Op::Restore => expected = contents(&world.record(record.restores.unwrap_or(0))),
                Op::Rewrite | Op::Tag | Op::Expire => {}
            }
        }
        expected.extend(record.carried);
        contents(&record) == expected
    })
}

/// Returns whether GC ever deleted a pack and buried a record: a configuration with GC that never
/// does tests nothing.
pub fn swept(world: &World) -> bool {
    world.deletions > 0 && world.tombstones > 0
}
