//! Policy: pure functions from facts to decisions. Does no I/O, reads no clock, keeps no state. Owns the properties that
//! users set and what they mean; compressing itself is the codec's business.

mod properties;
mod units_plan;
mod zero;

pub use properties::{KEYS, Key, PropertyError, Resolved, ResolvedProperty, Settings, Source, check_property, resolve};
pub use units_plan::{Unit, dst_limit, plan_units};
pub use zero::is_zero;
