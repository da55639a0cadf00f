//! The operations on an open pool: the requests that commands make of it, its replies, their wire
//! form, the names that both use, and failures with their exit codes.
//!
//! No sockets, files or engine here: the server answers these requests, the command line makes
//! them, and other doors of management can be derived from them.

mod failure;
pub mod names;
mod protocol;
mod streams;

pub use failure::{EXIT_CODES_HELP, Failure, Outcome, code_of, kind_of, path_error, stop_if};
pub use protocol::{
    ImageAddress, JobRequest, LINE_BYTES_MAX, PushWish, PushedLine, Reply, Request, SeriesWish, VERSION, decode_reply,
    decode_request, encode_reply, encode_request, read_line,
};
pub use streams::{Place, ReceiveWish, Received, SendWish, Sending, SetPlan, SetWish};
