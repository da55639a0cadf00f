//! All that a pool has of the outside world, in one value. Owns nothing by itself: whoever opens a
//! pool makes it, from real parts or from simulated ones.

use std::sync::Arc;

use crate::{Clock, Disk, Entropy, MapStore, Origins, Standby};

/// The environment of one pool.
#[derive(Clone)]
pub struct PoolEnv {
    /// The data file or block device that holds the log.
    pub disk: Arc<dyn Disk>,
    /// The store that holds the map.
    pub store: Arc<dyn MapStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for identifiers.
    pub entropy: Arc<dyn Entropy>,
    /// Memory that survives the process: it keeps acknowledged data until the log has it. `None`: a
    /// crash of the process loses unflushed data.
    pub standby: Option<Arc<dyn Standby>>,
    /// The connection to images that volumes were cloned from. `None`: groups that have not been
    /// fetched cannot be read.
    pub origins: Option<Arc<dyn Origins>>,
}
