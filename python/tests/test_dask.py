"""`shale.dask` on a cluster of two processes and an S3 server: one version, workers that die, jobs that go on."""

import contextlib
import os
import random
import signal

import pytest

distributed = pytest.importorskip("distributed")

import fsspec  # noqa: E402

import shale  # noqa: E402
import shale.dask  # noqa: E402

MIB = 1 << 20


@pytest.fixture(scope="module")
def client(server):
    # Workers need their settings before they start: they are processes of their own, with this
    # environment.
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit="1GiB") as cluster:
        with distributed.Client(cluster) as client:
            yield client


@pytest.fixture
def sources(tmp_path):
    """Creates files, and returns them with their concatenated content."""
    rng, whole, urls = random.Random(8), b"", []
    for number, size in enumerate([5 * MIB + 3, 0, 9 * MIB]):
        text = "".join(f"line {line * 7919} of {rng.randrange(1000)}\n" for line in range(size // 40)).encode()
        data = rng.randbytes(size // 2) + text
        path = tmp_path / f"source-{number}"
        path.write_bytes(data)
        whole += data
        urls.append(f"file://{path}")
    return urls, whole


def test_ingest_verify_recompress_and_copy(client, sources, bucket, tmp_path):
    urls, whole = sources
    target = f"shale+s3://{bucket}/ingested"
    done = shale.dask.ingest(urls, target, client=client, part_bytes=MIB, state=tmp_path, message="from three files")
    blob = shale.Blob(target)
    assert done["committed"].version == 1 and done["parts"] >= 14 and blob.read() == whole
    assert [entry["message"] for entry in blob.versions()] == ["from three files"]
    assert done["offsets"][urls[2]] == len(whole) - os.path.getsize(urls[2][7:])
    assert not list((tmp_path / "shale/jobs").iterdir())
    report = shale.dask.verify(target, client=client, part_bytes=2 * MIB)
    assert report["damaged"] == [] and report["frames"] >= len(whole) // 131_072
    before = blob.log()[-1]["stored"]
    again = shale.dask.recompress(target, client=client, part_bytes=4 * MIB, state=tmp_path)
    assert (again["committed"].offset, again["committed"].length) == (0, len(whole))
    assert blob.read() == whole and len(blob.versions()) == 1
    assert blob.log()[-1]["operations"][0][0] == "rewrite" and blob.log()[-1]["stored"] < before
    copied = shale.dask.copy(target, f"shale+s3://{bucket}/copied", client=client, part_bytes=3 * MIB, state=tmp_path)
    assert copied["committed"].version == 1 and shale.Blob(f"shale+s3://{bucket}/copied").read() == whole
    appended = shale.dask.ingest(urls[:1], target, client=client, how="append", state=tmp_path)
    assert appended["committed"].offset == len(whole)


def test_a_killed_worker_costs_time_and_no_data(client, sources, bucket, tmp_path):
    urls, whole = sources
    target = f"shale+s3://{bucket}/killed"
    workers = sorted(client.run(os.getpid).values())
    killed = []
    add = shale.dask.Journal.add

    def add_and_kill(journal, number, part):
        add(journal, number, part)
        if not killed:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shale.dask.Journal, "add", add_and_kill)
        done = shale.dask.ingest(urls, target, client=client, part_bytes=MIB // 2, state=tmp_path)
    assert killed and done["committed"].version == 1
    blob = shale.Blob(target)
    assert blob.read() == whole and len(blob.versions()) == 1

    def replaced():
        # The scheduler may not have noticed yet, and then cannot reach it.
        with contextlib.suppress(OSError):
            running = set(client.run(os.getpid).values())
            return len(running) == 2 and workers[0] not in running
        return False

    assert any(replaced() for _ in range(10_000)), "the cluster has no new worker"


class Stop(Exception):
    pass


def test_a_job_that_was_broken_off_goes_on_and_commits_once(client, sources, bucket, tmp_path, monkeypatch):
    urls, whole = sources
    target = f"shale+s3://{bucket}/resumed"
    commit = shale.dask.Journal.commit

    def committed_and_died(journal, *arguments, **more):
        commit(journal, *arguments, **more)
        raise Stop

    def died(journal, *arguments, **more):
        raise Stop

    job = {"client": client, "part_bytes": MIB, "state": tmp_path, "how": "append"}
    monkeypatch.setattr(shale.dask.Journal, "commit", died)
    with pytest.raises(Stop):
        shale.dask.ingest(urls, target, **job)
    assert not fsspec.filesystem("shale+s3").exists(target)
    # Again, and it dies after the commit, with its file still there.
    monkeypatch.setattr(shale.dask.Journal, "commit", committed_and_died)
    unlink = shale.dask.Path.unlink
    monkeypatch.setattr(shale.dask.Path, "unlink", lambda *_, **__: None)
    with pytest.raises(Stop):
        shale.dask.ingest(urls, target, **job)
    monkeypatch.setattr(shale.dask.Path, "unlink", unlink)
    monkeypatch.setattr(shale.dask.Journal, "commit", commit)
    done = shale.dask.ingest(urls, target, **job)
    assert done["resumed_parts"] == done["parts"] > 10
    blob = shale.Blob(target)
    assert done["committed"].version == 1 and len(blob.versions()) == 1 and blob.read() == whole


def test_a_version_as_the_target_is_refused_before_any_work(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"some bytes")
    shale.Blob(f"shale+file://{tmp_path}/blob").put(b"other bytes")
    for job, first in ((shale.dask.ingest, str(source)), (shale.dask.copy, f"shale+file://{tmp_path}/blob")):
        with pytest.raises(ValueError, match="a version never changes"):
            job(first, f"shale+file://{tmp_path}/blob@1", state=str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_a_source_that_shrinks_fails_and_commits_nothing(client, tmp_path, bucket):
    source = tmp_path / "shrinks"
    source.write_bytes(b"x" * 3 * MIB)

    class Shorter(shale.dask.Journal):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            source.write_bytes(b"x" * MIB)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shale.dask, "Journal", Shorter)
        with pytest.raises(OSError, match="ends at byte"):
            shale.dask.ingest(str(source), f"shale+s3://{bucket}/never", client=client, part_bytes=2 * MIB, state=tmp_path)
    assert not fsspec.filesystem("shale+s3").exists(f"{bucket}/never")


@pytest.mark.parametrize("when", ["first", "last"])
def test_a_source_that_is_overwritten_commits_nothing(client, sources, bucket, tmp_path, when):
    urls, whole = sources
    target, changed = f"shale+s3://{bucket}/mixed", []
    count = {"first": 1, "last": sum(-(-os.path.getsize(url[7:]) // MIB) for url in urls)}[when]
    add = shale.dask.Journal.add

    def add_and_change(journal, number, part):
        add(journal, number, part)
        if not changed and len(journal.parts) == count:
            changed.append(number)
            # The same size; an hour later, because a clock may not advance for some milliseconds.
            path = urls[2][7:]
            with open(path, "r+b") as file:
                file.write(b"other bytes")
            then = os.stat(path).st_mtime + 3600
            os.utime(path, (then, then))

    job = {"client": client, "part_bytes": MIB, "state": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shale.dask.Journal, "add", add_and_change)
        with pytest.raises(OSError, match="source-2 changed while it was read"):
            shale.dask.ingest(urls, target, **job)
    assert changed and not fsspec.filesystem("shale+s3").exists(target)
    assert not list((tmp_path / "shale/jobs").iterdir()), "nothing of it is taken up again"
    done = shale.dask.ingest(urls, target, **job)
    at = done["offsets"][urls[2]]
    assert shale.Blob(target).read() == whole[:at] + b"other bytes" + whole[at + 11:] and done["resumed_parts"] == 0


def test_progress_is_shown(client, tmp_path, bucket, capsys):
    source = tmp_path / "small"
    source.write_bytes(b"y" * MIB)
    shale.dask.ingest(str(source), f"shale+s3://{bucket}/shown", client=client, progress=True, state=tmp_path)
    assert "100% Completed" in capsys.readouterr().out
