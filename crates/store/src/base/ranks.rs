//! The order of all locks of the engine, the first one first, in groups by the room that owns them.
//! Only that room has a lock of such a rank. A thread waits only for a lock that comes after all
//! those that it holds (`base::ranked`). A thread that holds one of those after `last` waits for
//! nothing. A lock that a thread only tries, or waits for with a timeout, may be taken out of
//! order.
#![cfg_attr(not(debug_assertions), allow(dead_code))]

/// Where a lock stands in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub level: u8,
    pub name: &'static str,
    pub peers: Peers,
}

/// Whether a thread that holds a lock of a rank may wait for another one of the same rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    None,
    /// All threads take them in the same order.
    Beside,
    /// Only a thread that also holds the lock of that level.
    Under(u8),
}

/// A rank, by which a lock is typed.
pub trait Rank {
    const PLACE: Place;
}

macro_rules! peers {
    () => {
        Peers::None
    };
    (beside) => {
        Peers::Beside
    };
    (under $rank:ident) => {
        Peers::Under(Level::$rank as u8)
    };
}

macro_rules! ranks {
    (
        in order: $([$room:ident] $($(#[$doc:meta])+ $rank:ident $name:literal $($peers:ident $($of:ident)?)?;)+)+
        last: $([$last_room:ident] $($(#[$last_doc:meta])+ $last:ident $last_name:literal;)+)+
    ) => {
        enum Level {
            $($($rank,)+)+
            Last,
        }

        $($(
            $(#[$doc])+
            pub enum $rank {}

            impl Rank for $rank {
                const PLACE: Place = Place {
                    level: Level::$rank as u8,
                    name: concat!(stringify!($room), "::", $name),
                    peers: peers!($($peers $($of)?)?),
                };
            }
        )+)+

        $($(
            $(#[$last_doc])+
            pub enum $last {}

            impl Rank for $last {
                const PLACE: Place = Place {
                    level: Level::Last as u8,
                    name: concat!(stringify!($last_room), "::", $last_name),
                    peers: Peers::None,
                };
            }
        )+)+
    };
}

ranks! {
    in order:
    [pool]
    /// The pool's threads: held while they are started, and while their ends are awaited.
    Threads "threads";
    [codecs]
    /// Held by the thread that trains dictionaries.
    Training "training";
    [upkeep]
    /// Held by a slice of the recompression.
    Recompressing "recompressing";
    /// Progress of the recompression.
    Recompressed "recompressed";
    /// Held by the sorting.
    Sorting "sorting";
    [repair]
    /// Held by a slice of the scrub, and by other changes of the list of damages.
    Scrub "scrub";
    [history]
    /// Held while clones are reparented, and by a check, which excludes that.
    PassedOn "passed on";
    [objects]
    /// Held by all changes to the table of objects.
    Admin "admin";
    [upkeep]
    /// Progress of a shrink.
    Shrinking "shrinking";
    [volume]
    /// Held shared while a piece of a share's file is written, exclusively while tables are
    /// dropped.
    TablesStay "tables stay";
    /// The tables of a share's files; they are read and written while it is held.
    Tables "tables";
    [objects]
    /// A volume's gate. A thread that closes several of them holds `admin`.
    Gate "gate" under Admin;
    /// Held by the writer that computes the remaining quota.
    QuotaLook "quota look";
    [volume]
    /// Held shared while a large range becomes a hole.
    Punching "punching";
    [objects]
    /// Held shared by a writer of a partial block, exclusively while a large range becomes a hole.
    Parts "parts";
    [make_room]
    /// Held by the writer that makes room in a pool that seems full.
    MakingRoom "alone";
    [clean]
    /// Held shared by rounds of cleaning in the background, exclusively by others.
    Cleaning "rounds";
    /// Held by the round that may use the extents kept for moves.
    Dipping "dipping";
    [codecs]
    /// Held shared while dictionaries that may be dropped are in use.
    DictionariesInUse "dictionaries in use";
    [checkpoint]
    /// The state of checkpoints: held while one is taken.
    Checkpoint "state";
    /// Held shared from a look at the map to the moves that follow from it, exclusively by a
    /// checkpoint that captures.
    Still "still";
    [base]
    /// Held by the thread that waits until all users of locations in the data file are done.
    ReadersGo "readers go";
    /// Held shared while locations in the data file are used.
    Readers "readers";
    [salvage]
    /// The records of the group that salvage compared last.
    Witness "witness";
    [clean]
    /// State of the cleaner between rounds.
    Cleaner "cleaner";
    [space]
    /// Number of cleanings without gain; writers at the soft wall wait with it.
    Futile "futile";
    [checkpoint]
    /// Bytes in the log when that figure last changed.
    Resting "resting";
    [codecs]
    /// Samples for dictionaries.
    Samples "samples";
    /// Dictionaries that are not used for new data.
    Unusable "unusable dictionaries";
    [log]
    /// The log's state: batches are placed and applied while it is held.
    LogState "state";
    /// The pins of the catalogue.
    Catalogue "catalogue";
    [objects]
    /// The table of objects.
    Objects "table";
    /// The descriptor of an object.
    Descriptor "descriptor";
    /// The other parts of an object: title, settings, chain of levels, captured descriptor.
    ObjectPart "part";
    [space]
    /// The accounts of extents.
    Extents "extents";
    [map]
    /// Held shared during scans of the map's base, exclusively where changes leave the layers above
    /// for the store.
    MapBase "base";
    /// The layers of the map.
    MapLayers "layers";
    /// A shard of an overlay: those of one overlay in their order, those of a newer overlay before
    /// those of an older one.
    OverlayShard "overlay shard" beside;
    /// Notes of the former locations of moved fragments.
    MovedFrom "moved from";
    /// Dead fragments of extents.
    Deaths "deaths";
    [log]
    /// How far extents are filled.
    Inventory "inventory";
    [pool]
    /// Arrival time of the oldest dirty data.
    Aging "aging";
    [buffer]
    /// A shard of the write buffer.
    BufferShard "shard";
    /// The queue of the write buffer.
    BufferQueue "queue";
    /// Held shared while standby memory is used, exclusively while it is replaced.
    StandbyMemory "standby memory";
    /// The ring of standby memory.
    StandbyRing "standby ring";
    [base]
    /// The reason why the pool accepts no writes.
    Failed "failed";
    [log]
    /// Syncs of the data file.
    Syncs "syncs";
    /// Extents with allocated space.
    Backing "backing";
    [checkpoint]
    /// Unreadable areas after the end of the log; they are written over while this is held.
    Unreadable "unreadable";

    last:
    [base]
    /// Signals between the pool's threads and their callers.
    Work "signals";
    /// Jobs of the threads that read ahead.
    Jobs "jobs";
    /// Buffers that are kept.
    Buffers "buffers";
    [log]
    /// Batches that wait for a writer thread.
    LogQueue "queue";
    [objects]
    /// Tails of the logs of a file system above.
    LogTails "log tails";
    [space]
    /// Extents owed to the file system.
    Unpunched "unpunched";
    /// Throttled writers wait with it.
    Easing "easing";
    [codecs]
    /// The trace of choices.
    Trace "trace";
    /// Dictionaries that recently could not be read.
    UnreadableDictionaries "unreadable dictionaries";
    /// The speed of the device.
    Device "device";
    /// The demand of writers.
    Demand "demand";
    [read]
    /// Places of suspected damage.
    Suspicion "suspects";
    /// Groups of images being fetched.
    Images "images";
    /// When parts of images were read.
    ImagesUsed "images used";
    /// Streams of reads of a volume.
    ReadAhead "read ahead";
    [write]
    /// Parts that were compressed before a flush.
    Ahead "ahead";
    [clean]
    /// Damage that cleaning could not move.
    Damages "damages";
    [volume]
    /// Opened trees of shares.
    TreeClaims "tree claims";
    [repair]
    /// The last report of damage.
    DamageReported "damage reported";
    /// Damage that the opening has repaired.
    Mended "mended";
    /// Corrections by the opening.
    OpeningNotes "opening notes";
    /// Losses by repairs.
    Losses "losses";
    /// State in which the standby memory was found.
    StandbyFacts "standby facts";
}
