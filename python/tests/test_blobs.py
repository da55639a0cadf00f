"""The package on each available kind of store: bytes, versions, errors, pickles, forks, threads."""

import array
import asyncio
import gc
import io
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import uuid
import warnings

import fsspec
import pytest

import shale
from shale._settings import client_options

DATA = b"".join(b"line %d of a text that compresses\n" % number for number in range(40_000))


def file_system(url, **options):
    return fsspec.core.url_to_fs(url, **options)[0]


def test_a_file_is_written_and_read_back(place):
    url = f"{place}/text"
    with fsspec.open(url, "wb") as file:
        file.write(DATA[:1000])
        file.write(memoryview(DATA)[1000:])
    with fsspec.open(url) as file:
        assert file.read() == DATA
        file.seek(-100, io.SEEK_END)
        assert file.read(50) == DATA[-100:-50]
        assert file.version == 1
    assert file_system(url).info(url)["size"] == len(DATA)


def test_a_large_file_goes_up_in_pieces_and_is_one_version(place):
    noise = random.Random(7).randbytes(13 << 20)
    url = f"{place}/noise"
    with fsspec.open(url, "wb", block_size=1 << 20) as file:
        for start in range(0, len(noise), 777_777):
            file.write(noise[start:start + 777_777])
    blob = shale.Blob(url)
    assert [entry["version"] for entry in blob.versions()] == [1]
    assert blob.read() == noise


def test_versions_and_tags_are_named_in_urls_and_options(place):
    url = f"{place}/versions"
    blob = shale.Blob(url)
    blob.put(b"first")
    assert blob.append(b" and more") == shale.Committed(2, 5, 9)
    blob.tag("golden", 1)
    blob.write(0, b"FIRST")
    read = lambda address, **options: fsspec.open(address, **options).open().read()  # noqa: E731
    assert read(url) == b"FIRST and more"
    assert read(f"{url}@1") == read(f"{url}@golden") == b"first"
    assert read(url, version=2) == b"first and more"
    assert read(url, version="golden") == b"first"
    assert blob.tags() == {"golden": 1}
    assert [entry["version"] for entry in blob.versions()] == [1, 2, 4]
    assert shale.Blob(f"{url}@2").read(-4) == b"more"
    # The record of a tag is not a version: without a number, both name the newest version.
    blob.tag("one")
    blob.tag("two")
    assert blob.tags() == {"golden": 1, "one": 4, "two": 4}
    blob.untag("one")
    blob.untag("two")
    blob.untag("golden")
    with pytest.raises(shale.VersionNotFoundError):
        read(f"{url}@golden")
    assert blob.expire(keep=1)
    with pytest.raises(FileNotFoundError):
        read(f"{url}@1")


def test_an_open_file_keeps_its_version(place):
    url = f"{place}/pinned"
    blob = shale.Blob(url)
    blob.put(DATA)
    with fsspec.open(url) as file:
        blob.put(b"other")
        assert file.read() == DATA
    assert blob.read() == b"other"


def test_appends_of_many_threads_are_all_there(place):
    blob = shale.Blob(f"{place}/appended")
    blob.put(b"")
    places = []

    def work(number):
        for turn in range(5):
            places.append((blob.append(b"%02d-%02d " % (number, turn)).offset, b"%02d-%02d " % (number, turn)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = blob.read()
    assert len(whole) == 8 * 5 * 6
    assert all(whole[offset:offset + 6] == piece for offset, piece in places)


def test_cat_ranges_is_one_call_with_negative_places_and_errors(place):
    url = f"{place}/ranges"
    files = file_system(url)
    path = files._strip_protocol(url)
    files.pipe(path, DATA)
    starts, ends = [0, 500_000, -10, 7, len(DATA) + 5], [10, 500_100, None, 7, None]
    expected = [DATA[:10], DATA[500_000:500_100], DATA[-10:], b"", b""]
    assert files.cat_ranges([path] * 5, starts, ends) == expected
    mixed = files.cat_ranges([path, path + "-missing"], 0, 5, on_error="return")
    assert mixed[0] == DATA[:5] and isinstance(mixed[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        files.cat_ranges([path, path + "-missing"], 0, 5, on_error="raise")
    # Any iterable is a list of offsets; an invalid offset fails its own call only.
    assert files.cat_ranges([path] * 2, array.array("q", [0, -5]), array.array("q", [3, -1])) == [DATA[:3], DATA[-5:-1]]
    for start, kind in ((0.5, TypeError), ("0", TypeError), (1 << 99, OverflowError)):
        odd = files.cat_ranges([path, path + "@1"], [start, 1], [9, 4])
        assert isinstance(odd[0], kind) and odd[1] == DATA[1:4]
    with pytest.raises(ValueError, match="one length"):
        files.cat_ranges([path], [1, 2], [3, 4])


def test_many_ranges_cost_fewer_requests_than_ranges():
    url = f"shale+memory://{uuid.uuid4().hex}"
    blob = shale.Blob(url)
    blob.put(random.Random(1).randbytes(4 << 20))
    version = blob.open_version()
    before = blob._store.requests()["get"]
    got = version.read_ranges([(start, start + 100) for start in range(0, 4 << 20, 8192)])
    assert len(got) == 512 and all(len(part) == 100 for part in got)
    assert blob._store.requests()["get"] - before <= 32


def test_the_file_system_works_in_a_loop_of_the_program(place):
    async def work():
        files = fsspec.filesystem(place.partition(":")[0], asynchronous=True)
        path = files._strip_protocol(f"{place}/loop")
        await files._pipe_file(path, b"in a loop")
        assert await files._cat_file(path, 3, 4) == b"a"
        reads = [files._cat_file(path) for _ in range(20)]
        return await asyncio.gather(*reads)

    assert asyncio.run(work()) == [b"in a loop"] * 20


def test_errors_are_those_of_files(place):
    files = file_system(place)
    path = files._strip_protocol(place) + "/errors"
    with pytest.raises(FileNotFoundError):
        files.open(path, "rb")
    with pytest.raises(FileNotFoundError):
        files.cat(path)
    with pytest.raises(FileNotFoundError):
        files.rm(path)
    files.pipe(path, b"there")
    with pytest.raises(FileExistsError):
        files.open(path, "xb")
    with pytest.raises(FileExistsError):
        files.pipe_file(path, b"again", mode="create")
    with pytest.raises(ValueError, match="never changes"):
        files.pipe(path + "@1", b"no")
    with pytest.raises(ValueError, match="r\\+b"):
        files.open(path, "r+b")
    with pytest.raises(ValueError, match="mode"):
        shale.Blob(f"{place}/x", properties={"mode": "fastest"}).put(b"x")
    files.rm(path)
    assert not files.exists(path)
    with pytest.raises(FileNotFoundError):
        files.info(path)


def test_what_makes_no_sense_is_refused_by_name(place):
    blob = shale.Blob(f"{place}/odd")
    blob.put(b"0123456789")
    upload = blob.upload()
    for call, name in ((lambda: blob.write(-1, b"x"), "the offset is -1"), (lambda: blob.write(1 << 63, b"x"), "the offset is 9"),
                       (lambda: blob.log(-2), "the first record is -2"), (lambda: blob.expire(keep=-1), "the number of versions to keep"),
                       (lambda: blob.verify(start=-5), "the start is -5"), (lambda: upload.zeroes(-1), "the length is -1"),
                       (lambda: upload.zeroes((1 << 62) + 1), "the length"), (lambda: blob.commit([blob.stage(-4, b"x")]), "the offset of a part"),
                       (lambda: blob.commit([shale.Staged(0, 3, b"junk")]), "not a staged part"), (lambda: blob.tag("3"), "cannot be a tag")):
        with pytest.raises(ValueError, match=name):
            call()
    upload.abort()
    for call in (lambda: blob.put(None), lambda: blob.put("text"), lambda: shale.Blob(None), lambda: blob.write(0.5, b"x")):
        with pytest.raises(TypeError):
            call()
    for at in (0, 9, -1, "none", "a/b"):
        with pytest.raises(shale.VersionNotFoundError):
            blob.read(at=at)
    with pytest.raises(shale.VersionNotFoundError):
        blob.untag("none")
    assert [entry["version"] for entry in blob.versions()] == [1] and blob.read() == b"0123456789"


def test_whatever_has_a_buffer_can_be_written(place):
    blob = shale.Blob(f"{place}/buffers")
    numbers = array.array("q", range(3000))
    blob.put(numbers)
    blob.append(array.array("q"))
    blob.write(8, memoryview(numbers)[:2])
    upload = blob.upload()
    assert upload.write(numbers) == 24_000 and upload.write(b"") == 0
    blob.commit([upload.stage()], how="append")
    expected = numbers.tobytes()
    assert blob.read() == expected[:8] + expected[:16] + expected[24:] + expected
    with pytest.raises(TypeError):
        blob.put(memoryview(numbers)[::2])
    file_system(f"{place}/buffers").pipe_file(f"{place}/buffers", numbers)
    assert blob.read() == expected


def test_text_is_appended_line_by_line(place):
    url = f"{place}/lines"
    for line in ("one\n", "zwei, größer\n", "three\n"):
        with fsspec.open(url, "a", encoding="utf-8") as file:
            file.write(line)
    with fsspec.open(url, "r", encoding="utf-8") as file:
        assert file.readlines() == ["one\n", "zwei, größer\n", "three\n"]
    assert [entry["version"] for entry in shale.Blob(url).versions()] == [1, 2, 3]


def test_a_relative_directory_counts_from_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shale.Blob("shale+file://below/one").put(b"one")
    files = fsspec.filesystem("shale+file")
    files.pipe("below/two", b"two")
    with fsspec.open("shale+file://below/three", "wb") as file:
        file.write(b"three")
    assert files.ls(f"{tmp_path}/below", detail=False) == [f"{tmp_path}/below/{name}" for name in ("one", "three", "two")]
    assert files.cat("shale+file://./below/two@1") == b"two" == shale.Blob(f"shale+file://{tmp_path}/below/two").read()
    blob = pickle.loads(pickle.dumps(shale.Blob("shale+file://below/one@1")))
    monkeypatch.chdir("/")
    assert blob.read() == b"one" and blob.url == f"shale+file://{tmp_path}/below/one@1"


def test_a_file_that_is_no_blob_is_none(tmp_path):
    plain, files = tmp_path / "plain", fsspec.filesystem("shale+file")
    plain.write_bytes(b"no blob")
    assert not files.exists(str(plain)) and not files.isfile(str(plain)) and not files.isdir(str(plain))
    for call in (files.info, files.ls, files.cat_file, files.open, files.size):
        with pytest.raises(FileNotFoundError, match="no blob"):
            call(str(plain))
    for mode in ("wb", "xb", "ab"):
        with pytest.raises(FileExistsError, match="no blob"):
            files.open(str(plain), mode)
    assert plain.read_bytes() == b"no blob"


def test_refused_keys_and_missing_buckets_are_told_apart(s3_options, bucket):
    url = f"shale+s3://{bucket}/keys"
    shale.Blob(url, **s3_options).put(b"there")
    options = {**s3_options, "secret": "of another"}
    files = file_system(url, **options)
    for call in (lambda: shale.Blob(url, **options).read(), lambda: files.exists(url), lambda: files.ls("bucket"), lambda: files.pipe(url, b"x")):
        with pytest.raises(PermissionError):
            call()
    with pytest.raises(PermissionError):
        shale.Blob(url, **s3_options, anon=True).read()
    files = file_system(url, **s3_options)
    for call in (lambda: files.ls("there-is-none"), lambda: files.cat("there-is-none/key"), lambda: files.pipe("there-is-none/key", b"x")):
        with pytest.raises(FileNotFoundError, match="bucket"):
            call()
    for options in ({"endpoint_url": "no address"}, {"nonsense": "x"}, {"client_kwargs": {"nonsense": 1}}):
        with pytest.raises(ValueError, match="."):
            shale.Blob(url, **{**s3_options, **options}).read()
    with pytest.raises(ValueError, match="profile none"):
        shale.Blob(url, profile="none").read()
    assert shale.Blob(url, **s3_options).read() == b"there"


def test_style_of_addresses_and_authorities_reach_the_client(s3_options, tmp_path):
    styles = {style: client_options("s3", {"config_kwargs": {"s3": {"addressing_style": style}}})[0] for style in ("auto", "path", "virtual")}
    name = "aws_virtual_hosted_style_request"
    assert styles == {"auto": {}, "path": {name: "false"}, "virtual": {name: "true"}}
    with pytest.raises(ValueError, match="addressing_style"):
        client_options("s3", {"config_kwargs": {"s3": {"addressing_style": "hosted"}}})
    assert client_options("s3", {"verify": True})[0] == {}
    assert client_options("s3", {"client_kwargs": {"verify": False}})[0] == {"allow_invalid_certificates": "true"}
    assert client_options("s3", {"verify": "/etc/ca.pem"})[0] == {"ca_bundle": "/etc/ca.pem"}
    # A bucket cannot be part of a numeric address, and no request goes to another address instead.
    hosted = {**s3_options, "config_kwargs": {"s3": {"addressing_style": "virtual"}}}
    with pytest.raises(ValueError, match="cannot be part of the host name"):
        shale.Blob("shale+s3://bucket/hosted", **{**hosted, "endpoint_url": "http://127.0.0.1:1"}).read()
    with pytest.raises(ValueError, match="no certificate"):
        (tmp_path / "empty").write_bytes(b"")
        shale.Blob("shale+s3://bucket/trusted", **{**s3_options, "verify": tmp_path / "empty"}).read()


def test_a_write_that_is_cancelled_is_made_whole_or_not_at_all(place):
    url = f"{place}/cancelled"
    noise = random.Random(3).randbytes(24 << 20)
    shale.Blob(url).put(b"before")

    async def main():
        files = file_system(url, asynchronous=True, skip_instance_cache=True)
        path = files._strip_protocol(url)
        write = asyncio.ensure_future(files._pipe_file(path, noise))
        await asyncio.sleep(0)
        assert not write.done()
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        found = await files._cat_file(path)
        # A request that has reached the commit cannot be cancelled.
        assert found in {b"before", noise}
        await files._pipe_file(path, b"after")
        assert await files._cat_file(path) == b"after"
        return found

    found = asyncio.run(main())
    assert [shale.Blob(url).read(at=entry["version"]) for entry in shale.Blob(url).versions()][-2:] == [found, b"after"]


def test_a_write_that_fails_changes_nothing(place):
    url = f"{place}/failed"
    shale.Blob(url).put(b"before")
    files = file_system(url)
    path = files._strip_protocol(url)
    with pytest.raises(RuntimeError), files.open(path, "wb", block_size=1 << 20) as file:
        file.write(random.Random(3).randbytes(5 << 20))
        raise RuntimeError
    with pytest.raises(RuntimeError), files.transaction:
        files.open(path, "wb").write(b"never")
        raise RuntimeError
    assert shale.Blob(url).read() == b"before"
    new = path + "-new"
    with pytest.raises(RuntimeError), files.open(new, "wb", block_size=1 << 20) as file:
        file.write(random.Random(3).randbytes(3 << 20))
        raise RuntimeError
    assert not files.exists(new)


def test_damage_is_an_error_and_never_zeroes(tmp_path):
    blob = shale.Blob(f"shale+file://{tmp_path}/damaged")
    blob.put(random.Random(5).randbytes(300_000))
    [pack] = [path for path in tmp_path.rglob("p/*/*") if path.is_file()]
    bytes_ = bytearray(pack.read_bytes())
    bytes_[150_000] ^= 1
    pack.write_bytes(bytes_)
    again = f"shale+file://{tmp_path}/damaged"
    ranges = fsspec.filesystem("shale+file").cat_ranges([f"{tmp_path}/damaged"] * 2, [0, 140_000], [10, 140_010])
    assert len(ranges[0]) == 10 and isinstance(ranges[1], shale.DamagedError)
    with pytest.raises(OSError, match="checksum"):
        shale.Blob(again).read()
    assert shale.Blob(again).verify()["damaged"][0][0] == 131_072
    for copy in (lambda: fsspec.filesystem("shale+file").cp_file(f"{tmp_path}/damaged", f"{tmp_path}/copy"),
                 lambda: fsspec.filesystem("shale+file").get_file(f"{tmp_path}/damaged", f"{tmp_path}/got")):
        with pytest.raises(shale.DamagedError, match="checksum"):
            copy()
    assert not fsspec.filesystem("shale+file").exists(f"{tmp_path}/copy")


def test_staged_parts_become_one_version(place):
    blob = shale.Blob(f"{place}/staged")
    blob.put(b"." * 1_000_000)
    parts = [blob.stage(start, DATA[start:start + 100_000]) for start in range(0, 1_000_000, 100_000)]
    assert blob.read() == b"." * 1_000_000
    parts = pickle.loads(pickle.dumps(parts))
    assert all(len(pickle.dumps(part)) < 1000 for part in parts)
    committed = blob.commit([parts[0], *parts[3:]], "some")
    assert committed == shale.Committed(2, 0, 1_000_000)
    assert blob.read() == DATA[:100_000] + b"." * 200_000 + DATA[300_000:1_000_000]
    assert blob.commit([part.at(part.offset) for part in parts], how="put").version == 3
    assert blob.read() == DATA[:1_000_000]
    appended = blob.commit([blob.stage(0, b"tail"), blob.stage(4, b"end")], how="append")
    assert appended.offset == 1_000_000 and blob.read(-7) == b"tailend"
    with pytest.raises(ValueError, match="overlap"):
        blob.commit([parts[0], parts[1].at(50)])
    other = shale.Blob(f"{place}/other")
    with pytest.raises(ValueError, match="another blob"):
        other.commit(parts)
    assert blob.verify()["damaged"] == []


def test_hundreds_of_staged_parts_are_one_version():
    blob = shale.Blob(f"shale+memory://{uuid.uuid4().hex}")
    noise = random.Random(11).randbytes(400 * 5000)
    blob.put(b"")
    parts = [blob.stage(start, noise[start:start + 5000]) for start in range(0, len(noise), 5000)]
    random.Random(2).shuffle(parts)
    assert blob.commit(parts).version == 2
    assert blob.read() == noise


def test_the_same_commit_made_again_is_made_once(place):
    blob = shale.Blob(f"{place}/once")
    blob.put(b"0")
    _, born, _, operation = blob._store.begin(blob.key)
    part = blob.stage(0, b"once")
    first = blob.commit([part], how="append", op=operation, again=born)
    assert blob.commit([part], how="append", op=operation, again=born) == first
    assert blob.read() == b"0once"


def test_pickles_have_no_secrets(s3_options, bucket):
    options = {**s3_options, "token": None}
    files = fsspec.filesystem("shale+s3", **options)
    files.pipe(f"{bucket}/pickled", b"secretless")
    with files.open(f"{bucket}/pickled") as opened:
        blob = shale.Blob(f"shale+s3://{bucket}/pickled", **s3_options)
        for thing in (files, opened, blob, fsspec.open(f"shale+s3://{bucket}/pickled", **options)):
            pickled = pickle.dumps(thing)
            assert s3_options["secret"].encode() not in pickled, thing
            assert s3_options["key"].encode() not in pickled, thing
            pickle.loads(pickled)
        assert s3_options["secret"] not in files.to_json() and s3_options["secret"] not in repr(files)
        assert pickle.loads(pickle.dumps(opened)).read() == b"secretless"
    assert pickle.loads(pickle.dumps(files)).cat(f"{bucket}/pickled") == b"secretless"
    # A process that was not forked has only its own environment, which names the server and the
    # keys.
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read().decode())"
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(blob), capture_output=True, check=True)
    assert out.stdout == b"secretless\n"


def _in_child(url, opened, queue):
    try:
        queue.put((opened.read(), shale.Blob(url).append(b" child").version, opened.fs.cat(opened.path)))
    except BaseException as error:  # noqa: BLE001
        queue.put(repr(error))


def test_a_forked_process_goes_on(tmp_path, server):
    for place in (f"shale+file://{tmp_path}/blobs", f"shale+s3://bucket/{uuid.uuid4().hex}"):
        url = f"{place}/forked"
        shale.Blob(url).put(DATA)
        with fsspec.open(url) as opened:
            assert opened.read(10) == DATA[:10]
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            children = [context.Process(target=_in_child, args=(url, opened, queue)) for _ in range(3)]
            for child in children:
                child.start()
            got = [queue.get(timeout=120) for _ in children]
            for child in children:
                child.join()
            assert sorted(version for _, version, _ in got) == [2, 3, 4], got
            assert all(rest == DATA[10:] for rest, _, _ in got)
            assert opened.read() == DATA[10:]
        assert shale.Blob(url).read(-6) == b" child"


def test_the_lock_of_the_interpreter_is_free_while_bytes_move():
    blob = shale.Blob(f"shale+memory://{uuid.uuid4().hex}", properties={"compression": "bzip2-9"})
    counted, done = 0, threading.Event()

    def work():
        blob.put(DATA * 4)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 100


def test_memory_is_bounded(tmp_path):
    """192 MiB go through a process that may have 96 MiB more than it began with."""
    code = f"""
import random, resource, shale
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
piece = random.Random(1).randbytes(4 << 20)
blob = shale.Blob("shale+file://{tmp_path}/large")
blob.put(b"x"); blob.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
upload = blob.upload()
for _ in range(96): upload.write(piece)
blob.commit([upload.stage()], how="put")
import fsspec
with fsspec.open("shale+file://{tmp_path}/large") as file:
    while file.read(8 << 20): pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert int(out) < 256, f"{out} MiB"


def test_options_of_s3fs_and_of_the_store_mean_the_same(s3_options, bucket, server, monkeypatch):
    fsspec.filesystem("shale+s3", **s3_options).pipe(f"{bucket}/named", b"x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name)
    names = {
        "aws_access_key_id": server["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": server["AWS_SECRET_ACCESS_KEY"],
        "aws_endpoint": server["AWS_ENDPOINT_URL"], "aws_region": "us-east-1",
    }
    assert fsspec.filesystem("shale+s3", **names).cat(f"{bucket}/named") == b"x"
    assert fsspec.filesystem("shale+s3", **s3_options, skip_instance_cache=True).cat(f"{bucket}/named") == b"x"
    wrong = {**s3_options, "secret": "wrong"}
    with pytest.raises(PermissionError):
        fsspec.filesystem("shale+s3", **wrong).cat(f"{bucket}/named")
    with pytest.raises(ValueError, match="no_such_option"):
        fsspec.filesystem("shale+s3", no_such_option=1).cat(f"{bucket}/named")


def test_listings_show_blobs_and_no_objects_below_them(place):
    files = file_system(place)
    root = files._strip_protocol(place)
    for name in ("a", "dir/b", "dir/deep/c"):
        files.pipe(f"{root}/{name}", name.encode())
    assert files.find(root) == [f"{root}/a", f"{root}/dir/b", f"{root}/dir/deep/c"]
    assert [info["type"] for info in files.ls(root, detail=True)] == ["file", "directory"]
    assert files.glob(f"{root}/*/*") == [f"{root}/dir/b", f"{root}/dir/deep"]
    files.rm(f"{root}/dir", recursive=True)
    assert files.ls(root, detail=False) == [f"{root}/a"] and not files.isdir(f"{root}/dir")
    files.pipe(f"{root}/dir", b"now a blob")
    assert files.cat(f"{root}/dir") == b"now a blob"
    assert os.path.basename(files.ls(f"{root}/dir")[0]["name"]) == "dir"


def text_of(length):
    """Compressible bytes without repeated frames."""
    return b"".join(b"%08d: the quick brown fox\n" % number for number in range(length // 30 + 1))[:length]


def test_reading_on_reads_ahead_and_gives_the_same_bytes(place):
    url, data = f"{place}/ahead", text_of(20 << 20)
    shale.Blob(url).put(data)
    for size in (1, 999, 128 << 10, 5_000_000, 32 << 20):
        with fsspec.open(url, block_size=1 << 20) as file:
            stop = len(data) if size > 500 else 40_000
            got = []
            while (at := file.tell()) < stop:
                got.append(file.read(size))
                assert got[-1] == data[at:at + size]
            assert b"".join(got)[:stop] == data[:stop]


def test_a_file_holds_no_more_than_it_may_and_drops_it_at_a_jump(place):
    url, data = f"{place}/bounded", text_of(40 << 20)
    shale.Blob(url).put(data)
    bound = 6 << 20
    with file_system(url).open(url, cache_options={"read_ahead": bound}) as file:
        most = 0
        for at in range(0, 16 << 20, 64 << 10):
            assert file.read(64 << 10) == data[at:at + (64 << 10)]
            most = max(most, file._reader.held)
        assert 2 << 20 <= most <= bound
        # A seek to data that is no longer in memory.
        file.seek(100)
        assert file.read(50) == data[100:150]
        assert file._reader.held == 0
        file.seek(30 << 20)
        assert file.read() == data[30 << 20:]
    with file_system(url).open(url, cache_options={"read_ahead": 0}) as file:
        assert file.read(10) == data[:10] and file.read(10) == data[10:20]
        assert file._reader.held <= 4 << 20
    for cache_type in ("readahead", "bytes", "none", "all"):
        with file_system(url).open(url, cache_type=cache_type) as file:
            assert file.read(1000) == data[:1000]
            file.seek(17 << 20)
            assert file.read(1000) == data[17 << 20:(17 << 20) + 1000]


def test_random_reads_of_a_file_fetch_little(bucket):
    url, data = f"shale+s3://{bucket}/random", random.Random(5).randbytes(24 << 20)
    shale.Blob(url).put(data)
    file = fsspec.open(url).open()
    store = file.fs._split(file.path)[0]
    before = store.requests()["bytes_down"]
    for seed in range(20):
        at = random.Random(seed).randrange(len(data) - 100)
        file.seek(at)
        assert file.read(100) == data[at:at + 100]
    assert store.requests()["bytes_down"] - before <= 25 * (128 << 10)


def test_threads_share_a_file_for_reading(place):
    url, data = f"{place}/shared", text_of(8 << 20)
    shale.Blob(url).put(data)
    file = fsspec.open(url).open()
    wrong = []

    def work(number):
        for turn in range(30):
            at = (number * 1_000_003 + turn * 300_007) % (len(data) - 5000)
            if file._fetch_range(at, at + 5000) != data[at:at + 5000]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("how", ["small", "large", "text", "gzip", "append"])
def test_a_block_that_an_exception_leaves_makes_no_version(place, how):
    url = f"{place}/left"
    blob = shale.Blob(url)
    blob.put(b"before")
    more = {"small": {}, "large": {"block_size": 1 << 20}, "text": {}, "gzip": {"compression": "gzip"}, "append": {}}[how]
    mode = {"text": "w", "append": "ab"}.get(how, "wb")
    data = DATA.decode() if mode == "w" else DATA * 4 if how == "large" else DATA
    with pytest.raises(RuntimeError, match="in the middle"), fsspec.open(url, mode, **more) as file:
        file.write(data)
        raise RuntimeError("in the middle")
    assert blob.read() == b"before" and len(blob.versions()) == 1
    with pytest.raises(RuntimeError), file_system(url).open(url, "wb") as file:
        file.write(DATA)
        raise RuntimeError
    assert blob.read() == b"before"
    # An exception that was handled elsewhere does not count.
    try:
        raise RuntimeError
    except RuntimeError:
        with fsspec.open(url, mode, **more) as file:
            file.write(data)
    assert len(blob.versions()) == 2


@pytest.mark.parametrize("how", ["small", "large", "text", "gzip", "text+gzip", "append", "new"])
def test_a_file_that_is_dropped_makes_no_version(place, how):
    url = f"{place}/dropped"
    blob = shale.Blob(url)
    blob.put(b"before")
    more = {"large": {"block_size": 1 << 20}, "gzip": {"compression": "gzip"}, "text+gzip": {"compression": "gzip"}}.get(how, {})
    mode = {"text": "w", "text+gzip": "wt", "append": "ab", "new": "xb"}.get(how, "wb")
    data = DATA.decode() if mode in {"w", "wt"} else DATA * 4 if how == "large" else DATA

    def fails():
        file = fsspec.open(f"{url}-new" if how == "new" else url, mode, **more).open()
        file.write(data)
        raise RuntimeError

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError) as raised:
            fails()
        del raised
        gc.collect()
    assert [str(one.message) for one in told if "was not closed" in str(one.message) and one.category is ResourceWarning]
    assert blob.read() == b"before" and len(blob.versions()) == 1
    assert not file_system(place).exists(f"{url}-new")
    # Closed data is committed, and a reader that is dropped gives no warning.
    file = fsspec.open(url, mode if mode != "xb" else "wb", **more).open()
    file.write(data)
    file.close()
    assert len(blob.versions()) == 2
    assert fsspec.open(url, "rb").open().read(3)


CREATOR = """
import sys, fsspec
files = fsspec.filesystem(sys.argv[1].partition("://")[0])
how, url = sys.argv[2], sys.argv[1]
data = b"mine" * (2_000_000 if "large" in how else 1)
print("ready", flush=True)
sys.stdin.readline()
try:
    if how == "pipe":
        # The check before the write finds nothing: the log decides.
        files.pipe_file(url, data, mode="create")
    else:
        with files.open(url, "xb") as file:
            file.write(data)
            print("open", flush=True)
            sys.stdin.readline()
    print("made")
except FileExistsError:
    print("exists")
"""


@pytest.mark.parametrize("how", ["small", "large", "pipe"])
def test_one_of_several_processes_creates_a_blob(tmp_path, how):
    url = f"shale+file://{tmp_path}/blobs/new"
    words = [sys.executable, "-c", CREATOR, url, how]
    makers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    # All of them have the file open before the first one closes it.
    for word in ("ready",) if how == "pipe" else ("ready", "open"):
        assert [maker.stdout.readline().strip() for maker in makers] == [word] * 4
        for maker in makers:
            maker.stdin.write("go on\n")
            maker.stdin.flush()
    told = sorted(maker.communicate(timeout=120)[0].strip() for maker in makers)
    assert told == ["exists"] * 3 + ["made"]
    blob = shale.Blob(url)
    assert len(blob.versions()) == 1 and blob.read(0, 4) == b"mine"
    # put_file checks first, and a removed blob can be created again.
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    files = file_system(url)
    with pytest.raises(FileExistsError):
        files.put_file(str(source), url, mode="create")
    files.rm(url)
    files.put_file(str(source), url, mode="create")
    assert files.cat(url) == b"from a file"


def test_holes_of_files_stay_holes_on_both_ways(place, tmp_path):
    """A file of 64 GiB with 3 MiB of data: reading or writing its holes would take minutes and fill the disk."""
    size, pieces = (64 << 30) + 7, {0: b"begin", (1 << 20) + 5: DATA, 40 << 30: DATA[:9]}
    source, target = tmp_path / "sparse", tmp_path / "back"
    with open(source, "wb") as file:
        for at, piece in pieces.items():
            file.seek(at)
            file.write(piece)
        file.truncate(size)
    files = file_system(place)
    path = files._strip_protocol(f"{place}/sparse")
    seen = fsspec.Callback()
    files.put_file(str(source), path, callback=seen)
    assert seen.value == seen.size == size
    blob = files.blob(path)
    assert blob.info()["size"] == size and blob.log()[-1]["stored"] < len(DATA)
    for at, piece in pieces.items():
        assert blob.read(at, at + len(piece) + 3) == piece + bytes(3)
    assert blob.verify()["damaged"] == []
    files.cp_file(path, path + "-copied")
    seen = fsspec.Callback()
    files.get_file(path + "-copied", str(target), callback=seen)
    assert seen.value == seen.size == target.stat().st_size == size
    assert target.stat().st_blocks * 512 < 64 << 20
    with open(target, "rb") as file:
        for at, piece in pieces.items():
            file.seek(at)
            assert file.read(len(piece) + 3) == piece + bytes(3)


def test_what_is_no_regular_file_gets_zeroes(tmp_path):
    blob = shale.Blob(f"shale+file://{tmp_path}/zeroes")
    upload = blob.upload()
    upload.write(b"a")
    assert upload.zeroes(2_000_000) == 2_000_000
    upload.write(b"b")
    blob.commit([upload.stage()], how="put")
    expected, out = b"a" + bytes(2_000_000) + b"b", io.BytesIO()
    assert blob.read() == expected
    version = blob.open_version()
    assert [version.next_data(at) for at in (0, 200_000, 2_000_002)] == [0, 15 * 131_072, 2_000_002]
    fsspec.filesystem("shale+file").get_file(f"{tmp_path}/zeroes", out)
    assert out.getvalue() == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    fsspec.filesystem("shale+file").get_file(f"{tmp_path}/zeroes", str(pipe))
    reader.join()
    assert got == [expected]
