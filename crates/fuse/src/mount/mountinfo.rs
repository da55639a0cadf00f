//! The kernel's list of mounts, as proc(5) describes it.

/// The mounts of this process's namespace.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The mounts that this process sees, one in a line; nothing if they cannot be read.
pub fn mountinfo() -> String {
    String::from_utf8_lossy(&std::fs::read(MOUNTINFO).unwrap_or_default()).into_owned()
}

/// A path as mountinfo writes it: blanks, tabs, line feeds and backslashes stand as three octal
/// digits.
pub fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                path.push(char::from(code));
                path.push_str(&part[3..]);
            }
            None => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_unescaped() {
        assert_eq!(unescaped("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(unescaped("/plain"), "/plain");
        assert_eq!(unescaped("/odd\\9"), "/odd\\9");
    }
}
