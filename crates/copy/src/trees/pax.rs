//! Records of extended tar headers: `LENGTH KEY=VALUE\n`, where the length covers the whole record.
//! Values are arbitrary bytes, including newlines.

use share::Time;

/// Largest extended header: values of extended attributes have at most 64 KiB, and a file has few
/// of them.
pub const BYTES_MAX: u64 = 16 << 20;

/// Records in order of appearance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Reads records.
    ///
    /// # Errors
    /// `None` if a length is wrong.
    pub fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut records = Vec::new();
        // Some writers pad with zeroes.
        while bytes.first().is_some_and(|&byte| byte != 0) {
            let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
            let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|&byte| byte == b'=')?;
            records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            bytes = &bytes[length..];
        }
        Some(Self(records))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// The value of a key: the last counts.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.iter().rev().find(|(other, _)| other == key.as_bytes()).map(|(_, value)| &value[..])
    }

    /// The value of a key as a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }

    /// The value of a key as a time: seconds, which may be negative, with a fraction.
    pub fn time(&self, key: &str) -> Option<Time> {
        time(std::str::from_utf8(self.get(key)?).ok()?)
    }

    /// Adds a record.
    pub fn push(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of all records.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in &self.0 {
            // A space, an equals sign and a newline.
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            out.extend(format!("{length} ").bytes());
            out.extend(key);
            out.push(b'=');
            out.extend(value);
            out.push(b'\n');
        }
        out
    }
}

fn time(text: &str) -> Option<Time> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_negative = seconds.starts_with('-');
    let seconds: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    if is_negative && nanoseconds > 0 {
        return Some(Time { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds });
    }
    Some(Time { seconds, nanoseconds })
}

/// A time as a value.
pub fn time_text(time: Time) -> String {
    let Time { seconds, nanoseconds } = time;
    match (seconds, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (0.., _) => format!("{seconds}.{nanoseconds:09}"),
        (-1, _) => format!("-0.{:09}", 1_000_000_000 - nanoseconds),
        _ => format!("{}.{:09}", seconds + 1, 1_000_000_000 - nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_bytes_come_back() {
        let mut records = Records::default();
        records.push("path", "a/b");
        records.push("SCHILY.xattr.user.binary", b"\0\n=\xff line\n");
        records.push("comment", vec![b'x'; 91]);
        records.push("comment", vec![b'y'; 9990]);
        let bytes = records.encode();
        assert_eq!(Records::parse(&bytes), Some(records.clone()));
        assert_eq!(Records::parse(&[&bytes[..], &[0; 9]].concat()), Some(records));
        assert_eq!(Records::parse(&bytes[..bytes.len() - 1]), None);
        for bad in [&b"99999999999999999999 a=b\n"[..], b"6 a=b\n x", b"x", b"8 abcd\n", b"3 a=b\n"] {
            assert_eq!(Records::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn times_keep_their_nanoseconds_before_1970_too() {
        for (seconds, nanoseconds) in [(0, 0), (5, 1), (-1, 999_999_999), (-1, 1), (-7, 250_000_000), (1 << 40, 120)] {
            let moment = Time { seconds, nanoseconds };
            assert_eq!(time(&time_text(moment)), Some(moment), "{}", time_text(moment));
        }
        assert_eq!(time("1.5"), Some(Time { seconds: 1, nanoseconds: 500_000_000 }));
        assert_eq!(time("1.x"), None);
    }
}
