//! The doors of shares: which network protocols give a share out, to which clients, and the
//! configuration text of the servers that do it. Pure: owns no files, no processes and no state.
//!
//! A door is a property of a share ([`Access`] is what its value means). [`Settings`] are what
//! holds for a machine: addresses and ports. From both, and the [`Export`]s, come the texts of
//! [`ganesha`], [`samba`], [`apache`] and [`vsftpd`].

mod access;
pub mod apache;
mod export;
pub mod ganesha;
mod network;
pub mod samba;
mod settings;
pub mod vsftpd;

pub use access::{Access, AccessError, Door, Grant, Squash};
pub use export::{Export, Places, checked_path};
pub use network::Network;
pub use settings::{Settings, SettingsError};

/// A number that stands for a configuration text (FNV-1a, 64 bits). A server that is asked what it
/// serves tells it: so the text that is in force is known.
pub fn mark_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
