//! Databases written elsewhere: the space came in a stream, and all its checksums can be valid,
//! because the creator of the stream computed them, too. `redb` records the free pages in the
//! database, and trusts that: a wrong list would make it overwrite pages in use, or end the
//! program.
//!
//! So none of `redb`'s internal data is accepted. A space has a *seal*, a separate file that
//! certifies that all such lists in it were written by this pool, and transfers of spaces omit it
//! ([`SEAL`]). Without the seal, the database is opened in these steps:
//!
//! 1. All pages of the names are read, with their checksums: none may be used twice, and the tables
//!    must have the depth and length that they record.
//! 2. The head is rewritten. It refers to the table of the tables and to no table of `redb`'s own,
//!    and requests `redb`'s repair, which counts the pages in use.
//! 3. The seal is set once the repaired database is durable.
//!
//! A crash in between leaves a database without a seal, with all names unchanged.

use bytes::Bytes;
use surface::{ObjectSpace, SEAL};

use crate::backend::Backend;
use crate::failure::{Failure, Result};
use crate::overlay::Table;
use crate::pages::{self, Take};

const MAGIC: [u8; 8] = *b"SHLSEAL1";
const BLOCK_BYTES: usize = 4096;

/// A database of at most this many bytes is not truncated after its last page.
const BYTES_MIN: u64 = 4 << 20;

/// Limit for the end of the last page of a database: `redb` allocates memory for everything before
/// it.
const BYTES_MAX: u64 = 1 << 40;

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

/// Ignores everything.
struct Nothing;

impl Take for Nothing {
    type Error = std::convert::Infallible;

    fn pair(&mut self, _: Table, _: &[u8], _: &[u8]) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    fn fact(&mut self, _: &str, _: u64) {}
}

/// Steps 1 and 2, before `redb` sees the database.
///
/// # Errors
/// `EIO` if the names are damaged; those of the space.
pub(crate) fn forget_free_pages(space: &dyn ObjectSpace, backend: &Backend) -> Result<()> {
    let length = backend.facts().length();
    if length == 0 {
        // It was never written to.
        return Ok(());
    }
    let Ok(survey) = pages::survey(space, &mut Nothing);
    let place = backend.place();
    let head = pages::bare_head(space, place).filter(|_| !survey.is_lossy() && !survey.contradicts_itself);
    let Some(head) = head.filter(|_| survey.end <= BYTES_MAX) else {
        return Err(Failure::damaged(format_args!("it was written elsewhere, and some of its pages are invalid")));
    };
    log::info!("the names of a share were written elsewhere: recounting their {} pages", survey.pages);
    Ok(backend.initialize(head, survey.end.saturating_mul(2).max(BYTES_MIN).min(length))?)
}
