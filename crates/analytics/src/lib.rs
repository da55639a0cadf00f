//! History of a pool's figures: each second of two hours, each 10 s of a week, each 5 minutes of
//! 400 days, in a database of its own.
//!
//! [`Dataset`]s name the figures, [`Frame`]s hold a span of them in columns, the [`Store`] keeps
//! frames of three [`Tier`]s in one table and answers queries.
//!
//! No thread and no clock lives here: a caller passes each second's samples with their time. One
//! caller at a time; nothing that a client of the pool waits for may hold a store. Loss of the
//! database loses history and nothing else.

mod columns;
mod database;
mod dataset;
mod encoding;
mod frame;
mod guarded;
mod marks;
mod query;
mod roll;
mod store;
mod tier;

pub use dataset::{DATASETS, Dataset, Shape, Unit};
pub use encoding::DecodeError;
pub use frame::{Frame, Key, OTHER, Point};
pub use marks::{MARK_BYTES_MAX, Mark, WORKSHEET_BYTES_MAX, WORKSHEETS_MAX};
pub use query::{POINTS_MAX, Query, QueryError, SERIES_MAX};
pub use store::{Sample, Store, StoreHealth};
pub use tier::Tier;
