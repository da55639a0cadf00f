//! Notes on open doors that some clients do not reach: nothing serves them, or the servers listen
//! on this machine's loopback only.

use doors::{Access, Door};

use super::Exports;
use super::world::World;

/// Returns notes on doors that were opened where the server of the pool serves none.
pub fn unserved_notes(changes: &[(String, Option<String>)]) -> Vec<String> {
    let open: Vec<_> = opened(changes).map(|(door, ..)| door.name()).collect();
    if open.is_empty() {
        return Vec::new();
    }
    let doors = open.join(", ");
    vec![format!(
        "nothing serves {doors}: the pool's server runs without --exports (shale serve POOL --shares DIR --exports DIR)"
    )]
}

/// Returns the doors that changes of properties open.
fn opened(changes: &[(String, Option<String>)]) -> impl Iterator<Item = (Door, Access)> {
    changes.iter().filter_map(|(key, value)| {
        let door = Door::of_property(key)?;
        let access = Access::parse(door, value.as_deref()?).ok()?;
        access.is_open().then_some((door, access))
    })
}

impl World {
    /// Returns the networks of a door that do not reach its server, and the reason.
    pub fn unreached(&self, access: &Access) -> Option<String> {
        let address = self.settings.address;
        if !address.is_loopback() {
            return None;
        }
        let networks = access.grants.iter().filter_map(|grant| grant.clients);
        let networks: Vec<_> = networks.filter(|net| !net.is_loopback()).map(|net| net.to_string()).collect();
        let file = self.file("settings");
        (!networks.is_empty()).then(|| {
            format!(
                "{} not reached: the servers listen on {address} only; set address in {} and restart shale serve",
                if let [one] = &*networks { format!("{one} is") } else { format!("{} are", networks.join(" and ")) },
                file.display()
            )
        })
    }
}

impl Exports {
    /// Returns notes on doors that were opened.
    pub fn notes(&self, changes: &[(String, Option<String>)]) -> Vec<String> {
        let world = &self.shown.world;
        let note = |(door, access): (Door, Access)| Some(format!("{}: {}", door.name(), world.unreached(&access)?));
        opened(changes).filter_map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> (String, Option<String>) {
        (key.to_owned(), Some(value.to_owned()))
    }

    #[test]
    fn doors_that_nothing_serves_are_noted_and_shut_ones_are_not() {
        let changes = [set("smb", "rw"), set("unit", "32K"), set("http", "off"), ("nfs".to_owned(), None)];
        let notes = unserved_notes(&changes);
        assert!(notes.len() == 1 && notes[0].starts_with("nothing serves smb: "), "{notes:?}");
        assert_eq!(unserved_notes(&changes[1..]), [""; 0]);
    }

    #[test]
    fn networks_that_loopback_does_not_reach_are_named() {
        let dir = testkit::TempDir::new("exports-reach");
        let unreached = |settings: &str, value: &str| {
            std::fs::write(dir.path().join("settings"), settings).unwrap();
            let access = Access::parse(Door::Nfs, value).unwrap();
            World::open(dir.path(), false).unwrap().unreached(&access)
        };
        let found = unreached("", "rw@10.0.0.0/8,ro@127.0.0.0/8,ro@192.0.2.0/24").unwrap();
        assert!(found.starts_with("10.0.0.0/8 and 192.0.2.0/24 are not reached: "), "{found}");
        assert!(found.contains("listen on 127.0.0.1 only") && found.contains("/settings"), "{found}");
        assert_eq!(unreached("", "rw@127.0.0.0/8,ro"), None);
        assert_eq!(unreached("address = 0.0.0.0", "rw@10.0.0.0/8"), None);
    }
}
