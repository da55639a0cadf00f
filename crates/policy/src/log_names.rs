//! Recognizes logs of databases by their names. Owns the patterns; the types are words as
//! [`crate::magic`] has them for extensions.

/// Write-ahead logs and rollback journals.
const WAL: &str = "wal";
/// Redo logs of MySQL and MariaDB.
const REDO: &str = "redo";
/// Binary logs of MySQL and MariaDB.
const BINLOG: &str = "binlog";

/// Returns the type of a database's log from its name, without directories.
///
/// PostgreSQL writes a new segment of its log as `xlogtemp.PID`, and renames it.
pub(crate) fn type_of_log(name: &str) -> Option<&'static str> {
    let numbered = |prefix: &str| name.strip_prefix(prefix).is_some_and(is_number);
    if is_segment(name)
        || numbered("xlogtemp.")
        || name.rsplit_once('-').is_some_and(|(stem, end)| is_sqlite(stem, end))
    {
        return Some(WAL);
    }
    let redo = name.strip_prefix('#').unwrap_or(name);
    let redo = redo.strip_prefix("ib_redo").map(|number| number.strip_suffix("_tmp").unwrap_or(number));
    if redo.is_some_and(is_number) || numbered("ib_logfile") || numbered("aria_log.") {
        return Some(REDO);
    }
    let (stem, number) = name.rsplit_once('.')?;
    let is_binlog = stem == "binlog" || stem.strip_suffix("-bin").is_some_and(|host| !host.is_empty());
    (is_binlog && number.len() >= 6 && is_number(number)).then_some(BINLOG)
}

/// The type that an extension in lower case stands for because of its end: `app.db-wal`.
pub(crate) fn type_of_ending(extension: &str) -> Option<&'static str> {
    extension.rsplit_once('-').is_some_and(|(stem, end)| is_sqlite(stem, end)).then_some(WAL)
}

/// Whether SQLite names the log, or the rollback journal, of the database `stem` so.
fn is_sqlite(stem: &str, end: &str) -> bool {
    !stem.is_empty() && matches!(end, "wal" | "journal")
}

/// Whether PostgreSQL names a segment of its log so: the numbers of timeline, log and segment in 8
/// digits each. The leading zeroes keep other names of 24 digits out.
fn is_segment(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
    name.len() == 24 && name.bytes().all(is_digit) && name.starts_with("0000") && name[16..].starts_with("0000")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use crate::type_of_name;

    #[test]
    fn logs_by_table() {
        for (name, word) in [
            // PostgreSQL.
            ("pg_wal/000000010000000A000000FE", Some("wal")),
            ("000000010000000000000001", Some("wal")),
            ("pg_wal/xlogtemp.4711", Some("wal")),
            ("00000001.history", Some("history")),
            ("000000010000000000000001.partial", Some("partial")),
            ("00000001000000000000001", None),
            ("507f1f77bcf86cd799439011", None),
            ("00000001000000000000000a", None),
            ("base/16384/2619", None),
            ("xlogtemp.", None),
            ("xlogtemp.x", Some("x")),
            // SQLite.
            ("app.db-wal", Some("wal")),
            ("places.SQLITE-WAL", Some("wal")),
            ("app.sqlite3-journal", Some("wal")),
            ("Cookies-journal", Some("wal")),
            ("app.db-shm", Some("db-shm")),
            ("app.db", Some("sqlite")),
            ("-wal", None),
            // MySQL and MariaDB.
            ("ib_logfile0", Some("redo")),
            ("ib_logfile101", Some("redo")),
            ("#innodb_redo/#ib_redo12", Some("redo")),
            ("#ib_redo13_tmp", Some("redo")),
            ("ib_redo7", Some("redo")),
            ("aria_log.00000001", Some("redo")),
            ("aria_log_control", None),
            ("ib_logfile", None),
            ("#ib_16384_0.dblwr", Some("dblwr")),
            ("ibdata1", None),
            ("tpcc/stock.ibd", Some("ibd")),
            ("mysql-bin.000001", Some("binlog")),
            ("db1-relay-bin.1000000", Some("binlog")),
            ("binlog.000012", Some("binlog")),
            ("a.binlog", Some("binlog")),
            ("mysql-bin.index", Some("index")),
            ("binlog.12", Some("12")),
            ("-bin.000001", Some("000001")),
        ] {
            assert_eq!(type_of_name(name).as_deref(), word, "{name}");
        }
    }
}
