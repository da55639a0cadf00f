//! `shale calibrate`.

use units::format_size;

use super::interruption::Interruption;
use super::watch;
use crate::cli::CalibrateArgs;
use crate::output::{Output, table};
use operations::Outcome;
use report::Calibrated;
use report::{JobResult, JobWish};
use server::session::Session;

/// Calibrates, and reports the outcome.
pub fn run(args: CalibrateArgs, output: &Output) -> Outcome {
    let interruption = Interruption::watch()?;
    let found = Session::with(&args.pool, &args.access, |session| {
        match watch::start(session, JobWish::Calibrate, args.background, &interruption, output)? {
            Some((JobResult::Calibrated(found), _)) => Ok(Some(found)),
            Some((other, _)) => Err(other.unexpected().into()),
            None => Ok(None),
        }
    })?;
    if let Some(found) = found {
        tell(&found, output);
    }
    Ok(())
}

/// Reports the times and the power.
pub(super) fn tell(found: &Calibrated, output: &Output) {
    output.result(found, || show(found));
}

fn show(found: &Calibrated) -> String {
    let header = ["UNITS", "CODEC", "SPEED", "ENERGY"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for speed in &found.speeds {
        rows.push(vec![
            format_size(speed.unit_bytes),
            speed.codec.clone(),
            format!("{:.0} MB/s", speed.mb_per_second),
            format!("{:.1} J/GB", speed.joules_per_gb),
        ]);
    }
    let whose = match found.energy_source.as_str() {
        "rapl" => {
            format!("ENERGY was measured by the processor (RAPL): {:.1} W while one CPU was busy.", found.cpu_watts)
        }
        _ => format!(
            "ENERGY is CPU time at a nominal {:.1} W for a busy CPU: no RAPL counter is readable.",
            found.cpu_watts
        ),
    };
    format!("{}\nSPEED is of one CPU, on generated data. {whose}\n", table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::Speed;

    #[test]
    fn it_says_whose_the_joules_are() {
        let speed = Speed {
            codec: "lz4".to_owned(),
            unit_bytes: 32768,
            ns_per_kib: 1000.0,
            mb_per_second: 1024.0,
            joules_per_gb: 9.8,
        };
        let found = |source: &str| Calibrated {
            energy_source: source.to_owned(),
            cpu_watts: 10.0,
            cpu_seconds: 1.0,
            speeds: vec![speed.clone()],
        };
        let text = show(&found("cpu-time"));
        assert!(text.contains("nominal 10.0 W") && text.contains("9.8 J/GB") && text.contains("1024 MB/s"), "{text}");
        assert!(show(&found("rapl")).contains("(RAPL)"));
    }
}
