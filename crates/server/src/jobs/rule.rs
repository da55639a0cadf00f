//! Exclusion rules for jobs. They concern state that a pool has only once, such as the progress of
//! a scrub: two jobs that continue from the same position would each see the other's progress. The
//! number of clients of a volume is not their subject: [`crate::devices`] decides that.

use surface::{DeviceId, Error, ErrorKind};

use super::table::{Begin, Worker};
use report::JobKind;

/// Returns whether a job of the kind `wanted` cannot begin before one of the kind `under_way` has
/// ended. A paused job is still under way.
pub(super) const fn excludes(under_way: JobKind, wanted: JobKind) -> bool {
    use JobKind::{Calibrate, Estimate, Recompress, Restore, Scrub, Shrink, Sort};
    matches!(
        (under_way, wanted),
        // The pool stores the progress of each once.
        (Recompress, Recompress) | (Sort, Sort) | (Scrub, Scrub)
        // The energy of one would be attributed to the other.
        | (Calibrate, Calibrate)
        // Each removes the remains of an earlier one.
        | (Restore, Restore)
        // A pool has one end.
        | (Shrink, Shrink)
        // Each compresses on a core of its own, and distorts the other's timing.
        | (Estimate, Estimate)
    )
}

/// Returns whether that is so where both are about one object.
pub(super) const fn excludes_in_object(under_way: JobKind, wanted: JobKind) -> bool {
    // The first to end would remove the mark of the other, which may be killed then.
    matches!((under_way, wanted), (JobKind::Import, JobKind::Import))
}

/// Another import into a volume, which one under way excludes.
pub(super) fn import_into(volume: DeviceId, name: &str) -> Begin {
    let (kind, target, worker) = (JobKind::Import, Some(name.to_owned()), Worker::Client);
    Begin { kind, target, volume: Some(volume), path: None, background: false, worker }
}

/// Error for a job that cannot begin because of the named job under way.
pub(super) fn refusal(id: u64, under_way: JobKind, target: Option<&str>) -> Error {
    let target = target.unwrap_or("the pool");
    let doing = match under_way {
        JobKind::Recompress => {
            format!("'{target}' is being recompressed by job {id}, and a pool recompresses one volume at a time")
        }
        JobKind::Sort => format!("{target} is being sorted by job {id}"),
        JobKind::Scrub => format!("{target} is being scrubbed by job {id}"),
        JobKind::Calibrate => format!("this machine is being measured by job {id}"),
        JobKind::Estimate => {
            format!("'{target}' is being estimated by job {id}, and a pool estimates one object at a time")
        }
        JobKind::Clean => format!("{target} is being cleaned by job {id}"),
        JobKind::Restore => format!("'{target}' is being restored by job {id}, and a pool runs one restore at a time"),
        JobKind::Shrink => format!("{target} is being shrunk by job {id}"),
        JobKind::Import => format!("'{target}' is being imported by job {id}"),
        kind => format!("job {id} ({}) is under way for {target}", kind.name()),
    };
    let way = format!(
        "'shale jobs POOL' shows its progress, 'shale jobs POOL {id}' waits for its end, and with --cancel ends it"
    );
    Error::new(ErrorKind::InUse, format!("{doing}: {way}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_kinds_is_decided() {
        use JobKind::{Calibrate, Estimate, Recompress, Restore, Scrub, Shrink, Sort};
        let alone = [Recompress, Sort, Scrub, Calibrate, Estimate, Restore, Shrink];
        for under_way in JobKind::ALL {
            for wanted in JobKind::ALL {
                let expected = under_way == wanted && alone.contains(&wanted);
                assert_eq!(excludes(under_way, wanted), expected, "{under_way:?}, {wanted:?}");
                let expected = under_way == wanted && wanted == JobKind::Import;
                assert_eq!(excludes_in_object(under_way, wanted), expected, "{under_way:?}, {wanted:?}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_job_and_what_it_is_at() {
        let is_alone = |kind: &JobKind| excludes(*kind, *kind) || excludes_in_object(*kind, *kind);
        for kind in JobKind::ALL.into_iter().filter(is_alone) {
            let error = refusal(7, kind, Some("vm"));
            assert_eq!(error.kind(), ErrorKind::InUse);
            assert!(error.to_string().contains("by job 7") && error.to_string().contains("jobs POOL 7"), "{error}");
        }
        assert!(refusal(7, JobKind::Recompress, Some("vm")).to_string().starts_with("'vm' is being recompressed"));
    }
}
