//! A store against a plain list of seconds, with crashes, damage, full disks and odd clocks. The
//! file is in memory.

mod disk;
mod life;
mod size;
