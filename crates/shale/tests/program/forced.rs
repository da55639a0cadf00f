//! Messages about clients that have an object open: their names, and the effect of `--force` on
//! them.

use copy::volume_io::VolumeIo;
use server::control::Client;

use crate::support::{Dir, Server, noise, on, path};

/// Returns a served pool with the volume `v` of 1 MiB and its snapshots `a` and `b`; this process
/// has the volume open.
fn held_open() -> (Dir, Server, impl Sized) {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    on(&dir, "snapshot", &["v@a"]).ok();
    on(&dir, "snapshot", &["v@b"]).ok();
    let server = Server::start(&dir, &[]);
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    (dir, server, client.volume("v", None).unwrap())
}

/// Returns the name of this process in messages.
fn own_name() -> String {
    format!("command, process {} (", std::process::id())
}

#[test]
fn a_list_names_the_clients_of_each_volume() {
    let (dir, server, open) = held_open();
    let list = on(&dir, "list", &["-r", "--json"]).ok().json();
    let names = list[0]["client_names"].as_array().unwrap();
    assert_eq!((names.len(), &list[0]["clients"]), (1, &1.into()));
    assert!(names[0].as_str().unwrap().starts_with(&own_name()), "{names:?}");
    assert_eq!(list[0]["snapshots"][0]["client_names"].as_array().unwrap().len(), 0);
    drop(open);
    server.stop();
    assert_eq!(on(&dir, "list", &["--json"]).ok().json()[0]["client_names"].as_array().unwrap().len(), 0);
}

#[test]
fn an_import_over_an_open_volume_says_who_has_it() {
    let (dir, server, open) = held_open();
    let source = dir.join("source");
    std::fs::write(&source, noise(4096)).unwrap();
    let refused = on(&dir, "import", &["v", path(&source), "--overwrite"]).code(4);
    let words = format!("volume 'v' is open by 1 client: {}", own_name());
    assert!(refused.stderr.contains(&words), "{}", refused.stderr);
    drop(open);
    on(&dir, "import", &["v", path(&source), "--overwrite"]).ok();
    server.stop();
}

#[test]
fn force_says_who_loses_what() {
    let (dir, server, open) = held_open();
    let is_open = format!("'v' is open by 1 client: {}", own_name());
    for (words, consequence) in [
        (&["rollback", "v@a", "-r", "--force"][..], "its content changes under them"),
        (&["resize", "v", "512K", "--shrink", "--force"], "its clients lose the part after its new end"),
        (&["destroy", "v", "-r", "--force"], "each of their requests fails from now on"),
    ] {
        let done = on(&dir, words[0], &words[1..]).ok();
        assert!(done.stderr.contains(&is_open) && done.stderr.contains(consequence), "{words:?}: {}", done.stderr);
        // No client has the snapshots open.
        assert_eq!(done.stderr.matches("is open by").count(), 1, "{}", done.stderr);
    }
    drop(open);
    // Without clients there is no message.
    on(&dir, "create", &["w", "--size", "1M"]).ok();
    let done = on(&dir, "destroy", &["w", "--force"]).ok();
    assert_eq!(done.stderr.matches("is open by").count(), 0, "{}", done.stderr);
    server.stop();
    on(&dir, "check", &[]).ok();
}

/// A difference for a volume that a client has open: refused, and with `--force` received, after a
/// message about the client.
#[test]
fn a_difference_into_an_open_volume_wants_force() {
    let (to, server, open) = held_open();
    drop(open);
    let from = Dir::with_pool("64M");
    on(&from, "create", &["w", "--size", "1M"]).ok();
    on(&from, "snapshot", &["w@a"]).ok();
    let [whole, difference, image] = ["whole", "difference", "image"].map(|name| from.join(name));
    on(&from, "send", &["w@a", "-o", path(&whole)]).ok();
    let data = noise(1 << 20);
    std::fs::write(&image, &data).unwrap();
    on(&from, "import", &["w", path(&image), "--overwrite"]).ok();
    on(&from, "snapshot", &["w@b"]).ok();
    on(&from, "send", &["w@b", "--from", "a", "-o", path(&difference)]).ok();
    on(&to, "receive", &["w", "-i", path(&whole)]).ok();

    let client = Client::connect(&to.pool().join("control.sock")).unwrap();
    let volume = client.volume("w", None).unwrap();
    let is_open = format!("'w' is open by 1 client: {}", own_name());
    let refused = on(&to, "receive", &["w", "-i", path(&difference)]).code(4);
    assert!(refused.stderr.contains(&is_open), "{}", refused.stderr);
    let mut bytes = vec![1; data.len()];
    volume.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "a stream that was refused has changed the volume");

    let done = on(&to, "receive", &["w", "-i", path(&difference), "--force"]).ok();
    assert!(done.stderr.contains(&is_open) && done.stderr.contains("its content changes"), "{}", done.stderr);
    volume.read(0, &mut bytes).unwrap();
    assert!(bytes == data, "the client does not see what was received");
    drop(volume);
    server.stop();
    on(&to, "check", &[]).ok();
}

/// A client of a snapshot loses it with the volume.
#[test]
fn force_names_the_clients_of_snapshots_that_go() {
    let (dir, server, open) = held_open();
    drop(open);
    let client = Client::connect(&dir.pool().join("control.sock")).unwrap();
    let volume = client.volume("v@b", None).unwrap();
    let refused = on(&dir, "rollback", &["v@a", "-r"]).code(4);
    assert!(refused.stderr.contains("'v@b' is open by 1 client"), "{}", refused.stderr);
    let done = on(&dir, "rollback", &["v@a", "-r", "--force"]).ok();
    assert!(done.stderr.contains(&format!("'v@b' is open by 1 client: {}", own_name())), "{}", done.stderr);
    assert!(done.stderr.contains("each of their requests fails"), "{}", done.stderr);
    assert!(volume.read(0, &mut [0; 4096]).is_err());
    drop(volume);
    server.stop();
}

#[test]
fn holds_and_bookmarks_are_listed() {
    let dir = Dir::with_pool("64M");
    on(&dir, "create", &["v", "--size", "1M"]).ok();
    on(&dir, "snapshot", &["v@a"]).ok();
    on(&dir, "bookmark", &["v@a", "then"]).ok();
    assert!(!on(&dir, "list", &["-r"]).ok().stdout.contains("HOLDS"), "nothing is held");
    on(&dir, "hold", &["v@a", "offsite"]).ok();
    on(&dir, "hold", &["v@a", "audit"]).ok();
    let table = on(&dir, "list", &["-r"]).ok().stdout;
    let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
    assert!(line("v@a").contains("audit") && line("v@a").contains("offsite"), "{table}");
    assert!(line("v#then").contains("20"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let list = on(&dir, "list", &["-r", "--json"]).ok().json();
    assert_eq!(list[0]["bookmarks"][0]["bookmark"], "v#then");
    assert_eq!(list[0]["snapshots"][0]["holds"].as_array().unwrap().len(), 2);
    let bare = on(&dir, "list", &["-H", "-o", "name,bookmarks"]).ok().stdout;
    assert_eq!(bare, "v\tthen\n");
    let status = on(&dir, "status", &["--json"]).ok().json();
    assert_eq!((&status["bookmarks"], &status["holds"], &status["held_snapshots"]), (&1.into(), &2.into(), &1.into()));
    let shown = on(&dir, "status", &[]).ok().stdout;
    assert!(shown.contains("1 bookmark, 2 holds on 1 snapshot"), "{shown}");
}
