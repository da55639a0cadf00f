//! Databases written elsewhere: the space came in a stream, and all its checksums can be valid,
//! because the creator of the stream computed them, too. `redb` trusts the pages that it reads: a wrong list
//! of free pages would make it overwrite pages in use, and a page that contradicts itself would end
//! the program.
//!
//! So none of its pages is used. A space has a *seal*, a separate file that certifies that
//! everything in its database was written by this pool, and transfers of spaces omit it ([`SEAL`]).
//! Without the seal, the database is opened in these steps:
//!
//! 1. All tables are read by `redb`, contained and bounded (`reading`), into a new database in the
//!    other of the two files. If anything cannot be read, that is an error, and a repair of the
//!    share determines the loss.
//! 2. The new database becomes current when it is durable, and the old one is discarded.
//! 3. The seal is set.
//!
//! A crash in between leaves a database without a seal, with all names unchanged.

use std::sync::Arc;

use bytes::Bytes;
use surface::{ObjectSpace, SEAL};

use crate::backend::read_header;
use crate::failure::{Failure, Result};
use crate::tree::{Options, copy_database};

const MAGIC: [u8; 8] = *b"SHLSEAL1";
const BLOCK_BYTES: usize = 4096;

/// Whether a space has the seal. An unreadable one does not count as one.
pub(crate) fn is_sealed(space: &dyn ObjectSpace) -> bool {
    let mut begin = [0; MAGIC.len()];
    space.read(SEAL, 0, &mut begin).is_ok() && begin == MAGIC
}

/// Sets the seal, which is durable with the next flush.
///
/// # Errors
/// Those of the space.
pub(crate) fn seal(space: &dyn ObjectSpace) -> Result<()> {
    let mut block = MAGIC.to_vec();
    block.resize(BLOCK_BYTES, 0);
    Ok(space.write(SEAL, 0, Bytes::from(block))?)
}

/// Replaces the database of a space without a seal by one of this pool.
///
/// # Errors
/// `ENOENT` if there is none; `EIO` if something in it cannot be read; those of the space.
pub(crate) fn adopt(space: &Arc<dyn ObjectSpace>, options: Options) -> Result<()> {
    let (_, length) = read_header(&**space)?.ok_or(Failure::new(libc::ENOENT))?;
    // Unless it was never written to.
    if length > 0 {
        let is_usable = |survey: &crate::reading::Survey| !survey.is_lossy() && !survey.contradicts_itself;
        let survey = copy_database(space, options, [0, 0], is_usable)?;
        if !is_usable(&survey) {
            return Err(Failure::damaged(format_args!("it was written elsewhere, and some of its pages are invalid")));
        }
        log::info!("the names of a share were written elsewhere: copied {} records", survey.pairs);
    }
    seal(&**space)
}
