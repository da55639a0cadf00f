//! Tests of users, tokens and sessions.

use std::os::unix::fs::PermissionsExt;

use testkit::TempDir;

use super::*;

fn at(seconds: u64) -> Moment {
    Moment { unix_s: 1_800_000_000 + seconds, monotonic_s: seconds }
}

const PASSWORD: &str = "correct horse";

fn with_anna(dir: &TempDir) -> Access {
    let access = Access::open(dir.path());
    access.set_password("anna", Some(PASSWORD), Some(Role::Operate), at(0)).unwrap();
    access
}

#[test]
fn a_user_logs_in_and_the_session_ends_when_idle_or_old() {
    let dir = TempDir::new("access-session");
    let access = with_anna(&dir);
    assert_eq!(access.log_in("anna", "wrong horse", "10.0.0.1", at(0)), Err(Refusal::Wrong));
    assert_eq!(access.log_in("bert", PASSWORD, "10.0.0.1", at(0)), Err(Refusal::Wrong));
    let session = access.log_in("anna", PASSWORD, "10.0.0.1", at(0)).unwrap();
    let check = |now| access.check(Proof::Session(&session.id), at(now));
    assert_eq!(check(0).unwrap(), Grant { who: Who::User("anna".to_owned()), role: Role::Operate });
    assert!(access.check(Proof::Session("x"), at(0)).is_none());
    assert!(access.check(Proof::Token(&session.id), at(0)).is_none());
    for use_number in 1..=12 {
        assert!(check(use_number * 3599).is_some(), "{use_number}");
    }
    assert!(check(12 * 3600).is_none(), "older than its longest life");
    let idle = access.log_in("anna", PASSWORD, "10.0.0.1", at(0)).unwrap();
    assert!(access.check(Proof::Session(&idle.id), at(3600)).is_none(), "idle for an hour");
}

#[test]
fn a_new_password_or_role_ends_sessions_and_log_out_does() {
    let dir = TempDir::new("access-password");
    let access = with_anna(&dir);
    let log_in = |password| access.log_in("anna", password, "10.0.0.1", at(1)).unwrap().id;
    let first = log_in(PASSWORD);
    access.set_password("anna", Some("another horse"), None, at(2)).unwrap();
    assert!(access.check(Proof::Session(&first), at(2)).is_none());
    assert_eq!(access.users()[0].role, Role::Operate, "kept when none is given");
    let second = log_in("another horse");
    access.log_out(&second);
    assert!(access.check(Proof::Session(&second), at(2)).is_none());
    let before = log_in("another horse");
    access.set_password("anna", None, Some(Role::Read), at(2)).unwrap();
    assert!(access.check(Proof::Session(&before), at(2)).is_none(), "a session of the former role");
    assert_eq!(access.users()[0].role, Role::Read, "a role alone");
    assert_eq!(access.set_password("anna", None, None, at(2)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(access.set_password("bert", None, Some(Role::Read), at(2)).unwrap_err().kind(), ErrorKind::NotFound);
    let third = log_in("another horse");
    access.remove_user("anna").unwrap();
    assert!(access.check(Proof::Session(&third), at(2)).is_none());
    assert_eq!(access.remove_user("anna").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn tokens_are_kept_as_hashes_and_expire() {
    let dir = TempDir::new("access-token");
    let access = Access::open(dir.path());
    let token = access.create_token("backup", Role::Read, Some(at(100).unix_s), at(0)).unwrap().token;
    assert!(token.starts_with("shale_") && token.len() == 6 + 64, "{token}");
    let file = std::fs::read_to_string(dir.path().join("access.json")).unwrap();
    assert!(!file.contains(&token[6..]), "the token is in the file");
    let mode = std::fs::metadata(dir.path().join("access.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let grant = access.check(Proof::Token(&token), at(50)).unwrap();
    assert_eq!(grant, Grant { who: Who::Token("backup".to_owned()), role: Role::Read });
    assert!(access.check(Proof::Session(&token), at(50)).is_none());
    // Another start of the server knows it, and when it was used.
    let again = Access::open(dir.path());
    assert_eq!(again.tokens()[0].last_used_unix_s, Some(at(50).unix_s));
    assert!(again.check(Proof::Token(&token), at(99)).is_some());
    assert!(again.check(Proof::Token(&token), at(100)).is_none());
    assert_eq!(again.create_token("backup", Role::Read, None, at(0)).unwrap_err().kind(), ErrorKind::Exists);
    let late = again.create_token("late", Role::Read, Some(at(0).unix_s), at(0));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_revoked_token_is_refused_at_once() {
    let dir = TempDir::new("access-revoked");
    let access = Access::open(dir.path());
    let token = access.create_token("backup", Role::Operate, None, at(0)).unwrap().token;
    assert!(access.check(Proof::Token(&token), at(1_000_000)).is_some());
    access.revoke_token("backup").unwrap();
    assert!(access.check(Proof::Token(&token), at(1_000_000)).is_none());
    assert_eq!(access.revoke_token("backup").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_log_in_link_is_good_once_and_for_a_quarter_of_an_hour() {
    let dir = TempDir::new("access-link");
    let access = Access::open(dir.path());
    let key = access.new_link(at(0)).unwrap();
    let session = access.log_in_by_link(&key, "10.0.0.1", at(899)).unwrap();
    assert_eq!(session.grant.role, Role::Admin);
    assert!(access.check(Proof::Session(&session.id), at(900)).is_some());
    assert_eq!(access.log_in_by_link(&key, "10.0.0.1", at(899)), Err(Refusal::Wrong), "used already");
    let late = access.new_link(at(0)).unwrap();
    assert_eq!(access.log_in_by_link(&late, "10.0.0.1", at(900)), Err(Refusal::Wrong), "too late");
    let (old, new) = (access.new_link(at(0)).unwrap(), access.new_link(at(0)).unwrap());
    assert!(
        access.log_in_by_link(&old, "10.0.0.1", at(1)).is_err() && access.log_in_by_link(&new, "::1", at(1)).is_ok()
    );
}

#[test]
fn the_sixth_wrong_password_is_refused_even_when_it_is_right() {
    let dir = TempDir::new("access-attempts");
    let access = with_anna(&dir);
    for _ in 0..5 {
        assert_eq!(access.log_in("anna", "wrong horse", "10.0.0.1", at(10)), Err(Refusal::Wrong));
    }
    assert_eq!(access.log_in("anna", PASSWORD, "10.0.0.1", at(11)), Err(Refusal::TooMany(59)));
    assert!(access.log_in("anna", PASSWORD, "10.0.0.1", at(70)).is_ok());
}

#[test]
fn wrong_passwords_from_elsewhere_keep_no_user_out() {
    let dir = TempDir::new("access-strangers");
    let access = with_anna(&dir);
    access.log_in("anna", PASSWORD, "10.0.0.1", at(0)).unwrap();
    // A password of this length is wrong without being hashed.
    let long = "x".repeat(PASSWORD_BYTES_MAX + 1);
    for number in 0..60 {
        let refused = access.log_in("anna", &long, &format!("192.0.2.{number}"), at(1)).unwrap_err();
        assert_eq!(refused == Refusal::Wrong, number < 50, "{number}: {refused:?}");
    }
    assert!(access.log_in("anna", PASSWORD, "10.0.0.1", at(1)).is_ok());
    assert_eq!(access.log_in("anna", PASSWORD, "10.0.0.2", at(1)), Err(Refusal::TooMany(59)), "a new address waits");
}

#[test]
fn a_damaged_file_lets_nobody_in_and_is_not_overwritten() {
    let dir = TempDir::new("access-damaged");
    let path = dir.path().join("access.json");
    std::fs::write(&path, "{\"version\":1,").unwrap();
    let access = Access::open(dir.path());
    assert!(access.unusable().unwrap().contains("access.json"), "{:?}", access.unusable());
    assert_eq!(access.set_password("anna", Some(PASSWORD), None, at(0)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"version\":1,");
    std::fs::write(&path, "{\"version\":2,\"users\":[],\"tokens\":[]}").unwrap();
    assert!(Access::open(dir.path()).unusable().unwrap().contains("version 2"));
}

#[test]
fn names_passwords_and_labels_that_cannot_be_are_refused() {
    let dir = TempDir::new("access-names");
    let access = Access::open(dir.path());
    for (user, password) in [("", PASSWORD), ("an na", PASSWORD), ("a\nb", PASSWORD), ("anna", "short")] {
        let error = access.set_password(user, Some(password), None, at(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{user:?} {password:?}");
    }
    assert_eq!(access.create_token("a\nb", Role::Read, None, at(0)).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!access.has_anybody() && !dir.path().join("access.json").exists());
}
