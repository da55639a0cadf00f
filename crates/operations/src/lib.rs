//! The operations on an open pool: a catalogue of requests with their paths, roles and effects, the
//! replies, their wire form, the names that both use, callers, and failures with their exit codes
//! and HTTP status.
//!
//! No sockets, files or engine here. The server answers the requests; the command line and HTTP
//! make them.

mod about;
mod access;
mod caller;
mod catalogue;
mod estimates;
mod failure;
mod history;
mod images;
mod local;
pub mod names;
mod objects;
mod openapi;
mod reply;
mod rest;
mod schemas;
mod streams;
mod wire;

pub use about::{About, Effect, Method, Reach};
pub use access::{AuditLine, AuditOutcome, NewToken, TokenLine, UserLine};
pub use caller::{Audit, AuditRecord, Caller, Role, Who};
pub use catalogue::{CATALOGUE, Request};
pub use estimates::EstimateWish;
pub use failure::{EXIT_CODES_HELP, Failure, Outcome, code_of, http_status, kind_of, path_error, stop_if};
pub use history::SeriesWish;
pub use images::{ImageAddress, PushWish};
pub use local::LOCAL;
pub use objects::{AnyObject, ListWish, ObjectOrder, ObjectPage, ObjectReport, Which};
pub use openapi::openapi;
pub use reply::{Created, Reply};
pub use rest::{PREFIX, Problem};
pub use streams::{ImportWish, Place, ReceiveWish, Received, SendWish, Sending, SetPlan, SetWish};
pub use wire::{LINE_BYTES_MAX, VERSION, decode_reply, decode_request, encode_reply, encode_request, read_line};
