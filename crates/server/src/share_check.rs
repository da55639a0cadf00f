//! Checks of shares beyond those of volumes: whether each tree agrees with itself and with the
//! stored data, and the paths of damaged files. Repairs trees for `check --repair` and `salvage`.
//!
//! Without a repair, trees are opened as snapshots are: nothing is changed, and writes of the
//! opening stay in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::{CheckReport, Files, Pool, Problem, TreeUse};
use share::{AttributesLost, Paths, Repaired, Tree};
use surface::{Allocation, Error, ErrorKind, ObjectSpace, Result};

use crate::share_files::Opened;
use crate::share_losses::{Kinds, TreeLoss, read_note};
use crate::share_trees::{self, Moment, PATIENCE};
use operations::names;

/// Files of a share with numbers below this hold the tree's own names.
pub(crate) const FILES_OWN: u64 = 16;
/// Maximum number of damaged files of a share whose paths are looked up.
const DAMAGED_MAX: usize = 1000;
/// Runs of a file's holes and data that are read in one call.
const RUNS_MAX: usize = 64;
/// Maximum number of files of a share that are listed as possibly without extended attributes.
const ATTRIBUTES_TOLD_MAX: usize = 100;

/// Prefix of problems in the pages of a share's names; a path begins with a slash.
const IN_NAMES: &str = "the names of the share";

/// Words on damage in the names of shares that was repaired in some of them only.
const LEFT: &str = "; repaired where the names were rebuilt, and still damaged in ";

/// Outcome of a tree's repair.
#[derive(Debug, Default)]
pub struct Mended {
    /// Faults that were repaired, and those that remain.
    pub repaired: Repaired,
    /// The names were rebuilt: the damaged pages are not in use any more.
    is_rebuilt: bool,
    /// Kinds of content that are lost for good.
    lost: Kinds,
}

/// Shares that have permanent losses.
#[derive(Debug, Default)]
pub struct Lost {
    /// Names, or inodes and the small files in their records.
    pub names: BTreeSet<String>,
    /// Extended attributes.
    pub attributes: BTreeSet<String>,
    /// The repair of a tree was cut off: the next repair reports its losses.
    pub is_cut_off: bool,
}

impl Lost {
    fn add(&mut self, share: &str, kinds: Kinds) {
        if kinds.names {
            self.names.insert(share.to_owned());
        }
        if kinds.attributes {
            self.attributes.insert(share.to_owned());
        }
    }
}

/// Returns whether a problem is in the names of a share and was not repaired.
fn is_in_names_of(problem: &Problem, share: &str) -> bool {
    let mut seers = problem.volume.iter().chain(&problem.others);
    !problem.repaired && problem.detail.starts_with(IN_NAMES) && seers.any(|seer| seer == share)
}

/// Returns whether `--repair` may fix a problem that a check without it has found. Data has one
/// copy, but the names of a share can be rebuilt from their readable records.
pub fn is_mendable(pool: &Pool, report: &CheckReport) -> bool {
    if report.kinds.keys().any(|kind| *kind != "fragment") {
        return true;
    }
    let is_cut_off = report.problems_total > report.problems.len() as u64;
    pool.volumes().iter().filter(|volume| volume.is_share()).any(|share| {
        report.problems.iter().any(|problem| is_in_names_of(problem, &share.name))
            || is_cut_off && report.volumes.contains_key(&share.name)
    })
}

/// Removes a repaired share from those that see a problem. Returns whether no snapshot and no clone
/// sees it either.
fn is_mended_in(problem: &mut Problem, share: &str) -> bool {
    let seers = problem.volume.take().into_iter().chain(std::mem::take(&mut problem.others));
    let mut left = seers.filter(|seer| seer != share);
    problem.volume = left.next();
    problem.others = left.collect();
    let Some(first) = &problem.volume else {
        (problem.volume, problem.repaired) = (Some(share.to_owned()), true);
        return true;
    };
    let end = problem.detail.find(LEFT).or_else(|| problem.detail.find("; also affects "));
    problem.detail.truncate(end.unwrap_or(problem.detail.len()));
    let names: Vec<_> = std::iter::once(first).chain(&problem.others).map(String::as_str).collect();
    let names = names.join(", ");
    problem.detail.push_str(&format!("{LEFT}{names}: copy the readable data of a snapshot, and destroy it"));
    false
}

/// Adds the problems of the trees of all shares to a report, and names the files that its problems
/// are in. With `repairs` the trees are repaired. Returns the shares with permanent losses, of this
/// repair or of an earlier one that did not get to report them.
pub fn check(pool: &Pool, report: &mut CheckReport, repairs: bool) -> Lost {
    let mut lost = Lost::default();
    for note in pool.unreported_losses() {
        if !repairs {
            report.notes.push(format!("an interrupted repair is completed by shale check --repair: {note}"));
            continue;
        }
        let of = read_note(&note);
        if let Some((share, kinds)) = of {
            lost.add(share, kinds);
        }
        let volume = of.map(|(share, _)| share.to_owned());
        let detail = format!("lost by an interrupted repair: {note}");
        report.add(Problem { kind: "lost", volume, detail, repaired: true, ..Problem::default() });
    }
    name_files(pool, &mut report.problems, Search::Whole, &|name| opened(pool, name));
    for volume in pool.volumes().into_iter().filter(engine::VolumeStatus::is_share) {
        let problem = |detail: String, repaired: bool| Problem {
            kind: "tree",
            volume: Some(volume.name.clone()),
            detail,
            repaired,
            ..Problem::default()
        };
        let found = if repairs {
            let is_damaged = report.problems.iter().any(|problem| is_in_names_of(problem, &volume.name));
            mend(pool, &volume.name, true, is_damaged, &|note| pool.note_loss(note))
        } else {
            look(pool, &volume.name).map(|repaired| Mended { repaired, ..Mended::default() })
        };
        match found {
            Ok(Mended { repaired: Repaired { mended, left }, is_rebuilt, lost: kinds }) => {
                if is_rebuilt {
                    for problem in report.problems.iter_mut().filter(|problem| is_in_names_of(problem, &volume.name)) {
                        report.problems_left -= u64::from(is_mended_in(problem, &volume.name));
                    }
                }
                lost.add(&volume.name, kinds);
                mended.into_iter().for_each(|detail| report.add(problem(detail, true)));
                left.into_iter().for_each(|detail| report.add(problem(detail, false)));
            }
            Err(error) => {
                lost.is_cut_off = true;
                report.add(problem(format!("the tree cannot be checked: {error}"), false));
            }
        }
    }
    lost
}

/// Returns the problems of a share's tree without changing it.
fn look(pool: &Pool, name: &str) -> Result<Repaired> {
    let volume = pool.volume(name)?;
    let files = Arc::new(Files::claimed(volume.clone(), volume, TreeUse::Look, PATIENCE)?);
    let survey = Tree::survey(files.clone())
        .map_err(|failure| share_trees::error_of(name, "its names cannot be read", failure))?;
    if let Some(survey) = survey.filter(|survey| !survey.is_whole) {
        let advice = "shale check --repair rebuilds them from their readable records, and moves files without a name to \
         lost+found";
        let mut left = vec![format!("{}; {advice}", survey.problem)];
        if let Some(loss) = TreeLoss::of(&files, &survey)? {
            left.extend(loss.content);
            left.extend(loss.attributes);
        }
        return Ok(Repaired { left, ..Repaired::default() });
    }
    drop(files);
    Ok(Repaired { left: check_share(pool, name)?, ..Repaired::default() })
}

/// Repairs the tree of a share: rebuilds its names if some of them are damaged, corrects all that
/// follows from the rest, and moves files without a name to `lost+found`. Data without an inode is
/// adopted as well if any names are lost or `adopts` is set; otherwise its file was removed, and it
/// is discarded. `is_damaged`: a page of its names is unreadable, possibly one that is unused now.
/// `note` receives the description of a permanent loss, and must make it durable before anything is
/// changed.
///
/// # Errors
/// Those of the storage and of `note`.
pub fn mend(
    pool: &Pool,
    name: &str,
    adopts: bool,
    is_damaged: bool,
    note: &dyn Fn(&str) -> Result<()>,
) -> Result<Mended> {
    let volume = pool.volume(name)?;
    let files = Arc::new(Files::claimed(volume.clone(), volume, TreeUse::Change, PATIENCE)?);
    let space: Arc<dyn ObjectSpace> = files.clone();
    let failed = |failure| share_trees::error_of(name, "its tree cannot be repaired", failure);
    let mut repaired = Repaired::default();
    // The share may have no tree yet.
    let Some(survey) = Tree::survey(files.clone()).map_err(failed)? else { return Ok(Mended::default()) };
    let loss = TreeLoss::of(&files, &survey)?;
    if let Some(loss) = &loss {
        note(&loss.note(name))?;
    }
    let lost = loss.as_ref().map(|loss| loss.kinds).unwrap_or_default();
    let mut is_rebuilt = !survey.is_whole || is_damaged;
    if is_rebuilt {
        Tree::rebuild(&space, share_trees::brief_options(), [random()?, random()?]).map_err(failed)?;
        repaired.mended.push(if survey.is_whole {
            "damaged unused pages of the share's names: the names were rebuilt".to_owned()
        } else {
            format!("{}: they were rebuilt from their readable records", survey.problem)
        });
        // The certain losses are reported by the tree's own repair.
        let possible = AttributesLost { possible: survey.attributes.possible, ..AttributesLost::default() };
        repaired.mended.extend(Tree::attributes_lost_in_words(files.clone(), &possible, ATTRIBUTES_TOLD_MAX));
    }
    let tree = match Tree::open(space.clone(), share_trees::brief_options()) {
        // The database's own structures are damaged: its list of free pages.
        Err(failure) if failure.errno() == libc::EIO && repaired.mended.is_empty() => {
            Tree::rebuild(&space, share_trees::brief_options(), [random()?, random()?]).map_err(failed)?;
            repaired.mended.push("the database of the share's names could not be opened: it was rebuilt".to_owned());
            is_rebuilt = true;
            Tree::open(space, share_trees::brief_options())
        }
        opened => opened,
    };
    let tree = tree.map_err(failed)?;
    let mut with_data = BTreeSet::new();
    files.each_file(|file| {
        with_data.insert(file);
        Ok(true)
    })?;
    let adopts = adopts || !repaired.mended.is_empty();
    let Repaired { mended, left } = tree.repair(&with_data, adopts).map_err(failed)?;
    tree.close().map_err(failed)?;
    repaired.mended.extend(mended);
    repaired.left = left;
    Ok(Mended { repaired, is_rebuilt, lost })
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    env::Entropy::fill(&env::SystemEntropy, &mut bytes)
        .map_err(|error| Error::from_io("reading random bytes for a share", error))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns files of a share, or of a snapshot of one, in which some range reads as zeroes, because
/// it was never written or because its data is lost; at most a thousand.
///
/// # Errors
/// When the tree or the data cannot be read.
pub fn files_with_zeroes(pool: &Pool, name: &str) -> Result<Vec<String>> {
    let Some(Moment { tree, files, .. }) = open_if_made(pool, name)? else { return Ok(Vec::new()) };
    let (mut found, mut more, mut failed) = (Vec::new(), 0_u64, Ok(()));
    let walked = walk(&tree, |path, inode| {
        if inode.data_file() == 0 || inode.content().is_some() || inode.size == 0 {
            return true;
        }
        let hole = match first_hole(&files, inode.data_file(), inode.size) {
            Ok(hole) => hole,
            Err(error) => {
                failed = Err(error);
                return false;
            }
        };
        match hole {
            Some(at) if found.len() < DAMAGED_MAX => {
                let path = String::from_utf8_lossy(path);
                found.push(format!("{path}: reads as zeroes from byte {at} on, which was never written or is lost"));
            }
            Some(_) => more += 1,
            None => {}
        }
        true
    });
    failed?;
    walked.map_err(|failure| share_trees::error_of(name, "its tree cannot be read", failure))?;
    if more > 0 {
        found.push(format!("and {more} more files with ranges that read as zeroes"));
    }
    Ok(found)
}

/// Returns the offset of a file's first byte without data.
fn first_hole(files: &Files, file: u64, size: u64) -> Result<Option<u64>> {
    let mut at = 0;
    while at < size {
        let before = at;
        for run in files.allocation(file, at, size - at, RUNS_MAX)? {
            if run.allocation == Allocation::Hole {
                return Ok(Some(at));
            }
            at += run.length;
        }
        if at == before {
            break;
        }
    }
    Ok(None)
}

/// Returns the problems of a share's tree.
fn check_share(pool: &Pool, name: &str) -> Result<Vec<String>> {
    let Some(Moment { tree, files, scratch }) = open_if_made(pool, name)? else { return Ok(Vec::new()) };
    let failed = |failure| share_trees::error_of(name, "its tree cannot be read", failure);
    let mut wrong = tree.check().map_err(failed)?;
    let mut known = BTreeSet::new();
    walk(&tree, |_, inode| {
        known.insert(inode.data_file());
        true
    })
    .map_err(failed)?;
    let mut unknown = 0_u64;
    let mut first = None;
    files.each_file(|file| {
        if file >= FILES_OWN && !known.contains(&file) && !scratch.was_discarded(file) {
            unknown += 1;
            first.get_or_insert(file);
        }
        Ok(true)
    })?;
    if let Some(first) = first {
        wrong.push(format!("data of {unknown} files belongs to no inode, the first of them file {first}"));
    }
    Ok(wrong)
}

/// Opens a share or a snapshot of one; `None` if it had no tree yet.
fn open_if_made(pool: &Pool, name: &str) -> Result<Option<Moment>> {
    match share_trees::open_to_check(pool.volume(name)?) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens a share, or a snapshot of one, for reading, where none is mounted.
///
/// # Errors
/// As [`share_trees::open_moment`].
pub fn opened(pool: &Pool, name: &str) -> Result<Opened> {
    let volume = pool.volume(name)?;
    let Moment { tree, files, .. } = share_trees::open_moment(volume.clone(), volume)?;
    Ok(Opened::new(Arc::new(tree), files))
}

/// Extent of the search for the files of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// All names.
    Whole,
    /// So many names of each share, where an answer is due at once.
    Names(usize),
}

impl Search {
    const fn names(self) -> usize {
        match self {
            Self::Whole => usize::MAX,
            Self::Names(names) => names,
        }
    }
}

/// Adds the file names to problems that lie in files of shares. `open` opens the tree of a share
/// for reading: that of the mount, if it is mounted.
pub fn name_files(pool: &Pool, problems: &mut [Problem], search: Search, open: &dyn Fn(&str) -> Result<Opened>) {
    let mut by_share: BTreeMap<String, Vec<&mut Problem>> = BTreeMap::new();
    for problem in problems {
        if let (Some(name), Some(_)) = (&problem.volume, problem.offset)
            && pool.volume(name).or_else(|_| pool.volume(names::volume_of(name))).is_ok_and(|volume| volume.is_share())
        {
            by_share.entry(name.clone()).or_default().push(problem);
        }
    }
    for (name, mut problems) in by_share {
        if let Err(error) = name_files_of(pool, &name, &mut problems, search, open) {
            for problem in problems {
                problem.detail = format!("{} (cannot find the file: {error})", problem.detail);
            }
        }
    }
}

fn name_files_of(
    pool: &Pool,
    name: &str,
    problems: &mut [&mut Problem],
    search: Search,
    open: &dyn Fn(&str) -> Result<Opened>,
) -> Result<()> {
    let volume = pool.volume(name)?;
    let files = Arc::new(Files::new(volume.clone(), volume)?);
    // Problems and their byte positions, by file.
    let mut wanted: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    for (index, problem) in problems.iter_mut().enumerate().take(DAMAGED_MAX) {
        match problem.offset.map_or(Ok(None), |offset| files.locate(offset))? {
            Some((file, byte)) => wanted.entry(file).or_default().push((index, byte)),
            None => problem.detail = format!("table of large files: {}", problem.detail),
        }
    }
    let mut tell = |wanted: &mut BTreeMap<u64, Vec<(usize, u64)>>, file: u64, what: &str| {
        for (index, byte) in wanted.remove(&file).into_iter().flatten() {
            let problem = &mut problems[index];
            problem.detail = format!("{what}, byte {byte}: {}", problem.detail);
        }
    };
    for own in 0..FILES_OWN {
        tell(&mut wanted, own, IN_NAMES);
    }
    // A tree whose own names are damaged cannot be opened.
    let is_walked = match open(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Ok(Opened { tree, .. }) => {
            let mut found: BTreeMap<u64, Paths> = BTreeMap::new();
            let mut left = search.names();
            let walked = walk(&tree, |path, inode| {
                if inode.data_file() != 0 && wanted.contains_key(&inode.data_file()) {
                    found.entry(inode.data_file()).or_default().add(path.to_vec());
                }
                left -= 1;
                left > 0
            });
            found.iter().for_each(|(file, paths)| tell(&mut wanted, *file, &paths.to_string()));
            walked.is_ok() && left > 0
        }
        Err(_) => false,
    };
    if !is_walked && search != Search::Whole {
        for file in wanted.keys().copied().collect::<Vec<_>>() {
            tell(&mut wanted, file, &format!("file {file} ('shale scrub POOL --report' names it)"));
        }
    }
    if !is_walked {
        let left = wanted.keys().copied().collect();
        for (file, paths) in Tree::paths_of(files.clone(), &left) {
            tell(&mut wanted, file, &paths.to_string());
        }
    }
    for (file, places) in wanted {
        for (index, byte) in places {
            let problem = &mut problems[index];
            problem.detail = format!("file {file} without a name, byte {byte}: {}", problem.detail);
        }
    }
    Ok(())
}

/// Passes each path of a tree and its inode to `visit`, until that returns `false`.
fn walk(tree: &Tree, mut visit: impl FnMut(&[u8], &share::Inode) -> bool) -> share::Result<()> {
    let (mut directories, mut goes_on) = (vec![(Tree::ROOT, Vec::new())], true);
    while goes_on && let Some((node, path)) = directories.pop() {
        let listed = tree.list(node, share::COOKIE_DOT_DOT, |listed, inode| {
            let path = [&path[..], b"/", &listed.name].concat();
            goes_on = visit(&path, &inode);
            if listed.kind == libc::S_IFDIR {
                directories.push((listed.node, path));
            }
            goes_on
        });
        match listed {
            // Removed since, in a mounted tree.
            Err(failure) if failure.errno() == libc::ESTALE => {}
            listed => listed?,
        }
    }
    Ok(())
}
