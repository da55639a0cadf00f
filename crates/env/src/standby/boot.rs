//! Identifies the current boot of the machine: memory left by another boot is void.

use std::io::{Error, ErrorKind, Result};

/// Kernel file that identifies the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the number of this boot.
///
/// # Errors
/// When the system does not report it.
pub(super) fn this_boot() -> Result<[u8; 16]> {
    let text = std::fs::read_to_string(BOOT_ID)?;
    let digits: Vec<u8> = text.bytes().filter_map(|byte| char::from(byte).to_digit(16)).map(|d| d as u8).collect();
    let mut boot = [0; 16];
    if digits.len() != 2 * boot.len() {
        return Err(Error::new(ErrorKind::InvalidData, format!("{BOOT_ID} holds '{}'", text.trim())));
    }
    for (byte, pair) in boot.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(boot)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_boot_has_one_number() {
        assert_eq!(super::this_boot().unwrap(), super::this_boot().unwrap());
    }
}
