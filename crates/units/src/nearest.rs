//! Suggestions for mistyped words.

/// Longest word that is compared, in characters: the work grows with the product of both lengths.
const COMPARED_MAX: usize = 64;

/// Returns the word of `known` closest to `word`, if at most a third of its letters differ. The
/// first one wins a tie.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = word.to_lowercase().chars().collect();
    if wanted.is_empty() || wanted.len() > COMPARED_MAX {
        return None;
    }
    let most = (wanted.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        let letters: Vec<char> = candidate.to_lowercase().chars().collect();
        if letters.len() > COMPARED_MAX || letters.len().abs_diff(wanted.len()) > most {
            continue;
        }
        let distance = distance(&wanted, &letters);
        // A word of one or two letters only matches words that share a letter with it.
        let is_near = distance <= most && distance < wanted.len();
        if is_near && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns `; did you mean 'X'?`, or an empty string.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"))
}

/// Edit distance: insertions, deletions, substitutions, and swaps of neighbours (optimal string
/// alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1; b.len() + 1];
        for (j, y) in b.iter().enumerate() {
            let exchanged = last[j] + usize::from(x != y);
            row[j + 1] = exchanged.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *y && *x == b[j - 1] {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_understood() {
        let known = ["compression", "mode", "unit", "quota", "vm", "web"];
        for (word, meant) in [
            ("compresion", Some("compression")),
            ("compressoin", Some("compression")),
            ("Mode", Some("mode")),
            ("untit", Some("unit")),
            ("vn", Some("vm")),
            ("wbe", Some("web")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        assert_eq!(did_you_mean("quotta", known), "; did you mean 'quota'?");
        assert_eq!(did_you_mean(&"q".repeat(1000), known), "");
    }
}
