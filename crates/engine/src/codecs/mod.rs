//! Which codec a unit gets, and what that choice rests on. Owns what a pool has learned: costs,
//! regions, pressure, samples and dictionaries. Drains ask it for each unit, the cleaner and the
//! recompression for each unit that they compress anew; the decisions are those of the crate
//! `policy`.
//!
//! 1. A unit comes with what its writer says of it (`hints`).
//! 2. With a codec that the properties name, it is compressed at once (`compress`).
//! 3. With `auto`, `chooser` joins all knowledge of such data (`costs`), of its region (`regions`),
//!    and of what writers wait for (`pressure`), and lets the policy decide.
//! 4. What comes of it is learned, and traced if that is asked for (`trace`).
//! 5. Small units are offered as samples (`samples`), from which dictionaries are trained.
//!    `dictionaries` loads them for units to come, and for readers.

pub(crate) mod chooser;
pub(crate) mod compress;
pub(crate) mod costs;
pub(crate) mod dictionaries;
pub(crate) mod hints;
pub(crate) mod pressure;
pub(crate) mod regions;
pub(crate) mod samples;
pub(crate) mod trace;
