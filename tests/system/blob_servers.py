"""Blobs on other makers' stores: MinIO, SeaweedFS, Ceph, and azurite, which speaks Azure's protocol. Only in `make e2e`, which sets SHALE_E2E: installing them takes minutes."""

import os

from harness import test
from harness.objectstore import BUCKET, Service

from .blob_keep import keeping, many_appends
from .blobs import Store, crash_in_mid_append, own_state, writers


def everything(t, kind):
    """Writers with kills of clients and of the whole server in mid-append; then all commands that keep versions."""
    server = Service(t, kind)
    environment = own_state(t, server.environment())
    store = Store(t, f"s3://{BUCKET}/dir", environment)
    writers(t, store, "shared", processes=6, rounds=2)
    writers(t, store, "killed", processes=6, rounds=2, kill=0.5)
    keeping(t, store, Store(t, f"file://{t.dir}/elsewhere", environment))
    many_appends(t, store)
    writers(t, store, "crashed", processes=4, rounds=2, server=server)
    crash_in_mid_append(t, store, "long", server)


def another_protocol(t, kind, scheme):
    """Writers, kills of clients, and all commands that keep versions, on a server that does not speak S3."""
    server = Service(t, kind)
    environment = own_state(t, server.environment())
    store = Store(t, f"{scheme}://{BUCKET}/dir", environment)
    writers(t, store, "shared", processes=6, rounds=2)
    writers(t, store, "killed", processes=6, rounds=2, kill=0.5)
    keeping(t, store, Store(t, f"file://{t.dir}/elsewhere", environment))
    many_appends(t, store)


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=3600)
    def e2e_blob_azure(t):
        """Writers, kills and every command on azurite, which speaks Azure's protocol"""
        another_protocol(t, "azurite", "az")

    @test(seconds_max=3600)
    def e2e_blob_minio(t):
        """Writers, kills, crashes and every command on MinIO"""
        everything(t, "minio")

    @test(seconds_max=3600)
    def e2e_blob_seaweed(t):
        """Writers, kills, crashes and every command on SeaweedFS"""
        everything(t, "seaweed")

    @test(seconds_max=3600)
    def e2e_blob_ceph(t):
        """Writers, kills, crashes and every command on Ceph with three replicas"""
        everything(t, "ceph")
