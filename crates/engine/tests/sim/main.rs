//! The engine on simulated machines: against the model, through crashes, on media and file systems
//! that fail. One binary, so that the harness is compiled once, and the tests share the processors
//! to the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod amplification;
mod auto;
mod below;
mod bookmarks;
mod cleaning;
mod cold;
mod combined_damage;
mod common;
mod concerned;
mod copies;
mod corruption;
mod crash;
mod cut;
mod damages;
mod dictionaries;
mod dictionaries_by_type;
mod dictionary_crashes;
mod faults;
mod figures;
mod folders;
mod folding;
mod history;
mod image_runs;
mod image_streams;
mod image_waits;
mod image_world;
mod images;
mod incomplete;
mod last_room;
mod limits;
mod loss;
mod mend;
mod mend_identities;
mod mend_lossy;
mod model;
mod openings;
mod pages;
mod reading;
mod receive_limits;
mod recompress;
mod redundancy;
mod salvage;
mod salvage_files;
mod salvage_truth;
mod send;
mod shares;
mod shrink;
mod sort;
mod standby_damage;
