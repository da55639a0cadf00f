//! Human-readable sizes. `K`, `M`, `G`, `T`, `P`, `E` (with or without `iB`) are powers of 1024, as
//! in lvm and qemu; `KB`, `MB`, ... are powers of 1000.

/// Why a size given by a user was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseSizeError {
    text: String,
    why: &'static str,
}

impl std::fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "size '{}' {}; write a number with K, M, G, T, P or E, such as 10G or 1.5TiB", self.text, self.why)
    }
}

impl std::error::Error for ParseSizeError {}

const SUFFIXES: &str = "kmgtpe";

/// Parses a size in bytes: `4096`, `64K`, `10G`, `1.5TiB`, `20GB`.
///
/// # Errors
/// When the text is not a number with a known suffix, is negative, or does not fit 63 bits.
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let fail = |why| ParseSizeError { text: text.to_owned(), why };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let suffix = suffix.trim().to_ascii_lowercase();
    let (power, base) = match suffix.as_str() {
        "" | "b" => (0, 1024u64),
        s => {
            let mut chars = s.chars();
            let power = chars.next().and_then(|c| SUFFIXES.find(c)).ok_or_else(|| fail("has an unknown unit"))?;
            let base = match chars.as_str() {
                "" | "ib" => 1024,
                "b" => 1000,
                _ => return Err(fail("has an unknown unit")),
            };
            (power as u32 + 1, base)
        }
    };
    let unit = base.pow(power);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || fraction.len() > 18 {
        return Err(fail("is not a number"));
    }
    let too_large = || fail("is too large");
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    let scale = 10u128.pow(fraction.len() as u32);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| fail("is not a number"))? };
    let bytes = u128::from(whole) * u128::from(unit) + fraction * u128::from(unit) / scale;
    u64::try_from(bytes).ok().filter(|b| *b <= i64::MAX as u64).ok_or_else(too_large)
}

/// Formats a number of bytes in powers of 1024, with at most two decimals: `1.50 GiB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut power = 0;
    while power + 1 < UNITS.len() && bytes >> (10 * (power + 1)) > 0 {
        power += 1;
    }
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        return format!("{} {}", bytes / unit, UNITS[power]);
    }
    format!("{:.2} {}", bytes as f64 / unit as f64, UNITS[power])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("10G", 10 << 30),
            ("10 GiB", 10 << 30),
            // The formatted form of the largest sizes parses, too.
            ("5.5 EiB", 11 << 59),
            ("7E", 7 << 60),
            ("1.5TiB", 3 << 39),
            (".5K", 512),
            ("20GB", 20_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "G", "-1", "1.2.3", "10X", "10GG", "1e3", "99999999999P", "18446744073709551616"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn formats_round_trip_or_round() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(10 << 30), "10 GiB");
        assert_eq!(format_size(1536), "1.50 KiB");
        assert_eq!(format_size(u64::MAX), "16.00 EiB");
    }
}
