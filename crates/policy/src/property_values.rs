//! Reads the values of properties: switches, unit sizes, limits, percentages.

use units::{BLOCK_BYTES, GROUP_BLOCKS, parse_size};

pub(crate) fn parse_switch(value: &str) -> Option<bool> {
    match value {
        "auto" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Parses a size, or two in ascending order.
pub(crate) fn parse_units(value: &str) -> Option<(u32, u32)> {
    let (low, high) = value.split_once('-').unwrap_or((value, value));
    let (low, high) = (parse_unit(low)?, parse_unit(high)?);
    (low <= high).then_some((low, high))
}

fn parse_unit(value: &str) -> Option<u32> {
    let bytes = parse_size(value).ok()?;
    let blocks = u32::try_from(bytes / BLOCK_BYTES as u64).ok()?;
    let fits = bytes.is_multiple_of(BLOCK_BYTES as u64) && blocks <= GROUP_BLOCKS as u32 && blocks.is_power_of_two();
    fits.then_some(blocks)
}

/// Parses a size, or `none`.
pub(crate) fn parse_bytes(value: &str) -> Option<Option<u64>> {
    if value == "none" { Some(None) } else { parse_size(value).ok().map(Some) }
}

/// Parses a percentage with at most one decimal and an optional `%`, into thousandths.
pub(crate) fn parse_permille(value: &str) -> Option<u32> {
    let number = value.strip_suffix('%').unwrap_or(value);
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let digits =
        |text: &str, most: usize| (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole, 2) || !digits(tenths, 1) {
        return None;
    }
    let permille = whole.parse::<u32>().ok()? * 10 + tenths.parse::<u32>().ok()?;
    (permille <= 900).then_some(permille)
}
