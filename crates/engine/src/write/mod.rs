//! From an accepted write to a batch in the log. Volumes call it with writes that `make_room` has
//! admitted and that their quota allows (`quota`).
//!
//! 1. A write waits for room in the write buffer and in the standby memory (`room`), and is put
//!    there. **Here the write is acknowledged.**
//! 2. A drain takes the oldest groups, compresses their units, and appends one batch (`drain`).
//!    Workers do it as the buffer fills, a flush does it for all earlier writes, and in a pool that
//!    is bound by flushes a worker does a part of it ahead (`precompress`).
//! 3. When the batch is applied, the groups leave the buffer.
//! 4. A flush drains everything and syncs the log (`room`). **Here it is acknowledged.**
//!
//! New objects with content come into the log by themselves (`whole_object`).

pub(crate) mod drain;
pub(crate) mod precompress;
pub(crate) mod quota;
pub(crate) mod room;
pub(crate) mod whole_object;
pub(crate) mod write_heat;
