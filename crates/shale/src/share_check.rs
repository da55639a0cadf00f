//! What `check` says of shares beyond what it says of volumes: whether each tree agrees with itself
//! and with the data there is, and the paths of files in which something is damaged.
//!
//! Trees are looked at as snapshots are: nothing is changed, and what opening writes stays in
//! memory.

use std::collections::{BTreeMap, BTreeSet};

use engine::{CheckReport, Files, Pool, Problem};
use share::Tree;
use surface::Result;

use crate::names;
use crate::shares::{self, Moment};

/// The file of a share that holds its namespace; others below 16 are the tree's own, too.
const NAMESPACE: u64 = Tree::ROOT;
const FILES_OWN: u64 = 16;
/// Damaged files of one share whose paths are looked for.
const DAMAGED_MAX: usize = 1000;

/// Adds to a report the problems of the trees of all shares, and names the files that its
/// problems are in.
///
/// # Errors
/// What the storage fails with.
pub fn check(pool: &Pool, report: &mut CheckReport) {
    name_files(pool, &mut report.problems);
    for volume in pool.volumes().into_iter().filter(engine::VolumeStatus::is_share) {
        let problem = |detail: String| Problem {
            kind: "tree",
            volume: Some(volume.name.clone()),
            offset: None,
            detail,
            repaired: false,
        };
        match check_share(pool, &volume.name) {
            Ok(wrong) => wrong.into_iter().for_each(|detail| report.add(problem(detail))),
            Err(error) => report.add(problem(format!("the tree cannot be checked: {error}"))),
        }
    }
}

/// Problems of the tree of a share.
fn check_share(pool: &Pool, name: &str) -> Result<Vec<String>> {
    let Some(Moment { tree, files, scratch }) = open(pool, name)? else { return Ok(Vec::new()) };
    let failed = |failure| shares::error_of(name, "its tree cannot be read", failure);
    let mut wrong = tree.check().map_err(failed)?;
    let mut known = BTreeSet::new();
    walk(&tree, |_, inode| {
        known.insert(inode.data_file());
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

/// A share or a snapshot of one; `None` if it had no tree yet.
fn open(pool: &Pool, name: &str) -> Result<Option<Moment>> {
    let volume = pool.volume(name)?;
    match shares::open_moment(volume.clone(), volume) {
        Err(error) if error.kind() == surface::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Says of problems that lie in files of shares which files these are.
pub fn name_files(pool: &Pool, problems: &mut [Problem]) {
    let mut by_share: BTreeMap<String, Vec<&mut Problem>> = BTreeMap::new();
    for problem in problems {
        if let (Some(name), Some(_)) = (&problem.volume, problem.offset)
            && pool.volume(name).or_else(|_| pool.volume(names::volume_of(name))).is_ok_and(|volume| volume.is_share())
        {
            by_share.entry(name.clone()).or_default().push(problem);
        }
    }
    for (name, mut problems) in by_share {
        if let Err(error) = name_files_of(pool, &name, &mut problems) {
            for problem in problems {
                problem.detail = format!("{} (which file it is in cannot be told: {error})", problem.detail);
            }
        }
    }
}

fn name_files_of(pool: &Pool, name: &str, problems: &mut [&mut Problem]) -> Result<()> {
    let volume = pool.volume(name)?;
    let files = Files::new(volume.clone(), volume)?;
    // Places by files.
    let mut wanted: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    for (index, problem) in problems.iter_mut().enumerate().take(DAMAGED_MAX) {
        match problem.offset.map_or(Ok(None), |offset| files.locate(offset))? {
            Some((file, byte)) => wanted.entry(file).or_default().push((index, byte)),
            None => problem.detail = format!("what leads to large files: {}", problem.detail),
        }
    }
    let mut tell = |file: u64, what: &str| {
        for (index, byte) in wanted.remove(&file).into_iter().flatten() {
            let problem = &mut problems[index];
            problem.detail = format!("{what}, byte {byte}: {}", problem.detail);
        }
    };
    tell(NAMESPACE, "the names of the share");
    if let Some(Moment { tree, .. }) = open(pool, name)? {
        let walked = walk(&tree, |path, inode| {
            if inode.data_file() != 0 {
                tell(inode.data_file(), &String::from_utf8_lossy(path));
            }
        });
        walked.map_err(|failure| shares::error_of(name, "its tree cannot be read", failure))?;
    }
    for (file, places) in wanted {
        for (index, byte) in places {
            let problem = &mut problems[index];
            problem.detail = format!("file {file} without a name, byte {byte}: {}", problem.detail);
        }
    }
    Ok(())
}

/// Hands each path of a tree, and its inode, to `visit`.
fn walk(tree: &Tree, mut visit: impl FnMut(&[u8], &share::Inode)) -> share::Result<()> {
    let mut directories = vec![(Tree::ROOT, Vec::new())];
    while let Some((node, path)) = directories.pop() {
        tree.list(node, share::COOKIE_DOT_DOT, |listed, inode| {
            let path = [&path[..], b"/", &listed.name].concat();
            visit(&path, &inode);
            if listed.kind == libc::S_IFDIR {
                directories.push((listed.node, path));
            }
            true
        })?;
    }
    Ok(())
}
