//! Makes the documents of `report` from the figures of the engine. Owns nothing.

use engine::{CheckReport, Property, PropertySource, VolumeStatus};
use report::*;

/// Makes a [`BookmarkLine`] from the engine's figures.
pub fn bookmark_line(status: engine::BookmarkStatus) -> BookmarkLine {
    BookmarkLine {
        bookmark: format!("{}#{}", status.volume, status.name),
        created_unix_s: status.created_unix_s,
        identity: status.identity.to_string(),
    }
}

/// Makes a [`HoldLine`] from the engine's figures.
pub fn hold_line(hold: engine::Hold) -> HoldLine {
    let snapshot = format!("{}@{}", hold.volume, hold.snapshot);
    HoldLine { snapshot, tag: hold.tag, created_unix_s: hold.created_unix_s }
}

/// Makes a [`QuotaLine`] from the engine's figures.
pub fn quota_line(used: engine::QuotaUse) -> QuotaLine {
    let kind = match (used.is_share, used.is_folder) {
        (true, _) => ObjectKind::Share,
        (_, true) => ObjectKind::Folder,
        _ => ObjectKind::Volume,
    };
    QuotaLine { name: used.name, kind, stored_bytes: used.stored_bytes, quota_bytes: used.quota_bytes }
}

/// Makes a [`ReceiveLine`] from the engine's figures.
pub fn receive_line(status: engine::ReceiveStatus) -> ReceiveLine {
    ReceiveLine {
        volume: status.volume,
        snapshot: status.snapshot,
        is_new: status.is_new,
        received_bytes: status.received_bytes,
        expected_bytes: status.expected_bytes,
        token: status.token,
    }
}

/// Makes a [`DiffReport`] from the engine's figures.
pub fn diff_report(page: engine::DiffPage) -> DiffReport {
    let change = |change: engine::Changed| ChangeReport {
        offset: change.offset,
        length: change.length,
        now: if change.now == surface::Allocation::Data { "data" } else { "hole" }.to_owned(),
    };
    let changes = page.changes.into_iter().map(change).collect();
    DiffReport { changes, next: page.next, from_bytes: page.sizes.0, to_bytes: page.sizes.1 }
}

/// Makes the [`VolumeReport`] of a folder from the engine's figures.
pub fn folder_report(status: engine::FolderStatus) -> VolumeReport {
    VolumeReport {
        id: status.id.0,
        kind: ObjectKind::Folder,
        name: status.name,
        share: false,
        folder: true,
        size_bytes: 0,
        allocated_bytes: status.allocated_bytes,
        stored_bytes: status.stored_bytes,
        ratio: ratio(status.allocated_bytes, status.stored_bytes).filter(|_| status.allocated_bytes > 0),
        created_unix_s: status.created_unix_s,
        clients: 0,
        client_names: Vec::new(),
        properties: status.properties,
        origin: None,
        incomplete: false,
        exact: status.is_exact,
        bookmarks: Vec::new(),
        unserved: None,
        snapshot_stored_bytes: None,
        snapshots: None,
    }
}

/// Makes a [`ProblemReport`] from the engine's figures.
pub fn problem_report(p: engine::Problem) -> ProblemReport {
    let engine::Problem { kind, volume, others: _, offset, length, detail, repaired } = p;
    ProblemReport { kind: kind.to_owned(), volume, offset, length, detail, repaired }
}

/// Makes a [`Remembered`] from the engine's figures.
pub fn remembered(known: engine::Remembered) -> Remembered {
    Remembered {
        winner: known.winner,
        class: known.class,
        saving_percent: 100.0 * known.saving,
        units_since_test: known.units_since_test,
    }
}

/// Makes an [`ExplainMap`] from the engine's figures, for an object with so many bytes of data.
pub fn explain_map(map: engine::CodecMap, data_bytes: u64) -> ExplainMap {
    let cell = |cell: engine::MapCell| MapCell {
        offset: cell.offset,
        codec: cell.codec,
        raw_bytes: cell.raw_bytes,
        stored_bytes: cell.stored_bytes,
        winner: cell.winner,
    };
    // The map counts data slightly later than it is stored.
    let percent = 100.0 * map.looked_at_bytes as f64 / data_bytes.max(1) as f64;
    ExplainMap {
        size_bytes: map.size_bytes,
        cell_bytes: map.cell_bytes,
        looked_at_percent: if data_bytes == 0 { 100.0 } else { percent.min(100.0) },
        cells: map.cells.into_iter().map(|found| found.map(cell)).collect(),
    }
}

/// Makes a [`Region`] from the engine's figures.
pub fn region(report: engine::RegionReport) -> Region {
    let codec = |c: engine::CodecUse| CodecUse {
        codec: c.codec,
        units: c.units,
        raw_bytes: c.raw_bytes,
        stored_bytes: c.stored_bytes,
    };
    Region {
        offset: report.offset,
        raw_bytes: report.raw_bytes,
        stored_bytes: report.stored_bytes,
        codecs: report.codecs.into_iter().map(codec).collect(),
        remembered: report.remembered.map(remembered),
    }
}

/// Makes a [`Detail`] from the engine's figures.
pub fn detail(detail: engine::RegionDetail) -> Detail {
    let kib = detail.unit_bytes as f64 / 1024.0;
    let trial = |t: engine::Trial| Trial {
        codec: t.codec,
        stored_bytes: t.stored_bytes,
        cpu_us: t.cpu_ns as f64 / 1e3,
        expected_saving_percent: 100.0 * t.expected_saving,
        expected_cpu_us: t.expected_ns_per_kib * kib / 1e3,
        cost: t.cost,
        energy_uj: 1e6 * detail.power.joules(t.cpu_ns),
        verdict: t.verdict,
    };
    Detail {
        unit_offset: detail.unit_offset,
        unit_bytes: detail.unit_bytes,
        bits_per_byte: detail.bits_per_byte,
        class: detail.class,
        compression: detail.compression,
        mode: detail.mode,
        chosen: detail.chosen,
        why: detail.why,
        cpus: detail.cpus,
        device_bytes_per_s: (detail.device_ns_per_kib > 0.0).then(|| 1024e9 / detail.device_ns_per_kib),
        cpu_watts: detail.power.watts(),
        energy_source: detail.power.source().name().to_owned(),
        dictionary: detail.dictionary,
        dictionaries: detail.dictionaries,
        trials: detail.trials.into_iter().map(trial).collect(),
        region: region(detail.region),
    }
}

/// Makes a [`TraceLine`] from the engine's figures.
pub fn trace_line(r: engine::TraceRecord) -> TraceLine {
    TraceLine {
        number: r.number,
        unix_s: r.unix_s,
        object: r.object,
        offset: r.offset,
        raw_bytes: r.raw_bytes,
        stored_bytes: r.stored_bytes,
        codec: r.codec,
        class: r.class,
        why: r.why,
        cpu_ns: r.cpu_ns,
        test_ns: r.test_ns,
        cpus: r.cpus,
        device_ns_per_kib: r.device_ns_per_kib,
        pressed: r.pressed,
        energy_uj: 1e6 * r.power.joules(r.cpu_ns),
        power: r.power.watts(),
        energy_source: r.power.source().name().to_owned(),
        path: None,
        file_offset: None,
    }
}

/// Makes a [`Calibrated`] from the engine's figures.
pub fn calibrated(found: engine::Calibration) -> Calibrated {
    let power = found.power;
    let speed = |s: engine::CodecSpeed| {
        let ns_per_gb = s.ns_per_kib * 1e9 / 1024.0;
        Speed {
            codec: s.codec,
            unit_bytes: s.unit_bytes,
            ns_per_kib: s.ns_per_kib,
            mb_per_second: 1e12 / ns_per_gb.max(1.0),
            joules_per_gb: power.joules(ns_per_gb as u64),
        }
    };
    Calibrated {
        energy_source: power.source().name().to_owned(),
        cpu_watts: power.watts(),
        cpu_seconds: found.cpu_ns as f64 / 1e9,
        speeds: found.speeds.into_iter().map(speed).collect(),
    }
}

/// Makes a [`RecompressSlice`] from the engine's figures.
pub fn recompress_slice(report: engine::RecompressReport) -> RecompressSlice {
    RecompressSlice {
        finished: report.is_finished,
        started_unix_s: report.started_unix_s,
        mode: report.mode,
        extents_done: report.extents_done,
        extents_total: report.extents_total,
        extent_bytes: report.extent_bytes,
        bytes_done: report.bytes_done,
        bytes_total: report.bytes_total,
        fragments: report.fragments,
        rewritten: report.rewritten,
        before_bytes: report.before_bytes,
        after_bytes: report.after_bytes,
        damaged_fragments: report.damaged,
        foreground_bytes: report.foreground_bytes,
    }
}

/// Makes a [`CleanSlice`] from the engine's figures.
pub fn clean_slice(report: engine::CleanReport) -> CleanSlice {
    CleanSlice {
        finished: report.is_finished,
        extents_cleaned: report.extents_cleaned,
        bytes_moved: report.bytes_moved,
        extents_free: report.extents_free_after,
        extents_free_before: report.extents_free_before,
        extents_todo: report.extents_todo,
        mark: Some(report.mark.0),
    }
}

/// Makes a [`SortSlice`] from the engine's figures.
pub fn sort_slice(report: engine::SortReport) -> SortSlice {
    SortSlice {
        finished: report.is_finished,
        started_unix_s: report.started_unix_s,
        bytes_done: report.bytes_done,
        bytes_total: report.bytes_total,
        rewritten_bytes: report.rewritten_bytes,
        damaged_groups: report.damaged_groups,
        foreground_bytes: report.foreground_bytes,
    }
}

/// Makes a [`ShrinkSlice`] from the engine's figures.
pub fn shrink_slice(report: engine::ShrinkReport) -> ShrinkSlice {
    ShrinkSlice {
        finished: report.is_finished,
        capacity_bytes: report.capacity_bytes,
        extents_todo: report.extents_todo,
        bytes_todo: report.bytes_todo,
        bytes_moved: report.bytes_moved,
    }
}

/// Makes a [`ScrubSlice`] from the engine's figures.
pub fn scrub_slice(report: engine::ScrubReport) -> ScrubSlice {
    ScrubSlice {
        finished: report.is_finished,
        started_unix_s: report.started_unix_s,
        extents_done: report.extents_done,
        extents_total: report.extents_total,
        extent_bytes: report.extent_bytes,
        bytes_done: report.bytes_done,
        bytes_total: report.bytes_total,
        fragments: report.fragments,
        bytes: report.bytes,
        foreground_bytes: report.foreground_bytes,
        found: report.found,
        repaired: report.repaired,
        unacknowledged: report.unacknowledged,
        damages: report.damages.into_iter().map(problem_report).collect(),
    }
}

/// Makes a [`LossReport`] from the engine's figures.
pub fn loss_report(loss: &engine::Loss) -> LossReport {
    let of = |of: &engine::LossOf| LossOfReport {
        name: of.name.clone(),
        batches: of.batches,
        written_bytes: of.written_bytes,
        discarded_bytes: of.discarded_bytes,
        cut_off_bytes: of.cut_off_bytes,
        changes: of.changes.clone(),
    };
    LossReport {
        what: loss.what.clone(),
        first_batch: loss.first_batch,
        flushed_before: loss.flushed_before,
        batches: loss.batches,
        batches_whole: loss.batches_whole,
        batches_unknown: loss.batches_unknown,
        volumes: loss.volumes.iter().map(of).collect(),
    }
}

/// Makes a [`ImageLine`] from the engine's figures.
pub fn image_line(status: engine::ImageStatus) -> ImageLine {
    ImageLine {
        image: status.image.location,
        version: status.image.version,
        volumes: status.volumes.into_iter().chain(status.incoming).collect(),
        size_bytes: status.image.len,
        local_bytes: status.local_bytes,
        stored_bytes: status.stored_bytes,
        fetched_groups: status.fetched_groups,
        fetched_bytes: status.fetched_bytes,
        failures: status.failures,
        last_error: status.last_error,
        gone: status.is_gone,
        damaged: status.is_damaged,
        waiting: status.waiting,
        lacks_room: status.lacks_room,
        complete: status.is_whole,
    }
}

/// Makes a [`VolumeReport`] from the engine's figures.
pub fn volume_report(status: VolumeStatus, (clients, client_names): (usize, Vec<String>)) -> VolumeReport {
    VolumeReport {
        kind: if status.is_share() { ObjectKind::Share } else { ObjectKind::Volume },
        share: status.is_share(),
        folder: false,
        size_bytes: status.logical_bytes(),
        ratio: ratio(status.allocated_bytes, status.stored_bytes).filter(|_| status.allocated_bytes > 0),
        id: status.id.0,
        name: status.name,
        allocated_bytes: status.allocated_bytes,
        stored_bytes: status.stored_bytes,
        created_unix_s: status.created_unix_s,
        clients,
        client_names,
        incomplete: policy::is_incomplete(&status.properties),
        properties: status.properties,
        origin: status.origin,
        exact: status.is_exact,
        bookmarks: Vec::new(),
        unserved: None,
        snapshot_stored_bytes: None,
        snapshots: None,
    }
}

/// Makes a [`PropertyReport`] from the engine's property; `own` names the source if it is the
/// volume, the share or the folder itself. An inherited value comes from a folder if `is_folder`
/// says so, or else from a share.
pub fn property_report(property: Property, own: &str, is_folder: impl Fn(&str) -> bool) -> PropertyReport {
    let (source, folder) = match property.source {
        PropertySource::Default => ("default", None),
        PropertySource::Pool => ("pool", None),
        PropertySource::Folder(name) if is_folder(&name) => ("folder", Some(name)),
        PropertySource::Folder(name) => ("share", Some(name)),
        PropertySource::Own => (own, None),
    };
    let known = policy::PropertyKey::named(&property.key);
    // A single value is the default of a size, a number or a list.
    let values = Some(policy::values(&property.key)).filter(|values| values.len() > 1).unwrap_or_default();
    let set = policy::RuleSet::parse(&property.value).filter(|_| property.key == policy::RULE_SET).unwrap_or_default();
    let rules = set.rules().iter().map(|(word, rule)| ((*word).to_owned(), (*rule).to_owned())).collect();
    PropertyReport {
        key: property.key,
        value: property.value,
        source: source.to_owned(),
        folder,
        values,
        allowed: known.map_or_else(String::new, |known| known.allowed.to_owned()),
        description: known.map_or_else(String::new, |known| known.description.to_owned()),
        rules,
    }
}

/// Makes a [`CheckSummary`] from the engine's report.
pub fn check_summary(report: CheckReport, seconds: f64) -> CheckSummary {
    let problems: Vec<_> = report.problems.into_iter().map(problem_report).collect();
    CheckSummary {
        clean: report.problems_left == 0,
        records: report.records,
        fragments: report.fragments,
        fragment_bytes: report.fragment_bytes,
        seconds,
        problems_total: report.problems_total,
        problems_left: report.problems_left,
        volumes: report.volumes,
        kinds: report.kinds,
        problems,
        log_end: report.log_end,
        notes: report.notes,
        loss: None,
        names_lost: Vec::new(),
        attributes_lost: Vec::new(),
        is_mendable: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repaired_problems_leave_a_clean_pool() {
        let problem = |repaired| engine::Problem {
            kind: "usage",
            detail: "extent 7: 12 bytes live, 16 counted".to_owned(),
            repaired,
            ..engine::Problem::default()
        };
        let report = |problems: Vec<engine::Problem>| {
            let mut report = CheckReport::default();
            problems.into_iter().for_each(|problem| report.add(problem));
            report
        };
        assert!(check_summary(report(vec![]), 0.0).clean);
        assert!(check_summary(report(vec![problem(true)]), 0.0).clean);
        assert!(!check_summary(report(vec![problem(true), problem(false)]), 0.0).clean);
    }
}
