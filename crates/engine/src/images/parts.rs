//! The parts of a pool that volumes backed by images need.

use std::sync::Arc;

use store::base::signals::Signals;
use store::base::vitals::Vitals;
use store::map::Map;
use store::map::apply::Applier;
use store::objects::Objects;
use store::space::Space;

use crate::fetch::Fetches;
use crate::read::Reads;

/// Creates images, and fetches the rest of them. Any thread may call it.
pub(crate) struct Images {
    pub(super) vitals: Arc<Vitals>,
    pub(super) map: Arc<Map>,
    pub(super) objects: Arc<Objects>,
    pub(super) space: Arc<Space>,
    pub(super) reads: Arc<Reads>,
    pub(super) fetches: Arc<Fetches>,
    pub(super) signals: Arc<Signals>,
}

impl Images {
    pub(crate) fn new(
        (vitals, applier, space): (Arc<Vitals>, &Applier, Arc<Space>),
        (reads, fetches, signals): (Arc<Reads>, Arc<Fetches>, Arc<Signals>),
    ) -> Self {
        Self { vitals, map: applier.map.clone(), objects: applier.objects.clone(), space, reads, fetches, signals }
    }
}
