//! Streams of the difference from an image: the receiver's volume is backed by the same image, and
//! reads as the sender's. A cache of the image is not sent.

use engine::{Pool, Properties, Receiver, Sender};
use format::STREAM_HEAD_BYTES;
use surface::{BlockDevice, Error, ErrorKind};

use crate::common::fake_origin::Mood;
use crate::common::noise;
use crate::image_world::{GROUP, IMAGE, World, write};

const CAPACITY_BYTES: u64 = 64 << 20;

fn side(seed: u64) -> World {
    World::without_volumes(seed, CAPACITY_BYTES, IMAGE, Properties::new())
}

impl World {
    fn discard(&self, name: &str, model: &mut [u8], offset: usize, len: usize) {
        self.pool().volume(name).unwrap().discard(offset as u64, len as u64).unwrap();
        model[offset..offset + len].fill(0);
    }

    /// The token of the only stream that has broken off.
    fn token(&self) -> String {
        let receives = self.pool().receives();
        assert_eq!(receives.len(), 1);
        receives[0].token.clone()
    }
}

fn give(receiver: &mut Receiver, chunk: &[u8]) -> Result<bool, Error> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
    receiver.take(head, body).map(|report| report.is_some())
}

/// Brings at most so many chunks of a stream to a volume of a pool; whether that was all.
fn bring(sender: &mut Sender, to: &Pool, volume: &str, most: usize) -> Result<bool, Error> {
    let mut receiver = to.receive(volume, &Properties::new());
    for _ in 0..most {
        match sender.next_chunk()? {
            Some(chunk) => drop(give(&mut receiver, &chunk)?),
            None => return Ok(true),
        }
    }
    Ok(false)
}

#[test]
fn what_differs_from_an_image_is_sent_and_nothing_else() {
    let source = side(3);
    source.clone_image("v");
    let mut model = source.expected();
    // A half of the image is here.
    source.pool().volume("v").unwrap().read(0, &mut vec![0; 10 * GROUP]).unwrap();
    source.pool().resize_volume("v", (model.len() + 2 * GROUP) as u64).unwrap();
    model.resize(model.len() + 2 * GROUP, 0);
    write(source.pool(), "v", &mut model, 3 * GROUP + 4096, &noise(6, GROUP));
    write(source.pool(), "v", &mut model, 14 * GROUP + 77, &noise(7, 5000));
    let behind = model.len() - GROUP;
    write(source.pool(), "v", &mut model, behind, &noise(8, 8192));
    // A part of it was fetched.
    for (first, len) in [(5 * GROUP, 3 * GROUP), (16 * GROUP + 8192, 3 * GROUP), (19 * GROUP, 4096)] {
        source.discard("v", &mut model, first, len);
    }
    source.pool().snapshot("v", "one").unwrap();
    let one = model.clone();
    write(source.pool(), "v", &mut model, 6 * GROUP, &noise(9, 4096));
    source.discard("v", &mut model, 3 * GROUP, 2 * GROUP);
    source.pool().snapshot("v", "two").unwrap();

    // The sender needs no store, and neither does the receiver before it reads.
    source.origin.set(Mood::Away);
    let mut target = side(5);
    let mut sender = source.pool().send_thin("v@one").unwrap().with_chunk_bytes(4096);
    assert_eq!(sender.image().as_ref(), Some(&source.origin.image));
    assert!(!bring(&mut sender, target.pool(), "copy", 3).unwrap());
    target.reopen();
    let images = target.pool().images();
    assert_eq!((images[0].volumes.len(), &images[0].incoming[..]), (0, &["copy".to_owned()][..]));
    let token = target.token();
    assert!(token.starts_with("shale2-"), "{token}");
    // The whole snapshot would not include holes over data of the image.
    source.origin.set(Mood::Well);
    let error = bring(&mut source.pool().send("v@one", None).unwrap(), target.pool(), "copy", 1).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Conflict && error.to_string().contains("the image s3://bucket/image@7"),
        "{error}"
    );
    source.origin.set(Mood::Away);
    let mut rest = source.pool().send_resumed(&token).unwrap();
    assert!(bring(&mut rest, target.pool(), "copy", usize::MAX).unwrap());
    let sent = sender.payload_bytes() + rest.payload_bytes();
    assert!(sent < 2 * GROUP as u64, "{sent} bytes were sent");
    assert_eq!(target.origin.asked_total(), 0);
    assert!(target.read("copy") == one, "HARNESS: the copy is not the snapshot");
    // The next difference.
    let mut sender = source.pool().send("v@two", Some("one")).unwrap();
    assert!(bring(&mut sender, target.pool(), "copy", usize::MAX).unwrap());
    assert!(target.read("copy") == model && target.read("copy@one") == one);
    target.reopen();
    assert!(target.read("copy") == model);
    target.check();
    // And on from there.
    let third = side(7);
    assert!(bring(&mut target.pool().send_thin("copy@two").unwrap(), third.pool(), "far", usize::MAX).unwrap());
    assert!(third.read("far") == model);
    third.pool().destroy("far", true).unwrap();
    third.pool().checkpoint().unwrap();
    third.check();
    assert_eq!(third.pool().images(), []);
    assert_eq!(third.pool().status().live_bytes, 0);
}

#[test]
fn what_was_cut_off_stays_cut_off_where_it_is_received() {
    let (source, target) = (side(3), side(5));
    source.clone_image("v");
    let mut model = source.expected();
    source.pool().resize_volume("v", 3 * GROUP as u64 + 100).unwrap();
    source.pool().snapshot("v", "s").unwrap();
    assert!(bring(&mut source.pool().send_thin("v@s").unwrap(), target.pool(), "v", usize::MAX).unwrap());
    target.pool().resize_volume("v", model.len() as u64).unwrap();
    model[3 * GROUP + 100..].fill(0);
    assert!(target.read("v") == model, "HARNESS: a larger volume shows what the image has there");
    target.check();
}

#[test]
fn parts_of_thin_and_of_whole_streams_do_not_mix() {
    let (source, mut target) = (side(3), side(5));
    source.clone_image("v");
    let mut model = source.expected();
    write(source.pool(), "v", &mut model, 2 * GROUP, &noise(1, GROUP));
    source.pool().snapshot("v", "s").unwrap();
    let whole =
        |pool: &Pool| source.pool().send("v@s", None).map(|s| bring(&mut s.with_chunk_bytes(4096), pool, "c", 4));
    assert!(!whole(target.pool()).unwrap().unwrap());
    assert!(target.token().starts_with("shale1-"));
    assert_eq!(target.pool().images(), []);
    let mut thin = source.pool().send_thin("v@s").unwrap();
    let error = bring(&mut thin, target.pool(), "c", 1).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("a whole snapshot"), "{error}");
    target.pool().destroy("c", false).unwrap();
    // One that is given up lets go of the image.
    let mut thin = source.pool().send_thin("v@s").unwrap().with_chunk_bytes(4096);
    assert!(!bring(&mut thin, target.pool(), "c", 2).unwrap());
    assert_eq!(target.pool().images().len(), 1);
    target.pool().destroy("c", false).unwrap();
    target.pool().checkpoint().unwrap();
    assert_eq!(target.pool().images(), []);
    target.reopen();
    target.check();
    source.pool().create_volume("w", 1 << 20, &Properties::new()).unwrap();
    source.pool().snapshot("w", "s").unwrap();
    let error = source.pool().send_thin("w@s").unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("--thin"), "{error}");
}
