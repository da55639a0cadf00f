//! A store against a plain list of seconds, with crashes, damage, full disks and odd clocks. The
//! file is in memory.

#![allow(clippy::unwrap_used, clippy::panic)]

mod clock;
mod disk;
mod life;
mod size;
