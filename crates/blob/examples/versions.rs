//! Writes a blob, appends to it, and reads a range of an old version.
//!
//! Run it with `cargo run -p blob --example versions -- file:///tmp/example`; it also runs as a
//! test.

use blob::{At, Blob, Connection, Location, UploadOptions, bytes};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://example".to_owned());
    run(&url).await
}

async fn run(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let location: Location = url.parse()?;
    let connection = Connection::open(&location)?;
    let blob = Blob::open_or_create(&connection, location.key()).await?;

    // One version for each call, of any length. The data is a stream of byte buffers; `bytes` makes
    // one from memory.
    let options = UploadOptions::default();
    let first = blob.put(bytes("a first line\n"), "how it began", &options).await?;
    let second = blob.append(bytes("and a second\n"), "", &options).await?;
    println!("version {} has {} bytes at {}", second.seq, second.len, second.at);
    assert_eq!(second.at, 13);

    // Any version can be read, by its number or a tag; a range from a byte to before another.
    blob.tag("begin", first.seq).await?;
    let version = blob.version(&At::Tag("begin".to_owned())).await?;
    let line = blob.read(&version, 2, 7).await?;
    assert_eq!(line, "first");

    let newest = blob.version(&At::Newest).await?;
    for record in blob.records(1, newest.seq).await? {
        println!("{}: {} bytes, {} of them new, '{}'", record.seq, record.size, record.raw, record.message);
    }
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run("memory://example"))
}
