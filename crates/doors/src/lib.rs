//! The doors of shares: the network protocols that export a share, the clients admitted, and the
//! configuration text of the servers. Pure: owns no files, no processes and no state.
//!
//! A door is a property of a share ([`Access`] is its parsed value). [`Settings`] apply to a
//! machine: addresses and ports. From both, and the [`Export`]s, [`ganesha`], [`samba`], [`apache`]
//! and [`vsftpd`] produce configuration texts.

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

/// Hash of a configuration text (FNV-1a, 64 bits). A running server reports it, which identifies
/// the text in force.
pub fn mark_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
