//! Disk images in container formats such as qcow2: recognised by their first bytes, and by file
//! extensions. A volume holds the raw disk.

use std::path::Path;

use surface::{Error, ErrorKind};

/// Bytes at the start of a file that identify all of them.
pub const BEGINNING_BYTES: usize = 512;

/// A format: its name, and the offset and value of its signature.
const FORMATS: [(&str, usize, &[u8]); 5] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VDI", 64, b"\x7f\x10\xda\xbe"),
];

/// File extensions of these formats.
const ENDINGS: [(&str, &str); 6] =
    [("qcow2", "qcow2"), ("qcow", "qcow2"), ("vmdk", "VMDK"), ("vhdx", "VHDX"), ("vhd", "VHD"), ("vdi", "VDI")];

/// Returns the format identified by the first bytes of a file.
fn format_of(beginning: &[u8]) -> Option<&'static str> {
    let is_it =
        |(_, at, bytes): &&(&str, usize, &[u8])| beginning.get(*at..).is_some_and(|rest| rest.starts_with(bytes));
    FORMATS.iter().find(is_it).map(|(format, ..)| *format)
}

/// Refuses a file that starts with the signature of such a format: imported as is, it would not be
/// a disk. `is_stream`: its name is not a path.
///
/// # Errors
/// `Invalid`, with the right command.
pub fn refuse(beginning: &[u8], source: &str, is_stream: bool, volume: &str) -> Result<(), Error> {
    let Some(format) = format_of(beginning) else { return Ok(()) };
    let (saved, file) = if is_stream { ("save it as FILE, then ", "FILE") } else { ("", source) };
    let text = format!(
        "{source} is a disk image of format {format}, not a raw disk: {saved}convert it with 'qemu-img convert -O raw {file} disk.img' \
         and import the result; or without a copy, over NBD (see shale serve --help), 'qemu-img convert -n -O raw {file} \
         nbd+unix:///{volume}?socket=SOCKET', into a volume of the disk's size; --as-is imports the file's bytes unchanged"
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Returns a warning for an export into a file with the extension of such a format.
pub fn warning_of(target: &Path) -> Option<String> {
    let ending = target.extension()?.to_str()?.to_ascii_lowercase();
    let (_, format) = ENDINGS.iter().find(|(known, _)| *known == ending)?;
    Some(format!(
        "{} is a raw disk image, not {format} (its name notwithstanding); convert it with 'qemu-img convert -f raw -O FORMAT'",
        target.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_their_first_bytes() {
        let mut vdi = vec![b' '; 64];
        vdi.extend(b"\x7f\x10\xda\xbe");
        let known: [(&[u8], _); 6] = [
            (b"QFI\xfb\0\0\0\x03", Some("qcow2")),
            (b"KDMV\x01", Some("VMDK")),
            (b"# Disk DescriptorFile\nversion=1", Some("VMDK")),
            (b"vhdxfile", Some("VHDX")),
            (&vdi, Some("VDI")),
            (b"\xeb\x63\x90", None),
        ];
        for (beginning, format) in known {
            assert_eq!(format_of(beginning), format, "{beginning:?}");
            assert_eq!(refuse(beginning, "x.img", false, "vm").is_err(), format.is_some());
        }
        assert_eq!(format_of(b""), None);
        let told = refuse(b"QFI\xfb", "a.img", false, "vm").unwrap_err().to_string();
        for part in ["format qcow2", "qemu-img convert -O raw a.img disk.img", "nbd+unix:///vm?", "--as-is"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert!(refuse(b"QFI\xfb", "stdin", true, "vm").unwrap_err().to_string().contains("save it as FILE"));
    }

    #[test]
    fn an_export_is_warned_of_by_its_name() {
        for (name, is_told) in
            [("a.qcow2", true), ("/x/b.VMDK", true), ("a.img", false), ("a", false), ("a.raw", false)]
        {
            assert_eq!(warning_of(Path::new(name)).is_some(), is_told, "{name}");
        }
    }
}
