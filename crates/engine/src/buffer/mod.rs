//! Written blocks that are not in a batch yet. Owns the write buffer, and the standby memory that
//! keeps its content once more for the death of the process. Does not know where blocks go.
//!
//! 1. A write or a discard enters a run of blocks (`write_buffer`), with a record of it in the ring
//!    (`standby`) if there is one.
//! 2. A drain takes groups out (`write`), and the log gives them back as completed or failed.

pub(crate) mod sorted;
pub(crate) mod standby;
pub(crate) mod write_buffer;
