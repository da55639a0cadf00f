//! Permanent losses from a repair of a share's tree: the note that the pool stores before the
//! repaired tree replaces the damaged one, so that the next repair can report the losses if this
//! one is killed.

use std::sync::Arc;

use engine::Files;
use share::{NamesSurvey, RECORD_CONTENT_BYTES_MAX, Tree};
use surface::Result;

/// Maximum number of files of one share that are listed as having lost their content, and of those
/// that have lost extended attributes.
const TOLD_MAX: usize = 100;

const NAMES: &str = "names of files are lost";
const ATTRIBUTES: &str = "extended attributes are lost";

/// Kinds of loss of a share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Names, or inodes and the small files in their records.
    pub names: bool,
    /// Extended attributes, ACLs among them.
    pub attributes: bool,
}

/// Losses from the damage of a share's tree.
#[derive(Debug, Default)]
pub struct TreeLoss {
    pub kinds: Kinds,
    /// Description of the damage.
    problem: String,
    /// Files whose content is lost, a sentence each.
    pub content: Vec<String>,
    /// Files whose extended attributes are lost, or may be, a sentence each.
    pub attributes: Vec<String>,
}

impl TreeLoss {
    /// Returns the losses of a tree since its survey, during which it did not change; `None` if
    /// there are none.
    ///
    /// # Errors
    /// Those of looking for data.
    pub fn of(files: &Arc<Files>, survey: &NamesSurvey) -> Result<Option<Self>> {
        if !survey.is_lossy && survey.attributes.is_empty() {
            return Ok(None);
        }
        let kinds =
            Kinds { names: survey.loses_names, attributes: !survey.attributes.is_empty() || !survey.loses_names };
        Ok(Some(Self {
            kinds,
            problem: survey.problem.clone(),
            content: if survey.is_lossy { lost_with_records(files)? } else { Vec::new() },
            attributes: Tree::attributes_lost_in_words(files.clone(), &survey.attributes, TOLD_MAX),
        }))
    }

    /// Formats the note for the pool.
    pub fn note(&self, share: &str) -> String {
        let kinds: Vec<_> = [(self.kinds.names, NAMES), (self.kinds.attributes, ATTRIBUTES)]
            .into_iter()
            .filter_map(|(is_lost, words)| is_lost.then_some(words))
            .collect();
        let mut text = format!("share '{share}': {}", kinds.join(", "));
        let told = Some(&self.problem).filter(|problem| !problem.is_empty()).into_iter();
        told.chain(&self.content).chain(&self.attributes).for_each(|line| text.push_str(&format!("; {line}")));
        if self.kinds.names {
            text.push_str("; files without a name are in lost+found");
        }
        text
    }
}

/// Parses the share and its losses from a note; `None` if the note has another subject.
pub fn read_note(text: &str) -> Option<(&str, Kinds)> {
    let (share, rest) = text.strip_prefix("share '")?.split_once("': ")?;
    let (kinds, _) = rest.split_once("; ").unwrap_or((rest, ""));
    let is_lost = |what: &str| kinds.split(", ").any(|kind| kind == what);
    Some((share, Kinds { names: is_lost(NAMES), attributes: is_lost(ATTRIBUTES) }))
}

/// Returns the part of a note that names no files: all of it if the note has another subject.
pub fn without_files(text: &str) -> &str {
    match (read_note(text), text.split_once("; ")) {
        (Some(_), Some((about_share, _))) => about_share,
        _ => text,
    }
}

/// Lists small files whose content is lost with the damaged pages of their inodes' records.
fn lost_with_records(files: &Arc<Files>) -> Result<Vec<String>> {
    let mut lost = Tree::without_records(files.clone());
    // Those are recovered with their data.
    files.each_file(|file| {
        lost.remove(&file);
        Ok(true)
    })?;
    let more = lost.len().saturating_sub(TOLD_MAX);
    let words = |path: &Vec<u8>| {
        let path = share::in_words(path);
        format!("{path}: lost with the record of its inode, a file of at most {RECORD_CONTENT_BYTES_MAX} bytes")
    };
    let mut told: Vec<_> = lost.values().take(TOLD_MAX).flat_map(|paths| paths.listed()).map(words).collect();
    if more > 0 {
        told.push(format!("and {more} more files are lost in the same way"));
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_again_what_was_lost_where() {
        for (names, attributes) in [(true, false), (false, true), (true, true)] {
            let kinds = Kinds { names, attributes };
            let problem = "3 ranges of records cannot be read, and names of files".to_owned();
            let loss = TreeLoss { kinds, problem, content: vec!["/a: lost".to_owned()], ..TreeLoss::default() };
            let note = loss.note("home/it");
            assert!(note.contains("; /a: lost") && note.contains("3 ranges of records cannot be read"), "{note}");
            assert_eq!(read_note(&note), Some(("home/it", kinds)));
            let shown = without_files(&note);
            assert!(shown.starts_with("share 'home/it': ") && !shown.contains("/a"), "{shown}");
        }
        assert_eq!(without_files("the log lost batch 7; and 8"), "the log lost batch 7; and 8");
        assert_eq!(read_note("batch 7 and what follows"), None);
    }
}
