//! The encodings against structures as `ublk_cmd.h` declares them, laid out by the compiler, and
//! against the numbers that a C compiler makes of its macros.

use std::mem::offset_of;

use super::*;

#[repr(C)]
#[allow(dead_code)]
struct CtrlCmd {
    dev_id: u32,
    queue_id: u16,
    len: u16,
    addr: u64,
    data: [u64; 1],
    dev_path_len: u16,
    pad: u16,
    reserved: u32,
}

#[repr(C)]
#[allow(dead_code)]
struct DevInfo {
    nr_hw_queues: u16,
    queue_depth: u16,
    state: u16,
    pad0: u16,
    max_io_buf_bytes: u32,
    dev_id: u32,
    ublksrv_pid: i32,
    pad1: u32,
    flags: u64,
    ublksrv_flags: u64,
    owner_uid: u32,
    owner_gid: u32,
    reserved1: u64,
    reserved2: u64,
}

#[repr(C)]
#[allow(dead_code)]
struct IoDesc {
    op_flags: u32,
    nr_sectors: u32,
    start_sector: u64,
    addr: u64,
}

#[repr(C)]
#[allow(dead_code)]
struct IoCmd {
    q_id: u16,
    tag: u16,
    result: i32,
    addr: u64,
}

#[repr(C)]
#[allow(dead_code)]
struct Basic {
    attrs: u32,
    logical_bs_shift: u8,
    physical_bs_shift: u8,
    io_opt_shift: u8,
    io_min_shift: u8,
    max_sectors: u32,
    chunk_sectors: u32,
    dev_sectors: u64,
    virt_boundary_mask: u64,
}

#[repr(C)]
#[allow(dead_code)]
struct DiscardC {
    discard_alignment: u32,
    discard_granularity: u32,
    max_discard_sectors: u32,
    max_write_zeroes_sectors: u32,
    max_discard_segments: u16,
    reserved0: u16,
}

#[repr(C)]
#[allow(dead_code)]
struct Params {
    len: u32,
    types: u32,
    basic: Basic,
    discard: DiscardC,
    /// The first field of the structure.
    char_major: u32,
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[at..at + size]);
    u64::from_le_bytes(word)
}

macro_rules! field {
    ($bytes:expr, $size:literal, $type:ty, $($field:ident).+) => { number(&$bytes, offset_of!($type, $($field).+), $size) };
}

#[test]
fn structures_have_the_sizes_of_the_header() {
    assert_eq!((size_of::<CtrlCmd>(), size_of::<IoCmd>()), (CONTROL_BYTES as usize, IO_BYTES as usize));
    assert_eq!((size_of::<DevInfo>(), size_of::<IoDesc>()), (INFO_BYTES, DESCRIPTOR_BYTES));
    assert_eq!(offset_of!(Params, char_major), PARAMETERS_BYTES);
    assert_eq!(offset_of!(Params, basic.dev_sectors), AT_SECTORS);
}

/// Numbers that a C compiler makes of the header's macros.
#[test]
fn commands_have_the_numbers_of_the_header() {
    use control::*;
    let made = [GET_INFO, ADD, DELETE, START, STOP, SET_PARAMETERS, GET_PARAMETERS];
    assert_eq!(made, [0x8020_7502, 0xc020_7504, 0xc020_7505, 0xc020_7506, 0xc020_7507, 0xc020_7508, 0x8020_7509]);
    let made = [START_RECOVERY, END_RECOVERY, GET_FEATURES, DELETE_ASYNC, UPDATE_SIZE, QUIESCE];
    assert_eq!(made, [0xc020_7510, 0xc020_7511, 0x8020_7513, 0x8020_7514, 0xc020_7515, 0xc020_7516]);
    assert_eq!([FETCH, COMMIT_AND_FETCH], [0xc010_7520, 0xc010_7521]);
}

#[test]
fn commands_are_encoded_where_the_driver_reads_them() {
    let command = ControlCommand { device: 7, address: 0x1234_5678_9abc, length: 64, data: 99 }.encode();
    assert_eq!((field!(command, 4, CtrlCmd, dev_id), field!(command, 2, CtrlCmd, queue_id)), (7, 0xffff));
    assert_eq!((field!(command, 2, CtrlCmd, len), field!(command, 8, CtrlCmd, addr)), (64, 0x1234_5678_9abc));
    assert_eq!(field!(command, 8, CtrlCmd, data), 99);
    assert_eq!(command[24..], [0; 56]);
    let command = io_command(3, 5, -5, 0xfedc_ba98_7654);
    assert_eq!((field!(command, 2, IoCmd, q_id), field!(command, 2, IoCmd, tag)), (3, 5));
    assert_eq!((field!(command, 4, IoCmd, result), field!(command, 8, IoCmd, addr)), (0xffff_fffb, 0xfedc_ba98_7654));
}

#[test]
fn a_device_is_described_both_ways() {
    let info = Info {
        queues: 2,
        depth: 64,
        state: State::Quiesced,
        buffer_bytes: 262_144,
        number: 3,
        pid: 4711,
        flags: features::USER_RECOVERY | features::QUIESCE,
        mark: 0x0123_4567_89ab_cdef,
    };
    let bytes = info.encode();
    assert_eq!((field!(bytes, 2, DevInfo, nr_hw_queues), field!(bytes, 2, DevInfo, queue_depth)), (2, 64));
    assert_eq!((field!(bytes, 2, DevInfo, state), field!(bytes, 4, DevInfo, max_io_buf_bytes)), (2, 262_144));
    assert_eq!((field!(bytes, 4, DevInfo, dev_id), field!(bytes, 4, DevInfo, ublksrv_pid)), (3, 4711));
    assert_eq!((field!(bytes, 8, DevInfo, flags), field!(bytes, 8, DevInfo, ublksrv_flags)), (0x1008, info.mark));
    assert_eq!(Info::decode(&bytes), info);
    for state in [State::Dead, State::Live, State::Quiesced, State::Failing] {
        assert_eq!(State::of(state.code()), state);
    }
    assert_eq!(State::of(77), State::Failing);
}

#[test]
fn parameters_are_encoded_where_the_driver_reads_them() {
    let discard = Discard { granularity: 4096, sectors_max: 1 << 21, zeroes_sectors_max: 1 << 20 };
    let parameters = Parameters {
        attributes: attribute::VOLATILE_CACHE | attribute::FUA,
        shifts: [9, 12, 16, 13],
        sectors_max: 512,
        sectors: 0x1_0000_0001,
        discard: Some(discard),
    };
    let bytes = parameters.encode();
    assert_eq!((field!(bytes, 4, Params, len), field!(bytes, 4, Params, types)), (60, 3));
    assert_eq!((field!(bytes, 4, Params, basic.attrs), field!(bytes, 4, Params, basic.max_sectors)), (12, 512));
    let shifts = [
        field!(bytes, 1, Params, basic.logical_bs_shift),
        field!(bytes, 1, Params, basic.physical_bs_shift),
        field!(bytes, 1, Params, basic.io_opt_shift),
        field!(bytes, 1, Params, basic.io_min_shift),
    ];
    assert_eq!(shifts, [9, 12, 16, 13]);
    assert_eq!(field!(bytes, 8, Params, basic.dev_sectors), 0x1_0000_0001);
    assert_eq!(sectors_of(&bytes), 0x1_0000_0001);
    assert_eq!(field!(bytes, 8, Params, basic.virt_boundary_mask), 0);
    assert_eq!((field!(bytes, 4, Params, discard.discard_alignment)), 0);
    assert_eq!(field!(bytes, 4, Params, discard.discard_granularity), 4096);
    assert_eq!(field!(bytes, 4, Params, discard.max_discard_sectors), 1 << 21);
    assert_eq!(field!(bytes, 4, Params, discard.max_write_zeroes_sectors), 1 << 20);
    assert_eq!(field!(bytes, 2, Params, discard.max_discard_segments), 1);
    let snapshot = Parameters { attributes: attribute::READ_ONLY, discard: None, ..parameters }.encode();
    assert_eq!(field!(snapshot, 4, Params, types), 1);
    assert_eq!(snapshot[40..], [0; 20]);
}

#[test]
fn a_request_is_decoded_where_the_driver_writes_it() {
    let mut bytes = [0xff; DESCRIPTOR_BYTES];
    bytes[offset_of!(IoDesc, op_flags)..][..4].copy_from_slice(&0x2001_u32.to_ne_bytes());
    bytes[offset_of!(IoDesc, nr_sectors)..][..4].copy_from_slice(&8_u32.to_ne_bytes());
    bytes[offset_of!(IoDesc, start_sector)..][..8].copy_from_slice(&1234_u64.to_ne_bytes());
    assert_eq!(Descriptor::decode(&bytes), Descriptor { op_flags: FUA | 1, sectors: 8, start_sector: 1234 });
}

#[test]
fn descriptors_lie_where_the_driver_has_them() {
    assert_eq!((descriptors_stride(4096), descriptors_stride(65536)), (98_304, 131_072));
    assert_eq!(
        (descriptors_bytes(64, 4096), descriptors_bytes(171, 4096), descriptors_bytes(1, 65536)),
        (4096, 8192, 65536)
    );
}
