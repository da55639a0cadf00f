"""A field of NetCDF and a zarr archive, each in one blob, read by range: xarray with h5netcdf, and zarr's ZipStore."""

import io
import sys
import tempfile

import fsspec
import numpy as np
import xarray as xr
import zarr

url = sys.argv[1] if len(sys.argv) > 1 else "shale+memory://examples/field.nc"

field = xr.Dataset({"t": (("time", "x"), np.arange(50_000.0).reshape(50, 1000))})
out = io.BytesIO()
field.to_netcdf(out, engine="h5netcdf")
with fsspec.open(url, "wb") as file:
    file.write(out.getvalue())
with fsspec.open(url) as file, xr.open_dataset(file, engine="h5netcdf") as opened:
    print("mean of one step:", float(opened.t.isel(time=3).mean()))
    xr.testing.assert_identical(opened.load(), field)

# A zarr archive with uncompressed entries: each chunk is one read, and the frames below compress
# it.
with tempfile.TemporaryDirectory() as directory:
    with zarr.storage.ZipStore(f"{directory}/array.zip", mode="w") as store:
        zarr.create_array(store, shape=(50, 1000), chunks=(1, 1000), dtype="f8", compressors=None)[:] = field.t.values
    files, path = fsspec.url_to_fs(f"{url}.zip")
    files.put_file(f"{directory}/array.zip", path)
assert (zarr.open_array(f"zip::{url}.zip", mode="r")[3] == field.t[3].values).all()
print("one chunk of the archive read by range")
