"""Ingests files with Dask, as one version. With an S3 server in `AWS_*` the workers are processes of their own."""

import os
import sys
import tempfile

from distributed import Client, LocalCluster

import shale
import shale.dask


def main():
    with tempfile.TemporaryDirectory() as work:
        target = sys.argv[1] if len(sys.argv) > 1 else f"shale+file://{work}/blob"
        sources = []
        for number in range(3):
            sources.append(os.path.join(work, f"part-{number}.txt"))
            with open(sources[-1], "w", encoding="utf-8") as file:
                file.writelines(f"{number} {line}\n" for line in range(50_000))
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            done = shale.dask.ingest(sources, target, client=client, part_bytes=1 << 18, state=work)
            print(done["parts"], "parts,", len(shale.Blob(target).versions()), "version,", shale.dask.verify(target, client=client))
        assert shale.Blob(target).read(-8) == b"2 49999\n"


if __name__ == "__main__":
    main()
