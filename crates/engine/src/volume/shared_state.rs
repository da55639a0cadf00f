//! The state that the volumes of a pool share. Owns it; any thread may use it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use store::base::ranked::RwLock;
use store::base::ranks;

use crate::volume::claims::Claims;

/// See the module.
#[derive(Default)]
pub(crate) struct Volumes {
    /// Opened trees of shares.
    pub(super) tree_claims: Arc<Claims>,
    /// Held shared while a large range is made a hole past the write buffer; exclusively, for a
    /// moment, by a thread that relies on there being none.
    pub punching: RwLock<(), ranks::Punching>,
    /// Large ranges that were made holes.
    pub punches: AtomicU64,
}
