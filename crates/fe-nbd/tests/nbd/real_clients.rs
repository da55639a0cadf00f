//! The clients in common use. One that is not installed fails its test and names its Debian
//! package.

use fe_nbd::Listen;
use std::path::Path;
use std::sync::Arc;
use surface::BlockDevice;
use testkit::{Memory, TempDir, noise, run};

use crate::client::Setup;
use crate::tls::{Secured, Wanted};

const SIZE: u64 = 64 << 20;

fn setup() -> (Setup, Arc<Memory>) {
    let device = Memory::new(SIZE);
    (Setup::new(&[("disk", &device)]), device)
}

/// A sparse image: data of odd lengths here and there.
fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    for index in 0..40 {
        let (at, length) = (index * 1_600_001, 50_000 + index * 777);
        bytes[at..at + length].copy_from_slice(&noise(index as u64, length));
    }
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_lists_what_is_offered() {
    let (one, two) = (Memory::new(SIZE), Memory::new(5000));
    let setup = Setup::new(&[("one", &one), ("two", &two)]);
    let text = run("nbdinfo", &["--json", "--list", &setup.uri("")]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let exports = json["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 2);
    assert_eq!(json["protocol"], "newstyle-fixed");
    assert_eq!(json["structured"], true);
    assert_eq!(exports[1]["export-name"], "two");
    assert_eq!(exports[1]["export-size"], 5000);
    for (key, value) in [("can_fua", true), ("can_multi_conn", true), ("can_trim", true), ("can_zero", true)] {
        assert_eq!(exports[0][key], value, "{key}");
    }
    for (key, value) in [("can_cache", true), ("can_df", true), ("can_fast_zero", true), ("is_read_only", false)] {
        assert_eq!(exports[0][key], value, "{key}");
    }
    assert_eq!(exports[0]["block_size_minimum"], 1);
    assert_eq!(exports[0]["block_size_preferred"], 4096);
    assert_eq!(exports[0]["block_size_maximum"], 32 << 20);
    assert!(exports[0]["contexts"].to_string().contains("base:allocation"));
}

#[test]
fn nbdcopy_there_and_back() {
    let (setup, device) = setup();
    let (source, back) = (setup.scratch.join("source"), setup.scratch.join("back"));
    let bytes = image(&source);
    let uri = setup.uri("disk");
    run("nbdcopy", &[source.as_os_str(), uri.as_ref()]);
    // 40 pieces of at most 83 KB.
    assert!(device.allocated_bytes() < 8 << 20, "holes became data: {} bytes", device.allocated_bytes());
    run("nbdcopy", &[uri.as_ref(), back.as_os_str()]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    let map = run("nbdinfo", &["--map", "--totals", &uri]);
    assert!(map.contains("hole") && map.contains("data"), "{map}");
}

#[test]
fn nbdsh_speaks_every_command() {
    let (setup, device) = setup();
    device.set_recording();
    let script = r#"
import errno
assert h.can_df() and h.can_fast_zero() and h.can_meta_context("base:allocation")
h.pwrite(b"x" * 100000, 12345, nbd.CMD_FLAG_FUA)
chunks = []
data = h.pread_structured(100000, 12345, lambda b, o, s, e: chunks.append((o, len(b), s)), nbd.CMD_FLAG_DF)
assert data == b"x" * 100000 and chunks == [(12345, 100000, nbd.READ_DATA)], chunks
h.zero(4096, 16384)
h.zero(4096, 20480, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
h.zero(4096, 24576, nbd.CMD_FLAG_FAST_ZERO)
h.trim(4096, 28672, nbd.CMD_FLAG_FUA)
h.cache(65536, 0)
h.flush()
seen = []
h.block_status(65536, 0, lambda name, offset, extents, err: seen.append((name, offset, extents)))
assert seen == [("base:allocation", 0, [12288, 3, 4096, 0, 4096, 3, 4096, 0, 8192, 3, 32768, 0])], seen
for call in (lambda: h.pread(10, h.get_size() - 5), lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)):
    h.set_strict_mode(0)
    try:
        call()
        assert False
    except nbd.Error as ex:
        assert ex.errno in ("EINVAL", "ENOTSUP"), ex.errno
h.shutdown()
"#;
    run("nbdsh", &["--base-allocation", "-u", &setup.uri("disk"), "-c", script]);
}

#[test]
fn qemu_img_there_and_back() {
    let (setup, device) = setup();
    let (source, back) = (setup.scratch.join("source"), setup.scratch.join("back.qcow2"));
    image(&source);
    let uri = setup.uri("disk");
    let (source, back) = (source.to_str().unwrap(), back.to_str().unwrap());
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
    assert!(device.allocated_bytes() < 16 << 20, "holes became data: {} bytes", device.allocated_bytes());
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, back]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", source, back]);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    assert!(map.as_array().unwrap().len() > 40);
}

#[test]
fn qemu_io_discards_and_zeroes() {
    let (setup, device) = setup();
    let uri = setup.uri("disk");
    let commands = [
        "write -P 7 0 1M",
        "read -P 7 0 1M",
        "write -z -u 64k 64k",
        "read -P 0 64k 64k",
        "discard 256k 128k",
        "read -P 7 384k 640k",
        "writev -P 9 1M 4k 8k 12k",
        "aio_write -P 5 2M 128k",
        "aio_flush",
        "flush",
        "read -P 5 2M 128k",
    ];
    let mut arguments = vec!["-f", "raw", "-d", "unmap"];
    commands.iter().for_each(|c| arguments.extend(["-c", c]));
    arguments.push(&uri);
    let out = run("qemu-io", &arguments);
    assert!(!out.contains("fail"), "{out}");
    assert_eq!(device.allocated_bytes(), (1 << 20) - (64 << 10) - (128 << 10) + (24 << 10) + (128 << 10));
}

#[test]
fn clients_with_tls_bring_an_image_there_and_back() {
    let secured = Secured::new(Wanted { verifies_clients: true, ..Wanted::default() });
    let client = TempDir::new("nbd-tls-client");
    secured.authority.write_client(client.path(), &secured.authority.client("hv1"));
    let address = &secured.setup.server().local_addresses()[1];
    let Listen::Tcp(tcp) = address else { panic!("not TCP") };
    let uri = format!("{}?tls-certificates={}", address.tls_uri("disk"), client.path().display());
    let json: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).unwrap();
    assert_eq!((&json["TLS"], &json["exports"][0]["export-size"]), (&true.into(), &SIZE.into()));
    let (source, back) = (secured.setup.scratch.join("source"), secured.setup.scratch.join("back"));
    let bytes = image(&source);
    run("nbdcopy", &[source.as_os_str(), uri.as_ref()]);
    run("nbdcopy", &[uri.as_ref(), back.as_os_str()]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    let credentials = format!("tls-creds-x509,id=tls,dir={},endpoint=client", client.path().display());
    let target = format!("driver=nbd,host={},port={},export=disk,tls-creds=tls", tcp.ip(), tcp.port());
    let file = format!("driver=file,filename={}", source.display());
    run("qemu-img", &["compare", "--object", &credentials, "--image-opts", &file, &target]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    for (cached, full_buffer) in [(true, false), (false, true)] {
        let (setup, device) = setup();
        device.cached.store(cached, std::sync::atomic::Ordering::Release);
        device.full_buffer.store(full_buffer, std::sync::atomic::Ordering::Release);
        let uri = format!("--uri={}", setup.uri("disk"));
        let out = run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randrw",
                "--bsrange=512-256k",
                "--iodepth=32",
                "--size=48m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--fsync=64",
                "--randrepeat=1",
                // It would be left in the current directory.
                "--verify_state_save=0",
            ],
        );
        assert!(out.contains("err= 0"), "{out}");
    }
}
