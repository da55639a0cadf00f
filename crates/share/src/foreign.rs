//! A database that was written elsewhere: the space came in a stream, and all checksums in it can
//! be right, for who made the stream made them, too. `redb` keeps in the database which of its
//! pages are free, and trusts that: a wrong list would have it write over pages in use, or end the
//! program.
//!
//! So nothing of what `redb` keeps for itself is taken over. A space has a *seal*, a file of its
//! own that says that all such lists in it are of this pool, and what brings a space from elsewhere
//! leaves that out ([`SEAL`]). Without the seal, opening the database begins like this:
//!
//! 1. All pages of the names are read, with their checksums: none may be used twice, and the tables
//!    must be as deep and as long as they say.
//! 2. The head is written anew. It shows the table of the tables and no table of `redb`'s own, and
//!    asks for `redb`'s repair, which counts the pages in use.
//! 3. The seal is set once the repaired database is durable.
//!
//! A death in between leaves a database without a seal, of which no name has changed.

use bytes::Bytes;
use surface::{ObjectSpace, SEAL};

use crate::backend::Backend;
use crate::failure::{Failure, Result};
use crate::overlay::Table;
use crate::pages::{self, Take};

const MAGIC: [u8; 8] = *b"SHLSEAL1";
const BLOCK_BYTES: usize = 4096;

/// As long as a database has no more bytes, none are cut off behind its last page.
const BYTES_MIN: u64 = 4 << 20;

/// Where the last page of a database ends at most: `redb` takes memory for all before it.
const BYTES_MAX: u64 = 1 << 40;

/// Whether a space has the seal. One that cannot be read is none.
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

/// Takes nothing.
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
        return Err(Failure::damaged(format_args!("it came from elsewhere, and its pages are not all in order")));
    };
    log::info!("the names of a share came from elsewhere: their {} pages are counted anew", survey.pages);
    Ok(backend.begin_anew(head, survey.end.saturating_mul(2).max(BYTES_MIN).min(length))?)
}
