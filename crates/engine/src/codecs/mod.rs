//! The choice of a codec for each unit, and the statistics that it is based on. Owns everything
//! that a pool has learned: costs, regions, pressure, samples and dictionaries. Drains ask it for
//! each unit, the cleaner and recompression for each unit that they recompress; the decisions are
//! those of the crate `policy`. Any thread may call it.
//!
//! 1. A unit comes with its writer's hints (`hints`).
//! 2. With a codec that the properties name, it is compressed at once (`compress`).
//! 3. With `auto`, `chooser` combines the statistics of such data (`costs`), of its region
//!    (`regions`), and of the bottleneck of writers (`pressure`), and lets the policy decide.
//! 4. The result is learned, and traced on request (`trace`).
//! 5. Small units are offered as samples (`samples`), from which dictionaries are trained.
//!    `dictionaries` loads them for new units and for readers.

pub(crate) mod chooser;
pub(crate) mod compress;
pub(crate) mod costs;
pub(crate) mod dictionaries;
pub(crate) mod hints;
pub(crate) mod pressure;
pub(crate) mod regions;
pub(crate) mod samples;
pub(crate) mod trace;
