//! Checks of the users that doors name or need: whether they exist, have passwords, and may write
//! where a door permits it.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use doors::{Access, Door, Squash};

use super::world::World;
use super::{smb, tools};
use report::CheckLine;

/// The user, and the group, of SMB clients without a password, and of NFS clients where all are
/// squashed.
const ANONYMOUS: u32 = 65534;

/// Checks the users of a door of a share, which is mounted at `dir`.
pub fn checks(world: &World, share: &str, door: Door, access: &Access, dir: Option<&Path>) -> Vec<CheckLine> {
    let mut lines = there(world, share, door, access);
    lines.extend(passwords(world, share, door, access));
    lines.extend(dir.filter(|_| access.writes()).and_then(|dir| writers(world, share, door, access, dir)));
    lines
}

/// Checks that the users exist that a door of a share names or needs.
fn there(world: &World, share: &str, door: Door, access: &Access) -> Vec<CheckLine> {
    let mut named: Vec<_> = access.users.iter().map(|user| (user.clone(), format!("smb of share {share}"))).collect();
    match door {
        Door::Http => named.push((world.settings.http_user.clone(), "http-user of settings".to_owned())),
        Door::Ftp if !access.needs_login => named.push(("ftp".to_owned(), "ftp without a password".to_owned())),
        Door::Nfs | Door::Smb | Door::Ftp => {}
    }
    let line = |(user, by): (String, String)| {
        let good = tools::has_user(&user);
        let found = if good { "there" } else { "this machine has no such user: useradd, or choose another" };
        CheckLine::new(format!("user {user} ({by})"), good, found)
    };
    named.into_iter().map(line).collect()
}

/// Checks that there are passwords where a door requires them.
fn passwords(world: &World, share: &str, door: Door, access: &Access) -> Vec<CheckLine> {
    match door {
        Door::Http if access.needs_login => {
            let file = world.file("http.users");
            let found = format!(
                "missing, so no user is admitted: htpasswd -B -c {} USER (package apache2-utils)",
                file.display()
            );
            let missing = CheckLine::new(format!("passwords (http of share {share})"), false, found);
            if file.is_file() { Vec::new() } else { vec![missing] }
        }
        // If the administrator configured a user directory, Samba's own list is not conclusive.
        Door::Smb if !world.own("smb.local.conf").lines().any(is_of_users) => {
            let config = world.file("smb.conf").display().to_string();
            let known = tools::run("pdbedit", smb::PACKAGE, &["-s", &config, "-L"]).map(|(out, _)| users_of(&out));
            let Ok(known) = known else { return Vec::new() };
            let command = |user: &str| format!("smbpasswd -c {config} -a {user}");
            let of = |user: &String| {
                let good = known.contains(user);
                let found = format!("none, so {user} is not admitted: {}", command(user));
                let what = format!("SMB password of {user} (share {share})");
                CheckLine::new(what, good, if good { "set".to_owned() } else { found })
            };
            if access.users.is_empty() && !access.has_guests && known.is_empty() {
                let found = format!("no user has one, so none is admitted: {}", command("USER"));
                return vec![CheckLine::new(format!("SMB passwords (share {share})"), false, found)];
            }
            access.users.iter().filter(|user| tools::has_user(user)).map(of).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether a line of Samba's configuration sets its source of users.
fn is_of_users(line: &str) -> bool {
    let key = line.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
    ["passdb backend", "security", "server role", "auth methods"].contains(&&*key)
}

/// Returns the users in a list of `pdbedit -L`: `NAME:NUMBER:FULL NAME`.
fn users_of(list: &str) -> BTreeSet<String> {
    list.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned()).collect()
}

/// Returns a warning, if users whom a door lets write may not write in the share's own directory.
fn writers(world: &World, share: &str, door: Door, access: &Access, dir: &Path) -> Option<CheckLine> {
    let about = std::fs::metadata(dir).ok()?;
    let known = |user: &String| tools::user(user).map(|ids| (format!("user {user}"), ids));
    let mut refused: Vec<_> = match door {
        Door::Smb if access.has_guests => vec![(format!("user {ANONYMOUS}"), (ANONYMOUS, ANONYMOUS))],
        Door::Smb => access.users.iter().filter_map(known).collect(),
        Door::Http => known(&world.settings.http_user).into_iter().collect(),
        Door::Nfs | Door::Ftp => Vec::new(),
    };
    refused.retain(|(_, ids)| may_write(*ids, dir) == Some(false));
    let refused: Vec<_> = refused.into_iter().map(|(user, _)| user).collect();
    let told = match door {
        _ if !refused.is_empty() => {
            format!("{} may not write in {}: chown or chmod it", refused.join(", "), dir.display())
        }
        Door::Nfs if access.squash == Squash::Never => return None,
        Door::Nfs if access.squash == Squash::All && about.uid() == ANONYMOUS => return None,
        Door::Smb if !access.users.is_empty() || access.has_guests => return None,
        // With an ACL, the group's bits are the mask of its entries.
        Door::Nfs | Door::Ftp | Door::Smb if about.uid() == 0 && about.mode() & 0o022 == 0 => {
            format!("only root may write in {}: chown or chmod it", dir.display())
        }
        _ => return None,
    };
    let found = format!("{told}, or let users write in directories below it");
    Some(CheckLine {
        warns: true,
        ..CheckLine::new(format!("writing ({} of share {share})", door.name()), true, found)
    })
}

/// Returns whether a user of this machine may write in a directory; `None` if that is unknown.
fn may_write((uid, gid): (u32, u32), dir: &Path) -> Option<bool> {
    let dir = dir.display().to_string();
    let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={gid}"));
    let as_user = |test: &[&str]| {
        let words = [&[&*uid, &*gid, "--init-groups", "--"], test].concat();
        tools::run("setpriv", "util-linux", &words).is_ok()
    };
    as_user(&["true"]).then(|| as_user(&["test", "-w", &dir, "-a", "-x", &dir]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_of_a_list() {
        let users: Vec<_> = users_of("ada:1001:Ada L\nmeier:1002:\n\nno list\n").into_iter().collect();
        assert_eq!(users, ["ada", "meier"]);
    }

    #[test]
    fn lines_that_set_up_a_directory_of_users() {
        assert!(is_of_users("    Security = ads") && is_of_users("passdb backend=ldapsam:ldap://x"));
        assert!(!is_of_users("    log level = 3") && !is_of_users("# security"));
    }

    #[test]
    fn who_may_write_is_found_out_as_the_user() {
        use std::os::unix::fs::PermissionsExt;

        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = testkit::TempDir::new("exports-users");
        let set = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        assert_eq!(may_write((ANONYMOUS, ANONYMOUS), dir.path()), Some(false));
        set(0o777);
        assert_eq!(may_write((ANONYMOUS, ANONYMOUS), dir.path()), Some(true));
    }
}
