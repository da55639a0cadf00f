//! Which boot of the machine this is: what another boot left is not from the memory of this one.

use std::io::{Error, ErrorKind, Result};

/// Where the kernel tells which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A number of this boot of the machine.
///
/// # Errors
/// When the system does not tell.
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
