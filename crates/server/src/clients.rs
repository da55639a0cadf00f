//! The clients of each device, by its permanent number: how many, which of them have disconnected,
//! and their names for messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use surface::{Client, DeviceId};

/// Maximum number of clients in a message.
const NAMED_MAX: usize = 3;

/// A client that has a device open: the device, the client's number, and the client.
pub type Open = (DeviceId, u64, Arc<dyn Client>);

/// A client's number, and the client.
type Holder = (u64, Arc<dyn Client>);

/// The clients that have devices open.
#[derive(Default)]
pub struct Clients {
    open: BTreeMap<DeviceId, Vec<Holder>>,
    /// Number of the next client.
    next: u64,
}

impl Clients {
    /// Returns the clients of a device.
    pub fn of(&self, id: DeviceId) -> &[(u64, Arc<dyn Client>)] {
        self.open.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Returns how many clients have a device open.
    pub fn count(&self, id: DeviceId) -> usize {
        self.of(id).len()
    }

    /// Adds a client and returns its number.
    pub fn add(&mut self, id: DeviceId, client: &Arc<dyn Client>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.entry(id).or_default().push((number, Arc::clone(client)));
        number
    }

    /// Removes the client of that number, which has closed the device.
    pub fn remove(&mut self, id: DeviceId, number: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.retain(|(other, _)| *other != number);
            if open.is_empty() {
                self.open.remove(&id);
            }
        }
    }

    /// Returns the disconnected clients of these devices whose last requests are still running.
    pub fn gone(&self, ids: &[DeviceId]) -> Vec<Open> {
        let mut gone = Vec::new();
        for id in ids {
            let of = self.of(*id).iter().filter(|(_, client)| client.is_gone());
            gone.extend(of.map(|(number, client)| (*id, *number, Arc::clone(client))));
        }
        gone
    }

    /// Returns whether any of these clients still has its device open.
    pub fn has_any(&self, clients: &[Open]) -> bool {
        clients.iter().any(|(id, number, _)| self.of(*id).iter().any(|(other, _)| other == number))
    }

    /// Returns, for example,
    /// `open by 2 clients: NBD client 10.0.0.7:4711; a command, process 4 (shale) of user 0`.
    pub fn words(&self, id: DeviceId) -> String {
        let open = self.of(id);
        words_of(open.len(), open.iter().map(|(_, client)| client.name()))
    }
}

/// The same for a number of clients, some of whose names are known.
pub fn words_of(clients: usize, names: impl Iterator<Item = String>) -> String {
    let plural = if clients == 1 { "" } else { "s" };
    let names: Vec<String> = names.take(NAMED_MAX).collect();
    let more = clients.saturating_sub(names.len());
    let mut text = format!("open by {clients} client{plural}");
    if !names.is_empty() {
        text.push_str(&format!(": {}", names.join("; ")));
        if more > 0 {
            text.push_str(&format!("; and {more} more"));
        }
    }
    text
}

/// Returns the names of some clients, for a message.
pub fn names_of<'a>(mut clients: impl ExactSizeIterator<Item = &'a Arc<dyn Client>>) -> String {
    let mut text = clients.by_ref().take(NAMED_MAX).map(|client| client.name()).collect::<Vec<_>>().join("; ");
    if clients.len() > 0 {
        text.push_str(&format!("; and {} more", clients.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use surface::NamedClient;

    use super::*;

    #[test]
    fn a_message_names_a_few() {
        let (mut clients, id) = (Clients::default(), DeviceId(7));
        let first = clients.add(id, &NamedClient::shared("a"));
        assert_eq!(clients.words(id), "open by 1 client: a");
        for name in ["b", "c", "d", "e"] {
            clients.add(id, &NamedClient::shared(name));
        }
        assert_eq!(clients.words(id), "open by 5 clients: a; b; c; and 2 more");
        clients.remove(id, first);
        assert_eq!((clients.count(id), clients.count(DeviceId(8))), (4, 0));
    }
}
