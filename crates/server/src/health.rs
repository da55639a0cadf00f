//! The health of a pool, in one word and one line, derived only from the figures of its status.

use report::{ImageLine, StatusReport};

/// From here on a pool counts as nearly full: cleaning becomes more expensive, and there is still
/// time to act.
pub const NEARLY_FULL_PERCENT: f64 = crate::fullness::LEVELS[0] as f64;
/// Share of the capacity, in percent, that must be free in the file system below. A pool that
/// promises more than is left there is nearly full, however little data it has.
const LEFT_BELOW_PERCENT: f64 = 5.0;

/// A condition of a pool, the worst first. The names are a promise to scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Writes are refused.
    Failed,
    /// Some data is unreadable.
    Damaged,
    /// A share could not be mounted.
    Unserved,
    /// The image of a volume is damaged in its store.
    ImageDamaged,
    /// The image of a volume is not in its store any more.
    ImageGone,
    /// A repair has dropped data, and that was not acknowledged yet.
    Loss,
    /// There is no space for new data.
    Full,
    /// Volumes whose imports did not complete.
    Incomplete,
    /// Space for new data is nearly used up.
    NearlyFull,
    /// It is being scrubbed.
    Scrubbing,
    /// No condition.
    Ok,
}

impl Health {
    /// Returns the name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Damaged => "damaged",
            Self::Unserved => "share-unserved",
            Self::ImageDamaged => "image-damaged",
            Self::ImageGone => "image-gone",
            Self::Loss => "recovered-with-loss",
            Self::Full => "full",
            Self::Incomplete => "incomplete",
            Self::NearlyFull => "nearly-full",
            Self::Scrubbing => "scrubbing",
            Self::Ok => "ok",
        }
    }

    /// Returns the advice for it; empty if no action is needed.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Failed => {
                "Read the log of the server, then restart the server: opening the pool recovers acknowledged data."
            }
            Self::Damaged => {
                "Restore the damaged data from a snapshot or a backup, or overwrite it. Then acknowledge the damage."
            }
            Self::Unserved => "Open the share: its first line has the reason why it is not mounted.",
            Self::ImageDamaged => "Restore the image in its store, or push another version of it.",
            Self::ImageGone => "Restore the image in its store: parts that were not fetched yet are unreadable.",
            Self::Loss => "Compare the lost data with a backup, then acknowledge the loss.",
            Self::Full => "Destroy snapshots or volumes, trim mounted file systems, clean, or enlarge the pool.",
            Self::Incomplete => "Repeat the import or the receive: it resumes at the point where it stopped.",
            Self::NearlyFull => "Destroy or discard data, clean, or enlarge the pool before writes are refused.",
            Self::Scrubbing | Self::Ok => "",
        }
    }
}

/// Returns all conditions, the worst first, each with its message. Never empty.
pub fn assess(s: &StatusReport) -> Vec<(Health, String)> {
    let mut found = Vec::new();
    if s.failed.is_some() {
        found.push((Health::Failed, "FAILED: writes are refused".to_owned()));
    }
    let damages = s.damages.len() as u64 + s.damages_unlisted;
    if damages > 0 {
        let places = if damages == 1 { "1 place" } else { &format!("{damages} places") };
        found.push((Health::Damaged, format!("DAMAGED in {places}")));
    }
    match &s.unserved_shares[..] {
        [] => {}
        [one] => found.push((Health::Unserved, format!("SHARE '{}' IS NOT SERVED", one.share))),
        more => found.push((Health::Unserved, format!("{} SHARES ARE NOT SERVED", more.len()))),
    }
    let damaged: Vec<String> = s.images.iter().filter(|image| image.damaged).map(ImageLine::address).collect();
    match &damaged[..] {
        [] => {}
        [one] => found.push((Health::ImageDamaged, format!("THE IMAGE {one} IS DAMAGED in its store"))),
        more => found.push((Health::ImageDamaged, format!("{} IMAGES ARE DAMAGED in their stores", more.len()))),
    }
    let gone: Vec<String> = s.images.iter().filter(|image| image.gone).map(ImageLine::address).collect();
    match &gone[..] {
        [] => {}
        [one] => found.push((Health::ImageGone, format!("THE IMAGE {one} IS GONE from its store"))),
        more => found.push((Health::ImageGone, format!("{} IMAGES ARE GONE from their stores", more.len()))),
    }
    if !s.losses.is_empty() {
        found.push((Health::Loss, "RECOVERED WITH LOSS".to_owned()));
    }
    if s.full {
        let why = if s.short_below { " (the file system below has too little space)" } else { "" };
        found.push((Health::Full, format!("FULL: new data is refused{why}")));
    }
    // The data of an import under way is on its way.
    let incomplete: Vec<_> = s.left_incomplete().collect();
    match &incomplete[..] {
        [] => {}
        [one] => found.push((Health::Incomplete, format!("'{one}' is incomplete"))),
        more => found.push((Health::Incomplete, format!("{} volumes or snapshots are incomplete", more.len()))),
    }
    if s.used_percent >= NEARLY_FULL_PERCENT && !s.full {
        found.push((Health::NearlyFull, format!("nearly full ({:.0} %)", s.used_percent)));
    }
    let is_short = s.short_below && percent(s.available_bytes, s.capacity_bytes) < LEFT_BELOW_PERCENT;
    if is_short && s.used_percent < NEARLY_FULL_PERCENT && !s.full {
        let left = units::format_size(s.available_bytes);
        found.push((Health::NearlyFull, format!("nearly full: the file system below has {left} left")));
    }
    if s.scrub.running {
        found.push((
            Health::Scrubbing,
            format!("scrubbing ({:.0} % done)", percent(s.scrub.bytes_done, s.scrub.bytes_total)),
        ));
    }
    if found.is_empty() {
        found.push((Health::Ok, "ok".to_owned()));
    }
    found
}

/// Returns the worst condition.
pub fn worst(s: &StatusReport) -> Health {
    assess(s).into_iter().map(|(health, _)| health).min().unwrap_or(Health::Ok)
}

/// Returns `part` in percent of `whole`; 100 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { 100.0 * part.min(whole) as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{JobKind, JobReport, LossLine, ScrubLine, UnservedLine};

    #[test]
    fn the_worst_comes_first_and_nothing_is_left_out() {
        let mut s = StatusReport::default();
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::Ok, "ok"));
        s.scrub = ScrubLine { running: true, bytes_done: 1, bytes_total: 4, ..ScrubLine::default() };
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::Scrubbing, "scrubbing (25 % done)"));
        (s.capacity_bytes, s.available_bytes, s.short_below) = (1 << 30, 7 << 20, true);
        let left = "nearly full: the file system below has 7 MiB left";
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::NearlyFull, left));
        s.available_bytes = 1 << 29;
        assert_eq!(worst(&s), Health::Scrubbing);
        s.used_percent = NEARLY_FULL_PERCENT;
        assert_eq!(worst(&s), Health::NearlyFull);
        s.incomplete = vec!["vm".to_owned()];
        assert_eq!(worst(&s), Health::Incomplete);
        s.jobs = vec![JobReport { kind: JobKind::Import, ..JobReport::sample() }];
        assert_eq!(worst(&s), Health::NearlyFull, "the import is under way");
        s.jobs[0].target = Some("another".to_owned());
        assert_eq!(worst(&s), Health::Incomplete);
        s.full = true;
        assert_eq!(worst(&s), Health::Full);
        s.losses = vec![LossLine { unix_s: 1, text: "batch 7".to_owned() }];
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::Loss, "RECOVERED WITH LOSS"));
        let image = ImageLine {
            image: "file:///b".to_owned(),
            version: 3,
            volumes: vec!["vm".to_owned()],
            size_bytes: 1,
            local_bytes: 0,
            stored_bytes: 0,
            fetched_groups: 0,
            fetched_bytes: 0,
            failures: 1,
            last_error: None,
            gone: true,
            damaged: false,
            waiting: 0,
            lacks_room: false,
            complete: false,
        };
        s.images = vec![ImageLine { gone: false, ..image.clone() }];
        assert_eq!(worst(&s), Health::Loss, "an image that is there");
        s.images.push(image);
        let gone = "THE IMAGE file:///b@3 IS GONE from its store";
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::ImageGone, gone));
        s.images[0].damaged = true;
        let damaged = "THE IMAGE file:///b@3 IS DAMAGED in its store";
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::ImageDamaged, damaged));
        let why = "its tree cannot be opened".to_owned();
        s.unserved_shares = vec![UnservedLine { share: "home".to_owned(), why }];
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::Unserved, "SHARE 'home' IS NOT SERVED"));
        s.damages_unlisted = 2;
        assert_eq!((worst(&s), assess(&s)[0].1.as_str()), (Health::Damaged, "DAMAGED in 2 places"));
        s.failed = Some("no".to_owned());
        let all: Vec<_> = assess(&s).into_iter().map(|(health, _)| health.name()).collect();
        let expected = [
            "failed",
            "damaged",
            "share-unserved",
            "image-damaged",
            "image-gone",
            "recovered-with-loss",
            "full",
            "incomplete",
        ];
        assert_eq!((&all[..8], &all[8..]), (&expected[..], &["scrubbing"][..]));
    }
}
