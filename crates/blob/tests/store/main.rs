//! The blob code on stores in memory that lie, fail or count. One executable for all of it: async
//! code is compiled again for each executable that calls it.

mod commit;
mod crowd;
mod data;
mod failing_store;
mod holes;
mod images;
mod lives;
mod lying_store;
mod nested;
mod requests;
mod scatter;
mod schedules;
mod sessions;
