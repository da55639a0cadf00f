//! Other users of a tree while a copy changes it: those of its mount. The copy reports its changes
//! to them, and asks them what it may not do.

use std::sync::Arc;

use share::Tree;
use surface::Result;

/// A name that a node was given.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The node of the directory.
    pub directory: u64,
    /// Whether the copy has made that directory.
    pub is_in_new: bool,
    /// The name.
    pub name: &'a [u8],
    /// Path from the root of the tree, with the name.
    pub path: &'a [u8],
    /// The node that had the name before.
    pub replaced: Option<u64>,
}

/// See the module's text. Called by the thread that copies.
pub trait Others {
    /// Begins a step, which may change the tree until [`Self::end_step`].
    ///
    /// # Errors
    /// When no change is accepted now.
    fn begin_step(&self) -> share::Result<()> {
        Ok(())
    }

    /// Ends a step.
    fn end_step(&self) {}

    /// Returns the error number with which an extended attribute is refused, if it is.
    fn refusal_of_xattr(&self, _name: &[u8]) -> Option<i32> {
        None
    }

    /// A node has got a name.
    fn named(&self, _named: Named<'_>) {}

    /// The attributes of a node have changed, or its number of names.
    fn changed(&self, _node: u64) {}

    /// A node has lost a name: removes it if it has no other name and no user.
    ///
    /// # Errors
    /// Those of the tree.
    fn lost_name(&self, node: u64) -> share::Result<()>;

    /// Returns when others see every reported change. Not within a step.
    ///
    /// # Errors
    /// When they may not.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}

/// A tree without other users.
pub struct NoOthers(pub Arc<Tree>);

impl Others for NoOthers {
    fn lost_name(&self, node: u64) -> share::Result<()> {
        self.0.forget(node)
    }
}
