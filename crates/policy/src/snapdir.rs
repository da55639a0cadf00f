//! Visibility of a share's snapshots in its mount: the property `snapdir`.

/// The value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SnapDir {
    /// A listing of the root shows `.shale`, and all users may enter it.
    Visible,
    /// All users may enter it, and no listing shows it.
    Hidden,
    /// Only root may enter it: files in snapshots keep their modes, and some were deleted since.
    #[default]
    Root,
    /// The directory does not exist.
    Off,
}

impl SnapDir {
    /// The allowed values, for help and messages.
    pub const ALLOWED: &str = "visible (listed), hidden (not listed), root (root only), off";

    /// Parses a value.
    pub fn parse(value: &str) -> Option<Self> {
        Some(match value {
            "visible" => Self::Visible,
            "hidden" => Self::Hidden,
            "root" => Self::Root,
            "off" => Self::Off,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_and_others_refused() {
        assert_eq!(SnapDir::parse("hidden"), Some(SnapDir::Hidden));
        assert_eq!(SnapDir::parse("root"), Some(SnapDir::default()));
        for wrong in ["", "Root", "on", "none"] {
            assert_eq!(SnapDir::parse(wrong), None, "{wrong}");
        }
    }
}
