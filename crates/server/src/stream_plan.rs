//! The streams of a set and their order: pure except for queries of the pool's snapshots.
//!
//! For each volume, its snapshots from the base (or the first one) up to the requested one, each as
//! the difference from its predecessor. A volume without the base is sent whole from its first
//! snapshot on; a clone as the difference from its origin, after the origin's volume, if that is in
//! the set as well.

use std::collections::BTreeSet;

use engine::{Pool, VolumeStatus};
use format::ResumeToken;
use operations::{SetPlan, SetWish};
use surface::{Error, ErrorKind, Result};

use crate::devices::is_in;
use operations::SendWish;

/// Maximum number of streams in a set: bounds the memory of a plan and its size on the control
/// socket. The snapshots of 10,000 volumes, a hundred of each.
const STREAMS_MAX: usize = 1_000_000;

/// Maximum number of names in a refusal.
const NAMES_TOLD: usize = 10;

/// Returns whether a name matches a pattern: `*` stands for any letters, `?` for one.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Position of the last star, and the end of its match so far.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Makes the plan.
///
/// # Errors
/// `NotFound` if nothing matches, or a named volume lacks a requested snapshot; `Invalid` for a
/// token of another set.
pub fn plan(pool: &Pool, wish: &SetWish) -> Result<SetPlan> {
    let (pattern, newest) = wish.of.split_once('@').map_or((wish.of.as_str(), None), |(p, s)| (p, Some(s)));
    let mut volumes: Vec<VolumeStatus> = pool.volumes();
    // A share, too, if others lie in it.
    let is_folder = pool.is_folder(pattern) || wish.below && volumes.iter().any(|volume| is_in(&volume.name, pattern));
    let is_pattern = is_folder || pattern.contains(['*', '?']);
    volumes.retain(|volume| fits(pattern, &volume.name) || is_folder && is_in(&volume.name, pattern));
    if volumes.is_empty() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("no volume of the pool matches '{pattern}': 'shale list' shows them"),
        ));
    }
    let volumes = origins_first(volumes);
    let root = if is_folder { format!("{pattern}/") } else { String::new() };
    let mut plan = SetPlan { root, ..SetPlan::default() };
    let mut sent: Vec<String> = Vec::new();
    let (mut is_base_known, mut names) = (false, BTreeSet::new());
    for volume in &volumes {
        let name = &volume.name;
        let snapshots: Vec<String> = pool.snapshots(Some(name))?.into_iter().map(|s| s.name).collect();
        names.extend(snapshots.iter().cloned());
        let last = match newest {
            Some(newest) => snapshots.iter().position(|snapshot| snapshot == newest),
            None => snapshots.len().checked_sub(1),
        };
        let Some(last) = last else {
            if !is_pattern {
                let what = newest.map_or_else(|| "a snapshot".to_owned(), |newest| format!("the snapshot '{newest}'"));
                let text = format!("volume '{name}' does not have {what}; it has {}", in_words(snapshots.iter()));
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            plan.skipped.push(name.clone());
            continue;
        };
        let title = |index: usize| format!("{name}@{}", snapshots[index]);
        let origin = || volume.origin.clone().filter(|origin| sent.contains(origin));
        let found = match &wish.from {
            Some(from) => match behind(pool, name, from, &snapshots) {
                // It may have been created since.
                Err(error) if is_pattern && error.kind() == ErrorKind::NotFound => None,
                found => Some(found?),
            },
            None => None,
        };
        is_base_known |= found.is_some();
        // From its own base, one difference may suffice; of a new volume, all snapshots are sent.
        let first = found.as_ref().map_or(0, |(first, _)| if wish.all { *first } else { (*first).max(last) });
        let is_base_newer = found.as_ref().is_some_and(|(first, _)| *first > last);
        let mut base = found.map_or_else(origin, |(_, title)| Some(title));
        if is_base_newer {
            plan.skipped.push(name.clone());
            continue;
        }
        for index in first..=last {
            let thin = wish.thin && base.is_none() && pool.image_of(&title(index))?.is_some();
            let stream = SendWish { snapshot: Some(title(index)), from: base.take(), resume: None, thin };
            plan.streams.push(stream);
            sent.push(title(index));
            base = Some(title(index));
        }
        plan.volumes += 1;
        if plan.streams.len() > STREAMS_MAX {
            let text = format!("more than {STREAMS_MAX} streams: specify fewer volumes, or a later base");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    // Sending all of them whole is hardly intended: the name is wrong.
    if let Some(from) = wish.from.as_ref().filter(|_| !is_base_known) {
        let text = match from.rsplit_once('#') {
            Some(_) => {
                format!("no volume of '{pattern}' has the bookmark '{from}': 'shale bookmarks' lists them")
            }
            None => format!("no volume of '{pattern}' has the snapshot '{from}'; they have {}", in_words(names.iter())),
        };
        return Err(Error::new(ErrorKind::NotFound, text + "; omit the base to send everything"));
    }
    if plan.streams.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("nothing to send for '{}'", wish.of)));
    }
    if let Some(token) = &wish.resume {
        go_on(pool, &mut plan, token)?;
    }
    Ok(plan)
}

/// Returns the index of the first of `snapshots` after a base, and the full name of the base.
fn behind(pool: &Pool, volume: &str, from: &str, snapshots: &[String]) -> Result<(usize, String)> {
    let from = from.trim_start_matches('@');
    let own = from.strip_prefix(volume).filter(|rest| rest.starts_with(['@', '#'])).unwrap_or(from);
    if let Some(bookmark) = own.strip_prefix('#') {
        let title = format!("{volume}#{bookmark}");
        let since = pool.snapshots_since(&title)?;
        let first = since.first().and_then(|first| snapshots.iter().position(|s| s == first));
        return Ok((first.unwrap_or(snapshots.len()), title));
    }
    let own = own.trim_start_matches('@');
    match snapshots.iter().position(|snapshot| snapshot == own) {
        Some(index) => Ok((index + 1, format!("{volume}@{own}"))),
        None => {
            let text = format!("volume '{volume}' has no snapshot '{own}'; it has {}", in_words(snapshots.iter()));
            Err(Error::new(ErrorKind::NotFound, text))
        }
    }
}

/// Lists the first names.
fn in_words<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = names.len().saturating_sub(NAMES_TOLD);
    let mut told: Vec<String> = names.take(NAMES_TOLD).cloned().collect();
    if more > 0 {
        told.push(format!("{more} more"));
    }
    if told.is_empty() { "none".to_owned() } else { told.join(", ") }
}

/// Orders volumes by name, but after their origins and outer shares.
fn origins_first(mut left: Vec<VolumeStatus>) -> Vec<VolumeStatus> {
    left.sort_by(|a, b| a.name.cmp(&b.name));
    let mut ordered: Vec<VolumeStatus> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let is_waiting = |volume: &VolumeStatus| {
            let is_in_one = left.iter().any(|other| is_in(&volume.name, &other.name));
            let origin = volume.origin.as_deref().and_then(|origin| origin.split('@').next());
            is_in_one || origin.is_some_and(|origin| left.iter().any(|other| other.name == origin))
        };
        // In a cycle, the first volume is sent whole.
        let next = left.iter().position(|volume| !is_waiting(volume)).unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}

/// Drops the streams before the token's, and the received part of that one.
fn go_on(pool: &Pool, plan: &mut SetPlan, token: &str) -> Result<()> {
    let wanted: ResumeToken =
        token.parse().map_err(|error| Error::with_source(ErrorKind::Invalid, "cannot use the resume token", error))?;
    let is_meant = |stream: &SendWish| {
        let title = stream.snapshot.as_deref().unwrap_or_default();
        pool.snapshot_identity(title).is_ok_and(|identity| identity == wanted.to)
    };
    let Some(index) = plan.streams.iter().position(is_meant) else {
        let text = "the resume token is for a snapshot that is not selected: use the options of the interrupted \
         command";
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    plan.streams.drain(..index);
    plan.streams[0].resume = Some(token.to_owned());
    let volumes = plan.streams.iter().filter_map(|stream| stream.snapshot.as_deref()?.split('@').next());
    plan.volumes = volumes.collect::<BTreeSet<_>>().len() as u32;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, name) in
            [("vm", "vm"), ("*", ""), ("*", "vm"), ("vm*", "vm-1"), ("*1", "a11"), ("a?c*e", "abcxde"), ("**", "x")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("vm", "vm1"), ("?", ""), ("vm?", "vm"), ("*1", "a12"), ("a*b*c", "acb"), ("", "x")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
