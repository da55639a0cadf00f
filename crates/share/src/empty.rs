//! The content of a new share: an empty tree, built in memory, so that the owner of the space can
//! create all of it atomically.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use surface::{Allocation, Capacity, Error, ErrorKind, ObjectSpace, Result, Run};

use crate::scratch::Scratch;
use crate::tree::{Options, Tree};

/// A space without content.
struct Nothing;

impl ObjectSpace for Nothing {
    fn read(&self, _: u64, _: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: u64, _: Bytes) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly, "a space that stays empty was written to"))
    }

    fn discard(&self, _: u64, _: Range<u64>) -> Result<()> {
        Ok(())
    }

    fn discard_files(&self, _: Range<u64>) -> Result<()> {
        Ok(())
    }

    fn finish_discards(&self) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocation(&self, _: u64, _: u64, length: u64, _: usize) -> Result<Vec<Run>> {
        Ok(vec![Run { length, allocation: Allocation::Hole }])
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(Capacity { total_bytes: 0, free_bytes: 0 })
    }

    fn admit(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn set_aside(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn own_room(&self) -> u64 {
        u64::MAX
    }
}

impl Tree {
    /// Returns the blocks of a space with an empty tree and nothing else: file, offset in bytes, 4
    /// KiB of content. The tree is closed. `secret`: a random number.
    ///
    /// # Errors
    /// Only if the tree cannot be built in memory.
    pub fn empty(secret: u64, options: Options) -> crate::Result<Vec<(u64, u64, Bytes)>> {
        let space = Arc::new(Scratch::over(Arc::new(Nothing)));
        let tree = Self::create(space.clone(), secret, options)?;
        tree.close()?;
        drop(tree);
        Ok(space.blocks())
    }
}
