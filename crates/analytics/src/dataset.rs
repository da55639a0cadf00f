//! The datasets: names, units, and the breakdowns that each has. Owns the table of them.

/// How values of neighbouring steps combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Amounts, which add up.
    Sum,
    /// A level, of which a step has the mean, the least and the most.
    Gauge,
}

/// The unit of a dataset's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Operations, units or other things that are counted.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Ns,
}

impl Unit {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Ns => "ns",
        }
    }
}

/// A dataset, by its number in frames on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dataset(u8);

struct About {
    name: &'static str,
    unit: Unit,
    shape: Shape,
    /// Breakdowns besides `object`, in the order of a key's labels.
    labels: &'static [&'static str],
    of_objects: bool,
    text: &'static str,
}

const fn sum(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    of_objects: bool,
    text: &'static str,
) -> About {
    About { name, unit, shape: Shape::Sum, labels, of_objects, text }
}

const fn gauge(
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    of_objects: bool,
    text: &'static str,
) -> About {
    About { name, unit, shape: Shape::Gauge, labels, of_objects, text }
}

/// Appended to only: a dataset's number is its place here.
const ABOUT: [About; 24] = [
    sum("ops", Unit::Count, &["operation", "door"], true, "operations of clients"),
    sum("bytes", Unit::Bytes, &["operation", "door"], true, "bytes that clients read, wrote and discarded"),
    sum("time", Unit::Ns, &["operation", "door"], true, "time that clients' operations took"),
    sum("latency", Unit::Count, &["operation", "door", "bucket"], false, "operations by duration"),
    sum("codec.units", Unit::Count, &["codec"], true, "units compressed, by the codec that they are stored with"),
    sum("codec.raw", Unit::Bytes, &["codec"], true, "bytes written, before compression"),
    sum("codec.stored", Unit::Bytes, &["codec"], true, "bytes written, after compression"),
    sum("codec.cpu", Unit::Ns, &["codec", "direction"], true, "CPU time of compression and decompression"),
    sum("decoded.raw", Unit::Bytes, &["codec"], true, "bytes that reads decompressed, after decompression"),
    sum("decoded.stored", Unit::Bytes, &["codec"], true, "bytes that reads decompressed, as stored"),
    sum("disk.written", Unit::Bytes, &["cause"], false, "bytes written to disk"),
    sum("disk.read", Unit::Bytes, &["cause"], false, "bytes read from the data file"),
    sum("cpu", Unit::Ns, &["who"], false, "CPU time of the server and of the machine"),
    gauge("capacity", Unit::Bytes, &["part"], false, "space of the pool"),
    gauge("objects", Unit::Bytes, &["part"], true, "space of volumes and shares"),
    sum("cache", Unit::Count, &["result"], true, "units that reads found in memory or had to read"),
    sum("work", Unit::Count, &["kind"], false, "checkpoints, flushes, syncs, cleaned extents, refused writes"),
    sum("choices", Unit::Count, &["why"], false, "units by the reason of their codec"),
    gauge("memory", Unit::Bytes, &["kind"], false, "memory of the server and of the machine"),
    sum("network", Unit::Bytes, &["interface", "direction"], false, "bytes on network interfaces"),
    sum(
        "device",
        Unit::Ns,
        &["state"],
        false,
        "time that the device below the data file was busy, and requests waited",
    ),
    gauge("jobs", Unit::Count, &["kind"], false, "jobs under way"),
    sum(
        "errors",
        Unit::Count,
        &["kind", "door"],
        true,
        "operations on volumes, and on the data of shares, that failed",
    ),
    sum(
        "disk.bytes",
        Unit::Bytes,
        &["codec"],
        false,
        "bytes written to disk by the codec of new data; 'moved': rewritten data, 'other': headers and the map",
    ),
];

/// All datasets.
pub const DATASETS: [Dataset; ABOUT.len()] = {
    let mut all = [Dataset(0); ABOUT.len()];
    let mut number = 0;
    while number < all.len() {
        all[number] = Dataset(number as u8);
        number += 1;
    }
    all
};

impl Dataset {
    /// Operations of clients.
    pub const OPS: Self = Self(0);
    /// Bytes of clients.
    pub const BYTES: Self = Self(1);
    /// Time of clients' operations.
    pub const TIME: Self = Self(2);
    /// Operations by duration.
    pub const LATENCY: Self = Self(3);
    /// Units compressed.
    pub const CODEC_UNITS: Self = Self(4);
    /// Bytes before compression.
    pub const CODEC_RAW: Self = Self(5);
    /// Bytes after compression.
    pub const CODEC_STORED: Self = Self(6);
    /// CPU time by codec.
    pub const CODEC_CPU: Self = Self(7);
    /// Bytes after decompression.
    pub const DECODED_RAW: Self = Self(8);
    /// Bytes before decompression.
    pub const DECODED_STORED: Self = Self(9);
    /// Bytes written to disk.
    pub const DISK_WRITTEN: Self = Self(10);
    /// Bytes read from the data file.
    pub const DISK_READ: Self = Self(11);
    /// CPU time of server and machine.
    pub const CPU: Self = Self(12);
    /// Space of the pool.
    pub const CAPACITY: Self = Self(13);
    /// Space of volumes and shares.
    pub const OBJECTS: Self = Self(14);
    /// Units found in memory or not.
    pub const CACHE: Self = Self(15);
    /// Work of the pool.
    pub const WORK: Self = Self(16);
    /// Units by the reason of their codec.
    pub const CHOICES: Self = Self(17);
    /// Memory.
    pub const MEMORY: Self = Self(18);
    /// Network.
    pub const NETWORK: Self = Self(19);
    /// Time of the device.
    pub const DEVICE: Self = Self(20);
    /// Jobs under way.
    pub const JOBS: Self = Self(21);
    /// Operations that failed.
    pub const ERRORS: Self = Self(22);
    /// Bytes written to disk by codec.
    pub const DISK_BYTES: Self = Self(23);

    const fn about(self) -> &'static About {
        &ABOUT[self.0 as usize]
    }

    /// The dataset of a number, if there is one.
    pub const fn by_number(number: u8) -> Option<Self> {
        if (number as usize) < ABOUT.len() { Some(Self(number)) } else { None }
    }

    /// The dataset of a name, if there is one.
    pub fn by_name(name: &str) -> Option<Self> {
        DATASETS.into_iter().find(|dataset| dataset.name() == name)
    }

    /// Its number in frames.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    /// The unit of its values.
    pub const fn unit(self) -> Unit {
        self.about().unit
    }

    /// How its values combine.
    pub const fn shape(self) -> Shape {
        self.about().shape
    }

    /// Breakdowns besides `object`, in the order of a key's labels.
    pub const fn labels(self) -> &'static [&'static str] {
        self.about().labels
    }

    /// Whether it has the breakdown `object`.
    pub const fn has_objects(self) -> bool {
        self.about().of_objects
    }

    /// One line for users.
    pub const fn text(self) -> &'static str {
        self.about().text
    }

    /// All breakdowns.
    pub fn breakdowns(self) -> Vec<&'static str> {
        let object = self.has_objects().then_some("object");
        self.labels().iter().copied().chain(object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_constants_name_their_rows() {
        for (number, dataset) in DATASETS.into_iter().enumerate() {
            assert_eq!(Dataset::by_name(dataset.name()), Some(dataset), "{} occurs twice", dataset.name());
            assert_eq!((dataset.number() as usize, Dataset::by_number(number as u8)), (number, Some(dataset)));
        }
        assert_eq!(Dataset::by_number(ABOUT.len() as u8), None);
        let named = [
            (Dataset::OPS, "ops"),
            (Dataset::LATENCY, "latency"),
            (Dataset::CODEC_STORED, "codec.stored"),
            (Dataset::DECODED_STORED, "decoded.stored"),
            (Dataset::CAPACITY, "capacity"),
            (Dataset::WORK, "work"),
            (Dataset::JOBS, "jobs"),
            (Dataset::ERRORS, "errors"),
            (Dataset::DISK_BYTES, "disk.bytes"),
        ];
        named.iter().for_each(|(dataset, name)| assert_eq!(dataset.name(), *name));
    }
}
