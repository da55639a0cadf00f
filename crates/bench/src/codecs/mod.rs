//! Codecs on real data by kind: savings and costs of each, the benefit of dictionaries, and a
//! comparison with gzip on files.
//!
//! 1. `kinds` reads the data as files in blocks, in the layout of a file system.
//! 2. `costs` compresses the same sampled units with every codec, on one core, in CPU time.
//! 3. `dictionaries` trains on some units of a kind and measures on others.
//! 4. `savings` compares whole kinds with `gzip -r` and gzip of a tar.
//! 5. `page` writes the tables, for the terminal and for docs/CODECS.md.

mod costs;
mod dictionaries;
mod kinds;
mod page;
mod savings;

use std::path::Path;

use serde::Serialize;

use crate::Outcome;

/// Everything that was measured, for the JSON file.
#[derive(Debug, Serialize)]
struct Results {
    costs: Vec<costs::Cost>,
    dictionaries: Vec<dictionaries::Gain>,
    savings: Vec<savings::Saving>,
}

/// The measurements wanted, and their destination.
pub struct Request<'a> {
    /// Directory with a directory for each kind.
    pub corpus: &'a Path,
    /// JSON file.
    pub out: &'a Path,
    /// Page whose tables are replaced, if any.
    pub page: Option<&'a Path>,
    /// Less data.
    pub quick: bool,
}

/// Measures, prints, and writes.
pub fn run(request: &Request<'_>) -> Outcome<()> {
    let kinds = kinds::load(request.corpus)?;
    let budget = if request.quick { 1 << 20 } else { 4 << 20 };
    let results = Results {
        costs: costs::measure(&kinds, budget),
        dictionaries: dictionaries::measure(&kinds, 2 * budget),
        savings: savings::measure(&kinds)?,
    };
    let tables = page::tables(&results);
    println!("{tables}");
    let mut text = serde_json::to_vec_pretty(&results)?;
    text.push(b'\n');
    std::fs::write(request.out, text)?;
    if let Some(path) = request.page {
        page::replace(path, &tables)?;
    }
    Ok(())
}
