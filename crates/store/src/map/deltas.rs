//! Deltas, as light checkpoints left them in the map store: reads them all, and lays them over each
//! other. `checkpoint` writes and removes them.

use std::ops::ControlFlow;

use env::MapStore;
use format::{decode_delta, delta_key_range, parse_delta_key};
use surface::Result;

use crate::base::group::GroupKey;
use crate::base::store_error::store_error;
use crate::map::overlay::Overlay;

/// All deltas of a store.
pub struct Deltas {
    /// Their changes, one laid over the other.
    pub settled: Overlay,
    /// Their numbers: of the checkpoint, and of the part of it.
    pub keys: Vec<(u64, u32)>,
}

/// Reads the deltas of a store; there must be `expected` of them. Only the log has their content
/// otherwise. The inner error describes the damage.
///
/// # Errors
/// Those of the store.
pub fn read_deltas(store: &dyn MapStore, expected: u32) -> Result<std::result::Result<Deltas, String>> {
    let mut deltas = Deltas { settled: Overlay::default(), keys: Vec::new() };
    let mut failure = None;
    let (from, to) = delta_key_range();
    store
        .scan(from, to, &mut |key, value| match (parse_delta_key(key), decode_delta(value)) {
            (Some(id), Ok(changes)) => {
                deltas.keys.push(id);
                for (key, change) in changes {
                    let group = GroupKey { object: key.object, group: key.group };
                    deltas.settled.change(group, key.epoch, |record| record.absorb(&change, &mut |_| ()));
                }
                ControlFlow::Continue(())
            }
            (_, Err(error)) => {
                failure = Some(format!("a delta is damaged ({error})"));
                ControlFlow::Break(())
            }
            (None, _) => ControlFlow::Continue(()),
        })
        .map_err(store_error)?;
    let found = deltas.keys.len();
    if failure.is_none() && found != expected as usize {
        failure = Some(format!("{found} deltas lie over the map records, expected {expected}"));
    }
    Ok(failure.map_or(Ok(deltas), Err))
}
