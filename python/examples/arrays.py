"""A field of NetCDF and a zarr archive, each in one blob, read by range: xarray with h5netcdf, and zarr's ZipStore."""

import io
import sys
import zipfile

import fsspec
import numpy as np
import xarray as xr

url = sys.argv[1] if len(sys.argv) > 1 else "shale+memory://examples/field.nc"

field = xr.Dataset({"t": (("time", "x"), np.arange(50_000.0).reshape(50, 1000))})
out = io.BytesIO()
field.to_netcdf(out, engine="h5netcdf")
with fsspec.open(url, "wb") as file:
    file.write(out.getvalue())
with fsspec.open(url) as file, xr.open_dataset(file, engine="h5netcdf") as opened:
    print("mean of one step:", float(opened.t.isel(time=3).mean()))
    xr.testing.assert_identical(opened.load(), field)

# An archive with stored entries: each chunk is one read, and the frames below compress it.
archive = f"{url}.zip"
with fsspec.open(archive, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as entries:
    entries.writestr("c/0", field.t.values.tobytes())
with fsspec.open(archive) as file, zipfile.ZipFile(file) as entries:
    assert np.frombuffer(entries.read("c/0")).sum() == field.t.sum()
print("archive version 1 read back")
