//! The screen of `shale top`. Owns the terminal while it is shown, and always restores it.

use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Row, Table};
use surface::Error;

use super::interruption::Interruption;
use super::top::{summary, tables};
use super::top_report::TopReport;
use operations::Outcome;

/// Interval of checks for keys and signals.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Lines of the table of codecs, with its borders and header.
const CODEC_LINES: u16 = 9;
const JOB_LINES: u16 = 6;

/// Sort order of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Bytes,
    Reads,
    Writes,
    Latency,
}

impl Order {
    const ALL: [Self; 4] = [Self::Bytes, Self::Reads, Self::Writes, Self::Latency];

    const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Latency => "latency",
        }
    }

    fn turned(self, by: usize) -> Self {
        let place = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(place + by) % Self::ALL.len()]
    }

    fn sort(self, report: &mut TopReport) {
        report.objects.sort_by_key(|object| {
            std::cmp::Reverse(match self {
                Self::Bytes => object.read_bytes + object.written_bytes,
                Self::Reads => object.reads,
                Self::Writes => object.writes,
                Self::Latency => object.read_p99_ns.max(object.write_p99_ns).unwrap_or(0),
            })
        });
    }
}

/// See the module's text.
pub struct Screen {
    terminal: DefaultTerminal,
    order: Order,
    is_paused: bool,
}

fn failed(error: std::io::Error) -> Error {
    Error::from_io("the terminal cannot be used", error)
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl Screen {
    /// Takes over the terminal.
    pub fn new() -> Outcome<Self> {
        let terminal = ratatui::try_init().map_err(failed)?;
        Ok(Self { terminal, order: Order::Bytes, is_paused: false })
    }

    /// Shows the reports of `take`, until a key or a signal ends it.
    pub fn run(
        mut self,
        every: Duration,
        interruption: &Interruption,
        mut take: impl FnMut() -> Outcome<TopReport>,
    ) -> Outcome {
        let mut report: Option<TopReport> = None;
        let mut due = Instant::now() + every.min(Duration::from_secs(1));
        loop {
            if let Some(report) = &mut report {
                self.order.sort(report);
            }
            let (order, is_paused) = (self.order, self.is_paused);
            self.terminal.draw(|frame| draw(frame, report.as_ref(), order, is_paused)).map_err(failed)?;
            while Instant::now() < due || self.is_paused {
                if interruption.has_come() {
                    return Ok(());
                }
                if event::poll(LOOK_EVERY).map_err(failed)? {
                    match event::read().map_err(failed)? {
                        Event::Key(key) if key.kind == KeyEventKind::Press => {
                            let is_end =
                                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                            if is_end || self.press(key.code) {
                                return Ok(());
                            }
                            break;
                        }
                        Event::Resize(..) => break,
                        _ => {}
                    }
                }
            }
            if Instant::now() >= due && !self.is_paused {
                report = Some(take()?);
                due = Instant::now() + every;
            }
        }
    }

    /// Handles a key; returns `true` at the end.
    fn press(&mut self, key: KeyCode) -> bool {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Right | KeyCode::Down => self.order = self.order.turned(1),
            KeyCode::Left | KeyCode::Up => self.order = self.order.turned(Order::ALL.len() - 1),
            _ => {}
        }
        false
    }
}

fn draw(frame: &mut Frame<'_>, report: Option<&TopReport>, order: Order, is_paused: bool) {
    let Some(report) = report else {
        frame.render_widget(Line::from("waiting for the first report"), frame.area());
        return;
    };
    let jobs = if report.jobs.is_empty() { 0 } else { JOB_LINES };
    let parts = [Constraint::Length(2), Constraint::Min(4), Constraint::Length(CODEC_LINES), Constraint::Length(jobs)];
    let [head, of_objects, of_codecs, of_jobs] = Layout::vertical(parts).areas(frame.area());
    let state = if is_paused { "paused; " } else { "" };
    let keys = format!("{state}objects by {}; q ends, space pauses, arrows choose the order", order.name());
    frame.render_widget(ratatui::text::Text::from(vec![Line::from(summary(report)), Line::from(keys)]), head);
    let [objects, codecs, job_rows] = tables(report);
    show(frame, of_objects, "objects", &objects, 24);
    show(frame, of_codecs, "written by codec", &codecs, 12);
    if jobs > 0 {
        show(frame, of_jobs, "jobs", &job_rows, 6);
    }
}

fn show(frame: &mut Frame<'_>, area: Rect, title: &str, rows: &[Vec<String>], first: u16) {
    let Some((header, rows)) = rows.split_first() else { return };
    let widths = header.iter().enumerate().map(|(column, _)| match column {
        0 => Constraint::Min(first),
        _ => Constraint::Length(12),
    });
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let table = Table::new(rows.iter().map(|row| Row::new(row.clone())), widths)
        .header(Row::new(header.clone()).style(bold))
        .block(Block::default().borders(Borders::TOP).title(title.to_owned()));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use report::ObjectKind;

    use super::*;
    use crate::commands::top_report::{TopCodec, TopObject};

    fn report() -> TopReport {
        let object = |object: &str, reads: u64, written_bytes: u64| TopObject {
            object: object.to_owned(),
            id: 1,
            kind: ObjectKind::Volume,
            door: "nbd".to_owned(),
            reads,
            writes: 2,
            read_bytes: 0,
            written_bytes,
            read_p99_ns: Some(2_000_000),
            write_p99_ns: None,
        };
        let codec = TopCodec { codec: "zstd-3".to_owned(), raw_bytes: 4 << 20, stored_bytes: 2 << 20, compress_ns: 1 };
        TopReport {
            version: 1,
            pool: "/srv/pool".to_owned(),
            seconds: 2.0,
            objects: vec![object("first", 1, 4 << 20), object("second", 9, 0)],
            codecs: vec![codec],
            capacity_bytes: 1 << 30,
            stored_bytes: 1 << 20,
            available_bytes: 1 << 29,
            ratio: Some(2.5),
            saving_percent: Some(60.0),
            disk_written_bytes: 2 << 20,
            jobs: Vec::new(),
        }
    }

    #[test]
    fn a_screen_has_objects_codecs_and_the_ratio() {
        let mut terminal = Terminal::new(TestBackend::new(110, 24)).unwrap();
        let mut report = report();
        Order::Reads.sort(&mut report);
        terminal.draw(|frame| draw(frame, Some(&report), Order::Reads, true)).unwrap();
        let text = terminal.backend().to_string();
        for part in ["2.50x, saves 60 %", "paused; objects by reads", "2 MiB", "2.0 ms", "zstd-3", "2.00x"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.find("second").unwrap() < text.find("first").unwrap(), "{text}");
        assert_eq!(Order::Bytes.turned(Order::ALL.len() - 1).turned(1), Order::Bytes);
    }

    #[test]
    fn a_small_terminal_and_no_report_are_no_fault() {
        for (columns, lines) in [(1, 1), (20, 3), (200, 80)] {
            let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
            terminal.draw(|frame| draw(frame, Some(&report()), Order::Bytes, false)).unwrap();
            terminal.draw(|frame| draw(frame, None, Order::Bytes, false)).unwrap();
        }
    }
}
