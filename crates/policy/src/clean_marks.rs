//! The marks of free space at which a pool cleans in the background: the properties `clean-low` and
//! `clean-high`.

/// Free space of a pool, in thousandths, below which the background cleaner begins with the cheap
/// extents, and at which it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanMarks {
    /// It begins below this.
    pub low_permille: u32,
    /// It stops at this; more than `low_permille` once [`check_pool`](crate::check_pool) has passed.
    pub high_permille: u32,
}

impl Default for CleanMarks {
    fn default() -> Self {
        // The marks of the paper of 2010.
        Self { low_permille: 100, high_permille: 250 }
    }
}
