//! The commands on a pool's history and its current activity.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// See [`super::Command::Stats`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale stats /srv/pool                      the datasets, and how far back the history goes
  shale stats /srv/pool codec.stored --by codec --last 1d
  shale stats /srv/pool bytes --by object --only door=nbd --only operation=write
  shale stats /srv/pool cpu --by who --from 2026-11-25T08:00 --to 2026-11-25T12:00 --step 1m
  shale stats /srv/pool ops --by operation --last 1h --csv > ops.csv
  shale stats /srv/pool --marks --last 1w    changes, starts and stops

A server records the history of its pool: each second of two hours, each 10 s of a week, each 5 minutes of 400 days. 'shale
serve --analytics' sets its maximum size. It is read from the server, or from the pool if no server has it open.

A dataset is amounts (operations, bytes, CPU time), which are summed up, or levels (space, memory, jobs), of which the mean is
shown. --by breaks it down; --only keeps some values of a breakdown, and several of one breakdown keep any of them. An object is
a volume, a share or a snapshot by its name, or by its number as '#17'; '(other)' combines objects that a step does not
distinguish. Times are in UTC.

Without --csv and --json a table shows for each series the total, the mean of a second, and the largest second. Largest seconds are exact for two hours,
and within 3 percent later. Seconds without a server are gaps, and count in no mean.

JSON: with a dataset {version (1: fields may come, and none goes or changes), dataset, unit (count, bytes, ns), shape (sum, gauge), by, from_unix_s, step_s, resolution_s (of the finest step that was
  read), covered_s (seconds of each step that were sampled; 0: a gap), series: list of {name, total, values, peaks (the largest second of each step), least (of levels; else
  empty)}, damaged_frames, folded_objects, left_out_series (what the steps do not tell apart)}; with --marks a list of {unix_s, text}; else {version, datasets: list
  of {dataset, unit, shape, breakdowns, text}, store: {budget_bytes (0: off), stored_bytes, oldest_unix_s and frames (of the three resolutions), damaged_frames, dropped_frames, set_aside,
  fault}}.")]
pub struct StatsArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// The dataset [default: list them]
    pub dataset: Option<String>,
    /// Show a series for each value of this breakdown
    #[arg(long, value_name = "BREAKDOWN", requires = "dataset")]
    pub by: Option<String>,
    /// Only this value of a breakdown; may be repeated
    #[arg(long, value_name = "BREAKDOWN=VALUE", requires = "dataset", value_parser = filter)]
    pub only: Vec<String>,
    /// The time until now [default: 1h]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to"], value_parser = super::blob::age)]
    pub last: Option<Duration>,
    /// Start of the time range, such as 2026-11-25T08:00, or seconds since 1970
    #[arg(long, value_name = "MOMENT", value_parser = moment)]
    pub from: Option<u64>,
    /// End of the time range, exclusive [default: now]
    #[arg(long, value_name = "MOMENT", requires = "from", value_parser = moment)]
    pub to: Option<u64>,
    /// The length of a step [default: such that there are a few hundred]
    #[arg(long, value_name = "TIME", requires = "dataset", value_parser = super::blob::age)]
    pub step: Option<Duration>,
    /// Show each step, as comma-separated values
    #[arg(long, requires = "dataset")]
    pub csv: bool,
    /// Show the events in the time range
    #[arg(long, conflicts_with = "dataset")]
    pub marks: bool,
    /// Access to the pool
    #[command(flatten)]
    pub access: super::Access,
}

/// See [`super::Command::Top`].
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  shale top /srv/pool
  shale top /srv/pool --once                  one report, as text
  shale top /srv/pool --once --json | jq .codecs

Shows the busiest volumes, shares and snapshots, the doors of their requests, the data written and read by codec with its CPU
time, the space of the pool, the device below, and jobs under way. Rates are those of the last seconds. The pool must be served.
Keys: q ends, space pauses, arrows choose the column that objects are sorted by.

JSON: {version (1: fields may come, and none goes or changes), pool, seconds (that the rates are of), objects: list of {object, id, kind, door, reads, writes, read_bytes, written_bytes, write_p99_ns, read_p99_ns (null: none)}, codecs: list of
  {codec, raw_bytes, stored_bytes, compress_ns}, capacity_bytes, stored_bytes, available_bytes, ratio, saving_percent, disk_written_bytes, jobs: list of {id, kind, target, bytes_done, bytes_total}}; amounts are those of the time.")]
pub struct TopArgs {
    /// Directory of the pool
    pub pool: PathBuf,
    /// Seconds between two reports
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub every: u32,
    /// Show one report, as text, and end
    #[arg(long)]
    pub once: bool,
}

fn filter(text: &str) -> Result<String, String> {
    if !text.contains('=') {
        return Err(format!("invalid filter '{text}': use BREAKDOWN=VALUE, such as door=nbd"));
    }
    Ok(text.to_owned())
}

/// Parses `2026-11-25`, `2026-11-25T08:00`, `2026-11-25T08:00:05Z`, or seconds since 1970.
fn moment(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "invalid moment '{text}': use a date with or without a time in UTC, such as 2026-11-25T08:00, or seconds since 1970"
        )
    };
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0"));
    let numbers = |text: &str, separator| text.split(separator).map(str::parse).collect::<Result<Vec<u64>, _>>();
    let (date, time) = (numbers(date, '-').map_err(|_| wrong())?, numbers(time, ':').map_err(|_| wrong())?);
    let (Some([year, month, day]), [hour, minute, rest @ ..]) = (date.first_chunk(), &time[..]) else {
        return Err(wrong());
    };
    let second = rest.first().copied().unwrap_or(0);
    let is_one = date.len() == 3 && rest.len() <= 1 && *hour < 24 && *minute < 60 && second < 60;
    if !is_one || !(1970..=9999).contains(year) {
        return Err(wrong());
    }
    let days = days_of(*year, *month, *day).ok_or_else(wrong)?;
    Ok(days * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Returns the days since 1970 of a date; `None` if the date does not exist.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that a leap day is the last one.
    let (year_of_march, month_of_march) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year_of_march / 4 - year_of_march / 100 + year_of_march / 400;
    let days = (year_of_march * 365 + leap_days + (153 * month_of_march + 2) / 5 + day - 1).checked_sub(719_468)?;
    (policy::civil(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_times_and_seconds() {
        let found = ["0", "1970-01-01", "2026-11-21T09:30:59Z", "2026-11-21 09:30", "2028-02-29T23:59"].map(moment);
        let expected = [0, 0, 1_795_253_459, 1_795_253_400, 1_835_481_540];
        assert_eq!(found, expected.map(Ok));
        for wrong in
            ["", "yesterday", "2026-02-30", "2026-13-01", "2026-11-21T25:00", "2026-11-21T09", "1969-12-31", "1-2-3-4"]
        {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
        assert_eq!(filter("a=b=c"), Ok("a=b=c".to_owned()));
        assert!(filter("a").is_err());
    }
}
