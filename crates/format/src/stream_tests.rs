use super::*;

fn begin() -> StreamBegin {
    StreamBegin {
        to: SnapshotIdentity([1; 16]),
        from: Some(SnapshotIdentity([2; 16])),
        created_unix_s: 1_790_000_000,
        size_bytes: 1 << 30,
        start: GroupIndex(3),
        expected_bytes: 12345,
        volume: "vm".into(),
        snapshot: "monday".into(),
        parent: "vm@sunday".into(),
        properties: [("compression".to_owned(), "zstd-3".to_owned())].into(),
        image: None,
    }
}

/// The begin chunk of a stream relative to an image.
fn thin() -> StreamBegin {
    let image = ImagePart { location: "s3://bucket/image".into(), incarnation: u128::MAX - 7, version: 3, len: 777 };
    StreamBegin { from: None, parent: String::new(), image: Some(image), ..begin() }
}

fn fragment(first: u64, count: u8, payload: &[u8]) -> FragmentEntry {
    let entry = FragmentEntry { first: BlockIndex(first), count, codec: 16, stored: payload.len() as u32, checksum: 0 };
    FragmentEntry { checksum: stream_checksum(&entry, payload), ..entry }
}

fn data(from: u64, next: u64) -> (StreamData, Vec<Vec<u8>>) {
    let block = from * 32;
    let payloads = vec![vec![7; 900], vec![8; 4096]];
    let fragments = vec![fragment(block, 8, &payloads[0]), fragment(block + 20, 1, &payloads[1])];
    let holes = vec![(BlockIndex(block + 8), 4), (BlockIndex(block + 21), 3)];
    (StreamData { from: GroupIndex(from), next: GroupIndex(next), holes, fragments }, payloads)
}

fn put(writer: &mut StreamWriter, (data, payloads): (StreamData, Vec<Vec<u8>>)) -> Vec<u8> {
    writer.data(&data, payloads.iter().map(Vec::as_slice))
}

/// The chunks of a whole stream.
fn chunks() -> Vec<Vec<u8>> {
    let mut writer = StreamWriter::default();
    let first = writer.begin(&begin());
    vec![first, put(&mut writer, data(3, 4)), put(&mut writer, data(4, 8192)), writer.end()]
}

fn take(reader: &mut StreamReader, chunk: &[u8]) -> Result<StreamChunk, FormatError> {
    let (head, body) = chunk.split_first_chunk::<STREAM_HEAD_BYTES>().unwrap();
    let head = StreamHead::decode(head)?;
    if body.len() != head.body_bytes() {
        return Err(FormatError::new("stream", "cut off"));
    }
    reader.take(&head, body)
}

fn take_all(chunks: &[Vec<u8>]) -> Result<Vec<StreamChunk>, FormatError> {
    let mut reader = StreamReader::default();
    chunks.iter().map(|chunk| take(&mut reader, chunk)).collect()
}

#[test]
fn a_stream_is_read_as_it_was_written() {
    let taken = take_all(&chunks()).unwrap();
    assert_eq!(taken[0], StreamChunk::Begin(Box::new(begin())));
    let StreamChunk::Data { data: first, payloads } = &taken[1] else { panic!("{:?}", taken[1]) };
    let expected = data(3, 4);
    assert_eq!(first, &expected.0);
    assert_eq!(chunks()[1][STREAM_HEAD_BYTES + payloads..], expected.1.concat());
    assert_eq!(taken[3], StreamChunk::End(StreamEnd { fragments: 4, payload_bytes: 2 * 4996, hole_blocks: 14 }));
}

#[test]
fn no_bit_of_a_stream_can_flip() {
    let good = chunks();
    for index in 0..good.len() {
        for bit in 0..good[index].len() * 8 {
            let mut bad = good.clone();
            bad[index][bit / 8] ^= 1 << (bit % 8);
            assert!(take_all(&bad).is_err(), "bit {bit} of chunk {index}");
        }
    }
}

#[test]
fn what_differs_from_an_image_names_it() {
    let mut writer = StreamWriter::default();
    let chunks = [writer.begin(&thin()), put(&mut writer, data(3, 8192)), writer.end()];
    let taken = take_all(&chunks).unwrap();
    assert_eq!(taken[0], StreamChunk::Begin(Box::new(thin())));
    for bit in 0..chunks[0].len() * 8 {
        let mut bad = chunks.clone();
        bad[0][bit / 8] ^= 1 << (bit % 8);
        assert!(take_all(&bad).is_err(), "bit {bit}");
    }
    let with = |change: &dyn Fn(&mut ImagePart)| {
        let mut wrong = thin();
        if let Some(image) = &mut wrong.image {
            change(image);
        }
        wrong
    };
    for wrong in [
        StreamBegin { from: begin().from, ..thin() },
        StreamBegin { size_bytes: SHARE_BYTES, ..thin() },
        with(&|image| image.len = 0),
        with(&|image| image.len = OBJECT_BYTES_MAX + 1),
        with(&|image| image.location.clear()),
        with(&|image| image.location = "s3://a/\u{1b}[2J".into()),
        with(&|image| image.location = "x".repeat(5000)),
    ] {
        let chunk = StreamWriter::default().begin(&wrong);
        assert!(take(&mut StreamReader::default(), &chunk).is_err(), "{wrong:?}");
    }
}

#[test]
fn chunks_can_be_neither_left_out_nor_repeated_nor_exchanged() {
    let good = chunks();
    for index in 0..good.len() - 1 {
        let mut without = good.clone();
        without.remove(index);
        assert!(take_all(&without).is_err());
        let mut twice = good.clone();
        twice.insert(index, good[index].clone());
        assert!(take_all(&twice).is_err());
    }
    let mut writer = StreamWriter::default();
    let early = [writer.begin(&begin()), put(&mut writer, data(3, 8191)), writer.end()];
    assert!(take_all(&early).unwrap_err().to_string().contains("before the volume does"));
    let mut after_the_end = good.clone();
    after_the_end.push(good[3].clone());
    assert!(take_all(&after_the_end).is_err());
    let mut exchanged = good;
    exchanged.swap(1, 2);
    assert!(take_all(&exchanged).is_err());
}

#[test]
fn what_is_impossible_is_refused_although_its_checksum_is_right() {
    let (good, payloads) = data(3, 4);
    let block = good.from.first_block().0;
    let with = |change: &dyn Fn(&mut StreamData)| {
        let mut data = good.clone();
        change(&mut data);
        data
    };
    let bad = [
        with(&|d| d.from = GroupIndex(4)),
        with(&|d| d.next = GroupIndex(3)),
        with(&|d| d.next = GroupIndex(1 << 40)),
        with(&|d| d.holes[0].0 = BlockIndex(block + 7)),
        with(&|d| d.holes[1].1 = 0),
        with(&|d| d.holes[1].1 = 30),
        with(&|d| d.holes.swap(0, 1)),
        with(&|d| d.fragments[1].first = BlockIndex(block + 4)),
        with(&|d| d.fragments[1].first = BlockIndex(block + 31 + 32)),
        with(&|d| d.fragments[0].stored = 901),
    ];
    for data in bad {
        let mut writer = StreamWriter::default();
        let mut reader = StreamReader::default();
        take(&mut reader, &writer.begin(&begin())).unwrap();
        let chunk = put(&mut writer, (data.clone(), payloads.clone()));
        assert!(take(&mut reader, &chunk).is_err(), "{data:?}");
        // A reader that has refused a chunk accepts nothing more.
        assert!(take(&mut reader, &writer.end()).is_err());
    }
    // A fragment past the end of the volume.
    let small = StreamBegin { size_bytes: (3 * 32 + 20) * 4096, ..begin() };
    let mut writer = StreamWriter::default();
    let mut reader = StreamReader::default();
    take(&mut reader, &writer.begin(&small)).unwrap();
    assert!(take(&mut reader, &put(&mut writer, (good, payloads))).unwrap_err().to_string().contains("past the end"));
}

#[test]
fn a_stream_of_another_version_or_of_something_else_is_told_from_a_damaged_one() {
    let error = StreamHead::decode(b"QFI\xfb....................").unwrap_err();
    assert!(error.to_string().contains("not the start of a chunk"), "{error}");
    for wrong in [StreamBegin { size_bytes: 0, ..begin() }, StreamBegin { size_bytes: OBJECT_BYTES_MAX + 1, ..begin() }]
    {
        let chunk = StreamWriter::default().begin(&wrong);
        assert!(take(&mut StreamReader::default(), &chunk).is_err());
    }
}

#[test]
fn streams_of_another_version_are_refused_by_its_number() {
    for begin in [begin(), StreamBegin { size_bytes: SHARE_BYTES, ..begin() }, thin()] {
        for version in [STREAM_VERSION - 1, STREAM_VERSION, STREAM_VERSION + 1] {
            let mut chunk = StreamWriter::default().begin(&begin);
            chunk[STREAM_HEAD_BYTES..][..2].copy_from_slice(&version.to_le_bytes());
            let head = make_head(KIND_BEGIN, &chunk[STREAM_HEAD_BYTES..], 0);
            chunk[..STREAM_HEAD_BYTES].copy_from_slice(&head);
            let is_known = version == STREAM_VERSION;
            assert_eq!(take(&mut StreamReader::default(), &chunk).is_ok(), is_known, "version {version}");
            let head = StreamHead::decode(head.first_chunk().unwrap()).unwrap();
            assert_eq!(head.other_version(&chunk[STREAM_HEAD_BYTES..]), (!is_known).then_some(version));
        }
    }
}

#[test]
fn fragments_go_through_a_stream_without_their_payloads_being_summed_again() {
    let payload = vec![9; 3000];
    let (object, epoch) = (ObjectId(77), Epoch(5));
    let identity = FragmentIdentity { object, epoch, first: BlockIndex(64), count: 2, codec: 16 };
    let checksum = fragment_checksum(&identity, &payload);
    let stored = FragmentEntry { first: BlockIndex(64), count: 2, codec: 16, stored: 3000, checksum };
    let sent = stored.to_stream(object, epoch);
    assert_eq!(sent.checksum, stream_checksum(&sent, &payload));
    assert_eq!(sent.from_stream(object, epoch), stored);
}
