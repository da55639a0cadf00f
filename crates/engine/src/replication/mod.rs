//! Snapshots and their differences as streams, out of one pool and into another. Owns the progress
//! of each stream; its bytes are those of `format`. A thread of a client drives a sender or a
//! receiver, and waits for the disk and for writers' room.
//!
//! 1. A sender compares two states group by group (`send_pages`) and passes fragments on as they
//!    are stored (`send`). A thin stream leaves out data that both pools can fetch from an image
//!    (`thin`).
//! 2. A receiver takes chunk after chunk into an epoch that no point reads (`receive`,
//!    `receive_chunk`), provided that it fits the existing volume (`receive_fit`), and without a
//!    share's seal (`receive_seal`). The descriptor records the progress (`receives`).
//! 3. With the last chunk, one batch makes it visible.

pub(crate) mod parts;
pub(crate) mod receive;
pub(crate) mod receive_chunk;
pub(crate) mod receive_fit;
pub(crate) mod receive_seal;
pub(crate) mod receives;
pub(crate) mod send;
pub(crate) mod send_pages;
pub(crate) mod thin;
