//! Every option, and its possible errors.

use fe_nbd::wire::{command, option, option_reply, transmission_flag};
use testkit::Memory;

use crate::client::{Setup, export_info, info, meta, string};

const SIZE: u64 = 10 << 20;
const FLAGS: u16 = transmission_flag::HAS_FLAGS
    | transmission_flag::SEND_FLUSH
    | transmission_flag::SEND_FUA
    | transmission_flag::SEND_TRIM
    | transmission_flag::SEND_WRITE_ZEROES
    | transmission_flag::CAN_MULTI_CONN
    | transmission_flag::SEND_CACHE
    | transmission_flag::SEND_FAST_ZERO;

fn one() -> Setup {
    Setup::new(&[("alpha", &Memory::new(SIZE))])
}

fn two() -> Setup {
    Setup::new(&[("alpha", &Memory::new(SIZE)), ("beta", &Memory::new(2 * SIZE))])
}

#[test]
fn list_names_all_exports() {
    let setup = two();
    let mut client = setup.options();
    let replies = client.option(option::LIST, &[]);
    let server = option_reply::SERVER;
    assert_eq!(replies, [(server, string(b"alpha")), (server, string(b"beta")), (option_reply::ACK, vec![])]);
    client.refused(option::LIST, b"x", option_reply::ERR_INVALID);
}

/// Tools that list exports query each of them on the same connection, and were cut off after some
/// five hundred.
#[test]
fn a_thousand_exports_are_listed_and_asked_about_on_one_connection() {
    const BLOCK: u64 = 4096;
    let device = Memory::new(BLOCK);
    let names: Vec<String> = (0..1000).map(|index| format!("export{index}")).collect();
    let setup = Setup::new(&names.iter().map(|name| (name.as_str(), &device)).collect::<Vec<_>>());
    let mut client = setup.options();
    client.negotiate_structured();
    assert_eq!(client.option(option::LIST, &[]).len(), 1001);
    for name in &names {
        for _ in 0..2 {
            assert_eq!(export_info(&client.option(option::INFO, &info(name.as_bytes(), &[]))).0, BLOCK);
        }
        assert_eq!(client.option(option::LIST_META_CONTEXT, &meta(name, &[])).len(), 2);
    }
    assert_eq!(client.go(&names[999]).0, BLOCK);
}

#[test]
fn info_and_go_tell_the_same_and_all_that_was_asked() {
    let setup = two();
    let mut client = setup.options();
    let data = info(b"beta", &[option::info::NAME, option::info::DESCRIPTION, option::info::BLOCK_SIZE, 77]);
    let replies = client.option(option::INFO, &data);
    assert_eq!(export_info(&replies), (2 * SIZE, FLAGS));
    let texts: Vec<_> = replies.iter().map(|(_, data)| data.get(2..).unwrap_or_default().to_vec()).collect();
    assert!(texts.contains(&b"beta".to_vec()));
    assert!(texts.iter().any(|t| String::from_utf8_lossy(t).contains("20 MiB")), "no description");
    let sizes = [[0, 3].as_slice(), &1u32.to_be_bytes(), &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat();
    assert!(replies.iter().any(|(_, data)| *data == sizes), "no block sizes");
    assert_eq!(client.option(option::GO, &data), replies);
    // Transmission has begun.
    assert_eq!(client.read(0, 10), crate::client::Answer::Ok(vec![0; 10]));
}

#[test]
fn the_empty_name_is_the_only_export_and_none_of_several() {
    assert_eq!(one().options().go("").0, SIZE);
    let setup = two();
    let mut client = setup.options();
    let text = client.refused(option::GO, &info(b"", &[]), option_reply::ERR_UNKNOWN);
    assert!(text.contains("several"), "{text}");
    assert_eq!(client.go("alpha").0, SIZE);
}

#[test]
fn a_snapshot_says_that_it_is_read_only_and_refuses_changes() {
    let (volume, snapshot) = (Memory::new(SIZE), Memory::new(SIZE));
    snapshot.read_only.store(true, std::sync::atomic::Ordering::Release);
    let setup = Setup::new(&[("alpha", &volume), ("alpha@s", &snapshot)]);
    // It does not make the volume one of several.
    assert_eq!(setup.options().go(""), (SIZE, FLAGS));
    let mut client = setup.options();
    let (size, flags) = client.go("alpha@s");
    let changes = transmission_flag::SEND_FUA
        | transmission_flag::SEND_TRIM
        | transmission_flag::SEND_WRITE_ZEROES
        | transmission_flag::SEND_FAST_ZERO;
    assert_eq!((size, flags), (SIZE, FLAGS & !changes | transmission_flag::READ_ONLY));
    // A client that ignores it is refused, and continues.
    const EPERM: u32 = 1;
    assert_eq!(client.write(0, b"abc").errno(), EPERM);
    for command in [command::TRIM, command::WRITE_ZEROES] {
        assert_eq!(client.call(command, 0, 0, 4096, &[]).errno(), EPERM);
    }
    assert_eq!(client.read(0, 3), crate::client::Answer::Ok(vec![0; 3]));
    assert_eq!(client.flush(), crate::client::Answer::Ok(vec![]));
}

#[test]
fn the_canonical_name_of_the_empty_one_is_told() {
    let replies = one().options().option(option::INFO, &info(b"", &[option::info::NAME]));
    assert!(replies.contains(&(option_reply::INFO, b"\0\x01alpha".to_vec())), "{replies:?}");
}

#[test]
fn unknown_names_and_odd_bytes_are_refused_and_escaped() {
    let setup = one();
    let mut client = setup.options();
    for name in [b"gamma".as_slice(), b"alpha\0", b"\xff\xfe", b"../alpha", b"al\npha", &[b'x'; 4096]] {
        let text = client.refused(option::GO, &info(name, &[]), option_reply::ERR_UNKNOWN);
        assert!(text.is_ascii() && !text.contains(|c: char| c.is_ascii_control()), "{text:?}");
    }
    client.refused(option::GO, &info(&[b'x'; 4097], &[]), option_reply::ERR_INVALID);
    assert_eq!(client.go("alpha").0, SIZE);
}

#[test]
fn lengths_that_do_not_add_up_are_invalid_and_the_connection_survives() {
    let setup = one();
    let mut client = setup.options();
    client.negotiate_structured();
    let good = info(b"alpha", &[1]);
    let mut long = good.clone();
    long.push(0);
    for data in [&[][..], &[0, 0, 0], &good[..good.len() - 1], &long, &u32::MAX.to_be_bytes()] {
        client.refused(option::INFO, data, option_reply::ERR_INVALID);
    }
    let good = meta("alpha", &["base:allocation"]);
    let mut many = meta("alpha", &[]);
    let end = many.len();
    many[end - 4..].copy_from_slice(&u32::MAX.to_be_bytes());
    for data in [&[][..], &good[..good.len() - 1], &many, &u32::MAX.to_be_bytes()] {
        client.refused(option::LIST_META_CONTEXT, data, option_reply::ERR_INVALID);
        client.refused(option::SET_META_CONTEXT, data, option_reply::ERR_INVALID);
    }
    client.go("alpha");
}

#[test]
fn unknown_options_are_unsupported() {
    let setup = one();
    let mut client = setup.options();
    // PEEK_EXPORT, nonsense.
    for option in [0, 4, 12, u32::MAX] {
        client.refused(option, b"some data", option_reply::ERR_UNSUP);
    }
    client.go("alpha");
}

#[test]
fn too_long_an_option_is_skipped() {
    let setup = one();
    let mut client = setup.options();
    client.refused(option::INFO, &vec![0; 100_000], option_reply::ERR_TOO_BIG);
    client.go("alpha");
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let setup = one();
    let mut client = setup.options();
    assert_eq!(client.option(option::ABORT, b"ignored"), [(option_reply::ACK, vec![])]);
    client.expect_close();
}

#[test]
fn export_name_answers_with_and_without_zeroes() {
    let setup = one();
    for (flags, zeroes) in [(1, 124), (3, 0), (0, 124), (2, 0)] {
        let mut client = setup.raw();
        client.greet(flags);
        client.send_option(option::EXPORT_NAME, b"alpha");
        assert_eq!(client.u64(), SIZE);
        assert_eq!(client.receive(2), FLAGS.to_be_bytes());
        assert_eq!(client.receive(zeroes), vec![0; zeroes]);
        assert_eq!(client.read(5, 3), crate::client::Answer::Ok(vec![0; 3]));
    }
    let mut client = setup.options();
    client.send_option(option::EXPORT_NAME, b"nobody");
    client.expect_close();
}

#[test]
fn without_fixed_newstyle_only_export_name_is_understood() {
    let setup = one();
    let mut client = setup.raw();
    client.greet(0);
    client.send_option(option::LIST, &[]);
    client.expect_close();
}

#[test]
fn structured_replies_bring_df_and_take_no_data() {
    let setup = one();
    let mut client = setup.options();
    client.refused(option::STRUCTURED_REPLY, b"x", option_reply::ERR_INVALID);
    client.negotiate_structured();
    assert_eq!(client.go("alpha").1, FLAGS | transmission_flag::SEND_DF);
}

#[test]
fn metadata_contexts_are_listed_and_selected_by_the_rules() {
    let setup = two();
    let mut client = setup.options();
    let data = meta("alpha", &["base:allocation"]);
    client.refused(option::SET_META_CONTEXT, &data, option_reply::ERR_INVALID);
    client.negotiate_structured();
    let context = |id: u32| (option_reply::META_CONTEXT, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let ack = (option_reply::ACK, vec![]);
    for (queries, found) in [
        (&[][..], true),
        (&["base:"], true),
        (&["base:allocation"], true),
        (&["base:allocation", "base:"], true),
        (&["x-other:thing", "qemu:dirty-bitmap:b"], false),
        (&["base:alloc"], false),
    ] {
        let replies = client.option(option::LIST_META_CONTEXT, &meta("alpha", queries));
        let expected = if found { vec![context(0), ack.clone()] } else { vec![ack.clone()] };
        assert_eq!(replies, expected, "{queries:?}");
    }
    assert_eq!(client.option(option::SET_META_CONTEXT, &meta("alpha", &[])), std::slice::from_ref(&ack));
    assert_eq!(client.option(option::SET_META_CONTEXT, &meta("alpha", &["base:", "x:y"])), std::slice::from_ref(&ack));
    assert_eq!(client.option(option::SET_META_CONTEXT, &meta("alpha", &["x:y", "base:allocation"])).len(), 2);
    client.refused(option::SET_META_CONTEXT, &meta("nobody", &["base:allocation"]), option_reply::ERR_UNKNOWN);
    // That selection failed, and cleared the earlier one.
    client.go("alpha");
    assert_eq!(client.call(fe_nbd::wire::command::BLOCK_STATUS, 0, 0, 4096, &[]).errno(), 22);
}

#[test]
fn a_context_selected_for_another_export_does_not_hold() {
    let setup = two();
    let mut client = setup.options();
    client.negotiate_structured();
    assert_eq!(client.option(option::SET_META_CONTEXT, &meta("beta", &["base:allocation"])).len(), 2);
    client.go("alpha");
    assert_eq!(client.call(fe_nbd::wire::command::BLOCK_STATUS, 0, 0, 4096, &[]).errno(), 22);
}

#[test]
fn a_context_selected_under_the_empty_name_holds_for_the_only_export() {
    let setup = one();
    let mut client = setup.options();
    client.negotiate_structured();
    assert_eq!(client.option(option::SET_META_CONTEXT, &meta("", &["base:allocation"])).len(), 2);
    client.go("alpha");
    let extents = crate::client::Answer::Extents(vec![(4096, 3)]);
    assert_eq!(client.call(fe_nbd::wire::command::BLOCK_STATUS, 0, 0, 4096, &[]), extents);
}

#[test]
fn a_whole_conversation_in_one_packet_and_byte_by_byte() {
    let setup = one();
    let mut wire = 3u32.to_be_bytes().to_vec();
    for (option, data) in [(option::STRUCTURED_REPLY, vec![]), (option::GO, info(b"alpha", &[]))] {
        wire.extend(fe_nbd::wire::OPTION_MAGIC.to_be_bytes());
        wire.extend(option.to_be_bytes());
        wire.extend((data.len() as u32).to_be_bytes());
        wire.extend(data);
    }
    for step in [usize::MAX, 1] {
        let mut client = setup.raw_tcp();
        client.structured = true;
        let (request, cookie) = client.encode(fe_nbd::wire::command::READ, 0, 7, 9, &[]);
        let whole = [&wire[..], &request].concat();
        for piece in whole.chunks(step.min(whole.len())) {
            client.send(piece);
        }
        client.receive(18);
        client.option_replies(option::STRUCTURED_REPLY);
        client.option_replies(option::GO);
        let answer = client.answer(&[(cookie, (7, 9))].into());
        assert_eq!(answer, (cookie, crate::client::Answer::Ok(vec![0; 9])));
    }
}
