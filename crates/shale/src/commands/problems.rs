//! Formats problems of a pool in lines, for `check` and `scrub`.

use crate::output::line_shown;
use report::ProblemReport;

/// Maximum bytes of a volume in one damaged piece.
const PIECE_BYTES_MAX: u64 = (units::GROUP_BLOCKS * units::BLOCK_BYTES) as u64;

/// Formats a line for each problem; adjacent damaged pieces of a volume share one; and where their
/// lengths are unknown, those that lie close together.
pub fn joined(problems: &[ProblemReport]) -> String {
    let mut order: Vec<&ProblemReport> = problems.iter().collect();
    // Pieces are ordered by the data file, and consecutive.
    for pieces in order.chunk_by_mut(|a, b| is_piece(a) && is_piece(b)) {
        pieces.sort_by_key(|piece| (piece.volume.clone(), piece.offset));
    }
    let mut text = String::new();
    for pieces in order.chunk_by(|a, b| are_neighbours(a, b)) {
        let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
        let (Some(from), Some(start), true) = (first.offset, last.offset, pieces.len() > 1) else {
            pieces.iter().for_each(|problem| text.push_str(&line(problem)));
            continue;
        };
        let place = match end(last) {
            Some(end) => format!("bytes {from} to {end}, {} pieces", pieces.len()),
            None => format!("{} pieces, from the one at byte {from} to the one at byte {start}", pieces.len()),
        };
        let volume = first.volume.as_deref().unwrap_or_default();
        let detail = line_shown(&first.detail);
        text.push_str(&format!("{}: volume {volume}, {place}, of which the first: {detail}\n", first.kind));
    }
    text
}

/// Returns whether one line covers both.
fn are_neighbours(a: &ProblemReport, b: &ProblemReport) -> bool {
    if !is_piece(a) || !is_piece(b) || a.volume != b.volume {
        return false;
    }
    match (a.length, b.length, a.offset.zip(b.offset)) {
        (Some(_), Some(_), _) => end(a).is_some() && end(a) == b.offset,
        (None, None, Some((a, b))) => (a..=a.saturating_add(PIECE_BYTES_MAX)).contains(&b),
        _ => false,
    }
}

fn end(problem: &ProblemReport) -> Option<u64> {
    problem.offset?.checked_add(problem.length?)
}

/// Returns whether a problem is an unreadable piece of a volume.
fn is_piece(problem: &ProblemReport) -> bool {
    problem.kind == "fragment" && problem.volume.is_some() && problem.offset.is_some() && !problem.repaired
}

/// Formats a line for one problem.
pub fn line(problem: &ProblemReport) -> String {
    let place = match (&problem.volume, problem.offset) {
        (Some(volume), Some(offset)) => format!("volume {volume}, byte {offset}: "),
        (Some(volume), None) => format!("volume {volume}: "),
        (None, Some(offset)) => format!("byte {offset}: "),
        (None, None) => String::new(),
    };
    let repaired = match (problem.repaired, problem.kind.as_str()) {
        (false, _) => "",
        (true, "lost") => " (accepted)",
        (true, _) => " (repaired)",
    };
    format!("{}: {place}{}{repaired}\n", problem.kind, line_shown(&problem.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(volume: &str, offset: u64, length: Option<u64>) -> ProblemReport {
        ProblemReport {
            kind: "fragment".to_owned(),
            volume: Some(volume.to_owned()),
            offset: Some(offset),
            length,
            detail: format!("piece at {offset}"),
            repaired: false,
        }
    }

    #[test]
    fn pieces_side_by_side_are_one_line() {
        let usage = ProblemReport { kind: "usage".to_owned(), volume: None, offset: None, ..piece("", 0, None) };
        let all = [
            piece("vm", 8192, Some(4096)),
            piece("vm", 0, Some(8192)),
            piece("db", 12288, Some(4096)),
            piece("vm", 12288, Some(4096)),
            piece("vm", 20480, Some(4096)),
            piece("vm", 24576, None),
            piece("vm", 28672, Some(4096)),
            usage,
        ];
        let text = joined(&all);
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.contains("volume vm, bytes 0 to 16384, 3 pieces, of which the first: piece at 0\n"), "{text}");
        assert!(text.starts_with("fragment: volume db, byte 12288: piece"), "{text}");
        assert!(text.contains("volume vm, byte 28672: piece") && text.contains("usage: "), "{text}");
    }

    #[test]
    fn pieces_of_unknown_length_are_one_line_if_they_lie_close_together() {
        let far = 2 * PIECE_BYTES_MAX + 1;
        let all = [piece("vm", 131_072, None), piece("vm", far, None), piece("vm", 0, None), piece("db", 4096, None)];
        assert_eq!(
            joined(&all),
            format!(
                "fragment: volume db, byte 4096: piece at 4096\n\
                 fragment: volume vm, 2 pieces, from the one at byte 0 to the one at byte 131072, of which the first: \
                 piece at 0\n\
                 fragment: volume vm, byte {far}: piece at {far}\n"
            )
        );
    }
}
