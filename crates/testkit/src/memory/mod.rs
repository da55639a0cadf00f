//! Devices in memory, for front ends that are tested without an engine behind them.

mod chunks;
mod device;
mod gate;
mod op;
mod set;

pub use device::Memory;
pub use gate::Gate;
pub use op::Op;
pub use set::MemorySet;
