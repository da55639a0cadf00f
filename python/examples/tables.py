"""A table of parquet in a blob, with versions: pandas writes, DuckDB and pyarrow read columns by range."""

import sys

import duckdb
import fsspec
import pandas as pd
import pyarrow.fs
import pyarrow.parquet as pq

url = sys.argv[1] if len(sys.argv) > 1 else "shale+memory://examples/table.parquet"

frame = pd.DataFrame({"city": ["Oslo", "Lima", "Pune"] * 1000, "mm": range(3000)})
frame.to_parquet(url, index=False)
frame.assign(mm=frame.mm * 2).to_parquet(url, index=False)

files, path = fsspec.core.url_to_fs(url)
duckdb.register_filesystem(files)
query = "select city, sum(mm) from read_parquet('{}') group by city order by city"
for version in (1, 2):
    print("version", version, duckdb.sql(query.format(f"{url}@{version}")).fetchall())
column = pq.read_table(path, filesystem=pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files)), columns=["mm"])
assert column.num_rows == 3000 and pd.read_parquet(f"{url}@1").equals(frame)
