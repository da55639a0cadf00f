//! What a read lacks of an image, and how long it may wait for that. `images` fetches it.

use surface::Error;

use crate::base::group::GroupKey;
use crate::objects::Object;

/// Groups of an image that a request needs and that have not been fetched, or were lost: the cause
/// beneath an error.
#[derive(Debug)]
pub(crate) struct NotHere(pub(crate) Vec<GroupKey>);

impl std::fmt::Display for NotHere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it must be fetched")
    }
}

impl std::error::Error for NotHere {}

impl NotHere {
    /// That which is beneath an error, in whatever context.
    pub(crate) fn beneath(error: &Error) -> Option<&Self> {
        let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
        causes.filter_map(|cause| cause.downcast_ref::<Self>()).next()
    }

    /// Whether there is one.
    pub(crate) fn is_beneath(error: &Error) -> bool {
        Self::beneath(error).is_some()
    }
}

/// How long a fetch may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt.
    Once,
    /// So many seconds; 0: for ever.
    Seconds(u32),
}

impl Patience {
    /// That of the requests of a volume.
    pub(crate) fn of(object: &Object) -> Self {
        Self::Seconds(object.settings.read().remote.timeout_seconds)
    }
}
