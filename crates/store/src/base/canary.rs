//! Deliberately planted bugs, to prove that the tests notice them (`tools/canaries`).
//!
//! 1. Where a bug is planted, the code asks [`Canary::is_planted`]. Without the feature `canaries`
//!    that is the constant `false`, and the compiler removes the bug.
//! 2. With the feature, `SHALE_CANARY=NAME` in the environment chooses one bug for the life of the
//!    process; without that variable the program behaves as without the feature.
//! 3. An unknown name panics the first thread that asks: a run that plants nothing must not look
//!    like one that found nothing.
//!
//! The feature does not compile without debug assertions, which none of our release profiles has,
//! and no crate enables it.

#[cfg(all(feature = "canaries", not(debug_assertions)))]
compile_error!("the feature `canaries` plants bugs: it is for tests with debug assertions, never for a release build");

macro_rules! canaries {
    ($($name:ident = $text:literal, $what:literal;)+) => {
        /// One planted bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Canary {
            $(#[doc = $what] $name,)+
        }

        impl Canary {
            /// All canaries, by their names for `SHALE_CANARY`.
            const NAMES: &[(&str, Self)] = &[$(($text, Self::$name)),+];
        }
    };
}

canaries! {
    NoSyncBeforeCheckpoint = "no-sync-before-checkpoint", "A checkpoint is passed to the store without a sync before it: the log that it refers to is not durable.";
    EarlyExtentReuse = "early-extent-reuse", "Freed extents are used again before the checkpoint that frees them is durable.";
    SkipChecksum = "skip-checksum", "Read data is not verified.";
    DoubleApply = "double-apply", "Recovery applies a batch twice.";
    RecoveryForgetsAStream = "recovery-forgets-a-stream", "Recovery loses the other stream when one changes its extent.";
    UnitDivided = "unit-divided", "Batches are divided within units: between fragments, and between data and holes.";
    HolesApart = "holes-apart", "The zero blocks of a write become holes after its data is in the write buffer.";
    MoveOverNewerWrite = "move-over-newer-write", "A moved copy takes effect even if newer data was written.";
    ExtentFreedUnderReader = "extent-freed-under-reader", "Extents are freed without waiting for their readers.";
    SnapshotDeleteLosesNeighbour = "snapshot-delete-loses-neighbour", "Destroying a snapshot removes a block that is still needed.";
    CleanerDropsSnapshotFragment = "cleaner-drops-snapshot-fragment", "The cleaner drops data that only a snapshot holds.";
    DictionaryGivenUpUnseen = "dictionary-given-up-unseen", "A dictionary is dropped without checking whether a fragment needs it.";
    WrongDictionary = "wrong-dictionary", "Data compressed with one dictionary is decoded with another one of its volume.";
    KindsTaughtTogether = "kinds-taught-together", "Dictionaries of a share are trained for adjacent files, whatever their types.";
    ScrubSkipsRecent = "scrub-skips-recent", "A scrub skips data that no checkpoint has counted.";
    SalvageBoundsForgetSnapshots = "salvage-bounds-forget-snapshots", "Salvage bounds uncertain data of volumes, and not of snapshots.";
    CopiesBesideData = "copies-beside-data", "Copies are written next to their originals, in one block of the medium.";
    CopiesUnused = "copies-unused", "Damaged data is not read from another copy.";
    CopiesOutlived = "copies-outlived", "Older copies stay when their data is overwritten.";
    DeltasRemovedEarly = "deltas-removed-early", "Deltas of light checkpoints are removed before all of them are in the records.";
    DictionaryOutlived = "dictionary-outlived", "A dictionary stays when its volume is gone.";
    OpeningWithoutMark = "opening-without-mark", "An opening is not marked in the log.";
    OpeningNotedInDataOnly = "opening-noted-in-data-only", "The map does not record immediately that the data file notes an opening.";
    LossNotRemembered = "loss-not-remembered", "A loss by a repair is not recorded.";
    SortDropsANewerWrite = "sort-drops-a-newer-write", "Sorted data replaces data that was written since it was read.";
    SortFillsAHole = "sort-fills-a-hole", "Sorted data reappears after a large discard.";
    OriginIgnoresSnapshots = "origin-ignores-snapshots", "Blocks of an origin that only snapshots of a clone need are removed.";
    OriginTakesDictionaries = "origin-takes-dictionaries", "An origin with only dictionaries left is removed, although its clones need them.";
    BookmarkKeeps = "bookmark-keeps", "A bookmark keeps its snapshot's data.";
    BookmarkTrustsHoles = "bookmark-trusts-holes", "A difference from a bookmark leaves out holes without a record.";
    StandbyRecordBeforePayload = "standby-record-before-payload", "A standby record is valid before its blocks are there.";
    StandbyReplayedTwice = "standby-replayed-twice", "A replayed ring stays, and is replayed again by the next opening.";
    StandbyReplayOverNewer = "standby-replay-over-newer", "A ring is replayed newest first.";
    StandbyForgetsDiscards = "standby-forgets-discards", "Discards are not kept in standby memory.";
    StandbyNeedNotNoted = "standby-need-not-noted", "The map does not record that a ring is in use.";
    JournalNeedNotNoted = "journal-need-not-noted", "The map does not record that a share has a journal.";
    StandbyVoidForgetsBeside = "standby-void-forgets-beside", "An opening that finds memory without a header drops the files that accompany it.";
    StandbyDamageNotSeen = "standby-damage-not-seen", "A damaged record of standby memory is taken for an unfinished one.";
    StandbyLossNotedLate = "standby-loss-noted-late", "An opening sets journals of shares aside before it records that their names are lost.";
    StandbyBeginningNotSeen = "standby-beginning-not-seen", "Standby memory whose first bytes were overwritten stays in use, and is reported as safe.";
    CatalogueNotKept = "catalogue-not-kept", "The extents of the catalogue are freed like any others.";
    CutBlockNotZeroed = "cut-block-not-zeroed", "A volume grows over the rest of a block that was cut off, without zeroing it.";
    FolderRenameLeavesOne = "folder-rename-leaves-one", "When a folder is renamed, one object in it keeps its old name.";
    SnapshotsOfManyMoments = "snapshots-of-many-moments", "The snapshots of a folder are taken one after the other.";
    InventoryNotWritten = "inventory-not-written", "Checkpoints do not update the inventory of extents.";
    SalvageConfirmsAnything = "salvage-confirms-anything", "Salvage takes older data for the data that the map names.";
    UnfetchedIsZeroes = "unfetched-is-zeroes", "Unfetched blocks of an image read as zeroes.";
    FetchFailureIsZeroes = "fetch-failure-is-zeroes", "A group that cannot be fetched is taken for zeroes, and kept.";
    ImageHolesForgotten = "image-holes-forgotten", "A discard does not hide unfetched blocks.";
    DroppedNotCounted = "dropped-not-counted", "Dropped groups of an image stay in the map, and their extents are freed.";
    PushLeavesOutRemote = "push-leaves-out-remote", "A push takes the unfetched part of a changed group for zeroes.";
    ThinForgetsHoles = "thin-forgets-holes", "The difference from an image leaves out discarded blocks.";
}

impl Canary {
    /// Returns whether this bug is planted.
    #[inline]
    pub fn is_planted(self) -> bool {
        cfg!(feature = "canaries") && chosen() == Some(self)
    }
}

/// Returns the bug planted in this process.
fn chosen() -> Option<Canary> {
    static CHOSEN: std::sync::OnceLock<Option<Canary>> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var_os("SHALE_CANARY").map(|name| named(&name.to_string_lossy())))
}

/// # Panics
/// If there is no canary of that name.
#[allow(clippy::panic, reason = "a build with planted bugs must not continue with an unknown one")]
fn named(name: &str) -> Canary {
    let found = Canary::NAMES.iter().find(|(text, _)| *text == name);
    found.map(|(_, canary)| *canary).unwrap_or_else(|| {
        let names: Vec<_> = Canary::NAMES.iter().map(|(text, _)| *text).collect();
        panic!("SHALE_CANARY={name}: there is no such canary; there are: {}", names.join(" "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_its_own() {
        for (text, canary) in Canary::NAMES {
            assert_eq!(named(text), *canary, "two canaries are called {text}");
        }
    }

    #[test]
    #[should_panic(
        expected = "SHALE_CANARY=no-such: there is no such canary; there are: no-sync-before-checkpoint early"
    )]
    fn a_wrong_name_is_refused_loudly() {
        named("no-such");
    }
}
