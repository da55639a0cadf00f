//! `compression=auto` against every fixed codec and against the oracle.

mod dictionaries;
mod live;
mod matrix;
mod plot;
mod probe_table;
mod read_cost;
mod replay;
mod small_files;
mod tables;

pub use dictionaries::stored_with_dictionaries;

use crate::corpus::kind_data;
use crate::report::Report;
use crate::{Context, Outcome};

/// Bytes of each kind: quick, and in full.
const KIND_BYTES: (usize, usize) = (4 << 20, 16 << 20);
/// Unit sizes of the tables.
const UNITS: [usize; 3] = [4 << 10, 32 << 10, 128 << 10];

/// The kinds of data, by name.
struct Kinds {
    names: Vec<String>,
    data: Vec<Vec<u8>>,
}

impl Kinds {
    fn load(context: &Context) -> Outcome<Self> {
        let most = if context.quick { KIND_BYTES.0 } else { KIND_BYTES.1 };
        let mut kinds = Self { names: Vec::new(), data: Vec::new() };
        for (name, data) in kind_data(&context.corpus_dir, most)? {
            kinds.names.push(name);
            kinds.data.push(data);
        }
        Ok(kinds)
    }
}

/// All figures.
pub fn run(context: &Context, report: &mut Report) -> Outcome<()> {
    let kinds = Kinds::load(context)?;
    if report.begin(context, "adaptive probe") {
        probe_table::run(&kinds, report)?;
    }
    if report.begin(context, "adaptive replay") {
        tables::run(context, &kinds, report)?;
    }
    if report.begin(context, "adaptive dictionaries") {
        dictionaries::run(context, report)?;
    }
    if report.begin(context, "adaptive read") {
        read_cost::run(context, &kinds, report)?;
    }
    if report.begin(context, "adaptive small") {
        small_files::run(context, report)?;
    }
    if report.begin(context, "adaptive engine") {
        live::run(context, &kinds, report)?;
    }
    Ok(())
}
