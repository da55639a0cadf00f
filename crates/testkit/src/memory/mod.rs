//! In-memory devices, for front ends tested without an engine.

mod chunks;
mod device;
mod gate;
mod op;
mod set;

pub use device::Memory;
pub use gate::Gate;
pub use op::Op;
pub use set::MemorySet;
