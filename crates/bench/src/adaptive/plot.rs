//! Plots as SVG, without a library: scatter plots are simple. One dot for each unit, CPU time over
//! position, codec as colour (as in figures 6.13 and 6.14 of Ehmke's thesis).

use std::fmt::Write as _;

use policy::{Auto, PlainTable};

use super::Kinds;
use super::matrix::Matrix;
use super::replay::Replay;
use crate::{Context, Outcome};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 60.0;
/// Decades of the time axis: from 10 nanoseconds per KiB to 1 millisecond.
const DECADES: std::ops::RangeInclusive<i32> = 1..=6;
/// Codecs get these in the order in which they appear.
const COLOURS: [&str; 8] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#000000"];

/// The scatter of `auto` over units in this order.
pub fn scatter(context: &Context, matrix: &Matrix, kinds: &Kinds, order: &[usize], auto: Auto) -> Outcome<()> {
    let table = PlainTable::default();
    let mut dots = Vec::new();
    let kib = matrix.unit_bytes as f64 / 1024.0;
    Replay::new(matrix, kinds, auto, &table).run(order, |_, stored| {
        dots.push((stored.codec.to_string(), stored.cpu_ns as f64 / kib));
    });
    let mut codecs: Vec<String> = Vec::new();
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(svg, r#"<rect width="100%" height="100%" fill="white"/>"#)?;
    let (left, right, top, bottom) = (MARGIN, WIDTH - 130.0, 30.0, HEIGHT - 40.0);
    let (first, last) = (f64::from(*DECADES.start()), f64::from(*DECADES.end()));
    let y = |ns: f64| bottom - (ns.max(10.0).log10() - first) / (last - first) * (bottom - top);
    for decade in DECADES {
        let at = y(10f64.powi(decade));
        writeln!(svg, r##"<line x1="{left}" x2="{right}" y1="{at:.1}" y2="{at:.1}" stroke="#dddddd"/>"##)?;
        writeln!(svg, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">1e{decade}</text>"#, left - 6.0, at + 4.0)?;
    }
    for (index, (codec, ns)) in dots.iter().enumerate() {
        let colour = codecs.iter().position(|c| c == codec).unwrap_or_else(|| {
            codecs.push(codec.clone());
            codecs.len() - 1
        });
        let x = left + index as f64 / dots.len() as f64 * (right - left);
        let colour = COLOURS[colour % COLOURS.len()];
        writeln!(svg, r#"<circle cx="{x:.1}" cy="{:.1}" r="1.5" fill="{colour}"/>"#, y(*ns))?;
    }
    for (index, codec) in codecs.iter().enumerate() {
        let (at, colour) = (top + 18.0 * index as f64, COLOURS[index % COLOURS.len()]);
        writeln!(svg, r#"<circle cx="{:.1}" cy="{at:.1}" r="5" fill="{colour}"/>"#, right + 20.0)?;
        writeln!(svg, r#"<text x="{:.1}" y="{:.1}">{codec}</text>"#, right + 32.0, at + 4.0)?;
    }
    let size = matrix.unit_bytes >> 10;
    let title =
        format!("auto, {}, units of {size} KiB, all kinds interleaved: CPU ns per KiB over position", auto.mode);
    writeln!(svg, r#"<text x="{left}" y="18" font-size="14">{title}</text>"#)?;
    let end = (dots.len() * matrix.unit_bytes) >> 20;
    writeln!(svg, r#"<text x="{right}" y="{:.1}" text-anchor="end">{end} MiB</text></svg>"#, HEIGHT - 16.0)?;
    let dir = context.out.parent().unwrap_or_else(|| std::path::Path::new("."));
    std::fs::create_dir_all(dir)?;
    let path = dir.join(format!("adaptive-{}-{size}k.svg", auto.mode));
    std::fs::write(&path, svg)?;
    println!("\nplot: {}", path.display());
    Ok(())
}
