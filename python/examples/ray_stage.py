"""The same staged parts on Ray: tasks stage, and the driver commits one version."""

import sys
import tempfile

import ray

import shale


@ray.remote
def stage(blob, number):
    return blob.stage(number * 1_000_000, bytes([65 + number]) * 1_000_000)


with tempfile.TemporaryDirectory() as work:
    blob = shale.Blob(sys.argv[1] if len(sys.argv) > 1 else f"shale+file://{work}/blob")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    committed = blob.commit(ray.get([stage.remote(blob, number) for number in range(4)]), "by Ray", how="put")
    ray.shutdown()
    print("version", committed.version, "of", committed.length, "bytes")
    assert blob.read(2_999_999, 3_000_001) == b"CD"
