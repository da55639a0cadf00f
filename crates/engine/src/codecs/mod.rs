//! Which codec a unit gets, and what that choice rests on: costs, regions, pressure, dictionaries, samples.

pub(crate) mod chooser;
pub(crate) mod compress;
pub(crate) mod costs;
pub(crate) mod dictionaries;
pub(crate) mod hints;
pub(crate) mod pressure;
pub(crate) mod regions;
pub(crate) mod samples;
pub(crate) mod trace;
