//! Compares a tree with the model.

use std::collections::BTreeMap;

use share::Tree;

use crate::model::{BLOCK, Model};

/// Compares a tree with the model; a block of a file may also have any content that `may_be`
/// accepts.
pub fn compare(tree: &Tree, model: &Model, may_be: impl Fn(u64, usize, &[u8]) -> bool) -> Result<(), String> {
    let count = tree.inode_count().unwrap();
    if count != model.nodes.len() as u64 {
        return Err(format!("there are {count} inodes, not {}", model.nodes.len()));
    }
    for (&number, node) in &model.nodes {
        let inode = tree.inode(number).map_err(|failure| format!("inode {number}: {failure:?}"))?;
        let (links, is) = (model.links(number), (inode.mode, inode.uid, inode.links));
        if is != (node.mode, node.uid, links) {
            return Err(format!(
                "inode {number} has mode, owner, links {is:?}, not {:?}",
                (node.mode, node.uid, links)
            ));
        }
        let xattrs = tree.xattr_names(number).unwrap();
        if xattrs != node.xattrs.keys().cloned().collect::<Vec<_>>()
            || xattrs.iter().any(|name| tree.xattr(number, name).unwrap() != node.xattrs[name])
        {
            return Err(format!("inode {number} has other extended attributes"));
        }
        match node.mode & libc::S_IFMT {
            libc::S_IFREG => {
                let mut content = vec![0; node.content.len() + 1];
                let length = tree.read(number, 0, &mut content).map_err(|failure| format!("read: {failure:?}"))?;
                // Now that a read has brought it into memory, if there is a cache.
                let mut cached = vec![0; content.len()];
                let found =
                    tree.read_cached(number, 0, &mut cached).map_err(|failure| format!("cached: {failure:?}"))?;
                if found.is_some_and(|found| cached[..found] != content[..length]) {
                    return Err(format!("a cached read of inode {number} returns other content"));
                }
                if inode.size != node.content.len() as u64 || length != node.content.len() {
                    return Err(format!("inode {number} has {} bytes, not {}", inode.size, node.content.len()));
                }
                for (block, (is, expected)) in
                    content[..length].chunks(BLOCK).zip(node.content.chunks(BLOCK)).enumerate()
                {
                    if is != expected && !may_be(number, block, is) {
                        return Err(format!("block {block} of inode {number} holds what was never written there"));
                    }
                }
            }
            libc::S_IFLNK if tree.read_link(number).unwrap() != node.target => return Err(format!("link {number}")),
            libc::S_IFDIR => {
                let mut names = BTreeMap::new();
                tree.list(number, share::COOKIE_DOT_DOT, |listed, _| names.insert(listed.name, listed.node).is_none())
                    .unwrap();
                if names != node.names {
                    return Err(format!("directory {number} has the names {names:?}, not {:?}", node.names));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
