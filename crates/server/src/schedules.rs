//! Makes and removes the snapshots that the properties `snapshots` and `keep` of volumes request,
//! while a pool is served. The policy decides which are due; this executes it.

use engine::{Pool, SnapshotStatus};
use policy::{Schedule, scheduled_name};
use surface::{ErrorKind, Result};

use crate::devices::Devices;

/// Makes a snapshot of a volume or share at one moment: a share's tree does not change meanwhile.
pub type Still<'a> = dyn Fn(&str, &dyn Fn() -> Result<()>) -> Result<()> + 'a;

/// Executes all actions due at `now`, in seconds since 1970, or those before `is_over`, because the
/// caller has other work as well. Returns the actions done and failed, for the log; a volume that
/// fails does not stop others. `note` receives each action that was done.
pub fn run(
    pool: &Pool,
    devices: &Devices,
    still: &Still<'_>,
    now: u64,
    is_over: &dyn Fn() -> bool,
    note: &dyn Fn(&str),
) -> Vec<String> {
    let mut told = Told { lines: Vec::new(), note };
    for volume in pool.volumes() {
        if is_over() {
            break;
        }
        if let Err(error) = run_volume((pool, devices, still), &volume.name, now, is_over, &mut told) {
            told.lines.push(format!("due snapshots of volume '{}': {error}", volume.name));
        }
    }
    told.lines
}

struct Told<'a> {
    lines: Vec<String>,
    note: &'a dyn Fn(&str),
}

impl Told<'_> {
    fn done(&mut self, line: String) {
        (self.note)(&line);
        self.lines.push(line);
    }
}

fn run_volume(
    (pool, devices, still): (&Pool, &Devices, &Still<'_>),
    volume: &str,
    now: u64,
    is_over: &dyn Fn() -> bool,
    told: &mut Told<'_>,
) -> Result<()> {
    let properties = pool.properties(Some(volume))?;
    let value = |key| properties.iter().find(|p| p.key == key).map_or("", |p| p.value.as_str());
    let Some(schedule) = Schedule::parse(value("snapshots"), value("keep")) else { return Ok(()) };
    // Snapshots made by a user are never removed.
    let mut made: Vec<SnapshotStatus> = pool.snapshots(Some(volume))?;
    made.retain(|snapshot| snapshot.scheduled);
    let taken: Vec<u64> = made.iter().map(|snapshot| snapshot.created_unix_s).collect();
    let due = schedule.due(now, &taken);
    if due.take {
        let name = scheduled_name(now);
        match still(volume, &|| pool.take_snapshot(volume, &name, true)) {
            Ok(()) => told.done(format!("snapshot {volume}@{name} taken")),
            // Most likely made by a user; a minute later there is a free name.
            Err(error) if error.kind() == ErrorKind::Exists => {}
            // The volume is receiving one.
            Err(error) if error.kind() == ErrorKind::InUse => {}
            Err(error) => return Err(error),
        }
    }
    for index in due.expired.into_iter().take_while(|_| !is_over()) {
        let name = format!("{volume}@{}", made[index].name);
        match devices.destroy_idle(&made[index]) {
            Ok(()) => told.done(format!("snapshot {name} removed: it has expired")),
            // A client reads it: it is removed later, and nothing waits for it.
            Err(error) if matches!(error.kind(), ErrorKind::InUse | ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
