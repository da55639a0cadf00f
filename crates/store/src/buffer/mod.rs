//! Written blocks that are in no batch yet. Owns the write buffer, and the standby memory that
//! keeps a second copy of its content in case the process dies. Does not know where blocks go. Any
//! thread may call it; only a flush waits here, until the drains of other threads are done.
//!
//! 1. A write or a discard enters a run of blocks (`write_buffer`), with a record of it in the ring
//!    (`standby`) if there is one.
//! 2. A drain takes groups out (`write`), and the log reports them as completed or failed.

pub mod sorted;
pub mod standby;
pub mod write_buffer;
