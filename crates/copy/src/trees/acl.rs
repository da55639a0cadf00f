//! ACLs as text, the form in tar archives (`SCHILY.acl.access`), and in the kernel's form in
//! extended attributes ([`posix_acl`]).

use std::collections::HashMap;

use share::posix_acl::{self, AclEntry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};

/// The id of an entry without a user or group.
const NO_ID: u32 = u32::MAX;

/// Formats an ACL with numeric users and groups; none if the bytes are not an ACL.
pub fn to_text(bytes: &[u8]) -> Option<String> {
    let entries = posix_acl::decode(bytes).ok()?;
    let mut words = Vec::with_capacity(entries.len());
    for AclEntry { tag, id, permissions } in entries {
        let (name, has_id) = match tag {
            USER_OBJ => ("user", false),
            USER => ("user", true),
            GROUP_OBJ => ("group", false),
            GROUP => ("group", true),
            MASK => ("mask", false),
            OTHER => ("other", false),
            _ => return None,
        };
        let id = if has_id { id.to_string() } else { String::new() };
        let bit = |bit: u16, letter| if permissions & bit != 0 { letter } else { '-' };
        words.push(format!("{name}:{id}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')));
    }
    Some(words.join(","))
}

/// Numbers of users and groups by name.
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Names {
    /// Those of this machine's own files.
    pub fn of_machine() -> Self {
        let read = |path| {
            let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let line = |line: &str| {
                let mut words = line.split(':');
                let name = words.next()?.to_owned();
                Some((name, words.nth(1)?.parse().ok()?))
            };
            text.map_or_else(|_| HashMap::new(), |text| text.lines().filter_map(line).collect())
        };
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }
}

/// The bytes of an ACL in words.
///
/// # Errors
/// Words on the entry that is wrong.
pub fn from_text(text: &str, names: &Names) -> Result<Vec<u8>, String> {
    let mut entries = Vec::new();
    for word in text.split([',', '\n']) {
        let word = word.split('#').next().unwrap_or("").trim();
        if word.is_empty() {
            continue;
        }
        let word = word.strip_prefix("default:").unwrap_or(word);
        let parts: Vec<&str> = word.split(':').map(str::trim).collect();
        let [tag, name, permissions, rest @ ..] = parts.as_slice() else {
            return Err(format!("'{word}' is not an ACL entry"));
        };
        let (tag, known) = match (*tag, name.is_empty()) {
            ("user" | "u", true) => (USER_OBJ, None),
            ("user" | "u", false) => (USER, Some(&names.users)),
            ("group" | "g", true) => (GROUP_OBJ, None),
            ("group" | "g", false) => (GROUP, Some(&names.groups)),
            ("mask" | "m", _) => (MASK, None),
            ("other" | "o", _) => (OTHER, None),
            _ => return Err(format!("'{word}' is not an ACL entry")),
        };
        let id = match known {
            None => NO_ID,
            // A number after the permissions is that of the writing machine, as for owners.
            Some(known) => rest
                .first()
                .and_then(|id| id.parse().ok())
                .or_else(|| name.parse().ok())
                .or_else(|| known.get(*name).copied())
                .ok_or_else(|| format!("'{name}' is unknown here, and the ACL has no numeric id for it"))?,
        };
        let mut bits = 0_u16;
        for letter in permissions.chars() {
            bits |= match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return Err(format!("'{word}' has unknown permissions")),
            };
        }
        entries.push(AclEntry { tag, id, permissions: bits });
    }
    entries.sort_unstable();
    Ok(posix_acl::encode(&entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_of_an_acl_say_the_same() {
        let names = Names { users: HashMap::from([("joe".to_owned(), 1000)]), groups: HashMap::new() };
        let plain = "user::rw-,user:1000:r-x,group::r--,mask::rwx,other::---";
        let bytes = from_text(plain, &names).unwrap();
        assert_eq!(bytes.len(), 4 + 5 * 8);
        assert_eq!(to_text(&bytes).as_deref(), Some(plain));
        // As written by GNU tar, with trailing comments of `getfacl`, and as by bsdtar.
        let gnu = "user::rw-\nuser:joe:r-x\t#effective:r-x\ngroup::r--\nmask::rwx\nother::---\n";
        assert_eq!(from_text(gnu, &names).unwrap(), bytes);
        let bsd = "user::rw-,group::r--,other::---,user:stranger:r-x:1000,mask::rwx";
        assert_eq!(from_text(bsd, &names).unwrap(), bytes);
        for bad in ["user:stranger:r--", "user::q--", "user", "who::rwx"] {
            assert!(from_text(bad, &names).is_err(), "{bad}");
        }
        assert_eq!(to_text(b"\x02\0\0\0xyz"), None);
    }
}
