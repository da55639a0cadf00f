//! Cuts: the epochs that rollbacks remove from an object's history. The map drops the records of
//! these epochs; the log keeps them for longer, so cuts outlive their removal from the map, for a
//! rebuild of the map from the log.

use units::Epoch;

use crate::FormatError;
use crate::cursor::{Cursor, put_uint};

/// Most cuts of an object.
pub const CUTS_MAX: usize = 32;

/// Most cuts kept after the map has dropped their records; the oldest are forgotten first.
pub const UNDONE_MAX: usize = 128;

/// Epochs strictly between two others, undone by a rollback: a point at `before` or later does not
/// see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Newest epoch before the cut: the epoch of the snapshot that was restored.
    pub after: Epoch,
    /// Oldest epoch after it: the first one after the rollback.
    pub before: Epoch,
}

impl Cut {
    /// Whether a record of `epoch` is hidden from a reader at `point`.
    pub fn hides(&self, epoch: Epoch, point: Epoch) -> bool {
        point >= self.before && epoch > self.after && epoch < self.before
    }
}

/// Cuts whose records the map has dropped, but the log may still hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undone {
    /// Cuts without a point within, by `before`.
    pub cuts: Vec<Cut>,
    /// Range of the cuts that were forgotten: whether an epoch within it was undone cannot be
    /// determined from the log alone.
    pub forgotten: Option<Cut>,
}

impl Undone {
    /// Adds a cut, which replaces those that lie within it. Beyond [`UNDONE_MAX`] the oldest are
    /// forgotten.
    pub fn enter(&mut self, new: Cut) {
        self.cuts.retain(|old| old.after < new.after || old.before > new.before);
        let at = self.cuts.partition_point(|old| old.before < new.before);
        // One with the same end reaches further into the past.
        if self.cuts.get(at).is_none_or(|old| old.before != new.before) {
            self.cuts.insert(at, new);
        }
        let over = self.cuts.len().saturating_sub(UNDONE_MAX);
        for old in self.cuts.drain(..over) {
            let known = self.forgotten.get_or_insert(old);
            known.after = known.after.min(old.after);
            known.before = known.before.max(old.before);
        }
    }

    /// Whether a record of `epoch` belongs to a range that was undone.
    pub fn hides(&self, epoch: Epoch) -> bool {
        self.cuts.iter().any(|cut| cut.hides(epoch, cut.before))
    }

    /// Whether a record of `epoch` may belong to an undone range that was forgotten.
    pub fn may_hide(&self, epoch: Epoch) -> bool {
        self.forgotten.is_some_and(|cut| cut.hides(epoch, cut.before))
    }
}

/// Appends a cut: after 4, before 4.
pub(crate) fn put_cut(out: &mut Vec<u8>, cut: &Cut) {
    put_uint(out, cut.after.0.into(), 4);
    put_uint(out, cut.before.0.into(), 4);
}

/// Inverse of [`put_cut`].
pub(crate) fn read_cut(cursor: &mut Cursor<'_>) -> Result<Cut, FormatError> {
    let cut = Cut { after: Epoch(cursor.u32()?), before: Epoch(cursor.u32()?) };
    if cut.after >= cut.before {
        return Err(cursor.fail(format!("a cut between epochs {} and {}", cut.after.0, cut.before.0)));
    }
    Ok(cut)
}

/// A number of cuts (1), then each; their ends rise.
pub(crate) fn read_cuts(cursor: &mut Cursor<'_>, max: usize) -> Result<Vec<Cut>, FormatError> {
    let count = usize::from(cursor.u8()?);
    let mut cuts: Vec<Cut> = Vec::new();
    for _ in 0..count {
        let cut = read_cut(cursor)?;
        if cuts.last().is_some_and(|last| last.before >= cut.before) {
            return Err(cursor.fail(format!("a cut before epoch {} behind a newer one", cut.before.0)));
        }
        cuts.push(cut);
    }
    if count > max {
        return Err(cursor.fail(format!("{count} cuts")));
    }
    Ok(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_undone_twice_is_remembered_once() {
        let mut undone = Undone::default();
        for (after, before) in [(3, 6), (0, 2), (3, 9), (5, 9), (9, 12)] {
            undone.enter(Cut { after: Epoch(after), before: Epoch(before) });
        }
        let told: Vec<_> = undone.cuts.iter().map(|cut| (cut.after.0, cut.before.0)).collect();
        assert_eq!(told, [(0, 2), (3, 9), (9, 12)]);
        assert!(undone.hides(Epoch(1)) && undone.hides(Epoch(8)) && !undone.hides(Epoch(2)) && !undone.hides(Epoch(9)));
    }

    #[test]
    fn cuts_beyond_those_that_are_listed_leave_a_mark() {
        let (mut undone, count) = (Undone::default(), 2 * UNDONE_MAX as u32);
        let cut = |n: u32| Cut { after: Epoch(20 + 3 * n), before: Epoch(22 + 3 * n) };
        for n in 0..count {
            let is_known = n < UNDONE_MAX as u32;
            undone.enter(cut(n));
            assert_eq!(undone.forgotten.is_none(), is_known, "{n}");
        }
        assert_eq!(undone.cuts.len(), UNDONE_MAX);
        let hidden = |n: u32| Epoch(21 + 3 * n);
        assert!((0..count).all(|n| undone.hides(hidden(n)) != undone.may_hide(hidden(n))));
        assert!(!undone.may_hide(cut(0).after) && !undone.may_hide(cut(count / 2 - 1).before));
    }

    #[test]
    fn a_cut_hides_what_lies_within_from_whoever_stands_behind() {
        let cut = Cut { after: Epoch(3), before: Epoch(6) };
        let hidden: Vec<_> = (0..8).filter(|e| cut.hides(Epoch(*e), Epoch(7))).collect();
        assert_eq!(hidden, [4, 5]);
        assert!((0..8).all(|e| !cut.hides(Epoch(e), Epoch(5))));
    }
}
