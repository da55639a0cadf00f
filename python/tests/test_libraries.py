"""Libraries that read in place: pandas, pyarrow, DuckDB, xarray, zarr. Each reads the same file through s3fs and through the
package, and must get the same result; the tests count the transferred bytes."""

import io

import fsspec
import pytest

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
xr = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
duckdb = pytest.importorskip("duckdb")
pytest.importorskip("s3fs")

ROWS = 300_000


@pytest.fixture
def both(s3_options, bucket):
    """Stores bytes as an object for s3fs and as a blob; returns (s3fs, ours, path of the object, path of the blob)."""
    raw, ours = fsspec.filesystem("s3", **s3_options), fsspec.filesystem("shale+s3", **s3_options)

    def store(name, data):
        raw.pipe(f"{bucket}/raw/{name}", data)
        ours.pipe(f"{bucket}/{name}", data)
        return raw, ours, f"{bucket}/raw/{name}", f"{bucket}/{name}"

    return store


def table():
    rng = np.random.default_rng(3)
    return pd.DataFrame({
        "id": np.arange(ROWS), "value": rng.normal(size=ROWS), "kind": rng.choice(["red", "green", "blue"], ROWS),
        "noise": rng.integers(0, 1 << 60, ROWS),
    })


def test_pandas_and_pyarrow_read_columns_by_range(both, s3_options):
    import pyarrow.parquet as pq

    frame, out = table(), io.BytesIO()
    frame.to_parquet(out, row_group_size=ROWS // 6, index=False)
    raw, ours, there, here = both("table.parquet", out.getvalue())
    by_s3fs = pd.read_parquet(f"s3://{there}", columns=["id", "kind"], storage_options=s3_options)
    by_us = pd.read_parquet(f"shale+s3://{here}", columns=["id", "kind"], storage_options=s3_options)
    pd.testing.assert_frame_equal(by_s3fs, by_us)
    pd.testing.assert_frame_equal(by_us, frame[["id", "kind"]])
    store = ours.blob(here)._store
    before = store.requests()["bytes_down"]
    through = pq.read_table(here, filesystem=pa.fs.PyFileSystem(pa.fs.FSSpecHandler(ours)), columns=["kind"])
    assert through.num_rows == ROWS
    assert store.requests()["bytes_down"] - before < len(out.getvalue()) / 2
    pd.read_parquet(f"shale+s3://{here}@1", columns=["id"], storage_options=s3_options)
    # Written in place, too.
    frame.head(1000).to_parquet(f"shale+s3://{here}", storage_options=s3_options)
    assert len(pd.read_parquet(f"shale+s3://{here}", storage_options=s3_options)) == 1000
    assert len(pd.read_parquet(f"shale+s3://{here}@1", storage_options=s3_options)) == ROWS


def test_csv_goes_both_ways(both, s3_options):
    frame = table().head(5000)
    _, ours, there, here = both("table.csv", frame.to_csv(index=False).encode())
    by_us = pd.read_csv(f"shale+s3://{here}", storage_options=s3_options)
    pd.testing.assert_frame_equal(by_us, pd.read_csv(f"s3://{there}", storage_options=s3_options))
    by_us.to_csv(f"shale+s3://{here}", index=False, storage_options=s3_options)
    assert ours.cat(f"{here}@1") == ours.cat(f"{here}@2")


def test_duckdb_reads_and_writes(both, s3_options):
    out = io.BytesIO()
    table().to_parquet(out, row_group_size=ROWS // 6, index=False)
    raw, ours, there, here = both("duck.parquet", out.getvalue())
    base = duckdb.connect()
    base.register_filesystem(raw)
    base.register_filesystem(ours)
    query = "select kind, count(*), sum(id) from read_parquet('{}') group by kind order by kind"
    assert base.sql(query.format(f"shale+s3://{here}")).fetchall() == base.sql(query.format(f"s3://{there}")).fetchall()
    base.sql(f"copy (select 1 as one, 'two' as two) to 'shale+s3://{here}-out' (format parquet)")
    assert base.sql(f"select * from read_parquet('shale+s3://{here}-out')").fetchall() == [(1, "two")]


def test_xarray_opens_netcdf_and_reads_a_slice(both):
    rng = np.random.default_rng(4)
    smooth = np.cumsum(rng.normal(size=(60, 200, 200)), axis=2).astype("f4")
    data = xr.Dataset({"t": (("time", "y", "x"), smooth)}, {"time": np.arange(60)})
    out = io.BytesIO()
    data.to_netcdf(out, engine="h5netcdf", encoding={"t": {"chunksizes": (1, 200, 200)}})
    raw, ours, there, here = both("field.nc", out.getvalue())
    store = ours.blob(here)._store
    before = store.requests()["bytes_down"]
    with ours.open(here) as file, xr.open_dataset(file, engine="h5netcdf") as by_us:
        with raw.open(there) as other, xr.open_dataset(other, engine="h5netcdf") as by_s3fs:
            slice_ = {"time": slice(10, 20)}
            xr.testing.assert_identical(by_us.isel(slice_).load(), by_s3fs.isel(slice_).load())
        read = store.requests()["bytes_down"] - before
        xr.testing.assert_identical(by_us.load(), data)
    assert read < len(out.getvalue())


def test_zarr_in_one_blob_is_a_versioned_array(both, tmp_path, s3_options):
    path = tmp_path / "array.zip"
    with zarr.storage.ZipStore(path, mode="w") as store:
        array = zarr.create_array(store, shape=(400, 400), chunks=(100, 100), dtype="i4", compressors=None)
        array[:] = np.arange(160_000).reshape(400, 400)
    raw, ours, there, here = both("array.zip", path.read_bytes())
    from zipfile import ZipFile

    def read(files, name):
        # The entries are stored uncompressed: each chunk is one read by range.
        with files.open(name) as file, ZipFile(file) as archive:
            chunk = np.frombuffer(archive.read("c/1/2"), "i4").reshape(100, 100)
        local = tmp_path / "local.zip"
        files.get_file(name, str(local))
        with zarr.storage.ZipStore(local, mode="r") as store:
            return chunk, zarr.open_array(store, mode="r")[:]

    for by_us, by_s3fs in zip(read(ours, here), read(raw, there), strict=True):
        np.testing.assert_array_equal(by_us, by_s3fs)
    # zarr itself, in place: one chunk transfers only its own bytes, and a version never changes.
    whole = np.arange(160_000).reshape(400, 400)
    before = ours.blob(here)._store.requests()["bytes_down"]
    in_place = {"store": f"zip::shale+s3://{here}@1", "mode": "r", "storage_options": {"shale+s3": s3_options}}
    opened = zarr.open_array(**in_place)
    np.testing.assert_array_equal(opened[100:200, 200:300], whole[100:200, 200:300])
    assert 0 < ours.blob(here)._store.requests()["bytes_down"] - before < path.stat().st_size / 2
    ours.pipe(here, b"no archive any more")
    np.testing.assert_array_equal(zarr.open_array(**in_place)[:], whole)
    info = ours.blob(here).log()[0]
    assert info["stored"] < info["written"], "frames below the archive compress the remaining redundancy"
